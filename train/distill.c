// One training micro-batch, in the order of training.md 13.
//
// Each layer: attention input, queries and keys, compressed keys on both grids; then, one tile of
// query rows at a time, teacher importance, block lists and KL with its gradient by the Forecast;
// then the gradient of the one matrix this layer's loss reaches; then attention over the teacher's
// lists and the rest of the layer. The last layer ends with its gradient.
#include "train/distill.h"
#include "common/util.h"
#include "model/selection.h"

#include <stdio.h>
#include <stdlib.h>

struct sp_distill {
    const sp_model *m;
    sp_distill_args a;
    int64_t max_tokens, tile;
    sp_workspace w;
    sp_rope_table rope;      // for sequences of up to original_max_positions, or of any length
    sp_rope_table rope_long; // for longer ones; unused if max_tokens is not longer
    sp_tensor x_before;      // attention input of the layer before [max_tokens, D]
    sp_tensor f, df;         // Forecast that scores the layer, and its gradient [max_tokens, Hkv*d]
    sp_tensor k_deployed;    // compressed keys [n_d, Hkv*d]
    sp_tensor k_teacher;     // [max_tokens, Hkv*d]: room for every grid of the schedule
    sp_tensor importance;    // F32 [tile, Hkv*n_d]
    sp_tensor lists;         // I32 [max_tokens, Hkv*k]
    sp_tensor loss_lists;    // I32 [tile, Hkv*k1]; with desc->cis, else those are `lists`
    sp_cis_ranking rank;     // of the present layer
    sp_tensor row_loss;      // F32 [L*max_tokens, Hkv], summed after the last layer

    // Made by the first sp_distill_recall.
    sp_tensor scores;                      // F32 [tile, Hkv*n_d]
    sp_tensor teacher_lists, chosen_lists; // I32 [tile, Hkv*k1]
    float *host_importance;
    int32_t *host_teacher, *host_chosen;
};

// ---- memory -------------------------------------------------------------------------------------

enum { STEP_TENSORS = 11 };

typedef struct step_part {
    sp_tensor *tensor;
    sp_dtype dtype;
    int64_t rows, cols;
    const char *what;
} step_part;

// One list for allocating and predicting memory.
static void step_parts(const sp_model_desc *desc, sp_dtype storage, sp_distill *d,
                       step_part part[STEP_TENSORS]) {
    int64_t T = d->max_tokens, heads = desc->heads.kv_heads;
    int64_t kv_cols = heads * desc->heads.head_dim;
    int64_t n_d = sp_windows(sp_deployed_grid(desc), T);
    if (n_d < 1) n_d = 1; // sequences below one window are skipped, but must not fail
    int64_t k = sp_model_selection(desc, false).topk, k1 = sp_model_shortlist(desc, false).topk;
    int64_t nb = (T + desc->sparse.block_size - 1) / desc->sparse.block_size;
    const step_part list[STEP_TENSORS] = {
        {&d->x_before, storage, T, desc->hidden, "attention input of the layer before"},
        {&d->f, storage, T, kv_cols, "Forecasts"},
        {&d->df, storage, T, kv_cols, "gradient of the Forecasts"},
        {&d->k_deployed, storage, n_d, kv_cols, "compressed keys"},
        {&d->k_teacher, storage, T, kv_cols, "compressed keys of the teacher grid"},
        {&d->importance, SP_F32, d->tile, heads * n_d, "teacher importance of a query tile"},
        {&d->lists, SP_I32, T, heads * k, "block lists"},
        {&d->loss_lists, SP_I32, desc->cis ? d->tile : 0, heads * k1, "lists of the loss"},
        {&d->rank.scores, SP_F32, desc->cis ? heads : 0, nb, "importance of the blocks"},
        {&d->rank.order, SP_I32, desc->cis ? heads : 0, nb, "order of the blocks"},
        {&d->row_loss, SP_F32, desc->layers * T, heads, "row losses"},
    };
    for (int i = 0; i < STEP_TENSORS; i++) part[i] = list[i];
}

