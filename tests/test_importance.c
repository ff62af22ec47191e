// sp_importance: examples, golden arrays, a slow version at awkward shapes.
#include "tests/golden.h"
#include "tests/guarded.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>

typedef struct shape {
    sp_heads heads;
    sp_grid fine, deployed;
    int64_t T, i0, rows;
    sp_align align;
    sp_visibility sees;
    float spread; // of queries and keys
} shape;

static const shape shapes[] = {
    {{8, 2, 64}, {2, 1}, {8, 4}, 203, 0, 203, SP_ALIGN_MAX, SP_SEES_START, 1},
    {{8, 2, 64}, {2, 1}, {8, 4}, 203, 100, 37, SP_ALIGN_MEAN, SP_SEES_START, 1},
    {{8, 2, 64}, {8, 4}, {8, 4}, 203, 0, 203, SP_ALIGN_MAX, SP_SEES_COMPLETE, 1}, // rows of zeros
    {{8, 2, 64}, {4, 1}, {8, 4}, 65, 0, 65, SP_ALIGN_MAX, SP_SEES_START, 1},
    {{4, 4, 16}, {2, 1}, {32, 16}, 79, 0, 79, SP_ALIGN_MAX, SP_SEES_START, 1}, // G = 1
    {{5, 1, 6}, {2, 1}, {6, 3}, 31, 0, 31, SP_ALIGN_MAX, SP_SEES_START, 1},    // odd sizes
    {{6, 2, 2}, {6, 3}, {6, 3}, 32, 0, 32, SP_ALIGN_MEAN, SP_SEES_COMPLETE, 1},
    {{16, 1, 8}, {4, 2}, {8, 4}, 33, 32, 1, SP_ALIGN_MAX, SP_SEES_START, 1},   // one row
    {{2, 1, 4}, {2, 1}, {8, 4}, 8, 0, 8, SP_ALIGN_MAX, SP_SEES_START, 1},      // one window
    {{8, 2, 64}, {2, 1}, {8, 4}, 130, 0, 130, SP_ALIGN_MAX, SP_SEES_START, 5}, // logits to +-200
};

static void slow_version(sp_backend *be) {
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const shape *x = &shapes[s];
        int64_t n_t = sp_windows(x->fine, x->T), n_d = sp_windows(x->deployed, x->T);
        int64_t qw = x->heads.q_heads * x->heads.head_dim,
                kw = x->heads.kv_heads * x->heads.head_dim;
        int64_t size = x->rows * x->heads.kv_heads * n_d;
        uint64_t seed = s;
        float *qv = test_values(&seed, x->rows * qw, -x->spread, x->spread);
        float *cv = test_values(&seed, n_t * kw, -x->spread, x->spread);
        double *exact = calloc((size_t)size, sizeof *exact);
        float *want = malloc((size_t)size * sizeof *want);
        sp_importance_args a = {x->heads, x->fine, x->deployed, n_d, x->align, x->sees};
        ref_importance(&a, qv, x->rows, x->i0, cv, n_t, exact);
        for (int64_t i = 0; i < size; i++) want[i] = (float)exact[i];
        test_guarded q = test_input(be, qv, x->rows, qw), c = test_input(be, cv, n_t, kw);
        test_guarded out = test_output(be, x->rows, x->heads.kv_heads * n_d);
        assert_ok(sp_importance(&a, q.t, x->i0, c.t, out.t));
        float *got = test_take(&out, "importance");
        // A logit z has an absolute error of about |z| 2^-24 sqrt(d), its probability that
        // relative.
        double limit = x->spread > 1 ? 3e-5 : 2e-6, error = test_rel_error(got, want, size);
        if (!(error < limit)) fail_msg("shape %d: error %g", (int)s, error);
        test_drop(&q);
        test_drop(&c);
        free(qv), free(cv), free(exact), free(want), free(got);
    }
}

static void awkward_shapes(void **state) {
    (void)state;
    test_each_isa(test_backend(), slow_version);
}

static void teacher_example(void **state) {
    (void)state;
    json_t *x = test_example("teacher");
    float *qv = test_floats(x, "Q", 6 * 4), *cv = test_floats(x, "Kc_2_1", 5 * 2);
    float *want = test_floats(x, "P_group_sum", 6 * 5);
    sp_importance_args a = {{2, 1, 2}, {2, 1}, {2, 1}, 5, SP_ALIGN_MAX, SP_SEES_START};
    test_guarded q = test_input(test_backend(), qv, 6, 4), c = test_input(test_backend(), cv, 5, 2);
    test_guarded out = test_output(test_backend(), 6, 5);
    assert_ok(sp_importance(&a, q.t, 0, c.t, out.t));
    float *got = test_take(&out, "teacher");
    assert_close("teacher example", got, want, 30, 1e-6);
    test_drop(&q), test_drop(&c);
    free(qv), free(cv), free(want), free(got);
}

