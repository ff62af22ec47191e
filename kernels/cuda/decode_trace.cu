// When things happen in a step (decode.h, sp_decode_note): one thread writes the device's clock,
// which all streams and every multiprocessor share, at its place in a stream.
#include "kernels/cuda/decode.cuh"

using namespace decode;

__global__ void note_kernel(unsigned long long *at) {
    *at = clock_now();
}

sp_status decode::note(sp_decode *d, int64_t layer, sp_decode_moment moment, cudaStream_t stream) {
    if (!d->notes) return SP_OK;
    CUDA_TRY(share_most(note_kernel));
    note_kernel<<<1, 1, 0, stream>>>(d->notes + layer * SP_MOMENTS + moment);
    LAUNCHED("decode note", "layer %lld", (long long)layer);
    return SP_OK;
}

OP sp_decode_note(sp_decode *d, int64_t layer, sp_decode_moment moment) {
    return note(d, layer, moment, d->c->stream);
}

OP sp_decode_trace(sp_decode *d, bool on) {
    int64_t bytes = (d->a.layers + 1) * SP_MOMENTS * (int64_t)sizeof *d->notes;
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    CUDA_TRY(cudaFree(d->notes));
    d->notes = NULL;
    if (!on) return SP_OK;
    CUDA_TRY(cudaMalloc(&d->notes, (size_t)bytes));
    CUDA_TRY(cudaMemset(d->notes, 0, (size_t)bytes));
    return SP_OK;
}

OP sp_decode_noted(sp_decode *d, double *ms) {
    size_t n = (size_t)((d->a.layers + 1) * SP_MOMENTS);
    std::vector<unsigned long long> at(n, 0);
    CUDA_TRY(cudaStreamSynchronize(d->c->stream));
    SP_TRY(sides_done(d));
    if (d->notes)
        CUDA_TRY(cudaMemcpy(at.data(), d->notes, n * sizeof at[0], cudaMemcpyDeviceToHost));
    unsigned long long first = 0;
    for (unsigned long long t : at)
        if (t && (!first || t < first)) first = t;
    for (size_t i = 0; i < n; i++) ms[i] = at[i] ? 1e-6 * (double)(at[i] - first) : NAN;
    return SP_OK;
}
