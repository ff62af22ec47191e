// What the kernels with matrix instructions of either generation use (hopper.cuh, ampere.cuh).
//
// Accumulators of a warp are laid out alike in wgmma and mma.sync: c[i] of a lane is row lane/4 +
// 8*((i/2)%2) of the warp's 16, column 8*(i/4) + 2*(lane%4) + i%2.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>
#include <stdint.h>

namespace tensor_core {

__device__ __forceinline__ uint32_t smem_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
// Keeps the compiler from moving reads of c above, or writes of it below, this place.
template <int N> __device__ __forceinline__ void pin(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Sums of exponentials are kept over 2^base, where the base is a logit seen before and not always
// the largest: floats and bf16 have room for values far above 1, and so most tiles need no maximum.
// It moves when a tile's sum reaches HIGHEST_SUM; it is -infinity before the first logit.
constexpr float HIGHEST_SUM = 0x1p32f;
__device__ __forceinline__ float finite_base(float base) {
    return base == -CUDART_INF_F ? 0.f : base;
}

} // namespace tensor_core
