// Every check of paths and measurements can fail: they are fed the wrong thing. And the trained
// Forecast passes where the untrained one does not. (Those of an export: test_export_checks.c.)
#include "common/util.h"
#include "data/corpus.h"
#include "tests/golden.h"
#include "validate/pass.h"
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- paths and quality --------------------------------------------------------------------------

typedef struct fixture {
    sp_config config;
    sp_validate_args args;
    sp_report report;
    sp_forecast forecast, random;
    sp_forecast_device trained, untrained;
    int64_t lengths[2];
    sp_pass p;
} fixture;

// Takes over `forecast`.
static void open_pass_of(fixture *x, const sp_model *m, sp_forecast forecast, int64_t length,
                         int64_t rows) {
    sp_selection s = sp_model_shortlist(m->desc, true);
    *x = (fixture){.forecast = forecast, .lengths = {length}};
    x->args.config = &x->config;
    assert_ok(sp_report_open(&x->report));
    assert_ok(sp_forecast_alloc(m->desc, &x->random));
    sp_forecast_init(&x->random, 7);
    assert_ok(sp_forecast_upload(m->backend, &x->forecast, &x->trained));
    assert_ok(sp_forecast_upload(m->backend, &x->random, &x->untrained));
    x->p = (sp_pass){.args = &x->args,
                     .desc = m->desc,
                     .model = m,
                     .selection = sp_model_selection(m->desc, true),
                     .shortlist = s,
                     .grid = sp_deployed_grid(m->desc),
                     .fine = {2, 1},
                     .chosen = s.topk - s.init_blocks - s.local_blocks - 1,
                     .trained = &x->trained,
                     .untrained = &x->untrained,
                     .text = {.corpus = true, .name = "corpus"},
                     .needles = true,
                     .lengths = x->lengths,
                     .n_lengths = 1,
                     .text_lengths = x->lengths,
                     .n_text_lengths = 1,
                     .rows = rows,
                     .positions = 4096,
                     .samples = 2,
                     .seed = 7,
                     .noise_kl = NAN,
                     .report = &x->report};
}

static void open_pass(fixture *x, int64_t length, int64_t rows) {
    open_pass_of(x, test_tiny_base(), test_trained_forecast(), length, rows);
}

static void close_pass(fixture *x) {
    sp_report_close(&x->report);
    sp_forecast_free(&x->forecast);
    sp_forecast_free(&x->random);
    sp_forecast_device_free(&x->trained);
    sp_forecast_device_free(&x->untrained);
}

static json_t *check_of(const fixture *x, const char *id) {
    size_t i;
    json_t *c;
    json_array_foreach(x->report.checks, i,
                       c) if (strcmp(json_string_value(json_object_get(c, "id")), id) ==
                              0) return c;
    fail_msg("no check %s", id);
    return NULL;
}

static void assert_outcome(const fixture *x, const char *id, const char *status) {
    json_t *c = check_of(x, id);
    const char *got = json_string_value(json_object_get(c, "status"));
    if (strcmp(got, status) != 0) {
        char *text = json_dumps(c, 0);
        fail_msg("%s is %s, not %s: %s", id, got, status, text);
    }
}

static void test_paths_agree(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 400, 3);
    assert_ok(sp_check_paths(&x.p));
    assert_ok(sp_check_lookahead(&x.p));
    assert_outcome(&x, "P1", "pass");
    assert_outcome(&x, "P5", "pass");
    assert_outcome(&x, "P6", "pass");
    assert_outcome(&x, "P7", "pass");
    assert_true(json_integer_value(json_object_get(check_of(&x, "P1"), "n")) >= 4096);
    assert_true(x.p.noise_kl >= 0 && x.p.noise_kl < 1e-4);
    close_pass(&x);
}

// Both stages of the selection, decode and compressed keys of a NOSA backbone.
static void test_paths_agree_with_importance(void **state) {
    (void)state;
    fixture x;
    sp_forecast f;
    assert_ok(sp_forecast_alloc(test_tiny_nosa()->desc, &f));
    sp_forecast_init(&f, 3);
    open_pass_of(&x, test_tiny_nosa(), f, 512, 3);
    assert_int_equal(x.p.chosen, 6);
    assert_ok(sp_check_paths(&x.p));
    static const char *const ids[] = {"P1", "P5", "P6"};
    for (int i = 0; i < 3; i++) assert_outcome(&x, ids[i], "pass");
    // P1 looked at two lists a row.
    assert_int_equal(json_integer_value(json_object_get(check_of(&x, "P1"), "n")), 2 * 6 * 2 * 512);
    close_pass(&x);
}

