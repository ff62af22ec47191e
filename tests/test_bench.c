// ctest: alone=yes
// sp_bench_operation: the fields of a result and the refusal of an unknown name.
#include "kernels/bench.h"
#include "tests/golden.h"

#include <string.h>

static void fields(void **state) {
    (void)state;
    const char *names[] = {"embed", "kl"};
    for (int i = 0; i < 2; i++) {
        json_t *results = json_array(), *r;
        assert_ok(sp_bench_operation(test_backend(), &(sp_bench_args){.name = names[i]}, results));
        assert_true(json_array_size(results) == 2); // two sequence lengths
        size_t n;
        json_array_foreach(results, n, r) {
            assert_string_equal(json_string_value(json_object_get(r, "name")), names[i]);
            assert_true(json_is_string(json_object_get(r, "shape")));
            assert_true(json_integer_value(json_object_get(r, "n")) >= 5);
            double median = json_real_value(json_object_get(r, "ms_median"));
            double p99 = json_real_value(json_object_get(r, "ms_p99"));
            assert_true(0 < median && median <= p99);
            assert_true(json_real_value(json_object_get(r, "bytes")) > 1e5);
            assert_true(json_real_value(json_object_get(r, "gbps")) > 0);
            double share = json_real_value(json_object_get(r, "share"));
            double ceiling = json_real_value(json_object_get(r, "ceiling"));
            double flop = json_real_value(json_object_get(r, "flop"));
            assert_true(share > 0 && ceiling > 0 && (flop > 0) == (i == 1));
            if (i == 1) {
                double tflops = json_real_value(json_object_get(r, "tflops"));
                assert_true(tflops > 0 && tflops / ceiling < 1.01 * share);
            }
        }
        json_decref(results);
    }
}

// Every operation runs, at a length that no tile or block divides.
static void all_operations(void **state) {
    (void)state;
    json_t *results = json_array(), *r;
    size_t n, lists = 0;
    assert_ok(sp_bench_operation(test_backend(), &(sp_bench_args){"all", "tiny", 203}, results));
    json_array_foreach(results, n, r) {
        lists += strstr(json_string_value(json_object_get(r, "name")), "_lists") != NULL;
        assert_non_null(strstr(json_string_value(json_object_get(r, "shape")), "tiny T=203 "));
        assert_true(json_real_value(json_object_get(r, "ms_median")) > 0);
    }
    assert_true(lists == 3 && json_array_size(results) > 24); // forecast_, original_, extend_
    json_decref(results);
}

static void unknown_name(void **state) {
    (void)state;
    json_t *results = json_array();
    assert_fails(sp_bench_operation(test_backend(), &(sp_bench_args){.name = "softmax"}, results),
                 SP_BAD_INPUT, "unknown operation 'softmax'; known are: all, embed");
    assert_fails(sp_bench_operation(test_backend(), &(sp_bench_args){"embed", "gpt", 0}, results),
                 SP_BAD_INPUT, "--like 'gpt' is not known; known are: tiny, minicpm4.1-8b");
    assert_fails(sp_bench_operation(test_backend(), &(sp_bench_args){"embed", "tiny", 7}, results),
                 SP_BAD_INPUT, "below one window of 8 tokens");
    assert_true(json_array_size(results) == 0);
    json_decref(results);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields), cmocka_unit_test(all_operations),
                                       cmocka_unit_test(unknown_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
