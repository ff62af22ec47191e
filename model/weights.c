// Which tensors a base model consists of, and whether the files hold them (training.md 1.3).
#include "model/private.h"

#include "common/util.h"

#include <stdlib.h>
#include <string.h>

// Dimensions of a weight in words and numbers. Vectors have `cols` only.
typedef enum dim { NONE, VOCAB, HIDDEN, FFN, Q_ROWS, KV_ROWS, KV_HEADS } dim;

static const struct {
    const char *name; // within its layer, or the whole name
    dim rows, cols;
} parts[SP_N_PARTS] = {
    [SP_PART_EMBED] = {"model.embed_tokens.weight", VOCAB, HIDDEN},
    [SP_PART_FINAL_NORM] = {"model.norm.weight", NONE, HIDDEN},
    [SP_PART_HEAD] = {"lm_head.weight", VOCAB, HIDDEN},
    [SP_PART_ATTN_NORM] = {"input_layernorm.weight", NONE, HIDDEN},
    [SP_PART_Q] = {"self_attn.q_proj.weight", Q_ROWS, HIDDEN},
    [SP_PART_K] = {"self_attn.k_proj.weight", KV_ROWS, HIDDEN},
    [SP_PART_V] = {"self_attn.v_proj.weight", KV_ROWS, HIDDEN},
    [SP_PART_O] = {"self_attn.o_proj.weight", HIDDEN, Q_ROWS},
    [SP_PART_MLP_NORM] = {"post_attention_layernorm.weight", NONE, HIDDEN},
    [SP_PART_GATE] = {"mlp.gate_proj.weight", FFN, HIDDEN},
    [SP_PART_UP] = {"mlp.up_proj.weight", FFN, HIDDEN},
    [SP_PART_DOWN] = {"mlp.down_proj.weight", HIDDEN, FFN},
    [SP_PART_CIS_SCALE] = {"self_attn.A", NONE, KV_HEADS},
    [SP_PART_CIS_DELTA] = {"self_attn.delta.weight", KV_HEADS, KV_ROWS},
};

static const char *const dim_words[] = {
    [NONE] = "",
    [VOCAB] = "vocab_size",
    [HIDDEN] = "hidden_size",
    [FFN] = "intermediate_size",
    [Q_ROWS] = "num_attention_heads * head size",
    [KV_ROWS] = "num_key_value_heads * head size",
    [KV_HEADS] = "num_key_value_heads",
};

static int64_t dim_value(const sp_model_desc *d, dim which) {
    switch (which) {
    case NONE:
        break;
    case VOCAB:
        return d->vocab;
    case HIDDEN:
        return d->hidden;
    case FFN:
        return d->ffn;
    case Q_ROWS:
        return d->heads.q_heads * d->heads.head_dim;
    case KV_ROWS:
        return d->heads.kv_heads * d->heads.head_dim;
    case KV_HEADS:
        return d->heads.kv_heads;
    }
    return 0;
}

static bool is_cis(sp_part part) {
    return part == SP_PART_CIS_SCALE || part == SP_PART_CIS_DELTA;
}

bool sp_has_part(const sp_model_desc *d, sp_part part) {
    return part == SP_PART_HEAD ? !d->tied_head : !is_cis(part) || d->cis;
}

sp_weight sp_weight_of(const sp_model_desc *d, sp_part part, int64_t layer) {
    sp_weight w = {.part = part, .layer = layer};
    if (part < SP_FIRST_LAYER_PART)
        snprintf(w.name, sizeof w.name, "%s", parts[part].name);
    else
        snprintf(w.name, sizeof w.name, "model.layers.%lld.%s", (long long)layer, parts[part].name);
    if (parts[part].rows != NONE) w.shape[w.dims++] = dim_value(d, parts[part].rows);
    w.shape[w.dims++] = dim_value(d, parts[part].cols);
    return w;
}

// ---- names --------------------------------------------------------------------------------------

typedef enum tensor_kind {
    KIND_USED,    // one of the model's (a head beside a tied embedding too)
    KIND_IGNORED, // known to be harmless, or outside the layers
    KIND_FOREIGN, // inside a layer and unknown: the layer computes something else
    KIND_BIAS,
    KIND_CIS, // used if this is NOSA's backbone
} tensor_kind;

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

// Sets the layer of "model.layers.N.REST" and returns REST, else NULL.
static const char *inside_layer(const char *name, int64_t *layer) {
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return NULL;
    const char *p = name + sizeof prefix - 1, *digits = p;
    *layer = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (!sp_mul(*layer, 10, layer) || !sp_add(*layer, *p - '0', layer)) return NULL;
    bool number = p > digits && (*digits != '0' || p - digits == 1) && *layer < INT64_MAX;
    return number && *p == '.' ? p + 1 : NULL;
}

