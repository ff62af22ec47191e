// Prefill under every selector, against the golden trajectory and against properties that hold for
// any shape.
#include "common/util.h"
#include "model/selection.h"
#include "tests/stepper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 6,
    D = 256,
    HQ = 8,
    HKV = 2,
    G = 4,
    HEAD = 64,
    T0 = 256,
    ND = 63,
    NT = 255,
    NB = 16,
    K = 10,
    BLOCK = 16,
    VOCAB = 1024,
    ROWS8 = 32, // rows 7, 15, ...: those of which the golden file has hidden states
    RAGGED = 203,
    RAGGED_NB = 13,
};
static const sp_grid teacher_grid = {2, 1};

static sp_prefill_args args_for(sp_selector s) {
    sp_prefill_args a = {
        .selector = s,
        .selection = sp_model_selection(test_tiny_base()->desc, false),
        .teacher = teacher_grid,
        .align = SP_ALIGN_MAX,
        .forecast_sees = SP_SEES_COMPLETE,
        .seed = 1,
    };
    return a;
}

// Workspace, rope table and Forecast weights of the tiny base, shared by the tests.
static test_prefill shared;

static int group_setup(void **state) {
    (void)state;
    test_prefill_open(test_tiny_base(), T0, golden_forecast(1), &shared);
    return 0;
}

static int group_teardown(void **state) {
    (void)state;
    test_prefill_close(&shared);
    return 0;
}

static sp_status run(const int32_t *tokens, int64_t T, sp_prefill_args *a) {
    if (a->selector == SP_SELECT_FORECAST && !a->forecast) a->forecast = &shared.forecast;
    return sp_prefill(test_tiny_base(), &shared.w, &shared.rope, tokens, T, a);
}

// ---- golden trajectory --------------------------------------------------------------------------

typedef struct golden_run {
    float *hidden, *x, *kd, *A, *A_rows, *fine, *block_scores, *cut_gap, *cut_gap_masked;
    int32_t *lists, *lists_masked;
    sp_tensor c, fine_c, importance, own_lists, scores;
    int layers_seen;
} golden_run;

static void check_vectors(const sp_workspace *w, int64_t layer) {
    const sp_model *m = test_tiny_base();
    const struct {
        const char *name;
        sp_tensor t;
    } vector[] = {{"q", sp_workspace_q(m, w, T0)},
                  {"k", sp_workspace_k(m, w, T0)},
                  {"v", sp_workspace_v(m, w, T0)}};
    for (int i = 0; i < 3; i++) {
        char name[24];
        snprintf(name, sizeof name, "%s.%d", vector[i].name, (int)layer);
        float *want = golden_f32("forward", name, T0 * vector[i].t.cols);
        assert_tensor_close(name, vector[i].t, want, 2e-5);
        free(want);
    }
    char name[24];
    snprintf(name, sizeof name, "kt.%d", (int)layer);
    float *want = golden_f32("forward", name, NT * HKV * HEAD);
    sp_tensor kt;
    assert_ok(sp_tensor_alloc(test_backend(), SP_F32, NT, HKV * HEAD, "kt", &kt));
    assert_ok(sp_compress_keys(vector[1].t, teacher_grid, 0, kt));
    assert_tensor_close(name, kt, want, 2e-5);
    sp_tensor_free(&kt);
    free(want);
}

// P of training.md 4.1 before alignment, rows 15, 100, 200, 255: [2 layers][HKV][4][NT].
static void check_fine_rows(const golden_run *g, sp_tensor q, int64_t layer) {
    static const int64_t row[] = {15, 100, 200, 255};
    const sp_importance_args fine = {.heads = {HQ, HKV, HEAD},
                                     .fine = teacher_grid,
                                     .deployed = teacher_grid,
                                     .n_d = NT,
                                     .visibility = SP_SEES_START};
    sp_tensor out;
    assert_ok(sp_tensor_alloc(test_backend(), SP_F32, 1, HKV * NT, "fine row", &out));
    for (int r = 0; r < 4; r++) {
        assert_ok(sp_importance(&fine, sp_tensor_rows(q, row[r], 1), row[r], g->fine_c, out));
        float *got = test_download(out);
        for (int h = 0; h < HKV; h++) {
            const float *want = g->fine + (((layer == 3) * HKV + h) * 4 + r) * NT;
            assert_close("teacher_fine", got + h * NT, want, NT, 2e-5);
        }
        free(got);
    }
    sp_tensor_free(&out);
}

