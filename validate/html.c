// The report page: one self-contained HTML file made from the JSON document alone. Verdict first,
// then what needs attention, the measurements, every check, and how it was done.
//
// Every text of the document passes sp_html_escape; nothing of it becomes markup, style or script.
#include "validate/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    ":root{--ink:#17202e;--soft:#5b6676;--line:#dfe4ea;--pale:#f5f7f9;--ok:#18794e;--warn:#9a6200;"
    "--bad:#b3261e;--accent:#1d5fd1}"
    "*{box-sizing:border-box}body{margin:0;background:#fff;color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    "main{max-width:1040px;margin:0 auto;padding:28px 20px 48px}"
    "h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 2px}"
    "h2{font-size:18px;margin:36px 0 10px;padding-bottom:6px;border-bottom:1px solid var(--line)}"
    "h3{font-size:14px;margin:0 0 6px;font-weight:600}p{margin:6px 0}"
    ".sub{color:var(--soft);font-size:13px}"
    ".verdict{font-size:30px;line-height:1.2;font-weight:700;margin:0 0 6px}"
    ".pass{color:var(--ok)}.warn{color:var(--warn)}.fail{color:var(--bad)}.skip{color:var(--soft)}"
    "header{border-left:6px solid currentColor;padding:4px 0 4px 16px}"
    "header p,header h1{color:var(--ink)}header .sub{color:var(--soft)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;"
    "margin:20px 0 0}.tile{background:var(--pale);border-radius:8px;padding:12px 14px}"
    ".tile b{display:block;font-size:22px;line-height:1.25;font-variant-numeric:tabular-nums}"
    ".tile span{font-size:12.5px;color:var(--soft)}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:18px 26px}"
    "figure{margin:0;break-inside:avoid;min-width:0}figure.wide{margin:18px "
    "0}svg{width:100%;height:auto;display:block}"
    "figcaption{font-size:12.5px;color:var(--soft);margin-top:4px}"
    "svg text{font-family:inherit;fill:var(--soft)}.tick{font-size:11px}.title{font-size:11.5px}"
    ".name,.value{font-size:12px}svg .name,svg .value{fill:var(--ink)}"
    ".grid{stroke:#e7ebef;stroke-width:1}.axis{stroke:#aab4bf}"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--ink);margin:4px "
    "0 0}"
    ".legend i{display:inline-block;width:18px;border-top:3px solid;margin-right:5px;"
    "vertical-align:middle}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px}"
    "th,td{text-align:left;padding:6px 10px 6px 0;border-bottom:1px solid var(--line);"
    "vertical-align:top}th{font-weight:600;color:var(--soft);font-size:12.5px}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "td.s{font-weight:600;white-space:nowrap}tr.hl td{font-weight:600}"
    ".issues{list-style:none;margin:18px 0 0;padding:0}.issues li{padding:8px 0 8px 12px;"
    "border-left:3px solid;margin:0 0 6px}.issues li *{color:var(--ink)}"
    ".why{color:var(--soft);font-size:12.5px;white-space:pre-line;overflow-wrap:anywhere}"
    "details{margin-top:10px}summary{cursor:pointer;font-weight:600}"
    "code{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0;font-size:13.5px}"
    "dt{color:var(--soft);max-width:240px}dd{margin:0;overflow-wrap:anywhere}"
    "footer{margin-top:40px;font-size:12.5px;color:var(--soft)}"
    "@media(max-width:640px){dl.skips{grid-template-columns:1fr}dl.skips dd{margin:0 0 10px}"
    "main{padding:18px 14px 32px}.verdict{font-size:25px}"
    "table.checks thead{display:none}table.checks tr{display:block;padding:8px 0;"
    "border-bottom:1px solid var(--line)}table.checks td{display:inline;border:0;padding:0 6px 0 0}"
    "table.checks td.n{text-align:left;white-space:normal}table.checks td.w{display:block}}"
    "@media print{body{font-size:11px}main{max-width:none;padding:0}h2{margin-top:20px}"
    "h2,h3{break-after:avoid}tr,.tile,li{break-inside:avoid}details>*{display:block}"
    ".charts{grid-template-columns:1fr 1fr}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}";

// ---- small pieces -------------------------------------------------------------------------------

