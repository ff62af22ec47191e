// Q6: needle retrieval under every selector (corpus.md 6), each sequence under all of them, so that
// two selectors are compared on the same questions.
#include "common/util.h"
#include "data/corpus.h"
#include "validate/pass.h"
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>

enum { TASKS = 3 };
typedef enum column {
    C_DENSE,
    C_ORIGINAL,
    C_INFINIGEN,
    C_UNTRAINED,
    C_FORECAST,
    C_RANDOM,
    COLUMNS
} column;
static const struct {
    sp_selector selector;
    const char *key;
} columns[COLUMNS] = {
    {SP_SELECT_DENSE, "dense"},         {SP_SELECT_ORIGINAL, "original"},
    {SP_SELECT_INFINIGEN, "infinigen"}, {SP_SELECT_FORECAST, "untrained"},
    {SP_SELECT_FORECAST, "forecast"},   {SP_SELECT_RANDOM, "random"},
};

// Right if the largest logit is the true token at both places of the answer, which is the last two
// tokens; so the last token itself need not be read.
// Random blocks are drawn anew for every `question`: 128 questions of one draw would all profit or
// suffer from it.
static sp_status ask(const sp_pass *p, sp_engine *e, column c, int64_t question,
                     const int32_t *tokens, int64_t T, float *logits, bool *right) {
    int64_t V = p->desc->vocab;
    sp_engine_run run = {.selector = columns[c].selector,
                         .forecast = c == C_UNTRAINED ? p->untrained : p->trained,
                         .seed = p->seed + (uint64_t)question};
    SP_TRY(sp_engine_start(e, &run));
    SP_TRY(sp_engine_append(e, tokens, T - 1, 2));
    SP_TRY(sp_engine_logits(e, 0, 2, logits));
    *right = sp_logits_look(logits, V).best == tokens[T - 2] &&
             sp_logits_look(logits + V, V).best == tokens[T - 1];
    return SP_OK;
}

// Sample n of a length and task: the standard set first, then more of the same kind.
static sp_status needle(int64_t n, int64_t T, sp_needle task, int32_t *tokens) {
    enum { STANDARD = 128, SEEDS = 8, PER_SEED = 16 };
    if (n < STANDARD) {
        // Spread over the seeds, so that a few samples are not all of one.
        return sp_needle_standard(n % SEEDS * PER_SEED + n / SEEDS, T, task, tokens);
    }
    return sp_needle_sequence((uint64_t)(7000 + 16 * SEEDS + n), 0, T, task, 0.05, 0.9, tokens);
}

typedef struct task_result {
    int64_t T, n;
    sp_needle task;
    double right[COLUMNS];
    sp_mean drop; // original - forecast, paired
} task_result;

static sp_status run_task(sp_pass *p, sp_engine *e, task_result *r) {
    int32_t *tokens = NULL;
    float *logits = NULL;
    double *drop = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&tokens, r->T, sizeof *tokens, "tokens"));
    SP_GO(sp_alloc(&logits, 2 * p->desc->vocab, sizeof *logits, "logits"));
    SP_GO(sp_alloc(&drop, r->n, sizeof *drop, "answers"));
    for (int64_t i = 0; i < r->n; i++) {
        SP_GO(needle(i, r->T, r->task, tokens));
        bool right[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) {
            SP_GO(ask(p, e, (column)c, i, tokens, r->T, logits, &right[c]));
            r->right[c] += right[c];
            sp_meter_add(&p->meter, sp_run_cost(p, columns[c].selector, r->T));
        }
        drop[i] = (double)right[C_ORIGINAL] - (double)right[C_FORECAST];
    }
    r->drop = sp_mean_of(drop, r->n);
done:
    free(tokens);
    free(logits);
    free(drop);
    return st;
}

static sp_status judge(sp_pass *p, const task_result *r, int64_t n) {
    sp_check c = sp_check_blank("Q6");
    c.threshold = 2;
    c.value = -INFINITY;
    c.n = 0;
    const task_result *worst = r;
    for (int64_t i = 0; i < n; i++) {
        double z = sp_z(r[i].drop);
        c.n += r[i].n;
        if (z > c.value) c.value = z, worst = &r[i];
    }
    char *reason = NULL;
    if (isinf(c.value)) {
        return sp_report_skip(p->report, "Q6", "one needle sequence gives no standard error");
    }
    if (c.value > c.threshold) {
        c.outcome = SP_WARN;
        reason = sp_format("%s at %lld tokens: %.2f against %.2f of the original selector",
                           sp_needle_name(worst->task), (long long)worst->T,
                           worst->right[C_FORECAST] / (double)worst->n,
                           worst->right[C_ORIGINAL] / (double)worst->n);
    }
    c.reason = reason;
    sp_status st = sp_report_add(p->report, &c);
    free(reason);
    return st;
}

static sp_status write_section(sp_pass *p, const task_result *r, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_t *o = json_pack("{s:I, s:s, s:I}", "len", (json_int_t)r[i].T, "task",
                              sp_needle_name(r[i].task), "n", (json_int_t)r[i].n);
        for (int c = 0; o && c < COLUMNS; c++)
            json_object_set_new(o, columns[c].key, sp_json_number(r[i].right[c] / (double)r[i].n));
        json_object_set_new(o, "forecast_minus_original_se", sp_json_number(r[i].drop.se));
        if (json_array_append_new(list, o) != 0) {
            json_decref(list);
            return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
        }
    }
    json_object_set_new(p->report->root, "retrieval", list);
    return SP_OK;
}

double sp_needle_cost(const sp_pass *p) {
    if (!p->needles) return 0;
    double cost = 0;
    for (int64_t i = 0; i < p->n_lengths; i++)
        for (int c = 0; c < COLUMNS; c++)
            cost += TASKS * (double)p->samples * sp_run_cost(p, columns[c].selector, p->lengths[i]);
    return cost;
}

sp_status sp_measure_needles(sp_pass *p) {
    if (!p->needles)
        return sp_report_skip(p->report, "Q6",
                              "the needle tasks are made of the synthetic corpus's tokens, which "
                              "this model does not know");
    enum { SHORTEST = 128 };
    task_result *r;
    sp_engine *e = NULL;
    int64_t n = 0;
    SP_TRY(sp_alloc(&r, p->n_lengths * TASKS, sizeof *r, "results"));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < p->n_lengths; i++) {
        int64_t T = p->lengths[i];
        if (T < SHORTEST) continue;
        char phase[64];
        snprintf(phase, sizeof phase, "needles at %lld tokens", (long long)T);
        sp_meter_phase(&p->meter, phase);
        SP_GO(sp_engine_open(&(sp_engine_args){.model = p->model, .max_tokens = T}, &e));
        for (int t = 0; t < TASKS; t++) {
            r[n] = (task_result){.T = T, .n = p->samples, .task = (sp_needle)t};
            SP_GO(run_task(p, e, &r[n++]));
        }
        sp_engine_close(e);
        e = NULL;
    }
    if (n == 0) {
        SP_GO(sp_report_skip(p->report, "Q6", "needle sequences have at least 128 tokens"));
    } else {
        SP_GO(judge(p, r, n));
        SP_GO(write_section(p, r, n));
    }
done:
    sp_engine_close(e);
    free(r);
    return st;
}
