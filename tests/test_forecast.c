// Forecast matrices: initial values bit for bit, names, device copies.
#include "tests/golden.h"
#include "tests/support.h"

#include "model/forecast.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The tiny model's dimensions: L 6, Hkv 2, d 64, D 256.
static const sp_model_desc tiny = {.layers = 6, .hidden = 256, .heads = {8, 2, 64}};

static void initial_values_are_the_golden_ones(void **state) {
    (void)state;
    char *path = test_path("tests/golden/forecast_init.safetensors"), name[64];
    sp_st *golden;
    sp_forecast f;
    assert_ok(sp_st_open(path, &golden));
    assert_ok(sp_forecast_alloc(&tiny, &f));
    sp_forecast_init(&f, 20260604);
    assert_int_equal(golden->n, 7);
    float *want = malloc(128 * 256 * sizeof *want);
    for (int64_t l = 0; l <= 6; l++) {
        sp_forecast_name(l, name);
        const sp_st_tensor *t = sp_st_find(golden, name);
        assert_non_null(t);
        assert_int_equal(t->elements, 128 * 256);
        assert_ok(sp_st_read_f32(golden, t, want));
        assert_memory_equal(want, sp_forecast_matrix(&f, l), 128 * 256 * sizeof *want);
    }
    free(want);
    sp_forecast_free(&f);
    sp_st_close(golden);
    free(path);
}

static void initial_values_fill_the_interval(void **state) {
    (void)state;
    sp_model_desc d = {.layers = 3, .hidden = 100, .heads = {4, 2, 10}};
    sp_forecast a, b;
    assert_ok(sp_forecast_alloc(&d, &a));
    assert_ok(sp_forecast_alloc(&d, &b));
    assert_int_equal(a.rows, 20);
    assert_int_equal(a.cols, 100);
    assert_int_equal(sp_forecast_trained_elements(&a), 3 * 20 * 100);
    sp_forecast_init(&a, 42);
    sp_forecast_init(&b, 43);
    double sum = 0, squares = 0;
    float largest = 0;
    int64_t n = 4 * 20 * 100, equal = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a.w[i];
        squares += (double)a.w[i] * a.w[i];
        largest = fmaxf(largest, fabsf(a.w[i]));
        equal += a.w[i] == b.w[i];
    }
    // Uniform on +-0.1: variance 0.01/3; five standard errors of 8000 draws.
    assert_true(fabs(sum / (double)n) < 5 * sqrt(0.01 / 3 / (double)n));
    assert_true(fabs(squares / (double)n - 0.01 / 3) < 5 * sqrt(0.01 * 0.01 * 4 / 45 / (double)n));
    assert_true(largest <= 0.1001f && largest > 0.099f); // bf16 may round the end outwards
    assert_true(equal < n / 50);
    sp_forecast_free(&a);
    sp_forecast_free(&b);
}

static void names_go_both_ways(void **state) {
    (void)state;
    char name[64];
    sp_forecast_name(0, name);
    assert_string_equal(name, "model.layers.0.self_attn.q_curr_proj.weight");
    sp_forecast_name(1, name);
    assert_string_equal(name, "model.layers.0.self_attn.q_future_proj.weight");
    for (int64_t l = 0; l < 1200; l++) {
        sp_forecast_name(l, name);
        assert_int_equal(sp_forecast_index(name), l);
    }
    static const struct {
        const char *name;
        int64_t index;
    } cases[] = {
        {"layers.31.self_attn.q_future_proj.weight", 32},
        {"module.model.layers.31.self_attn.q_future_proj.weight", 32},
        {"module.layers.0.self_attn.q_curr_proj.weight", 0},
        {"model.layers.1.self_attn.q_curr_proj.weight", -1}, // layer 0 alone has one
        {"model.layers.01.self_attn.q_future_proj.weight", -1},
        {"model.layers..self_attn.q_future_proj.weight", -1},
        {"model.layers.-1.self_attn.q_future_proj.weight", -1},
        {"model.layers.9223372036854775807.self_attn.q_future_proj.weight", -1},
        {"model.layers.9223372036854775806.self_attn.q_future_proj.weight", INT64_MAX},
        {"model.layers.99999999999999999999.self_attn.q_future_proj.weight", -1},
        {"model.layers.1.self_attn.q_future_proj.bias", -1},
        {"model.layers.1.self_attn.q_future_proj.weight.x", -1},
        {"model.layers.1.self_attn.q_proj.weight", -1},
        {"model.model.layers.1.self_attn.q_future_proj.weight", -1},
        {"", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (sp_forecast_index(cases[i].name) != cases[i].index)
            fail_msg("%s gives %lld, not %lld", cases[i].name,
                     (long long)sp_forecast_index(cases[i].name), (long long)cases[i].index);
}

static void device_copies_hold_every_matrix(void **state) {
    (void)state;
    sp_model_desc d = {.layers = 2, .hidden = 10, .heads = {2, 1, 6}};
    sp_forecast f;
    sp_forecast_device on_device;
    assert_ok(sp_forecast_alloc(&d, &f));
    sp_forecast_init(&f, 7); // bf16 values: exact in every storage type
    assert_ok(sp_forecast_upload(test_backend(), &f, &on_device));
    assert_int_equal(on_device.layers, 2);
    for (int64_t l = 0; l <= 2; l++) {
        assert_true(on_device.w[l].rows == 6 && on_device.w[l].cols == 10);
        float *back = test_download(on_device.w[l]);
        assert_memory_equal(back, sp_forecast_matrix(&f, l), 60 * sizeof *back);
        free(back);
    }
    sp_forecast_device_free(&on_device);
    assert_null(on_device.w);
    sp_forecast_free(&f);
    sp_forecast_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_values_are_the_golden_ones),
        cmocka_unit_test(initial_values_fill_the_interval),
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(device_copies_hold_every_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
