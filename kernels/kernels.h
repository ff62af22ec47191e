// Operations: the contract that every backend fulfils (design, "Operations and backends").
//
// One operation has one name in four places: here (the contract), kernels/cpu/NAME.c,
// kernels/cuda/NAME.cu, tests/test_NAME.c. A backend is chosen once, by sp_backend_open; everything
// else takes tensors that belong to it. Host code outside kernels/ never dereferences tensor data:
// it uploads and downloads.
//
// Ownership: sp_tensor is a small value, {where, shape}; copying it makes a view. Only a tensor
// made by sp_tensor_alloc owns memory and is freed, by sp_tensor_free, once.
// Threads: one thread drives one backend. No call here is collective over ranks.
// Order: operations are issued in order; a download waits for all before it.
//
// Numbers: the CPU backend stores activations and weights as fp32 and computes in fp32; CUDA stores
// bf16 and accumulates in fp32. Both keep master weights, moments, gradients, importance rows,
// scores and losses in fp32. Results never depend on the number of host threads: every sum has a
// fixed order (so `deterministic` costs nothing on the CPU).
//
// Legend (training.md 0): T tokens, R rows of a query tile, D hidden, Hq query heads, Hkv KV heads,
// G = Hq/Hkv, d head size, n_d deployed windows, n_t teacher windows, B block size in tokens,
// nb = ceil(T/B) blocks, s = B/Sd windows per block, k list length (init and local included).
// All matrices are row-major [rows, cols] with a row stride `ld` in elements.
#ifndef SPARDA_KERNELS_H
#define SPARDA_KERNELS_H

#include "common/status.h"

#include <stdint.h>

typedef enum sp_dtype { SP_F32, SP_BF16, SP_F16, SP_I32 } sp_dtype;
int64_t sp_dtype_size(sp_dtype t); // bytes
const char *sp_dtype_name(sp_dtype t);

typedef struct sp_backend sp_backend;

typedef struct sp_tensor {
    sp_backend *backend;
    void *data; // backend memory
    sp_dtype dtype;
    int64_t rows, cols, ld;
} sp_tensor;

// ---- backend ------------------------------------------------------------------------------------

typedef struct sp_backend_options {
    const char *name; // "auto", "cpu" or "cuda"; auto takes CUDA if built in and a device is there
    const char *cpu_blas; // "auto" (the fastest one by measurement), "openblas", "onednn"
    int threads;          // host threads of the CPU backend; 0 = cores / local_ranks
    int local_rank, local_ranks;
    bool deterministic;
    bool
        portable_kernels; // CUDA: those for compute capability 8.0 also where faster ones would run
} sp_backend_options;

sp_status sp_backend_open(const sp_backend_options *o, sp_backend **out);
void sp_backend_close(sp_backend *be);
const char *sp_backend_name(const sp_backend *be); // "cpu" or "cuda"
// One line for the run header: device or core, threads, BLAS library and its measured GFLOP/s.
const char *sp_backend_description(const sp_backend *be);
// What tells its device from all others, on this host and on others: a GPU's UUID; "" for the CPU.
const char *sp_backend_device_id(const sp_backend *be);
const char *sp_backend_blas(const sp_backend *be); // name usable as cpu_blas, for exact resume
// GFLOP/s of large matrix products of random numbers in the storage type, the ceiling that shares
// refer to: measured at start on the CPU, by the first call (a third of a second) on a GPU; 0 if
// unknown.
double sp_backend_matmul_gflops(sp_backend *be);
// Names a phase of the work for a profiler (NVTX on CUDA); phases nest. Costs nothing elsewhere.
void sp_phase_begin(sp_backend *be, const char *name);
void sp_phase_end(sp_backend *be);
sp_dtype sp_backend_storage(const sp_backend *be); // of activations and weights: SP_F32 or SP_BF16
// A good size in bytes for the window rows of one query tile: what a cache holds on the CPU, what
// keeps all of a GPU busy there.
int64_t sp_backend_tile_bytes(const sp_backend *be);
sp_status sp_backend_synchronize(sp_backend *be); // waits for all operations issued so far

