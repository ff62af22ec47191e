// Block-sparse attention on Hopper for blocks of 64 keys (training.md 6.1, 6.2).
//
// A consumer warpgroup holds 64 rows = 64/G queries x G heads of those that walk a union together;
// blocks that none of its queries chose are passed over. Logits start from the bias of the keys, if
// any.
//
// Legend: d head size (64 or 128), G group size, QW queries per warpgroup, W warpgroups.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/sparse_attention.cuh"

namespace sparse_sm90 {
using namespace hopper;
using namespace sparse;

template <int D, int W> struct Layout {
    static constexpr int BOXES = D / 64, KEYS = 64;
    static constexpr int Q_TILE = BOXES * 64 * 64; // elements
    static constexpr int K_TILE = BOXES * KEYS * 64;
    static constexpr int STAGES = D == 128 ? 5 : 8;
    static constexpr int THREADS = 128 * (W + 1);
    static constexpr size_t FIXED = 1024 + 2 * (W * Q_TILE + STAGES * 2 * K_TILE) + 256;
    static size_t smem(int capacity) { return FIXED + (size_t)capacity * sizeof(Entry); }
};

// s = q . k, added to what s holds if BIASED.
template <int D, bool BIASED>
__device__ __forceinline__ void scores(float (&s)[32], const __nv_bfloat16 *q,
                                       const __nv_bfloat16 *k) {
    if (BIASED) pin(s);
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < D / 64; box++) {
        uint64_t a = descriptor(q + box * 64 * 64), b = descriptor(k + box * 64 * 64);
#pragma unroll
        for (int step = 0; step < 4; step++)
            wgmma_ss(s, a + 2 * step, b + 2 * step, BIASED || box + step > 0);
    }
    wgmma_commit();
}

template <int D>
__device__ __forceinline__ void add_values(float (&o)[D / 2], const uint32_t (&p)[16],
                                           const __nv_bfloat16 *v) {
    wgmma_fence();
    uint64_t b = descriptor_mn(v, 64 * 128);
#pragma unroll
    for (int step = 0; step < 4; step++) // 16 keys = 2048 bytes further each
        wgmma_rs_mn(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                    b + 128 * step);
    wgmma_commit();
}

template <int D, int W, bool BIASED>
__global__ void __launch_bounds__(128 * (W + 1), 1)
    attention_kernel(const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map, const Params p) {
#if SPARDA_HOPPER_CODE
    using L = Layout<D, W>;
    extern __shared__ uint8_t raw[];
    auto *q_smem = (__nv_bfloat16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *kv_smem = q_smem + W * L::Q_TILE; // stage: keys, then values
    auto *q_full = (uint64_t *)(kv_smem + L::STAGES * 2 * L::K_TILE);
    uint64_t *full = q_full + 1, *empty = full + L::STAGES;
    auto *entry = (Entry *)(q_full + 32);

    int kv = blockIdx.y, row0 = (int)(gridDim.x - 1 - blockIdx.x) * W * p.per_warpgroup;
    int64_t which = (int64_t)(gridDim.x - 1 - blockIdx.x) * p.kv_heads + kv;
    int n = entries_of(p, which, row0 + W * p.per_warpgroup - 1), group = threadIdx.x / 128;
    for (int i = threadIdx.x; p.entries && i < n; i += L::THREADS)
        entry[i] = p.entries[which * p.capacity + i];
    auto at = [&](int u) { return entry_at(p, entry, u); };
    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, W);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (group == W) {
        registers_fewer<24>();
        if (threadIdx.x == W * 128) {
            barrier_expect_bytes(q_full, W * L::BOXES * p.per_warpgroup * p.group * 128);
            for (int w = 0; w < W; w++)
                for (int b = 0; b < L::BOXES; b++)
                    tma_load_3d(q_smem + w * L::Q_TILE + b * 64 * 64, &q_map, q_full, 64 * b,
                                kv * p.group, row0 + w * p.per_warpgroup);
            for (int u = 0; u < n; u++) {
                int s = u % L::STAGES;
                if (u >= L::STAGES) barrier_wait(empty + s, (u / L::STAGES - 1) & 1);
                barrier_expect_bytes(full + s, 2 * L::K_TILE * 2);
                __nv_bfloat16 *to = kv_smem + s * 2 * L::K_TILE;
                for (int b = 0; b < L::BOXES; b++) {
                    tma_load_2d(to + b * 64 * 64, &k_map, full + s, kv * D + 64 * b,
                                at(u).block * 64);
                    tma_load_2d(to + L::K_TILE + b * 64 * 64, &v_map, full + s, kv * D + 64 * b,
                                at(u).block * 64);
                }
            }
        }
    } else {
        registers_more<(W == 3 ? 160 : 232)>();
        uint32_t mine = queries_of(p, group);
        Rows r = rows_of_warp(p, row0, group);
        const __nv_bfloat16 *q = q_smem + group * L::Q_TILE;
        auto stage = [&](int u) { return kv_smem + u % L::STAGES * 2 * L::K_TILE; };
        auto await = [&](int u) { barrier_wait(full + u % L::STAGES, (u / L::STAGES) & 1); };
        auto release = [&](int u) {
            if (threadIdx.x % 128 == 0) barrier_arrive(empty + u % L::STAGES);
        };
        auto next = [&](int u) { // first block from u on that this warpgroup needs
            for (; u < n && !(at(u).queries & mine); u++) {
                await(u);
                release(u);
            }
            return u;
        };
        float s[32], o[D / 2];
        uint32_t prob[16];
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;
        barrier_wait(q_full, 0);
        for (int u = next(0); u < n; u = next(u + 1)) {
            // a cache line, read while keys and values are on their way
            if (BIASED) start_from_bias(s, p.bias + kv * p.bias_ld + at(u).block * 64);
            await(u);
            scores<D, BIASED>(s, q, stage(u));
            wgmma_wait<0>();
            pin(s);
            softmax(s, r, at(u), p.scale_log2, prob, o);
            add_values<D>(o, prob, stage(u) + L::K_TILE);
            wgmma_wait<0>();
            pin(o);
            release(u);
        }
        store_rows<D>(p, r, kv, o);
    }
#endif
}

} // namespace sparse_sm90
