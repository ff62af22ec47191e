// Inside of kernels/: what a backend is made of. Not for use elsewhere.
//
// A backend is a table of operations plus its accounting. Its own state follows the common part:
// `struct sp_cpu { struct sp_backend base; ... }`. The public functions (dispatch.c, tensor.c)
// check every contract once, so operations of a table may trust their arguments: same backend,
// shapes and types as kernels.h states, at least one row.
//
// A new backend adds: its folder with one file per operation, its table, a line in sp_backend_open.
#ifndef SPARDA_KERNELS_BACKEND_H
#define SPARDA_KERNELS_BACKEND_H

#include "kernels/kernels.h"

typedef struct sp_operations {
    void (*close)(sp_backend *be);
    sp_status (*synchronize)(sp_backend *be); // all operations issued so far are done
    sp_status (*supports)(sp_backend *be, const sp_shapes *s); // NULL: any shape
    double (*matmul_rate)(sp_backend *be);                     // GFLOP/s; NULL: measured at opening
    void (*phase_begin)(const char *name);                     // NULL: no profiler to tell
    void (*phase_end)(void);
    // Zero-filled and aligned for the widest vector. NULL if there is no memory.
    void *(*allocate)(sp_backend *be, int64_t bytes);
    void (*release)(sp_backend *be, void *data);
    sp_status (*upload)(sp_tensor dst, sp_dtype src_type, const void *src);
    sp_status (*download)(sp_tensor src, void *dst);
    sp_status (*copy)(sp_tensor dst, sp_tensor src);
    sp_status (*fill)(sp_tensor dst, float value);

    sp_status (*embed)(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out);
    sp_status (*rmsnorm)(sp_tensor x, sp_tensor w, float eps, sp_tensor out);
    sp_status (*linear)(sp_tensor x, sp_tensor w, sp_tensor out);
    sp_status (*rope)(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                      bool transpose);
    sp_status (*residual_add)(sp_tensor h, sp_tensor branch, float factor);
    sp_status (*swiglu)(sp_tensor gate_up, sp_tensor out);
    sp_status (*cis)(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out);
    // `bias`: data NULL if absent
    sp_status (*dense_attention)(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                 sp_tensor bias, sp_tensor out);
    sp_status (*sparse_attention)(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                                  sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out);

    sp_status (*compress_keys)(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out);
    sp_status (*importance)(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c,
                            sp_tensor out);
    sp_status (*forecast_scores)(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f,
                                 int64_t i0, sp_tensor c, sp_tensor out);
    sp_status (*block_scores)(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                              sp_tensor a, int64_t i0, int64_t nb, sp_tensor out);
    sp_status (*select_blocks)(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                               sp_tensor a, int64_t i0, int64_t nb, sp_tensor lists);
    sp_status (*cis_blocks)(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                            sp_tensor order);
    sp_status (*extend_lists)(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                              sp_tensor order, sp_tensor lists);
    sp_status (*forecast_lists)(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                                sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists);

    sp_status (*kl)(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
                    sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
                    const sp_tensor *dz);

    sp_status (*grad_weight)(sp_tensor dy, sp_tensor x, sp_tensor g);
    sp_status (*scale)(sp_tensor x, float factor);
    sp_status (*sum)(sp_tensor x, double *out);
    sp_status (*sum_squares)(sp_tensor x, double *out);
    // NULL where a backend has no communication of its own
    sp_status (*comm_id)(sp_backend *be, char id[SP_COMM_ID_BYTES]);
    sp_status (*comm_join)(sp_backend *be, const char id[SP_COMM_ID_BYTES], int rank, int size,
                           double deadline_s);
    sp_status (*all_reduce)(sp_tensor t);

    sp_status (*adamw)(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g);
} sp_operations;

struct sp_backend {
    const sp_operations *ops;
    const char *name;
    const char *blas;
    char *description;    // malloc
    char device_id[48];   // of a GPU: its UUID; else ""
    double matmul_gflops; // 0: not measured (yet)
    sp_dtype storage;
    int64_t tile_bytes;
    int64_t bytes, peak_bytes;
};

// Accounting around ops->allocate: for tensors and for a backend's own scratch.
sp_status sp_backend_take(sp_backend *be, int64_t bytes, const char *what, void **out);
void sp_backend_give(sp_backend *be, void *data, int64_t bytes);

sp_status sp_cpu_open(const sp_backend_options *o, sp_backend **out);
// Only where SPARDA_HAVE_CUDA (kernels/cuda/backend.cu).
bool sp_cuda_device_present(void);
sp_status sp_cuda_open(const sp_backend_options *o, sp_backend **out);

// The GPU of a rank among the `visible` ones of its host: its local rank. SP_ENVIRONMENT if there
// is none left for it.
sp_status sp_device_of_rank(int local_rank, int visible, int *device);

// Copies n units of unit_bytes, number items[2i] of `home` to place i of `to`, on all host threads.
void sp_gather_units(uint8_t *to, const uint8_t *home, const uint32_t *items, int64_t n,
                     int64_t unit_bytes);

static inline float *sp_row_f32(sp_tensor t, int64_t row) {
    return (float *)t.data + row * t.ld;
}
static inline int32_t *sp_row_i32(sp_tensor t, int64_t row) {
    return (int32_t *)t.data + row * t.ld;
}

#endif
