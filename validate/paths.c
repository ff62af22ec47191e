// Group P: the same thing computed two ways must be the same thing (inference.md 5.4).
//
// P1 selection against a scalar reference, P5 compressed keys grown step by step against all at
// once, P6 decode against prefill, P7 the premise of the lookahead (2.4). P2 to P4 concern offload
// and prefetch and belong to the GPU engine.
//
// Legend: T tokens, D decoded tokens, V vocabulary, Hkv KV heads, d head size, k list length.
#include "common/util.h"
#include "validate/pass.h"
#include "validate/stats.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- P7 -----------------------------------------------------------------------------------------

sp_status sp_check_lookahead(sp_pass *p) {
    const sp_sparse_config *s = &p->desc->sparse;
    sp_check c = sp_check_blank("P7");
    c.value = (double)(p->selection.local_blocks * p->selection.block);
    c.threshold = (double)(s->kernel_size - s->kernel_stride);
    c.n = 1;
    if (c.value < c.threshold) {
        c.outcome = SP_FAIL;
        c.reason = "a block that competes can still be scored by a window that is not complete";
    }
    return sp_report_add(p->report, &c);
}

// ---- P1: selection ------------------------------------------------------------------------------

typedef struct selection_probe {
    const sp_pass *p;
    int64_t stride; // every stride-th row is checked
    int64_t rows, swaps, unexplained;
    int64_t first[3];   // layer, head, position of the first unexplained row
    float *f, *c, *cis; // host copies; cis [Hkv][T] of a model that has it
    int32_t *lists;
    double *score, *bound; // [nb]
    bool *want;            // [nb]
} selection_probe;

// Block scores of one row in double, with the fp32 error bound of each: 2 d eps sum |f_i c_i|.
static void reference_scores(const sp_pass *p, const float *f, const float *c, int64_t head,
                             int64_t position, int64_t n_d, double *score, double *bound) {
    const sp_selection *s = &p->selection;
    int64_t d = p->desc->heads.head_dim, width = p->desc->heads.kv_heads * d;
    int64_t per_block = s->block / p->grid.stride, qb = position / s->block;
    for (int64_t b = 0; b <= qb; b++) {
        score[b] = -INFINITY;
        bound[b] = 0;
        if (b < s->init_blocks || b + s->local_blocks >= qb) {
            score[b] = INFINITY;
            continue;
        }
        for (int64_t j = b * per_block - 1; j < (b + 1) * per_block; j++) {
            if (j < 0 || j >= n_d || j * p->grid.stride + p->grid.kernel - 1 > position) continue;
            double dot = 0, size = 0;
            for (int64_t i = 0; i < d; i++) {
                double x = (double)f[i] * (double)c[j * width + head * d + i];
                dot += x;
                size += fabs(x);
            }
            if (dot > score[b]) score[b] = dot;
            double e = 2 * (double)d * FLT_EPSILON * size;
            if (e > bound[b]) bound[b] = e;
        }
    }
}

// Marks the min(k, qb+1) best blocks, the lower index first among equals.
static void reference_choice(const double *score, int64_t n, int64_t k, bool *want) {
    for (int64_t b = 0; b < n; b++) want[b] = false;
    for (int64_t round = 0; round < k && round < n; round++) {
        int64_t best = -1;
        for (int64_t b = 0; b < n; b++)
            if (!want[b] && (best < 0 || score[b] > score[best])) best = b;
        want[best] = true;
    }
}

// Every missing block must be within the error bound of every block that came instead.
static void compare_row(selection_probe *s, const int32_t *list, int64_t k, int64_t n,
                        const int64_t where[3]) {
    bool ok = true, swapped = false;
    int64_t have = 0, wanted = 0;
    for (int64_t e = 0; e < k; e++) have += list[e] >= 0;
    for (int64_t b = 0; b < n; b++) wanted += s->want[b];
    if (have != wanted) ok = false;
    for (int64_t e = 0; e < k && ok; e++) {
        if (list[e] < 0) continue;
        if (list[e] >= n || (e > 0 && list[e] <= list[e - 1])) ok = false;
        if (!ok || s->want[list[e]]) continue;
        swapped = true;
        for (int64_t b = 0; b < n; b++) {
            bool missing = s->want[b];
            for (int64_t o = 0; o < k && missing; o++) missing = list[o] != b;
            if (!missing) continue;
            double gap = s->score[b] - s->score[list[e]];
            if (!(gap <= fmax(s->bound[b], s->bound[list[e]]))) ok = false;
        }
    }
    s->rows++;
    s->swaps += ok && swapped;
    if (!ok && s->unexplained++ == 0) memcpy(s->first, where, sizeof s->first);
}