static sp_status check_golden_layer(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                                    const sp_tensor *lists) {
    golden_run *g = user;
    const sp_model *m = test_tiny_base();
    sp_grid deployed = sp_deployed_grid(m->desc);
    sp_tensor q = sp_workspace_q(m, w, T), k = sp_workspace_k(m, w, T);
    g->layers_seen++;
    assert_int_equal(T, T0);
    assert_int_equal(lists->rows, T0);
    assert_rows_close("hidden", sp_tensor_rows(w->h, 0, T), 7, 8, g->hidden + layer * ROWS8 * D,
                      5e-6);
    assert_rows_close("x", sp_tensor_rows(w->x, 0, T), 7, 8, g->x + layer * ROWS8 * D, 5e-6);
    if (layer == 4) { // what the layer before left
        float *want = golden_f32("forward", "attn.3", T0 * HQ * HEAD);
        assert_tensor_close("attn.3", sp_tensor_rows(w->attn, 0, T), want, 1e-5);
        free(want);
    }
    if (layer == 0 || layer == 3) check_vectors(w, layer);

    assert_ok(sp_compress_keys(k, deployed, 0, g->c));
    assert_tensor_close("kd", g->c, g->kd + layer * ND * HKV * HEAD, 2e-5);
    assert_ok(sp_compress_keys(k, teacher_grid, 0, g->fine_c));
    if (layer == 0 || layer == 3) check_fine_rows(g, q, layer);

    sp_importance_args ia = sp_teacher_importance(m->desc, teacher_grid, SP_ALIGN_MAX, ND);
    const float *want_A = g->A_rows + layer * T0 * HKV * ND;
    assert_ok(sp_importance(&ia, q, 0, g->fine_c, g->importance));
    assert_tensor_close("A", g->importance, want_A, 2e-5);

    sp_selection plain = sp_model_selection(m->desc, false), masked = plain;
    masked.mask_future = true;
    const int32_t *want = g->lists + layer * T0 * HKV * K;
    const int32_t *want_masked = g->lists_masked + layer * T0 * HKV * K;
    sp_prefill_args own = args_for(SP_SELECT_TEACHER);
    assert_ok(sp_select_rows(m, &own, q, 0, g->fine_c, T, g->scores, g->own_lists));
    int32_t *got = test_download_i32(g->own_lists);
    assert_lists("lists", got, want, g->cut_gap + layer * HKV * T0, T0, HKV, K);
    free(got);
    own.selection = masked;
    assert_ok(sp_select_rows(m, &own, q, 0, g->fine_c, T, g->scores, g->own_lists));
    got = test_download_i32(g->own_lists);
    assert_lists("lists_masked", got, want_masked, g->cut_gap_masked + layer * HKV * T0, T0, HKV,
                 K);
    free(got);

    // From the golden A every row must come out, exact ties and the near one included.
    assert_ok(sp_upload(g->importance, want_A));
    assert_ok(sp_select_blocks(&plain, deployed, HKV, g->importance, 0, NB, g->own_lists));
    got = test_download_i32(g->own_lists);
    assert_lists("lists from the golden A", got, want, NULL, T0, HKV, K);
    free(got);
    assert_ok(sp_select_blocks(&masked, deployed, HKV, g->importance, 0, NB, g->own_lists));
    got = test_download_i32(g->own_lists);
    assert_lists("masked lists from the golden A", got, want_masked, NULL, T0, HKV, K);
    free(got);
    sp_tensor scores = sp_tensor_cols(g->scores, 0, HKV * NB);
    assert_ok(sp_block_scores(&plain, deployed, HKV, g->importance, 0, NB, scores));
    assert_tensor_close("block_scores", scores, g->block_scores + layer * T0 * HKV * NB, 0);
    return SP_OK;
}

