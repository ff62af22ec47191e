// Learning rate, teacher stages and batch arithmetic against examples.json and by hand.
#include "tests/support.h"
#include "train/schedule.h"

#include <jansson.h>
#include <stdlib.h>

static json_t *examples(const char *key) {
    static json_t *all;
    if (!all) {
        char *path = test_path("tests/golden/examples.json");
        json_error_t where;
        all = json_load_file(path, 0, &where);
        if (!all) fail_msg("%s: %s", path, where.text);
        free(path);
    }
    json_t *o = json_object_get(all, key);
    if (!o) fail_msg("examples.json lacks %s", key);
    return o;
}

static void test_warmup_factors(void **state) {
    (void)state;
    json_t *factors = json_object_get(examples("optimizer"), "warmup_lr_factor_w10");
    assert_int_equal(json_array_size(factors), 12);
    size_t i;
    json_t *v;
    json_array_foreach(factors, i, v) {
        // 10 steps of warm-up need at least 100 steps of training
        double got = sp_learning_rate(1.0, 10, 100, (int64_t)i);
        assert_true(got == json_real_value(v));
    }
}

static void test_warmup_is_capped(void **state) {
    (void)state;
    assert_int_equal(sp_warmup(0, 2000), 0);
    assert_int_equal(sp_warmup(50, 2000), 50);
    assert_int_equal(sp_warmup(500, 2000), 200);
    assert_int_equal(sp_warmup(10, 99), 9);
    assert_int_equal(sp_warmup(10, 9), 0); // no warm-up in runs below 10 steps
    assert_true(sp_learning_rate(5e-4, 10, 9, 0) == 5e-4);
    assert_true(sp_learning_rate(5e-4, 4, 40, 0) == 0);
    assert_true(sp_learning_rate(5e-4, 4, 40, 3) == 5e-4 * 0.75);
    assert_true(sp_learning_rate(5e-4, 4, 40, 4) == 5e-4);
    assert_true(sp_learning_rate(5e-4, 4, 40, 39) == 5e-4); // no decay
}

static void assert_grids(json_t *want, sp_grid from, sp_grid to) {
    sp_stages s;
    assert_ok(sp_stages_make(from, to, true, &s));
    assert_int_equal(s.n, json_array_size(want));
    for (int64_t i = 0; i < s.n; i++) {
        json_t *g = json_array_get(want, (size_t)i);
        assert_int_equal(s.grid[i].kernel, json_integer_value(json_array_get(g, 0)));
        assert_int_equal(s.grid[i].stride, json_integer_value(json_array_get(g, 1)));
    }
}

static void test_stage_grids(void **state) {
    (void)state;
    json_t *e = examples("progressive_schedule");
    assert_grids(json_object_get(e, "grids"), (sp_grid){32, 16}, (sp_grid){2, 1});
    assert_grids(json_object_get(e, "grids_16_8_to_4_1"), (sp_grid){16, 8}, (sp_grid){4, 1});
    sp_stages s;
    assert_ok(sp_stages_make((sp_grid){32, 16}, (sp_grid){2, 1}, false, &s));
    assert_int_equal(s.n, 1);
    assert_int_equal(s.grid[0].kernel, 2);
    assert_ok(sp_stages_make((sp_grid){8, 4}, (sp_grid){8, 4}, true, &s)); // nothing to halve
    assert_int_equal(s.n, 1);
    assert_fails(sp_stages_make((sp_grid){8, 4}, (sp_grid){16, 4}, true, &s), SP_BAD_INPUT, "16/4");
    assert_fails(sp_stages_make((sp_grid){8, 4}, (sp_grid){8, 8}, true, &s), SP_BAD_INPUT, "8/8");
}

static void assert_stages(json_t *want, const sp_stages *s, int64_t steps) {
    assert_int_equal(json_array_size(want), steps);
    for (int64_t i = 0; i < steps; i++)
        assert_int_equal(sp_stage(s, steps, i),
                         json_integer_value(json_array_get(want, (size_t)i)));
}

