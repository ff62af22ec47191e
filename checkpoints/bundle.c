// The files of an export that hold weights, and the record beside them; and reading them back.
#include "checkpoints/export.h"
#include "checkpoints/internal.h"
#include "common/build.h"
#include "common/json.h"
#include "common/util.h"
#include "model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

sp_status sp_rounded_weights(const sp_forecast *w, sp_forecast *out) {
    int64_t n = (w->layers + 1) * w->rows * w->cols;
    *out = (sp_forecast){.layers = w->layers, .rows = w->rows, .cols = w->cols};
    SP_TRY(sp_alloc(&out->w, n, sizeof *out->w, "the exported weights"));
    for (int64_t i = 0; i < n; i++) out->w[i] = sp_bf16_to_f32(sp_f32_to_bf16(w->w[i]));
    return SP_OK;
}

// All matrices as bfloat16, [L+1][rows][cols].
static sp_status bf16_weights(const sp_forecast *w, uint16_t **out) {
    int64_t n = (w->layers + 1) * w->rows * w->cols;
    SP_TRY(sp_alloc(out, n, sizeof **out, "the exported weights"));
    for (int64_t i = 0; i < n; i++) (*out)[i] = sp_f32_to_bf16(w->w[i]);
    return SP_OK;
}

// ---- forecast.safetensors -----------------------------------------------------------------------

static json_t *safetensors_metadata(const sp_train_state *s) {
    json_t *sparse = sp_state_sparse_json(s);
    char *sparse_text = sparse ? json_dumps(sparse, JSON_COMPACT) : NULL;
    char *step = sp_format("%" PRId64, s->step), *tokens = sp_format("%" PRId64, s->tokens);
    json_t *m = NULL;
    if (sparse_text && step && tokens)
        m = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "format", "pt", "sparda.step", step,
                      "sparda.base_model", s->base_name ? s->base_name : "",
                      "sparda.base_config_hash", s->base_config_sha256, "sparda.base_weights_hash",
                      s->base_weights_sha256, "sparda.sparse_config", sparse_text,
                      "sparda.tool_version", SPARDA_VERSION, "sparda.train_tokens", tokens);
    free(sparse_text);
    free(step);
    free(tokens);
    json_decref(sparse);
    return m;
}

sp_status sp_write_forecast_safetensors(const char *path, const sp_train_state *s,
                                        const sp_forecast *w) {
    uint16_t *half = NULL;
    sp_st_out *out = NULL;
    char(*names)[64] = NULL;
    json_t *metadata = safetensors_metadata(s);
    sp_status st = metadata ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st != SP_OK) return st;
    SP_GO(bf16_weights(w, &half));
    SP_GO(sp_alloc(&out, w->layers + 1, sizeof *out, "a list of tensors"));
    SP_GO(sp_alloc(&names, w->layers + 1, sizeof *names, "a list of names"));
    for (int64_t l = 0; l <= w->layers; l++) {
        sp_forecast_name(l, names[l]);
        out[l] = (sp_st_out){.name = names[l],
                             .dtype = SP_ST_BF16,
                             .dims = 2,
                             .shape = {w->rows, w->cols},
                             .data = half + l * w->rows * w->cols};
    }
    SP_GO(sp_st_write(path, out, w->layers + 1, metadata));
done:
    free(names);
    free(out);
    free(half);
    json_decref(metadata);
    return st;
}

// ---- sparda_config.json -------------------------------------------------------------------------

static json_t *base_json(const sp_train_state *s) {
    return json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I}", "name", s->base_name ? s->base_name : "",
                     "config_sha256", s->base_config_sha256, "weights_sha256",
                     s->base_weights_sha256, "layers", (json_int_t)s->weights.layers, "hidden",
                     (json_int_t)s->hidden, "q_heads", (json_int_t)s->heads.q_heads, "kv_heads",
                     (json_int_t)s->heads.kv_heads, "head_dim", (json_int_t)s->heads.head_dim);
}

