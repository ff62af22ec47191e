// Block lists straight from Forecasts (inference.md 1.2): window scores of one tile of rows and one
// head at a time, as in forecast_scores, then the cut of select_blocks.
#include "kernels/cpu/columns.h"

#include <math.h>

sp_status sp_cpu_forecast_lists(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                                sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists) {
    sp_cpu *cpu = sp_cpu_of(f);
    const sp_vector *vec = cpu->vec;
    const int64_t d = heads.head_dim, Hkv = heads.kv_heads, L = vec->lanes;
    const int64_t n_d = c.rows, tiles = sp_ceil_div(f.rows, L);
    SP_TRY(sp_cpu_scratch(cpu, L * (d + n_d) + n_d + 2 * nb));
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t unit = 0; unit < tiles * Hkv; unit++) {
        int64_t h = unit % Hkv, r0 = unit / Hkv * L, rows = sp_min(L, f.rows - r0);
        int64_t visible[SP_MAX_LANES];
        sp_visible_columns(g, v, i0 + r0, rows, L, n_d, visible);
        float *ft = sp_cpu_private(cpu); // [d][L]
        float *scores = ft + d * L;      // [n_d][L]
        float *row = scores + n_d * L;   // [n_d]
        sp_load_columns(f, r0, rows, h * d, d, L, 1, ft);
        vec->gemm(visible[L - 1], L, d, sp_row_f32(c, 0) + h * d, c.ld, 1, ft, L, scores, L, false);
        for (int64_t l = 0; l < rows; l++) {
            for (int64_t j = 0; j < n_d; j++)
                row[j] = j < visible[l] ? scores[j * L + l] : -INFINITY;
            sp_cpu_select_row(s, g, row, n_d, i0 + r0 + l, nb, row + n_d,
                              sp_row_i32(lists, r0 + l) + h * s->topk);
        }
    }
    return SP_OK;
}
