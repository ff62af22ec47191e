// Teacher importance on Hopper (training.md 4.1, 4.3) in two passes over Q K^T, nothing stored:
//
//   pass 1, lse_kernel:        log2-sum-exp of every (query head, row)
//   pass 2, importance_kernel: p = exp2(z - lse), summed over the G heads of a group in registers,
//                              then pooled over runs of RHO+1 windows onto the deployed grid
//
// Both are warp-specialised: producer warps feed shared memory through TMA; consumer warpgroups,
// each with one accumulator, wait for their product and take its exponentials. There are as many of
// them as registers allow, and they use the tensor cores in turn, so that some multiply while
// others keep the special-function units busy.
//
// Legend: R rows of the query tile, n teacher windows, d head size (64 or 128), G group size.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/importance.cuh"

namespace importance_sm90 {
using namespace hopper;
using namespace importance;

template <int D> struct Lse {
    static constexpr int CONSUMERS = 4, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int BOXES = D / 64;
    static constexpr int ROWS = 64 * CONSUMERS;
    static constexpr int KEYS = 128, STAGES = 4;
    static constexpr int Q_TILE = BOXES * 64 * 64;   // elements
    static constexpr int K_TILE = BOXES * KEYS * 64; // elements
    static constexpr size_t SMEM =
        1024 + sizeof(__nv_bfloat16) * (CONSUMERS * Q_TILE + STAGES * K_TILE) + 256;
};

// The warpgroups issue their products in turn: else some run ahead, and then several take
// exponentials at the same time, and wait for products at the same time.
template <int GROUPS> struct Turn {
    int mine, next; // named barriers
    __device__ __forceinline__ explicit Turn(int group)
        : mine(1 + group), next(group + 1 < GROUPS ? 2 + group : 1) {
        if (group == GROUPS - 1) pass();
    }
    __device__ __forceinline__ void await() const {
        asm volatile("bar.sync %0, 256;" ::"r"(mine) : "memory");
    }
    __device__ __forceinline__ void pass() const {
        asm volatile("bar.arrive %0, 256;" ::"r"(next) : "memory");
    }
    // After as many turns as every other warpgroup had: takes the last signal.
    __device__ __forceinline__ void leave() const {
        if (mine == 1) await();
    }
};

// S = Q tile . K tile^T over the whole head size, by the descriptors of both; boxes of K are k_box
// bytes apart.
template <int D, int GROUPS, int N>
__device__ __forceinline__ void multiply(float (&s)[N], uint64_t q, uint64_t k, size_t k_box,
                                         Turn<GROUPS> turn) {
    turn.await();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) { // 16 elements = 32 bytes further each
        int box = step / 4;
        wgmma_ss(s, q + box * descriptor_step(64 * 128) + 2 * (step % 4),
                 k + box * descriptor_step(k_box) + 2 * (step % 4), step > 0);
    }
    wgmma_commit();
    turn.pass();
    wgmma_wait<0>();
    pin(s);
}

