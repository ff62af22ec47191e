// Importance of deployed windows (training.md 4.1, 4.3): the Hopper kernels of importance_sm90.cuh
// for head sizes 64 and 128 and power-of-two alignment.
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/importance_sm90.cuh"

using importance_sm90::Imp;
using importance_sm90::Lse;
using importance_sm90::Params;

static const int key_tiles_per_block = 16; // measured: docs/notes/gpu-speed.md

template <int D>
static sp_status launch_lse(sp_cuda *c, const CUtensorMap &q, const CUtensorMap &k,
                            const Params &p) {
    auto kernel = importance_sm90::lse_kernel<D>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)Lse<D>::SMEM));
    dim3 grid((unsigned)ceil_div(p.rows, Lse<D>::ROWS), (unsigned)p.q_heads);
    kernel<<<grid, importance_sm90::THREADS, Lse<D>::SMEM, c->stream>>>(q, k, p);
    LAUNCHED("lse_kernel", "%d rows, %d windows, %d heads of %d", p.rows, p.n, p.q_heads, D);
    return SP_OK;
}

template <int D, int RHO, bool MEAN>
static sp_status launch_pool(sp_cuda *c, const CUtensorMap &q, const CUtensorMap &k,
                             const Params &p) {
    auto kernel = importance_sm90::importance_kernel<D, RHO, MEAN>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)Imp<D>::SMEM));
    dim3 grid((unsigned)ceil_div(p.rows, Imp<D>::ROWS),
              (unsigned)ceil_div(ceil_div(p.n, Imp<D>::KEYS), p.chunk), (unsigned)p.kv_heads);
    kernel<<<grid, importance_sm90::THREADS, Imp<D>::SMEM, c->stream>>>(q, k, p);
    LAUNCHED("importance_kernel", "%d rows, %d windows onto %d, %d/%d heads of %d", p.rows, p.n,
             p.n_d, p.q_heads, p.kv_heads, D);
    return SP_OK;
}

template <int D>
static sp_status launch(sp_cuda *c, const CUtensorMap &q, const CUtensorMap &k, const Params &p,
                        int rho, bool mean) {
    SP_TRY(launch_lse<D>(c, q, k, p));
#define POOL(RHO)                                                                                  \
    case RHO:                                                                                      \
        return mean ? launch_pool<D, RHO, true>(c, q, k, p)                                        \
                    : launch_pool<D, RHO, false>(c, q, k, p)
    switch (rho) {
    case 1:
        return launch_pool<D, 1, false>(c, q, k, p);
        POOL(2);
        POOL(4);
        POOL(8);
        POOL(16);
    }
#undef POOL
    return sp_error(SP_ENVIRONMENT, "importance on CUDA: no kernel for a stride ratio of %d", rho);
}

OP sp_cuda_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor k,
                      sp_tensor out) {
    sp_cuda *c = sp_cuda_of(q);
    int64_t d = a->heads.head_dim, ratio = a->deployed.stride / a->fine.stride;
    if ((d != 64 && d != 128) || ratio > 16 || (ratio & (ratio - 1)) != 0)
        return sp_error(SP_ENVIRONMENT,
                        "importance on CUDA: head size %lld and a stride ratio of %lld (%lld/%lld); it "
                        "needs a head size of 64 or 128 and a ratio of 1, 2, 4, 8 or 16; backend 'cpu' "
                        "takes any",
                        (long long)d, (long long)ratio, (long long)a->deployed.stride,
                        (long long)a->fine.stride);
    CUDA_TRY(cudaMemset2DAsync(out.data, out.ld * 4, 0, out.cols * 4, out.rows, c->stream));
    if (k.rows == 0 || a->n_d == 0) return SP_OK;
    bool same = a->fine.kernel == a->deployed.kernel && a->fine.stride == a->deployed.stride;
    int rho = same ? 1 : (int)(a->deployed.stride / a->fine.stride);
    CUtensorMap q_map, k_map;
    SP_TRY(sp_cuda_map(c, q, 64, &q_map));
    SP_TRY(sp_cuda_map(c, k, 128, &k_map));
    void *lse;
    SP_TRY(sp_cuda_scratch(c, a->heads.q_heads * q.rows * 4, "log-sum-exp of a query tile", &lse));
    Params p = {.i0 = i0,
                .rows = (int)q.rows,
                .n = (int)k.rows,
                .stride = (int)a->fine.stride,
                .extent = (int)window_extent(a->fine, a->visibility),
                .q_heads = (int)a->heads.q_heads,
                .kv_heads = (int)a->heads.kv_heads,
                .scale_log2 = (float)(1.4426950408889634 / sqrt((double)a->heads.head_dim)),
                .lse = (float *)lse,
                .out = (float *)out.data,
                .out_ld = out.ld,
                .n_d = (int)a->n_d,
                .chunk = key_tiles_per_block};
    bool mean = a->align == SP_ALIGN_MEAN;
    return a->heads.head_dim == 128 ? launch<128>(c, q_map, k_map, p, rho, mean)
                                    : launch<64>(c, q_map, k_map, p, rho, mean);
}
