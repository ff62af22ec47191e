// Importance of deployed windows (training.md 4.1, 4.3): the kernels of importance_sm90.cuh on
// Hopper, of importance_sm80.cuh elsewhere, for head sizes 64 and 128 and power-of-two alignment.
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/importance_sm80.cuh"
#include "kernels/cuda/importance_sm90.cuh"

#include <algorithm>

using importance::Params;

static const int windows_per_block = 4096; // of pass 2, at most; measured: docs/notes/gpu-speed.md

static const int most_rows_of_a_block = 256;
static_assert(most_rows_of_a_block % importance_sm90::Lse<64>::ROWS == 0 &&
              most_rows_of_a_block % importance_sm80::ROWS == 0);

struct Launch {
    sp_cuda *c;
    Params p;
    CUtensorMap q_map, k_map, k_part_map; // Hopper: boxes of 64, 128 and Imp::PART rows
    importance_sm80::Operands operands;
};

template <class Kernel> static sp_status allow(Kernel kernel, size_t shared) {
    CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    return SP_OK;
}

template <int D> static sp_status launch_lse(const Launch &l) {
    const Params &p = l.p;
    if (l.c->hopper) {
        using L = importance_sm90::Lse<D>;
        auto kernel = importance_sm90::lse_kernel<D>;
        SP_TRY(allow(kernel, L::SMEM));
        dim3 grid((unsigned)ceil_div(p.rows, L::ROWS), (unsigned)p.q_heads);
        kernel<<<grid, L::THREADS, L::SMEM, l.c->stream>>>(l.q_map, l.k_map, p);
    } else {
        using namespace importance_sm80;
        auto kernel = importance_sm80::lse_kernel<D>;
        SP_TRY(allow(kernel, LSE_SMEM<D>));
        dim3 grid((unsigned)ceil_div(p.rows, ROWS), (unsigned)p.q_heads);
        kernel<<<grid, THREADS, LSE_SMEM<D>, l.c->stream>>>(l.operands, p);
    }
    LAUNCHED("lse_kernel", "%d rows, %d windows, %d heads of %d", p.rows, p.n, p.q_heads, D);
    return SP_OK;
}

template <int D, int RHO, bool MEAN> static sp_status launch_pool(const Launch &l) {
    Params p = l.p;
    if (l.c->hopper) {
        using I = importance_sm90::Imp<D>;
        auto kernel = importance_sm90::importance_kernel<D, RHO, MEAN>;
        SP_TRY(allow(kernel, I::SMEM));
        p.chunk = windows_per_block / I::KEYS;
        dim3 grid((unsigned)ceil_div(p.rows, I::ROWS), (unsigned)ceil_div(p.n, p.chunk * I::KEYS),
                  (unsigned)p.kv_heads);
        kernel<<<grid, I::THREADS, I::SMEM, l.c->stream>>>(l.q_map, l.k_part_map, p);
    } else {
        using namespace importance_sm80;
        auto kernel = importance_sm80::importance_kernel<D, RHO, MEAN>;
        SP_TRY(allow(kernel, IMPORTANCE_SMEM<D>));
        p.chunk = windows_per_block / KEYS;
        dim3 grid((unsigned)ceil_div(p.rows, ROWS), (unsigned)ceil_div(p.n, windows_per_block),
                  (unsigned)p.kv_heads);
        kernel<<<grid, THREADS, IMPORTANCE_SMEM<D>, l.c->stream>>>(l.operands, p);
    }
    LAUNCHED("importance_kernel", "%d rows, %d windows onto %d, %d/%d heads of %d", p.rows, p.n,
             p.n_d, p.q_heads, p.kv_heads, D);
    return SP_OK;
}

template <int D> static sp_status launch(const Launch &l, int rho, bool mean) {
    SP_TRY(launch_lse<D>(l));
#define POOL(RHO)                                                                                  \
    case RHO:                                                                                      \
        return mean ? launch_pool<D, RHO, true>(l) : launch_pool<D, RHO, false>(l)
    switch (rho) {
    case 1:
        return launch_pool<D, 1, false>(l);
        POOL(2);
        POOL(4);
        POOL(8);
        POOL(16);
    }
#undef POOL
    return sp_error(SP_ENVIRONMENT, "importance on CUDA: no kernel for a stride ratio of %d", rho);
}

sp_status sp_cuda_importance_supported(sp_heads heads, sp_grid fine, sp_grid deployed) {
    int64_t d = heads.head_dim, ratio = deployed.stride / fine.stride;
    if ((d == 64 || d == 128) && ratio <= 16 && (ratio & (ratio - 1)) == 0) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "importance on CUDA: head size %lld and a stride ratio of %lld (%lld/%lld); it "
                    "needs a head size of 64 or 128 and a ratio of 1, 2, 4, 8 or 16; backend 'cpu' "
                    "takes any",
                    (long long)d, (long long)ratio, (long long)deployed.stride,
                    (long long)fine.stride);
}

OP sp_cuda_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor k,
                      sp_tensor out) {
    sp_cuda *c = sp_cuda_of(q);
    SP_TRY(sp_cuda_importance_supported(a->heads, a->fine, a->deployed));
    if (!sp_cuda_aligned(q) || !sp_cuda_aligned(k))
        return sp_error(SP_ENVIRONMENT, "broken contract in importance on CUDA: rows of q or c do "
                                        "not begin at multiples of 16 bytes");
    CUDA_TRY(cudaMemset2DAsync(out.data, out.ld * 4, 0, out.cols * 4, out.rows, c->stream));
    if (k.rows == 0 || a->n_d == 0) return SP_OK;
    bool same = a->fine.kernel == a->deployed.kernel && a->fine.stride == a->deployed.stride;
    int rho = same ? 1 : (int)(a->deployed.stride / a->fine.stride);
    void *lse;
    int64_t lse_ld = round_up(q.rows, most_rows_of_a_block);
    SP_TRY(sp_cuda_scratch(c, a->heads.q_heads * lse_ld * 4, "log-sum-exp of a query tile", &lse));
    Launch l = {};
    l.c = c;
    l.p = {.i0 = (int)i0,
           .rows = (int)q.rows,
           .n = (int)k.rows,
           .stride = (int)a->fine.stride,
           .extent = (int)window_extent(a->fine, a->visibility),
           .q_heads = (int)a->heads.q_heads,
           .kv_heads = (int)a->heads.kv_heads,
           .scale_log2 = (float)(1.4426950408889634 / sqrt((double)a->heads.head_dim)),
           .lse = (float *)lse,
           .lse_ld = (int)lse_ld,
           .out = (float *)out.data,
           .out_ld = out.ld,
           .n_d = (int)a->n_d,
           .cells = (int)std::min(a->n_d, rho > 1 ? (k.rows + 1) / rho : k.rows),
           .chunk = 0};
    l.operands = {(const bf16 *)q.data, (const bf16 *)k.data, q.ld, k.ld};
    if (c->hopper) {
        SP_TRY(sp_cuda_map(c, q, 64, &l.q_map));
        SP_TRY(sp_cuda_map(c, k, 128, &l.k_map));
        SP_TRY(sp_cuda_map(c, k, importance_sm90::Imp<64>::PART, &l.k_part_map));
    }
    bool mean = a->align == SP_ALIGN_MEAN;
    return a->heads.head_dim == 128 ? launch<128>(l, rho, mean) : launch<64>(l, rho, mean);
}
