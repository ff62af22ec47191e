// metrics.jsonl: keys, non-finite numbers, one line per step after kills and resumes.
#include "common/util.h"
#include "tests/support.h"
#include "train/metrics.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const double layers[3] = {1.0 / 3, 0.1, 2e-9};

static sp_step_metrics sample(int64_t step) {
    return (sp_step_metrics){.step = step,
                             .layers = 3,
                             .kl = 0.1 + (double)step / 7,
                             .kl_layers = layers,
                             .grad_norm = 0.25,
                             .lr = 5e-4,
                             .tokens = 1024 * step,
                             .step_ms = 12.5,
                             .tokens_per_s = 81920,
                             .data_wait_ms = 0.01,
                             .tflops = 0.5,
                             .gemm_share = 0.625,
                             .peak_bytes = 1 << 30};
}

static json_t *parse(const char *text) {
    json_error_t where;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!o) fail_msg("no JSON: %s: %s", where.text, text);
    return o;
}

static void test_keys(void **state) {
    (void)state;
    sp_step_metrics m = sample(1);
    char *line;
    assert_ok(sp_metrics_text(&m, &line));
    assert_null(strchr(line, '\n'));
    json_t *o = parse(line);
    static const char *const want[] = {"step",
                                       "train/kl",
                                       "train/kl_layers",
                                       "train/grad_norm",
                                       "train/lr",
                                       "train/tokens",
                                       "perf/step_ms",
                                       "perf/tokens_per_s",
                                       "perf/data_wait_ms",
                                       "mem/peak_bytes",
                                       "perf/tflops",
                                       "perf/gemm_share"};
    assert_int_equal(json_object_size(o), 12); // and nothing else: no nonfinite, no eval
    for (int i = 0; i < 12; i++) assert_non_null(json_object_get(o, want[i]));
    assert_int_equal(json_integer_value(json_object_get(o, "step")), 1);
    assert_int_equal(json_integer_value(json_object_get(o, "train/tokens")), 1024);
    assert_true(json_real_value(json_object_get(o, "train/kl")) == m.kl); // to the last bit
    json_t *list = json_object_get(o, "train/kl_layers");
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(json_real_value(json_array_get(list, i)) == layers[i]);
    json_decref(o);
    free(line);

    m.gemm_share = NAN; // not known: left out
    m.recall_layers = m.mass_layers = layers;
    assert_ok(sp_metrics_text(&m, &line));
    o = parse(line);
    assert_int_equal(json_array_size(json_object_get(o, "eval/recall_layers")), 3);
    assert_int_equal(json_array_size(json_object_get(o, "eval/mass_layers")), 3);
    assert_null(json_object_get(o, "perf/gemm_share"));
    assert_null(json_object_get(o, "nonfinite"));
    json_decref(o);
    free(line);
}

static void test_nonfinite(void **state) {
    (void)state;
    double bad[3] = {1, NAN, -INFINITY};
    sp_step_metrics m = sample(7);
    m.kl = NAN;
    m.kl_layers = bad;
    m.grad_norm = INFINITY;
    char *line;
    assert_ok(sp_metrics_text(&m, &line));
    json_t *o = parse(line);
    assert_true(json_is_null(json_object_get(o, "train/kl")));
    assert_true(json_is_null(json_object_get(o, "train/grad_norm")));
    json_t *list = json_object_get(o, "train/kl_layers");
    assert_true(json_is_real(json_array_get(list, 0)));
    assert_true(json_is_null(json_array_get(list, 1)));
    assert_true(json_is_null(json_array_get(list, 2)));
    json_t *names = json_object_get(o, "nonfinite");
    static const char *const want[] = {"train/kl", "train/kl_layers[1]", "train/kl_layers[2]",
                                       "train/grad_norm"};
    assert_int_equal(json_array_size(names), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(json_string_value(json_array_get(names, i)), want[i]);
    json_decref(o);
    free(line);
}

static void write_steps(const char *path, int64_t first, int64_t last) {
    sp_metrics *w;
    assert_ok(sp_metrics_open(path, first - 1, &w, NULL));
    for (int64_t s = first; s <= last; s++) {
        sp_step_metrics m = sample(s);
        assert_ok(sp_metrics_add(w, &m));
    }
    sp_metrics_close(w);
}

static void assert_steps(const char *path, int64_t last) {
    char *text;
    int64_t len;
    assert_ok(sp_read_file(path, 1 << 20, &text, &len));
    char *at = text;
    for (int64_t s = 1; s <= last; s++) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        *end = 0;
        json_t *o = parse(at);
        assert_int_equal(json_integer_value(json_object_get(o, "step")), s);
        json_decref(o);
        at = end + 1;
    }
    assert_int_equal(at - text, len);
    free(text);
}

