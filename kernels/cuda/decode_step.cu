// Decode: embedding, rotation, appending a token's keys and values, compressing them, advancing.
// Every position is read from device memory, so that a captured step serves all steps.
#include "kernels/cuda/decode.cuh"

using namespace decode;

// ---- embedding ---------------------------------------------------------------------

// Ids come from an argmax or were checked on the host.
__global__ void decode_embed_kernel(const int32_t *next, const bf16 *table, int64_t table_ld,
                                    float scale, bf16 *out, int64_t out_ld, int64_t cols,
                                    const uint32_t *arrived, int n, const int32_t *step) {
    int64_t b = blockIdx.x;
    if (b == 0) // one is enough: the next kernel waits for all of this one
        for (int i = threadIdx.x; i < n; i += blockDim.x) await_step(arrived + i, (uint32_t)*step);
    const bf16 *row = table + next[b] * table_ld;
    for (int64_t x = threadIdx.x; x < cols; x += blockDim.x)
        out[b * out_ld + x] = __float2bfloat16(scale * __bfloat162float(row[x]));
}

OP sp_decode_embed(sp_decode *d, sp_tensor table, float scale, sp_tensor h) {
    const uint32_t *arrived;
    int n;
    SP_TRY(transfer_step_begins(d, &arrived, &n));
    CUDA_TRY(share_most(decode_embed_kernel));
    decode_embed_kernel<<<(unsigned)h.rows, 256, 0, d->c->stream>>>(
        d->next, (const bf16 *)table.data, table.ld, scale, (bf16 *)h.data, h.ld, h.cols, arrived,
        n, d->shape.step);
    LAUNCHED("decode embed", "[%lld, %lld]", (long long)h.rows, (long long)h.cols);
    return SP_OK;
}

// ---- append -------------------------------------------------------------------------------------

__device__ __forceinline__ int slot_of(const Shape &s, const Layer &l, int p, int block) {
    return l.home ? l.block_slot[(int64_t)p * s.blocks + block] : block;
}
__device__ __forceinline__ bf16 *unit_at(const Shape &s, const Layer &l, int p, int slot) {
    return l.slots + ((int64_t)p * l.stride + slot) * s.unit;
}

// The window that begins at `from` and ends with the token at `pos` is complete: its mean
// importance, summed in the order of cis_blocks.cu, counts for its block and, if it is that block's
// last window, for the next (training.md 5.1).
__device__ __forceinline__ void add_window(const Shape &s, const Layer &l, int p, int from, int pos,
                                           float last) {
    __shared__ float recent[128];
    for (int t = from + threadIdx.x; t < pos; t += blockDim.x) {
        int slot = slot_of(s, l, p, t / s.block);
        recent[t - from] = importance_of(s, unit_at(s, l, p, slot))[t % s.block];
    }
    __syncthreads();
    if (threadIdx.x) return;
    float sum = 0;
    for (int t = 0; t < s.window - 1; t++) sum += recent[t];
    float mean = (sum + last) / (float)s.window;
    int window = from / s.stride, block = window / s.per_block;
    float *of_block = l.importance + (int64_t)p * s.blocks + block;
    of_block[0] = fmaxf(of_block[0], mean);
    if ((window + 1) % s.per_block == 0 && block + 1 < s.blocks)
        of_block[1] = fmaxf(of_block[1], mean);
}

