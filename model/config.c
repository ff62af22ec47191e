// config.json of a base model -> sp_model_desc.
//
// Every field that changes numbers must be there and right; each problem is one line of one error
// and says what to do. Legend (training.md 0): L layers, D hidden, Hq, Hkv heads, d head size.
#include "model/private.h"

#include "common/json.h"
#include "common/log.h"
#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Bounds that keep every product of two dimensions far from overflow; no model comes near them.
enum { MAX_SIZE = INT32_MAX, MAX_COUNT = 1 << 20 };

// ---- fields of an object ------------------------------------------------------------------------

typedef struct fields {
    const json_t *object;
    const char *where; // "config.json", "config.json: rope_scaling"
    sp_problems *problems;
} fields;

// The value, or NULL if it is absent or null.
static const json_t *find(const fields *f, const char *key) {
    const json_t *v = json_object_get(f->object, key);
    return json_is_null(v) ? NULL : v;
}

static bool missing(const fields *f, const char *key) {
    sp_problems_add(f->problems,
                    "%s: \"%s\" is missing; add the value the model was made with, there is no "
                    "default",
                    f->where, key);
    return false;
}

static bool in_range(const fields *f, const char *key, int64_t n, int64_t least, int64_t most) {
    if (n >= least && n <= most) return true;
    sp_problems_add(f->problems, "%s: \"%s\" is %lld; it must be between %lld and %lld", f->where,
                    key, (long long)n, (long long)least, (long long)most);
    return false;
}

static bool take_int(const fields *f, const char *key, const json_t *v, int64_t least, int64_t most,
                     int64_t *out) {
    if (!json_is_integer(v)) {
        sp_problems_add(f->problems, "%s: \"%s\" must be a whole number, found %s", f->where, key,
                        sp_json_kind(v));
        return false;
    }
    if (!in_range(f, key, json_integer_value(v), least, most)) return false;
    *out = json_integer_value(v);
    return true;
}

static bool need_int(const fields *f, const char *key, int64_t least, int64_t most, int64_t *out) {
    const json_t *v = find(f, key);
    return v ? take_int(f, key, v, least, most, out) : missing(f, key);
}

static bool take_positive(const fields *f, const char *key, const json_t *v, double *out) {
    double x = json_number_value(v);
    if (!json_is_number(v)) {
        sp_problems_add(f->problems, "%s: \"%s\" must be a number, found %s", f->where, key,
                        sp_json_kind(v));
        return false;
    }
    if (!(x > 0 && isfinite(x))) {
        sp_problems_add(f->problems, "%s: \"%s\" is %g; it must be positive", f->where, key, x);
        return false;
    }
    *out = x;
    return true;
}

static bool need_positive(const fields *f, const char *key, double *out) {
    const json_t *v = find(f, key);
    return v ? take_positive(f, key, v, out) : missing(f, key);
}

static bool need_bool(const fields *f, const char *key, bool *out) {
    const json_t *v = find(f, key);
    if (!v) return missing(f, key);
    *out = json_is_true(v);
    if (json_is_boolean(v)) return true;
    sp_problems_add(f->problems, "%s: \"%s\" must be true or false, found %s", f->where, key,
                    sp_json_kind(v));
    return false;
}

// An absent key is fine: the feature leaves a trace in the tensors, which are checked.
static void refuse_true(const fields *f, const char *key, const char *why) {
    const json_t *v = find(f, key);
    if (v && !json_is_boolean(v))
        sp_problems_add(f->problems, "%s: \"%s\" must be true or false, found %s", f->where, key,
                        sp_json_kind(v));
    else if (json_is_true(v))
        sp_problems_add(f->problems, "%s: \"%s\" is true; %s", f->where, key, why);
}

static sp_status copy_text(const char *text, char **out) {
    *out = sp_strdup(text ? text : "");
    return *out ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
}

// ---- kind and dimensions ------------------------------------------------------------------------

