// Group Q on held-out text: block recall, logits, language-model loss (inference.md 5.4).
//
// Every text row is run four times: dense, original selector (with the recall measurement on its
// hidden states), Forecast, untrained Forecast. The logits of the four runs are compared row by
// row, at all positions or at those of sp_next_sample; they equal decode logits within the noise
// that P6 measures. Only queries with more candidates than blocks to choose count, except for the
// language-model loss, which takes every one of those positions.
//
// Legend: S sequences, L layers, Hkv KV heads, T tokens, V vocabulary.
#include "common/log.h"
#include "common/util.h"
#include "validate/recall.h"
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>

typedef enum quality_run { DENSE, SPARSE, TRAINED, UNTRAINED, RUNS } quality_run;

static const sp_selector run_selector[RUNS] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL,
                                               SP_SELECT_FORECAST, SP_SELECT_FORECAST};

// How far the Forecast stands above chance (recall only) and above an untrained projection, in
// standard errors over the sequences: over all layers and heads, and in the weakest of them.
typedef struct standing {
    double z, z_weakest;
    int64_t layer, head; // of the weakest
} standing;

// Sums over the counted positions of one sequence.
typedef struct kl_sums {
    double trained, dense, untrained;
} kl_sums;

// All of one length.
typedef struct length_result {
    int64_t T, S;
    sp_recall *recall; // [S]
    // Of counted positions, n of them.
    float *kl_trained, *kl_dense, *kl_untrained; // KL(sparse||trained), KL(dense||sparse), ...
    kl_sums *kl;                                 // [S] of the three
    int64_t n, agree;
    int64_t looked; // measured positions, counted or not
    // Of the measured positions but T-1.
    double nll[RUNS];
    double *delta_nll; // trained - sparse, [tokens]
    int64_t tokens;
    // Means over everything.
    sp_recall_cell all; // infinigen: layers >= 1 only, its rows in `infinigen_rows`
    double infinigen_rows, infinigen_mass_rows;
    standing recall_above, mass_above; // of the Forecast above its rivals
} length_result;

static void length_free(length_result *r) {
    for (int64_t s = 0; r->recall && s < r->S; s++) sp_recall_free(&r->recall[s]);
    free(r->recall);
    free(r->kl_trained);
    free(r->kl_dense);
    free(r->kl_untrained);
    free(r->kl);
    free(r->delta_nll);
}

// ---- measuring ----------------------------------------------------------------------------------

// One row of logits of each run, with the token that follows.
typedef struct row_numbers {
    double nll[RUNS], kl_trained, kl_dense, kl_untrained;
    bool agree;
} row_numbers;

static row_numbers look_at_row(const float *const logits[RUNS], int64_t V, int32_t next) {
    row_numbers x;
    sp_logit_row look[RUNS];
    for (int r = 0; r < RUNS; r++) {
        look[r] = sp_logits_look(logits[r], V);
        x.nll[r] = next >= 0 ? look[r].log_sum - (double)logits[r][next] : 0;
    }
    x.kl_trained = sp_logits_kl(logits[SPARSE], look[SPARSE], logits[TRAINED], look[TRAINED], V);
    x.kl_untrained =
        sp_logits_kl(logits[SPARSE], look[SPARSE], logits[UNTRAINED], look[UNTRAINED], V);
    x.kl_dense = sp_logits_kl(logits[DENSE], look[DENSE], logits[SPARSE], look[SPARSE], V);
    x.agree = look[SPARSE].best == look[TRAINED].best;
    return x;
}

typedef struct scratch {
    sp_engine *e[RUNS];
    float *logits[RUNS]; // [ROWS][V]
    row_numbers *row;    // [ROWS]
    int32_t *tokens;
} scratch;
enum { ROWS = 128 };

static void scratch_free(scratch *x) {
    for (int r = 0; r < RUNS; r++) {
        sp_engine_close(x->e[r]);
        free(x->logits[r]);
    }
    free(x->row);
    free(x->tokens);
}