static void golden_trajectory(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    golden_run g = {
        .hidden = golden_f32("forward", "hidden", (L + 1) * ROWS8 * D),
        .x = golden_f32("forward", "x", L * ROWS8 * D),
        .kd = golden_f32("forward", "kd", L * ND * HKV * HEAD),
        .A_rows = golden_rows_f32("forward", "A", L, HKV, T0, ND),
        .fine = golden_f32("forward", "teacher_fine", 2 * HKV * 4 * NT),
        .block_scores = golden_rows_f32("forward", "block_scores", L, HKV, T0, NB),
        .cut_gap = golden_f32("forward", "cut_gap", L * HKV * T0),
        .cut_gap_masked = golden_f32("forward", "cut_gap_masked", L * HKV * T0),
        .lists = golden_bits("forward", "lists.bits", L, HKV, T0, K),
        .lists_masked = golden_bits("forward", "lists_masked.bits", L, HKV, T0, K),
    };
    assert_ok(sp_tensor_alloc(be, SP_F32, ND, HKV * HEAD, "c", &g.c));
    assert_ok(sp_tensor_alloc(be, SP_F32, NT, HKV * HEAD, "fine c", &g.fine_c));
    assert_ok(sp_tensor_alloc(be, SP_F32, T0, HKV * ND, "importance", &g.importance));
    assert_ok(sp_tensor_alloc(be, SP_F32, T0, HKV * ND, "scores", &g.scores));
    assert_ok(sp_tensor_alloc(be, SP_I32, T0, HKV * K, "lists", &g.own_lists));
    int32_t *tokens = golden_i32("forward", "tokens", T0);

    sp_prefill_args a = args_for(SP_SELECT_TEACHER);
    a.fixed_lists = g.lists;
    a.on_layer = check_golden_layer;
    a.user = &g;
    assert_ok(run(tokens, T0, &a));
    assert_int_equal(g.layers_seen, L);
    assert_rows_close("hidden", sp_tensor_rows(shared.w.h, 0, T0), 7, 8, g.hidden + L * ROWS8 * D,
                      5e-6);

    sp_tensor *tensor[] = {&g.c, &g.fine_c, &g.importance, &g.scores, &g.own_lists};
    for (int i = 0; i < 5; i++) sp_tensor_free(tensor[i]);
    float *array[] = {g.hidden,        g.x, g.kd, g.A_rows, g.fine, g.block_scores, g.cut_gap,
                      g.cut_gap_masked};
    for (int i = 0; i < 8; i++) free(array[i]);
    free(g.lists);
    free(g.lists_masked);
    free(tokens);
}

static void golden_rope_table(void **state) {
    (void)state;
    float *cos = golden_f32("forward", "rope.cos", T0 * HEAD / 2);
    float *sin = golden_f32("forward", "rope.sin", T0 * HEAD / 2);
    float *c = test_download(sp_tensor_rows(shared.rope.cos, 0, T0));
    float *s = test_download(sp_tensor_rows(shared.rope.sin, 0, T0));
    assert_true(test_max_abs_error(c, cos, T0 * HEAD / 2) <= 5e-5);
    assert_true(test_max_abs_error(s, sin, T0 * HEAD / 2) <= 5e-5);
    free(cos), free(sin), free(c), free(s);
}

// ---- logits and own lists of every selector -----------------------------------------------------

static void check_logits(const char *file, const char *name, int64_t row0, int64_t n) {
    sp_tensor logits;
    float *want = golden_f32(file, name, n * VOCAB);
    assert_ok(sp_tensor_alloc(test_backend(), SP_F32, n, VOCAB, "logits", &logits));
    assert_ok(sp_forward_logits(test_tiny_base(), &shared.w, row0, n, logits));
    float *got = test_download(logits);
    double e = test_max_abs_error(got, want, n * VOCAB);
    if (!(e <= 1e-4)) fail_msg("%s: largest difference %.3g, limit 1e-4", name, e);
    sp_tensor_free(&logits);
    free(got);
    free(want);
}

typedef struct list_check {
    const char *what;
    int32_t *want;
    float *cut_gap;
} list_check;

static sp_status check_lists(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                             const sp_tensor *lists) {
    (void)w;
    const list_check *c = user;
    int32_t *got = test_download_i32(*lists);
    assert_lists(c->what, got, c->want + layer * T * HKV * K, c->cut_gap + layer * HKV * T, T, HKV,
                 K);
    free(got);
    return SP_OK;
}

