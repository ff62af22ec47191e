// The inference engine of the validation pass: prefill in chunks of any size, then decode, one code
// path for both (inference.md 1 and 2, without the transfers).
//
// An engine holds one sequence: rotated keys and values of every layer, and their compressed keys,
// which are extended in place as windows complete (2.5). Appending n tokens runs all layers over
// them; n = 1 is a decode step, n = the prompt's length a whole prefill. Results do not depend on
// how a sequence is cut into appends beyond the rounding of the matrix products.
//
// The interface names no storage: an engine that keeps keys and values in host memory and fetches
// blocks ahead takes the same calls.
//
// Always sparse when a selector is set: `dense_len` of the model is ignored, as in training and in
// the evaluation of accuracy (inference.md 1.4).
//
// Ownership: the engine owns its caches and workspace; model and forecast must outlive it. One
// thread drives one engine.
//
// Legend: T tokens so far, n tokens of one append, L layers, Hkv KV heads, d head size, V
// vocabulary.
#ifndef SPARDA_ENGINE_H
#define SPARDA_ENGINE_H

#include "model/selection.h"

typedef struct sp_engine sp_engine;

// What a layer works with, shown to a probe once its lists are there and before attention. All
// tensors are views, valid during the call only.
typedef struct sp_engine_layer {
    int64_t layer;
    int64_t pos0, n;  // rows of this append: positions pos0 .. pos0+n-1
    int64_t tokens;   // pos0 + n
    sp_tensor x;      // [n, D] normed input of the attention block
    sp_tensor q;      // [n, Hq*d] rotated
    sp_tensor k;      // [tokens, Hkv*d] rotated keys of the whole sequence
    sp_tensor c;      // [windows, Hkv*d] compressed keys on the deployed grid
    sp_tensor f;      // [n, Hkv*d] rotated Forecast that scores this layer; data NULL if not used
    sp_tensor cis;    // F32 [Hkv, tokens] importance of the keys; data NULL without
    sp_tensor lists;  // I32 [n, Hkv*k]; data NULL if dense
    sp_tensor chosen; // I32 [n, Hkv*k1]: what the query chose of them (sp_model_shortlist); `lists`
                      // themselves without importance, and where nothing is scored
    const sp_rope_table *rope;
} sp_engine_layer;
typedef sp_status (*sp_engine_probe)(void *user, const sp_engine_layer *layer);

typedef struct sp_engine_args {
    const sp_model *model;
    int64_t max_tokens; // capacity; also the length that chooses the rotary factors
    int64_t max_append; // most tokens of one append; 0 = max_tokens
    bool allow_longer;  // than the model's max_position_embeddings
} sp_engine_args;

sp_status sp_engine_open(const sp_engine_args *a, sp_engine **out);
void sp_engine_close(sp_engine *e); // NULL is fine

// Starts a new sequence under a selector. `forecast` is needed by SP_SELECT_FORECAST only; `seed`
// by SP_SELECT_RANDOM only. Future blocks are masked and windows count when complete, in every
// selector, which is what decoding token by token can reproduce (1.2). SP_SELECT_TEACHER is
// refused: its windows count when they begin.
typedef struct sp_engine_run {
    sp_selector selector;
    const sp_forecast_device *forecast;
    uint64_t seed;
    sp_engine_probe probe; // may be NULL
    void *user;
} sp_engine_run;
sp_status sp_engine_start(sp_engine *e, const sp_engine_run *r);

// Runs n >= 1 further tokens through all layers. Only the last `rows` of them (1 <= rows <= n) are
// carried through the last layer's attention and MLP, since only they can be asked for logits.
// SP_BAD_INPUT beyond the capacity.
sp_status sp_engine_append(sp_engine *e, const int32_t *tokens, int64_t n, int64_t rows);
// Logits of rows row0 .. row0+count-1 among the `rows` of the last append, host fp32 [count, V].
sp_status sp_engine_logits(sp_engine *e, int64_t row0, int64_t count, float *logits);

int64_t sp_engine_tokens(const sp_engine *e);
const sp_model *sp_engine_model(const sp_engine *e);
// Compressed keys of one layer so far, keys and values (views), for checks and hand-overs.
sp_tensor sp_engine_compressed(const sp_engine *e, int64_t layer);
sp_tensor sp_engine_keys(const sp_engine *e, int64_t layer);
sp_tensor sp_engine_values(const sp_engine *e, int64_t layer);
sp_tensor sp_engine_importance(const sp_engine *e, int64_t layer); // F32 [Hkv, tokens] or none

#endif
