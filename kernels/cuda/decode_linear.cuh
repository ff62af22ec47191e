// Linear layers for a few rows of x (decode_linear.cu).
#pragma once

#include "kernels/cuda/cuda.cuh"

namespace decode {

enum Epilogue {
    PLAIN,     // bf16
    PLAIN_F32, // times `factor`
    RESIDUAL,  // out += factor * result
    SWIGLU,    // w0 is gate | up, out = silu(gate) * up
};

bool streams(sp_tensor x, sp_tensor w0, sp_tensor w1, Epilogue e);
sp_status linear(sp_cuda *c, sp_tensor x, sp_tensor w0, sp_tensor w1, Epilogue e, float factor,
                 sp_tensor out);

} // namespace decode
