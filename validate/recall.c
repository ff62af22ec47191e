// See recall.h. Window scores exist for one tile of queries at a time.
#include "validate/recall.h"
#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct recall_probe {
    const sp_pass *p;
    sp_recall *out;
    int64_t T, tile, windows;      // windows on the deployed grid
    sp_tensor forecast, untrained; // [T, Hkv*d] for the present layer
    sp_tensor proxy;               // [T, Hq*d]
    sp_tensor fine;                // [fine windows, Hkv*d]
    sp_tensor scores;              // F32 [tile, Hkv*n_d]
    sp_tensor lists;               // I32 [tile, Hkv*k]
    float *importance;             // [tile][Hkv][n_d], the original selector's
    int32_t *original;             // [T][Hkv][k]
    int32_t *list[SP_PREDICTORS];  // [tile][Hkv][k]; NULL for the stale one
    double *mass;                  // [nb]
    bool *chosen;                  // [nb]
} recall_probe;

// ---- one row ------------------------------------------------------------------------------------

void sp_recall_cell_add(sp_recall_cell *to, const sp_recall_cell *from) {
    to->rows += from->rows;
    to->mass_rows += from->mass_rows;
    to->chance += from->chance;
    to->candidates += from->candidates;
    to->entropy += from->entropy;
    for (int i = 0; i < SP_PREDICTORS; i++) {
        to->recall[i] += from->recall[i];
        to->mass[i] += from->mass[i];
    }
}

// Probability of the original selector on every candidate block lo..hi-1: its cells
// s*b .. s*b+s-1. Returns the normalised entropy.
static double block_mass(const float *importance, int64_t n_d, int64_t per_block, int64_t lo,
                         int64_t hi, double *mass) {
    double total = 0, entropy = 0;
    for (int64_t b = lo; b < hi; b++) {
        mass[b] = 0;
        for (int64_t j = b * per_block; j < (b + 1) * per_block && j < n_d; j++)
            mass[b] += (double)importance[j];
        total += mass[b];
    }
    if (total <= 0 || hi - lo < 2) return 1;
    for (int64_t b = lo; b < hi; b++)
        if (mass[b] > 0) entropy -= mass[b] / total * log(mass[b] / total);
    return entropy / log((double)(hi - lo));
}

static void score_row(recall_probe *r, int64_t layer, int64_t head, int64_t i,
                      const float *importance, int64_t n_d,
                      const int32_t *const list[SP_PREDICTORS]) {
    const sp_pass *p = r->p;
    const sp_selection *s = &p->shortlist;
    int64_t candidates = sp_candidates(s, i), k = s->topk;
    if (candidates <= p->chosen) return;
    int64_t lo = s->init_blocks, hi = lo + candidates;
    sp_recall_cell x = {.rows = 1,
                        .chance = (double)p->chosen / (double)candidates,
                        .candidates = (double)candidates};
    x.entropy = block_mass(importance, n_d, s->block / p->grid.stride, lo, hi, r->mass);

    const int32_t *own = r->original + (i * r->out->heads + head) * k;
    double own_mass = 0;
    memset(r->chosen + lo, 0, (size_t)candidates * sizeof *r->chosen);
    for (int64_t e = 0; e < k; e++) {
        if (own[e] < lo || own[e] >= hi) continue;
        r->chosen[own[e]] = true;
        own_mass += r->mass[own[e]];
    }
    x.mass_rows = own_mass > 0;
    for (int by = 0; by < SP_PREDICTORS; by++) {
        if (!list[by]) continue;
        for (int64_t e = 0; e < k; e++) {
            int32_t b = list[by][e];
            if (b < lo || b >= hi) continue;
            x.recall[by] += r->chosen[b] / (double)p->chosen;
            if (own_mass > 0) x.mass[by] += r->mass[b] / own_mass;
        }
    }
    sp_recall_cell_add(&r->out->cell[layer * r->out->heads + head], &x);
    sp_recall_cell_add(&r->out->position[i * SP_POSITION_BINS / r->T], &x);
    int64_t bin = (int64_t)(x.entropy * SP_ENTROPY_BINS);
    sp_recall_cell_add(&r->out->entropy[bin < 0                  ? 0
                                        : bin >= SP_ENTROPY_BINS ? SP_ENTROPY_BINS - 1
                                                                 : bin],
                       &x);
}

