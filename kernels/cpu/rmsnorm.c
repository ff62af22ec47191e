// RMS normalisation (training.md 1.4); the mean of squares is summed in double.
#include "kernels/cpu/cpu.h"

#include <math.h>

sp_status sp_cpu_rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(x);
    const float *weight = sp_row_f32(w, 0);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t t = 0; t < x.rows; t++) {
        const float *from = sp_row_f32(x, t);
        float *to = sp_row_f32(out, t);
        double mean = cpu->vec->sum_squares(from, x.cols) / (double)x.cols;
        float factor = (float)(1 / sqrt(mean + (double)eps));
        for (int64_t c = 0; c < x.cols; c++) to[c] = from[c] * factor * weight[c];
    }
    return SP_OK;
}
