// The description of a base model: reading a folder, telling people about it, and the grids and
// selection constants that follow from it.
#include "model/private.h"

#include "common/config.h"
#include "common/json.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 64 << 20 };

// The folder's own name, whatever way it was given ("." or "a/b/" too). Caller frees.
static char *name_of(const char *dir) {
    char *full = realpath(dir, NULL);
    char *name = sp_strdup(sp_path_base(full ? full : dir));
    free(full);
    return name;
}

// Reads config.json into d->config; a bad one is a problem and leaves NULL.
static sp_status load_config(sp_model_desc *d, sp_problems *p) {
    char *path = sp_path_join(d->dir, "config.json"), *text = NULL;
    int64_t bytes;
    sp_status st = path ? sp_read_file(path, MAX_CONFIG, &text, &bytes)
                        : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_json_parse(text, bytes, path, &d->config);
    if (st == SP_OK) st = sp_sha256_of(text, (size_t)bytes, d->config_sha256);
    free(path);
    free(text);
    if (st != SP_BAD_INPUT) return st;
    sp_problems_add(p, "%s", sp_error_text());
    return SP_OK;
}

// What follows from being NOSA's backbone beyond its tensors.
static void settle_kind(sp_model_desc *d, sp_problems *p) {
    if (!d->cis) return;
    d->rope_variant = SP_ROPE_SHORT;
    if (d->model_type && strcmp(d->model_type, "llama") != 0)
        sp_problems_add(
            p,
            "config.json: \"model_type\" is '%s', but sparse_config.select_blocks or the "
            "tensors self_attn.A and self_attn.delta.weight are those of a NOSA "
            "backbone, a 'llama'",
            d->model_type);
}

static sp_status describe(sp_model_desc *d, const sp_recipe *recipe, sp_problems *p) {
    sp_config_verdict verdict = {0};
    sp_st *weights = NULL;
    SP_TRY(load_config(d, p));
    if (d->config) SP_TRY(sp_model_read_config(d, recipe, p, &verdict));
    sp_status st = sp_st_open(d->dir, &weights);
    if (st == SP_BAD_INPUT)
        sp_problems_add(p, "%s", sp_error_text());
    else if (st != SP_OK)
        return st;
    if (weights && verdict.shapes_known) sp_model_check_weights(d, weights, p);
    settle_kind(d, p);
    sp_st_close(weights);
    return SP_OK;
}

sp_status sp_model_describe(const char *dir, const sp_recipe *recipe, sp_model_desc **out) {
    sp_model_desc *d;
    sp_problems p = {0};
    *out = NULL;
    if (!sp_path_is_dir(dir))
        return sp_error(SP_BAD_INPUT,
                        "the base model %s is no folder; it must be a Hugging Face folder with "
                        "config.json and safetensors files",
                        dir);
    SP_TRY(sp_alloc(&d, 1, sizeof *d, "a model description"));
    d->dir = sp_strdup(dir);
    d->name = name_of(dir);
    sp_status st =
        d->dir && d->name ? describe(d, recipe, &p) : sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status listed = sp_problems_end(&p, SP_BAD_INPUT, "the base model %s cannot be used", dir);
    if (st == SP_OK) st = listed;
    if (st != SP_OK) {
        sp_model_desc_free(d);
        return sp_error_trace_at(__FILE__, __LINE__, st, "sp_model_describe");
    }
    *out = d;
    return SP_OK;
}

void sp_model_desc_free(sp_model_desc *d) {
    if (!d) return;
    free(d->dir);
    free(d->name);
    free(d->model_type);
    free(d->architecture);
    json_decref(d->config);
    free(d->rope_short);
    free(d->rope_long);
    free(d->rope_kind);
    free(d->ignored_example);
    free(d);
}

// ---- recipe -------------------------------------------------------------------------------------

