// Held-out evaluation: block recall and mass recall of the Forecast against the teacher, per layer,
// on the first eval_rows rows of eval_data.
#include "train/trainer.h"

#include <math.h>

static sp_status measure_share(sp_trainer *t, double *sums) {
    int64_t L = t->desc->layers, rows = 0;
    for (int64_t i = 0; i < sp_dataset_entries(t->eval_data); i++)
        rows += sp_dataset_rows(t->eval_data, i);
    if (t->config->eval_rows < rows) rows = t->config->eval_rows;
    // All stages of a progressive run are measured against the last one's teacher.
    sp_grid last = t->stages.grid[t->stages.n - 1];
    SP_TRY(sp_distill_set_teacher(t->distill, last));
    for (int64_t i = t->ranks->rank; i < rows; i += t->ranks->size) {
        int64_t n;
        SP_TRY(sp_sampler_read(t->eval_sampler, (uint64_t)i, t->eval_row, &n, NULL));
        double *one = sums + 3 * L; // [recall, mass, rows][L]
        SP_TRY(
            sp_distill_recall(t->distill, &t->device, t->eval_row, n, one, one + L, one + 2 * L));
        for (int64_t l = 0; l < 3 * L; l++) sums[l] += one[l];
    }
    return sp_distill_set_teacher(t->distill, t->stages.grid[t->at.stage]);
}

sp_status sp_trainer_evaluate(sp_trainer *t) {
    int64_t L = t->desc->layers;
    double *sums = t->recall;
    for (int64_t i = 0; i < 3 * L; i++) sums[i] = 0;
    SP_TRY(sp_ranks_agree(measure_share(t, sums)));
    SP_TRY(sp_ranks_sum_doubles(sums, 3 * L));
    for (int64_t l = 0; l < L; l++) { // NaN where no row had a choice to make
        double rows = sums[2 * L + l];
        sums[l] = rows > 0 ? sums[l] / rows : NAN;
        sums[L + l] = rows > 0 ? sums[L + l] / rows : NAN;
    }
    return SP_OK;
}
