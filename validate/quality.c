// Group Q on held-out text: block recall, logits, language-model loss (inference.md 5.4).
//
// Every text row is run four times: dense, original selector (with the recall measurement on its
// hidden states), Forecast, untrained Forecast. The logits of the four runs are compared row by
// row; they equal decode logits within the noise that P6 measures. Only queries with more
// candidates than blocks to choose count, except for the language-model loss, which takes every
// token.
//
// Legend: S sequences, L layers, Hkv KV heads, T tokens, V vocabulary.
#include "common/util.h"
#include "validate/recall.h"
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>

typedef enum quality_run { DENSE, SPARSE, TRAINED, UNTRAINED, RUNS } quality_run;

static const sp_selector run_selector[RUNS] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL,
                                               SP_SELECT_FORECAST, SP_SELECT_FORECAST};

// All of one length.
typedef struct length_result {
    int64_t T, S;
    sp_recall *recall; // [S]
    // Of counted positions, n of them.
    float *kl_trained, *kl_dense, *kl_untrained; // KL(sparse||trained), KL(dense||sparse), ...
    int64_t n, agree;
    // Of all positions 0 .. T-2.
    double nll[RUNS];
    double *delta_nll; // trained - sparse, [tokens]
    int64_t tokens;
    // Means over everything.
    sp_recall_cell all; // infinigen: layers >= 1 only, its rows in `infinigen_rows`
    double infinigen_rows, infinigen_mass_rows;
    double z_chance, z_untrained, z_mass; // the worst (layer, head)
    int64_t at_chance[2], at_untrained[2], at_mass[2];
} length_result;