const char *sp_html_text_at(json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

void sp_html_number(sp_text *t, double x, const char *format) {
    char s[48];
    snprintf(s, sizeof s, format, x);
    sp_text_add(t, "<td class=\"n\">%s</td>", isfinite(x) ? s : "&ndash;");
}

void sp_html_element(sp_text *t, const char *tag, const char *attributes, const char *text) {
    sp_text_add(t, "<%s%s%s>", tag, *attributes ? " " : "", attributes);
    sp_html_escape(t, text);
    sp_text_add(t, "</%s>", tag);
}

static void tile(sp_text *t, double x, const char *format, const char *what) {
    char s[48];
    if (!isfinite(x)) return;
    snprintf(s, sizeof s, format, x);
    sp_text_add(t, "<div class=\"tile\"><b>%s</b>", s);
    sp_html_element(t, "span", "", what);
    sp_text_add(t, "</div>");
}

static void count_checks(json_t *root, int count[4]) {
    static const char *const name[] = {"pass", "warn", "fail", "skip"};
    size_t i;
    json_t *c;
    memset(count, 0, 4 * sizeof *count);
    json_array_foreach(json_object_get(root, "checks"), i, c) for (int k = 0; k < 4; k++)
        count[k] += strcmp(sp_html_text_at(c, "status"), name[k]) == 0;
}

static json_t *last(json_t *list) {
    size_t n = json_array_size(list);
    return n ? json_array_get(list, n - 1) : NULL;
}

// ---- verdict ------------------------------------------------------------------------------------

static void verdict(sp_text *t, json_t *root) {
    const char *status = sp_html_text_at(root, "status");
    bool fail = strcmp(status, "fail") == 0, warn = strcmp(status, "pass_with_warnings") == 0;
    int n[4];
    count_checks(root, n);
    sp_text_add(t, "<header class=\"%s\"><h1>Forecast validation: ",
                fail   ? "fail"
                : warn ? "warn"
                       : "pass");
    sp_html_escape(t, sp_html_text_at(json_object_get(root, "model"), "name"));
    sp_text_add(t,
                "</h1><div class=\"verdict\">%s</div><p>%d checks passed, %d warning%s, %d "
                "failure%s; %d not run here.</p>",
                fail   ? "Failed"
                : warn ? "Passed with warnings"
                       : "Passed",
                n[0], n[1], n[1] == 1 ? "" : "s", n[2], n[2] == 1 ? "" : "s", n[3]);
    sp_text_add(t, "<p class=\"sub\">");
    sp_html_escape(t, sp_html_text_at(root, "created_utc"));
    sp_text_add(t, " &middot; sparda ");
    sp_html_escape(t, sp_html_text_at(json_object_get(root, "tool"), "version"));
    sp_text_add(t, "</p></header>");
}

static void issues(sp_text *t, json_t *root) {
    size_t i;
    json_t *c;
    bool open = false;
    for (int round = 0; round < 2; round++)
        json_array_foreach(json_object_get(root, "checks"), i, c) {
            const char *status = sp_html_text_at(c, "status");
            if (strcmp(status, round ? "warn" : "fail") != 0) continue;
            if (!open) sp_text_add(t, "<ul class=\"issues\">");
            open = true;
            sp_text_add(t, "<li class=\"%s\"><b>", round ? "warn" : "fail");
            sp_html_escape(t, sp_html_text_at(c, "id"));
            sp_text_add(t, " &middot; ");
            sp_html_escape(t, sp_html_text_at(c, "title"));
            sp_text_add(t, "</b>");
            sp_html_element(t, "div", "class=\"why\"", sp_html_text_at(c, "reason"));
            if (*sp_html_text_at(c, "remedy")) {
                sp_text_add(t, "<div class=\"why\">What helps: ");
                sp_html_escape(t, sp_html_text_at(c, "remedy"));
                sp_text_add(t, "</div>");
            }
            sp_text_add(t, "</li>");
        }
    if (open) sp_text_add(t, "</ul>");
}

static double needle_mean(json_t *root, const char *task, const char *key) {
    size_t i;
    json_t *o;
    double value = NAN;
    json_array_foreach(json_object_get(root, "retrieval"), i,
                       o) if (isnan(value) && strcmp(sp_html_text_at(o, "task"), task) == 0) value =
        sp_json_at(o, key);
    return value;
}

// Row of one way to serve in the table of throughput.
static json_t *served(json_t *root, const char *mode) {
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(root, "throughput"), i, o) {
        if (strcmp(sp_html_text_at(o, "mode"), mode) == 0) return o;
    }
    return NULL;
}

