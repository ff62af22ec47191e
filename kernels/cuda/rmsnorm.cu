// RMSNorm, one block a row: mean of squares in fp32, the normed value rounded, then times the
// weight and rounded again (training.md 1.4).
#include "kernels/cuda/chained.cuh"

enum { THREADS = 256, HELD = 4 }; // a thread keeps up to HELD x 8 values of its row in registers

template <bool VECTOR>
__global__ void __launch_bounds__(THREADS)
    rmsnorm_kernel(const bf16 *x, int64_t x_ld, const bf16 *w, float eps, bf16 *out, int64_t out_ld,
                   int64_t cols) {
    __shared__ float shared[32];
    const bf16 *row = x + blockIdx.x * x_ld;
    bf16 *to = out + blockIdx.x * out_ld;
    float sum = 0;
    next_may_start();
    wait_for_previous();
    if (VECTOR) {
        bf16x8 held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int64_t at = (i * (int64_t)THREADS + threadIdx.x) * 8;
            if (at >= cols) break;
            held[i].raw = *(const uint4 *)(row + at);
            float f[8];
            held[i].unpack(f);
#pragma unroll
            for (int e = 0; e < 8; e++) sum += f[e] * f[e];
        }
        float inv = rsqrtf(block_sum(sum, shared) / cols + eps);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int64_t at = (i * (int64_t)THREADS + threadIdx.x) * 8;
            if (at >= cols) break;
            bf16x8 weight = {*(const uint4 *)(w + at)};
            float f[8], g[8];
            held[i].unpack(f);
            weight.unpack(g);
#pragma unroll
            for (int e = 0; e < 8; e++) f[e] = round_bf16(f[e] * inv) * g[e];
            held[i].pack(f);
            *(uint4 *)(to + at) = held[i].raw;
        }
    } else {
        for (int64_t i = threadIdx.x; i < cols; i += THREADS) {
            float f = __bfloat162float(row[i]);
            sum += f * f;
        }
        float inv = rsqrtf(block_sum(sum, shared) / cols + eps);
        for (int64_t i = threadIdx.x; i < cols; i += THREADS)
            to[i] = __float2bfloat16(round_bf16(__bfloat162float(row[i]) * inv) *
                                     __bfloat162float(w[i]));
    }
}

OP sp_cuda_rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(x);
    bool vector = x.cols % 8 == 0 && x.ld % 8 == 0 && out.ld % 8 == 0 &&
                  x.cols <= THREADS * HELD * 8 &&
                  (((uintptr_t)x.data | (uintptr_t)w.data | (uintptr_t)out.data) & 15) == 0;
    auto kernel = vector ? rmsnorm_kernel<true> : rmsnorm_kernel<false>;
    CUDA_TRY(launch_chained(c, kernel, dim3((unsigned)x.rows), dim3(THREADS), 0,
                            (const bf16 *)x.data, x.ld, (const bf16 *)w.data, eps, (bf16 *)out.data,
                            out.ld, x.cols));
    LAUNCHED("rmsnorm", "[%lld, %lld]", (long long)x.rows, (long long)x.cols);
    return SP_OK;
}
