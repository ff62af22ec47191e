// The inner loops by themselves, in every instruction set that this machine has and emulated at
// the width of AVX-512.
#include "kernels/cpu/vector.h"
#include "tests/guarded.h"
#include "tests/reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EACH(v)                                                                                    \
    const sp_vector *const *all_ = test_vectors(), *v;                                             \
    (v = *all_);                                                                                   \
    all_++

static void exp_is_accurate(void **state) {
    (void)state;
    enum { N = 1000003 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) x[i] = -86.9f + (float)((88.72 + 86.9) * i / (N - 1));
    for (EACH(v)) {
        v->exp(x, y, N);
        double worst = 0;
        for (int i = 0; i < N; i++) {
            double want = exp((double)x[i]), e = fabs(y[i] - want) / want;
            if (!(e <= worst)) worst = e;
        }
        print_message("           %s: relative error %.3g\n", v->isa, worst);
        assert_true(worst < 2e-7); // vector.h
    }
    free(x);
    free(y);
}

static void exp_at_the_ends(void **state) {
    (void)state;
    const float x[] = {0,     -0.0f,    -INFINITY, INFINITY, NAN,     -87.5f,
                       -104,  -FLT_MAX, 88.73f,    100,      FLT_MAX, 88.722f,
                       88.5f, -86.8f,   FLT_MIN,   -1e-30f,  1};
    enum { N = sizeof x / sizeof x[0] };
    for (EACH(v)) {
        float y[N];
        v->exp(x, y, N);
        assert_true(y[0] == 1 && y[1] == 1 && y[2] == 0 && y[3] == INFINITY && isnan(y[4]));
        assert_true(y[5] == 0 && y[6] == 0 && y[7] == 0);
        assert_true(y[8] == INFINITY && y[9] == INFINITY && y[10] == INFINITY);
        assert_true(isfinite(y[11]) && y[11] > 3.3e38f && isfinite(y[12]) && y[13] > 0);
        assert_true(y[14] == 1 && y[15] == 1);
        assert_true(fabsf(y[16] - 2.71828183f) < 5e-7f);
    }
}

static void gemm_all_shapes(void **state) {
    (void)state;
    enum { MAX = 37, LD = 41 };
    uint64_t seed = 3;
    float *a = test_values(&seed, LD * LD, -1, 1), *b = test_values(&seed, LD * LD, -1, 1);
    float *before = test_values(&seed, LD * LD, -1, 1), c[LD * LD];
    const int sizes[] = {0, 1, 2, 3, 4, 5, 8, 11, 16, 17, 32, 33, 37};
    for (EACH(v))
        for (int mi = 0; mi < 13; mi++)
            for (int ni = 0; ni < 13; ni++)
                for (int variant = 0; variant < 4; variant++) {
                    int m = sizes[mi], n = sizes[ni], k = sizes[(mi + 2 * ni + variant) % 13];
                    bool across = variant & 1, add = variant & 2;
                    int am = across ? 1 : LD, ak = across ? LD : 1;
                    memcpy(c, before, sizeof c);
                    v->gemm(m, n, k, a, am, ak, b, LD, c, LD, add);
                    for (int i = 0; i < LD; i++)
                        for (int j = 0; j < LD; j++) {
                            double want = (double)before[i * LD + j];
                            if (i < m && j < n) {
                                if (!add) want = 0;
                                for (int x = 0; x < k; x++)
                                    want += (double)a[i * am + x * ak] * b[x * LD + j];
                            }
                            if (!(fabs(c[i * LD + j] - want) < 5e-6))
                                fail_msg("%s: %d x %d x %d, element %d, %d", v->isa, m, n, k, i, j);
                        }
                }
    free(a), free(b), free(before);
}

static void softmax_columns_and_online(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (EACH(v))
        for (int n = 1; n < 200; n += 33) {
            int L = (int)v->lanes;
            float *z = test_values(&seed, n * L, -90, 90),
                  *s = malloc(sizeof(float) * (size_t)(n * L));
            int64_t visible[SP_MAX_LANES];
            float inverse[SP_MAX_LANES], max[SP_MAX_LANES], sum[SP_MAX_LANES], r[SP_MAX_LANES];
            for (int l = 0; l < L; l++) visible[l] = l * n / (L - 1) - (l == 1); // 0 .. n
            visible[1] = -5;                                                     // nothing
            memcpy(s, z, sizeof(float) * (size_t)(n * L));
            v->softmax_columns(s, n, visible, inverse);
            for (int l = 0; l < L; l++) {
                double m = -INFINITY, total = 0;
                for (int j = 0; j < visible[l]; j++) m = fmax(m, (double)z[j * L + l]);
                for (int j = 0; j < visible[l]; j++) total += exp((double)z[j * L + l] - m);
                assert_true(total > 0 ? fabs(inverse[l] * total - 1) < 1e-6 : inverse[l] == 0);
                for (int j = 0; j < n; j++) {
                    double want = j < visible[l] ? exp((double)z[j * L + l] - m) : 0;
                    if (want < 1e-37) want = s[j * L + l] < 1e-37f ? (double)s[j * L + l] : 0;
                    assert_true(fabs(s[j * L + l] - want) <= 1e-5 * want);
                }
                max[l] = -INFINITY;
                sum[l] = 0;
            }
            // The same in pieces.
            memcpy(s, z, sizeof(float) * (size_t)(n * L));
            for (int j0 = 0; j0 < n; j0 += 7) {
                int64_t part[SP_MAX_LANES];
                for (int l = 0; l < L; l++) part[l] = visible[l] - j0;
                v->online_columns(s + j0 * L, n - j0 < 7 ? n - j0 : 7, part, max, sum, r);
            }
            for (int l = 0; l < L; l++)
                assert_true(sum[l] > 0 ? fabsf(inverse[l] * sum[l] - 1) < 1e-5f : inverse[l] == 0);
            free(z);
            free(s);
        }
}

