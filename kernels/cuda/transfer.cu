// The transfer engine (inference.md 3): one work list, several ways to copy it. The contract is in
// kernels/decode.h, sp_transfer_kind.
//
// Kernels read host memory through its mapped address. The list is final when a kernel starts, its
// order does not matter, and the last thread block to finish empties it. Host-driven kinds read the
// list back first, so they cannot be part of a graph.
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/transfer.cuh"

#include <cstring>
#include <new>
#include <type_traits>

using namespace decode;

static const char *const kind_name[] = {"auto", "kernel", "wide", "resident",
                                        "bulk", "batch",  "loop", "gather"};

extern "C" const char *sp_transfer_name(sp_transfer_kind k) {
    return (unsigned)k < SP_TRANSFER_KINDS ? kind_name[k] : "unknown";
}
extern "C" sp_transfer_kind sp_transfer_named(const char *name) {
    for (int i = 0; i < SP_TRANSFER_KINDS; i++)
        if (strcmp(name, kind_name[i]) == 0) return (sp_transfer_kind)i;
    return SP_TRANSFER_KINDS;
}
extern "C" bool sp_transfer_captures(sp_transfer_kind k) {
    return k == SP_TRANSFER_KERNEL || k == SP_TRANSFER_WIDE || k == SP_TRANSFER_RESIDENT ||
           k == SP_TRANSFER_BULK;
}

// ---- device -------------------------------------------------------------------------------------

// Bytes in flight by loads over all thread blocks, from 8 on (fewer have 32 KiB each, a unit of 64
// tokens of 128); and 16-byte loads a thread has in flight where the number of blocks does not say
// it.
constexpr int THREADS = 256, LOADED_BYTES = 256 << 10, LOADS = 8;

