// What happens at which step: learning rate, teacher grid, and how a global batch is cut into ranks
// and micro-batches. Pure functions of the step and the configuration, so that a resumed run needs
// no state for them (bugs.md S23).
#ifndef SPARDA_SCHEDULE_H
#define SPARDA_SCHEDULE_H

#include "common/status.h"
#include "kernels/kernels.h"

#include <stdint.h>

// Steps of warm-up really made: min(warmup_steps, steps / 10) (training.md 8.2).
int64_t sp_warmup(int64_t warmup_steps, int64_t steps);
// Rate of the 0-based step: lr * step/warm-up before its end, then lr. The first step of a warm-up
// has rate 0.
double sp_learning_rate(double lr, int64_t warmup_steps, int64_t steps, int64_t step);

// The teacher grids of a run, first to last (training.md 4.4).
enum { SP_MAX_STAGES = 64 };
typedef struct sp_stages {
    sp_grid grid[SP_MAX_STAGES];
    int64_t n;
} sp_stages;
// Not progressive: the one grid `teacher`. Progressive: from `deployed`, window and stride halved
// independently down to `teacher`; SP_BAD_INPUT if that is the larger one.
sp_status sp_stages_make(sp_grid deployed, sp_grid teacher, bool progressive, sp_stages *out);
// Stage of a 0-based step out of `steps`.
int64_t sp_stage(const sp_stages *s, int64_t steps, int64_t step);

// SP_BAD_INPUT if a run of `done` steps planned for `before` steps would have had another rate or
// another teacher grid in one of them, had it been planned for `after` steps (design 3.1).
sp_status sp_schedule_may_change(const sp_stages *s, double lr, int64_t warmup_steps, int64_t done,
                                 int64_t before, int64_t after);

// global = accumulation x ranks x micro.
typedef struct sp_batch_plan {
    int64_t global, micro, ranks, accumulation;
    int64_t per_rank; // sequences of one rank in a step: accumulation x micro
} sp_batch_plan;
// SP_BAD_INPUT naming the numbers if they do not divide (bugs.md S22, S32).
sp_status sp_batch_plan_make(int64_t global_batch, int64_t micro_batch, int64_t ranks,
                             sp_batch_plan *out);
// Index in the run of sequence i (0..per_rank-1) of `rank` in the 0-based step. Sample g of the run
// belongs to rank g mod ranks, step g div global.
uint64_t sp_batch_sample(const sp_batch_plan *p, int64_t step, int64_t rank, int64_t i);

#endif
