// Window counts, visibility, sp_compress_keys and sp_forecast_scores.
#include "tests/golden.h"
#include "tests/guarded.h"

#include <math.h>
#include <stdlib.h>

static void window_counts(void **state) {
    (void)state;
    json_t *rows = json_object_get(test_example("windows"), "length_table"), *row;
    size_t n;
    json_array_foreach(rows, n, row) {
        int64_t T = json_integer_value(json_object_get(row, "T"));
        int64_t deployed = json_integer_value(json_object_get(row, "n_deployed_32_16"));
        int64_t teacher = json_integer_value(json_object_get(row, "n_teacher_2_1"));
        assert_int_equal(sp_windows((sp_grid){32, 16}, T), deployed);
        assert_int_equal(sp_windows((sp_grid){2, 1}, T), teacher);
    }
    assert_true(n == 14);
    assert_int_equal(sp_windows((sp_grid){6, 3}, 5), 0);
    assert_int_equal(sp_windows((sp_grid){6, 3}, 6), 1);
    assert_int_equal(sp_windows((sp_grid){6, 3}, 8), 1);
    assert_int_equal(sp_windows((sp_grid){6, 3}, 9), 2);
}

static void visible_windows(void **state) {
    (void)state;
    json_t *x = test_example("teacher");
    const sp_grid deployed = {32, 16};
    const char *key;
    json_t *list, *count;
    size_t i;
    json_object_foreach(json_object_get(x, "student_visible_counts"), key, list) {
        int64_t n = sp_windows(deployed, atoi(key));
        json_array_foreach(list, i, count) assert_int_equal(
            sp_visible(deployed, SP_SEES_START, (int64_t)i, n), json_integer_value(count));
    }
    json_object_foreach(json_object_get(x, "native_visible_counts"), key, list) {
        int64_t T = atoi(key), n = sp_windows(deployed, T), different = 0;
        json_array_foreach(list, i, count) {
            int64_t ours = sp_visible(deployed, SP_SEES_COMPLETE, (int64_t)i, n);
            if (ours != json_integer_value(count)) different++;
            // Our rule, for every T: all of the window is in the past (end of training.md 4).
            int64_t want = (int64_t)i < 31 ? 0 : ((int64_t)i - 31) / 16 + 1;
            assert_int_equal(ours, want < n ? want : n);
        }
        // The file follows the formula of 4.2, which loses a window where T mod 16 is 15.
        assert_int_equal(different > 0, T % 16 == 15);
    }
    json_t *offset = json_object_get(x, "offset_case");
    json_array_foreach(json_object_get(offset, "visible"), i, count) assert_int_equal(
        sp_visible((sp_grid){2, 2}, SP_SEES_START, (int64_t)i + 7, 19), json_integer_value(count));
}

static void check_example(const char *name, sp_grid g, const float *keys) {
    json_t *x = test_example("windows");
    int64_t n = (int64_t)json_array_size(json_object_get(x, name));
    assert_true(n == sp_windows(g, 10));
    float *want = test_floats(x, name, n * 2);
    test_guarded k = test_input(test_backend(), keys, 10, 2),
                 out = test_output(test_backend(), n, 2);
    assert_ok(sp_compress_keys(k.t, g, 0, out.t));
    float *got = test_take(&out, name);
    assert_close(name, got, want, n * 2, 2e-7);
    test_drop(&k);
    free(want), free(got);
}

static void examples(void **state) {
    (void)state;
    float *keys = test_floats(test_example("windows"), "K", 20);
    check_example("compress_4_2", (sp_grid){4, 2}, keys);
    check_example("compress_2_1", (sp_grid){2, 1}, keys);
    free(keys);
}

static void golden_layers(void **state) {
    (void)state;
    enum { T = 256, N_D = 63, N_T = 255 };
    sp_backend *be = test_backend();
    const char *keys[] = {"k.0", "k.3"}, *teacher_keys[] = {"kt.0", "kt.3"};
    float *kd = golden_f32("forward", "kd", 6 * N_D * 128);
    for (int n = 0; n < 2; n++) {
        test_guarded k = test_golden(be, "forward", keys[n], T, 0, T, 128);
        test_guarded d = test_output(be, N_D, 128), t = test_output(be, N_T, 128);
        assert_ok(sp_compress_keys(k.t, (sp_grid){8, 4}, 0, d.t));
        // The teacher's keys in two pieces.
        assert_ok(sp_compress_keys(k.t, (sp_grid){2, 1}, 0, sp_tensor_rows(t.t, 0, 100)));
        assert_ok(sp_compress_keys(k.t, (sp_grid){2, 1}, 100, sp_tensor_rows(t.t, 100, N_T - 100)));
        float *got = test_take(&d, "kd"), *fine = test_take(&t, "kt");
        float *want = golden_f32("forward", teacher_keys[n], N_T * 128);
        assert_close("kd", got, kd + 3 * n * N_D * 128, N_D * 128, 2e-5);
        assert_close("kt", fine, want, N_T * 128, 2e-5);
        test_drop(&k);
        free(got), free(fine), free(want);
    }
    free(kd);
}

