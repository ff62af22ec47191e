// Decode: scores of blocks, the list of the best, and the slots they go to, in one kernel
// (inference.md 1.2, 2.3, 2.7).
//
// Thread blocks of one pair share its windows; the last one to finish cuts the list and assigns
// slots; the last pair to have them says so in Queue::chosen. Scores stay fp32. Candidates are
// blocks I .. qb-W-1: what is forced is never looked at, so the newest compressed key is not needed
// (2.4), and ties go to the lower block.
#include "kernels/cuda/ampere.cuh"
#include "kernels/cuda/decode.cuh"

using namespace decode;

enum { THREADS = 256, WARPS = THREADS / 32, SPAN = 32 }; // SPAN blocks a thread block scores

// Larger floats have larger integers, none is 0; -0 counts as +0.
__device__ __forceinline__ uint32_t ordered(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// ---- the m largest of n keys --------------------------------------------------------------------

struct Cut {
    uint32_t histogram[256];
    int warp_sum[WARPS];
    uint32_t digit;
    int left;
    int total;
};

// Sets the bits of the m largest keys in take[]: lower index first among equals. Keys of 0 do not
// take part; m must not exceed the number of others. key(i) for i < n; take has ceil(n/32) words.
template <class Key>
__device__ void choose(int n, int m, Key key, uint32_t *take, uint32_t *equal, Cut &c) {
    if (m <= 0) return; // the same for all threads
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, words = (n + 31) / 32;
    uint32_t prefix = 0, mask = 0;
    int left = m;
    for (int shift = 24; shift >= 0; shift -= 8) { // the m-th largest key, 8 bits at a time
        c.histogram[t] = 0;
        __syncthreads();
        for (int i = t; i < n; i += THREADS) {
            uint32_t k = key(i);
            if (k && (k & mask) == prefix) atomicAdd(&c.histogram[k >> shift & 255], 1u);
        }
        __syncthreads();
        int mine = (int)c.histogram[255 - t], sum = mine; // from the largest digit down
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            int other = __shfl_up_sync(~0u, sum, o);
            if (lane >= o) sum += other;
        }
        if (lane == 31) c.warp_sum[warp] = sum;
        __syncthreads();
        for (int w = 0; w < warp; w++) sum += c.warp_sum[w];
        if (sum - mine < left && left <= sum) {
            c.digit = 255 - t;
            c.left = left - (sum - mine);
        }
        __syncthreads();
        prefix |= c.digit << shift;
        mask |= 255u << shift;
        left = c.left;
    }
    for (int w = warp; w < words; w += WARPS) {
        int i = w * 32 + lane;
        uint32_t k = i < n ? key(i) : 0;
        uint32_t more = __ballot_sync(~0u, k > prefix), same = __ballot_sync(~0u, k == prefix);
        if (lane == 0) take[w] |= more, equal[w] = same;
    }
    __syncthreads();
    if (warp == 0) { // `left` of those equal to the m-th, from the left
        for (int w0 = 0; w0 < words && left > 0; w0 += 32) {
            int w = w0 + lane;
            uint32_t same = w < words ? equal[w] : 0;
            int count = __popc(same), sum = count;
#pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                int other = __shfl_up_sync(~0u, sum, o);
                if (lane >= o) sum += other;
            }
            int room = left - (sum - count);
            for (; count > 0 && count > room; count--) // drop the highest bits
                same &= ~(0x80000000u >> __clz(same));
            if (same) take[w] |= same;
            left -= __shfl_sync(~0u, sum, 31);
        }
    }
    __syncthreads();
}

// The indices of the bits of take[words], ascending, into out; returns their number to all.
__device__ int enumerate(const uint32_t *take, int words, int32_t *out, Cut &c) {
    int lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        int n = 0;
        for (int w0 = 0; w0 < words; w0 += 32) {
            uint32_t bits = w0 + lane < words ? take[w0 + lane] : 0;
            int count = __popc(bits), sum = count;
#pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                int other = __shfl_up_sync(~0u, sum, o);
                if (lane >= o) sum += other;
            }
            int at = n + sum - count;
            for (; bits; bits &= bits - 1) out[at++] = (w0 + lane) * 32 + __ffs(bits) - 1;
            n += __shfl_sync(~0u, sum, 31);
        }
        if (lane == 0) c.total = n;
    }
    __syncthreads();
    return c.total;
}

