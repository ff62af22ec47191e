// Means of key windows, fp32 sum, rounded once (training.md 3.1).
#include "kernels/cuda/cuda.cuh"

__global__ void compress_kernel(const bf16 *k, int64_t k_ld, int64_t window, int64_t stride,
                                int64_t j0, bf16 *out, int64_t out_ld, int64_t n, int64_t cols) {
    int64_t total = n * cols;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t j = i / cols, x = i % cols;
        const bf16 *at = k + (j0 + j) * stride * k_ld + x;
        float sum = 0;
        for (int64_t t = 0; t < window; t++) sum += __bfloat162float(at[t * k_ld]);
        out[j * out_ld + x] = __float2bfloat16(sum / window);
    }
}

OP sp_cuda_compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(k);
    int64_t n = out.rows * out.cols;
    unsigned grid = (unsigned)(ceil_div(n, 256) < 132 * 64 ? ceil_div(n, 256) : 132 * 64);
    compress_kernel<<<grid, 256, 0, c->stream>>>((const bf16 *)k.data, k.ld, g.kernel, g.stride, j0,
                                                 (bf16 *)out.data, out.ld, out.rows, out.cols);
    LAUNCHED("compress_keys", "[%lld, %lld] windows %lld/%lld", (long long)out.rows,
             (long long)out.cols, (long long)g.kernel, (long long)g.stride);
    return SP_OK;
}