// Scores of the second stage (training.md 5.4): the importance of the keys in double, +inf for what
// the query chose; fp32 sums of `kernel` terms.
static void reference_importance(const sp_pass *p, const float *cis, const int32_t *chosen,
                                 int64_t n, int64_t n_d, double *score, double *bound) {
    int64_t per_block = p->selection.block / p->grid.stride;
    for (int64_t b = 0; b < n; b++) {
        score[b] = -INFINITY;
        for (int64_t j = b * per_block - 1; j < (b + 1) * per_block; j++) {
            if (j < 0 || j >= n_d) continue;
            double sum = 0;
            for (int64_t t = 0; t < p->grid.kernel; t++)
                sum += (double)cis[j * p->grid.stride + t] / (double)p->grid.kernel;
            if (sum > score[b]) score[b] = sum;
        }
        bound[b] = (double)p->grid.kernel * FLT_EPSILON * fabs(score[b]);
    }
    for (int64_t e = 0; e < p->shortlist.topk; e++)
        if (chosen[e] >= 0 && chosen[e] < n) score[chosen[e]] = INFINITY;
}

// What the query chose, then, in a model whose keys have an importance, what fills the lists.
static sp_status selection_on_layer(void *user, const sp_engine_layer *v) {
    selection_probe *s = user;
    const sp_pass *p = s->p;
    int64_t hk = p->desc->heads.kv_heads, d = p->desc->heads.head_dim;
    int64_t k1 = p->shortlist.topk, k = p->selection.topk;
    int32_t *filled = s->lists + v->n * hk * k1;
    SP_TRY(sp_download(v->f, s->f));
    if (v->c.rows > 0) SP_TRY(sp_download(v->c, s->c));
    SP_TRY(sp_download(v->chosen, s->lists));
    if (v->cis.data) {
        SP_TRY(sp_download(v->cis, s->cis));
        SP_TRY(sp_download(v->lists, filled));
    }
    for (int64_t r = (v->layer * 7) % s->stride; r < v->n; r += s->stride)
        for (int64_t h = 0; h < hk; h++) {
            int64_t i = v->pos0 + r, n = i / p->selection.block + 1;
            const int64_t where[3] = {v->layer, h, i};
            const int32_t *chosen = s->lists + (r * hk + h) * k1;
            reference_scores(p, s->f + (r * hk + h) * d, s->c, h, i, v->c.rows, s->score, s->bound);
            reference_choice(s->score, n, k1, s->want);
            compare_row(s, chosen, k1, n, where);
            if (!v->cis.data) continue;
            reference_importance(p, s->cis + h * v->cis.cols, chosen, n, v->c.rows, s->score,
                                 s->bound);
            reference_choice(s->score, n, k, s->want);
            compare_row(s, filled + (r * hk + h) * k, k, n, where);
        }
    return SP_OK;
}