static sp_status compare_runs(const sp_pass *p, scratch *x, length_result *r, kl_sums *kl) {
    int64_t V = p->desc->vocab;
    for (sp_sample at = {0}; sp_next_sample(r->T, p->positions, ROWS, &at);) {
        int64_t r0 = at.row0, n = at.n;
        for (int run = 0; run < RUNS; run++)
            SP_TRY(sp_engine_logits(x->e[run], r0, n, x->logits[run]));
        r->looked += n;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) {
            const float *logits[RUNS];
            for (int run = 0; run < RUNS; run++) logits[run] = x->logits[run] + i * V;
            x->row[i] = look_at_row(logits, V, r0 + i + 1 < r->T ? x->tokens[r0 + i + 1] : -1);
        }
        for (int64_t i = 0; i < n; i++) {
            const row_numbers *w = &x->row[i];
            if (r0 + i + 1 < r->T) {
                for (int run = 0; run < RUNS; run++) r->nll[run] += w->nll[run];
                r->delta_nll[r->tokens++] = w->nll[TRAINED] - w->nll[SPARSE];
            }
            if (sp_candidates(&p->selection, r0 + i) <= p->chosen) continue;
            r->kl_trained[r->n] = (float)w->kl_trained;
            r->kl_dense[r->n] = (float)w->kl_dense;
            r->kl_untrained[r->n++] = (float)w->kl_untrained;
            r->agree += w->agree;
            kl->trained += w->kl_trained;
            kl->dense += w->kl_dense;
            kl->untrained += w->kl_untrained;
        }
    }
    return SP_OK;
}

static sp_status measure_length(sp_pass *p, length_result *r) {
    int64_t T = r->T, V = p->desc->vocab;
    scratch x = {0};
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&r->recall, r->S, sizeof *r->recall, "recall"));
    SP_GO(sp_alloc(&r->kl_trained, r->S * T, sizeof(float), "divergences"));
    SP_GO(sp_alloc(&r->kl_dense, r->S * T, sizeof(float), "divergences"));
    SP_GO(sp_alloc(&r->kl_untrained, r->S * T, sizeof(float), "divergences"));
    SP_GO(sp_alloc(&r->kl, r->S, sizeof *r->kl, "divergences"));
    SP_GO(sp_alloc(&r->delta_nll, r->S * T, sizeof(double), "losses"));
    SP_GO(sp_alloc(&x.tokens, T, sizeof *x.tokens, "tokens"));
    SP_GO(sp_alloc(&x.row, ROWS, sizeof *x.row, "rows"));
    for (int run = 0; run < RUNS; run++) {
        SP_GO(sp_alloc(&x.logits[run], ROWS * V, sizeof(float), "logits"));
        SP_GO(sp_engine_open(&(sp_engine_args){.model = p->model, .max_tokens = T}, &x.e[run]));
    }
    char phase[64];
    snprintf(phase, sizeof phase, "text of %lld tokens", (long long)T);
    sp_meter_phase(&p->meter, phase);
    for (int64_t s = 0; s < r->S; s++) {
        SP_GO(sp_pass_text(p, s, T, x.tokens));
        SP_GO(sp_recall_alloc(p->desc, T, &r->recall[s]));
        for (int run = 0; run < RUNS; run++) {
            if (run == SPARSE) {
                SP_GO(sp_recall_run(p, x.e[run], x.tokens, T, &r->recall[s]));
            } else {
                sp_engine_run er = {.selector = run_selector[run],
                                    .forecast = run == TRAINED ? p->trained : p->untrained};
                SP_GO(sp_engine_start(x.e[run], &er));
                SP_GO(sp_engine_append(x.e[run], x.tokens, T, T));
            }
            sp_meter_add(&p->meter, sp_run_cost(p, run_selector[run], T) * (run == SPARSE ? 2 : 1));
        }
        SP_GO(compare_runs(p, &x, r, &r->kl[s]));
    }
done:
    scratch_free(&x);
    return st;
}

// ---- means and standard errors ------------------------------------------------------------------

// The sequences are the independent samples; rows of one sequence are not.
typedef enum figure { RECALL_OVER_CHANCE, RECALL_OVER_UNTRAINED, MASS_OVER_UNTRAINED } figure;

