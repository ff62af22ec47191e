// The distillation step: golden losses and gradients, and the properties that training relies on.
#include "common/util.h"
#include "model/selection.h"
#include "tests/stepper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 6,
    D = 256,
    HKV = 2,
    HEAD = 64,
    T0 = 256,
    ND = 63,
    K = 10,
    BLOCK = 16,
    RAGGED = 203,
    ROWS = HKV * HEAD, // of a Forecast matrix
};
static const sp_distill_args plain = {.teacher = {2, 1}};

// ---- golden values ------------------------------------------------------------------------------

static void golden_losses(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *lists = golden_bits("forward", "lists.bits", L, HKV, T0, K);
    float *A = golden_rows_f32("forward", "A", L, HKV, T0, ND);
    float *cut_gap = golden_f32("forward", "cut_gap", L * HKV * T0);
    float *row_loss = golden_rows_f32("loss", "row_loss", L, HKV, T0, 1);
    float *loss = golden_f32("loss", "loss", L), *dW = golden_f32("loss", "dW", L * ROWS * D);
    float *forecast = golden_f32("loss", "forecast.2", T0 * ROWS);
    float *student_p = golden_rows_f32("loss", "student_p.2", 1, HKV, T0, ND);
    float *dz = golden_rows_f32("loss", "dz.2", 1, HKV, T0, ND);
    stepper t = golden_stepper(&plain, 1);
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {
            .layer = l,
            .fixed_lists = lists,
            .importance = test_filled(T0 * HKV * ND, "importance"),
            .row_loss = test_filled(T0 * HKV, "row losses"),
            .student_p = test_filled(T0 * HKV * ND, "student"),
            .dz = test_filled(T0 * HKV * ND, "dz"),
            .forecast = test_filled(T0 * ROWS, "forecast"),
            .lists = test_filled(T0 * HKV * K, "lists"),
        };
        float *g = stepper_gradient(&t, tokens, T0, 1, &p);
        for (int64_t i = 0; i < L; i++) {
            assert_within("loss", t.loss[i], loss[i], 1e-5);
            assert_close("dW", g + i * ROWS * D, dW + i * ROWS * D, ROWS * D, 1e-5);
        }
        assert_close("A", p.importance, A + l * T0 * HKV * ND, T0 * HKV * ND, 2e-5);
        assert_close("row_loss", p.row_loss, row_loss + l * T0 * HKV, T0 * HKV, 1e-5);
        assert_lists("lists", p.lists, lists + l * T0 * HKV * K, cut_gap + l * HKV * T0, T0, HKV,
                     K);
        if (l == 2) {
            assert_close("forecast.2", p.forecast, forecast, T0 * ROWS, 2e-5);
            assert_close("student_p.2", p.student_p, student_p, T0 * HKV * ND, 5e-6);
            assert_close("dz.2", p.dz, dz, T0 * HKV * ND, 2e-5);
        }
        free(p.importance), free(p.row_loss), free(p.student_p), free(p.dz), free(p.forecast);
        free(p.lists), free(g);
    }
    // With its own lists: the one near tie of the sequence may fall either way.
    float *g = stepper_gradient(&t, tokens, T0, 1, NULL);
    for (int64_t i = 0; i < L; i++) assert_within("loss", t.loss[i], loss[i], 1e-3);
    free(g);
    stepper_close(&t);
    free(tokens), free(lists), free(A), free(cut_gap), free(row_loss), free(loss), free(dW);
    free(forecast), free(student_p), free(dz);
}

// Every weight times 32: floors act on thousands of cells (golden README, `peaked`).
static void golden_peaked(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *lists = golden_bits("forward", "lists.bits", L, HKV, T0, K);
    float *loss = golden_f32("loss", "peaked.loss", L);
    float *dW_norm = golden_f32("loss", "peaked.dW_norm", L);
    float *row_loss = golden_rows_f32("loss", "peaked.row_loss", L, HKV, T0, 1);
    float *dW2 = golden_f32("loss", "peaked.dW.2", ROWS * D);
    sp_distill_args ideal = plain;
    ideal.gradient = SP_KL_IDEAL;
    stepper t = golden_stepper(&plain, 32), i = golden_stepper(&ideal, 32);
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {
            .layer = l, .fixed_lists = lists, .row_loss = test_filled(T0 * HKV, "row losses")};
        float *g = stepper_gradient(&t, tokens, T0, 1, &p);
        assert_within("peaked.loss", t.loss[l], loss[l], 1e-5);
        assert_close("peaked.row_loss", p.row_loss, row_loss + l * T0 * HKV, T0 * HKV, 1e-5);
        assert_within("peaked.dW_norm", test_norm(g + l * ROWS * D, ROWS * D), dW_norm[l], 1e-4);
        if (l == 2) {
            assert_close("peaked.dW.2", g + l * ROWS * D, dW2, ROWS * D, 1e-4);
            float *gi = stepper_gradient(&i, tokens, T0, 1, &p);
            double off = test_rel_error(gi + l * ROWS * D, dW2, ROWS * D);
            assert_true(off > 0.10 && off < 0.12);
            assert_within("loss", i.loss[l], loss[l], 1e-5); // the loss keeps its floors
            free(gi);
        }
        free(p.row_loss), free(g);
    }
    stepper_close(&t);
    stepper_close(&i);
    free(tokens), free(lists), free(loss), free(dW_norm), free(row_loss), free(dW2);
}

