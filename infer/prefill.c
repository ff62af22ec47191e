// See prefill.h. The order within a layer is that of inference.md 1.1.
#include "infer/prefill.h"
#include "common/util.h"

#include <stdlib.h>

enum { CHUNK = 16384 };

struct sp_prefiller {
    sp_prefiller_args a;
    const sp_model *m;
    sp_prefill_args select; // what sp_select_rows needs to know
    sp_grid grid;
    int64_t tile; // query rows of window scores at once
    sp_rope_table rope;
    sp_workspace w; // of one chunk; h is a view of the rows below
    sp_tensor h;    // residual stream [max_prompt, D]
    sp_tensor k, v; // of the present layer [max_prompt, Hkv*d]
    sp_tensor f[2]; // Forecasts that score the present layer and the next [max_prompt, Hkv*d]
    sp_tensor scores;
    sp_tensor lists; // I32 [chunk, Hkv*k]
    // Where keys have an importance of their own: that of the layer's keys F32 [Hkv, max_prompt],
    // the order of its blocks, and what the query chose, I32 [tile, Hkv*k1].
    sp_tensor cis, chosen;
    sp_cis_ranking rank;
    sp_tensor logits;
};

// ---- opening ------------------------------------------------------------------------------------

static int64_t chunk_of(const sp_prefiller_args *a) {
    int64_t block = sp_model_selection(a->model->desc, true).block;
    int64_t n = a->chunk > 0 ? a->chunk : CHUNK;
    if (n > a->max_prompt) n = a->max_prompt;
    return (n + block - 1) / block * block;
}

static bool needs_scores(const sp_prefiller_args *a) {
    return a->selector == SP_SELECT_ORIGINAL;
}

static int64_t windows_of(const sp_prefiller_args *a) { // an empty tensor has no address
    int64_t n = sp_windows(sp_deployed_grid(a->model->desc), a->max_prompt);
    return n > 0 ? n : 1;
}

static int64_t tile_of(const sp_prefiller_args *a) {
    int64_t tile = sp_selection_tile(a->model->backend, a->model->desc, a->max_prompt);
    return tile < chunk_of(a) ? tile : chunk_of(a);
}

int64_t sp_prefiller_bytes(const sp_prefiller_args *a) {
    const sp_model_desc *d = a->model->desc;
    int64_t e = sp_dtype_size(sp_backend_storage(a->model->backend)), T = a->max_prompt;
    int64_t kv = d->heads.kv_heads * d->heads.head_dim, n = chunk_of(a);
    int64_t bytes = sp_workspace_bytes(d, n, sp_backend_storage(a->model->backend));
    bytes += T * e * (d->hidden + 2 * kv) + 4 * d->vocab;
    bytes += 4 * a->max_tokens * d->heads.head_dim; // rotary table
    if (a->selector == SP_SELECT_FORECAST) bytes += 2 * T * e * kv;
    if (a->selector != SP_SELECT_DENSE)
        bytes += 4 * n * d->heads.kv_heads * sp_model_selection(d, true).topk;
    if (d->cis) {
        int64_t nb = (T + d->sparse.block_size - 1) / d->sparse.block_size;
        bytes += 4 * d->heads.kv_heads * (T + 2 * nb);
        if (a->selector != SP_SELECT_DENSE)
            bytes += 4 * n * d->heads.kv_heads * sp_model_shortlist(d, true).topk;
    }
    if (needs_scores(a)) bytes += 4 * tile_of(a) * d->heads.kv_heads * windows_of(a);
    return bytes;
}