static tensor_kind kind_of(const char *name, int64_t *layer) {
    const char *rest = inside_layer(name, layer);
    if (!rest) {
        *layer = -1;
        for (int i = 0; i < SP_FIRST_LAYER_PART; i++)
            if (strcmp(name, parts[i].name) == 0) return KIND_USED;
        return ends_with(name, ".bias") && strncmp(name, "model.", 6) == 0 ? KIND_BIAS
               : strcmp(name, "lm_head.bias") == 0                         ? KIND_BIAS
                                                                           : KIND_IGNORED;
    }
    for (int i = SP_FIRST_LAYER_PART; i < SP_N_PARTS; i++)
        if (strcmp(rest, parts[i].name) == 0) return is_cis((sp_part)i) ? KIND_CIS : KIND_USED;
    if (ends_with(rest, ".bias")) return KIND_BIAS;
    // Rotary tables of old writers, and Forecasts that somebody merged into the base.
    if (strcmp(rest, "self_attn.rotary_emb.inv_freq") == 0 ||
        strcmp(rest, "self_attn.q_future_proj.weight") == 0 ||
        strcmp(rest, "self_attn.q_curr_proj.weight") == 0)
        return KIND_IGNORED;
    return KIND_FOREIGN;
}

// ---- checks -------------------------------------------------------------------------------------

// Equal faults of the same part in many layers are one problem.
typedef struct fault {
    int64_t first_layer, count;
    const sp_st_tensor *found; // of the first
    sp_part part;
} fault;

static void report_fault(const sp_model_desc *d, const fault *f, sp_problems *p) {
    if (!f->count) return;
    sp_weight want = sp_weight_of(d, f->part, f->first_layer);
    char *have = sp_st_shape_text(f->found->dims, f->found->shape);
    char *need = sp_st_shape_text(want.dims, want.shape), more[64] = "";
    if (f->count > 1)
        snprintf(more, sizeof more, " (and %lld other layers the same)", (long long)f->count - 1);
    sp_problems_add(p,
                    "tensor %s%s is %s of %s elements; config.json demands %s (%s%s%s) of BF16, "
                    "F16 or F32",
                    want.name, more, have ? have : "", sp_st_dtype_name(f->found->dtype),
                    need ? need : "", dim_words[parts[f->part].rows], want.dims > 1 ? ", " : "",
                    dim_words[parts[f->part].cols]);
    free(have);
    free(need);
}

static bool is_right(const sp_weight *want, const sp_st_tensor *t) {
    bool ok = t->dims == want->dims &&
              (t->dtype == SP_ST_BF16 || t->dtype == SP_ST_F16 || t->dtype == SP_ST_F32);
    for (int i = 0; ok && i < want->dims; i++) ok = t->shape[i] == want->shape[i];
    return ok;
}

static bool same_fault(const sp_st_tensor *a, const sp_st_tensor *b) {
    return a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof a->shape[0]) == 0;
}

// One part in layers 0..layers-1 (a part outside the layers: once).
static void check_part(sp_model_desc *d, const sp_st *st, sp_part part, int64_t layers,
                       sp_text *missing, sp_problems *p) {
    fault f = {.part = part};
    for (int64_t l = 0; l < (part < SP_FIRST_LAYER_PART ? 1 : layers); l++) {
        sp_weight want = sp_weight_of(d, part, l);
        const sp_st_tensor *t = sp_st_find(st, want.name);
        if (!t) {
            sp_text_add(missing, "%s%s", missing->len ? ", " : "", want.name);
        } else if (!is_right(&want, t)) {
            if (f.count && same_fault(f.found, t)) {
                f.count++;
                continue;
            }
            report_fault(d, &f, p);
            f = (fault){l, 1, t, part};
        } else if (part != SP_PART_HEAD || !d->tied_head) {
            d->tensors++;
            d->parameters += t->elements;
            d->weight_bytes += t->bytes;
        }
    }
    report_fault(d, &f, p);
}

