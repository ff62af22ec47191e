// Block scores of window rows (training.md 5.1).
#include "kernels/cpu/cpu.h"

#include <math.h>

void sp_cpu_row_block_scores(const sp_selection *s, sp_grid deployed, const float *a, int64_t n_d,
                             int64_t i, int64_t nb, float *scores) {
    int64_t per_block = s->block / deployed.stride, qb = i / s->block;
    for (int64_t b = 0; b < nb; b++) {
        float best = -INFINITY;
        if (b < s->init_blocks || (b <= qb && qb <= b + s->local_blocks)) {
            best = INFINITY;
        } else if (!(s->mask_future && b > qb)) {
            int64_t from = sp_max(0, per_block * b - 1), to = sp_min(n_d, per_block * (b + 1));
            for (int64_t j = from; j < to; j++)
                if (a[j] > best) best = a[j];
        }
        scores[b] = best;
    }
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
