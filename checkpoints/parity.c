// parity.safetensors: numbers with which somebody else's implementation of the Forecast selection
// can test itself, from the base model and the exported weights.
//
// One sequence runs through the base model, with the Forecast choosing the blocks (complete
// windows). For two scored layers, the first (its own q_curr_proj) and the last (a q_future_proj),
// the file holds for R rows of the sequence what goes in and what must come out.
//
// Where keys have an importance of their own (NOSA), that of the blocks, shortlists, and the lists
// that follow from both are there too.
//
// Legend: T tokens, R rows, D hidden, Hkv KV heads, d head size, n_d compressed keys, B block size,
// nb blocks, k list length, k1 shortlist length. A "scored layer" l takes its Forecast from its
// holder, layer l-1 (0: 0).
#include "checkpoints/export.h"
#include "checkpoints/internal.h"
#include "common/util.h"
#include "data/corpus.h"
#include "model/safetensors.h"
#include "model/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, LAYERS = 2, RULES = 2, ARRAYS = 2 + LAYERS * (4 + 3 * RULES) };
enum { SEED = 20260604 };

static const sp_visibility rules[RULES] = {SP_SEES_COMPLETE, SP_SEES_START};
static const char *const rule_names[RULES] = {"complete", "start"};

typedef struct layer_record {
    int64_t scored, holder;
    sp_tensor forecast;         // [T, Hkv*d], rotated
    float *input;               // [R, D]
    float *rotated;             // [R, Hkv, d]
    float *keys;                // [n_d, Hkv, d]
    float *scores[RULES];       // [R, Hkv, n_d]
    int32_t *lists[RULES];      // [R, Hkv, k]
    int32_t *shortlists[RULES]; // [R, Hkv, k1], with desc->cis
    float *importance;          // [Hkv, nb], with desc->cis
} layer_record;

typedef struct recorder {
    const sp_model *m;
    const sp_forecast_device *weights;
    const sp_rope_table *rope;
    sp_selection selection, shortlist;
    int64_t T, R, n_d, nb, width; // width = Hkv*d
    int32_t *tokens;
    int32_t positions[MAX_ROWS];
    layer_record layer[LAYERS];
    int n_layers;
    bool done[LAYERS];
} recorder;

static sp_status download_row(sp_tensor t, int64_t row, float *out) {
    return sp_download(sp_tensor_rows(t, row, 1), out);
}

// At the holder: the inputs of the chosen rows, and the Forecasts of all rows.
static sp_status record_input(recorder *r, layer_record *l, const sp_workspace *w) {
    sp_tensor x = sp_tensor_rows(w->x, 0, r->T);
    SP_TRY(sp_tensor_alloc(r->m->backend, sp_backend_storage(r->m->backend), r->T, r->width,
                           "Forecasts", &l->forecast));
    SP_TRY(sp_forecast_rows(r->m, r->weights->w[l->scored], x, r->rope, 0, l->forecast));
    for (int64_t i = 0; i < r->R; i++) {
        SP_TRY(download_row(x, r->positions[i], l->input + i * r->m->desc->hidden));
        SP_TRY(download_row(l->forecast, r->positions[i], l->rotated + i * r->width));
    }
    return SP_OK;
}

