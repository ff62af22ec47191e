// Learning rate, teacher grids and batch arithmetic. See schedule.h.
#include "train/schedule.h"

#include "common/util.h"

int64_t sp_warmup(int64_t warmup_steps, int64_t steps) {
    int64_t most = steps / 10;
    return warmup_steps < most ? warmup_steps : most;
}

double sp_learning_rate(double lr, int64_t warmup_steps, int64_t steps, int64_t step) {
    int64_t w = sp_warmup(warmup_steps, steps);
    return step < w ? lr * ((double)step / (double)w) : lr;
}

static int64_t halve(int64_t v, int64_t target) {
    return v / 2 > target ? v / 2 : target;
}

sp_status sp_stages_make(sp_grid deployed, sp_grid teacher, bool progressive, sp_stages *out) {
    *out = (sp_stages){.grid = {teacher}, .n = 1};
    if (!progressive) return SP_OK;
    if (teacher.kernel > deployed.kernel || teacher.stride > deployed.stride)
        return sp_error(
            SP_BAD_INPUT,
            "progressive_training_kernel starts at the model's grid %lld/%lld and halves "
            "it, so the teacher grid %lld/%lld (training_kernel_size/stride) may not be "
            "larger",
            (long long)deployed.kernel, (long long)deployed.stride, (long long)teacher.kernel,
            (long long)teacher.stride);
    sp_grid g = deployed;
    out->n = 0;
    for (;;) { // a halving chain of 64-bit numbers cannot be longer than SP_MAX_STAGES
        out->grid[out->n++] = g;
        if (g.kernel == teacher.kernel && g.stride == teacher.stride) return SP_OK;
        g = (sp_grid){halve(g.kernel, teacher.kernel), halve(g.stride, teacher.stride)};
    }
}

int64_t sp_stage(const sp_stages *s, int64_t steps, int64_t step) {
    int64_t n = s->n, at;
    if (n == 1) return 0;
    if (steps <= 1) return n - 1;
    // 128 bits: no step count may overflow the product
    if (steps < n)
        at = (int64_t)((__int128)step * (n - 1) / (steps - 1));
    else
        at = (int64_t)((__int128)step * n / steps);
    return at < n - 1 ? at : n - 1;
}

sp_status sp_schedule_may_change(const sp_stages *s, double lr, int64_t warmup_steps, int64_t done,
                                 int64_t before, int64_t after) {
    if (before == after) return SP_OK;
    if (after < done)
        return sp_error(SP_BAD_INPUT, "steps: %lld -> %lld, but %lld steps are already done",
                        (long long)before, (long long)after, (long long)done);
    for (int64_t i = 0; i < done; i++) {
        double was = sp_learning_rate(lr, warmup_steps, before, i);
        double is = sp_learning_rate(lr, warmup_steps, after, i);
        if (was != is)
            return sp_error(SP_BAD_INPUT,
                            "steps: %lld -> %lld would change the warm-up (%lld -> %lld steps) and "
                            "so the learning rate of step %lld, already used: %g -> %g",
                            (long long)before, (long long)after,
                            (long long)sp_warmup(warmup_steps, before),
                            (long long)sp_warmup(warmup_steps, after), (long long)i + 1, was, is);
        int64_t old_stage = sp_stage(s, before, i), new_stage = sp_stage(s, after, i);
        if (old_stage != new_stage)
            return sp_error(
                SP_BAD_INPUT,
                "steps: %lld -> %lld would change the teacher grid of step %lld, already "
                "used: stage %lld -> %lld",
                (long long)before, (long long)after, (long long)i + 1, (long long)old_stage,
                (long long)new_stage);
    }
    return SP_OK;
}

sp_status sp_batch_plan_make(int64_t global_batch, int64_t micro_batch, int64_t ranks,
                             sp_batch_plan *out) {
    int64_t at_once;
    if (global_batch < 1 || micro_batch < 1 || ranks < 1 || !sp_mul(micro_batch, ranks, &at_once) ||
        global_batch % at_once != 0)
        return sp_error(SP_BAD_INPUT,
                        "global_batch %lld is not a multiple of ranks %lld x micro_batch %lld; "
                        "change one of the three",
                        (long long)global_batch, (long long)ranks, (long long)micro_batch);
    int64_t accumulation = global_batch / at_once;
    *out =
        (sp_batch_plan){global_batch, micro_batch, ranks, accumulation, accumulation * micro_batch};
    return SP_OK;
}

uint64_t sp_batch_sample(const sp_batch_plan *p, int64_t step, int64_t rank, int64_t i) {
    return (uint64_t)step * (uint64_t)p->global + (uint64_t)(i * p->ranks + rank);
}
