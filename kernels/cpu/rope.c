// Rotary embedding in place, half-split convention (training.md 1.5).
//
// Legend: d head size; u0, u1 the halves of a head vector.
#include "kernels/cpu/cpu.h"

sp_status sp_cpu_rope(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                      bool transpose) {
    sp_cpu *cpu = sp_cpu_of(x);
    int64_t half = head_dim / 2;
    float sign = transpose ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t t = 0; t < x.rows; t++) {
        const float *c = sp_row_f32(cos, pos0 + t), *s = sp_row_f32(sin, pos0 + t);
        float *row = sp_row_f32(x, t);
        for (int64_t head = 0; head < x.cols; head += head_dim) {
            float *restrict u0 = row + head, *restrict u1 = row + head + half;
            for (int64_t m = 0; m < half; m++) {
                float a = u0[m], b = u1[m], sine = sign * s[m];
                u0[m] = a * c[m] - b * sine;
                u1[m] = b * c[m] + a * sine;
            }
        }
    }
    return SP_OK;
}