static void length_free(length_result *r) {
    for (int64_t s = 0; r->recall && s < r->S; s++) sp_recall_free(&r->recall[s]);
    free(r->recall);
    free(r->kl_trained);
    free(r->kl_dense);
    free(r->kl_untrained);
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

static sp_status compare_runs(const sp_pass *p, scratch *x, length_result *r) {
    int64_t V = p->desc->vocab;
    for (int64_t r0 = 0; r0 < r->T; r0 += ROWS) {
        int64_t n = r->T - r0 < ROWS ? r->T - r0 : ROWS;
        for (int run = 0; run < RUNS; run++)
            SP_TRY(sp_engine_logits(x->e[run], r0, n, x->logits[run]));
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
        SP_GO(compare_runs(p, &x, r));
    }
done:
    scratch_free(&x);
    return st;
}

// ---- means and standard errors ------------------------------------------------------------------

// Mean over sequences of (a predictor's figure - another's) in one (layer, head), with its
// standard error; the sequences are the independent samples, rows of one sequence are not.
typedef enum figure { RECALL_OVER_CHANCE, RECALL_OVER_UNTRAINED, MASS_OVER_UNTRAINED } figure;

static sp_mean difference(const length_result *r, int64_t cell, figure what, double *values) {
    for (int64_t s = 0; s < r->S; s++) {
        const sp_recall_cell *c = &r->recall[s].cell[cell];
        double rows = what == MASS_OVER_UNTRAINED ? c->mass_rows : c->rows;
        double a =
            what == MASS_OVER_UNTRAINED ? c->mass[SP_BY_FORECAST] : c->recall[SP_BY_FORECAST];
        double b = what == MASS_OVER_UNTRAINED     ? c->mass[SP_BY_UNTRAINED]
                   : what == RECALL_OVER_UNTRAINED ? c->recall[SP_BY_UNTRAINED]
                                                   : c->chance;
        values[s] = rows > 0 ? (a - b) / rows : NAN;
    }
    return sp_mean_of(values, r->S);
}

static void lowest(double z, int64_t layer, int64_t head, double *worst, int64_t at[2]) {
    if (!(z < *worst)) return;
    *worst = z;
    at[0] = layer;
    at[1] = head;
}

static sp_status summarise(const sp_pass *p, length_result *r) {
    int64_t L = p->desc->layers, H = p->desc->heads.kv_heads;
    double *values;
    SP_TRY(sp_alloc(&values, r->S, sizeof *values, "means"));
    r->z_chance = r->z_untrained = r->z_mass = INFINITY;
    for (int64_t l = 0; l < L; l++)
        for (int64_t h = 0; h < H; h++) {
            int64_t cell = l * H + h;
            lowest(sp_z(difference(r, cell, RECALL_OVER_CHANCE, values)), l, h, &r->z_chance,
                   r->at_chance);
            lowest(sp_z(difference(r, cell, RECALL_OVER_UNTRAINED, values)), l, h, &r->z_untrained,
                   r->at_untrained);
            lowest(sp_z(difference(r, cell, MASS_OVER_UNTRAINED, values)), l, h, &r->z_mass,
                   r->at_mass);
            for (int64_t s = 0; s < r->S; s++) {
                const sp_recall_cell *c = &r->recall[s].cell[cell];
                sp_recall_cell_add(&r->all, c);
                if (l == 0) continue;
                r->infinigen_rows += c->rows;
                r->infinigen_mass_rows += c->mass_rows;
            }
        }
    free(values);
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

// Q4's denominator: the divergence that sparsifying caused, but not less than ten times the noise.
static double kl_unit(const sp_pass *p, const length_result *r) {
    double floor = isfinite(p->noise_kl) ? 10 * p->noise_kl : 0;
    return fmax(mean_float(r->kl_dense, r->n), fmax(floor, 1e-12));
}
static double kl_ratio(const sp_pass *p, const length_result *r) {
    return mean_float(r->kl_trained, r->n) / kl_unit(p, r);
}
static double kl_ratio_untrained(const sp_pass *p, const length_result *r) {
    return mean_float(r->kl_untrained, r->n) / kl_unit(p, r);
}

// ---- checks -------------------------------------------------------------------------------------

enum { MIN_SEQUENCES = 3 };           // below that a standard error means nothing
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

static sp_status check_recall(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q1");
    c.threshold = gate_z;
    c.value = INFINITY;
    c.n = 0;
    char *reason = NULL;
    for (int64_t i = 0; i < n; i++) {
        bool chance = r[i].z_chance < r[i].z_untrained;
        double z = chance ? r[i].z_chance : r[i].z_untrained;
        const int64_t *at = chance ? r[i].at_chance : r[i].at_untrained;
        c.n += (int64_t)r[i].all.rows;
        if (z >= c.value) continue;
        c.value = z;
        free(reason);
        reason = sp_format("weakest: %.1f standard errors above %s in layer %lld, KV head %lld at "
                           "%lld tokens",
                           z, chance ? "chance" : "an untrained projection", (long long)at[0],
                           (long long)at[1], (long long)r[i].T);
    }
    if (!(c.value > gate_z)) c.outcome = SP_FAIL;
    const length_result *last = &r[n - 1];
    c.detail = json_pack(
        "{s:o, s:o, s:o, s:I}", "recall", sp_json_number(mean_recall(last, SP_BY_FORECAST)),
        "chance", sp_json_number(mean_chance(last)), "untrained",
        sp_json_number(mean_recall(last, SP_BY_UNTRAINED)), "len", (json_int_t)last->T);
    return add(p, &c, reason);
}

static sp_status check_mass(sp_pass *p, const length_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q2");
    c.threshold = gate_mass;
    c.value = INFINITY;
    c.n = 0;
    double z = INFINITY;
    const length_result *worst = NULL, *weak = NULL;
    for (int64_t i = 0; i < n; i++) {
        double share = mean_mass(&r[i], SP_BY_FORECAST) / mean_mass(&r[i], SP_BY_FINE);
        c.n += (int64_t)r[i].all.mass_rows;
        if (share < c.value) c.value = share, worst = &r[i];
        if (r[i].z_mass < z) z = r[i].z_mass, weak = &r[i];
    }
    char *reason = NULL;
    if (!(z > gate_z)) {
        c.outcome = SP_FAIL;
        reason = sp_format("layer %lld, KV head %lld, %lld tokens: only %.1f standard errors above "
                           "an untrained projection (more than %g needed)",
                           (long long)(weak ? weak->at_mass[0] : 0),
                           (long long)(weak ? weak->at_mass[1] : 0),
                           (long long)(weak ? weak->T : 0), z, gate_z);
    } else if (!(c.value >= gate_mass)) {
        c.outcome = SP_WARN;
        reason = sp_format("%.3f of the fine teacher's figure at %lld tokens", c.value,
                           (long long)(worst ? worst->T : 0));
    }
    c.detail = json_pack("{s:o, s:f}", "standard_errors_above_untrained", sp_json_number(z),
                         "standard_errors_needed", gate_z);
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
        c.n += r[i].n;
        if (kl_ratio(p, &r[i]) > c.value) c.value = kl_ratio(p, &r[i]), worst = &r[i];
    }
    char *reason = NULL;
    if (!(c.value <= gate_kl_soft)) {
        c.outcome = c.value <= gate_kl_hard ? SP_WARN : SP_FAIL;
        reason = sp_format("at %lld tokens KL(sparse||Forecast) is %.3g nat, KL(dense||sparse) "
                           "%.3g; above %g is a warning, above %g a failure",
                           (long long)worst->T, mean_float(worst->kl_trained, worst->n),
                           mean_float(worst->kl_dense, worst->n), gate_kl_soft, gate_kl_hard);
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
    c.value = kl_ratio_untrained(p, last);
    c.threshold = gate_kl_hard;
    c.n = last->n;
    c.detail = json_pack("{s:o, s:f, s:o}", "mass_share_untrained", sp_json_number(share),
                         "mass_share_gate", gate_mass, "candidates", sp_json_number(candidates));
    char *reason = NULL;
    if (!(c.value > gate_kl_hard) || !(share < gate_mass)) {
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
    return json_pack("{s:I, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "len", (json_int_t)r->T,
                     "chance", sp_json_number(mean_chance(r)), "sequences", (json_int_t)r->S,
                     "rows", (json_int_t)r->all.rows, "candidates",
                     sp_json_number(r->all.candidates / r->all.rows), "per_layer",
                     per_layer_json(p, r), "mean", mean, "by_position", by_position_json(r),
                     "by_teacher_entropy", by_entropy_json(r));
}

// The quantiles sort the arrays, so this comes after everything else that reads them.
static json_t *kl_json(float *v, int64_t n) {
    double mean = mean_float(v, n), p50 = sp_quantile(v, n, 0.5), p99 = sp_quantile(v, n, 0.99);
    return json_pack("{s:o, s:o, s:o}", "mean", sp_json_number(mean), "p50", sp_json_number(p50),
                     "p99", sp_json_number(p99));
}

static json_t *logits_json(const sp_pass *p, length_result *r) {
    double ratio = kl_ratio(p, r), untrained = kl_ratio_untrained(p, r);
    sp_mean delta = sp_mean_of(r->delta_nll, r->tokens);
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "len", (json_int_t)r->T,
                     "positions", (json_int_t)r->n, "kl_sparse_sparda",
                     kl_json(r->kl_trained, r->n), "kl_dense_sparse", kl_json(r->kl_dense, r->n),
                     "kl_sparse_untrained", kl_json(r->kl_untrained, r->n), "ratio",
                     sp_json_number(ratio), "ratio_untrained", sp_json_number(untrained),
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
    for (int64_t i = 0; i < p->n_lengths; i++)
        cost += (double)p->rows * (sp_run_cost(p, SP_SELECT_DENSE, p->lengths[i]) +
                                   4 * sp_run_cost(p, SP_SELECT_ORIGINAL, p->lengths[i]));
    return cost;
}

static sp_status judge(sp_pass *p, const length_result *r, int64_t n) {
    int64_t fewest = r[0].S;
    for (int64_t i = 1; i < n; i++) fewest = r[i].S < fewest ? r[i].S : fewest;
    if (fewest < MIN_SEQUENCES) {
        char why[128];
        snprintf(why, sizeof why, "%lld text rows give no standard error; at least %d are needed",
                 (long long)fewest, MIN_SEQUENCES);
        SP_TRY(sp_report_skip(p->report, "Q1", why));
        SP_TRY(sp_report_skip(p->report, "Q2", why));
    } else {
        SP_TRY(check_recall(p, r, n));
        SP_TRY(check_mass(p, r, n));
    }
    SP_TRY(check_normalised(p, r, n));
    SP_TRY(check_logits(p, r, n));
    SP_TRY(check_loss(p, r, n));
    return check_power(p, r, n);
}

sp_status sp_measure_quality(sp_pass *p) {
    if (!p->text.corpus && !p->text.dataset)
        return sp_skip_quality(p,
                               "no held-out text: this vocabulary is not the corpus's; give rows "
                               "with --data");
    length_result *r;
    int64_t n = 0;
    SP_TRY(sp_alloc(&r, p->n_lengths, sizeof *r, "results"));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < p->n_lengths; i++) {
        r[n].T = p->lengths[i];
        SP_GO(sp_pass_text_rows(p, r[n].T, p->rows, &r[n].S));
        // Without one query that has a choice there is nothing to measure.
        if (r[n].S == 0 || sp_candidates(&p->selection, r[n].T - 1) <= p->chosen) continue;
        SP_GO(measure_length(p, &r[n]));
        SP_GO(summarise(p, &r[n]));
        n++;
    }
    if (n == 0) {
        SP_GO(sp_skip_quality(p, "no held-out row is long enough for a query to have a choice of "
                                 "blocks at any of the lengths"));
    } else {
        SP_GO(judge(p, r, n));
        SP_GO(write_sections(p, r, n));
    }
done:
    for (int64_t i = 0; i < p->n_lengths; i++) length_free(&r[i]);
    free(r);
    return st;
}
