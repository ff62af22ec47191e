// sp_forecast_lists: equal to sp_forecast_scores and sp_select_blocks on the CPU, bit for bit; the
// CUDA kernel against the CPU backend.
//
// Two kinds of inputs for the GPU. Whole numbers of at most 3 make every product and sum exact in
// any order, so lists must be equal, the many ties included. Normal values round differently: a
// block may stand where the CPU has another only if their scores differ by less than the bound of
// fp32 sums, d * 2^-23 * sum |f_i c_i| each.
#include "tests/golden.h"
#include "tests/guarded.h"

#include "common/build.h"
#include "common/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *name;
    int64_t T, i0, rows, kv_heads, d;
    sp_grid g;
    sp_selection s;
    sp_visibility sees;
} shape;

static const shape shapes[] = {
    {"tiny", 1024, 0, 1024, 2, 64, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"starts, future kept", 1024, 0, 1024, 2, 64, {8, 4}, {16, 1, 2, 10, false}, SP_SEES_START},
    {"ragged tile", 1024, 700, 201, 2, 64, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"one row", 1024, 1023, 1, 2, 64, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"one token", 1, 0, 1, 2, 64, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"one short of a window", 7, 0, 7, 2, 64, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"one past a block", 17, 0, 17, 2, 64, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"k above the blocks", 203, 0, 203, 2, 64, {8, 4}, {16, 1, 2, 100, false}, SP_SEES_COMPLETE},
    {"k below the forced", 203, 0, 203, 2, 64, {8, 4}, {16, 3, 2, 2, false}, SP_SEES_COMPLETE},
    {"minicpm", 4200, 2100, 2100, 2, 128, {32, 16}, {64, 1, 4, 16, true}, SP_SEES_COMPLETE},
    {"tile border", 2064, 2000, 64, 1, 128, {32, 16}, {64, 1, 4, 16, true}, SP_SEES_START},
    {"all of 96", 9000, 8000, 1000, 2, 128, {32, 16}, {64, 1, 32, 96, true}, SP_SEES_COMPLETE},
    {"2 a block", 900, 0, 900, 3, 64, {8, 4}, {8, 1, 2, 12, true}, SP_SEES_COMPLETE},
    {"8 a block", 1900, 0, 1900, 1, 128, {16, 8}, {64, 0, 1, 5, true}, SP_SEES_COMPLETE},
    {"16 a block", 2900, 0, 2900, 2, 128, {16, 8}, {128, 1, 1, 4, false}, SP_SEES_START},
    {"32 a block: no kernel",
     1900,
     100,
     1800,
     1,
     64,
     {4, 2},
     {64, 1, 1, 5, true},
     SP_SEES_COMPLETE},
    {"head size 32: no kernel", 600, 0, 600, 2, 32, {8, 4}, {16, 1, 2, 10, true}, SP_SEES_COMPLETE},
    {"2500 blocks", 40000, 39900, 100, 2, 64, {8, 4}, {16, 1, 2, 70, true}, SP_SEES_COMPLETE},
    {"4100 blocks", 65600, 65500, 100, 1, 64, {8, 4}, {16, 1, 2, 70, true}, SP_SEES_COMPLETE},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int64_t blocks_of(const shape *x) {
    return (x->T + x->s.block - 1) / x->s.block;
}

// Whole numbers from -3 to 3, or values that a bf16 can hold.
static float *values(uint64_t *seed, int64_t n, bool whole) {
    float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        float u = test_uniform(seed, 0, 1), w = test_uniform(seed, 0, 1);
        v[i] = whole ? floorf(7 * u) - 3
                     : sp_bf16_to_f32(
                           sp_f32_to_bf16(sqrtf(-2 * logf(u + 1e-9f)) * cosf(6.2831853f * w)));
    }
    return v;
}

