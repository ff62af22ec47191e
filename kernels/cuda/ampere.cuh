// Thin names for the instructions of the portable kernels: asynchronous copies into shared memory
// (cp.async), loads of matrix fragments (ldmatrix) and warp matrix products (mma.sync).
// Needs sm_80. PTX ISA 8.x sections "cp.async", "ldmatrix", "mma".
//
// A tile in shared memory is rows of D bf16; the 16-byte chunks of a row are permuted by XOR with
// the row's low three bits, so that the eight rows of a fragment lie in different banks.
#pragma once

#include "kernels/cuda/tensor_core.cuh"

namespace ampere {
using namespace tensor_core;

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// 16 bytes; zeros if not `valid`.
__device__ __forceinline__ void copy_16(void *smem, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(smem)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

template <int D>
__device__ __forceinline__ __nv_bfloat16 *chunk_at(__nv_bfloat16 *tile, int row, int chunk) {
    return tile + row * D + (chunk ^ (row & 7)) * 8;
}

// Starts copying rows [row0, row0 + ROWS) of `from` [n][ld], columns [0, D), by THREADS threads;
// rows from n on become zero.
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows(__nv_bfloat16 *tile, const __nv_bfloat16 *from,
                                          int64_t ld, int64_t row0, int64_t n) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8);
        bool valid = row0 + row < n;
        copy_16(chunk_at<D>(tile, row, chunk), from + (valid ? row0 + row : 0) * ld + chunk * 8,
                valid);
    }
}

__device__ __forceinline__ void load_fragments(uint32_t (&r)[4], const __nv_bfloat16 *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address(at)));
}
__device__ __forceinline__ void load_fragments_transposed(uint32_t (&r)[4],
                                                          const __nv_bfloat16 *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address(at)));
}

// c[16 x 8] += A[16 x 16] B[16 x 8].
__device__ __forceinline__ void mma(float *c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The warp's 16 rows of a tile, columns [16*step, 16*step + 16), as the left operand.
template <int D>
__device__ __forceinline__ void left_fragment(uint32_t (&a)[4], __nv_bfloat16 *tile, int row0,
                                              int step) {
    int lane = threadIdx.x % 32;
    load_fragments(a, chunk_at<D>(tile, row0 + lane % 16, 2 * step + lane / 16));
}

// s[16 x KEYS] += rows (left operand, D/16 fragments) . keys tile[KEYS x D]^T; s has KEYS/2
// elements.
template <int D, int KEYS>
__device__ __forceinline__ void times_keys(float *s, const uint32_t (&a)[4], __nv_bfloat16 *keys,
                                           int step) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        uint32_t b[4];
        load_fragments(
            b, chunk_at<D>(keys, 16 * n + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
        mma(s + 8 * n, a, b[0], b[1]);
        mma(s + 8 * n + 4, a, b[2], b[3]);
    }
}

// o[16 x D] += P[16 x 16] . values tile[16 rows from `row`][D]; o has D/2 elements.
template <int D>
__device__ __forceinline__ void times_values(float *o, const uint32_t (&p)[4],
                                             __nv_bfloat16 *values, int row) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        uint32_t b[4];
        load_fragments_transposed(b, chunk_at<D>(values, row + lane % 16, 2 * n + lane / 16));
        mma(o + 8 * n, p, b[0], b[1]);
        mma(o + 8 * n + 4, p, b[2], b[3]);
    }
}

} // namespace ampere
