// One decode step: which operation runs when, on which stream (inference.md 2.2).
//
//   main  | QKVF(l) append(l) |R  wait D(l) | attend(l) O MLP | QKVF(l+1)  wait C(l+1) append(l+1)
//   side  |   ... copy(l) ...     D(l)|
//   side  |                    R -> choose(l+1) C(l+1) copy(l+1) ------------------> D(l+1)|
//
// Choosing ahead costs the main stream nothing: the two sides take even and odd layers. Layer l's
// own list, and with it the slot of a block that begins with this token, was made during layer l-1;
// so keys are appended in the launch that rotates them.
#include "infer/private.h"

#include "common/util.h"

static int64_t q_cols(const sp_infer *e) {
    return e->m->desc->heads.q_heads * e->m->desc->heads.head_dim;
}
static int64_t kv_cols(const sp_infer *e) {
    return e->m->desc->heads.kv_heads * e->m->desc->heads.head_dim;
}
static sp_tensor queries(const sp_infer *e, int64_t l) {
    return sp_tensor_cols(e->qkvf[l & 1], 0, q_cols(e));
}
static sp_tensor keys(const sp_infer *e, int64_t l) {
    return sp_tensor_cols(e->qkvf[l & 1], q_cols(e), kv_cols(e));
}
static sp_tensor values(const sp_infer *e, int64_t l) {
    return sp_tensor_cols(e->qkvf[l & 1], q_cols(e) + kv_cols(e), kv_cols(e));
}
// The Forecast that scores layer l: made by the layer before; layer 0 has its own.
static sp_tensor forecast(const sp_infer *e, int64_t l) {
    return l == 0 ? e->f0
                  : sp_tensor_cols(e->qkvf[(l - 1) & 1], q_cols(e) + 2 * kv_cols(e), kv_cols(e));
}

static sp_status rotate(sp_infer *e, sp_tensor x) {
    return sp_decode_rope(e->d, x, e->rope.cos, e->rope.sin);
}

// Whether keys can be appended by the launch that rotates them: where their slot is known. Else
// choosing finds a slot for a block that begins with this token.
static bool appends_early(const sp_infer *e, int64_t l) {
    if (e->m->desc->cis) return false; // the importance of keys comes with them, after v
    bool resident = !sp_infer_mode_offloads(e->a.mode) || (l == 0 && !e->a.offload_layer0);
    return resident || (sp_infer_mode_ahead(e->a.mode) && l > 0);
}

// q, k, v of layer l, and the Forecast for layer l+1, all from the normed input e->x.
static sp_status project(sp_infer *e, int64_t l) {
    const sp_tensor none = {0};
    const sp_layer_weights *w = &e->m->layer[l];
    bool more = sp_infer_mode_forecasts(e->a.mode) && l + 1 < e->m->desc->layers;
    sp_tensor out = e->qkvf[l & 1];
    if (!more) out = sp_tensor_cols(out, 0, q_cols(e) + 2 * kv_cols(e));
    SP_TRY(sp_decode_linear(e->d, e->x, w->qkv, more ? e->a.forecast->w[l + 1] : none, out));
    SP_TRY(sp_decode_rope_append(e->d, l, out, e->rope.cos, e->rope.sin, appends_early(e, l)));
    if (e->m->desc->cis)
        SP_TRY(sp_cis(e->m->desc->heads, values(e, l), w->cis_delta, w->cis_scale, e->cis));
    if (l == 0 && sp_infer_mode_forecasts(e->a.mode)) {
        SP_TRY(sp_decode_linear(e->d, e->x, e->a.forecast->w[0], none, e->f0));
        SP_TRY(rotate(e, e->f0));
    }
    if (e->a.mode == SP_MODE_INFINIGEN && l + 1 < e->m->desc->layers) {
        sp_tensor wq = sp_tensor_rows(e->m->layer[l + 1].qkv, 0, q_cols(e));
        SP_TRY(sp_decode_linear(e->d, e->x, wq, none, e->next_q));
        SP_TRY(rotate(e, e->next_q));
        SP_TRY(sp_decode_project_queries(e->d, l + 1, e->next_q, e->projected));
    }
    return SP_OK;
}

