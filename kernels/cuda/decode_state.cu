// Decode: opening, memory, and the hand-over from prefill (kernels/decode.h).
#include "kernels/cuda/decode.cuh"

#include <cstring>
#include <new>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace decode;

// ---- sizes --------------------------------------------------------------------------------------

static Shape make_shape(const sp_decode_args *a) {
    Shape s = {};
    s.batch = (int)a->batch;
    s.kv_heads = (int)a->heads.kv_heads;
    s.group = (int)(a->heads.q_heads / a->heads.kv_heads);
    s.d = (int)a->heads.head_dim;
    s.block = (int)a->selection.block;
    s.blocks = (int)ceil_div(a->max_tokens, a->selection.block);
    s.slots = (int)a->slots;
    s.k = (int)a->selection.topk;
    s.init = (int)a->selection.init_blocks;
    s.local = (int)a->selection.local_blocks;
    s.window = (int)a->grid.kernel;
    s.stride = (int)a->grid.stride;
    s.per_block = (int)(a->selection.block / a->grid.stride);
    s.windows = (int)std::max<int64_t>(sp_windows(a->grid, a->max_tokens), 1);
    s.cis = a->shortlist > 0;
    s.shortlist = (int)(s.cis ? a->shortlist : a->selection.topk);
    // fp32 are two elements
    s.unit = 2 * a->selection.block * a->heads.head_dim + (s.cis ? 2 * a->selection.block : 0);
    s.scale_log2 = (float)(1.4426950408889634 / sqrt((double)s.d));
    return s;
}

static int64_t packed_blocks(const Shape &s) { // about 32 MiB at once
    int64_t n = ((int64_t)32 << 20) / (s.unit * 2 * s.kv_heads);
    return std::max<int64_t>(1, std::min<int64_t>(n, s.blocks));
}

struct Sizes { // bytes of each allocation
    int64_t slots, whole, keys, partial, projection, slot_map, block_map, list, queue, scores,
        logits, parts, out, ml, packed, sums, home, importance, order;
};

static Sizes sizes_of(const sp_decode_args *a, const Shape &s) {
    int64_t pairs = s.pairs(), each;
    Sizes z = {};
    z.slots = pairs * s.slots * s.unit * 2;
    z.whole = pairs * s.blocks * s.unit * 2;
    z.keys = (int64_t)s.batch * s.windows * s.kv_heads * s.d * 2;
    z.partial = (int64_t)s.batch * s.blocks * s.block * s.kv_heads * a->channels * 2;
    z.projection = pairs * s.d * a->channels * 4;
    z.slot_map = pairs * s.slots * 4;
    z.block_map = pairs * s.blocks * 4;
    z.list = pairs * s.k * 4;
    z.queue = (int64_t)sizeof(Queue) + pairs * s.k * (int64_t)sizeof(uint2);
    z.scores = 2 * pairs * s.blocks * 4;
    z.logits = a->original ? pairs * MAX_GROUP * s.windows * 4 : 0;
    z.parts = a->original ? pairs * logit_parts(s) * MAX_GROUP * 8 : 0;
    int unused;
    each = std::max(attention_pieces(s, s.k, &unused), attention_pieces(s, s.blocks, &unused));
    z.out = pairs * each * MAX_GROUP * s.d * 4;
    z.ml = pairs * each * MAX_GROUP * 8;
    z.packed = 2 * packed_blocks(s) * s.kv_heads * s.unit * 2;
    z.sums = pairs * s.k * 8;
    z.home = z.whole;
    z.importance = s.cis ? pairs * s.blocks * 4 : 0;
    z.order = s.cis ? s.kv_heads * s.blocks * 4 : 0;
    return z;
}

static int64_t homes(const sp_decode_args *a) {
    int64_t n = a->layers - a->resident;
    return a->home_layers > 0 && a->home_layers < n ? a->home_layers : n;
}