static double excess(const sp_recall_cell *c, figure what) {
    if (what == MASS_OVER_UNTRAINED)
        return (c->mass[SP_BY_FORECAST] - c->mass[SP_BY_UNTRAINED]) / c->mass_rows;
    double other = what == RECALL_OVER_CHANCE ? c->chance : c->recall[SP_BY_UNTRAINED];
    return (c->recall[SP_BY_FORECAST] - other) / c->rows;
}

// Mean over sequences, in standard errors. cell < 0: all layers and heads together.
static double excess_z(const length_result *r, int64_t cell, figure what, double *values) {
    for (int64_t s = 0; s < r->S; s++) {
        const sp_recall *one = &r->recall[s];
        sp_recall_cell sum = {0};
        for (int64_t c = 0; c < one->layers * one->heads; c++)
            if (cell < 0 || c == cell) sp_recall_cell_add(&sum, &one->cell[c]);
        values[s] = excess(&sum, what); // NAN if nothing was counted
    }
    return sp_z(sp_mean_of(values, r->S));
}

static void stand(const length_result *r, figure what, double *values, standing *out) {
    int64_t heads = r->recall[0].heads, cells = r->recall[0].layers * heads;
    double all = excess_z(r, -1, what, values);
    out->z = isnan(all) ? -INFINITY : fmin(out->z, all); // nothing counted proves nothing
    for (int64_t c = 0; c < cells; c++) {
        double z = excess_z(r, c, what, values);
        if (!(z < out->z_weakest)) continue;
        *out = (standing){out->z, z, c / heads, c % heads};
    }
}

static sp_status summarise(length_result *r) {
    double *values;
    SP_TRY(sp_alloc(&values, r->S, sizeof *values, "means"));
    r->recall_above = r->mass_above = (standing){INFINITY, INFINITY, 0, 0};
    stand(r, RECALL_OVER_CHANCE, values, &r->recall_above);
    stand(r, RECALL_OVER_UNTRAINED, values, &r->recall_above);
    stand(r, MASS_OVER_UNTRAINED, values, &r->mass_above);
    free(values);
    for (int64_t s = 0; s < r->S; s++) {
        const sp_recall *one = &r->recall[s];
        for (int64_t c = 0; c < one->layers * one->heads; c++) {
            sp_recall_cell_add(&r->all, &one->cell[c]);
            if (c < one->heads) continue; // layer 0 has no layer before it
            r->infinigen_rows += one->cell[c].rows;
            r->infinigen_mass_rows += one->cell[c].mass_rows;
        }
    }
    return SP_OK;
}

static double mean_recall(const length_result *r, sp_predictor by) {
    return r->all.recall[by] / (by == SP_BY_INFINIGEN ? r->infinigen_rows : r->all.rows);
}
static double mean_mass(const length_result *r, sp_predictor by) {
    return r->all.mass[by] / (by == SP_BY_INFINIGEN ? r->infinigen_mass_rows : r->all.mass_rows);
}
static double mean_chance(const length_result *r) {
    return r->all.chance / r->all.rows;
}
static double normalised(const length_result *r) {
    double ceiling = mean_recall(r, SP_BY_FINE), chance = mean_chance(r);
    return (mean_recall(r, SP_BY_FORECAST) - chance) / (ceiling - chance);
}

static double mean_float(const float *v, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)v[i];
    return n ? sum / (double)n : NAN;
}

// Q4: the divergence that the Forecast adds over that which sparsifying caused, the latter not less
// than ten times the noise. 95% interval of its logarithm from the sequences, NAN below two.
typedef struct ratio {
    double value, low, high;
} ratio;

static ratio kl_ratio(const sp_pass *p, const length_result *r, bool untrained) {
    double floor = isfinite(p->noise_kl) ? 10 * p->noise_kl * (double)r->n : 0, a = 0, b = 0;
    for (int64_t s = 0; s < r->S; s++) {
        a += untrained ? r->kl[s].untrained : r->kl[s].trained;
        b += r->kl[s].dense;
    }
    bool floored = !(b > fmax(floor, 1e-300));
    if (floored) b = fmax(floor, 1e-300);
    ratio x = {a / b, NAN, NAN};
    if (r->S < 2) return x;
    double squares = 0, S = (double)r->S;
    for (int64_t s = 0; s < r->S; s++) {
        double one = untrained ? r->kl[s].untrained : r->kl[s].trained;
        double d = one - x.value * (floored ? b / S : r->kl[s].dense);
        squares += d * d;
    }
    double spread = exp(1.96 * sqrt(squares * S / (S - 1)) / a);
    x.low = x.value / spread;
    x.high = x.value * spread;
    return x;
}