static void test_wrong_selection_is_seen(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 400, 3);
    x.p.selection.init_blocks = 2; // the engine forces one
    assert_ok(sp_check_paths(&x.p));
    assert_outcome(&x, "P1", "fail");
    assert_outcome(&x, "P5", "pass");
    close_pass(&x);
}

static void test_wrong_compression_is_seen(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 400, 3);
    x.p.grid.kernel = 6; // the engine averages eight keys; as many windows in 400 tokens
    assert_int_equal(sp_windows(x.p.grid, 400), sp_windows(sp_deployed_grid(x.p.desc), 400));
    assert_ok(sp_check_paths(&x.p));
    assert_outcome(&x, "P5", "fail");
    close_pass(&x);
}

static void test_broken_logits_are_seen(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 64, 3);
    sp_model broken = *x.p.model;
    float *w = malloc(256 * sizeof *w);
    for (int i = 0; i < 256; i++) w[i] = i == 3 ? NAN : 1;
    broken.final_norm = test_upload(w, 1, 256);
    x.p.model = &broken;
    assert_ok(sp_check_paths(&x.p));
    assert_outcome(&x, "P6", "fail");
    sp_tensor_free(&broken.final_norm);
    free(w);
    close_pass(&x);
}

static void test_lookahead_premise(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 64, 3);
    x.p.selection.local_blocks = 0; // only the query's own block is forced
    assert_ok(sp_check_lookahead(&x.p));
    assert_outcome(&x, "P7", "fail");
    close_pass(&x);
}

static double number(const fixture *x, const char *path, const char *key) {
    json_t *o = json_array_get(
        json_object_get(json_object_get(x->report.root, "selection"), "per_length"), 0);
    return sp_json_at(json_object_get(o, path), key);
}

// Whoever reads value, op and threshold comes to the recorded outcome; a warning is a soft gate's.
static void assert_gates_explain(const fixture *x) {
    size_t i;
    json_t *c;
    int judged = 0;
    json_array_foreach(x->report.checks, i, c) {
        double value = sp_json_at(c, "value"), threshold = sp_json_at(c, "threshold");
        const char *op = json_string_value(json_object_get(c, "op"));
        const char *status = json_string_value(json_object_get(c, "status"));
        const char *severity = json_string_value(json_object_get(c, "severity"));
        if (isnan(threshold) || strcmp(status, "skip") == 0 || !*op) continue;
        bool met = strcmp(op, "<=") == 0   ? value <= threshold
                   : strcmp(op, ">=") == 0 ? value >= threshold
                                           : value > threshold;
        judged++;
        if (met != (strcmp(status, "pass") == 0))
            fail_msg("%s: %g %s %g, but %s", json_string_value(json_object_get(c, "id")), value, op,
                     threshold, status);
        if (strcmp(status, "warn") == 0) assert_string_equal(severity, "soft");
    }
    assert_true(judged >= 5);
}

static void test_trained_passes_and_untrained_does_not(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 1024, 3);
    assert_ok(sp_measure_quality(&x.p));
    assert_true(sp_report_outcome(&x.report, "Q1") <= SP_WARN);
    assert_true(sp_report_outcome(&x.report, "Q2") <= SP_WARN);
    assert_true(sp_report_outcome(&x.report, "Q4") <= SP_WARN);
    assert_outcome(&x, "Q7", "pass");
    assert_gates_explain(&x);
    double recall = number(&x, "mean", "recall"), ceiling = number(&x, "mean", "ceiling");
    assert_true(recall > 0.45 && recall < ceiling && ceiling < 0.8);
    assert_true(number(&x, "mean", "infinigen") > 0.7);
    close_pass(&x);

    // The control in the Forecast's place misses every gate; the Forecast in the control's place
    // shows that the control could be told apart.
    open_pass(&x, 1024, 3);
    x.p.trained = &x.untrained;
    x.p.untrained = &x.trained;
    assert_ok(sp_measure_quality(&x.p));
    assert_gates_explain(&x);
    assert_outcome(&x, "Q1", "fail");
    assert_outcome(&x, "Q2", "fail");
    assert_outcome(&x, "Q3", "warn");
    assert_outcome(&x, "Q4", "fail");
    assert_outcome(&x, "Q5", "warn");
    assert_outcome(&x, "Q7", "fail");
    double chance = sp_json_at(
        json_array_get(json_object_get(json_object_get(x.report.root, "selection"), "per_length"),
                       0),
        "chance");
    // Over rows n = 7 .. 60 candidates, 16 queries each: mean of 6/n.
    double want = 0;
    for (int n = 7; n <= 60; n++) want += 6.0 / n / 54;
    assert_true(fabs(chance - want) < 1e-9);
    assert_true(fabs(number(&x, "mean", "recall") - chance) < 0.05);
    close_pass(&x);
}

