// Decode: embedding, rotation, appending a token's keys and values, compressing them, advancing.
// Every position is read from device memory, so that a captured step serves all steps.
#include "kernels/cuda/decode.cuh"

using namespace decode;

// ---- embedding and rotation ---------------------------------------------------------------------

// Ids come from an argmax or were checked on the host.
__global__ void decode_embed_kernel(const int32_t *next, const bf16 *table, int64_t table_ld,
                                    float scale, bf16 *out, int64_t out_ld, int64_t cols) {
    int64_t b = blockIdx.x;
    const bf16 *row = table + next[b] * table_ld;
    for (int64_t x = threadIdx.x; x < cols; x += blockDim.x)
        out[b * out_ld + x] = __float2bfloat16(scale * __bfloat162float(row[x]));
}

OP sp_decode_embed(sp_decode *d, sp_tensor table, float scale, sp_tensor h) {
    decode_embed_kernel<<<(unsigned)h.rows, 256, 0, d->c->stream>>>(
        d->next, (const bf16 *)table.data, table.ld, scale, (bf16 *)h.data, h.ld, h.cols);
    LAUNCHED("decode embed", "[%lld, %lld]", (long long)h.rows, (long long)h.cols);
    return SP_OK;
}

// One thread block a row; the arithmetic of rope.cu.
__global__ void decode_rope_kernel(const int32_t *position, bf16 *x, int64_t ld, int heads,
                                   int half, const float *cos, const float *sin, int64_t table_ld) {
    int64_t b = blockIdx.y;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= heads * half) return;
    int m = i % half;
    bf16 *u = x + b * ld + i / half * 2 * half + m;
    float c = cos[position[b] * table_ld + m], s = sin[position[b] * table_ld + m];
    float lo = __bfloat162float(u[0]), hi = __bfloat162float(u[half]);
    u[0] = __float2bfloat16(lo * c - hi * s);
    u[half] = __float2bfloat16(hi * c + lo * s);
}

OP sp_decode_rope(sp_decode *d, sp_tensor x, sp_tensor cos, sp_tensor sin) {
    int half = d->shape.d / 2, heads = (int)(x.cols / d->shape.d);
    if (sin.ld != cos.ld)
        return sp_error(SP_ENVIRONMENT, "broken contract in rope: tables of different strides");
    decode_rope_kernel<<<dim3((unsigned)ceil_div(heads * half, 256), (unsigned)x.rows), 256, 0,
                         d->c->stream>>>(d->shape.position, (bf16 *)x.data, x.ld, heads, half,
                                         (const float *)cos.data, (const float *)sin.data, cos.ld);
    LAUNCHED("decode rope", "[%lld, %lld]", (long long)x.rows, (long long)x.cols);
    return SP_OK;
}

// ---- append -------------------------------------------------------------------------------------

__device__ __forceinline__ int slot_of(const Shape &s, const Layer &l, int p, int block) {
    return l.home ? l.block_slot[(int64_t)p * s.blocks + block] : block;
}
__device__ __forceinline__ bf16 *unit_at(const Shape &s, const Layer &l, int p, int slot) {
    return l.slots + ((int64_t)p * l.stride + slot) * s.unit;
}

// The window that begins at `from` and ends with the token at `pos` is complete: its mean importance,
// summed in the order of cis_blocks.cu, counts for its block and, if it is that block's last window,
// for the next (training.md 5.1).
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

// One thread block a pair. A window's sum runs over its tokens in order, like compress_keys.cu, so
// that both give the same bits; its last token is this step's, whose row is in k.
__global__ void __launch_bounds__(128)
    append_kernel(Shape s, Layer l, const bf16 *k, int64_t k_ld, const bf16 *v, int64_t v_ld,
                  const float *cis, int64_t cis_ld, bool compress, bool store) {
    int p = blockIdx.x, b = p / s.kv_heads, h = p % s.kv_heads, pos = s.position[b];
    const bf16 *k_row = k + b * k_ld + h * s.d;
    int from = pos + 1 - s.window;
    if (compress && from >= 0 && from % s.stride == 0) {
        bf16 *out = l.keys + ((int64_t)b * s.windows + from / s.stride) * s.kv_heads * s.d + h * s.d;
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
    const bf16 *v_row = v + b * v_ld + h * s.d;
    for (int x = threadIdx.x; x < s.d; x += blockDim.x) {
        unit[row * s.d + x] = k_row[x];
        unit[(s.block + row) * s.d + x] = v_row[x];
    }
    if (s.cis) {
        if (threadIdx.x == 0) importance_of(s, unit)[row] = cis[h * cis_ld + b];
        if (from >= 0 && from % s.stride == 0) add_window(s, l, p, from, pos, cis[h * cis_ld + b]);
    }
    if (row + 1 < s.block || !l.home) return;
    // The block is finished: its home gets it, over the bus, while the slot keeps it.
    __syncthreads();
    const uint4 *src = (const uint4 *)unit;
    uint4 *dst = (uint4 *)(l.home + ((int64_t)p * s.blocks + block) * s.unit);
    for (int i = threadIdx.x; i < s.unit / 8; i += blockDim.x) dst[i] = src[i];
    if (threadIdx.x == 0) atomicAdd(l.counters + WRITTEN, 1ull);
}

static sp_status append(sp_decode *d, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                        bool compress, bool store) {
    append_kernel<<<(unsigned)d->shape.pairs(), 128, 0, d->c->stream>>>(
        d->shape, layer_of(d, layer), (const bf16 *)k.data, k.ld, (const bf16 *)v.data, v.ld,
        (const float *)cis.data, cis.ld, compress, store);
    LAUNCHED("append", "%d pairs, layer %lld", d->shape.pairs(), (long long)layer);
    return SP_OK;
}

OP sp_decode_compress(sp_decode *d, int64_t layer, sp_tensor k) {
    return append(d, layer, k, k, {}, true, false);
}

OP sp_decode_append(sp_decode *d, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                    bool compress) {
    if ((cis.data != NULL) != d->shape.cis)
        return sp_error(SP_ENVIRONMENT, "broken contract in decode_append: importance of keys");
    return append(d, layer, k, v, cis, compress, true);
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
    advance_kernel<<<(unsigned)logits.rows, 1024, 0, d->c->stream>>>(
        (const float *)logits.data, logits.ld, (int)logits.cols, d->next, d->shape.position,
        d->shape.step);
    transfer_step_ends(d);
    LAUNCHED("advance", "[%lld, %lld]", (long long)logits.rows, (long long)logits.cols);
    return SP_OK;
}
