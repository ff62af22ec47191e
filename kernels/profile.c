// Timed copies of a backend's operations. See profile.h.
#include "kernels/profile.h"

#include "common/util.h"
#include "kernels/backend.h"

#include <string.h>

// Name, parameters, arguments of every operation that is timed.
#define OPERATIONS(X)                                                                              \
    X(upload, (sp_tensor dst, sp_dtype type, const void *src), (dst, type, src))                   \
    X(download, (sp_tensor src, void *dst), (src, dst))                                            \
    X(copy, (sp_tensor dst, sp_tensor src), (dst, src))                                            \
    X(fill, (sp_tensor dst, float value), (dst, value))                                            \
    X(embed, (sp_tensor tokens, sp_tensor table, float scale, sp_tensor out),                      \
      (tokens, table, scale, out))                                                                 \
    X(rmsnorm, (sp_tensor x, sp_tensor w, float eps, sp_tensor out), (x, w, eps, out))             \
    X(linear, (sp_tensor x, sp_tensor w, sp_tensor out), (x, w, out))                              \
    X(rope,                                                                                        \
      (sp_tensor x, sp_tensor cosines, sp_tensor sines, int64_t pos0, int64_t head_dim,            \
       bool transpose),                                                                            \
      (x, cosines, sines, pos0, head_dim, transpose))                                              \
    X(residual_add, (sp_tensor h, sp_tensor branch, float factor), (h, branch, factor))            \
    X(swiglu, (sp_tensor gate_up, sp_tensor out), (gate_up, out))                                  \
    X(cis, (sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out),         \
      (heads, v, delta, scale, out))                                                               \
    X(dense_attention,                                                                             \
      (sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v, sp_tensor bias,          \
       sp_tensor out),                                                                             \
      (heads, q, q0, k, v, bias, out))                                                             \
    X(sparse_attention,                                                                            \
      (sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v, sp_tensor bias,          \
       sp_tensor lists, int64_t block, sp_tensor out),                                             \
      (heads, q, q0, k, v, bias, lists, block, out))                                               \
    X(compress_keys, (sp_tensor k, sp_grid g, int64_t j0, sp_tensor out), (k, g, j0, out))         \
    X(importance,                                                                                  \
      (const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c, sp_tensor out),          \
      (a, q, i0, c, out))                                                                          \
    X(forecast_scores,                                                                             \
      (sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f, int64_t i0, sp_tensor c,           \
       sp_tensor out),                                                                             \
      (heads, g, v, f, i0, c, out))                                                                \
    X(block_scores,                                                                                \
      (const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a, int64_t i0,         \
       int64_t nb, sp_tensor out),                                                                 \
      (s, deployed, kv_heads, a, i0, nb, out))                                                     \
    X(select_blocks,                                                                               \
      (const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a, int64_t i0,         \
       int64_t nb, sp_tensor lists),                                                               \
      (s, deployed, kv_heads, a, i0, nb, lists))                                                   \
    X(cis_blocks,                                                                                  \
      (sp_tensor cis_of_keys, sp_grid deployed, int64_t block, sp_tensor scores, sp_tensor order), \
      (cis_of_keys, deployed, block, scores, order))                                               \
    X(extend_lists,                                                                                \
      (int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0, sp_tensor order,          \
       sp_tensor lists),                                                                           \
      (block, kv_heads, shortlist, i0, order, lists))                                              \
    X(forecast_lists,                                                                              \
      (sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s, sp_tensor f, int64_t i0, \
       sp_tensor c, int64_t nb, sp_tensor lists),                                                  \
      (heads, g, v, s, f, i0, c, nb, lists))                                                       \
    X(kl,                                                                                          \
      (const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a, sp_tensor lists,    \
       sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p, const sp_tensor *dz),         \
      (p, f, i0, c, a, lists, row_loss, df, student_p, dz))                                        \
    X(grad_weight, (sp_tensor dy, sp_tensor x, sp_tensor g), (dy, x, g))                           \
    X(scale, (sp_tensor x, float factor), (x, factor))                                             \
    X(sum, (sp_tensor x, double *out), (x, out))                                                   \
    X(sum_squares, (sp_tensor x, double *out), (x, out))                                           \
    X(adamw, (const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g),         \
      (p, w, m, v, g))

#define INDEX(name, parameters, arguments) OP_##name,
enum { OPERATIONS(INDEX) N_OPERATIONS };

#define ROW(name, parameters, arguments) {#name, 0, 0},
static sp_profile_row rows[] = {OPERATIONS(ROW)};

static sp_backend *profiled;
static const sp_operations *original;
static sp_operations timed;

#define TIMED(name, parameters, arguments)                                                         \
    static sp_status timed_##name parameters {                                                     \
        double start = sp_now();                                                                   \
        sp_status st = original->name arguments;                                                   \
        if (st == SP_OK) st = original->synchronize(profiled);                                     \
        rows[OP_##name].seconds += sp_now() - start;                                               \
        rows[OP_##name].calls++;                                                                   \
        return st;                                                                                 \
    }
OPERATIONS(TIMED)

sp_status sp_profile_open(sp_backend *be) {
    if (profiled) return sp_error(SP_ENVIRONMENT, "a profile is already open");
    profiled = be;
    original = be->ops;
    timed = *original; // what is not timed stays as it is
#define REPLACE(name, parameters, arguments) timed.name = timed_##name;
    OPERATIONS(REPLACE)
    be->ops = &timed;
    sp_profile_reset();
    return SP_OK;
}

int sp_profile_rows(const sp_profile_row **out) {
    *out = rows;
    return N_OPERATIONS;
}

void sp_profile_reset(void) {
    for (int i = 0; i < N_OPERATIONS; i++) rows[i] = (sp_profile_row){.name = rows[i].name};
}

void sp_profile_close(void) {
    if (profiled) profiled->ops = original;
    profiled = NULL;
}
