// Blocks by their query-independent importance (training.md 5.4): once a layer, not once a query.
//
// One thread block per KV head: scores into shared memory, then every block counts those that come
// before it, which is its place in the order.
#include "kernels/cuda/cuda.cuh"

enum { THREADS = 1024 };

__global__ void __launch_bounds__(THREADS)
    cis_blocks_kernel(const float *cis, int64_t cis_ld, int64_t window, int64_t stride,
                      int64_t per_block, int64_t n_d, int nb, float *scores, int64_t scores_ld,
                      int32_t *order, int64_t order_ld) {
    extern __shared__ float score[]; // [nb]
    const float *of_key = cis + blockIdx.x * cis_ld;
    for (int b = threadIdx.x; b < nb; b += THREADS) {
        int64_t from = per_block * b - 1, to = per_block * (b + 1);
        float best = -INFINITY;
        for (int64_t j = from < 0 ? 0 : from; j < to && j < n_d; j++) {
            float sum = 0;
            for (int64_t t = 0; t < window; t++) sum += of_key[j * stride + t];
            best = fmaxf(best, sum / (float)window); // a NaN counts as absent
        }
        score[b] = best;
        scores[blockIdx.x * scores_ld + b] = best;
    }
    __syncthreads();
    for (int b = threadIdx.x; b < nb; b += THREADS) {
        float mine = score[b];
        int before = 0;
        for (int o = 0; o < nb; o++) before += score[o] > mine || (score[o] == mine && o < b);
        order[blockIdx.x * order_ld + before] = b;
    }
}

OP sp_cuda_cis_blocks(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                      sp_tensor order) {
    sp_cuda *c = sp_cuda_of(cis);
    // ptxas 13.0 reads ahead of the second loop: up to one more group than there are scores
    size_t shared = (size_t)(scores.cols + 16) * sizeof(float);
    SP_TRY(sp_cuda_selection_supported(c, scores.cols));
    CUDA_TRY(cudaFuncSetAttribute(cis_blocks_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)(shared > 48 << 10 ? shared : 48 << 10)));
    cis_blocks_kernel<<<(unsigned)cis.rows, THREADS, shared, c->stream>>>(
        (const float *)cis.data, cis.ld, deployed.kernel, deployed.stride, block / deployed.stride,
        sp_windows(deployed, cis.cols), (int)scores.cols, (float *)scores.data, scores.ld,
        (int32_t *)order.data, order.ld);
    LAUNCHED("cis_blocks", "[%lld, %lld] to %lld blocks", (long long)cis.rows, (long long)cis.cols,
             (long long)scores.cols);
    return SP_OK;
}