// At the scored layer: its compressed keys, and scores and lists of the chosen rows.
static sp_status record_scores(recorder *r, layer_record *l, const sp_workspace *w) {
    const sp_model_desc *d = r->m->desc;
    sp_backend *be = r->m->backend;
    sp_grid grid = sp_deployed_grid(d);
    int64_t kv = d->heads.kv_heads, row_lists = kv * r->selection.topk, row_scores = kv * r->n_d;
    sp_tensor keys = {0}, scores = {0}, chosen = {0}, lists = {0}, order;
    sp_cis_ranking rank = {0};
    int64_t row_short = kv * r->shortlist.topk;
    sp_status st = SP_OK;
    SP_GO(sp_tensor_alloc(be, sp_backend_storage(be), r->n_d, r->width, "compressed keys", &keys));
    SP_GO(sp_tensor_alloc(be, SP_F32, 1, row_scores, "scores", &scores));
    SP_GO(sp_tensor_alloc(be, SP_I32, 1, row_short, "shortlists", &chosen));
    SP_GO(sp_tensor_alloc(be, SP_I32, 1, row_lists, "block lists", &lists));
    SP_GO(sp_cis_ranking_make(be, d, r->T, &rank));
    SP_GO(sp_cis_rank(d, &rank, sp_workspace_cis(r->m, w, r->T), &order));
    if (d->cis) SP_GO(sp_download(rank.scores, l->importance));
    SP_GO(sp_compress_keys(sp_workspace_k(r->m, w, r->T), grid, 0, keys));
    SP_GO(sp_download(keys, l->keys));
    for (int v = 0; v < RULES; v++) {
        for (int64_t i = 0; i < r->R; i++) {
            int64_t at = r->positions[i];
            sp_tensor f = sp_tensor_rows(l->forecast, at, 1);
            SP_GO(sp_forecast_scores(d->heads, grid, rules[v], f, at, keys, scores));
            SP_GO(sp_select_blocks(&r->shortlist, grid, kv, scores, at, r->nb, chosen));
            SP_GO(sp_download(scores, l->scores[v] + i * row_scores));
            if (d->cis) {
                SP_GO(sp_extend_lists(r->selection.block, kv, chosen, at, order, lists));
                SP_GO(sp_download(chosen, l->shortlists[v] + i * row_short));
            }
            SP_GO(sp_download(d->cis ? lists : chosen, l->lists[v] + i * row_lists));
        }
    }
done:
    sp_cis_ranking_free(&rank);
    sp_tensor_free(&chosen);
    sp_tensor_free(&lists);
    sp_tensor_free(&scores);
    sp_tensor_free(&keys);
    return st;
}

static sp_status on_layer(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                          const sp_tensor *lists) {
    (void)T, (void)lists;
    recorder *r = user;
    for (int i = 0; i < r->n_layers; i++) {
        layer_record *l = &r->layer[i];
        if (layer == l->holder) SP_TRY(record_input(r, l, w));
        if (layer != l->scored) continue;
        SP_TRY(record_scores(r, l, w));
        r->done[i] = true;
    }
    return SP_OK;
}

static sp_status make_tokens(const sp_model_desc *d, int64_t T, int32_t *tokens) {
    if (d->vocab == SP_CORPUS_VOCAB) {
        sp_corpus_args a = sp_corpus_defaults(SEED);
        return sp_corpus_sequence(&a, 0, T, tokens);
    }
    uint64_t state = SEED;
    for (int64_t i = 0; i < T; i++)
        tokens[i] = (int32_t)(sp_splitmix64(&state) % (uint64_t)d->vocab);
    return SP_OK;
}

