// Speed of decode steps, and what limits it (inference.md 5.4 T, 9): shared by `sparda bench
// decode` and the validation pass.
//
// A measurement opens an engine, fills blocks and compressed keys with random values, and runs
// steps whose lists come from a seeded process: a share `miss` of a layer's k*Hkv units is new each
// step. So modes differ by how they serve, not by what they choose; scores and the cut of the list
// are computed all the same. Resident modes choose by score.
//
// Legend: B sequences, L layers, E a layer's time without copies, T the time of its copies.
#ifndef SPARDA_INFER_MEASURE_H
#define SPARDA_INFER_MEASURE_H

#include "infer/infer.h"
#include "infer/overlap.h"

// What the machine can do, measured.
typedef struct sp_ceilings {
    double device_gbps; // bytes read and written by a long copy inside device memory
    double link_gbps;   // one 256 MiB copy from pinned memory
} sp_ceilings;
sp_status sp_measure_ceilings(sp_backend *be, sp_ceilings *out);

typedef struct sp_decode_measurement {
    sp_infer_args engine; // max_tokens is set here
    int64_t context;      // tokens of each sequence at the first step
    int64_t steps, warmup;
    double miss;
    double home_bytes; // pinned memory for blocks, shared by layers; 0: as much as they need
    sp_ceilings ceilings;
    double *trace; // NULL, or [layers + 1][SP_MOMENTS] for sp_infer_trace of one more step
} sp_decode_measurement;

typedef struct sp_decode_speed {
    double ms_p50, ms_p99;    // of a step
    double ms_without_copies; // median with copies suppressed; modes that copy ahead only, else 0
    double units_wanted, units_missed; // a step and offloaded layer
    // Limits: E_min = bytes that must be read once / device_gbps; T_min = bytes missed / link_gbps.
    // roofline = head + E_min + (L-1) * (ahead ? max(E_min, T_min) : E_min + T_min).
    double e_min_ms, t_min_ms, head_ms, roofline_ms;
    sp_infer_memory memory; // as allocated
    char transfer[160];     // what copies
} sp_decode_speed;
sp_status sp_measure_decode(const sp_decode_measurement *m, sp_decode_speed *out);

#endif
