// Scaling and sums of fp32 tensors. Sums are in double with a fixed order: fixed blocks, each in a
// fixed tree, the partial results added on the host from the first to the last.
#include "kernels/cuda/cuda.cuh"

enum { BLOCKS = 512, THREADS = 256 };

template <bool SQUARE>
__global__ void __launch_bounds__(THREADS)
    sum_kernel(const float *x, int64_t ld, int64_t rows, int64_t cols, double *out) {
    __shared__ double shared[32];
    double sum = 0;
    int64_t n = rows * cols;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS) {
        double v = x[i / cols * ld + i % cols];
        sum += SQUARE ? v * v : v;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <bool SQUARE> static sp_status sum_of(sp_tensor x, double *out) {
    sp_cuda *c = sp_cuda_of(x);
    sum_kernel<SQUARE>
        <<<BLOCKS, THREADS, 0, c->stream>>>((const float *)x.data, x.ld, x.rows, x.cols, c->sums);
    LAUNCHED("sum", "[%lld, %lld]", (long long)x.rows, (long long)x.cols);
    CUDA_TRY(cudaMemcpyAsync(c->host_sums, c->sums, BLOCKS * sizeof(double), cudaMemcpyDeviceToHost,
                             c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    *out = 0;
    for (int i = 0; i < BLOCKS; i++) *out += c->host_sums[i];
    return SP_OK;
}

OP sp_cuda_sum(sp_tensor x, double *out) {
    return sum_of<false>(x, out);
}
OP sp_cuda_sum_squares(sp_tensor x, double *out) {
    return sum_of<true>(x, out);
}

__global__ void scale_kernel(float *x, int64_t ld, int64_t rows, int64_t cols, float factor) {
    int64_t n = rows * cols;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i / cols * ld + i % cols] *= factor;
}

OP sp_cuda_scale(sp_tensor x, float factor) {
    sp_cuda *c = sp_cuda_of(x);
    scale_kernel<<<132 * 8, 256, 0, c->stream>>>((float *)x.data, x.ld, x.rows, x.cols, factor);
    LAUNCHED("scale", "[%lld, %lld]", (long long)x.rows, (long long)x.cols);
    return SP_OK;
}
