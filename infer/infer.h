// The inference engine for serving and for its validation: batched decode with the KV cache in host
// memory and lookahead prefetch, and every baseline of inference.md section 4 on the same parts.
// Needs a GPU (kernels/decode.h). The engine of validate/engine.h is its slow, simple twin: one
// sequence, any backend, everything resident.
//
// Life of a sequence: prefill (whoever does it) computes rotated keys, values and compressed keys
// and hands them over layer by layer, sp_infer_put and sp_infer_compressed, then for each layer
// sp_infer_fill with the last query's lists, then sp_infer_start. From then on every sp_infer_step
// appends one token to all B sequences. A sequence may be started again at any time between steps.
//
// A step is one graph on a main and two side streams: while layer l runs, the blocks of layer l+1
// are chosen from layer l's Forecast and copied (2.2). Lists, slots and logits do not depend on
// whether blocks are offloaded, nor on when they are copied: bit for bit.
//
// After a step that failed the engine can only be closed.
//
// Ownership: the engine owns caches, graph and workspace; model and forecast must outlive it. One
// thread drives one engine; one engine at a time uses a backend's stream.
//
// Legend: B sequences, T tokens, L layers, Hq, Hkv heads, d head size, bs block, k list length, C
// slots, V vocabulary.
#ifndef SPARDA_INFER_H
#define SPARDA_INFER_H

#include "kernels/decode.h"
#include "model/selection.h"

typedef enum sp_infer_mode {
    SP_MODE_DENSE,             // no selection, all in device memory
    SP_MODE_SPARSE_RESIDENT,   // original selector, all in device memory
    SP_MODE_SPARSE_OFFLOAD,    // the same, blocks at home on the host, copied when chosen
    SP_MODE_FORECAST_RESIDENT, // Forecast, all in device memory
    SP_MODE_FORECAST_INLINE,   // Forecast, offloaded, copied when needed: no prefetch
    SP_MODE_SPARDA,            // Forecast, offloaded, copied one layer ahead
    SP_MODE_INFINIGEN,         // partial keys, offloaded, one layer ahead
    SP_MODES
} sp_infer_mode;
const char *sp_infer_mode_name(sp_infer_mode m); // "dense", "sparse-resident", ...
bool sp_infer_mode_offloads(sp_infer_mode m);
bool sp_infer_mode_forecasts(sp_infer_mode m); // needs Forecast weights
bool sp_infer_mode_ahead(sp_infer_mode m);     // blocks of a layer are chosen during the one before

// Bytes that travel for one block of one key head: bf16 keys and values [2][bs][d], and fp32
// importance [bs] where the model has it (2.1).
int64_t sp_infer_unit_bytes(const sp_model_desc *d);

typedef struct sp_infer_args {
    const sp_model *model;
    const sp_forecast_device *forecast; // where the mode needs it
    sp_infer_mode mode;
    int64_t batch;
    int64_t max_tokens;  // capacity of each sequence; also chooses the rotary factors
    int64_t slots;       // C; 0 = k. Below k is SP_BAD_INPUT
    bool offload_layer0; // default: layer 0 is resident (2.6)
    bool allow_longer;   // than the model's max_position_embeddings
    sp_transfer_kind transfer;
    int64_t ctas;        // of the transfer; 0 = by measurement (auto), 4 (resident) or 16
    int64_t home_layers; // speed tests: fewer homes than layers; 0 = one each
    bool no_graph;       // launch operation by operation; ahead not with transfer auto or resident
    int64_t host_bytes;  // of pinned memory that may be used; 0 = what the system says is available
} sp_infer_args;

// Bytes by part. `fits`: into the free memory of device and host as it is now. max_batch: largest
// batch that would, other things equal.
typedef struct sp_infer_memory {
    sp_decode_bytes decode;
    int64_t workspace; // activations, logits, rotary table
    int64_t weights;   // already loaded; not part of the sums
    int64_t device, host;
    int64_t device_free, host_free;
    int64_t max_batch, max_batch_device, max_batch_host; // of both; of each alone
    bool fits;
} sp_infer_memory;
sp_status sp_infer_predict(const sp_infer_args *a, sp_infer_memory *out);
// What an open engine has really taken.

typedef struct sp_infer sp_infer;
// SP_ENVIRONMENT before anything is allocated if the prediction does not fit, with the numbers and
// the largest batch that does; or if the backend is not CUDA.
sp_status sp_infer_open(const sp_infer_args *a, sp_infer **out);
void sp_infer_close(sp_infer *e); // NULL is fine
// What an open engine has really taken.
void sp_infer_allocated(const sp_infer *e, sp_infer_memory *out);
const char *sp_infer_transfer(const sp_infer *e); // what copies, for people

// ---- hand-over from prefill ---------------------------------------------------------------------

// See sp_decode_put, _compressed, _fill (kernels/decode.h).
sp_status sp_infer_put(sp_infer *e, int64_t layer, int64_t seq, int64_t pos0, sp_tensor k,
                       sp_tensor v, sp_tensor cis);
sp_tensor sp_infer_compressed(sp_infer *e, int64_t layer, int64_t seq);
sp_status sp_infer_fill(sp_infer *e, int64_t layer, int64_t seq, sp_tensor k, sp_tensor v,
                        sp_tensor cis, int64_t tokens, sp_tensor list);
// The sequence has T tokens; `next` is the token that the first step appends.
sp_status sp_infer_start(sp_infer *e, int64_t seq, int64_t T, int32_t next);

// ---- decode -------------------------------------------------------------------------------------

// Appends one token to every sequence: tokens [B], or NULL for the most likely ones of the last
// step. Returns at once. SP_BAD_INPUT if a sequence is full.
sp_status sp_infer_step(sp_infer *e, const int32_t *tokens);
// Logits of the last step, host fp32 [B, V]. Waits.
sp_status sp_infer_logits(sp_infer *e, float *logits);
// The tokens that the next step appends, host [B]. Waits.
sp_status sp_infer_next(sp_infer *e, int32_t *tokens);
int64_t sp_infer_tokens(const sp_infer *e, int64_t seq);
sp_decode *sp_infer_decode(sp_infer *e); // for checks: lists, maps, counters, copies

// n steps in a row; ms [n] of each, from device time.
sp_status sp_infer_timed_steps(sp_infer *e, int64_t n, double *ms);
// Two more steps, the second one noted (kernels/decode.h): ms [layers + 1][SP_MOMENTS].
sp_status sp_infer_trace(sp_infer *e, double *ms);
// A step's graph is made again after a change of what it holds (synthetic lists, no copies).
void sp_infer_recapture(sp_infer *e);

#endif