// bugs.md S05. Tied with a stored head: both must be the same numbers.
static void check_head(const sp_model_desc *d, const sp_st *st, sp_problems *p) {
    const sp_st_tensor *head = sp_st_find(st, parts[SP_PART_HEAD].name);
    const sp_st_tensor *embed = sp_st_find(st, parts[SP_PART_EMBED].name);
    if (!d->tied_head) {
        if (!head)
            sp_problems_add(p,
                            "tensor lm_head.weight is missing, and config.json says "
                            "\"tie_word_embeddings\": false; correct the flag if the head is the "
                            "embedding");
        return;
    }
    if (!head || !embed) return;
    if (head->dtype != embed->dtype || head->bytes != embed->bytes ||
        (head->bytes && memcmp(head->data, embed->data, (size_t)head->bytes) != 0))
        sp_problems_add(p, "config.json says \"tie_word_embeddings\": true, but lm_head.weight is "
                           "there and differs from model.embed_tokens.weight; correct the flag or "
                           "remove the tensor");
}

static void list_names(sp_text *t, const char *name) {
    sp_text_add(t, "%s%s", t->len ? ", " : "", name);
}

// select_blocks and the two tensors of every layer belong together. Returns whether the tensors are
// to be looked at one by one.
static bool settle_cis(sp_model_desc *d, int64_t tensors, sp_problems *p) {
    d->cis = tensors > 0 || d->sparse.select_blocks > 0;
    if (d->cis && tensors == 0)
        sp_problems_add(
            p,
            "sparse_config.select_blocks (%s) says that this is a NOSA backbone, but no "
            "layer has the tensors self_attn.A [%lld] and self_attn.delta.weight "
            "[%lld, %lld]; get the complete weights, or leave select_blocks out",
            d->sparse.select_blocks_from == SP_FROM_MODEL ? "config.json" : "run configuration",
            (long long)dim_value(d, KV_HEADS), (long long)dim_value(d, KV_HEADS),
            (long long)dim_value(d, KV_ROWS));
    if (tensors > 0 && d->sparse.select_blocks == 0)
        sp_problems_add(p,
                        "the layers hold self_attn.A or self_attn.delta.weight, so this is a NOSA "
                        "backbone, but neither config.json's sparse_config nor the run "
                        "configuration gives select_blocks: take it from the recipe "
                        "configs/nosa-8b.yaml (key sparse_config.select_blocks)");
    return tensors > 0;
}

void sp_model_check_weights(sp_model_desc *d, const sp_st *st, sp_problems *p) {
    sp_text missing = {0}, foreign = {0}, biases = {0};
    int64_t found = 0, cis = 0; // layers of which the files hold anything; tensors
    for (int64_t i = 0; i < st->n; i++) {
        const char *name = st->tensor[i].name;
        int64_t layer;
        tensor_kind kind = kind_of(name, &layer);
        if (kind == KIND_CIS) cis++;
        if (kind == KIND_BIAS) list_names(&biases, name);
        if (kind == KIND_FOREIGN) list_names(&foreign, name);
        if (kind == KIND_USED && layer >= found) found = layer + 1;
        if (kind != KIND_IGNORED) continue;
        d->ignored_tensors++;
        if (!d->ignored_example) d->ignored_example = sp_strdup(name);
    }
    if (found != d->layers)
        sp_problems_add(p,
                        "config.json says \"num_hidden_layers\": %lld, the files hold tensors of "
                        "%lld layers",
                        (long long)d->layers, (long long)found);
    int64_t layers = found < d->layers ? found : d->layers;
    if (layers > st->n) layers = st->n; // then each further layer lacks tensors as well
    bool look = settle_cis(d, cis, p);
    for (sp_part part = 0; part < SP_N_PARTS; part++)
        if (is_cis(part) ? look : part != SP_PART_HEAD || sp_st_find(st, parts[part].name))
            check_part(d, st, part, layers, &missing, p);
    check_head(d, st, p);
    if (missing.len) sp_problems_add(p, "these tensors are missing: %s", missing.data);
    if (biases.len)
        sp_problems_add(p, "biases are not supported, but the files hold: %s", biases.data);
    if (foreign.len)
        sp_problems_add(p,
                        "the layers hold tensors that this kind of model does not have, so they "
                        "would compute something else: %s",
                        foreign.data);
    sp_text_free(&missing);
    sp_text_free(&biases);
    sp_text_free(&foreign);
}

sp_status sp_weight_find(const sp_model_desc *d, const sp_st *st, sp_part part, int64_t layer,
                         const sp_st_tensor **out) {
    sp_weight want = sp_weight_of(d, part, layer);
    *out = sp_st_find(st, want.name);
    if (*out && is_right(&want, *out)) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "tensor %s of %s is no longer what it was when the folder was checked; do not "
                    "change a model that is in use",
                    want.name, d->dir);
}
