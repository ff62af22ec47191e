// Block-sparse attention on Hopper for blocks of 64 keys (training.md 6.1, 6.2).
//
// A consumer warpgroup holds 64 rows = 64/G queries x G heads of those that walk a union together.
// Of the union it multiplies the blocks that some of its queries chose and passes the others over.
// The product of a block's probabilities with its values and the one of the queries with the next
// block's keys follow each other without a pause. Logits start from the bias of the keys, if any.
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
    static constexpr size_t FIXED = 1024 + 2 * (W * Q_TILE + STAGES * 2 * K_TILE) + 512;
    static size_t smem(int capacity) { return FIXED + W * (size_t)capacity * sizeof(Entry); }
};

// The u-th block of the union, as a warpgroup needs it; all but the queries are known to be the
// same for a warp. Block and u fit one word, so that a list of them is one of entries.
struct Step {
    Entry entry;
    int u;
};
constexpr int U_BITS = 12;
__device__ __forceinline__ Entry packed(Entry e, int u) {
    return {e.block << U_BITS | u, e.queries};
}
__device__ __forceinline__ Step unpacked(Entry e) {
    uint32_t word = uniform((uint32_t)e.block);
    return {{(int)(word >> U_BITS), e.queries}, (int)(word % (1u << U_BITS))};
}

// The entries of a union that the queries `mine` of a warpgroup need, packed; returns how many.
__device__ __forceinline__ int own_blocks(const Entry *all, int n, uint32_t mine, int group,
                                          int *warp_counts, Entry *own) {
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, found = 0;
    auto together = [&] { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); };
    for (int u0 = 0; u0 < n; u0 += 128) {
        int u = u0 + threadIdx.x % 128;
        Entry e = u < n ? all[u] : Entry{0, 0};
        unsigned votes = __ballot_sync(~0u, e.queries & mine);
        if (lane == 0) warp_counts[warp] = __popc(votes);
        together();
        int at = found + __popc(votes & ((1u << lane) - 1));
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if (w < warp) at += warp_counts[w];
            found += warp_counts[w];
        }
        if (e.queries & mine) own[at] = packed(e, u);
        together();
    }
    return found;
}

// s = q . k, added to what s holds if BIASED.
template <int D, bool BIASED>
__device__ __forceinline__ void scores(float (&s)[32], uint64_t q, uint64_t k) {
    if (BIASED) pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) { // 16 elements = 32 bytes further each
        uint32_t at = step / 4 * descriptor_step(64 * 128) + 2 * (step % 4);
        wgmma_ss(s, q + at, k + at, BIASED || step > 0);
    }
    wgmma_commit();
}

template <int D>
__device__ __forceinline__ void add_values(float (&o)[D / 2], const uint32_t (&p)[16], uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) // 16 keys = 2048 bytes further each
        wgmma_rs_mn(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                    v + step * descriptor_step(2048));
    wgmma_commit();
}

template <int D, int W, bool BIASED, bool LISTED>
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
    auto *counts = (int *)(q_full + 32);  // [W][4]
    auto *lists = (Entry *)(q_full + 64); // [W][capacity]

    int kv = blockIdx.y, row0 = (int)(gridDim.x - 1 - blockIdx.x) * W * p.per_warpgroup;
    int64_t which = (int64_t)(gridDim.x - 1 - blockIdx.x) * p.kv_heads + kv;
    int n = entries_of(p, which, row0 + W * p.per_warpgroup - 1), group = warpgroup();
    const Entry *all = p.entries + which * p.capacity;
    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 4 * W);
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
                int key0 = entry_at(p, all, u).block * 64;
                if (u >= L::STAGES) barrier_wait(empty + s, (u / L::STAGES - 1) & 1);
                barrier_expect_bytes(full + s, 2 * L::K_TILE * 2);
                __nv_bfloat16 *to = kv_smem + s * 2 * L::K_TILE;
                for (int b = 0; b < L::BOXES; b++) {
                    tma_load_2d(to + b * 64 * 64, &k_map, full + s, kv * D + 64 * b, key0);
                    tma_load_2d(to + L::K_TILE + b * 64 * 64, &v_map, full + s, kv * D + 64 * b,
                                key0);
                }
            }
        }
    } else {
        registers_more<(W == 3 ? 160 : 232)>();
        Entry *own = lists + group * p.capacity_own;
        int mine = n;
        if (LISTED) mine = own_blocks(all, n, queries_of(p, group), group, counts + 4 * group, own);
        mine = (int)uniform(mine);
        auto step_at = [&](int i) { return LISTED ? unpacked(own[i]) : Step{{i, ~0u}, i}; };
        Rows r = rows_of_warp(p, row0, group);
        uint32_t kv_at = uniform(smem_address(kv_smem));
        uint64_t q = descriptor(uniform(smem_address(q_smem + group * L::Q_TILE)));
        uint64_t k = descriptor(kv_at), v = descriptor_mn(kv_at + 2 * L::K_TILE, 64 * 128);
        Ring<L::STAGES> ring(full, empty);
        float s[32], o[D / 2];
        uint32_t prob[16];
        // Every warp arrives by itself, also for blocks that it passes over: only so is none ever a
        // whole round behind.
        auto release = [&](uint32_t stage) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ring.release(stage);
        };
        auto pass_over = [&](int blocks) {
#pragma unroll 1
            for (int b = 0; b < blocks; b++, ring.advance()) {
                ring.await();
                release(ring.stage);
            }
        };
        auto multiply_keys = [&](int block) {
            // a cache line, read while keys and values are on their way
            if (BIASED) start_from_bias(s, p.bias + kv * p.bias_ld + block * 64);
            ring.await();
            scores<D, BIASED>(s, q, k + ring.stage * descriptor_step(4 * L::K_TILE));
        };
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;
        barrier_wait(q_full, 0);
        Step now = {};
        if (mine) {
            now = step_at(0);
            pass_over(now.u);
            multiply_keys(now.entry.block);
            wgmma_wait<0>();
        }
        for (int i = 0; i < mine; i++) {               // the ring is at `now`
            Step next = step_at(min(i + 1, mine - 1)); // the last one's logits are made twice
            uint32_t stage = ring.stage;
            pin(s);
            softmax(s, r, now.entry, p.scale_log2, prob, o);
            add_values<D>(o, prob, v + stage * descriptor_step(4 * L::K_TILE));
            bool far = next.u - now.u >= L::STAGES; // that comes only when this one has gone
            if (far) {
                wgmma_wait<0>();
                release(stage);
            }
            if (next.u > now.u) {
                ring.advance();
                pass_over(next.u - now.u - 1);
            }
            multiply_keys(next.entry.block);
            wgmma_wait<0>();
            pin(o);
            if (!far) release(stage);
            now = next;
        }
        if (mine) ring.advance();
        pass_over(mine ? n - now.u - 1 : n);
        store_rows<D>(p, r, row0, group, kv, o);
    }
#endif
}

} // namespace sparse_sm90
