// sp_block_scores and sp_select_blocks: examples, golden lists from golden rows, ties.
#include "tests/golden.h"
#include "tests/guarded.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Scores and list of one row.
static void one_row(const sp_selection *s, sp_grid g, const float *row, int64_t n_d, int64_t i,
                    int64_t nb, float *scores, int32_t *list) {
    sp_backend *be = test_backend();
    test_guarded a = test_input(be, row, 1, n_d), sc = test_output(be, 1, nb);
    test_guarded l = test_output_i32(be, 1, s->topk);
    assert_ok(sp_block_scores(s, g, 1, a.t, i, nb, sc.t));
    assert_ok(sp_select_blocks(s, g, 1, a.t, i, nb, l.t));
    float *got = test_take(&sc, "scores");
    int32_t *chosen = test_take_i32(&l, "lists");
    memcpy(scores, got, (size_t)nb * sizeof *got);
    memcpy(list, chosen, (size_t)s->topk * sizeof *chosen);
    free(got), free(chosen);
    test_drop(&a);
}

static void check_example(const json_t *x, const float *row, const char *key, int k, int i) {
    const sp_selection s = {4, 1, 1, k, false};
    float scores[8], *want = test_floats(x, "scores", 8);
    int32_t list[8];
    float *chosen = test_floats(x, key, k);
    one_row(&s, (sp_grid){4, 2}, row, 15, i, 8, scores, list);
    for (int b = 0; b < 8; b++)
        if (scores[b] != want[b]) fail_msg("i = %d: score of block %d", i, b);
    for (int n = 0; n < k; n++)
        if (list[n] != (int)chosen[n]) fail_msg("i = %d, %s: slot %d is %d", i, key, n, list[n]);
    free(want), free(chosen);
}

static void examples(void **state) {
    (void)state;
    json_t *x = test_example("blocks"), *item;
    float *row = test_floats(x, "row", 15);
    size_t n;
    json_array_foreach(json_object_get(x, "cases"), n, item) {
        int i = (int)json_integer_value(json_object_get(item, "i"));
        check_example(item, row, "top4", 4, i);
        check_example(item, row, "top5", 5, i);
    }
    assert_true(n == 6);
    free(row);
    const char *special[] = {"tie", "future_leak"}, *keys[] = {"top4_lower_index_wins", "top4"};
    for (int e = 0; e < 2; e++) {
        json_t *one = json_object_get(x, special[e]);
        row = test_floats(one, "row", 15);
        check_example(one, row, keys[e], 4, (int)json_integer_value(json_object_get(one, "i")));
        free(row);
    }
}

// With the future masked, the slot that block qb + 1 took goes to a block of the past.
static void masked_future(void **state) {
    (void)state;
    json_t *leak = json_object_get(test_example("blocks"), "future_leak");
    float *row = test_floats(leak, "row", 15), scores[8];
    int32_t list[4];
    const sp_selection s = {4, 1, 1, 4, true};
    one_row(&s, (sp_grid){4, 2}, row, 15, 15, 8, scores, list);
    for (int b = 4; b < 8; b++) assert_true(scores[b] == -INFINITY);
    const int32_t want[] = {0, 1, 2, 3};
    assert_memory_equal(list, want, sizeof want);
    free(row);
}

static void golden_lists(void **state) {
    (void)state;
    enum { T = 256, N = 63, NB = 16, K = 10 };
    float *A = golden_rows_f32("forward", "A", 6, 2, T, N);
    float *want_scores = golden_rows_f32("forward", "block_scores", 6, 2, T, NB);
    const char *names[] = {"lists.bits", "lists_masked.bits"};
    for (int masked = 0; masked < 2; masked++) {
        int32_t *want = golden_bits("forward", names[masked], 6, 2, T, K);
        const sp_selection s = {16, 1, 2, K, masked};
        for (int layer = 0; layer < 6; layer++) {
            sp_backend *be = test_backend();
            test_guarded a = test_input(be, A + layer * T * 2 * N, T, 2 * N);
            test_guarded l = test_output_i32(be, T, 2 * K), sc = test_output(be, T, 2 * NB);
            assert_ok(sp_select_blocks(&s, (sp_grid){8, 4}, 2, a.t, 0, NB, l.t));
            assert_ok(sp_block_scores(&s, (sp_grid){8, 4}, 2, a.t, 0, NB, sc.t));
            int32_t *lists = test_take_i32(&l, names[masked]);
            float *scores = test_take(&sc, "block_scores");
            // Every row, exact ties included.
            assert_memory_equal(lists, want + layer * T * 2 * K, T * 2 * K * sizeof *lists);
            if (!masked)
                assert_memory_equal(scores, want_scores + layer * T * 2 * NB,
                                    T * 2 * NB * sizeof *scores);
            free(lists), free(scores);
            test_drop(&a);
        }
        free(want);
    }
    free(A), free(want_scores);
}

