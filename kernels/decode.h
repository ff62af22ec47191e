// Decode on a GPU: the device part of the inference engine (inference.md 2 and 3). CUDA only; host
// code above (infer/) strings these calls together and never sees a CUDA type.
//
// One sp_decode holds a batch of B sequences of different lengths: slots, maps, compressed keys and
// work lists in device memory, the home of all blocks in pinned host memory, the streams, and
// the graph of a step. Everything that changes from step to step (positions, tokens, lists, counts)
// lives in device memory, so that a captured step can be launched again and again without any host
// work.
//
// Legend: B sequences, b one of them; Hkv KV heads, h one; p = b*Hkv + h a pair; d head size,
// bs tokens per block, NB = ceil(max_tokens/bs) blocks a sequence can have, C slots per pair,
// k list length, n_w compressed keys a sequence can have, L layers.
//
// The unit of storage and transfer is one (pair, block): its keys [bs, d], then its values [bs, d],
// bf16, one contiguous run (32 KiB at bs 64, d 128); where keys have an importance of their own
// (NOSA, training.md 1.6), that of the block's tokens follows, fp32 [bs].
//   slots [B][Hkv][C] units   device memory, what attention reads
//   home  [B][Hkv][NB] units  pinned host memory: all finished blocks (and the tail's of prefill)
// A resident layer has no home: its slots are its blocks (C = NB, slot of a block = its number), in
// device memory; nothing is ever copied.
//
// Streams: operations run on the backend's stream in the order of their calls, except those with
// `ahead`: a selection runs on a side stream after everything issued before it, the transfer of its
// layer after it, on the same stream or by a kernel that stays for the step (RESIDENT).
// sp_decode_select_wait and sp_decode_transfer_wait make the main stream wait for them, as
// sp_decode_advance does at the end. There are two side streams, of even and of odd layers, so that
// copies of a layer begin while those of the layer before end. Calls between
// sp_decode_capture_begin and _end are recorded instead of run.
//
// Order of one layer's calls (hazards H1 to H7 of inference.md 2.3):
//   select (fills list, slot list, queue; the tail's new block gets a slot) -> append -> attend;
//   transfer between select and attend. compress (if the selector reads the newest window) before
//   select, else with append. Ahead: select, transfer, ..., select_wait before append and before
//   what the selection read is written again, transfer_wait before attend.
// Slot assignment is deterministic: hits keep their slot; misses in ascending block order take the
// least recently used slots, lower slot first among equals, in ascending slot order. The block of
// the present position needs no copy. Nothing that the present list names is evicted.
#ifndef SPARDA_KERNELS_DECODE_H
#define SPARDA_KERNELS_DECODE_H

#include "kernels/kernels.h"

typedef struct sp_decode sp_decode;

// How units get from home to slots (inference.md 3.4).
typedef enum sp_transfer_kind {
    SP_TRANSFER_AUTO,     // what sp_transfer_choose finds when the engine opens
    SP_TRANSFER_KERNEL,   // T1: a few thread blocks take tickets from a queue
    SP_TRANSFER_WIDE,     // T0: as many thread blocks as units
    SP_TRANSFER_RESIDENT, // T2: one launch a step, waits for each layer's queue; T3 if it can
    SP_TRANSFER_BULK,     // T3: bulk asynchronous copies through shared memory
    SP_TRANSFER_BATCH,    // T4: cudaMemcpyBatchAsync; the host reads the queue, no graph
    SP_TRANSFER_LOOP,     // T5: one cudaMemcpyAsync a unit; the host reads the queue, no graph
    SP_TRANSFER_GATHER,   // T7: host threads gather, one copy, a kernel scatters; no graph
    SP_TRANSFER_KINDS
} sp_transfer_kind;
const char *sp_transfer_name(sp_transfer_kind k); // "auto", "kernel", "wide", ...
// SP_TRANSFER_KINDS if there is none of that name.
sp_transfer_kind sp_transfer_named(const char *name);
bool sp_transfer_captures(sp_transfer_kind k); // may be part of a graph

