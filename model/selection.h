// How a forward pass chooses its blocks, and a whole prefill under each choice.
//
// Used by training (the teacher's lists drive the hidden states), by evaluation and by validation,
// so that there is one copy of each selection.
//
// Legend: L layers, T tokens, R rows of a query tile, Hkv KV heads, d head size, n_d deployed
// windows, k list length, B block size, nb = ceil(T/B).
#ifndef SPARDA_MODEL_SELECTION_H
#define SPARDA_MODEL_SELECTION_H

#include "model/forecast.h"
#include "model/model.h"

typedef enum sp_selector {
    SP_SELECT_DENSE,     // no selection: causal attention over everything
    SP_SELECT_ORIGINAL,  // true queries, deployed grid, complete windows (inference.md 1.2)
    SP_SELECT_TEACHER,   // true queries, teacher grid aligned onto the deployed one (training.md 4)
    SP_SELECT_FORECAST,  // F of the layer before (layer 0: its own)
    SP_SELECT_INFINIGEN, // layer l's q_proj on layer l-1's attention input, then ORIGINAL
    SP_SELECT_RANDOM,    // forced blocks plus random visible ones
} sp_selector;
const char *sp_selector_name(sp_selector s); // "dense", "original", ...

typedef struct sp_prefill_args {
    sp_selector selector;
    sp_selection selection;             // block, I, W, k, mask_future
    sp_grid teacher;                    // SP_SELECT_TEACHER
    sp_align align;                     // SP_SELECT_TEACHER
    sp_visibility forecast_sees;        // SP_SELECT_FORECAST
    const sp_forecast_device *forecast; // SP_SELECT_FORECAST
    uint64_t seed;                      // SP_SELECT_RANDOM
    const int32_t *fixed_lists;         // not NULL: [L][T][Hkv*k], used instead of any selection
    int64_t tile;                       // query rows at once; 0 = default

    // Called, if not NULL, for every layer once q, k and v of all T rows are there and before
    // attention; w->h is still the layer's input and w->attn the output of the layer before.
    // `lists` I32 [T, Hkv*k] (rows 0 for dense). For recall measurements and tests.
    sp_status (*on_layer)(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                          const sp_tensor *lists);
    void *user;
} sp_prefill_args;

// Runs all layers over T tokens from position 0; w->h then holds the final residual stream.
// rope covers >= T rows. T below one deployed window has nothing to score: every query attends to
// all it can see. Extra memory is linear in T and lives only during the call.
sp_status sp_prefill(const sp_model *m, sp_workspace *w, const sp_rope_table *rope,
                     const int32_t *tokens, int64_t T, const sp_prefill_args *a);

// Whether the backend has kernels for this model with a teacher grid, up to so many tokens: see
// sp_backend_supports.
sp_status sp_model_supported(sp_backend *be, const sp_model_desc *d, sp_grid teacher,
                             int64_t tokens);

// What the query chooses for rows i0..i0+R of one layer: window rows, then the cut. `source` is q
// [R, Hq*d] (original, teacher, infinigen) or F [R, Hkv*d] (forecast), rotated; `c` the compressed
// keys of the first T tokens, deployed grid (teacher: the teacher's), [>= sp_windows(grid, T),
// Hkv*d]; `scores` scratch F32 [>= R, >= Hkv*n_d], not used by forecast; lists I32 [R, Hkv*k]. Not
// for dense and random.
// The length k is that of sp_model_shortlist: with desc->cis, sp_extend_lists follows.
// With complete windows and mask_future the answer does not depend on tokens after a row, so
// decode may call it with T = i0 + 1.
sp_status sp_select_rows(const sp_model *m, const sp_prefill_args *a, sp_tensor source, int64_t i0,
                         sp_tensor c, int64_t T, sp_tensor scores, sp_tensor lists);

// Blocks by the importance of their keys, for sp_extend_lists. Empty without desc->cis.
typedef struct sp_cis_ranking {
    sp_tensor scores, order; // F32, I32 [Hkv, nb]
} sp_cis_ranking;
sp_status sp_cis_ranking_make(sp_backend *be, const sp_model_desc *d, int64_t max_tokens,
                              sp_cis_ranking *out);
void sp_cis_ranking_free(sp_cis_ranking *r);
// Ranks the blocks of the T keys whose importance is cis [Hkv, T]; *order, a view [Hkv, nb], holds
// until the next call. Without desc->cis: SP_NO_TENSOR.
sp_status sp_cis_rank(const sp_model_desc *d, const sp_cis_ranking *r, sp_tensor cis,
                      sp_tensor *order);

// SP_SELECT_RANDOM: lists [R][Hkv][k] on the host for rows i0.. of one layer: what is forced, then
// random other blocks that the query can see. A list depends on seed, layer, head and row alone.
sp_status sp_random_lists(const sp_selection *s, uint64_t seed, int64_t layer, int64_t i0,
                          int64_t R, int64_t kv_heads, int32_t *lists);

// The teacher's importance rows (training.md 4): start rule on the fine grid, aligned; complete
// windows and no alignment where the two grids are equal (4.2).
sp_importance_args sp_teacher_importance(const sp_model_desc *d, sp_grid teacher, sp_align align,
                                         int64_t n_d);

// Default query rows per tile: a tile of window scores F32 [R, Hkv*n_d] takes a few MB.
int64_t sp_selection_tile(const sp_backend *be, const sp_model_desc *d, int64_t T);

// Rotated Forecasts of the rows of x [R, D] at positions pos0..: out [R, Hkv*d] = rope(W x).
sp_status sp_forecast_rows(const sp_model *m, sp_tensor w, sp_tensor x, const sp_rope_table *rope,
                           int64_t pos0, sp_tensor out);

#endif