// ---- the list and the slots of one pair, by one thread block ------------------------------------

struct Work { // in dynamic shared memory behind this
    Cut cut;
    int misses, copies;
    uint32_t base;
};

static size_t work_bytes(const Shape &s) {
    int words = (std::max(s.blocks, s.slots) + 31) / 32;
    return sizeof(Work) + 4 * ((size_t)s.blocks + 2 * words + 3 * s.k + 2);
}

// Least recently used slots for the blocks that are not here; copies for those that have a home
// copy. list[n] is in shared memory.
__device__ void assign(const Shape &s, const Layer &l, int p, int qb, bool fresh, int n,
                       const int32_t *list, int32_t *missing, int32_t *victim, uint32_t *take,
                       uint32_t *equal, Work &w) {
    int t = threadIdx.x, step = *s.step;
    int32_t *slot_list = l.slot_list + (int64_t)p * s.k;
    if (!l.home) { // every block is its own slot
        for (int i = t; i < s.k; i += THREADS) slot_list[i] = i < n ? list[i] : -1;
        return;
    }
    int32_t *slot_block = l.slot_block + (int64_t)p * s.slots;
    int32_t *block_slot = l.block_slot + (int64_t)p * s.blocks;
    int32_t *used = l.used + (int64_t)p * s.slots;
    if (t == 0) w.misses = w.copies = 0;
    __syncthreads();
    if (t < 32) // misses in ascending block order
        for (int i0 = 0; i0 < n; i0 += 32) {
            int i = i0 + t, slot = i < n ? block_slot[list[i]] : -1;
            bool miss = i < n && slot < 0;
            uint32_t votes = __ballot_sync(~0u, miss);
            if (miss) missing[w.misses + __popc(votes & ((1u << t) - 1))] = i;
            if (i < n && !miss) {
                used[slot] = step;
                slot_list[i] = slot;
            }
            __syncwarp();
            if (t == 0) w.misses += __popc(votes);
            __syncwarp();
        }
    for (int i = n + t; i < s.k; i += THREADS) slot_list[i] = -1;
    int words = (s.slots + 31) / 32;
    for (int i = t; i < words; i += THREADS) take[i] = 0;
    __syncthreads();
    int m = w.misses;
    // Never used: -1, the largest key; used now: 0, out of the question.
    choose(
        s.slots, m,
        [=](int i) { return used[i] == step ? 0u : 0xfffffffeu - (uint32_t)(used[i] + 1); }, take,
        equal, w.cut);
    if (m > 0) enumerate(take, words, victim, w.cut);
    bool copy_last = m > 0 && !(fresh && list[missing[m - 1]] == qb); // the new block has no copy
    int copies = m > 0 ? m - !copy_last : 0;
    if (t == 0) {
        w.base = copies > 0 ? atomicAdd(&l.queue->count, (uint32_t)copies) : 0;
        atomicAdd(l.counters + WANTED, (unsigned long long)n);
        if (copies > 0) atomicAdd(l.counters + MISSED, (unsigned long long)copies);
    }
    __syncthreads();
    for (int i = t; i < m; i += THREADS) {
        int block = list[missing[i]], slot = victim[i], old = slot_block[slot];
        if (old >= 0) block_slot[old] = -1;
        slot_block[slot] = block;
        block_slot[block] = slot;
        used[slot] = step;
        slot_list[missing[i]] = slot;
        if (i < copies)
            l.queue->item[w.base + i] =
                make_uint2((uint32_t)(p * s.blocks + block), (uint32_t)(p * s.slots + slot));
    }
}