// ---- checks -------------------------------------------------------------------------------------

static const double gate_z = 5;       // Q1, Q2
static const double gate_mass = 0.90; // Q2 soft
static const double gate_q3 = 0.80;   // soft
static const double gate_kl_soft = 1; // Q4
static const double gate_kl_hard = 2; // Q4

static sp_status add(sp_pass *p, sp_check *c, char *reason) {
    c->reason = reason;
    sp_status st = sp_report_add(p->report, c);
    free(reason);
    return st;
}

// Q1 and Q2's hard gates: all layers and heads together must stand clear of chance and of an
// untrained projection; a single head that does not is a warning.
static char *judge_standing(const length_result *r, int64_t n, bool mass, standing *low,
                            sp_outcome *outcome) {
    *low = (standing){INFINITY, INFINITY, 0, 0};
    int64_t T = 0;
    for (int64_t i = 0; i < n; i++) {
        standing s = mass ? r[i].mass_above : r[i].recall_above;
        double z = fmin(low->z, s.z);
        if (s.z_weakest < low->z_weakest) *low = s, T = r[i].T;
        low->z = z;
    }
    *outcome = !(low->z > gate_z) ? SP_FAIL : !(low->z_weakest > gate_z) ? SP_WARN : SP_PASS;
    if (*outcome == SP_PASS) return NULL;
    return sp_format(
        "%s above %s by %.1f standard errors over all layers, by %.1f in layer %lld, KV "
        "head %lld at %lld tokens (more than %g wanted)",
        mass ? "teacher mass" : "recall",
        mass ? "an untrained projection" : "chance and an untrained projection", low->z,
        low->z_weakest, (long long)low->layer, (long long)low->head, (long long)T, gate_z);
}

static json_t *standing_json(const standing *s) {
    return json_pack("{s:o, s:o, s:I, s:I, s:f}", "standard_errors", sp_json_number(s->z),
                     "standard_errors_weakest", sp_json_number(s->z_weakest), "weakest_layer",
                     (json_int_t)s->layer, "weakest_head", (json_int_t)s->head, "gate", gate_z);
}

static sp_status check_recall(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q1");
    standing low;
    char *reason = judge_standing(r, n, false, &low, &c.outcome);
    c.value = c.outcome == SP_WARN ? low.z_weakest : low.z;
    c.threshold = gate_z;
    c.n = 0;
    for (int64_t i = 0; i < n; i++) c.n += (int64_t)r[i].all.rows;
    c.detail = standing_json(&low);
    return add(p, &c, reason);
}

static sp_status check_mass(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q2");
    standing low;
    char *reason = judge_standing(r, n, true, &low, &c.outcome);
    c.threshold = gate_mass;
    c.value = INFINITY;
    c.n = 0;
    for (int64_t i = 0; i < n; i++) {
        c.n += (int64_t)r[i].all.mass_rows;
        c.value = fmin(c.value, mean_mass(&r[i], SP_BY_FORECAST) / mean_mass(&r[i], SP_BY_FINE));
    }
    c.detail = standing_json(&low);
    if (c.detail) json_object_set_new(c.detail, "of_fine_teacher", sp_json_number(c.value));
    if (c.outcome != SP_FAIL && !(c.value >= gate_mass)) {
        c.outcome = SP_WARN;
        free(reason);
        reason = sp_format("%.3f of the figure of the fine teacher", c.value);
    } else if (c.outcome != SP_PASS) {
        c.value = c.outcome == SP_WARN ? low.z_weakest : low.z;
        c.threshold = gate_z;
        c.unit = "SE";
    }
    return add(p, &c, reason);
}

