// Weights on a backend, their identity, and the rotary tables.
#include "tests/golden.h"
#include "tests/mini_model.h"
#include "tests/support.h"

#include "common/util.h"
#include "model/model.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *in_tmp(const char *name) {
    return sp_path_join(test_tmpdir(), name);
}

static void load(const char *dir, sp_model_desc **d, sp_model **m) {
    assert_ok(sp_model_describe(dir, NULL, d));
    assert_ok(sp_model_load(test_backend(), *d, NULL, m));
}

static void unload(sp_model_desc *d, sp_model *m) {
    sp_model_free(m);
    sp_model_desc_free(d);
}

// The rows of a loaded matrix must be the stored tensor, bit for bit.
static void assert_stored(sp_tensor t, mini_model *mini, const char *name) {
    mini_tensor *want = mini_find(mini, name);
    int64_t rows = want->dims == 1 ? 1 : want->shape[0];
    int64_t cols = want->shape[want->dims - 1];
    assert_true(t.rows == rows && t.cols == cols);
    float *got = test_download(t);
    if (memcmp(got, want->value, (size_t)(rows * cols) * sizeof *got) != 0)
        fail_msg("%s is not what the file holds", name);
    free(got);
}

static void assert_all_stored(const sp_model *m, mini_model *mini) {
    const sp_model_desc *d = m->desc;
    int64_t Q = d->heads.q_heads * d->heads.head_dim, KV = d->heads.kv_heads * d->heads.head_dim;
    assert_stored(m->embed, mini, "model.embed_tokens.weight");
    assert_stored(m->final_norm, mini, "model.norm.weight");
    assert_stored(m->head, mini, d->tied_head ? "model.embed_tokens.weight" : "lm_head.weight");
    for (int64_t l = 0; l < d->layers; l++) {
        const sp_layer_weights *w = &m->layer[l];
        const struct {
            const char *name;
            sp_tensor t;
        } parts[] = {{"input_layernorm", w->attn_norm},
                     {"self_attn.q_proj", sp_tensor_rows(w->qkv, 0, Q)},
                     {"self_attn.k_proj", sp_tensor_rows(w->qkv, Q, KV)},
                     {"self_attn.v_proj", sp_tensor_rows(w->qkv, Q + KV, KV)},
                     {"self_attn.o_proj", w->o},
                     {"post_attention_layernorm", w->mlp_norm},
                     {"mlp.gate_proj", sp_tensor_rows(w->gate_up, 0, d->ffn)},
                     {"mlp.up_proj", sp_tensor_rows(w->gate_up, d->ffn, d->ffn)},
                     {"mlp.down_proj", w->down}};
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)l, parts[i].name);
            assert_stored(parts[i].t, mini, name);
        }
    }
}

static void every_tensor_comes_to_its_place(void **state) {
    (void)state;
    static const mini_dims dims[] = {
        {2, 24, 40, 50, 4, 2, 6}, {1, 7, 3, 11, 1, 1, 2}, {3, 10, 12, 5, 6, 2, 4}};
    static const sp_st_dtype types[] = {SP_ST_BF16, SP_ST_F16, SP_ST_F32};
    for (int i = 0; i < 3; i++)
        for (int type = 0; type < 3; type++) {
            char name[32];
            snprintf(name, sizeof name, "place-%d-%d", i, type);
            char *dir = in_tmp(name);
            mini_model *mini = mini_new(&dims[i]);
            for (int64_t k = 0; k < mini->n; k++) mini->tensor[k].dtype = types[type];
            mini_set(mini, "eos_token_id", NULL);
            if (i == 1) { // untied
                mini_set(mini, "tie_word_embeddings", json_false());
                mini_add(mini, "lm_head.weight", 2, dims[i].vocab, dims[i].hidden);
            }
            if (i == 2) // types may be mixed
                mini_find(mini, "model.layers.1.mlp.up_proj.weight")->dtype = SP_ST_F32;
            mini_write(mini, dir, i == 2 ? 3 : 0);
            sp_model_desc *d;
            sp_model *m;
            load(dir, &d, &m);
            assert_all_stored(m, mini);
            unload(d, m);
            mini_free(mini);
            free(dir);
        }
}

