// See engine.h. The layer loop is that of inference.md 1.1; the pieces of arithmetic come from
// model/ and kernels/, so nothing is computed here that is computed elsewhere.
#include "validate/engine.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

typedef struct layer_cache {
    sp_tensor k, v; // [max_tokens, Hkv*d]
    sp_tensor c;    // [max windows, Hkv*d]; sp_windows(grid, tokens) rows are valid
    sp_tensor cis;  // F32 [Hkv, max_tokens]; with desc->cis
} layer_cache;

struct sp_engine {
    const sp_model *m;
    sp_engine_args a;
    sp_engine_run run;
    sp_prefill_args select; // what sp_select_rows needs to know
    sp_grid grid;
    int64_t tokens;      // of the sequence so far
    int64_t first, rows; // rows of the last append that have a final state
    int64_t tile;        // query rows at once
    layer_cache *layer;
    sp_workspace w;
    sp_rope_table rope;
    sp_tensor scores;    // F32 [tile, Hkv*n_d]
    sp_tensor lists;     // I32 [max_append, Hkv*k]
    sp_tensor chosen;    // I32 [max_append, Hkv*k1] what the query chose; with desc->cis
    sp_cis_ranking rank; // of the present layer
    sp_tensor f;         // [max_append, Hkv*d] Forecast for the present layer
    sp_tensor q_next;    // [max_append, Hq*d] InfiniGen-style query for the present layer
    sp_tensor logits;    // F32 [tile, V]
    int32_t *host_lists; // [tile][Hkv*k] (random)
};

// ---- opening ------------------------------------------------------------------------------------

static sp_status allocate(sp_engine *e) {
    const sp_model_desc *d = e->m->desc;
    sp_backend *be = e->m->backend;
    sp_dtype t = sp_backend_storage(be);
    int64_t kv = d->heads.kv_heads * d->heads.head_dim, n = e->a.max_append;
    int64_t list = d->heads.kv_heads * e->select.selection.topk;
    int64_t windows = sp_windows(e->grid, e->a.max_tokens);
    if (windows < 1) windows = 1; // an empty tensor has no address to pass on
    SP_TRY(sp_alloc(&e->layer, d->layers, sizeof *e->layer, "key/value caches"));
    for (int64_t l = 0; l < d->layers; l++) {
        layer_cache *c = &e->layer[l];
        SP_TRY(sp_tensor_alloc(be, t, e->a.max_tokens, kv, "key cache", &c->k));
        SP_TRY(sp_tensor_alloc(be, t, e->a.max_tokens, kv, "value cache", &c->v));
        SP_TRY(sp_tensor_alloc(be, t, windows, kv, "compressed keys", &c->c));
        if (d->cis)
            SP_TRY(sp_tensor_alloc(be, SP_F32, d->heads.kv_heads, e->a.max_tokens,
                                   "importance of the keys", &c->cis));
    }
    SP_TRY(sp_workspace_make(e->m, n, &e->w));
    SP_TRY(sp_rope_table_make(be, d, e->a.max_tokens, e->a.allow_longer, &e->rope));
    SP_TRY(sp_tensor_alloc(be, SP_F32, e->tile, d->heads.kv_heads * windows, "window scores",
                           &e->scores));
    SP_TRY(sp_tensor_alloc(be, SP_I32, n, list, "block lists", &e->lists));
    SP_TRY(sp_cis_ranking_make(be, d, e->a.max_tokens, &e->rank));
    if (d->cis)
        SP_TRY(sp_tensor_alloc(be, SP_I32, n, d->heads.kv_heads * sp_model_shortlist(d, true).topk,
                               "shortlists", &e->chosen));
    SP_TRY(sp_tensor_alloc(be, t, n, kv, "Forecasts", &e->f));
    SP_TRY(sp_tensor_alloc(be, t, n, d->heads.q_heads * d->heads.head_dim, "proxy queries",
                           &e->q_next));
    SP_TRY(sp_tensor_alloc(be, SP_F32, e->tile, d->vocab, "logits", &e->logits));
    return sp_alloc(&e->host_lists, e->tile * list, sizeof *e->host_lists, "random lists");
}