typedef struct sp_decode_args {
    sp_heads heads;         // d 64 or 128, at most 16 query heads a KV head
    sp_grid grid;           // of the compressed keys
    sp_selection selection; // k, forced blocks included
    // With importance of keys: blocks of a list that the scores choose, forced ones included; the
    // others are those of the largest importance (training.md 5.4). 0: keys have none.
    int64_t shortlist;
    int64_t layers, batch, max_tokens;
    int64_t slots;       // C >= k of layers that are not resident
    int64_t resident;    // layers 0 .. resident-1 are resident
    int64_t home_layers; // layers that have a home of their own; layer l uses home l % home_layers.
                         // Fewer than there are is for speed tests only
    sp_transfer_kind transfer; // not AUTO
    int64_t ctas;              // thread blocks of the transfer kernels
    bool ahead;                // copies will run beside the step
    bool original;             // room for the original selector's logits
    int64_t channels; // of partial keys (InfiniGen), 0: none. 32 is what there is a kernel for
} sp_decode_args;

// Bytes that sp_decode_open will take, by the same arithmetic.
typedef struct sp_decode_bytes {
    int64_t slots, resident, compressed, partial, maps, workspace; // device
    int64_t home;                                                  // pinned host
} sp_decode_bytes;
void sp_decode_predict(const sp_decode_args *a, sp_decode_bytes *out);
int64_t sp_decode_device_bytes(const sp_decode_bytes *b); // the sum

sp_status sp_decode_free_memory(sp_backend *be, int64_t *bytes); // of the device, now

// SP_ENVIRONMENT with the reason for shapes without a kernel, or if memory is short. All empty.
sp_status sp_decode_open(sp_backend *be, const sp_decode_args *a, sp_decode **out);
void sp_decode_close(sp_decode *d);
// What was really allocated, by the same names.
void sp_decode_allocated(const sp_decode *d, sp_decode_bytes *out);

// ---- state --------------------------------------------------------------------------------------

// Sequence b now has `tokens` tokens, the next is `next` at position `tokens`.
sp_status sp_decode_set(sp_decode *d, int64_t b, int64_t tokens, int32_t next);
sp_status sp_decode_set_next(sp_decode *d, const int32_t *next);          // host [B]
sp_status sp_decode_get(sp_decode *d, int32_t *positions, int32_t *next); // host [B]; may be NULL

// Compressed keys of one sequence: view [n_w, Hkv*d], row j = window j. Prefill writes the windows
// complete in its tokens; decode appends.
sp_tensor sp_decode_compressed(sp_decode *d, int64_t layer, int64_t b);
// InfiniGen: partial keys [max_tokens, Hkv*channels], row = position.
sp_tensor sp_decode_partial(sp_decode *d, int64_t layer, int64_t b);

// Stores rows of rotated keys and values k, v [n, Hkv*d], and the importance of the keys, cis F32
// [Hkv, n] (else SP_NO_TENSOR), at positions pos0.. (a multiple of bs) in the home, or in the
// blocks of a resident layer. Asynchronous: the tensors may be reused by later operations of the
// backend. The last, partial block is stored too.
sp_status sp_decode_put(sp_decode *d, int64_t layer, int64_t b, int64_t pos0, sp_tensor k,
                        sp_tensor v, sp_tensor cis);
// Fills the slots of one sequence with the blocks of `list` (I32 [1, Hkv*k] on the device, the last
// query's, ascending, -1 at the end; data NULL: the forced blocks alone), from k, v [tokens, Hkv*d]
// and cis [Hkv, tokens] in device memory. Forgets what the slots held; of a resident layer there is
// only the importance of the blocks to be computed.
sp_status sp_decode_fill(sp_decode *d, int64_t layer, int64_t b, sp_tensor k, sp_tensor v,
                         sp_tensor cis, int64_t tokens, sp_tensor list);

// ---- one step -----------------------------------------------------------------------------------

// h[b] = scale * table[next[b]].
sp_status sp_decode_embed(sp_decode *d, sp_tensor table, float scale, sp_tensor h);
// Rotates the heads of row b of x [B, heads*d] by position b.
sp_status sp_decode_rope(sp_decode *d, sp_tensor x, sp_tensor cos, sp_tensor sin);
// The same for the heads of q | k | v | Forecast (which may be absent), all but v; with `append`
// then sp_decode_append with compression, in the same launch: where the slot of a new block was
// made before, or the layer is resident.
sp_status sp_decode_rope_append(sp_decode *d, int64_t layer, sp_tensor qkvf, sp_tensor cos,
                                sp_tensor sin, bool append);
