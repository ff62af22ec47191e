// AdamW on fp32 master weights: decay, moments, update (training.md 8.1).
#include "kernels/cuda/cuda.cuh"

__global__ void adamw_kernel(sp_adamw_args p, float keep, float correct1, float correct2, float *w,
                             int64_t w_ld, float *m, int64_t m_ld, float *v, int64_t v_ld,
                             const float *g, int64_t g_ld, int64_t rows, int64_t cols) {
    int64_t n = rows * cols;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t r = i / cols, x = i % cols;
        float grad = g[r * g_ld + x] * p.grad_scale;
        float weight = w[r * w_ld + x] * keep;
        float &m_at = m[r * m_ld + x], &v_at = v[r * v_ld + x];
        m_at = p.beta1 * m_at + (1 - p.beta1) * grad;
        v_at = p.beta2 * v_at + (1 - p.beta2) * grad * grad;
        w[r * w_ld + x] = weight - p.lr * (m_at * correct1) / (sqrtf(v_at * correct2) + p.eps);
    }
}

OP sp_cuda_adamw(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g) {
    sp_cuda *c = sp_cuda_of(w);
    float keep = (float)(1 - (double)p->lr * p->weight_decay);
    float correct1 = (float)(1 / (1 - pow((double)p->beta1, (double)p->step)));
    float correct2 = (float)(1 / (1 - pow((double)p->beta2, (double)p->step)));
    adamw_kernel<<<132 * 8, 256, 0, c->stream>>>(*p, keep, correct1, correct2, (float *)w.data,
                                                 w.ld, (float *)m.data, m.ld, (float *)v.data, v.ld,
                                                 (const float *)g.data, g.ld, w.rows, w.cols);
    LAUNCHED("adamw", "[%lld, %lld]", (long long)w.rows, (long long)w.cols);
    return SP_OK;
}
