// Causal attention over all keys: the kernels of block-sparse attention with every block listed.
#include "kernels/cuda/attention.cuh"

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
    return sp_cuda_attend_all(heads, q, q0, k, v, bias, out);
}
