// The worked example of a complete training layer (training.md 12, `layer`), operation by operation
// on given inputs, queries and keys.
#include "common/util.h"
#include "kernels/kernels.h"
#include "tests/golden.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 64, HIDDEN = 6, HQ = 4, HKV = 2, HEAD = 4, ND = 31, NT = 63, NB = 8, K = 5 };
static const sp_heads heads = {HQ, HKV, HEAD};
static const sp_grid deployed = {4, 2}, teacher = {2, 1};
static const sp_selection selection = {.block = 8, .init_blocks = 1, .local_blocks = 1, .topk = K};

static json_t *example;

static double value_of(const json_t *v) {
    if (json_is_number(v)) return json_number_value(v);
    const char *s = json_string_value(v);
    if (s && strcmp(s, "inf") == 0) return INFINITY;
    if (s && strcmp(s, "-inf") == 0) return -INFINITY;
    fail_msg("examples.json: not a number");
    return 0;
}

static void flatten(const json_t *v, double *out, int64_t n, int64_t *at) {
    if (!json_is_array(v)) {
        assert_true(*at < n);
        out[(*at)++] = value_of(v);
        return;
    }
    size_t i;
    const json_t *item;
    json_array_foreach(v, i, item) flatten(item, out, n, at);
}

static float *array(const char *key, int64_t n) {
    double *v;
    float *f;
    int64_t at = 0;
    assert_ok(sp_alloc(&v, n, sizeof *v, key));
    assert_ok(sp_alloc(&f, n, sizeof *f, key));
    flatten(json_object_get(example, key), v, n, &at);
    if (at != n) fail_msg("%s has %lld numbers, expected %lld", key, (long long)at, (long long)n);
    for (int64_t i = 0; i < n; i++) f[i] = (float)v[i];
    free(v);
    return f;
}

