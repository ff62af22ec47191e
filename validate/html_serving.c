// The part of the report page about serving (inference.md 5.4 T and M): decode throughput of every
// baseline against its limit, one step on its streams, misses by slot capacity, memory.
#include "validate/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const c_ours = "#1d5fd1", *const c_other = "#98a2ae", *const c_copy = "#d9822b",
                         *const c_wait = "#c2362b";

static json_t *section(json_t *root, const char *name) {
    return json_object_get(root, name);
}

// ---- throughput ---------------------------------------------------------------------------------

static const struct {
    const char *mode, *text;
} modes[] = {
    {"dense", "every key, all in GPU memory"},
    {"sparse-resident", "original selector, all in GPU memory"},
    {"sparse-offload", "original selector, blocks at home on the host, copied when chosen"},
    {"forecast-resident", "Forecast, all in GPU memory"},
    {"forecast-inline", "Forecast, blocks on the host, copied when needed"},
    {"sparda", "Forecast, blocks on the host, copied one layer ahead"},
    {"infinigen", "InfiniGen's proxy of the next layer's queries, copied one layer ahead"},
};
enum { N_MODES = sizeof modes / sizeof *modes };

static const char *mode_text(const char *mode) {
    for (int i = 0; i < N_MODES; i++)
        if (strcmp(mode, modes[i].mode) == 0) return modes[i].text;
    return "";
}

static void throughput_table(sp_text *t, json_t *rows) {
    size_t i;
    json_t *o;
    sp_text_add(t,
                "<div class=\"scroll\"><table><thead><tr><th>Way to serve</th>"
                "<th class=\"n\">Tokens</th><th class=\"n\">Batch</th>"
                "<th class=\"n\">Decode,<br>tokens/s</th><th class=\"n\">Step,<br>ms, median</th>"
                "<th class=\"n\">Step,<br>ms, p99</th><th class=\"n\">Limit,<br>ms</th>"
                "<th class=\"n\">Of the<br>limit</th><th class=\"n\">Prefill,<br>tokens/s</th>"
                "</tr></thead><tbody>");
    json_array_foreach(rows, i, o) {
        const char *mode = sp_html_text_at(o, "mode");
        sp_text_add(t, "<tr%s><td>", strcmp(mode, "sparda") == 0 ? " class=\"hl\"" : "");
        sp_html_escape(t, mode);
        if (*mode_text(mode)) sp_html_element(t, "div", "class=\"why\"", mode_text(mode));
        sp_text_add(t, "</td>");
        sp_html_number(t, sp_json_at(o, "len"), "%.0f");
        sp_html_number(t, sp_json_at(o, "batch"), "%.0f");
        sp_html_number(t, sp_json_at(o, "decode_tok_s"), "%.0f");
        sp_html_number(t, sp_json_at(o, "ms_p50"), "%.2f");
        sp_html_number(t, sp_json_at(o, "ms_p99"), "%.2f");
        sp_html_number(t, sp_json_at(o, "roofline_ms"), "%.2f");
        sp_html_number(t, 100 * sp_json_at(o, "share"), "%.0f%%");
        sp_html_number(t, sp_json_at(o, "prefill_tok_s"), "%.0f");
        sp_text_add(t, "</tr>");
    }
    sp_text_add(t,
                "</tbody></table></div><p class=\"sub\">Limit: the time in which this card could "
                "read what a step must read and this link could move the blocks it misses, each "
                "at the rate measured on this machine; copies ahead count beside the "
                "computation, others after it.</p>");
}

static void breakdown_table(sp_text *t, json_t *rows) {
    static const struct {
        const char *key, *text;
    } part[] = {{"linear", "Projections"},
                {"select", "Choosing blocks"},
                {"wait", "Waiting for blocks"},
                {"attention", "Attention"},
                {"mlp", "MLP"},
                {"other", "Head, next token"}};
    enum { PARTS = sizeof part / sizeof *part };
    size_t i;
    json_t *o;
    sp_text_add(t, "<div class=\"scroll\"><table><thead><tr><th>Where a step's time goes, ms</th>");
    for (int x = 0; x < PARTS; x++) sp_html_element(t, "th", "class=\"n\"", part[x].text);
    sp_text_add(t, "</tr></thead><tbody>");
    json_array_foreach(rows, i, o) {
        json_t *parts = json_object_get(o, "breakdown_ms");
        sp_text_add(t, "<tr><td>");
        sp_html_escape(t, sp_html_text_at(o, "mode"));
        sp_text_add(t, "</td>");
        for (int x = 0; x < PARTS; x++) sp_html_number(t, sp_json_at(parts, part[x].key), "%.2f");
        sp_text_add(t, "</tr>");
    }
    sp_text_add(t, "</tbody></table></div><p class=\"sub\">Noted in one more step, whose parts do "
                   "not overlap: their sum is more than the median above.</p>");
}

