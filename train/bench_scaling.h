// How a training step scales over ranks, for `sparda bench scaling`.
#ifndef SPARDA_TRAIN_BENCH_SCALING_H
#define SPARDA_TRAIN_BENCH_SCALING_H

#include "train/bench_step.h"

#include <jansson.h>

// [collective] Opens the ranks of the launcher (one without) and a backend on each. Rank 0 prints
// and adds one object to `results`; times are the slowest rank's:
//   step_ms       with the sum of gradients over ranks, median of `steps` after 3 to warm up
//   alone_ms      the same without it, measured in turn with the former
//   exposed_ms    median of the differences between a step with it and the next or last without
//   noise_ms      half of those differences lie within so much of their median
//   sum_ms        the sum alone, median of 20 from a common start
//   bus_gbps      2 (n-1)/n x bytes / sum_ms, as NCCL's own benchmark counts
//   load_s        base model, bytes and time of the slowest rank
//   host_rss      largest resident memory of a rank
sp_status sp_bench_scaling(const sp_bench_step_args *a, const sp_backend_options *backend,
                           int64_t steps, json_t *results);

#endif
