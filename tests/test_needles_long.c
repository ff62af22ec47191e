// ctest: labels=long timeout=3000
// The standard evaluation set at 1024 tokens, all 128 sequences a task and 32 text rows, through
// the validation pass: the figures of data/tiny-base/README.md.
//
// Dense attention and the original selector see the same sequences in the same order as when those
// figures were made, so only rounding may move an answer; random blocks are another draw.
#include "tests/golden.h"
#include "validate/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 128, TASKS = 3 };

// README, 1024 tokens; random: mean of its two draws. `error` is the standard error of a share of
// 128, of the difference between two independent draws for random.
static const struct {
    const char *key;
    double want[TASKS];
    double draws;
} rows[] = {
    {"dense", {1.0000, 0.9609, 0.9375}, 1},       {"original", {1.0000, 0.9609, 0.8203}, 1},
    {"infinigen", {0.9922, 0.9375, 0.2969}, 1},   {"random", {0.1211, 0.1016, 0.0195}, 1.5},
    {"untrained", {0.1758, 0.1250, 0.0195}, 1.5},
};

// The fixture's own figures when it was made, for single and multi.
static const double forecast_want[] = {0.9062, 0.7578};

// A share of SAMPLES against the README's, within 3 standard errors.
static void check_share(json_t *o, const char *key, double want, double draws) {
    double got = sp_json_at(o, key);
    // A share of 0 or 1 still has the error of one answer in 128.
    double p = fmin(fmax(want, 1.0 / SAMPLES), 1 - 1.0 / SAMPLES);
    double error = sqrt(draws * p * (1 - p) / SAMPLES);
    printf("%-10s %-7s %.4f, README %.4f\n", key, json_string_value(json_object_get(o, "task")),
           got, want);
    if (fabs(got - want) > 3 * error)
        fail_msg("%s: %.4f is %.1f standard errors from %.4f", key, got, (got - want) / error,
                 want);
}

static void check_needles(json_t *retrieval) {
    assert_int_equal(json_array_size(retrieval), TASKS);
    for (int t = 0; t < TASKS; t++) {
        json_t *o = json_array_get(retrieval, (size_t)t);
        assert_true(sp_json_at(o, "n") == SAMPLES);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            check_share(o, rows[r].key, rows[r].want[t], rows[r].draws);
        double got = sp_json_at(o, "forecast");
        printf("%-10s %-7s %.4f\n", "forecast", json_string_value(json_object_get(o, "task")), got);
        // The same weights and questions: rounding moves a few answers at most.
        if (t < 2) assert_true(fabs(got - forecast_want[t]) <= 3.0 / SAMPLES);
    }
}

// 32 rows of text and SAMPLES needles a task at one length.
static sp_pass pass_of(const sp_model *m, sp_forecast_device *trained,
                       sp_forecast_device *untrained, int64_t *length, sp_report *report) {
    static const sp_validate_args args;
    return (sp_pass){.args = &args,
                     .desc = m->desc,
                     .model = m,
                     .selection = sp_model_selection(m->desc, true),
                     .shortlist = sp_model_shortlist(m->desc, true),
                     .grid = sp_deployed_grid(m->desc),
                     .fine = {2, 1},
                     .chosen = 6,
                     .trained = trained,
                     .untrained = untrained,
                     .text = {.corpus = true, .name = "corpus"},
                     .needles = true,
                     .lengths = length,
                     .n_lengths = 1,
                     .text_lengths = length,
                     .n_text_lengths = 1,
                     .rows = 32,
                     .positions = 4096,
                     .samples = SAMPLES,
                     .seed = 1,
                     .noise_kl = NAN,
                     .report = report};
}

static void test_readme_figures(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    sp_report report;
    sp_forecast trained = test_trained_forecast(), random;
    sp_forecast_device on_trained, on_random;
    int64_t length = 1024;
    assert_ok(sp_report_open(&report));
    assert_ok(sp_forecast_alloc(m->desc, &random));
    sp_forecast_init(&random, 1);
    assert_ok(sp_forecast_upload(m->backend, &trained, &on_trained));
    assert_ok(sp_forecast_upload(m->backend, &random, &on_random));
    sp_pass p = pass_of(m, &on_trained, &on_random, &length, &report);
    assert_ok(sp_measure_quality(&p));
    json_t *loss = json_array_get(json_object_get(report.root, "lm_loss"), 0);
    printf("LM loss: dense %.4f, original %.4f, Forecast %.4f, untrained %.4f\n",
           sp_json_at(loss, "dense"), sp_json_at(loss, "original"), sp_json_at(loss, "forecast"),
           sp_json_at(loss, "untrained"));
    // The README's figures of an independent fp32 implementation, to their last digit.
    assert_within("LM loss, dense", sp_json_at(loss, "dense"), 1.6056, 5e-5);
    assert_within("LM loss, original", sp_json_at(loss, "original"), 1.6131, 5e-5);
    assert_ok(sp_measure_needles(&p));
    check_needles(json_object_get(report.root, "retrieval"));
    sp_report_close(&report);
    sp_forecast_free(&trained);
    sp_forecast_free(&random);
    sp_forecast_device_free(&on_trained);
    sp_forecast_device_free(&on_random);
}

// data/tiny-nosa/README.md: counts of 128 of an independent float32 implementation at 512 tokens,
// and its language-model losses.
static void test_nosa_figures(void **state) {
    (void)state;
    static const struct {
        const char *key;
        int count[TASKS];
    } want[] = {{"dense", {128, 125, 118}}, {"original", {127, 119, 114}}};
    const sp_model *m = test_tiny_nosa();
    sp_report report;
    sp_forecast random;
    sp_forecast_device on_random;
    int64_t length = 512;
    assert_ok(sp_report_open(&report));
    assert_ok(sp_forecast_alloc(m->desc, &random));
    sp_forecast_init(&random, 1);
    assert_ok(sp_forecast_upload(m->backend, &random, &on_random));
    sp_pass p = pass_of(m, &on_random, &on_random, &length, &report);
    assert_ok(sp_measure_quality(&p));
    json_t *loss = json_array_get(json_object_get(report.root, "lm_loss"), 0);
    assert_within("LM loss, dense", sp_json_at(loss, "dense"), 1.6455, 5e-5);
    assert_within("LM loss, original", sp_json_at(loss, "original"), 1.6475, 5e-5);
    assert_ok(sp_measure_needles(&p));
    json_t *retrieval = json_object_get(report.root, "retrieval");
    assert_int_equal(json_array_size(retrieval), TASKS);
    for (size_t r = 0; r < sizeof want / sizeof *want; r++)
        for (int t = 0; t < TASKS; t++) {
            json_t *o = json_array_get(retrieval, (size_t)t);
            double got = SAMPLES * sp_json_at(o, want[r].key);
            printf("%-10s %-7s %.0f of 128, README %d\n", want[r].key,
                   json_string_value(json_object_get(o, "task")), got, want[r].count[t]);
            assert_true(fabs(got - want[r].count[t]) <= 1); // rounding moves an answer at most
        }
    static const double random_want[TASKS] = {0.8359, 0.7188, 0.3359};
    for (int t = 0; t < TASKS; t++)
        check_share(json_array_get(retrieval, (size_t)t), "random", random_want[t], 2);
    sp_report_close(&report);
    sp_forecast_free(&random);
    sp_forecast_device_free(&on_random);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_readme_figures),
                                       cmocka_unit_test(test_nosa_figures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
