// Block selection of every kind and the prefill loop that uses it.
//
// Window rows exist for one tile of queries at a time, lists and compressed keys for one layer, so
// memory is linear in T. Lists of a row depend on nothing but that row and the keys.
#include "model/selection.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

const char *sp_selector_name(sp_selector s) {
    static const char *const name[] = {"dense",    "original",  "teacher",
                                       "forecast", "infinigen", "random"};
    return (size_t)s < sizeof name / sizeof *name ? name[s] : "unknown";
}

sp_importance_args sp_teacher_importance(const sp_model_desc *d, sp_grid teacher, sp_align align,
                                         int64_t n_d) {
    sp_grid deployed = sp_deployed_grid(d);
    bool native = teacher.kernel == deployed.kernel && teacher.stride == deployed.stride;
    return (sp_importance_args){
        .heads = d->heads,
        .fine = teacher,
        .deployed = deployed,
        .n_d = n_d,
        .align = align,
        .visibility = native ? SP_SEES_COMPLETE : SP_SEES_START,
    };
}

sp_status sp_model_supported(sp_backend *be, const sp_model_desc *d, sp_grid teacher,
                             int64_t tokens) {
    return sp_backend_supports(be, &(sp_shapes){.heads = d->heads,
                                                .fine = teacher,
                                                .deployed = sp_deployed_grid(d),
                                                .block = d->sparse.block_size,
                                                .topk = sp_model_shortlist(d, false).topk,
                                                .tokens = tokens});
}

int64_t sp_selection_tile(const sp_backend *be, const sp_model_desc *d, int64_t T) {
    enum { MIN_ROWS = 64 };
    int64_t n_d = sp_windows(sp_deployed_grid(d), T);
    int64_t row_bytes = d->heads.kv_heads * (n_d > 0 ? n_d : 1) * (int64_t)sizeof(float);
    int64_t rows = sp_backend_tile_bytes(be) / row_bytes / MIN_ROWS * MIN_ROWS;
    if (rows < MIN_ROWS) rows = MIN_ROWS;
    return rows < T ? rows : T;
}

sp_status sp_forecast_rows(const sp_model *m, sp_tensor w, sp_tensor x, const sp_rope_table *rope,
                           int64_t pos0, sp_tensor out) {
    SP_TRY(sp_linear(x, w, out));
    SP_TRY(sp_rope(out, rope->cos, rope->sin, pos0, m->desc->heads.head_dim, false));
    return SP_OK;
}

// ---- blocks by the importance of their keys ----------------------------------------------------

sp_status sp_cis_ranking_make(sp_backend *be, const sp_model_desc *d, int64_t max_tokens,
                              sp_cis_ranking *out) {
    *out = (sp_cis_ranking){0};
    if (!d->cis) return SP_OK;
    int64_t nb = (max_tokens + d->sparse.block_size - 1) / d->sparse.block_size;
    SP_TRY(sp_tensor_alloc(be, SP_F32, d->heads.kv_heads, nb, "importance of the blocks",
                           &out->scores));
    return sp_tensor_alloc(be, SP_I32, d->heads.kv_heads, nb, "order of the blocks", &out->order);
}

void sp_cis_ranking_free(sp_cis_ranking *r) {
    sp_tensor_free(&r->scores);
    sp_tensor_free(&r->order);
}

sp_status sp_cis_rank(const sp_model_desc *d, const sp_cis_ranking *r, sp_tensor cis,
                      sp_tensor *order) {
    *order = SP_NO_TENSOR;
    if (!d->cis) return SP_OK;
    int64_t block = d->sparse.block_size, nb = (cis.cols + block - 1) / block;
    *order = sp_tensor_cols(r->order, 0, nb);
    return sp_cis_blocks(cis, sp_deployed_grid(d), block, sp_tensor_cols(r->scores, 0, nb), *order);
}

// ---- one tile -----------------------------------------------------------------------------------

static sp_grid selector_grid(const sp_model_desc *d, const sp_prefill_args *a) {
    return a->selector == SP_SELECT_TEACHER ? a->teacher : sp_deployed_grid(d);
}