// Blocks of layer l when it is its turn.
static sp_status choose_now(sp_infer *e, int64_t l) {
    if (sp_infer_mode_forecasts(e->a.mode))
        return sp_decode_select_forecast(e->d, l, forecast(e, l), false);
    // its queries see the newest window
    if (!appends_early(e, l)) SP_TRY(sp_decode_compress(e->d, l, keys(e, l)));
    return sp_decode_select_original(e->d, l, queries(e, l));
}

// Blocks of layer l+1 while layer l runs; layer 0 has nobody before it.
static sp_status choose_ahead(sp_infer *e, int64_t l) {
    if (l + 1 < e->m->desc->layers) {
        if (e->a.mode == SP_MODE_INFINIGEN)
            SP_TRY(sp_decode_select_partial(e->d, l + 1, e->projected, true));
        else
            SP_TRY(sp_decode_select_forecast(e->d, l + 1, forecast(e, l + 1), true));
        SP_TRY(sp_decode_transfer(e->d, l + 1, true));
    }
    return l == 0 ? choose_now(e, 0) : SP_OK;
}

static sp_status attention(sp_infer *e, int64_t l) {
    bool ahead = sp_infer_mode_ahead(e->a.mode), dense = e->a.mode == SP_MODE_DENSE;
    SP_TRY(project(e, l));
    SP_TRY(sp_decode_note(e->d, l, SP_AT_CHOOSE));
    if (ahead)
        SP_TRY(choose_ahead(e, l));
    else if (!dense)
        SP_TRY(choose_now(e, l));
    if (!appends_early(e, l)) {
        // choosing with true queries needed the newest compressed key and made it
        bool done = !dense && !sp_infer_mode_forecasts(e->a.mode) && (!ahead || l == 0);
        SP_TRY(sp_decode_append(e->d, l, keys(e, l), values(e, l), e->cis, !done));
    }
    SP_TRY(sp_decode_note(e->d, l, SP_AT_WAIT));
    if (ahead && l > 0)
        SP_TRY(sp_decode_transfer_wait(e->d, l));
    else if (!dense)
        SP_TRY(sp_decode_transfer(e->d, l, false));
    SP_TRY(sp_decode_note(e->d, l, SP_AT_GO));
    SP_TRY(dense ? sp_decode_attend_all(e->d, l, queries(e, l), e->attn)
                 : sp_decode_attend(e->d, l, queries(e, l), e->attn));
    return sp_decode_note(e->d, l, SP_AT_ATTENDED);
}

sp_status sp_infer_issue_step(sp_infer *e) {
    const sp_model *m = e->m;
    const sp_model_desc *d = m->desc;
    const sp_tensor none = {0};
    float factor = (float)d->residual_scale;
    SP_TRY(sp_decode_embed(e->d, m->embed, (float)d->embed_scale, e->h));
    for (int64_t l = 0; l < d->layers; l++) {
        const sp_layer_weights *w = &m->layer[l];
        SP_TRY(sp_decode_note(e->d, l, SP_AT_LAYER));
        if (l > 0 && sp_infer_mode_ahead(e->a.mode)) SP_TRY(sp_decode_select_wait(e->d, l));
        SP_TRY(sp_rmsnorm(e->h, w->attn_norm, d->norm_eps, e->x));
        SP_TRY(attention(e, l));
        SP_TRY(sp_decode_linear_residual(e->d, e->attn, w->o, factor, e->branch, e->h));
        SP_TRY(sp_decode_note(e->d, l, SP_AT_MLP));
        SP_TRY(sp_rmsnorm(e->h, w->mlp_norm, d->norm_eps, e->x));
        SP_TRY(sp_decode_linear_swiglu(e->d, e->x, w->gate_up, e->gate_up, e->act));
        SP_TRY(sp_decode_linear_residual(e->d, e->act, w->down, factor, e->branch, e->h));
    }
    SP_TRY(sp_decode_note(e->d, d->layers, SP_AT_LAYER));
    SP_TRY(sp_rmsnorm(e->h, m->final_norm, d->norm_eps, e->x));
    SP_TRY(sp_decode_linear(e->d, e->x, m->head, none, e->logits));
    if (d->logit_divisor != 1) SP_TRY(sp_scale(e->logits, (float)(1 / d->logit_divisor)));
    SP_TRY(sp_decode_advance(e->d, e->logits));
    return sp_decode_note(e->d, d->layers, SP_AT_END);
}