static void test_continues(void **state) {
    (void)state;
    char *path = sp_path_join(test_tmpdir(), "continue.jsonl");
    write_steps(path, 1, 6);
    assert_steps(path, 6);
    write_steps(path, 4, 5); // resumed after step 3: 4 to 6 are made again
    assert_steps(path, 5);
    // killed in the middle of a line
    FILE *f = fopen(path, "a");
    fputs("{\"step\":6,\"train/k", f);
    fclose(f);
    write_steps(path, 6, 7);
    assert_steps(path, 7);
    write_steps(path, 1, 2); // a new run
    assert_steps(path, 2);
    write_steps(path, 3, 3);
    assert_steps(path, 3);
    free(path);
}

// Lost lines (somebody removed the file, power failed) do not stop a run; foreign ones go.
static void test_lost_lines(void **state) {
    (void)state;
    char *path = sp_path_join(test_tmpdir(), "lost.jsonl");
    write_steps(path, 6, 7); // resumed after step 5, no file
    static const char other[] = "{\"step\":1}\nnot of ours\n{\"step\":3}\n";
    assert_ok(sp_write_file(path, other, sizeof other - 1));
    sp_metrics *w;
    assert_ok(sp_metrics_open(path, 3, &w, NULL));
    sp_step_metrics m = sample(4);
    assert_ok(sp_metrics_add(w, &m));
    assert_ok(sp_metrics_sync(w));
    sp_metrics_close(w);
    char *text;
    int64_t len;
    assert_ok(sp_read_file(path, 1 << 20, &text, &len));
    static const char start[] = "{\"step\":1}\n{\"step\":4,";
    assert_true(strncmp(text, start, sizeof start - 1) == 0);
    free(text);
    free(path);
}

static void test_counts_skipped(void **state) {
    (void)state;
    char *path = sp_path_join(test_tmpdir(), "skipped.jsonl");
    static const double norms[] = {1, NAN, 1, INFINITY, NAN};
    sp_metrics *w;
    assert_ok(sp_metrics_open(path, 0, &w, NULL));
    for (int64_t s = 1; s <= 5; s++) {
        sp_step_metrics m = sample(s);
        m.grad_norm = norms[s - 1];
        assert_ok(sp_metrics_add(w, &m));
    }
    sp_metrics_close(w);
    static const int64_t want[] = {0, 0, 1, 0, 1, 2};
    for (int64_t done = 5; done >= 0; done--) {
        int64_t skipped = -1;
        assert_ok(sp_metrics_open(path, done, &w, &skipped));
        sp_metrics_close(w);
        assert_int_equal(skipped, want[done]);
    }
    free(path);
}

// A full disk loses no line and leaves no half one: a file-size limit stands for it.
static void test_full_disk(void **state) {
    (void)state;
    char *path = sp_path_join(test_tmpdir(), "full.jsonl");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    sp_metrics *w;
    assert_ok(sp_metrics_open(path, 0, &w, NULL));
    sp_step_metrics m = sample(1);
    assert_ok(sp_metrics_add(w, &m));
    small = before;
    small.rlim_cur = 700; // between the second and the third line
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int failures = 0;
    for (int64_t s = 2; s <= 4; s++) {
        m = sample(s);
        failures += sp_metrics_add(w, &m) != SP_OK;
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_in_range(failures, 1, 3);
    m = sample(5);
    assert_ok(sp_metrics_add(w, &m));
    sp_metrics_close(w);
    assert_steps(path, 5);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),           cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_continues),      cmocka_unit_test(test_lost_lines),
        cmocka_unit_test(test_counts_skipped), cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
