#include "data/synth_model.h"

#include "common/log.h"
#include "common/util.h"
#include "model/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

typedef struct dimensions {
    const char *like;
    int64_t layers, hidden, ffn, vocab, q_heads, kv_heads, head_dim, max_positions;
    int64_t window_size, topk, select_blocks; // of sparse_config; select_blocks 0: not NOSA
} dimensions;

// training.md 1.1, 1.2
static const dimensions known[] = {
    {"minicpm4.1-8b", 32, 4096, 16384, 73448, 32, 2, 128, 65536, 2048, 64, 0},
    {"nosa-8b", 32, 4096, 16384, 73448, 32, 2, 128, 32768, 1024, 80, 24},
};

static sp_status find_dimensions(const sp_synth_model_args *a, dimensions *d) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!a->like || strcmp(a->like, known[i].like) != 0) continue;
        *d = known[i];
        if (a->layers) d->layers = a->layers;
        if (a->max_positions) d->max_positions = a->max_positions;
        if (d->layers < 1 || d->layers > 1024 || d->max_positions < 1)
            return sp_error(SP_BAD_INPUT, "%lld layers and %lld positions; both must be at least 1",
                            (long long)d->layers, (long long)d->max_positions);
        return SP_OK;
    }
    return sp_error(SP_BAD_INPUT, "--like '%s' is not known; known are minicpm4.1-8b and nosa-8b",
                    a->like ? a->like : "");
}

// ---- weights ------------------------------------------------------------------------------------

static uint64_t mix(uint64_t z) { // a counter becomes 64 random bits (data/corpus.md 2)
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Uniform on +-sqrt(3/fan_in): four values from each 64 random bits.
static void fill(uint16_t *w, int64_t n, int64_t fan_in, uint64_t seed) {
    float bound = sqrtf(3.0f / (float)fan_in), unit = bound / 32768.0f;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t bits = mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
        for (int64_t j = i; j < n && j < i + 4; j++, bits >>= 16)
            w[j] = sp_f32_to_bf16(((float)(bits & 0xffff) - 32767.5f) * unit);
    }
}

enum { MAX_PART = 16 };

typedef struct part { // tensors of one shard
    sp_st_out tensor[MAX_PART];
    char *name[MAX_PART];
    int64_t elements[MAX_PART], fan_in[MAX_PART]; // fan_in 0: a vector, all ones
    int n;
    int64_t total;
} part;

static void add(part *p, char *name, int64_t rows, int64_t cols) {
    int i = p->n++;
    p->name[i] = name;
    p->tensor[i] = (sp_st_out){.name = name, .dtype = SP_ST_BF16, .dims = cols ? 2 : 1};
    p->tensor[i].shape[0] = rows;
    p->tensor[i].shape[1] = cols;
    p->elements[i] = cols ? rows * cols : rows;
    p->fan_in[i] = cols;
    p->total += p->elements[i];
}

static void layer_part(part *p, const dimensions *d, int64_t l) {
    int64_t q = d->q_heads * d->head_dim, kv = d->kv_heads * d->head_dim, D = d->hidden;
    const struct {
        const char *name;
        int64_t rows, cols;
    } list[] = {
        {"input_layernorm", D, 0},    {"post_attention_layernorm", D, 0},
        {"self_attn.q_proj", q, D},   {"self_attn.k_proj", kv, D},
        {"self_attn.v_proj", kv, D},  {"self_attn.o_proj", D, q},
        {"mlp.gate_proj", d->ffn, D}, {"mlp.up_proj", d->ffn, D},
        {"mlp.down_proj", D, d->ffn},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        add(p, sp_format("model.layers.%lld.%s.weight", (long long)l, list[i].name), list[i].rows,
            list[i].cols);
    if (!d->select_blocks) return;
    add(p, sp_format("model.layers.%lld.self_attn.A", (long long)l), d->kv_heads, 0);
    add(p, sp_format("model.layers.%lld.self_attn.delta.weight", (long long)l), d->kv_heads, kv);
}

static void outer_part(part *p, const dimensions *d) {
    add(p, sp_strdup("model.embed_tokens.weight"), d->vocab, d->hidden);
    add(p, sp_strdup("lm_head.weight"), d->vocab, d->hidden);
    add(p, sp_strdup("model.norm.weight"), d->hidden, 0);
}

// Fills and writes one shard; its tensors go into the index.
static sp_status write_part(part *p, const sp_synth_model_args *a, int64_t shard, int64_t shards,
                            uint16_t *buffer, json_t *weight_map) {
    char *file =
        sp_format("model-%05lld-of-%05lld.safetensors", (long long)shard + 1, (long long)shards);
    char *path = file ? sp_path_join(a->out, file) : NULL;
    sp_status st = path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    for (int i = 0; i < p->n && st == SP_OK; i++) {
        uint64_t seed = mix(a->seed * 1000003u + (uint64_t)(shard * MAX_PART + i));
        if (p->fan_in[i])
            fill(buffer, p->elements[i], p->fan_in[i], seed);
        else
            for (int64_t x = 0; x < p->elements[i]; x++) buffer[x] = 0x3f80; // 1
        p->tensor[i].data = buffer;
        buffer += p->elements[i];
        if (!p->name[i] || json_object_set_new(weight_map, p->name[i], json_string(file)) != 0)
            st = sp_error(SP_ENVIRONMENT, "out of memory");
    }
    if (st == SP_OK) st = sp_st_write(path, p->tensor, p->n, NULL);
    for (int i = 0; i < p->n; i++) free(p->name[i]);
    free(path);
    free(file);
    return st;
}

// ---- config.json --------------------------------------------------------------------------------

// MiniCPM's scalings, or NOSA's second stage of selection.
static bool set_kind(json_t *c, const dimensions *d) {
    json_t *sparse = json_object_get(c, "sparse_config");
    bool nosa = d->select_blocks > 0;
    json_t *names = json_pack("[s]", nosa ? "SparseLlamaForCausalLM" : "MiniCPMForCausalLM");
    bool ok = json_object_set_new(c, "architectures", names) == 0 &&
              json_object_set_new(c, "model_type", json_string(nosa ? "llama" : "minicpm")) == 0;
    if (nosa)
        return ok && json_object_set_new(sparse, "select_blocks",
                                         json_integer((json_int_t)d->select_blocks)) == 0;
    return ok && json_object_set_new(c, "scale_emb", json_integer(12)) == 0 &&
           json_object_set_new(c, "dim_model_base", json_integer(256)) == 0 &&
           json_object_set_new(c, "scale_depth", json_real(1.4)) == 0;
}

static json_t *config_of(const dimensions *d) {
    json_t *ones = json_array();
    for (int64_t i = 0; i < d->head_dim / 2; i++) json_array_append_new(ones, json_real(1.0));
    json_t *c = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:f, s:f, s:b, s:i, s:[i, i], s:b, s:s, "
        "s:{s:s, s:O, s:O, s:I}, s:{s:i, s:i, s:i, s:i, s:I, s:I, s:b, s:i}}",
        "vocab_size", (json_int_t)d->vocab, "hidden_size", (json_int_t)d->hidden,
        "intermediate_size", (json_int_t)d->ffn, "num_hidden_layers", (json_int_t)d->layers,
        "num_attention_heads", (json_int_t)d->q_heads, "num_key_value_heads",
        (json_int_t)d->kv_heads, "head_dim", (json_int_t)d->head_dim, "hidden_act", "silu",
        "max_position_embeddings", (json_int_t)d->max_positions, "rms_norm_eps", 1e-6, "rope_theta",
        10000.0, "tie_word_embeddings", 0, "bos_token_id", 1, "eos_token_id", 2, 73440,
        "attention_bias", 0, "torch_dtype", "bfloat16", "rope_scaling", "rope_type", "longrope",
        "short_factor", ones, "long_factor", ones, "original_max_position_embeddings",
        (json_int_t)d->max_positions, "sparse_config", "kernel_size", 32, "kernel_stride", 16,
        "init_blocks", 1, "block_size", 64, "window_size", (json_int_t)d->window_size, "topk",
        (json_int_t)d->topk, "use_nope", 0, "dense_len", 8192);
    json_decref(ones);
    if (c && !set_kind(c, d)) {
        json_decref(c);
        c = NULL;
    }
    return c;
}

