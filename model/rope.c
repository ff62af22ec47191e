// Rotary tables (training.md 1.5): every step in fp32, in the association of the model's own code,
// m = 0 .. d/2-1 and f_m the LongRoPE factor (1 without rope_scaling).
//
//   MiniCPM  base_m = 1 / theta^(2m/d)          angle = (t * (1/f_m)) * base_m
//   NOSA     inv_m = 1 / (f_m * theta^(2m/d))   angle = inv_m * t
#include "model/model.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>

void sp_rope_values(const sp_model_desc *d, int64_t sequence_positions, float *cos_out,
                    float *sin_out) {
    bool by_length = d->rope_variant == SP_ROPE_BY_LENGTH;
    const double *factor =
        by_length && sequence_positions > d->original_max_positions ? d->rope_long : d->rope_short;
    float attention = (float)d->rope_attention_factor;
    int64_t half = d->heads.head_dim / 2, strip = 256;
#pragma omp parallel for schedule(static)
    for (int64_t t0 = 0; t0 < sequence_positions; t0 += strip) {
        int64_t t1 = t0 + strip < sequence_positions ? t0 + strip : sequence_positions;
        for (int64_t m = 0; m < half; m++) {
            float exponent = (float)(2 * m) / (float)d->heads.head_dim;
            float power = (float)pow(d->rope_theta, exponent);
            float f = factor ? (float)factor[m] : 1.0f;
            float first = by_length ? 1.0f / f : 1.0f / (f * power);
            float second = by_length ? 1.0f / power : 1.0f;
            for (int64_t t = t0; t < t1; t++) {
                float angle = ((float)t * first) * second;
                // Through double: right to the last fp32 bit whatever the library's cosf does.
                float c = (float)cos((double)angle) * attention;
                float s = (float)sin((double)angle) * attention;
                cos_out[t * half + m] = d->rope_tables_bf16 ? sp_bf16_to_f32(sp_f32_to_bf16(c)) : c;
                sin_out[t * half + m] = d->rope_tables_bf16 ? sp_bf16_to_f32(sp_f32_to_bf16(s)) : s;
            }
        }
    }
}

bool sp_rope_needs_two(const sp_model_desc *d, int64_t positions) {
    return d->rope_variant == SP_ROPE_BY_LENGTH && d->rope_long &&
           positions > d->original_max_positions;
}

sp_status sp_rope_table_make(sp_backend *be, const sp_model_desc *d, int64_t sequence_positions,
                             bool allow_longer, sp_rope_table *out) {
    *out = (sp_rope_table){0};
    int64_t half = d->heads.head_dim / 2, bytes;
    if (sequence_positions > d->max_positions && !allow_longer)
        return sp_error(SP_BAD_INPUT,
                        "a sequence of %lld positions is longer than the %lld "
                        "(max_position_embeddings) that %s was made for; shorten it, or allow it "
                        "with allow_longer: true",
                        (long long)sequence_positions, (long long)d->max_positions, d->name);
    if (!sp_mul(sequence_positions, half * (int64_t)sizeof(float), &bytes))
        return sp_error(SP_ENVIRONMENT, "no rotary table of %lld positions",
                        (long long)sequence_positions);
    float *cosines = NULL, *sines = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&cosines, bytes, 1, "the rotary table"));
    SP_GO(sp_alloc(&sines, bytes, 1, "the rotary table"));
    sp_rope_values(d, sequence_positions, cosines, sines);
    SP_GO(sp_tensor_alloc(be, SP_F32, sequence_positions, half, "the rotary table", &out->cos));
    SP_GO(sp_tensor_alloc(be, SP_F32, sequence_positions, half, "the rotary table", &out->sin));
    SP_GO(sp_upload(out->cos, cosines));
    SP_GO(sp_upload(out->sin, sines));
done:
    free(cosines);
    free(sines);
    if (st != SP_OK) sp_rope_table_free(out);
    return st;
}

void sp_rope_table_free(sp_rope_table *t) {
    sp_tensor_free(&t->cos);
    sp_tensor_free(&t->sin);
    *t = (sp_rope_table){0};
}