// The file is taken apart and put together again with one odd byte in front of all data.
static void misaligned_data_loads_the_same(void **state) {
    (void)state;
    char *dir = in_tmp("misaligned"), *path = sp_path_join(dir, "model.safetensors"), *file;
    mini_model *mini = mini_new(&mini_default);
    mini_write(mini, dir, 0);
    int64_t bytes;
    assert_ok(sp_read_file(path, 1 << 20, &file, &bytes));
    uint64_t n;
    memcpy(&n, file, 8);
    json_t *header = json_loadb(file + 8, n, 0, NULL), *entry;
    const char *name;
    json_object_foreach(header, name, entry) {
        json_t *at = json_object_get(entry, "data_offsets");
        for (size_t i = 0; i < json_array_size(at); i++)
            json_array_set_new(at, i, json_integer(json_integer_value(json_array_get(at, i)) + 1));
    }
    json_object_set_new(
        header, "pad",
        json_pack("{s:s,s:[i],s:[i,i]}", "dtype", "U8", "shape", 1, "data_offsets", 0, 1));
    char *text = json_dumps(header, JSON_COMPACT);
    sp_text out = {0};
    uint64_t length = strlen(text);
    sp_text_bytes(&out, &length, 8);
    sp_text_bytes(&out, text, length);
    sp_text_bytes(&out, "x", 1);
    sp_text_bytes(&out, file + 8 + n, (size_t)bytes - 8 - n);
    char before[SP_SHA256_HEX], after[SP_SHA256_HEX];
    sp_model_desc *d;
    sp_model *m;
    assert_ok(sp_model_describe(dir, NULL, &d));
    assert_ok(sp_model_weights_sha256(d, before));
    sp_model_desc_free(d);
    assert_ok(sp_write_file(path, out.data, (int64_t)out.len));
    load(dir, &d, &m);
    assert_int_equal(d->ignored_tensors, 1);
    assert_all_stored(m, mini);
    assert_ok(sp_model_weights_sha256(d, after));
    assert_string_equal(before, after); // the pad is none of the model's
    assert_string_equal(m->weights_sha256, after);
    unload(d, m);
    sp_text_free(&out);
    free(text);
    json_decref(header);
    free(file);
    mini_free(mini);
    free(path);
    free(dir);
}

// tiny-base, whole and in four shards. The hash was computed by an independent program.
static void identity_does_not_depend_on_shards(void **state) {
    (void)state;
    static const char want[] = "ac23655826b42fd24c0ce86f87b3731a52a3b456e7d1b6696c687c516d0df81e";
    const sp_model *whole = test_tiny_base();
    assert_string_equal(whole->weights_sha256, want);
    char *base = test_path("data/tiny-base"), *dir = in_tmp("sharded");
    char *from = sp_path_join(base, "config.json"), *to = sp_path_join(dir, "config.json"), *text;
    int64_t bytes;
    sp_st *st;
    assert_ok(sp_mkdirs(dir));
    assert_ok(sp_read_file(from, 1 << 20, &text, &bytes));
    assert_ok(sp_write_file(to, text, bytes));
    assert_ok(sp_st_open(base, &st));
    json_t *map = json_object();
    for (int s = 0; s < 4; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-00004.safetensors", s + 1);
        sp_st_out *out = calloc((size_t)st->n, sizeof *out);
        int64_t n = 0;
        for (int64_t i = s; i < st->n; i += 4) {
            const sp_st_tensor *t = &st->tensor[i];
            out[n] =
                (sp_st_out){.name = t->name, .dtype = t->dtype, .dims = t->dims, .data = t->data};
            memcpy(out[n++].shape, t->shape, sizeof t->shape);
            json_object_set_new(map, t->name, json_string(name));
        }
        char *path = sp_path_join(dir, name);
        assert_ok(sp_st_write(path, out, n, NULL));
        free(path);
        free(out);
    }
    json_t *index = json_pack("{s:o}", "weight_map", map);
    char *index_path = sp_path_join(dir, "model.safetensors.index.json");
    assert_int_equal(json_dump_file(index, index_path, 0), 0);

    sp_model_desc *d;
    sp_model *m;
    load(dir, &d, &m);
    assert_string_equal(m->weights_sha256, want);
    for (int64_t l = 0; l < 6; l++) {
        float *a = test_download(whole->layer[l].qkv), *b = test_download(m->layer[l].qkv);
        assert_memory_equal(a, b, 768 * 256 * sizeof *a);
        free(a);
        free(b);
    }
    unload(d, m);
    free(index_path);
    json_decref(index);
    sp_st_close(st);
    free(text);
    free(to);
    free(from);
    free(dir);
    free(base);
}

