// The distillation step against golden losses and gradients, against finite differences on models
// of other shapes, and the properties that training relies on.
#include "common/util.h"
#include "model/selection.h"
#include "tests/golden.h"
#include "train/distill.h"

#include <math.h>
#include <stdio.h>
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

// ---- a step with its gradient on the host -------------------------------------------------------

typedef struct trainer {
    const sp_model *m;
    sp_distill *d;
    sp_forecast host;
    sp_forecast_device w;
    sp_tensor grad; // [L*Hkv*d, D]
    double *loss;   // [L]
} trainer;

static trainer trainer_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                            sp_forecast weights) {
    trainer t = {.m = m, .host = weights};
    assert_ok(sp_distill_open(m, max_tokens, a, &t.d));
    assert_ok(sp_forecast_upload(m->backend, &t.host, &t.w));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, t.host.layers * t.host.rows, t.host.cols,
                              "gradient", &t.grad));
    assert_ok(sp_alloc(&t.loss, t.host.layers, sizeof *t.loss, "losses"));
    return t;
}

static void trainer_close(trainer *t) {
    sp_distill_close(t->d);
    sp_forecast_free(&t->host);
    sp_forecast_device_free(&t->w);
    sp_tensor_free(&t->grad);
    free(t->loss);
}

static trainer golden_trainer(const sp_distill_args *a, float factor) {
    return trainer_open(test_tiny_base(), T0, a, golden_forecast(factor));
}

// Gradient of one step with these weights; caller frees.
static float *gradient(trainer *t, const int32_t *tokens, int64_t T, double scale,
                       sp_distill_probe *probe) {
    assert_ok(sp_fill(t->grad, 0));
    assert_ok(sp_distill_step_probed(t->d, &t->w, tokens, T, scale, &t->grad, t->loss, probe));
    return test_download(t->grad);
}

static double norm(const float *v, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)v[i] * v[i];
    return sqrt(s);
}

static void *filled(int64_t n, const char *what) {
    void *v;
    assert_ok(sp_alloc(&v, n, 4, what));
    return v;
}

// ---- golden values ------------------------------------------------------------------------------

static void golden_losses(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *lists = golden_rows_i32("forward", "lists", L, HKV, T0, K);
    float *A = golden_rows_f32("forward", "A", L, HKV, T0, ND);
    float *cut_gap = golden_f32("forward", "cut_gap", L * HKV * T0);
    float *row_loss = golden_rows_f32("loss", "row_loss", L, HKV, T0, 1);
    float *loss = golden_f32("loss", "loss", L), *dW = golden_f32("loss", "dW", L * ROWS * D);
    float *forecast = golden_f32("loss", "forecast.2", T0 * ROWS);
    float *student_p = golden_rows_f32("loss", "student_p.2", 1, HKV, T0, ND);
    float *dz = golden_rows_f32("loss", "dz.2", 1, HKV, T0, ND);
    trainer t = golden_trainer(&plain, 1);
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {
            .layer = l,
            .fixed_lists = lists,
            .importance = filled(T0 * HKV * ND, "importance"),
            .row_loss = filled(T0 * HKV, "row losses"),
            .student_p = filled(T0 * HKV * ND, "student"),
            .dz = filled(T0 * HKV * ND, "dz"),
            .forecast = filled(T0 * ROWS, "forecast"),
            .lists = filled(T0 * HKV * K, "lists"),
        };
        float *g = gradient(&t, tokens, T0, 1, &p);
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
    float *g = gradient(&t, tokens, T0, 1, NULL);
    for (int64_t i = 0; i < L; i++) assert_within("loss", t.loss[i], loss[i], 1e-3);
    free(g);
    trainer_close(&t);
    free(tokens), free(lists), free(A), free(cut_gap), free(row_loss), free(loss), free(dW);
    free(forecast), free(student_p), free(dz);
}

