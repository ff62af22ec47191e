// Block-sparse attention on Hopper for blocks of 64 keys (training.md 6.1).
//
// Neighbouring queries choose mostly the same blocks, so a thread block takes several of them with
// all G heads of a group and walks the union of their lists: every block of keys and values is
// loaded once for all. A consumer warpgroup holds 64 rows = 64/G queries x G heads; blocks that none
// of its queries chose are passed over, rows whose query did not choose a block are masked. Each
// query attends to exactly its own blocks.
//
// The union is made before, by union_kernel: entries {block, mask of queries}, ascending.
//
// Legend: d head size (64 or 128), G group size, QW queries per warpgroup, W warpgroups.
#pragma once

#include "kernels/cuda/hopper.cuh"

#include <math_constants.h>

namespace sparse_sm90 {
using namespace hopper;

struct Entry {
    int32_t block;
    uint32_t queries; // bit n: query n of the group chose the block
};

struct Params {
    int64_t q0; // position of row 0
    int rows, group, kv_heads, per_warpgroup;
    float scale_log2;
    const Entry *entries; // [groups][kv_heads][capacity]
    const int *counts;    // [groups][kv_heads]
    int capacity;
    __nv_bfloat16 *out;
    int64_t out_ld;
};

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

template <int D, int W> struct Layout {
    static constexpr int BOXES = D / 64, KEYS = 64;
    static constexpr int Q_TILE = BOXES * 64 * 64; // elements
    static constexpr int K_TILE = BOXES * KEYS * 64;
    static constexpr int STAGES = D == 128 ? 5 : 8;
    static constexpr int THREADS = 128 * (W + 1);
    static constexpr size_t FIXED = 1024 + 2 * (W * Q_TILE + STAGES * 2 * K_TILE) + 256;
    static size_t smem(int capacity) { return FIXED + (size_t)capacity * sizeof(Entry); }
};

template <int D>
__device__ __forceinline__ void scores(float (&s)[32], const __nv_bfloat16 *q,
                                       const __nv_bfloat16 *k) {
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < D / 64; box++) {
        uint64_t a = descriptor(q + box * 64 * 64), b = descriptor(k + box * 64 * 64);
#pragma unroll
        for (int step = 0; step < 4; step++)
            wgmma_ss(s, a + 2 * step, b + 2 * step, box + step > 0);
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

struct Rows { // the two rows of a thread
    float max[2], sum[2];
    int64_t position[2];
    uint32_t bit[2]; // of its query in Entry.queries; 0: row unused
};

// Logits to probabilities (packed for the next product); returns the factors by which earlier
// results shrink.
template <int N>
__device__ __forceinline__ void softmax(float (&s)[32], Rows &r, Entry e, float scale,
                                        uint32_t (&p)[16], float (&o)[N]) {
    int64_t key0 = (int64_t)e.block * 64 + 2 * (threadIdx.x & 3);
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // a row keeps the keys up to its own position, or none of a block its query did not choose
        int64_t room = r.position[half] - key0;
        int last = !(e.queries & r.bit[half]) ? -1 : room > 63 ? 63 : (int)room;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float &v = s[4 * j + 2 * half + x];
                v = 8 * j + x <= last ? v : -CUDART_INF_F;
            }
        float m = s[2 * half];
#pragma unroll
        for (int j = 0; j < 8; j++) m = fmaxf(m, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        float now = fmaxf(r.max[half], m * scale), base = now == -CUDART_INF_F ? 0.f : now;
        shrink[half] = exp2_fast(r.max[half] - base);
        r.max[half] = now;
        float sum = r.sum[half] * shrink[half];
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float &v = s[4 * j + 2 * half + x];
                v = exp2_fast(fmaf(v, scale, -base));
                sum += v;
            }
        r.sum[half] = sum;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        __nv_bfloat162 b = __floats2bfloat162_rn(s[2 * i], s[2 * i + 1]);
        p[i] = *reinterpret_cast<uint32_t *>(&b);
    }
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= shrink[(i / 2) & 1];
}

