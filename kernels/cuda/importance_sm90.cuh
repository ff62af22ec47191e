// Teacher importance on Hopper (training.md 4.1, 4.3) in two passes over Q K^T, nothing stored:
//
//   pass 1, lse_kernel:        log2-sum-exp of every (query head, row)
//   pass 2, importance_kernel: p = exp2(z - lse), summed over the G heads of a group in registers,
//                              then pooled over runs of RHO+1 windows onto the deployed grid
//
// Both are warp-specialised: one producer warp feeds shared memory through TMA, two consumer
// warpgroups alternate wgmma with exponentials, each with two accumulators so that the tensor cores
// work on one while the other is exponentiated.
//
// Legend: R rows of the query tile, n teacher windows, d head size (64 or 128), G group size.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/importance.cuh"

namespace importance_sm90 {
using namespace hopper;
using namespace importance;

constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (CONSUMERS + 1);

template <int D> struct Lse {
    static constexpr int BOXES = D / 64;
    static constexpr int TILES = 2 * CONSUMERS; // 64-row query tiles per block
    static constexpr int ROWS = 64 * TILES;
    static constexpr int KEYS = 128, STAGES = 4;
    static constexpr int Q_TILE = BOXES * 64 * 64;   // elements
    static constexpr int K_TILE = BOXES * KEYS * 64; // elements
    static constexpr size_t SMEM =
        1024 + sizeof(__nv_bfloat16) * (TILES * Q_TILE + STAGES * K_TILE) + 256;
};

// S = Q tile . K tile^T over the whole head size.
template <int D>
__device__ __forceinline__ void multiply(float (&s)[64], const __nv_bfloat16 *q, int q_box,
                                         const __nv_bfloat16 *k, int k_box) {
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < D / 64; box++) {
        uint64_t a = descriptor(q + box * q_box), b = descriptor(k + box * k_box);
#pragma unroll
        for (int step = 0; step < 4; step++) // 16 elements = 32 bytes further each
            wgmma_ss(s, a + 2 * step, b + 2 * step, box + step > 0);
    }
    wgmma_commit();
}

