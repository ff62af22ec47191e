// Scores of blocks from window rows (training.md 5.1), for the kernels that score and select.
#pragma once

#include "kernels/cuda/cuda.cuh"

struct BlockRule {
    int64_t per_block; // windows per block
    int64_t block, init, local, topk;
    bool mask_future;
};

static inline BlockRule block_rule(const sp_selection *s, sp_grid deployed) {
    return {s->block / deployed.stride,
            s->block,
            s->init_blocks,
            s->local_blocks,
            s->topk,
            s->mask_future};
}

// `a` is one row of n_d windows of the query whose block is qb.
__device__ __forceinline__ float block_score(const BlockRule &s, const float *a, int64_t n_d,
                                             int64_t b, int64_t qb) {
    if (b < s.init || (b <= qb && qb <= b + s.local)) return INFINITY;
    if (s.mask_future && b > qb) return -INFINITY;
    int64_t from = s.per_block * b - 1, to = s.per_block * (b + 1);
    if (from < 0) from = 0;
    if (to > n_d) to = n_d;
    float best = -INFINITY;
    for (int64_t j = from; j < to; j++) best = fmaxf(best, a[j]);
    return best;
}
