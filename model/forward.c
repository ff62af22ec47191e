// The frozen layers: embedding, attention input, everything after attention, logits.
//
// The attention itself is not here: who calls sp_forward_qkv decides which blocks are read
// (selection.h), and leaves the result in the workspace's `attn` for sp_forward_tail.
// Legend: T tokens, D hidden, F feed-forward width, Hq query heads, Hkv KV heads, d head size,
// V vocabulary.
#include "common/util.h"
#include "model/model.h"

// ---- workspace ----------------------------------------------------------------------------------

enum {
    WORKSPACE_TENSORS = 9,
    MLP_ROWS = 16384, // tokens of the MLP at once: its activations are the widest of all
};

typedef struct workspace_part {
    sp_tensor *tensor;
    sp_dtype dtype;
    int64_t rows, cols;
    const char *what;
} workspace_part;

static int64_t qkv_cols(const sp_heads *h) {
    return (h->q_heads + 2 * h->kv_heads) * h->head_dim;
}

// One list for allocating, freeing and predicting memory.
static void workspace_parts(const sp_model_desc *d, int64_t T, sp_dtype storage, sp_workspace *w,
                            workspace_part part[WORKSPACE_TENSORS]) {
    int64_t q_cols = d->heads.q_heads * d->heads.head_dim;
    int64_t mlp = T < MLP_ROWS ? T : MLP_ROWS;
    const workspace_part list[WORKSPACE_TENSORS] = {
        {&w->tokens, SP_I32, T, 1, "token ids"},
        {&w->h, storage, T, d->hidden, "residual stream"},
        {&w->x, storage, T, d->hidden, "attention input"},
        {&w->qkv, storage, T, qkv_cols(&d->heads), "queries, keys and values"},
        {&w->cis, SP_F32, d->cis ? d->heads.kv_heads : 0, T, "importance of the keys"},
        {&w->attn, storage, T, q_cols, "attention output"},
        {&w->branch, storage, T, d->hidden, "branch output"},
        {&w->gate_up, storage, mlp, 2 * d->ffn, "gate and up projections"},
        {&w->act, storage, mlp, d->ffn, "MLP activation"},
    };
    for (int i = 0; i < WORKSPACE_TENSORS; i++) part[i] = list[i];
}

sp_status sp_workspace_make(const sp_model *m, int64_t max_tokens, sp_workspace *out) {
    *out = (sp_workspace){.backend = m->backend, .max_tokens = max_tokens};
    workspace_part part[WORKSPACE_TENSORS];
    workspace_parts(m->desc, max_tokens, sp_backend_storage(m->backend), out, part);
    sp_status st = SP_OK;
    for (int i = 0; i < WORKSPACE_TENSORS; i++)
        if (part[i].rows)
            SP_GO(sp_tensor_alloc(m->backend, part[i].dtype, part[i].rows, part[i].cols,
                                  part[i].what, part[i].tensor));
done:
    if (st != SP_OK) sp_workspace_free(out);
    return st;
}

void sp_workspace_free(sp_workspace *w) {
    if (!w->backend) return;
    sp_tensor *const tensor[WORKSPACE_TENSORS] = {
        &w->tokens, &w->h, &w->x, &w->qkv, &w->cis, &w->attn, &w->branch, &w->gate_up, &w->act};
    for (int i = 0; i < WORKSPACE_TENSORS; i++) sp_tensor_free(tensor[i]);
    *w = (sp_workspace){0};
}

int64_t sp_workspace_bytes(const sp_model_desc *d, int64_t max_tokens, sp_dtype storage) {
    sp_workspace w = {0};
    workspace_part part[WORKSPACE_TENSORS];
    workspace_parts(d, max_tokens, storage, &w, part);
    int64_t bytes = 0;
    for (int i = 0; i < WORKSPACE_TENSORS; i++)
        bytes += part[i].rows * part[i].cols * sp_dtype_size(part[i].dtype);
    return bytes;
}

static sp_tensor qkv_view(const sp_workspace *w, int64_t T, int64_t col0, int64_t cols) {
    return sp_tensor_cols(sp_tensor_rows(w->qkv, 0, T), col0, cols);
}

sp_tensor sp_workspace_q(const sp_model *m, const sp_workspace *w, int64_t T) {
    const sp_heads *h = &m->desc->heads;
    return qkv_view(w, T, 0, h->q_heads * h->head_dim);
}

sp_tensor sp_workspace_k(const sp_model *m, const sp_workspace *w, int64_t T) {
    const sp_heads *h = &m->desc->heads;
    return qkv_view(w, T, h->q_heads * h->head_dim, h->kv_heads * h->head_dim);
}

sp_tensor sp_workspace_v(const sp_model *m, const sp_workspace *w, int64_t T) {
    const sp_heads *h = &m->desc->heads;
    return qkv_view(w, T, (h->q_heads + h->kv_heads) * h->head_dim, h->kv_heads * h->head_dim);
}