// Long enough that half of the blocks cannot be chosen.
static sp_status set_up(recorder *r, const sp_train_state *s) {
    const sp_model_desc *d = r->m->desc;
    r->selection = sp_model_selection(d, s->mask_future);
    r->shortlist = sp_model_shortlist(d, s->mask_future);
    int64_t T;
    if (!sp_mul(2 * r->selection.topk, r->selection.block, &T) || T > d->max_positions)
        T = d->max_positions;
    r->T = T;
    r->R = T < MAX_ROWS ? T : MAX_ROWS;
    r->n_d = sp_windows(sp_deployed_grid(d), T);
    r->nb = (T + r->selection.block - 1) / r->selection.block;
    r->width = d->heads.kv_heads * d->heads.head_dim;
    if (r->n_d < 1)
        return sp_error(SP_BAD_INPUT, "%s: max_position_embeddings %lld is below one window",
                        d->dir, (long long)d->max_positions);
    SP_TRY(sp_alloc(&r->tokens, T, sizeof *r->tokens, "tokens"));
    SP_TRY(make_tokens(d, T, r->tokens));
    for (int64_t i = 0; i < r->R; i++) // evenly spread, the last one included
        r->positions[i] = (int32_t)(r->R > 1 ? i * (T - 1) / (r->R - 1) : 0);
    r->n_layers = d->layers > 1 ? 2 : 1;
    for (int i = 0; i < r->n_layers; i++) {
        layer_record *l = &r->layer[i];
        l->scored = i == 0 ? 0 : d->layers - 1;
        l->holder = i == 0 ? 0 : d->layers - 2;
        SP_TRY(sp_alloc(&l->input, r->R * d->hidden, sizeof(float), "parity inputs"));
        SP_TRY(sp_alloc(&l->rotated, r->R * r->width, sizeof(float), "parity Forecasts"));
        SP_TRY(sp_alloc(&l->keys, r->n_d * r->width, sizeof(float), "parity keys"));
        for (int v = 0; v < RULES; v++) {
            int64_t heads = r->R * d->heads.kv_heads;
            SP_TRY(sp_alloc(&l->scores[v], heads * r->n_d, sizeof(float), "parity scores"));
            SP_TRY(
                sp_alloc(&l->lists[v], heads * r->selection.topk, sizeof(int32_t), "parity lists"));
            if (d->cis)
                SP_TRY(sp_alloc(&l->shortlists[v], heads * r->shortlist.topk, sizeof(int32_t),
                                "parity shortlists"));
        }
        if (d->cis)
            SP_TRY(sp_alloc(&l->importance, d->heads.kv_heads * r->nb, sizeof(float),
                            "parity importance"));
    }
    return SP_OK;
}

static void clean_up(recorder *r) {
    for (int i = 0; i < LAYERS; i++) {
        layer_record *l = &r->layer[i];
        sp_tensor_free(&l->forecast);
        free(l->input);
        free(l->rotated);
        free(l->keys);
        for (int v = 0; v < RULES; v++) {
            free(l->scores[v]);
            free(l->lists[v]);
            free(l->shortlists[v]);
        }
        free(l->importance);
    }
    free(r->tokens);
}

static sp_status run(recorder *r) {
    const sp_model *m = r->m;
    sp_rope_table rope = {0};
    sp_workspace w = {0};
    sp_status st = SP_OK;
    SP_GO(sp_rope_table_make(m->backend, m->desc, r->T, false, &rope));
    SP_GO(sp_workspace_make(m, r->T, &w));
    r->rope = &rope;
    sp_prefill_args a = {.selector = SP_SELECT_FORECAST,
                         .selection = r->selection,
                         .forecast_sees = SP_SEES_COMPLETE,
                         .forecast = r->weights,
                         .on_layer = on_layer,
                         .user = r};
    SP_GO(sp_prefill(m, &w, &rope, r->tokens, r->T, &a));
    for (int i = 0; i < r->n_layers; i++)
        if (!r->done[i])
            SP_GO(sp_error(SP_ENVIRONMENT, "the base model passed layer %lld by",
                           (long long)r->layer[i].scored));
done:
    sp_workspace_free(&w);
    sp_rope_table_free(&rope);
    return st;
}

// ---- the file -----------------------------------------------------------------------------------

typedef struct array_list {
    sp_st_out array[ARRAYS];
    char name[ARRAYS][64];
    int n;
} array_list;

static sp_st_out *add_array(array_list *a, sp_st_dtype type, const void *data, int dims, int64_t s0,
                            int64_t s1, int64_t s2) {
    sp_st_out *o = &a->array[a->n];
    *o = (sp_st_out){
        .name = a->name[a->n++], .dtype = type, .dims = dims, .shape = {s0, s1, s2}, .data = data};
    return o;
}

