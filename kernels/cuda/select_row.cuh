// The best k blocks of one row, by one warp with the row's scores in registers (training.md 5.2).
//
// Scores become integers that order alike; the k-th largest is found bit by bit by counting; then
// one pass in index order collects everything above it and as many of its equals, from the left, as
// there is room for. Integer arithmetic only: the list is a function of the scores.
#pragma once

#include "kernels/cuda/selection.cuh"

// Larger floats have larger integers; -0 counts as +0. No score gives 0, which stands for absent.
__device__ __forceinline__ uint32_t ordered(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Of blocks 0 .. blocks-1; lane l holds block 32*i + l in key[i], 0 beyond `blocks`. Blocks beyond
// the query's own, qb, take a place but are not listed; the list ends with -1 up to `topk`.
template <int N>
__device__ __forceinline__ void select_row(const uint32_t (&key)[N], int blocks, int topk, int qb,
                                           int32_t *list) {
    int lane = threadIdx.x & 31, k = min(topk, blocks);
    uint32_t last = 0; // largest value that at least k keys reach
    if (k < blocks) {
#pragma unroll 1
        for (int bit = 31; bit >= 0; bit--) {
            uint32_t want = last | 1u << bit;
            int part[4] = {}; // four chains of additions
#pragma unroll
            for (int i = 0; i < N; i++) part[i % 4] += key[i] >= want;
            int count = __reduce_add_sync(~0u, part[0] + part[1] + (part[2] + part[3]));
            if (count >= k) last = want;
            if (count == k) break; // exactly the k best reach it
        }
    }
    int above[4] = {}, n = 0;
#pragma unroll
    for (int i = 0; i < N; i++) above[i % 4] += key[i] > last;
    int room =
        k - __reduce_add_sync(~0u, above[0] + above[1] + (above[2] + above[3])); // for equals
    unsigned before = (1u << lane) - 1;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int b = 32 * i + lane;
        unsigned equal = __ballot_sync(~0u, key[i] == last);
        bool take = key[i] > last || (key[i] == last && __popc(equal & before) < room);
        room = max(room - __popc(equal), 0);
        unsigned listed = __ballot_sync(~0u, take && b <= qb);
        if (listed >> lane & 1) list[n + __popc(listed & before)] = b;
        n += __popc(listed);
    }
    for (int x = n + lane; x < topk; x += 32) list[x] = -1;
}

// Calls `row` with the smallest of a few sizes that holds `blocks`: causal rows differ in length.
template <int MAX, class Row> __device__ __forceinline__ void with_row_size(int blocks, Row row) {
    if constexpr (MAX > 8) {
        if (blocks <= 32 * (MAX / 2)) return with_row_size<MAX / 2>(blocks, row);
    }
    row.template operator()<MAX>();
}
