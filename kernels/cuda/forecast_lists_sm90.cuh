// Block lists straight from Forecasts on Hopper (inference.md 1.2): scores, pooling, forcing and
// the cut in one kernel. Scores of windows exist in registers only; scores of blocks for 64 queries
// at a time, in a piece of memory that each thread block uses again and again.
//
// A thread block takes (64 queries, KV head) items, the longest rows first. One producer warp feeds
// tiles of 64 compressed keys through TMA; a warpgroup multiplies, pools, and writes block scores;
// then each warp selects for its own 16 rows. Four thread blocks share a multiprocessor, so that
// one multiplies while others select, which takes most of the time.
//
// Keys are copied first, with the rows of every tile permuted: row 8j + 2l + e holds key
// 16l + 2j + e. wgmma hands lane l of a quad columns 8j+2l and 8j+2l+1, so each lane then has 16
// consecutive keys of its rows, and pools them without talking to others.
//
// Legend: d head size (64 or 128), P windows per block, MAX blocks a lane holds (32*MAX in all).
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/select_row.cuh"

namespace lists_sm90 {
using namespace hopper;

enum { ROWS = 64, KEYS = 64, EACH = KEYS / 4, STAGES = 2, THREADS = 128 + 32 };

struct Params {
    BlockRule rule;
    int64_t i0; // position of row 0
    int rows, kv_heads, nb;
    int n, key_tiles;   // windows, and tiles of the permuted copy of one head: n / KEYS + 1
    int stride, extent; // window j is visible from position i iff stride*j + extent <= i
    int items;
    float *scores; // [thread block][ROWS][key_tiles * KEYS / P]
    int32_t *lists;
    int64_t lists_ld;
};

template <int D> struct Layout {
    static constexpr int BOXES = D / 64;
    static constexpr int F_TILE = BOXES * ROWS * 64; // elements
    static constexpr int K_TILE = BOXES * KEYS * 64;
    static constexpr size_t SMEM = 1024 + sizeof(bf16) * (F_TILE + STAGES * K_TILE) + 128;
};

// to[h][tile][8j + 2l + e][d] = c[KEYS*tile + EACH*l + 2j + e][h*d ..], zero beyond n.
template <int D>
__global__ void permute_keys(const bf16 *c, int64_t ld, int n, int key_tiles, bf16 *to) {
    constexpr int PARTS = D / 8; // 16 bytes each
    int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, row = at / PARTS;
    if (row >= (int64_t)key_tiles * KEYS) return;
    int in = (int)(row % KEYS), part = (int)(at % PARTS) * 8, h = blockIdx.y;
    int64_t key = row / KEYS * KEYS + EACH * (in / 2 % 4) + 2 * (in / 8) + in % 2;
    bf16 *out = to + ((int64_t)h * key_tiles * KEYS + row) * D + part;
#pragma unroll
    for (int x = 0; x < 8; x++)
        out[x] = key < n ? c[key * ld + (int64_t)h * D + part + x] : __float2bfloat16(0.f);
}

__device__ __forceinline__ int visible(const Params &p, int row) {
    return (int)visible_windows(p.stride, p.extent, p.i0 + row, p.n);
}

// Pools this lane's windows of one row into blocks and stores them; `carry` is the last window of
// the tile before, in the quad's last lane.
template <int P>
__device__ __forceinline__ void pool(const float (&s)[KEYS / 2], int half, int first, int vis,
                                     float &carry, float *to) {
    constexpr int BLOCKS = EACH / P;
    float x[EACH], best[BLOCKS];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        x[i] = first + i < vis ? s[4 * (i / 2) + 2 * half + i % 2] : -CUDART_INF_F;
    int lane = threadIdx.x & 31;
    float left = __shfl_sync(~0u, x[EACH - 1], (lane & ~3) | ((lane + 3) & 3)); // lane 0: not yet
    float before = __shfl_sync(~0u, carry, lane | 3);
    carry = x[EACH - 1];
    if ((lane & 3) == 0) left = before;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        best[b] = fmaxf(b ? x[b * P - 1] : left, -CUDART_INF_F); // NaN counts as absent
#pragma unroll
        for (int i = 0; i < P; i++) best[b] = fmaxf(best[b], x[b * P + i]);
    }
    if constexpr (BLOCKS % 4 == 0) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b += 4)
            *(float4 *)(to + b) = make_float4(best[b], best[b + 1], best[b + 2], best[b + 3]);
    } else {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) to[b] = best[b];
    }
}

// List of the row at position i0 + row from its block scores; all lanes of a warp. Not inlined: one
// copy of this long code serves all kernels.
template <int MAX>
__device__ __noinline__ void choose(const Params &p, int row, int head, const float *scores,
                                    int written) {
    int qb = (int)((p.i0 + row) / p.rule.block), lane = threadIdx.x & 31;
    // From qb + 2 on no block has a visible window; those blocks could only take places in vain.
    int blocks = min(p.nb, qb + 2), init = (int)p.rule.init, local = (int)p.rule.local;
    bool mask = p.rule.mask_future;
    int32_t *list = p.lists + (int64_t)row * p.lists_ld + (int64_t)head * p.rule.topk;
    with_row_size<MAX>(blocks, [&]<int N>() {
        float score[N];
        uint32_t key[N];
#pragma unroll
        for (int i = 0; i < N; i++) score[i] = __ldcg(scores + min(32 * i + lane, written - 1));
#pragma unroll
        for (int i = 0; i < N; i++) {
            int b = 32 * i + lane;
            bool forced = b < init || (unsigned)(qb - b) <= (unsigned)local;
            bool absent = b >= written || (mask && b > qb);
            float x = forced ? CUDART_INF_F : absent ? -CUDART_INF_F : score[i];
            key[i] = b < blocks ? ordered(x) : 0;
        }
        select_row(key, blocks, (int)p.rule.topk, qb, list);
    });
}

