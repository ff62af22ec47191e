// silu(gate) * up: silu in fp32 and rounded, the product rounded (training.md 1.4).
#include "kernels/cuda/cuda.cuh"

__device__ __forceinline__ float swiglu(float gate, float up) {
    return round_bf16(gate / (1 + __expf(-gate))) * up;
}

__global__ void swiglu_kernel(const bf16 *gu, int64_t gu_ld, bf16 *out, int64_t out_ld,
                              int64_t rows, int64_t F) {
    int64_t n = rows * F;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const bf16 *at = gu + i / F * gu_ld + i % F;
        out[i / F * out_ld + i % F] =
            __float2bfloat16(swiglu(__bfloat162float(at[0]), __bfloat162float(at[F])));
    }
}

__global__ void swiglu_kernel_x8(const bf16 *gu, int64_t gu_ld, bf16 *out, int64_t out_ld,
                                 int64_t rows, int64_t F) {
    int64_t eighths = F / 8, n = rows * eighths;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t r = i / eighths, x = i % eighths * 8;
        const bf16 *at = gu + r * gu_ld + x;
        bf16x8 gate = {*(const uint4 *)at}, up = {*(const uint4 *)(at + F)};
        float g[8], u[8];
        gate.unpack(g);
        up.unpack(u);
#pragma unroll
        for (int e = 0; e < 8; e++) g[e] = swiglu(g[e], u[e]);
        gate.pack(g);
        *(uint4 *)(out + r * out_ld + x) = gate.raw;
    }
}

OP sp_cuda_swiglu(sp_tensor gate_up, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(out);
    int64_t F = out.cols;
    bool vector = F % 8 == 0 && gate_up.ld % 8 == 0 && out.ld % 8 == 0 &&
                  (((uintptr_t)gate_up.data | (uintptr_t)out.data) & 15) == 0;
    int64_t n = out.rows * F / (vector ? 8 : 1);
    unsigned grid = (unsigned)(ceil_div(n, 256) < 132 * 64 ? ceil_div(n, 256) : 132 * 64);
    auto kernel = vector ? swiglu_kernel_x8 : swiglu_kernel;
    kernel<<<grid, 256, 0, c->stream>>>((const bf16 *)gate_up.data, gate_up.ld, (bf16 *)out.data,
                                        out.ld, out.rows, F);
    LAUNCHED("swiglu", "[%lld, %lld]", (long long)out.rows, (long long)F);
    return SP_OK;
}
