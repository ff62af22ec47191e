// Dense causal attention by cuDNN, where the machine has it (dense_attention_cudnn.cu).
#pragma once

#include "kernels/cuda/cuda.cuh"

// "cuDNN 9.19.0", or why there is none for us.
const char *sp_cudnn_name(void);
// *by names what computed `out`. NULL: nothing did, for the reason *why_not; take another kernel.
// Both texts are the backend's, valid until its next call. An error says that the device is lost.
sp_status sp_cudnn_attention(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k,
                             sp_tensor v, sp_tensor out, const char **by, const char **why_not);
void sp_cudnn_close(sp_cuda *c);
