// Decode attention over slots (inference.md 2.1, 2.7): one query token a sequence, the 16 heads of
// a group as the rows of one matrix product.
//
// The listed blocks of a pair are cut into pieces, a thread block each. A warp works alone on items
// of 16 keys: it loads them (asynchronously, STAGES items ahead, swizzled), keeps its own running
// maximum, sum and output, and only at the end the warps of a piece, then the pieces of a pair, are
// added up, in a fixed order. So the bits depend on the list and the shape, not on slots or time.
#include "kernels/cuda/ampere.cuh"
#include "kernels/cuda/decode.cuh"

using namespace decode;

enum { WARPS = 4, KEYS = 16, STAGES = 3 };

template <int D> struct Stage { // one item: 16 rows of keys, then of values; their importance
    bf16 k[KEYS * D], v[KEYS * D];
    float bias[KEYS];
};

__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
    __nv_bfloat162 b = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&b);
}

struct AttendArgs {
    Shape s;
    Layer l;
    bool all; // every block, in order, instead of the list
    int each; // blocks of a piece
    const bf16 *q;
    int64_t q_ld;
    float *out; // [pairs][pieces][MAX_GROUP][d]
    float2 *ml; // [pairs][pieces][MAX_GROUP] maximum (log2 units) and sum
};

template <int D> __global__ void __launch_bounds__(WARPS * 32) attend_kernel(AttendArgs a) {
    extern __shared__ __align__(128) uint8_t shared[];
    next_may_start();
    wait_for_previous();
    const Shape &s = a.s;
    int p = blockIdx.y, b = p / s.kv_heads, h = p % s.kv_heads, pos = s.position[b];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane % 4;
    Stage<D> *stage = (Stage<D> *)shared + warp * STAGES;
    int first = blockIdx.x * a.each, last = first + a.each, qb = pos / s.block;
    int listed = a.all ? qb + 1 : s.k;
    if (last > listed) last = listed;
    int per_unit = s.block / KEYS;
    int items = last > first ? (last - first) * per_unit : 0;
    const int32_t *list = a.l.list + (int64_t)p * s.k, *slots = a.l.slot_list + (int64_t)p * s.k;
    const bf16 *base = a.l.slots + (int64_t)p * a.l.stride * s.unit;

    // Keys of item i that exist; 0: nothing to do.
    auto keys_of = [&](int i) {
        if (i >= items) return 0;
        int at = first + i / per_unit, block = a.all ? at : list[at];
        if (block < 0) return 0;
        int keys = (block == qb ? pos % s.block + 1 : s.block) - i % per_unit * KEYS;
        return keys < 0 ? 0 : keys < KEYS ? keys : (int)KEYS;
    };
    auto load = [&](int i, Stage<D> &to) {
        int keys = keys_of(i);
        if (keys > 0) {
            int at = first + i / per_unit, row0 = i % per_unit * KEYS;
            const bf16 *unit = base + (int64_t)(a.all ? at : slots[at]) * s.unit;
            const bf16 *k = unit + row0 * D, *v = unit + (s.block + row0) * D;
#pragma unroll
            for (int x = lane; x < KEYS * D / 8; x += 32) {
                int r = x / (D / 8), c = x % (D / 8);
                // a slot's rows beyond the present token may hold anything
                ampere::copy_16(ampere::chunk_at<D>(to.k, r, c), k + x * 8, r < keys);
                ampere::copy_16(ampere::chunk_at<D>(to.v, r, c), v + x * 8, r < keys);
            }
            if (s.cis && lane < KEYS / 4)
                ampere::copy_16(to.bias + lane * 4,
                                (const float *)(unit + 2 * s.block * D) + row0 + lane * 4, true);
        }
        ampere::copy_commit(); // an empty group keeps the count
    };

    uint32_t qa[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int row = g + 8 * (r & 1), x = i * 16 + 2 * t + 8 * (r >> 1);
            qa[i][r] = row < s.group
                           ? *(const uint32_t *)(a.q + b * a.q_ld + (h * s.group + row) * D + x)
                           : 0;
        }
    float o[D / 2] = {}, m[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load(warp + i * WARPS, stage[i]);
    int turn = 0;
    for (int i = warp; i < items; i += WARPS) {
        __syncwarp(); // everyone is done with the stage that is filled now
        load(i + (STAGES - 1) * WARPS, stage[(turn + STAGES - 1) % STAGES]);
        ampere::copy_wait<STAGES - 1>();
        __syncwarp();
        Stage<D> &x = stage[turn];
        turn = (turn + 1) % STAGES;
        int keys = keys_of(i);
        if (keys == 0) continue;
        float c[8] = {}; // heads x 16 keys
#pragma unroll
        for (int j = 0; j < D / 16; j++) ampere::times_keys<D, KEYS>(c, qa[j], x.k, j);
        float bias[2][2] = {}; // log2 units, of this lane's keys
        if (s.cis)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    bias[n][e] = 1.4426950408889634f * x.bias[n * 8 + 2 * t + e];
        uint32_t pa[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float best = m[r];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &y = c[4 * n + 2 * r + e];
                    y = n * 8 + 2 * t + e < keys ? fmaf(y, s.scale_log2, bias[n][e]) : -INFINITY;
                    best = fmaxf(best, y);
                }
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 2)); // finite: key 0 of the item exists
            float factor = ampere::exp2_fast(m[r] - best), part = 0;
            m[r] = best;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float e0 = ampere::exp2_fast(c[4 * n + 2 * r] - best);
                float e1 = ampere::exp2_fast(c[4 * n + 2 * r + 1] - best);
                part += e0 + e1;
                pa[2 * n + r] = pack_bf16(e0, e1);
            }
            sum[r] = sum[r] * factor + part; // of this lane's keys; joined at the end
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                o[4 * n + 2 * r] *= factor, o[4 * n + 2 * r + 1] *= factor;
        }
        ampere::times_values<D>(o, pa, x.v, 0);
    }
    ampere::copy_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }

    // The warps' results, added in order through shared memory.
    __syncthreads();
    float *total = (float *)shared;                 // [MAX_GROUP][D]
    float2 *ml = (float2 *)(total + MAX_GROUP * D); // [WARPS][MAX_GROUP]
    if (t == 0) ml[warp * MAX_GROUP + g] = make_float2(m[0], sum[0]);
    if (t == 0) ml[warp * MAX_GROUP + g + 8] = make_float2(m[1], sum[1]);
    __syncthreads();
    float best[2] = {-INFINITY, -INFINITY}, factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int w = 0; w < WARPS; w++) best[r] = fmaxf(best[r], ml[w * MAX_GROUP + g + 8 * r].x);
        factor[r] = m[r] > -INFINITY ? ampere::exp2_fast(m[r] - best[r]) : 0;
    }
    for (int w = 0; w < WARPS; w++) {
        if (warp == w)
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float2 *at = (float2 *)(total + (g + 8 * r) * D + n * 8 + 2 * t);
                    float2 x = w ? *at : make_float2(0, 0);
                    x.x += o[4 * n + 2 * r] * factor[r];
                    x.y += o[4 * n + 2 * r + 1] * factor[r];
                    *at = x;
                }
        __syncthreads();
    }
    int64_t piece = (int64_t)p * gridDim.x + blockIdx.x;
    for (int x = threadIdx.x; x < s.group * D / 4; x += WARPS * 32)
        ((float4 *)(a.out + piece * MAX_GROUP * D))[x] = ((float4 *)total)[x];
    if (threadIdx.x < MAX_GROUP) {
        float top = -INFINITY, all = 0;
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, ml[w * MAX_GROUP + threadIdx.x].x);
        for (int w = 0; w < WARPS; w++) {
            float2 x = ml[w * MAX_GROUP + threadIdx.x];
            if (x.x > -INFINITY) all += x.y * ampere::exp2_fast(x.x - top);
        }
        a.ml[piece * MAX_GROUP + threadIdx.x] = make_float2(top, all);
    }
}