// One key tile: the product of the second query tile runs while the first is exponentiated, and the
// next key tile's first product while the second is. Straight-line on purpose.
template <int D, bool MASK, bool MORE, class Tile, class Await, class Release>
__device__ __forceinline__ void
lse_step(float (&sa)[64], float (&sb)[64], RowState &a, RowState &b, const __nv_bfloat16 *qa,
         const __nv_bfloat16 *qb, float scale, int it, const int (&vis_a)[2], const int (&vis_b)[2],
         Tile key_tile, Await await, Release release) {
    constexpr int KEYS = Lse<D>::KEYS;
    multiply<D>(sb, qb, 64 * 64, key_tile(it), KEYS * 64);
    wgmma_wait<1>();
    pin(sa);
    accumulate_lse<MASK>(sa, a, scale, it * KEYS, vis_a);
    if (MORE) {
        await(it + 1);
        multiply<D>(sa, qa, 64 * 64, key_tile(it + 1), KEYS * 64);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    pin(sb);
    release(it);
    accumulate_lse<MASK>(sb, b, scale, it * KEYS, vis_b);
}

template <int D, bool MASK, class Tile, class Await, class Release>
__device__ __forceinline__ void
lse_run(float (&sa)[64], float (&sb)[64], RowState &a, RowState &b, const __nv_bfloat16 *qa,
        const __nv_bfloat16 *qb, float scale, int begin, int end, const int (&vis_a)[2],
        const int (&vis_b)[2], Tile key_tile, Await await, Release release, bool odd) {
    if (begin >= end) return;
    await(begin);
    multiply<D>(sa, qa, 64 * 64, key_tile(begin), Lse<D>::KEYS * 64);
    for (int it = begin; it < end - 1; it++)
        lse_step<D, MASK, true>(sa, sb, a, b, qa, qb, scale, it, vis_a, vis_b, key_tile, await,
                                release);
    // ptxas 13.0 serialises every product (C7514) unless the loop may end in two ways; `odd` is
    // never true: a block always has both query tiles.
    if (!odd) {
        lse_step<D, MASK, false>(sa, sb, a, b, qa, qb, scale, end - 1, vis_a, vis_b, key_tile,
                                 await, release);
    } else {
        wgmma_wait<0>();
        pin(sa);
        accumulate_lse<MASK>(sa, a, scale, (end - 1) * Lse<D>::KEYS, vis_a);
    }
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    lse_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap c_map,
               const Params p) {
#if SPARDA_HOPPER_CODE
    using L = Lse<D>;
    extern __shared__ uint8_t raw[];
    auto *q_smem = (__nv_bfloat16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *k_smem = q_smem + L::TILES * L::Q_TILE;
    auto *q_full = (uint64_t *)(k_smem + L::STAGES * L::K_TILE);
    uint64_t *full = q_full + 1, *empty = full + L::STAGES;

    int row0 = (int)(gridDim.x - 1 - blockIdx.x) * L::ROWS; // long rows first
    int head = blockIdx.y, kv = head / (p.q_heads / p.kv_heads);
    int last = min(row0 + L::ROWS, p.rows) - 1;
    int tiles = (visible(p, last) + L::KEYS - 1) / L::KEYS;
    int group = threadIdx.x / 128;

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (group == CONSUMERS) {
        registers_fewer<40>();
        if (threadIdx.x == CONSUMERS * 128) {
            barrier_expect_bytes(q_full, L::TILES * L::Q_TILE * 2);
            for (int t = 0; t < L::TILES; t++)
                for (int b = 0; b < L::BOXES; b++)
                    tma_load_2d(q_smem + t * L::Q_TILE + b * 64 * 64, &q_map, q_full,
                                head * D + 64 * b, row0 + 64 * t);
            for (int it = 0; it < tiles; it++) {
                int s = it % L::STAGES;
                if (it >= L::STAGES) barrier_wait(empty + s, (it / L::STAGES - 1) & 1);
                barrier_expect_bytes(full + s, L::K_TILE * 2);
                for (int b = 0; b < L::BOXES; b++)
                    tma_load_2d(k_smem + s * L::K_TILE + b * L::KEYS * 64, &c_map, full + s,
                                kv * D + 64 * b, it * L::KEYS);
            }
        }
    } else {
        registers_more<232>();
        int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        int row_a = row0 + group * 128 + warp * 16 + lane / 4, row_b = row_a + 64;
        int vis_a[2] = {visible(p, row_a), visible(p, row_a + 8)};
        int vis_b[2] = {visible(p, row_b), visible(p, row_b + 8)};
        const __nv_bfloat16 *qa = q_smem + 2 * group * L::Q_TILE, *qb = qa + L::Q_TILE;
        RowState a = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}}, b = a;
        float sa[64], sb[64];
        // tiles that every row of this warpgroup sees whole need no mask
        int clear = min(tiles - 1, visible(p, row0 + group * 128) / L::KEYS);
        barrier_wait(q_full, 0);
        auto key_tile = [&](int i) { return k_smem + i % L::STAGES * L::K_TILE; };
        auto await = [&](int i) { barrier_wait(full + i % L::STAGES, (i / L::STAGES) & 1); };
        auto release = [&](int i) {
            if (threadIdx.x % 128 == 0) barrier_arrive(empty + i % L::STAGES);
        };
        // The products are drained between the two runs: a loop entered with one in flight would
        // make the compiler serialise them all.
        lse_run<D, false>(sa, sb, a, b, qa, qb, p.scale_log2, 0, clear, vis_a, vis_b, key_tile,
                          await, release, p.rows < 0);
        lse_run<D, true>(sa, sb, a, b, qa, qb, p.scale_log2, clear, tiles, vis_a, vis_b, key_tile,
                         await, release, p.rows < 0);
        store_lse(p, a, head, row_a);
        store_lse(p, b, head, row_b);
    }
#endif
}

// ---- pass 2 -------------------------------------------------------------------------------------

template <int D> struct Imp {
    static constexpr int BOXES = D / 64;
    static constexpr int ROWS = 64, KEYS = 128 * CONSUMERS, STAGES = 5;
    static constexpr int Q_TILE = BOXES * 64 * 64;
    static constexpr int K_PART = BOXES * 128 * 64; // one warpgroup's keys
    static constexpr int K_TILE = CONSUMERS * K_PART;
    static constexpr size_t SMEM =
        1024 + sizeof(__nv_bfloat16) * (STAGES * Q_TILE + 2 * K_TILE) + 256;
};