sp_status sp_select_rows(const sp_model *m, const sp_prefill_args *a, sp_tensor source, int64_t i0,
                         sp_tensor c, int64_t T, sp_tensor scores, sp_tensor lists) {
    const sp_model_desc *d = m->desc;
    sp_grid deployed = sp_deployed_grid(d);
    int64_t n_d = sp_windows(deployed, T);
    int64_t nb = (T + a->selection.block - 1) / a->selection.block;
    sp_selection shortlist = sp_model_shortlist(d, a->selection.mask_future);
    const sp_selection *s = d->cis ? &shortlist : &a->selection;
    c = sp_tensor_rows(c, 0, sp_windows(selector_grid(d, a), T));
    if (a->selector == SP_SELECT_FORECAST) // no window rows
        return sp_forecast_lists(d->heads, deployed, a->forecast_sees, s, source, i0, c, nb, lists);
    sp_tensor rows =
        sp_tensor_cols(sp_tensor_rows(scores, 0, source.rows), 0, d->heads.kv_heads * n_d);
    if (n_d > 0) {
        switch (a->selector) {
        case SP_SELECT_ORIGINAL:
        case SP_SELECT_INFINIGEN: {
            sp_importance_args ia = sp_teacher_importance(d, deployed, SP_ALIGN_MAX, n_d);
            SP_TRY(sp_importance(&ia, source, i0, c, rows));
            break;
        }
        case SP_SELECT_TEACHER: {
            sp_importance_args ia = sp_teacher_importance(d, a->teacher, a->align, n_d);
            SP_TRY(sp_importance(&ia, source, i0, c, rows));
            break;
        }
        default:
            return sp_error(SP_ENVIRONMENT, "the %s selector has no scores to select by",
                            sp_selector_name(a->selector));
        }
    }
    return sp_select_blocks(s, deployed, d->heads.kv_heads, rows, i0, nb, lists);
}

// ---- random blocks ------------------------------------------------------------------------------

// `n` different numbers below `bound` as bits of `set` (zeroed here), by Floyd's method.
static void random_subset(uint64_t *state, int64_t n, int64_t bound, uint64_t *set) {
    memset(set, 0, (size_t)((bound + 63) / 64) * sizeof *set);
    for (int64_t j = bound - n; j < bound; j++) {
        int64_t pick = (int64_t)(((sp_splitmix64(state) >> 32) * (uint64_t)(j + 1)) >> 32);
        if (set[pick / 64] >> (pick % 64) & 1) pick = j;
        set[pick / 64] |= (uint64_t)1 << (pick % 64);
    }
}

// The list of one (layer, head, row): what must be there (5.1), then random others it can see.
static void random_list(const sp_selection *s, uint64_t seed, int64_t qb, uint64_t *set,
                        int32_t *list) {
    int64_t local0 = qb - s->local_blocks > 0 ? qb - s->local_blocks : 0;
    int64_t init = s->init_blocks < local0 ? s->init_blocks : local0;
    int64_t others = local0 - init; // blocks init .. local0-1 compete
    int64_t room = s->topk - init - (qb - local0 + 1);
    int64_t n = room < 0 ? 0 : room < others ? room : others;
    random_subset(&seed, n, others, set);
    int64_t used = 0;
    for (int64_t b = 0; b <= qb && used < s->topk; b++) {
        int64_t c = b - init;
        bool competes = c >= 0 && c < others;
        if (!competes || (set[c / 64] >> (c % 64) & 1)) list[used++] = (int32_t)b;
    }
    while (used < s->topk) list[used++] = -1;
}

sp_status sp_random_lists(const sp_selection *s, uint64_t seed, int64_t layer, int64_t i0,
                          int64_t R, int64_t kv_heads, int32_t *lists) {
    uint64_t *set; // one bit per block
    SP_TRY(sp_alloc(&set, (i0 + R) / s->block / 64 + 1, sizeof *set, "block set"));
    for (int64_t r = 0; r < R; r++)
        for (int64_t h = 0; h < kv_heads; h++) {
            uint64_t state = seed;
            state = sp_splitmix64(&state) ^ (uint64_t)layer;
            state = sp_splitmix64(&state) ^ (uint64_t)h;
            state = sp_splitmix64(&state) ^ (uint64_t)(i0 + r);
            random_list(s, state, (i0 + r) / s->block, set, lists + (r * kv_heads + h) * s->topk);
        }
    free(set);
    return SP_OK;
}

// ---- prefill ------------------------------------------------------------------------------------

typedef struct prefill {
    const sp_model *m;
    sp_workspace *w;
    const sp_rope_table *rope;
    const sp_prefill_args *a;
    int64_t T, tile;
    sp_tensor lists;     // I32 [T, Hkv*k]
    sp_tensor c;         // compressed keys of the present layer [n, Hkv*d]
    sp_tensor scores;    // F32 [tile, Hkv*n_d]
    sp_tensor shortlist; // I32 [tile, Hkv*k1], what the query chose; with desc->cis
    sp_cis_ranking rank; // of the present layer
    sp_tensor f;         // Forecast that scores the present layer [T, Hkv*d]
    sp_tensor x_before;  // attention input of the layer before [max_tokens, D] (infinigen)
    sp_tensor q_before;  // present layer's queries made from it [tile, Hq*d]
    int32_t *host_lists; // [T][Hkv*k] (random)
} prefill;