static void logits_of_every_selector(void **state) {
    (void)state;
    static const struct {
        sp_selector selector;
        sp_visibility sees;
        bool mask;
        const char *logits, *lists_file, *lists, *cut_gap; // lists NULL: none stored
    } run_of[] = {
        {SP_SELECT_DENSE, 0, false, "logits.dense", NULL, NULL, NULL},
        {SP_SELECT_ORIGINAL, 0, false, "logits.original", "selection", "lists.original.bits",
         "cut_gap.original"},
        {SP_SELECT_TEACHER, 0, false, "logits.teacher", "forward", "lists.bits", "cut_gap"},
        {SP_SELECT_TEACHER, 0, true, "logits.teacher_masked", NULL, NULL, NULL},
        {SP_SELECT_FORECAST, SP_SEES_COMPLETE, false, "logits.forecast", "selection",
         "lists.forecast.bits", "cut_gap.forecast"},
        {SP_SELECT_FORECAST, SP_SEES_START, false, "logits.forecast_start", "selection",
         "lists.forecast_start.bits", "cut_gap.forecast_start"},
    };
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    for (size_t i = 0; i < sizeof run_of / sizeof *run_of; i++) {
        sp_prefill_args a = args_for(run_of[i].selector);
        a.forecast_sees = run_of[i].sees;
        a.selection.mask_future = run_of[i].mask;
        list_check check = {.what = run_of[i].logits};
        if (run_of[i].lists) {
            check.want = golden_bits(run_of[i].lists_file, run_of[i].lists, L, HKV, T0, K);
            check.cut_gap = golden_f32(run_of[i].lists_file, run_of[i].cut_gap, L * HKV * T0);
            a.on_layer = check_lists;
            a.user = &check;
        }
        assert_ok(run(tokens, T0, &a)); // its own lists
        check_logits("selection", run_of[i].logits, T0 - 8, 8);
        if (run_of[i].lists) { // the golden lists fed in
            a.fixed_lists = check.want;
            assert_ok(run(tokens, T0, &a));
            check_logits("selection", run_of[i].logits, T0 - 8, 8);
        }
        free(check.want);
        free(check.cut_gap);
    }
    free(tokens);
}

static void ragged_sequence(void **state) {
    (void)state;
    static const struct {
        sp_selector selector;
        const char *logits;
    } run_of[] = {{SP_SELECT_DENSE, "logits.dense"},
                  {SP_SELECT_ORIGINAL, "logits.original"},
                  {SP_SELECT_TEACHER, "logits.teacher"},
                  {SP_SELECT_FORECAST, "logits.forecast"}};
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    list_check teacher = {"ragged lists", golden_bits("ragged", "lists.bits", L, HKV, RAGGED, K),
                          golden_f32("ragged", "cut_gap", L * HKV * RAGGED)};
    for (int i = 0; i < 4; i++) {
        sp_prefill_args a = args_for(run_of[i].selector);
        if (a.selector == SP_SELECT_TEACHER) {
            a.on_layer = check_lists;
            a.user = &teacher;
        }
        assert_ok(run(tokens, RAGGED, &a));
        check_logits("ragged", run_of[i].logits, RAGGED - 1, 1);
    }
    free(teacher.want);
    free(teacher.cut_gap);
    free(tokens);
}

typedef struct layer0 {
    float *forecast, *raw, *original;
} layer0;