static sp_status check_normalised(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q3");
    c.threshold = gate_q3;
    c.value = INFINITY;
    c.n = 0;
    const length_result *worst = r;
    for (int64_t i = 0; i < n; i++) {
        c.n += (int64_t)r[i].all.rows;
        if (normalised(&r[i]) < c.value) c.value = normalised(&r[i]), worst = &r[i];
    }
    char *reason = NULL;
    if (!(c.value >= gate_q3)) {
        c.outcome = SP_WARN;
        reason = sp_format("recall %.3f, chance %.3f, teachers agree to %.3f at %lld tokens",
                           mean_recall(worst, SP_BY_FORECAST), mean_chance(worst),
                           mean_recall(worst, SP_BY_FINE), (long long)worst->T);
    }
    return add(p, &c, reason);
}

static sp_status check_logits(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q4");
    c.threshold = gate_kl_hard;
    c.value = -INFINITY;
    c.noise_floor = p->noise_kl;
    c.n = 0;
    const length_result *worst = r;
    for (int64_t i = 0; i < n; i++) {
        ratio x = kl_ratio(p, &r[i], false);
        c.n += r[i].n;
        if (isnan(c.value) || x.value <= c.value) continue; // NaN stays
        c.value = x.value;
        c.ci95[0] = x.low;
        c.ci95[1] = x.high;
        worst = &r[i];
    }
    char *reason = NULL;
    if (!(c.value <= gate_kl_soft)) {
        c.outcome = c.value <= gate_kl_hard ? SP_WARN : SP_FAIL; // NaN fails
        if (c.outcome == SP_WARN) c.threshold = gate_kl_soft;
        reason =
            sp_format("at %lld tokens KL(sparse||Forecast) is %.3g nat, KL(dense||sparse) "
                      "%.3g: ratio %.2f; above %g is a warning, above %g a failure",
                      (long long)worst->T, mean_float(worst->kl_trained, worst->n),
                      mean_float(worst->kl_dense, worst->n), c.value, gate_kl_soft, gate_kl_hard);
    }
    c.detail = json_pack("{s:f}", "soft_threshold", gate_kl_soft);
    return add(p, &c, reason);
}

static sp_status check_loss(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q5");
    c.n = 0;
    double worst = -INFINITY;
    int64_t T = 0;
    for (int64_t i = 0; i < n; i++) {
        sp_mean m = sp_mean_of(r[i].delta_nll, r[i].tokens);
        double limit = fmax(0.01, isnan(m.se) ? 0 : 2 * m.se);
        c.n += m.n;
        if (m.mean - limit <= worst) continue;
        worst = m.mean - limit;
        T = r[i].T;
        c.value = m.mean;
        c.threshold = limit;
        c.ci95[0] = m.mean - 1.96 * m.se;
        c.ci95[1] = m.mean + 1.96 * m.se;
    }
    char *reason = NULL;
    if (!(c.value <= c.threshold)) {
        c.outcome = SP_WARN;
        reason =
            sp_format("%.4f nat above the original selector at %lld tokens", c.value, (long long)T);
    }
    return add(p, &c, reason);
}

// The untrained projection, put through Q2's soft and Q4's hard gate, must miss both.
static sp_status check_power(sp_pass *p, const length_result *r, int64_t n) {
    const length_result *last = &r[n - 1];
    double candidates = last->all.candidates / last->all.rows;
    if (candidates < 4 * (double)p->chosen) {
        char *why = sp_format("no power: %.1f candidate blocks on average at %lld tokens, fewer "
                              "than 4 times the %lld chosen",
                              candidates, (long long)last->T, (long long)p->chosen);
        sp_status st = sp_report_skip(p->report, "Q7", why ? why : "no power");
        free(why);
        return st;
    }
    sp_check c = sp_check_blank("Q7");
    double share = mean_mass(last, SP_BY_UNTRAINED) / mean_mass(last, SP_BY_FINE);
    ratio x = kl_ratio(p, last, true);
    c.value = x.value;
    c.ci95[0] = x.low;
    c.ci95[1] = x.high;
    c.threshold = gate_kl_hard;
    c.n = last->n;
    c.detail = json_pack("{s:o, s:f, s:o}", "mass_share_untrained", sp_json_number(share),
                         "mass_share_gate", gate_mass, "candidates", sp_json_number(candidates));
    char *reason = NULL;
    if (!(x.value > gate_kl_hard) || !(share < gate_mass)) {
        c.outcome = SP_FAIL;
        reason = sp_format("an untrained projection passes %s: these measurements prove nothing at "
                           "%lld tokens",
                           share < gate_mass ? "Q4" : "Q2", (long long)last->T);
    }
    return add(p, &c, reason);
}

