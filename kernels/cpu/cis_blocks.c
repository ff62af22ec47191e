// Blocks by their query-independent importance (training.md 5.4).
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

typedef struct ranked {
    float score;
    int32_t block;
} ranked;

static int by_rank(const void *x, const void *y) {
    const ranked *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->block < b->block ? -1 : a->block > b->block;
}

static float window_mean(const float *cis, sp_grid g, int64_t j) {
    float sum = 0;
    for (int64_t t = 0; t < g.kernel; t++) sum += cis[j * g.stride + t];
    return sum / (float)g.kernel;
}

sp_status sp_cpu_cis_blocks(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                            sp_tensor order) {
    sp_cpu *cpu = sp_cpu_of(cis);
    const int64_t nb = scores.cols, n_d = sp_windows(deployed, cis.cols);
    const int64_t per_block = block / deployed.stride;
    SP_TRY(sp_cpu_scratch(cpu, nb * (int64_t)(sizeof(ranked) / sizeof(float))));
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t h = 0; h < cis.rows; h++) {
        ranked *r = (ranked *)sp_cpu_private(cpu);
        float shared = -INFINITY; // the window before the block, which it pools too (5.1)
        for (int64_t b = 0; b < nb; b++) {
            float best = shared;
            for (int64_t j = per_block * b; j < sp_min(n_d, per_block * (b + 1)); j++) {
                shared = window_mean(sp_row_f32(cis, h), deployed, j);
                if (shared > best) best = shared; // a NaN counts as absent
            }
            if (per_block * (b + 1) > n_d || isnan(shared)) shared = -INFINITY;
            r[b] = (ranked){best, (int32_t)b};
            sp_row_f32(scores, h)[b] = best;
        }
        qsort(r, (size_t)nb, sizeof *r, by_rank);
        for (int64_t b = 0; b < nb; b++) sp_row_i32(order, h)[b] = r[b].block;
    }
    return SP_OK;
}