// inference.md 1.1 to 1.2 in words and numbers.
static json_t *selection_json(const sp_train_state *s) {
    const sp_sparse_config *c = &s->sparse;
    int64_t local = c->block_size > 0 ? c->window_size / c->block_size : 0;
    int64_t k = c->topk + local, forced = c->init_blocks + local + 1;
    int64_t shortlist = c->select_blocks ? c->init_blocks + local + c->select_blocks : k;
    json_t *o = json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:{s:s,s:s},s:s,s:s,s:s}", //
        "kernel_size", (json_int_t)c->kernel_size, "kernel_stride", (json_int_t)c->kernel_stride,
        "block_size", (json_int_t)c->block_size, "init_blocks", (json_int_t)c->init_blocks,
        "window_size", (json_int_t)c->window_size, "local_blocks", (json_int_t)local, "topk",
        (json_int_t)c->topk, "k_effective", (json_int_t)k, "k_forced", (json_int_t)forced,
        "k_chosen", (json_int_t)(shortlist - forced), "dense_len", (json_int_t)c->dense_len,
        "visibility", "complete", "visibility_rules", "complete",
        "compressed key j is seen from position i if kernel_stride*j + kernel_size - 1 <= i",
        "start", "compressed key j is seen from position i if kernel_stride*j <= i",
        "compressed_keys",
        "mean of the rotated keys of kernel_size tokens from kernel_stride*j on, complete windows "
        "only",
        "block_scores",
        "the largest score of compressed keys s*b-1 .. s*b+s-1 of block b, s = block_size / "
        "kernel_stride; +inf for the first init_blocks, the query's own block and local_blocks "
        "before it",
        "lists",
        "the k_effective best blocks per query and KV head, forced ones included, lower block "
        "first "
        "among equals, ascending; blocks after the query's own are dropped. topk is the figure of "
        "config.json, which does not count the local_blocks");
    if (!o || !c->select_blocks) return o;
    // training.md 5.4
    json_object_set_new(o, "select_blocks", json_integer((json_int_t)c->select_blocks));
    json_object_set_new(o, "k_shortlist", json_integer((json_int_t)shortlist));
    json_object_set_new(o, "k_by_importance", json_integer((json_int_t)(k - shortlist)));
    json_object_set_new(
        o, "lists",
        json_string(
            "in two stages. The shortlist: the k_shortlist best blocks per query and KV head, "
            "forced "
            "ones included, lower block first among equals. Then further blocks up to the query's "
            "own, as many as there is room for in k_effective, by the largest mean of A[h] * "
            "softplus(delta.weight[h].v) over the same windows, lower block first among equals. "
            "Ascending; blocks after the query's own are dropped, their slots stay empty. topk is "
            "the figure of config.json, which does not count the local_blocks"));
    return o;
}

static json_t *forecast_json(const sp_train_state *s) {
    char unused[64];
    sp_forecast_name(s->weights.layers, unused);
    return json_pack(
        "{s:s,s:s,s:s,s:s,s:s,s:s}", //
        "scores", "layer 0 is scored by its own q_curr_proj, layer l+1 by q_future_proj of layer l",
        "unused", unused, "input",
        "the normed input of the attention of the layer that holds the projection, the one that "
        "feeds q, k and v",
        "shape", "[kv_heads * head_dim, hidden], one head per KV head, no bias", "rotary",
        "half-split rotation with the base model's own table at the token's position, attention "
        "factor included, no further scale. longrope: short_factor for sequences of up to "
        "original_max_position_embeddings positions (prompt and tokens to be generated), "
        "long_factor above",
        "score", "dot product of the rotated Forecast with a compressed key, unscaled");
}

static json_t *training_json(const sp_train_state *s) {
    return json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:b,s:s}", "step", (json_int_t)s->step, "samples",
        (json_int_t)s->samples, "tokens", (json_int_t)s->tokens, "used_rows",
        (json_int_t)s->used_rows, "skipped_rows", (json_int_t)s->skipped_rows,
        "training_kernel_size", (json_int_t)s->teacher.kernel, "training_kernel_stride",
        (json_int_t)s->teacher.stride, "kl_target_align_pooling", s->align ? "mean" : "max",
        "mask_future_blocks", s->mask_future, "program", s->program ? s->program : "");
}

