// What both teacher kernels share (training.md 4.1, 4.3): log2-sum-exp of the rows, probabilities,
// and pooling onto the deployed grid, on the accumulators of a tensor core product.
#pragma once

#include "kernels/cuda/tensor_core.cuh"

namespace importance {
using namespace tensor_core;

// Legend: R rows of the query tile, n teacher windows, d head size, G group size.
struct Params {
    int i0;             // absolute position of row 0
    int rows;           // R
    int n;              // windows of the fine grid
    int stride, extent; // window j is visible from position i iff stride*j + extent <= i
    int q_heads, kv_heads;
    float scale_log2; // log2(e) / sqrt(d)
    float *lse;       // [Hq][lse_ld], log2 units; rows beyond R are written too
    int lse_ld;       // whole tiles of rows of either pass
    float *out;       // [R][kv_heads * n_d], zeroed before pass 2
    int64_t out_ld;
    int n_d;   // cells of a row of `out`
    int cells; // those that the alignment gives a value (4.3), the first; the others stay 0
    int chunk; // pass 2: key tiles per thread block
};

__device__ __forceinline__ int visible(const Params &p, int row) {
    int i = p.i0 + row - p.extent;
    return i < 0 ? 0 : min((int)((uint32_t)i / (uint32_t)p.stride) + 1, p.n);
}

// Of one thread's own columns of two rows (tensor_core.cuh); lanes are merged at the end.
struct RowState {
    float base[2], sum[2];
};

// Of the logits in elements 4j + 2 half and the next.
__device__ __forceinline__ float sum_of_row(const float (&s)[64], int half, float scale,
                                            float base) {
    float from = finite_base(base), sum[2] = {};
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            sum[e] += exp2_fast(fmaf(s[4 * j + 2 * half + e], scale, -from));
    return sum[0] + sum[1];
}

// Moves the base to the largest logit seen where that is needed. Others keep theirs: what becomes
// of a row must not depend on the rows beside it.
__device__ __forceinline__ void move_base(const float (&s)[64], int half, float scale, bool needed,
                                          RowState &r) {
    float top = s[2 * half];
#pragma unroll
    for (int j = 0; j < 16; j++)
        top = fmaxf(top, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    top = needed ? fmaxf(top * scale, r.base[half]) : r.base[half];
    r.sum[half] *= exp2_fast(r.base[half] - finite_base(top));
    r.base[half] = top;
}

template <bool MASK>
__device__ __forceinline__ void accumulate_lse(float (&s)[64], RowState &r, float scale, int col0,
                                               const int (&vis)[2]) {
    if (MASK) {
        int t = 2 * (threadIdx.x & 3);
#pragma unroll
        for (int i = 0; i < 64; i++) // column 8j + t + e of element 4j + 2 half + e
            s[i] = col0 + i / 4 * 8 + t + i % 2 < vis[i / 2 % 2] ? s[i] : -CUDART_INF_F;
    }
    float sum[2];
    bool needed[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = sum_of_row(s, half, scale, r.base[half]);
        needed[half] = !(sum[half] < HIGHEST_SUM) || r.base[half] == -CUDART_INF_F;
    }
    if (__any_sync(~0u, needed[0] || needed[1])) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            move_base(s, half, scale, needed[half], r);
            sum[half] = sum_of_row(s, half, scale, r.base[half]);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) r.sum[half] += sum[half];
    pin(r.sum); // all of s is consumed before the next product may write it
}

__device__ __forceinline__ void store_lse(const Params &p, RowState r, int head, int row) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int mask = 1; mask <= 2; mask *= 2) {
            float m = __shfl_xor_sync(~0u, r.base[half], mask);
            float s = __shfl_xor_sync(~0u, r.sum[half], mask);
            float top = fmaxf(r.base[half], m), base = finite_base(top);
            r.sum[half] = r.sum[half] * exp2_fast(r.base[half] - base) + s * exp2_fast(m - base);
            r.base[half] = top;
        }
        int at = row + 8 * half;
        if ((threadIdx.x & 3) == 0) // a row that sees nothing: p = exp2(z - inf) = 0
            p.lse[(int64_t)head * p.lse_ld + at] =
                r.sum[half] > 0 ? r.base[half] + log2f(r.sum[half]) : CUDART_INF_F;
    }
}