static sp_status read_kind(const fields *f, sp_model_desc *d) {
    const json_t *type = find(f, "model_type");
    const char *name = json_string_value(type);
    if (!type)
        missing(f, "model_type");
    else if (!name)
        sp_problems_add(f->problems, "%s: \"model_type\" must be text, found %s", f->where,
                        sp_json_kind(type));
    else if (strcmp(name, "minicpm") != 0 && strcmp(name, "llama") != 0)
        sp_problems_add(f->problems,
                        "%s: \"model_type\" is '%s'; this version reads 'minicpm' and 'llama'",
                        f->where, name);
    SP_TRY(copy_text(name, &d->model_type));
    return copy_text(json_string_value(json_array_get(find(f, "architectures"), 0)),
                     &d->architecture);
}

static bool read_dimensions(const fields *f, sp_model_desc *d) {
    int64_t Hq = 0, Hkv = 0, head = 0;
    // Each is read whatever came before: `ok` stands last.
    bool ok = need_int(f, "num_hidden_layers", 1, MAX_COUNT, &d->layers);
    ok = need_int(f, "hidden_size", 1, MAX_SIZE, &d->hidden) && ok;
    ok = need_int(f, "intermediate_size", 1, MAX_SIZE, &d->ffn) && ok;
    ok = need_int(f, "vocab_size", 1, MAX_SIZE, &d->vocab) && ok;
    bool heads = need_int(f, "num_attention_heads", 1, MAX_COUNT, &Hq);
    heads = need_int(f, "num_key_value_heads", 1, MAX_COUNT, &Hkv) && heads;
    if (heads && Hq % Hkv) {
        sp_problems_add(f->problems,
                        "%s: \"num_attention_heads\" (%lld) must be a multiple of "
                        "\"num_key_value_heads\" (%lld)",
                        f->where, (long long)Hq, (long long)Hkv);
        heads = false;
    }
    const json_t *v = find(f, "head_dim");
    if (v) {
        heads = take_int(f, "head_dim", v, 1, MAX_COUNT, &head) && heads;
    } else if (ok && heads && d->hidden % Hq) {
        sp_problems_add(f->problems,
                        "%s: \"hidden_size\" (%lld) is no multiple of \"num_attention_heads\" "
                        "(%lld); give \"head_dim\"",
                        f->where, (long long)d->hidden, (long long)Hq);
        heads = false;
    } else if (ok && heads) {
        head = d->hidden / Hq;
    }
    if (heads && head % 2) {
        sp_problems_add(f->problems, "%s: the head size %lld is odd; rotary embedding needs pairs",
                        f->where, (long long)head);
        heads = false;
    }
    if (!ok || !heads) return false;
    d->heads = (sp_heads){Hq, Hkv, head};
    return true;
}

static void read_scalings(const fields *f, sp_model_desc *d) {
    static const char *const keys[] = {"scale_emb", "scale_depth", "dim_model_base"};
    d->embed_scale = d->residual_scale = d->logit_divisor = 1;
    if (strcmp(d->model_type, "minicpm") != 0) {
        for (int i = 0; i < 3; i++)
            if (find(f, keys[i]))
                sp_problems_add(f->problems,
                                "%s: \"%s\" belongs to model_type 'minicpm', but \"model_type\" is "
                                "'%s', which has no scalings; correct one of them",
                                f->where, keys[i], d->model_type);
        return;
    }
    double depth, base;
    need_positive(f, keys[0], &d->embed_scale);
    if (need_positive(f, keys[1], &depth) && d->layers)
        d->residual_scale = depth / sqrt((double)d->layers);
    if (need_positive(f, keys[2], &base)) d->logit_divisor = (double)d->hidden / base;
}