static void golden_ragged(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    int32_t *lists = golden_bits("ragged", "lists.bits", L, HKV, RAGGED, K);
    float *cut_gap = golden_f32("ragged", "cut_gap", L * HKV * RAGGED);
    float *loss = golden_f32("ragged", "loss", L), *dW_norm = golden_f32("ragged", "dW_norm", L);
    stepper t = golden_stepper(&plain, 1);
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {.layer = l, .lists = test_filled(RAGGED * HKV * K, "lists")};
        float *g = stepper_gradient(&t, tokens, RAGGED, 1, &p);
        assert_lists("ragged lists", p.lists, lists + l * RAGGED * HKV * K,
                     cut_gap + l * HKV * RAGGED, RAGGED, HKV, K);
        assert_within("loss", t.loss[l], loss[l], 1e-5);
        assert_within("dW_norm", test_norm(g + l * ROWS * D, ROWS * D), dW_norm[l], 1e-5);
        free(p.lists), free(g);
    }
    stepper_close(&t);
    free(tokens), free(lists), free(cut_gap), free(loss), free(dW_norm);
}

static void golden_three_steps(void **state) {
    (void)state;
    enum { STEPS = 3, N = L * ROWS * D };
    int32_t *tokens = golden_i32("adamw3", "tokens", STEPS * T0);
    int32_t *golden = golden_i32("forward", "tokens", T0);
    float *loss = golden_f32("adamw3", "loss", STEPS * L);
    float *grad_norm = golden_f32("adamw3", "grad_norm", STEPS);
    float *clip = golden_f32("adamw3", "clip_coef", STEPS);
    float *matrix_norm = golden_f32("adamw3", "matrix_grad_norm", STEPS * L);
    float *weights = golden_f32("adamw3", "weights", N);
    float *loss_after = golden_f32("adamw3", "loss_after", L);
    stepper t = golden_stepper(&plain, 1);
    sp_tensor w = test_upload(t.host.w, L * ROWS, D), m, v;
    assert_ok(sp_tensor_alloc(t.m->backend, SP_F32, L * ROWS, D, "m", &m));
    assert_ok(sp_tensor_alloc(t.m->backend, SP_F32, L * ROWS, D, "v", &v));
    for (int s = 0; s < STEPS; s++) {
        float *g = stepper_gradient(&t, tokens + s * T0, T0, 1, NULL);
        double squares;
        assert_ok(sp_sum_squares(t.grad, &squares));
        double total = sqrt(squares), coef = fmin(1, 0.5 / (total + 1e-6));
        assert_within("grad_norm", total, grad_norm[s], 1e-5);
        assert_within("clip_coef", coef, clip[s], 1e-5);
        for (int l = 0; l < L; l++) {
            assert_within("loss", t.loss[l], loss[s * L + l], 1e-5);
            assert_within("matrix_grad_norm", test_norm(g + l * ROWS * D, ROWS * D),
                          matrix_norm[s * L + l], 1e-5);
        }
        const sp_adamw_args a = {.lr = 2e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-6f,
                                 .weight_decay = 0.01f,
                                 .grad_scale = (float)coef,
                                 .step = s + 1};
        assert_ok(sp_adamw(&a, w, m, v, t.grad));
        for (int l = 0; l < L; l++) assert_ok(sp_copy(t.w.w[l], sp_tensor_rows(w, l * ROWS, ROWS)));
        free(g);
    }
    float *got = test_download(w);
    for (int64_t i = 0; i < N; i++) {
        got[i] -= t.host.w[i];
        weights[i] -= t.host.w[i];
    }
    assert_close("weights minus the initial ones", got, weights, N, 2e-4);
    assert_ok(sp_distill_step(t.d, &t.w, golden, T0, 1, NULL, t.loss));
    for (int l = 0; l < L; l++) assert_within("loss_after", t.loss[l], loss_after[l], 1e-5);
    sp_tensor_free(&w);
    sp_tensor_free(&m);
    sp_tensor_free(&v);
    stepper_close(&t);
    free(tokens), free(golden), free(loss), free(grad_norm), free(clip), free(matrix_norm);
    free(weights), free(loss_after), free(got);
}