// Every weight times 32: floors act on thousands of cells (golden README, `peaked`).
static void golden_peaked(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *lists = golden_rows_i32("forward", "lists", L, HKV, T0, K);
    float *loss = golden_f32("loss", "peaked.loss", L);
    float *dW_norm = golden_f32("loss", "peaked.dW_norm", L);
    float *row_loss = golden_rows_f32("loss", "peaked.row_loss", L, HKV, T0, 1);
    float *dW2 = golden_f32("loss", "peaked.dW.2", ROWS * D);
    sp_distill_args ideal = plain;
    ideal.gradient = SP_KL_IDEAL;
    trainer t = golden_trainer(&plain, 32), i = golden_trainer(&ideal, 32);
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {
            .layer = l, .fixed_lists = lists, .row_loss = filled(T0 * HKV, "row losses")};
        float *g = gradient(&t, tokens, T0, 1, &p);
        assert_within("peaked.loss", t.loss[l], loss[l], 1e-5);
        assert_close("peaked.row_loss", p.row_loss, row_loss + l * T0 * HKV, T0 * HKV, 1e-5);
        assert_within("peaked.dW_norm", norm(g + l * ROWS * D, ROWS * D), dW_norm[l], 1e-4);
        if (l == 2) {
            assert_close("peaked.dW.2", g + l * ROWS * D, dW2, ROWS * D, 1e-4);
            float *gi = gradient(&i, tokens, T0, 1, &p);
            double off = test_rel_error(gi + l * ROWS * D, dW2, ROWS * D);
            assert_true(off > 0.10 && off < 0.12);
            assert_within("loss", i.loss[l], loss[l], 1e-5); // the loss keeps its floors
            free(gi);
        }
        free(p.row_loss), free(g);
    }
    trainer_close(&t);
    trainer_close(&i);
    free(tokens), free(lists), free(loss), free(dW_norm), free(row_loss), free(dW2);
}