static void read_special_tokens(const fields *f, sp_model_desc *d) {
    const json_t *eos = find(f, "eos_token_id"), *bos = find(f, "bos_token_id");
    int64_t last = d->vocab ? d->vocab - 1 : MAX_SIZE;
    d->bos = -1;
    if (bos) take_int(f, "bos_token_id", bos, 0, last, &d->bos);
    if (eos && !json_is_array(eos)) {
        if (take_int(f, "eos_token_id", eos, 0, last, &d->eos[0])) d->n_eos = 1;
        return;
    }
    size_t most = sizeof d->eos / sizeof d->eos[0];
    if (json_array_size(eos) > most) {
        sp_problems_add(f->problems,
                        "%s: \"eos_token_id\" lists %zu tokens; at most %zu are "
                        "supported",
                        f->where, json_array_size(eos), most);
        return;
    }
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (take_int(f, "eos_token_id", json_array_get(eos, i), 0, last, &d->eos[d->n_eos]))
            d->n_eos++;
}

static void read_rest(const fields *f, sp_model_desc *d) {
    double eps;
    if (need_positive(f, "rms_norm_eps", &eps)) d->norm_eps = (float)eps;
    need_int(f, "max_position_embeddings", 1, MAX_SIZE, &d->max_positions);
    need_bool(f, "tie_word_embeddings", &d->tied_head);
    const json_t *act = find(f, "hidden_act");
    if (!act)
        missing(f, "hidden_act");
    else if (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0)
        sp_problems_add(f->problems, "%s: \"hidden_act\" must be \"silu\", found %s%s%s", f->where,
                        json_is_string(act) ? "\"" : "",
                        json_is_string(act) ? json_string_value(act) : sp_json_kind(act),
                        json_is_string(act) ? "\"" : "");
    refuse_true(f, "attention_bias", "biases are not supported");
    refuse_true(f, "mlp_bias", "biases are not supported");
    if (find(f, "quantization_config"))
        sp_problems_add(f->problems,
                        "%s: \"quantization_config\": quantised weights are not supported; use the "
                        "BF16, F16 or F32 folder",
                        f->where);
    const json_t *partial = find(f, "partial_rotary_factor");
    if (partial && !(json_is_number(partial) && json_number_value(partial) == 1))
        sp_problems_add(f->problems, "%s: \"partial_rotary_factor\" other than 1 is not supported",
                        f->where);
    read_special_tokens(f, d);
}

// ---- rotary embedding (training.md 1.5, bugs.md S06) --------------------------------------------

// `half` numbers, or as many as there are while the head size is unknown.
static sp_status read_factors(const fields *f, const char *key, int64_t half, double **out) {
    const json_t *v = find(f, key);
    if (!v) {
        missing(f, key);
        return SP_OK;
    }
    int64_t n = (int64_t)json_array_size(v);
    if (!json_is_array(v)) {
        sp_problems_add(f->problems, "%s: \"%s\" must be a list of numbers, found %s", f->where,
                        key, sp_json_kind(v));
        return SP_OK;
    }
    if (half && n != half)
        sp_problems_add(f->problems,
                        "%s: \"%s\" lists %lld numbers; it must list %lld, half the head size",
                        f->where, key, (long long)n, (long long)half);
    SP_TRY(sp_alloc(out, n, sizeof **out, key));
    for (int64_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, (size_t)i);
        (*out)[i] = json_number_value(x);
        // The reciprocal must be finite in fp32 too.
        if (json_is_number(x) && (*out)[i] > 1e-30 && (*out)[i] < 1e30) continue;
        char *text = json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT);
        sp_problems_add(f->problems, "%s: \"%s\": entry %lld is %s; it must be a positive number",
                        f->where, key, (long long)i, text ? text : "");
        free(text);
        break;
    }
    return SP_OK;
}