// ---- steps --------------------------------------------------------------------------------------

static sp_status capture(sp_infer *e) {
    if (e->captured || e->a.no_graph) return SP_OK;
    SP_TRY(sp_decode_capture_begin(e->d));
    sp_status st = sp_infer_issue_step(e);
    if (st != SP_OK) {
        sp_decode_capture_abandon(e->d);
        return st;
    }
    SP_TRY(sp_decode_capture_end(e->d));
    e->captured = true;
    return SP_OK;
}

void sp_infer_recapture(sp_infer *e) {
    e->captured = false;
}

static sp_status check_room(const sp_infer *e, int64_t n) {
    for (int64_t b = 0; b < e->a.batch; b++)
        if (e->tokens[b] > e->a.max_tokens - n)
            return sp_error(
                SP_BAD_INPUT, "sequence %lld has %lld of %lld tokens; %lld more do not fit",
                (long long)b, (long long)e->tokens[b], (long long)e->a.max_tokens, (long long)n);
    return SP_OK;
}

static sp_status launch(sp_infer *e) {
    SP_TRY(e->a.no_graph ? sp_infer_issue_step(e) : sp_decode_launch(e->d));
    for (int64_t b = 0; b < e->a.batch; b++) e->tokens[b]++;
    e->steps++;
    return SP_OK;
}

sp_status sp_infer_step(sp_infer *e, const int32_t *tokens) {
    SP_TRY(check_room(e, 1));
    if (tokens) {
        for (int64_t b = 0; b < e->a.batch; b++)
            if (tokens[b] < 0 || tokens[b] >= e->m->desc->vocab)
                return sp_error(SP_BAD_INPUT,
                                "token %d of sequence %lld is outside the vocabulary of %lld",
                                tokens[b], (long long)b, (long long)e->m->desc->vocab);
        SP_TRY(sp_decode_set_next(e->d, tokens));
    }
    SP_TRY(capture(e));
    return launch(e);
}

sp_status sp_infer_logits(sp_infer *e, float *logits) {
    return sp_download(e->logits, logits);
}

sp_status sp_infer_next(sp_infer *e, int32_t *tokens) {
    return sp_decode_get(e->d, NULL, tokens);
}

sp_status sp_infer_timed_steps(sp_infer *e, int64_t n, double *ms) {
    SP_TRY(check_room(e, n));
    SP_TRY(capture(e));
    SP_TRY(sp_decode_mark(e->d, 0));
    for (int64_t i = 0; i < n; i++) {
        SP_TRY(launch(e));
        SP_TRY(sp_decode_mark(e->d, i + 1));
    }
    for (int64_t i = 0; i < n; i++) SP_TRY(sp_decode_elapsed(e->d, i, i + 1, &ms[i]));
    return SP_OK;
}

sp_status sp_infer_trace(sp_infer *e, double *ms) {
    SP_TRY(sp_decode_trace(e->d, true));
    sp_infer_recapture(e);
    for (int i = 0; i < 2; i++) SP_TRY(sp_infer_step(e, NULL));
    SP_TRY(sp_decode_noted(e->d, ms));
    sp_infer_recapture(e);
    return sp_decode_trace(e->d, false);
}