static void golden_ragged(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    int32_t *lists = golden_rows_i32("ragged", "lists", L, HKV, RAGGED, K);
    float *cut_gap = golden_f32("ragged", "cut_gap", L * HKV * RAGGED);
    float *loss = golden_f32("ragged", "loss", L), *dW_norm = golden_f32("ragged", "dW_norm", L);
    trainer t = golden_trainer(&plain, 1);
    for (int64_t l = 0; l < L; l++) {
        sp_distill_probe p = {.layer = l, .lists = filled(RAGGED * HKV * K, "lists")};
        float *g = gradient(&t, tokens, RAGGED, 1, &p);
        assert_lists("ragged lists", p.lists, lists + l * RAGGED * HKV * K,
                     cut_gap + l * HKV * RAGGED, RAGGED, HKV, K);
        assert_within("loss", t.loss[l], loss[l], 1e-5);
        assert_within("dW_norm", norm(g + l * ROWS * D, ROWS * D), dW_norm[l], 1e-5);
        free(p.lists), free(g);
    }
    trainer_close(&t);
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
    trainer t = golden_trainer(&plain, 1);
    sp_tensor w = test_upload(t.host.w, L * ROWS, D), m, v;
    assert_ok(sp_tensor_alloc(t.m->backend, SP_F32, L * ROWS, D, "m", &m));
    assert_ok(sp_tensor_alloc(t.m->backend, SP_F32, L * ROWS, D, "v", &v));
    for (int s = 0; s < STEPS; s++) {
        float *g = gradient(&t, tokens + s * T0, T0, 1, NULL);
        double squares;
        assert_ok(sp_sum_squares(t.grad, &squares));
        double total = sqrt(squares), coef = fmin(1, 0.5 / (total + 1e-6));
        assert_within("grad_norm", total, grad_norm[s], 1e-5);
        assert_within("clip_coef", coef, clip[s], 1e-5);
        for (int l = 0; l < L; l++) {
            assert_within("loss", t.loss[l], loss[s * L + l], 1e-5);
            assert_within("matrix_grad_norm", norm(g + l * ROWS * D, ROWS * D),
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
    trainer_close(&t);
    free(tokens), free(golden), free(loss), free(grad_norm), free(clip), free(matrix_norm);
    free(weights), free(loss_after), free(got);
}

// ---- finite differences -------------------------------------------------------------------------

static void losses_with(trainer *t, const int32_t *tokens, int64_t T, double *loss) {
    for (int64_t l = 0; l < t->host.layers; l++)
        assert_ok(sp_upload(t->w.w[l], sp_forecast_matrix(&t->host, l)));
    assert_ok(sp_distill_step(t->d, &t->w, tokens, T, 1, NULL, loss));
}

// Central difference of every layer's loss at once along `dir` (a unit vector per layer), each with
// its own step: the loss of a layer depends on its own matrix only.
static void directional(trainer *t, const int32_t *tokens, int64_t T, const float *dir,
                        const double *eps, double *slope) {
    int64_t n = t->host.rows * t->host.cols, layers = t->host.layers;
    float *save = filled(layers * n, "weights");
    double *plus, *minus;
    assert_ok(sp_alloc(&plus, layers, sizeof *plus, "losses"));
    assert_ok(sp_alloc(&minus, layers, sizeof *minus, "losses"));
    memcpy(save, t->host.w, (size_t)(layers * n) * sizeof *save);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int64_t i = 0; i < layers * n; i++)
            t->host.w[i] = save[i] + (float)(sign * eps[i / n]) * dir[i];
        losses_with(t, tokens, T, sign > 0 ? plus : minus);
    }
    for (int64_t l = 0; l < layers; l++) slope[l] = (plus[l] - minus[l]) / (2 * eps[l]);
    memcpy(t->host.w, save, (size_t)(layers * n) * sizeof *save);
    losses_with(t, tokens, T, plus);
    free(save), free(plus), free(minus);
}

// The loss is a float32 sum, good to about 1e-7: steps are chosen so that it moves by 1e-3 or so.
static void check_gradient(trainer *t, const int32_t *tokens, int64_t T, const char *what) {
    int64_t n = t->host.rows * t->host.cols, layers = t->host.layers;
    float *g = gradient(t, tokens, T, 1, NULL), *dir = filled(layers * n, "direction");
    double *size, *eps, *slope;
    assert_ok(sp_alloc(&size, layers, sizeof *size, "norms"));
    assert_ok(sp_alloc(&eps, layers, sizeof *eps, "steps"));
    assert_ok(sp_alloc(&slope, layers, sizeof *slope, "slopes"));
    for (int64_t l = 0; l < layers; l++) {
        size[l] = norm(g + l * n, n);
        if (!(size[l] > 1e-6)) fail_msg("%s: layer %lld has no gradient", what, (long long)l);
        eps[l] = 5e-4 / size[l];
        if (eps[l] > 0.05) eps[l] = 0.05;
        for (int64_t i = 0; i < n; i++) dir[l * n + i] = (float)(g[l * n + i] / size[l]);
    }
    directional(t, tokens, T, dir, eps, slope);
    for (int64_t l = 0; l < layers; l++)
        if (!(fabs(slope[l] - size[l]) <= 2e-3 * size[l] + 1e-6))
            fail_msg("%s: layer %lld: slope along the gradient %.7g, gradient %.7g", what,
                     (long long)l, slope[l], size[l]);
    // Single entries: the largest of each layer, then one at a third of the matrix.
    for (int pick = 0; pick < 2; pick++) {
        double want[64] = {0};
        assert_true(layers <= 64);
        memset(dir, 0, (size_t)(layers * n) * sizeof *dir);
        for (int64_t l = 0; l < layers; l++) {
            int64_t at = n / 3;
            for (int64_t i = 0; pick == 0 && i < n; i++)
                if (fabsf(g[l * n + i]) > fabsf(g[l * n + at])) at = i;
            dir[l * n + at] = 1;
            want[l] = g[l * n + at];
            eps[l] = 0.03;
        }
        directional(t, tokens, T, dir, eps, slope);
        for (int64_t l = 0; l < layers; l++)
            if (!(fabs(slope[l] - want[l]) <= 0.02 * fabs(want[l]) + 5e-6))
                fail_msg("%s: layer %lld: difference quotient of one entry %.6g, gradient %.6g",
                         what, (long long)l, slope[l], want[l]);
    }
    free(g), free(dir), free(size), free(eps), free(slope);
}

static void finite_differences_tiny(void **state) {
    (void)state;
    static const struct {
        const char *what;
        sp_distill_args a;
    } variant[] = {
        {"teacher 2/1", {.teacher = {2, 1}}},
        {"future masked", {.teacher = {2, 1}, .mask_future = true}},
        {"mean alignment", {.teacher = {2, 1}, .align = SP_ALIGN_MEAN}},
        {"teacher 4/2", {.teacher = {4, 2}}},
        {"native grid", {.teacher = {8, 4}}},
        {"ideal gradient", {.teacher = {2, 1}, .gradient = SP_KL_IDEAL}}, // floors do not act here
    };
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        trainer t = golden_trainer(&variant[i].a, 1);
        check_gradient(&t, tokens, RAGGED, variant[i].what);
        trainer_close(&t);
    }
    free(tokens);
}

