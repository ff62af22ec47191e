// The summary for people: about twenty lines made from the JSON document, the table of selectors
// last, with a footer that says what its columns are.
#include "common/util.h"
#include "validate/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *text_at(json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int count_of(json_t *root, const char *status) {
    size_t i;
    json_t *c;
    int n = 0;
    json_array_foreach(json_object_get(root, "checks"), i, c) n +=
        strcmp(text_at(c, "status"), status) == 0;
    return n;
}

static void counts(sp_text *t, json_t *root) {
    int passed = count_of(root, "pass"), warned = count_of(root, "warn");
    int failed = count_of(root, "fail"), skipped = count_of(root, "skip");
    sp_text_add(t, "  %d check%s passed, %d warning%s, %d failure%s; %d not run here", passed,
                passed == 1 ? "" : "s", warned, warned == 1 ? "" : "s", failed,
                failed == 1 ? "" : "s", skipped);
    size_t i;
    json_t *c;
    const char *before = " (", *why = NULL; // the reason that all of them share, else ""
    json_array_foreach(json_object_get(root, "checks"), i, c) {
        if (strcmp(text_at(c, "status"), "skip") != 0) continue;
        sp_text_add(t, "%s%s", before, text_at(c, "id"));
        before = " ";
        why = !why || strcmp(why, text_at(c, "reason")) == 0 ? text_at(c, "reason") : "";
    }
    bool shared = why && *why;
    sp_text_add(t, "%s%s%s\n", shared ? ": " : "", shared ? why : "", skipped ? ")" : "");
}

// The first line of its reason, with the next where it ends in a colon; the report has all. And
// what the check is.
static void findings(sp_text *t, json_t *root, const char *status, const char *what) {
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(root, "checks"), i, c) {
        if (strcmp(text_at(c, "status"), status) != 0) continue;
        const char *why = text_at(c, "reason");
        size_t n = strcspn(why, "\n"), more = 0;
        const char *next = why[n] ? why + n + 1 : why + n;
        if (n > 0 && why[n - 1] == ':') more = strcspn(next, "\n");
        sp_text_add(t, "  %s %s: %.*s%s%.*s (%s)\n", what, text_at(c, "id"), (int)n, why,
                    more ? " " : "", (int)more, next, text_at(c, "title"));
    }
}

// What helps, once for all checks that it helps.
static void remedies(sp_text *t, json_t *root) {
    json_t *checks = json_object_get(root, "checks"), *c, *o;
    size_t i, k;
    json_array_foreach(checks, i, c) {
        const char *what = text_at(c, "remedy");
        bool told = !*what;
        for (k = 0; k < i && !told; k++)
            told = strcmp(text_at(json_array_get(checks, k), "remedy"), what) == 0;
        if (told) continue;
        sp_text_add(t, "  what helps,");
        json_array_foreach(checks, k, o) if (strcmp(text_at(o, "remedy"), what) == 0)
            sp_text_add(t, " %s", text_at(o, "id"));
        sp_text_add(t, ": %s\n", what);
    }
}

static void number(sp_text *t, double x) {
    if (isfinite(x))
        sp_text_add(t, "  %6.3f", x);
    else
        sp_text_add(t, "       -");
}