static sp_status allocate(sp_prefiller *p) {
    const sp_model_desc *d = p->m->desc;
    sp_backend *be = p->m->backend;
    sp_dtype t = sp_backend_storage(be);
    int64_t T = p->a.max_prompt, n = p->a.chunk, kv = d->heads.kv_heads * d->heads.head_dim;
    SP_TRY(sp_rope_table_make(be, d, p->a.max_tokens, p->a.allow_longer, &p->rope));
    SP_TRY(sp_workspace_make(p->m, n, &p->w));
    SP_TRY(sp_tensor_alloc(be, t, T, d->hidden, "residual stream of a prompt", &p->h));
    SP_TRY(sp_tensor_alloc(be, t, T, kv, "keys of a layer", &p->k));
    SP_TRY(sp_tensor_alloc(be, t, T, kv, "values of a layer", &p->v));
    for (int i = 0; i < 2 && p->a.selector == SP_SELECT_FORECAST; i++)
        SP_TRY(sp_tensor_alloc(be, t, T, kv, "Forecasts of a prompt", &p->f[i]));
    if (needs_scores(&p->a))
        SP_TRY(sp_tensor_alloc(be, SP_F32, p->tile, d->heads.kv_heads * windows_of(&p->a),
                               "window scores", &p->scores));
    if (p->a.selector != SP_SELECT_DENSE)
        SP_TRY(sp_tensor_alloc(be, SP_I32, n, d->heads.kv_heads * p->select.selection.topk,
                               "block lists of a chunk", &p->lists));
    if (d->cis)
        SP_TRY(sp_tensor_alloc(be, SP_F32, d->heads.kv_heads, T, "importance of a layer's keys",
                               &p->cis));
    if (d->cis && p->a.selector != SP_SELECT_DENSE)
        SP_TRY(sp_tensor_alloc(be, SP_I32, n, d->heads.kv_heads * sp_model_shortlist(d, true).topk,
                               "shortlists of a chunk", &p->chosen));
    SP_TRY(sp_cis_ranking_make(be, d, T, &p->rank));
    return sp_tensor_alloc(be, SP_F32, 1, d->vocab, "logits", &p->logits);
}

sp_status sp_prefiller_open(const sp_prefiller_args *a, sp_prefiller **out) {
    *out = NULL;
    const sp_model_desc *d = a->model->desc;
    bool known = a->selector == SP_SELECT_DENSE || a->selector == SP_SELECT_ORIGINAL ||
                 a->selector == SP_SELECT_FORECAST;
    if (!known || (a->selector == SP_SELECT_FORECAST && !a->forecast))
        return sp_error(SP_ENVIRONMENT, "prefill with the %s selector%s",
                        sp_selector_name(a->selector),
                        known ? " was asked for without weights" : " is not known");
    if (a->max_prompt < 1 || a->max_tokens < a->max_prompt)
        return sp_error(SP_BAD_INPUT, "prompts of %lld tokens within %lld tokens in all",
                        (long long)a->max_prompt, (long long)a->max_tokens);
    sp_prefiller *p;
    SP_TRY(sp_alloc(&p, 1, sizeof *p, "prefill"));
    p->a = *a;
    p->m = a->model;
    p->a.chunk = chunk_of(a);
    p->tile = tile_of(a);
    p->grid = sp_deployed_grid(d);
    p->select = (sp_prefill_args){.selector = a->selector,
                                  .selection = sp_model_selection(d, true),
                                  .forecast_sees = SP_SEES_COMPLETE};
    sp_status st = allocate(p);
    if (st != SP_OK) {
        sp_prefiller_close(p);
        return sp_error_trace_at(__FILE__, __LINE__, st, "allocate(p)");
    }
    *out = p;
    return SP_OK;
}

void sp_prefiller_close(sp_prefiller *p) {
    if (!p) return;
    sp_tensor *const all[] = {&p->h,      &p->k,     &p->v,      &p->f[0], &p->f[1],
                              &p->scores, &p->lists, &p->logits, &p->cis,  &p->chosen};
    sp_cis_ranking_free(&p->rank);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sp_tensor_free(all[i]);
    sp_workspace_free(&p->w);
    sp_rope_table_free(&p->rope);
    free(p);
}