static sp_status prefill_alloc(prefill *p) {
    const sp_model_desc *d = p->m->desc;
    const sp_prefill_args *a = p->a;
    sp_backend *be = p->m->backend;
    sp_dtype storage = sp_backend_storage(be);
    int64_t T = p->T, kv_cols = d->heads.kv_heads * d->heads.head_dim;
    int64_t list_cols = d->heads.kv_heads * a->selection.topk;
    bool scored = false, forecast = false, before = false, random = false;
    if (!a->fixed_lists) {
        scored = a->selector != SP_SELECT_DENSE && a->selector != SP_SELECT_RANDOM;
        forecast = a->selector == SP_SELECT_FORECAST;
        before = a->selector == SP_SELECT_INFINIGEN;
        random = a->selector == SP_SELECT_RANDOM;
        if (a->selector == SP_SELECT_DENSE) return SP_OK;
    }
    SP_TRY(sp_tensor_alloc(be, SP_I32, T, list_cols, "block lists", &p->lists));
    if (random)
        SP_TRY(sp_alloc(&p->host_lists, T * list_cols, sizeof *p->host_lists, "random lists"));
    if (scored) {
        int64_t n = sp_windows(selector_grid(d, a), T), n_d = sp_windows(sp_deployed_grid(d), T);
        SP_TRY(sp_tensor_alloc(be, storage, n > 0 ? n : 1, kv_cols, "compressed keys", &p->c));
        SP_TRY(sp_tensor_alloc(be, SP_F32, p->tile, d->heads.kv_heads * (n_d > 0 ? n_d : 1),
                               "window scores", &p->scores));
        SP_TRY(sp_cis_ranking_make(be, d, T, &p->rank));
        if (d->cis)
            SP_TRY(sp_tensor_alloc(be, SP_I32, p->tile,
                                   d->heads.kv_heads * sp_model_shortlist(d, false).topk,
                                   "shortlists", &p->shortlist));
    }
    if (forecast) SP_TRY(sp_tensor_alloc(be, storage, T, kv_cols, "Forecasts", &p->f));
    if (before) {
        SP_TRY(sp_tensor_alloc(be, storage, p->w->max_tokens, d->hidden,
                               "attention input of the layer before", &p->x_before));
        SP_TRY(sp_tensor_alloc(be, storage, p->tile, d->heads.q_heads * d->heads.head_dim,
                               "queries from the layer before", &p->q_before));
    }
    return SP_OK;
}

static void prefill_free(prefill *p) {
    sp_tensor *const tensor[] = {&p->lists, &p->c,        &p->scores,  &p->shortlist,
                                 &p->f,     &p->x_before, &p->q_before};
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) sp_tensor_free(tensor[i]);
    sp_cis_ranking_free(&p->rank);
    free(p->host_lists);
}

// What the selector scores rows i0..i0+R of this layer with.
static sp_status tile_source(prefill *p, int64_t layer, int64_t i0, int64_t R, sp_tensor *out) {
    const sp_heads *heads = &p->m->desc->heads;
    switch (p->a->selector) {
    case SP_SELECT_FORECAST:
        *out = sp_tensor_rows(p->f, i0, R);
        return SP_OK;
    case SP_SELECT_INFINIGEN: {
        if (layer == 0) break; // its own input: the true queries
        sp_tensor wq = sp_tensor_rows(p->m->layer[layer].qkv, 0, heads->q_heads * heads->head_dim);
        *out = sp_tensor_rows(p->q_before, 0, R);
        SP_TRY(sp_linear(sp_tensor_rows(p->x_before, i0, R), wq, *out));
        SP_TRY(sp_rope(*out, p->rope->cos, p->rope->sin, i0, heads->head_dim, false));
        return SP_OK;
    }
    default:
        break;
    }
    *out = sp_tensor_rows(sp_workspace_q(p->m, p->w, p->T), i0, R);
    return SP_OK;
}