static sp_status tensors_json(const sp_forecast *w, json_t *list) {
    uint16_t *half;
    SP_TRY(bf16_weights(w, &half));
    int64_t n = w->rows * w->cols;
    sp_status st = SP_OK;
    for (int64_t l = 0; st == SP_OK && l <= w->layers; l++) {
        char name[64], hex[SP_SHA256_HEX];
        sp_forecast_name(l, name);
        st = sp_sha256_of(half + l * n, (size_t)n * sizeof *half, hex);
        json_t *t = json_pack("{s:s,s:s,s:[I,I],s:s,s:b}", "name", name, "dtype", "BF16", "shape",
                              (json_int_t)w->rows, (json_int_t)w->cols, "sha256", hex, "used",
                              l < w->layers);
        if (st == SP_OK && json_array_append_new(list, t) != 0)
            st = sp_error(SP_ENVIRONMENT, "out of memory");
    }
    free(half);
    return st;
}

static json_t *files_json(const sp_export_args *a, bool parity) {
    json_t *list = json_array();
    if (a->safetensors) json_array_append_new(list, json_string(SP_FORECAST_SAFETENSORS));
    if (a->pt) json_array_append_new(list, json_string(SP_FORECAST_PT));
    if (parity) json_array_append_new(list, json_string(SP_PARITY_SAFETENSORS));
    return list;
}

sp_status sp_write_export_record(const char *path, const sp_train_state *s, const sp_forecast *w,
                                 const sp_export_args *a, bool parity) {
    json_t *tensors = json_array();
    sp_status st = tensors ? tensors_json(w, tensors) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st != SP_OK) {
        json_decref(tensors);
        return st;
    }
    json_t *root = json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", "sparda.export/1",
                             "tool_version", SPARDA_VERSION, "base", base_json(s), "selection",
                             selection_json(s), "forecast", forecast_json(s), "sparse_config",
                             sp_state_sparse_json(s), "training", training_json(s), "files",
                             files_json(a, parity), "tensors", tensors);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    char *line = text ? sp_format("%s\n", text) : NULL;
    st = line ? sp_write_file(path, line, (int64_t)strlen(line))
              : sp_error(SP_ENVIRONMENT, "out of memory, or a name that is not UTF-8, for %s",
                         SP_EXPORT_RECORD);
    free(line);
    free(text);
    json_decref(root);
    return st;
}

// ---- reading back -------------------------------------------------------------------------------

static sp_status verify_weights(const char *dir, const char *name, const sp_train_state *s,
                                const sp_forecast *w) {
    sp_forecast in = {.layers = w->layers, .rows = w->rows, .cols = w->cols};
    sp_imported info = {.step = -1};
    int64_t n = (w->layers + 1) * w->rows * w->cols;
    json_t *sparse = sp_state_sparse_json(s);
    char *path = sp_path_join(dir, name);
    sp_status st = SP_OK;
    if (!path || !sparse) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    SP_GO(sp_alloc(&in.w, n, sizeof *in.w, "weights read back"));
    SP_GO(sp_forecast_import(path, &in, &info));
    bool same = info.step == s->step && json_equal(sparse, info.sparse_config) && info.base_model &&
                strcmp(info.base_model, s->base_name ? s->base_name : "") == 0;
    // bits, not values: NaN would differ from itself
    if (!same || memcmp(in.w, w->w, (size_t)n * sizeof *in.w) != 0)
        SP_GO(sp_error(SP_ENVIRONMENT,
                       "%s was written and reads back differently; the disk or memory of this "
                       "machine is at fault",
                       path));
done:
    sp_imported_free(&info);
    sp_forecast_free(&in);
    json_decref(sparse);
    free(path);
    return st;
}

sp_status sp_verify_export(const char *dir, const sp_train_state *s, const sp_forecast *w,
                           const sp_export_args *a, bool parity) {
    if (a->safetensors) SP_TRY(verify_weights(dir, SP_FORECAST_SAFETENSORS, s, w));
    if (a->pt) SP_TRY(verify_weights(dir, SP_FORECAST_PT, s, w));
    char *record = sp_path_join(dir, SP_EXPORT_RECORD),
         *parity_path = sp_path_join(dir, SP_PARITY_SAFETENSORS);
    json_t *root = NULL;
    sp_st *st_file = NULL;
    sp_status st = record && parity_path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_json_load(record, 64 << 20, &root);
    if (st == SP_OK && parity) st = sp_st_open(parity_path, &st_file);
    sp_st_close(st_file);
    json_decref(root);
    free(parity_path);
    free(record);
    return st;
}
