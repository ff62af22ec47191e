// The same tensors on both backends, for the programs that compare a GPU with the CPU.
#ifndef SPARDA_TEST_GPU_PAIRS_H
#define SPARDA_TEST_GPU_PAIRS_H

#include "kernels/kernels.h"
#include "tests/support.h"

#include "common/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sp_backend *cpu, *gpu; // opened by main
static uint64_t seed = 20261129;

typedef struct pair {
    sp_tensor on_cpu, on_gpu;
    int64_t n;
} pair;

static inline pair make(sp_dtype gpu_type, int64_t rows, int64_t cols) {
    pair p = {.n = rows * cols};
    sp_dtype t = gpu_type == SP_BF16 ? SP_F32 : gpu_type;
    assert_ok(sp_tensor_alloc(cpu, t, rows, cols, "test", &p.on_cpu));
    assert_ok(sp_tensor_alloc(gpu, gpu_type, rows, cols, "test", &p.on_gpu));
    if (gpu_type != SP_I32) { // poison: every element must be written
        assert_ok(sp_fill(p.on_cpu, NAN));
        assert_ok(sp_fill(p.on_gpu, NAN));
    }
    return p;
}

static inline void drop(pair *p) {
    sp_tensor_free(&p->on_cpu);
    sp_tensor_free(&p->on_gpu);
}

static inline pair random_pair(sp_dtype gpu_type, int64_t rows, int64_t cols, float sigma) {
    pair p = make(gpu_type, rows, cols);
    float *x = malloc((size_t)p.n * sizeof *x);
    for (int64_t i = 0; i < p.n; i++) {
        float u = test_uniform(&seed, 0, 1), v = test_uniform(&seed, 0, 1);
        x[i] = sigma * sqrtf(-2 * logf(u + 1e-9f)) * cosf(6.2831853f * v);
        if (gpu_type == SP_BF16) x[i] = sp_bf16_to_f32(sp_f32_to_bf16(x[i]));
    }
    assert_ok(sp_upload(p.on_cpu, x));
    assert_ok(sp_upload(p.on_gpu, x));
    free(x);
    return p;
}

static inline double compare(pair p, const char *what, double bound) {
    float *want = malloc((size_t)p.n * sizeof *want), *got = malloc((size_t)p.n * sizeof *got);
    assert_ok(sp_download(p.on_cpu, want));
    assert_ok(sp_download(p.on_gpu, got));
    double error = test_rel_error(got, want, p.n);
    printf("    %-28s rel %.2e (bound %.0e)\n", what, error, bound);
    if (!(error <= bound)) fail_msg("%s: relative error %g above %g", what, error, bound);
    free(want);
    free(got);
    return error;
}

static inline int64_t rows_of_different_lists(pair lists) {
    int64_t n = lists.on_cpu.rows, cols = lists.on_cpu.cols, different = 0;
    int32_t *a = malloc((size_t)lists.n * sizeof *a), *b = malloc((size_t)lists.n * sizeof *b);
    assert_ok(sp_download(lists.on_cpu, a));
    assert_ok(sp_download(lists.on_gpu, b));
    for (int64_t r = 0; r < n; r++)
        different += memcmp(a + r * cols, b + r * cols, (size_t)cols * sizeof *a) != 0;
    free(a);
    free(b);
    return different;
}

// `whole` was made of all rows, `part` of those from `first` on: the same bits.
static inline void same_bits(sp_tensor whole, sp_tensor part, int64_t first, const char *what) {
    int64_t n = part.rows * part.cols;
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    assert_ok(sp_download(sp_tensor_rows(whole, first, part.rows), a));
    assert_ok(sp_download(part, b));
    int64_t at = 0;
    while (at < n && memcmp(a + at, b + at, sizeof *a) == 0) at++;
    if (at < n)
        fail_msg("%s: row %lld depends on the tile it is made in: %.9g and %.9g", what,
                 (long long)(first + at / part.cols), (double)a[at], (double)b[at]);
    free(a);
    free(b);
}

#endif
