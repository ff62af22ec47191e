// The report: keys of the schema, the verdict, escaping, files that appear together or not at all.
#include "common/util.h"
#include "tests/support.h"
#include "validate/chart.h"
#include "validate/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- the schema ---------------------------------------------------------------------------------

// Paths of inference.md 5.5; "[]" is any element of a list that has one.
static const char *const keys[] = {
    "schema",
    "status",
    "created_utc",
    "tool.name",
    "tool.version",
    "tool.git",
    "tool.build.cuda",
    "tool.build.arch",
    "tool.build.flags",
    "machine.gpu",
    "machine.sm_count",
    "machine.hbm_gib",
    "machine.driver",
    "machine.cuda",
    "machine.pcie.gen",
    "machine.pcie.width",
    "machine.host_ram_gib",
    "machine.numa_node",
    "model.name",
    "model.layers",
    "model.hidden",
    "model.q_heads",
    "model.kv_heads",
    "model.head_dim",
    "model.vocab",
    "model.dtype",
    "model.rope",
    "model.backbone_sha256",
    "sparse.block",
    "sparse.kernel",
    "sparse.stride",
    "sparse.init_blocks",
    "sparse.local_blocks",
    "sparse.k_effective",
    "sparse.k_forced",
    "sparse.k_chosen",
    "sparse.dense_len",
    "export.files",
    "export.tensors",
    "workload.text_source",
    "workload.lengths",
    "workload.batch",
    "workload.decode_steps",
    "workload.warmup_steps",
    "workload.repeats",
    "workload.seed",
    "checks",
    "selection.per_length",
    "logits.kl_sparse_sparda.mean",
    "logits.kl_sparse_sparda.p50",
    "logits.kl_sparse_sparda.p99",
    "logits.kl_dense_sparse",
    "logits.ratio",
    "logits.top1_agree",
    "logits.delta_nll",
    "retrieval",
    "lm_loss",
    "prefetch.bit_equal_steps",
    "prefetch.units_checked",
    "prefetch.checksum_errors",
    "prefetch.hit_rate_all",
    "prefetch.hit_rate_chosen",
    "prefetch.units_per_step",
    "prefetch.bytes_per_step",
    "prefetch.miss_curve",
    "prefetch.timeline",
    "prefetch.ctas",
    "prefetch.engine",
    "prefetch.gbps",
    "prefetch.gbps_reference",
    "prefetch.hidden_fraction",
    "prefetch.hidden_cap",
    "prefetch.interference",
    "throughput",
    "memory.hbm_bytes.weights",
    "memory.hbm_bytes.slots",
    "memory.hbm_bytes.compressed_keys",
    "memory.hbm_bytes.layer0",
    "memory.hbm_bytes.workspace",
    "memory.host_pinned_bytes",
    "memory.predicted",
    "memory.max_batch.len",
    "memory.max_batch.hbm",
    "memory.max_batch.host",
};

static json_t *at_path(json_t *o, const char *path) {
    char *copy = sp_strdup(path), *save = NULL;
    for (char *part = strtok_r(copy, ".", &save); part && o; part = strtok_r(NULL, ".", &save))
        o = json_object_get(o, part);
    free(copy);
    return o;
}

static void test_every_key_is_there(void **state) {
    (void)state;
    sp_report r;
    bool failed;
    assert_ok(sp_report_open(&r));
    assert_ok(sp_report_finish(&r, false, &failed));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!at_path(r.root, keys[i])) fail_msg("the report lacks %s", keys[i]);
    assert_string_equal(json_string_value(at_path(r.root, "schema")), "sparda.validation/1");
    static const char *const check_keys[] = {"id",    "group", "severity",  "status", "reason",
                                             "value", "unit",  "threshold", "op",     "noise_floor",
                                             "n",     "ci95",  "remedy"};
    int64_t n;
    sp_check_table(&n);
    assert_int_equal(json_array_size(r.checks), n);
    size_t i;
    json_t *c;
    json_array_foreach(at_path(r.root, "checks"), i, c) {
        for (size_t k = 0; k < sizeof check_keys / sizeof *check_keys; k++)
            if (!json_object_get(c, check_keys[k])) fail_msg("a check lacks %s", check_keys[k]);
        // Whatever did not run says why.
        assert_string_equal(json_string_value(json_object_get(c, "status")), "skip");
        assert_true(strlen(json_string_value(json_object_get(c, "reason"))) > 0);
        assert_int_equal(json_array_size(json_object_get(c, "ci95")), 2);
    }
    sp_report_close(&r);
}