static void identity_depends_on_names_types_shapes_and_values(void **state) {
    (void)state;
    char seen[5][SP_SHA256_HEX];
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "identity-%d", i);
        char *dir = in_tmp(name);
        mini_model *mini = mini_new(&mini_default);
        mini_tensor *t = mini_find(mini, "model.layers.0.self_attn.q_proj.weight");
        if (i == 1) t->dtype = SP_ST_F16;
        if (i == 2) t->value[5] += 1;
        if (i == 3) { // two tensors of one shape exchanged
            mini_tensor *k = mini_find(mini, "model.layers.1.self_attn.q_proj.weight");
            float *v = t->value;
            t->value = k->value;
            k->value = v;
        }
        if (i == 4) mini_add(mini, "other", 1, 1, 4); // not the model's: no difference
        mini_write(mini, dir, 0);
        sp_model_desc *d;
        assert_ok(sp_model_describe(dir, NULL, &d));
        assert_ok(sp_model_weights_sha256(d, seen[i]));
        for (int k = 0; k < i; k++)
            assert_true((strcmp(seen[i], seen[k]) == 0) == (i == 4 && k == 0));
        sp_model_desc_free(d);
        mini_free(mini);
        free(dir);
    }
}

static void numbers_that_are_not_finite_are_refused_by_name(void **state) {
    (void)state;
    static const sp_st_dtype types[] = {SP_ST_BF16, SP_ST_F16, SP_ST_F32};
    for (int type = 0; type < 3; type++) {
        char name[32];
        snprintf(name, sizeof name, "nan-%d", type);
        char *dir = in_tmp(name);
        mini_model *mini = mini_new(&mini_default);
        mini_tensor *down = mini_find(mini, "model.layers.1.mlp.down_proj.weight");
        mini_tensor *norm = mini_find(mini, "model.norm.weight");
        down->dtype = norm->dtype = types[type];
        down->value[24 * 40 - 1] = NAN;
        norm->value[3] = -INFINITY;
        norm->value[4] = INFINITY;
        mini_write(mini, dir, 0);
        sp_model_desc *d;
        sp_model *m;
        assert_ok(sp_model_describe(dir, NULL, &d));
        assert_fails(sp_model_load(test_backend(), d, NULL, &m), SP_BAD_INPUT,
                     "tensor model.layers.1.mlp.down_proj.weight: element 959 is nan");
        assert_non_null(strstr(sp_error_text(), "tensor model.norm.weight: element 3 is -inf"));
        assert_null(m);
        const sp_model_load_options any = {.allow_nonfinite = true};
        assert_ok(sp_model_load(test_backend(), d, &any, &m));
        float *got = test_download(m->final_norm);
        assert_true(isinf(got[3]) && got[3] < 0 && isinf(got[4]) && isfinite(got[5]));
        free(got);
        unload(d, m);
        mini_free(mini);
        free(dir);
    }
}

static void a_folder_that_changed_meanwhile_is_noticed(void **state) {
    (void)state;
    char *dir = in_tmp("changed");
    mini_model *mini = mini_new(&mini_default);
    mini_write(mini, dir, 0);
    sp_model_desc *d;
    sp_model *m;
    assert_ok(sp_model_describe(dir, NULL, &d));
    mini_remove(mini, "model.layers.1.mlp.up_proj.weight");
    mini_write(mini, dir, 0);
    assert_fails(sp_model_load(test_backend(), d, NULL, &m), SP_BAD_INPUT,
                 "tensor model.layers.1.mlp.up_proj.weight");
    sp_model_desc_free(d);
    mini_free(mini);
    free(dir);
}

// ---- rotary tables ------------------------------------------------------------------------------

static void rotary_tables_are_the_golden_ones(void **state) {
    (void)state;
    const sp_model_desc *d = test_tiny_base()->desc;
    float *want_cos = golden_f32("forward", "rope.cos", 256 * 32);
    float *want_sin = golden_f32("forward", "rope.sin", 256 * 32);
    sp_rope_table t;
    assert_ok(sp_rope_table_make(test_backend(), d, 256, false, &t));
    assert_true(t.cos.rows == 256 && t.cos.cols == 32 && t.cos.dtype == SP_F32);
    float *cosines = test_download(t.cos), *sines = test_download(t.sin);
    assert_true(test_max_abs_error(cosines, want_cos, 256 * 32) < 5e-5);
    assert_true(test_max_abs_error(sines, want_sin, 256 * 32) < 5e-5);
    free(cosines);
    free(sines);
    free(want_cos);
    free(want_sin);
    sp_rope_table_free(&t);
}

static sp_model_desc plain(int64_t head_dim) {
    return (sp_model_desc){.name = "m",
                           .heads = {1, 1, head_dim},
                           .max_positions = 65536,
                           .original_max_positions = 65536,
                           .rope_theta = 10000,
                           .rope_attention_factor = 1};
}

