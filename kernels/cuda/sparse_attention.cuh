// What both tensor core kernels of block-sparse attention share (training.md 6.1, 6.2).
//
// Neighbouring queries choose mostly the same blocks, so a thread block takes several of them with
// all G heads of a group and walks the union of their lists: every block of keys and values is
// loaded once for all. The union is made before, by union_kernel: entries {block, mask of queries},
// ascending. Rows whose query did not choose a block are masked: each query attends to exactly its
// own blocks.
//
// A bias of the keys is what the accumulators of q.k start from, so it costs no operation of its
// own; for that it is divided by the scale of the logits before (bias_kernel).
#pragma once

#include "kernels/cuda/tensor_core.cuh"

namespace sparse {
using namespace tensor_core;

struct Entry {
    int32_t block;
    uint32_t queries; // bit n: query n of the group chose the block
};

struct Params {
    int64_t q0; // position of row 0
    int rows, group, kv_heads, per_warpgroup;
    float scale_log2;
    const Entry *entries; // [groups][kv_heads][capacity]; NULL: every block for every query (dense)
    const int *counts;    // [groups][kv_heads]
    int capacity, capacity_own; // of a union, and of the blocks of one warpgroup's queries
    const float *bias;          // [kv_heads][bias_ld], over the scale of the logits; NULL: none
    int64_t bias_ld;            // whole blocks
    __nv_bfloat16 *out;
    int64_t out_ld;
};

// Blocks that a thread block walks, whose last row is `last`; and the u-th of them.
__device__ __forceinline__ int entries_of(const Params &p, int64_t which, int last) {
    if (p.entries) return p.counts[which];
    return (int)((p.q0 + min(last, p.rows - 1)) / 64) + 1;
}
__device__ __forceinline__ Entry entry_at(const Params &p, const Entry *entry, int u) {
    return p.entries ? entry[u] : Entry{u, ~0u};
}

enum { UNION_THREADS = 256 };

__global__ void __launch_bounds__(UNION_THREADS)
    union_kernel(const int32_t *lists, int64_t lists_ld, int k, int rows, int queries, int nb,
                 int capacity, Entry *entries, int *counts) {
    extern __shared__ uint32_t mask[]; // [nb]
    __shared__ int warp_counts[UNION_THREADS / 32];
    int row0 = blockIdx.x * queries, kv = blockIdx.y;
    for (int b = threadIdx.x; b < nb; b += UNION_THREADS) mask[b] = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < queries * k; e += UNION_THREADS) {
        int n = e / k;
        if (row0 + n >= rows) break;
        int b = lists[(int64_t)(row0 + n) * lists_ld + (int64_t)kv * k + e % k];
        if (b >= 0 && b < nb) atomicOr(mask + b, 1u << n);
    }
    __syncthreads();
    Entry *to = entries + ((int64_t)blockIdx.x * gridDim.y + kv) * capacity;
    int n = 0, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int b0 = 0; b0 < nb; b0 += UNION_THREADS) {
        int b = b0 + threadIdx.x;
        uint32_t m = b < nb ? mask[b] : 0;
        unsigned votes = __ballot_sync(~0u, m != 0);
        if (lane == 0) warp_counts[warp] = __popc(votes);
        __syncthreads();
        int at = n + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < UNION_THREADS / 32; w++) {
            if (w < warp) at += warp_counts[w];
            n += warp_counts[w];
        }
        if (m) to[at] = {b, m};
        __syncthreads();
    }
    if (threadIdx.x == 0) counts[blockIdx.x * gridDim.y + kv] = n;
}

// to[h][j] = factor * bias[h][j], 0 beyond the n keys, so that whole blocks can be read.
__global__ void bias_kernel(const float *bias, int64_t ld, int64_t n, float factor, float *to,
                            int64_t to_ld) {
    for (int64_t j = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; j < to_ld;
         j += (int64_t)gridDim.x * blockDim.x)
        to[blockIdx.y * to_ld + j] = j < n ? factor * bias[blockIdx.y * ld + j] : 0;
}

// Accumulators of the keys of a block: 8j + 2(lane % 4) and the next, in both rows of a thread.
__device__ __forceinline__ void start_from_bias(float (&s)[32], const float *bias) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 b = *(const float2 *)(bias + 8 * j + 2 * (threadIdx.x & 3));
        s[4 * j] = s[4 * j + 2] = b.x;
        s[4 * j + 1] = s[4 * j + 3] = b.y;
    }
}

struct Rows { // the two rows of a thread; results too are over 2^base (tensor_core.cuh)
    float base[2], sum[2];
    int position[2];
    uint32_t bit[2]; // of its query in Entry.queries; 0: row unused
};

