#include "tests/mini_model.h"
#include "tests/support.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const mini_dims mini_default = {2, 24, 40, 50, 4, 2, 6};

mini_tensor *mini_add(mini_model *m, const char *name, int dims, int64_t rows, int64_t cols) {
    m->tensor = realloc(m->tensor, (size_t)(m->n + 1) * sizeof *m->tensor);
    mini_tensor *t = &m->tensor[m->n++];
    *t = (mini_tensor){.dtype = SP_ST_BF16, .dims = dims, .shape = {rows, cols}};
    if (dims == 1) t->shape[0] = cols;
    snprintf(t->name, sizeof t->name, "%s", name);
    int64_t n = dims == 1 ? cols : rows * cols;
    t->value = malloc((size_t)(n ? n : 1) * sizeof *t->value);
    uint64_t seed = 77;
    for (const char *p = name; *p; p++) seed = seed * 31 + (uint64_t)*p;
    for (int64_t i = 0; i < n; i++)
        t->value[i] = (float)((int64_t)(test_random(&seed) % 255) - 127) / 64;
    return t;
}

mini_model *mini_new(const mini_dims *d) {
    mini_model *m = calloc(1, sizeof *m);
    m->config = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:i, s:f, s:f, s:i, s:i, s:f, s:b,"
        " s:i, s:i, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i}}",
        "architectures", "MiniCPMForCausalLM", "model_type", "minicpm", "num_hidden_layers",
        (json_int_t)d->layers, "hidden_size", (json_int_t)d->hidden, "intermediate_size",
        (json_int_t)d->ffn, "vocab_size", (json_int_t)d->vocab, "num_attention_heads",
        (json_int_t)d->q_heads, "num_key_value_heads", (json_int_t)d->kv_heads, "head_dim",
        (json_int_t)d->head_dim, "hidden_act", "silu", "max_position_embeddings", 512,
        "rms_norm_eps", 1e-5, "rope_theta", 10000.0, "scale_emb", 12, "dim_model_base", 8,
        "scale_depth", 1.4, "tie_word_embeddings", 1, "bos_token_id", 1, "eos_token_id", 2,
        "sparse_config", "kernel_size", 8, "kernel_stride", 4, "init_blocks", 1, "block_size", 16,
        "window_size", 32, "topk", 8, "dense_len", 256);
    assert_non_null(m->config);
    int64_t Q = d->q_heads * d->head_dim, KV = d->kv_heads * d->head_dim, D = d->hidden;
    mini_add(m, "model.embed_tokens.weight", 2, d->vocab, D);
    mini_add(m, "model.norm.weight", 1, 1, D);
    const struct {
        const char *name;
        int dims;
        int64_t rows, cols;
    } part[] = {
        {"input_layernorm.weight", 1, 1, D},    {"post_attention_layernorm.weight", 1, 1, D},
        {"self_attn.q_proj.weight", 2, Q, D},   {"self_attn.k_proj.weight", 2, KV, D},
        {"self_attn.v_proj.weight", 2, KV, D},  {"self_attn.o_proj.weight", 2, D, Q},
        {"mlp.gate_proj.weight", 2, d->ffn, D}, {"mlp.up_proj.weight", 2, d->ffn, D},
        {"mlp.down_proj.weight", 2, D, d->ffn}};
    for (int64_t l = 0; l < d->layers; l++)
        for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)l, part[i].name);
            mini_add(m, name, part[i].dims, part[i].rows, part[i].cols);
        }
    return m;
}

void mini_free(mini_model *m) {
    for (int64_t i = 0; i < m->n; i++) free(m->tensor[i].value);
    free(m->tensor);
    json_decref(m->config);
    free(m);
}

mini_tensor *mini_find(mini_model *m, const char *name) {
    for (int64_t i = 0; i < m->n; i++)
        if (strcmp(m->tensor[i].name, name) == 0) return &m->tensor[i];
    fail_msg("the mini model has no tensor %s", name);
    return NULL;
}

void mini_remove(mini_model *m, const char *name) {
    mini_tensor *t = mini_find(m, name);
    free(t->value);
    *t = m->tensor[--m->n];
}

void mini_set(mini_model *m, const char *key, json_t *value) {
    if (value)
        json_object_set_new(m->config, key, value);
    else
        json_object_del(m->config, key);
}

// Exact for the values that mini_add makes; infinities and NaN keep their kind.
static uint16_t to_f16(float x) {
    if (isnan(x)) return 0x7e00;
    if (isinf(x)) return x > 0 ? 0x7c00 : 0xfc00;
    if (x == 0) return 0;
    int e;
    float m = frexpf(fabsf(x), &e); // x = m * 2^e, m in [0.5, 1)
    return (uint16_t)((x < 0 ? 0x8000 : 0) | ((e + 14) << 10) | ((int)(m * 2048) - 1024));
}

static void write_tensors(const char *dir, const char *name, const mini_model *m, int shard,
                          int shards) {
    sp_st_out *out = calloc((size_t)m->n + 1, sizeof *out);
    int64_t n = 0;
    for (int64_t i = shard; i < m->n; i += shards) {
        const mini_tensor *t = &m->tensor[i];
        int64_t elements = t->dims == 1 ? t->shape[0] : t->shape[0] * t->shape[1];
        uint8_t *data = malloc((size_t)elements * 8 + 1);
        for (int64_t k = 0; k < elements; k++) {
            uint16_t h = t->dtype == SP_ST_BF16 ? sp_f32_to_bf16(t->value[k]) : to_f16(t->value[k]);
            double d = t->value[k];
            if (sp_st_dtype_size(t->dtype) == 2)
                memcpy(data + 2 * k, &h, 2);
            else if (t->dtype == SP_ST_F64)
                memcpy(data + 8 * k, &d, 8);
            else
                memcpy(data + 4 * k, &t->value[k], 4);
        }
        out[n++] = (sp_st_out){t->name, t->dtype, t->dims, {t->shape[0], t->shape[1]}, data};
    }
    char *path = sp_path_join(dir, name);
    assert_ok(sp_st_write(path, out, n, NULL));
    free(path);
    for (int64_t i = 0; i < n; i++) free((void *)out[i].data);
    free(out);
}

static void write_json(const char *dir, const char *name, const json_t *v) {
    char *path = sp_path_join(dir, name);
    assert_int_equal(json_dump_file(v, path, JSON_INDENT(1)), 0);
    free(path);
}

void mini_write(const mini_model *m, const char *dir, int shards) {
    assert_ok(sp_mkdirs(dir));
    write_json(dir, "config.json", m->config);
    if (shards < 1) {
        write_tensors(dir, "model.safetensors", m, 0, 1);
        return;
    }
    json_t *map = json_object();
    for (int s = 0; s < shards; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, shards);
        write_tensors(dir, name, m, s, shards);
        for (int64_t i = s; i < m->n; i += shards)
            json_object_set_new(map, m->tensor[i].name, json_string(name));
    }
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 0, "weight_map", map);
    write_json(dir, "model.safetensors.index.json", index);
    json_decref(index);
}
