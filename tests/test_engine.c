// The inference engine: against sp_prefill for every selector, decode against prefill at awkward
// lengths, compressed keys grown step by step.
#include "common/util.h"
#include "tests/golden.h"
#include "validate/engine.h"
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { L = 6, D = 256, KV = 128, V = 1024, KERNEL = 8, STRIDE = 4, BLOCK = 16, LONGEST = 230 };

static struct {
    sp_forecast_device forecast;
    int32_t tokens[LONGEST];
} shared;

static int group_setup(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    sp_forecast f = golden_forecast(1);
    assert_ok(sp_forecast_upload(m->backend, &f, &shared.forecast));
    sp_forecast_free(&f);
    uint64_t s = 11;
    for (int i = 0; i < LONGEST; i++) shared.tokens[i] = (int32_t)(test_random(&s) % V);
    return 0;
}

static sp_engine *open_engine(int64_t max_tokens) {
    sp_engine *e;
    assert_ok(
        sp_engine_open(&(sp_engine_args){.model = test_tiny_base(), .max_tokens = max_tokens}, &e));
    return e;
}

static sp_engine_run run_of(sp_selector s) {
    return (sp_engine_run){.selector = s, .forecast = &shared.forecast, .seed = 3};
}

// Logits of all T positions by sp_prefill, the path that training uses.
static float *prefill_logits(sp_selector s, int64_t T) {
    const sp_model *m = test_tiny_base();
    sp_workspace w;
    sp_rope_table rope;
    sp_tensor logits;
    sp_prefill_args a = {.selector = s,
                         .selection = sp_model_selection(m->desc, true),
                         .forecast_sees = SP_SEES_COMPLETE,
                         .forecast = &shared.forecast,
                         .seed = 3};
    assert_ok(sp_workspace_make(m, T, &w));
    assert_ok(sp_rope_table_make(m->backend, m->desc, T, false, &rope));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, T, V, "logits", &logits));
    assert_ok(sp_prefill(m, &w, &rope, shared.tokens, T, &a));
    assert_ok(sp_forward_logits(m, &w, 0, T, logits));
    float *out = test_download(logits);
    sp_tensor_free(&logits);
    sp_rope_table_free(&rope);
    sp_workspace_free(&w);
    return out;
}

// The same model and tokens: the two differ by the rounding of matrix products of other heights.
static const double same = 2e-5;

static void test_engine_equals_prefill(void **state) {
    (void)state;
    static const sp_selector selectors[] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL, SP_SELECT_FORECAST,
                                            SP_SELECT_INFINIGEN, SP_SELECT_RANDOM};
    sp_engine *e = open_engine(LONGEST);
    float *got = malloc(LONGEST * V * sizeof *got);
    float *first = NULL;
    for (size_t i = 0; i < sizeof selectors / sizeof *selectors; i++) {
        float *want = prefill_logits(selectors[i], LONGEST);
        sp_engine_run r = run_of(selectors[i]);
        assert_ok(sp_engine_start(e, &r));
        assert_ok(sp_engine_append(e, shared.tokens, LONGEST, LONGEST));
        assert_ok(sp_engine_logits(e, 0, LONGEST, got));
        assert_close(sp_selector_name(selectors[i]), got, want, LONGEST * V, same);
        // Only the asked rows pass the last layer; their values are the same.
        assert_ok(sp_engine_start(e, &r));
        assert_ok(sp_engine_append(e, shared.tokens, LONGEST, 3));
        assert_ok(sp_engine_logits(e, 1, 2, got));
        assert_close("last rows", got, want + (LONGEST - 2) * V, 2 * V, same);
        // A selector that did nothing would give the dense numbers.
        if (first) assert_true(test_rel_error(want, first, LONGEST * V) > 1e-3);
        if (i == 0)
            first = want;
        else
            free(want);
    }
    free(first);
    free(got);
    sp_engine_close(e);
}

static float *all_compressed(const sp_engine *e, int64_t layer) {
    sp_tensor c = sp_engine_compressed(e, layer);
    return c.rows ? test_download(c) : NULL;
}

