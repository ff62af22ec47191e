// Prefill of long prompts (inference.md 1): layer by layer, each layer in chunks of tokens, so that
// memory holds the residual stream of the whole prompt but keys, values and activations of one
// layer or chunk only. Finished rows of keys and values are handed to a sink as they come; what the
// sink does with them (a write-back to host memory) may go on beside the next chunk.
//
// Within a layer every chunk is projected, rotated, compressed, selected, attended and sent through
// the MLP; selection is that of the mode, in the same operations as in training and validation
// (model/selection.h). Nothing is read back from the sink.
//
// Any backend. The last layer runs on the last row only, since only its logits are asked for.
//
// Legend: T tokens of the prompt, n tokens of a chunk, L layers, Hkv KV heads, d head size, k list
// length, V vocabulary.
#ifndef SPARDA_INFER_PREFILL_H
#define SPARDA_INFER_PREFILL_H

#include "model/selection.h"

// Where a prompt's caches go. Tensors are views that the next call may overwrite, by later
// operations of the same backend.
typedef struct sp_prefill_sink {
    void *user;
    // Rotated keys and values [n, Hkv*d] at positions pos0.. of one layer, in order; pos0 is a
    // multiple of the block. The last block may be partial. cis F32 [Hkv, n]: importance of the
    // keys, where the model has it, else SP_NO_TENSOR.
    sp_status (*put)(void *user, int64_t layer, int64_t pos0, sp_tensor k, sp_tensor v,
                     sp_tensor cis);
    // Room for the layer's compressed keys, [>= windows of T, Hkv*d]; they are written there.
    sp_tensor (*compressed)(void *user, int64_t layer);
    // The layer is complete: all its keys and values [T, Hkv*d] and cis [Hkv, T] in device memory,
    // and the last query's list I32 [1, Hkv*k] (data NULL: dense).
    sp_status (*fill)(void *user, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                      sp_tensor list);
} sp_prefill_sink;

typedef struct sp_prefiller_args {
    const sp_model *model;
    const sp_forecast_device *forecast; // SP_SELECT_FORECAST
    sp_selector selector;               // dense, original or forecast
    int64_t max_prompt;                 // longest prompt
    int64_t max_tokens;                 // prompt and answer: chooses the rotary factors
    int64_t chunk;                      // tokens at once; 0: 16384. Rounded up to whole blocks
    bool allow_longer;                  // than the model's max_position_embeddings
} sp_prefiller_args;

typedef struct sp_prefiller sp_prefiller;
// Allocates for prompts up to max_prompt.
sp_status sp_prefiller_open(const sp_prefiller_args *a, sp_prefiller **out);
void sp_prefiller_close(sp_prefiller *p);               // NULL is fine
int64_t sp_prefiller_bytes(const sp_prefiller_args *a); // of device memory, without scratch
const sp_model *sp_prefiller_model(const sp_prefiller *p);
// One prompt; logits (host, [V]) of its last token. The sink's asynchronous work may still go on.
sp_status sp_prefiller_run(sp_prefiller *p, const int32_t *tokens, int64_t T,
                           const sp_prefill_sink *sink, float *logits);

#endif
