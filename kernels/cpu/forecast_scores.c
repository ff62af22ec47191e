// Raw Forecast scores of windows, for selection at inference (inference.md 1.2).
#include "kernels/cpu/columns.h"

#include <math.h>

sp_status sp_cpu_forecast_scores(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f,
                                 int64_t i0, sp_tensor c, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(f);
    const sp_vector *vec = cpu->vec;
    const int64_t d = heads.head_dim, Hkv = heads.kv_heads, L = vec->lanes;
    const int64_t n_d = c.rows, tiles = sp_ceil_div(f.rows, L);
    SP_TRY(sp_cpu_scratch(cpu, L * (d + n_d)));
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t unit = 0; unit < tiles * Hkv; unit++) {
        int64_t h = unit % Hkv, r0 = unit / Hkv * L, rows = sp_min(L, f.rows - r0);
        int64_t visible[SP_MAX_LANES];
        sp_visible_columns(g, v, i0 + r0, rows, L, n_d, visible);
        float *ft = sp_cpu_private(cpu), *scores = ft + d * L; // [d][L], [n_d][L]
        sp_load_columns(f, r0, rows, h * d, d, L, 1, ft);
        vec->gemm(visible[L - 1], L, d, sp_row_f32(c, 0) + h * d, c.ld, 1, ft, L, scores, L, false);
        for (int64_t l = 0; l < rows; l++)
            for (int64_t j = visible[l]; j < n_d; j++) scores[j * L + l] = -INFINITY;
        sp_store_columns(scores, n_d, n_d, L, out, r0, rows, h * n_d);
    }
    return SP_OK;
}
