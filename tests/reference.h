// Slow versions of the operations in double, written from training.md one formula at a time, that
// backends are compared with. Arrays are packed; outputs are the caller's.
#ifndef SPARDA_TEST_REFERENCE_H
#define SPARDA_TEST_REFERENCE_H

#include "kernels/kernels.h"

// Causal attention of R rows at q0..; `lists` [R][Hkv][slots] of blocks, or NULL for all keys; bias
// [Hkv][q0+R] on the logits, or NULL (6.2).
void ref_attention(sp_heads h, const float *q, int64_t R, int64_t q0, const float *k,
                   const float *v, const float *bias, const int32_t *lists, int64_t slots,
                   int64_t block, double *out);
// 4.1 and 4.3: out [R][Hkv][n_d].
void ref_importance(const sp_importance_args *a, const float *q, int64_t R, int64_t i0,
                    const float *c, int64_t n, double *out);
// 4.3 on one row of n cells.
void ref_align(const double *row, int64_t n, int64_t rho, bool mean, int64_t n_d, double *out);
// 5.1 and 5.2 on one row.
void ref_block_scores(const sp_selection *s, sp_grid g, const float *a, int64_t n_d, int64_t i,
                      int64_t nb, double *scores);
void ref_select(const sp_selection *s, const double *scores, int64_t i, int64_t nb, int32_t *list);
// 5.4 on one row: the k best by `cis` after the k1 best by `qk` and nothing of the future else.
void ref_select_twice(const sp_selection *s, int64_t k1, const double *qk, const double *cis,
                      int64_t i, int64_t nb, int32_t *list);
// 7.1 to 7.5 on one row and head with logits z over n_d cells. p, dz [n_d] may be NULL; dz without
// the weight. Returns the loss.
double ref_kl_row(const sp_selection *s, sp_grid g, const double *z, const float *a, int64_t n_d,
                  int64_t i, const int32_t *list, sp_kl_gradient gradient, double *p, double *dz);

#endif