__device__ void cut_and_assign(const Shape &s, const Layer &l, const Synthetic &syn, int layer,
                               int p, const float *score, uint8_t *shared) {
    Work &w = *(Work *)shared;
    uint32_t *key = (uint32_t *)(&w + 1);
    int most = s.blocks > s.slots ? s.blocks : s.slots, max_words = (most + 31) / 32;
    uint32_t *take = key + s.blocks, *equal = take + max_words;
    int32_t *list = (int32_t *)(equal + max_words), *missing = list + s.k, *victim = missing + s.k;
    int t = threadIdx.x, pos = s.position[p / s.kv_heads], qb = pos / s.block, nb = qb + 1;
    int words = (nb + 31) / 32;
    int local0 = qb - s.local > 0 ? qb - s.local : 0, init = s.init < local0 ? s.init : local0;
    int candidates = local0 - init, room = s.k - init - (nb - local0);
    if (room > candidates) room = candidates;
    // Of these the scores choose `scored`, the importance of the keys the others.
    int scored = s.shortlist - init - (nb - local0);
    if (scored > room) scored = room;
    for (int i = t; i < words; i += THREADS) take[i] = 0;
    __syncthreads();
    if (syn.share >= 0 && l.home) {
        // Of the blocks chosen last time all but `fresh` stay, picked by a hash; `fresh` others
        // come.
        int32_t *before = l.list + (int64_t)p * s.k;
        for (int b = t; b < nb; b += THREADS) key[b] = 0;
        __syncthreads();
        for (int i = t; i < s.k; i += THREADS)
            if (before[i] >= init && before[i] < local0) key[before[i]] = 1;
        __syncthreads();
        int member = 0;
        for (int b = t; b < nb; b += THREADS) member += key[b] != 0;
        member = block_sum(member, (int *)w.cut.histogram);
        int step = *s.step;
        double each = (double)syn.share * s.k;
        int fresh = (int)(floor((step + 1) * each) - floor(step * each));
        if (fresh > room) fresh = room;
        if (fresh > candidates - member) fresh = candidates - member;
        int stay = room - fresh < member ? room - fresh : member;
        fresh = room - stay; // the first list has no predecessor
        uint64_t salt =
            mix64(syn.seed + ((uint64_t)layer << 48) + ((uint64_t)p << 32) + (uint32_t)step);
        for (int b = t; b < nb; b += THREADS) // a hash, never 0; its lowest bit: was a member
            key[b] =
                ((uint32_t)mix64(salt + (uint64_t)b * 0x9e3779b97f4a7c15ull) | 2u) & ~1u | key[b];
        __syncthreads();
        choose(
            nb, stay, [=](int b) { return key[b] & 1 ? key[b] : 0u; }, take, equal, w.cut);
        choose(
            nb, fresh,
            [=](int b) { return !(key[b] & 1) && b >= init && b < local0 ? key[b] : 0u; }, take,
            equal, w.cut);
    } else {
        for (int b = t; b < nb; b += THREADS)
            key[b] = b >= init && b < local0 ? ordered(score[b]) : 0;
        __syncthreads();
        choose(
            nb, scored, [=](int b) { return key[b]; }, take, equal, w.cut);
        if (scored < room) { // the same for all threads
            const float *importance = l.importance + (int64_t)p * s.blocks;
            for (int b = t; b < nb; b += THREADS)
                key[b] = b >= init && b < local0 && !(take[b >> 5] >> (b & 31) & 1)
                             ? ordered(importance[b])
                             : 0;
            __syncthreads();
            choose(
                nb, room - scored, [=](int b) { return key[b]; }, take, equal, w.cut);
        }
    }
    for (int i = t; i < words; i += THREADS) { // what is forced
        uint32_t bits = 0;
        for (int j = 0; j < 32; j++) {
            int b = i * 32 + j;
            if (b < nb && (b < init || b >= local0)) bits |= 1u << j;
        }
        take[i] |= bits;
    }
    __syncthreads();
    int n = enumerate(take, words, list, w.cut);
    int32_t *out = l.list + (int64_t)p * s.k;
    for (int i = t; i < s.k; i += THREADS) out[i] = i < n ? list[i] : -1;
    __syncthreads();
    assign(s, l, p, qb, pos % s.block == 0, n, list, missing, victim, take, equal, w);
    __threadfence();
    __syncthreads();
    if (t || atomicAdd(&l.queue->pairs, 1u) + 1 < (uint32_t)s.pairs()) return;
    l.queue->pairs = 0;
    __threadfence();
    store_release(&l.queue->chosen, (uint32_t)*s.step);
}

// True in the last thread block of a pair to come here, which then sees what the others wrote.
__device__ bool last_of_pair(uint32_t *arrived, int p, int parts) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived + p, 1u) == (uint32_t)parts - 1;
        if (last) arrived[p] = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// ---- window scores ------------------------------------------------------------------------------