template <bool MEAN> __device__ __forceinline__ float join(float a, float b) {
    return MEAN ? a + b : fmaxf(a, b);
}
// Both partial results of a cell that two blocks share; order does not matter for two terms on 0.
template <bool MEAN> __device__ __forceinline__ void join_global(float *at, float v) {
    if (MEAN)
        atomicAdd(at, v);
    else
        atomicMax((int *)at, __float_as_int(v)); // v >= 0
}

// Pools one row's N columns of group sums (2 per 8-column group in this thread) over windows of
// RHO+1 columns starting one before a multiple of RHO, and writes the cells (training.md 4.3).
template <int RHO, bool MEAN, int N>
__device__ __forceinline__ void pool_row(const float (&P)[N / 2], int half, float *out, int key0,
                                         int cells, bool write) {
    int lane = threadIdx.x & 3;
    float factor = MEAN ? 1.f / (RHO + 1) : 1.f;
    if (RHO == 1) {
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int a = key0 + 8 * j + 2 * lane + e;
                if (write && a < cells) out[a] = P[4 * j + 2 * half + e];
            }
        return;
    }
    constexpr int GROUPS = RHO > 8 ? RHO / 8 : 1;               // 8-column groups per cell
    constexpr int LANES = RHO >= 8 ? 4 : RHO > 1 ? RHO / 2 : 1; // lanes per cell
    constexpr int PREV_EVERY = GROUPS;
#pragma unroll
    for (int g = 0; g < N / 8 / GROUPS; g++) {
        float v = join<MEAN>(P[4 * g * GROUPS + 2 * half], P[4 * g * GROUPS + 2 * half + 1]);
#pragma unroll
        for (int k = 1; k < GROUPS; k++)
            v = join<MEAN>(v, join<MEAN>(P[4 * (g * GROUPS + k) + 2 * half],
                                         P[4 * (g * GROUPS + k) + 2 * half + 1]));
#pragma unroll
        for (int mask = 1; mask < LANES; mask *= 2)
            v = join<MEAN>(v, __shfl_xor_sync(~0u, v, mask));
        // the column before this cell: from the lane to the left, or the group before
        int j = g * PREV_EVERY;
        float mine = lane == 3 ? (j > 0 ? P[4 * (j - 1 >= 0 ? j - 1 : 0) + 2 * half + 1] : 0.f)
                               : P[4 * j + 2 * half + 1];
        float prev = __shfl_sync(~0u, mine, ((threadIdx.x & 31) & ~3) | ((lane + 3) & 3));
        bool first = lane % LANES == 0;
        int a = (key0 + 8 * j + 2 * lane) / RHO;
        if (first && write && a < cells) {
            if (g == 0 && lane == 0)
                join_global<MEAN>(out + a, v * factor);
            else
                out[a] = join<MEAN>(v, prev) * factor;
        }
    }
    int a = (key0 + N) / RHO; // our last column belongs to the next tile's first cell too
    if (lane == 3 && write && a < cells)
        join_global<MEAN>(out + a, P[N / 2 - 3 + 2 * half] * factor);
}

// P += exp2(s * scale - lse) of the two rows of a thread.
template <int N>
__device__ __forceinline__ void add_probabilities(float (&P)[N], const float (&s)[N], float scale,
                                                  const float (&lse)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) P[i] += exp2_fast(fmaf(s[i], scale, -lse[i / 2 % 2]));
}

// The end of a tile: P[16 x N] from window key0 on, of the rows `row` and `row` + 8 of KV head
// kv.
template <int RHO, bool MEAN, int N>
__device__ __forceinline__ void store_pooled(float (&P)[N / 2], const Params &p, int row,
                                             const int (&vis)[2], int kv, int key0) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (key0 + N > vis[half]) {
            int c = 2 * (threadIdx.x & 3);
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (key0 + 8 * j + c + e >= vis[half]) P[4 * j + 2 * half + e] = 0;
        }
        bool exists = row + 8 * half < p.rows;
        float *out =
            p.out + (int64_t)(exists ? row + 8 * half : 0) * p.out_ld + (int64_t)kv * p.n_d;
        pool_row<RHO, MEAN, N>(P, half, out, key0, p.cells, exists);
    }
}

} // namespace importance