static sp_status read_longrope(const fields *top, const fields *f, sp_model_desc *d) {
    static const char *const original = "original_max_position_embeddings";
    int64_t inside = 0, outside = 0;
    SP_TRY(read_factors(f, "short_factor", d->heads.head_dim / 2, &d->rope_short));
    SP_TRY(read_factors(f, "long_factor", d->heads.head_dim / 2, &d->rope_long));
    const json_t *a = find(f, original), *b = find(top, original);
    bool ok = a || b ? true : missing(f, original);
    if (a) ok = take_int(f, original, a, 1, MAX_SIZE, &inside) && ok;
    if (b) ok = take_int(top, original, b, 1, MAX_SIZE, &outside) && ok;
    if (!ok) return SP_OK;
    if (a && b && inside != outside) {
        sp_problems_add(f->problems, "%s: \"%s\" is %lld here and %lld in %s", f->where, original,
                        (long long)inside, (long long)outside, top->where);
        return SP_OK;
    }
    d->original_max_positions = a ? inside : outside;
    const json_t *factor = find(f, "attention_factor");
    if (factor) {
        take_positive(f, "attention_factor", factor, &d->rope_attention_factor);
    } else if (d->max_positions && d->max_positions != d->original_max_positions) {
        double orig = (double)d->original_max_positions, ratio = (double)d->max_positions / orig;
        double squared = 1 + log(ratio) / log(orig);
        if (ratio > 1 && isfinite(squared))
            d->rope_attention_factor = sqrt(squared);
        else
            sp_problems_add(f->problems,
                            "%s: no attention factor follows from \"%s\" %lld and "
                            "\"max_position_embeddings\" %lld; give \"attention_factor\"",
                            f->where, original, (long long)d->original_max_positions,
                            (long long)d->max_positions);
    }
    return SP_OK;
}

static const char *rope_type(const fields *f) {
    const json_t *now = find(f, "rope_type"), *old = find(f, "type");
    const json_t *v = now ? now : old;
    if (!v) {
        missing(f, "rope_type");
        return NULL;
    }
    if (!json_is_string(v) || (now && old && !json_equal(now, old))) {
        sp_problems_add(f->problems, "%s: \"rope_type\" and \"type\" must be one text", f->where);
        return NULL;
    }
    return json_string_value(v);
}

static void read_theta(const fields *top, const fields *f, sp_model_desc *d) {
    const json_t *inside = find(f, "rope_theta"), *outside = find(top, "rope_theta");
    double theta;
    if (!inside && !outside)
        sp_problems_add(top->problems,
                        "%s: \"rope_theta\" is missing; add the model's value, there is no default "
                        "(MiniCPM4.1 and Llama 2 have 10000.0)",
                        top->where);
    if (outside) take_positive(top, "rope_theta", outside, &d->rope_theta);
    if (inside && take_positive(f, "rope_theta", inside, &theta)) {
        if (outside && theta != d->rope_theta)
            sp_problems_add(f->problems, "%s: \"rope_theta\" is %g here and %g in %s", f->where,
                            theta, d->rope_theta, top->where);
        d->rope_theta = theta;
    }
}

// The object is called rope_scaling, and rope_parameters by recent writers.
static sp_status read_rope(const fields *top, sp_model_desc *d) {
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "short_factor",
                                        "long_factor",
                                        "original_max_position_embeddings",
                                        "attention_factor",
                                        "factor", // says nothing that the lists do not say
                                        "rope_theta"};
    const char *key = find(top, "rope_scaling") ? "rope_scaling" : "rope_parameters", *type = NULL;
    char where[64];
    snprintf(where, sizeof where, "%s: %s", top->where, key);
    fields f = {find(top, key), where, top->problems};
    d->rope_attention_factor = 1;
    d->original_max_positions = d->max_positions;
    if (find(top, "rope_scaling") && find(top, "rope_parameters"))
        sp_problems_add(top->problems,
                        "%s: \"rope_scaling\" and \"rope_parameters\" say the same thing; keep one",
                        top->where);
    if (f.object && !json_is_object(f.object)) {
        sp_problems_add(top->problems, "%s: \"%s\" must be an object or null, found %s", top->where,
                        key, sp_json_kind(f.object));
        f.object = NULL;
    } else if (f.object) {
        type = rope_type(&f);
        const char *k;
        json_t *v;
        json_object_foreach((json_t *)f.object, k, v) {
            bool ok = false;
            for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
                ok |= strcmp(k, known[i]) == 0;
            // A known type's unknown key may change numbers; of an unknown type all are unknown.
            if (!ok && type && (strcmp(type, "longrope") == 0 || strcmp(type, "default") == 0))
                sp_problems_add(f.problems, "%s: \"%s\" is not supported with type '%s'", f.where,
                                k, type);
        }
    }
    read_theta(top, &f, d);
    if (type && strcmp(type, "longrope") == 0)
        SP_TRY(read_longrope(top, &f, d));
    else if (type && strcmp(type, "default") != 0)
        sp_problems_add(f.problems,
                        "%s: the type '%s' is not supported; this version reads 'longrope' and "
                        "'default'",
                        f.where, type);
    return copy_text(d->rope_short ? "longrope" : "default", &d->rope_kind);
}