static void tiles(sp_text *t, json_t *root) {
    json_t *lengths = json_object_get(json_object_get(root, "selection"), "per_length");
    bool several = json_array_size(lengths) > 1;
    json_t *selection = json_array_get(lengths, 0), *sparda = served(root, "sparda");
    json_t *mean = json_object_get(selection, "mean"), *logits = json_object_get(root, "logits");
    sp_text_add(t, "<div class=\"tiles\">");
    tile(t, sp_json_at(mean, "recall"), "%.3f",
         several ? "block recall, shortest length" : "block recall");
    tile(t, sp_json_at(mean, "mass"), "%.3f",
         several ? "teacher mass on its blocks, same length" : "teacher mass on its blocks");
    tile(t, sp_json_at(logits, "ratio"), "%.3g",
         several ? "KL ratio, longest length (1 = as sparsifying)"
                 : "KL ratio (1 = as sparsifying)");
    tile(t, sp_json_at(logits, "delta_nll"), "%+.3g", "nat per token against the original");
    tile(t, needle_mean(root, "single", "forecast"), "%.3f",
         several ? "single needle, shortest length" : "single needle");
    tile(t, needle_mean(root, "multi", "forecast"), "%.3f",
         several ? "multi needle, shortest length" : "multi needle");
    tile(t, sp_json_at(sparda, "decode_tok_s"), "%.0f", "tokens/s decoded, copied ahead");
    tile(t, sp_json_at(json_object_get(root, "prefetch"), "hidden_fraction"), "%.2f",
         "share of the copies that is hidden");
    sp_text_add(t, "</div>");
}

// ---- charts -------------------------------------------------------------------------------------

static const char *const c_forecast = "#1d5fd1", *const c_ceiling = "#18794e",
                         *const c_infinigen = "#d9822b", *const c_stale = "#8250df",
                         *const c_untrained = "#c2362b", *const c_chance = "#98a2ae",
                         *const c_dense = "#17202e", *const c_original = "#5b6676";

enum { MAX_POINTS = 512, LINES = 6 };

typedef struct curves {
    double y[LINES][MAX_POINTS];
    char label[MAX_POINTS][24];
    const char *labels[MAX_POINTS];
    int n;
} curves;

static const char *const curve_key[LINES] = {"recall", "ceiling",   "infinigen",
                                             "stale",  "untrained", "chance"};

static void set_series(sp_series s[LINES], const curves *c) {
    const sp_series all[LINES] = {
        {"trained Forecast", c_forecast, c->y[0], false},
        {"fine teacher of training", c_ceiling, c->y[1], false},
        {"InfiniGen-style", c_infinigen, c->y[2], false},
        {"previous step's blocks", c_stale, c->y[3], false},
        {"untrained Forecast", c_untrained, c->y[4], false},
        {"chance", c_chance, c->y[5], true},
    };
    memcpy(s, all, sizeof all);
}

// Mean over the heads of each layer.
static void layer_curves(json_t *per_layer, curves *c) {
    size_t i;
    json_t *o;
    int heads[MAX_POINTS] = {0};
    c->n = 0;
    memset(c->y, 0, sizeof c->y);
    json_array_foreach(per_layer, i, o) {
        int l = (int)json_integer_value(json_object_get(o, "layer"));
        if (l < 0 || l >= MAX_POINTS) continue;
        if (l >= c->n) c->n = l + 1;
        heads[l]++;
        for (int k = 0; k < LINES; k++) c->y[k][l] += sp_json_at(o, curve_key[k]);
    }
    for (int l = 0; l < c->n; l++) {
        for (int k = 0; k < LINES; k++) c->y[k][l] /= heads[l];
        snprintf(c->label[l], sizeof c->label[l], "%d", l);
        c->labels[l] = c->label[l];
    }
}

