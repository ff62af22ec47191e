// Block scores of window rows (training.md 5.1).
#include "kernels/cuda/selection.cuh"

__global__ void block_scores_kernel(BlockRule s, const float *a, int64_t a_ld, int64_t n_d,
                                    int64_t kv_heads, int64_t i0, int64_t nb, float *out,
                                    int64_t out_ld) {
    int64_t r = blockIdx.x, h = blockIdx.y, qb = (i0 + r) / s.block;
    for (int64_t b = threadIdx.x; b < nb; b += blockDim.x)
        out[r * out_ld + h * nb + b] = block_score(s, a + r * a_ld + h * n_d, n_d, b, qb);
}

OP sp_cuda_block_scores(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                        int64_t i0, int64_t nb, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(a);
    block_scores_kernel<<<dim3((unsigned)a.rows, (unsigned)kv_heads), 128, 0, c->stream>>>(
        block_rule(s, deployed), (const float *)a.data, a.ld, a.cols / kv_heads, kv_heads, i0, nb,
        (float *)out.data, out.ld);
    LAUNCHED("block_scores", "[%lld, %lld] to %lld blocks", (long long)a.rows, (long long)a.cols,
             (long long)nb);
    return SP_OK;
}