extern "C" void sp_decode_predict(const sp_decode_args *a, sp_decode_bytes *out) {
    Shape s = make_shape(a);
    Sizes z = sizes_of(a, s);
    int64_t away = a->layers - a->resident;
    *out = {};
    out->slots = away * z.slots;
    out->resident = a->resident * z.whole;
    out->compressed = a->layers * z.keys;
    out->partial = a->layers * (z.partial + z.projection);
    out->maps = away * (2 * z.slot_map + z.block_map) +
                a->layers * (2 * z.list + z.queue + COUNTERS * 8 + z.importance);
    out->workspace = z.scores + z.order + z.logits + z.parts + z.out + z.ml + z.packed + z.sums +
                     2 * s.pairs() * 4 + s.batch * 8 + 4;
    out->home = homes(a) * z.home;
}

extern "C" int64_t sp_decode_device_bytes(const sp_decode_bytes *b) {
    return b->slots + b->resident + b->compressed + b->partial + b->maps + b->workspace;
}

extern "C" sp_status sp_decode_free_memory(sp_backend *be, int64_t *bytes) {
    (void)be;
    size_t available, total;
    CUDA_TRY(cudaMemGetInfo(&available, &total));
    *bytes = (int64_t)available;
    return SP_OK;
}

// ---- memory -------------------------------------------------------------------------------------

sp_status decode::take(sp_decode *d, int64_t bytes, const char *what, int64_t *account, void *out) {
    *(void **)out = NULL;
    if (bytes == 0) return SP_OK;
    void *p;
    SP_TRY(sp_backend_take(&d->c->base, bytes, what, &p));
    d->device.push_back({p, bytes});
    *account += bytes;
    *(void **)out = p;
    return SP_OK;
}