const sp_model *sp_prefiller_model(const sp_prefiller *p) {
    return p->m;
}

// ---- one chunk of one layer ---------------------------------------------------------------------

typedef struct layer_run {
    sp_prefiller *p;
    const sp_prefill_sink *sink;
    int64_t layer, T;
    sp_tensor c; // compressed keys, the sink's
} layer_run;

// A chunk's workspace: its rows of the residual stream in the place of the workspace's own.
static sp_workspace chunk_workspace(const sp_prefiller *p, int64_t at, int64_t n) {
    sp_workspace w = p->w;
    w.h = sp_tensor_rows(p->h, at, n);
    w.max_tokens = n;
    return w;
}

static sp_status compress(const layer_run *r, int64_t at, int64_t n) {
    const sp_prefiller *p = r->p;
    int64_t have = sp_windows(p->grid, at), want = sp_windows(p->grid, at + n);
    if (want == have) return SP_OK;
    return sp_compress_keys(sp_tensor_rows(p->k, 0, at + n), p->grid, have,
                            sp_tensor_rows(r->c, have, want - have));
}

// Importance of the first `total` keys of the layer; SP_NO_TENSOR where the model has none.
static sp_tensor cis_of(const sp_prefiller *p, int64_t total) {
    return p->m->desc->cis ? sp_tensor_cols(p->cis, 0, total) : SP_NO_TENSOR;
}

// Lists of rows row0 .. n-1 of the chunk at `at`.
static sp_status choose(const layer_run *r, sp_tensor q, int64_t at, int64_t row0, int64_t n) {
    sp_prefiller *p = r->p;
    bool forecast = p->a.selector == SP_SELECT_FORECAST;
    sp_tensor source = forecast ? sp_tensor_rows(p->f[r->layer % 2], at, n) : q, order;
    const sp_model_desc *d = p->m->desc;
    SP_TRY(sp_cis_rank(d, &p->rank, cis_of(p, at + n), &order));
    int64_t tile = forecast ? n : p->tile; // Forecasts need no window scores in memory
    for (int64_t i = row0; i < n; i += tile) {
        int64_t rows = n - i < tile ? n - i : tile;
        sp_tensor lists = sp_tensor_rows(p->lists, i, rows);
        sp_tensor chosen = d->cis ? sp_tensor_rows(p->chosen, i, rows) : lists;
        SP_TRY(sp_select_rows(p->m, &p->select, sp_tensor_rows(source, i, rows), at + i, r->c,
                              at + n, p->scores, chosen));
        if (d->cis)
            SP_TRY(sp_extend_lists(p->select.selection.block, d->heads.kv_heads, chosen, at + i,
                                   order, lists));
    }
    return SP_OK;
}

static sp_status attend(const layer_run *r, sp_tensor q, int64_t at, int64_t row0, int64_t n) {
    const sp_prefiller *p = r->p;
    const sp_heads heads = p->m->desc->heads;
    sp_tensor k = sp_tensor_rows(p->k, 0, at + n), v = sp_tensor_rows(p->v, 0, at + n);
    sp_tensor out = sp_tensor_rows(p->w.attn, row0, n - row0), cis = cis_of(p, at + n);
    q = sp_tensor_rows(q, row0, n - row0);
    if (p->a.selector == SP_SELECT_DENSE)
        return sp_dense_attention(heads, q, at + row0, k, v, cis, out);
    return sp_sparse_attention(heads, q, at + row0, k, v, cis,
                               sp_tensor_rows(p->lists, row0, n - row0), p->select.selection.block,
                               out);
}

static sp_status forecast_rows(const layer_run *r, int64_t for_layer, int64_t at, int64_t n) {
    sp_prefiller *p = r->p;
    if (p->a.selector != SP_SELECT_FORECAST || for_layer >= p->m->desc->layers) return SP_OK;
    return sp_forecast_rows(p->m, p->a.forecast->w[for_layer], sp_tensor_rows(p->w.x, 0, n),
                            &p->rope, at, sp_tensor_rows(p->f[for_layer % 2], at, n));
}