static sp_status check_layer0(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                              const sp_tensor *lists) {
    (void)lists;
    const layer0 *want = user;
    const sp_model *m = test_tiny_base();
    if (layer > 0) return SP_OK;
    sp_grid deployed = sp_deployed_grid(m->desc);
    sp_tensor f, c, rows;
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, T, HKV * HEAD, "f", &f));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, ND, HKV * HEAD, "c", &c));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, T, HKV * ND, "rows", &rows));
    assert_ok(sp_compress_keys(sp_workspace_k(m, w, T), deployed, 0, c));
    assert_ok(
        sp_forecast_rows(m, shared.forecast.w[0], sp_tensor_rows(w->x, 0, T), &shared.rope, 0, f));
    assert_tensor_close("forecast.0", f, want->forecast, 2e-5);
    assert_ok(sp_forecast_scores(m->desc->heads, deployed, SP_SEES_COMPLETE, f, 0, c, rows));
    assert_tensor_close("forecast_raw.0", rows, want->raw, 2e-5);
    sp_importance_args ia = sp_teacher_importance(m->desc, deployed, SP_ALIGN_MAX, ND);
    assert_ok(sp_importance(&ia, sp_workspace_q(m, w, T), 0, c, rows));
    assert_tensor_close("original_rows.0", rows, want->original, 2e-5);
    sp_tensor_free(&f);
    sp_tensor_free(&c);
    sp_tensor_free(&rows);
    return SP_OK;
}

static void rows_of_layer_0(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    layer0 want = {golden_f32("selection", "forecast.0", T0 * HKV * HEAD),
                   golden_rows_f32("selection", "forecast_raw.0", 1, HKV, T0, ND),
                   golden_rows_f32("selection", "original_rows.0", 1, HKV, T0, ND)};
    sp_prefill_args a = args_for(SP_SELECT_DENSE);
    a.on_layer = check_layer0;
    a.user = &want;
    assert_ok(run(tokens, T0, &a));
    free(want.forecast), free(want.raw), free(want.original), free(tokens);
}

// ---- InfiniGen-style ----------------------------------------------------------------------------

typedef struct infinigen_check {
    sp_tensor x; // attention input of the layer before
    sp_tensor q, c, scores, lists;
    int differing_layers; // from what the true queries would have chosen
} infinigen_check;

static sp_status check_infinigen(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                                 const sp_tensor *lists) {
    infinigen_check *c = user;
    const sp_model *m = test_tiny_base();
    sp_prefill_args original = args_for(SP_SELECT_ORIGINAL);
    sp_tensor x = sp_tensor_rows(w->x, 0, T), q = sp_workspace_q(m, w, T);
    assert_ok(sp_compress_keys(sp_workspace_k(m, w, T), sp_deployed_grid(m->desc), 0,
                               sp_tensor_rows(c->c, 0, sp_windows(sp_deployed_grid(m->desc), T))));
    size_t bytes = (size_t)(T * HKV * K) * sizeof(int32_t);
    int32_t *got = test_download_i32(*lists);

    assert_ok(sp_select_rows(m, &original, q, 0, c->c, T, c->scores, c->lists));
    int32_t *true_lists = test_download_i32(c->lists);
    bool same = memcmp(got, true_lists, bytes) == 0;
    free(true_lists);
    if (layer == 0) {
        assert_true(same);
    } else {
        c->differing_layers += !same;
        assert_ok(sp_linear(c->x, sp_tensor_rows(m->layer[layer].qkv, 0, HQ * HEAD), c->q));
        assert_ok(sp_rope(c->q, shared.rope.cos, shared.rope.sin, 0, HEAD, false));
        assert_ok(sp_select_rows(m, &original, c->q, 0, c->c, T, c->scores, c->lists));
        int32_t *want = test_download_i32(c->lists);
        assert_memory_equal(got, want, bytes);
        free(want);
    }
    free(got);
    return sp_copy(c->x, x);
}

static void infinigen_uses_the_layer_before(void **state) {
    (void)state;
    sp_backend *be = test_backend();
    infinigen_check c = {0};
    assert_ok(sp_tensor_alloc(be, SP_F32, RAGGED, D, "x", &c.x));
    assert_ok(sp_tensor_alloc(be, SP_F32, RAGGED, HQ * HEAD, "q", &c.q));
    assert_ok(sp_tensor_alloc(be, SP_F32, ND, HKV * HEAD, "c", &c.c));
    assert_ok(sp_tensor_alloc(be, SP_F32, RAGGED, HKV * ND, "scores", &c.scores));
    assert_ok(sp_tensor_alloc(be, SP_I32, RAGGED, HKV * K, "lists", &c.lists));
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    sp_prefill_args a = args_for(SP_SELECT_INFINIGEN);
    a.on_layer = check_infinigen;
    a.user = &c;
    assert_ok(run(tokens, RAGGED, &a));
    assert_int_equal(c.differing_layers, L - 1);
    sp_tensor *tensor[] = {&c.x, &c.q, &c.c, &c.scores, &c.lists};
    for (int i = 0; i < 5; i++) sp_tensor_free(tensor[i]);
    free(tokens);
}