// Scores of the thread block's SPAN blocks from its windows in shared memory, window[i] being
// window first + i, where first = per_block * (block0) - 1.
__device__ void pool_blocks(const Shape &s, const float *window, int block0, int blocks,
                            int windows, float *score) {
    for (int i = threadIdx.x; i < blocks; i += THREADS) {
        float best = -INFINITY;
        for (int j = 0; j <= s.per_block; j++) {
            int at = (block0 + i) * s.per_block - 1 + j;
            if (at >= 0 && at < windows) best = fmaxf(best, window[i * s.per_block + j]);
        }
        score[block0 + i] = best;
    }
}

struct SelectArgs {
    Shape s;
    Layer l;
    Synthetic syn;
    int layer;
    float *scores;
    uint32_t *arrived;
};

// Which blocks this thread block scores: [*from, *to), empty beyond the candidates.
__device__ __forceinline__ void span_of(const Shape &s, int p, int *from, int *to, int *windows) {
    int pos = s.position[p / s.kv_heads], qb = pos / s.block, end = qb - s.local;
    *from = blockIdx.x * SPAN;
    *to = min(*from + SPAN, max(end, 0));
    int n = pos + 1 < s.window ? 0 : (pos + 1 - s.window) / s.stride + 1;
    *windows = min(n, s.windows);
}

// f . c_j for the windows of SPAN blocks: 16 bytes a lane, d/8 lanes a window.
template <int D>
__global__ void __launch_bounds__(THREADS)
    select_forecast_kernel(SelectArgs a, const bf16 *f, int64_t f_ld) {
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr int LANES = D / 8, PER_WARP = 32 / LANES, AT_ONCE = 4;
    next_may_start();
    wait_for_previous();
    const Shape &s = a.s;
    int p = blockIdx.y, b = p / s.kv_heads, h = p % s.kv_heads;
    int from, to, windows;
    span_of(s, p, &from, &to, &windows);
    if (from < to) {
        float *window = (float *)shared;
        int lane = threadIdx.x & 31, part = lane % LANES, first = from * s.per_block - 1;
        int n = (to - from) * s.per_block + 1;
        bf16x8 mine = {*(const uint4 *)(f + b * f_ld + h * D + part * 8)};
        float x[8];
        mine.unpack(x);
        const bf16 *keys = a.l.keys + ((int64_t)b * s.windows * s.kv_heads + h) * D + part * 8;
        int64_t ld = (int64_t)s.kv_heads * D;
        constexpr int STEP = WARPS * PER_WARP;
        for (int i0 = (threadIdx.x >> 5) * PER_WARP + lane / LANES; i0 - lane / LANES < n;
             i0 += STEP * AT_ONCE) {
            uint4 raw[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                int j = first + i0 + u * STEP;
                bool valid = i0 + u * STEP < n && j >= 0 && j < windows;
                raw[u] = valid ? *(const uint4 *)(keys + j * ld) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                bf16x8 c = {raw[u]};
                float y[8], dot = 0;
                c.unpack(y);
#pragma unroll
                for (int e = 0; e < 8; e++) dot += x[e] * y[e];
#pragma unroll
                for (int o = LANES / 2; o; o /= 2) dot += __shfl_xor_sync(~0u, dot, o);
                if (part == 0 && i0 + u * STEP < n) window[i0 + u * STEP] = dot;
            }
        }
        __syncthreads();
        pool_blocks(s, window, from, to - from, windows, a.scores + (int64_t)p * s.blocks);
    }
    if (last_of_pair(a.arrived, p, gridDim.x))
        cut_and_assign(s, a.l, a.syn, a.layer, p, a.scores + (int64_t)p * s.blocks, shared);
}

// ---- the original selector: softmax of every head over all windows, then the sum of the heads
// ----

enum { LOGIT_WINDOWS = 128, LOGIT_WARPS = 4 };