// ---- sparse attention (training.md 0, bugs.md S33) ----------------------------------------------

void sp_sparse_fields(sp_sparse_config *c, sp_sparse_field out[SP_SPARSE_FIELDS]) {
    sp_sparse_field fields_of_c[SP_SPARSE_FIELDS] = {
        {"kernel_size", &c->kernel_size, &c->kernel_size_from, 1},
        {"kernel_stride", &c->kernel_stride, &c->kernel_stride_from, 1},
        {"init_blocks", &c->init_blocks, &c->init_blocks_from, 0},
        {"block_size", &c->block_size, &c->block_size_from, 1},
        {"window_size", &c->window_size, &c->window_size_from, 0},
        {"topk", &c->topk, &c->topk_from, 1},
        {"dense_len", &c->dense_len, &c->dense_len_from, -1}, // -1: never dense
        {"select_blocks", &c->select_blocks, &c->select_blocks_from, 1},
    };
    memcpy(out, fields_of_c, sizeof fields_of_c);
}

// Keys that stand in published files and mean nothing to this program (inference.md 6.2).
static const char *const other_sparse_keys[] = {
    "training_kernel_size",
    "training_kernel_stride",
    "progressive_training_kernel",
    "kl_target_align_pooling",
    "use_nope",
    "use_q_future_for_topk",
    "use_q_future_decode_only",
    "create_indexer",
    "indexer_kaiming_init",
    "force_dense_inference",
    "infinigen_enabled",
    "infinigen_num_channels",
    "offload_layer0",
};
enum { N_OTHER_SPARSE_KEYS = sizeof other_sparse_keys / sizeof other_sparse_keys[0] };

// Smallest number of one-letter changes that make b of a (Levenshtein).
static int distance(const char *a, const char *b) {
    int row[64], n = (int)strlen(b);
    if (n >= 64 || strlen(a) >= 64) return 64;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < change) change = row[j] + 1;
            if (row[j - 1] + 1 < change) change = row[j - 1] + 1;
            row[j] = change;
        }
    }
    return row[n];
}

static void check_sparse_keys(const fields *f, const sp_sparse_field *field) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)f->object, key, v) {
        const char *nearest = NULL;
        int best = 64;
        for (int i = 0; i < SP_SPARSE_FIELDS + N_OTHER_SPARSE_KEYS; i++) {
            const char *k =
                i < SP_SPARSE_FIELDS ? field[i].key : other_sparse_keys[i - SP_SPARSE_FIELDS];
            int n = distance(key, k);
            if (n < best) best = n, nearest = k;
        }
        if (best == 0) continue;
        sp_problems_add(f->problems, "%s: unknown key \"%s\"%s%s%s", f->where, key,
                        best <= 3 ? "; is it \"" : "; remove it or correct it",
                        best <= 3 ? nearest : "", best <= 3 ? "\"?" : "");
    }
}

