// The frozen base model: description, loading, and the arithmetic of its layers.
//
// A folder is read in two steps. sp_model_describe reads config.json and the tensor headers and
// checks everything that can be checked without reading all weights; all problems of the folder
// come in one SP_BAD_INPUT error. Nothing that changes numbers has a default: a field that is
// missing is a problem (training.md 1.1). sp_model_load then uploads the weights to a backend.
//
// The description is the only place that knows what kind of backbone this is: code elsewhere asks
// for scalings, rotary tables, grids, or whether keys have an importance of their own (`cis`),
// never for a model's name. Two kinds exist: MiniCPM, scaled, with one selection for everything;
// NOSA, a plain Llama whose keys have an importance that no query changes (1.6). It biases
// attention (6.2) and fills the block lists behind a shortlist chosen by the query (5.4), which is
// also the list of the loss (7.2). A folder is NOSA's by its sparse_config.select_blocks and its
// tensors.
//
// Ownership: *_free releases what the matching load made. A description is read-only after it was
// made. No call here is collective.
#ifndef SPARDA_MODEL_H
#define SPARDA_MODEL_H

#include "common/hash.h"
#include "common/status.h"
#include "kernels/kernels.h"

#include <jansson.h>

// ---- description --------------------------------------------------------------------------------

// Where a value of the sparse configuration came from.
typedef enum sp_source { SP_FROM_MODEL, SP_FROM_RECIPE } sp_source;

// training.md 0 and 4.4; each value with its source.
typedef struct sp_sparse_config {
    int64_t kernel_size, kernel_stride, init_blocks, block_size, window_size, topk, dense_len;
    int64_t select_blocks; // NOSA only, else 0
    sp_source kernel_size_from, kernel_stride_from, init_blocks_from, block_size_from,
        window_size_from, topk_from, dense_len_from, select_blocks_from;
} sp_sparse_config;

// Which rotary tables (training.md 1.5).
typedef enum sp_rope_variant {
    SP_ROPE_BY_LENGTH, // MiniCPM: the long list above original_max_positions; (t / f) * base
    SP_ROPE_SHORT,     // NOSA: the short list at every length; t * (1 / (f * theta^..))
} sp_rope_variant;

typedef struct sp_model_desc {
    char *dir;  // folder it was read from
    char *name; // last element of the folder's path, for people
    char *model_type, *architecture;
    json_t *config; // the whole config.json
    char config_sha256[SP_SHA256_HEX];

    int64_t layers, hidden, ffn, vocab;
    sp_heads heads; // Hq, Hkv, d
    int64_t max_positions, original_max_positions;
    float norm_eps;
    bool tied_head;
    int64_t eos[8], n_eos, bos; // -1 if absent

    // Scalings (1 for plain Llama): embedding factor, factor of both residual branches, divisor of
    // the final hidden state before the head.
    double embed_scale, residual_scale, logit_divisor;

    // Rotary embedding (training.md 1.5). NULL lists: no rope_scaling.
    double rope_theta;
    double *rope_short, *rope_long; // [d/2]
    double rope_attention_factor;   // on cos and sin
    char *rope_kind;                // "default" or "longrope"
    sp_rope_variant rope_variant;
    bool rope_tables_bf16; // tables rounded to bf16, as the public NOSA code does

    sp_sparse_config sparse;
    bool cis; // keys have an importance of their own: a NOSA backbone

    // What the files hold: tensors the model uses, and others, which are left alone.
    int64_t tensors, parameters, weight_bytes, ignored_tensors;
    char *ignored_example; // name of one; NULL if none
} sp_model_desc;

// What a run configuration says about its base model.
typedef struct sp_recipe {
    // Values that fill (never override) what config.json's sparse_config lacks; NULL: not given.
    const int64_t *kernel_size, *kernel_stride, *init_blocks, *block_size, *window_size, *topk,
        *dense_len, *select_blocks;
    bool rope_tables_bf16;
} sp_recipe;
struct sp_config;
sp_recipe sp_recipe_of(const struct sp_config *c); // points into c

// `recipe` may be NULL. The header of every safetensors file is checked against the shapes the
// configuration demands. SP_BAD_INPUT lists every problem found.
sp_status sp_model_describe(const char *dir, const sp_recipe *recipe, sp_model_desc **out);
void sp_model_desc_free(sp_model_desc *d);
// Text for the run header and `sparda info`: dimensions, scalings, rope, sparse values and sources.
sp_status sp_model_describe_text(const sp_model_desc *d, char **text);

// Grids and selection constants of the method on this model.
sp_grid sp_deployed_grid(const sp_model_desc *d);
// Rows of up to so many tokens leave no query a block to choose: all that it sees are initial or
// local ones (training.md 5.2, 13).
int64_t sp_forced_tokens(const sp_model_desc *d);
// k counts everything: topk + window_size/block_size (the HF convention of config.json).
sp_selection sp_model_selection(const sp_model_desc *d, bool mask_future);
// The part of it that the query (or the Forecast) chooses, which is also the list of the loss: the
// same, or with `cis` the first init + window_size/block_size + select_blocks blocks (5.4).
sp_selection sp_model_shortlist(const sp_model_desc *d, bool mask_future);
// SP_BAD_INPUT if the teacher grid or the configuration breaks a divisibility the method needs
// (rho exact, block a multiple of the stride, W*B >= kernel - stride: inference.md 2.4).
sp_status sp_check_grids(const sp_model_desc *d, sp_grid teacher);