sp_status sp_distill_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                          sp_distill **out) {
    const sp_model_desc *desc = m->desc;
    SP_TRY(sp_check_grids(desc, a->teacher));
    sp_distill *d;
    SP_TRY(sp_alloc(&d, 1, sizeof *d, "training step"));
    d->m = m;
    d->a = *a;
    d->max_tokens = max_tokens;
    d->tile = a->tile > 0 ? a->tile : sp_selection_tile(m->backend, desc, max_tokens);
    if (d->tile > max_tokens) d->tile = max_tokens;
    sp_status st = SP_OK;
    step_part part[STEP_TENSORS];
    step_parts(desc, sp_backend_storage(m->backend), d, part);
    for (int i = 0; i < STEP_TENSORS; i++)
        if (part[i].rows)
            SP_GO(sp_tensor_alloc(m->backend, part[i].dtype, part[i].rows, part[i].cols,
                                  part[i].what, part[i].tensor));
    SP_GO(sp_workspace_make(m, max_tokens, &d->w));
    bool two = sp_rope_needs_two(desc, max_tokens);
    SP_GO(sp_rope_table_make(m->backend, desc, two ? desc->original_max_positions : max_tokens,
                             a->allow_longer, &d->rope));
    if (two)
        SP_GO(sp_rope_table_make(m->backend, desc, max_tokens, a->allow_longer, &d->rope_long));
    *out = d;
    return SP_OK;
done:
    sp_distill_close(d);
    return st;
}

void sp_distill_close(sp_distill *d) {
    if (!d) return;
    sp_tensor *const tensor[] = {
        &d->x_before,      &d->f,           &d->df,         &d->k_deployed, &d->k_teacher,
        &d->importance,    &d->lists,       &d->loss_lists, &d->row_loss,   &d->scores,
        &d->teacher_lists, &d->chosen_lists};
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) sp_tensor_free(tensor[i]);
    sp_cis_ranking_free(&d->rank);
    free(d->host_importance);
    free(d->host_teacher);
    free(d->host_chosen);
    sp_rope_table_free(&d->rope);
    sp_rope_table_free(&d->rope_long);
    sp_workspace_free(&d->w);
    free(d);
}

sp_status sp_distill_set_teacher(sp_distill *d, sp_grid teacher) {
    SP_TRY(sp_check_grids(d->m->desc, teacher));
    d->a.teacher = teacher;
    return SP_OK;
}

int64_t sp_distill_bytes(const sp_backend *be, const sp_model_desc *desc, int64_t max_tokens) {
    sp_dtype storage = sp_backend_storage(be);
    sp_distill d = {.max_tokens = max_tokens, .tile = sp_selection_tile(be, desc, max_tokens)};
    step_part part[STEP_TENSORS];
    step_parts(desc, storage, &d, part);
    int64_t bytes = sp_workspace_bytes(desc, max_tokens, storage);
    for (int i = 0; i < STEP_TENSORS; i++)
        bytes += part[i].rows * part[i].cols * sp_dtype_size(part[i].dtype);
    int64_t positions = max_tokens;
    if (sp_rope_needs_two(desc, max_tokens)) positions += desc->original_max_positions;
    return bytes + positions * desc->heads.head_dim * (int64_t)sizeof(float); // cos and sin
}

int64_t sp_distill_min_tokens(const sp_model_desc *desc) {
    return sp_deployed_grid(desc).kernel;
}

// ---- one pass over a sequence -------------------------------------------------------------------

typedef struct pass {
    sp_distill *d;
    const sp_forecast_device *w;
    int64_t T, n_d, nb;
    sp_selection selection; // of the trajectory
    sp_selection shortlist; // of the loss
    const sp_rope_table *rope;
    sp_importance_args importance;

    // training
    double weight; // of a row in the objective
    sp_tensor *grad;
    sp_distill_probe *probe;
    sp_tensor student_p, dz; // F32 [tile, Hkv*n_d], made only for a probe that wants them

    // evaluation: sums of the present layer
    bool recall;
    double *recall_sum, *mass_sum, *rows;
} pass;