// The 64 rows of a group of four warps are 64/G queries x G heads. A thread's first or second row:
// which query of the thread block's, and which head; -1 for a row that is not used.
__device__ __forceinline__ int query_of(const Params &p, int row0, int warpgroup, int half,
                                        int *head) {
    int at = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half, query = at / p.group;
    bool used = query < p.per_warpgroup;
    query += warpgroup * p.per_warpgroup;
    *head = at % p.group;
    return used && row0 + query < p.rows ? query : -1;
}

__device__ __forceinline__ Rows rows_of_warp(const Params &p, int row0, int warpgroup) {
    Rows r;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int head, query = query_of(p, row0, warpgroup, half, &head);
        r.bit[half] = query >= 0 ? 1u << query : 0;
        r.position[half] = (int)p.q0 + row0 + query;
        r.base[half] = -CUDART_INF_F;
        r.sum[half] = 0;
    }
    return r;
}

// The queries of a warpgroup as a mask of Entry.queries.
__device__ __forceinline__ uint32_t queries_of(const Params &p, int warpgroup) {
    return (p.per_warpgroup == 32 ? ~0u : (1u << p.per_warpgroup) - 1)
           << (warpgroup * p.per_warpgroup);
}

// Exponentials of a block's logits, packed for the next product, and their sums.
__device__ __forceinline__ void exponentials(const float (&s)[32], const Rows &r, float scale,
                                             uint32_t (&p)[16], float (&sum)[2]) {
    float from[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        from[half] = finite_base(r.base[half]);
        sum[half] = 0;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float x = exp2_fast(fmaf(s[2 * i], scale, -from[i % 2]));
        float y = exp2_fast(fmaf(s[2 * i + 1], scale, -from[i % 2]));
        sum[i % 2] += x + y;
        __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
        p[i] = *reinterpret_cast<uint32_t *>(&both);
    }
}

// Moves the bases of rows that need it to the largest logits seen; shrinks earlier sums and
// results. Others keep theirs: what becomes of a row must not depend on the rows beside it.
template <int N>
__device__ __forceinline__ void move_bases(const float (&s)[32], float scale,
                                           const bool (&needed)[2], Rows &r, float (&o)[N]) {
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int here = needed[half]; // or in one of the other three threads with keys of the row
        here |= __shfl_xor_sync(~0u, here, 1);
        here |= __shfl_xor_sync(~0u, here, 2);
        float top = s[2 * half];
#pragma unroll
        for (int j = 0; j < 8; j++)
            top = fmaxf(top, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = here ? fmaxf(top * scale, r.base[half]) : r.base[half];
        shrink[half] = exp2_fast(r.base[half] - finite_base(top));
        r.base[half] = top;
        r.sum[half] *= shrink[half];
    }
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= shrink[i / 2 % 2];
}

// Logits to probabilities, packed for the next product. A warp has the rows of a few queries, often
// of one: then either no row attends to the block, or all do.
template <int N>
__device__ __forceinline__ void softmax(float (&s)[32], Rows &r, Entry e, float scale,
                                        uint32_t (&p)[16], float (&o)[N]) {
    int key0 = e.block * 64 + 2 * (threadIdx.x & 3), last[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        // a row keeps the keys up to its own position, or none of a block its query did not choose
        last[half] = e.queries & r.bit[half] ? r.position[half] - key0 : -1;
    if (__all_sync(~0u, max(last[0], last[1]) < 0)) {
#pragma unroll
        for (int i = 0; i < 16; i++) p[i] = 0;
        return;
    }
    if (__any_sync(~0u, min(last[0], last[1]) < 57)) {
#pragma unroll
        for (int i = 0; i < 32; i++) // key 8j + x of element 4j + 2 half + x
            s[i] = i / 4 * 8 + i % 2 <= last[i / 2 % 2] ? s[i] : -CUDART_INF_F;
    }
    float sum[2];
    exponentials(s, r, scale, p, sum);
    bool needed[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        needed[half] =
            !(sum[half] < HIGHEST_SUM) || (r.base[half] == -CUDART_INF_F && last[half] >= 0);
    if (__any_sync(~0u, needed[0] || needed[1])) {
        move_bases(s, scale, needed, r, o);
        exponentials(s, r, scale, p, sum);
    }
    r.sum[0] += sum[0];
    r.sum[1] += sum[1];
}

template <int D>
__device__ __forceinline__ void store_rows(const Params &p, const Rows &r, int row0, int warpgroup,
                                           int kv, const float (&o)[D / 2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        float inv = sum > 0 ? 1 / sum : 0;
        int head, query = query_of(p, row0, warpgroup, half, &head);
        if (query < 0) continue;
        __nv_bfloat16 *to = p.out + (int64_t)(row0 + query) * p.out_ld +
                            (int64_t)(kv * p.group + head) * D + 2 * (threadIdx.x & 3);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(__nv_bfloat162 *)(to + 8 * j) =
                __floats2bfloat162_rn(o[4 * j + 2 * half] * inv, o[4 * j + 2 * half + 1] * inv);
    }
}

} // namespace sparse