// ---- one layer ----------------------------------------------------------------------------------

// What scores layer `l`, from the attention input x of the layer before (layer 0: its own).
static sp_status make_scorers(recall_probe *r, int64_t l, const sp_engine_layer *v) {
    const sp_model *m = r->p->model;
    const sp_heads *h = &m->desc->heads;
    int64_t n = v->n;
    SP_TRY(sp_forecast_rows(m, r->p->trained->w[l], v->x, v->rope, v->pos0,
                            sp_tensor_rows(r->forecast, 0, n)));
    SP_TRY(sp_forecast_rows(m, r->p->untrained->w[l], v->x, v->rope, v->pos0,
                            sp_tensor_rows(r->untrained, 0, n)));
    if (l == 0) return SP_OK;
    return sp_forecast_rows(m, sp_tensor_rows(m->layer[l].qkv, 0, h->q_heads * h->head_dim), v->x,
                            v->rope, v->pos0, sp_tensor_rows(r->proxy, 0, n));
}

static sp_status predict(recall_probe *r, sp_predictor by, sp_selector selector, sp_tensor source,
                         int64_t i0, sp_tensor keys) {
    const sp_pass *p = r->p;
    sp_prefill_args a = {.selector = selector,
                         .selection = p->selection,
                         .teacher = p->fine,
                         .align = SP_ALIGN_MAX,
                         .forecast_sees = SP_SEES_COMPLETE};
    sp_tensor lists = sp_tensor_rows(r->lists, 0, source.rows);
    SP_TRY(sp_select_rows(p->model, &a, source, i0, keys, r->T, r->scores, lists));
    return sp_download(lists, r->list[by]);
}

static sp_status tile(recall_probe *r, const sp_engine_layer *v, sp_tensor fine, int64_t i0,
                      int64_t R) {
    const sp_pass *p = r->p;
    int64_t l = v->layer, hk = r->out->heads, k = p->shortlist.topk, n_d = r->windows;
    SP_TRY(predict(r, SP_BY_FORECAST, SP_SELECT_FORECAST, sp_tensor_rows(r->forecast, i0, R), i0,
                   v->c));
    SP_TRY(predict(r, SP_BY_UNTRAINED, SP_SELECT_FORECAST, sp_tensor_rows(r->untrained, i0, R), i0,
                   v->c));
    if (l > 0)
        SP_TRY(predict(r, SP_BY_INFINIGEN, SP_SELECT_INFINIGEN, sp_tensor_rows(r->proxy, i0, R), i0,
                       v->c));
    sp_tensor q = sp_tensor_rows(v->q, i0, R);
    SP_TRY(predict(r, SP_BY_FINE, SP_SELECT_TEACHER, q, i0, fine));
    // The original's importance; its lists are those that drove the run.
    sp_importance_args ia = sp_teacher_importance(p->desc, p->grid, SP_ALIGN_MAX, n_d);
    sp_tensor rows = sp_tensor_cols(sp_tensor_rows(r->scores, 0, R), 0, hk * n_d);
    SP_TRY(sp_importance(&ia, q, i0, v->c, rows));
    SP_TRY(sp_download(rows, r->importance));
    for (int64_t row = 0; row < R; row++)
        for (int64_t h = 0; h < hk; h++) {
            const int32_t *list[SP_PREDICTORS] = {NULL};
            int64_t at = (row * hk + h) * k, i = i0 + row;
            for (int by = 0; by < SP_PREDICTORS; by++)
                if (r->list[by]) list[by] = r->list[by] + at;
            if (l == 0) list[SP_BY_INFINIGEN] = NULL;
            list[SP_BY_STALE] = i > 0 ? r->original + ((i - 1) * hk + h) * k : NULL;
            score_row(r, l, h, i, r->importance + (row * hk + h) * n_d, n_d, list);
        }
    return SP_OK;
}