typedef struct shape {
    const char *what;
    sp_heads heads;
    int64_t hidden, layers;
    int64_t kernel, stride, block, window, init, topk;
    sp_grid teacher;
    int64_t T;
} shape;

static sp_model_desc desc_of(const shape *s) {
    return (sp_model_desc){
        .name = "random",
        .layers = s->layers,
        .hidden = s->hidden,
        .ffn = 2 * s->hidden,
        .vocab = 97,
        .heads = s->heads,
        .max_positions = 4096,
        .original_max_positions = 4096,
        .norm_eps = 1e-5f,
        .embed_scale = 1,
        .residual_scale = 0.5,
        .logit_divisor = 1,
        .rope_theta = 10000,
        .rope_attention_factor = 1,
        .rope_kind = "default",
        .sparse = {.kernel_size = s->kernel,
                   .kernel_stride = s->stride,
                   .init_blocks = s->init,
                   .block_size = s->block,
                   .window_size = s->window,
                   .topk = s->topk},
    };
}

static int32_t *random_tokens(int64_t T, uint64_t seed, int64_t vocab) {
    int32_t *tokens = filled(T, "tokens");
    for (int64_t i = 0; i < T; i++) tokens[i] = (int32_t)(test_random(&seed) % (uint64_t)vocab);
    return tokens;
}

static trainer random_trainer(const sp_model *m, int64_t max_tokens, const sp_distill_args *a) {
    sp_forecast f;
    uint64_t seed = 99;
    assert_ok(sp_forecast_alloc(m->desc, &f));
    float bound = 3 / sqrtf((float)m->desc->hidden);
    for (int64_t i = 0; i < (f.layers + 1) * f.rows * f.cols; i++)
        f.w[i] = test_uniform(&seed, -bound, bound);
    return trainer_open(m, max_tokens, a, f);
}

static void finite_differences_other_shapes(void **state) {
    (void)state;
    static const shape shapes[] = {
        {"one head per KV head", {2, 2, 16}, 24, 2, 8, 4, 16, 32, 1, 4, {2, 1}, 190},
        {"group of 3, one layer", {3, 1, 8}, 20, 1, 4, 2, 8, 8, 1, 3, {2, 1}, 120},
        {"odd group, no init block", {10, 2, 12}, 36, 3, 4, 4, 8, 16, 0, 4, {2, 1}, 131},
        {"window over 4 strides", {4, 4, 8}, 32, 2, 16, 4, 16, 16, 1, 3, {4, 2}, 150},
        {"native grid", {4, 2, 8}, 16, 2, 8, 4, 8, 8, 2, 4, {8, 4}, 99},
        {"stride of one block", {4, 2, 16}, 16, 2, 8, 8, 8, 8, 1, 5, {2, 1}, 163},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        sp_model_desc desc = desc_of(s);
        const sp_model *m = test_random_model(&desc, 5 + i);
        int32_t *tokens = random_tokens(s->T, 7 + i, desc.vocab);
        sp_distill_args a = {.teacher = s->teacher};
        trainer t = random_trainer(m, s->T, &a);
        check_gradient(&t, tokens, s->T, s->what);
        trainer_close(&t);
        free(tokens);
    }
}

