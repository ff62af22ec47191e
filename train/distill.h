// One training micro-batch of one sequence: frozen layers, teacher, selection, KL, gradient
// (training.md 13). Memory linear in T: importance rows exist only for a tile of queries.
//
// The trajectory is teacher-forced: attention reads the teacher's lists, so hidden states never
// depend on Forecast weights, and the loss of a layer reaches exactly one matrix. Nothing is
// allocated during a step.
//
// Legend: L layers, T tokens, Hkv KV heads, d head size, D hidden, n_d deployed windows, k list
// length.
#ifndef SPARDA_DISTILL_H
#define SPARDA_DISTILL_H

#include "model/forecast.h"
#include "model/model.h"

typedef struct sp_distill sp_distill;

typedef struct sp_distill_args {
    sp_grid teacher; // active stage of the progressive schedule
    sp_align align;
    bool mask_future;
    sp_kl_gradient gradient;
    bool allow_longer;
    int64_t tile; // query rows at once; 0 = default; CPU: the same bits for every tile
} sp_distill_args;

// For sequences of up to max_tokens. Owns its workspace; `m` outlives it. SP_BAD_INPUT if the model
// has too few positions, or for a teacher grid the method cannot use.
sp_status sp_distill_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                          sp_distill **out);
void sp_distill_close(sp_distill *d);
// Progressive schedule: another teacher grid from the next step on.
sp_status sp_distill_set_teacher(sp_distill *d, sp_grid teacher);
// Memory of sp_distill_open for a teacher grid of stride >= 1 and the default tile; base weights,
// Forecast weights and gradients come on top.
int64_t sp_distill_bytes(const sp_backend *be, const sp_model_desc *desc, int64_t max_tokens);

// T below this gives nothing (no window, no loss): the caller skips and counts such rows (3.4).
int64_t sp_distill_min_tokens(const sp_model_desc *desc);

// Adds the gradient of `scale` * sum over layers of loss_layer to grad, F32 [L*Hkv*d, D] (matrix l
// at rows l*Hkv*d). loss[L] receives loss_layer of this sequence (unscaled). w: storage-precision
// weights by scored layer. grad NULL: losses only. T below sp_distill_min_tokens: losses 0, grad
// untouched.
sp_status sp_distill_step(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                          int64_t T, double scale, sp_tensor *grad, double *loss);

// Held-out evaluation on one sequence. Both sides select as at inference, with future blocks
// masked: the teacher by its importance rows, the Forecast by its scores over complete windows;
// hidden states are those of training. Measured on the (row, KV head) pairs in which more blocks
// compete than may be chosen (qb + 1 > k); forced blocks count on neither side.
//   recall  share of the teacher's chosen blocks that the Forecast also chooses
//   mass    teacher importance on the Forecast's chosen blocks over that on the teacher's own, a
//           block's importance being the sum of its cells s*b .. s*b+s-1. The teacher chooses by
//           the largest cell, so single rows may exceed 1. 1 where the teacher's blocks have none.
// Sums and counts, to be added over sequences and ranks: recall_sum[L], mass_sum[L], rows[L] are
// set, not added to. T below sp_distill_min_tokens: all 0.
sp_status sp_distill_recall(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                            int64_t T, double *recall_sum, double *mass_sum, double *rows);

// For tests, reports and golden values: everything of one layer, host arrays, NULL = not wanted.
typedef struct sp_distill_probe {
    int64_t layer;
    // Lists to use instead of the teacher's own, or NULL: of the attention [L][T][Hkv*k] and, where
    // the model has another one for it (sp_model_shortlist), of the loss [L][T][Hkv*k1].
    const int32_t *fixed_lists, *fixed_loss_lists;
    float *importance;     // [T][Hkv][n_d]
    float *row_loss;       // [T][Hkv]
    float *student_p, *dz; // [T][Hkv][n_d]
    float *forecast;       // [T][Hkv][d] rotated Forecast that scores `layer`
    // The layer's own selection, whatever was used: of the loss [T][Hkv][k1]; of the attention
    // [T][Hkv][k], where they differ not for the last layer, which has none.
    int32_t *loss_lists, *lists;
} sp_distill_probe;
sp_status sp_distill_step_probed(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                                 int64_t T, double scale, sp_tensor *grad, double *loss,
                                 sp_distill_probe *probe);

#endif