static void no_window(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    test_guarded k = test_output(be, 7, 4), out = test_output(be, 0, 4),
                 one = test_output(be, 1, 4);
    assert_ok(sp_compress_keys(k.t, (sp_grid){8, 4}, 0, out.t));
    assert_fails(sp_compress_keys(k.t, (sp_grid){8, 4}, 0, one.t), SP_ENVIRONMENT,
                 "j0 + out.rows <= sp_windows(g, k.rows)");
    sp_tensor_free(&k.whole), sp_tensor_free(&out.whole), sp_tensor_free(&one.whole);
}

// ---- sp_forecast_scores -------------------------------------------------------------------------

static void golden_forecast_scores(void **state) {
    (void)state;
    enum { T = 256, N = 63 };
    test_guarded f = test_golden(test_backend(), "selection", "forecast.0", T, 0, T, 128);
    test_guarded c = test_golden(test_backend(), "forward", "kd", 6 * N, 0, N, 128);
    float *want = golden_rows_f32("selection", "forecast_raw.0", 1, 2, T, N);
    test_guarded out = test_output(test_backend(), T, 2 * N);
    assert_ok(sp_forecast_scores((sp_heads){8, 2, 64}, (sp_grid){8, 4}, SP_SEES_COMPLETE, f.t, 0,
                                 c.t, out.t));
    float *got = test_take(&out, "forecast_raw");
    assert_close("forecast_raw.0", got, want, T * 2 * N, 2e-5); // -inf in the same places
    test_drop(&f), test_drop(&c);
    free(got), free(want);
}

static void forecast_scores(sp_backend *be) {
    const struct {
        sp_heads heads;
        sp_grid g;
        sp_visibility sees;
        int64_t T, i0, rows;
    } shapes[] = {{{8, 2, 64}, {8, 4}, SP_SEES_START, 203, 0, 203},
                  {{3, 3, 6}, {6, 3}, SP_SEES_COMPLETE, 40, 39, 1},
                  {{1, 1, 2}, {8, 4}, SP_SEES_COMPLETE, 8, 0, 7}}; // nothing is seen
    for (int s = 0; s < 3; s++) {
        int64_t Hkv = shapes[s].heads.kv_heads, d = shapes[s].heads.head_dim, w = Hkv * d;
        int64_t n = sp_windows(shapes[s].g, shapes[s].T), rows = shapes[s].rows;
        uint64_t seed = (uint64_t)s;
        float *fv = test_values(&seed, rows * w, -1, 1), *cv = test_values(&seed, n * w, -1, 1);
        test_guarded f = test_input(be, fv, rows, w), c = test_input(be, cv, n, w);
        test_guarded out = test_output(be, rows, Hkv * n);
        assert_ok(sp_forecast_scores(shapes[s].heads, shapes[s].g, shapes[s].sees, f.t,
                                     shapes[s].i0, c.t, out.t));
        float *got = test_take(&out, "forecast_scores");
        for (int64_t r = 0; r < rows; r++)
            for (int64_t h = 0; h < Hkv; h++)
                for (int64_t j = 0; j < n; j++) {
                    int64_t needs = j * shapes[s].g.stride;
                    if (shapes[s].sees == SP_SEES_COMPLETE) needs += shapes[s].g.kernel - 1;
                    double want = 0, have = (double)got[r * Hkv * n + h * n + j];
                    for (int64_t x = 0; x < d; x++)
                        want += (double)fv[r * w + h * d + x] * cv[j * w + h * d + x];
                    if (needs > shapes[s].i0 + r)
                        assert_true(have == -INFINITY);
                    else
                        assert_true(fabs(have - want) < 5e-6);
                }
        test_drop(&f), test_drop(&c);
        free(fv), free(cv), free(got);
    }
}

static void forecast_scores_shapes(void **state) {
    (void)state;
    test_each_isa(test_backend(), forecast_scores);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_counts),
        cmocka_unit_test(visible_windows),
        cmocka_unit_test(examples),
        cmocka_unit_test(golden_layers),
        cmocka_unit_test(no_window),
        cmocka_unit_test(golden_forecast_scores),
        cmocka_unit_test(forecast_scores_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
