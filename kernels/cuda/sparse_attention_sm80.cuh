// Block-sparse attention for blocks of 64 keys on any card from compute capability 8.0 on: four
// warps walk the union of the lists of 64/G queries; keys and values come by asynchronous copies,
// one block ahead.
#pragma once

#include "kernels/cuda/ampere.cuh"
#include "kernels/cuda/sparse_attention.cuh"

namespace sparse_sm80 {
using namespace ampere;
using namespace sparse;

constexpr int THREADS = 128, KEYS = 64;
template <int D> constexpr size_t SMEM = 2 * D *(64 + 4 * KEYS); // bytes

struct Operands {
    const __nv_bfloat16 *q, *k, *v; // [rows][q_ld], heads side by side; [keys][ld]
    int64_t q_ld, k_ld, v_ld, keys;
};

template <int D>
__global__ void __launch_bounds__(THREADS) attention_kernel(const Operands x, const Params p) {
    extern __shared__ __align__(16) uint8_t raw[];
    auto *q_tile = (__nv_bfloat16 *)raw, *kv_tiles = q_tile + 64 * D; // stage: keys, then values
    int kv = blockIdx.y, which = (int)(gridDim.x - 1 - blockIdx.x), row0 = which * p.per_warpgroup;
    int64_t list = (int64_t)which * p.kv_heads + kv;
    int n = entries_of(p, list, row0 + p.per_warpgroup - 1), warp = threadIdx.x / 32;
    const Entry *entry = p.entries + list * p.capacity;
    auto at = [&](int u) { return entry_at(p, entry, u); };

    for (int i = threadIdx.x; i < 64 * (D / 8); i += THREADS) { // row: query x head
        int at = i / (D / 8), chunk = i % (D / 8), query = at / p.group;
        bool valid = query < p.per_warpgroup && row0 + query < p.rows;
        copy_16(chunk_at<D>(q_tile, at, chunk),
                x.q + (valid ? row0 + query : 0) * x.q_ld +
                    (int64_t)(kv * p.group + at % p.group) * D + chunk * 8,
                valid);
    }
    auto copy_block = [&](int u) {
        __nv_bfloat16 *to = kv_tiles + u % 2 * 2 * KEYS * D;
        int64_t key0 = (int64_t)at(u).block * KEYS;
        copy_rows<D, KEYS, THREADS>(to, x.k + (int64_t)kv * D, x.k_ld, key0, x.keys);
        copy_rows<D, KEYS, THREADS>(to + KEYS * D, x.v + (int64_t)kv * D, x.v_ld, key0, x.keys);
    };
    if (n) copy_block(0);
    copy_commit();
    Rows r = rows_of_warp(p, row0, 0);
    uint32_t q[D / 16][4];
    float o[D / 2] = {};
    for (int u = 0; u < n; u++) {
        if (u + 1 < n) copy_block(u + 1);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (u == 0)
#pragma unroll
            for (int step = 0; step < D / 16; step++)
                left_fragment<D>(q[step], q_tile, warp * 16, step);
        Entry e = at(u);
        if (__any_sync(~0u, e.queries & (r.bit[0] | r.bit[1]))) { // else no row of this warp has it
            __nv_bfloat16 *keys = kv_tiles + u % 2 * 2 * KEYS * D;
            float s[32] = {};
            if (p.bias) start_from_bias(s, p.bias + kv * p.bias_ld + (int64_t)e.block * KEYS);
#pragma unroll
            for (int step = 0; step < D / 16; step++) times_keys<D, KEYS>(s, q[step], keys, step);
            uint32_t prob[16];
            softmax(s, r, e, p.scale_log2, prob, o);
#pragma unroll
            for (int step = 0; step < KEYS / 16; step++) {
                const uint32_t part[4] = {prob[4 * step], prob[4 * step + 1], prob[4 * step + 2],
                                          prob[4 * step + 3]};
                times_values<D>(o, part, keys + KEYS * D, 16 * step);
            }
        }
        __syncthreads(); // the stage may be overwritten
    }
    store_rows<D>(p, r, row0, 0, kv, o);
}

} // namespace sparse_sm80