static void add_layer(array_list *a, const recorder *r, const layer_record *l) {
    int64_t kv = r->m->desc->heads.kv_heads, d = r->m->desc->heads.head_dim;
    long long id = l->scored;
    snprintf(a->name[a->n], 64, "layer.%lld.input", id);
    add_array(a, SP_ST_F32, l->input, 2, r->R, r->m->desc->hidden, 0);
    snprintf(a->name[a->n], 64, "layer.%lld.forecast", id);
    add_array(a, SP_ST_F32, l->rotated, 3, r->R, kv, d);
    snprintf(a->name[a->n], 64, "layer.%lld.compressed_keys", id);
    add_array(a, SP_ST_F32, l->keys, 3, r->n_d, kv, d);
    for (int v = 0; v < RULES; v++) {
        snprintf(a->name[a->n], 64, "layer.%lld.scores.%s", id, rule_names[v]);
        add_array(a, SP_ST_F32, l->scores[v], 3, r->R, kv, r->n_d);
        snprintf(a->name[a->n], 64, "layer.%lld.blocks.%s", id, rule_names[v]);
        add_array(a, SP_ST_I32, l->lists[v], 3, r->R, kv, r->selection.topk);
        if (!l->shortlists[v]) continue;
        snprintf(a->name[a->n], 64, "layer.%lld.shortlist.%s", id, rule_names[v]);
        add_array(a, SP_ST_I32, l->shortlists[v], 3, r->R, kv, r->shortlist.topk);
    }
    if (!l->importance) return;
    snprintf(a->name[a->n], 64, "layer.%lld.block_importance", id);
    add_array(a, SP_ST_F32, l->importance, 2, kv, r->nb, 0);
}

static json_t *metadata(const recorder *r, const sp_train_state *s) {
    json_t *layers = json_array();
    for (int i = 0; i < r->n_layers; i++) {
        char projection[64];
        sp_forecast_name(r->layer[i].scored, projection);
        json_array_append_new(layers,
                              json_pack("{s:I,s:I,s:s}", "layer", (json_int_t)r->layer[i].scored,
                                        "input_of_layer", (json_int_t)r->layer[i].holder,
                                        "projection", projection));
    }
    json_t *o =
        json_pack("{s:o,s:I,s:I,s:b,s:s}", "layers", layers, "sequence_positions", (json_int_t)r->T,
                  "blocks", (json_int_t)r->nb, "mask_future_blocks", r->selection.mask_future,
                  "hidden_states_selected_by", "forecast, complete windows");
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_t *m = text ? json_pack("{s:s,s:s,s:s,s:s}", "format", "pt", "sparda.parity", text,
                                 "sparda.base_model", s->base_name ? s->base_name : "",
                                 "sparda.base_weights_hash", s->base_weights_sha256)
                     : NULL;
    free(text);
    json_decref(o);
    return m;
}

sp_status sp_write_parity(const char *path, const sp_train_state *s, const sp_forecast *w,
                          const sp_model *m) {
    sp_forecast_device weights = {0};
    recorder r = {.m = m, .weights = &weights};
    json_t *meta = NULL;
    sp_status st = SP_OK;
    SP_GO(set_up(&r, s));
    SP_GO(sp_forecast_upload(m->backend, w, &weights));
    SP_GO(run(&r));
    array_list list = {0};
    snprintf(list.name[list.n], 64, "tokens");
    add_array(&list, SP_ST_I32, r.tokens, 1, r.T, 0, 0);
    snprintf(list.name[list.n], 64, "positions");
    add_array(&list, SP_ST_I32, r.positions, 1, r.R, 0, 0);
    for (int i = 0; i < r.n_layers; i++) add_layer(&list, &r, &r.layer[i]);
    if (!(meta = metadata(&r, s))) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    SP_GO(sp_st_write(path, list.array, list.n, meta));
done:
    json_decref(meta);
    sp_forecast_device_free(&weights);
    clean_up(&r);
    return st;
}