// Linear layers for a few rows (B up to 32; more goes to sp_linear): the weights are streamed once.
// out[B, sum of rows] = x[B,K] . [w0; w1]^T; w1 may be empty (data NULL). Sums have one order.
sp_status sp_decode_linear(sp_decode *d, sp_tensor x, sp_tensor w0, sp_tensor w1, sp_tensor out);
// h += factor * (x . w^T), rounded as sp_linear and sp_residual_add do; `branch` like h, scratch.
sp_status sp_decode_linear_residual(sp_decode *d, sp_tensor x, sp_tensor w, float factor,
                                    sp_tensor branch, sp_tensor h);
// out[B,F] = swiglu(x . gate_up^T), rounded as sp_linear and sp_swiglu do; `both` [B,2F], scratch.
sp_status sp_decode_linear_swiglu(sp_decode *d, sp_tensor x, sp_tensor gate_up, sp_tensor both,
                                  sp_tensor out);

// The compressed key that the token at the present position completes, if it does (2.5); k is this
// step's keys [B, Hkv*d], the earlier ones are in slots.
sp_status sp_decode_compress(sp_decode *d, int64_t layer, sp_tensor k);
// Writes k, v [B, Hkv*d] and cis F32 [Hkv, B] (or SP_NO_TENSOR) into the tail block's slot; with
// `compress` also does the above. A block that becomes full is written to its home and stays in its
// slot.
sp_status sp_decode_append(sp_decode *d, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                           bool compress);

// Lists for `layer` at the present positions, then slots and queue. f [B, Hkv*d]; q [B, Hq*d];
// projected [B, Hkv*channels]. Scores fp32; ties to the lower block.
sp_status sp_decode_select_forecast(sp_decode *d, int64_t layer, sp_tensor f, bool ahead);
sp_status sp_decode_select_original(sp_decode *d, int64_t layer, sp_tensor q);
sp_status sp_decode_select_partial(sp_decode *d, int64_t layer, sp_tensor projected, bool ahead);
// The layer's next append, and what follows it on the main stream, waits for its selection ahead;
// with partial keys everything after this call does (what the selection reads is written sooner).
sp_status sp_decode_select_wait(sp_decode *d, int64_t layer);

// InfiniGen (inference.md 4): projected[b, h] = (sum of the group's query heads of q [B, Hq*d])
// times the projection of the layer and sequence, rounded once.
sp_status sp_decode_project_queries(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor projected);
// The projections of a layer for one sequence, host fp32 [Hkv][d][channels]; before its keys are
// put.
sp_status sp_decode_set_projection(sp_decode *d, int64_t layer, int64_t b, const float *projection);

// Starts the copies of the layer's queue: on the main stream, or `ahead` after a selection ahead.
sp_status sp_decode_transfer(sp_decode *d, int64_t layer, bool ahead);
sp_status sp_decode_transfer_wait(sp_decode *d, int64_t layer);

// Attention of q [B, Hq*d] over the listed slots, the tail up to the present position. Blocks are
// added up in list order, cut into pieces that depend on the shape only: the same lists give the
// same bits wherever blocks lie.
sp_status sp_decode_attend(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor out);
// Over all blocks; resident layers only.
sp_status sp_decode_attend_all(sp_decode *d, int64_t layer, sp_tensor q, sp_tensor out);

// next[b] = the largest of logits [B, V] (F32, lowest index among equals); positions advance by 1.
sp_status sp_decode_advance(sp_decode *d, sp_tensor logits);

// ---- graph --------------------------------------------------------------------------------------

sp_status sp_decode_capture_begin(sp_decode *d);
sp_status sp_decode_capture_end(sp_decode *d); // replaces an earlier graph
sp_status sp_decode_launch(sp_decode *d);      // one step
void sp_decode_capture_abandon(sp_decode *d);  // after an error between begin and end
// Milliseconds between consecutive marks, n marks at most 4096; each mark waits for nothing.
sp_status sp_decode_mark(sp_decode *d, int64_t index);
sp_status sp_decode_elapsed(sp_decode *d, int64_t from, int64_t to, double *ms); // waits

