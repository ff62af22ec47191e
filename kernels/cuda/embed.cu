// Embedding rows times a factor, rounded once (training.md 1.4). Ids are checked by the callers'
// data layer; an id outside the table is reported here too, instead of reading beyond it.
#include "kernels/cuda/cuda.cuh"

__global__ void embed_kernel(const int32_t *tokens, int64_t tokens_ld, const bf16 *table,
                             int64_t table_ld, int64_t vocab, float scale, bf16 *out,
                             int64_t out_ld, int64_t cols, int *bad) {
    int64_t t = blockIdx.x;
    int32_t id = tokens[t * tokens_ld];
    bool valid = id >= 0 && id < vocab;
    if (!valid && threadIdx.x == 0) atomicMax(bad, (int)(t < INT32_MAX ? t + 1 : INT32_MAX));
    const bf16 *row = table + (valid ? id : 0) * table_ld;
    for (int64_t x = threadIdx.x; x < cols; x += blockDim.x)
        out[t * out_ld + x] = __float2bfloat16(scale * __bfloat162float(row[x]));
}

OP sp_cuda_embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(out);
    CUDA_TRY(cudaMemsetAsync(c->flag, 0, sizeof(int), c->stream));
    embed_kernel<<<(unsigned)out.rows, 256, 0, c->stream>>>(
        (const int32_t *)tokens.data, tokens.ld, (const bf16 *)table.data, table.ld, table.rows,
        scale, (bf16 *)out.data, out.ld, out.cols, c->flag);
    LAUNCHED("embed", "[%lld, %lld]", (long long)out.rows, (long long)out.cols);
    int bad = 0;
    CUDA_TRY(cudaMemcpyAsync(&bad, c->flag, sizeof bad, cudaMemcpyDeviceToHost, c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    if (bad)
        return sp_error(SP_BAD_INPUT, "the token at position %d is outside the vocabulary of %lld",
                        bad - 1, (long long)table.rows);
    return SP_OK;
}