sp_status sp_engine_open(const sp_engine_args *a, sp_engine **out) {
    *out = NULL;
    if (a->max_tokens < 1) return sp_error(SP_BAD_INPUT, "an engine needs room for a token");
    sp_engine *e;
    SP_TRY(sp_alloc(&e, 1, sizeof *e, "engine"));
    e->m = a->model;
    e->a = *a;
    if (e->a.max_append <= 0 || e->a.max_append > a->max_tokens) e->a.max_append = a->max_tokens;
    e->grid = sp_deployed_grid(a->model->desc);
    e->tile = sp_selection_tile(a->model->backend, a->model->desc, a->max_tokens);
    if (e->tile > e->a.max_append) e->tile = e->a.max_append;
    e->select = (sp_prefill_args){.selection = sp_model_selection(a->model->desc, true),
                                  .forecast_sees = SP_SEES_COMPLETE};
    sp_status st = allocate(e);
    if (st != SP_OK) {
        sp_engine_close(e);
        return sp_error_trace_at(__FILE__, __LINE__, st, "allocate(e)");
    }
    *out = e;
    return SP_OK;
}

void sp_engine_close(sp_engine *e) {
    if (!e) return;
    for (int64_t l = 0; e->layer && l < e->m->desc->layers; l++) {
        sp_tensor_free(&e->layer[l].k);
        sp_tensor_free(&e->layer[l].v);
        sp_tensor_free(&e->layer[l].c);
        sp_tensor_free(&e->layer[l].cis);
    }
    free(e->layer);
    sp_workspace_free(&e->w);
    sp_rope_table_free(&e->rope);
    sp_tensor_free(&e->scores);
    sp_tensor_free(&e->lists);
    sp_tensor_free(&e->chosen);
    sp_cis_ranking_free(&e->rank);
    sp_tensor_free(&e->f);
    sp_tensor_free(&e->q_next);
    sp_tensor_free(&e->logits);
    free(e->host_lists);
    free(e);
}

sp_status sp_engine_start(sp_engine *e, const sp_engine_run *r) {
    if (r->selector == SP_SELECT_FORECAST && !r->forecast)
        return sp_error(SP_ENVIRONMENT, "the Forecast selector was asked for without weights");
    if (r->selector == SP_SELECT_TEACHER)
        return sp_error(SP_ENVIRONMENT, "the fine teacher sees one key too far to decode with");
    e->run = *r;
    e->select.selector = r->selector;
    e->tokens = e->rows = 0;
    return SP_OK;
}

// ---- one append ---------------------------------------------------------------------------------

// Emits the means of all windows that the new keys complete, behind those already there (2.5).
static sp_status extend_compressed(const sp_engine *e, layer_cache *c, int64_t total) {
    int64_t have = sp_windows(e->grid, e->tokens), want = sp_windows(e->grid, total);
    if (want == have) return SP_OK;
    return sp_compress_keys(sp_tensor_rows(c->k, 0, total), e->grid, have,
                            sp_tensor_rows(c->c, have, want - have));
}

// What layer `l` will be scored with, from the attention input x of the layer before (layer 0: its
// own): the Forecast, or the InfiniGen-style query.
static sp_status make_scorer(sp_engine *e, int64_t l, sp_tensor x) {
    const sp_heads *heads = &e->m->desc->heads;
    sp_tensor w, out;
    if (e->run.selector == SP_SELECT_FORECAST) {
        w = e->run.forecast->w[l];
        out = e->f;
    } else if (e->run.selector == SP_SELECT_INFINIGEN) {
        w = sp_tensor_rows(e->m->layer[l].qkv, 0, heads->q_heads * heads->head_dim);
        out = e->q_next;
    } else {
        return SP_OK;
    }
    return sp_forecast_rows(e->m, w, x, &e->rope, e->tokens, sp_tensor_rows(out, 0, x.rows));
}

// Importance of the first `total` keys; SP_NO_TENSOR where the model has none.
static sp_tensor cis_of(const sp_engine *e, int64_t l, int64_t total) {
    return e->m->desc->cis ? sp_tensor_cols(e->layer[l].cis, 0, total) : SP_NO_TENSOR;
}

