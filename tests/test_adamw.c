// sp_adamw (training.md 8.1), sp_scale, sp_sum, sp_sum_squares.
#include "tests/golden.h"
#include "tests/guarded.h"

#include <math.h>
#include <stdlib.h>

static double at(const json_t *object, const char *key, size_t i) {
    return json_number_value(json_array_get(json_object_get(object, key), i));
}

// Three clipped steps on two weights.
static void example_trace(void **state) {
    (void)state;
    json_t *x = test_example("optimizer"), *hyper = json_object_get(x, "hyper"), *step;
    sp_backend *be = test_backend();
    const float zero[2] = {0};
    // The first step's result fixes the start: p = (1 - lr wd) start - lr * sign(g).
    double lr = json_number_value(json_object_get(hyper, "lr"));
    double wd = json_number_value(json_object_get(hyper, "weight_decay"));
    float start[2];
    test_guarded m = test_input(be, zero, 1, 2), v = test_input(be, zero, 1, 2), w;
    size_t n;
    json_array_foreach(json_object_get(x, "trace"), n, step) {
        json_t *grad = json_array_get(json_object_get(x, "grads"), n);
        float g[2];
        for (size_t i = 0; i < 2; i++) g[i] = (float)json_number_value(json_array_get(grad, i));
        if (n == 0) {
            for (size_t i = 0; i < 2; i++) {
                double mi = at(step, "m", i) / 0.1, vi = at(step, "v", i) / 0.05;
                start[i] =
                    (float)((at(step, "p", i) + lr * mi / (sqrt(vi) + 1e-6)) / (1 - lr * wd));
            }
            w = test_input(be, start, 1, 2);
        }
        test_guarded gt = test_input(be, g, 1, 2);
        double squares;
        assert_ok(sp_sum_squares(gt.t, &squares));
        assert_true(fabs(sqrt(squares) - json_number_value(json_object_get(step, "norm"))) < 1e-7);
        double coefficient = fmin(1, 0.5 / (sqrt(squares) + 1e-6));
        assert_true(fabs(coefficient - json_number_value(json_object_get(step, "coef"))) < 1e-7);
        sp_adamw_args args = {(float)lr,          0.9f,          0.95f, 1e-6f, (float)wd,
                              (float)coefficient, (int64_t)n + 1};
        assert_ok(sp_adamw(&args, w.t, m.t, v.t, gt.t));
        float *got[] = {test_download(w.t), test_download(m.t), test_download(v.t)};
        const char *keys[] = {"p", "m", "v"};
        for (int a = 0; a < 3; a++) {
            for (size_t i = 0; i < 2; i++)
                if (!(fabs(got[a][i] - at(step, keys[a], i)) <
                      1e-8 + 3e-7 * fabs(at(step, keys[a], i))))
                    fail_msg("step %d, %s[%d]: %.9g", (int)n + 1, keys[a], (int)i,
                             (double)got[a][i]);
            free(got[a]);
        }
        test_drop(&gt);
    }
    assert_true(n == 3);
    assert_true(start[0] == 0.01f || fabsf(start[0] - 0.01f) < 1e-7f);
    test_drop(&w), test_drop(&m), test_drop(&v);
}

// The order of 8.1 in double, on strided rows, with a decay that shows.
static void order(void **state) {
    (void)state;
    enum { R = 3, C = 37 };
    sp_backend *be = test_backend();
    uint64_t seed = 1;
    float *wv = test_values(&seed, R * C, -1, 1), *mv = test_values(&seed, R * C, -1, 1);
    float *vv = test_values(&seed, R * C, 0, 1), *gv = test_values(&seed, R * C, -1, 1);
    test_guarded w = test_input(be, wv, R, C), m = test_input(be, mv, R, C);
    test_guarded v = test_input(be, vv, R, C), g = test_input(be, gv, R, C);
    sp_adamw_args a = {0.1f, 0.9f, 0.95f, 1e-6f, 0.5f, 0.3f, 7};
    assert_ok(sp_adamw(&a, w.t, m.t, v.t, g.t));
    float *got = test_download(w.t);
    double lr = (double)a.lr, b1 = (double)a.beta1, b2 = (double)a.beta2;
    for (int i = 0; i < R * C; i++) {
        double grad = (double)a.grad_scale * gv[i], p = (double)wv[i];
        p *= 1 - lr * (double)a.weight_decay;
        double m1 = b1 * mv[i] + (1 - b1) * grad, v1 = b2 * vv[i] + (1 - b2) * grad * grad;
        p -= lr * (m1 / (1 - pow(b1, 7))) / (sqrt(v1 / (1 - pow(b2, 7))) + (double)a.eps);
        assert_true(fabs(got[i] - p) < 5e-7);
    }
    float *left = test_download(g.t);
    assert_memory_equal(left, gv, R * C * sizeof *gv); // the gradient is only read
    test_drop(&w), test_drop(&m), test_drop(&v), test_drop(&g);
    free(wv), free(mv), free(vv), free(gv), free(got), free(left);
    test_guarded x = test_output(be, 1, 2);
    a.step = 0;
    assert_fails(sp_adamw(&a, x.t, x.t, x.t, x.t), SP_ENVIRONMENT, "p->step >= 1");
    sp_tensor_free(&x.whole);
}

static void sums(sp_backend *be) {
    for (int64_t C = 1; C < 50; C += 3) {
        const int64_t R = 11;
        uint64_t seed = (uint64_t)C;
        float *xv = test_values(&seed, R * C, -1, 1);
        xv[0] = 1e8f; // lost in fp32
        double sum = 0, squares = 0, got;
        for (int64_t i = 0; i < R * C; i++) {
            sum += (double)xv[i];
            squares += (double)xv[i] * xv[i];
        }
        test_guarded x = test_input(be, xv, R, C);
        assert_ok(sp_sum(x.t, &got));
        assert_true(fabs(got - sum) < 1e-7);
        assert_ok(sp_sum_squares(x.t, &got));
        assert_true(fabs(got - squares) < 1e-12 * squares);
        assert_ok(sp_scale(x.t, -0.5f));
        float *scaled = test_download(x.t);
        for (int64_t i = 0; i < R * C; i++) assert_true(scaled[i] == -0.5f * xv[i]);
        test_drop(&x);
        free(xv), free(scaled);
    }
}

static void sums_shapes(void **state) {
    (void)state;
    test_each_isa(test_backend(), sums);
    double none = 1;
    test_guarded empty = test_output(test_backend(), 0, 3);
    assert_ok(sp_sum(empty.t, &none));
    assert_true(none == 0);
    sp_tensor_free(&empty.whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_trace),
        cmocka_unit_test(order),
        cmocka_unit_test(sums_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