// ---- properties ---------------------------------------------------------------------------------

static void scale_and_accumulation(void **state) {
    (void)state;
    enum { N = L * ROWS * D };
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *ragged = golden_i32("ragged", "tokens", RAGGED);
    stepper t = golden_stepper(&plain, 1);
    float *one = stepper_gradient(&t, tokens, T0, 1, NULL),
          *half = stepper_gradient(&t, tokens, T0, 0.5, NULL);
    double loss = t.loss[3];
    for (int64_t i = 0; i < N; i++) half[i] *= 2;
    assert_close("twice the half", half, one, N, 1e-6);
    float *two = stepper_gradient(&t, ragged, RAGGED, 1, NULL);
    assert_ok(sp_distill_step(t.d, &t.w, tokens, T0, 1, &t.grad, t.loss)); // adds
    assert_true(t.loss[3] == loss);                                        // never scaled
    float *sum = test_download(t.grad);
    for (int64_t i = 0; i < N; i++) two[i] += one[i];
    assert_close("sum", sum, two, N, 1e-6);
    free(one), free(half), free(two), free(sum), free(tokens), free(ragged);
    stepper_close(&t);
}

// One matrix sees one loss, and hidden states see no Forecast weight at all.
static void layers_are_independent(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    int64_t n = ROWS * D, cells = RAGGED * HKV * sp_windows((sp_grid){8, 4}, RAGGED);
    stepper t = golden_stepper(&plain, 1);
    sp_distill_probe before = {.layer = L - 1, .importance = test_filled(cells, "importance")};
    sp_distill_probe after = {.layer = L - 1, .importance = test_filled(cells, "importance")};
    float *g = stepper_gradient(&t, tokens, RAGGED, 1, &before);
    double loss[L];
    memcpy(loss, t.loss, sizeof loss);
    enum { KEPT = 3 };
    for (int64_t l = 0; l <= L; l++) {
        float *w = sp_forecast_matrix(&t.host, l);
        if (l == KEPT) continue;
        for (int64_t i = 0; i < n; i++) w[i] = -2 * w[i] + 0.01f;
        assert_ok(sp_upload(t.w.w[l], w));
    }
    float *g2 = stepper_gradient(&t, tokens, RAGGED, 1, &after);
    assert_memory_equal(before.importance, after.importance, (size_t)cells * sizeof(float));
    for (int64_t l = 0; l < L; l++) {
        bool same = memcmp(g + l * n, g2 + l * n, (size_t)n * sizeof *g) == 0;
        assert_int_equal(same, l == KEPT);
        assert_int_equal(t.loss[l] == loss[l], l == KEPT);
    }
    free(before.importance), free(after.importance), free(g), free(g2), free(tokens);
    stepper_close(&t);
}

static void every_length(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 79, 203};
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    static const sp_grid grids[] = {{2, 1}, {4, 2}, {8, 4}};
    stepper t = golden_stepper(&plain, 1);
    assert_int_equal(sp_distill_min_tokens(t.m->desc), 8);
    for (int i = 0; i < 3; i++) {
        assert_ok(sp_distill_set_teacher(t.d, grids[i]));
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            int64_t T = lengths[j];
            float *g = stepper_gradient(&t, tokens, T, 1, NULL);
            double size = test_norm(g, L * ROWS * D);
            assert_true(isfinite(size));
            // Rows before block I + W + 1 = 4 have nothing to learn from (training.md 7.2).
            if (T <= 4 * BLOCK)
                assert_true(size == 0);
            else
                assert_true(size > 0);
            for (int l = 0; l < L; l++) {
                assert_true(isfinite(t.loss[l]) && t.loss[l] >= -1e-6);
                if (T <= 4 * BLOCK) assert_true(fabs(t.loss[l]) < 1e-6);
            }
            free(g);
        }
    }
    stepper_close(&t);
    free(tokens);
}