// Prompt, then token by token; prompts around the edges of window, stride and block.
static void test_decode_equals_prefill(void **state) {
    (void)state;
    static const int64_t prompts[] = {1, 7, 8, 9, 11, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 191};
    enum { STEPS = 9 };
    float *got = malloc(V * sizeof *got);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        int64_t P = prompts[i], T = P + STEPS;
        sp_engine *e = open_engine(T);
        sp_engine_run r = run_of(SP_SELECT_FORECAST);
        float *want = prefill_logits(SP_SELECT_FORECAST, T);
        assert_ok(sp_engine_start(e, &r));
        assert_ok(sp_engine_append(e, shared.tokens, P, 1));
        assert_ok(sp_engine_logits(e, 0, 1, got));
        assert_close("prompt", got, want + (P - 1) * V, V, same);
        for (int64_t t = P; t < T; t++) {
            assert_ok(sp_engine_append(e, shared.tokens + t, 1, 1));
            assert_int_equal(sp_engine_tokens(e), t + 1);
            assert_int_equal(sp_engine_compressed(e, 0).rows,
                             t + 1 < KERNEL ? 0 : (t + 1 - KERNEL) / STRIDE + 1);
            assert_ok(sp_engine_logits(e, 0, 1, got));
            assert_close("decode step", got, want + t * V, V, same);
        }
        free(want);
        sp_engine_close(e);
    }
    free(got);
}

// 2.5: grown in place over any cut of the sequence, bit-equal to the mean taken all at once.
static void test_compressed_keys_grow(void **state) {
    (void)state;
    static const int64_t cuts[][8] = {{1, 1, 1, 1, 1, 1, 1, 1}, {7, 1, 1, 8, 9, 3},
                                      {8, 8, 1, 15, 2},         {5, 2, 1, 4, 4, 3, 1, 30},
                                      {16, 16, 17, 1, 32},      {100, 1, 27, 64}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int64_t T = 0, n;
        for (int k = 0; k < 8; k++) T += cuts[i][k];
        sp_engine *e = open_engine(T);
        sp_engine_run r = run_of(SP_SELECT_FORECAST);
        assert_ok(sp_engine_start(e, &r));
        for (int k = 0, at = 0; k < 8 && cuts[i][k]; at += (int)cuts[i][k], k++)
            assert_ok(sp_engine_append(e, shared.tokens + at, cuts[i][k], 1));
        n = sp_windows((sp_grid){KERNEL, STRIDE}, T);
        for (int64_t l = 0; l < L && n > 0; l++) {
            sp_tensor batch;
            assert_ok(sp_tensor_alloc(test_backend(), SP_F32, n, KV, "batch", &batch));
            assert_ok(sp_compress_keys(sp_engine_keys(e, l), (sp_grid){KERNEL, STRIDE}, 0, batch));
            float *want = test_download(batch), *got = all_compressed(e, l);
            assert_memory_equal(got, want, (size_t)(n * KV) * sizeof *got);
            // Against the definition, too: the mean of the window's keys.
            float *k = test_download(sp_engine_keys(e, l));
            for (int64_t col = 0; col < KV; col++) {
                double mean = 0;
                for (int64_t t = 0; t < KERNEL; t++)
                    mean += (double)k[((n - 1) * STRIDE + t) * KV + col] / KERNEL;
                assert_true(fabs(mean - (double)got[(n - 1) * KV + col]) < 1e-5);
            }
            free(k);
            free(want);
            free(got);
            sp_tensor_free(&batch);
        }
        sp_engine_close(e);
    }
}