// Host memory is read once: past L1, and not through the read-only path, which a kernel that
// outlives a write-back must not trust.
__device__ __forceinline__ uint4 load_host(const uint8_t *p) {
    uint4 x;
    asm volatile("ld.relaxed.sys.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    return x;
}

// N loads a thread at once. A rest of at most one load each (the importance behind the keys and
// values of a unit) joins the last round: a round of its own would cost as long as a full one.
template <int N> __device__ __forceinline__ void copy_unit(const Route &r, uint2 item) {
    constexpr int64_t ROUND = THREADS * 16 * N;
    const uint8_t *src = r.home + item.x * r.unit;
    uint8_t *dst = r.slots + item.y * r.unit;
    for (int64_t x0 = 0; x0 < r.unit;) {
        bool last = r.unit - x0 <= ROUND + THREADS * 16;
        int64_t end = last ? r.unit : x0 + ROUND, mine = x0 + threadIdx.x * 16;
        uint4 x[N + 1];
#pragma unroll
        for (int i = 0; i <= N; i++)
            if (mine + i * THREADS * 16 < end) x[i] = load_host(src + mine + i * THREADS * 16);
#pragma unroll
        for (int i = 0; i <= N; i++)
            if (mine + i * THREADS * 16 < end) *(uint4 *)(dst + mine + i * THREADS * 16) = x[i];
        x0 = end;
    }
}

__device__ __forceinline__ uint32_t listed(const Queue *q) {
    return *(volatile const uint32_t *)&q->count;
}

// Called by one thread of each of `blocks` thread blocks when it is done; true in the last.
__device__ __forceinline__ bool finish(Queue *q, uint32_t blocks) {
    __threadfence();
    if (atomicAdd(&q->done, 1u) != blocks - 1) return false;
    q->logged = listed(q);
    q->count = q->ticket = q->done = 0;
    __threadfence();
    return true;
}

template <int N> __device__ __forceinline__ void drain(const Route &r) {
    __shared__ uint32_t ticket;
    uint32_t n = listed(r.queue);
    for (;;) {
        if (threadIdx.x == 0) ticket = atomicAdd(&r.queue->ticket, 1u);
        __syncthreads();
        uint32_t i = ticket;
        __syncthreads();
        if (i >= n) break;
        copy_unit<N>(r, r.queue->item[i]);
    }
}

// T1.
template <int N> __global__ void __launch_bounds__(THREADS) ticket_kernel(Route r, bool suppress) {
    if (!suppress) drain<N>(r);
    __syncthreads();
    if (threadIdx.x == 0) finish(r.queue, gridDim.x);
}

// T0: thread block i copies item i.
__global__ void __launch_bounds__(THREADS) wide_kernel(Route r, bool suppress) {
    if (!suppress && blockIdx.x < listed(r.queue)) copy_unit<LOADS>(r, r.queue->item[blockIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) finish(r.queue, gridDim.x);
}

// T3: one thread moves units through shared memory, STAGES pieces of `bytes_most` at once. Blocks
// share at most BULK_BYTES: 4 of them take 80 KiB each for units of 32 KiB, which leaves room for
// one thread block of a linear layer of few rows (101 KiB) on the same multiprocessor, 16 take 22
// KiB and leave room for two. Pieces of a unit are equal: a stage that is half empty is not in
// flight. One stage is being read out while the others are filled.
constexpr int STAGES = 5, BULK_BYTES = 352 << 10, STAGE_MOST = 32 << 10;

__global__ void __launch_bounds__(32) bulk_kernel(Route r, bool suppress, int bytes_most) {
#if SPARDA_HOPPER_CODE
    extern __shared__ __align__(128) uint8_t stage[];
    __shared__ uint64_t full[STAGES];
    if (threadIdx.x) return;
    for (int i = 0; i < STAGES; i++) hopper::barrier_init(&full[i], 1);
    hopper::barrier_init_fence();
    uint32_t n = suppress ? 0 : listed(r.queue);
    int64_t pieces = (r.unit + bytes_most - 1) / bytes_most;
    struct {
        uint8_t *dst;
        uint32_t bytes;
    } sent[STAGES];
    int issued = 0, stored = 0;
    uint2 item = make_uint2(0, 0);
    int64_t piece = pieces; // of the present unit; all done
    bool more = true;
    while (more || stored < issued) {
        while (more && issued - stored < STAGES) {
            if (piece == pieces) {
                uint32_t i = atomicAdd(&r.queue->ticket, 1u);
                if (i >= n) {
                    more = false;
                    break;
                }
                item = r.queue->item[i];
                piece = 0;
            }
            int s = issued % STAGES;
            int64_t at = piece * bytes_most;
            uint32_t bytes = (uint32_t)(r.unit - at < bytes_most ? r.unit - at : bytes_most);
            if (issued >= STAGES) // the stage's last store has been read out
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            hopper::barrier_expect_bytes(&full[s], bytes);
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                         "[%1], %2, [%3];" ::"r"(hopper::smem_address(stage + s * bytes_most)),
                         "l"(r.home + item.x * r.unit + at), "r"(bytes),
                         "r"(hopper::smem_address(&full[s]))
                         : "memory");
            sent[s].dst = r.slots + item.y * r.unit + at;
            sent[s].bytes = bytes;
            issued++;
            piece++;
        }
        if (stored == issued) break;
        int s = stored % STAGES;
        hopper::barrier_wait(&full[s], (uint32_t)(stored / STAGES) & 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile(
            "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(sent[s].dst),
            "r"(hopper::smem_address(stage + s * bytes_most)), "r"(sent[s].bytes)
            : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        stored++;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.global;" ::: "memory");
    finish(r.queue, gridDim.x);
#else
    (void)r, (void)suppress, (void)bytes_most;
#endif
}

// T2: stays for the whole step. Layer l's list is ready when flags[l] has reached the step's
// number; flags[layers + l] says that it has been copied.
template <int N>
__global__ void __launch_bounds__(THREADS)
    resident_kernel(const Route *routes, int first, int layers, uint32_t *flags,
                    const int32_t *step, bool suppress) {
    uint32_t now = (uint32_t)*step;
    for (int l = first; l < layers; l++) {
        if (threadIdx.x == 0)
            while (true) {
                uint32_t seen;
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flags + l));
                if (seen == now) break;
                __nanosleep(100);
            }
        __syncthreads();
        Route r = routes[l];
        if (!suppress) drain<N>(r);
        __syncthreads();
        if (threadIdx.x == 0 && finish(r.queue, gridDim.x))
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + layers + l), "r"(now)
                         : "memory");
        __syncthreads();
    }
}