// ---- random blocks ------------------------------------------------------------------------------

typedef struct kept_lists {
    int32_t *lists; // [L][T][HKV][K]
} kept_lists;

static sp_status keep_lists(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                            const sp_tensor *lists) {
    (void)w;
    kept_lists *k = user;
    return sp_download(*lists, k->lists + layer * T * lists->cols);
}

static int32_t *random_run(const int32_t *tokens, uint64_t seed) {
    kept_lists kept;
    assert_ok(sp_alloc(&kept.lists, L * T0 * HKV * K, sizeof(int32_t), "lists"));
    sp_prefill_args a = args_for(SP_SELECT_RANDOM);
    a.seed = seed;
    a.on_layer = keep_lists;
    a.user = &kept;
    assert_ok(run(tokens, T0, &a));
    return kept.lists;
}

static void random_blocks(void **state) {
    (void)state;
    const sp_selection s = args_for(SP_SELECT_RANDOM).selection;
    size_t bytes = (size_t)(L * T0 * HKV * K) * sizeof(int32_t);
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    int32_t *one = random_run(tokens, 1), *again = random_run(tokens, 1);
    int32_t *two = random_run(tokens, 2);
    assert_memory_equal(one, again, bytes);
    assert_true(memcmp(one, two, bytes) != 0);

    int64_t taken[NB] = {0}, lists = 0;
    for (int64_t at = 0; at < L * T0 * HKV; at++) {
        int64_t i = at / HKV % T0, qb = i / BLOCK, n = 0;
        const int32_t *list = one + at * K;
        bool in[NB] = {false};
        while (n < K && list[n] >= 0) {
            assert_true(n == 0 || list[n] > list[n - 1]);
            in[list[n++]] = true;
        }
        for (int64_t j = n; j < K; j++) assert_int_equal(list[j], -1);
        assert_int_equal(n, qb + 1 < K ? qb + 1 : K);
        assert_true(list[n - 1] == qb);
        for (int64_t b = 0; b <= qb; b++)
            if (b < s.init_blocks || b >= qb - s.local_blocks) assert_true(in[b]);
        if (qb != NB - 1) continue;
        lists++;
        for (int64_t b = 0; b < NB; b++) taken[b] += in[b];
    }
    // 6 of the 12 blocks 1..12, 192 lists: mean 96, standard deviation 6.9.
    assert_int_equal(lists, L * BLOCK * HKV);
    for (int b = 1; b <= 12; b++) assert_in_range(taken[b], 96 - 35, 96 + 35);

    // Layers, heads and rows have streams of their own.
    int64_t last = T0 - 1;
    const int32_t *row = one + last * HKV * K;
    assert_true(memcmp(row, row + K, K * sizeof *row) != 0);
    assert_true(memcmp(row, row - HKV * K, K * sizeof *row) != 0);
    assert_true(memcmp(row, row + T0 * HKV * K, K * sizeof *row) != 0);
    free(one), free(again), free(two), free(tokens);
}

// ---- any length, any tile -----------------------------------------------------------------------

static const int64_t lengths[] = {1, 5, 7, 8, 9, 15, 16, 17, 31, 33, 203};
static const sp_selector every[] = {SP_SELECT_DENSE,    SP_SELECT_ORIGINAL,  SP_SELECT_TEACHER,
                                    SP_SELECT_FORECAST, SP_SELECT_INFINIGEN, SP_SELECT_RANDOM};

