// h += factor * branch: the product rounded, then the sum (training.md 1.4).
#include "kernels/cuda/cuda.cuh"

__global__ void residual_kernel(bf16 *h, int64_t h_ld, const bf16 *b, int64_t b_ld, int64_t rows,
                                int64_t cols, float factor) {
    int64_t n = rows * cols;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        bf16 &to = h[i / cols * h_ld + i % cols];
        to = __float2bfloat16(__bfloat162float(to) +
                              round_bf16(factor * __bfloat162float(b[i / cols * b_ld + i % cols])));
    }
}

__global__ void residual_kernel_x8(bf16 *h, int64_t h_ld, const bf16 *b, int64_t b_ld, int64_t rows,
                                   int64_t eighths, float factor) {
    int64_t n = rows * eighths;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t r = i / eighths, x = i % eighths * 8;
        uint4 *at = (uint4 *)(h + r * h_ld + x);
        bf16x8 to = {*at}, from = {*(const uint4 *)(b + r * b_ld + x)};
        float f[8], g[8];
        to.unpack(f);
        from.unpack(g);
#pragma unroll
        for (int e = 0; e < 8; e++) f[e] += round_bf16(factor * g[e]);
        to.pack(f);
        *at = to.raw;
    }
}

OP sp_cuda_residual_add(sp_tensor h, sp_tensor branch, float factor) {
    sp_cuda *c = sp_cuda_of(h);
    bool vector = h.cols % 8 == 0 && h.ld % 8 == 0 && branch.ld % 8 == 0 &&
                  (((uintptr_t)h.data | (uintptr_t)branch.data) & 15) == 0;
    int64_t n = h.rows * h.cols / (vector ? 8 : 1);
    unsigned grid = (unsigned)(ceil_div(n, 256) < 132 * 64 ? ceil_div(n, 256) : 132 * 64);
    if (vector)
        residual_kernel_x8<<<grid, 256, 0, c->stream>>>(
            (bf16 *)h.data, h.ld, (const bf16 *)branch.data, branch.ld, h.rows, h.cols / 8, factor);
    else
        residual_kernel<<<grid, 256, 0, c->stream>>>(
            (bf16 *)h.data, h.ld, (const bf16 *)branch.data, branch.ld, h.rows, h.cols, factor);
    LAUNCHED("residual_add", "[%lld, %lld]", (long long)h.rows, (long long)h.cols);
    return SP_OK;
}
