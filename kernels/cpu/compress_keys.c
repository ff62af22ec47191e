// Compressed keys: means over complete windows (training.md 3.1).
#include "kernels/cpu/cpu.h"

sp_status sp_cpu_compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(k);
    float share = 1.0f / (float)g.kernel;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t j = 0; j < out.rows; j++) {
        float *restrict to = sp_row_f32(out, j);
        for (int64_t c = 0; c < k.cols; c++) to[c] = 0;
        for (int64_t t = 0; t < g.kernel; t++) {
            const float *from = sp_row_f32(k, (j0 + j) * g.stride + t);
            for (int64_t c = 0; c < k.cols; c++) to[c] += from[c];
        }
        for (int64_t c = 0; c < k.cols; c++) to[c] *= share;
    }
    return SP_OK;
}