// Runs 4.3 on one row by align_columns, lane 0.
static void align(const sp_vector *v, const float *row, int64_t n, int64_t n_t, int64_t rho,
                  bool mean, int64_t n_d, float *out) {
    int64_t L = v->lanes;
    float *e = calloc((size_t)(n * L + 1), sizeof *e),
          *o = malloc(sizeof(float) * (size_t)(n_d * L));
    float inverse[SP_MAX_LANES];
    for (int64_t l = 0; l < L; l++) inverse[l] = 1;
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < L; l++) e[j * L + l] = row[j] * (float)(l + 1);
    int64_t pooled = rho == 1 ? n_t : n_t + 2 < rho + 1 ? 0 : (n_t + 2 - (rho + 1)) / rho + 1;
    v->align_columns(e, n, 1, inverse, n, rho, mean, pooled, n_d, o);
    for (int64_t a = 0; a < n_d; a++) {
        out[a] = o[a * L];
        for (int64_t l = 1; l < L; l++)
            assert_true(fabsf(o[a * L + l] - out[a] * (float)(l + 1)) <= 1e-5f * o[a * L + l]);
    }
    free(e);
    free(o);
}

static void align_examples(void **state) {
    (void)state;
    json_t *x = test_example("align");
    float *row = test_floats(x, "row", 11);
    const struct {
        const char *name;
        int n_d, rho;
        bool mean;
    } cases[] = {{"max_len5", 5, 2, false},
                 {"max_len8_zero_extended", 8, 2, false},
                 {"mean_len5", 5, 2, true},
                 {"ratio4_max_len3", 3, 4, false},
                 {"ratio4_mean_len3", 3, 4, true}};
    for (EACH(v))
        for (int i = 0; i < 5; i++) {
            float *want = test_floats(x, cases[i].name, cases[i].n_d), got[8];
            align(v, row, 11, 11, cases[i].rho, cases[i].mean, cases[i].n_d, got);
            for (int a = 0; a < cases[i].n_d; a++)
                if (fabsf(got[a] - want[a]) > 1e-7f) fail_msg("%s cell %d", cases[i].name, a);
            free(want);
        }
    free(row);
}

static void align_all_lengths(void **state) {
    (void)state;
    float row[64];
    double exact[64], want[64];
    uint64_t seed = 11;
    for (EACH(v))
        for (int64_t n_t = 1; n_t < 40; n_t++)
            for (int64_t n = 0; n <= n_t; n += 1 + n_t / 7) // what the tile sees; the rest is 0
                for (int64_t rho = 1; rho <= 16; rho *= 2)
                    for (int mean = 0; mean < 2; mean++) {
                        for (int64_t j = 0; j < n_t; j++)
                            exact[j] = (double)(row[j] = j < n ? test_uniform(&seed, 0, 1) : 0);
                        int64_t n_d = n_t / rho + 3;
                        float got[64];
                        ref_align(exact, n_t, rho, mean, n_d, want);
                        align(v, row, n, n_t, rho, mean, n_d, got);
                        for (int64_t a = 0; a < n_d; a++)
                            if (fabs(got[a] - want[a]) > 1e-6)
                                fail_msg("n_t %d n %d rho %d mean %d cell %d: %g, not %g", (int)n_t,
                                         (int)n, (int)rho, mean, (int)a, (double)got[a], want[a]);
                    }
}

static void rows(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (EACH(v))
        for (int n = 0; n < 300; n = n < 40 ? n + 1 : n + 97) {
            float *x = test_values(&seed, n, -100, 100),
                  *e = malloc(sizeof(float) * (size_t)(n + 1));
            double sum = 0, squares = 0, m = -INFINITY, total = 0, absolute = 0;
            for (int i = 0; i < n; i++) {
                sum += (double)x[i];
                absolute += fabs((double)x[i]);
                squares += (double)x[i] * x[i];
                m = fmax(m, (double)x[i]);
            }
            assert_true(fabs(v->sum(x, n) - sum) <= 1e-6 * absolute);
            assert_true(fabs(v->sum_squares(x, n) - squares) <= 1e-14 * squares);
            memcpy(e, x, sizeof(float) * (size_t)n);
            e[n] = 42;
            float s = v->softmax_row(e, n);
            for (int i = 0; i < n; i++) total += exp((double)x[i] - m);
            assert_true(fabs(s - total) <= 2e-6 * total && e[n] == 42);
            for (int i = 0; i < n; i++) assert_true(fabs(e[i] - exp((double)x[i] - m)) < 3e-7);
            for (int i = 0; i < n; i++) e[i] = -INFINITY;
            assert_true(v->softmax_row(e, n) == 0);
            for (int i = 0; i < n; i++) assert_true(e[i] == 0);
            free(x);
            free(e);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(exp_at_the_ends),
        cmocka_unit_test(gemm_all_shapes),
        cmocka_unit_test(softmax_columns_and_online),
        cmocka_unit_test(align_examples),
        cmocka_unit_test(align_all_lengths),
        cmocka_unit_test(rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
