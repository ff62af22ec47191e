#include "tests/guarded.h"
#include "common/util.h"
#include "kernels/cpu/cpu.h"
#include "tests/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 3, RIGHT = 2, ABOVE = 1, BELOW = 1 };
static const float pattern = -1.2345e33f;
enum { PATTERN = 0x5a5a5a5a };

// An outer tensor whose frame has one bit pattern and whose inside has given values or another.
static test_guarded make(sp_backend *be, sp_dtype type, const void *values, int64_t rows,
                         int64_t cols, const void *frame, const void *inside) {
    test_guarded g;
    int64_t R = rows + ABOVE + BELOW, C = cols + LEFT + RIGHT;
    char *host;
    assert_ok(sp_alloc(&host, R * C, 4, "test data"));
    for (int64_t r = 0; r < R; r++)
        for (int64_t c = 0; c < C; c++) {
            bool in = r >= ABOVE && r < ABOVE + rows && c >= LEFT && c < LEFT + cols;
            const char *from = frame;
            if (in)
                from = values ? (const char *)values + ((r - ABOVE) * cols + c - LEFT) * 4 : inside;
            memcpy(host + (r * C + c) * 4, from, 4);
        }
    assert_ok(sp_tensor_alloc(be, type, R, C, "test tensor", &g.whole));
    assert_ok(sp_upload(g.whole, host));
    free(host);
    g.t = sp_tensor_cols(sp_tensor_rows(g.whole, ABOVE, rows), LEFT, cols);
    return g;
}

static const float not_a_number = NAN;
static const int32_t integer_pattern = PATTERN, integer_poison = INT32_MIN;

test_guarded test_output(sp_backend *be, int64_t rows, int64_t cols) {
    return make(be, SP_F32, NULL, rows, cols, &pattern, &not_a_number);
}
test_guarded test_output_i32(sp_backend *be, int64_t rows, int64_t cols) {
    return make(be, SP_I32, NULL, rows, cols, &integer_pattern, &integer_poison);
}
test_guarded test_input(sp_backend *be, const float *values, int64_t rows, int64_t cols) {
    return make(be, SP_F32, values, rows, cols, &not_a_number, NULL);
}
test_guarded test_input_i32(sp_backend *be, const int32_t *values, int64_t rows, int64_t cols) {
    return make(be, SP_I32, values, rows, cols, &integer_pattern, NULL);
}

static char *take(test_guarded *g, const char *what, bool output) {
    sp_tensor w = g->whole, t = g->t;
    char *host, *out;
    assert_ok(sp_alloc(&host, w.rows * w.cols, 4, "test data"));
    assert_ok(sp_alloc(&out, t.rows * t.cols, 4, "test data"));
    assert_ok(sp_download(w, host));
    for (int64_t r = 0; r < w.rows; r++)
        for (int64_t c = 0; c < w.cols; c++) {
            bool in = r >= ABOVE && r < ABOVE + t.rows && c >= LEFT && c < LEFT + t.cols;
            const char *at = host + (r * w.cols + c) * 4;
            float f;
            int32_t i;
            memcpy(&f, at, 4);
            memcpy(&i, at, 4);
            bool number = t.dtype == SP_F32;
            if (in) {
                memcpy(out + ((r - ABOVE) * t.cols + c - LEFT) * 4, at, 4);
                if (output && (number ? isnan(f) : i == INT32_MIN))
                    fail_msg("%s: element [%lld, %lld] is %s", what, (long long)(r - ABOVE),
                             (long long)(c - LEFT), number ? "NaN" : "unwritten");
            } else {
                bool intact = !number ? i == PATTERN : output ? f == pattern : isnan(f);
                if (!intact)
                    fail_msg("%s: written outside its tensor, at row %lld, column %lld", what,
                             (long long)(r - ABOVE), (long long)(c - LEFT));
            }
        }
    free(host);
    sp_tensor_free(&g->whole);
    return out;
}

float *test_take(test_guarded *g, const char *what) {
    return (float *)take(g, what, true);
}
int32_t *test_take_i32(test_guarded *g, const char *what) {
    return (int32_t *)take(g, what, true);
}
void test_drop(test_guarded *g) {
    free(take(g, "an input", false));
}

float *test_values(uint64_t *seed, int64_t n, float lo, float hi) {
    float *v;
    assert_ok(sp_alloc(&v, n, sizeof *v, "test data"));
    for (int64_t i = 0; i < n; i++) v[i] = test_uniform(seed, lo, hi);
    return v;
}

extern const sp_vector test_vector_wide;

const sp_vector *const *test_vectors(void) {
    static const sp_vector *list[8];
    int n = 0;
    for (const sp_vector *const *v = sp_vector_all(); *v; v++) list[n++] = *v;
    list[n] = &test_vector_wide;
    return list;
}

void test_each_isa(sp_backend *be, void (*body)(sp_backend *be)) {
    sp_cpu *cpu = (sp_cpu *)be;
    const sp_vector *best = cpu->vec;
    for (const sp_vector *const *v = test_vectors(); *v; v++) {
        cpu->vec = *v;
        print_message("           %s\n", cpu->vec->isa);
        body(be);
    }
    cpu->vec = best;
}

json_t *test_example(const char *key) {
    static json_t *all;
    if (!all) {
        char *path = test_path("tests/golden/examples.json");
        json_error_t error;
        all = json_load_file(path, 0, &error);
        if (!all) fail_msg("%s:%d: %s", path, error.line, error.text);
        free(path);
    }
    json_t *group = json_object_get(all, key);
    if (!group) fail_msg("examples.json has no group %s", key);
    return group;
}

static int64_t count(const json_t *value) {
    if (!json_is_array(value)) return 1;
    int64_t n = 0;
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)value, i, item) n += count(item);
    return n;
}

static double *flatten(const json_t *value, double *to) {
    if (json_is_array(value)) {
        size_t i;
        json_t *item;
        json_array_foreach((json_t *)value, i, item) to = flatten(item, to);
        return to;
    }
    if (json_is_string(value))
        *to = json_string_value(value)[0] == '-' ? -INFINITY : INFINITY;
    else
        *to = json_number_value(value);
    return to + 1;
}

double *test_numbers(const json_t *list, int64_t *n) {
    double *numbers;
    if (!list) fail_msg("an example lacks a list");
    *n = count(list);
    assert_ok(sp_alloc(&numbers, *n, sizeof *numbers, "numbers"));
    flatten(list, numbers);
    return numbers;
}

float *test_floats(const json_t *object, const char *key, int64_t n) {
    int64_t found;
    const json_t *list = json_object_get(object, key);
    if (!list) fail_msg("an example lacks %s", key);
    double *numbers = test_numbers(list, &found);
    if (found != n)
        fail_msg("%s has %lld numbers, expected %lld", key, (long long)found, (long long)n);
    float *out;
    assert_ok(sp_alloc(&out, n, sizeof *out, "numbers"));
    for (int64_t i = 0; i < n; i++) out[i] = (float)numbers[i];
    free(numbers);
    return out;
}

void assert_example(const float *got, const json_t *object, const char *key, int64_t n,
                    double limit) {
    float *want = test_floats(object, key, n);
    assert_close(key, got, want, n, limit);
    free(want);
}

test_guarded test_golden(sp_backend *be, const char *file, const char *name, int64_t all_rows,
                         int64_t row0, int64_t rows, int64_t cols) {
    float *v = golden_f32(file, name, all_rows * cols);
    test_guarded g = test_input(be, v + row0 * cols, rows, cols);
    free(v);
    return g;
}
