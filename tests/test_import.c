// Import of Forecast weights: files that torch made (tests/pt), safetensors, our own state,
// folders, and every way in which a file can hold the wrong tensors.
#include "checkpoints/checkpoints.h"
#include "common/util.h"
#include "model/safetensors.h"
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, ROWS = 8, COLS = 6, SIZE = ROWS * COLS, ALL = (LAYERS + 1) * SIZE };

// The rule of tests/pt/make_fixtures.py.
static float fixture_value(int64_t scored, int64_t i) {
    return (float)((SIZE * scored + i) * 37 % 256 - 128) / 128;
}

static sp_forecast empty(void) {
    sp_forecast f = {.layers = LAYERS, .rows = ROWS, .cols = COLS};
    assert_ok(sp_alloc(&f.w, ALL, sizeof *f.w, "test"));
    for (int i = 0; i < ALL; i++) f.w[i] = -77;
    return f;
}

static void expect_fixture(const sp_forecast *f, bool last_is_there) {
    for (int64_t i = 0; i < ALL; i++) {
        float want = !last_is_there && i >= LAYERS * SIZE ? 0 : fixture_value(i / SIZE, i % SIZE);
        if (f->w[i] != want)
            fail_msg("element %lld of scored layer %lld: %g, expected %g", (long long)(i % SIZE),
                     (long long)(i / SIZE), f->w[i], want);
    }
}

static void expect_untouched(const sp_forecast *f) {
    for (int64_t i = 0; i < ALL; i++) assert_true(f->w[i] == -77);
}

static sp_imported import_fixture(const char *name, bool last_is_there) {
    char *path = test_path(name);
    sp_forecast f = empty();
    sp_imported info;
    assert_ok(sp_forecast_import(path, &f, &info));
    expect_fixture(&f, last_is_there);
    sp_forecast_free(&f);
    free(path);
    return info;
}

static void public_trainer(void **unused) {
    (void)unused;
    sp_imported info = import_fixture("tests/pt/ckpt-7.pt", true);
    assert_int_equal(info.step, 7);
    assert_string_equal(info.base_model, "/models/tiny");
    assert_string_equal(info.format, "pt");
    char *text = json_dumps(info.sparse_config, JSON_COMPACT);
    assert_string_equal(text,
                        "{\"kernel_size\":8,\"kernel_stride\":4,\"topk\":8,\"use_nope\":false,"
                        "\"kl_target_align_pooling\":\"max\",\"rate\":0.5,\"none\":null,"
                        "\"list\":[1,-2]}");
    free(text);
    sp_imported_free(&info);
}

static void other_torch_files(void **unused) {
    (void)unused;
    sp_imported info = import_fixture("tests/pt/views.pt", true); // strided, shared, module.
    assert_int_equal(info.step, -1);
    assert_null(info.sparse_config);
    sp_imported_free(&info);
    info = import_fixture("tests/pt/net-f16.pt", true);
    assert_int_equal(info.step, 11); // a tensor
    sp_imported_free(&info);
    info = import_fixture("tests/pt/weights-f64.pt", true); // protocol 4
    sp_imported_free(&info);
    info = import_fixture("tests/pt/parameters.pt", false); // nn.Parameter; the last one missing
    sp_imported_free(&info);
}

static void expect_refused(const char *path, const char *const *parts) {
    sp_forecast f = empty();
    sp_imported info = {.step = 5};
    assert_fails(sp_forecast_import(path, &f, &info), SP_BAD_INPUT, sp_path_base(path));
    for (; *parts; parts++)
        if (!strstr(sp_error_text(), *parts))
            fail_msg("'%s' is missing in: %s", *parts, sp_error_text());
    assert_int_equal(info.step, 5);
    expect_untouched(&f);
    sp_forecast_free(&f);
}
#define REFUSED(path, ...) expect_refused(path, (const char *const[]){__VA_ARGS__, NULL})

static void refused_torch_files(void **unused) {
    (void)unused;
    char *legacy = test_path("tests/pt/legacy.pt"), *module = test_path("tests/pt/module.pt"),
         *wrong = test_path("tests/pt/wrong.pt"), *script = test_path("tests/pt/make_fixtures.py"),
         *pickle = sp_path_join(test_tmpdir(), "bare.pkl");
    REFUSED(legacy, "old format", "torch.save");
    REFUSED(module, "torch.nn.modules.linear.Linear", "state_dict()");
    REFUSED(wrong, "layers.0.self_attn.q_future_proj.weight: int64",
            "layers.x.q_future_proj: unknown name",
            "q_curr_proj.weight: shape [5,6], expected [8,6]",
            "layers.1.self_attn.q_future_proj.weight: shape [7,6]");
    REFUSED(script, "make_fixtures.py");
    assert_ok(sp_write_file(pickle, "\x80\x02}q\x01.", 6));
    REFUSED(pickle, "bare Python pickle");
    free(legacy), free(module), free(wrong), free(script), free(pickle);
}

// ---- safetensors --------------------------------------------------------------------------------

