// The golden training step on a GPU. How far bf16 may stray from the float64 values is not guessed:
// a plain bf16 implementation, the CPU backend with every activation rounded to bf16, is measured
// on the same inputs, and the GPU may lose twice that.
#include "common/build.h"
#include "common/util.h"
#include "kernels/backend.h"
#include "tests/gpu_options.h"
#include "tests/stepper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 6, D = 256, HKV = 2, HEAD = 64, T = 256, ND = 63, K = 10, ROWS = HKV * HEAD };

// ---- the CPU backend with bf16 activations (the weights are bf16 already, the rotary tables fp32)
// --

static const sp_operations *exact;

static float b(float x) {
    return sp_bf16_to_f32(sp_f32_to_bf16(x));
}
static float *row_of(sp_tensor t, int64_t r) {
    return (float *)t.data + r * t.ld;
}
static sp_status rounded(sp_status st, sp_tensor t) {
    for (int64_t r = 0; r < t.rows && st == SP_OK; r++)
        for (int64_t c = 0; c < t.cols; c++) row_of(t, r)[c] = b(row_of(t, r)[c]);
    return st;
}
static sp_status embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out) {
    return rounded(exact->embed(tokens, table, scale, out), out);
}
// Where training.md 1.4 rounds in the middle of an operation, so does this.
static sp_status rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out) {
    for (int64_t r = 0; r < x.rows; r++) {
        const float *v = row_of(x, r);
        double squares = 0;
        for (int64_t c = 0; c < x.cols; c++) squares += (double)v[c] * v[c];
        float scale = (float)(1 / sqrt(squares / (double)x.cols + eps));
        for (int64_t c = 0; c < x.cols; c++)
            row_of(out, r)[c] = b(b(v[c] * scale) * row_of(w, 0)[c]);
    }
    return SP_OK;
}
static sp_status residual_add(sp_tensor h, sp_tensor branch, float factor) {
    for (int64_t r = 0; r < h.rows; r++)
        for (int64_t c = 0; c < h.cols; c++)
            row_of(h, r)[c] = b(row_of(h, r)[c] + b(factor * row_of(branch, r)[c]));
    return SP_OK;
}
static sp_status swiglu(sp_tensor gate_up, sp_tensor out) {
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t c = 0; c < out.cols; c++) {
            float gate = row_of(gate_up, r)[c], up = row_of(gate_up, r)[out.cols + c];
            row_of(out, r)[c] = b(b(gate / (1 + expf(-gate))) * up);
        }
    return SP_OK;
}
static sp_status linear(sp_tensor x, sp_tensor w, sp_tensor out) {
    return rounded(exact->linear(x, w, out), out);
}
static sp_status rope(sp_tensor x, sp_tensor c, sp_tensor s, int64_t pos0, int64_t d, bool back) {
    return rounded(exact->rope(x, c, s, pos0, d, back), x);
}
static sp_status sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                  sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out) {
    return rounded(exact->sparse_attention(heads, q, q0, k, v, bias, lists, block, out), out);
}
static sp_status compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out) {
    return rounded(exact->compress_keys(k, g, j0, out), out);
}
static sp_status kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
                    sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
                    const sp_tensor *dz) {
    return rounded(exact->kl(p, f, i0, c, a, lists, row_loss, df, student_p, dz), df);
}

static sp_backend *open_plain_bf16(void) {
    static sp_operations ops;
    sp_backend *be;
    assert_ok(sp_backend_open(
        &(sp_backend_options){.name = "cpu", .cpu_blas = "auto", .threads = 1, .local_ranks = 1},
        &be));
    exact = be->ops;
    ops = *exact;
    ops.embed = embed, ops.rmsnorm = rmsnorm, ops.linear = linear, ops.rope = rope;
    ops.residual_add = residual_add, ops.swiglu = swiglu, ops.sparse_attention = sparse_attention;
    ops.compress_keys = compress_keys, ops.kl = kl;
    be->ops = &ops;
    return be;
}