// ---- verdict ------------------------------------------------------------------------------------

static const char *verdict(const char *id, sp_outcome outcome, bool strict, bool *failed) {
    static char text[32];
    sp_report r;
    assert_ok(sp_report_open(&r));
    sp_check c = sp_check_blank(id);
    c.outcome = outcome;
    c.reason = "because";
    assert_ok(sp_report_add(&r, &c));
    assert_ok(sp_report_finish(&r, strict, failed));
    snprintf(text, sizeof text, "%s", json_string_value(json_object_get(r.root, "status")));
    sp_report_close(&r);
    return text;
}

static void test_verdict(void **state) {
    (void)state;
    bool failed;
    assert_string_equal(verdict("E1", SP_PASS, true, &failed), "pass");
    assert_false(failed);
    assert_string_equal(verdict("Q5", SP_WARN, false, &failed), "pass_with_warnings");
    assert_false(failed);
    assert_string_equal(verdict("Q5", SP_WARN, true, &failed), "fail");
    assert_true(failed);
    assert_string_equal(verdict("P1", SP_FAIL, false, &failed), "fail");
    assert_true(failed);
    assert_string_equal(verdict("P2", SP_SKIP, true, &failed), "pass"); // a skip is no failure
    assert_false(failed);
}

static void test_checks_are_ordered_and_unique(void **state) {
    (void)state;
    sp_report r;
    bool failed;
    assert_ok(sp_report_open(&r));
    sp_check c = sp_check_blank("Q1");
    c.value = INFINITY; // no such number in JSON
    assert_ok(sp_report_add(&r, &c));
    assert_ok(sp_report_skip(&r, "E1", "nothing"));
    assert_fails(sp_report_skip(&r, "E1", "again"), SP_ENVIRONMENT, "recorded twice");
    assert_fails(sp_report_skip(&r, "Z9", "unknown"), SP_ENVIRONMENT, "not in the table");
    assert_ok(sp_report_finish(&r, false, &failed));
    assert_string_equal(json_string_value(json_object_get(json_array_get(r.checks, 0), "id")),
                        "E1");
    size_t i;
    json_t *o;
    json_array_foreach(r.checks, i,
                       o) if (strcmp(json_string_value(json_object_get(o, "id")), "Q1") == 0)
        assert_true(json_is_null(json_object_get(o, "value")));
    sp_report_close(&r);
}

// ---- the page -----------------------------------------------------------------------------------

static const char evil[] = "<script>alert('x')</script>&\"";