static void position_curves(json_t *bins, curves *c) {
    size_t i;
    json_t *o;
    c->n = 0;
    json_array_foreach(bins, i, o) {
        if (c->n == MAX_POINTS) break;
        for (int k = 0; k < LINES; k++) c->y[k][c->n] = sp_json_at(o, curve_key[k]);
        snprintf(c->label[c->n], sizeof c->label[0], "%.0f", sp_json_at(o, "to") + 1);
        c->labels[c->n] = c->label[c->n];
        c->n++;
    }
}

void sp_html_caption(sp_text *t, const char *text) {
    sp_html_element(t, "figcaption", "", text);
}

static void recall_charts(sp_text *t, json_t *root) {
    json_t *list = json_object_get(json_object_get(root, "selection"), "per_length"), *o;
    size_t i;
    if (!json_array_size(list)) return;
    curves *c = calloc(1, sizeof *c);
    if (!c) {
        t->failed = true;
        return;
    }
    sp_text_add(
        t, "<h2>Block recall</h2><p class=\"sub\">Share of the original selector's chosen "
           "blocks (forced ones not counted) that each predictor also chooses, on the same "
           "hidden states. Only queries with more candidates than blocks to choose. The fine "
           "teacher is what training aims at: its own agreement with the original selector "
           "is as much as can be asked of a Forecast, though a rival may exceed it.</p>"
           "<p class=\"sub\">The recall that training reports is another number: it compares "
           "with the fine teacher&#39;s blocks, on hidden states that the teacher&#39;s blocks "
           "produced, with blocks of the future among the candidates and windows that count "
           "from their first token on. Here all is as at inference: the original selector, "
           "its hidden states, complete windows, the future masked.</p>"
           "<div class=\"charts\">");
    json_array_foreach(list, i, o) {
        char title[64];
        sp_series s[LINES];
        set_series(s, c);
        snprintf(title, sizeof title, "By layer, %.0f tokens", sp_json_at(o, "len"));
        layer_curves(json_object_get(o, "per_layer"), c);
        sp_text_add(t, "<figure><h3>%s</h3>", title);
        sp_chart_lines(t, title, s, LINES, c->labels, c->n, 12, "layer", "recall");
        sp_text_add(t, "</figure>");
        snprintf(title, sizeof title, "By position of the query, %.0f tokens",
                 sp_json_at(o, "len"));
        position_curves(json_object_get(o, "by_position"), c);
        s[2] = s[3];
        s[3] = s[4];
        s[4] = s[5];
        sp_text_add(t, "<figure><h3>%s</h3>", title);
        sp_chart_lines(t, title, s, LINES - 1, c->labels, c->n, 8, "position, tokens", "recall");
        sp_text_add(t, "</figure>");
    }
    sp_text_add(t, "</div>");
    free(c);
}

static void kl_chart(sp_text *t, json_t *root) {
    json_t *list = json_object_get(json_object_get(root, "logits"), "per_length"), *o;
    size_t i;
    enum { MAX_BARS = 24 };
    sp_bar bar[MAX_BARS];
    int n = 0;
    json_array_foreach(list, i, o) {
        static const char *const key[] = {"kl_dense_sparse", "kl_sparse_sparda",
                                          "kl_sparse_untrained"};
        static const char *const name[] = {"dense || sparse", "sparse || Forecast",
                                           "sparse || untrained"};
        const char *colour[] = {c_original, c_forecast, c_untrained};
        for (int k = 0; k < 3 && n < MAX_BARS; k++, n++) {
            bar[n].value = sp_json_at(json_object_get(o, key[k]), "mean");
            bar[n].colour = colour[k];
            snprintf(bar[n].label, sizeof bar[n].label, "%.0f: %s", sp_json_at(o, "len"), name[k]);
        }
    }
    if (!n) return;
    sp_text_add(t, "<figure><h3>Divergence of the logits</h3>");
    sp_chart_log_bars(t, "Mean KL divergence of the logits", bar, n, "KL, nat (logarithmic)");
    sp_html_caption(
        t, "The Forecast should move the logits no more than sparse attention itself did.");
    sp_text_add(t, "</figure>");
}