static void golden_layers(void **state) {
    (void)state;
    enum { T = 256, N_D = 63, N_T = 255 };
    sp_backend *be = test_backend();
    const char *queries[] = {"q.0", "q.3"}, *keys[] = {"kt.0", "kt.3"};
    float *A = golden_rows_f32("forward", "A", 6, 2, T, N_D);
    sp_importance_args a = {{8, 2, 64}, {2, 1}, {8, 4}, N_D, SP_ALIGN_MAX, SP_SEES_START};
    for (int n = 0; n < 2; n++) {
        test_guarded q = test_golden(be, "forward", queries[n], T, 0, T, 512);
        test_guarded c = test_golden(be, "forward", keys[n], N_T, 0, N_T, 128);
        test_guarded out = test_output(be, T, 2 * N_D);
        assert_ok(sp_importance(&a, q.t, 0, c.t, out.t));
        float *got = test_take(&out, "A");
        assert_close("A", got, A + 3 * n * T * 2 * N_D, T * 2 * N_D, 2e-5);
        test_drop(&q), test_drop(&c);
        free(got);
    }
    free(A);
}

static void golden_original_rows(void **state) {
    (void)state;
    enum { T = 256, N_D = 63 };
    sp_backend *be = test_backend();
    sp_importance_args a = {{8, 2, 64}, {8, 4}, {8, 4}, N_D, SP_ALIGN_MAX, SP_SEES_COMPLETE};
    test_guarded q = test_golden(be, "forward", "q.0", T, 0, T, 512);
    test_guarded c = test_golden(be, "forward", "kd", 6 * N_D, 0, N_D, 128);
    test_guarded out = test_output(be, T, 2 * N_D);
    assert_ok(sp_importance(&a, q.t, 0, c.t, out.t));
    float *got = test_take(&out, "original_rows");
    float *want = golden_rows_f32("selection", "original_rows.0", 1, 2, T, N_D);
    assert_close("original_rows.0", got, want, T * 2 * N_D, 2e-5);
    test_drop(&q), test_drop(&c);
    free(got), free(want);
}

// Rows do not depend on the tile they are computed in.
static void tiles(void **state) {
    (void)state;
    enum { T = 203, N_D = 49, N_T = 202 };
    sp_backend *be = test_backend();
    uint64_t seed = 9;
    float *qv = test_values(&seed, T * 512, -1, 1), *cv = test_values(&seed, N_T * 128, -1, 1);
    sp_importance_args a = {{8, 2, 64}, {2, 1}, {8, 4}, N_D, SP_ALIGN_MAX, SP_SEES_START};
    test_guarded q = test_input(be, qv, T, 512), c = test_input(be, cv, N_T, 128);
    test_guarded whole = test_output(be, T, 2 * N_D), parts = test_output(be, T, 2 * N_D);
    assert_ok(sp_importance(&a, q.t, 0, c.t, whole.t));
    for (int64_t i = 0, n; i < T; i += n) {
        n = i % 3 ? 29 : 5;
        if (i + n > T) n = T - i;
        assert_ok(
            sp_importance(&a, sp_tensor_rows(q.t, i, n), i, c.t, sp_tensor_rows(parts.t, i, n)));
    }
    float *x = test_take(&whole, "whole"), *y = test_take(&parts, "parts");
    assert_memory_equal(x, y, T * 2 * N_D * sizeof(float));
    test_drop(&q), test_drop(&c);
    free(qv), free(cv), free(x), free(y);
}

static void contract(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    test_guarded q = test_output(be, 4, 16), c = test_output(be, 7, 8), out = test_output(be, 4, 2);
    sp_importance_args a = {{4, 2, 4}, {2, 1}, {8, 4}, 1, SP_ALIGN_MAX, SP_SEES_START};
    a.fine.stride = 3;
    assert_fails(sp_importance(&a, q.t, 0, c.t, out.t), SP_ENVIRONMENT,
                 "broken contract in sp_importance");
    a.fine.stride = 1;
    a.n_d = 2;
    assert_fails(sp_importance(&a, q.t, 0, c.t, out.t), SP_ENVIRONMENT, "out F32 [4, 2]");
    sp_tensor_free(&q.whole), sp_tensor_free(&c.whole), sp_tensor_free(&out.whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(awkward_shapes), cmocka_unit_test(teacher_example),
        cmocka_unit_test(golden_layers),  cmocka_unit_test(golden_original_rows),
        cmocka_unit_test(tiles),          cmocka_unit_test(contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
