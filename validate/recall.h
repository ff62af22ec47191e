// Block recall of a Forecast and of its rivals on one sequence (inference.md 5.4, group Q).
//
// The hidden states are those of the original selector. In every layer and for every query with
// more candidates than blocks to choose, the chosen (not forced) blocks of each predictor are
// compared with the original selector's, by number (recall) and by the original's probability on
// them (mass). Candidates exclude forced and future blocks.
//
// Legend: L layers, Hkv KV heads, T tokens.
#ifndef SPARDA_RECALL_H
#define SPARDA_RECALL_H

#include "validate/pass.h"

typedef enum sp_predictor {
    SP_BY_FORECAST,
    SP_BY_UNTRAINED, // Forecast of random weights
    SP_BY_INFINIGEN, // layers >= 1; layer 0 has no layer before it
    SP_BY_STALE,     // the original's blocks of the query before
    SP_BY_FINE,      // the fine teacher of training: the ceiling
    SP_PREDICTORS,
} sp_predictor;

enum { SP_POSITION_BINS = 16, SP_ENTROPY_BINS = 1000 };

// Sums over rows; a mean is sum / rows.
typedef struct sp_recall_cell {
    double rows, recall[SP_PREDICTORS];
    double mass_rows, mass[SP_PREDICTORS]; // of rows in which the original's blocks have any mass
    double chance, candidates;
    double entropy; // of the original's mass over the candidates, over log(candidates): 0 to 1
} sp_recall_cell;

typedef struct sp_recall {
    int64_t layers, heads, T;
    sp_recall_cell *cell;                      // [L][Hkv]
    sp_recall_cell position[SP_POSITION_BINS]; // T cut into equal parts
    sp_recall_cell entropy[SP_ENTROPY_BINS];   // by entropy
} sp_recall;

sp_status sp_recall_alloc(const sp_model_desc *d, int64_t T, sp_recall *out);
void sp_recall_free(sp_recall *r);
void sp_recall_cell_add(sp_recall_cell *to, const sp_recall_cell *from);

// Measures one sequence during a run of the original selector on `e` and adds to `out`, whose T is
// the sequence's length. The final states of all rows stay in the engine.
sp_status sp_recall_run(const sp_pass *p, sp_engine *e, const int32_t *tokens, int64_t T,
                        sp_recall *out);

#endif