static void equal_to_two_operations(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    for (int n = 0; n < N_SHAPES; n++) {
        const shape *x = &shapes[n];
        uint64_t seed = (uint64_t)n;
        int64_t n_d = sp_windows(x->g, x->T), nb = blocks_of(x), cols = x->kv_heads * x->d;
        float *fv = values(&seed, x->rows * cols, n % 2), *cv = values(&seed, n_d * cols, n % 2);
        if (n == 0) cv[5 * cols + 3] = NAN, fv[900 * cols] = INFINITY;
        test_guarded f = test_input(be, fv, x->rows, cols), c = test_input(be, cv, n_d, cols);
        test_guarded one = test_output_i32(be, x->rows, x->kv_heads * x->s.topk);
        test_guarded two = test_output_i32(be, x->rows, x->kv_heads * x->s.topk);
        sp_tensor a;
        assert_ok(sp_tensor_alloc(be, SP_F32, x->rows, x->kv_heads * n_d + 1, "rows", &a));
        sp_tensor rows = sp_tensor_cols(a, 0, x->kv_heads * n_d);
        sp_heads heads = {x->kv_heads, x->kv_heads, x->d};
        assert_ok(sp_forecast_lists(heads, x->g, x->sees, &x->s, f.t, x->i0, c.t, nb, one.t));
        assert_ok(sp_forecast_scores(heads, x->g, x->sees, f.t, x->i0, c.t, rows));
        assert_ok(sp_select_blocks(&x->s, x->g, x->kv_heads, rows, x->i0, nb, two.t));
        int32_t *got = test_take_i32(&one, x->name), *want = test_take_i32(&two, x->name);
        for (int64_t e = 0; e < x->rows * x->kv_heads * x->s.topk; e++)
            if (got[e] != want[e])
                fail_msg("%s: entry %lld is %d, not %d", x->name, (long long)e, got[e], want[e]);
        free(got), free(want), free(fv), free(cv);
        test_drop(&f), test_drop(&c);
        sp_tensor_free(&a);
    }
}

static void broken_contracts(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    sp_tensor f, c, lists;
    assert_ok(sp_tensor_alloc(be, SP_F32, 3, 128, "f", &f));
    assert_ok(sp_tensor_alloc(be, SP_F32, 4, 128, "c", &c));
    assert_ok(sp_tensor_alloc(be, SP_I32, 3, 20, "lists", &lists));
    const sp_heads heads = {2, 2, 64};
    const sp_selection s = {16, 1, 2, 10, true};
    assert_fails(sp_forecast_lists(heads, (sp_grid){8, 4}, SP_SEES_START, &s, f, 30, c, 2, lists),
                 SP_ENVIRONMENT, "i0 + f.rows <= nb * s->block");
    assert_fails(sp_forecast_lists(heads, (sp_grid){8, 4}, SP_SEES_START, &s, f, 0, c, 2,
                                   sp_tensor_cols(lists, 0, 10)),
                 SP_ENVIRONMENT, "lists.cols == heads.kv_heads * s->topk");
    sp_tensor_free(&f), sp_tensor_free(&c), sp_tensor_free(&lists);
}

// ---- on the GPU ---------------------------------------------------------------------------------

static sp_backend *gpu;

// Window scores of a row in double, with the bound on their error; pooled to blocks, forced ones
// left out (NAN).
static void exact_blocks(const shape *x, const float *f, const float *c, int64_t head, int64_t i,
                         double *score, double *bound) {
    int64_t n_d = sp_windows(x->g, x->T), seen = sp_visible(x->g, x->sees, i, n_d);
    int64_t per = x->s.block / x->g.stride, qb = i / x->s.block;
    for (int64_t b = 0; b < blocks_of(x); b++) {
        score[b] = -INFINITY;
        bound[b] = 0;
        if (b < x->s.init_blocks || (b <= qb && qb <= b + x->s.local_blocks)) {
            score[b] = NAN;
            continue;
        }
        for (int64_t j = per * b > 0 ? per * b - 1 : 0; j < per * (b + 1) && j < seen; j++) {
            double sum = 0, size = 0;
            for (int64_t e = 0; e < x->d; e++) {
                double product = (double)f[e] * (double)c[(j * x->kv_heads + head) * x->d + e];
                sum += product;
                size += fabs(product);
            }
            score[b] = fmax(score[b], sum);
            bound[b] = fmax(bound[b], (double)x->d * 0x1p-23 * size);
        }
    }
}

static bool listed(const int32_t *list, int64_t k, int32_t b) {
    for (int64_t e = 0; e < k; e++)
        if (list[e] == b) return true;
    return false;
}