template <int D, int P, int MAX>
__global__ void __launch_bounds__(THREADS, MAX > 64 ? 2 : 4)
    lists_kernel(const __grid_constant__ CUtensorMap f_map,
                 const __grid_constant__ CUtensorMap k_map, const Params p) {
#if SPARDA_HOPPER_CODE
    using L = Layout<D>;
    extern __shared__ uint8_t raw[];
    auto *f_smem = (bf16 *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    auto *k_smem = f_smem + L::F_TILE;
    auto *f_full = (uint64_t *)(k_smem + STAGES * L::K_TILE);
    uint64_t *f_empty = f_full + 1, *full = f_full + 2, *empty = full + STAGES;

    if (threadIdx.x == 0) {
        barrier_init(f_full, 1);
        barrier_init(f_empty, 1);
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 1);
        }
        barrier_init_fence();
    }
    __syncthreads();

    int row_tiles = (p.rows + ROWS - 1) / ROWS;
    auto row_of = [&](int item) { return (row_tiles - 1 - item / p.kv_heads) * ROWS; };
    // One tile more than the last row sees: its first block reaches back into the tile before.
    auto tiles_of = [&](int row0) {
        return min(visible(p, min(row0 + ROWS, p.rows) - 1) / KEYS + 1, p.key_tiles);
    };
    if (threadIdx.x >= 128) {
        if (threadIdx.x != 128) return;
        int step = 0, turn = 0;
        for (int item = blockIdx.x; item < p.items; item += gridDim.x, turn++) {
            int row0 = row_of(item), head = item % p.kv_heads, tiles = tiles_of(row0);
            if (turn) barrier_wait(f_empty, (turn - 1) & 1);
            barrier_expect_bytes(f_full, L::F_TILE * 2);
            for (int b = 0; b < L::BOXES; b++)
                tma_load_2d(f_smem + b * ROWS * 64, &f_map, f_full, head * D + 64 * b, row0);
            for (int t = 0; t < tiles; t++, step++) {
                int s = step % STAGES;
                if (step >= STAGES) barrier_wait(empty + s, (step / STAGES - 1) & 1);
                barrier_expect_bytes(full + s, L::K_TILE * 2);
                for (int b = 0; b < L::BOXES; b++)
                    tma_load_2d(k_smem + s * L::K_TILE + b * KEYS * 64, &k_map, full + s, 64 * b,
                                (head * p.key_tiles + t) * KEYS);
            }
        }
        return;
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = 0, turn = 0;
    int cells = p.key_tiles * (KEYS / P);
    float *scratch = p.scores + (int64_t)blockIdx.x * ROWS * cells;
    float *mine = scratch + (int64_t)(warp * 16 + lane / 4) * cells + (lane & 3) * (EACH / P);
    for (int item = blockIdx.x; item < p.items; item += gridDim.x, turn++) {
        int row0 = row_of(item), head = item % p.kv_heads, tiles = tiles_of(row0);
        int row = row0 + warp * 16 + lane / 4;
        int vis[2] = {visible(p, row), visible(p, row + 8)};
        float carry[2] = {-CUDART_INF_F, -CUDART_INF_F};
        barrier_wait(f_full, turn & 1);
        for (int t = 0; t < tiles; t++, step++) {
            int s = step % STAGES;
            float acc[KEYS / 2];
            barrier_wait(full + s, (step / STAGES) & 1);
            wgmma_fence();
#pragma unroll
            for (int box = 0; box < L::BOXES; box++) {
                uint64_t a = descriptor(f_smem + box * ROWS * 64);
                uint64_t b = descriptor(k_smem + s * L::K_TILE + box * KEYS * 64);
#pragma unroll
                for (int part = 0; part < 4; part++)
                    wgmma_ss(acc, a + 2 * part, b + 2 * part, box + part > 0);
            }
            wgmma_commit();
            wgmma_wait<0>();
            pin(acc);
            if (threadIdx.x == 0) {
                barrier_arrive(empty + s);
                if (t == tiles - 1) barrier_arrive(f_empty);
            }
            int first = t * KEYS + (lane & 3) * EACH;
            pool<P>(acc, 0, first, vis[0], carry[0], mine + t * (KEYS / P));
            pool<P>(acc, 1, first, vis[1], carry[1], mine + 8 * (int64_t)cells + t * (KEYS / P));
        }
        __syncwarp(); // a warp reads only rows that it wrote
        for (int r = 0; r < 16 && row0 + warp * 16 + r < p.rows; r++)
            choose<MAX>(p, row0 + warp * 16 + r, head, scratch + (int64_t)(warp * 16 + r) * cells,
                        tiles * (KEYS / P));
        __syncwarp();
    }
#endif
}

} // namespace lists_sm90