static sp_status check_selection(sp_pass *p, sp_engine *e, const int32_t *tokens, int64_t T) {
    enum { MIN_ROWS = 4096 };
    int64_t hk = p->desc->heads.kv_heads, d = p->desc->heads.head_dim, L = p->desc->layers;
    int64_t nb = T / p->selection.block + 1, n_d = sp_windows(p->grid, T);
    selection_probe s = {.p = p, .stride = L * hk * T / (2 * MIN_ROWS)};
    if (s.stride < 1) s.stride = 1;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&s.f, T * hk * d, sizeof *s.f, "Forecasts"));
    SP_GO(sp_alloc(&s.c, n_d * hk * d, sizeof *s.c, "compressed keys"));
    SP_GO(sp_alloc(&s.cis, hk * T, sizeof *s.cis, "importance of the keys"));
    SP_GO(sp_alloc(&s.lists, T * hk * (p->shortlist.topk + p->selection.topk), sizeof *s.lists,
                   "block lists"));
    SP_GO(sp_alloc(&s.score, nb, sizeof *s.score, "scores"));
    SP_GO(sp_alloc(&s.bound, nb, sizeof *s.bound, "bounds"));
    SP_GO(sp_alloc(&s.want, nb, sizeof *s.want, "chosen blocks"));
    SP_GO(sp_engine_start(e, &(sp_engine_run){.selector = SP_SELECT_FORECAST,
                                              .forecast = p->trained,
                                              .probe = selection_on_layer,
                                              .user = &s}));
    SP_GO(sp_engine_append(e, tokens, T, 1));
    sp_check c = sp_check_blank("P1");
    char *reason = NULL;
    c.value = (double)s.unexplained;
    c.threshold = 0;
    c.n = s.rows;
    c.detail =
        json_pack("{s:I, s:I}", "swaps_within_bound", (json_int_t)s.swaps, "tokens", (json_int_t)T);
    if (s.unexplained > 0) {
        reason = sp_format("first at layer %lld, head %lld, position %lld", (long long)s.first[0],
                           (long long)s.first[1], (long long)s.first[2]);
        c.outcome = SP_FAIL;
    } else if (s.rows < MIN_ROWS) {
        reason = sp_format("only %lld rows at %lld tokens", (long long)s.rows, (long long)T);
    }
    c.reason = reason;
    st = sp_report_add(p->report, &c);
    free(reason);
done:
    free(s.f);
    free(s.c);
    free(s.cis);
    free(s.lists);
    free(s.score);
    free(s.bound);
    free(s.want);
    return st;
}

// ---- P5: compressed keys ------------------------------------------------------------------------

// `e` has grown its compressed keys over a prefill and many decode steps.
static sp_status check_compressed(sp_pass *p, const sp_engine *e) {
    int64_t width = p->desc->heads.kv_heads * p->desc->heads.head_dim;
    int64_t n = sp_windows(p->grid, sp_engine_tokens(e)), differ = 0;
    sp_backend *be = p->model->backend;
    sp_tensor batch = {0};
    float *a = NULL, *b = NULL;
    sp_status st = SP_OK;
    if (n == 0) return sp_report_skip(p->report, "P5", "no complete window at this length");
    SP_GO(sp_tensor_alloc(be, sp_backend_storage(be), n, width, "compressed keys", &batch));
    SP_GO(sp_alloc(&a, n * width, sizeof *a, "compressed keys"));
    SP_GO(sp_alloc(&b, n * width, sizeof *b, "compressed keys"));
    for (int64_t l = 0; l < p->desc->layers; l++) {
        SP_GO(sp_compress_keys(sp_engine_keys(e, l), p->grid, 0, batch));
        SP_GO(sp_download(batch, a));
        SP_GO(sp_download(sp_engine_compressed(e, l), b));
        for (int64_t i = 0; i < n * width; i++) differ += memcmp(&a[i], &b[i], sizeof *a) != 0;
    }
    differ += p->decode_unequal;
    sp_check c = sp_check_blank("P5");
    c.value = (double)differ;
    c.threshold = 0;
    c.n = n * width * p->desc->layers;
    if (differ) {
        c.outcome = SP_FAIL;
        c.reason = "keys compressed step by step differ from keys compressed all at once";
    }
    st = sp_report_add(p->report, &c);
done:
    sp_tensor_free(&batch);
    free(a);
    free(b);
    return st;
}

// ---- P6: decode and prefill ---------------------------------------------------------------------

typedef struct divergence {
    double kl;           // mean
    double max_logit;    // largest difference of a logit
    int64_t agree, rows; // top-1, over rows whose margin exceeds `min_margin`
} divergence;

static divergence compare_logits(const float *a, const float *b, int64_t rows, int64_t V,
                                 double min_margin) {
    divergence x = {0};
    for (int64_t r = 0; r < rows; r++) {
        const float *p = a + r * V, *q = b + r * V;
        sp_logit_row lp = sp_logits_look(p, V), lq = sp_logits_look(q, V);
        x.kl += sp_logits_kl(p, lp, q, lq, V) / (double)rows;
        for (int64_t i = 0; i < V; i++) {
            double d = fabs((double)p[i] - (double)q[i]);
            if (!(d <= x.max_logit)) x.max_logit = d; // NaN sticks
        }
        if (lp.margin <= min_margin) continue;
        x.rows++;
        x.agree += lp.best == lq.best;
    }
    return x;
}

