// The training command against golden values: three steps through token file, loop, optimiser,
// metrics and checkpoint; the mean over sequences of unequal length; gradients that are not finite.
#include "checkpoints/checkpoints.h"
#include "common/log.h"
#include "common/util.h"
#include "data/dataset.h"
#include "model/safetensors.h"
#include "tests/golden.h"
#include "train/distill.h"
#include "train/train.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { L = 6, ROWS = 128, D = 256, T0 = 256, N = L * ROWS * D };

static char *in_tmp(const char *name) {
    return sp_path_join(test_tmpdir(), name);
}

// One token file of `n` rows, each a prefix of length[i] of its T0 tokens.
static void write_rows(const char *name, const int32_t *tokens, const int64_t *length, int n) {
    char *dir = in_tmp(name), *path = sp_path_join(dir, "rows.h5");
    assert_ok(sp_mkdirs(dir));
    const char *domain = "golden";
    sp_shard_meta meta = {
        .tokenizer = "synthetic-1024", .vocab = 1024, .domains = &domain, .n_domains = 1};
    sp_shard_writer *w;
    assert_ok(sp_shard_create(path, &meta, &w));
    for (int i = 0; i < n; i++) assert_ok(sp_shard_append(w, tokens + i * T0, length[i], 0));
    assert_ok(sp_shard_finish(w));
    free(path);
    free(dir);
}

// sparda train with a configuration of these lines; the run folder is NAME in the temporary folder.
static sp_status train(const char *name, const char *data, const char *lines) {
    char *base = test_path("data/tiny-base"), *out = in_tmp(name), *rows = in_tmp(data);
    char *file = sp_format("%s.yaml", out);
    char *text = sp_format("base: %s\ndata: [%s]\ndata_order: sequential\nseq_len: 256\n"
                           "lr: 2e-3\nthreads: 1\ndeterministic: true\n%s",
                           base, rows, lines);
    assert_ok(sp_write_file(file, text, (int64_t)strlen(text)));
    char *argv[] = {"train", file, "--out", out, NULL};
    sp_status st = sp_train_command(4, argv);
    sp_log_close();
    free(text), free(file), free(rows), free(out), free(base);
    return st;
}

// Line `step` of the run's metrics; the caller owns the reference.
static json_t *metrics(const char *name, int step) {
    char *out = in_tmp(name), *path = sp_path_join(out, "metrics.jsonl"), *text;
    int64_t len;
    assert_ok(sp_read_file(path, 1 << 20, &text, &len));
    const char *at = text;
    for (int i = 1; i < step; i++) {
        at = strchr(at, '\n');
        assert_non_null(at);
        at++;
    }
    json_error_t where;
    json_t *o = json_loadb(at, strcspn(at, "\n"), 0, &where);
    assert_non_null(o);
    assert_int_equal(json_integer_value(json_object_get(o, "step")), step);
    free(text), free(path), free(out);
    return o;
}

static double number(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) fail_msg("%s is no number", key);
    return json_number_value(v);
}

static void golden_run(void **state) {
    (void)state;
    enum { STEPS = 3 };
    int32_t *tokens = golden_i32("adamw3", "tokens", STEPS * T0);
    float *loss = golden_f32("adamw3", "loss", STEPS * L);
    float *norm = golden_f32("adamw3", "grad_norm", STEPS);
    float *weights = golden_f32("adamw3", "weights", N);
    const int64_t length[STEPS] = {T0, T0, T0};
    write_rows("golden-rows", tokens, length, STEPS);
    char *init = test_path("tests/golden/forecast_init.safetensors");
    char *lines = sp_format("init_from: %s\nsteps: 3\nglobal_batch: 1\n", init);
    assert_ok(train("golden", "golden-rows", lines));
    for (int s = 0; s < STEPS; s++) {
        json_t *o = metrics("golden", s + 1), *layers = json_object_get(o, "train/kl_layers");
        double mean = 0;
        assert_int_equal(json_array_size(layers), L);
        for (int l = 0; l < L; l++) {
            double got = json_number_value(json_array_get(layers, (size_t)l));
            assert_within("kl of a layer", got, loss[s * L + l], 1e-5);
            mean += loss[s * L + l] / L;
        }
        assert_within("kl", number(o, "train/kl"), mean, 1e-5);
        assert_within("norm", number(o, "train/grad_norm"), norm[s], 1e-5);
        assert_true(number(o, "train/lr") == 2e-3);
        assert_true(number(o, "train/tokens") == (s + 1) * T0);
        json_decref(o);
    }
    sp_train_state state3;
    char *out = in_tmp("golden"), *path = sp_checkpoint_path(out, 3);
    assert_ok(sp_state_load(path, &state3));
    assert_int_equal(state3.step, 3);
    assert_int_equal(state3.updates, 3);
    assert_int_equal(state3.samples, 3);
    assert_int_equal(state3.used_rows, 3);
    assert_int_equal(state3.tokens, 3 * T0);
    sp_forecast first = golden_forecast(1);
    for (int64_t i = 0; i < N; i++) { // the change is what was trained
        state3.weights.w[i] -= first.w[i];
        weights[i] -= first.w[i];
    }
    assert_close("change of the weights", state3.weights.w, weights, N, 2e-4);
    // the matrix of the last layer scores nothing and stays as it was
    assert_memory_equal(state3.weights.w + N, first.w + N, ROWS * D * sizeof(float));
    sp_train_state_free(&state3);
    sp_forecast_free(&first);
    free(path), free(out), free(lines), free(init);
    free(tokens), free(loss), free(norm), free(weights);
}