// ---- properties ---------------------------------------------------------------------------------

static void scale_and_accumulation(void **state) {
    (void)state;
    enum { N = L * ROWS * D };
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *ragged = golden_i32("ragged", "tokens", RAGGED);
    trainer t = golden_trainer(&plain, 1);
    float *one = gradient(&t, tokens, T0, 1, NULL), *half = gradient(&t, tokens, T0, 0.5, NULL);
    double loss = t.loss[3];
    for (int64_t i = 0; i < N; i++) half[i] *= 2;
    assert_close("twice the half", half, one, N, 1e-6);
    float *two = gradient(&t, ragged, RAGGED, 1, NULL);
    assert_ok(sp_distill_step(t.d, &t.w, tokens, T0, 1, &t.grad, t.loss)); // adds
    assert_true(t.loss[3] == loss);                                        // never scaled
    float *sum = test_download(t.grad);
    for (int64_t i = 0; i < N; i++) two[i] += one[i];
    assert_close("sum", sum, two, N, 1e-6);
    free(one), free(half), free(two), free(sum), free(tokens), free(ragged);
    trainer_close(&t);
}

// One matrix sees one loss, and hidden states see no Forecast weight at all.
static void layers_are_independent(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    int64_t n = ROWS * D, cells = RAGGED * HKV * sp_windows((sp_grid){8, 4}, RAGGED);
    trainer t = golden_trainer(&plain, 1);
    sp_distill_probe before = {.layer = L - 1, .importance = filled(cells, "importance")};
    sp_distill_probe after = {.layer = L - 1, .importance = filled(cells, "importance")};
    float *g = gradient(&t, tokens, RAGGED, 1, &before);
    double loss[L];
    memcpy(loss, t.loss, sizeof loss);
    enum { KEPT = 3 };
    for (int64_t l = 0; l <= L; l++) {
        float *w = sp_forecast_matrix(&t.host, l);
        if (l == KEPT) continue;
        for (int64_t i = 0; i < n; i++) w[i] = -2 * w[i] + 0.01f;
        assert_ok(sp_upload(t.w.w[l], w));
    }
    float *g2 = gradient(&t, tokens, RAGGED, 1, &after);
    assert_memory_equal(before.importance, after.importance, (size_t)cells * sizeof(float));
    for (int64_t l = 0; l < L; l++) {
        bool same = memcmp(g + l * n, g2 + l * n, (size_t)n * sizeof *g) == 0;
        assert_int_equal(same, l == KEPT);
        assert_int_equal(t.loss[l] == loss[l], l == KEPT);
    }
    free(before.importance), free(after.importance), free(g), free(g2), free(tokens);
    trainer_close(&t);
}

static void every_length(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 79, 203};
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    static const sp_grid grids[] = {{2, 1}, {4, 2}, {8, 4}};
    trainer t = golden_trainer(&plain, 1);
    assert_int_equal(sp_distill_min_tokens(t.m->desc), 8);
    for (int i = 0; i < 3; i++) {
        assert_ok(sp_distill_set_teacher(t.d, grids[i]));
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            int64_t T = lengths[j];
            float *g = gradient(&t, tokens, T, 1, NULL);
            double size = norm(g, L * ROWS * D);
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
    trainer_close(&t);
    free(tokens);
}

