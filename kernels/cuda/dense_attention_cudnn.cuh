// Dense causal attention by cuDNN, where the machine has it (dense_attention_cudnn.cu).
#pragma once

#include "kernels/cuda/cuda.cuh"

// *done false: nothing usable was computed; take another kernel.
sp_status sp_cudnn_attention(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                             sp_tensor out, bool *done);
void sp_cudnn_close(sp_cuda *c);