// One pair, by one thread block. A window's sum runs over its tokens in order, like
// compress_keys.cu, so that both give the same bits; its last token is this step's, in k_row.
__device__ void append(const Shape &s, const Layer &l, int p, const bf16 *k_row, const bf16 *v_row,
                       float importance, bool compress, bool store) {
    int b = p / s.kv_heads, h = p % s.kv_heads, pos = s.position[b], from = pos + 1 - s.window;
    if (compress && from >= 0 && from % s.stride == 0) {
        bf16 *out =
            l.keys + ((int64_t)b * s.windows + from / s.stride) * s.kv_heads * s.d + h * s.d;
        for (int x = threadIdx.x; x < s.d; x += blockDim.x) {
            float sum = 0;
            for (int t = from; t < pos; t++) {
                int slot = slot_of(s, l, p, t / s.block);
                sum += __bfloat162float(unit_at(s, l, p, slot)[t % s.block * s.d + x]);
            }
            sum += __bfloat162float(k_row[x]);
            out[x] = __float2bfloat16(sum / s.window);
        }
    }
    if (!store) return;
    if (l.partial && threadIdx.x < 32) project_key(s, l, b, h, threadIdx.x, pos, k_row);
    int row = pos % s.block, block = pos / s.block;
    bf16 *unit = unit_at(s, l, p, slot_of(s, l, p, block));
    for (int x = threadIdx.x; x < s.d; x += blockDim.x) {
        unit[row * s.d + x] = k_row[x];
        unit[(s.block + row) * s.d + x] = v_row[x];
    }
    if (s.cis) {
        if (threadIdx.x == 0) importance_of(s, unit)[row] = importance;
        if (from >= 0 && from % s.stride == 0) add_window(s, l, p, from, pos, importance);
    }
    if (row + 1 < s.block || !l.home) return;
    // The block is finished: its home gets it, over the bus, while the slot keeps it.
    __syncthreads();
    const uint4 *src = (const uint4 *)unit;
    uint4 *dst = (uint4 *)(l.home + ((int64_t)p * s.blocks + block) * s.unit);
    for (int i = threadIdx.x; i < s.unit / 8; i += blockDim.x) dst[i] = src[i];
    if (threadIdx.x == 0) atomicAdd(l.counters + WRITTEN, 1ull);
}

// Until the slots of this step, chosen on a side stream, are known.
__device__ __forceinline__ void await_selection(const Shape &s, const Layer &l) {
    if (threadIdx.x == 0) await_step(&l.queue->chosen, (uint32_t)*s.step);
    __syncthreads();
}
static bool awaits(sp_decode *d, int64_t layer) {
    bool yes = d->awaited == layer;
    if (yes) d->awaited = -1;
    return yes;
}

enum { APPEND_THREADS = 128 };

__global__ void __launch_bounds__(APPEND_THREADS)
    append_kernel(Shape s, Layer l, const bf16 *k, int64_t k_ld, const bf16 *v, int64_t v_ld,
                  const float *cis, int64_t cis_ld, bool compress, bool store, bool wait) {
    if (wait) await_selection(s, l);
    int p = blockIdx.x, b = p / s.kv_heads, h = p % s.kv_heads;
    float importance = s.cis && store ? cis[h * cis_ld + b] : 0;
    append(s, l, p, k + b * k_ld + h * s.d, v + b * v_ld + h * s.d, importance, compress, store);
}

static sp_status launch_append(sp_decode *d, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                               bool compress, bool store) {
    CUDA_TRY(share_most(append_kernel));
    append_kernel<<<(unsigned)d->shape.pairs(), APPEND_THREADS, 0, d->c->stream>>>(
        d->shape, layer_of(d, layer), (const bf16 *)k.data, k.ld, (const bf16 *)v.data, v.ld,
        (const float *)cis.data, cis.ld, compress, store, awaits(d, layer));
    LAUNCHED("append", "%d pairs, layer %lld", d->shape.pairs(), (long long)layer);
    return SP_OK;
}

OP sp_decode_compress(sp_decode *d, int64_t layer, sp_tensor k) {
    return launch_append(d, layer, k, k, {}, true, false);
}

OP sp_decode_append(sp_decode *d, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                    bool compress) {
    if ((cis.data != NULL) != d->shape.cis)
        return sp_error(SP_ENVIRONMENT, "broken contract in decode_append: importance of keys");
    return launch_append(d, layer, k, v, cis, compress, true);
}

// ---- rotation -----------------------------------------------------------------------------------

struct RotateArgs {
    Shape s;
    Layer l;
    bf16 *x;
    int64_t ld;
    int first, skip, then; // heads that are rotated, left alone, rotated
    const float *cos, *sin;
    int64_t table_ld;
    bool append; // heads [first - skip, first) are keys, the `skip` after them values
    bool wait;   // for the selection, before that
};