// Few short rows: a ratio near the hard limit with a wide interval. The value alone decides.
static void test_logits_verdict_follows_the_ratio(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 512, 3);
    assert_ok(sp_measure_quality(&x.p));
    size_t i;
    json_t *c, *q4 = NULL;
    json_array_foreach(x.report.checks, i, c) {
        if (strcmp(json_string_value(json_object_get(c, "id")), "Q4") == 0) q4 = c;
    }
    double ratio = sp_json_at(q4, "value");
    double low = json_number_value(json_array_get(json_object_get(q4, "ci95"), 0));
    assert_true(ratio > 1 && low > 0 && low < 1);
    assert_outcome(&x, "Q4", ratio > 2 ? "fail" : "warn");
    close_pass(&x);
}

static void test_too_short_or_without_text(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 128, 3); // 8 blocks: no query has a choice
    x.config.validate.lengths = (sp_int_list){x.lengths, 1};
    assert_ok(sp_measure_quality(&x.p));
    assert_outcome(&x, "Q1", "warn");
    static const char *const rest[] = {"Q2", "Q3", "Q4", "Q5", "Q7"};
    for (int i = 0; i < 5; i++) {
        assert_outcome(&x, rest[i], "skip");
        const char *reason = json_string_value(json_object_get(check_of(&x, rest[i]), "reason"));
        assert_string_equal(reason, "not measured on corpus: no query has a choice of blocks at "
                                    "any of validate.lengths; 161 tokens are needed");
    }
    assert_true(json_is_null(json_object_get(check_of(&x, "Q1"), "remedy"))); // the reason says it
    bool failed;
    assert_ok(sp_report_finish(&x.report, false, &failed));
    assert_string_equal(json_string_value(json_object_get(x.report.root, "status")),
                        "pass_with_warnings");
    assert_false(failed);
    assert_ok(sp_report_finish(&x.report, true, &failed));
    assert_true(failed);
    close_pass(&x);
    open_pass(&x, 512, 3);
    x.p.text.corpus = false;
    assert_ok(sp_measure_quality(&x.p));
    assert_outcome(&x, "Q4", "skip");
    x.p.needles = false;
    assert_ok(sp_measure_needles(&x.p));
    assert_outcome(&x, "Q6", "skip");
    close_pass(&x);
    open_pass(&x, 256, 2); // two rows: no standard error, and no power
    assert_ok(sp_measure_quality(&x.p));
    assert_outcome(&x, "Q1", "skip");
    assert_outcome(&x, "Q7", "skip");
    assert_true(sp_report_outcome(&x.report, "Q5") != SP_SKIP);
    close_pass(&x);
}

// ---- rows and positions -------------------------------------------------------------------------