enum { SELECTORS = 6 };
static const struct {
    const char *key, *name;
} selector[SELECTORS] = {
    {"dense", "dense attention"},           {"original", "original selector"},
    {"infinigen", "InfiniGen-style proxy"}, {"untrained", "untrained Forecast"},
    {"forecast", "trained Forecast"},       {"random", "random blocks"},
};

static void needle_chart(sp_text *t, json_t *root) {
    json_t *list = json_object_get(root, "retrieval"), *o;
    size_t i;
    enum { MAX_GROUPS = 12 };
    double y[SELECTORS][MAX_GROUPS];
    char label[MAX_GROUPS][32];
    const char *labels[MAX_GROUPS];
    int n = 0;
    json_array_foreach(list, i, o) {
        if (n == MAX_GROUPS) break;
        for (int k = 0; k < SELECTORS; k++) y[k][n] = sp_json_at(o, selector[k].key);
        snprintf(label[n], sizeof label[n], "%s %.0f", sp_html_text_at(o, "task"),
                 sp_json_at(o, "len"));
        labels[n] = label[n];
        n++;
    }
    if (!n) return;
    const char *colour[SELECTORS] = {c_dense,     c_original, c_infinigen,
                                     c_untrained, c_forecast, c_chance};
    sp_series s[SELECTORS];
    for (int k = 0; k < SELECTORS; k++)
        s[k] = (sp_series){selector[k].name, colour[k], y[k], false};
    sp_text_add(t, "<figure><h3>Needle accuracy</h3>");
    sp_chart_columns(t, "Needle accuracy by task and selector", s, SELECTORS, labels, n);
    sp_html_caption(t, "Each question is put to every selector.");
    sp_text_add(t, "</figure>");
}

// ---- tables -------------------------------------------------------------------------------------

static double loss_of(json_t *root, double len, const char *key) {
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(root, "lm_loss"), i,
                       o) if (sp_json_at(o, "len") == len) return sp_json_at(o, key);
    return NAN;
}

static void selector_table(sp_text *t, json_t *root) {
    json_t *needles = json_object_get(root, "retrieval"), *o;
    json_t *lengths = json_object_get(json_object_get(root, "selection"), "per_length");
    size_t i;
    if (!json_array_size(needles) && !json_array_size(lengths)) return;
    sp_text_add(t, "<h2>Selectors compared</h2><div class=\"scroll\"><table><thead><tr><th></th>");
    json_array_foreach(needles, i, o) {
        sp_text_add(t, "<th class=\"n\">");
        sp_html_escape(t, sp_html_text_at(o, "task"));
        sp_text_add(t, "<br>%.0f</th>", sp_json_at(o, "len"));
    }
    json_array_foreach(lengths, i, o)
        sp_text_add(t, "<th class=\"n\">recall<br>%.0f</th>", sp_json_at(o, "len"));
    json_array_foreach(lengths, i, o)
        sp_text_add(t, "<th class=\"n\">LM loss<br>%.0f</th>", sp_json_at(o, "len"));
    sp_text_add(t, "</tr></thead><tbody>");
    for (int k = 0; k < SELECTORS; k++) {
        const char *key = selector[k].key;
        sp_text_add(t, "<tr%s><td>%s</td>", strcmp(key, "forecast") == 0 ? " class=\"hl\"" : "",
                    selector[k].name);
        json_array_foreach(needles, i, o) sp_html_number(t, sp_json_at(o, key), "%.3f");
        json_array_foreach(lengths, i, o) sp_html_number(t, sp_selector_recall(o, key), "%.3f");
        json_array_foreach(lengths, i, o)
            sp_html_number(t, loss_of(root, sp_json_at(o, "len"), key), "%.4f");
        sp_text_add(t, "</tr>");
    }
    sp_text_add(t, "</tbody></table></div>");
    o = json_array_get(needles, 0);
    if (o)
        sp_text_add(t,
                    "<p class=\"sub\">Needle columns: share of right answers among %.0f "
                    "sequences each, standard error at most %.3f. Recall of random blocks is "
                    "chance.</p>",
                    sp_json_at(o, "n"), 0.5 / sqrt(sp_json_at(o, "n")));
    json_array_foreach(lengths, i, o) {
        sp_text_add(
            t, "%s%.0f texts of %.0f tokens, measured at %.0f positions each",
            i > 0 ? "; " : "<p class=\"sub\">Recall and loss columns: ", sp_json_at(o, "sequences"),
            sp_json_at(o, "len"), sp_json_at(o, "positions_each"));
    }
    if (i > 0) sp_text_add(t, ".</p>");
}

