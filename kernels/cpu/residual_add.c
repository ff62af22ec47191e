// h += factor * branch (training.md 1.4).
#include "kernels/cpu/cpu.h"

sp_status sp_cpu_residual_add(sp_tensor h, sp_tensor branch, float factor) {
    sp_cpu *cpu = sp_cpu_of(h);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t t = 0; t < h.rows; t++) {
        float *to = sp_row_f32(h, t);
        const float *add = sp_row_f32(branch, t);
        for (int64_t c = 0; c < h.cols; c++) to[c] += factor * add[c];
    }
    return SP_OK;
}
