// Block scores of window rows (training.md 5.1).
#include "kernels/cpu/cpu.h"

#include <math.h>

static float larger(float a, float b) {
    return a > b ? a : b;
} // b if a is NaN

void sp_cpu_row_block_scores(const sp_selection *s, sp_grid deployed, const float *a, int64_t n_d,
                             int64_t i, int64_t nb, float *scores) {
    const int64_t per_block = s->block / deployed.stride, qb = i / s->block;
    // Block b pools the cell before it and its own; `shared` is the cell before.
    float shared = -INFINITY;
    for (int64_t b = 0; b < nb; b++) {
        float best = shared;
        int64_t to = sp_min(n_d, per_block * (b + 1));
        for (int64_t j = per_block * b; j < to; j++) best = larger(a[j], best);
        shared = to == per_block * (b + 1) ? larger(a[to - 1], -INFINITY) : -INFINITY;
        scores[b] = best;
    }
    for (int64_t b = 0; b < sp_min(s->init_blocks, nb); b++) scores[b] = INFINITY;
    for (int64_t b = sp_max(0, qb - s->local_blocks); b <= sp_min(qb, nb - 1); b++)
        scores[b] = INFINITY;
    if (s->mask_future)
        for (int64_t b = sp_max(qb + 1, s->init_blocks); b < nb; b++) scores[b] = -INFINITY;
}

sp_status sp_cpu_block_scores(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                              sp_tensor a, int64_t i0, int64_t nb, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(a);
    int64_t n_d = a.cols / kv_heads;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t h = 0; h < kv_heads; h++)
            sp_cpu_row_block_scores(s, deployed, sp_row_f32(a, r) + h * n_d, n_d, i0 + r, nb,
                                    sp_row_f32(out, r) + h * nb);
    return SP_OK;
}
