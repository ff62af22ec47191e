// sparda bench decode, sparda bench transfer: speed of serving on a GPU (inference.md 3.4, 5.4 T,
// 9). Only where SPARDA_HAVE_CUDA.
#ifndef SPARDA_INFER_BENCH_H
#define SPARDA_INFER_BENCH_H

#include "common/status.h"

sp_status sp_bench_serving(int argc, char **argv); // argv[1] is "decode" or "transfer"

#endif
