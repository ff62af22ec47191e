// Query-independent importance of keys from their values (training.md 1.6).
#include "kernels/cpu/cpu.h"

#include <math.h>

// ln(1 + e^x) without overflow.
static double softplus(double x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

sp_status sp_cpu_cis(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(v);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t t = 0; t < v.rows; t++) {
        const float *value = sp_row_f32(v, t);
        for (int64_t h = 0; h < heads.kv_heads; h++) {
            const float *weight = sp_row_f32(delta, h);
            double x = 0;
            for (int64_t c = 0; c < v.cols; c++) x += (double)weight[c] * (double)value[c];
            sp_row_f32(out, h)[t] = (float)((double)sp_row_f32(scale, 0)[h] * softplus(x));
        }
    }
    return SP_OK;
}