// A document with hostile text in every place that takes text, and some numbers to draw.
static void fill(sp_report *r) {
    json_t *root = r->root;
    json_object_set_new(json_object_get(root, "model"), "name", sp_json_text(evil));
    json_object_set_new(json_object_get(root, "model"), evil, sp_json_text(evil));
    json_object_set_new(json_object_get(root, "tool"), "version", sp_json_text(evil));
    json_object_set_new(json_object_get(root, "workload"), "text_source", sp_json_text(evil));
    json_array_append_new(at_path(root, "export.files"),
                          json_pack("{s:s, s:s, s:i, s:s}", "path_rel", evil, "format", evil,
                                    "bytes", 12, "sha256", evil));
    json_array_append_new(at_path(root, "export.tensors"),
                          json_pack("{s:s, s:s, s:f, s:n, s:s, s:b}", "name", evil, "dtype", evil,
                                    "rms", 0.5, "max_abs", "sha256", evil, "used", 1));
    json_t *needle = json_pack("{s:i, s:s, s:i}", "len", 1024, "task", evil, "n", 16);
    static const char *const row[] = {"dense",     "original", "infinigen",
                                      "untrained", "forecast", "random"};
    for (int i = 0; i < 6; i++) json_object_set_new(needle, row[i], json_real(0.1 * (i + 1)));
    json_array_append_new(json_object_get(root, "retrieval"), needle);
    json_t *cell = json_pack("{s:i, s:i, s:f, s:f, s:f, s:n, s:f, s:f, s:f, s:i}", "layer", 0,
                             "head", 0, "recall", 0.625, "mass", 0.7, "stale", 0.5, "infinigen",
                             "untrained", 0.25, "ceiling", 0.75, "chance", 0.2, "to", 1023);
    json_array_append_new(at_path(root, "selection.per_length"),
                          json_pack("{s:i, s:i, s:i, s:f, s:[O], s:[O], s:{s:f,s:f,s:f}}", "len",
                                    1024, "sequences", 5, "positions_each", 896, "chance", 0.2,
                                    "per_layer", cell, "by_position", cell, "mean", "recall", 0.625,
                                    "mass", 0.7, "normalised", 0.8));
    json_decref(cell);
    json_t *kl =
        json_pack("{s:i, s:{s:f}, s:{s:f}, s:{s:f}, s:f, s:f}", "len", 1024, "kl_dense_sparse",
                  "mean", 0.01234, "kl_sparse_sparda", "mean", 2.8e-5, "kl_sparse_untrained",
                  "mean", 0.0, "delta_nll", -3.1e-6, "top1_agree", 0.99);
    json_array_append_new(at_path(root, "logits.per_length"), kl);
    json_object_set_new(json_object_get(root, "logits"), "ratio", json_real(2.27e-3));
    json_object_set_new(json_object_get(root, "logits"), "delta_nll", json_real(-3.1e-6));
    // Serving, as a GPU run records it.
    json_array_append_new(json_object_get(root, "throughput"),
                          json_pack("{s:s, s:i, s:i, s:n, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:n}}",
                                    "mode", "sparda", "len", 131072, "batch", 4, "prefill_tok_s",
                                    "decode_tok_s", 812.0, "ms_p50", 4.93, "ms_p99", 5.31,
                                    "roofline_ms", 4.2, "share", 0.852, "breakdown_ms", "mlp", 3.21,
                                    "diff"));
    json_array_append_new(json_object_get(root, "throughput"),
                          json_pack("{s:s, s:i, s:i, s:f, s:n, s:n}", "mode", evil, "len", 131072,
                                    "batch", 4, "prefill_tok_s", 9000.0, "decode_tok_s", "ms_p50"));
    json_t *prefetch = json_object_get(root, "prefetch");
    for (int i = 0; i < 3; i++)
        json_array_append_new(json_object_get(prefetch, "miss_curve"),
                              json_pack("{s:i, s:f}", "slots", 96 << i, "miss", 0.2 / (1 << i)));
    json_array_append_new(json_object_get(prefetch, "timeline"),
                          json_pack("{s:s, s:i, s:f, s:f}", "stream", "compute", "layer", 0,
                                    "start_ms", 0.0, "end_ms", 0.13));
    json_array_append_new(json_object_get(prefetch, "timeline"),
                          json_pack("{s:s, s:s, s:i, s:f, s:f}", "stream", "copy", "what", evil,
                                    "layer", 1, "start_ms", 0.05, "end_ms", 0.14));
    json_object_set_new(prefetch, "hidden_fraction", json_real(0.91));
    json_object_set_new(prefetch, "hidden_cap", json_real(1));
    json_object_set_new(prefetch, "hit_rate_all", json_real(0.8));
    json_object_set_new(prefetch, "hit_rate_chosen", json_real(0.69));
    json_object_set_new(prefetch, "gbps", json_real(51.5));
    json_object_set_new(prefetch, "gbps_reference", json_real(53.2));
    json_object_set_new(at_path(root, "memory.hbm_bytes"), "slots", json_integer(201ll << 20));
    json_object_set_new(at_path(root, "memory.max_batch"), "len", json_integer(131072));
    json_object_set_new(at_path(root, "memory.max_batch"), "hbm", json_integer(330));
    json_object_set_new(at_path(root, "memory.max_batch"), "host", json_integer(28));
    sp_check c = sp_check_blank("E2");
    c.outcome = SP_FAIL;
    c.reason = evil;
    assert_ok(sp_report_add(r, &c));
    assert_ok(sp_report_skip(r, "P1", evil));
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part)) n++;
    return n;
}

