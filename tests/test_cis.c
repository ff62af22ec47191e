// sp_cis, sp_cis_blocks and sp_extend_lists: the example, a slow version, awkward shapes.
#include "tests/golden.h"
#include "tests/guarded.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    sp_selection s;
    sp_grid g;
    int64_t T, i0, heads, k1;
    int values; // number of different importances: few make many ties
} shape;

static const shape shapes[] = {
    {{16, 1, 2, 14, false}, {8, 4}, 395, 0, 2, 10, 1 << 20},
    {{16, 1, 2, 14, true}, {8, 4}, 395, 300, 2, 10, 1 << 20},
    {{16, 1, 2, 14, false}, {8, 4}, 395, 0, 2, 10, 2},
    {{16, 1, 2, 14, false}, {8, 4}, 700, 0, 1, 10, 1},       // all equal
    {{16, 1, 2, 14, false}, {8, 4}, 200, 0, 2, 14, 1 << 20}, // nothing left to fill
    {{16, 1, 2, 100, false}, {8, 4}, 203, 0, 2, 60, 5},      // k above nb
    {{16, 3, 2, 12, false}, {8, 4}, 203, 0, 3, 7, 7},
    {{64, 1, 16, 96, false}, {32, 16}, 9000, 8990, 2, 41, 1000},
    {{16, 1, 2, 14, false}, {8, 4}, 7, 0, 2, 10, 2}, // no window at all
    {{16, 1, 2, 14, false}, {8, 4}, 17, 0, 2, 10, 2},
    {{12, 0, 1, 5, false}, {6, 3}, 100, 0, 1, 3, 7},
};

static void importance_of_keys(void **state) {
    (void)state;
    static const struct {
        int64_t T, heads, d;
        float spread;
    } cases[] = {{1, 1, 2, 1}, {37, 2, 64, 1}, {203, 3, 6, 1}, {64, 2, 8, 60}};
    sp_backend *be = test_backend();
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        int64_t T = cases[n].T, H = cases[n].heads, cols = H * cases[n].d;
        uint64_t seed = n;
        float *vv = test_values(&seed, T * cols, -cases[n].spread, cases[n].spread);
        float *dv = test_values(&seed, H * cols, -1, 1), *sv = test_values(&seed, H, -1, 1);
        test_guarded v = test_input(be, vv, T, cols), delta = test_input(be, dv, H, cols);
        test_guarded scale = test_input(be, sv, 1, H), out = test_output(be, H, T);
        assert_ok(sp_cis((sp_heads){2 * H, H, cases[n].d}, v.t, delta.t, scale.t, out.t));
        float *got = test_take(&out, "cis");
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                double x = 0;
                for (int64_t c = 0; c < cols; c++)
                    x += (double)dv[h * cols + c] * (double)vv[t * cols + c];
                // the definition itself; for large x it is x
                double want = (double)sv[h] * (x > 600 ? x : log(1 + exp(x)));
                assert_true(fabs((double)got[h * T + t] - want) <= 1e-6 * fabs(want) + 1e-15);
            }
        test_drop(&v), test_drop(&delta), test_drop(&scale);
        free(vv), free(dv), free(sv), free(got);
    }
}

// Window scores that pool to given block scores: windows of two a block, the second one empty.
static float *windows_of(const float *scores, int64_t nb) {
    float *row = malloc((size_t)(2 * nb) * sizeof *row);
    for (int64_t b = 0; b < nb; b++) {
        row[2 * b] = scores[b];
        row[2 * b + 1] = -INFINITY;
    }
    return row;
}

static void example(void **state) {
    (void)state;
    enum { NB = 10, BLOCK = 2 };
    static const sp_grid g = {1, 1};
    sp_backend *be = test_backend();
    json_t *x = test_example("nosa_selection"), *item;
    size_t n;
    json_array_foreach(json_object_get(x, "cases"), n, item) {
        int k1 = (int)json_integer_value(json_object_get(item, "shortlist"));
        int k = (int)json_integer_value(json_object_get(item, "k"));
        int64_t i = json_integer_value(json_object_get(item, "q_block")) * BLOCK;
        const sp_selection s = {BLOCK, 1, 1, k1, false};
        float *qk = test_floats(item, "qk", NB), *cis = test_floats(item, "cis", NB);
        for (int b = 0; b < NB; b++)
            if (isinf(cis[b])) cis[b] = 0; // forced, so never asked for
        float *row = windows_of(qk, NB), *tokens = windows_of(cis, NB);
        test_guarded a = test_input(be, row, 1, 2 * NB), t = test_input(be, tokens, 1, 2 * NB);
        test_guarded few = test_output_i32(be, 1, k1), all = test_output_i32(be, 1, k);
        test_guarded scores = test_output(be, 1, NB), order = test_output_i32(be, 1, NB);
        assert_ok(sp_select_blocks(&s, g, 1, a.t, i, NB, few.t));
        assert_ok(sp_cis_blocks(t.t, g, BLOCK, scores.t, order.t));
        assert_ok(sp_extend_lists(BLOCK, 1, few.t, i, order.t, all.t));
        float *got_scores = test_take(&scores, "scores");
        assert_memory_equal(got_scores, cis, NB * sizeof *cis);
        int32_t *got_few = test_take_i32(&few, "shortlist"), *got = test_take_i32(&all, "lists");
        float *want_few = test_floats(item, "kl_list_top5", k1);
        float *want = test_floats(item, "selected", k);
        for (int e = 0; e < k1; e++) assert_int_equal(got_few[e], (int)want_few[e]);
        for (int e = 0; e < k; e++) assert_int_equal(got[e], (int)want[e]);
        int32_t *unused = test_take_i32(&order, "order");
        test_drop(&a), test_drop(&t);
        free(qk), free(cis), free(row), free(tokens), free(got_scores), free(got_few), free(got);
        free(want_few), free(want), free(unused);
    }
    assert_int_equal(n, 3);
}

