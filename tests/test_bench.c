// sp_bench_operation: the fields of a result and the refusal of an unknown name.
#include "kernels/bench.h"
#include "tests/golden.h"

static void fields(void **state) {
    (void)state;
    const char *names[] = {"embed", "kl"};
    for (int i = 0; i < 2; i++) {
        json_t *results = json_array(), *r;
        assert_ok(sp_bench_operation(test_backend(), names[i], results));
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

static void unknown_name(void **state) {
    (void)state;
    json_t *results = json_array();
    assert_fails(sp_bench_operation(test_backend(), "softmax", results), SP_BAD_INPUT,
                 "unknown operation 'softmax'; known are: all, embed");
    assert_true(json_array_size(results) == 0);
    json_decref(results);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields), cmocka_unit_test(unknown_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