static void check_rows(sp_text *t, json_t *root) {
    size_t i;
    json_t *c;
    sp_text_add(t, "<h2>Checks</h2><table class=\"checks\"><thead><tr><th></th><th>Check</th>"
                   "<th>Result</th><th class=\"n\">Value</th><th class=\"n\">Gate</th></tr></thead>"
                   "<tbody>");
    json_array_foreach(json_object_get(root, "checks"), i, c) {
        const char *status = sp_html_text_at(c, "status");
        if (strcmp(status, "skip") == 0) continue;
        double value = sp_json_at(c, "value"), threshold = sp_json_at(c, "threshold");
        sp_text_add(t, "<tr><td><b>");
        sp_html_escape(t, sp_html_text_at(c, "id"));
        sp_text_add(t, "</b></td><td class=\"w\">");
        sp_html_escape(t, sp_html_text_at(c, "title"));
        if (*sp_html_text_at(c, "reason"))
            sp_html_element(t, "div", "class=\"why\"", sp_html_text_at(c, "reason"));
        sp_text_add(t, "</td><td class=\"s ");
        sp_html_escape(t, status);
        sp_text_add(t, "\">");
        sp_html_escape(t, status);
        sp_text_add(t, "</td><td class=\"n\">");
        if (isfinite(value)) {
            sp_text_add(t, "%.4g ", value);
            sp_html_escape(t, sp_html_text_at(c, "unit"));
        }
        sp_text_add(t, "</td><td class=\"n\">");
        if (isfinite(threshold)) {
            sp_html_escape(t, sp_html_text_at(c, "op"));
            sp_text_add(t, " %.4g ", threshold);
        }
        sp_html_element(t, "span", "class=\"sub\"", sp_html_text_at(c, "severity"));
        sp_text_add(t, "</td></tr>");
    }
    sp_text_add(t, "</tbody></table><p class=\"sub\">A hard gate fails the validation, a soft one "
                   "warns, info is reported only.</p>");
}

// Checks that did not run, those with the same reason together.
static void skipped_rows(sp_text *t, json_t *root) {
    json_t *checks = json_object_get(root, "checks"), *c, *o;
    size_t i, k;
    bool open = false;
    json_array_foreach(checks, i, c) {
        const char *why = sp_html_text_at(c, "reason");
        if (strcmp(sp_html_text_at(c, "status"), "skip") != 0) continue;
        bool seen = false;
        for (k = 0; k < i && !seen; k++) {
            o = json_array_get(checks, k);
            seen = strcmp(sp_html_text_at(o, "status"), "skip") == 0 &&
                   strcmp(sp_html_text_at(o, "reason"), why) == 0;
        }
        if (seen) continue;
        if (!open)
            sp_text_add(t, "<h3 style=\"margin-top:20px\">Not run here</h3><dl class=\"skips\">");
        open = true;
        sp_html_element(t, "dt", "class=\"why\"", why);
        sp_text_add(t, "<dd>");
        json_array_foreach(checks, k, o) {
            if (strcmp(sp_html_text_at(o, "status"), "skip") != 0 ||
                strcmp(sp_html_text_at(o, "reason"), why) != 0)
                continue;
            sp_text_add(t, "<div><b>");
            sp_html_escape(t, sp_html_text_at(o, "id"));
            sp_text_add(t, "</b> ");
            sp_html_escape(t, sp_html_text_at(o, "title"));
            sp_text_add(t, "</div>");
        }
        sp_text_add(t, "</dd>");
    }
    if (open) sp_text_add(t, "</dl>");
}

