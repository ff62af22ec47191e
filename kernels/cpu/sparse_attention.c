// Causal attention over listed blocks (training.md 6.1, 6.2).
//
// Rows have lists of their own, so here the lanes of a vector are keys, then value components, and
// the G heads of a group share every load of K and V. Keys are transposed once a call, block by
// block: kt[h][block][x][key]; a block is padded to whole vectors.
//
// Legend: G query heads of a KV head, d head size, B block, P padded block, k list length.
#include "kernels/cpu/cpu.h"

#include <math.h>

static void transpose_block(sp_tensor k, int64_t h, int64_t d, int64_t j0, int64_t n, int64_t P,
                            float *to) {
    for (int64_t j = 0; j < n; j++) {
        const float *key = sp_row_f32(k, j0 + j) + h * d;
        for (int64_t x = 0; x < d; x++) to[x * P + j] = key[x];
    }
    for (int64_t x = 0; x < d; x++)
        for (int64_t j = n; j < P; j++) to[x * P + j] = 0;
}

sp_status sp_cpu_sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                  sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(q);
    const sp_vector *vec = cpu->vec;
    const int64_t d = heads.head_dim, Hkv = heads.kv_heads, G = heads.q_heads / Hkv, B = block;
    const int64_t P = sp_round_up(B, vec->width), slots = lists.cols / Hkv;
    const int64_t keys = q0 + q.rows, nb = sp_ceil_div(keys, B), lds = slots * P;
    const float scale = (float)(1 / sqrt((double)d));
    float *kt;
    SP_TRY(sp_cpu_shared_scratch(cpu, Hkv * nb * d * P, &kt));
    SP_TRY(sp_cpu_scratch(cpu, G * (2 * d + lds)));
#pragma omp parallel num_threads(cpu->threads)
    {
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < Hkv * nb; unit++) {
            int64_t j0 = unit % nb * B;
            transpose_block(k, unit / nb, d, j0, sp_min(B, keys - j0), P, kt + unit * d * P);
        }
        float *qs = sp_cpu_private(cpu), *o = qs + G * d, *s = o + G * d; // [G][d] twice, [G][lds]
#pragma omp for schedule(dynamic, 16)
        for (int64_t unit = 0; unit < Hkv * q.rows; unit++) {
            int64_t h = unit / q.rows, r = unit % q.rows, i = q0 + r, used = 0;
            const int32_t *list = sp_row_i32(lists, r) + h * slots;
            const float *query = sp_row_f32(q, r) + h * G * d;
            for (int64_t x = 0; x < G * d; x++) {
                qs[x] = scale * query[x];
                o[x] = 0;
            }
            // Blocks that hold a key of the past, in list order, one slot each.
            for (int64_t slot = 0; slot < slots; slot++) {
                int64_t b = list[slot], seen = i + 1 - b * B;
                if (b < 0 || seen <= 0) continue;
                float *sb = s + used++ * P;
                vec->gemm(G, P, d, qs, d, 1, kt + (h * nb + b) * d * P, P, sb, lds, false);
                if (bias.data) {
                    const float *of_key = sp_row_f32(bias, h) + b * B;
                    for (int64_t g = 0; g < G; g++)
                        for (int64_t j = 0; j < sp_min(seen, B); j++) sb[g * lds + j] += of_key[j];
                }
                for (int64_t g = 0; g < G; g++)
                    for (int64_t j = sp_min(seen, B); j < P; j++) sb[g * lds + j] = -INFINITY;
            }
            for (int64_t g = 0; g < G; g++) {
                float sum = vec->softmax_row(s + g * lds, used * P);
                float inverse = sum > 0 ? 1 / sum : 0;
                for (int64_t j = 0; j < used * P; j++) s[g * lds + j] *= inverse;
            }
            used = 0;
            for (int64_t slot = 0; slot < slots; slot++) {
                int64_t b = list[slot], seen = i + 1 - b * B;
                if (b < 0 || seen <= 0) continue;
                vec->gemm(G, d, sp_min(seen, B), s + used++ * P, lds, 1,
                          sp_row_f32(v, b * B) + h * d, v.ld, o, d, true);
            }
            float *to = sp_row_f32(out, r) + h * G * d;
            for (int64_t x = 0; x < G * d; x++) to[x] = o[x];
        }
    }
    return SP_OK;
}
