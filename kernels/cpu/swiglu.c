// out = silu(gate) * up (training.md 1.4).
#include "kernels/cpu/cpu.h"

sp_status sp_cpu_swiglu(sp_tensor gate_up, sp_tensor out) {
    sp_cpu *cpu = sp_cpu_of(out);
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t t = 0; t < out.rows; t++) {
        const float *gate = sp_row_f32(gate_up, t);
        cpu->vec->swiglu(gate, gate + out.cols, sp_row_f32(out, t), out.cols);
    }
    return SP_OK;
}
