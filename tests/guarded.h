// Tensors for tests of operations: a view inside a larger tensor, so that rows are strided, writes
// outside the view are found and reads outside it turn results into NaN.
#ifndef SPARDA_TEST_GUARDED_H
#define SPARDA_TEST_GUARDED_H

#include "tests/support.h"

#include <jansson.h>

typedef struct test_guarded {
    sp_tensor whole, t; // use `t`
} test_guarded;

// For results: filled with NaN (integers: INT32_MIN), surrounded by a pattern.
test_guarded test_output(sp_backend *be, int64_t rows, int64_t cols);
test_guarded test_output_i32(sp_backend *be, int64_t rows, int64_t cols);
// With given contents, surrounded by NaN.
test_guarded test_input(sp_backend *be, const float *values, int64_t rows, int64_t cols);
test_guarded test_input_i32(sp_backend *be, const int32_t *values, int64_t rows, int64_t cols);
// Contents (packed, caller frees); the test fails if the surroundings changed or if an element was
// left unwritten or became NaN. Frees the tensor.
float *test_take(test_guarded *g, const char *what);
int32_t *test_take_i32(test_guarded *g, const char *what);
void test_drop(test_guarded *g); // an input: checks the surroundings, frees

// n random values in [lo, hi); caller frees.
float *test_values(uint64_t *seed, int64_t n, float lo, float hi);

// Every set of inner loops that this machine can run and one that emulates AVX-512's width;
// NULL-terminated.
const struct sp_vector *const *test_vectors(void);
// Runs `body` with each of them.
void test_each_isa(sp_backend *be, void (*body)(sp_backend *be));

// Group `key` of tests/golden/examples.json; borrowed, lives until the process ends.
json_t *test_example(const char *key);
// Numbers of a nested list, flattened; "inf" and "-inf" are infinities. Caller frees.
double *test_numbers(const json_t *list, int64_t *n);
float *test_floats(const json_t *object, const char *key, int64_t n);
// Fails unless got[n] is object[key] within a relative L2 error of `limit`.
void assert_example(const float *got, const json_t *object, const char *key, int64_t n,
                    double limit);
// An input with the contents of array `name` of tests/golden/FILE.safetensors, of which rows
// row0.. are taken.
test_guarded test_golden(sp_backend *be, const char *file, const char *name, int64_t all_rows,
                         int64_t row0, int64_t rows, int64_t cols);

#endif
