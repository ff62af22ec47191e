// Micro-benchmarks of the operations at the shapes of training the tiny base model.
#ifndef SPARDA_KERNELS_BENCH_H
#define SPARDA_KERNELS_BENCH_H

#include "kernels/kernels.h"

#include <jansson.h>

// Measures one operation ("importance", "linear", ...) or "all" on random data: 3 warm-ups, then
// the median of at least 5 calls. Appends one object a shape to `results`:
// {name, shape, ms_median, ms_p99, n, flop, bytes, tflops, gbps, ceiling, share}; ceiling is in
// GFLOP/s or GB/s, share is the part of it that was reached, both null where none is known.
// An unknown name is SP_BAD_INPUT and lists the known ones.
sp_status sp_bench_operation(sp_backend *be, const char *name, json_t *results);

#endif