static void table(sp_text *t, json_t *root) {
    static const char *const key[] = {"dense",     "original", "infinigen",
                                      "untrained", "forecast", "random"};
    static const char *const name[] = {"dense attention",    "original selector", "InfiniGen-style",
                                       "untrained Forecast", "trained Forecast",  "random blocks"};
    json_t *needles = json_object_get(root, "retrieval"), *o;
    json_t *lengths = json_object_get(json_object_get(root, "selection"), "per_length");
    size_t i;
    if (!json_array_size(needles) && !json_array_size(lengths)) return;
    sp_text_add(t, "  %-18s", "");
    json_array_foreach(needles, i, o) sp_text_add(t, "  %6s", text_at(o, "task"));
    json_array_foreach(lengths, i, o) sp_text_add(t, "  recall");
    sp_text_add(t, "\n  %-18s", "tokens");
    json_array_foreach(needles, i, o) sp_text_add(t, "  %6.0f", sp_json_at(o, "len"));
    json_array_foreach(lengths, i, o) sp_text_add(t, "  %6.0f", sp_json_at(o, "len"));
    sp_text_add(t, "\n");
    for (int k = 0; k < 6; k++) {
        sp_text_add(t, "  %-18s", name[k]);
        json_array_foreach(needles, i, o) number(t, sp_json_at(o, key[k]));
        json_array_foreach(lengths, i, o) number(t, sp_selector_recall(o, key[k]));
        sp_text_add(t, "\n");
    }
}

// What the columns are and how many samples stand behind them.
static void footer(sp_text *t, json_t *root) {
    json_t *needles = json_array_get(json_object_get(root, "retrieval"), 0);
    json_t *lengths = json_object_get(json_object_get(root, "selection"), "per_length");
    json_t *o;
    size_t i;
    double n = sp_json_at(needles, "n");
    if (needles)
        sp_text_add(
            t,
            "  needle columns: share of right answers, %.0f questions each (standard error at "
            "most %.3f)\n",
            n, 0.5 / sqrt(n));
    if (!json_array_size(lengths)) return;
    sp_text_add(t, "  recall: share of the original selector's chosen blocks that are also chosen, "
                   "over");
    json_array_foreach(lengths, i, o)
        sp_text_add(t, "%s %.0f", i > 0 ? "," : "", sp_json_at(o, "sequences"));
    sp_text_add(t, " texts, every layer and KV head; forced blocks not counted\n");
}

static void logits(sp_text *t, json_t *root) {
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(json_object_get(root, "logits"), "per_length"), i, o)
        sp_text_add(
            t,
            "  %.0f tokens: choosing blocks moves the logits by %.3g nat (KL), the Forecast "
            "by %.3g nat more; loss %+.3g nat a token; most likely token the same in %.1f%%\n",
            sp_json_at(o, "len"), sp_json_at(json_object_get(o, "kl_dense_sparse"), "mean"),
            sp_json_at(json_object_get(o, "kl_sparse_sparda"), "mean"), sp_json_at(o, "delta_nll"),
            100 * sp_json_at(o, "top1_agree"));
}

static void serving(sp_text *t, json_t *root) {
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(root, "throughput"), i, o) {
        double speed = sp_json_at(o, "decode_tok_s");
        if (strcmp(text_at(o, "mode"), "sparda") != 0 || !isfinite(speed)) continue;
        sp_text_add(
            t,
            "  decode with copies one layer ahead: %.0f tokens/s at %.0f tokens, batch %.0f "
            "(%.0f%% of the limit)\n",
            speed, sp_json_at(o, "len"), sp_json_at(o, "batch"), 100 * sp_json_at(o, "share"));
    }
}

sp_status sp_report_summary(json_t *root, char **text) {
    sp_text t = {0};
    const char *status = text_at(root, "status");
    *text = NULL;
    sp_text_add(&t, "validation of a Forecast for %s: %s\n",
                text_at(json_object_get(root, "model"), "name"),
                strcmp(status, "fail") == 0   ? "FAILED"
                : strcmp(status, "pass") == 0 ? "passed"
                                              : "passed with warnings");
    counts(&t, root);
    findings(&t, root, "fail", "failed");
    findings(&t, root, "warn", "warning");
    remedies(&t, root);
    logits(&t, root);
    serving(&t, root);
    table(&t, root);
    footer(&t, root);
    if (t.failed || !t.data) {
        sp_text_free(&t);
        return sp_error(SP_ENVIRONMENT, "out of memory for the summary");
    }
    *text = t.data;
    return SP_OK;
}