static void test_page_escapes_and_is_self_contained(void **state) {
    (void)state;
    sp_report r;
    bool failed;
    char *html;
    assert_ok(sp_report_open(&r));
    fill(&r);
    assert_ok(sp_report_finish(&r, false, &failed));
    assert_ok(sp_report_html(r.root, &html));
    assert_null(strstr(html, "<script"));
    assert_null(strstr(html, "alert('x')"));
    assert_true(count(html, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;") >= 12);
    static const char *const external[] = {"http:", "https:", "src=", "url(", "@import", "<link"};
    for (size_t i = 0; i < sizeof external / sizeof *external; i++)
        if (strstr(html, external[i])) fail_msg("the page refers to %s", external[i]);
    // What it must show: the verdict first, both kinds of chart, the table, no number that is none.
    assert_non_null(strstr(html, "Failed"));
    assert_true(strstr(html, "Failed") < strstr(html, "<svg"));
    assert_int_equal(count(html, "<svg"), 8);
    assert_int_equal(count(html, "</svg>"), 8);
    // Serving: throughput against its limit, both streams, misses, memory.
    static const char *const shown[] = {"<td class=\"n\">812</td>",
                                        "<td class=\"n\">85%</td>",
                                        "copied one layer ahead",
                                        "layer 1, its blocks are copied, 0.050 to 0.140 ms",
                                        "of the chosen ones (forced blocks not counted) 69.0%",
                                        "at most 330 sequences",
                                        "<td class=\"n\">3.21</td>",
                                        "and 28 into that of the host",
                                        "Of the time of the copies 91% is hidden; at most 100%",
                                        "51.5 GB/s"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (!strstr(html, shown[i])) fail_msg("the page does not show %s", shown[i]);
    assert_non_null(
        strstr(html, "columns: 5 texts of 1024 tokens, measured at 896 positions each."));
    // Small divergences and differences do not become 0.
    assert_non_null(strstr(html, "<b>0.00227</b>"));
    assert_non_null(strstr(html, "<b>-3.1e-06</b>"));
    assert_non_null(strstr(html, ">2.8e-05</text>"));
    // One length was run: none is the shortest.
    assert_null(strstr(html, "shortest length"));
    assert_null(strstr(html, "ceiling"));
    assert_non_null(strstr(html, "trained Forecast"));
    assert_non_null(strstr(html, "0.625"));
    assert_null(strstr(html, ">nan"));
    assert_null(strstr(html, ">inf"));
    assert_null(strstr(html, "\"nan"));
    free(html);
    // An empty document makes a page, too.
    sp_report empty;
    assert_ok(sp_report_open(&empty));
    assert_ok(sp_report_finish(&empty, false, &failed));
    assert_ok(sp_report_html(empty.root, &html));
    assert_null(strstr(html, "<svg"));
    free(html);
    sp_report_close(&empty);
    sp_report_close(&r);
}

static void test_summary(void **state) {
    (void)state;
    sp_report r;
    bool failed;
    char *text;
    assert_ok(sp_report_open(&r));
    fill(&r);
    assert_ok(sp_report_finish(&r, false, &failed));
    assert_ok(sp_report_summary(r.root, &text));
    assert_non_null(strstr(text, "FAILED"));
    assert_non_null(strstr(text, "failed E2"));
    assert_true(count(text, "\n") <= 20);
    // The table comes last: random blocks, needle 0.600, recall at chance.
    char *row = strstr(text, "random blocks");
    assert_non_null(row);
    assert_non_null(strstr(row, "0.600"));
    assert_non_null(strstr(row, "0.200"));
    assert_int_equal(count(row, "\n"), 3); // and its footer
    assert_non_null(strstr(row, "16 questions each (standard error at most 0.125)"));
    assert_non_null(strstr(row, "over 5 texts, every layer and KV head"));
    assert_non_null(strstr(text, "0 checks passed, 0 warnings, 1 failure; "));
    assert_non_null(strstr(text, " not run here (E1 E3 "));
    assert_non_null(strstr(text, "&\" (Names, shapes, types; made for this base model)"));
    assert_non_null(strstr(text, "812 tokens/s at 131072 tokens, batch 4 (85% of the limit)"));
    assert_non_null(strstr(text, "moves the logits by 0.0123 nat (KL), the Forecast by 2.8e-05 nat "
                                 "more; loss -3.1e-06 nat a token"));
    free(text);
    sp_report_close(&r);

    // A reason that only announces a list is shown with its first entry.
    assert_ok(sp_report_open(&r));
    sp_check c = sp_check_blank("E1");
    c.outcome = SP_FAIL;
    c.reason = "weights in x.safetensors:\n  - x.safetensors is cut short\n  - the rest";
    assert_ok(sp_report_add(&r, &c));
    assert_ok(sp_report_finish(&r, false, &failed));
    assert_ok(sp_report_summary(r.root, &text));
    assert_non_null(
        strstr(text, "failed E1: weights in x.safetensors:   - x.safetensors is cut short (Every"));
    assert_null(strstr(text, "the rest"));
    assert_non_null(strstr(text, "  what helps, E1: export again; if it stays, memory or disk"));
    free(text);
    assert_ok(sp_report_html(r.root, &text));
    assert_non_null(strstr(text, "What helps: export again"));
    free(text);
    sp_report_close(&r);
}

static void test_remedy_once_for_all(void **state) {
    (void)state;
    static const char *const missed[] = {"Q2", "P3", "Q5"};
    sp_report r;
    bool failed;
    char *text;
    assert_ok(sp_report_open(&r));
    for (int i = 0; i < 3; i++) {
        sp_check c = sp_check_blank(missed[i]);
        c.outcome = SP_WARN;
        c.reason = "because";
        assert_ok(sp_report_add(&r, &c));
    }
    assert_ok(sp_report_finish(&r, false, &failed));
    assert_ok(sp_report_summary(r.root, &text));
    assert_non_null(strstr(text, "  what helps, P3: a fault of this build"));
    assert_non_null(strstr(text, "  what helps, Q2 Q5: if train/kl still falls"));
    free(text);
    sp_report_close(&r);
}

// A check that can be missed says what helps; one that was not missed does not.
static void test_remedies(void **state) {
    (void)state;
    int64_t n;
    const sp_check_info *table = sp_check_table(&n);
    for (int64_t i = 0; i < n; i++) {
        if (table[i].severity != SP_NOTE) assert_true(table[i].remedy && *table[i].remedy);
        for (int missed = 0; missed < 2; missed++) {
            sp_report r;
            assert_ok(sp_report_open(&r));
            sp_check c = sp_check_blank(table[i].id);
            c.outcome = missed ? SP_WARN : SP_PASS;
            c.reason = missed ? "because" : NULL;
            assert_ok(sp_report_add(&r, &c));
            json_t *remedy = json_object_get(json_array_get(r.checks, 0), "remedy");
            if (missed && table[i].remedy)
                assert_string_equal(json_string_value(remedy), table[i].remedy);
            else
                assert_true(json_is_null(remedy));
            sp_report_close(&r);
            assert_ok(sp_report_open(&r)); // that of the cause instead, or none
            c.remedy = "another";
            assert_ok(sp_report_add(&r, &c));
            remedy = json_object_get(json_array_get(r.checks, 0), "remedy");
            if (missed)
                assert_string_equal(json_string_value(remedy), "another");
            else
                assert_true(json_is_null(remedy));
            sp_report_close(&r);
            assert_ok(sp_report_open(&r));
            c.remedy = "";
            assert_ok(sp_report_add(&r, &c));
            assert_true(json_is_null(json_object_get(json_array_get(r.checks, 0), "remedy")));
            sp_report_close(&r);
        }
    }
}

// ---- files --------------------------------------------------------------------------------------

static bool exists(const char *dir, const char *name) {
    char *path = sp_path_join(dir, name);
    bool is = access(path, F_OK) == 0;
    free(path);
    return is;
}

static void test_files_appear_together(void **state) {
    (void)state;
    sp_report r;
    bool failed;
    char *dir = sp_path_join(test_tmpdir(), "report/deep");
    assert_ok(sp_report_open(&r));
    assert_ok(sp_report_finish(&r, false, &failed));
    assert_ok(sp_report_write(&r, dir));
    assert_true(exists(dir, "validation_report.json") && exists(dir, "validation_report.html"));
    char **names;
    int64_t n;
    assert_ok(sp_list_dir(dir, "", &names, &n));
    assert_int_equal(n, 2); // no temporary is left
    sp_free_names(names, n);
    json_error_t err;
    char *path = sp_path_join(dir, "validation_report.json");
    json_t *again = json_load_file(path, 0, &err);
    assert_non_null(again);
    assert_true(json_equal(again, r.root));
    json_decref(again);
    free(path);
    assert_ok(sp_report_remove(dir));
    assert_false(exists(dir, "validation_report.json") || exists(dir, "validation_report.html"));
    assert_ok(sp_report_remove(dir)); // nothing there is fine
    assert_ok(sp_report_remove("/nowhere/at/all"));

    // The JSON's name is taken by a folder: neither file appears.
    path = sp_path_join(dir, "validation_report.json/in-the-way");
    assert_ok(sp_mkdirs(path));
    assert_true(sp_report_write(&r, dir) != SP_OK);
    assert_false(exists(dir, "validation_report.html"));
    free(path);
    // No folder can be made where a file stands.
    path = sp_path_join(test_tmpdir(), "file");
    assert_ok(sp_write_file(path, "x", 1));
    assert_true(sp_report_write(&r, path) != SP_OK);
    free(path);
    free(dir);
    sp_report_close(&r);
}

static void test_text_of_any_bytes(void **state) {
    (void)state;
    json_t *v = sp_json_text("ok \xff\xfe end");
    assert_string_equal(json_string_value(v), "ok ?? end");
    json_decref(v);
    v = sp_json_text("h\xc3\xbcte");
    assert_string_equal(json_string_value(v), "h\xc3\xbcte");
    json_decref(v);
    v = sp_json_number(NAN);
    assert_true(json_is_null(v));
    json_decref(v);
}

static void test_charts_survive_gaps(void **state) {
    (void)state;
    const double y[] = {0.5, NAN, 2, -1, INFINITY};
    const char *const labels[] = {"a", "b", "c", "d", "e"};
    sp_series s = {"s<", "#000", y, false};
    sp_text t = {0};
    sp_chart_lines(&t, "alt", &s, 1, labels, 5, 2, "x", "y");
    sp_chart_lines(&t, "alt", &s, 1, labels, 0, 2, "x", "y");
    sp_chart_columns(&t, "alt", &s, 1, labels, 5);
    const sp_bar bars[] = {{"a", NAN, NAN, "#000"}, {"b", 0, 2, "#000"}, {"c", 1e-3, NAN, "#000"}};
    sp_chart_log_bars(&t, "alt", bars, 3, "nat");
    sp_chart_log_bars(&t, "alt", bars, 2, "nat"); // nothing to scale by
    sp_chart_bars(&t, "alt", bars, 3, "GiB");
    sp_chart_bars(&t, "alt", bars, 1, "GiB");
    sp_chart_scaled_lines(&t, "alt", &s, 1, labels, 5, 2, "x", "y", 0.25);
    const sp_span spans[] = {
        {0, 0, 1, "s<", "#000"}, {1, NAN, 2, "", "#000"}, {7, 0, 1, "", "#000"}};
    const char *const rows[] = {"r<", "q"};
    sp_chart_timeline(&t, "alt", rows, 2, spans, 3, "ms");
    sp_chart_timeline(&t, "alt", rows, 2, spans, 0, "ms");
    assert_false(t.failed);
    assert_null(strstr(t.data, "nan"));
    assert_null(strstr(t.data, "inf"));
    assert_null(strstr(t.data, "s<<"));
    assert_non_null(strstr(t.data, "s&lt;"));
    assert_non_null(strstr(t.data, "n/a"));
    sp_text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_there),
        cmocka_unit_test(test_verdict),
        cmocka_unit_test(test_checks_are_ordered_and_unique),
        cmocka_unit_test(test_page_escapes_and_is_self_contained),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_remedies),
        cmocka_unit_test(test_remedy_once_for_all),
        cmocka_unit_test(test_files_appear_together),
        cmocka_unit_test(test_text_of_any_bytes),
        cmocka_unit_test(test_charts_survive_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
