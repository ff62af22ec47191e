// Useful floating-point operations of a training micro-batch and of a prefill, per part, counted as
// in training.md 10: 2 per multiply-add of the matrix products and attention pairs the method asks
// for, whatever an implementation really executes. Element-wise work is not counted.
//
// The numbers are exact integers as long as they stay below 2^53.
#ifndef SPARDA_FLOPS_H
#define SPARDA_FLOPS_H

#include "model/model.h"
#include "model/selection.h"

typedef struct sp_flops {
    double linear;       // frozen projections and MLP
    double forecast;     // Forecast projections
    double selection;    // teacher, original or InfiniGen-style rows (two passes over the keys, the
                         // normaliser and the probabilities), or Forecast scores
    double attention;    // q.k and p.v over the keys of the lists (dense: all keys)
    double student;      // student logits (training)
    double student_grad; // gradient of the rotated Forecast (training)
    double grad_weight;  // gradient of the Forecast matrices (training)
    double head;         // logits (prefill)
} sp_flops;
double sp_flops_total(const sp_flops *f);

// One sequence of T tokens. The last layer is without values, attention, output projection and MLP.
// All 0 below one deployed window.
sp_flops sp_flops_training(const sp_model_desc *d, sp_grid teacher, int64_t T);
// `a` gives selector, selection, teacher grid and visibility; logits of `logit_rows` rows.
sp_flops sp_flops_prefill(const sp_model_desc *d, const sp_prefill_args *a, int64_t T,
                          int64_t logit_rows);

// ---- counts of one KV head, summed over T rows ----
// (row, window) pairs: visible windows of every row.
double sp_count_window_pairs(sp_grid g, sp_visibility v, int64_t T);
// (row, key) pairs of block lists of k blocks that hold the row's own block: causal, nothing
// wasted.
double sp_count_listed_keys(int64_t block, int64_t k, int64_t T);

#endif
