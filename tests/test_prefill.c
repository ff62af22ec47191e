// Prefill in layers and chunks (infer/prefill.h) against the simple engine (validate/engine.h) on
// the tiny base: logits, what the sink receives, and in
// which order.
#include "common/build.h"
#include "common/util.h"
#include "infer/prefill.h"
#include "tests/golden.h"
#include "validate/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 6, KV = 128, HKV = 2, MAX_LISTS = 28, V = 1024, LONGEST = 230, BLOCK = 16 };
static const sp_grid grid = {8, 4};

static struct {
    const sp_model *model; // on the CPU, then on a GPU if there is one
    sp_forecast_device forecast;
    int32_t tokens[LONGEST];
    // Relative L2: another cut of the prompt changes the rounding of matrix products only, of fp32
    // on the CPU, of bf16 in every layer on a GPU.
    double same;
    int64_t lists;       // Hkv*k of the model
    int64_t other_lists; // of the GPU: near ties
} shared;

static void use(const sp_model *m) {
    shared.model = m;
    shared.lists = HKV * sp_model_selection(m->desc, true).topk;
    assert_true(shared.lists <= MAX_LISTS);
}

static int group_setup(void **state) {
    (void)state;
    shared.model = test_tiny_base();
    shared.same = 2e-5;
    sp_forecast f = golden_forecast(1);
    assert_ok(sp_forecast_upload(shared.model->backend, &f, &shared.forecast));
    sp_forecast_free(&f);
    uint64_t s = 12;
    for (int i = 0; i < LONGEST; i++) shared.tokens[i] = (int32_t)(test_random(&s) % V);
    return 0;
}

// What came, layer by layer.
typedef struct sink {
    int64_t T, layer, rows; // rows put of the present layer; layers filled
    int64_t puts;
    float k[L][LONGEST * KV], v[L][LONGEST * KV];
    float cis[L][HKV][LONGEST];
    int32_t list[L][MAX_LISTS];
    bool has_list;
    sp_tensor compressed[L];
} sink;

static sp_status put(void *user, int64_t layer, int64_t pos0, sp_tensor k, sp_tensor v,
                     sp_tensor cis) {
    sink *s = user;
    assert_int_equal(cis.data != NULL, shared.model->desc->cis);
    if (cis.data) {
        assert_true(cis.rows == HKV && cis.cols == k.rows);
        for (int h = 0; h < HKV; h++)
            SP_TRY(sp_download(sp_tensor_rows(cis, h, 1), s->cis[layer][h] + pos0));
    }
    assert_true(layer == s->layer && pos0 == s->rows && pos0 % BLOCK == 0);
    assert_true(k.rows == v.rows && k.cols == KV && v.cols == KV);
    SP_TRY(sp_download(k, s->k[layer] + pos0 * KV));
    SP_TRY(sp_download(v, s->v[layer] + pos0 * KV));
    s->rows += k.rows;
    s->puts++;
    return SP_OK;
}

static sp_tensor compressed(void *user, int64_t layer) {
    return ((sink *)user)->compressed[layer];
}

static sp_status fill(void *user, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                      sp_tensor list) {
    sink *s = user;
    assert_true(!shared.model->desc->cis || (cis.rows == HKV && cis.cols == s->T));
    assert_true(layer == s->layer && s->rows == s->T && k.rows == s->T && v.rows == s->T);
    float *again = test_download(v); // as it was put, chunk by chunk
    assert_memory_equal(again, s->v[layer], (size_t)s->T * KV * sizeof *again);
    free(again);
    s->has_list = list.data != NULL;
    if (s->has_list) SP_TRY(sp_download(list, s->list[layer]));
    s->layer++;
    s->rows = 0;
    return SP_OK;
}

static sink *sink_open(int64_t T) {
    sp_backend *be = shared.model->backend;
    sink *s = calloc(1, sizeof *s);
    s->T = T;
    for (int l = 0; l < L; l++)
        assert_ok(sp_tensor_alloc(be, sp_backend_storage(be), sp_windows(grid, T) + 1, KV,
                                  "compressed keys", &s->compressed[l]));
    return s;
}

static void sink_close(sink *s) {
    for (int l = 0; l < L; l++) sp_tensor_free(&s->compressed[l]);
    free(s);
}

// The last query's lists of the simple engine.
static sp_status keep_list(void *user, const sp_engine_layer *v) {
    int32_t *lists = user;
    if (!v->lists.data) return SP_OK;
    return sp_download(sp_tensor_rows(v->lists, v->n - 1, 1), lists + v->layer * shared.lists);
}