static void test_positions_of_long_rows(void **state) {
    (void)state;
    static const struct {
        int64_t T, positions, most, want;
    } c[] = {{1000, 4096, 128, 1000}, {1000, 1000, 7, 1000},     {1, 128, 128, 1},
             {1000, 500, 128, 384},   {65536, 4096, 128, 4096},  {65536, 4096, 60, 4096},
             {8192, 4096, 128, 4096}, {70000, 5000, 4096, 4992}, {129, 128, 128, 128}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t end = 0, total = 0;
        double middle = 0;
        for (sp_sample s = {0}; sp_next_sample(c[i].T, c[i].positions, c[i].most, &s);) {
            assert_true(s.n >= 1 && s.n <= c[i].most && s.row0 >= end);
            // Nowhere is more left out than the distance of evenly spread groups, and a half.
            assert_true((s.row0 - end) * c[i].want < 192 * c[i].T);
            end = s.row0 + s.n;
            total += s.n;
            middle += (double)s.n * ((double)s.row0 + 0.5 * (double)s.n);
        }
        assert_true(end <= c[i].T && (c[i].T - end) * c[i].want < 192 * c[i].T);
        assert_int_equal(total, c[i].want);
        // Evenly: in the middle on average, to half a group and half of the rest at the beginning.
        assert_true(fabs(middle / (double)total - 0.5 * (double)c[i].T) < 128);
    }
    static const int64_t rows[][2] = {{512, 16},  {8192, 16},  {8193, 15},
                                      {32768, 4}, {131072, 4}, {1 << 30, 4}};
    sp_pass p = {.rows = 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(sp_pass_rows(&p, rows[i][0]), rows[i][1]);
    p.rows = 32;
    assert_int_equal(sp_pass_rows(&p, 1 << 30), 32);
}

static void test_measures_what_was_sampled(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 1024, 3);
    x.p.positions = 256; // positions 256 .. 383 and 768 .. 895
    assert_ok(sp_measure_quality(&x.p));
    json_t *one = json_array_get(
        json_object_get(json_object_get(x.report.root, "selection"), "per_length"), 0);
    assert_int_equal(json_integer_value(json_object_get(one, "sequences")), 3);
    assert_int_equal(json_integer_value(json_object_get(one, "positions_each")), 256);
    double want = 0; // of 13 .. 20 and 45 .. 52 candidates, 16 queries each
    for (int n = 13; n <= 20; n++) want += (6.0 / n + 6.0 / (n + 32)) / 16;
    assert_true(fabs(sp_json_at(one, "chance") - want) < 1e-9);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(x.report.root, "logits"), "positions")),
        3 * 256);
    assert_int_equal(json_integer_value(json_object_get(
                         json_array_get(json_object_get(x.report.root, "lm_loss"), 0), "n")),
                     3 * 256);
    assert_true(sp_report_outcome(&x.report, "Q1") <= SP_WARN);
    close_pass(&x);
}

// A shard of the corpus: n[0] rows of tokens[0], n[1] of tokens[1].
static char *write_rows(const char *name, const int n[2], const int64_t tokens[2]) {
    char *dir = sp_path_join(test_tmpdir(), name);
    char *path = sp_path_join(dir, "tokens.h5");
    int32_t *t = malloc(4096 * sizeof *t);
    sp_corpus_args a = sp_corpus_defaults(1);
    sp_shard_writer *w;
    assert_ok(sp_mkdirs(dir));
    const char *domain = "corpus";
    sp_shard_meta meta = {.tokenizer = "synthetic-1024",
                          .vocab = SP_CORPUS_VOCAB,
                          .domains = &domain,
                          .n_domains = 1};
    assert_ok(sp_shard_create(path, &meta, &w));
    for (int i = 0; i < n[0] + n[1]; i++) {
        int64_t T = tokens[i >= n[0]];
        assert_ok(sp_corpus_sequence(&a, (uint64_t)i, T, t));
        assert_ok(sp_shard_append(w, t, T, 0));
    }
    assert_ok(sp_shard_finish(w));
    free(t);
    free(path);
    return dir;
}

// Lengths that are chosen fit the rows that there are; those of needles, 1024 and 2048, stay.
static void test_lengths_fit_the_text(void **state) {
    (void)state;
    static const struct {
        int rows[2];
        int64_t tokens[2], want[2];
    } c[] = {{{3, 0}, {2048, 0}, {1024, 2048}},   {{3, 3}, {1100, 2100}, {1024, 2048}},
             {{3, 2}, {1100, 2100}, {512, 1024}}, {{3, 2}, {600, 1100}, {256, 512}},
             {{1, 0}, {600, 0}, {256, 512}},      {{2, 1}, {300, 600}, {256, 0}},
             {{3, 0}, {100, 0}, {1024, 2048}}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        fixture x;
        open_pass(&x, 64, 0);
        char name[32];
        snprintf(name, sizeof name, "rows-%zu", i);
        char *dir = write_rows(name, c[i].rows, c[i].tokens);
        x.args.data = &(sp_data_list){&(sp_data_entry){.path = dir}, 1};
        x.p.n_lengths = 0;
        x.p.text = (sp_text_source){0};
        assert_ok(sp_pass_open_text(&x.p));
        assert_ok(sp_pass_take_lengths(&x.p));
        assert_int_equal(x.p.n_lengths, 2);
        assert_int_equal(x.p.lengths[0], 1024);
        assert_int_equal(x.p.lengths[1], 2048);
        assert_int_equal(x.p.n_text_lengths, c[i].want[1] ? 2 : 1);
        assert_int_equal(x.p.text_lengths[0], c[i].want[0]);
        if (c[i].want[1]) assert_int_equal(x.p.text_lengths[1], c[i].want[1]);
        sp_pass_close_text(&x.p);
        free(dir);
        close_pass(&x);
    }
}