static void pass_init(pass *p, sp_distill *d, const sp_forecast_device *w, int64_t T) {
    const sp_model_desc *desc = d->m->desc;
    *p = (pass){.d = d, .w = w, .T = T};
    p->selection = sp_model_selection(desc, d->a.mask_future);
    p->shortlist = sp_model_shortlist(desc, d->a.mask_future);
    p->n_d = sp_windows(sp_deployed_grid(desc), T);
    p->nb = (T + p->selection.block - 1) / p->selection.block;
    p->rope = d->rope_long.cos.data && T > desc->original_max_positions ? &d->rope_long : &d->rope;
    p->importance = sp_teacher_importance(desc, d->a.teacher, d->a.align, p->n_d);
}

static sp_tensor tile_view(const pass *p, sp_tensor t, int64_t R) {
    return sp_tensor_cols(sp_tensor_rows(t, 0, R), 0, p->d->m->desc->heads.kv_heads * p->n_d);
}

static sp_status probe_tile(const pass *p, int64_t i0, int64_t R, sp_tensor importance,
                            sp_tensor loss_lists, sp_tensor lists) {
    const sp_distill_probe *probe = p->probe;
    if (probe->importance)
        SP_TRY(sp_download(importance, probe->importance + i0 * importance.cols));
    if (probe->loss_lists)
        SP_TRY(sp_download(loss_lists, probe->loss_lists + i0 * loss_lists.cols));
    if (probe->lists) SP_TRY(sp_download(lists, probe->lists + i0 * lists.cols));
    if (probe->forecast)
        SP_TRY(sp_download(sp_tensor_rows(p->d->f, i0, R), probe->forecast + i0 * p->d->f.cols));
    return SP_OK;
}

static sp_status kl_tile(const pass *p, int64_t layer, int64_t i0, int64_t R, sp_tensor importance,
                         sp_tensor lists) {
    sp_distill *d = p->d;
    const sp_model_desc *desc = d->m->desc;
    bool probed = p->probe && p->probe->layer == layer;
    sp_kl_args kl = {.heads = desc->heads,
                     .deployed = sp_deployed_grid(desc),
                     .selection = p->shortlist,
                     .gradient = d->a.gradient,
                     .weight = p->weight};
    sp_tensor row_loss = sp_tensor_rows(d->row_loss, layer * d->max_tokens + i0, R);
    sp_tensor student_p = {0}, dz = {0};
    if (probed && p->student_p.data) student_p = tile_view(p, p->student_p, R);
    if (probed && p->dz.data) dz = tile_view(p, p->dz, R);
    SP_TRY(sp_kl(&kl, sp_tensor_rows(d->f, i0, R), i0, sp_tensor_rows(d->k_deployed, 0, p->n_d),
                 importance, lists, row_loss, sp_tensor_rows(d->df, i0, R),
                 student_p.data ? &student_p : NULL, dz.data ? &dz : NULL));
    if (!probed) return SP_OK;
    if (student_p.data) SP_TRY(sp_download(student_p, p->probe->student_p + i0 * student_p.cols));
    if (dz.data) SP_TRY(sp_download(dz, p->probe->dz + i0 * dz.cols));
    if (p->probe->row_loss) SP_TRY(sp_download(row_loss, p->probe->row_loss + i0 * row_loss.cols));
    return SP_OK;
}

// ---- evaluation ---------------------------------------------------------------------------------

static bool is_forced(const sp_selection *s, int64_t b, int64_t qb) {
    return b < s->init_blocks || (b >= qb - s->local_blocks && b <= qb);
}

// Blocks of an ascending list that were chosen, not forced; returns their number.
static int64_t chosen_blocks(const sp_selection *s, const int32_t *list, int64_t qb, int32_t *out) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->topk && list[i] >= 0; i++)
        if (!is_forced(s, list[i], qb)) out[n++] = list[i];
    return n;
}

static double block_mass(const float *row, int64_t n_d, int64_t cells, const int32_t *blocks,
                         int64_t n) {
    double mass = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = blocks[i] * cells; j < (blocks[i] + 1) * cells && j < n_d; j++)
            mass += row[j];
    return mass;
}

static int64_t common_blocks(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    int64_t n = 0;
    for (int64_t i = 0, j = 0; i < n_a && j < n_b;) {
        if (a[i] == b[j]) n++;
        if (a[i] <= b[j])
            i++;
        else
            j++;
    }
    return n;
}