// ---- sections of the report ---------------------------------------------------------------------

static json_t *cell_json(const sp_recall_cell *c, bool infinigen) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "recall",
                     sp_json_number(c->recall[SP_BY_FORECAST] / c->rows), "mass",
                     sp_json_number(c->mass[SP_BY_FORECAST] / c->mass_rows), "stale",
                     sp_json_number(c->recall[SP_BY_STALE] / c->rows), "infinigen",
                     infinigen ? sp_json_number(c->recall[SP_BY_INFINIGEN] / c->rows) : json_null(),
                     "untrained", sp_json_number(c->recall[SP_BY_UNTRAINED] / c->rows), "ceiling",
                     sp_json_number(c->recall[SP_BY_FINE] / c->rows), "mass_untrained",
                     sp_json_number(c->mass[SP_BY_UNTRAINED] / c->mass_rows), "mass_ceiling",
                     sp_json_number(c->mass[SP_BY_FINE] / c->mass_rows), "teacher_entropy",
                     sp_json_number(c->entropy / c->rows), "chance",
                     sp_json_number(c->chance / c->rows), "n", (json_int_t)c->rows);
}

static json_t *per_layer_json(const sp_pass *p, const length_result *r) {
    json_t *list = json_array();
    int64_t H = p->desc->heads.kv_heads;
    for (int64_t l = 0; l < p->desc->layers; l++)
        for (int64_t h = 0; h < H; h++) {
            sp_recall_cell sum = {0};
            for (int64_t s = 0; s < r->S; s++)
                sp_recall_cell_add(&sum, &r->recall[s].cell[l * H + h]);
            json_t *o = cell_json(&sum, l > 0);
            json_object_set_new(o, "layer", json_integer(l));
            json_object_set_new(o, "head", json_integer(h));
            json_array_append_new(list, o);
        }
    return list;
}

// The layer without a layer before it counts as 0 recall of the proxy here, so it is left out.
static json_t *by_position_json(const length_result *r) {
    json_t *list = json_array();
    for (int64_t b = 0; b < SP_POSITION_BINS; b++) {
        sp_recall_cell sum = {0};
        for (int64_t s = 0; s < r->S; s++) sp_recall_cell_add(&sum, &r->recall[s].position[b]);
        if (sum.rows == 0) continue;
        json_t *o = cell_json(&sum, false);
        json_object_set_new(o, "from",
                            json_integer((b * r->T + SP_POSITION_BINS - 1) / SP_POSITION_BINS));
        json_object_set_new(o, "to", json_integer(((b + 1) * r->T - 1) / SP_POSITION_BINS));
        json_array_append_new(list, o);
    }
    return list;
}

// Tenths of the rows from the most peaked teacher to the flattest.
static json_t *by_entropy_json(const length_result *r) {
    enum { DECILES = 10 };
    json_t *list = json_array();
    sp_recall_cell sum = {0};
    double before = 0;
    for (int64_t b = 0; b < SP_ENTROPY_BINS; b++) {
        for (int64_t s = 0; s < r->S; s++) sp_recall_cell_add(&sum, &r->recall[s].entropy[b]);
        double next = r->all.rows * (double)(json_array_size(list) + 1) / DECILES;
        bool last = b + 1 == SP_ENTROPY_BINS;
        if (sum.rows == 0 || (before + sum.rows < next && !last)) continue;
        before += sum.rows;
        json_t *o = cell_json(&sum, false);
        json_object_set_new(o, "entropy_to", json_real((double)(b + 1) / SP_ENTROPY_BINS));
        json_array_append_new(list, o);
        sum = (sp_recall_cell){0};
    }
    return list;
}