static void test_stage_steps(void **state) {
    (void)state;
    json_t *e = examples("progressive_schedule");
    sp_stages s;
    assert_ok(sp_stages_make((sp_grid){32, 16}, (sp_grid){2, 1}, true, &s));
    json_t *first = json_object_get(e, "first_step_of_stage_total2000");
    assert_int_equal(json_array_size(first), 5);
    for (int64_t i = 0; i < 5; i++) {
        int64_t at = json_integer_value(json_array_get(first, (size_t)i));
        assert_int_equal(sp_stage(&s, 2000, at), i);
        if (at > 0) assert_int_equal(sp_stage(&s, 2000, at - 1), i - 1);
    }
    assert_stages(json_object_get(e, "total3"), &s, 3);
    assert_stages(json_object_get(e, "total7"), &s, 7);
    assert_int_equal(sp_stage(&s, 1, 0), 4);
    assert_int_equal(sp_stage(&s, 2000, 1999), 4);
    assert_int_equal(sp_stage(&s, INT64_MAX / 2, INT64_MAX / 2 - 1), 4); // no overflow
}

static void test_changed_length(void **state) {
    (void)state;
    sp_stages one, five;
    assert_ok(sp_stages_make((sp_grid){32, 16}, (sp_grid){2, 1}, false, &one));
    assert_ok(sp_stages_make((sp_grid){32, 16}, (sp_grid){2, 1}, true, &five));
    // constant rate: any length at or beyond what is done
    assert_ok(sp_schedule_may_change(&one, 1e-3, 0, 10, 20, 40));
    assert_ok(sp_schedule_may_change(&one, 1e-3, 0, 10, 20, 10));
    assert_fails(sp_schedule_may_change(&one, 1e-3, 0, 10, 20, 9), SP_BAD_INPUT, "10 steps");
    // warm-up 4 either way
    assert_ok(sp_schedule_may_change(&one, 1e-3, 4, 10, 40, 80));
    // warm-up 2 of 20 steps would be 4 of 40
    assert_fails(sp_schedule_may_change(&one, 1e-3, 4, 10, 20, 40), SP_BAD_INPUT, "2 -> 4");
    assert_ok(sp_schedule_may_change(&one, 1e-3, 4, 1, 20, 40)); // only the rate 0 was used
    assert_ok(sp_schedule_may_change(&five, 1e-3, 0, 4, 20, 40));
    assert_fails(sp_schedule_may_change(&five, 1e-3, 0, 5, 20, 40), SP_BAD_INPUT, "stage 1 -> 0");
}

static void test_batch_plan(void **state) {
    (void)state;
    sp_batch_plan p;
    assert_ok(sp_batch_plan_make(32, 1, 1, &p));
    assert_int_equal(p.accumulation, 32);
    assert_ok(sp_batch_plan_make(32, 2, 4, &p));
    assert_int_equal(p.accumulation, 4);
    assert_int_equal(p.per_rank, 8);
    assert_fails(sp_batch_plan_make(32, 1, 3, &p), SP_BAD_INPUT,
                 "global_batch 32 is not a multiple of ranks 3 x micro_batch 1");
    assert_fails(sp_batch_plan_make(32, 1, 6, &p), SP_BAD_INPUT, "ranks 6");
    assert_fails(sp_batch_plan_make(4, 8, 1, &p), SP_BAD_INPUT, "micro_batch 8");
    assert_fails(sp_batch_plan_make(4, INT64_MAX, 2, &p), SP_BAD_INPUT, NULL);
}

// Every cut covers the same samples of a step, each once.
static void test_batch_samples(void **state) {
    (void)state;
    static const int64_t cuts[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 3}, {3, 2}, {4, 3}, {12, 1}};
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        sp_batch_plan p;
        assert_ok(sp_batch_plan_make(12, cuts[c][1], cuts[c][0], &p));
        int seen[12] = {0};
        for (int64_t r = 0; r < p.ranks; r++)
            for (int64_t i = 0; i < p.per_rank; i++) {
                uint64_t g = sp_batch_sample(&p, 5, r, i);
                assert_in_range(g, 60, 71);
                assert_int_equal(g % (uint64_t)p.ranks, (uint64_t)r);
                seen[g - 60]++;
            }
        for (int i = 0; i < 12; i++) assert_int_equal(seen[i], 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup_factors), cmocka_unit_test(test_warmup_is_capped),
        cmocka_unit_test(test_stage_grids),    cmocka_unit_test(test_stage_steps),
        cmocka_unit_test(test_changed_length), cmocka_unit_test(test_batch_plan),
        cmocka_unit_test(test_batch_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