typedef struct tensor_spec {
    const char *name;
    int64_t scored, rows;
} tensor_spec;

static void write_safetensors(const char *path, const tensor_spec *spec, int n, sp_st_dtype type,
                              json_t *metadata) {
    sp_st_out out[8];
    static uint8_t data[8][SIZE * 8];
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < SIZE; i++) {
            float v = fixture_value(spec[k].scored, i);
            uint16_t h = sp_f32_to_bf16(v);
            int32_t whole = (int32_t)v;
            if (type == SP_ST_BF16) memcpy(data[k] + 2 * i, &h, 2);
            if (type == SP_ST_F32) memcpy(data[k] + 4 * i, &v, 4);
            if (type == SP_ST_I32) memcpy(data[k] + 4 * i, &whole, 4);
        }
        out[k] = (sp_st_out){.name = spec[k].name,
                             .dtype = type,
                             .dims = 2,
                             .shape = {spec[k].rows, COLS},
                             .data = data[k]};
    }
    assert_ok(sp_st_write(path, out, n, metadata));
}

#define ATTN(l) "model.layers." l ".self_attn."
static const tensor_spec good[] = {
    {ATTN("0") "q_future_proj.weight", 1, ROWS},
    {ATTN("0") "q_curr_proj.weight", 0, ROWS},
    {"model.norm.weight", 0, ROWS}, // ignored
    {"module." ATTN("1") "q_future_proj.weight", 2, ROWS},
    {"language_model.layers.2.self_attn.q_future_proj.weight", 3, ROWS},
};

static void safetensors(void **unused) {
    (void)unused;
    char *path = sp_path_join(test_tmpdir(), "forecast.safetensors");
    json_t *metadata = json_pack("{s:s,s:s,s:s}", "sparda.step", "40", "sparda.base_model", "tiny",
                                 "sparda.sparse_config", "{\"topk\":8}");
    for (int i = 0; i < 2; i++) {
        write_safetensors(path, good, 5, i ? SP_ST_F32 : SP_ST_BF16, metadata);
        sp_forecast f = empty();
        sp_imported info;
        assert_ok(sp_forecast_import(path, &f, &info));
        expect_fixture(&f, true);
        assert_int_equal(info.step, 40);
        assert_string_equal(info.base_model, "tiny");
        assert_string_equal(info.format, "safetensors");
        assert_int_equal(json_integer_value(json_object_get(info.sparse_config, "topk")), 8);
        sp_imported_free(&info);
        sp_forecast_free(&f);
    }
    json_decref(metadata);

    write_safetensors(path, good, 4, SP_ST_BF16, NULL); // without the unused last one
    sp_forecast f = empty();
    assert_ok(sp_forecast_import(path, &f, NULL));
    expect_fixture(&f, false);
    sp_forecast_free(&f);
    // the folder around it, and a merged folder
    f = empty();
    assert_ok(sp_forecast_import(test_tmpdir(), &f, NULL));
    expect_fixture(&f, false);
    sp_forecast_free(&f);
    char *merged = sp_path_join(test_tmpdir(), "merged"), *sub = sp_path_join(merged, "sparda"),
         *inner = sp_path_join(sub, "forecast.safetensors");
    assert_ok(sp_mkdirs(sub));
    write_safetensors(inner, good, 5, SP_ST_BF16, NULL);
    f = empty();
    assert_ok(sp_forecast_import(merged, &f, NULL));
    expect_fixture(&f, true);
    sp_forecast_free(&f);
    free(merged), free(sub), free(inner), free(path);
}

static void wrong_safetensors(void **unused) {
    (void)unused;
    char *path = sp_path_join(test_tmpdir(), "wrong.safetensors");
    static const tensor_spec bad[] = {
        {ATTN("0") "q_future_proj.weight", 1, ROWS - 1},
        {ATTN("1") "q_curr_proj.weight", 0, ROWS},
        {ATTN("1") "q_future_proj.weight", 2, ROWS},
        {"module." ATTN("1") "q_future_proj.weight", 2, ROWS},
        {ATTN("7") "q_future_proj.weight", 3, ROWS},
        {ATTN("0") "q_future_proj.bias", 3, ROWS},
    };
    write_safetensors(path, bad, 6, SP_ST_BF16, NULL);
    REFUSED(path, "shape [7,6], expected [8,6]",
            "layers.1.self_attn.q_curr_proj.weight: unknown name", "the same tensor as",
            "only 3 layers", "q_future_proj.bias: unknown name",
            "layers.0.self_attn.q_curr_proj.weight: missing");
    assert_null(strstr(sp_error_text(), "layers.2.self_attn.q_future_proj.weight: missing"));
    write_safetensors(path, good, 5, SP_ST_I32, NULL);
    REFUSED(path, "I32, expected a tensor of floats");
    uint16_t nan = 0x7fc0;
    write_safetensors(path, good, 5, SP_ST_BF16, NULL);
    int64_t length;
    char *bytes;
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &length));
    memcpy(bytes + length - 2, &nan, 2);
    assert_ok(sp_write_file(path, bytes, length));
    free(bytes);
    sp_forecast f = empty();
    assert_ok(sp_forecast_import(path, &f, NULL)); // the validator must see it; training asks
    assert_fails(sp_forecast_require_finite(&f, path), SP_BAD_INPUT, "element 47 is nan");
    sp_forecast_free(&f);
    write_safetensors(path, good + 2, 1, SP_ST_BF16, NULL);
    REFUSED(path, "q_curr_proj.weight: missing",
            "layers.1.self_attn.q_future_proj.weight: missing");
    free(path);
}

