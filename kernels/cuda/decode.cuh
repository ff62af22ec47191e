// Inside of the decode engine's device part (kernels/decode.h): its state and what its kernels are
// given. Legend as there; a pair p = b*Hkv + h.
#pragma once

#include "kernels/cuda/chained.cuh"

extern "C" {
#include "kernels/decode.h"
}

#include <algorithm>
#include <utility>
#include <vector>

namespace decode {

enum { MAX_GROUP = 16, MARKS = 4096 };

// Copies of one layer to be made, in device memory. The last thread block of a transfer sets the
// three numbers back to 0; nothing else ever does.
struct Queue {
    uint32_t count, ticket, done;
    uint32_t logged; // units of the last transfer, kept for sp_decode_check_copies
    // Pairs of the present selection that are done; the step whose list, slots and queue are
    // complete. Other streams wait for it.
    uint32_t pairs, chosen;
    uint2 item[1]; // {unit of home, unit of slots}; pairs * k of them
};

enum { WANTED, MISSED, WRITTEN, COUNTERS };

// One layer as the kernels see it. Units are numbered over all pairs: pair * NB + block at home,
// pair * stride + slot here.
struct Layer {
    bf16 *slots;
    bf16 *home;          // device address of pinned memory; NULL: resident
    int64_t stride;      // slots of a pair: C, or NB if resident
    bf16 *keys;          // compressed [B][n_w][Hkv*d]
    bf16 *partial;       // [B][NB*bs][Hkv*channels] or NULL
    float *projection;   // [B][Hkv][d][channels] or NULL
    float *importance;   // of the blocks [pairs][NB], pooled over windows as scores are, or NULL
    int32_t *slot_block; // [pairs][C], -1 none
    int32_t *block_slot; // [pairs][NB], -1 not here
    int32_t *used;       // [pairs][C] step of the last use, -1 never
    int32_t *list, *slot_list; // [pairs][k]
    Queue *queue;
    unsigned long long *counters; // [COUNTERS]
};

struct Shape {
    int batch, kv_heads, group, d, block, blocks, slots, k, init, local;
    int window, stride, per_block, windows;
    int shortlist;     // blocks of a list that scores choose: k, or fewer with importance
    bool cis;          // keys have importance
    int64_t unit;      // elements
    int32_t *position; // [B]
    int32_t *step;     // [1] counts from 1
    float scale_log2;  // log2(e)/sqrt(d)
    __host__ __device__ int pairs() const { return batch * kv_heads; }
};

// Lists from a seeded process (sp_decode_synthetic).
struct Synthetic {
    float share; // < 0: off
    uint64_t seed;
};

struct Transfer; // transfer.cuh

} // namespace decode

struct sp_decode {
    sp_cuda *c;
    sp_decode_args a;
    decode::Shape shape;
    std::vector<decode::Layer> layer;
    std::vector<uint8_t *> home_host;               // of each layer; NULL if resident
    sp_decode_bytes bytes;                          // allocated
    std::vector<std::pair<void *, int64_t>> device; // to be given back
    std::vector<std::pair<uint8_t *, int64_t>> pinned;

    cudaStream_t side[2];          // of even and of odd layers: what runs ahead of their turn
    bool forked[2];                // in this step
    int64_t awaited;               // layer whose next append waits for its selection, or -1
    cudaEvent_t ready, sent[2];    // sent: the packed units of a put have left
    std::vector<cudaEvent_t> done; // copies of a layer
    cudaEvent_t joined;
    cudaGraphExec_t graph;
    bool capturing;
    std::vector<cudaEvent_t> mark;
    unsigned long long *notes; // [layers + 1][SP_MOMENTS] device; NULL: no trace

    int32_t *next;      // [B] device
    int32_t *staging;   // pinned, [B]
    float *scores;      // [2][pairs][NB], of even and of odd layers
    int32_t *order;     // [Hkv][NB] scratch of sp_decode_fill, with importance
    uint32_t *arrived;  // [2][pairs] thread blocks of a selection that are done
    float *logits;      // [pairs][MAX_GROUP][windows] (original)
    float2 *parts;      // [pairs][chunks][MAX_GROUP] maximum and sum
    float *partial_out; // attention: [pairs][splits][MAX_GROUP][d]
    float2 *partial_ml; // [pairs][splits][MAX_GROUP]
    bf16 *packed;       // units of one put, [Hkv][blocks at once]
    int64_t packed_blocks;
    int packed_turn;
    uint64_t *sums; // checksums of pairs*k units
    decode::Synthetic synthetic;
    bool suppressed;
    decode::Transfer *transfer;
};