static void throughput_chart(sp_text *t, json_t *rows) {
    enum { MAX_BARS = 24 };
    sp_bar bar[MAX_BARS];
    size_t i;
    json_t *o;
    int n = 0;
    json_array_foreach(rows, i, o) {
        if (n == MAX_BARS) break;
        const char *mode = sp_html_text_at(o, "mode");
        double batch = sp_json_at(o, "batch");
        bar[n] = (sp_bar){.value = sp_json_at(o, "decode_tok_s"),
                          .mark = 1e3 * batch / sp_json_at(o, "roofline_ms"),
                          .colour = strcmp(mode, "sparda") == 0 ? c_ours : c_other};
        snprintf(bar[n].label, sizeof bar[n].label, "%s, batch %.0f", mode, batch);
        n++;
    }
    sp_text_add(t, "<figure><h3>Decode throughput</h3>");
    sp_chart_bars(t, "Decode tokens per second of every way to serve", bar, n, "tokens/s");
    sp_html_caption(t, "Line: what the limit allows.");
    sp_text_add(t, "</figure>");
}

// ---- one step on its streams --------------------------------------------------------------------

static void timeline(sp_text *t, json_t *spans) {
    enum { MAX_SPANS = 1024, ROWS = 2 };
    static const char *const names[ROWS] = {"compute", "copy"};
    static sp_span span[MAX_SPANS];
    size_t i;
    json_t *o;
    int n = 0;
    json_array_foreach(spans, i, o) {
        if (n == MAX_SPANS) break;
        const char *stream = sp_html_text_at(o, "stream"), *what = sp_html_text_at(o, "what");
        bool copy = strcmp(stream, "copy") == 0, wait = strcmp(what, "wait") == 0;
        bool choice = strcmp(what, "choose") == 0;
        span[n] = (sp_span){.row = copy,
                            .from = sp_json_at(o, "start_ms"),
                            .to = sp_json_at(o, "end_ms"),
                            .colour = wait     ? c_wait
                                      : choice ? c_other
                                      : copy   ? c_copy
                                               : c_ours};
        snprintf(span[n].title, sizeof span[n].title, "layer %.0f, %s", sp_json_at(o, "layer"),
                 wait     ? "waits for its blocks"
                 : choice ? "its blocks are chosen"
                 : copy   ? "its blocks are copied"
                          : "computed");
        n++;
    }
    if (!n) return;
    sp_text_add(t, "<figure class=\"wide\"><h3>One decode step on both streams</h3>");
    sp_chart_timeline(t, "Timeline of one decode step: computation and copies by layer", names,
                      ROWS, span, n, "ms");
    const sp_series key[] = {{"a layer is computed", c_ours, NULL, false},
                             {"its blocks are chosen ahead", c_other, NULL, false},
                             {"and copied", c_copy, NULL, false},
                             {"waits for blocks", c_wait, NULL, false}};
    sp_chart_legend(t, key, 4);
    sp_html_caption(t, "By the clock of the GPU, noted on all streams in a step that is not part "
                       "of the other times.");
    sp_text_add(t, "</figure>");
}

// ---- misses -------------------------------------------------------------------------------------

static void miss_curve(sp_text *t, json_t *prefetch) {
    enum { MAX = 32 };
    json_t *curve = json_object_get(prefetch, "miss_curve"), *o;
    double y[MAX], top = 0;
    char label[MAX][24];
    const char *labels[MAX];
    size_t i;
    int n = 0;
    json_array_foreach(curve, i, o) {
        if (n == MAX) break;
        y[n] = sp_json_at(o, "miss");
        if (isfinite(y[n])) top = fmax(top, y[n]);
        snprintf(label[n], sizeof label[n], "%.0f", sp_json_at(o, "slots"));
        labels[n] = label[n];
        n++;
    }
    if (!n) return;
    const sp_series s = {"misses, least recently used slots go first", c_ours, y, false};
    sp_text_add(t, "<figure><h3>Misses by slot capacity</h3>");
    sp_chart_scaled_lines(t, "Share of wanted blocks that are missing, by slots", &s, 1, labels, n,
                          12, "slots per sequence and KV head", "share missing",
                          top > 0 ? ceil(20 * top) / 20 : 1);
    char text[256];
    snprintf(
        text, sizeof text,
        "From the lists of a real run. %.1f%% of all listed blocks were in the list of the step "
        "before; of the chosen ones (forced blocks not counted) %.1f%%.",
        100 * sp_json_at(prefetch, "hit_rate_all"), 100 * sp_json_at(prefetch, "hit_rate_chosen"));
    if (isfinite(sp_json_at(prefetch, "hit_rate_chosen"))) sp_html_caption(t, text);
    sp_text_add(t, "</figure>");
}

