// Importance of deployed windows: softmax over compressed keys, group sum, alignment (training.md
// 4.1 to 4.4).
//
// A unit is a tile of query rows of one KV head. Its logits of all G heads are kept, so that each
// is computed once; memory is G * lanes * (visible keys) a thread, linear in T.
//
// Legend: L lanes (query rows of a tile), G query heads of a KV head, n visible compressed keys.
#include "kernels/cpu/columns.h"

#include <math.h>

sp_status sp_cpu_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c,
                            sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(q);
    const sp_vector *vec = cpu->vec;
    const int64_t d = a->heads.head_dim, Hkv = a->heads.kv_heads, G = a->heads.q_heads / Hkv;
    const int64_t L = vec->lanes, n_d = a->n_d, tiles = sp_ceil_div(q.rows, L);
    const float scale = (float)(1 / sqrt((double)d));

    // Alignment (4.3): with rho = 1 none.
    bool same = a->fine.kernel == a->deployed.kernel && a->fine.stride == a->deployed.stride;
    int64_t rho = same ? 1 : a->deployed.stride / a->fine.stride;
    int64_t pooled = c.rows; // cells that the alignment produces
    if (rho > 1) pooled = c.rows + 2 < rho + 1 ? 0 : (c.rows + 2 - (rho + 1)) / rho + 1;

    int64_t most = sp_visible(a->fine, a->visibility, i0 + q.rows - 1, c.rows);
    SP_TRY(sp_cpu_scratch(cpu, L * (d + G * most + G + n_d)));
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t unit = 0; unit < tiles * Hkv; unit++) {
        // The longest rows come first, so that no thread ends alone with one of them.
        int64_t h = unit % Hkv, r0 = (tiles - 1 - unit / Hkv) * L, rows = sp_min(L, q.rows - r0);
        int64_t visible[SP_MAX_LANES];
        sp_visible_columns(a->fine, a->visibility, i0 + r0, rows, L, c.rows, visible);
        int64_t n = visible[L - 1];
        float *qt = sp_cpu_private(cpu);   // [d][L]
        float *inverse = qt + d * L;       // [G][L]
        float *aligned = inverse + G * L;  // [n_d][L]
        float *logits = aligned + n_d * L; // [G][n][L]
        for (int64_t g = 0; g < G; g++) {
            sp_load_columns(q, r0, rows, (h * G + g) * d, d, L, scale, qt);
            vec->gemm(n, L, d, sp_row_f32(c, 0) + h * d, c.ld, 1, qt, L, logits + g * n * L, L,
                      false);
            vec->softmax_columns(logits + g * n * L, n, visible, inverse + g * L);
        }
        vec->align_columns(logits, n, G, inverse, n, rho, a->align == SP_ALIGN_MEAN, pooled, n_d,
                           aligned);
        sp_store_columns(aligned, n_d, n_d, L, out, r0, rows, h * n_d);
    }
    return SP_OK;
}
