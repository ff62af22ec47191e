// The gradient of the distillation step against central differences of its loss, on the tiny base
// and on models of other shapes.
#include "common/util.h"
#include "tests/stepper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RAGGED = 203 };

// Central difference of every layer's loss at once along `dir` (a unit vector per layer), each with
// its own step: the loss of a layer depends on its own matrix only.
static void directional(stepper *t, const int32_t *tokens, int64_t T, const float *dir,
                        const double *eps, double *slope) {
    int64_t n = t->host.rows * t->host.cols, layers = t->host.layers;
    float *save = test_filled(layers * n, "weights");
    double *plus, *minus;
    assert_ok(sp_alloc(&plus, layers, sizeof *plus, "losses"));
    assert_ok(sp_alloc(&minus, layers, sizeof *minus, "losses"));
    memcpy(save, t->host.w, (size_t)(layers * n) * sizeof *save);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int64_t i = 0; i < layers * n; i++)
            t->host.w[i] = save[i] + (float)(sign * eps[i / n]) * dir[i];
        stepper_losses(t, tokens, T, sign > 0 ? plus : minus);
    }
    for (int64_t l = 0; l < layers; l++) slope[l] = (plus[l] - minus[l]) / (2 * eps[l]);
    memcpy(t->host.w, save, (size_t)(layers * n) * sizeof *save);
    stepper_losses(t, tokens, T, plus);
    free(save), free(plus), free(minus);
}

// The loss is a float32 sum, good to about 1e-7: steps are chosen so that it moves by 1e-3 or so.
static void check_gradient(stepper *t, const int32_t *tokens, int64_t T, const char *what) {
    int64_t n = t->host.rows * t->host.cols, layers = t->host.layers;
    float *g = stepper_gradient(t, tokens, T, 1, NULL), *dir = test_filled(layers * n, "direction");
    double *size, *eps, *slope;
    assert_ok(sp_alloc(&size, layers, sizeof *size, "norms"));
    assert_ok(sp_alloc(&eps, layers, sizeof *eps, "steps"));
    assert_ok(sp_alloc(&slope, layers, sizeof *slope, "slopes"));
    for (int64_t l = 0; l < layers; l++) {
        size[l] = test_norm(g + l * n, n);
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
        stepper t = golden_stepper(&variant[i].a, 1);
        check_gradient(&t, tokens, RAGGED, variant[i].what);
        stepper_close(&t);
    }
    free(tokens);
}

static void finite_differences_other_shapes(void **state) {
    (void)state;
    static const test_shape shapes[] = {
        {"one head per KV head", {2, 2, 16}, 24, 2, 8, 4, 16, 32, 1, 4, {2, 1}, 190},
        {"group of 3, one layer", {3, 1, 8}, 20, 1, 4, 2, 8, 8, 1, 3, {2, 1}, 120},
        {"odd group, no init block", {10, 2, 12}, 36, 3, 4, 4, 8, 16, 0, 4, {2, 1}, 131},
        {"window over 4 strides", {4, 4, 8}, 32, 2, 16, 4, 16, 16, 1, 3, {4, 2}, 150},
        {"native grid", {4, 2, 8}, 16, 2, 8, 4, 8, 8, 2, 4, {8, 4}, 99},
        {"stride of one block", {4, 2, 16}, 16, 2, 8, 8, 8, 8, 1, 5, {2, 1}, 163},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const test_shape *s = &shapes[i];
        sp_model_desc desc = test_desc(s);
        const sp_model *m = test_random_model(&desc, 5 + i);
        int32_t *tokens = test_tokens(s->T, 7 + i, desc.vocab);
        sp_distill_args a = {.teacher = s->teacher};
        stepper t = random_stepper(m, s->T, &a);
        check_gradient(&t, tokens, s->T, s->what);
        stepper_close(&t);
        free(tokens);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_differences_tiny),
        cmocka_unit_test(finite_differences_other_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
