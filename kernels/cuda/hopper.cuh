// Thin names for the Hopper instructions the hot kernels use: barriers in shared memory, the bulk
// tensor copy engine (TMA), warpgroup matrix products (wgmma) with their shared-memory descriptors.
// Needs sm_90a. PTX ISA 8.x sections "mbarrier", "cp.async.bulk.tensor", "wgmma.mma_async".
#pragma once

#include "kernels/cuda/tensor_core.cuh"

#include <cuda.h>

// Bodies of the Hopper kernels are left out of code for other cards, where they are never launched.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SPARDA_HOPPER_CODE 1
#else
#define SPARDA_HOPPER_CODE 0
#endif

namespace hopper {
using namespace tensor_core;

// ---- mbarrier -----------------------------------------------------------------------------------
// By pointer, or by address in shared memory where a loop is better off without pointers.
__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(b)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect_bytes(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(b)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    barrier_arrive(smem_address(b));
}
__device__ __forceinline__ void barrier_wait(uint32_t b, uint32_t phase) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(b),
                 "r"(phase)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t phase) {
    barrier_wait(smem_address(b), phase);
}

// ---- TMA ----------------------------------------------------------------------------------------
__device__ __forceinline__ void tma_load_2d(void *smem, const CUtensorMap *map, uint64_t *barrier,
                                            int32_t col, int32_t row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4}], [%2];" ::"r"(smem_address(smem)),
        "l"(map), "r"(smem_address(barrier)), "r"(col), "r"(row)
        : "memory");
}
__device__ __forceinline__ void tma_load_3d(void *smem, const CUtensorMap *map, uint64_t *barrier,
                                            int32_t x, int32_t y, int32_t z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(smem)),
        "l"(map), "r"(smem_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}
__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- wgmma --------------------------------------------------------------------------------------
// Descriptor of a K-major operand in rows of 128 bytes (64 bf16), 128-byte swizzle: 8-row groups
// are 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor(uint32_t smem) {
    uint64_t d = (uint64_t)((smem & 0x3ffff) >> 4);
    d |= (uint64_t)1 << 16;           // leading byte offset, unused with a swizzle
    d |= (uint64_t)(1024 >> 4) << 32; // stride byte offset
    d |= (uint64_t)1 << 62;           // 128-byte swizzle
    return d;
}
__device__ __forceinline__ uint64_t descriptor(const void *smem) {
    return descriptor(smem_address(smem));
}
// What to add to a descriptor for an operand this many bytes further.
__host__ __device__ constexpr uint32_t descriptor_step(size_t bytes) {
    return (uint32_t)(bytes >> 4);
}
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Descriptor of an operand whose non-K side is contiguous (MN-major), in boxes of 64 columns x rows
// of 128 bytes with 128-byte swizzle: boxes are `box_bytes` apart, 8-row groups 1024 bytes.
__device__ __forceinline__ uint64_t descriptor_mn(uint32_t smem, uint32_t box_bytes) {
    uint64_t d = (uint64_t)((smem & 0x3ffff) >> 4);
    d |= (uint64_t)(box_bytes >> 4) << 16;
    d |= (uint64_t)(1024 >> 4) << 32;
    d |= (uint64_t)1 << 62;
    return d;
}

// Accumulators of a warpgroup product as operands: 32, 48 or 64 registers a thread, the first names
// of the instruction.
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                       \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_48                                                                                   \
    NAMES_32 ","                                                                                   \
             "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64                                                                                   \
    NAMES_48 ","                                                                                   \
             "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define REGISTERS_16(c, i)                                                                         \
    REGISTERS_4(c, i), REGISTERS_4(c, i + 4), REGISTERS_4(c, i + 8), REGISTERS_4(c, i + 12)
#define REGISTERS_32(c) REGISTERS_16(c, 0), REGISTERS_16(c, 16)
#define REGISTERS_48(c) REGISTERS_32(c), REGISTERS_16(c, 32)
#define REGISTERS_64(c) REGISTERS_48(c), REGISTERS_16(c, 48)

// c[64 x N] (+)= A[64 x 16] B[N x 16]^T, both K-major in shared memory; N = 128, 96, 64.
__device__ __forceinline__ void wgmma_ss(float (&c)[64], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, "
                 "%64, %65, p, 1, 1, 0, 0;\n}\n"
                 : REGISTERS_64(c)
                 : "l"(a), "l"(b), "r"((int)accumulate));
}
__device__ __forceinline__ void wgmma_ss(float (&c)[48], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NAMES_48 "}, "
                 "%48, %49, p, 1, 1, 0, 0;\n}\n"
                 : REGISTERS_48(c)
                 : "l"(a), "l"(b), "r"((int)accumulate));
}
__device__ __forceinline__ void wgmma_ss(float (&c)[32], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, "
                 "%32, %33, p, 1, 1, 0, 0;\n}\n"
                 : REGISTERS_32(c)
                 : "l"(a), "l"(b), "r"((int)accumulate));
}

// c[64 x N] += A[64 x 16] B[16 x N]: A in registers, B with its N columns contiguous; N = 128,
// and 64.
__device__ __forceinline__ void wgmma_rs_mn(float (&c)[64], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, "
                 "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : REGISTERS_64(c)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
__device__ __forceinline__ void wgmma_rs_mn(float (&c)[32], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, "
                 "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : REGISTERS_32(c)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
#undef NAMES_32
#undef NAMES_48
#undef NAMES_64
#undef REGISTERS_4
#undef REGISTERS_16
#undef REGISTERS_32
#undef REGISTERS_48
#undef REGISTERS_64

template <int N> __device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Known to be the same for a whole warp, so that what is made from it needs no vector registers.
__device__ __forceinline__ uint32_t uniform(uint32_t x) {
    return __shfl_sync(~0u, x, 0);
}
__device__ __forceinline__ int warpgroup() {
    return (int)uniform(threadIdx.x / 128);
}

// A ring of stages in shared memory as one of its readers sees it: no pointers and no divisions,
// which a loop over products would pay for once a product.
template <int STAGES> struct Ring {
    uint32_t full, empty; // addresses of the barriers
    uint32_t stage = 0, phase = 0;
    __device__ __forceinline__ Ring(const uint64_t *full_barriers, const uint64_t *empty_barriers)
        : full(uniform(smem_address(full_barriers))), empty(uniform(smem_address(empty_barriers))) {
    }
    __device__ __forceinline__ void await() const { barrier_wait(full + 8 * stage, phase); }
    __device__ __forceinline__ void release(uint32_t of) const { barrier_arrive(empty + 8 * of); }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

} // namespace hopper
