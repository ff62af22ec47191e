// The transfer engine alone: the sweep of inference.md 3.4, and the choice made at start-up.
#include "kernels/cuda/transfer.cuh"

#include <cstring>

using namespace decode;

enum { REFERENCE_BYTES = 256 << 20, LISTS = 16, MATRIX = 4096, PRODUCTS = 16 };

struct sp_transfer_bench {
    sp_cuda *c;
    int64_t pool_bytes, unit, max_units, queue_bytes;
    uint8_t *pool, *pool_device, *slots, *queues;
    uint64_t *sums;
    cudaStream_t side;
    cudaEvent_t start, stop;
    double reference; // GB/s
    bf16 *matrix[3];  // made when first asked for
    uint64_t state;
};

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

__global__ void pool_kernel(uint64_t *out, int64_t n, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        out[i] = mix64(seed + i * 0x9e3779b97f4a7c15ull);
}

static sp_status elapsed(cudaEvent_t a, cudaEvent_t b, double *us) {
    float ms;
    CUDA_TRY(cudaEventSynchronize(b));
    CUDA_TRY(cudaEventElapsedTime(&ms, a, b));
    *us = 1e3 * ms;
    return SP_OK;
}

static sp_status measure_reference(sp_transfer_bench *b) {
    int64_t bytes = std::min<int64_t>(REFERENCE_BYTES, b->pool_bytes);
    void *to;
    SP_TRY(sp_backend_take(&b->c->base, bytes, "a transfer benchmark", &to));
    sp_status st = SP_OK;
    double us[7];
    for (int i = -2; i < 7 && st == SP_OK; i++) {
        cudaEventRecord(b->start, b->side);
        cudaMemcpyAsync(to, b->pool, (size_t)bytes, cudaMemcpyHostToDevice, b->side);
        cudaEventRecord(b->stop, b->side);
        st = elapsed(b->start, b->stop, &us[i < 0 ? 0 : i]);
    }
    sp_backend_give(&b->c->base, to, bytes);
    SP_TRY(st);
    qsort(us, 7, sizeof *us, compare_doubles);
    b->reference = (double)bytes / us[0] * 1e-3; // a ceiling: the fastest
    return SP_OK;
}

static sp_status open_bench(sp_transfer_bench *b) {
    void *device, *p;
    SP_TRY(pin(b->pool_bytes, &b->pool, &device));
    b->pool_device = (uint8_t *)device;
    SP_TRY(sp_backend_take(&b->c->base, b->max_units * b->unit, "a transfer benchmark", &p));
    b->slots = (uint8_t *)p;
    SP_TRY(sp_backend_take(&b->c->base, LISTS * b->queue_bytes, "a transfer benchmark", &p));
    b->queues = (uint8_t *)p;
    SP_TRY(sp_backend_take(&b->c->base, b->max_units * 8, "a transfer benchmark", &p));
    b->sums = (uint64_t *)p;
    int low, high;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA_TRY(cudaStreamCreateWithPriority(&b->side, cudaStreamNonBlocking, high));
    CUDA_TRY(cudaEventCreate(&b->start));
    CUDA_TRY(cudaEventCreate(&b->stop));
    pool_kernel<<<264, 256, 0, b->side>>>((uint64_t *)b->pool_device, b->pool_bytes / 8, 1);
    LAUNCHED("pool", "%lld bytes", (long long)b->pool_bytes);
    CUDA_TRY(cudaStreamSynchronize(b->c->stream));
    CUDA_TRY(cudaStreamSynchronize(b->side));
    return measure_reference(b);
}

OP sp_transfer_bench_open(sp_backend *be, int64_t pool_bytes, int64_t unit_bytes, int64_t max_units,
                          sp_transfer_bench **out) {
    *out = NULL;
    if (strcmp(be->name, "cuda") != 0)
        return sp_error(SP_ENVIRONMENT, "transfers are measured on a GPU, not on backend '%s'",
                        be->name);
    if (unit_bytes < 16 || unit_bytes % 16 || max_units < 1 || pool_bytes / unit_bytes < max_units)
        return sp_error(SP_BAD_INPUT,
                        "a pool of %lld bytes and lists of %lld units of %lld bytes: units are "
                        "multiples of 16 bytes, and a list must fit into the pool",
                        (long long)pool_bytes, (long long)max_units, (long long)unit_bytes);
    sp_transfer_bench *b;
    SP_TRY(sp_alloc(&b, 1, sizeof *b, "a transfer benchmark"));
    b->c = (sp_cuda *)be;
    b->unit = unit_bytes;
    b->pool_bytes = pool_bytes / unit_bytes * unit_bytes;
    b->max_units = max_units;
    b->queue_bytes = round_up((int64_t)sizeof(Queue) + max_units * (int64_t)sizeof(uint2), 256);
    b->state = 20260604;
    sp_status st = open_bench(b);
    if (st != SP_OK) {
        sp_transfer_bench_close(b);
        return st;
    }
    *out = b;
    return SP_OK;
}

