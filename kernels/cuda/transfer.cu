// The transfer engine (inference.md 3): one work list, several ways to copy it. The contract is in
// kernels/decode.h, sp_transfer_kind.
//
// Kernels read host memory through its mapped address. The list is final when a kernel starts, or
// (T2) when Queue::chosen says so, its order does not matter, and the last thread block to finish
// empties it. Host-driven kinds read the list back first, so they cannot be part of a graph.
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

// T3: one thread of a block moves units through shared memory, up to STAGES pieces of `most` bytes
// at once. Up to 64 blocks share at most BULK_BYTES. Pieces of a unit are equal: a stage that is
// half empty is not in flight. One stage is being read out while the others are filled.
constexpr int STAGES = 5, BULK_BYTES = 320 << 10, STAGE_MOST = 32 << 10;

struct Bulk {
    uint8_t *stage; // shared memory, STAGES pieces
    uint64_t *full; // [STAGES] barriers
    int most;
    int issued, stored; // pieces since the kernel began
    struct {
        uint8_t *dst;
        uint32_t bytes;
    } sent[STAGES];
};

#if SPARDA_HOPPER_CODE
__device__ __forceinline__ void bulk_load(Bulk &b, const uint8_t *src, uint8_t *dst,
                                          uint32_t bytes) {
    int s = b.issued % STAGES;
    if (b.issued >= STAGES) // the stage's last store has been read out, a later one need not be
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    hopper::barrier_expect_bytes(&b.full[s], bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(hopper::smem_address(b.stage + s * b.most)),
                 "l"(src), "r"(bytes), "r"(hopper::smem_address(&b.full[s]))
                 : "memory");
    b.sent[s].dst = dst;
    b.sent[s].bytes = bytes;
    b.issued++;
}