// A prefill of T tokens in appends of `chunk`, then `D` decode steps if `decode`; the last D rows'
// logits. Not decoding, the last append holds at least D tokens.
static sp_status run_tiled(sp_engine *e, const sp_engine_run *run, const int32_t *tokens, int64_t T,
                           int64_t chunk, int64_t D, bool decode, int64_t V, float *logits) {
    SP_TRY(sp_engine_start(e, run));
    int64_t at = 0;
    for (; at + chunk <= T - D; at += chunk) SP_TRY(sp_engine_append(e, tokens + at, chunk, 1));
    if (!decode) {
        SP_TRY(sp_engine_append(e, tokens + at, T - at, D));
        return sp_engine_logits(e, 0, D, logits);
    }
    if (at < T - D) SP_TRY(sp_engine_append(e, tokens + at, T - D - at, 1));
    for (int64_t i = 0; i < D; i++) {
        SP_TRY(sp_engine_append(e, tokens + T - D + i, 1, 1));
        SP_TRY(sp_engine_logits(e, 0, 1, logits + i * V));
    }
    return SP_OK;
}

static sp_status check_decode(sp_pass *p, sp_engine *e, const int32_t *tokens, int64_t T) {
    int64_t V = p->desc->vocab, D = T / 2 < 64 ? T / 2 : 64;
    sp_engine_run run = {.selector = SP_SELECT_FORECAST, .forecast = p->trained};
    float *whole = NULL, *other = NULL;
    char *reason = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&whole, D * V, sizeof *whole, "logits"));
    SP_GO(sp_alloc(&other, D * V, sizeof *other, "logits"));
    SP_GO(run_tiled(e, &run, tokens, T, T, D, false, V, whole));
    // An awkward tiling: neither block nor stride divides it.
    int64_t odd = p->selection.block * 3 + 5;
    SP_GO(run_tiled(e, &run, tokens, T, odd < T ? odd : T, D, false, V, other));
    divergence floor = compare_logits(whole, other, D, V, 0);
    SP_GO(run_tiled(e, &run, tokens, T, T - D, D, true, V, other));
    divergence x = compare_logits(whole, other, D, V, floor.max_logit);
    p->noise_kl = floor.kl;
    sp_check c = sp_check_blank("P6");
    double share = x.rows ? (double)x.agree / (double)x.rows : NAN;
    c.value = x.kl;
    c.threshold = fmax(1e-3, 3 * floor.kl);
    c.noise_floor = floor.kl;
    c.n = D;
    c.detail =
        json_pack("{s:o, s:o, s:o, s:I}", "top1_agree", sp_json_number(share),
                  "max_logit_difference", sp_json_number(x.max_logit), "max_logit_difference_floor",
                  sp_json_number(floor.max_logit), "tokens", (json_int_t)T);
    if (!(x.kl <= c.threshold) || share < 0.99) {
        c.outcome = SP_FAIL;
        reason = sp_format("decode and prefill of the same %lld tokens: KL %.3g nat, largest token "
                           "equal in %lld of %lld rows",
                           (long long)T, x.kl, (long long)x.agree, (long long)x.rows);
    }
    c.reason = reason;
    SP_GO(sp_report_add(p->report, &c));
    SP_GO(check_compressed(p, e));
done:
    free(reason);
    free(whole);
    free(other);
    return st;
}

sp_status sp_check_paths(sp_pass *p) {
    int64_t T = p->lengths[0];
    sp_engine *e = NULL;
    int32_t *tokens = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&tokens, T, sizeof *tokens, "tokens"));
    SP_GO(sp_pass_any_text(p, T, tokens));
    SP_GO(sp_engine_open(&(sp_engine_args){.model = p->model, .max_tokens = T}, &e));
    sp_meter_phase(&p->meter, "execution paths");
    SP_GO(check_selection(p, e, tokens, T));
    sp_meter_add(&p->meter, sp_run_cost(p, SP_SELECT_FORECAST, T));
    SP_GO(check_decode(p, e, tokens, T));
    sp_meter_add(&p->meter, 3 * sp_run_cost(p, SP_SELECT_FORECAST, T));
done:
    sp_engine_close(e);
    free(tokens);
    return st;
}