// On the CPU a row sums in the same order whatever tile it sits in: the same bits.
static void every_tile(void **state) {
    (void)state;
    static const int64_t tiles[] = {1, 7, 64};
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    size_t bytes = RAGGED * HKV * K * sizeof(int32_t);
    stepper whole = golden_stepper(&plain, 1);
    sp_distill_probe a = {.layer = 4, .lists = test_filled(RAGGED * HKV * K, "lists")};
    sp_distill_probe b = {.layer = 4, .lists = test_filled(RAGGED * HKV * K, "lists")};
    float *want = stepper_gradient(&whole, tokens, RAGGED, 1, &a);
    for (int i = 0; i < 3; i++) {
        sp_distill_args args = plain;
        args.tile = tiles[i];
        stepper t = golden_stepper(&args, 1);
        float *g = stepper_gradient(&t, tokens, RAGGED, 1, &b);
        assert_memory_equal(a.lists, b.lists, bytes);
        assert_memory_equal(t.loss, whole.loss, L * sizeof *t.loss);
        assert_memory_equal(g, want, L * ROWS * D * sizeof *g);
        free(g);
        stepper_close(&t);
    }
    free(want), free(a.lists), free(b.lists), free(tokens);
    stepper_close(&whole);
}

// Layer 0 comes before the options can change the trajectory.
static void options_reach_the_step(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *lists_masked = golden_bits("forward", "lists_masked.bits", L, HKV, T0, K);
    float *cut_gap = golden_f32("forward", "cut_gap_masked", L * HKV * T0);
    float *A = golden_rows_f32("forward", "A", L, HKV, T0, ND);
    sp_distill_args masked = plain, mean = plain;
    masked.mask_future = true;
    mean.align = SP_ALIGN_MEAN;
    sp_distill_probe p = {.importance = test_filled(T0 * HKV * ND, "importance"),
                          .lists = test_filled(T0 * HKV * K, "lists")};
    stepper t = golden_stepper(&masked, 1);
    free(stepper_gradient(&t, tokens, T0, 1, &p));
    assert_lists("lists_masked", p.lists, lists_masked, cut_gap, T0, HKV, K);
    stepper_close(&t);
    t = golden_stepper(&mean, 1);
    free(stepper_gradient(&t, tokens, T0, 1, &p));
    double sum = 0, sum_max = 0; // a mean of 5 lies between a fifth of the largest and the largest
    for (int64_t i = 0; i < T0 * HKV * ND; i++) {
        assert_true(p.importance[i] <= A[i] * 1.0001f && p.importance[i] >= A[i] * 0.1999f);
        sum += p.importance[i];
        sum_max += A[i];
    }
    assert_true(sum < 0.8 * sum_max);
    stepper_close(&t);
    free(p.importance), free(p.lists), free(tokens), free(lists_masked), free(cut_gap), free(A);
}

static void same_bits_again(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    int32_t *other = golden_i32("forward", "tokens", T0);
    stepper t = golden_stepper(&plain, 1);
    float *one = stepper_gradient(&t, tokens, RAGGED, 1, NULL);
    double loss[L];
    memcpy(loss, t.loss, sizeof loss);
    free(stepper_gradient(&t, other, T0, 1,
                          NULL)); // nothing of a longer sequence may be left behind
    float *two = stepper_gradient(&t, tokens, RAGGED, 1, NULL);
    assert_memory_equal(one, two, L * ROWS * D * sizeof *one);
    assert_memory_equal(loss, t.loss, sizeof loss);
    free(one), free(two), free(tokens), free(other);
    stepper_close(&t);
}

// Rows without a complete window have no teacher mass on the native grid: no loss (7.5).
static void native_grid_rows_without_teacher(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    const sp_distill_args native = {.teacher = {8, 4}};
    stepper t = golden_stepper(&native, 1);
    sp_distill_probe p = {.layer = 1,
                          .importance = test_filled(T0 * HKV * ND, "importance"),
                          .row_loss = test_filled(T0 * HKV, "row losses")};
    free(stepper_gradient(&t, tokens, T0, 1, &p));
    double sum = 0;
    for (int64_t i = 0; i < T0; i++)
        for (int64_t h = 0; h < HKV; h++) {
            const float *row = p.importance + (i * HKV + h) * ND;
            double mass = 0;
            for (int64_t j = 0; j < ND; j++) {
                mass += row[j];
                if (4 * j + 7 > i) assert_true(row[j] == 0);
            }
            assert_true(i < 7 ? mass == 0 : fabs(mass - 4) < 1e-4); // the group has 4 heads
            if (i < 7) assert_true(p.row_loss[i * HKV + h] == 0);
            sum += p.row_loss[i * HKV + h];
        }
    assert_within("loss", t.loss[1], sum / (HKV * T0), 1e-6);
    free(p.importance), free(p.row_loss), free(tokens);
    stepper_close(&t);
}