// On the CPU a row sums in the same order whatever tile it sits in: the same bits.
static void every_tile(void **state) {
    (void)state;
    static const int64_t tiles[] = {1, 7, 64};
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    size_t bytes = RAGGED * HKV * K * sizeof(int32_t);
    trainer whole = golden_trainer(&plain, 1);
    sp_distill_probe a = {.layer = 4, .lists = filled(RAGGED * HKV * K, "lists")};
    sp_distill_probe b = {.layer = 4, .lists = filled(RAGGED * HKV * K, "lists")};
    float *want = gradient(&whole, tokens, RAGGED, 1, &a);
    for (int i = 0; i < 3; i++) {
        sp_distill_args args = plain;
        args.tile = tiles[i];
        trainer t = golden_trainer(&args, 1);
        float *g = gradient(&t, tokens, RAGGED, 1, &b);
        assert_memory_equal(a.lists, b.lists, bytes);
        assert_memory_equal(t.loss, whole.loss, L * sizeof *t.loss);
        assert_memory_equal(g, want, L * ROWS * D * sizeof *g);
        free(g);
        trainer_close(&t);
    }
    free(want), free(a.lists), free(b.lists), free(tokens);
    trainer_close(&whole);
}

static void same_bits_again(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    int32_t *other = golden_i32("forward", "tokens", T0);
    trainer t = golden_trainer(&plain, 1);
    float *one = gradient(&t, tokens, RAGGED, 1, NULL);
    double loss[L];
    memcpy(loss, t.loss, sizeof loss);
    free(gradient(&t, other, T0, 1, NULL)); // nothing of a longer sequence may be left behind
    float *two = gradient(&t, tokens, RAGGED, 1, NULL);
    assert_memory_equal(one, two, L * ROWS * D * sizeof *one);
    assert_memory_equal(loss, t.loss, sizeof loss);
    free(one), free(two), free(tokens), free(other);
    trainer_close(&t);
}

// Rows without a complete window have no teacher mass on the native grid: no loss (7.5).
static void native_grid_rows_without_teacher(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    const sp_distill_args native = {.teacher = {8, 4}};
    trainer t = golden_trainer(&native, 1);
    sp_distill_probe p = {.layer = 1,
                          .importance = filled(T0 * HKV * ND, "importance"),
                          .row_loss = filled(T0 * HKV, "row losses")};
    free(gradient(&t, tokens, T0, 1, &p));
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
    trainer_close(&t);
}

// Sequences up to the original maximum use the short factor list, longer ones the long list,
// whatever the longest sequence of the run is.
static void rope_list_by_sequence(void **state) {
    (void)state;
    static const shape s = {"", {4, 2, 8}, 16, 2, 4, 2, 8, 8, 1, 3, {2, 1}, 96};
    double short_factor[] = {1, 1, 1, 1}, long_factor[] = {2, 3, 5, 9};
    sp_model_desc desc = desc_of(&s);
    desc.rope_kind = "longrope";
    desc.rope_short = short_factor;
    desc.rope_long = long_factor;
    desc.original_max_positions = 60;
    desc.max_positions = 96;
    const sp_model *m = test_random_model(&desc, 3);
    int32_t *tokens = random_tokens(96, 4, desc.vocab);
    trainer both = random_trainer(m, 96, &plain), only_short = random_trainer(m, 60, &plain);
    losses_with(&both, tokens, 60, both.loss);
    losses_with(&only_short, tokens, 60, only_short.loss);
    assert_within("short list", both.loss[1], only_short.loss[1], 1e-6);
    losses_with(&both, tokens, 96, both.loss);
    double with_long = both.loss[1];
    trainer_close(&only_short);

    desc.rope_short = long_factor; // a model that has only this list
    desc.original_max_positions = 96;
    const sp_model *long_model = test_random_model(&desc, 3);
    trainer only_long = random_trainer(long_model, 96, &plain);
    losses_with(&only_long, tokens, 96, only_long.loss);
    assert_within("long list", with_long, only_long.loss[1], 1e-6);
    trainer_close(&only_long);
    trainer_close(&both);
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
    trainer t = golden_trainer(&plain, 1);
    sp_tensor grad = t.grad;
    int64_t forecast = (L + 1) * ROWS * D * sp_dtype_size(sp_backend_storage(m->backend));
    int64_t used = sp_backend_bytes(m->backend, NULL) - before - forecast -
                   grad.rows * grad.cols * (int64_t)sizeof(float);
    int64_t predicted = sp_distill_bytes(m->desc, T0, sp_backend_storage(m->backend));
    assert_in_range(used, predicted, predicted + 32 * 4096); // alignment
    free(gradient(&t, tokens, T0, 1, NULL));
    sp_backend_bytes(m->backend, &peak);
    int64_t now = sp_backend_bytes(m->backend, NULL);
    free(gradient(&t, tokens, RAGGED, 1, NULL));
    assert_int_equal(sp_backend_bytes(m->backend, &peak_after), now);
    assert_int_equal(peak_after, peak);
    // Twice the tokens take about twice the memory: nothing is quadratic.
    int64_t one = sp_distill_bytes(m->desc, 1 << 20, SP_BF16);
    int64_t two = sp_distill_bytes(m->desc, 1 << 21, SP_BF16);
    assert_true(two <= 2 * one + (2 << 20));
    trainer_close(&t);
    free(tokens);
}