sp_recipe sp_recipe_of(const sp_config *c) {
    const sp_int_option *o[] = {&c->sparse_config.kernel_size, &c->sparse_config.kernel_stride,
                                &c->sparse_config.init_blocks, &c->sparse_config.block_size,
                                &c->sparse_config.window_size, &c->sparse_config.topk,
                                &c->sparse_config.dense_len,   &c->sparse_config.select_blocks};
    const int64_t *v[sizeof o / sizeof *o];
    for (size_t i = 0; i < sizeof o / sizeof *o; i++) v[i] = o[i]->given ? &o[i]->value : NULL;
    return (sp_recipe){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], c->rope_tables == 1};
}

// ---- text ---------------------------------------------------------------------------------------

static const char *source_name(sp_source s) {
    return s == SP_FROM_MODEL ? "config.json" : "run configuration";
}

static void describe_sparse(const sp_model_desc *d, sp_text *t) {
    sp_sparse_config c = d->sparse;
    sp_sparse_field field[SP_SPARSE_FIELDS];
    sp_sparse_fields(&c, field);
    sp_text_add(t, "sparse      ");
    for (int i = 0; i < (d->cis ? SP_SPARSE_FIELDS : SP_SPARSE_NEEDED); i++)
        sp_text_add(t, "%s%s %lld (%s)",
                    i == 0   ? ""
                    : i == 4 ? ",\n            "
                             : ", ",
                    field[i].key, (long long)*field[i].value, source_name(*field[i].from));
    sp_selection s = sp_model_selection(d, false);
    sp_text_add(t,
                "\nselection   %lld blocks of %lld tokens per query and KV head (topk %lld + "
                "window_size/block_size %lld), always with %lld initial, the query's own and %lld "
                "before it\n",
                (long long)s.topk, (long long)s.block, (long long)c.topk, (long long)s.local_blocks,
                (long long)s.init_blocks, (long long)s.local_blocks);
    if (d->cis) {
        int64_t first = sp_model_shortlist(d, false).topk;
        sp_text_add(t,
                    "            in two stages: %lld by the query, which are the list of the loss "
                    "(those always there, and %lld chosen), then %lld by the importance of their "
                    "keys\n",
                    (long long)first, (long long)(first - s.init_blocks - s.local_blocks - 1),
                    (long long)(s.topk - first));
    }
    sp_text_add(t,
                "attention   layers 0 to %lld: block-sparse, as sparse_config says; in training at "
                "every length; in inference ",
                (long long)d->layers - 1);
    if (c.dense_len > 0)
        sp_text_add(t, "dense while the sequence is shorter than dense_len = %lld\n",
                    (long long)c.dense_len);
    else
        sp_text_add(t, "too (dense_len = %lld)\n", (long long)c.dense_len);
}

sp_status sp_model_describe_text(const sp_model_desc *d, char **text) {
    sp_text t = {0};
    sp_text_add(&t, "base model  %s (%s%s%s), %s\n", d->name, d->model_type,
                d->architecture[0] ? ", " : "", d->architecture, d->dir);
    sp_text_add(&t,
                "dimensions  %lld layers, hidden %lld, ffn %lld, %lld query heads, %lld KV heads "
                "of %lld, vocabulary %lld, %lld positions\n",
                (long long)d->layers, (long long)d->hidden, (long long)d->ffn,
                (long long)d->heads.q_heads, (long long)d->heads.kv_heads,
                (long long)d->heads.head_dim, (long long)d->vocab, (long long)d->max_positions);
    sp_text_add(&t, "weights     %lld parameters in %lld tensors, %.1f MB, head %s",
                (long long)d->parameters, (long long)d->tensors, (double)d->weight_bytes * 1e-6,
                d->tied_head ? "tied to the embedding" : "of its own");
    if (d->ignored_tensors)
        sp_text_add(&t, "; %lld other tensors are ignored (%s%s)", (long long)d->ignored_tensors,
                    d->ignored_example, d->ignored_tensors > 1 ? ", ..." : "");
    sp_text_add(&t, "\nscalings    embedding x %.9g, both branches x %.9g, final hidden / %.9g\n",
                d->embed_scale, d->residual_scale, d->logit_divisor);
    if (d->cis)
        sp_text_add(&t,
                    "importance  of every key and KV head from its values (NOSA's CIS): added to "
                    "the logits, fills the block lists\n");
    sp_text_add(&t, "rope        %s, theta %.9g", d->rope_kind, d->rope_theta);
    if (d->rope_short && d->rope_variant == SP_ROPE_SHORT)
        sp_text_add(&t, ", short factors at every length, attention factor %.9g",
                    d->rope_attention_factor);
    else if (d->rope_short)
        sp_text_add(&t,
                    ", short factors up to %lld positions, long factors above, attention "
                    "factor %.9g",
                    (long long)d->original_max_positions, d->rope_attention_factor);
    sp_text_add(&t, "%s\n", d->rope_tables_bf16 ? ", tables rounded to bf16" : "");
    describe_sparse(d, &t);
    *text = t.data;
    return t.failed ? sp_error(SP_ENVIRONMENT, "out of memory") : SP_OK;
}

