// A training step with its weights at hand, for benchmarks: the work of the loop on made-up tokens.
#ifndef SPARDA_TRAIN_BENCH_STEP_H
#define SPARDA_TRAIN_BENCH_STEP_H

#include "train/distill.h"

typedef struct sp_bench_step_args {
    const char *base;       // model folder
    int64_t seq_len, batch; // sequences of a step, one after another
    bool sum;               // over the ranks of the run, as training does
    bool progress;          // of loading the base
} sp_bench_step_args;

// L layers, R = Hkv*d, D hidden, T tokens.
typedef struct sp_bench_step {
    sp_model_desc *desc;
    sp_model *model;
    sp_distill *distill;
    sp_forecast forecast;
    sp_forecast_device device;
    sp_tensor master, moment1, moment2, grad; // F32 [L*R, D]
    int32_t *tokens;                          // [batch][T]
    double *losses;                           // [L]
    double load_s;
} sp_bench_step;

// The tiny base gets rows of the corpus, any other base random tokens. Owned by the caller:
// sp_bench_step_close, also after an error.
sp_status sp_bench_step_open(sp_backend *be, const sp_bench_step_args *a, sp_bench_step *b);
void sp_bench_step_close(sp_bench_step *b);
// Step number `step` (from 1): gradients of the batch, sum over ranks if asked for, norm, clipping,
// AdamW, refreshed weights. [collective with a->sum]
sp_status sp_bench_step_run(const sp_bench_step_args *a, sp_bench_step *b, int64_t step);

#endif