// Moments of a step, per layer, in the order of a layer of the main stream; then those of the
// layer's side stream.
typedef enum sp_decode_moment {
    SP_AT_LAYER,    // begins; in row `layers`: the last layer has ended
    SP_AT_CHOOSE,   // its projections have; its blocks are chosen, unless that happened ahead
    SP_AT_WAIT,     // its blocks are waited for, or copied
    SP_AT_GO,       // and there
    SP_AT_ATTENDED, // attention has ended
    SP_AT_MLP,      // its output projection has
    SP_AT_END,      // in row `layers` only: the step has ended
    SP_AT_AHEAD,    // the layer's blocks are chosen ahead
    SP_AT_CHOSEN,   // and are
    SP_AT_COPY,     // copies ahead begin
    SP_AT_COPIED,   // and end
    SP_MOMENTS
} sp_decode_moment;
// With a trace on, sp_decode_note makes a step note the device's clock here (side streams note
// theirs by themselves); else it does nothing. Turning it on or off changes what a graph must hold.
sp_status sp_decode_trace(sp_decode *d, bool on);
sp_status sp_decode_note(sp_decode *d, int64_t layer, sp_decode_moment moment);
// Milliseconds since the first note, of the last step, host [layers + 1][SP_MOMENTS]; NAN where
// nothing was noted. Waits.
sp_status sp_decode_noted(sp_decode *d, double *ms);

// ---- for checks and speed tests -----------------------------------------------------------------

// Lists [B][Hkv][k] and their slots of the layer's last selection. Waits. Either may be NULL.
sp_status sp_decode_lists(sp_decode *d, int64_t layer, int32_t *blocks, int32_t *slots);
// Which block each slot holds, [B][Hkv][C], -1 none. Waits.
sp_status sp_decode_map(sp_decode *d, int64_t layer, int32_t *blocks);
// One unit's keys and values as the device has them, from its slot; host fp32 [2*bs*d], then [bs]
// of importance if there is any.
sp_status sp_decode_unit(sp_decode *d, int64_t layer, int64_t pair, int64_t slot, float *out);

typedef struct sp_decode_counters {
    int64_t wanted, missed; // units in lists; units copied (new blocks need none)
    int64_t written;        // finished blocks written home
} sp_decode_counters;
// Sums over steps since the last reset, of one layer. Waits.
sp_status sp_decode_count(sp_decode *d, int64_t layer, sp_decode_counters *out);
sp_status sp_decode_count_reset(sp_decode *d);

// Compares the 64-bit checksum of every unit that the layer's last transfer copied, computed on the
// GPU over the slot, with that of its home, computed on the host. Waits.
sp_status sp_decode_check_copies(sp_decode *d, int64_t layer, int64_t *checked, int64_t *different);

// Lists from a seeded process instead of scores (which are still computed): the forced blocks, and
// others of which a share of k*Hkv units is new each step (spread over steps where it is no whole
// number). share < 0: off. Resident layers ignore it.
sp_status sp_decode_synthetic(sp_decode *d, double share, uint64_t seed);
// Fills homes, slots and compressed keys with random values in [-1, 1): speed tests.
sp_status sp_decode_randomise(sp_decode *d, uint64_t seed);
// Without copies, queues are still built and emptied.
void sp_decode_suppress_copies(sp_decode *d, bool suppress);

// ---- the transfer engine alone ------------------------------------------------------------------

typedef struct sp_transfer_case {
    sp_transfer_kind kind;
    int64_t ctas, units, unit_bytes;
    int64_t pool_bytes; // pinned memory that units are drawn from
    bool with_matmul;   // beside a loop of bf16 matrix products
    int64_t repeats;
} sp_transfer_case;
typedef struct sp_transfer_result {
    double gbps;              // median
    double us_median, us_p99; // of one list
    double matmul_slowdown;   // time of the loop with copies over without; 0 if not asked for
    double reference_gbps;    // one 256 MiB copy from pinned memory
    int64_t wrong_units;      // copied units whose checksum differs from the source's
} sp_transfer_result;
typedef struct sp_transfer_bench sp_transfer_bench;
sp_status sp_transfer_bench_open(sp_backend *be, int64_t pool_bytes, int64_t unit_bytes,
                                 int64_t max_units, sp_transfer_bench **out);
sp_status sp_transfer_bench_run(sp_transfer_bench *b, const sp_transfer_case *c,
                                sp_transfer_result *out);
double sp_transfer_bench_reference(const sp_transfer_bench *b); // GB/s of one 256 MiB copy
void sp_transfer_bench_close(sp_transfer_bench *b);
// What to use for lists of `units`, by measurement: RESIDENT with 2 or 4 thread blocks where the
// card has bulk copies and they come within 5% of the best rate, else the ticket kernel with the
// fewest that do. `report`, if not NULL, receives a line for the run header; the caller frees it.
sp_status sp_transfer_choose(sp_backend *be, int64_t unit_bytes, int64_t units,
                             sp_transfer_kind *kind, int64_t *ctas, char **report);

#endif