extern "C" double sp_transfer_bench_reference(const sp_transfer_bench *b) {
    return b->reference;
}

extern "C" void sp_transfer_bench_close(sp_transfer_bench *b) {
    if (!b) return;
    if (b->side) cudaStreamSynchronize(b->side);
    for (bf16 *m : b->matrix)
        if (m) sp_backend_give(&b->c->base, m, (int64_t)MATRIX * MATRIX * 2);
    if (b->sums) sp_backend_give(&b->c->base, b->sums, b->max_units * 8);
    if (b->queues) sp_backend_give(&b->c->base, b->queues, LISTS * b->queue_bytes);
    if (b->slots) sp_backend_give(&b->c->base, b->slots, b->max_units * b->unit);
    unpin(b->pool, b->pool_bytes);
    if (b->start) cudaEventDestroy(b->start);
    if (b->stop) cudaEventDestroy(b->stop);
    if (b->side) cudaStreamDestroy(b->side);
    free(b);
}

// LISTS work lists: random units of the pool, each to a slot of its own.
static sp_status make_lists(sp_transfer_bench *b, int64_t units) {
    std::vector<uint8_t> bytes((size_t)(LISTS * b->queue_bytes));
    uint64_t in_pool = (uint64_t)(b->pool_bytes / b->unit);
    for (int l = 0; l < LISTS; l++) {
        Queue *q = (Queue *)(bytes.data() + l * b->queue_bytes);
        *q = {};
        q->count = (uint32_t)units;
        for (int64_t i = 0; i < units; i++)
            q->item[i] = make_uint2((uint32_t)(sp_splitmix64(&b->state) % in_pool), (uint32_t)i);
    }
    CUDA_TRY(
        cudaMemcpyAsync(b->queues, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, b->side));
    CUDA_TRY(cudaStreamSynchronize(b->side));
    return SP_OK;
}

static Route route_of(sp_transfer_bench *b, int list) {
    return {.home = b->pool_device,
            .slots = b->slots,
            .home_host = b->pool,
            .unit = b->unit,
            .queue = (Queue *)(b->queues + list * b->queue_bytes),
            .capacity = b->max_units};
}

static sp_status count_wrong(sp_transfer_bench *b, int list, int64_t units, int64_t *wrong) {
    Route r = route_of(b, list);
    std::vector<uint64_t> sums((size_t)units);
    std::vector<uint8_t> bytes((size_t)b->queue_bytes);
    SP_TRY(checksum_units(r, units, b->sums, b->side));
    CUDA_TRY(cudaStreamSynchronize(b->side));
    CUDA_TRY(cudaMemcpy(sums.data(), b->sums, (size_t)units * 8, cudaMemcpyDeviceToHost));
    CUDA_TRY(cudaMemcpy(bytes.data(), r.queue, bytes.size(), cudaMemcpyDeviceToHost));
    const Queue *q = (const Queue *)bytes.data();
    for (int64_t i = 0; i < units; i++)
        *wrong += sums[(size_t)i] != checksum_host(b->pool + q->item[i].x * b->unit, b->unit);
    return SP_OK;
}

static sp_status products(sp_transfer_bench *b) {
    for (int i = 0; i < PRODUCTS; i++)
        SP_TRY(sp_cuda_matmul(b->c, MATRIX, MATRIX, MATRIX, 1, b->matrix[0], MATRIX, b->matrix[1],
                              MATRIX, false, 0, b->matrix[2], SP_BF16, MATRIX));
    return SP_OK;
}

// Time of the matrix products, with copies beside them or alone.
static sp_status product_time(sp_transfer_bench *b, Transfer *t, double *us) {
    cudaStream_t main = b->c->stream;
    CUDA_TRY(cudaEventRecord(b->start, main));
    SP_TRY(products(b));
    CUDA_TRY(cudaEventRecord(b->stop, main));
    for (int l = 0; t && l < LISTS; l++) SP_TRY(transfer_run(t, route_of(b, l), false, b->side));
    SP_TRY(elapsed(b->start, b->stop, us));
    CUDA_TRY(cudaStreamSynchronize(b->side));
    return SP_OK;
}

static sp_status measure_slowdown(sp_transfer_bench *b, Transfer *t, int64_t units, double *out) {
    for (bf16 *&m : b->matrix)
        if (!m) {
            void *p;
            SP_TRY(sp_backend_take(&b->c->base, (int64_t)MATRIX * MATRIX * 2, "a matrix", &p));
            m = (bf16 *)p;
            pool_kernel<<<1056, 256, 0, b->c->stream>>>((uint64_t *)p, (int64_t)MATRIX * MATRIX / 4,
                                                        7);
        }
    double alone[5], beside[5];
    for (int i = -1; i < 5; i++) {
        SP_TRY(product_time(b, NULL, &alone[i < 0 ? 0 : i]));
        SP_TRY(make_lists(b, units));
        SP_TRY(product_time(b, t, &beside[i < 0 ? 0 : i]));
    }
    qsort(alone, 5, sizeof *alone, compare_doubles);
    qsort(beside, 5, sizeof *beside, compare_doubles);
    *out = beside[2] / alone[2];
    return SP_OK;
}