// [heads][rows][cols] -> [rows][heads][cols]
static float *rows_array(const char *key, int64_t rows, int64_t cols) {
    float *v = array(key, HKV * rows * cols), *out;
    assert_ok(sp_alloc(&out, HKV * rows * cols, sizeof *out, key));
    for (int64_t h = 0; h < HKV; h++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(out + (r * HKV + h) * cols, v + (h * rows + r) * cols,
                   (size_t)cols * sizeof *out);
    free(v);
    return out;
}

static sp_tensor zeros(sp_dtype type, int64_t rows, int64_t cols) {
    sp_tensor t;
    assert_ok(sp_tensor_alloc(test_backend(), type, rows, cols, "test tensor", &t));
    return t;
}

static sp_tensor input(const char *key, int64_t rows, int64_t cols) {
    float *v = array(key, rows * cols);
    sp_tensor t = test_upload(v, rows, cols);
    free(v);
    return t;
}

// Base 10000, factors 1 and 2, attention factor 1.
static void rope_tables(sp_tensor *cos_out, sp_tensor *sin_out) {
    float c[T * HEAD / 2], s[T * HEAD / 2];
    for (int t = 0; t < T; t++)
        for (int m = 0; m < HEAD / 2; m++) {
            double angle = t / ((m + 1) * pow(10000, 2.0 * m / HEAD));
            c[t * HEAD / 2 + m] = (float)cos(angle);
            s[t * HEAD / 2 + m] = (float)sin(angle);
        }
    *cos_out = test_upload(c, T, HEAD / 2);
    *sin_out = test_upload(s, T, HEAD / 2);
}

static void complete_layer(void **state) {
    (void)state;
    sp_tensor x = input("X", T, HIDDEN), w = input("W", HKV * HEAD, HIDDEN);
    sp_tensor q = input("Q", T, HQ * HEAD), k = input("K", T, HKV * HEAD);
    sp_tensor cos_table, sin_table;
    rope_tables(&cos_table, &sin_table);

    sp_tensor f = zeros(SP_F32, T, HKV * HEAD);
    float *want = array("forecast_rotated", T * HKV * HEAD);
    assert_ok(sp_linear(x, w, f));
    assert_ok(sp_rope(f, cos_table, sin_table, 0, HEAD, false));
    assert_tensor_close("forecast_rotated", f, want, 1e-6);
    free(want);

    sp_tensor c = zeros(SP_F32, ND, HKV * HEAD), fine_c = zeros(SP_F32, NT, HKV * HEAD);
    want = array("Kd", ND * HKV * HEAD);
    assert_int_equal(sp_windows(deployed, T), ND);
    assert_int_equal(sp_windows(teacher, T), NT);
    assert_ok(sp_compress_keys(k, deployed, 0, c));
    assert_ok(sp_compress_keys(k, teacher, 0, fine_c));
    assert_tensor_close("Kd", c, want, 1e-6);
    free(want);

    sp_tensor fine = zeros(SP_F32, T, HKV * NT), importance = zeros(SP_F32, T, HKV * ND);
    sp_importance_args a = {.heads = heads,
                            .fine = teacher,
                            .deployed = teacher,
                            .n_d = NT,
                            .visibility = SP_SEES_START};
    assert_ok(sp_importance(&a, q, 0, fine_c, fine));
    want = array("teacher_fine_row_h0_i63", NT);
    float *rows = test_download(fine);
    assert_close("teacher_fine_row_h0_i63", rows + 63 * HKV * NT, want, NT, 1e-6);
    free(rows), free(want);
    a.deployed = deployed;
    a.n_d = ND;
    assert_ok(sp_importance(&a, q, 0, fine_c, importance));
    want = rows_array("target_aligned", T, ND);
    assert_tensor_close("target_aligned", importance, want, 1e-6);
    free(want);

    sp_tensor scores = zeros(SP_F32, T, HKV * NB), lists = zeros(SP_I32, T, HKV * K);
    assert_ok(sp_block_scores(&selection, deployed, HKV, importance, 0, NB, scores));
    want = array("block_scores_h0", T * NB);
    rows = test_download(scores);
    for (int i = 0; i < T; i++)
        assert_close("block_scores_h0", rows + i * HKV * NB, want + i * NB, NB, 1e-6);
    free(rows), free(want);
    assert_ok(sp_select_blocks(&selection, deployed, HKV, importance, 0, NB, lists));
    want = rows_array("topk", T, K);
    int32_t *got_lists = test_download_i32(lists), golden_lists[T * HKV * K];
    for (int i = 0; i < T * HKV * K; i++) golden_lists[i] = (int32_t)want[i];
    assert_lists("topk", got_lists, golden_lists, NULL, T, HKV, K);
    free(got_lists), free(want);

    sp_tensor row_loss = zeros(SP_F32, T, HKV), df = zeros(SP_F32, T, HKV * HEAD);
    sp_tensor dz = zeros(SP_F32, T, HKV * ND), df_ideal = zeros(SP_F32, T, HKV * HEAD);
    sp_kl_args kl = {.heads = heads,
                     .deployed = deployed,
                     .selection = selection,
                     .gradient = SP_KL_IDEAL,
                     .weight = 1.0 / (HKV * T)};
    assert_ok(sp_kl(&kl, f, 0, c, importance, lists, row_loss, df_ideal, NULL, NULL));
    kl.gradient = SP_KL_EXACT;
    assert_ok(sp_kl(&kl, f, 0, c, importance, lists, row_loss, df, NULL, &dz));
    want = test_download(df);
    assert_tensor_close("ideal gradient", df_ideal, want, 1e-5); // no floor acts here
    free(want);
    want = rows_array("row_loss", T, 1);
    assert_tensor_close("row_loss", row_loss, want, 2e-6);
    int with_support = 0;
    for (int i = 0; i < T * HKV; i++) with_support += fabsf(want[i]) > 1e-6f;
    assert_int_equal(with_support,
                     json_integer_value(json_object_get(example, "rows_with_support")));
    free(want);
    double loss;
    assert_ok(sp_sum(row_loss, &loss));
    assert_within("loss", loss / (HKV * T), value_of(json_object_get(example, "loss")), 1e-6);

    want = array("dlogit_h1_i63", ND);
    rows = test_download(dz);
    assert_close("dlogit_h1_i63", rows + (63 * HKV + 1) * ND, want, ND, 1e-5);
    free(rows), free(want);

    sp_tensor dW = zeros(SP_F32, HKV * HEAD, HIDDEN);
    assert_ok(sp_rope(df, cos_table, sin_table, 0, HEAD, true));
    assert_ok(sp_grad_weight(df, x, dW));
    want = array("dW", HKV * HEAD * HIDDEN);
    assert_tensor_close("dW", dW, want, 1e-5);
    free(want);

    sp_tensor *tensor[] = {&x,     &w,        &q,      &k,    &cos_table,  &sin_table,
                           &f,     &c,        &fine_c, &fine, &importance, &scores,
                           &lists, &row_loss, &df,     &dz,   &df_ideal,   &dW};
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) sp_tensor_free(tensor[i]);
}

static int group_setup(void **state) {
    (void)state;
    static json_t *all;
    char *path = test_path("tests/golden/examples.json");
    json_error_t error;
    all = json_load_file(path, 0, &error);
    if (!all) fail_msg("%s: %s", path, error.text);
    example = json_object_get(all, "layer");
    free(path);
    return example ? 0 : 1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(complete_layer)};
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