static sp_status select_blocks(sp_engine *e, int64_t l, sp_tensor q, int64_t row0, int64_t n) {
    const sp_model_desc *d = e->m->desc;
    int64_t total = e->tokens + n;
    sp_tensor order = SP_NO_TENSOR;
    if (e->run.selector != SP_SELECT_RANDOM)
        SP_TRY(sp_cis_rank(d, &e->rank, cis_of(e, l, total), &order));
    sp_tensor source = e->run.selector == SP_SELECT_FORECAST    ? e->f
                       : e->run.selector == SP_SELECT_INFINIGEN ? e->q_next
                                                                : q;
    for (int64_t r = row0; r < n; r += e->tile) {
        int64_t rows = n - r < e->tile ? n - r : e->tile, i0 = e->tokens + r;
        sp_tensor lists = sp_tensor_rows(e->lists, r, rows);
        if (e->run.selector == SP_SELECT_RANDOM) {
            SP_TRY(sp_random_lists(&e->select.selection, e->run.seed, l, i0, rows,
                                   d->heads.kv_heads, e->host_lists));
            SP_TRY(sp_upload(lists, e->host_lists));
            continue;
        }
        sp_tensor chosen = d->cis ? sp_tensor_rows(e->chosen, r, rows) : lists;
        SP_TRY(sp_select_rows(e->m, &e->select, sp_tensor_rows(source, r, rows), i0, e->layer[l].c,
                              total, e->scores, chosen));
        if (d->cis)
            SP_TRY(sp_extend_lists(e->select.selection.block, d->heads.kv_heads, chosen, i0, order,
                                   lists));
    }
    return SP_OK;
}

static sp_status attend(sp_engine *e, int64_t l, sp_tensor q, int64_t row0, int64_t n) {
    const sp_heads heads = e->m->desc->heads;
    sp_tensor k = sp_tensor_rows(e->layer[l].k, 0, e->tokens + n);
    sp_tensor v = sp_tensor_rows(e->layer[l].v, 0, e->tokens + n);
    sp_tensor cis = cis_of(e, l, e->tokens + n);
    sp_tensor out = sp_tensor_rows(e->w.attn, row0, n - row0);
    q = sp_tensor_rows(q, row0, n - row0);
    if (e->run.selector == SP_SELECT_DENSE)
        return sp_dense_attention(heads, q, e->tokens + row0, k, v, cis, out);
    return sp_sparse_attention(heads, q, e->tokens + row0, k, v, cis,
                               sp_tensor_rows(e->lists, row0, n - row0), e->select.selection.block,
                               out);
}

static sp_status show(sp_engine *e, int64_t l, sp_tensor x, sp_tensor q) {
    int64_t n = x.rows, total = e->tokens + n;
    sp_engine_layer v = {.layer = l, .pos0 = e->tokens, .n = n, .tokens = total, .x = x, .q = q};
    v.k = sp_tensor_rows(e->layer[l].k, 0, total);
    v.c = sp_tensor_rows(e->layer[l].c, 0, sp_windows(e->grid, total));
    v.rope = &e->rope;
    if (e->run.selector == SP_SELECT_FORECAST) v.f = sp_tensor_rows(e->f, 0, n);
    v.cis = cis_of(e, l, total);
    if (e->run.selector != SP_SELECT_DENSE) {
        bool short_listed = e->m->desc->cis && e->run.selector != SP_SELECT_RANDOM;
        v.lists = sp_tensor_rows(e->lists, 0, n);
        v.chosen = short_listed ? sp_tensor_rows(e->chosen, 0, n) : v.lists;
    }
    return e->run.probe(e->run.user, &v);
}