static void refusals(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    trainer t = golden_trainer(&plain, 1);
    assert_fails(sp_distill_set_teacher(t.d, (sp_grid){3, 3}), SP_BAD_INPUT, "3");
    assert_fails(sp_distill_step(t.d, &t.w, tokens, T0 + 1, 1, NULL, t.loss), SP_ENVIRONMENT,
                 "workspace");
    sp_forecast_device fewer = {.layers = L - 1, .w = t.w.w};
    assert_fails(sp_distill_step(t.d, &fewer, tokens, T0, 1, NULL, t.loss), SP_ENVIRONMENT,
                 "layers");
    tokens[100] = -1;
    assert_int_not_equal(sp_distill_step(t.d, &t.w, tokens, T0, 1, NULL, t.loss), SP_OK);
    trainer_close(&t);
    free(tokens);
}

// ---- recall -------------------------------------------------------------------------------------

// The 6 blocks (of 10) that are really chosen from one row of window scores, future masked.
static int naive_chosen(const float *row, int64_t i, int *out) {
    int64_t qb = i / BLOCK;
    float score[T0 / BLOCK];
    int n = 0, competing = 0;
    for (int64_t b = 1; b < qb - 2; b++) { // neither init, nor local, nor future
        score[b] = -INFINITY;
        for (int64_t j = 4 * b - 1; j < 4 * b + 4 && j < ND; j++)
            score[b] = fmaxf(score[b], row[j]);
        competing++;
    }
    for (; n < K - 4 && n < competing; n++) {
        int64_t best = -1;
        for (int64_t b = 1; b < qb - 2; b++) {
            bool taken = false;
            for (int x = 0; x < n; x++) taken |= out[x] == b;
            if (!taken && (best < 0 || score[b] > score[best])) best = b;
        }
        out[n] = (int)best;
    }
    return n;
}

static double naive_mass(const float *row, const int *block, int n) {
    double mass = 0;
    for (int x = 0; x < n; x++)
        for (int64_t j = 4 * block[x]; j < 4 * block[x] + 4 && j < ND; j++) mass += row[j];
    return mass;
}