// One thread block a head and row; the arithmetic of rope.cu. The block that rotated a key appends
// it.
__global__ void __launch_bounds__(APPEND_THREADS) rotate_kernel(RotateArgs a) {
    next_may_start();
    wait_for_previous();
    int b = blockIdx.y, head = blockIdx.x, half = a.s.d / 2, m = threadIdx.x;
    if (head >= a.first) head += a.skip;
    bf16 *u = a.x + b * a.ld + head * a.s.d;
    if (m < half) {
        int64_t at = a.s.position[b] * a.table_ld + m;
        float c = a.cos[at], s = a.sin[at];
        float lo = __bfloat162float(u[m]), hi = __bfloat162float(u[m + half]);
        u[m] = __float2bfloat16(lo * c - hi * s);
        u[m + half] = __float2bfloat16(hi * c + lo * s);
    }
    int h = head - (a.first - a.skip);
    if (!a.append || h < 0 || head >= a.first) return;
    __syncthreads();
    if (a.wait) await_selection(a.s, a.l);
    append(a.s, a.l, b * a.s.kv_heads + h, u, u + a.skip * a.s.d, 0, true, true);
}

static sp_status rotate(sp_decode *d, const RotateArgs &a, int64_t rows) {
    CUDA_TRY(launch_chained(d->c, rotate_kernel, dim3((unsigned)(a.first + a.then), (unsigned)rows),
                            dim3(APPEND_THREADS), 0, a));
    LAUNCHED("decode rotate", "%lld rows, %d and %d heads", (long long)rows, a.first, a.then);
    return SP_OK;
}

OP sp_decode_rope(sp_decode *d, sp_tensor x, sp_tensor cos, sp_tensor sin) {
    if (sin.ld != cos.ld)
        return sp_error(SP_ENVIRONMENT, "broken contract in rope: tables of different strides");
    return rotate(d,
                  {d->shape,
                   {},
                   (bf16 *)x.data,
                   x.ld,
                   (int)(x.cols / d->shape.d),
                   0,
                   0,
                   (const float *)cos.data,
                   (const float *)sin.data,
                   cos.ld,
                   false,
                   false},
                  x.rows);
}

OP sp_decode_rope_append(sp_decode *d, int64_t layer, sp_tensor qkvf, sp_tensor cos, sp_tensor sin,
                         bool append) {
    const Shape &s = d->shape;
    int heads = (int)(qkvf.cols / s.d), qk = s.kv_heads * (s.group + 1);
    if (sin.ld != cos.ld || heads < qk + s.kv_heads || (append && s.cis))
        return sp_error(SP_ENVIRONMENT, "broken contract in rope_append: %d heads", heads);
    return rotate(d,
                  {s, layer_of(d, layer), (bf16 *)qkvf.data, qkvf.ld, qk, s.kv_heads,
                   heads - qk - s.kv_heads, (const float *)cos.data, (const float *)sin.data,
                   cos.ld, append, append && awaits(d, layer)},
                  qkvf.rows);
}

// ---- the next token -----------------------------------------------------------------------------

// Larger values first, then lower indices: one number to take the maximum of. NaN comes last.
__device__ __forceinline__ unsigned long long rank_of(float x, uint32_t index) {
    uint32_t u = x == x ? __float_as_uint(x + 0.0f) : 0xffffffffu;
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (0xffffffffu - index);
}

__global__ void __launch_bounds__(1024)
    advance_kernel(const float *logits, int64_t ld, int vocab, int32_t *next, int32_t *position,
                   int32_t *step) {
    __shared__ unsigned long long shared[32];
    next_may_start();
    wait_for_previous();
    int b = blockIdx.x;
    unsigned long long best = 0;
    for (int x = threadIdx.x; x < vocab; x += blockDim.x) {
        unsigned long long r = rank_of(logits[b * ld + x], (uint32_t)x);
        best = r > best ? r : best;
    }
    best = block_join(best, shared, 0ull,
                      [](unsigned long long a, unsigned long long c) { return a > c ? a : c; });
    if (threadIdx.x) return;
    next[b] = (int32_t)(0xffffffffu - (uint32_t)best);
    position[b]++;
    if (b == 0) ++*step;
}

OP sp_decode_advance(sp_decode *d, sp_tensor logits) {
    SP_TRY(join_sides(d));
    CUDA_TRY(launch_chained(d->c, advance_kernel, dim3((unsigned)logits.rows), dim3(1024), 0,
                            (const float *)logits.data, logits.ld, (int)logits.cols, d->next,
                            d->shape.position, d->shape.step));
    transfer_step_ends(d);
    LAUNCHED("advance", "[%lld, %lld]", (long long)logits.rows, (long long)logits.cols);
    return SP_OK;
}