__device__ __forceinline__ void bulk_store(Bulk &b) {
    int s = b.stored % STAGES;
    hopper::barrier_wait(&b.full[s], (uint32_t)(b.stored / STAGES) & 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(b.sent[s].dst),
                 "r"(hopper::smem_address(b.stage + s * b.most)), "r"(b.sent[s].bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    b.stored++;
}

__device__ __forceinline__ Bulk bulk_begin(uint8_t *stage, uint64_t *full, int most) {
    Bulk b = {stage, full, most};
    for (int i = 0; i < STAGES; i++) hopper::barrier_init(&full[i], 1);
    hopper::barrier_init_fence();
    return b;
}

// This thread block's share of the list, every gridDim.x-th unit, until it has landed. Blocks are
// equally fast; tickets would cost each unit two trips to memory before its copy can start.
__device__ __forceinline__ void bulk_drain(Bulk &b, const Route &r) {
    uint32_t n = listed(r.queue), i = blockIdx.x;
    uint2 next = i < n ? r.queue->item[i] : uint2();
    while (i < n) {
        const uint8_t *src = r.home + next.x * r.unit;
        uint8_t *dst = r.slots + next.y * r.unit;
        i += gridDim.x;
        if (i < n) next = r.queue->item[i];
        for (int64_t at = 0; at < r.unit; at += b.most) {
            if (b.issued - b.stored == STAGES - 1) bulk_store(b);
            bulk_load(b, src + at, dst + at, (uint32_t)min(r.unit - at, (int64_t)b.most));
        }
    }
    while (b.stored < b.issued) bulk_store(b);
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
#endif

__global__ void __launch_bounds__(32) bulk_kernel(Route r, bool suppress, int most) {
#if SPARDA_HOPPER_CODE
    extern __shared__ __align__(128) uint8_t stage[];
    __shared__ uint64_t full[STAGES];
    if (threadIdx.x) return;
    Bulk b = bulk_begin(stage, full, most);
    if (!suppress) bulk_drain(b, r);
    finish(r.queue, gridDim.x);
#else
    (void)r, (void)suppress, (void)most;
#endif
}

// T2: stays for the whole step. copied[l] is the last step whose list of layer l has been copied,
// arrived[i] the last step for which thread block i has its place: the step begins when all have,
// or its own kernels would fill the multiprocessors before them, and go on filling them.
struct Stay {
    const Route *routes;
    int first, layers; // layers first .. layers-1 have lists
    uint32_t *copied, *arrived;
    const int32_t *step;
    bool suppress;
    unsigned long long *notes; // of a traced step, or NULL
};

__device__ __forceinline__ void await_list(const Stay &s, int l, uint32_t now) {
    await_step(&s.routes[l].queue->chosen, now);
    if (s.notes && blockIdx.x == 0) s.notes[l * SP_MOMENTS + SP_AT_COPY] = clock_now();
}
__device__ __forceinline__ void list_copied(const Stay &s, int l, const Route &r, uint32_t now) {
    if (!finish(r.queue, gridDim.x)) return;
    if (s.notes) s.notes[l * SP_MOMENTS + SP_AT_COPIED] = clock_now();
    store_release(s.copied + l, now);
}

template <int N> __global__ void __launch_bounds__(THREADS) resident_kernel(Stay s) {
    uint32_t now = (uint32_t)*s.step;
    if (threadIdx.x == 0) store_release(s.arrived + blockIdx.x, now);
    for (int l = s.first; l < s.layers; l++) {
        if (threadIdx.x == 0) await_list(s, l, now);
        __syncthreads();
        Route r = s.routes[l];
        if (!s.suppress) drain<N>(r);
        __syncthreads();
        if (threadIdx.x == 0) list_copied(s, l, r, now);
        __syncthreads();
    }
}

// The same by bulk copies.
__global__ void __launch_bounds__(32) resident_bulk_kernel(Stay s, int most) {
#if SPARDA_HOPPER_CODE
    extern __shared__ __align__(128) uint8_t stage[];
    __shared__ uint64_t full[STAGES];
    if (threadIdx.x) return;
    Bulk b = bulk_begin(stage, full, most);
    uint32_t now = (uint32_t)*s.step;
    store_release(s.arrived + blockIdx.x, now);
    for (int l = s.first; l < s.layers; l++) {
        await_list(s, l, now);
        Route r = s.routes[l];
        if (!s.suppress) bulk_drain(b, r);
        list_copied(s, l, r, now);
    }
#else
    (void)s, (void)most;
#endif
}

// One thread waits, not the thread blocks of attention: they would keep those of the next layer's
// selection out.
__global__ void await_kernel(const uint32_t *at, const int32_t *step) {
    wait_for_previous();
    await_step(at, (uint32_t)*step);
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

// A multiprocessor divides its memory between L1 and shared memory once for all blocks on it. Bulk
// copies pass by L1 and must not keep out blocks of linear layers, which need much shared memory.
// Loads of the other kernels wait for their data in L1: with all of it given away, 8 blocks reach
// 66% of the link instead of 92%.
template <class Kernel> static sp_status make_bulk(Kernel kernel) {
    CUDA_TRY(share_most(kernel));
    // the same for every number of thread blocks: engines share it
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  STAGES * STAGE_MOST));
    return SP_OK;
}

sp_status decode::transfer_make(const sp_cuda *c, Transfer *t, sp_transfer_kind kind, int64_t ctas,
                                int64_t capacity, int64_t unit) {
    if (kind == SP_TRANSFER_BULK && !c->hopper)
        return sp_error(SP_ENVIRONMENT,
                        "transfer 'bulk' needs the Hopper kernels of a card of compute "
                        "capability 9.0; 'kernel' runs on any");
    if (kind == SP_TRANSFER_RESIDENT && ctas > c->sms / 2)
        return sp_error(SP_BAD_INPUT,
                        "transfer 'resident' with %lld thread blocks: at most half as many as the "
                        "%d multiprocessors, which the rest of a step needs beside them",
                        (long long)ctas, c->sms);
    t->kind = kind;
    t->ctas = (int)ctas;
    t->capacity = capacity;
    t->unit = unit;
    t->bulk = c->hopper && (kind == SP_TRANSFER_BULK || kind == SP_TRANSFER_RESIDENT);
    if (t->bulk) {
        SP_TRY(make_bulk(bulk_kernel));
        SP_TRY(make_bulk(resident_bulk_kernel));
    }
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
    cudaFree(t->copied);
    cudaFree(t->routes);
    if (t->ended) cudaEventDestroy(t->ended);
    if (t->whole) cudaStreamDestroy(t->whole);
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
    if (!sp_transfer_captures(t->kind)) return run_from_host(t, r, suppress, stream);
    if (t->kind == SP_TRANSFER_WIDE) {
        wide_kernel<<<(unsigned)r.capacity, THREADS, 0, stream>>>(r, suppress);
    } else if (t->bulk) { // RESIDENT too, where a copy is not ahead
        int most = stage_bytes(t->ctas, r.unit);
        bulk_kernel<<<(unsigned)t->ctas, 32, (size_t)(STAGES * most), stream>>>(r, suppress, most);
    } else {
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
    int low, high;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA_TRY(cudaStreamCreateWithPriority(&t->whole, cudaStreamNonBlocking, high));
    CUDA_TRY(cudaEventCreateWithFlags(&t->ended, cudaEventDisableTiming));
    t->layers = (int)d->a.layers;
    size_t flags = (size_t)(t->layers + t->ctas) * 4, routes = (size_t)t->layers * sizeof(Route);
    CUDA_TRY(cudaMalloc(&t->copied, flags));
    CUDA_TRY(cudaMemset(t->copied, 0, flags));
    t->arrived = t->copied + t->layers;
    CUDA_TRY(cudaMalloc(&t->routes, routes));
    std::vector<Route> list;
    for (int l = 0; l < t->layers; l++) list.push_back(route_of(d, l));
    CUDA_TRY(cudaMemcpy(t->routes, list.data(), routes, cudaMemcpyHostToDevice));
    return SP_OK;
}

// A few bulk blocks that stay for a step get multiprocessors of their own: they claim so much
// shared memory that no thread block of a linear layer fits beside them.
constexpr int CLAIM = 136 << 10;
static bool alone(const Transfer *t) {
    return t->kind == SP_TRANSFER_RESIDENT && t->bulk && t->ctas <= 8;
}

int decode::transfer_multiprocessors(const sp_decode *d) {
    const Transfer *t = d->transfer;
    return d->a.ahead && alone(t) ? t->ctas : 0;
}

void decode::transfer_close(sp_decode *d) {
    if (!d->transfer) return;
    if (d->transfer->whole) cudaStreamSynchronize(d->transfer->whole);
    transfer_free(d->transfer);
    delete d->transfer;
    d->transfer = NULL;
}

// The copying kernel of a step, for the lists of layers from `first` on.
static sp_status start_resident(sp_decode *d, int64_t first) {
    Transfer *t = d->transfer;
    t->started = true;
    CUDA_TRY(cudaEventRecord(d->ready, d->c->stream));
    CUDA_TRY(cudaStreamWaitEvent(t->whole, d->ready, 0));
    Stay s = {t->routes,  (int)first,    t->layers,     t->copied,
              t->arrived, d->shape.step, d->suppressed, d->notes};
    if (t->bulk) {
        int most = stage_bytes(t->ctas, t->unit), shared = STAGES * most;
        if (alone(t)) shared = std::max(shared, CLAIM);
        resident_bulk_kernel<<<(unsigned)t->ctas, 32, (size_t)shared, t->whole>>>(s, most);
    } else {
        with_loads(t->ctas, [&](auto n) {
            resident_kernel<n.value><<<(unsigned)t->ctas, THREADS, 0, t->whole>>>(s);
        });
    }
    LAUNCHED("transfer resident", "%d thread blocks", t->ctas);
    CUDA_TRY(cudaEventRecord(t->ended, t->whole));
    return SP_OK;
}

sp_status decode::transfer_step_begins(sp_decode *d, const uint32_t **arrived, int *n) {
    int64_t first = std::max<int64_t>(1, d->a.resident);
    *arrived = NULL;
    *n = 0;
    if (!d->a.ahead || d->transfer->kind != SP_TRANSFER_RESIDENT || first >= d->a.layers)
        return SP_OK;
    *arrived = d->transfer->arrived;
    *n = d->transfer->ctas;
    return start_resident(d, first);
}

sp_status decode::sides_done(const sp_decode *d) {
    for (cudaStream_t side : d->side) CUDA_TRY(cudaStreamSynchronize(side));
    if (d->transfer->whole) CUDA_TRY(cudaStreamSynchronize(d->transfer->whole));
    return SP_OK;
}

sp_status decode::join_sides(sp_decode *d) {
    for (int i = 0; i < 2; i++) {
        if (!d->forked[i]) continue;
        CUDA_TRY(cudaEventRecord(d->joined, d->side[i]));
        CUDA_TRY(cudaStreamWaitEvent(d->c->stream, d->joined, 0));
    }
    if (d->transfer->started) CUDA_TRY(cudaStreamWaitEvent(d->c->stream, d->transfer->ended, 0));
    return SP_OK;
}

void decode::transfer_step_ends(sp_decode *d) {
    d->transfer->started = d->forked[0] = d->forked[1] = false;
    d->awaited = -1;
}

OP sp_decode_transfer(sp_decode *d, int64_t layer, bool ahead) {
    Transfer *t = d->transfer;
    if (resident(layer_of(d, layer))) return SP_OK;
    if (!ahead) return transfer_run(t, route_of(d, layer), d->suppressed, d->c->stream);
    cudaStream_t side = side_of(d, layer);
    if (t->kind == SP_TRANSFER_RESIDENT) return t->started ? SP_OK : start_resident(d, layer);
    SP_TRY(note(d, layer, SP_AT_COPY, side));
    SP_TRY(transfer_run(t, route_of(d, layer), d->suppressed, side));
    SP_TRY(note(d, layer, SP_AT_COPIED, side));
    CUDA_TRY(cudaEventRecord(d->done[(size_t)layer], side));
    return SP_OK;
}

sp_status decode::await_on_main(sp_decode *d, const uint32_t *at) {
    CUDA_TRY(launch_chained(d->c, await_kernel, dim3(1), dim3(1), 0, at,
                            (const int32_t *)d->shape.step));
    LAUNCHED("await", "step at %p", (const void *)at);
    return SP_OK;
}

OP sp_decode_transfer_wait(sp_decode *d, int64_t layer) {
    Transfer *t = d->transfer;
    if (resident(layer_of(d, layer))) return SP_OK;
    if (t->kind != SP_TRANSFER_RESIDENT) {
        CUDA_TRY(cudaStreamWaitEvent(d->c->stream, d->done[(size_t)layer], 0));
        return SP_OK;
    }
    return await_on_main(d, t->copied + layer);
}

OP sp_decode_check_copies(sp_decode *d, int64_t layer, int64_t *checked, int64_t *different) {
    const Layer &l = layer_of(d, layer);
    *checked = *different = 0;
    if (resident(l)) return SP_OK;
    Route r = route_of(d, layer);
    std::vector<uint8_t> bytes(sizeof(Queue) + (size_t)r.capacity * sizeof(uint2));
    std::vector<int32_t> position((size_t)d->shape.batch);
    SP_TRY(sides_done(d));
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
