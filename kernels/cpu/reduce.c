// scale, sum and sum_squares of fp32 tensors. Sums are in double: one partial sum a row, then the
// rows in order.
#include "kernels/cpu/cpu.h"

sp_status sp_cpu_scale(sp_tensor x, float factor) {
    sp_cpu *cpu = sp_cpu_of(x);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < x.rows; r++) {
        float *row = sp_row_f32(x, r);
        for (int64_t c = 0; c < x.cols; c++) row[c] *= factor;
    }
    return SP_OK;
}

static double sum_row(const float *x, int64_t n) {
    double s[4] = {0};
    int64_t c = 0;
    for (; c + 4 <= n; c += 4)
        for (int l = 0; l < 4; l++) s[l] += (double)x[c + l];
    for (; c < n; c++) s[0] += (double)x[c];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static sp_status sum_rows(sp_tensor x, double (*of_row)(const float *, int64_t), double *out) {
    sp_cpu *cpu = sp_cpu_of(x);
    float *scratch;
    SP_TRY(sp_cpu_shared_scratch(cpu, 2 * x.rows, &scratch));
    double *partial = (double *)scratch;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < x.rows; r++) partial[r] = of_row(sp_row_f32(x, r), x.cols);
    double total = 0;
    for (int64_t r = 0; r < x.rows; r++) total += partial[r];
    *out = total;
    return SP_OK;
}

sp_status sp_cpu_sum(sp_tensor x, double *out) {
    return sum_rows(x, sum_row, out);
}

sp_status sp_cpu_sum_squares(sp_tensor x, double *out) {
    return sum_rows(x, sp_cpu_of(x)->vec->sum_squares, out);
}
