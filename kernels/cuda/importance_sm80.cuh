// Teacher importance for any card from compute capability 8.0 on: the two passes of
// importance_sm90.cuh with warp matrix products. Four warps of 16 query rows each; tiles of 128
// windows come by asynchronous copies, one ahead.
#pragma once

#include "kernels/cuda/ampere.cuh"
#include "kernels/cuda/importance.cuh"

namespace importance_sm80 {
using namespace ampere;
using namespace importance;

constexpr int THREADS = 128, ROWS = 64, KEYS = 128;
template <int D> constexpr size_t LSE_SMEM = 2 * D *(ROWS + 2 * KEYS); // bytes
template <int D> constexpr size_t IMPORTANCE_SMEM = 2 * D *(2 * ROWS + KEYS);

struct Operands {
    const __nv_bfloat16 *q, *k; // [R][ld], heads side by side; [n][ld]
    int64_t q_ld, k_ld;
};

template <int D>
__global__ void __launch_bounds__(THREADS) lse_kernel(const Operands x, const Params p) {
    extern __shared__ __align__(16) uint8_t raw[];
    auto *q_tile = (__nv_bfloat16 *)raw, *k_tiles = q_tile + ROWS * D;
    int row0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS; // long rows first
    int head = blockIdx.y, kv = head / (p.q_heads / p.kv_heads);
    int tiles = (visible(p, min(row0 + ROWS, p.rows) - 1) + KEYS - 1) / KEYS;
    const __nv_bfloat16 *keys = x.k + (int64_t)kv * D;
    int warp = threadIdx.x / 32, row = row0 + warp * 16 + threadIdx.x % 32 / 4;
    int vis[2] = {visible(p, row), visible(p, row + 8)};
    int clear = visible(p, row0 + warp * 16) / KEYS; // tiles that every row of this warp sees whole

    copy_rows<D, ROWS, THREADS>(q_tile, x.q + (int64_t)head * D, x.q_ld, row0, p.rows);
    if (tiles) copy_rows<D, KEYS, THREADS>(k_tiles, keys, x.k_ld, 0, p.n);
    copy_commit();
    uint32_t q[D / 16][4];
    RowState r = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles)
            copy_rows<D, KEYS, THREADS>(k_tiles + (t + 1) % 2 * KEYS * D, keys, x.k_ld,
                                        (t + 1) * KEYS, p.n);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (t == 0)
#pragma unroll
            for (int step = 0; step < D / 16; step++)
                left_fragment<D>(q[step], q_tile, warp * 16, step);
        float s[64] = {};
#pragma unroll
        for (int step = 0; step < D / 16; step++)
            times_keys<D, KEYS>(s, q[step], k_tiles + t % 2 * KEYS * D, step);
        if (t < clear)
            accumulate_lse<false>(s, r, p.scale_log2, t * KEYS, vis);
        else
            accumulate_lse<true>(s, r, p.scale_log2, t * KEYS, vis);
        __syncthreads(); // the tile may be overwritten
    }
    store_lse(p, r, head, row);
}

template <int D, int RHO, bool MEAN>
__global__ void __launch_bounds__(THREADS) importance_kernel(const Operands x, const Params p) {
    extern __shared__ __align__(16) uint8_t raw[];
    auto *k_tile = (__nv_bfloat16 *)raw, *q_tiles = k_tile + KEYS * D;
    int kv = blockIdx.z, G = p.q_heads / p.kv_heads;
    int row0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    int all_tiles = (visible(p, min(row0 + ROWS, p.rows) - 1) + KEYS - 1) / KEYS;
    int tile0 = blockIdx.y * p.chunk, tiles = min(p.chunk, all_tiles - tile0);
    if (tiles <= 0) return;
    int warp = threadIdx.x / 32, row = row0 + warp * 16 + threadIdx.x % 32 / 4;
    int vis[2] = {visible(p, row), visible(p, row + 8)};
    const float *lse = p.lse + (int64_t)kv * G * p.lse_ld + row;
    const __nv_bfloat16 *queries = x.q + (int64_t)kv * G * D;

    for (int t = tile0; t < tile0 + tiles; t++) {
        copy_rows<D, KEYS, THREADS>(k_tile, x.k + (int64_t)kv * D, x.k_ld, t * KEYS, p.n);
        copy_rows<D, ROWS, THREADS>(q_tiles, queries, x.q_ld, row0, p.rows);
        copy_commit();
        float P[64] = {};
        for (int a = 0; a < G; a++) {
            if (a + 1 < G)
                copy_rows<D, ROWS, THREADS>(q_tiles + (a + 1) % 2 * ROWS * D, queries + (a + 1) * D,
                                            x.q_ld, row0, p.rows);
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            float s[64] = {};
#pragma unroll
            for (int step = 0; step < D / 16; step++) {
                uint32_t q[4];
                left_fragment<D>(q, q_tiles + a % 2 * ROWS * D, warp * 16, step);
                times_keys<D, KEYS>(s, q, k_tile, step);
            }
            const float l[2] = {lse[(int64_t)a * p.lse_ld], lse[(int64_t)a * p.lse_ld + 8]};
            add_probabilities(P, s, p.scale_log2, l);
            __syncthreads();
        }
        store_pooled<RHO, MEAN, 128>(P, p, row, vis, kv, t * KEYS);
    }
}

} // namespace importance_sm80