static void check_sparse_values(const fields *f, const sp_sparse_config *c) {
    if (c->block_size % c->kernel_stride)
        sp_problems_add(f->problems,
                        "%s: \"block_size\" (%lld) must be a multiple of \"kernel_stride\" (%lld)",
                        f->where, (long long)c->block_size, (long long)c->kernel_stride);
    if (c->topk < c->init_blocks + 1)
        sp_problems_add(f->problems,
                        "%s: \"topk\" (%lld) must hold the initial blocks (%lld) and the query's "
                        "own",
                        f->where, (long long)c->topk, (long long)c->init_blocks);
    if (c->select_blocks && c->topk < c->init_blocks + c->select_blocks)
        sp_problems_add(f->problems,
                        "%s: \"topk\" (%lld) must hold the initial blocks (%lld) and "
                        "\"select_blocks\" (%lld)",
                        f->where, (long long)c->topk, (long long)c->init_blocks,
                        (long long)c->select_blocks);
}

static void read_sparse(const fields *top, sp_model_desc *d, const sp_recipe *r) {
    const sp_recipe none = {0};
    if (!r) r = &none;
    const int64_t *fill[SP_SPARSE_FIELDS] = {r->kernel_size, r->kernel_stride, r->init_blocks,
                                             r->block_size,  r->window_size,   r->topk,
                                             r->dense_len,   r->select_blocks};
    const fields f = {find(top, "sparse_config"), "config.json: sparse_config", top->problems};
    const fields recipe = {NULL, "the run configuration: sparse_config", top->problems};
    d->rope_tables_bf16 = r->rope_tables_bf16;
    if (f.object && !json_is_object(f.object)) {
        sp_problems_add(f.problems, "%s must be an object or null, found %s", f.where,
                        sp_json_kind(f.object));
        return;
    }
    sp_sparse_field field[SP_SPARSE_FIELDS];
    sp_sparse_fields(&d->sparse, field);
    check_sparse_keys(&f, field);
    refuse_true(&f, "use_nope", "keys without rotary embedding are not supported");

    bool ok = true;
    sp_text lacking = {0};
    for (int i = 0; i < SP_SPARSE_FIELDS; i++) {
        const json_t *v = find(&f, field[i].key);
        *field[i].from = v ? SP_FROM_MODEL : SP_FROM_RECIPE;
        if (v) {
            ok = take_int(&f, field[i].key, v, field[i].least, MAX_SIZE, field[i].value) && ok;
            if (ok && fill[i] && *fill[i] != *field[i].value)
                sp_warn("sparse_config.%s is %lld in the base's config.json; the run "
                        "configuration's %lld has no effect",
                        field[i].key, (long long)*field[i].value, (long long)*fill[i]);
        } else if (fill[i]) {
            *field[i].value = *fill[i];
            ok = in_range(&recipe, field[i].key, *fill[i], field[i].least, MAX_SIZE) && ok;
        } else if (i < SP_SPARSE_NEEDED) {
            sp_text_add(&lacking, "%s%s", lacking.len ? ", " : "", field[i].key);
        }
    }
    if (lacking.data) {
        ok = false;
        sp_problems_add(f.problems,
                        "%s is %s and the run configuration does not give: %s; published "
                        "folders carry no sparse_config: take it from the recipe "
                        "configs/minicpm4.1-8b.yaml or configs/nosa-8b.yaml (keys sparse_config.*)",
                        f.where, f.object ? "incomplete" : "absent", lacking.data);
    }
    sp_text_free(&lacking);
    if (ok) check_sparse_values(f.object ? &f : &recipe, &d->sparse);
}

// -------------------------------------------------------------------------------------------------

sp_status sp_model_read_config(sp_model_desc *d, const sp_recipe *recipe, sp_problems *p,
                               sp_config_verdict *verdict) {
    const fields f = {d->config, "config.json", p};
    SP_TRY(read_kind(&f, d));
    verdict->shapes_known = read_dimensions(&f, d);
    read_scalings(&f, d);
    read_rest(&f, d);
    SP_TRY(read_rope(&f, d));
    read_sparse(&f, d, recipe);
    return SP_OK;
}