static sp_status write_json(const char *dir, const char *name, const json_t *value) {
    char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
    char *path = sp_path_join(dir, name);
    sp_status st = text && path ? sp_write_file(path, text, (int64_t)strlen(text))
                                : sp_error(SP_ENVIRONMENT, "out of memory for %s", name);
    free(path);
    free(text);
    return st;
}

static sp_status check_room(const char *dir, double need) {
    struct statvfs fs;
    if (statvfs(dir, &fs) != 0) return SP_OK; // the writing will tell
    double have = (double)fs.f_bavail * (double)fs.f_frsize;
    if (need <= have) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "%s: the model needs %.2f GB, but only %.2f GB are free there",
                    dir, 1e-9 * need, 1e-9 * have);
}

sp_status sp_synth_model(const sp_synth_model_args *a) {
    dimensions d;
    SP_TRY(find_dimensions(a, &d));
    SP_TRY(sp_mkdirs(a->out));
    char **names;
    int64_t n;
    SP_TRY(sp_list_dir(a->out, "", &names, &n));
    sp_free_names(names, n);
    if (n)
        return sp_error(SP_BAD_INPUT, "%s is not empty; choose a new folder for the model", a->out);

    sp_status st = SP_OK;
    uint16_t *buffer = NULL;
    json_t *map = json_object(), *index = NULL, *config = config_of(&d);
    part sizes = {0};
    outer_part(&sizes, &d);
    int64_t outer = sizes.total;
    for (int i = 0; i < sizes.n; i++) free(sizes.name[i]);
    sizes = (part){0};
    layer_part(&sizes, &d, 0);
    int64_t layer = sizes.total;
    for (int i = 0; i < sizes.n; i++) free(sizes.name[i]);
    SP_GO(check_room(a->out, 2 * ((double)outer + (double)d.layers * (double)layer)));
    SP_GO(sp_alloc(&buffer, outer > layer ? outer : layer, 2, "one shard of the model"));
    for (int64_t shard = 0; shard <= d.layers; shard++) {
        part p = {0};
        if (shard == 0)
            outer_part(&p, &d);
        else
            layer_part(&p, &d, shard - 1);
        sp_progress("writing shard %lld of %lld", (long long)shard + 1, (long long)d.layers + 1);
        SP_GO(write_part(&p, a, shard, d.layers + 1, buffer, map));
    }
    sp_progress("%s", "");
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
                      (json_int_t)(2 * (outer + d.layers * layer)), "weight_map", map);
    SP_GO(write_json(a->out, "model.safetensors.index.json", index));
    SP_GO(write_json(a->out, "config.json", config)); // last: a folder without it is no model
    sp_info("%s: %s with %lld layers and random weights, %.2f GB in %lld shards", a->out, d.like,
            (long long)d.layers, 2e-9 * (double)(outer + d.layers * layer),
            (long long)d.layers + 1);
done:
    free(buffer);
    json_decref(map);
    json_decref(index);
    json_decref(config);
    return st;
}