// Logits (log2 units) of 16 heads x 128 windows, and each head's maximum and sum over them. Lanes
// load 16 bytes of a row; the order of dimensions inside a product is free as long as both factors
// have the same.
template <int D>
__global__ void __launch_bounds__(LOGIT_WARPS * 32)
    logits_kernel(Shape s, Layer l, const bf16 *q, int64_t q_ld, float *logits, float2 *parts) {
    __shared__ float2 shared[LOGIT_WARPS][MAX_GROUP];
    int p = blockIdx.y, b = p / s.kv_heads, h = p % s.kv_heads, pos = s.position[b];
    int windows = pos + 1 < s.window ? 0 : min((pos + 1 - s.window) / s.stride + 1, s.windows);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane % 4;
    int first = blockIdx.x * LOGIT_WINDOWS + warp * 32;
    float2 run[2] = {{-INFINITY, 0}, {-INFINITY, 0}}; // rows g and g + 8
    if (first < windows) {
        uint32_t qa[D / 32][2][4]; // [32 dimensions][half][fragment]
#pragma unroll
        for (int i = 0; i < D / 32; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = g + 8 * r;
                uint4 x = make_uint4(0, 0, 0, 0);
                if (row < s.group)
                    x = *(const uint4 *)(q + b * q_ld + (h * s.group + row) * D + i * 32 + t * 8);
                qa[i][0][r] = x.x, qa[i][0][2 + r] = x.y;
                qa[i][1][r] = x.z, qa[i][1][2 + r] = x.w;
            }
        float c[4][4] = {};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int j = first + n * 8 + g;
            const bf16 *row = l.keys + (((int64_t)b * s.windows + j) * s.kv_heads + h) * D + t * 8;
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                uint4 x = j < windows ? *(const uint4 *)(row + i * 32) : make_uint4(0, 0, 0, 0);
                ampere::mma(c[n], qa[i][0], x.x, x.y);
                ampere::mma(c[n], qa[i][1], x.z, x.w);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float best = -INFINITY, sum = 0;
            int64_t row = ((int64_t)p * MAX_GROUP + g + 8 * r) * s.windows;
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int j = first + n * 8 + 2 * t + e;
                    float &x = c[n][2 * r + e];
                    x = j < windows ? x * s.scale_log2 : -INFINITY;
                    if (j < windows) logits[row + j] = x;
                    best = fmaxf(best, x);
                }
#pragma unroll
            for (int o = 1; o < 4; o *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, o));
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (best > -INFINITY) sum += exp2f(c[n][2 * r + e] - best);
#pragma unroll
            for (int o = 1; o < 4; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
            run[r] = make_float2(best, sum);
        }
    }
    if (t == 0) shared[warp][g] = run[0], shared[warp][g + 8] = run[1];
    __syncthreads();
    if (threadIdx.x < MAX_GROUP) {
        float best = -INFINITY, sum = 0;
        for (int w = 0; w < LOGIT_WARPS; w++) best = fmaxf(best, shared[w][threadIdx.x].x);
        for (int w = 0; w < LOGIT_WARPS; w++)
            if (shared[w][threadIdx.x].y > 0)
                sum += shared[w][threadIdx.x].y * exp2f(shared[w][threadIdx.x].x - best);
        parts[((int64_t)p * gridDim.x + blockIdx.x) * MAX_GROUP + threadIdx.x] =
            make_float2(best, sum);
    }
}

__global__ void __launch_bounds__(THREADS)
    select_original_kernel(SelectArgs a, const float *logits, const float2 *parts, int n_parts) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float shift[MAX_GROUP];
    const Shape &s = a.s;
    int p = blockIdx.y;
    int from, to, windows;
    span_of(s, p, &from, &to, &windows);
    if (from < to) {
        float *window = (float *)shared;
        // log2 of the sum of each head, so that a probability is one exp2
        for (int g = threadIdx.x >> 5; g < s.group; g += WARPS) {
            int lane = threadIdx.x & 31;
            float best = -INFINITY, sum = 0;
            for (int i = lane; i < n_parts; i += 32)
                best = fmaxf(best, parts[((int64_t)p * n_parts + i) * MAX_GROUP + g].x);
#pragma unroll
            for (int o = 16; o; o /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, o));
            for (int i = lane; i < n_parts; i += 32) {
                float2 x = parts[((int64_t)p * n_parts + i) * MAX_GROUP + g];
                if (x.y > 0) sum += x.y * exp2f(x.x - best);
            }
#pragma unroll
            for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
            if (lane == 0) shift[g] = best + log2f(sum);
        }
        __syncthreads();
        int n = (to - from) * s.per_block + 1, first = from * s.per_block - 1;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            int j = first + i;
            float sum = 0;
            if (j >= 0 && j < windows)
                for (int g = 0; g < s.group; g++)
                    sum += exp2f(logits[((int64_t)p * MAX_GROUP + g) * s.windows + j] - shift[g]);
            window[i] = sum;
        }
        __syncthreads();
        pool_blocks(s, window, from, to - from, windows, a.scores + (int64_t)p * s.blocks);
    }
    if (last_of_pair(a.arrived, p, gridDim.x))
        cut_and_assign(s, a.l, a.syn, a.layer, p, a.scores + (int64_t)p * s.blocks, shared);
}