// The pieces of one head, in order; a thread a dimension.
__global__ void join_kernel(Shape s, const float *part, const float2 *ml, int pieces, bf16 *out,
                            int64_t out_ld) {
    extern __shared__ float2 piece[]; // maximum and sum
    next_may_start();
    wait_for_previous();
    int b = blockIdx.x / (s.kv_heads * s.group), head = blockIdx.x % (s.kv_heads * s.group);
    int p = b * s.kv_heads + head / s.group, g = head % s.group, x = threadIdx.x;
    for (int i = x; i < pieces; i += blockDim.x)
        piece[i] = ml[((int64_t)p * pieces + i) * MAX_GROUP + g];
    __syncthreads();
    float best = -INFINITY, sum = 0, total = 0;
    for (int i = 0; i < pieces; i++) best = fmaxf(best, piece[i].x);
    const float *from = part + ((int64_t)p * pieces * MAX_GROUP + g) * s.d + x;
#pragma unroll 16
    for (int i = 0; i < pieces; i++) {
        float factor = piece[i].x > -INFINITY ? ampere::exp2_fast(piece[i].x - best) : 0;
        sum += piece[i].y * factor;
        total += from[(int64_t)i * MAX_GROUP * s.d] * factor;
    }
    out[b * out_ld + head * s.d + x] = __float2bfloat16(sum > 0 ? total / sum : 0);
}

// About two thread blocks a multiprocessor of any Hopper card; a function of the shape alone.
int decode::attention_pieces(const Shape &s, int n, int *blocks_each) {
    int64_t wanted = ceil_div((int64_t)n * s.pairs(), 264), least = ceil_div(WARPS * KEYS, s.block);
    *blocks_each = (int)std::max<int64_t>(std::max<int64_t>(wanted, least), 1);
    return (int)ceil_div(n, *blocks_each);
}

static sp_status attend(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor out, bool all) {
    const Shape &s = d->shape;
    int each, pieces = attention_pieces(s, all ? s.blocks : s.k, &each);
    AttendArgs a = {s,    layer_of(d, layer), all,          each, (const bf16 *)q.data,
                    q.ld, d->partial_out,     d->partial_ml};
    auto kernel = s.d == 128 ? attend_kernel<128> : attend_kernel<64>;
    size_t shared = WARPS * STAGES * (s.d == 128 ? sizeof(Stage<128>) : sizeof(Stage<64>));
    CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    CUDA_TRY(launch_chained(d->c, kernel, dim3((unsigned)pieces, (unsigned)s.pairs()),
                            dim3(WARPS * 32), shared, a));
    LAUNCHED("attend", "%d pairs, %d pieces", s.pairs(), pieces);
    CUDA_TRY(launch_chained(d->c, join_kernel, dim3((unsigned)(s.pairs() * s.group)),
                            dim3((unsigned)s.d), pieces * sizeof(float2), s, d->partial_out,
                            d->partial_ml, pieces, (bf16 *)out.data, out.ld));
    LAUNCHED("attend join", "%d pairs, %d pieces", s.pairs(), pieces);
    return SP_OK;
}

OP sp_decode_attend(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor out) {
    return attend(d, layer, q, out, false);
}

OP sp_decode_attend_all(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor out) {
    if (!resident(layer_of(d, layer)))
        return sp_error(SP_ENVIRONMENT,
                        "layer %lld is not resident: it cannot attend to all blocks",
                        (long long)layer);
    return attend(d, layer, q, out, true);
}