// Adds one (row, head) to the sums. The lists are overwritten by their chosen blocks.
static void add_recall(pass *p, int64_t qb, const float *importance, int32_t *teacher,
                       int32_t *forecast) {
    const sp_selection *s = &p->shortlist;
    int64_t cells = s->block / p->importance.deployed.stride;
    int64_t n_teacher = chosen_blocks(s, teacher, qb, teacher);
    int64_t n_forecast = chosen_blocks(s, forecast, qb, forecast);
    if (n_teacher == 0) return; // k leaves nothing to choose
    double own = block_mass(importance, p->n_d, cells, teacher, n_teacher);
    double got = block_mass(importance, p->n_d, cells, forecast, n_forecast);
    *p->recall_sum +=
        (double)common_blocks(teacher, n_teacher, forecast, n_forecast) / (double)n_teacher;
    *p->mass_sum += own > 0 ? got / own : 1;
    *p->rows += 1;
}

// Before the lists are used: shows them and replaces them.
static sp_status probe_lists(const pass *p, int64_t layer, int64_t i0, int64_t R,
                             sp_tensor importance, sp_tensor loss_lists, sp_tensor lists) {
    const sp_distill_probe *probe = p->probe;
    int64_t at = layer * p->T + i0;
    if (!probe) return SP_OK;
    if (probe->layer == layer) SP_TRY(probe_tile(p, i0, R, importance, loss_lists, lists));
    if (probe->fixed_lists) SP_TRY(sp_upload(lists, probe->fixed_lists + at * lists.cols));
    if (probe->fixed_loss_lists)
        SP_TRY(sp_upload(loss_lists, probe->fixed_loss_lists + at * loss_lists.cols));
    return SP_OK;
}

static sp_status recall_tile(pass *p, int64_t i0, int64_t R, sp_tensor importance) {
    sp_distill *d = p->d;
    const sp_model_desc *desc = d->m->desc;
    int64_t heads = desc->heads.kv_heads, k = p->shortlist.topk;
    if ((i0 + R - 1) / p->selection.block + 1 <= k) return SP_OK; // everything visible is listed
    sp_grid deployed = sp_deployed_grid(desc);
    sp_selection masked = sp_model_shortlist(desc, true);
    sp_tensor scores = tile_view(p, d->scores, R);
    sp_tensor teacher = sp_tensor_rows(d->teacher_lists, 0, R);
    sp_tensor chosen = sp_tensor_rows(d->chosen_lists, 0, R);
    SP_TRY(sp_forecast_scores(desc->heads, deployed, SP_SEES_COMPLETE, sp_tensor_rows(d->f, i0, R),
                              i0, sp_tensor_rows(d->k_deployed, 0, p->n_d), scores));
    SP_TRY(sp_select_blocks(&masked, deployed, heads, scores, i0, p->nb, chosen));
    SP_TRY(sp_select_blocks(&masked, deployed, heads, importance, i0, p->nb, teacher));
    SP_TRY(sp_download(importance, d->host_importance));
    SP_TRY(sp_download(teacher, d->host_teacher));
    SP_TRY(sp_download(chosen, d->host_chosen));
    for (int64_t r = 0; r < R; r++) {
        int64_t qb = (i0 + r) / p->selection.block;
        if (qb + 1 <= k) continue;
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = r * heads + h;
            add_recall(p, qb, d->host_importance + at * p->n_d, d->host_teacher + at * k,
                       d->host_chosen + at * k);
        }
    }
    return SP_OK;
}

static sp_status alloc_recall(sp_distill *d) {
    if (d->host_chosen) return SP_OK;
    sp_backend *be = d->m->backend;
    int64_t window = d->importance.cols;
    int64_t list = d->m->desc->heads.kv_heads * sp_model_shortlist(d->m->desc, true).topk;
    if (!d->scores.data)
        SP_TRY(sp_tensor_alloc(be, SP_F32, d->tile, window, "Forecast scores", &d->scores));
    if (!d->teacher_lists.data)
        SP_TRY(sp_tensor_alloc(be, SP_I32, d->tile, list, "teacher lists", &d->teacher_lists));
    if (!d->chosen_lists.data)
        SP_TRY(sp_tensor_alloc(be, SP_I32, d->tile, list, "Forecast lists", &d->chosen_lists));
    if (!d->host_importance)
        SP_TRY(sp_alloc(&d->host_importance, d->tile * window, sizeof(float), "importance rows"));
    if (!d->host_teacher)
        SP_TRY(sp_alloc(&d->host_teacher, d->tile * list, sizeof(int32_t), "teacher lists"));
    return sp_alloc(&d->host_chosen, d->tile * list, sizeof(int32_t), "Forecast lists");
}

