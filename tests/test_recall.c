// Block recall and mass recall of held-out evaluation.
#include "common/util.h"
#include "tests/stepper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 6,
    D = 256,
    HKV = 2,
    HEAD = 64,
    T0 = 256,
    ND = 63,
    K = 10,
    BLOCK = 16,
    ROWS = HKV * HEAD, // of a Forecast matrix
};
static const sp_distill_args plain = {.teacher = {2, 1}};

// The 6 blocks (of 10) that are really chosen from one row of window scores, future masked.
static int naive_chosen(const float *row, int64_t i, int *out) {
    int64_t qb = i / BLOCK;
    float score[T0 / BLOCK];
    int n = 0, competing = 0;
    for (int64_t b = 1; b < qb - 2; b++) { // neither init, nor local, nor future
        score[b] = -INFINITY;
        for (int64_t j = 4 * b - 1; j < 4 * b + 4 && j < ND; j++)
            score[b] = fmaxf(score[b], row[j]);
        competing++;
    }
    for (; n < K - 4 && n < competing; n++) {
        int64_t best = -1;
        for (int64_t b = 1; b < qb - 2; b++) {
            bool taken = false;
            for (int x = 0; x < n; x++) taken |= out[x] == b;
            if (!taken && (best < 0 || score[b] > score[best])) best = b;
        }
        out[n] = (int)best;
    }
    return n;
}

static double naive_mass(const float *row, const int *block, int n) {
    double mass = 0;
    for (int x = 0; x < n; x++)
        for (int64_t j = 4 * block[x]; j < 4 * block[x] + 4 && j < ND; j++) mass += row[j];
    return mass;
}

static void recall_by_hand(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    float *kd = golden_f32("forward", "kd", L * ND * ROWS);
    double recall[L], mass[L], rows[L];
    stepper t = golden_stepper(&plain, 1);
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, T0, recall, mass, rows));
    for (int l = 0; l < L; l++) {
        sp_distill_probe p = {.layer = l,
                              .importance = test_filled(T0 * HKV * ND, "importance"),
                              .forecast = test_filled(T0 * ROWS, "forecast")};
        free(stepper_gradient(&t, tokens, T0, 1, &p));
        double want_recall = 0, want_mass = 0, want_rows = 0;
        for (int64_t i = K * BLOCK; i < T0; i++)
            for (int64_t h = 0; h < HKV; h++) {
                const float *A = p.importance + (i * HKV + h) * ND;
                const float *f = p.forecast + (i * HKV + h) * HEAD;
                float score[ND];
                int teacher[K], own[K], common = 0;
                for (int64_t j = 0; j < ND; j++) {
                    const float *c = kd + ((l * ND + j) * HKV + h) * HEAD;
                    double dot = 0;
                    for (int x = 0; x < HEAD; x++) dot += (double)f[x] * c[x];
                    score[j] = 4 * j + 7 <= i ? (float)dot : -INFINITY;
                }
                int n = naive_chosen(A, i, teacher), m = naive_chosen(score, i, own);
                assert_int_equal(n, K - 4);
                assert_int_equal(m, K - 4);
                for (int x = 0; x < n; x++)
                    for (int y = 0; y < m; y++) common += teacher[x] == own[y];
                want_recall += (double)common / n;
                want_mass += naive_mass(A, own, m) / naive_mass(A, teacher, n);
                want_rows++;
            }
        assert_true(rows[l] == want_rows);
        assert_true(recall[l] > 0 && recall[l] < rows[l]);
        assert_within("recall", recall[l], want_recall, 1e-9);
        assert_within("mass recall", mass[l], want_mass, 1e-5);
        free(p.importance), free(p.forecast);
    }
    // Nothing competes up to k blocks.
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, K * BLOCK, recall, mass, rows));
    for (int l = 0; l < L; l++) assert_true(recall[l] == 0 && mass[l] == 0 && rows[l] == 0);
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, 5, recall, mass, rows));
    for (int l = 0; l < L; l++) assert_true(rows[l] == 0);
    stepper_close(&t);
    free(tokens), free(kd);
}

// One head per KV head and the native grid: a Forecast that is the layer's own query matrix ranks
// blocks as the teacher does, so layer 0 is found completely.
static void perfect_forecast_has_recall_one(void **state) {
    (void)state;
    static const test_shape s = {"", {2, 2, 16}, 24, 2, 8, 4, 16, 32, 1, 4, {8, 4}, 250};
    sp_model_desc desc = test_desc(&s);
    const sp_model *m = test_random_model(&desc, 11);
    int32_t *tokens = test_tokens(s.T, 12, desc.vocab);
    const sp_distill_args a = {.teacher = s.teacher};
    stepper t = random_stepper(m, s.T, &a);
    double recall[2], mass[2], rows[2];
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, s.T, recall, mass, rows));
    // k = 4 + 2 blocks of 16: rows from 96 on, two heads each.
    assert_true(rows[0] == 2 * (s.T - 96));
    assert_true(recall[0] < 0.99 * rows[0]);
    assert_ok(sp_copy(t.w.w[0], sp_tensor_rows(m->layer[0].qkv, 0, 32)));
    assert_ok(sp_distill_recall(t.d, &t.w, tokens, s.T, recall, mass, rows));
    assert_within("recall", recall[0], rows[0], 1e-12);
    assert_within("mass recall", mass[0], rows[0], 1e-12);
    assert_true(recall[1] < 0.99 * rows[1]);
    stepper_close(&t);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recall_by_hand),
        cmocka_unit_test(perfect_forecast_has_recall_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
