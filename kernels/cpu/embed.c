// Token embedding (training.md 1.4).
#include "kernels/cpu/cpu.h"

sp_status sp_cpu_embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(out);
    for (int64_t t = 0; t < out.rows; t++) {
        int32_t id = *sp_row_i32(tokens, t);
        if (id < 0 || id >= table.rows)
            return sp_error(SP_BAD_INPUT,
                            "token %d at position %lld is outside the vocabulary of %lld entries",
                            id, (long long)t, (long long)table.rows);
    }
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t t = 0; t < out.rows; t++) {
        const float *from = sp_row_f32(table, *sp_row_i32(tokens, t));
        float *to = sp_row_f32(out, t);
        for (int64_t c = 0; c < out.cols; c++) to[c] = scale * from[c];
    }
    return SP_OK;
}