// Dense attention below `dense_len` is the model's own switch; the engine always selects.
static void test_dense_len_is_ignored(void **state) {
    (void)state;
    assert_true(test_tiny_base()->desc->sparse.dense_len > LONGEST);
    float *dense = prefill_logits(SP_SELECT_DENSE, LONGEST), *got = malloc(V * sizeof *got);
    sp_engine *e = open_engine(LONGEST);
    sp_engine_run r = run_of(SP_SELECT_RANDOM);
    assert_ok(sp_engine_start(e, &r));
    assert_ok(sp_engine_append(e, shared.tokens, LONGEST, 1));
    assert_ok(sp_engine_logits(e, 0, 1, got));
    assert_true(test_rel_error(got, dense + (LONGEST - 1) * V, V) > 1e-3);
    free(dense);
    free(got);
    sp_engine_close(e);
}

static sp_status count_rows(void *user, const sp_engine_layer *v) {
    int64_t *seen = user;
    assert_int_equal(v->layer, seen[0] % L);
    assert_int_equal(v->tokens, v->pos0 + v->n);
    assert_int_equal(v->lists.rows, v->n);
    assert_int_equal(v->f.rows, v->n);
    assert_int_equal(v->k.rows, v->tokens);
    assert_int_equal(v->c.rows, sp_windows((sp_grid){KERNEL, STRIDE}, v->tokens));
    int32_t *lists = test_download_i32(v->lists);
    int64_t k = v->lists.cols / 2;
    for (int64_t r = 0; r < v->n * 2; r++) {
        int64_t qb = (v->pos0 + r / 2) / BLOCK;
        bool own = false;
        for (int64_t i = 0; i < k; i++) {
            int32_t b = lists[r * k + i];
            assert_true(b >= -1 && b <= qb);
            own |= b == qb;
        }
        assert_true(own);
    }
    free(lists);
    seen[0]++;
    seen[1] += v->n;
    return SP_OK;
}

static void test_probe_sees_every_row(void **state) {
    (void)state;
    int64_t seen[2] = {0, 0};
    sp_engine *e = open_engine(100);
    sp_engine_run r = run_of(SP_SELECT_FORECAST);
    r.probe = count_rows;
    r.user = seen;
    assert_ok(sp_engine_start(e, &r));
    assert_ok(sp_engine_append(e, shared.tokens, 37, 1));
    assert_ok(sp_engine_append(e, shared.tokens + 37, 63, 2));
    assert_int_equal(seen[0], 2 * L);
    assert_int_equal(seen[1], 100 * L);
    sp_engine_close(e);
}

static void test_limits(void **state) {
    (void)state;
    sp_engine *e = open_engine(20);
    float *logits = malloc(V * sizeof *logits);
    sp_engine_run r = run_of(SP_SELECT_TEACHER);
    assert_fails(sp_engine_start(e, &r), SP_ENVIRONMENT, "one key too far");
    r = (sp_engine_run){.selector = SP_SELECT_FORECAST};
    assert_fails(sp_engine_start(e, &r), SP_ENVIRONMENT, "without weights");
    r = run_of(SP_SELECT_FORECAST);
    assert_ok(sp_engine_start(e, &r));
    assert_fails(sp_engine_append(e, shared.tokens, 21, 1), SP_BAD_INPUT, "do not fit");
    assert_fails(sp_engine_append(e, shared.tokens, 0, 1), SP_BAD_INPUT, "do not fit");
    assert_ok(sp_engine_append(e, shared.tokens, 20, 2));
    assert_fails(sp_engine_append(e, shared.tokens, 1, 1), SP_BAD_INPUT, "position 20");
    assert_ok(sp_engine_start(e, &r)); // a new sequence has all the room
    assert_ok(sp_engine_append(e, shared.tokens, 20, 2));
    assert_fails(sp_engine_logits(e, 1, 2, logits), SP_ENVIRONMENT, "2 are there");
    sp_engine_args a = {.model = test_tiny_base(), .max_tokens = 8193};
    sp_engine *longer;
    assert_fails(sp_engine_open(&a, &longer), SP_BAD_INPUT, NULL);
    free(logits);
    sp_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_equals_prefill), cmocka_unit_test(test_decode_equals_prefill),
        cmocka_unit_test(test_compressed_keys_grow),  cmocka_unit_test(test_dense_len_is_ignored),
        cmocka_unit_test(test_probe_sees_every_row),  cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
