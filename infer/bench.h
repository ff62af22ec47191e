// sparda bench decode, sparda bench transfer: speed of serving on a GPU (inference.md 3.4, 5.4 T,
// 9).
#ifndef SPARDA_INFER_BENCH_H
#define SPARDA_INFER_BENCH_H

#include "kernels/kernels.h"

#include <jansson.h>

extern const char sp_bench_decode_usage[], sp_bench_transfer_usage[];

// Only where SPARDA_HAVE_CUDA; argv[1] is the benchmark's name.
sp_status sp_bench_decode(int argc, char **argv);
sp_status sp_bench_transfer(int argc, char **argv);

// Runs one of them on a GPU; its results go to the file `json`, if not NULL.
typedef sp_status sp_gpu_bench(sp_backend *be, const void *arguments, json_t *results);
sp_status sp_bench_on_gpu(sp_gpu_bench *run, const void *arguments, const char *json);

#endif
