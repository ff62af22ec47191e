// sparda bench decode, sparda bench transfer: speed of serving on a GPU (inference.md 3.4, 5.4 T,
// 9).
#ifndef SPARDA_INFER_BENCH_H
#define SPARDA_INFER_BENCH_H

#include "common/status.h"

extern const char sp_bench_decode_usage[], sp_bench_transfer_usage[];

// Only where SPARDA_HAVE_CUDA; argv[1] is the benchmark's name.
sp_status sp_bench_decode(int argc, char **argv);
sp_status sp_bench_transfer(int argc, char **argv);

#endif