// Rows of `tokens` at the lengths that are given or (0) chosen, for a model of so many positions:
// what is said, NULL if something can be measured, and then the longest length.
static void test_what_cannot_be_measured(void **state) {
    (void)state;
    static const struct {
        int64_t tokens, given, positions, longest;
        const char *lack;
    } c[] = {
        // Rows too short for any choice.
        {100, 0, 8192, 0,
         "its longest row has 100 tokens, and only from 161 tokens on a query has a choice of "
         "blocks; give rows of at least 256 tokens"},
        {100, 1024, 8192, 0,
         "its longest row has 100 tokens, and only from 161 tokens on a query has a choice of "
         "blocks; give rows of at least 1024 tokens"},
        {160, 161, 8192, 0,
         "its longest row has 160 tokens, and only from 161 tokens on a query has a choice of "
         "blocks; give rows of at least 161 tokens"},
        // Rows with a choice, but shorter than what is to be measured.
        {200, 0, 8192, 0,
         "its longest row has 200 tokens, and the shortest length that is chosen without "
         "validate.lengths is 256; give longer rows, or validate.lengths of 161 to 200"},
        {256, 1024, 8192, 0,
         "its longest row has 256 tokens, and the shortest of validate.lengths with a choice of "
         "blocks is 1024; give longer rows, or validate.lengths of 161 to 256"},
        {161, 162, 8192, 0,
         "its longest row has 161 tokens, and the shortest of validate.lengths with a choice of "
         "blocks is 162; give longer rows, or validate.lengths of 161 to 161"},
        {200, 161, 8192, 161, NULL},
        // Lengths without a choice.
        {600, 160, 8192, 0,
         "no query has a choice of blocks at any of validate.lengths; 161 tokens are needed"},
        {256, 0, 256, 256, NULL}, // the shorter of 128 and 256 offers no choice
        {256, 0, 200, 0,
         "no query has a choice of blocks at any length that is chosen; 161 tokens are needed: set "
         "validate.lengths"},
        {256, 0, 128, 0,
         "no query has a choice of blocks within the base model's 128 positions; 161 tokens are "
         "needed"},
        {256, 100, 128, 0,
         "no query has a choice of blocks within the base model's 128 positions; 161 tokens are "
         "needed"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        fixture x;
        open_pass(&x, 64, 0);
        sp_model_desc d = *x.p.desc;
        char name[32], *lack;
        int64_t given = c[i].given;
        snprintf(name, sizeof name, "lack-%zu", i);
        char *dir = write_rows(name, (const int[]){1, 0}, (const int64_t[]){c[i].tokens, 0});
        d.max_positions = c[i].positions;
        x.p.desc = &d;
        x.args.data = &(sp_data_list){&(sp_data_entry){.path = dir}, 1};
        if (given) x.config.validate.lengths = (sp_int_list){&given, 1};
        x.p.n_lengths = 0;
        x.p.text = (sp_text_source){0};
        assert_ok(sp_pass_open_text(&x.p));
        assert_ok(sp_pass_take_lengths(&x.p));
        assert_ok(sp_pass_unmeasured(&x.p, &lack));
        if (c[i].lack)
            assert_string_equal(lack ? lack : "NULL", c[i].lack);
        else
            assert_null(lack);
        if (c[i].longest) assert_int_equal(x.p.text_lengths[x.p.n_text_lengths - 1], c[i].longest);
        free(lack);
        sp_pass_close_text(&x.p);
        free(dir);
        close_pass(&x);
    }
}

// Two rows at the longer length take nothing from the three at the shorter one.
static void test_few_long_rows(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 256, 3);
    char *dir = write_rows("few-long", (const int[]){1, 2}, (const int64_t[]){300, 600});
    x.args.data = &(sp_data_list){&(sp_data_entry){.path = dir}, 1};
    x.lengths[1] = 512;
    x.p.n_text_lengths = 2;
    x.p.text = (sp_text_source){0};
    assert_ok(sp_pass_open_text(&x.p));
    assert_ok(sp_measure_quality(&x.p));
    assert_true(sp_report_outcome(&x.report, "Q1") != SP_SKIP);
    assert_true(sp_report_outcome(&x.report, "Q2") != SP_SKIP);
    json_t *each = json_object_get(json_object_get(x.report.root, "selection"), "per_length");
    assert_int_equal(json_array_size(each), 2);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(each, i), "sequences")),
                         3 - (int)i);
    x.p.lengths = x.p.text_lengths = NULL; // the fixture's
    sp_pass_close_text(&x.p);
    free(dir);
    close_pass(&x);
}