// ---- one golden step ----------------------------------------------------------------------------

enum { IMPORTANCE, ROW_LOSS, LOSS, GRADIENT, FORECAST, STUDENT, DZ, N_KINDS };
static const char *const kinds[N_KINDS] = {
    "importance",          "row losses",         "losses",       "gradients",
    "Forecast of layer 2", "student of layer 2", "dz of layer 2"};

// Relative L2 errors against the golden values; of layers the largest.
static void measure(sp_backend *be, double error[N_KINDS]) {
    int32_t *tokens = golden_i32("forward", "tokens", T);
    int32_t *lists = golden_bits("forward", "lists.bits", L, HKV, T, K);
    float *A = golden_rows_f32("forward", "A", L, HKV, T, ND);
    float *row_loss = golden_rows_f32("loss", "row_loss", L, HKV, T, 1);
    float *loss = golden_f32("loss", "loss", L), *dW = golden_f32("loss", "dW", L * ROWS * D);
    float *forecast = golden_f32("loss", "forecast.2", T * ROWS);
    float *student_p = golden_rows_f32("loss", "student_p.2", 1, HKV, T, ND);
    float *dz = golden_rows_f32("loss", "dz.2", 1, HKV, T, ND);
    char *dir = test_path("data/tiny-base");
    sp_model_desc *desc;
    sp_model *m;
    assert_ok(sp_model_describe(dir, NULL, &desc));
    assert_ok(sp_model_load(be, desc, NULL, &m));
    stepper t = stepper_open(m, T, &(sp_distill_args){.teacher = {2, 1}}, golden_forecast(1));
    for (int i = 0; i < N_KINDS; i++) error[i] = 0;
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {.layer = l,
                              .fixed_lists = lists,
                              .importance = test_filled(T * HKV * ND, "importance"),
                              .row_loss = test_filled(T * HKV, "row losses"),
                              .student_p = test_filled(T * HKV * ND, "student"),
                              .dz = test_filled(T * HKV * ND, "dz"),
                              .forecast = test_filled(T * ROWS, "forecast")};
        float *g = stepper_gradient(&t, tokens, T, 1, &p);
#define WORST(kind, got, want, n) error[kind] = fmax(error[kind], test_rel_error(got, want, n))
        WORST(IMPORTANCE, p.importance, A + l * T * HKV * ND, T * HKV * ND);
        WORST(ROW_LOSS, p.row_loss, row_loss + l * T * HKV, T * HKV);
        error[LOSS] = fmax(error[LOSS], fabs(t.loss[l] - loss[l]) / loss[l]);
        WORST(GRADIENT, g + l * ROWS * D, dW + l * ROWS * D, ROWS * D);
        if (l == 2) {
            WORST(FORECAST, p.forecast, forecast, T * ROWS);
            WORST(STUDENT, p.student_p, student_p, T * HKV * ND);
            WORST(DZ, p.dz, dz, T * HKV * ND);
        }
#undef WORST
        free(p.importance), free(p.row_loss), free(p.student_p), free(p.dz), free(p.forecast);
        free(g);
    }
    stepper_close(&t);
    sp_model_free(m);
    sp_model_desc_free(desc);
    free(dir), free(tokens), free(lists), free(A), free(row_loss), free(loss), free(dW);
    free(forecast), free(student_p), free(dz);
}

