// Causal attention over all keys: the portable kernel.
#include "kernels/cuda/attention.cuh"

OP sp_cuda_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                           sp_tensor out) {
    return attention::run(sp_cuda_of(q), heads, q, q0, k, v, NULL, 1, out);
}
