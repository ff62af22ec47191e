// ctest: timeout=600
// Long dense attention on a GPU against the CPU backend: whole prompts and chunks, up to 122,101
// keys. Skipped where no device is.
//
//   test_cuda_dense_attention [--portable]
//
// Bounds as in test_cuda_operations.c. One head of the CPU's work is 2^27 pairs of row and key, a
// second or two on all cores.
#include "tests/golden.h"
#include "tests/gpu_options.h"
#include "tests/support.h"

#include "common/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sp_backend *cpu, *gpu;
static uint64_t seed = 20261130;

enum { GUARD = 64 }; // columns beside the result that nothing may touch, and as many rows below

// q, k and v as the fused projection leaves them, k and v of more tokens than are attended to.
typedef struct inputs {
    sp_tensor all, q, k, v;
} inputs;

static inputs inputs_on(sp_backend *be, sp_heads h, int64_t rows, int64_t q0, const float *x) {
    int64_t q_cols = h.q_heads * h.head_dim, kv_cols = h.kv_heads * h.head_dim;
    int64_t tokens = q0 + rows + 5;
    inputs in;
    assert_ok(sp_tensor_alloc(be, sp_backend_storage(be), tokens, q_cols + 2 * kv_cols, "q, k, v",
                              &in.all));
    assert_ok(sp_upload(in.all, x));
    in.q = sp_tensor_rows(sp_tensor_cols(in.all, 0, q_cols), q0, rows);
    in.k = sp_tensor_cols(in.all, q_cols, kv_cols);
    in.v = sp_tensor_cols(in.all, q_cols + kv_cols, kv_cols);
    return in;
}

// What follows the attended tokens is large: one key of it would show.
static float *random_inputs(int64_t tokens, int64_t cols) {
    float *x = malloc((size_t)((tokens + 5) * cols) * sizeof *x);
    for (int64_t i = 0; i < (tokens + 5) * cols; i++) {
        float u = test_uniform(&seed, 0, 1), v = test_uniform(&seed, 0, 1);
        x[i] = sqrtf(-2 * logf(u + 1e-9f)) * cosf(6.2831853f * v);
        x[i] = i < tokens * cols ? sp_bf16_to_f32(sp_f32_to_bf16(x[i])) : 1000;
    }
    return x;
}

typedef struct shape {
    sp_heads heads;
    int64_t rows, q0;
} shape;

static const shape shapes[] = {
    {{4, 2, 128}, 11621, 0}, // all rows
    {{4, 2, 128}, 8193, 8190}, {{4, 2, 128}, 4099, 28700}, {{4, 2, 128}, 1100, 121000},
    {{4, 2, 128}, 11650, 3},   {{8, 1, 64}, 11777, 0},     {{8, 1, 64}, 1101, 121000},
    {{8, 1, 64}, 8193, 8190},
};

static void agrees_with_the_cpu(const shape *s) {
    const sp_heads h = s->heads;
    int64_t cols = h.q_heads * h.head_dim, row = cols + GUARD;
    int64_t keys = s->q0 + s->rows, n = (s->rows + GUARD) * row;
    float *x = random_inputs(keys, cols + 2 * h.kv_heads * h.head_dim);
    inputs on_cpu = inputs_on(cpu, h, s->rows, s->q0, x);
    inputs on_gpu = inputs_on(gpu, h, s->rows, s->q0, x);
    sp_tensor want, room;
    assert_ok(sp_tensor_alloc(cpu, SP_F32, s->rows, cols, "test", &want));
    assert_ok(sp_tensor_alloc(gpu, sp_backend_storage(gpu), s->rows + GUARD, row, "test", &room));
    assert_ok(sp_dense_attention(h, on_cpu.q, s->q0, on_cpu.k, on_cpu.v, SP_NO_TENSOR, want));
    sp_tensor out = sp_tensor_rows(sp_tensor_cols(room, 0, cols), 0, s->rows);
    float *right = test_download(want), *got = NULL;
    for (int again = 0; again < 2; again++) {
        assert_ok(sp_fill(room, 7));
        assert_ok(sp_dense_attention(h, on_gpu.q, s->q0, on_gpu.k, on_gpu.v, SP_NO_TENSOR, out));
        float *now = test_download(room);
        if (got) assert_memory_equal(got, now, (size_t)n * sizeof *now);
        free(got);
        got = now;
    }
    double worst = 0, difference = 0, size = 0;
    for (int64_t r = 0; r < s->rows + GUARD; r++) {
        const float *g = got + r * row, *w = right + r * cols;
        double d = 0, of_row = 0;
        for (int64_t c = 0; c < row; c++) {
            if (r >= s->rows || c >= cols) {
                if (g[c] != 7)
                    fail_msg("wrote outside: row %lld column %lld", (long long)r, (long long)c);
                continue;
            }
            d += pow(g[c] - w[c], 2);
            of_row += pow(w[c], 2);
        }
        if (r < s->rows && !(sqrt(d / of_row) <= worst)) worst = sqrt(d / of_row);
        difference += d;
        size += of_row;
    }
    double error = sqrt(difference / size);
    printf("  %lld rows, %lld keys, %lld/%lld heads of %lld: rel %.2e, worst row %.2e\n",
           (long long)s->rows, (long long)keys, (long long)h.q_heads, (long long)h.kv_heads,
           (long long)h.head_dim, error, worst);
    if (!(error <= 6e-3 && worst <= 3e-2))
        fail_msg("relative error %g, worst row %g", error, worst);
    sp_tensor *all[] = {&on_cpu.all, &on_gpu.all, &want, &room};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sp_tensor_free(all[i]);
    free(x), free(right), free(got);
}

static void long_dense_attention(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) agrees_with_the_cpu(&shapes[i]);
}

int main(int argc, char **argv) {
    if (!gpu_opens(gpu_options_of(argc, argv), &gpu, &cpu)) return 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_dense_attention)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sp_backend_close(gpu);
    sp_backend_close(cpu);
    return failed;
}