sp_tensor sp_workspace_cis(const sp_model *m, const sp_workspace *w, int64_t T) {
    return m->desc->cis ? sp_tensor_cols(w->cis, 0, T) : SP_NO_TENSOR;
}

static sp_status check_rows(const sp_workspace *w, int64_t row0, int64_t n) {
    if (row0 >= 0 && n >= 1 && n <= w->max_tokens - row0) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "forward pass over %lld tokens from row %lld, but its workspace holds %lld",
                    (long long)n, (long long)row0, (long long)w->max_tokens);
}

// ---- layers (training.md 1.4) -------------------------------------------------------------------

sp_status sp_forward_embed(const sp_model *m, sp_workspace *w, const int32_t *tokens, int64_t T) {
    SP_TRY(check_rows(w, 0, T));
    sp_tensor ids = sp_tensor_rows(w->tokens, 0, T);
    SP_TRY(sp_upload(ids, tokens));
    SP_TRY(sp_embed(ids, m->embed, (float)m->desc->embed_scale, sp_tensor_rows(w->h, 0, T)));
    return SP_OK;
}

sp_status sp_forward_qkv(const sp_model *m, sp_workspace *w, int64_t layer, int64_t T,
                         const sp_rope_table *rope, int64_t pos0, bool need_v) {
    SP_TRY(check_rows(w, 0, T));
    const sp_layer_weights *lw = &m->layer[layer];
    const sp_heads *heads = &m->desc->heads;
    int64_t rotated = (heads->q_heads + heads->kv_heads) * heads->head_dim; // q | k
    int64_t cols = need_v ? qkv_cols(heads) : rotated;
    sp_tensor x = sp_tensor_rows(w->x, 0, T);
    SP_TRY(sp_rmsnorm(sp_tensor_rows(w->h, 0, T), lw->attn_norm, m->desc->norm_eps, x));
    SP_TRY(sp_linear(x, sp_tensor_rows(lw->qkv, 0, cols), qkv_view(w, T, 0, cols)));
    if (m->desc->cis && need_v)
        SP_TRY(sp_cis(*heads, sp_workspace_v(m, w, T), lw->cis_delta, lw->cis_scale,
                      sp_workspace_cis(m, w, T)));
    SP_TRY(sp_rope(qkv_view(w, T, 0, rotated), rope->cos, rope->sin, pos0, heads->head_dim, false));
    return SP_OK;
}

sp_status sp_forward_tail(const sp_model *m, sp_workspace *w, int64_t layer, int64_t T) {
    SP_TRY(check_rows(w, 0, T));
    const sp_layer_weights *lw = &m->layer[layer];
    float factor = (float)m->desc->residual_scale;
    sp_tensor h = sp_tensor_rows(w->h, 0, T);
    // The branch buffer takes turns as attention output, normed MLP input and MLP output, so that
    // w->x keeps the attention input for the Forecast.
    sp_tensor branch = sp_tensor_rows(w->branch, 0, T);
    SP_TRY(sp_linear(sp_tensor_rows(w->attn, 0, T), lw->o, branch));
    SP_TRY(sp_residual_add(h, branch, factor));
    SP_TRY(sp_rmsnorm(h, lw->mlp_norm, m->desc->norm_eps, branch));
    for (int64_t row0 = 0; row0 < T; row0 += MLP_ROWS) {
        int64_t n = T - row0 < MLP_ROWS ? T - row0 : MLP_ROWS;
        sp_tensor rows = sp_tensor_rows(branch, row0, n);
        sp_tensor gate_up = sp_tensor_rows(w->gate_up, 0, n), act = sp_tensor_rows(w->act, 0, n);
        SP_TRY(sp_linear(rows, lw->gate_up, gate_up));
        SP_TRY(sp_swiglu(gate_up, act));
        SP_TRY(sp_linear(act, lw->down, rows));
    }
    SP_TRY(sp_residual_add(h, branch, factor));
    return SP_OK;
}

sp_status sp_forward_logits(const sp_model *m, sp_workspace *w, int64_t row0, int64_t n,
                            sp_tensor logits) {
    SP_TRY(check_rows(w, row0, n));
    sp_tensor normed = sp_tensor_rows(w->branch, 0, n);
    SP_TRY(sp_rmsnorm(sp_tensor_rows(w->h, row0, n), m->final_norm, m->desc->norm_eps, normed));
    SP_TRY(sp_linear(normed, m->head, logits));
    // The divisor belongs to the hidden state; the head is linear, and here it is an F32 operation.
    if (m->desc->logit_divisor != 1) SP_TRY(sp_scale(logits, (float)(1 / m->desc->logit_divisor)));
    return SP_OK;
}