// ---- layers -------------------------------------------------------------------------------------

static sp_status pass_tiles(pass *p, int64_t layer) {
    sp_distill *d = p->d;
    const sp_model_desc *desc = d->m->desc;
    sp_grid deployed = sp_deployed_grid(desc), teacher = d->a.teacher;
    bool native = p->importance.visibility == SP_SEES_COMPLETE;
    sp_tensor k = sp_workspace_k(d->m, &d->w, p->T), q = sp_workspace_q(d->m, &d->w, p->T);
    sp_tensor k_deployed = sp_tensor_rows(d->k_deployed, 0, p->n_d);
    sp_tensor k_teacher = k_deployed;
    SP_TRY(sp_compress_keys(k, deployed, 0, k_deployed));
    if (!native) {
        k_teacher = sp_tensor_rows(d->k_teacher, 0, sp_windows(teacher, p->T));
        SP_TRY(sp_compress_keys(k, teacher, 0, k_teacher));
    }
    // Attention's lists go beyond those of the loss; the last layer needs none.
    bool extend = desc->cis && layer + 1 < desc->layers;
    sp_tensor order;
    if (extend) SP_TRY(sp_cis_rank(desc, &d->rank, sp_workspace_cis(d->m, &d->w, p->T), &order));
    for (int64_t i0 = 0; i0 < p->T; i0 += d->tile) {
        int64_t R = p->T - i0 < d->tile ? p->T - i0 : d->tile;
        sp_tensor importance = tile_view(p, d->importance, R);
        sp_tensor lists = sp_tensor_rows(d->lists, i0, R);
        sp_tensor loss_lists = desc->cis ? sp_tensor_rows(d->loss_lists, 0, R) : lists;
        SP_TRY(sp_importance(&p->importance, sp_tensor_rows(q, i0, R), i0, k_teacher, importance));
        SP_TRY(sp_select_blocks(&p->shortlist, deployed, desc->heads.kv_heads, importance, i0,
                                p->nb, loss_lists));
        if (extend)
            SP_TRY(sp_extend_lists(p->selection.block, desc->heads.kv_heads, loss_lists, i0, order,
                                   lists));
        SP_TRY(probe_lists(p, layer, i0, R, importance, loss_lists, lists));
        if (p->recall)
            SP_TRY(recall_tile(p, i0, R, importance));
        else
            SP_TRY(kl_tile(p, layer, i0, R, importance, loss_lists));
    }
    return SP_OK;
}

static sp_status pass_layer(pass *p, int64_t layer) {
    sp_distill *d = p->d;
    const sp_model *m = d->m;
    const sp_heads *heads = &m->desc->heads;
    int64_t T = p->T;
    bool last = layer == m->desc->layers - 1;
    if (layer > 0) { // the tail left the layer's input in place: keep it, write the other
        sp_tensor x = d->w.x;
        d->w.x = d->x_before;
        d->x_before = x;
    }
    sp_backend *be = m->backend;
    sp_phase_begin(be, "norm, qkv, Forecast");
    SP_TRY(sp_forward_qkv(m, &d->w, layer, T, p->rope, 0, !last));
    sp_tensor owner_x = sp_tensor_rows(layer > 0 ? d->x_before : d->w.x, 0, T);
    SP_TRY(sp_forecast_rows(m, p->w->w[layer], owner_x, p->rope, 0, sp_tensor_rows(d->f, 0, T)));
    sp_phase_end(be);
    sp_phase_begin(be, "teacher, lists, loss");
    SP_TRY(pass_tiles(p, layer));
    sp_phase_end(be);
    if (p->grad) {
        sp_phase_begin(be, "gradient of the Forecast");
        sp_tensor df = sp_tensor_rows(d->df, 0, T);
        SP_TRY(sp_rope(df, p->rope->cos, p->rope->sin, 0, heads->head_dim, true));
        SP_TRY(sp_grad_weight(df, owner_x, sp_tensor_rows(*p->grad, layer * df.cols, df.cols)));
        sp_phase_end(be);
    }
    if (last) return SP_OK;
    sp_phase_begin(be, "attention, MLP");
    SP_TRY(sp_sparse_attention(*heads, sp_workspace_q(m, &d->w, T), 0, sp_workspace_k(m, &d->w, T),
                               sp_workspace_v(m, &d->w, T), sp_workspace_cis(m, &d->w, T),
                               sp_tensor_rows(d->lists, 0, T), p->selection.block,
                               sp_tensor_rows(d->w.attn, 0, T)));
    SP_TRY(sp_forward_tail(m, &d->w, layer, T));
    sp_phase_end(be);
    return SP_OK;
}