static sp_status layer_lists(prefill *p, int64_t layer) {
    const sp_prefill_args *a = p->a;
    const sp_model_desc *d = p->m->desc;
    if (a->fixed_lists) return sp_upload(p->lists, a->fixed_lists + layer * p->T * p->lists.cols);
    if (a->selector == SP_SELECT_RANDOM) {
        SP_TRY(sp_random_lists(&a->selection, a->seed, layer, 0, p->T, d->heads.kv_heads,
                               p->host_lists));
        return sp_upload(p->lists, p->host_lists);
    }
    sp_grid grid = selector_grid(d, a);
    int64_t n = sp_windows(grid, p->T);
    if (n > 0)
        SP_TRY(sp_compress_keys(sp_workspace_k(p->m, p->w, p->T), grid, 0,
                                sp_tensor_rows(p->c, 0, n)));
    sp_tensor order;
    SP_TRY(sp_cis_rank(d, &p->rank, sp_workspace_cis(p->m, p->w, p->T), &order));
    for (int64_t i0 = 0; i0 < p->T; i0 += p->tile) {
        int64_t R = p->T - i0 < p->tile ? p->T - i0 : p->tile;
        sp_tensor source, lists = sp_tensor_rows(p->lists, i0, R);
        sp_tensor chosen = d->cis ? sp_tensor_rows(p->shortlist, 0, R) : lists;
        SP_TRY(tile_source(p, layer, i0, R, &source));
        SP_TRY(sp_select_rows(p->m, a, source, i0, p->c, p->T, p->scores, chosen));
        if (d->cis)
            SP_TRY(
                sp_extend_lists(a->selection.block, d->heads.kv_heads, chosen, i0, order, lists));
    }
    return SP_OK;
}

// The Forecast for `scored_layer` from the present attention input.
static sp_status make_forecast(prefill *p, int64_t scored_layer) {
    return sp_forecast_rows(p->m, p->a->forecast->w[scored_layer], sp_tensor_rows(p->w->x, 0, p->T),
                            p->rope, 0, p->f);
}

static sp_status prefill_layer(prefill *p, int64_t layer) {
    const sp_model_desc *d = p->m->desc;
    sp_workspace *w = p->w;
    bool forecast = p->f.data != NULL;
    if (p->x_before.data && layer > 0) {
        sp_tensor x = w->x; // the tail left the layer's input in place: keep it, write the other
        w->x = p->x_before;
        p->x_before = x;
    }
    SP_TRY(sp_forward_qkv(p->m, w, layer, p->T, p->rope, 0, true));
    if (forecast && layer == 0) SP_TRY(make_forecast(p, 0));
    if (p->lists.data) SP_TRY(layer_lists(p, layer));
    if (forecast && layer + 1 < d->layers) SP_TRY(make_forecast(p, layer + 1));
    if (p->a->on_layer) SP_TRY(p->a->on_layer(p->a->user, layer, w, p->T, &p->lists));

    sp_tensor q = sp_workspace_q(p->m, w, p->T), k = sp_workspace_k(p->m, w, p->T);
    sp_tensor v = sp_workspace_v(p->m, w, p->T), attn = sp_tensor_rows(w->attn, 0, p->T);
    sp_tensor cis = sp_workspace_cis(p->m, w, p->T);
    if (p->lists.data)
        SP_TRY(
            sp_sparse_attention(d->heads, q, 0, k, v, cis, p->lists, p->a->selection.block, attn));
    else
        SP_TRY(sp_dense_attention(d->heads, q, 0, k, v, cis, attn));
    SP_TRY(sp_forward_tail(p->m, w, layer, p->T));
    return SP_OK;
}

sp_status sp_prefill(const sp_model *m, sp_workspace *w, const sp_rope_table *rope,
                     const int32_t *tokens, int64_t T, const sp_prefill_args *a) {
    prefill p = {.m = m, .w = w, .rope = rope, .a = a, .T = T};
    p.tile = a->tile > 0 && a->tile < T ? a->tile
             : a->tile > 0              ? T
                                        : sp_selection_tile(m->backend, m->desc, T);
    sp_status st = SP_OK;
    if (a->selector == SP_SELECT_FORECAST && !a->fixed_lists &&
        (!a->forecast || a->forecast->layers != m->desc->layers))
        return sp_error(SP_ENVIRONMENT,
                        "prefill with Forecast selection, but no Forecast weights "
                        "of a model with %lld layers were given",
                        (long long)m->desc->layers);
    SP_GO(sp_forward_embed(m, w, tokens, T)); // checks T against the workspace
    SP_GO(prefill_alloc(&p));
    for (int64_t l = 0; l < m->desc->layers; l++) SP_GO(prefill_layer(&p, l));
done:
    prefill_free(&p);
    return st;
}
