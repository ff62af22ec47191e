// Decode: the graph of a step, time marks, and what checks and speed tests look at.
#include "kernels/cuda/decode.cuh"

using namespace decode;

// ---- graph --------------------------------------------------------------------------------------

OP sp_decode_capture_begin(sp_decode *d) {
    SP_TRY(sides_done(d));
    CUDA_TRY(cudaStreamBeginCapture(d->c->stream, cudaStreamCaptureModeRelaxed));
    d->capturing = true;
    return SP_OK;
}

OP sp_decode_capture_end(sp_decode *d) {
    cudaGraph_t graph;
    d->capturing = false;
    CUDA_TRY(cudaStreamEndCapture(d->c->stream, &graph));
    if (d->graph) cudaGraphExecDestroy(d->graph);
    d->graph = NULL;
    cudaError_t e = cudaGraphInstantiate(&d->graph, graph, cudaGraphInstantiateFlagUseNodePriority);
    cudaGraphDestroy(graph);
    CUDA_TRY(e);
    CUDA_TRY(cudaGraphUpload(d->graph, d->c->stream));
    return SP_OK;
}

extern "C" void sp_decode_capture_abandon(sp_decode *d) {
    cudaGraph_t graph = NULL;
    if (!d->capturing) return;
    d->capturing = false;
    transfer_step_ends(d);
    cudaStreamEndCapture(d->c->stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
}

OP sp_decode_launch(sp_decode *d) {
    if (!d->graph) return sp_error(SP_ENVIRONMENT, "no decode step has been captured");
    CUDA_TRY(cudaGraphLaunch(d->graph, d->c->stream));
    return SP_OK;
}

OP sp_decode_mark(sp_decode *d, int64_t index) {
    if (index < 0 || index >= MARKS)
        return sp_error(SP_ENVIRONMENT, "time mark %lld of %d", (long long)index, MARKS);
    while ((int64_t)d->mark.size() <= index) {
        cudaEvent_t e;
        CUDA_TRY(cudaEventCreate(&e));
        d->mark.push_back(e);
    }
    CUDA_TRY(cudaEventRecord(d->mark[(size_t)index], d->c->stream));
    return SP_OK;
}

OP sp_decode_elapsed(sp_decode *d, int64_t from, int64_t to, double *ms) {
    float t;
    CUDA_TRY(cudaEventSynchronize(d->mark.at((size_t)to)));
    CUDA_TRY(cudaEventElapsedTime(&t, d->mark.at((size_t)from), d->mark.at((size_t)to)));
    *ms = t;
    return SP_OK;
}

// ---- looking
// --------------------------------------------------------------------------------------

static sp_status download(sp_decode *d, void *to, const void *from, int64_t bytes) {
    SP_TRY(sides_done(d));
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    CUDA_TRY(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDeviceToHost));
    return SP_OK;
}

OP sp_decode_lists(sp_decode *d, int64_t layer, int32_t *blocks, int32_t *slots) {
    const Layer &l = layer_of(d, layer);
    int64_t bytes = (int64_t)d->shape.pairs() * d->shape.k * 4;
    if (blocks) SP_TRY(download(d, blocks, l.list, bytes));
    return slots ? download(d, slots, l.slot_list, bytes) : SP_OK;
}

OP sp_decode_map(sp_decode *d, int64_t layer, int32_t *blocks) {
    const Layer &l = layer_of(d, layer);
    if (resident(l)) return sp_error(SP_ENVIRONMENT, "layer %lld is resident", (long long)layer);
    return download(d, blocks, l.slot_block, (int64_t)d->shape.pairs() * d->shape.slots * 4);
}

OP sp_decode_unit(sp_decode *d, int64_t layer, int64_t pair, int64_t slot, float *out) {
    const Layer &l = layer_of(d, layer);
    sp_tensor unit = {.backend = &d->c->base,
                      .data = l.slots + (pair * l.stride + slot) * d->shape.unit,
                      .dtype = SP_BF16,
                      .rows = 1,
                      .cols = 2 * d->shape.block * d->shape.d,
                      .ld = d->shape.unit};
    SP_TRY(sp_download(unit, out));
    if (!d->shape.cis) return SP_OK;
    out += unit.cols;
    unit.data = (bf16 *)unit.data + unit.cols;
    unit.dtype = SP_F32;
    unit.cols = d->shape.block;
    return sp_download(unit, out);
}

OP sp_decode_count(sp_decode *d, int64_t layer, sp_decode_counters *out) {
    unsigned long long n[COUNTERS];
    SP_TRY(download(d, n, layer_of(d, layer).counters, sizeof n));
    *out = {(int64_t)n[WANTED], (int64_t)n[MISSED], (int64_t)n[WRITTEN]};
    return SP_OK;
}

OP sp_decode_count_reset(sp_decode *d) {
    for (const Layer &l : d->layer)
        CUDA_TRY(cudaMemsetAsync(l.counters, 0, COUNTERS * 8, d->c->stream));
    return SP_OK;
}

// ---- speed tests
// ----------------------------------------------------------------------------------

OP sp_decode_synthetic(sp_decode *d, double share, uint64_t seed) {
    d->synthetic = {(float)share, seed};
    return SP_OK;
}

extern "C" void sp_decode_suppress_copies(sp_decode *d, bool suppress) {
    d->suppressed = suppress;
}

// Two values from each 32 bits: sign and fraction random, between 2^-7 and 1.
__global__ void random_kernel(uint4 *out, int64_t n, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t a = mix64(seed + 2 * i * 0x9e3779b97f4a7c15ull);
        uint64_t b = mix64(seed + (2 * i + 1) * 0x9e3779b97f4a7c15ull);
        auto tame = [](uint32_t x) { // bf16 bits: exponent 120 .. 126
            uint32_t sign = x & 0x80008000u, fraction = x & 0x007f007fu;
            uint32_t lo = 120 + (x >> 7 & 7) % 7, hi = 120 + (x >> 23 & 7) % 7;
            return sign | fraction | lo << 7 | hi << 23;
        };
        out[i] = make_uint4(tame((uint32_t)a), tame((uint32_t)(a >> 32)), tame((uint32_t)b),
                            tame((uint32_t)(b >> 32)));
    }
}

OP sp_decode_randomise(sp_decode *d, uint64_t seed) {
    const Shape &s = d->shape;
    cudaStream_t stream = d->c->stream;
    size_t homes = 0;
    for (const Layer &l : d->layer) {
        int64_t slots = s.pairs() * l.stride * s.unit / 8;
        int64_t keys = (int64_t)s.batch * s.windows * s.kv_heads * s.d / 8;
        int64_t partial =
            l.partial ? (int64_t)s.batch * s.blocks * s.block * s.kv_heads * d->a.channels / 8 : 0;
        random_kernel<<<1056, 256, 0, stream>>>((uint4 *)l.slots, slots, ++seed);
        random_kernel<<<1056, 256, 0, stream>>>((uint4 *)l.keys, keys, ++seed);
        if (partial) random_kernel<<<1056, 256, 0, stream>>>((uint4 *)l.partial, partial, ++seed);
        if (l.home && homes++ < d->pinned.size()) { // shared ones once
            random_kernel<<<264, 256, 0, stream>>>(
                (uint4 *)l.home, s.pairs() * (int64_t)s.blocks * s.unit / 8, ++seed);
        }
        LAUNCHED("random", "%lld", (long long)slots);
    }
    CUDA_TRY(cudaStreamSynchronize(stream));
    return SP_OK;
}