// examples.json, "rope": head size 8, theta 10000, factors given; position 4.
static void rotary_example_of_the_specification(void **state) {
    (void)state;
    json_error_t e;
    char *path = test_path("tests/golden/examples.json");
    json_t *all = json_load_file(path, 0, &e), *rope = json_object_get(all, "rope");
    assert_non_null(rope);
    double factor[4];
    for (size_t i = 0; i < 4; i++)
        factor[i] = json_number_value(json_array_get(json_object_get(rope, "factor"), i));
    sp_model_desc d = plain(8);
    d.rope_short = d.rope_long = factor;
    float cosines[5 * 4], sines[5 * 4];
    sp_rope_values(&d, 5, cosines, sines);
    for (size_t m = 0; m < 4; m++) {
        double c = json_number_value(json_array_get(json_object_get(rope, "cos_t4"), m));
        double s = json_number_value(json_array_get(json_object_get(rope, "sin_t4"), m));
        assert_true(fabs(cosines[16 + m] - c) < 1e-6 && fabs(sines[16 + m] - s) < 1e-6);
        assert_true(cosines[m] == 1 && sines[m] == 0); // position 0
    }
    // The fp32 angle of the far end shows the association: cosine and sine of it, not of the exact.
    double far = json_number_value(json_object_get(rope, "f32_angle_t65535_k0"));
    double exact = json_number_value(json_object_get(rope, "exact_angle_t65535_k0"));
    float *c = malloc(65536 * 4 * sizeof *c), *s = malloc(65536 * 4 * sizeof *s);
    sp_rope_values(&d, 65536, c, s);
    assert_true(fabs(c[65535 * 4] - cos(far)) < 1e-7 && fabs(s[65535 * 4] - sin(far)) < 1e-7);
    assert_true(fabs(cos(far) - cos(exact)) > 1e-5 || fabs(sin(far) - sin(exact)) > 1e-5);
    free(c);
    free(s);
    json_decref(all);
    free(path);
}

static void without_scaling_the_angle_is_position_times_frequency(void **state) {
    (void)state;
    static const double base[] = {1.0, 0.8659643530845642, 0.00011547819303814322}; // examples.json
    static const int index[] = {0, 1, 63};
    sp_model_desc d = plain(128);
    enum { N = 1000 };
    float *c = malloc(N * 64 * sizeof *c), *s = malloc(N * 64 * sizeof *s);
    sp_rope_values(&d, N, c, s);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < 3; i++) {
            float angle = (float)t * (float)base[i];
            assert_true(c[t * 64 + index[i]] == (float)cos((double)angle));
            assert_true(s[t * 64 + index[i]] == (float)sin((double)angle));
        }
    free(c);
    free(s);
}

static void the_list_is_chosen_by_the_length_of_the_sequence(void **state) {
    (void)state;
    double low[2] = {1, 1}, high[2] = {2, 4};
    sp_model_desc d = plain(4);
    d.rope_short = low;
    d.rope_long = high;
    d.original_max_positions = 16;
    d.max_positions = 32;
    d.rope_attention_factor = 1.5;
    float c[64], s[64];
    sp_rope_values(&d, 16, c, s);
    assert_true(fabsf(c[2 * 8] - 1.5f * cosf(8)) < 1e-6f); // short up to 16 positions
    sp_rope_values(&d, 17, c, s);
    assert_true(fabsf(c[2 * 8] - 1.5f * cosf(4)) < 1e-6f); // long above, for every position
    assert_true(fabsf(s[2 * 8 + 1] - 1.5f * sinf(8 / 100.0f / 4)) < 1e-6f);

    sp_rope_table t;
    assert_ok(sp_rope_table_make(test_backend(), &d, 32, false, &t));
    sp_rope_table_free(&t);
    assert_fails(sp_rope_table_make(test_backend(), &d, 33, false, &t), SP_BAD_INPUT,
                 "33 positions is longer than the 32");
    assert_ok(sp_rope_table_make(test_backend(), &d, 33, true, &t));
    assert_int_equal(t.sin.rows, 33);
    sp_rope_table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_comes_to_its_place),
        cmocka_unit_test(misaligned_data_loads_the_same),
        cmocka_unit_test(identity_does_not_depend_on_shards),
        cmocka_unit_test(identity_depends_on_names_types_shapes_and_values),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused_by_name),
        cmocka_unit_test(a_folder_that_changed_meanwhile_is_noticed),
        cmocka_unit_test(rotary_tables_are_the_golden_ones),
        cmocka_unit_test(rotary_example_of_the_specification),
        cmocka_unit_test(without_scaling_the_angle_is_position_times_frequency),
        cmocka_unit_test(the_list_is_chosen_by_the_length_of_the_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
