// Weight gradient: g[N,K] += dy[T,N]^T . x[T,K], cut into pieces of g of fixed size; a piece sums
// over all T rows.
#include "kernels/cpu/cpu.h"

enum { ROWS = 64, COLS = 128 }; // of a piece

sp_status sp_cpu_grad_weight(sp_tensor dy, sp_tensor x, sp_tensor g) {
    sp_cpu *cpu = sp_cpu_of(g);
    int64_t across = sp_ceil_div(g.cols, COLS), pieces = sp_ceil_div(g.rows, ROWS) * across;
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic, 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t n = piece / across * ROWS, k = piece % across * COLS;
        cpu->sgemm(true, false, sp_min(ROWS, g.rows - n), sp_min(COLS, g.cols - k), dy.rows,
                   sp_row_f32(dy, 0) + n, dy.ld, sp_row_f32(x, 0) + k, x.ld, 1,
                   sp_row_f32(g, n) + k, g.ld);
    }
    return SP_OK;
}
