// Forecast scores: one product per KV head, then -inf where a window is not visible
// (inference.md 1.2).
#include "kernels/cuda/cuda.cuh"

__global__ void mask_kernel(float *out, int64_t ld, int64_t n_d, int64_t stride, int64_t extent,
                            int64_t i0) {
    int64_t r = blockIdx.x;
    float *row = out + r * ld + blockIdx.y * n_d;
    for (int64_t j = visible_windows(stride, extent, i0 + r, n_d) + threadIdx.x; j < n_d;
         j += blockDim.x)
        row[j] = -INFINITY;
}

OP sp_cuda_forecast_scores(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f, int64_t i0,
                           sp_tensor cks, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(f);
    int64_t n_d = cks.rows, d = heads.head_dim;
    if (n_d == 0) return SP_OK;
    for (int64_t h = 0; h < heads.kv_heads; h++)
        SP_TRY(sp_cuda_matmul(c, f.rows, n_d, d, 1, (const bf16 *)f.data + h * d, f.ld,
                              (const bf16 *)cks.data + h * d, cks.ld, false, 0,
                              (float *)out.data + h * n_d, SP_F32, out.ld));
    mask_kernel<<<dim3((unsigned)f.rows, (unsigned)heads.kv_heads), 128, 0, c->stream>>>(
        (float *)out.data, out.ld, n_d, g.stride, window_extent(g, v), i0);
    LAUNCHED("forecast_scores", "[%lld, %lld]", (long long)out.rows, (long long)out.cols);
    return SP_OK;
}