static sp_status on_layer(void *user, const sp_engine_layer *v) {
    recall_probe *r = user;
    const sp_pass *p = r->p;
    if (v->layer == 0) SP_TRY(make_scorers(r, 0, v));
    sp_tensor fine = sp_tensor_rows(r->fine, 0, sp_windows(p->fine, r->T));
    SP_TRY(sp_compress_keys(v->k, p->fine, 0, fine));
    SP_TRY(sp_download(v->chosen, r->original));
    for (sp_sample at = {0}; sp_next_sample(r->T, p->positions, r->tile, &at);)
        SP_TRY(tile(r, v, fine, at.row0, at.n));
    if (v->layer + 1 < p->desc->layers) SP_TRY(make_scorers(r, v->layer + 1, v));
    return SP_OK;
}

// ---- one sequence -------------------------------------------------------------------------------

static void probe_free(recall_probe *r) {
    sp_tensor *const t[] = {&r->forecast, &r->untrained, &r->proxy,
                            &r->fine,     &r->scores,    &r->lists};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) sp_tensor_free(t[i]);
    for (int by = 0; by < SP_PREDICTORS; by++) free(r->list[by]);
    free(r->importance);
    free(r->original);
    free(r->mass);
    free(r->chosen);
}

static sp_status probe_alloc(recall_probe *r) {
    const sp_pass *p = r->p;
    const sp_heads *h = &p->desc->heads;
    sp_backend *be = p->model->backend;
    sp_dtype t = sp_backend_storage(be);
    int64_t kv = h->kv_heads * h->head_dim, list = h->kv_heads * p->shortlist.topk;
    int64_t nb = r->T / p->selection.block + 1;
    SP_TRY(sp_tensor_alloc(be, t, r->T, kv, "Forecasts", &r->forecast));
    SP_TRY(sp_tensor_alloc(be, t, r->T, kv, "untrained Forecasts", &r->untrained));
    SP_TRY(sp_tensor_alloc(be, t, r->T, h->q_heads * h->head_dim, "proxy queries", &r->proxy));
    SP_TRY(sp_tensor_alloc(be, t, sp_windows(p->fine, r->T), kv, "fine keys", &r->fine));
    SP_TRY(sp_tensor_alloc(be, SP_F32, r->tile, h->kv_heads * r->windows, "window scores",
                           &r->scores));
    SP_TRY(sp_tensor_alloc(be, SP_I32, r->tile, list, "block lists", &r->lists));
    SP_TRY(sp_alloc(&r->importance, r->tile * h->kv_heads * r->windows, sizeof *r->importance,
                    "importance"));
    SP_TRY(sp_alloc(&r->original, r->T * list, sizeof *r->original, "block lists"));
    for (int by = 0; by < SP_PREDICTORS; by++)
        if (by != SP_BY_STALE)
            SP_TRY(sp_alloc(&r->list[by], r->tile * list, sizeof **r->list, "block lists"));
    SP_TRY(sp_alloc(&r->mass, nb, sizeof *r->mass, "block mass"));
    return sp_alloc(&r->chosen, nb, sizeof *r->chosen, "chosen blocks");
}

sp_status sp_recall_alloc(const sp_model_desc *d, int64_t T, sp_recall *out) {
    *out = (sp_recall){.layers = d->layers, .heads = d->heads.kv_heads, .T = T};
    return sp_alloc(&out->cell, out->layers * out->heads, sizeof *out->cell, "recall sums");
}

void sp_recall_free(sp_recall *r) {
    free(r->cell);
    *r = (sp_recall){0};
}

sp_status sp_recall_run(const sp_pass *p, sp_engine *e, const int32_t *tokens, int64_t T,
                        sp_recall *out) {
    recall_probe r = {.p = p, .out = out, .T = T, .windows = sp_windows(p->grid, T)};
    r.tile = sp_selection_tile(p->model->backend, p->desc, T);
    sp_status st = SP_OK;
    SP_GO(probe_alloc(&r));
    SP_GO(sp_engine_start(
        e, &(sp_engine_run){.selector = SP_SELECT_ORIGINAL, .probe = on_layer, .user = &r}));
    SP_GO(sp_engine_append(e, tokens, T, T));
done:
    probe_free(&r);
    return st;
}