template <int D>
__global__ void __launch_bounds__(Lse<D>::THREADS, 1)
    lse_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap c_map,
               const Params p) {
#if SPARDA_HOPPER_CODE
    using L = Lse<D>;
    extern __shared__ uint8_t raw[];
    auto *q_smem = (__nv_bfloat16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *k_smem = q_smem + L::CONSUMERS * L::Q_TILE;
    auto *q_full = (uint64_t *)(k_smem + L::STAGES * L::K_TILE);
    uint64_t *full = q_full + 1, *empty = full + L::STAGES;

    int row0 = (int)(gridDim.x - 1 - blockIdx.x) * L::ROWS; // long rows first
    int head = blockIdx.y, kv = head / (p.q_heads / p.kv_heads);
    int last = min(row0 + L::ROWS, p.rows) - 1;
    int tiles = (visible(p, last) + L::KEYS - 1) / L::KEYS;
    int group = warpgroup();

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, L::CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (group == L::CONSUMERS) {
        registers_fewer<24>();
        if (threadIdx.x == L::CONSUMERS * 128) {
            barrier_expect_bytes(q_full, L::CONSUMERS * L::Q_TILE * 2);
            for (int t = 0; t < L::CONSUMERS; t++)
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
        registers_more<112>();
        int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        int row = row0 + group * 64 + warp * 16 + lane / 4;
        int vis[2] = {visible(p, row), visible(p, row + 8)};
        bool signal = threadIdx.x % 128 == 0;
        uint64_t q = descriptor(uniform(smem_address(q_smem + group * L::Q_TILE)));
        uint64_t k = descriptor(uniform(smem_address(k_smem)));
        Ring<L::STAGES> keys(full, empty);
        Turn<L::CONSUMERS> turn(group);
        RowState state = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
        float s[64];
        // tiles that every row of this thread block sees whole need no mask
        int clear = (int)uniform(visible(p, row0) / L::KEYS), all = (int)uniform(tiles);
        barrier_wait(q_full, 0);
        for (int it = 0; it < all; it++) {
            keys.await();
            multiply<D>(s, q, k + keys.stage * descriptor_step(2 * L::K_TILE), L::KEYS * 128, turn);
            if (signal) keys.release(keys.stage);
            keys.advance();
            if (it < clear)
                accumulate_lse<false>(s, state, p.scale_log2, it * L::KEYS, vis);
            else
                accumulate_lse<true>(s, state, p.scale_log2, it * L::KEYS, vis);
        }
        turn.leave();
        store_lse(p, state, head, row);
    }
#endif
}

// ---- pass 2 -------------------------------------------------------------------------------------

template <int D> struct Imp {
    static constexpr int CONSUMERS = 4, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int BOXES = D / 64;
    static constexpr int ROWS = 64, PART = 96; // keys of a warpgroup
    static constexpr int KEYS = PART * CONSUMERS;
    static constexpr int STAGES = 8; // of queries
    static constexpr int Q_TILE = BOXES * 64 * 64;
    static constexpr int K_PART = BOXES * PART * 64;
    static constexpr size_t SMEM =
        1024 + sizeof(__nv_bfloat16) * (STAGES * Q_TILE + CONSUMERS * K_PART) + 256;
};

template <int D, int RHO, bool MEAN>
__global__ void __launch_bounds__(Imp<D>::THREADS, 1)
    importance_kernel(const __grid_constant__ CUtensorMap q_map,
                      const __grid_constant__ CUtensorMap c_map, const Params p) {
#if SPARDA_HOPPER_CODE
    using L = Imp<D>;
    extern __shared__ uint8_t raw[];
    auto *k_smem = (__nv_bfloat16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *q_smem = k_smem + L::CONSUMERS * L::K_PART;
    auto *q_full = (uint64_t *)(q_smem + L::STAGES * L::Q_TILE);
    uint64_t *q_empty = q_full + L::STAGES, *k_full = q_empty + L::STAGES;
    uint64_t *k_empty = k_full + L::CONSUMERS;

    int kv = blockIdx.z, G = p.q_heads / p.kv_heads;
    int row0 = (int)(gridDim.x - 1 - blockIdx.x) * L::ROWS;
    int last = min(row0 + L::ROWS, p.rows) - 1;
    int all_tiles = (visible(p, last) + L::KEYS - 1) / L::KEYS;
    int tile0 = blockIdx.y * p.chunk, tiles = min(p.chunk, all_tiles - tile0);
    if (tiles <= 0) return;
    int group = warpgroup();

    if (threadIdx.x == 0) {
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(q_full + s, 1);
            barrier_init(q_empty + s, L::CONSUMERS);
        }
        for (int w = 0; w < L::CONSUMERS; w++) {
            barrier_init(k_full + w, 1);
            barrier_init(k_empty + w, 1);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (group == L::CONSUMERS) {
        registers_fewer<24>();
        if (threadIdx.x == L::CONSUMERS * 128) {
            for (int step = 0; step < tiles * G; step++) {
                int s = step % L::STAGES;
                if (step >= L::STAGES) barrier_wait(q_empty + s, (step / L::STAGES - 1) & 1);
                barrier_expect_bytes(q_full + s, L::Q_TILE * 2);
                for (int b = 0; b < L::BOXES; b++)
                    tma_load_2d(q_smem + s * L::Q_TILE + b * 64 * 64, &q_map, q_full + s,
                                (kv * G + step % G) * D + 64 * b, row0);
            }
        } else if (threadIdx.x == L::CONSUMERS * 128 + 32) {
            for (int part = 0; part < tiles * L::CONSUMERS; part++) {
                int t = part / L::CONSUMERS, w = part % L::CONSUMERS;
                if (t > 0) barrier_wait(k_empty + w, (t - 1) & 1);
                barrier_expect_bytes(k_full + w, L::K_PART * 2);
                for (int b = 0; b < L::BOXES; b++)
                    tma_load_2d(k_smem + w * L::K_PART + b * L::PART * 64, &c_map, k_full + w,
                                kv * D + 64 * b, tile0 * L::KEYS + L::PART * part);
            }
        }
    } else {
        registers_more<112>();
        int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        int row = row0 + warp * 16 + lane / 4;
        bool signal = threadIdx.x % 128 == 0;
        const float *lse = p.lse + (int64_t)kv * G * p.lse_ld + row;
        uint64_t q = descriptor(uniform(smem_address(q_smem)));
        Ring<L::STAGES> queries(q_full, q_empty);
        Turn<L::CONSUMERS> turn(group);
        uint32_t full = uniform(smem_address(k_full + group));
        uint32_t empty = uniform(smem_address(k_empty + group));
        uint64_t k = descriptor(uniform(smem_address(k_smem + group * L::K_PART)));
        float s[L::PART / 2], P[L::PART / 2];
        for (int t = 0; t < tiles; t++) {
            barrier_wait(full, t & 1);
#pragma unroll
            for (int i = 0; i < L::PART / 2; i++) P[i] = 0;
            for (int a = 0; a < G; a++) {
                float l[2] = {lse[0], lse[8]};
                lse += p.lse_ld;
                queries.await();
                multiply<D>(s, q + queries.stage * descriptor_step(2 * L::Q_TILE), k, L::PART * 128,
                            turn);
                if (signal) queries.release(queries.stage);
                queries.advance();
                add_probabilities(P, s, p.scale_log2, l);
            }
            lse -= G * p.lse_ld;
            if (signal) barrier_arrive(empty);
            int vis[2] = {visible(p, row), visible(p, row + 8)};
            store_pooled<RHO, MEAN, L::PART>(P, p, row, vis, kv,
                                             (tile0 + t) * L::KEYS + L::PART * group);
        }
        turn.leave();
    }
#endif
}

} // namespace importance_sm90