// ---- several GPUs (NCCL) ------------------------------------------------------------------------

enum { SP_COMM_ID_BYTES = 128 };
// Whether the functions below work; where not, ranks sum through the host (train/ranks.h).
bool sp_backend_has_comm(const sp_backend *be);
// One rank makes the id, all ranks join with it. Join is collective over the ranks of the run, ends
// after `deadline_s` seconds at the latest, and sets the limit of every later wait.
sp_status sp_comm_id(sp_backend *be, char id[SP_COMM_ID_BYTES]);
sp_status sp_comm_join(sp_backend *be, const char id[SP_COMM_ID_BYTES], int rank, int size,
                       double deadline_s);
// F32, packed: the sum over ranks replaces every rank's values. [collective] A lost or late peer is
// SP_ENVIRONMENT on every other rank within the deadline; the communicator is then given up.
sp_status sp_all_reduce(sp_tensor t);

// ---- memory -------------------------------------------------------------------------------------

// Zero-filled. `what` names it in an out-of-memory error (SP_ENVIRONMENT).
sp_status sp_tensor_alloc(sp_backend *be, sp_dtype t, int64_t rows, int64_t cols, const char *what,
                          sp_tensor *out);
void sp_tensor_free(sp_tensor *t); // safe on a zeroed tensor; zeroes it
sp_tensor sp_tensor_rows(sp_tensor t, int64_t row0, int64_t n); // view
sp_tensor sp_tensor_cols(sp_tensor t, int64_t col0, int64_t n); // view
// Host side is packed [rows, cols]. F32 source for F32/BF16/F16 tensors (rounded to nearest even),
// int32 for I32.
sp_status sp_upload(sp_tensor dst, const void *src);
sp_status sp_download(sp_tensor src, void *dst); // F32 (or int32 for I32), packed
// Raw checkpoint bytes of dtype `t`, packed, at any alignment, into a tensor of the storage or F32
// type.
sp_status sp_upload_raw(sp_tensor dst, sp_dtype t, const void *src);
sp_status sp_copy(sp_tensor dst, sp_tensor src); // same shape; converts between float types
sp_status sp_fill(sp_tensor dst, float value);
int64_t sp_backend_bytes(const sp_backend *be, int64_t *peak); // allocated now; highest so far

// ---- shapes of the method -----------------------------------------------------------------------

typedef struct sp_heads {
    int64_t q_heads, kv_heads, head_dim;
} sp_heads;

typedef struct sp_grid {
    int64_t kernel, stride;
} sp_grid;

// Whether a backend has kernels for a model's shapes, asked once at start: SP_ENVIRONMENT names the
// shape that has none and what would do. The CPU backend takes any.
typedef struct sp_shapes {
    sp_heads heads;
    sp_grid fine, deployed; // of the teacher and of inference
    int64_t block, topk;    // of a selection
    int64_t tokens;         // of the longest sequence
} sp_shapes;
sp_status sp_backend_supports(sp_backend *be, const sp_shapes *s);

typedef struct sp_selection {
    int64_t block;        // B, tokens; a multiple of the deployed stride
    int64_t init_blocks;  // I
    int64_t local_blocks; // W: blocks qb-W..qb are forced, W+1 of them (training.md 5.1)
    int64_t topk;         // k, forced blocks included
    bool mask_future;     // blocks beyond the query's own get -inf before the cut (5.3)
} sp_selection;

// Which windows j a query at position i sees.
typedef enum sp_visibility {
    SP_SEES_START,    // stride*j <= i: the window has begun (4.1, 7.1)
    SP_SEES_COMPLETE, // stride*j + kernel - 1 <= i: all of it is in the past (4.4 note,
                      // inference 1.2)
} sp_visibility;