// ---- memory -------------------------------------------------------------------------------------

static const double gib = 1024.0 * 1024 * 1024;

static bool memory_chart(sp_text *t, json_t *memory) {
    static const struct {
        const char *key, *name;
    } parts[] = {
        {"weights", "weights"},        {"slots", "slots"},
        {"layer0", "resident layers"}, {"compressed_keys", "compressed keys"},
        {"workspace", "workspace"},
    };
    enum { PARTS = sizeof parts / sizeof *parts };
    json_t *hbm = json_object_get(memory, "hbm_bytes");
    sp_bar bar[PARTS + 1];
    int n = 0;
    for (int i = 0; i <= PARTS; i++) {
        double bytes =
            i < PARTS ? sp_json_at(hbm, parts[i].key) : sp_json_at(memory, "host_pinned_bytes");
        if (!isfinite(bytes)) continue;
        bar[n] = (sp_bar){.value = bytes / gib, .mark = NAN, .colour = i < PARTS ? c_ours : c_copy};
        snprintf(bar[n].label, sizeof bar[n].label, "%s",
                 i < PARTS ? parts[i].name : "host, pinned");
        n++;
    }
    if (!n) return false;
    sp_text_add(t, "<figure><h3>Memory</h3>");
    sp_chart_bars(t, "Memory of the decode engine by part", bar, n, "GiB");
    json_t *max = json_object_get(memory, "max_batch");
    char text[256];
    snprintf(
        text, sizeof text,
        "As allocated, in GPU memory but for the last. At %.0f tokens, at most %.0f sequences fit "
        "into the memory of this GPU and %.0f into that of the host.",
        sp_json_at(max, "len"), sp_json_at(max, "hbm"), sp_json_at(max, "host"));
    if (isfinite(sp_json_at(max, "hbm"))) sp_html_caption(t, text);
    sp_text_add(t, "</figure>");
    return true;
}

// ---- the section --------------------------------------------------------------------------------

void sp_html_serving(sp_text *t, json_t *root) {
    json_t *rows = section(root, "throughput"), *prefetch = section(root, "prefetch");
    json_t *memory = section(root, "memory"), *spans = json_object_get(prefetch, "timeline");
    bool speed = json_array_size(rows) > 0;
    bool curve = json_array_size(json_object_get(prefetch, "miss_curve")) > 0;
    bool part = isfinite(sp_json_at(json_object_get(memory, "hbm_bytes"), "slots"));
    if (!speed && !curve && !part && !json_array_size(spans)) return;
    sp_text_add(t, "<h2>Serving</h2>");
    if (speed) throughput_table(t, rows), breakdown_table(t, rows);
    timeline(t, spans);
    sp_text_add(t, "<div class=\"charts\">");
    if (speed) throughput_chart(t, rows);
    miss_curve(t, prefetch);
    memory_chart(t, memory);
    sp_text_add(t, "</div>");
    double hidden = sp_json_at(prefetch, "hidden_fraction"),
           cap = sp_json_at(prefetch, "hidden_cap");
    double gbps = sp_json_at(prefetch, "gbps"), reference = sp_json_at(prefetch, "gbps_reference");
    sp_text_add(t, "<p class=\"sub\">");
    if (isfinite(hidden))
        sp_text_add(
            t,
            "Of the time of the copies %.0f%% is hidden; at most %.0f%% could be, given how "
            "long a layer and its copies take. ",
            100 * hidden, 100 * cap);
    if (isfinite(gbps))
        sp_text_add(t,
                    "Blocks are copied at %.1f GB/s, a long plain copy from pinned memory runs at "
                    "%.1f GB/s.",
                    gbps, reference);
    sp_text_add(t, "</p>");
}