// The same for the NOSA base, of which fewer arrays are stored.
static void measure_nosa(sp_backend *be, double error[N_KINDS]) {
    enum { K_ALL = 14, K_LOSS = 10 };
    int32_t *tokens = golden_i32("nosa", "tokens", T);
    int32_t *lists = golden_bits("nosa", "lists.bits", L, HKV, T, K_ALL);
    int32_t *loss_lists = golden_bits("nosa", "short.bits", L, HKV, T, K_LOSS);
    float *A = golden_rows_f32("nosa", "A.4", 1, HKV, T, ND);
    float *row_loss = golden_rows_f32("nosa", "row_loss", L, HKV, T, 1);
    float *loss = golden_f32("nosa", "loss", L), *dW = golden_f32("nosa", "dW.2", ROWS * D);
    char *dir = test_path("data/tiny-nosa");
    sp_model_desc *desc;
    sp_model *m;
    sp_forecast f;
    assert_ok(sp_model_describe(dir, NULL, &desc));
    assert_ok(sp_model_load(be, desc, NULL, &m));
    assert_ok(sp_forecast_alloc(desc, &f));
    sp_forecast_init(&f, 20260605);
    stepper t = stepper_open(m, T, &(sp_distill_args){.teacher = {2, 1}}, f);
    for (int i = 0; i < N_KINDS; i++) error[i] = 0;
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {.layer = l,
                              .fixed_lists = lists,
                              .fixed_loss_lists = loss_lists,
                              .importance = test_filled(T * HKV * ND, "importance"),
                              .row_loss = test_filled(T * HKV, "row losses")};
        float *g = stepper_gradient(&t, tokens, T, 1, &p);
        if (l == 4) error[IMPORTANCE] = test_rel_error(p.importance, A, T * HKV * ND);
        error[ROW_LOSS] =
            fmax(error[ROW_LOSS], test_rel_error(p.row_loss, row_loss + l * T * HKV, T * HKV));
        error[LOSS] = fmax(error[LOSS], fabs(t.loss[l] - loss[l]) / loss[l]);
        if (l == 2) error[GRADIENT] = test_rel_error(g + l * ROWS * D, dW, ROWS * D);
        free(p.importance), free(p.row_loss), free(g);
    }
    stepper_close(&t);
    sp_model_free(m);
    sp_model_desc_free(desc);
    free(dir), free(tokens), free(lists), free(loss_lists), free(A), free(row_loss), free(loss);
    free(dW);
}

static sp_backend *gpu;

static void compare(void (*measured)(sp_backend *be, double error[N_KINDS]), int n_kinds) {
    double plain[N_KINDS], error[N_KINDS];
    sp_backend *be = open_plain_bf16();
    measured(be, plain);
    sp_backend_close(be);
    // What bf16 costs this model: more than fp32 does, and still the same function.
    for (int i = 0; i < n_kinds; i++) {
        printf("    %-20s plain bf16 %.2e\n", kinds[i], plain[i]);
        assert_true(plain[i] > 1e-4 || i == LOSS);
        assert_true(plain[i] < 0.1);
    }
    if (!gpu) skip();
    measured(gpu, error);
    for (int i = 0; i < n_kinds; i++) {
        printf("    %-20s GPU %.2e, bound %.2e\n", kinds[i], error[i], 2 * plain[i]);
        if (!(error[i] <= 2 * plain[i]))
            fail_msg("%s: %g above %g", kinds[i], error[i], 2 * plain[i]);
    }
}

static void golden_step(void **state) {
    (void)state;
    compare(measure, N_KINDS);
}

static void golden_step_of_nosa(void **state) {
    (void)state;
    compare(measure_nosa, FORECAST); // the kinds before it
}

int main(int argc, char **argv) {
    const gpu_options options = gpu_options_of(argc, argv);
#if SPARDA_HAVE_CUDA
    sp_backend_options o = {.name = "cuda", .local_ranks = 1, .portable_kernels = options.portable};
    if (sp_backend_open(&o, &gpu) != SP_OK) {
        gpu = NULL;
        printf("the GPU part is skipped: %s\n", sp_error_text());
    }
#else
    (void)options;
    printf("the GPU part is skipped: built without CUDA\n");
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_step),
                                       cmocka_unit_test(golden_step_of_nosa)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sp_backend_close(gpu);
    return failed;
}
