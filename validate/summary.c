// The summary for people: about twenty lines made from the JSON document, the table of selectors
// last.
#include "common/util.h"
#include "validate/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *text_at(json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

// "P1 P5" of the checks with this outcome; "none" if there are none.
static void list_ids(sp_text *t, json_t *root, const char *status) {
    size_t i;
    json_t *c;
    bool any = false;
    json_array_foreach(json_object_get(root, "checks"), i, c) {
        if (strcmp(text_at(c, "status"), status) != 0) continue;
        sp_text_add(t, "%s%s", any ? " " : "", text_at(c, "id"));
        any = true;
    }
    if (!any) sp_text_add(t, "none");
}

// The first line of a reason: the report has all of it.
static void findings(sp_text *t, json_t *root, const char *status, const char *what) {
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(root, "checks"), i, c) {
        if (strcmp(text_at(c, "status"), status) != 0) continue;
        const char *why = text_at(c, "reason");
        sp_text_add(t, "  %s %s: %.*s\n", what, text_at(c, "id"), (int)strcspn(why, "\n"), why);
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

sp_status sp_report_summary(json_t *root, char **text) {
    sp_text t = {0};
    const char *status = text_at(root, "status");
    *text = NULL;
    sp_text_add(&t, "validation of a Forecast for %s: %s\n",
                text_at(json_object_get(root, "model"), "name"),
                strcmp(status, "fail") == 0   ? "FAILED"
                : strcmp(status, "pass") == 0 ? "passed"
                                              : "passed with warnings");
    sp_text_add(&t, "  passed: ");
    list_ids(&t, root, "pass");
    sp_text_add(&t, "\n  not run here: ");
    list_ids(&t, root, "skip");
    sp_text_add(&t, "\n");
    findings(&t, root, "fail", "failed");
    findings(&t, root, "warn", "warning");
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(json_object_get(root, "logits"), "per_length"), i, o)
        sp_text_add(&t,
                    "  %.0f tokens: KL(dense||sparse) %.4f, KL(sparse||Forecast) %.4f nat, loss "
                    "%+.4f nat, largest token equal %.1f%%\n",
                    sp_json_at(o, "len"), sp_json_at(json_object_get(o, "kl_dense_sparse"), "mean"),
                    sp_json_at(json_object_get(o, "kl_sparse_sparda"), "mean"),
                    sp_json_at(o, "delta_nll"), 100 * sp_json_at(o, "top1_agree"));
    table(&t, root);
    if (t.failed || !t.data) {
        sp_text_free(&t);
        return sp_error(SP_ENVIRONMENT, "out of memory for the summary");
    }
    *text = t.data;
    return SP_OK;
}