__global__ void publish_kernel(uint32_t *flag, const int32_t *step) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(*step) : "memory");
}
// One warp on one multiprocessor waits; the copying blocks were launched before.
__global__ void await_kernel(const uint32_t *flag, const int32_t *step) {
    uint32_t now = (uint32_t)*step, seen;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag));
    } while (seen != now);
}

// Gathered units lie in order; item i goes to its slot.
__global__ void __launch_bounds__(THREADS) scatter_kernel(Route r, const uint8_t *landing) {
    uint2 item = r.queue->item[blockIdx.x];
    r.home = landing;
    copy_unit<LOADS>(r, make_uint2(blockIdx.x, item.y));
}
__global__ void empty_kernel(Queue *q) {
    q->logged = q->count;
    q->count = q->ticket = q->done = 0;
}

__global__ void __launch_bounds__(THREADS) checksum_kernel(Route r, uint64_t *out) {
    __shared__ uint64_t shared[32];
    const uint64_t *unit = (const uint64_t *)(r.slots + r.queue->item[blockIdx.x].y * r.unit);
    uint64_t sum = 0;
    for (int64_t i = threadIdx.x; i < r.unit / 8; i += THREADS)
        sum += checksum_word(unit[i], (uint64_t)i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// ---- host ---------------------------------------------------------------------------------------

// Bytes of a stage: those of the equal pieces that a unit is cut into.
static int stage_bytes(int ctas, int64_t unit) {
    int64_t most = std::min<int64_t>(std::max(BULK_BYTES / STAGES / ctas, 1 << 10), STAGE_MOST);
    return (int)round_up(ceil_div(unit, ceil_div(unit, most / 128 * 128)), 128);
}

// Calls f with the loads that each thread of `ctas` thread blocks has in flight, as a constant.
template <class F> static void with_loads(int ctas, F f) {
    int loads = LOADED_BYTES / (THREADS * 16) / ctas;
    if (loads >= 8)
        f(std::integral_constant<int, 8>());
    else if (loads >= 4)
        f(std::integral_constant<int, 4>());
    else
        f(std::integral_constant<int, 2>());
}

sp_status decode::checksum_units(const Route &r, int64_t n, uint64_t *out, cudaStream_t stream) {
    if (n == 0) return SP_OK;
    checksum_kernel<<<(unsigned)n, THREADS, 0, stream>>>(r, out);
    LAUNCHED("checksums", "%lld units", (long long)n);
    return SP_OK;
}

uint64_t decode::checksum_host(const uint8_t *unit, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < bytes / 8; i++)
        sum += checksum_word(((const uint64_t *)unit)[i], (uint64_t)i);
    return sum;
}

// A multiprocessor divides its memory between L1 and shared memory once for all blocks on it.
// Copying blocks need little of it; they must not keep out blocks of linear layers that need much.
static sp_status share_multiprocessors(int ctas) {
    const cudaFuncAttribute carveout = cudaFuncAttributePreferredSharedMemoryCarveout;
    cudaError_t e = cudaFuncSetAttribute(bulk_kernel, carveout, cudaSharedmemCarveoutMaxShared);
    with_loads(ctas, [&](auto n) {
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute(ticket_kernel<n.value>, carveout,
                                     cudaSharedmemCarveoutMaxShared);
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute(resident_kernel<n.value>, carveout,
                                     cudaSharedmemCarveoutMaxShared);
    });
    CUDA_TRY(e);
    return SP_OK;
}

sp_status decode::transfer_make(const sp_cuda *c, Transfer *t, sp_transfer_kind kind, int64_t ctas,
                                int64_t capacity, int64_t unit) {
    if (kind == SP_TRANSFER_BULK && !c->hopper)
        return sp_error(SP_ENVIRONMENT,
                        "transfer 'bulk' needs the Hopper kernels of a card of compute "
                        "capability 9.0; 'kernel' runs on any");
    t->kind = kind;
    t->ctas = (int)ctas;
    t->capacity = capacity;
    t->unit = unit;
    if (kind == SP_TRANSFER_BULK) // the same for every number of thread blocks: engines share it
        CUDA_TRY(cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      STAGES * STAGE_MOST));
    SP_TRY(share_multiprocessors(t->ctas));
    if (sp_transfer_captures(kind)) return SP_OK;
    CUDA_TRY(cudaMallocHost(&t->list, sizeof(Queue) + (size_t)capacity * sizeof(uint2)));
    if (kind == SP_TRANSFER_GATHER) {
        CUDA_TRY(cudaMallocHost(&t->bounce, (size_t)(capacity * unit)));
        CUDA_TRY(cudaMalloc(&t->landing, (size_t)(capacity * unit)));
    } else {
        t->dst.resize((size_t)capacity);
        t->src.resize((size_t)capacity);
        t->size.assign((size_t)capacity, (size_t)unit);
    }
    return SP_OK;
}