// Rows come from all entries of eval_data in turn, not from the first alone.
static void test_text_of_two_sets(void **state) {
    (void)state;
    fixture x;
    open_pass(&x, 256, 0);
    char *one = write_rows("set-one", (const int[]){2, 1}, (const int64_t[]){300, 600});
    char *two = write_rows("set-two", (const int[]){1, 1}, (const int64_t[]){300, 600});
    x.args.data = &(sp_data_list){(sp_data_entry[]){{.path = one}, {.path = two}}, 2};
    x.p.text = (sp_text_source){0};
    assert_ok(sp_pass_open_text(&x.p));
    assert_non_null(strstr(x.p.text.name, "set-one and 1 more"));
    int64_t n;
    assert_ok(sp_pass_text_rows(&x.p, 300, 9, &n));
    assert_int_equal(n, 5);
    static const int sequence[] = {1, 2}; // of those with 600 tokens: two's row 1, one's row 2
    int32_t got[600], want[600];
    sp_corpus_args a = sp_corpus_defaults(1);
    for (int i = 0; i < 2; i++) {
        assert_ok(sp_pass_text(&x.p, i, 600, got));
        assert_ok(sp_corpus_sequence(&a, (uint64_t)sequence[i], 600, want));
        assert_memory_equal(got, want, sizeof want);
    }
    assert_fails(sp_pass_text(&x.p, 2, 600, got), SP_BAD_INPUT, "no held-out row 2 of 600");
    x.p.lengths = x.p.text_lengths = NULL; // the fixture's
    sp_pass_close_text(&x.p);
    free(one);
    free(two);
    close_pass(&x);
}

// ---- statistics ---------------------------------------------------------------------------------

static void test_statistics(void **state) {
    (void)state;
    const double v[] = {1, 2, NAN, 3};
    sp_mean m = sp_mean_of(v, 4);
    assert_int_equal(m.n, 3);
    assert_true(fabs(m.mean - 2) < 1e-12 && fabs(m.se - 1 / sqrt(3)) < 1e-12);
    assert_true(fabs(sp_z(m) - 2 * sqrt(3)) < 1e-12);
    assert_true(isnan(sp_z(sp_mean_of(v, 1))));
    const double same[] = {1, 1}, none[] = {0, 0};
    assert_true(sp_z(sp_mean_of(same, 2)) == 1e6 && sp_z(sp_mean_of(none, 2)) == 0);
    float q[] = {5, 1, 4, 2, 3};
    assert_true(sp_quantile(q, 5, 0.5) == 3 && sp_quantile(q, 5, 0.99) == 5);
    // KL of (1/2, 1/4, 1/4) and (1/4, 1/2, 1/4): 1/2 log 2 - 1/4 log 2.
    const float a[] = {2 * 0.34657359f, 0, 0}, b[] = {0, 2 * 0.34657359f, 0};
    sp_logit_row la = sp_logits_look(a, 3), lb = sp_logits_look(b, 3);
    assert_true(fabs(sp_logits_kl(a, la, b, lb, 3) - 0.25 * log(2)) < 1e-6);
    assert_true(sp_logits_kl(a, la, a, la, 3) == 0);
    assert_int_equal(lb.best, 1);
    assert_true(fabs(la.margin - log(2)) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_agree),
        cmocka_unit_test(test_paths_agree_with_importance),
        cmocka_unit_test(test_wrong_selection_is_seen),
        cmocka_unit_test(test_wrong_compression_is_seen),
        cmocka_unit_test(test_broken_logits_are_seen),
        cmocka_unit_test(test_lookahead_premise),
        cmocka_unit_test(test_trained_passes_and_untrained_does_not),
        cmocka_unit_test(test_logits_verdict_follows_the_ratio),
        cmocka_unit_test(test_too_short_or_without_text),
        cmocka_unit_test(test_positions_of_long_rows),
        cmocka_unit_test(test_measures_what_was_sampled),
        cmocka_unit_test(test_lengths_fit_the_text),
        cmocka_unit_test(test_what_cannot_be_measured),
        cmocka_unit_test(test_few_long_rows),
        cmocka_unit_test(test_text_of_two_sets),
        cmocka_unit_test(test_statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