// ---- InfiniGen: partial keys of 32 channels, the best of each window's tokens -------------------

// A window's score is the largest product of its first `stride` tokens (inference.md 4: the
// maximum over 16 tokens, then the usual pooling).
__global__ void __launch_bounds__(THREADS)
    select_partial_kernel(SelectArgs a, const bf16 *f, int64_t f_ld, int channels) {
    extern __shared__ __align__(16) uint8_t shared[];
    const Shape &s = a.s;
    int p = blockIdx.y, b = p / s.kv_heads, h = p % s.kv_heads;
    int from, to, windows;
    span_of(s, p, &from, &to, &windows);
    if (from < to) {
        float *window = (float *)shared;
        int lane = threadIdx.x & 31, part = lane % 4, first = from * s.per_block - 1;
        int n = (to - from) * s.per_block + 1;
        bf16x8 mine = {*(const uint4 *)(f + b * f_ld + h * channels + part * 8)};
        float x[8];
        mine.unpack(x);
        int64_t ld = (int64_t)s.kv_heads * channels;
        const bf16 *keys =
            a.l.partial + (int64_t)b * s.blocks * s.block * ld + h * channels + part * 8;
        for (int i = threadIdx.x >> 5; i < n; i += WARPS) {
            int j = first + i;
            float best = -INFINITY;
            if (j >= 0 && j < windows)
                for (int u0 = 0; u0 < s.stride; u0 += 8) {
                    int u = u0 + lane / 4;
                    float y[8], dot = 0;
                    bf16x8 c = {make_uint4(0, 0, 0, 0)};
                    if (u < s.stride)
                        c.raw = *(const uint4 *)(keys + ((int64_t)j * s.stride + u) * ld);
                    c.unpack(y);
#pragma unroll
                    for (int e = 0; e < 8; e++) dot += x[e] * y[e];
                    dot += __shfl_xor_sync(~0u, dot, 1);
                    dot += __shfl_xor_sync(~0u, dot, 2);
                    if (u < s.stride) best = fmaxf(best, dot);
                }
#pragma unroll
            for (int o = 4; o < 32; o *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, o));
            if (lane == 0) window[i] = best;
        }
        __syncthreads();
        pool_blocks(s, window, from, to - from, windows, a.scores + (int64_t)p * s.blocks);
    }
    if (last_of_pair(a.arrived, p, gridDim.x))
        cut_and_assign(s, a.l, a.syn, a.layer, p, a.scores + (int64_t)p * s.blocks, shared);
}

// ---- host ---------------------------------------------------------------------------------------

static SelectArgs select_args(sp_decode *d, int64_t layer) {
    int64_t pairs = d->shape.pairs(), odd = layer & 1; // two selections may run at once
    return {d->shape,
            layer_of(d, layer),
            d->synthetic,
            (int)layer,
            d->scores + odd * pairs * d->shape.blocks,
            d->arrived + odd * pairs};
}

template <class Kernel>
static sp_status prepare(sp_decode *d, Kernel kernel, dim3 *grid, size_t *shared) {
    const Shape &s = d->shape;
    *grid = dim3((unsigned)ceil_div(s.blocks, SPAN), (unsigned)s.pairs());
    *shared = std::max(work_bytes(s), 4 * (size_t)(SPAN * s.per_block + 1));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)std::max<size_t>(*shared, 48 << 10)));
    return SP_OK;
}