static sp_status run_case(sp_transfer_bench *b, const sp_transfer_case *c, Transfer *t,
                          sp_transfer_result *out) {
    std::vector<double> us;
    int64_t repeats = c->repeats > 0 ? c->repeats : 20;
    for (int64_t i = -LISTS; i < repeats; i++) { // the first lists are warm-up
        int list = (int)((i + LISTS) % LISTS);
        if (list == 0) SP_TRY(make_lists(b, c->units));
        double x;
        CUDA_TRY(cudaEventRecord(b->start, b->side));
        SP_TRY(transfer_run(t, route_of(b, list), false, b->side));
        CUDA_TRY(cudaEventRecord(b->stop, b->side));
        SP_TRY(elapsed(b->start, b->stop, &x));
        if (i >= 0) us.push_back(x);
        if (i == repeats - 1) SP_TRY(count_wrong(b, list, c->units, &out->wrong_units));
    }
    qsort(us.data(), us.size(), sizeof us[0], compare_doubles);
    out->us_median = us[us.size() / 2];
    out->us_p99 = us[(size_t)(0.99 * (double)(us.size() - 1) + 0.5)];
    out->gbps = (double)(c->units * b->unit) / out->us_median * 1e-3;
    if (c->with_matmul) SP_TRY(measure_slowdown(b, t, c->units, &out->matmul_slowdown));
    return SP_OK;
}

OP sp_transfer_bench_run(sp_transfer_bench *b, const sp_transfer_case *c, sp_transfer_result *out) {
    *out = {};
    out->reference_gbps = b->reference;
    if (c->units < 1 || c->units > b->max_units || c->ctas < 1)
        return sp_error(SP_BAD_INPUT,
                        "a list of %lld units by %lld thread blocks; at most %lld units",
                        (long long)c->units, (long long)c->ctas, (long long)b->max_units);
    Transfer t = {};
    sp_status st = transfer_make(b->c, &t, c->kind, c->ctas, b->max_units, b->unit);
    if (st == SP_OK) st = run_case(b, c, &t, out);
    transfer_free(&t);
    return st;
}

OP sp_transfer_choose(sp_backend *be, int64_t unit_bytes, int64_t units, sp_transfer_kind *kind,
                      int64_t *ctas, char **report) {
    // A few thread blocks of bulk copies that stay for a step disturb it least: linear layers leave
    // them their multiprocessors. Two are as fast as four alone, but not beside a step; where lists
    // are short that matters less than two more multiprocessors (docs/notes/decode-speed.md). A
    // card without, or a link that wants more, gets the plain kernel.
    enum { WAYS = 5 };
    units = std::max<int64_t>(1, std::min<int64_t>(units, 4096));
    const struct {
        sp_transfer_kind kind;
        int64_t ctas;
    } way[WAYS] = {{SP_TRANSFER_BULK, units * unit_bytes < 8 << 20 ? 2 : 4},
                   {SP_TRANSFER_KERNEL, 4},
                   {SP_TRANSFER_KERNEL, 8},
                   {SP_TRANSFER_KERNEL, 16},
                   {SP_TRANSFER_KERNEL, 32}};
    int64_t pool = std::max<int64_t>((int64_t)256 << 20, units * unit_bytes);
    sp_transfer_bench *b;
    SP_TRY(sp_transfer_bench_open(be, pool, unit_bytes, units, &b));
    double rate[WAYS] = {}, best = 0;
    sp_status st = SP_OK;
    for (int i = 0; i < WAYS && st == SP_OK; i++) {
        if (way[i].kind == SP_TRANSFER_BULK && !b->c->hopper) continue;
        sp_transfer_case c = {.kind = way[i].kind,
                              .ctas = way[i].ctas,
                              .units = units,
                              .unit_bytes = unit_bytes,
                              .pool_bytes = pool,
                              .repeats = 9};
        sp_transfer_result r;
        st = sp_transfer_bench_run(b, &c, &r);
        rate[i] = r.wrong_units ? 0 : r.gbps;
        best = std::max(best, rate[i]);
    }
    double reference = b->reference;
    sp_transfer_bench_close(b);
    SP_TRY(st);
    int chosen = 0;
    while (chosen < WAYS - 1 && rate[chosen] < 0.95 * best) chosen++;
    *kind = way[chosen].kind == SP_TRANSFER_BULK ? SP_TRANSFER_RESIDENT : way[chosen].kind;
    *ctas = way[chosen].ctas;
    if (report)
        *report =
            sp_format("%s with %lld thread blocks: %.1f GB/s on lists of %lld units, %.0f%% of "
                      "a plain pinned copy",
                      sp_transfer_name(*kind), (long long)*ctas, rate[chosen], (long long)units,
                      100 * rate[chosen] / reference);
    return SP_OK;
}
