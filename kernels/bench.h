// Micro-benchmarks of the operations, at the shapes of the tiny base model or of an 8B one.
#ifndef SPARDA_KERNELS_BENCH_H
#define SPARDA_KERNELS_BENCH_H

#include "kernels/kernels.h"

#include <jansson.h>

typedef struct sp_bench_args {
    const char *name; // an operation ("importance", "forecast_lists", ...) or "all"
    const char *like; // dimensions: "tiny" (NULL, too) or "minicpm4.1-8b"
    int64_t tokens;   // T; 0 = those usual for the dimensions
} sp_bench_args;

// Measures on random data: 3 warm-ups, then the median of at least 5 samples, each of one call or,
// where that is short, of several. Appends one object a shape to `results`:
// {name, shape, ms_median, ms_min, ms_p99, n, flop, bytes, tflops, gbps, ceiling, ceiling_unit,
// share}. ceiling is the rate of large matrix products on this machine ("tflops"; on a GPU measured
// in the same run, warm) or that of sp_copy ("gbps"), share the part of it that was reached; tflops
// may be null. An unknown name is SP_BAD_INPUT and lists the known ones.
sp_status sp_bench_operation(sp_backend *be, const sp_bench_args *a, json_t *results);

#endif
