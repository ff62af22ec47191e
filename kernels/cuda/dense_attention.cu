// Causal attention over all keys: cuDNN's where it has a fused kernel and there is enough to do,
// else the kernels of block-sparse attention with every block listed.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/dense_attention_cudnn.cuh"

// Pairs of row and key from which on cuDNN is asked: 11,586 tokens, or a chunk of 16,384 rows from
// 8192 keys on. Compiling its kernel takes 0.6 s, and a call of this size saves 0.25 ms.
static const int64_t cudnn_pairs = (int64_t)1 << 27;

sp_status sp_cuda_attention_supported(sp_heads heads) {
    int64_t group = heads.q_heads / heads.kv_heads, d = heads.head_dim;
    if (group <= attention::MAX_GROUP && d <= attention::MAX_DIM) return SP_OK;
    return sp_error(
        SP_ENVIRONMENT,
        "attention on CUDA: %lld query heads per KV head of size %lld; at most %d and %d "
        "are supported; backend 'cpu' takes any",
        (long long)group, (long long)d, attention::MAX_GROUP, attention::MAX_DIM);
}

OP sp_cuda_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                           sp_tensor bias, sp_tensor out) {
    sp_cuda *c = sp_cuda_of(q);
    const char *by = NULL, *why_not = "";
    if (!bias.data && !c->portable && q.rows * (q0 + q.rows) >= cudnn_pairs)
        SP_TRY(sp_cudnn_attention(c, heads, q, q0, k, v, out, &by, &why_not));
    if (by) {
        c->base.dense_library = by;
        return SP_OK;
    }
    c->base.dense_own = why_not;
    return sp_cuda_attend_all(heads, q, q0, k, v, bias, out);
}
