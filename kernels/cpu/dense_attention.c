// Causal attention over all keys, by online softmax over chunks of keys.
//
// A unit is a tile of query rows of one KV head; a chunk of keys and values serves all G heads.
//
// Legend: L lanes (query rows of a tile), G query heads of a KV head, d head size.
#include "kernels/cpu/columns.h"

#include <math.h>

enum { CHUNK = 128 }; // keys

sp_status sp_cpu_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                 sp_tensor bias, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(q);
    const sp_vector *vec = cpu->vec;
    const int64_t d = heads.head_dim, Hkv = heads.kv_heads, G = heads.q_heads / Hkv;
    const int64_t L = vec->lanes, tiles = sp_ceil_div(q.rows, L);
    const float scale = (float)(1 / sqrt((double)d));
    SP_TRY(sp_cpu_scratch(cpu, L * (G * (2 * d + 2) + CHUNK + 1)));
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t unit = 0; unit < tiles * Hkv; unit++) {
        int64_t h = unit % Hkv, r0 = (tiles - 1 - unit / Hkv) * L, rows = sp_min(L, q.rows - r0);
        int64_t keys = q0 + r0 + rows;                      // seen by the last row
        float *qt = sp_cpu_private(cpu);                    // [G][d][L]
        float *sum_v = qt + G * d * L;                      // [G][d][L]
        float *max = sum_v + G * d * L, *sum = max + G * L; // [G][L] each
        float *rescale = sum + G * L, *s = rescale + L;     // [L], [CHUNK][L]
        for (int64_t g = 0; g < G; g++)
            sp_load_columns(q, r0, rows, (h * G + g) * d, d, L, scale, qt + g * d * L);
        for (int64_t x = 0; x < G * d * L; x++) sum_v[x] = 0;
        for (int64_t x = 0; x < G * L; x++) {
            max[x] = -INFINITY;
            sum[x] = 0;
        }
        for (int64_t j0 = 0; j0 < keys; j0 += CHUNK) {
            int64_t n = sp_min(CHUNK, keys - j0), visible[SP_MAX_LANES];
            for (int64_t l = 0; l < L; l++) visible[l] = q0 + r0 + sp_min(l, rows - 1) + 1 - j0;
            for (int64_t g = 0; g < G; g++) {
                vec->gemm(n, L, d, sp_row_f32(k, j0) + h * d, k.ld, 1, qt + g * d * L, L, s, L,
                          false);
                if (bias.data)
                    for (int64_t j = 0; j < n; j++)
                        for (int64_t l = 0; l < L; l++) s[j * L + l] += sp_row_f32(bias, h)[j0 + j];
                vec->online_columns(s, n, visible, max + g * L, sum + g * L, rescale);
                vec->scale_columns(sum_v + g * d * L, d, rescale);
                vec->gemm(d, L, n, sp_row_f32(v, j0) + h * d, 1, v.ld, s, L, sum_v + g * d * L, L,
                          true);
            }
        }
        for (int64_t g = 0; g < G; g++) {
            for (int64_t l = 0; l < L; l++) rescale[l] = 1 / sum[g * L + l];
            vec->scale_columns(sum_v + g * d * L, d, rescale);
            sp_store_columns(sum_v + g * d * L, d, d, L, out, r0, rows, (h * G + g) * d);
        }
    }
    return SP_OK;
}