namespace decode {

sp_status take(sp_decode *d, int64_t bytes, const char *what, int64_t *account, void *out);

// Pinned, mapped, zero-filled host memory; a bad size or a refusal is SP_ENVIRONMENT.
sp_status pin(int64_t bytes, uint8_t **host, void **device);
void unpin(uint8_t *host, int64_t bytes);

static inline const Layer &layer_of(const sp_decode *d, int64_t l) {
    return d->layer[(size_t)l];
}
static inline bool resident(const Layer &l) {
    return l.home == NULL;
}
static inline cudaStream_t side_of(const sp_decode *d, int64_t layer) {
    return d->side[layer & 1];
}

// transfer.cu
sp_status transfer_open(sp_decode *d);
// Multiprocessors that copying blocks may have for themselves: kernels that count on all their
// thread blocks running at once leave them out.
int transfer_multiprocessors(const sp_decode *d);
void transfer_close(sp_decode *d);
// What the step's first kernel waits for: arrived[i] to be the step, i < n.
sp_status transfer_step_begins(sp_decode *d, const uint32_t **arrived, int *n);
// The side streams, and a transfer that stays, have done all they were given.
sp_status sides_done(const sp_decode *d);
// The main stream waits for what a transfer that stays, and the side streams, have been given.
sp_status join_sides(sp_decode *d);
// The main stream waits, in a kernel of one thread, until *at is the step.
sp_status await_on_main(sp_decode *d, const uint32_t *at);
void transfer_step_ends(sp_decode *d);

// Shared memory of a selection (decode_select.cu).
size_t select_shared(const Shape &s);
int logit_parts(const Shape &s); // pieces of the windows in the original selector
// Pieces that attention over n listed blocks is cut into.
int attention_pieces(const Shape &s, int n, int *blocks_each);

// Notes the clock at this place of a stream; nothing without a trace (decode_trace.cu).
sp_status note(sp_decode *d, int64_t layer, sp_decode_moment moment, cudaStream_t stream);

// Partial keys of rows k [n, Hkv*d] (decode_partial.cu).
sp_status project_keys(sp_decode *d, int64_t layer, int64_t b, int64_t pos0, sp_tensor k);

// ---- device -------------------------------------------------------------------------------------

// Importance of a unit's tokens, behind its keys and values.
__device__ __forceinline__ float *importance_of(const Shape &s, bf16 *unit) {
    return (float *)(unit + 2 * s.block * s.d);
}

// Nanoseconds, the same everywhere on the device; ticks once a microsecond or faster.
__device__ __forceinline__ unsigned long long clock_now() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *p) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
// What never comes ends the kernel, and so the step, with an error instead of a hang: a tool that
// runs kernels one at a time, say, must not run one that waits for a later one.
constexpr unsigned long long AWAIT_NANOSECONDS = 60ull * 1000 * 1000 * 1000;
__device__ __forceinline__ void await_step(const uint32_t *at, uint32_t step) {
    if (load_acquire(at) == step) return;
    unsigned long long since = clock_now();
    while (load_acquire(at) != step) {
        __nanosleep(32);
        if (clock_now() - since > AWAIT_NANOSECONDS) __trap();
    }
}
__device__ __forceinline__ void store_release(uint32_t *p, uint32_t x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

__device__ __forceinline__ uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// The checksum of a run of 8-byte words: a sum of mixed words, each with its place, so that threads
// may add in any order. The host computes the same (transfer.cu).
__host__ __device__ __forceinline__ uint64_t checksum_word(uint64_t word, uint64_t place) {
    uint64_t z = word + (place + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// One channel of one key of a sequence (decode_partial.cu).
__device__ __forceinline__ void project_key(const Shape &s, const Layer &l, int b, int h, int c,
                                            int64_t position, const bf16 *key) {
    const float *m = l.projection + ((int64_t)b * s.kv_heads + h) * s.d * 32 + c;
    float y = 0;
    for (int x = 0; x < s.d; x++) y += __bfloat162float(key[x]) * m[x * 32];
    l.partial[(((int64_t)b * s.blocks * s.block + position) * s.kv_heads + h) * 32 + c] =
        __float2bfloat16(y);
}

} // namespace decode