size_t decode::select_shared(const Shape &s) {
    return work_bytes(s);
}
int decode::logit_parts(const Shape &s) {
    return (int)ceil_div(s.windows, LOGIT_WINDOWS);
}

// A selection ahead of its turn goes to a side stream, after what the main stream has so far.
static sp_status leave_main(sp_decode *d, int64_t layer) {
    CUDA_TRY(cudaEventRecord(d->ready, d->c->stream));
    CUDA_TRY(cudaStreamWaitEvent(side_of(d, layer), d->ready, 0));
    d->forked[layer & 1] = true;
    return note(d, layer, SP_AT_AHEAD, side_of(d, layer));
}

OP sp_decode_select_wait(sp_decode *d, int64_t layer) {
    // Usually the append waits by itself. With InfiniGen what the selection reads is written before
    // that, and linear layers could start behind it and keep the selection out; so could more
    // waiting thread blocks than there are multiprocessors.
    if (d->a.channels > 0 || d->shape.pairs() > d->c->sms)
        return await_on_main(d, &layer_of(d, layer).queue->chosen);
    d->awaited = layer;
    return SP_OK;
}

OP sp_decode_select_forecast(sp_decode *d, int64_t layer, sp_tensor f, bool ahead) {
    auto kernel = d->shape.d == 128 ? select_forecast_kernel<128> : select_forecast_kernel<64>;
    dim3 grid;
    size_t shared;
    SP_TRY(prepare(d, kernel, &grid, &shared));
    SelectArgs a = select_args(d, layer);
    const bf16 *x = (const bf16 *)f.data;
    if (!ahead) {
        CUDA_TRY(launch_chained(d->c, kernel, grid, dim3(THREADS), shared, a, x, f.ld));
        LAUNCHED("select_forecast", "%d pairs, %d blocks", d->shape.pairs(), d->shape.blocks);
        return SP_OK;
    }
    SP_TRY(leave_main(d, layer));
    CUDA_TRY(share_most(kernel));
    kernel<<<grid, THREADS, shared, side_of(d, layer)>>>(a, x, f.ld);
    LAUNCHED("select_forecast", "%d pairs, %d blocks, ahead", d->shape.pairs(), d->shape.blocks);
    return note(d, layer, SP_AT_CHOSEN, side_of(d, layer));
}

OP sp_decode_select_original(sp_decode *d, int64_t layer, sp_tensor q) {
    const Shape &s = d->shape;
    if (!d->logits)
        return sp_error(SP_ENVIRONMENT, "this decode engine has no room for the original selector");
    int n_parts = logit_parts(s);
    auto logits = s.d == 128 ? logits_kernel<128> : logits_kernel<64>;
    logits<<<dim3((unsigned)n_parts, (unsigned)s.pairs()), LOGIT_WARPS * 32, 0, d->c->stream>>>(
        s, layer_of(d, layer), (const bf16 *)q.data, q.ld, d->logits, d->parts);
    LAUNCHED("select logits", "%d pairs, %d windows", s.pairs(), s.windows);
    dim3 grid;
    size_t shared;
    SP_TRY(prepare(d, select_original_kernel, &grid, &shared));
    select_original_kernel<<<grid, THREADS, shared, d->c->stream>>>(select_args(d, layer),
                                                                    d->logits, d->parts, n_parts);
    LAUNCHED("select_original", "%d pairs, %d blocks", s.pairs(), s.blocks);
    return SP_OK;
}

OP sp_decode_select_partial(sp_decode *d, int64_t layer, sp_tensor projected, bool ahead) {
    dim3 grid;
    size_t shared;
    SP_TRY(prepare(d, select_partial_kernel, &grid, &shared));
    if (ahead) SP_TRY(leave_main(d, layer));
    CUDA_TRY(share_most(select_partial_kernel));
    select_partial_kernel<<<grid, THREADS, shared, ahead ? side_of(d, layer) : d->c->stream>>>(
        select_args(d, layer), (const bf16 *)projected.data, projected.ld, (int)d->a.channels);
    LAUNCHED("select_partial", "%d pairs, %d blocks", d->shape.pairs(), d->shape.blocks);
    return ahead ? note(d, layer, SP_AT_CHOSEN, side_of(d, layer)) : SP_OK;
}