// With at most k blocks nothing can be left out: every selector equals dense attention.
static void every_length(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    for (size_t t = 0; t < sizeof lengths / sizeof *lengths; t++) {
        int64_t T = lengths[t];
        float *dense = NULL;
        for (size_t i = 0; i < sizeof every / sizeof *every; i++)
            for (int mask = 0; mask < 2; mask++) {
                sp_prefill_args a = args_for(every[i]);
                a.selection.mask_future = mask;
                assert_ok(run(tokens, T, &a));
                float *h = test_download(sp_tensor_rows(shared.w.h, 0, T));
                for (int64_t j = 0; j < T * D; j++) assert_true(isfinite(h[j]));
                if (!dense) {
                    dense = h;
                    continue;
                }
                int64_t all = T <= K * BLOCK ? T : K * BLOCK;
                if (T <= K * BLOCK || mask) // unmasked, a future block may take a slot earlier
                    assert_close(sp_selector_name(every[i]), h, dense, all * D, 1e-5);
                free(h);
            }
        free(dense);
    }
    free(tokens);
}

// Tiles cut the products at other rows, which may change the last bit; lists must not change.
static void every_tile(void **state) {
    (void)state;
    static const int64_t tiles[] = {1, 7, 64, 1000};
    size_t bytes = (size_t)(L * RAGGED * HKV * K) * sizeof(int32_t);
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    kept_lists kept, want;
    assert_ok(sp_alloc(&kept.lists, (int64_t)bytes, 1, "lists"));
    assert_ok(sp_alloc(&want.lists, (int64_t)bytes, 1, "lists"));
    for (size_t i = 1; i < sizeof every / sizeof *every; i++) {
        sp_prefill_args a = args_for(every[i]);
        a.on_layer = keep_lists;
        a.user = &want;
        assert_ok(run(tokens, RAGGED, &a));
        float *h = test_download(sp_tensor_rows(shared.w.h, 0, RAGGED));
        for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
            a.tile = tiles[t];
            a.user = &kept;
            assert_ok(run(tokens, RAGGED, &a));
            assert_memory_equal(kept.lists, want.lists, bytes);
            assert_tensor_close("h", sp_tensor_rows(shared.w.h, 0, RAGGED), h, 1e-6);
        }
        free(h);
    }
    free(kept.lists), free(want.lists), free(tokens);
}

// What can be decoded token by token: with complete windows and the future masked, rows do not
// depend on what follows. The start rule and the teacher look ahead and are not held to it.
static void prefix_does_not_see_the_rest(void **state) {
    (void)state;
    static const sp_selector causal[] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL, SP_SELECT_FORECAST,
                                         SP_SELECT_INFINIGEN, SP_SELECT_RANDOM};
    static const int64_t prefix[] = {1, 9, 175, 176, 177, 191, 199};
    int32_t *tokens = golden_i32("ragged", "tokens", RAGGED);
    for (size_t i = 0; i < sizeof causal / sizeof *causal; i++) {
        sp_prefill_args a = args_for(causal[i]);
        a.selection.mask_future = true;
        assert_ok(run(tokens, RAGGED, &a));
        float *h = test_download(sp_tensor_rows(shared.w.h, 0, RAGGED));
        for (size_t p = 0; p < sizeof prefix / sizeof *prefix; p++) {
            assert_ok(run(tokens, prefix[p], &a));
            assert_tensor_close(sp_selector_name(causal[i]),
                                sp_tensor_rows(shared.w.h, 0, prefix[p]), h, 2e-6);
        }
        free(h);
    }
    free(tokens);
}

static void refusals(void **state) {
    (void)state;
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    sp_prefill_args a = args_for(SP_SELECT_DENSE);
    assert_fails(run(tokens, T0 + 1, &a), SP_ENVIRONMENT, "workspace");
    a = args_for(SP_SELECT_FORECAST);
    assert_fails(sp_prefill(test_tiny_base(), &shared.w, &shared.rope, tokens, T0, &a),
                 SP_ENVIRONMENT, "no Forecast weights");
    tokens[3] = VOCAB;
    a = args_for(SP_SELECT_DENSE);
    sp_status st = run(tokens, T0, &a);
    assert_int_not_equal(st, SP_OK);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_rope_table),
        cmocka_unit_test(golden_trajectory),
        cmocka_unit_test(logits_of_every_selector),
        cmocka_unit_test(ragged_sequence),
        cmocka_unit_test(rows_of_layer_0),
        cmocka_unit_test(infinigen_uses_the_layer_before),
        cmocka_unit_test(random_blocks),
        cmocka_unit_test(every_length),
        cmocka_unit_test(every_tile),
        cmocka_unit_test(prefix_does_not_see_the_rest),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