typedef struct shape {
    sp_selection s;
    sp_grid g;
    int64_t T, i0, rows, heads;
    int values; // number of different values: few make many ties
} shape;

static const shape shapes[] = {
    {{16, 1, 2, 10, false}, {8, 4}, 1024, 0, 1024, 2, 1 << 20},
    {{16, 1, 2, 10, true}, {8, 4}, 1024, 700, 200, 2, 3},
    {{16, 1, 2, 10, false}, {8, 4}, 1024, 500, 300, 2, 1}, // all equal
    {{16, 1, 2, 100, false}, {8, 4}, 203, 0, 203, 2, 5},   // k above nb
    {{12, 0, 0, 3, false}, {6, 3}, 100, 0, 100, 1, 7},
    {{16, 3, 2, 2, false}, {8, 4}, 203, 0, 203, 1, 7}, // k below the forced blocks
    {{64, 1, 32, 96, false}, {32, 16}, 9000, 8990, 10, 2, 1000},
    {{16, 1, 2, 10, false}, {8, 4}, 7, 0, 7, 2, 2}, // no window at all
    {{16, 1, 2, 10, false}, {8, 4}, 17, 0, 17, 2, 2},
};

static void slow_version(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        const shape *x = &shapes[n];
        int64_t n_d = sp_windows(x->g, x->T), nb = (x->T + x->s.block - 1) / x->s.block;
        uint64_t seed = n;
        float *row = test_values(&seed, x->rows * x->heads * n_d, 0, 1);
        for (int64_t e = 0; e < x->rows * x->heads * n_d; e++) {
            float value = floorf(row[e] * (float)x->values) / (float)x->values;
            // Equal zeros of both signs; cells that a Forecast does not see.
            uint64_t kind = test_random(&seed) % 32;
            row[e] = kind == 0 ? -INFINITY : kind == 1 ? -0.0f : kind == 2 ? 0.0f : value;
        }
        test_guarded a = test_input(be, row, x->rows, x->heads * n_d);
        test_guarded l = test_output_i32(be, x->rows, x->heads * x->s.topk);
        test_guarded sc = test_output(be, x->rows, x->heads * nb);
        assert_ok(sp_select_blocks(&x->s, x->g, x->heads, a.t, x->i0, nb, l.t));
        assert_ok(sp_block_scores(&x->s, x->g, x->heads, a.t, x->i0, nb, sc.t));
        int32_t *got = test_take_i32(&l, "lists"), *want = malloc((size_t)x->s.topk * sizeof *want);
        float *scores = test_take(&sc, "scores");
        double *exact = malloc((size_t)nb * sizeof *exact);
        for (int64_t r = 0; r < x->rows * x->heads; r++) {
            int64_t i = x->i0 + r / x->heads;
            ref_block_scores(&x->s, x->g, row + r * n_d, n_d, i, nb, exact);
            for (int64_t b = 0; b < nb; b++) assert_true((double)scores[r * nb + b] == exact[b]);
            ref_select(&x->s, exact, i, nb, want);
            if (memcmp(want, got + r * x->s.topk, (size_t)x->s.topk * sizeof *want) != 0)
                fail_msg("shape %d: list of row %d", (int)n, (int)r);
        }
        test_drop(&a);
        free(row), free(got), free(want), free(scores), free(exact);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples),
        cmocka_unit_test(masked_future),
        cmocka_unit_test(golden_lists),
        cmocka_unit_test(slow_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