// A step is the mean over sequences, each with its own 1/(Hkv*T), whatever their lengths; a row
// below one window is not in it.
static void mean_over_sequences(void **state) {
    (void)state;
    enum { SEQUENCES = 4, USED = 3 };
    static const int64_t length[SEQUENCES] = {T0, 90, 7, 203};
    int32_t tokens[SEQUENCES * T0];
    int32_t *golden = golden_i32("adamw3", "tokens", 3 * T0);
    memcpy(tokens, golden, 3 * T0 * sizeof *tokens);
    memcpy(tokens + 3 * T0, golden + T0, T0 * sizeof *tokens);
    write_rows("ragged-rows", tokens, length, SEQUENCES);
    char *init = test_path("tests/golden/forecast_init.safetensors");
    char *lines = sp_format("init_from: %s\nsteps: 1\nglobal_batch: 4\n", init);
    assert_ok(train("ragged", "ragged-rows", lines));

    const sp_model *m = test_tiny_base();
    sp_distill_args a = {.teacher = {2, 1}};
    sp_distill *d;
    sp_forecast f = golden_forecast(1);
    sp_forecast_device w;
    sp_tensor grad;
    assert_ok(sp_distill_open(m, T0, &a, &d));
    assert_ok(sp_forecast_upload(m->backend, &f, &w));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, L * ROWS, D, "grad", &grad));
    double kl = 0, loss[L], squares;
    for (int i = 0; i < SEQUENCES; i++) {
        if (length[i] < 8) continue;
        assert_ok(sp_distill_step(d, &w, tokens + i * T0, length[i], 1.0 / USED, &grad, loss));
        for (int l = 0; l < L; l++) kl += loss[l] / (L * USED);
    }
    assert_ok(sp_sum_squares(grad, &squares));
    json_t *o = metrics("ragged", 1);
    assert_within("kl", number(o, "train/kl"), kl, 1e-6);
    assert_within("norm", number(o, "train/grad_norm"), sqrt(squares), 1e-6);
    assert_true(number(o, "train/tokens") == T0 + 90 + 203);
    json_decref(o);
    sp_tensor_free(&grad);
    sp_forecast_device_free(&w);
    sp_forecast_free(&f);
    sp_distill_close(d);
    free(lines), free(init), free(golden);
}

// Weights so large that the products overflow: every update is skipped, the run stops after
// max_nonfinite_steps and names the samples; what it had is not lost.
static void not_finite(void **state) {
    (void)state;
    sp_forecast f = golden_forecast(1);
    char names[L + 1][64];
    sp_st_out tensors[L + 1];
    for (int l = 0; l <= L; l++) {
        float *v = sp_forecast_matrix(&f, l);
        for (int i = 0; i < ROWS * D; i++) v[i] = v[i] < 0 ? -1e38f : 1e38f;
        sp_forecast_name(l, names[l]);
        tensors[l] = (sp_st_out){names[l], SP_ST_F32, 2, {ROWS, D}, v};
    }
    char *huge = in_tmp("huge.safetensors");
    assert_ok(sp_st_write(huge, tensors, L + 1, NULL));
    char *lines = sp_format("init_from: %s\nsteps: 9\nglobal_batch: 2\nmax_nonfinite_steps: 3\n"
                            "save_every_steps: 2\n",
                            huge);
    int32_t *tokens = golden_i32("adamw3", "tokens", 3 * T0);
    const int64_t length[3] = {T0, T0, T0};
    write_rows("rows", tokens, length, 3);
    assert_fails(train("overflow", "rows", lines), SP_ENVIRONMENT,
                 "not finite in 3 steps in a row");
    assert_non_null(strstr(sp_error_text(), "step 3, used samples 4 to 5"));
    assert_non_null(strstr(sp_error_text(), "rows.h5:1, ")); // rows 0 1, 2 0, 1 2
    assert_non_null(strstr(sp_error_text(), "rows.h5:2"));
    for (int s = 1; s <= 3; s++) {
        json_t *o = metrics("overflow", s), *bad = json_object_get(o, "nonfinite"), *v;
        bool named = false;
        size_t i;
        json_array_foreach(bad, i, v) {
            named |= strcmp(json_string_value(v), "train/grad_norm") == 0;
        }
        assert_true(named);
        assert_true(json_is_null(json_object_get(o, "train/grad_norm")));
        json_decref(o);
    }
    sp_train_state saved;
    char *out = in_tmp("overflow"), *path = sp_checkpoint_path(out, 2);
    assert_ok(sp_state_load(path, &saved));
    assert_int_equal(saved.step, 2);
    assert_int_equal(saved.updates, 0);
    assert_memory_equal(saved.weights.w, f.w, N * sizeof(float));
    for (int64_t i = 0; i < N; i++) assert_true(saved.exp_avg[i] == 0 && saved.exp_avg_sq[i] == 0);
    sp_train_state_free(&saved);
    sp_forecast_free(&f);
    free(path), free(out), free(tokens), free(lines), free(huge);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_run),
        cmocka_unit_test(mean_over_sequences),
        cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