static json_t *selection_json(const sp_pass *p, const length_result *r) {
    json_t *mean = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "recall",
                             sp_json_number(mean_recall(r, SP_BY_FORECAST)), "mass",
                             sp_json_number(mean_mass(r, SP_BY_FORECAST)), "normalised",
                             sp_json_number(normalised(r)), "untrained",
                             sp_json_number(mean_recall(r, SP_BY_UNTRAINED)), "infinigen",
                             sp_json_number(mean_recall(r, SP_BY_INFINIGEN)), "stale",
                             sp_json_number(mean_recall(r, SP_BY_STALE)), "ceiling",
                             sp_json_number(mean_recall(r, SP_BY_FINE)), "mass_untrained",
                             sp_json_number(mean_mass(r, SP_BY_UNTRAINED)), "mass_infinigen",
                             sp_json_number(mean_mass(r, SP_BY_INFINIGEN)), "mass_ceiling",
                             sp_json_number(mean_mass(r, SP_BY_FINE)));
    return json_pack(
        "{s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "len", (json_int_t)r->T, "chance",
        sp_json_number(mean_chance(r)), "sequences", (json_int_t)r->S, "positions_each",
        (json_int_t)(r->looked / r->S), "rows", (json_int_t)r->all.rows, "candidates",
        sp_json_number(r->all.candidates / r->all.rows), "per_layer", per_layer_json(p, r), "mean",
        mean, "by_position", by_position_json(r), "by_teacher_entropy", by_entropy_json(r));
}

// The quantiles sort the arrays, so this comes after everything else that reads them.
static json_t *kl_json(float *v, int64_t n) {
    double mean = mean_float(v, n), p50 = sp_quantile(v, n, 0.5), p99 = sp_quantile(v, n, 0.99);
    return json_pack("{s:o, s:o, s:o}", "mean", sp_json_number(mean), "p50", sp_json_number(p50),
                     "p99", sp_json_number(p99));
}

static json_t *logits_json(const sp_pass *p, length_result *r) {
    double trained = kl_ratio(p, r, false).value, untrained = kl_ratio(p, r, true).value;
    sp_mean delta = sp_mean_of(r->delta_nll, r->tokens);
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "len", (json_int_t)r->T,
                     "positions", (json_int_t)r->n, "kl_sparse_sparda",
                     kl_json(r->kl_trained, r->n), "kl_dense_sparse", kl_json(r->kl_dense, r->n),
                     "kl_sparse_untrained", kl_json(r->kl_untrained, r->n), "ratio",
                     sp_json_number(trained), "ratio_untrained", sp_json_number(untrained),
                     "top1_agree", sp_json_number((double)r->agree / (double)r->n), "delta_nll",
                     sp_json_number(delta.mean), "delta_nll_se", sp_json_number(delta.se));
}

static sp_status write_sections(sp_pass *p, length_result *r, int64_t n) {
    json_t *root = p->report->root;
    json_t *lengths = json_array(), *loss = json_array(), *logits = json_array();
    for (int64_t i = 0; i < n; i++) {
        double tokens = (double)r[i].tokens;
        json_array_append_new(lengths, selection_json(p, &r[i]));
        json_array_append_new(logits, logits_json(p, &r[i]));
        json_array_append_new(loss,
                              json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "len", (json_int_t)r[i].T,
                                        "n", (json_int_t)r[i].tokens, "dense",
                                        sp_json_number(r[i].nll[DENSE] / tokens), "original",
                                        sp_json_number(r[i].nll[SPARSE] / tokens), "forecast",
                                        sp_json_number(r[i].nll[TRAINED] / tokens), "untrained",
                                        sp_json_number(r[i].nll[UNTRAINED] / tokens)));
    }
    // The top level of `logits` is the longest length.
    json_t *top = json_copy(json_array_get(logits, (size_t)n - 1));
    if (top) json_object_set_new(top, "per_length", logits);
    if (!top || json_array_size(lengths) != (size_t)n || json_array_size(loss) != (size_t)n)
        return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
    json_object_set_new(root, "logits", top);
    json_object_set_new(json_object_get(root, "selection"), "per_length", lengths);
    json_object_set_new(root, "lm_loss", loss);
    return SP_OK;
}