// ---- our own state ------------------------------------------------------------------------------

static void state(void **unused) {
    (void)unused;
    char *run = sp_path_join(test_tmpdir(), "run"), *dir = sp_path_join(run, "checkpoints"),
         *path = sp_checkpoint_path(run, 12);
    assert_ok(sp_mkdirs(dir));
    sp_train_state s = {.weights = empty(),
                        .step = 12,
                        .heads = {4, 2, 4},
                        .hidden = COLS,
                        .base_name = sp_strdup("tiny"),
                        .teacher = {2, 1}};
    s.sparse.block_size = 16, s.sparse.topk = 8, s.sparse.window_size = 32;
    for (int64_t i = 0; i < ALL; i++) s.weights.w[i] = fixture_value(i / SIZE, i % SIZE) + 0x1p-20f;
    assert_ok(sp_state_save(path, &s));
    const char *const sources[] = {path, run};
    for (int i = 0; i < 2; i++) { // the file, the run folder
        sp_forecast f = empty();
        sp_imported info;
        assert_ok(sp_forecast_import(sources[i], &f, &info));
        assert_memory_equal(f.w, s.weights.w, ALL * sizeof(float)); // fp32, not rounded
        assert_int_equal(info.step, 12);
        assert_string_equal(info.format, "state");
        assert_int_equal(json_integer_value(json_object_get(info.sparse_config, "k_effective")),
                         10);
        sp_imported_free(&info);
        sp_forecast_free(&f);
    }
    sp_train_state_free(&s);
    s = (sp_train_state){.weights = {.layers = 1, .rows = 2, .cols = 2},
                         .heads = {1, 1, 2},
                         .hidden = 2,
                         .base_name = sp_strdup("small")};
    assert_ok(sp_alloc(&s.weights.w, 8, sizeof(float), "test"));
    assert_ok(sp_state_save(path, &s));
    REFUSED(path, "another base model (small)", "1 layers of [2,2], expected 3 layers of [8,6]");
    sp_train_state_free(&s);
    free(run), free(dir), free(path);
}

static void nothing_there(void **unused) {
    (void)unused;
    char *dir = sp_path_join(test_tmpdir(), "empty"), *file = sp_path_join(dir, "none.pt");
    assert_ok(sp_mkdirs(dir));
    REFUSED(dir, "no Forecast weights");
    REFUSED(file, "does not exist");
    assert_ok(sp_write_file(file, "", 0));
    REFUSED(file, "none.pt");
    assert_ok(sp_write_file(file, "PK\x03\x04", 4));
    REFUSED(file, "damaged zip archive");
    free(dir), free(file);
}

// The first bytes of a safetensors file are its header's length; every length must be taken for
// what it is, also those that look like the first bytes of a pickle (80 02 to 80 05).
static void header_lengths_that_look_like_other_files(void **unused) {
    (void)unused;
    char *path = sp_path_join(test_tmpdir(), "lengths.safetensors"), pad[1500] = {0};
    float w[LAYERS + 1][SIZE];
    char names[LAYERS + 1][64];
    sp_st_out tensors[LAYERS + 1];
    int like_pickles = 0;
    for (int l = 0; l <= LAYERS; l++) {
        sp_forecast_name(l, names[l]);
        for (int i = 0; i < SIZE; i++) w[l][i] = fixture_value(l, i);
        tensors[l] = (sp_st_out){names[l], SP_ST_F32, 2, {ROWS, COLS}, w[l]};
    }
    for (size_t length = 0; length + 8 < sizeof pad; length += 8) {
        memset(pad, 'x', length);
        pad[length] = 0;
        json_t *metadata = json_pack("{s:s}", "pad", pad);
        assert_ok(sp_st_write(path, tensors, LAYERS + 1, metadata));
        json_decref(metadata);
        char *bytes;
        int64_t n;
        assert_ok(sp_read_file(path, 1 << 20, &bytes, &n));
        like_pickles += (uint8_t)bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5;
        free(bytes);
        sp_forecast f = empty();
        assert_ok(sp_forecast_import(path, &f, NULL));
        expect_fixture(&f, true);
        sp_forecast_free(&f);
    }
    assert_true(like_pickles >= 3);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(public_trainer),
        cmocka_unit_test(other_torch_files),
        cmocka_unit_test(refused_torch_files),
        cmocka_unit_test(safetensors),
        cmocka_unit_test(wrong_safetensors),
        cmocka_unit_test(state),
        cmocka_unit_test(nothing_there),
        cmocka_unit_test(header_lengths_that_look_like_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
