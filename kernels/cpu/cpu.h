// Inside of the CPU backend: its state and the helpers its operations share.
//
// Every operation runs the same fixed units of work whatever the number of threads, and each unit
// sums in a fixed order, so results do not depend on it. Units are handed out dynamically: causal
// rows are of unequal length.
#ifndef SPARDA_KERNELS_CPU_H
#define SPARDA_KERNELS_CPU_H

#include "kernels/backend.h"
#include "kernels/cpu/sgemm.h"
#include "kernels/cpu/vector.h"

#include <omp.h>

typedef struct sp_cpu {
    struct sp_backend base;
    int threads;
    const sp_vector *vec; // inner loops for this machine
    sp_sgemm_fn *sgemm;
    // Scratch, grown on demand: one piece for all threads to share, one piece per thread.
    void *shared;
    int64_t shared_bytes;
    void *private_all;
    int64_t private_bytes; // of one thread; a multiple of 64
} sp_cpu;

static inline sp_cpu *sp_cpu_of(sp_tensor t) {
    return (sp_cpu *)t.backend;
}

// Before a parallel region. Contents are undefined; valid until the next such call.
sp_status sp_cpu_scratch(sp_cpu *cpu, int64_t floats_per_thread);
sp_status sp_cpu_shared_scratch(sp_cpu *cpu, int64_t floats, float **out);
static inline float *sp_cpu_private(const sp_cpu *cpu) { // inside a parallel region
    return (float *)((char *)cpu->private_all + omp_get_thread_num() * cpu->private_bytes);
}

extern const sp_operations sp_cpu_operations;

sp_status sp_cpu_embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out);
sp_status sp_cpu_rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out);
sp_status sp_cpu_linear(sp_tensor x, sp_tensor w, sp_tensor out);
sp_status sp_cpu_rope(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                      bool transpose);
sp_status sp_cpu_residual_add(sp_tensor h, sp_tensor branch, float factor);
sp_status sp_cpu_swiglu(sp_tensor gate_up, sp_tensor out);
sp_status sp_cpu_cis(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out);
sp_status sp_cpu_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                 sp_tensor bias, sp_tensor out);
sp_status sp_cpu_sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                  sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out);
sp_status sp_cpu_compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out);
sp_status sp_cpu_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c,
                            sp_tensor out);
sp_status sp_cpu_forecast_scores(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f,
                                 int64_t i0, sp_tensor c, sp_tensor out);
sp_status sp_cpu_block_scores(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                              sp_tensor a, int64_t i0, int64_t nb, sp_tensor out);
sp_status sp_cpu_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                               sp_tensor a, int64_t i0, int64_t nb, sp_tensor lists);
sp_status sp_cpu_cis_blocks(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                            sp_tensor order);
sp_status sp_cpu_extend_lists(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                              sp_tensor order, sp_tensor lists);
sp_status sp_cpu_forecast_lists(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                                sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists);
sp_status sp_cpu_kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
                    sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
                    const sp_tensor *dz);
sp_status sp_cpu_grad_weight(sp_tensor dy, sp_tensor x, sp_tensor g);
sp_status sp_cpu_scale(sp_tensor x, float factor);
sp_status sp_cpu_sum(sp_tensor x, double *out);
sp_status sp_cpu_sum_squares(sp_tensor x, double *out);
sp_status sp_cpu_adamw(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g);

// Shared by block_scores and select_blocks: scores of one row of one head.
void sp_cpu_row_block_scores(const sp_selection *s, sp_grid deployed, const float *a, int64_t n_d,
                             int64_t i, int64_t nb, float *scores);
// Shared by select_blocks and forecast_lists: the list [topk] of one row of windows a [n_d] at
// position i; scratch [2*nb].
void sp_cpu_select_row(const sp_selection *s, sp_grid deployed, const float *a, int64_t n_d,
                       int64_t i, int64_t nb, float *scratch, int32_t *list);

static inline int64_t sp_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t sp_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t sp_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t sp_round_up(int64_t a, int64_t b) {
    return sp_ceil_div(a, b) * b;
}

#endif
