// How a forward pass chooses its blocks, and a whole prefill under each choice.
//
// Used by training (the teacher's lists drive the hidden states), by evaluation and by validation,
// so that there is one copy of the layer loop.
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
const char *sp_selector_name(sp_selector s);

typedef struct sp_prefill_args {
    sp_selector selector;
    sp_selection selection;         // block, I, W, k, mask_future
    sp_grid teacher;                // SP_SELECT_TEACHER
    sp_align align;                 // SP_SELECT_TEACHER
    sp_visibility forecast_sees;    // SP_SELECT_FORECAST
    const sp_forecast_device *forecast; // SP_SELECT_FORECAST
    uint64_t seed;                  // SP_SELECT_RANDOM
    const int32_t *fixed_lists;     // not NULL: [L][T][Hkv*k], used instead of any selection
    int64_t tile;                   // query rows at once; 0 = default. Results do not depend on it.

    // Called, if not NULL, for every layer once q, k and v of all T rows are there and before
    // attention; `lists` I32 [T, Hkv*k] (rows 0 for dense). For recall measurements and tests.
    sp_status (*on_layer)(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                          const sp_tensor *lists);
    void *user;
} sp_prefill_args;

// Runs all layers over T tokens; w->h then holds the final residual stream. rope covers >= T rows.
sp_status sp_prefill(const sp_model *m, sp_workspace *w, const sp_rope_table *rope,
                     const int32_t *tokens, int64_t T, const sp_prefill_args *a);

// Lists of one layer for rows i0..i0+R from already computed inputs (the part sp_prefill repeats);
// `source` is q [R,Hq*d] (original, teacher, infinigen) or f [R,Hkv*d] (forecast), `k` the rotated
// keys of all T tokens, `c` compressed keys of the selector's grid.
sp_status sp_select_rows(const sp_model *m, const sp_prefill_args *a, sp_tensor source, int64_t i0,
                         sp_tensor c, int64_t T, sp_tensor lists);

#endif