template <int D, int W>
__global__ void __launch_bounds__(128 * (W + 1), 1)
    attention_kernel(const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map, const Params p) {
    using L = Layout<D, W>;
    extern __shared__ uint8_t raw[];
    auto *q_smem = (__nv_bfloat16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *kv_smem = q_smem + W * L::Q_TILE; // stage: keys, then values
    auto *q_full = (uint64_t *)(kv_smem + L::STAGES * 2 * L::K_TILE);
    uint64_t *full = q_full + 1, *empty = full + L::STAGES;
    auto *entry = (Entry *)(q_full + 32);

    int kv = blockIdx.y, row0 = (int)(gridDim.x - 1 - blockIdx.x) * W * p.per_warpgroup;
    int64_t which = (int64_t)(gridDim.x - 1 - blockIdx.x) * p.kv_heads + kv;
    int n = p.counts[which], group = threadIdx.x / 128;
    for (int i = threadIdx.x; i < n; i += L::THREADS) entry[i] = p.entries[which * p.capacity + i];
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
                                entry[u].block * 64);
                    tma_load_2d(to + L::K_TILE + b * 64 * 64, &v_map, full + s, kv * D + 64 * b,
                                entry[u].block * 64);
                }
            }
        }
    } else {
        registers_more<(W == 3 ? 160 : 232)>();
        int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
        uint32_t mine = (p.per_warpgroup == 32 ? ~0u : (1u << p.per_warpgroup) - 1)
                        << (group * p.per_warpgroup);
        Rows r;
        int row[2], head[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = warp * 16 + lane / 4 + 8 * half, query = at / p.group;
            bool used = query < p.per_warpgroup;
            query += group * p.per_warpgroup;
            row[half] = used && row0 + query < p.rows ? row0 + query : -1;
            head[half] = at % p.group;
            r.bit[half] = row[half] >= 0 ? 1u << query : 0;
            r.position[half] = p.q0 + row0 + query;
            r.max[half] = -CUDART_INF_F;
            r.sum[half] = 0;
        }
        const __nv_bfloat16 *q = q_smem + group * L::Q_TILE;
        auto stage = [&](int u) { return kv_smem + u % L::STAGES * 2 * L::K_TILE; };
        auto await = [&](int u) { barrier_wait(full + u % L::STAGES, (u / L::STAGES) & 1); };
        auto release = [&](int u) {
            if (threadIdx.x % 128 == 0) barrier_arrive(empty + u % L::STAGES);
        };
        auto next = [&](int u) { // first block from u on that this warpgroup needs, ready to read
            while (u < n) {
                await(u);
                if (entry[u].queries & mine) break;
                release(u);
                u++;
            }
            return u;
        };
        float s[32], o[D / 2];
        uint32_t prob[16];
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;
        barrier_wait(q_full, 0);
        for (int u = next(0); u < n; u = next(u + 1)) {
            scores<D>(s, q, stage(u));
            wgmma_wait<0>();
            pin(s);
            softmax(s, r, entry[u], p.scale_log2, prob, o);
            add_values<D>(o, prob, stage(u) + L::K_TILE);
            wgmma_wait<0>();
            pin(o);
            release(u);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            float inv = sum > 0 ? 1 / sum : 0;
            if (row[half] < 0) continue;
            __nv_bfloat16 *to = p.out + (int64_t)row[half] * p.out_ld +
                                (int64_t)(kv * p.group + head[half]) * D + 2 * (lane & 3);
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                __nv_bfloat162 b = __floats2bfloat162_rn(o[4 * j + 2 * half] * inv,
                                                         o[4 * j + 2 * half + 1] * inv);
                *(__nv_bfloat162 *)(to + 8 * j) = b;
            }
        }
    }
}

} // namespace sparse_sm90