typedef enum sp_align { SP_ALIGN_MAX, SP_ALIGN_MEAN } sp_align;

// Number of complete windows in T tokens: 0 if T < kernel (3.1).
int64_t sp_windows(sp_grid g, int64_t T);
// Number of windows visible from position i, at most n.
int64_t sp_visible(sp_grid g, sp_visibility v, int64_t i, int64_t n);

// ---- frozen layers (training.md 1.4, 1.5) -------------------------------------------------------

// out[T,D] = scale * table[token]. `tokens` is I32 [T,1]; ids outside the table are an error.
sp_status sp_embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out);
// out = x / sqrt(mean(x^2) + eps) * w; x, out [T,D], w [1,D]. May run in place.
sp_status sp_rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out);
// out[T,N] = x[T,K] . w[N,K]^T. No overlap between x and out.
sp_status sp_linear(sp_tensor x, sp_tensor w, sp_tensor out);
// Rotates every head of x [T, heads*d] in place, half-split convention; row r uses table row
// pos0+r. cos, sin: F32 [P, d/2], attention factor included. `transpose` applies the transposed
// rotation (the backward pass; the factor stays).
sp_status sp_rope(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                  bool transpose);
sp_status sp_residual_add(sp_tensor h, sp_tensor branch, float factor); // h += factor * branch
// out[T,F] = silu(gate) * up, gate_up [T,2F] = gate | up.
sp_status sp_swiglu(sp_tensor gate_up, sp_tensor out);
// Query-independent importance of keys, NOSA's CIS (1.6): out[h,t] = scale[h] * ln(1 + e^x),
// x = delta[h].v[t] over the values of all KV heads. v [T, Hkv*d] (not rotated), delta
// [Hkv, Hkv*d], scale F32 [1, Hkv]; out F32 [Hkv, T].
sp_status sp_cis(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out);

#define SP_NO_TENSOR ((sp_tensor){0}) // for an argument that may be absent

// Causal attention over all keys: q [R,Hq*d] at positions q0.., k and v [>= q0+R, Hkv*d].
// bias[h,j], F32 [Hkv, >= q0+R], is added to the scaled logit of key j in all heads of group h
// (6.2); absent: nothing is. Values are finite: a device may multiply those that a row does not see
// by 0.
sp_status sp_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                             sp_tensor bias, sp_tensor out);
// The same over listed blocks (6.1): lists I32 [R, Hkv*k], entries < 0 ignored, no block
// twice; keys j <= q0+r of those blocks. A row without keys gives 0.
sp_status sp_sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                              sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out);

// ---- selection (training.md 3 to 5) -------------------------------------------------------------

// out[j] = mean of k[(j0+j)*stride .. +kernel), j < out.rows; k [>=, Hkv*d], out [n, Hkv*d].
sp_status sp_compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out);

// Importance of deployed windows for R queries at positions i0.. (4.1, 4.3): per query head a
// softmax of q.c/sqrt(d) over the visible rows of the compressed keys c (grid `fine`), summed over
// the G heads of the group, then aligned from `fine` onto `deployed` (n_d windows).
// c [n_t, Hkv*d]; out F32 [R, Hkv*n_d], column h*n_d + a. Rows that see nothing are 0. Rows of q
// and c begin at multiples of 16 bytes.
// fine equal to deployed: no alignment; that is the original selector (with SP_SEES_COMPLETE) and
// the native grid of training. fine.stride must divide deployed.stride.
typedef struct sp_importance_args {
    sp_heads heads;
    sp_grid fine, deployed;
    int64_t n_d;
    sp_align align;
    sp_visibility visibility;
} sp_importance_args;
sp_status sp_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c,
                        sp_tensor out);

// out[r, h*n_d + j] = F[r,h].c[j,h] without scale, -inf where not visible (inference.md 1.2).
// f [R, Hkv*d], c [n_d, Hkv*d], out F32 [R, Hkv*n_d].
sp_status sp_forecast_scores(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f, int64_t i0,
                             sp_tensor c, sp_tensor out);