// ---- grids and selection ------------------------------------------------------------------------

sp_grid sp_deployed_grid(const sp_model_desc *d) {
    return (sp_grid){d->sparse.kernel_size, d->sparse.kernel_stride};
}

int64_t sp_forced_tokens(const sp_model_desc *d) {
    sp_selection s = sp_model_selection(d, true);
    return s.block * (s.init_blocks + s.local_blocks + 1);
}

sp_selection sp_model_selection(const sp_model_desc *d, bool mask_future) {
    int64_t local = d->sparse.window_size / d->sparse.block_size;
    return (sp_selection){.block = d->sparse.block_size,
                          .init_blocks = d->sparse.init_blocks,
                          .local_blocks = local,
                          .topk = d->sparse.topk + local,
                          .mask_future = mask_future};
}

sp_selection sp_model_shortlist(const sp_model_desc *d, bool mask_future) {
    sp_selection s = sp_model_selection(d, mask_future);
    if (d->cis) s.topk = s.init_blocks + s.local_blocks + d->sparse.select_blocks;
    return s;
}

sp_status sp_check_grids(const sp_model_desc *d, sp_grid teacher) {
    sp_problems p = {0};
    sp_grid deployed = sp_deployed_grid(d);
    sp_selection s = sp_model_selection(d, false);
    if (teacher.kernel < 1 || teacher.stride < 1)
        sp_problems_add(&p, "the training grid %lld/%lld must be positive",
                        (long long)teacher.kernel, (long long)teacher.stride);
    else if (deployed.stride % teacher.stride)
        sp_problems_add(&p,
                        "training_kernel_stride %lld must divide the model's kernel_stride %lld",
                        (long long)teacher.stride, (long long)deployed.stride);
    if (teacher.kernel > deployed.kernel)
        sp_problems_add(&p,
                        "training_kernel_size %lld must not be larger than the model's kernel_size "
                        "%lld",
                        (long long)teacher.kernel, (long long)deployed.kernel);
    if (s.block % deployed.stride)
        sp_problems_add(&p, "block_size %lld must be a multiple of kernel_stride %lld",
                        (long long)s.block, (long long)deployed.stride);
    // inference.md 2.4: scores of free blocks may not depend on keys of the current block.
    if (s.local_blocks * s.block < deployed.kernel - deployed.stride)
        sp_problems_add(&p,
                        "window_size %lld must hold at least kernel_size - kernel_stride = %lld "
                        "tokens in whole blocks of %lld",
                        (long long)d->sparse.window_size,
                        (long long)(deployed.kernel - deployed.stride), (long long)s.block);
    return sp_problems_end(&p, SP_BAD_INPUT, "the compression grids do not fit %s", d->name);
}