// Lists `got` differ from `want`: every block that only one of them has must be within the bound
// of every block that only the other has.
static bool explained(const shape *x, const int32_t *got, const int32_t *want, const double *score,
                      const double *bound) {
    for (int64_t a = 0; a < x->s.topk; a++) {
        if (got[a] < 0 || listed(want, x->s.topk, got[a])) continue;
        for (int64_t b = 0; b < x->s.topk; b++) {
            if (want[b] < 0 || listed(got, x->s.topk, want[b])) continue;
            double gap = fabs(score[got[a]] - score[want[b]]);
            if (!(gap <= bound[got[a]] + bound[want[b]])) return false;
        }
    }
    return true;
}

static void compare_lists(const shape *x, const int32_t *got, const int32_t *want, const float *f,
                          const float *c, bool whole) {
    int64_t k = x->s.topk, nb = blocks_of(x), differ = 0;
    double *score = malloc((size_t)nb * sizeof *score), *bound = malloc((size_t)nb * sizeof *bound);
    for (int64_t r = 0; r < x->rows * x->kv_heads; r++) {
        const int32_t *g = got + r * k, *w = want + r * k;
        if (memcmp(g, w, (size_t)k * sizeof *g) == 0) continue;
        int64_t h = r % x->kv_heads, i = x->i0 + r / x->kv_heads;
        differ++;
        if (whole) fail_msg("%s: list of row %lld, head %lld", x->name, (long long)i, (long long)h);
        exact_blocks(x, f + r * x->d, c, h, i, score, bound);
        if (!explained(x, g, w, score, bound))
            fail_msg("%s: list of row %lld, head %lld beyond rounding", x->name, (long long)i,
                     (long long)h);
    }
    // Near ties are rare in normal data.
    if (differ * 50 > x->rows * x->kv_heads) fail_msg("%s: %lld rows", x->name, (long long)differ);
    printf("    %-24s %s: %lld of %lld lists differ within rounding\n", x->name,
           whole ? "whole" : "normal", (long long)differ, (long long)(x->rows * x->kv_heads));
    free(score), free(bound);
}

static void gpu_lists(const shape *x, const float *f, const float *c, bool on_gpu, int32_t *out) {
    sp_backend *be = on_gpu ? gpu : test_backend();
    int64_t n_d = sp_windows(x->g, x->T), cols = x->kv_heads * x->d, k = x->s.topk;
    sp_dtype t = sp_backend_storage(be);
    sp_tensor ft, ct, lists;
    assert_ok(sp_tensor_alloc(be, t, x->rows, cols, "f", &ft));
    assert_ok(sp_tensor_alloc(be, t, n_d > 0 ? n_d : 1, cols, "c", &ct));
    assert_ok(sp_tensor_alloc(be, SP_I32, x->rows, x->kv_heads * k, "lists", &lists));
    sp_tensor rows = sp_tensor_rows(ct, 0, n_d);
    assert_ok(sp_upload(ft, f));
    if (n_d > 0) assert_ok(sp_upload(rows, c));
    assert_ok(sp_forecast_lists((sp_heads){x->kv_heads, x->kv_heads, x->d}, x->g, x->sees, &x->s,
                                ft, x->i0, rows, blocks_of(x), lists));
    assert_ok(sp_download(lists, out));
    sp_tensor_free(&ft), sp_tensor_free(&ct), sp_tensor_free(&lists);
}

static void gpu_equals_cpu(void **state) {
    (void)state;
    if (!gpu) skip();
    for (int n = 0; n < 2 * N_SHAPES; n++) {
        const shape *x = &shapes[n / 2];
        bool whole = n % 2 == 0;
        uint64_t seed = 100 + (uint64_t)n;
        int64_t n_d = sp_windows(x->g, x->T), cols = x->kv_heads * x->d;
        size_t entries = (size_t)(x->rows * x->kv_heads * x->s.topk);
        float *f = values(&seed, x->rows * cols, whole), *c = values(&seed, n_d * cols, whole);
        int32_t *got = malloc(entries * sizeof *got), *want = malloc(entries * sizeof *want);
        gpu_lists(x, f, c, true, got);
        gpu_lists(x, f, c, false, want);
        compare_lists(x, got, want, f, c, whole);
        free(f), free(c), free(got), free(want);
    }
}

int main(void) {
#if SPARDA_HAVE_CUDA
    sp_backend_options o = {.name = "cuda", .local_ranks = 1};
    if (sp_backend_open(&o, &gpu) != SP_OK) gpu = NULL;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_two_operations),
        cmocka_unit_test(broken_contracts),
        cmocka_unit_test(gpu_equals_cpu),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sp_backend_close(gpu);
    return failed;
}
