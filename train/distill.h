// One training micro-batch of one sequence: frozen layers, teacher, selection, KL, gradient
// (training.md 13). Memory linear in T: importance rows exist only for a tile of queries.
#ifndef SPARDA_DISTILL_H
#define SPARDA_DISTILL_H

#include "model/forecast.h"
#include "model/model.h"

typedef struct sp_distill sp_distill;

typedef struct sp_distill_args {
    sp_grid teacher;     // active stage of the progressive schedule
    sp_align align;
    bool mask_future;
    sp_kl_gradient gradient;
    bool allow_longer;
    int64_t tile; // query rows at once; 0 = default
} sp_distill_args;

// For sequences of up to max_tokens. Owns its workspace; `m` outlives it.
sp_status sp_distill_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                          sp_distill **out);
void sp_distill_close(sp_distill *d);
void sp_distill_set_teacher(sp_distill *d, sp_grid teacher); // progressive schedule
int64_t sp_distill_bytes(const sp_model_desc *desc, int64_t max_tokens, sp_dtype storage); // predicted

// T below one deployed window gives nothing: the caller skips and counts such rows (3.4).
int64_t sp_distill_min_tokens(const sp_model_desc *desc);

// Adds the gradient of `scale` * sum over layers of loss_layer to grad, F32 [L*Hkv*d, D] (matrix l
// at rows l*Hkv*d). loss[L] receives loss_layer of this sequence (unscaled). w: storage-precision
// weights by scored layer. grad NULL: losses only.
sp_status sp_distill_step(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                          int64_t T, double scale, sp_tensor *grad, double *loss);

// Held-out evaluation on one sequence against the teacher: per layer the recall of the Forecast's
// chosen blocks (share of the teacher's chosen, non-forced blocks it also chooses) and mass recall
// (teacher probability on its blocks over that on the teacher's own), as sums and counts to be
// added over sequences and ranks: recall_sum[L], mass_sum[L], rows[L] (rows with candidates beyond
// what must be chosen).
sp_status sp_distill_recall(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                            int64_t T, double *recall_sum, double *mass_sum, double *rows);

// For tests and golden values: everything of one layer, host arrays, NULL = not wanted.
typedef struct sp_distill_probe {
    int64_t layer;
    const int32_t *fixed_lists; // [L][T][Hkv*k] lists to use instead of the teacher's own, or NULL
    float *importance;          // [T][Hkv][n_d]
    float *row_loss;            // [T][Hkv]
    float *student_p, *dz;      // [T][Hkv][n_d]
    float *forecast;            // [T][Hkv][d] rotated Forecast that scores `layer`
    int32_t *lists;             // [T][Hkv][k], the layer's own selection
} sp_distill_probe;
sp_status sp_distill_step_probed(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                                 int64_t T, double scale, sp_tensor *grad, double *loss,
                                 sp_distill_probe *probe);

#endif