static void exported(sp_text *t, json_t *root) {
    json_t *e = json_object_get(root, "export"), *o;
    size_t i;
    sp_text_add(t, "<h2>Exported files</h2><div class=\"scroll\"><table><thead><tr><th>File</th>"
                   "<th>Format</th><th class=\"n\">Bytes</th><th>SHA-256</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(e, "files"), i, o) {
        sp_text_add(t, "<tr>");
        sp_html_element(t, "td", "", sp_html_text_at(o, "path_rel"));
        sp_html_element(t, "td", "", sp_html_text_at(o, "format"));
        sp_html_number(t, sp_json_at(o, "bytes"), "%.0f");
        sp_text_add(t, "<td>");
        sp_html_element(t, "code", "", sp_html_text_at(o, "sha256"));
        sp_text_add(t, "</td></tr>");
    }
    sp_text_add(t, "</tbody></table></div><details><summary>Tensors</summary><div class=\"scroll\">"
                   "<table><thead><tr><th>Name</th><th>Type</th><th class=\"n\">RMS</th>"
                   "<th class=\"n\">Max</th><th>Used</th><th>SHA-256</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(e, "tensors"), i, o) {
        sp_text_add(t, "<tr><td>");
        sp_html_element(t, "code", "", sp_html_text_at(o, "name"));
        sp_text_add(t, "</td>");
        sp_html_element(t, "td", "", sp_html_text_at(o, "dtype"));
        sp_html_number(t, sp_json_at(o, "rms"), "%.4g");
        sp_html_number(t, sp_json_at(o, "max_abs"), "%.4g");
        sp_html_element(t, "td", "", json_is_true(json_object_get(o, "used")) ? "yes" : "no");
        sp_text_add(t, "<td>");
        sp_html_element(t, "code", "", sp_html_text_at(o, "sha256"));
        sp_text_add(t, "</td></tr>");
    }
    sp_text_add(t, "</tbody></table></div></details>");
}

// Every scalar of a section as one row of a list; nested objects and nulls are left out.
static void facts(sp_text *t, json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v) {
        char s[64];
        const char *text = json_string_value(v);
        if (json_is_integer(v)) {
            snprintf(s, sizeof s, "%lld", (long long)json_integer_value(v));
            text = s;
        } else if (json_is_real(v)) {
            snprintf(s, sizeof s, "%.6g", json_real_value(v));
            text = s;
        }
        if (!text) continue;
        sp_html_element(t, "dt", "", key);
        sp_html_element(t, "dd", "", text);
    }
}

static void setting(sp_text *t, json_t *root) {
    static const char *const section[] = {"model", "sparse", "workload", "machine"};
    static const char *const title[] = {"Base model", "Sparse attention", "Workload", "Machine"};
    sp_text_add(t, "<h2>Set-up</h2><div class=\"charts\">");
    for (int i = 0; i < 4; i++) {
        sp_text_add(t, "<figure><h3>%s</h3><dl>", title[i]);
        facts(t, json_object_get(root, section[i]));
        sp_text_add(t, "</dl></figure>");
    }
    sp_text_add(t, "</div><footer>Made by sparda ");
    json_t *tool = json_object_get(root, "tool");
    sp_html_escape(t, sp_html_text_at(tool, "version"));
    sp_text_add(t, " (");
    sp_html_escape(t, sp_html_text_at(tool, "git"));
    sp_text_add(t, "). The same numbers, and more, are in validation_report.json.</footer>");
}

sp_status sp_report_html(json_t *root, char **html) {
    sp_text t = {0};
    *html = NULL;
    sp_text_add(&t, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>"
                    "Forecast validation: ");
    sp_html_escape(&t, sp_html_text_at(json_object_get(root, "model"), "name"));
    sp_text_add(&t, "</title><style>%s</style></head><body><main>\n", style);
    verdict(&t, root);
    issues(&t, root);
    tiles(&t, root);
    selector_table(&t, root);
    recall_charts(&t, root);
    if (last(json_object_get(root, "lm_loss")) || last(json_object_get(root, "retrieval"))) {
        sp_text_add(&t, "<h2>Logits and retrieval</h2><div class=\"charts\">");
        kl_chart(&t, root);
        needle_chart(&t, root);
        sp_text_add(&t, "</div>");
    }
    sp_html_serving(&t, root);
    check_rows(&t, root);
    skipped_rows(&t, root);
    exported(&t, root);
    setting(&t, root);
    sp_text_add(&t, "</main></body></html>\n");
    if (t.failed || !t.data) {
        sp_text_free(&t);
        return sp_error(SP_ENVIRONMENT, "out of memory for the report page");
    }
    *html = t.data;
    return SP_OK;
}
