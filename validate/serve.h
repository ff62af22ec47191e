// Runs of the decode engine (infer/infer.h) that checks and tests compare with each other: the same
// prompts and tokens under two ways of serving, everything that must not depend on the way reduced
// to one number a step. Only where SPARDA_HAVE_CUDA.
#ifndef SPARDA_VALIDATE_SERVE_H
#define SPARDA_VALIDATE_SERVE_H

#include "infer/infer.h"
#include "validate/engine.h"

// Gives sequence `seq` of `to` what `from` holds, an engine on the same model and backend after a
// prefill; `next` is the token to append first. Slots get the forced blocks.
sp_status sp_engine_hand_over(const sp_engine *from, sp_infer *to, int64_t seq, int32_t next);

typedef struct sp_serve_prompt {
    const int32_t *tokens;
    int64_t n;
} sp_serve_prompt;

typedef struct sp_serve_args {
    sp_infer_args engine;          // batch is the number of prompts
    const sp_serve_prompt *prompt; // [batch]
    // Prompts are prefilled under the selector of the mode, by sp_infer_prefill; or by the engine
    // of validate/engine.h, as those of InfiniGen are, whose bases come from its queries.
    bool simple_prefill;
    int64_t steps;
    const int32_t *forced; // [steps][batch] tokens to append; NULL: the most likely ones
    bool check_copies;     // compare every copied unit with its home, each step
    bool keep_logits, keep_lists;
} sp_serve_args;

typedef struct sp_serve_run {
    int64_t steps, layers, batch;
    // XXH3 of the step's logits [B, V], lists of all layers, slot maps of all layers that have one.
    uint64_t *logits, *lists, *maps; // [steps]
    int64_t rollovers;               // blocks finished, over all sequences
    int64_t compressed;              // compressed keys made
    int64_t units_checked, units_different;
    int64_t wanted, missed;     // units in lists of layers that are not resident; copied
    int64_t unequal_compressed; // elements that differ from a batch computation; -1: not all
                                // layers are resident, so not looked at
    int64_t growth_device, growth_host; // bytes taken between a quarter of the steps and their end
    sp_infer_memory predicted, allocated;
    int64_t measured_device; // bytes of device memory that opening took
    float *kept;             // [steps][B][V] if asked for
    int32_t *kept_lists;     // [steps][layers][B][Hkv][k] if asked for
} sp_serve_run;
// Opens an engine, prefills, runs, closes it.
sp_status sp_serve(const sp_serve_args *a, sp_serve_run *out);
void sp_serve_free(sp_serve_run *r);

// Bytes that the steps took and did not give back: any on the device; on the host, where what
// malloc keeps for its threads varies by a few pieces, at least its smallest piece (32 bytes) a
// step.
int64_t sp_serve_leak(const sp_serve_run *r);

// The first step whose logits, lists or (if `maps`) slot maps differ; -1 if none does.
int64_t sp_serve_first_difference(const sp_serve_run *a, const sp_serve_run *b, bool maps);

#endif
