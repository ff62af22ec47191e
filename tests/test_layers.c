// The frozen layers' small operations: embed, rmsnorm, linear, rope, residual_add, swiglu.
#include "tests/golden.h"
#include "tests/guarded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void embed(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    uint64_t seed = 1;
    float *tv = test_values(&seed, 5 * 3, -1, 1);
    const int32_t ids[] = {4, 0, 4, 2};
    test_guarded table = test_input(be, tv, 5, 3), tokens = test_input_i32(be, ids, 4, 1);
    test_guarded out = test_output(be, 4, 3);
    assert_ok(sp_embed(tokens.t, table.t, 12, out.t));
    float *got = test_take(&out, "embed");
    for (int t = 0; t < 4; t++)
        for (int c = 0; c < 3; c++) assert_true(got[t * 3 + c] == 12 * tv[ids[t] * 3 + c]);
    free(got);
    const int32_t bad[][4] = {{0, 1, 5, 0}, {0, 1, 2, -1}};
    const char *parts[] = {"token 5 at position 2 is outside the vocabulary of 5",
                           "token -1 at position 3 is outside the vocabulary of 5"};
    for (int i = 0; i < 2; i++) {
        test_guarded b = test_input_i32(be, bad[i], 4, 1);
        out = test_output(be, 4, 3);
        assert_fails(sp_embed(b.t, table.t, 12, out.t), SP_BAD_INPUT, parts[i]);
        sp_tensor_free(&out.whole);
        test_drop(&b);
    }
    test_drop(&table), test_drop(&tokens);
    free(tv);
}

static void rmsnorm(sp_backend *be) {
    for (int n = 1; n < 70; n += 7) {
        uint64_t seed = (uint64_t)n;
        float *xv = test_values(&seed, 3 * n, -2, 2), *wv = test_values(&seed, n, 0, 2);
        for (int c = 0; c < n; c++) xv[2 * n + c] = 0; // a row of zeros
        test_guarded x = test_input(be, xv, 3, n), w = test_input(be, wv, 1, n);
        test_guarded out = test_output(be, 3, n);
        assert_ok(sp_rmsnorm(x.t, w.t, 1e-5f, out.t));
        assert_ok(sp_rmsnorm(x.t, w.t, 1e-5f, x.t)); // in place
        float *got = test_take(&out, "rmsnorm"), *inplace = test_download(x.t);
        for (int r = 0; r < 3; r++) {
            double sum = 0;
            for (int c = 0; c < n; c++) sum += (double)xv[r * n + c] * xv[r * n + c];
            for (int c = 0; c < n; c++) {
                double want = (double)xv[r * n + c] / sqrt(sum / n + 1e-5f) * (double)wv[c];
                assert_true(fabs(got[r * n + c] - want) < 4e-7 * (1 + fabs(want)));
            }
        }
        assert_memory_equal(got, inplace, (size_t)(3 * n) * sizeof *got);
        test_drop(&x), test_drop(&w);
        free(xv), free(wv), free(got), free(inplace);
    }
}

static void linear(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    // Around the pieces of 128 rows and 256 columns; K = 1; one row.
    const int64_t shapes[][3] = {
        {1, 1, 1}, {127, 255, 3}, {129, 257, 5}, {300, 513, 33}, {1, 1024, 256}};
    for (int s = 0; s < 5; s++) {
        int64_t T = shapes[s][0], N = shapes[s][1], K = shapes[s][2];
        uint64_t seed = (uint64_t)s;
        float *xv = test_values(&seed, T * K, -1, 1), *wv = test_values(&seed, N * K, -1, 1);
        test_guarded x = test_input(be, xv, T, K), w = test_input(be, wv, N, K),
                     out = test_output(be, T, N);
        assert_ok(sp_linear(x.t, w.t, out.t));
        float *got = test_take(&out, "linear");
        for (int64_t t = 0; t < T; t++)
            for (int64_t n = 0; n < N; n++) {
                double want = 0;
                for (int64_t k = 0; k < K; k++) want += (double)xv[t * K + k] * wv[n * K + k];
                if (!(fabs(got[t * N + n] - want) < 2e-5))
                    fail_msg("shape %d [%d, %d]", s, (int)t, (int)n);
            }
        // The weight's gradient of the same sizes: g += dy^T x, here with dy = out.
        test_guarded dy = test_input(be, got, T, N), g = test_input(be, wv, N, K);
        assert_ok(sp_grad_weight(dy.t, x.t, g.t));
        float *gv = test_download(g.t);
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) {
                double want = (double)wv[n * K + k], size = 1;
                for (int64_t t = 0; t < T; t++) {
                    want += (double)got[t * N + n] * xv[t * K + k];
                    size += fabs((double)got[t * N + n] * xv[t * K + k]);
                }
                if (!(fabs(gv[n * K + k] - want) < 1e-6 * size)) fail_msg("gradient, shape %d", s);
            }
        test_drop(&x), test_drop(&w), test_drop(&dy), test_drop(&g);
        free(xv), free(wv), free(got), free(gv);
    }
    test_guarded x = test_output(be, 3, 5), w = test_output(be, 4, 6), out = test_output(be, 3, 4);
    assert_fails(sp_linear(x.t, w.t, out.t), SP_ENVIRONMENT,
                 "x F32 [3, 5] ld 10, w F32 [4, 6] ld 11");
    sp_tensor_free(&x.whole), sp_tensor_free(&w.whole), sp_tensor_free(&out.whole);
}