void decode::transfer_free(Transfer *t) {
    cudaFreeHost(t->list);
    cudaFreeHost(t->bounce);
    cudaFree(t->landing);
    cudaFree(t->flags);
    cudaFree(t->routes);
}

static sp_status copy_batch(Transfer *t, int64_t n, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t index = 0;
    CUDA_TRY(cudaMemcpyBatchAsync((const void **)t->dst.data(), (const void **)t->src.data(),
                                  t->size.data(), (size_t)n, &attributes, &index, 1, stream));
    return SP_OK;
#else
    (void)t, (void)n, (void)stream;
    return sp_error(SP_ENVIRONMENT,
                    "transfer 'batch' needs CUDA 13, this program was built with %d.%d",
                    CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#endif
}

static sp_status run_from_host(Transfer *t, const Route &r, bool suppress, cudaStream_t stream) {
    size_t bytes = sizeof(Queue) + (size_t)r.capacity * sizeof(uint2);
    CUDA_TRY(cudaMemcpyAsync(t->list, r.queue, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    const Queue *q = (const Queue *)t->list;
    int64_t n = suppress ? 0 : q->count;
    if (n > t->capacity)
        return sp_error(SP_ENVIRONMENT, "a copy list of %lld units, room for %lld", (long long)n,
                        (long long)t->capacity);
    if (t->kind == SP_TRANSFER_GATHER) {
        sp_gather_units(t->bounce, r.home_host, (const uint32_t *)q->item, n, r.unit);
        if (n > 0) {
            CUDA_TRY(cudaMemcpyAsync(t->landing, t->bounce, (size_t)(n * r.unit),
                                     cudaMemcpyHostToDevice, stream));
            scatter_kernel<<<(unsigned)n, THREADS, 0, stream>>>(r, t->landing);
            LAUNCHED("scatter", "%lld units", (long long)n);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            t->dst[(size_t)i] = r.slots + q->item[i].y * r.unit;
            t->src[(size_t)i] = (void *)(r.home_host + q->item[i].x * r.unit);
        }
        if (t->kind == SP_TRANSFER_BATCH && n > 0) SP_TRY(copy_batch(t, n, stream));
        if (t->kind == SP_TRANSFER_LOOP)
            for (int64_t i = 0; i < n; i++)
                CUDA_TRY(cudaMemcpyAsync(t->dst[(size_t)i], t->src[(size_t)i], (size_t)r.unit,
                                         cudaMemcpyHostToDevice, stream));
    }
    empty_kernel<<<1, 1, 0, stream>>>(r.queue);
    LAUNCHED("empty queue", "%lld units", (long long)n);
    return SP_OK;
}

sp_status decode::transfer_run(Transfer *t, const Route &r, bool suppress, cudaStream_t stream) {
    switch (t->kind) {
    case SP_TRANSFER_WIDE:
        wide_kernel<<<(unsigned)r.capacity, THREADS, 0, stream>>>(r, suppress);
        break;
    case SP_TRANSFER_BULK:
        bulk_kernel<<<(unsigned)t->ctas, 32, (size_t)(STAGES * stage_bytes(t->ctas, r.unit)),
                      stream>>>(r, suppress, stage_bytes(t->ctas, r.unit));
        break;
    case SP_TRANSFER_BATCH:
    case SP_TRANSFER_LOOP:
    case SP_TRANSFER_GATHER:
        return run_from_host(t, r, suppress, stream);
    default: // KERNEL, and RESIDENT where a copy is not ahead
        with_loads(t->ctas, [&](auto n) {
            ticket_kernel<n.value><<<(unsigned)t->ctas, THREADS, 0, stream>>>(r, suppress);
        });
    }
    LAUNCHED("transfer", "%s, %d thread blocks", sp_transfer_name(t->kind), t->ctas);
    return SP_OK;
}

// ---- inside a step ------------------------------------------------------------------------------

static Route route_of(const sp_decode *d, int64_t layer) {
    const Layer &l = layer_of(d, layer);
    return {.home = (const uint8_t *)l.home,
            .slots = (uint8_t *)l.slots,
            .home_host = d->home_host[(size_t)layer],
            .unit = d->shape.unit * 2,
            .queue = l.queue,
            .capacity = (int64_t)d->shape.pairs() * d->shape.k};
}

sp_status decode::transfer_open(sp_decode *d) {
    Transfer *t = d->transfer = new (std::nothrow) Transfer();
    if (!t) return sp_error(SP_ENVIRONMENT, "out of memory");
    if (d->a.transfer == SP_TRANSFER_AUTO || d->a.ctas < 1)
        return sp_error(SP_ENVIRONMENT, "a decode engine needs a chosen transfer and its size");
    SP_TRY(transfer_make(d->c, t, d->a.transfer, d->a.ctas, (int64_t)d->shape.pairs() * d->shape.k,
                         d->shape.unit * 2));
    if (t->kind != SP_TRANSFER_RESIDENT) return SP_OK;
    t->layers = (int)d->a.layers;
    size_t flags = 2 * (size_t)t->layers * 4, routes = (size_t)t->layers * sizeof(Route);
    CUDA_TRY(cudaMalloc(&t->flags, flags));
    CUDA_TRY(cudaMemset(t->flags, 0, flags));
    CUDA_TRY(cudaMalloc(&t->routes, routes));
    std::vector<Route> list;
    for (int l = 0; l < t->layers; l++) list.push_back(route_of(d, l));
    CUDA_TRY(cudaMemcpy(t->routes, list.data(), routes, cudaMemcpyHostToDevice));
    return SP_OK;
}

int decode::transfer_multiprocessors(const sp_decode *d) {
    const Transfer *t = d->transfer;
    bool beside = d->a.ahead && t->kind == SP_TRANSFER_BULK && t->ctas <= 8;
    return beside ? t->ctas : 0;
}

void decode::transfer_close(sp_decode *d) {
    if (!d->transfer) return;
    transfer_free(d->transfer);
    delete d->transfer;
    d->transfer = NULL;
}

void decode::transfer_step_ends(sp_decode *d) {
    d->transfer->started = false;
}

OP sp_decode_transfer(sp_decode *d, int64_t layer, bool ahead) {
    Transfer *t = d->transfer;
    if (resident(layer_of(d, layer))) return SP_OK;
    if (!ahead) return transfer_run(t, route_of(d, layer), d->suppressed, d->c->stream);
    if (t->kind != SP_TRANSFER_RESIDENT) {
        CUDA_TRY(cudaEventRecord(d->ready, d->c->stream));
        CUDA_TRY(cudaStreamWaitEvent(d->side, d->ready, 0));
        SP_TRY(note(d, layer, SP_AT_COPY, d->side));
        SP_TRY(transfer_run(t, route_of(d, layer), d->suppressed, d->side));
        SP_TRY(note(d, layer, SP_AT_COPIED, d->side));
        CUDA_TRY(cudaEventRecord(d->done[(size_t)layer], d->side));
        return SP_OK;
    }
    publish_kernel<<<1, 1, 0, d->c->stream>>>(t->flags + layer, d->shape.step);
    LAUNCHED("transfer publish", "layer %lld", (long long)layer);
    if (t->started) return SP_OK;
    t->started = true; // the copying kernel of this step, for this layer and all after it
    CUDA_TRY(cudaEventRecord(d->ready, d->c->stream));
    CUDA_TRY(cudaStreamWaitEvent(d->side, d->ready, 0));
    with_loads(t->ctas, [&](auto n) {
        resident_kernel<n.value><<<(unsigned)t->ctas, THREADS, 0, d->side>>>(
            t->routes, (int)layer, t->layers, t->flags, d->shape.step, d->suppressed);
    });
    LAUNCHED("transfer resident", "%d thread blocks", t->ctas);
    CUDA_TRY(cudaEventRecord(d->done[0], d->side));
    return SP_OK;
}

OP sp_decode_transfer_wait(sp_decode *d, int64_t layer) {
    Transfer *t = d->transfer;
    if (resident(layer_of(d, layer))) return SP_OK;
    if (t->kind != SP_TRANSFER_RESIDENT) {
        CUDA_TRY(cudaStreamWaitEvent(d->c->stream, d->done[(size_t)layer], 0));
        return SP_OK;
    }
    await_kernel<<<1, 1, 0, d->c->stream>>>(t->flags + t->layers + layer, d->shape.step);
    LAUNCHED("transfer await", "layer %lld", (long long)layer);
    if (layer + 1 == t->layers) // joins the side stream again
        CUDA_TRY(cudaStreamWaitEvent(d->c->stream, d->done[0], 0));
    return SP_OK;
}

OP sp_decode_check_copies(sp_decode *d, int64_t layer, int64_t *checked, int64_t *different) {
    const Layer &l = layer_of(d, layer);
    *checked = *different = 0;
    if (resident(l)) return SP_OK;
    Route r = route_of(d, layer);
    std::vector<uint8_t> bytes(sizeof(Queue) + (size_t)r.capacity * sizeof(uint2));
    std::vector<int32_t> position((size_t)d->shape.batch);
    CUDA_TRY(cudaStreamSynchronize(d->side));
    SP_TRY(sp_decode_get(d, position.data(), NULL));
    CUDA_TRY(cudaMemcpy(bytes.data(), l.queue, bytes.size(), cudaMemcpyDeviceToHost));
    const Queue *q = (const Queue *)bytes.data();
    int64_t n = q->logged;
    if (n > r.capacity) return sp_error(SP_ENVIRONMENT, "a copy list of %lld units", (long long)n);
    std::vector<uint64_t> sums((size_t)n);
    SP_TRY(checksum_units(r, n, d->sums, d->c->stream));
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    CUDA_TRY(cudaMemcpy(sums.data(), d->sums, (size_t)n * 8, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) {
        int64_t pair = q->item[i].x / d->shape.blocks, block = q->item[i].x % d->shape.blocks;
        int last = position[(size_t)(pair / d->shape.kv_heads)] - 1;
        if (block == last / d->shape.block)
            continue; // the block being written is ahead of its home
        ++*checked;
        *different += sums[(size_t)i] != checksum_host(r.home_host + q->item[i].x * r.unit, r.unit);
    }
    return SP_OK;
}
