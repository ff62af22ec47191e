// FLOP counts against the exact counts of training.md 10.
#include "common/util.h"
#include "model/flops.h"
#include "tests/support.h"

#include <jansson.h>
#include <stdlib.h>

static sp_model_desc desc_8b(int64_t window) {
    return (sp_model_desc){
        .layers = 32,
        .hidden = 4096,
        .ffn = 16384,
        .vocab = 73448,
        .heads = {32, 2, 128},
        .sparse = {.kernel_size = 32,
                   .kernel_stride = 16,
                   .init_blocks = 1,
                   .block_size = 64,
                   .window_size = window,
                   .topk = 96 - window / 64},
    };
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) fail_msg("examples.json: cost has no number %s", key);
    return json_number_value(v);
}

static void check_model(const json_t *cost, const sp_model_desc *d, int64_t T) {
    const sp_grid teacher = {2, 1}, deployed = {32, 16};
    const sp_prefill_args dense = {.selector = SP_SELECT_DENSE,
                                   .selection = sp_model_selection(d, false)};
    const sp_prefill_args by_teacher = {.selector = SP_SELECT_TEACHER,
                                        .selection = sp_model_selection(d, false),
                                        .teacher = teacher};
    double layers = (double)d->layers;
    sp_flops t = sp_flops_training(d, teacher, T), p = sp_flops_prefill(d, &by_teacher, T, 3);
    // Counted with all parts of every layer there: what a prefill does.
    assert_true(p.linear == layers * number(cost, "linear_flops_per_layer"));
    assert_true(p.selection == layers * number(cost, "teacher_flops_per_layer_two_pass"));
    assert_true(p.attention == layers * number(cost, "sparse_flops_per_layer"));
    assert_true(p.head == 2.0 * 3 * 4096 * 73448);
    assert_true(p.student == 0 && p.student_grad == 0 && p.grad_weight == 0);
    // Training leaves out the last layer's values, attention, output projection and MLP.
    double rest = 2.0 * (double)T * 4096 * (256 + 4096 + 3 * 16384);
    assert_true(t.linear == p.linear - rest);
    assert_true(t.attention == (layers - 1) * number(cost, "sparse_flops_per_layer"));
    assert_true(t.selection == p.selection);
    assert_true(t.student == layers * number(cost, "student_fwd_flops_per_layer"));
    assert_true(t.student_grad == layers * number(cost, "student_bwd_flops_per_layer"));
    assert_true(t.forecast == layers * number(cost, "forecast_proj_fwd_flops"));
    assert_true(t.grad_weight == layers * number(cost, "forecast_proj_dw_flops"));
    assert_true(t.head == 0);
    assert_true(sp_flops_total(&t) == t.linear + t.forecast + t.selection + t.attention +
                                          t.student + t.student_grad + t.grad_weight);
    assert_true(sp_count_window_pairs(teacher, SP_SEES_START, T) ==
                number(cost, "teacher_pairs_per_head"));
    assert_true(sp_count_window_pairs(deployed, SP_SEES_START, T) ==
                number(cost, "student_pairs_per_head"));
    assert_true(sp_count_listed_keys(64, 96, T) == number(cost, "sparse_keys_total"));
    p = sp_flops_prefill(d, &dense, T, 0);
    assert_true(p.attention == layers * 2 * 2 * 32 * 128 * ((double)T * ((double)T + 1) / 2));
    assert_true(p.selection == 0 && p.head == 0);
}

static void counts_of_the_8b_models(void **state) {
    (void)state;
    char *path = test_path("tests/golden/examples.json");
    json_error_t error;
    json_t *examples = json_load_file(path, 0, &error);
    if (!examples) fail_msg("%s: %s", path, error.text);
    free(path);
    const json_t *cost = json_object_get(examples, "cost");
    const sp_model_desc minicpm = desc_8b(2048), nosa = desc_8b(1024);
    check_model(json_object_get(cost, "minicpm_64k"), &minicpm, 65536);
    check_model(json_object_get(cost, "nosa_32k"), &nosa, 32768);
    json_decref(examples);
}

// Counted by hand: 9 tokens, blocks of 4, lists of 2 blocks: 1 2 3 4 | 5 6 7 8 | 5 (4 + 1).
static void short_sequences(void **state) {
    (void)state;
    assert_true(sp_count_listed_keys(4, 2, 9) == 10 + 26 + 5);
    assert_true(sp_count_listed_keys(4, 1, 9) == 10 + 10 + 1);
    // Windows 4/2 of 9 tokens: 3 of them, beginning at 0, 2, 4, complete from 3, 5, 7.
    const sp_grid g = {4, 2};
    assert_true(sp_count_window_pairs(g, SP_SEES_START, 9) == 9 + 7 + 5);
    assert_true(sp_count_window_pairs(g, SP_SEES_COMPLETE, 9) == 6 + 4 + 2);
    assert_true(sp_count_window_pairs(g, SP_SEES_START, 3) == 0);
    const sp_model_desc d = desc_8b(2048);
    sp_flops f = sp_flops_training(&d, (sp_grid){2, 1}, 31);
    assert_true(sp_flops_total(&f) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_the_8b_models),
        cmocka_unit_test(short_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