template <int D, int RHO, bool MEAN>
__global__ void __launch_bounds__(THREADS, 1)
    importance_kernel(const __grid_constant__ CUtensorMap q_map,
                      const __grid_constant__ CUtensorMap c_map, const Params p) {
#if SPARDA_HOPPER_CODE
    using L = Imp<D>;
    extern __shared__ uint8_t raw[];
    auto *k_smem = (__nv_bfloat16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *q_smem = k_smem + 2 * L::K_TILE;
    auto *q_full = (uint64_t *)(q_smem + L::STAGES * L::Q_TILE);
    uint64_t *q_empty = q_full + L::STAGES, *k_full = q_empty + L::STAGES, *k_empty = k_full + 2;

    int kv = blockIdx.z, G = p.q_heads / p.kv_heads;
    int row0 = (int)(gridDim.x - 1 - blockIdx.x) * L::ROWS;
    int last = min(row0 + L::ROWS, p.rows) - 1;
    int all_tiles = (visible(p, last) + L::KEYS - 1) / L::KEYS;
    int tile0 = blockIdx.y * p.chunk, tiles = min(p.chunk, all_tiles - tile0);
    if (tiles <= 0) return;
    int group = threadIdx.x / 128;

    if (threadIdx.x == 0) {
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(q_full + s, 1);
            barrier_init(q_empty + s, CONSUMERS);
        }
        for (int s = 0; s < 2; s++) {
            barrier_init(k_full + s, 1);
            barrier_init(k_empty + s, CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (group == CONSUMERS) {
        registers_fewer<24>();
        if (threadIdx.x == CONSUMERS * 128) {
            int step = 0;
            for (int t = 0; t < tiles; t++) {
                int kb = t & 1;
                if (t >= 2) barrier_wait(k_empty + kb, (t / 2 - 1) & 1);
                barrier_expect_bytes(k_full + kb, L::K_TILE * 2);
                for (int w = 0; w < CONSUMERS; w++)
                    for (int b = 0; b < L::BOXES; b++)
                        tma_load_2d(k_smem + kb * L::K_TILE + w * L::K_PART + b * 128 * 64, &c_map,
                                    k_full + kb, kv * D + 64 * b, (tile0 + t) * L::KEYS + 128 * w);
                for (int a = 0; a < G; a++, step++) {
                    int s = step % L::STAGES;
                    if (step >= L::STAGES) barrier_wait(q_empty + s, (step / L::STAGES - 1) & 1);
                    barrier_expect_bytes(q_full + s, L::Q_TILE * 2);
                    for (int b = 0; b < L::BOXES; b++)
                        tma_load_2d(q_smem + s * L::Q_TILE + b * 64 * 64, &q_map, q_full + s,
                                    (kv * G + a) * D + 64 * b, row0);
                }
            }
        }
    } else {
        registers_more<240>();
        int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        int row = row0 + warp * 16 + lane / 4;
        int vis[2] = {visible(p, row), visible(p, row + 8)};
        const float *lse = p.lse + (int64_t)kv * G * p.rows;
        int at[2] = {min(row, p.rows - 1), min(row + 8, p.rows - 1)};
        bool signal = threadIdx.x % 128 == 0;
        float s0[64], s1[64], P[64];
        int step = 0; // of the Q stages, issued products

        auto issue = [&](float(&s)[64], const __nv_bfloat16 *k) {
            int st = step % L::STAGES;
            barrier_wait(q_full + st, (step / L::STAGES) & 1);
            multiply<D>(s, q_smem + st * L::Q_TILE, 64 * 64, k, 128 * 64);
            step++;
        };
        int done = 0; // products finished: their stage may be refilled
        const float *head_lse = lse;
        auto finish = [&](float(&s)[64]) {
            pin(s);
            if (signal) barrier_arrive(q_empty + done % L::STAGES);
            done++;
            float l[2] = {head_lse[at[0]], head_lse[at[1]]};
            head_lse += p.rows;
            add_probabilities(P, s, p.scale_log2, l);
        };
        auto keys = [&](int t) { return k_smem + (t & 1) * L::K_TILE + group * L::K_PART; };
        auto await_keys = [&](int t) { barrier_wait(k_full + (t & 1), (t / 2) & 1); };
        bool even = G % 2 == 0;
        await_keys(0);
        issue(s0, keys(0));
        for (int t = 0;; t++) {
            int kb = t & 1;
            const __nv_bfloat16 *k = keys(t);
            int key0 = (tile0 + t) * L::KEYS + 128 * group;
#pragma unroll
            for (int i = 0; i < 64; i++) P[i] = 0;
            head_lse = lse;
            for (int pair = 0; pair < (G - 1) / 2; pair++) {
                issue(s1, k);
                wgmma_wait<1>();
                finish(s0);
                issue(s0, k);
                wgmma_wait<1>();
                finish(s1);
            }
            auto pool = [&] {
                if (signal) barrier_arrive(k_empty + kb);
                store_pooled<RHO, MEAN>(P, p, row, vis, kv, key0);
            };
            bool more = t + 1 < tiles;
            if (even) {
                issue(s1, k);
                wgmma_wait<1>();
                finish(s0);
                if (!more) {
                    wgmma_wait<0>();
                    finish(s1);
                    pool();
                    break;
                }
                // The next tile's first product runs during the last exponentials and pooling.
                await_keys(t + 1);
                issue(s0, keys(t + 1));
                wgmma_wait<1>();
                finish(s1);
                pool();
            } else {
                wgmma_wait<0>();
                finish(s0);
                pool();
                if (!more) break;
                await_keys(t + 1);
                issue(s0, keys(t + 1));
            }
        }
    }
#endif
}

} // namespace importance_sm90