// ---- the group ----------------------------------------------------------------------------------

static const char *const text_checks[] = {"Q1", "Q2", "Q3", "Q4", "Q5", "Q7"};
enum { N_TEXT_CHECKS = sizeof text_checks / sizeof *text_checks };

sp_status sp_skip_quality(sp_pass *p, const char *reason) {
    for (int i = 0; i < N_TEXT_CHECKS; i++)
        SP_TRY(sp_report_skip(p->report, text_checks[i], reason));
    return SP_OK;
}

double sp_quality_cost(const sp_pass *p) {
    double cost = 0;
    for (int64_t i = 0; i < p->n_text_lengths; i++)
        cost += (double)sp_pass_rows(p, p->text_lengths[i]) *
                (sp_run_cost(p, SP_SELECT_DENSE, p->text_lengths[i]) +
                 4 * sp_run_cost(p, SP_SELECT_ORIGINAL, p->text_lengths[i]));
    return cost;
}

static sp_status judge(sp_pass *p, const length_result *r, int64_t n) {
    int64_t enough = 0; // longer rows are never more
    while (enough < n && r[enough].S >= SP_MIN_TEXT_ROWS) enough++;
    if (enough == 0) {
        char why[128];
        snprintf(why, sizeof why, "%lld text rows give no standard error; at least %d are needed",
                 (long long)r[0].S, SP_MIN_TEXT_ROWS);
        SP_TRY(sp_report_skip(p->report, "Q1", why));
        SP_TRY(sp_report_skip(p->report, "Q2", why));
    } else {
        if (enough < n)
            sp_warn(
                "%lld text rows of %lld tokens give no standard error: checks Q1 and Q2 look at "
                "shorter ones",
                (long long)r[enough].S, (long long)r[enough].T);
        SP_TRY(check_recall(p, r, enough));
        SP_TRY(check_mass(p, r, enough));
    }
    SP_TRY(check_normalised(p, r, n));
    SP_TRY(check_logits(p, r, n));
    SP_TRY(check_loss(p, r, n));
    return check_power(p, r, n);
}

// Not a mere skip: text was there to be measured, and nothing is known of the quality.
static sp_status say_unmeasured(sp_pass *p, char *why) {
    char *reason = sp_format("not measured on %s: %s", p->text.name, why);
    sp_check c = sp_check_blank(text_checks[0]);
    c.outcome = SP_WARN;
    c.reason = reason;
    c.remedy = ""; // not that of low recall: the reason says what helps
    sp_status st =
        reason ? sp_report_add(p->report, &c) : sp_error(SP_ENVIRONMENT, "out of memory");
    for (int i = 1; i < N_TEXT_CHECKS && st == SP_OK; i++)
        st = sp_report_skip(p->report, text_checks[i], reason);
    free(reason);
    free(why);
    return st;
}

sp_status sp_measure_quality(sp_pass *p) {
    if (!p->text.corpus && !p->text.dataset)
        return sp_skip_quality(p,
                               "no held-out text: this vocabulary is not the corpus's; give rows "
                               "with --data");
    char *why;
    SP_TRY(sp_pass_unmeasured(p, &why));
    if (why) return say_unmeasured(p, why);
    length_result *r;
    int64_t n = 0;
    SP_TRY(sp_alloc(&r, p->n_text_lengths, sizeof *r, "results"));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < p->n_text_lengths; i++) {
        r[n].T = p->text_lengths[i];
        SP_GO(sp_pass_text_rows(p, r[n].T, sp_pass_rows(p, r[n].T), &r[n].S));
        // Without one query that has a choice there is nothing to measure.
        if (r[n].S == 0 || sp_candidates(&p->selection, r[n].T - 1) <= p->chosen) continue;
        SP_GO(measure_length(p, &r[n]));
        SP_GO(summarise(&r[n]));
        n++;
    }
    SP_GO(judge(p, r, n));
    SP_GO(write_sections(p, r, n));
done:
    for (int64_t i = 0; i < p->n_text_lengths; i++) length_free(&r[i]);
    free(r);
    return st;
}
