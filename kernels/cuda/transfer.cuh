// Ways of getting units from pinned host memory into slots (transfer.cu), on a work list that the
// selection built: alone in `bench transfer`, inside a step in the decode engine.
#pragma once

#include "kernels/cuda/decode.cuh"

namespace decode {

// Where units come from and go to; `unit` bytes each, a multiple of 16.
struct Route {
    const uint8_t *home; // device address
    uint8_t *slots;
    const uint8_t *home_host; // the same memory for the host
    int64_t unit;
    Queue *queue;
    int64_t capacity; // items the queue can hold
};

struct Transfer {
    sp_transfer_kind kind;
    int ctas;
    bool bulk; // by bulk copies
    int64_t capacity, unit;
    bool started;       // resident: launched in this step
    cudaStream_t whole; // resident: runs beside the side streams
    cudaEvent_t ended;  // resident
    uint32_t *copied;   // resident: [layers] step of the last copies, device
    uint32_t *arrived;  // resident: [ctas] behind them
    Route *routes;      // resident: [layers] device
    int layers;
    // host-driven kinds
    uint8_t *list;             // pinned copy of a queue
    uint8_t *bounce, *landing; // gather: pinned and device, capacity units
    std::vector<void *> dst, src;
    std::vector<size_t> size;
};

sp_status transfer_make(const sp_cuda *c, Transfer *t, sp_transfer_kind kind, int64_t ctas,
                        int64_t capacity, int64_t unit);
void transfer_free(Transfer *t);
// Copies what the queue holds and empties it, on `stream`; RESIDENT as BULK or KERNEL would.
// `suppress`: empties only.
sp_status transfer_run(Transfer *t, const Route &r, bool suppress, cudaStream_t stream);

// Sums of units out[i] = checksum of the unit in slots of item i, for i < n.
sp_status checksum_units(const Route &r, int64_t n, uint64_t *out, cudaStream_t stream);
uint64_t checksum_host(const uint8_t *unit, int64_t bytes);

} // namespace decode