static void rope_example(void **state) {
    (void)state;
    json_t *e = test_example("rope");
    float *cosines = test_floats(e, "cos_t4", 4), *sines = test_floats(e, "sin_t4", 4);
    float *xv = test_floats(e, "x", 8), *want = test_floats(e, "x_rotated_t4", 8), table[2][5 * 4];
    for (int i = 0; i < 16; i++) table[0][i] = table[1][i] = 7; // rows that must not be used
    memcpy(table[0] + 16, cosines, 16);
    memcpy(table[1] + 16, sines, 16);
    sp_backend *be = test_backend();
    test_guarded x = test_input(be, xv, 1, 8);
    test_guarded c = test_input(be, table[0], 5, 4), s = test_input(be, table[1], 5, 4);
    assert_ok(sp_rope(x.t, c.t, s.t, 4, 8, false));
    float *got = test_download(x.t);
    for (int i = 0; i < 8; i++) assert_true(fabsf(got[i] - want[i]) < 2e-7f);
    free(got);
    assert_ok(sp_rope(x.t, c.t, s.t, 4, 8, true)); // the transposed rotation undoes it
    got = test_download(x.t);
    for (int i = 0; i < 8; i++) assert_true(fabsf(got[i] - xv[i]) < 2e-7f);
    free(got);
    assert_fails(sp_rope(x.t, c.t, s.t, 5, 8, false), SP_ENVIRONMENT, "pos0 = 5");
    test_drop(&x), test_drop(&c), test_drop(&s);
    free(cosines), free(sines), free(xv), free(want);
}

// The transposed rotation is the adjoint: <R x, y> = <x, R^T y>, attention factor included.
static void rope_adjoint(void **state) {
    (void)state;
    enum { T = 9, HEADS = 3, D = 6 };
    sp_backend *be = test_backend();
    uint64_t seed = 2;
    float *xv = test_values(&seed, T * HEADS * D, -1, 1),
          *yv = test_values(&seed, T * HEADS * D, -1, 1);
    float *cv = test_values(&seed, (T + 2) * D / 2, -1, 1),
          *sv = test_values(&seed, (T + 2) * D / 2, -1, 1);
    test_guarded x = test_input(be, xv, T, HEADS * D), y = test_input(be, yv, T, HEADS * D);
    test_guarded c = test_input(be, cv, T + 2, D / 2), s = test_input(be, sv, T + 2, D / 2);
    assert_ok(sp_rope(x.t, c.t, s.t, 2, D, false));
    assert_ok(sp_rope(y.t, c.t, s.t, 2, D, true));
    float *rx = test_download(x.t), *ry = test_download(y.t);
    double left = 0, right = 0;
    for (int i = 0; i < T * HEADS * D; i++) {
        left += (double)rx[i] * yv[i];
        right += (double)xv[i] * ry[i];
    }
    assert_true(fabs(left - right) < 1e-5 && fabs(left) > 0.1);
    test_drop(&x), test_drop(&y), test_drop(&c), test_drop(&s);
    free(xv), free(yv), free(cv), free(sv), free(rx), free(ry);
}

static void residual_add(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    uint64_t seed = 3;
    float *hv = test_values(&seed, 35, -1, 1), *bv = test_values(&seed, 35, -1, 1);
    test_guarded h = test_input(be, hv, 5, 7), b = test_input(be, bv, 5, 7);
    assert_ok(sp_residual_add(h.t, b.t, 0.25f));
    float *got = test_download(h.t);
    for (int i = 0; i < 35; i++) assert_true(fabsf(got[i] - (hv[i] + 0.25f * bv[i])) < 1e-7f);
    test_drop(&h), test_drop(&b);
    free(hv), free(bv), free(got);
}

static void swiglu(sp_backend *be) {
    for (int F = 1; F < 40; F++) {
        uint64_t seed = (uint64_t)F;
        float *gv = test_values(&seed, 2 * 2 * F, -30, 30);
        gv[0] = -200; // exp(200) is infinite, silu(-200) is 0
        test_guarded g = test_input(be, gv, 2, 2 * F), out = test_output(be, 2, F);
        assert_ok(sp_swiglu(g.t, out.t));
        float *got = test_take(&out, "swiglu");
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < F; c++) {
                double x = (double)gv[r * 2 * F + c], up = (double)gv[r * 2 * F + F + c];
                double want = x / (1 + exp(-x)) * up;
                assert_true(fabs(got[r * F + c] - want) <= 5e-7 * fabs(want) + 1e-35);
            }
        test_drop(&g);
        free(gv), free(got);
    }
}

static void rmsnorm_shapes(void **state) {
    (void)state;
    test_each_isa(test_backend(), rmsnorm);
}
static void swiglu_shapes(void **state) {
    (void)state;
    test_each_isa(test_backend(), swiglu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed),         cmocka_unit_test(rmsnorm_shapes),
        cmocka_unit_test(linear),        cmocka_unit_test(rope_example),
        cmocka_unit_test(rope_adjoint),  cmocka_unit_test(residual_add),
        cmocka_unit_test(swiglu_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
