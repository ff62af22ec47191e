// InfiniGen's proxy (inference.md 4): keys and the next layer's queries on 32 channels of a skewed
// basis. Products in fp32, rounded once.
#include "kernels/cuda/decode.cuh"

using namespace decode;

enum { CHANNELS = 32 };

// One warp a (sequence, head); a lane a channel.
__global__ void __launch_bounds__(32)
    project_queries_kernel(Shape s, Layer l, const bf16 *q, int64_t q_ld, bf16 *out,
                           int64_t out_ld) {
    int p = blockIdx.x, b = p / s.kv_heads, h = p % s.kv_heads, c = threadIdx.x;
    const bf16 *row = q + b * q_ld + (int64_t)h * s.group * s.d;
    const float *m = l.projection + (int64_t)p * s.d * CHANNELS + c;
    float y = 0;
    for (int x = 0; x < s.d; x++) {
        float sum = 0;
        for (int g = 0; g < s.group; g++) sum += __bfloat162float(row[g * s.d + x]);
        y += sum * m[x * CHANNELS];
    }
    out[b * out_ld + h * CHANNELS + c] = __float2bfloat16(y);
}

OP sp_decode_project_queries(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor projected) {
    CUDA_TRY(share_most(project_queries_kernel));
    project_queries_kernel<<<(unsigned)d->shape.pairs(), CHANNELS, 0, d->c->stream>>>(
        d->shape, layer_of(d, layer), (const bf16 *)q.data, q.ld, (bf16 *)projected.data,
        projected.ld);
    LAUNCHED("project queries", "layer %lld", (long long)layer);
    return SP_OK;
}

__global__ void project_keys_kernel(Shape s, Layer l, int b, int64_t pos0, const bf16 *k,
                                    int64_t k_ld) {
    int64_t row = blockIdx.x;
    int h = threadIdx.x / CHANNELS, c = threadIdx.x % CHANNELS;
    project_key(s, l, b, h, c, pos0 + row, k + row * k_ld + h * s.d);
}

sp_status decode::project_keys(sp_decode *d, int64_t layer, int64_t b, int64_t pos0, sp_tensor k) {
    project_keys_kernel<<<(unsigned)k.rows, (unsigned)(d->shape.kv_heads * CHANNELS), 0,
                          d->c->stream>>>(d->shape, layer_of(d, layer), (int)b, pos0,
                                          (const bf16 *)k.data, k.ld);
    LAUNCHED("project keys", "%lld rows", (long long)k.rows);
    return SP_OK;
}

OP sp_decode_set_projection(sp_decode *d, int64_t layer, int64_t b, const float *projection) {
    const Layer &l = layer_of(d, layer);
    const int64_t n = (int64_t)d->shape.kv_heads * d->shape.d * CHANNELS;
    if (!l.projection)
        return sp_error(SP_ENVIRONMENT, "this decode engine was opened without partial keys");
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    CUDA_TRY(cudaMemcpy(l.projection + b * n, projection, (size_t)n * sizeof *projection,
                        cudaMemcpyHostToDevice));
    return SP_OK;
}