// Block scores of 5.1 from window rows a [R, Hkv*n_d] (importance or Forecast scores):
// out F32 [R, Hkv*nb], +inf forced, -inf where a block has no window (and in the future if masked).
sp_status sp_block_scores(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                          int64_t i0, int64_t nb, sp_tensor out);
// Block lists of 5.2, straight from window rows: the min(k, nb) best blocks, lower index first
// among equals, ascending; blocks beyond the query's own become -1 and stay last, as do missing
// ones. lists I32 [R, Hkv*k].
sp_status sp_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                           int64_t i0, int64_t nb, sp_tensor lists);

// The second stage of a selection in two stages (5.4): lists made by sp_select_blocks, of k1
// blocks, are filled up to k by the blocks that matter most whatever the query.
//
// Blocks by their importance: the mean of cis [Hkv, T] over every complete window, pooled as
// in 5.1. scores F32 [Hkv, nb], nb = ceil(T/B), -inf without a window; order I32 [Hkv, nb]: the
// blocks by falling score, the lower index first among equals.
sp_status sp_cis_blocks(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                        sp_tensor order);
// lists I32 [R, Hkv*k] of rows at positions i0..: what shortlist [R, Hkv*k1] holds and, in `order`,
// up to k - k1 further blocks up to the query's own; ascending, then -1. A slot of the shortlist
// that went to a block of the future stays lost.
sp_status sp_extend_lists(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                          sp_tensor order, sp_tensor lists);

// Lists from Forecasts in one go (inference.md 1.2): those that sp_forecast_scores and
// sp_select_blocks give, up to the rounding of the scores, without window rows in memory.
// f [R, Hkv*d], c [n_d, Hkv*d], lists I32 [R, Hkv*k].
sp_status sp_forecast_lists(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                            sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists);

// ---- loss (training.md 7) -----------------------------------------------------------------------

typedef enum sp_kl_gradient { SP_KL_EXACT, SP_KL_IDEAL } sp_kl_gradient; // 7.4, 7.3

typedef struct sp_kl_args {
    sp_heads heads;
    sp_grid deployed;
    sp_selection selection; // of `lists`
    sp_kl_gradient gradient;
    double weight; // of a row in loss_layer: 1/(Hkv*T)
} sp_kl_args;
// For R rows at positions i0..: student logits F.c/sqrt(d) over windows visible by their start,
// top-k-plus-remainder KL against the aligned teacher rows a [R, Hkv*n_d], as sp_importance makes
// them, on the blocks of `lists` [R, Hkv*k]; rows without teacher mass give 0 (7.5).
// row_loss F32 [R, Hkv], unweighted. df F32 or storage type [R, Hkv*d]: gradient of
// weight * sum(row_loss) by the rotated Forecast f. student_p and dz, F32 [R, Hkv*n_d], may be
// NULL: probabilities and gradient by the scaled logits (weight included), for tests and reports.
sp_status sp_kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
                sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
                const sp_tensor *dz);

// ---- gradient and optimiser (training.md 2.3, 8.1) ----------------------------------------------

// g[N,K] += dy[T,N]^T . x[T,K]; g F32.
sp_status sp_grad_weight(sp_tensor dy, sp_tensor x, sp_tensor g);
sp_status sp_scale(sp_tensor x, float factor);      // F32
sp_status sp_sum(sp_tensor x, double *out);         // F32, summed in double in a fixed order
sp_status sp_sum_squares(sp_tensor x, double *out); // the same of x^2

typedef struct sp_adamw_args {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale; // clipping coefficient, applied to g
    int64_t step;     // 1-based
} sp_adamw_args;
// All F32 of equal shape. Order of 8.1: decay, moments, update.
sp_status sp_adamw(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g);

#endif