static sp_status run_chunk(const layer_run *r, int64_t at, int64_t n) {
    sp_prefiller *p = r->p;
    const sp_model *m = p->m;
    bool last_layer = r->layer + 1 == m->desc->layers, last_chunk = at + n == r->T;
    sp_workspace w = chunk_workspace(p, at, n);
    SP_TRY(sp_forward_qkv(m, &w, r->layer, n, &p->rope, at, true));
    sp_tensor k = sp_tensor_rows(p->k, at, n), v = sp_tensor_rows(p->v, at, n);
    SP_TRY(sp_copy(k, sp_workspace_k(m, &w, n)));
    SP_TRY(sp_copy(v, sp_workspace_v(m, &w, n)));
    sp_tensor cis = SP_NO_TENSOR; // of these rows
    if (m->desc->cis) {
        cis = sp_tensor_cols(p->cis, at, n);
        SP_TRY(sp_copy(cis, sp_workspace_cis(m, &w, n)));
    }
    SP_TRY(r->sink->put(r->sink->user, r->layer, at, k, v, cis));
    SP_TRY(compress(r, at, n));
    if (r->layer == 0) SP_TRY(forecast_rows(r, 0, at, n));
    if (last_layer && !last_chunk) return SP_OK; // only its keys and values are needed
    int64_t row0 = last_layer ? n - 1 : 0;
    sp_tensor q = sp_workspace_q(m, &w, n);
    if (p->a.selector != SP_SELECT_DENSE) SP_TRY(choose(r, q, at, row0, n));
    SP_TRY(attend(r, q, at, row0, n));
    SP_TRY(forecast_rows(r, r->layer + 1, at, n));
    w.h = sp_tensor_rows(w.h, row0, n - row0);
    w.attn = sp_tensor_rows(w.attn, row0, n - row0);
    w.max_tokens = n - row0;
    return sp_forward_tail(m, &w, r->layer, n - row0);
}

static sp_status run_layer(layer_run *r) {
    sp_prefiller *p = r->p;
    int64_t n = 0;
    for (int64_t at = 0; at < r->T; at += n) {
        n = r->T - at < p->a.chunk ? r->T - at : p->a.chunk;
        SP_TRY(run_chunk(r, at, n));
    }
    sp_tensor list =
        p->a.selector == SP_SELECT_DENSE ? SP_NO_TENSOR : sp_tensor_rows(p->lists, n - 1, 1);
    return r->sink->fill(r->sink->user, r->layer, sp_tensor_rows(p->k, 0, r->T),
                         sp_tensor_rows(p->v, 0, r->T), cis_of(p, r->T), list);
}

sp_status sp_prefiller_run(sp_prefiller *p, const int32_t *tokens, int64_t T,
                           const sp_prefill_sink *sink, float *logits) {
    if (T < 1 || T > p->a.max_prompt)
        return sp_error(SP_BAD_INPUT, "a prompt of %lld tokens; prefill was opened for up to %lld",
                        (long long)T, (long long)p->a.max_prompt);
    for (int64_t at = 0; at < T; at += p->a.chunk) {
        int64_t n = T - at < p->a.chunk ? T - at : p->a.chunk;
        sp_workspace w = chunk_workspace(p, at, n);
        SP_TRY(sp_forward_embed(p->m, &w, tokens + at, n));
    }
    for (int64_t l = 0; l < p->m->desc->layers; l++) {
        layer_run r = {.p = p, .sink = sink, .layer = l, .T = T};
        r.c = sink->compressed(sink->user, l);
        SP_TRY(run_layer(&r));
    }
    sp_workspace w = chunk_workspace(p, T - 1, 1);
    SP_TRY(sp_forward_logits(p->m, &w, 0, 1, p->logits));
    return sp_download(p->logits, logits);
}