// Pinned memory in huge pages where the system has them; touched by several threads, since the
// first touch is most of the time. Zero-filled.
sp_status decode::pin(int64_t bytes, uint8_t **host, void **device) {
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return sp_error(SP_ENVIRONMENT,
                        "no memory for %.2f GiB of key/value blocks on the host: %s",
                        (double)bytes / 0x1p30, strerror(errno));
    madvise(p, (size_t)bytes, MADV_HUGEPAGE); // a hint
    int n = (int)std::min<int64_t>(std::max(1u, std::thread::hardware_concurrency()),
                                   1 + bytes / (64 << 20));
    std::vector<std::thread> threads;
    int64_t page = 4096, share = round_up(ceil_div(bytes, n), page);
    for (int i = 0; i < n; i++)
        threads.emplace_back([=] {
            for (int64_t x = i * share; x < std::min(bytes, (i + 1) * share); x += page)
                ((volatile uint8_t *)p)[x] = 0;
        });
    for (std::thread &t : threads) t.join();
    cudaError_t e =
        cudaHostRegister(p, (size_t)bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (e == cudaSuccess) e = cudaHostGetDevicePointer(device, p, 0);
    if (e != cudaSuccess) {
        munmap(p, (size_t)bytes);
        cudaGetLastError();
        return sp_error(SP_ENVIRONMENT,
                        "%.2f GiB of host memory cannot be pinned: %s; a smaller batch or length "
                        "needs less (and 'ulimit -l' must allow it)",
                        (double)bytes / 0x1p30, cudaGetErrorString(e));
    }
    *host = (uint8_t *)p;
    return SP_OK;
}

void decode::unpin(uint8_t *host, int64_t bytes) {
    if (!host) return;
    cudaHostUnregister(host);
    munmap(host, (size_t)bytes);
}

// ---- opening ------------------------------------------------------------------------------------

static sp_status check(const sp_decode_args *a) {
    const sp_selection *s = &a->selection;
    int64_t G = a->heads.kv_heads > 0 ? a->heads.q_heads / a->heads.kv_heads : 0;
    if (a->heads.head_dim != 64 && a->heads.head_dim != 128)
        return sp_error(SP_ENVIRONMENT,
                        "decode on CUDA has kernels for heads of 64 and 128, not %lld",
                        (long long)a->heads.head_dim);
    if (G < 1 || G > MAX_GROUP)
        return sp_error(SP_ENVIRONMENT,
                        "decode on CUDA has kernels for 1 to %d query heads a KV head, not %lld",
                        MAX_GROUP, (long long)G);
    if (s->block % 16 != 0 || s->block % a->grid.stride != 0)
        return sp_error(SP_ENVIRONMENT,
                        "decode on CUDA needs blocks of a multiple of 16 tokens and of the stride "
                        "%lld, not %lld",
                        (long long)a->grid.stride, (long long)s->block);
    // 2.4, and the tokens of the newest window must be in slots
    if (s->local_blocks * s->block < a->grid.kernel)
        return sp_error(SP_ENVIRONMENT,
                        "%lld local blocks of %lld tokens do not cover a window of %lld: blocks "
                        "cannot be chosen a layer ahead",
                        (long long)s->local_blocks, (long long)s->block, (long long)a->grid.kernel);
    int64_t forced = s->init_blocks + s->local_blocks + 1;
    if (a->shortlist && (a->shortlist < forced || a->shortlist > s->topk || a->grid.kernel > 128))
        return sp_error(SP_ENVIRONMENT,
                        "a shortlist of %lld blocks of %lld, %lld of them forced, with windows of "
                        "%lld tokens is not possible",
                        (long long)a->shortlist, (long long)s->topk, (long long)forced,
                        (long long)a->grid.kernel);
    if (s->topk < forced)
        return sp_error(SP_ENVIRONMENT, "a list of %lld blocks has no room for the forced ones",
                        (long long)s->topk);
    if (a->slots < s->topk)
        return sp_error(SP_BAD_INPUT, "%lld slots cannot hold lists of %lld blocks",
                        (long long)a->slots, (long long)s->topk);
    if (a->channels != 0 && a->channels != 32)
        return sp_error(SP_ENVIRONMENT, "partial keys have 32 channels, not %lld",
                        (long long)a->channels);
    int64_t units =
        a->batch * a->heads.kv_heads * std::max(a->slots, ceil_div(a->max_tokens, s->block));
    if (a->batch < 1 || a->max_tokens < 1 || a->max_tokens > 1 << 30 || units > UINT32_MAX)
        return sp_error(SP_BAD_INPUT, "a batch of %lld sequences of %lld tokens is out of range",
                        (long long)a->batch, (long long)a->max_tokens);
    return SP_OK;
}

static sp_status allocate_layer(sp_decode *d, int64_t index, const Sizes &z,
                                std::vector<std::pair<uint8_t *, bf16 *>> &home) {
    const Shape &s = d->shape;
    Layer l = {};
    bool here = index < d->a.resident;
    l.stride = here ? s.blocks : s.slots;
    if (here)
        SP_TRY(take(d, z.whole, "key/value blocks", &d->bytes.resident, &l.slots));
    else
        SP_TRY(take(d, z.slots, "key/value slots", &d->bytes.slots, &l.slots));
    SP_TRY(take(d, z.keys, "compressed keys", &d->bytes.compressed, &l.keys));
    SP_TRY(take(d, z.partial, "partial keys", &d->bytes.partial, &l.partial));
    SP_TRY(take(d, z.projection, "projections", &d->bytes.partial, &l.projection));
    SP_TRY(take(d, z.importance, "importance of blocks", &d->bytes.maps, &l.importance));
    SP_TRY(take(d, z.list, "block lists", &d->bytes.maps, &l.list));
    SP_TRY(take(d, z.list, "slot lists", &d->bytes.maps, &l.slot_list));
    SP_TRY(take(d, z.queue, "copy lists", &d->bytes.maps, &l.queue));
    SP_TRY(take(d, COUNTERS * 8, "counters", &d->bytes.maps, &l.counters));
    CUDA_TRY(cudaMemsetAsync(l.list, 0xff, (size_t)z.list, d->c->stream));
    uint8_t *host = NULL;
    if (!here) {
        SP_TRY(take(d, z.slot_map, "slot map", &d->bytes.maps, &l.slot_block));
        SP_TRY(take(d, z.slot_map, "slot use", &d->bytes.maps, &l.used));
        SP_TRY(take(d, z.block_map, "block map", &d->bytes.maps, &l.block_slot));
        CUDA_TRY(cudaMemsetAsync(l.slot_block, 0xff, (size_t)z.slot_map, d->c->stream));
        CUDA_TRY(cudaMemsetAsync(l.used, 0xff, (size_t)z.slot_map, d->c->stream));
        CUDA_TRY(cudaMemsetAsync(l.block_slot, 0xff, (size_t)z.block_map, d->c->stream));
        size_t turn = (size_t)((index - d->a.resident) % homes(&d->a));
        if (turn == home.size()) {
            home.push_back({});
            SP_TRY(pin(z.home, &home.back().first, (void **)&home.back().second));
            d->pinned.push_back({home.back().first, z.home});
            d->bytes.home += z.home;
        }
        host = home[turn].first;
        l.home = home[turn].second;
    }
    d->home_host.push_back(host);
    d->layer.push_back(l);
    return SP_OK;
}

static sp_status allocate(sp_decode *d) {
    const Shape &s = d->shape;
    Sizes z = sizes_of(&d->a, s);
    std::vector<std::pair<uint8_t *, bf16 *>> home;
    for (int64_t l = 0; l < d->a.layers; l++) SP_TRY(allocate_layer(d, l, z, home));
    int64_t *w = &d->bytes.workspace;
    SP_TRY(take(d, z.scores, "block scores", w, &d->scores));
    SP_TRY(take(d, z.order, "order of blocks", w, &d->order));
    SP_TRY(take(d, z.logits, "selection logits", w, &d->logits));
    SP_TRY(take(d, z.parts, "selection sums", w, &d->parts));
    SP_TRY(take(d, z.out, "attention parts", w, &d->partial_out));
    SP_TRY(take(d, z.ml, "attention sums", w, &d->partial_ml));
    SP_TRY(take(d, z.packed, "blocks on their way to the host", w, &d->packed));
    SP_TRY(take(d, z.sums, "checksums", w, &d->sums));
    SP_TRY(take(d, 2 * s.pairs() * 4, "selection counters", w, &d->arrived));
    SP_TRY(take(d, s.batch * 4, "positions", w, &d->shape.position));
    SP_TRY(take(d, s.batch * 4, "tokens", w, &d->next));
    SP_TRY(take(d, 4, "step", w, &d->shape.step));
    CUDA_TRY(cudaMallocHost(&d->staging, (size_t)s.batch * 4));
    int low, high;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA_TRY(cudaEventCreateWithFlags(&d->ready, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++) {
        CUDA_TRY(cudaStreamCreateWithPriority(&d->side[i], cudaStreamNonBlocking, high));
        CUDA_TRY(cudaEventCreateWithFlags(&d->sent[i], cudaEventDisableTiming));
    }
    CUDA_TRY(cudaEventCreateWithFlags(&d->joined, cudaEventDisableTiming));
    d->awaited = -1;
    d->done.resize((size_t)d->a.layers);
    for (cudaEvent_t &e : d->done) CUDA_TRY(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    int32_t one = 1;
    CUDA_TRY(
        cudaMemcpyAsync(d->shape.step, &one, sizeof one, cudaMemcpyHostToDevice, d->c->stream));
    SP_TRY(transfer_open(d));
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    return SP_OK;
}

OP sp_decode_open(sp_backend *be, const sp_decode_args *a, sp_decode **out) {
    *out = NULL;
    if (strcmp(be->name, "cuda") != 0)
        return sp_error(SP_ENVIRONMENT, "decode with slots needs the CUDA backend, not '%s'",
                        be->name);
    SP_TRY(check(a));
    sp_decode *d = new (std::nothrow) sp_decode();
    if (!d) return sp_error(SP_ENVIRONMENT, "out of memory");
    d->c = (sp_cuda *)be;
    d->a = *a;
    d->shape = make_shape(a);
    d->synthetic.share = -1;
    d->packed_blocks = packed_blocks(d->shape);
    if ((int64_t)select_shared(d->shape) > d->c->shared_most) {
        int blocks = d->shape.blocks;
        delete d;
        return sp_error(SP_ENVIRONMENT,
                        "%d blocks and %lld slots are more than a selection on CUDA "
                        "can hold; shorten the sequences",
                        blocks, (long long)a->slots);
    }
    sp_status st = allocate(d);
    if (st != SP_OK) {
        sp_decode_close(d);
        return st;
    }
    *out = d;
    return SP_OK;
}

extern "C" void sp_decode_close(sp_decode *d) {
    if (!d) return;
    cudaStreamSynchronize(d->c->stream);
    for (cudaStream_t side : d->side)
        if (side) cudaStreamSynchronize(side);
    transfer_close(d);
    cudaFree(d->notes);
    if (d->graph) cudaGraphExecDestroy(d->graph);
    for (auto &x : d->device) sp_backend_give(&d->c->base, x.first, x.second);
    for (auto &x : d->pinned) unpin(x.first, x.second);
    cudaFreeHost(d->staging);
    for (cudaEvent_t e : d->mark) cudaEventDestroy(e);
    for (cudaEvent_t e : d->done)
        if (e) cudaEventDestroy(e);
    if (d->joined) cudaEventDestroy(d->joined);
    for (cudaEvent_t e : d->sent)
        if (e) cudaEventDestroy(e);
    if (d->ready) cudaEventDestroy(d->ready);
    for (cudaStream_t side : d->side)
        if (side) cudaStreamDestroy(side);
    delete d;
}

extern "C" void sp_decode_allocated(const sp_decode *d, sp_decode_bytes *out) {
    *out = d->bytes;
}

// ---- positions and tokens -----------------------------------------------------------------------

OP sp_decode_set(sp_decode *d, int64_t b, int64_t tokens, int32_t next) {
    if (b < 0 || b >= d->shape.batch || tokens < 0 || tokens >= d->a.max_tokens)
        return sp_error(SP_ENVIRONMENT, "sequence %lld cannot hold %lld tokens", (long long)b,
                        (long long)tokens);
    int32_t position = (int32_t)tokens;
    SP_TRY(sides_done(d));
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    CUDA_TRY(cudaMemcpy(d->shape.position + b, &position, 4, cudaMemcpyHostToDevice));
    CUDA_TRY(cudaMemcpy(d->next + b, &next, 4, cudaMemcpyHostToDevice));
    return SP_OK;
}

OP sp_decode_set_next(sp_decode *d, const int32_t *next) {
    CUDA_TRY(cudaStreamSynchronize(d->c->stream)); // an earlier upload may still read the buffer
    memcpy(d->staging, next, (size_t)d->shape.batch * 4);
    CUDA_TRY(cudaMemcpyAsync(d->next, d->staging, (size_t)d->shape.batch * 4,
                             cudaMemcpyHostToDevice, d->c->stream));
    return SP_OK;
}

OP sp_decode_get(sp_decode *d, int32_t *positions, int32_t *next) {
    size_t bytes = (size_t)d->shape.batch * 4;
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    if (positions)
        CUDA_TRY(cudaMemcpy(positions, d->shape.position, bytes, cudaMemcpyDeviceToHost));
    if (next) CUDA_TRY(cudaMemcpy(next, d->next, bytes, cudaMemcpyDeviceToHost));
    return SP_OK;
}

// ---- hand-over ----------------------------------------------------------------------------------

static sp_tensor view(sp_decode *d, void *data, int64_t rows, int64_t cols) {
    return {.backend = &d->c->base,
            .data = data,
            .dtype = SP_BF16,
            .rows = rows,
            .cols = cols,
            .ld = cols};
}

extern "C" sp_tensor sp_decode_compressed(sp_decode *d, int64_t layer, int64_t b) {
    const Shape &s = d->shape;
    int64_t cols = s.kv_heads * s.d;
    return view(d, layer_of(d, layer).keys + b * s.windows * cols, s.windows, cols);
}

extern "C" sp_tensor sp_decode_partial(sp_decode *d, int64_t layer, int64_t b) {
    const Shape &s = d->shape;
    int64_t cols = s.kv_heads * d->a.channels, rows = (int64_t)s.blocks * s.block;
    return view(d, layer_of(d, layer).partial + b * rows * cols, rows, cols);
}

struct Rows { // of a hand-over; cis may be NULL
    const bf16 *k, *v;
    int64_t k_ld, v_ld;
    const float *cis;
    int64_t cis_ld, n;
};

static Rows rows_of(sp_tensor k, sp_tensor v, sp_tensor cis, int64_t first, int64_t n) {
    return {(const bf16 *)k.data + first * k.ld,
            (const bf16 *)v.data + first * v.ld,
            k.ld,
            v.ld,
            cis.data ? (const float *)cis.data + first : NULL,
            cis.ld,
            n};
}

// Rows of tokens become units: block blockIdx.x of head blockIdx.y. Rows beyond n are zero.
__device__ void pack_unit(const Shape &s, const Rows &x, int64_t row0, int h, bf16 *unit) {
    int eighths = s.d / 8;
    const bf16 *k = x.k, *v = x.v;
    int64_t k_ld = x.k_ld, v_ld = x.v_ld, n = x.n;
    if (s.cis)
        for (int r = threadIdx.x; r < s.block; r += blockDim.x)
            importance_of(s, unit)[r] = row0 + r < n ? x.cis[h * x.cis_ld + row0 + r] : 0;
    for (int i = threadIdx.x; i < 2 * s.block * eighths; i += blockDim.x) {
        int x = i % eighths * 8, r = i / eighths;
        bool values = r >= s.block;
        int64_t row = row0 + (values ? r - s.block : r);
        const bf16 *from = values ? v + row * v_ld : k + row * k_ld;
        uint4 data = make_uint4(0, 0, 0, 0);
        if (row < n) data = *(const uint4 *)(from + h * s.d + x);
        *(uint4 *)(unit + r * s.d + x) = data;
    }
}

__global__ void pack_kernel(Shape s, Rows x, bf16 *units, int64_t head_stride) {
    int h = blockIdx.y;
    pack_unit(s, x, (int64_t)blockIdx.x * s.block, h,
              units + (h * head_stride + blockIdx.x) * s.unit);
}

// Importance comes with the rows exactly where the engine was opened for it.
static sp_status check_importance(const Shape &s, sp_tensor cis, int64_t n) {
    bool fits = !s.cis || (cis.dtype == SP_F32 && cis.rows == s.kv_heads && cis.cols >= n);
    if ((cis.data != NULL) == s.cis && fits) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "broken contract in decode: importance of keys [%lld, %lld] for %lld rows, %s",
                    (long long)cis.rows, (long long)cis.cols, (long long)n,
                    s.cis ? "needed" : "not expected");
}

OP sp_decode_put(sp_decode *d, int64_t layer, int64_t b, int64_t pos0, sp_tensor k, sp_tensor v,
                 sp_tensor cis) {
    const Shape &s = d->shape;
    const Layer &l = layer_of(d, layer);
    SP_TRY(check_importance(s, cis, k.rows));
    if (pos0 % s.block != 0 || pos0 < 0 || pos0 + k.rows > d->a.max_tokens || k.rows != v.rows ||
        k.ld % 8 != 0 || v.ld % 8 != 0 || (((uintptr_t)k.data | (uintptr_t)v.data) & 15))
        return sp_error(SP_ENVIRONMENT,
                        "broken contract in decode_put: %lld rows (ld %lld, %lld) at position %lld",
                        (long long)k.rows, (long long)k.ld, (long long)v.ld, (long long)pos0);
    int64_t first = pos0 / s.block, blocks = ceil_div(k.rows, s.block), pair0 = b * s.kv_heads;
    if (blocks == 0) return SP_OK;
    if (l.partial) SP_TRY(project_keys(d, layer, b, pos0, k));
    if (resident(l)) {
        pack_kernel<<<dim3((unsigned)blocks, (unsigned)s.kv_heads), 256, 0, d->c->stream>>>(
            s, rows_of(k, v, cis, 0, k.rows), l.slots + (pair0 * s.blocks + first) * s.unit,
            s.blocks);
        LAUNCHED("pack", "%lld blocks", (long long)blocks);
        return SP_OK;
    }
    for (int64_t at = 0; at < blocks; at += d->packed_blocks) { // two buffers in turn
        int64_t n = std::min(d->packed_blocks, blocks - at), rows0 = at * s.block;
        int turn = d->packed_turn ^= 1;
        bf16 *packed = d->packed + turn * d->packed_blocks * s.kv_heads * s.unit;
        CUDA_TRY(cudaStreamWaitEvent(d->c->stream, d->sent[turn], 0));
        pack_kernel<<<dim3((unsigned)n, (unsigned)s.kv_heads), 256, 0, d->c->stream>>>(
            s, rows_of(k, v, cis, rows0, k.rows - rows0), packed, n);
        LAUNCHED("pack", "%lld blocks", (long long)n);
        CUDA_TRY(cudaEventRecord(d->ready, d->c->stream));
        CUDA_TRY(cudaStreamWaitEvent(d->side[0], d->ready, 0));
        for (int64_t h = 0; h < s.kv_heads; h++)
            CUDA_TRY(cudaMemcpyAsync(d->home_host[(size_t)layer] +
                                         ((pair0 + h) * s.blocks + first + at) * s.unit * 2,
                                     packed + h * n * s.unit, (size_t)(n * s.unit * 2),
                                     cudaMemcpyDeviceToHost, d->side[0]));
        CUDA_TRY(cudaEventRecord(d->sent[turn], d->side[0]));
    }
    return SP_OK;
}

// One thread block a list entry and head; the maps were emptied before.
__global__ void fill_kernel(Shape s, Layer l, int b, Rows x, const int32_t *list) {
    int i = blockIdx.x, h = blockIdx.y, p = b * s.kv_heads + h, qb = (int)((x.n - 1) / s.block);
    int block = -1;
    if (list) {
        block = list[h * s.k + i];
    } else {
        int local0 = qb - s.local > 0 ? qb - s.local : 0, init = s.init < local0 ? s.init : local0;
        block = i < init ? i : local0 + i - init;
        if (block > qb) block = -1;
    }
    if (threadIdx.x == 0) l.list[p * s.k + i] = block;
    if (block < 0 || !l.home) return;
    pack_unit(s, x, (int64_t)block * s.block, h, l.slots + ((int64_t)p * s.slots + i) * s.unit);
    if (threadIdx.x == 0) {
        l.slot_block[(int64_t)p * s.slots + i] = block;
        l.block_slot[(int64_t)p * s.blocks + block] = i;
        l.used[(int64_t)p * s.slots + i] = 0;
    }
}

// Of the blocks of sequence b so far; those to come have none yet.
static sp_status fill_importance(sp_decode *d, const Layer &l, int64_t b, sp_tensor cis,
                                 int64_t tokens) {
    const Shape &s = d->shape;
    sp_tensor all = {.backend = &d->c->base,
                     .data = l.importance + b * s.kv_heads * s.blocks,
                     .dtype = SP_F32,
                     .rows = s.kv_heads,
                     .cols = s.blocks,
                     .ld = s.blocks};
    sp_tensor order = all;
    order.data = d->order;
    order.dtype = SP_I32;
    int64_t nb = ceil_div(tokens, s.block);
    SP_TRY(sp_fill(all, -INFINITY));
    return sp_cis_blocks(sp_tensor_cols(cis, 0, tokens), d->a.grid, s.block,
                         sp_tensor_cols(all, 0, nb), sp_tensor_cols(order, 0, nb));
}

OP sp_decode_fill(sp_decode *d, int64_t layer, int64_t b, sp_tensor k, sp_tensor v, sp_tensor cis,
                  int64_t tokens, sp_tensor list) {
    const Shape &s = d->shape;
    const Layer &l = layer_of(d, layer);
    SP_TRY(check_importance(s, cis, tokens));
    if (tokens < 1 || k.rows < tokens || v.rows < tokens || k.ld % 8 != 0 || v.ld % 8 != 0)
        return sp_error(SP_ENVIRONMENT, "broken contract in decode_fill: %lld tokens, %lld rows",
                        (long long)tokens, (long long)k.rows);
    if (s.cis) SP_TRY(fill_importance(d, l, b, cis, tokens));
    if (!resident(l)) {
        int64_t pair0 = b * s.kv_heads;
        size_t slots = (size_t)(s.kv_heads * s.slots) * 4,
               blocks = (size_t)(s.kv_heads * s.blocks) * 4;
        CUDA_TRY(cudaMemsetAsync(l.slot_block + pair0 * s.slots, 0xff, slots, d->c->stream));
        CUDA_TRY(cudaMemsetAsync(l.used + pair0 * s.slots, 0xff, slots, d->c->stream));
        CUDA_TRY(cudaMemsetAsync(l.block_slot + pair0 * s.blocks, 0xff, blocks, d->c->stream));
    }
    fill_kernel<<<dim3((unsigned)s.k, (unsigned)s.kv_heads), 128, 0, d->c->stream>>>(
        s, l, (int)b, rows_of(k, v, cis, 0, tokens), (const int32_t *)list.data);
    LAUNCHED("fill", "layer %lld, %lld tokens", (long long)layer, (long long)tokens);
    return SP_OK;
}