// ---- weights ------------------------------------------------------------------------------------

typedef struct sp_layer_weights {
    sp_tensor attn_norm, mlp_norm;  // [1, D]
    sp_tensor qkv;                  // [(Hq + 2 Hkv) d, D]: q | k | v rows
    sp_tensor o;                    // [D, Hq d]
    sp_tensor gate_up;              // [2 F, D]: gate | up
    sp_tensor down;                 // [D, F]
    sp_tensor cis_scale, cis_delta; // F32 [1, Hkv], [Hkv, Hkv*d]; only with desc->cis
} sp_layer_weights;

typedef struct sp_model {
    const sp_model_desc *desc;
    sp_backend *backend;
    sp_tensor embed; // [V, D]
    sp_tensor head;  // [V, D]; a view of `embed` when tied
    sp_tensor final_norm;
    sp_layer_weights *layer;            // [L]
    char weights_sha256[SP_SHA256_HEX]; // sp_model_weights_sha256
} sp_model;

typedef struct sp_model_load_options {
    bool allow_nonfinite; // default: NaN or infinity in a weight is SP_BAD_INPUT naming the tensor
    bool progress;        // a progress line
} sp_model_load_options;

sp_status sp_model_load(sp_backend *be, const sp_model_desc *d, const sp_model_load_options *o,
                        sp_model **out);
void sp_model_free(sp_model *m);

// Identity of the weights without loading them: SHA-256 over one line "name dtype [rows, cols]
// sha256\n" per tensor that the model uses, sorted by name; independent of sharding and of tensors
// that the model ignores.
sp_status sp_model_weights_sha256(const sp_model_desc *d, char hex[SP_SHA256_HEX]);

// ---- rotary tables ------------------------------------------------------------------------------

typedef struct sp_rope_table {
    sp_tensor cos, sin; // F32 [positions, d/2], attention factor included
} sp_rope_table;
// `sequence_positions` (prompt plus tokens to be generated) choose the factor list where the
// variant asks for that: short up to original_max_positions, long above. Positions beyond
// max_positions: SP_BAD_INPUT unless `allow_longer`.
sp_status sp_rope_table_make(sp_backend *be, const sp_model_desc *d, int64_t sequence_positions,
                             bool allow_longer, sp_rope_table *out);
void sp_rope_table_free(sp_rope_table *t);
// Whether sequences of up to `positions` tokens need two tables, one on either side of
// original_max_positions.
bool sp_rope_needs_two(const sp_model_desc *d, int64_t positions);
// The same numbers on the host: cos, sin [positions * d/2], caller's arrays.
void sp_rope_values(const sp_model_desc *d, int64_t sequence_positions, float *cos, float *sin);

// ---- layers -------------------------------------------------------------------------------------

// Activations of one sequence or chunk of up to `max_tokens` rows; linear in it.
typedef struct sp_workspace {
    sp_backend *backend;
    int64_t max_tokens;
    sp_tensor tokens;  // I32 [T, 1]
    sp_tensor h;       // residual stream [T, D]
    sp_tensor x;       // normed attention input of the present layer [T, D]; the tail keeps it
    sp_tensor qkv;     // [T, (Hq + 2 Hkv) d]
    sp_tensor cis;     // F32 [Hkv, T], importance of the keys; only with desc->cis
    sp_tensor attn;    // [T, Hq d]
    sp_tensor branch;  // [T, D]
    sp_tensor gate_up; // [min(T, 16384), 2F]: the MLP runs over that many tokens at once
    sp_tensor act;     // [min(T, 16384), F]
} sp_workspace;
sp_status sp_workspace_make(const sp_model *m, int64_t max_tokens, sp_workspace *out);
void sp_workspace_free(sp_workspace *w); // safe on a zeroed workspace
int64_t sp_workspace_bytes(const sp_model_desc *d, int64_t max_tokens, sp_dtype storage);

// Views of qkv's first T rows.
sp_tensor sp_workspace_q(const sp_model *m, const sp_workspace *w, int64_t T);
sp_tensor sp_workspace_k(const sp_model *m, const sp_workspace *w, int64_t T);
sp_tensor sp_workspace_v(const sp_model *m, const sp_workspace *w, int64_t T);
// F32 [Hkv, T], or SP_NO_TENSOR: what attention takes as its bias.
sp_tensor sp_workspace_cis(const sp_model *m, const sp_workspace *w, int64_t T);

// h = embedding of T tokens (host ids).
sp_status sp_forward_embed(const sp_model *m, sp_workspace *w, const int32_t *tokens, int64_t T);
// x = norm(h); q, k, v = projections of x; the importance of the keys, from v; q and k rotated at
// positions pos0... `need_v` false: only q and k are computed (the last layer in training).
sp_status sp_forward_qkv(const sp_model *m, sp_workspace *w, int64_t layer, int64_t T,
                         const sp_rope_table *rope, int64_t pos0, bool need_v);
// h += scale * o(attn); h += scale * mlp(norm(h)).
sp_status sp_forward_tail(const sp_model *m, sp_workspace *w, int64_t layer, int64_t T);
// logits F32 [n, V] of rows row0.. of h (final norm, divisor, head): only the rows asked for are
// computed. `logits` is the caller's; h stays, w->branch is used.
sp_status sp_forward_logits(const sp_model *m, sp_workspace *w, int64_t row0, int64_t n,
                            sp_tensor logits);

#endif