static sp_status run_layer(sp_engine *e, int64_t l, int64_t n, int64_t row0) {
    const sp_model *m = e->m;
    sp_workspace *w = &e->w;
    layer_cache *c = &e->layer[l];
    SP_TRY(sp_forward_qkv(m, w, l, n, &e->rope, e->tokens, true));
    sp_tensor x = sp_tensor_rows(w->x, 0, n), q = sp_workspace_q(m, w, n);
    SP_TRY(sp_copy(sp_tensor_rows(c->k, e->tokens, n), sp_workspace_k(m, w, n)));
    SP_TRY(sp_copy(sp_tensor_rows(c->v, e->tokens, n), sp_workspace_v(m, w, n)));
    if (m->desc->cis)
        SP_TRY(sp_copy(sp_tensor_cols(c->cis, e->tokens, n), sp_workspace_cis(m, w, n)));
    SP_TRY(extend_compressed(e, c, e->tokens + n));
    if (l == 0) SP_TRY(make_scorer(e, 0, x));
    if (e->run.selector != SP_SELECT_DENSE) SP_TRY(select_blocks(e, l, q, row0, n));
    if (e->run.probe) SP_TRY(show(e, l, x, q));
    SP_TRY(attend(e, l, q, row0, n));
    if (l + 1 < m->desc->layers) SP_TRY(make_scorer(e, l + 1, x));
    // The rest of the layer runs on the rows that are still needed.
    sp_workspace part = *w;
    part.max_tokens = n - row0;
    part.h = sp_tensor_rows(w->h, row0, n - row0);
    part.attn = sp_tensor_rows(w->attn, row0, n - row0);
    return sp_forward_tail(m, &part, l, n - row0);
}

sp_status sp_engine_append(sp_engine *e, const int32_t *tokens, int64_t n, int64_t rows) {
    if (n < 1 || n > e->a.max_append || n > e->a.max_tokens - e->tokens)
        return sp_error(SP_BAD_INPUT,
                        "%lld tokens at position %lld do not fit: the engine holds %lld and takes "
                        "up to %lld at once",
                        (long long)n, (long long)e->tokens, (long long)e->a.max_tokens,
                        (long long)e->a.max_append);
    if (rows < 1 || rows > n)
        return sp_error(SP_ENVIRONMENT, "%lld of %lld appended rows were asked for",
                        (long long)rows, (long long)n);
    e->rows = 0;
    SP_TRY(sp_forward_embed(e->m, &e->w, tokens, n));
    for (int64_t l = 0; l < e->m->desc->layers; l++) {
        // A probe wants every row's list.
        bool trim = l + 1 == e->m->desc->layers && !e->run.probe;
        SP_TRY(run_layer(e, l, n, trim ? n - rows : 0));
    }
    e->tokens += n;
    e->rows = rows;
    e->first = n - rows;
    return SP_OK;
}

sp_status sp_engine_logits(sp_engine *e, int64_t row0, int64_t count, float *logits) {
    if (row0 < 0 || count < 0 || row0 + count > e->rows)
        return sp_error(SP_ENVIRONMENT, "logits of rows %lld to %lld asked for, %lld are there",
                        (long long)row0, (long long)(row0 + count), (long long)e->rows);
    int64_t V = e->m->desc->vocab;
    for (int64_t r = 0; r < count; r += e->tile) {
        int64_t n = count - r < e->tile ? count - r : e->tile;
        sp_tensor t = sp_tensor_rows(e->logits, 0, n);
        SP_TRY(sp_forward_logits(e->m, &e->w, e->first + row0 + r, n, t));
        SP_TRY(sp_download(t, logits + r * V));
    }
    return SP_OK;
}

int64_t sp_engine_tokens(const sp_engine *e) {
    return e->tokens;
}

sp_tensor sp_engine_keys(const sp_engine *e, int64_t layer) {
    return sp_tensor_rows(e->layer[layer].k, 0, e->tokens);
}

sp_tensor sp_engine_compressed(const sp_engine *e, int64_t layer) {
    return sp_tensor_rows(e->layer[layer].c, 0, sp_windows(e->grid, e->tokens));
}

sp_tensor sp_engine_values(const sp_engine *e, int64_t layer) {
    return sp_tensor_rows(e->layer[layer].v, 0, e->tokens);
}

const sp_model *sp_engine_model(const sp_engine *e) {
    return e->m;
}

sp_tensor sp_engine_importance(const sp_engine *e, int64_t layer) {
    return cis_of(e, layer, e->tokens);
}
