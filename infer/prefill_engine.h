// Prefill straight into a decode engine (infer.h). Only where SPARDA_HAVE_CUDA.
#ifndef SPARDA_INFER_PREFILL_ENGINE_H
#define SPARDA_INFER_PREFILL_ENGINE_H

#include "infer/infer.h"
#include "infer/prefill.h"

// The selector that prefill uses under a mode: InfiniGen has none of its own and takes the
// original.
sp_selector sp_infer_prefill_selector(sp_infer_mode m);
// Runs a prompt and gives its caches to sequence `seq`: finished blocks go home while the next
// chunk is computed, slots are filled from device memory with the last query's blocks. Starts the
// sequence with the most likely token, which *next (may be NULL) receives.
sp_status sp_infer_prefill(sp_prefiller *p, sp_infer *e, int64_t seq, const int32_t *tokens,
                           int64_t T, int32_t *next);

#endif