// Sequences up to the original maximum use the short factor list, longer ones the long list,
// whatever the longest sequence of the run is.
static void rope_list_by_sequence(void **state) {
    (void)state;
    static const test_shape s = {"", {4, 2, 8}, 16, 2, 4, 2, 8, 8, 1, 3, {2, 1}, 96};
    double short_factor[] = {1, 1, 1, 1}, long_factor[] = {2, 3, 5, 9};
    sp_model_desc desc = test_desc(&s);
    desc.rope_kind = "longrope";
    desc.rope_short = short_factor;
    desc.rope_long = long_factor;
    desc.original_max_positions = 60;
    desc.max_positions = 96;
    const sp_model *m = test_random_model(&desc, 3);
    int32_t *tokens = test_tokens(96, 4, desc.vocab);
    stepper both = random_stepper(m, 96, &plain), only_short = random_stepper(m, 60, &plain);
    stepper_losses(&both, tokens, 60, both.loss);
    stepper_losses(&only_short, tokens, 60, only_short.loss);
    assert_within("short list", both.loss[1], only_short.loss[1], 1e-6);
    stepper_losses(&both, tokens, 96, both.loss);
    double with_long = both.loss[1];
    stepper_close(&only_short);

    desc.rope_short = long_factor; // a model that has only this list
    desc.original_max_positions = 96;
    const sp_model *long_model = test_random_model(&desc, 3);
    stepper only_long = random_stepper(long_model, 96, &plain);
    stepper_losses(&only_long, tokens, 96, only_long.loss);
    assert_within("long list", with_long, only_long.loss[1], 1e-6);
    stepper_close(&only_long);
    stepper_close(&both);
    sp_distill *d;
    assert_fails(sp_distill_open(m, 97, &plain, &d), SP_BAD_INPUT, "97");
    sp_distill_args longer = plain;
    longer.allow_longer = true;
    assert_ok(sp_distill_open(m, 97, &longer, &d));
    sp_distill_close(d);
    free(tokens);
}

static void memory_is_predicted_and_constant(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int64_t before = sp_backend_bytes(m->backend, NULL), peak, peak_after;
    stepper t = golden_stepper(&plain, 1);
    sp_tensor grad = t.grad;
    int64_t forecast = (L + 1) * ROWS * D * sp_dtype_size(sp_backend_storage(m->backend));
    int64_t used = sp_backend_bytes(m->backend, NULL) - before - forecast -
                   grad.rows * grad.cols * (int64_t)sizeof(float);
    int64_t predicted = sp_distill_bytes(m->backend, m->desc, T0);
    assert_in_range(used, predicted, predicted + 32 * 4096); // alignment
    free(stepper_gradient(&t, tokens, T0, 1, NULL));
    sp_backend_bytes(m->backend, &peak);
    int64_t now = sp_backend_bytes(m->backend, NULL);
    free(stepper_gradient(&t, tokens, RAGGED, 1, NULL));
    assert_int_equal(sp_backend_bytes(m->backend, &peak_after), now);
    assert_int_equal(peak_after, peak);
    // Twice the tokens take about twice the memory: nothing is quadratic.
    int64_t one = sp_distill_bytes(m->backend, m->desc, 1 << 20);
    int64_t two = sp_distill_bytes(m->backend, m->desc, 1 << 21);
    assert_true(two <= 2 * one + (2 << 20));
    stepper_close(&t);
    free(tokens);
}

static void refusals(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    stepper t = golden_stepper(&plain, 1);
    assert_fails(sp_distill_set_teacher(t.d, (sp_grid){3, 3}), SP_BAD_INPUT, "3");
    assert_fails(sp_distill_step(t.d, &t.w, tokens, T0 + 1, 1, NULL, t.loss), SP_ENVIRONMENT,
                 "workspace");
    sp_forecast_device fewer = {.layers = L - 1, .w = t.w.w};
    assert_fails(sp_distill_step(t.d, &fewer, tokens, T0, 1, NULL, t.loss), SP_ENVIRONMENT,
                 "layers");
    tokens[100] = -1;
    assert_int_not_equal(sp_distill_step(t.d, &t.w, tokens, T0, 1, NULL, t.loss), SP_OK);
    stepper_close(&t);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_losses),
        cmocka_unit_test(golden_peaked),
        cmocka_unit_test(golden_ragged),
        cmocka_unit_test(golden_three_steps),
        cmocka_unit_test(scale_and_accumulation),
        cmocka_unit_test(layers_are_independent),
        cmocka_unit_test(every_length),
        cmocka_unit_test(every_tile),
        cmocka_unit_test(options_reach_the_step),
        cmocka_unit_test(same_bits_again),
        cmocka_unit_test(native_grid_rows_without_teacher),
        cmocka_unit_test(rope_list_by_sequence),
        cmocka_unit_test(memory_is_predicted_and_constant),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