// A phase that an error leaves open ends with the run.
static sp_status named_layer(pass *p, int64_t layer) {
    char name[32];
    snprintf(name, sizeof name, "layer %lld", (long long)layer);
    sp_phase_begin(p->d->m->backend, name);
    SP_TRY(pass_layer(p, layer));
    sp_phase_end(p->d->m->backend);
    return SP_OK;
}

static sp_status check_weights(const sp_distill *d, const sp_forecast_device *w) {
    if (w->layers == d->m->desc->layers) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "Forecast weights of %lld layers on a model with %lld",
                    (long long)w->layers, (long long)d->m->desc->layers);
}

sp_status sp_distill_step_probed(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                                 int64_t T, double scale, sp_tensor *grad, double *loss,
                                 sp_distill_probe *probe) {
    const sp_model_desc *desc = d->m->desc;
    SP_TRY(check_weights(d, w));
    for (int64_t l = 0; l < desc->layers; l++) loss[l] = 0;
    if (T < sp_distill_min_tokens(desc)) return SP_OK;

    sp_status st = SP_OK;
    double rows = (double)desc->heads.kv_heads * (double)T;
    pass p;
    pass_init(&p, d, w, T);
    p.weight = scale / rows;
    p.grad = grad;
    p.probe = probe;
    if (probe && probe->student_p)
        SP_GO(sp_tensor_alloc(d->m->backend, SP_F32, d->tile, d->importance.cols,
                              "student probabilities", &p.student_p));
    if (probe && probe->dz)
        SP_GO(sp_tensor_alloc(d->m->backend, SP_F32, d->tile, d->importance.cols,
                              "gradient by the logits", &p.dz));
    SP_GO(sp_forward_embed(d->m, &d->w, tokens, T));
    for (int64_t l = 0; l < desc->layers; l++) SP_GO(named_layer(&p, l));
    for (int64_t l = 0; l < desc->layers; l++) {
        SP_GO(sp_sum(sp_tensor_rows(d->row_loss, l * d->max_tokens, T), &loss[l]));
        loss[l] /= rows;
    }
done:
    sp_tensor_free(&p.student_p);
    sp_tensor_free(&p.dz);
    return st;
}

sp_status sp_distill_step(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                          int64_t T, double scale, sp_tensor *grad, double *loss) {
    return sp_distill_step_probed(d, w, tokens, T, scale, grad, loss, NULL);
}

sp_status sp_distill_recall(sp_distill *d, const sp_forecast_device *w, const int32_t *tokens,
                            int64_t T, double *recall_sum, double *mass_sum, double *rows) {
    const sp_model_desc *desc = d->m->desc;
    SP_TRY(check_weights(d, w));
    for (int64_t l = 0; l < desc->layers; l++) recall_sum[l] = mass_sum[l] = rows[l] = 0;
    if (T < sp_distill_min_tokens(desc)) return SP_OK;
    SP_TRY(alloc_recall(d));
    SP_TRY(sp_forward_embed(d->m, &d->w, tokens, T));
    pass p;
    pass_init(&p, d, w, T);
    p.recall = true;
    for (int64_t l = 0; l < desc->layers; l++) {
        p.recall_sum = &recall_sum[l];
        p.mass_sum = &mass_sum[l];
        p.rows = &rows[l];
        SP_TRY(named_layer(&p, l));
    }
    return SP_OK;
}
