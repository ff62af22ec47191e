// Linear layer: out[T,N] = x[T,K] . w[N,K]^T, cut into pieces of fixed size.
#include "kernels/cpu/cpu.h"

enum { ROWS = 128, COLS = 256 }; // of a piece

sp_status sp_cpu_linear(sp_tensor x, sp_tensor w, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(x);
    int64_t across = sp_ceil_div(w.rows, COLS), pieces = sp_ceil_div(x.rows, ROWS) * across;
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t t = piece / across * ROWS, n = piece % across * COLS;
        cpu->sgemm(false, true, sp_min(ROWS, x.rows - t), sp_min(COLS, w.rows - n), x.cols,
                   sp_row_f32(x, t), x.ld, sp_row_f32(w, n), w.ld, 0, sp_row_f32(out, t) + n,
                   out.ld);
    }
    return SP_OK;
}
