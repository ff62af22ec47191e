// AdamW with decoupled decay, in the order of training.md 8.1: decay, moments, update.
#include "kernels/cpu/cpu.h"

#include <math.h>

sp_status sp_cpu_adamw(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g) {
    sp_cpu *cpu = sp_cpu_of(w);
    double step = (double)p->step;
    float keep = (float)(1 - (double)p->lr * p->weight_decay);
    float rate = (float)(p->lr / (1 - pow(p->beta1, step))); // lr / (1 - b1^t)
    float root = (float)(1 / sqrt(1 - pow(p->beta2, step))); // 1 / sqrt(1 - b2^t)
    float b1 = p->beta1, b2 = p->beta2, c1 = 1 - b1, c2 = 1 - b2;
    float eps = p->eps, grad_scale = p->grad_scale;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < w.rows; r++) {
        float *restrict wr = sp_row_f32(w, r), *restrict mr = sp_row_f32(m, r);
        float *restrict vr = sp_row_f32(v, r);
        const float *restrict gr = sp_row_f32(g, r);
        for (int64_t c = 0; c < w.cols; c++) {
            float gc = grad_scale * gr[c];
            float mc = b1 * mr[c] + c1 * gc, vc = b2 * vr[c] + c2 * gc * gc;
            mr[c] = mc;
            vr[c] = vc;
            wr[c] = keep * wr[c] - rate * mc / (sqrtf(vc) * root + eps);
        }
    }
    return SP_OK;
}