// Importance of blocks in double, from the definition.
static void block_importance(const shape *x, const float *cis, int64_t n_d, int64_t nb,
                             double *out) {
    int64_t per = x->s.block / x->g.stride;
    for (int64_t b = 0; b < nb; b++) {
        out[b] = -INFINITY;
        for (int64_t j = per * b - 1; j < per * b + per; j++) {
            if (j < 0 || j >= n_d) continue;
            double sum = 0;
            for (int64_t t = 0; t < x->g.kernel; t++) sum += (double)cis[j * x->g.stride + t];
            out[b] = fmax(out[b], sum / (double)x->g.kernel);
        }
    }
}

static void slow_version(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        const shape *x = &shapes[n];
        int64_t n_d = sp_windows(x->g, x->T), nb = (x->T + x->s.block - 1) / x->s.block;
        int64_t R = x->T - x->i0, H = x->heads, k = x->s.topk, k1 = x->k1;
        uint64_t seed = n;
        float *cis = test_values(&seed, H * x->T, 0, 1);
        float *row = test_values(&seed, R * H * n_d, 0, 1);
        // multiples of 1/values: sums of a power of two of them are exact
        for (int64_t e = 0; e < H * x->T; e++)
            cis[e] = floorf(cis[e] * (float)x->values) / (float)x->values;
        sp_selection first = x->s;
        first.topk = k1;
        test_guarded a = test_input(be, row, R, H * n_d), c = test_input(be, cis, H, x->T);
        test_guarded few = test_output_i32(be, R, H * k1), all = test_output_i32(be, R, H * k);
        test_guarded scores = test_output(be, H, nb), order = test_output_i32(be, H, nb);
        assert_ok(sp_select_blocks(&first, x->g, H, a.t, x->i0, nb, few.t));
        assert_ok(sp_cis_blocks(c.t, x->g, x->s.block, scores.t, order.t));
        assert_ok(sp_extend_lists(x->s.block, H, few.t, x->i0, order.t, all.t));
        float *got_scores = test_take(&scores, "scores");
        int32_t *got = test_take_i32(&all, "lists"), *ranked = test_take_i32(&order, "order");
        int32_t *unused = test_take_i32(&few, "shortlist");
        double *qk = malloc((size_t)nb * sizeof *qk), *of_block = malloc((size_t)nb * sizeof *qk);
        int32_t *want = malloc((size_t)k * sizeof *want);
        for (int64_t h = 0; h < H; h++) {
            block_importance(x, cis + h * x->T, n_d, nb, of_block);
            for (int64_t b = 0; b < nb; b++) {
                double s = (double)got_scores[h * nb + b];
                assert_true(s == of_block[b] || fabs(s - of_block[b]) < 1e-6);
                of_block[b] = s; // the order is that of the scores as they were computed
            }
            for (int64_t e = 1; e < nb; e++) {
                int32_t b = ranked[h * nb + e - 1], next = ranked[h * nb + e];
                assert_true(of_block[b] > of_block[next] ||
                            (of_block[b] == of_block[next] && b < next));
            }
            for (int64_t r = 0; r < R; r++) {
                ref_block_scores(&x->s, x->g, row + (r * H + h) * n_d, n_d, x->i0 + r, nb, qk);
                ref_select_twice(&x->s, k1, qk, of_block, x->i0 + r, nb, want);
                if (memcmp(want, got + (r * H + h) * k, (size_t)k * sizeof *want) != 0)
                    fail_msg("shape %d: list of row %d, head %d", (int)n, (int)r, (int)h);
            }
        }
        test_drop(&a), test_drop(&c);
        free(cis), free(row), free(got_scores), free(got), free(ranked), free(unused);
        free(qk), free(of_block), free(want);
    }
}

static void contracts(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    float zeros[64] = {0};
    int32_t none[64];
    for (int e = 0; e < 64; e++) none[e] = -1;
    test_guarded cis = test_input(be, zeros, 2, 20), scores = test_input(be, zeros, 2, 5);
    test_guarded few = test_input_i32(be, none, 3, 8), order = test_input_i32(be, none, 2, 5);
    test_guarded lists = test_input_i32(be, none, 3, 6);
    // another number of blocks; a list shorter than the shortlist; rows beyond the last block
    assert_fails(sp_cis_blocks(cis.t, (sp_grid){4, 2}, 8, scores.t, order.t), SP_ENVIRONMENT,
                 "broken contract");
    assert_fails(sp_extend_lists(4, 2, few.t, 0, order.t, lists.t), SP_ENVIRONMENT,
                 "shortlist.cols <= lists.cols");
    assert_fails(sp_extend_lists(4, 2, lists.t, 18, order.t, few.t), SP_ENVIRONMENT,
                 "order.cols * block");
    test_drop(&cis), test_drop(&scores), test_drop(&few), test_drop(&order), test_drop(&lists);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(importance_of_keys),
        cmocka_unit_test(example),
        cmocka_unit_test(slow_version),
        cmocka_unit_test(contracts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