static void recall_by_hand(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    float *kd = golden_f32("forward", "kd", L * ND * ROWS);
    double recall[L], mass[L], rows[L];
    trainer t = golden_trainer(&plain, 1);
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, T0, recall, mass, rows));
    for (int l = 0; l < L; l++) {
        sp_distill_probe p = {.layer = l,
                              .importance = filled(T0 * HKV * ND, "importance"),
                              .forecast = filled(T0 * ROWS, "forecast")};
        free(gradient(&t, tokens, T0, 1, &p));
        double want_recall = 0, want_mass = 0, want_rows = 0;
        for (int64_t i = K * BLOCK; i < T0; i++)
            for (int64_t h = 0; h < HKV; h++) {
                const float *A = p.importance + (i * HKV + h) * ND;
                const float *f = p.forecast + (i * HKV + h) * HEAD;
                float score[ND];
                int teacher[K], own[K], common = 0;
                for (int64_t j = 0; j < ND; j++) {
                    const float *c = kd + ((l * ND + j) * HKV + h) * HEAD;
                    double dot = 0;
                    for (int x = 0; x < HEAD; x++) dot += (double)f[x] * c[x];
                    score[j] = 4 * j + 7 <= i ? (float)dot : -INFINITY;
                }
                int n = naive_chosen(A, i, teacher), m = naive_chosen(score, i, own);
                assert_int_equal(n, K - 4);
                assert_int_equal(m, K - 4);
                for (int x = 0; x < n; x++)
                    for (int y = 0; y < m; y++) common += teacher[x] == own[y];
                want_recall += (double)common / n;
                want_mass += naive_mass(A, own, m) / naive_mass(A, teacher, n);
                want_rows++;
            }
        assert_true(rows[l] == want_rows);
        assert_true(recall[l] > 0 && recall[l] < rows[l]);
        assert_within("recall", recall[l], want_recall, 1e-9);
        assert_within("mass recall", mass[l], want_mass, 1e-5);
        free(p.importance), free(p.forecast);
    }
    // Nothing competes up to k blocks.
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, K * BLOCK, recall, mass, rows));
    for (int l = 0; l < L; l++) assert_true(recall[l] == 0 && mass[l] == 0 && rows[l] == 0);
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, 5, recall, mass, rows));
    for (int l = 0; l < L; l++) assert_true(rows[l] == 0);
    trainer_close(&t);
    free(tokens), free(kd);
}

// One head per KV head and the native grid: a Forecast that is the layer's own query matrix ranks
// blocks as the teacher does, so layer 0 is found completely.
static void perfect_forecast_has_recall_one(void **state) {
    (void)state;
    static const shape s = {"", {2, 2, 16}, 24, 2, 8, 4, 16, 32, 1, 4, {8, 4}, 250};
    sp_model_desc desc = desc_of(&s);
    const sp_model *m = test_random_model(&desc, 11);
    int32_t *tokens = random_tokens(s.T, 12, desc.vocab);
    const sp_distill_args a = {.teacher = s.teacher};
    trainer t = random_trainer(m, s.T, &a);
    double recall[2], mass[2], rows[2];
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, s.T, recall, mass, rows));
    // k = 4 + 2 blocks of 16: rows from 96 on, two heads each.
    assert_true(rows[0] == 2 * (s.T - 96));
    assert_true(recall[0] < 0.99 * rows[0]);
    assert_ok(sp_copy(t.w.w[0], sp_tensor_rows(m->layer[0].qkv, 0, 32)));
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, s.T, recall, mass, rows));
    assert_within("recall", recall[0], rows[0], 1e-12);
    assert_within("mass recall", mass[0], rows[0], 1e-12);
    assert_true(recall[1] < 0.99 * rows[1]);
    trainer_close(&t);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_losses),
        cmocka_unit_test(golden_peaked),
        cmocka_unit_test(golden_ragged),
        cmocka_unit_test(golden_three_steps),
        cmocka_unit_test(finite_differences_tiny),
        cmocka_unit_test(finite_differences_other_shapes),
        cmocka_unit_test(scale_and_accumulation),
        cmocka_unit_test(layers_are_independent),
        cmocka_unit_test(every_length),
        cmocka_unit_test(every_tile),
        cmocka_unit_test(same_bits_again),
        cmocka_unit_test(native_grid_rows_without_teacher),
        cmocka_unit_test(rope_list_by_sequence),
        cmocka_unit_test(memory_is_predicted_and_constant),
        cmocka_unit_test(refusals),
        cmocka_unit_test(recall_by_hand),
        cmocka_unit_test(perfect_forecast_has_recall_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
