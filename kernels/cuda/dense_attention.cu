// Causal attention over all keys: cuDNN's, if the machine has it and it fits the shape, else the
// kernels of block-sparse attention with every block listed.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/dense_attention_cudnn.cuh"

// Below that a plan of cuDNN's takes longer to make than our kernel to run.
enum { CUDNN_ROWS = 512, CUDNN_KEYS = 2048 };

sp_status sp_cuda_attention_supported(sp_heads heads) {
    int64_t group = heads.q_heads / heads.kv_heads, d = heads.head_dim;
    if (group <= attention::MAX_GROUP && d <= attention::MAX_DIM) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "attention on CUDA: %lld query heads per KV head of size %lld; at most %d and %d "
                    "are supported; backend 'cpu' takes any",
                    (long long)group, (long long)d, attention::MAX_GROUP, attention::MAX_DIM);
}

OP sp_cuda_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                           sp_tensor bias, sp_tensor out) {
    bool done = false;
    if (!bias.data && q.rows >= CUDNN_ROWS && q0 + q.rows >= CUDNN_KEYS)
        SP_TRY(sp_cudnn_attention(sp_cuda_of(q), heads, q, q0, k, v, out, &done));
    return done ? SP_OK : sp_cuda_attend_all(heads, q, q0, k, v, bias, out);
}
