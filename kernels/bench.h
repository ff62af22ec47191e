// Micro-benchmarks of the operations at the shapes of training the tiny base model.
#ifndef SPARDA_KERNELS_BENCH_H
#define SPARDA_KERNELS_BENCH_H

#include "kernels/kernels.h"

#include <jansson.h>

// Measures one operation ("importance", "linear", ...) or "all" on random data: 3 warm-ups, then
// the median of at least 5 calls. Appends one object a shape to `results`:
// {name, shape, ms_median, ms_min, ms_p99, n, flop, bytes, tflops, gbps, ceiling, ceiling_unit,
// share}. ceiling is the backend's SGEMM rate ("tflops") or that of sp_copy ("gbps"), share the
// part of it that was reached; tflops, ceiling and share may be null. An unknown name is
// SP_BAD_INPUT and lists the known ones.
sp_status sp_bench_operation(sp_backend *be, const char *name, json_t *results);

#endif
