// Speed of prefill: whole prompts through all layers under a selector, any backend. Caches go to a
// sink that keeps nothing, so this is the computation alone; write-back to host memory runs beside
// it.
#ifndef SPARDA_INFER_PREFILL_BENCH_H
#define SPARDA_INFER_PREFILL_BENCH_H

#include "infer/prefill.h"

// Milliseconds of `n` runs over T random tokens after one to warm up. `after`, if not NULL, is
// called before the prefiller is closed, with the tokens and the sink: for further runs.
typedef sp_status (*sp_prefill_again)(void *user, sp_prefiller *p, const int32_t *tokens, int64_t T,
                                      const sp_prefill_sink *sink, float *logits);
sp_status sp_measure_prefill(const sp_prefiller_args *a, int64_t T, int64_t n, double *ms,
                             sp_prefill_again after, void *user);

sp_status sp_bench_prefill(int argc, char **argv); // argv[1] is "prefill"

#endif