static void compare(sp_selector selector, int64_t T, int64_t chunk) {
    const sp_model *m = shared.model;
    sp_engine *e;
    sp_prefiller *p;
    sink *s = sink_open(T);
    float *want = malloc(V * sizeof *want), *got = malloc(V * sizeof *got);
    int32_t lists[L * MAX_LISTS];
    assert_ok(sp_engine_open(&(sp_engine_args){.model = m, .max_tokens = T}, &e));
    assert_ok(sp_engine_start(e, &(sp_engine_run){.selector = selector,
                                                  .forecast = &shared.forecast,
                                                  .probe = keep_list,
                                                  .user = lists}));
    assert_ok(sp_engine_append(e, shared.tokens, T, 1));
    assert_ok(sp_engine_logits(e, 0, 1, want));

    const sp_prefiller_args a = {.model = m,
                                 .forecast = &shared.forecast,
                                 .selector = selector,
                                 .max_prompt = T,
                                 .max_tokens = T,
                                 .chunk = chunk};
    int64_t before = sp_backend_bytes(m->backend, NULL), taken;
    assert_ok(sp_prefiller_open(&a, &p));
    taken = sp_backend_bytes(m->backend, NULL) - before;
    assert_int_equal(taken, sp_prefiller_bytes(&a));
    const sp_prefill_sink calls = {s, put, compressed, fill};
    for (int again = 0; again < 2; again++) { // nothing is left over from an earlier prompt
        s->layer = s->puts = 0;
        assert_ok(sp_prefiller_run(p, shared.tokens, T, &calls, got));
        assert_close("logits", got, want, V, shared.same);
        int64_t n = chunk ? (chunk + BLOCK - 1) / BLOCK * BLOCK : T;
        assert_int_equal(s->puts, L * ((T + n - 1) / n));
        assert_int_equal(s->layer, L);
    }
    assert_true(s->has_list == (selector != SP_SELECT_DENSE));
    int64_t windows = sp_windows(grid, T);
    for (int l = 0; l < L; l++) {
        float *keys = test_download(sp_engine_keys(e, l));
        assert_close("keys", s->k[l], keys, T * KV, shared.same);
        free(keys);
        if (windows) {
            float *c = test_download(sp_engine_compressed(e, l));
            float *mine = test_download(sp_tensor_rows(s->compressed[l], 0, windows));
            assert_close("compressed keys", mine, c, windows * KV, shared.same);
            free(c), free(mine);
        }
        if (m->desc->cis) {
            float *cis = test_download(sp_engine_importance(e, l));
            for (int h = 0; h < HKV; h++)
                assert_close("importance", s->cis[l][h], cis + h * T, T, shared.same);
            free(cis);
        }
        if (!s->has_list ||
            memcmp(s->list[l], lists + l * shared.lists, (size_t)shared.lists * sizeof *lists) == 0)
            continue;
        shared.other_lists++;
        if (shared.same < 1e-4) fail_msg("list of layer %d at %d tokens", l, (int)T);
    }
    sp_prefiller_close(p);
    sp_engine_close(e);
    sink_close(s);
    free(want), free(got);
}

static void every_cut(void) {
    static const sp_selector selectors[] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL,
                                            SP_SELECT_FORECAST};
    static const int64_t lengths[] = {1, 7, 8, 16, 17, 200, LONGEST};
    static const int64_t chunks[] = {0, 16, 50, 224};
    for (size_t i = 0; i < sizeof selectors / sizeof *selectors; i++)
        for (size_t t = 0; t < sizeof lengths / sizeof *lengths; t++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
                if (c == 0 || lengths[t] > chunks[c]) compare(selectors[i], lengths[t], chunks[c]);
}

static void equals_the_simple_engine(void **state) {
    (void)state;
    use(test_tiny_base());
    every_cut();
}

static void with_importance_of_keys(void **state) {
    (void)state;
    use(test_tiny_nosa());
    every_cut();
}

static void refusals(void **state) {
    (void)state;
    use(test_tiny_base());
    sp_prefiller_args a = {
        .model = shared.model, .selector = SP_SELECT_FORECAST, .max_prompt = 32, .max_tokens = 32};
    sp_prefiller *p;
    assert_fails(sp_prefiller_open(&a, &p), SP_ENVIRONMENT, "without weights");
    a.selector = SP_SELECT_RANDOM;
    assert_fails(sp_prefiller_open(&a, &p), SP_ENVIRONMENT, "random selector is not known");
    a.selector = SP_SELECT_ORIGINAL;
    a.max_tokens = 31;
    assert_fails(sp_prefiller_open(&a, &p), SP_BAD_INPUT, "32 tokens within 31");
    a.max_tokens = 32;
    float logits[V];
    sink *s = sink_open(LONGEST);
    assert_ok(sp_prefiller_open(&a, &p));
    assert_fails(sp_prefiller_run(p, shared.tokens, 33,
                                  &(sp_prefill_sink){s, put, compressed, fill}, logits),
                 SP_BAD_INPUT, "opened for up to 32");
    sp_prefiller_close(p);
    sink_close(s);
}

static void the_same_on_a_gpu(void **state) {
#if SPARDA_HAVE_CUDA
    sp_backend_options o = {.name = "cuda", .local_ranks = 1};
    const sp_model *cpu = shared.model;
    sp_forecast_device forecast = shared.forecast;
    sp_backend *gpu;
    sp_model *m;
    if (sp_backend_open(&o, &gpu) != SP_OK) skip();
    sp_forecast f = golden_forecast(1);
    assert_ok(sp_model_load(gpu, cpu->desc, NULL, &m));
    assert_ok(sp_forecast_upload(gpu, &f, &shared.forecast));
    sp_forecast_free(&f);
    shared.model = m;
    shared.same = 3e-2;
    equals_the_simple_engine(state);
    printf("    %lld lists of the last queries differ\n", (long long)shared.other_lists);
    assert_true(shared.other_lists < 30);
    sp_forecast_device_free(&shared.forecast);
    sp_model_free(m);
    sp_backend_close(gpu);
    shared.model = cpu;
    shared.forecast = forecast;
    shared.same = 2e-5;
#else
    (void)state;
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_simple_engine),
        cmocka_unit_test(with_importance_of_keys),
        cmocka_unit_test(refusals),
        cmocka_unit_test(the_same_on_a_gpu),
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
