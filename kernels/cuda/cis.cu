// Query-independent importance of keys from their values (training.md 1.6): a warp per token, fp32.
#include "kernels/cuda/chained.cuh"

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS)
    cis_kernel(const bf16 *v, int64_t v_ld, const bf16 *delta, int64_t delta_ld, const float *scale,
               int kv_heads, int cols, int64_t T, float *out, int64_t out_ld) {
    int64_t t = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x & 31;
    if (t >= T) return;
    for (int h = 0; h < kv_heads; h++) {
        float x = 0;
        for (int c = lane; c < cols; c += 32)
            x += __bfloat162float(v[t * v_ld + c]) * __bfloat162float(delta[h * delta_ld + c]);
#pragma unroll
        for (int m = 16; m; m /= 2) x += __shfl_xor_sync(~0u, x, m);
        if (lane == 0) out[h * out_ld + t] = scale[h] * (fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))));
    }
}

OP sp_cuda_cis(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(v);
    CUDA_TRY(share_most(cis_kernel)); // decode runs it beside others
    cis_kernel<<<(unsigned)ceil_div(v.rows * 32, THREADS), THREADS, 0, c->stream>>>(
        (const bf16 *)v.data, v.ld, (const bf16 *)delta.data, delta.ld, (const float *)scale.data,
        (int)heads.kv_heads, (int)v.cols, v.rows, (float *)out.data, out.ld);
    LAUNCHED("cis", "%lld tokens, %lld heads of %lld", (long long)v.rows, (long long)heads.kv_heads,
             (long long)heads.head_dim);
    return SP_OK;
}
