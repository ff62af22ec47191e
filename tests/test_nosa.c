// The NOSA backbone against golden values (training.md 1.6, 5.4, 6.2, 7.2): recognition,
// trajectory, lists of both stages, logits of every selector, loss, gradient and three optimiser
// steps.
//
// Hidden states are stored for rows 7, 23, ...; lists as bit sets.
#include "common/util.h"
#include "model/selection.h"
#include "tests/mini_model.h"
#include "tests/stepper.h"
#include "validate/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 6,
    D = 256,
    HQ = 8,
    HKV = 2,
    HEAD = 64,
    ROWS = HKV * HEAD, // of a Forecast matrix
    T0 = 256,
    ND = 63,
    NB = 16,
    K = 14,
    K1 = 10,
    BLOCK = 16,
    VOCAB = 1024,
    RAGGED = 395,
    RAGGED_NB = 25,
    STEPS = 3,
    KEPT_ROWS = T0 / 16,
};
static const sp_grid deployed = {8, 4}, teacher_grid = {2, 1};
static const sp_distill_args plain = {.teacher = {2, 1}};
static const char golden[] = "nosa";

static sp_forecast forecast(float factor) {
    sp_forecast f;
    assert_ok(sp_forecast_alloc(test_tiny_nosa()->desc, &f));
    sp_forecast_init(&f, 20260605);
    for (int64_t i = 0; i < (f.layers + 1) * f.rows * f.cols; i++) f.w[i] *= factor;
    return f;
}

static test_prefill shared;

static int group_setup(void **state) {
    (void)state;
    test_prefill_open(test_tiny_nosa(), RAGGED, forecast(1), &shared);
    return 0;
}

static int group_teardown(void **state) {
    (void)state;
    test_prefill_close(&shared);
    return 0;
}

// ---- description --------------------------------------------------------------------------------

static void the_folder_is_recognised(void **state) {
    (void)state;
    const sp_model_desc *d = test_tiny_nosa()->desc;
    char *text;
    assert_true(d->cis && d->rope_variant == SP_ROPE_SHORT && !d->rope_tables_bf16);
    assert_true(d->sparse.select_blocks == 7 && d->sparse.select_blocks_from == SP_FROM_MODEL);
    assert_true(d->embed_scale == 1 && d->residual_scale == 1 && d->logit_divisor == 1);
    assert_true(d->tensors == 68 && d->parameters == 4592396 && d->ignored_tensors == 0);
    sp_selection all = sp_model_selection(d, false), first = sp_model_shortlist(d, true);
    assert_true(all.topk == K && first.topk == K1 && first.mask_future && !all.mask_future);
    assert_ok(sp_model_describe_text(d, &text));
    assert_non_null(strstr(text, "select_blocks 7 (config.json)"));
    assert_non_null(strstr(text, "10 by the query"));
    assert_non_null(strstr(text, "short factors at every length, attention factor 1.0408"));
    free(text);
    assert_int_equal(sp_model_shortlist(test_tiny_base()->desc, false).topk, 10); // all of them
}

// A plain Llama with the tensors of some layers and select_blocks as given.
static sp_status describe(const char *select_blocks, int layers_with_tensors,
                          const sp_recipe *recipe, sp_model_desc **out) {
    static int count;
    mini_model *m = mini_new(&mini_default);
    mini_set(m, "model_type", json_string("llama"));
    static const char *const scalings[] = {"scale_emb", "scale_depth", "dim_model_base"};
    for (int i = 0; i < 3; i++) mini_set(m, scalings[i], NULL);
    if (select_blocks)
        json_object_set_new(json_object_get(m->config, "sparse_config"), "select_blocks",
                            json_loads(select_blocks, JSON_DECODE_ANY, NULL));
    for (int l = 0; l < layers_with_tensors; l++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.A", l);
        mini_add(m, name, 1, 1, mini_default.kv_heads);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.delta.weight", l);
        mini_add(m, name, 2, mini_default.kv_heads, mini_default.kv_heads * mini_default.head_dim);
    }
    char *dir = sp_format("%s/nosa-%d", test_tmpdir(), count++);
    mini_write(m, dir, 0);
    sp_status st = sp_model_describe(dir, recipe, out);
    free(dir);
    mini_free(m);
    return st;
}

static void what_is_missing_is_told(void **state) {
    (void)state;
    sp_model_desc *d;
    const int64_t three = 3, nine = 9;
    const sp_recipe recipe = {.select_blocks = &three}, too_many = {.select_blocks = &nine};
    assert_ok(describe("3", 2, NULL, &d));
    assert_true(d->cis && d->sparse.select_blocks == 3);
    sp_model_desc_free(d);
    // the recipe fills what config.json lacks, and does not override it
    assert_ok(describe(NULL, 2, &recipe, &d));
    assert_true(d->cis && d->sparse.select_blocks_from == SP_FROM_RECIPE);
    sp_model_desc_free(d);
    assert_ok(describe("2", 2, &recipe, &d));
    assert_true(d->sparse.select_blocks == 2);
    sp_model_desc_free(d);
    assert_ok(describe(NULL, 0, NULL, &d));
    assert_true(!d->cis && d->rope_variant == SP_ROPE_BY_LENGTH);
    sp_model_desc_free(d);

    assert_fails(describe("3", 0, NULL, &d), SP_BAD_INPUT,
                 "no layer has the tensors self_attn.A [2] and self_attn.delta.weight [2, 12]");
    assert_fails(describe(NULL, 0, &recipe, &d), SP_BAD_INPUT,
                 "select_blocks (run configuration) says");
    assert_fails(describe("3", 1, NULL, &d), SP_BAD_INPUT,
                 "missing: model.layers.1.self_attn.A, model.layers.1.self_attn.delta.weight");
    assert_fails(describe(NULL, 2, NULL, &d), SP_BAD_INPUT, "configs/nosa-8b.yaml");
    assert_fails(describe("9", 2, NULL, &d), SP_BAD_INPUT, "must hold the initial blocks (1) and");
    assert_fails(describe(NULL, 2, &too_many, &d), SP_BAD_INPUT, "\"select_blocks\" (9)");
    assert_fails(describe("\"3\"", 2, NULL, &d), SP_BAD_INPUT, "must be a whole number");
    mini_model *m = mini_new(&mini_default); // MiniCPM with one of the tensors
    mini_add(m, "model.layers.0.self_attn.A", 1, 1, 2);
    char *dir = sp_format("%s/nosa-minicpm", test_tmpdir());
    mini_write(m, dir, 0);
    assert_fails(sp_model_describe(dir, &recipe, &d), SP_BAD_INPUT, "\"model_type\" is 'minicpm'");
    free(dir);
    mini_free(m);
}

static void rope_tables(void **state) {
    (void)state;
    enum { HALF = HEAD / 2, N = KEPT_ROWS * 2 * HALF };
    sp_model_desc d = *test_tiny_nosa()->desc;
    const char *names[] = {"rope.cos", "rope.sin"};
    float *table[2], *want[2];
    for (int i = 0; i < 2; i++) want[i] = golden_f32(golden, names[i], N);
    // Short factors whatever the length; upstream's rounding as an option.
    static const struct {
        int64_t positions;
        bool bf16;
        double limit;
    } cases[] = {{T0, false, 6e-5}, {8192, false, 6e-5}, {T0, true, 4.2e-3}};
    for (int c = 0; c < 3; c++) {
        d.rope_tables_bf16 = cases[c].bf16;
        for (int i = 0; i < 2; i++)
            assert_ok(sp_alloc(&table[i], cases[c].positions * HALF, sizeof(float), "table"));
        sp_rope_values(&d, cases[c].positions, table[0], table[1]);
        double worst = 0;
        for (int i = 0; i < 2; i++) {
            for (int64_t r = 0; r < 2 * KEPT_ROWS; r++)
                worst = fmax(worst, test_max_abs_error(table[i] + (8 * r + 7) * HALF,
                                                       want[i] + r * HALF, HALF));
            if (cases[c].bf16)
                for (int64_t x = 0; x < cases[c].positions * HALF; x++)
                    assert_true(sp_bf16_to_f32(sp_f32_to_bf16(table[i][x])) == table[i][x]);
            free(table[i]);
        }
        if (!(worst <= cases[c].limit)) fail_msg("case %d: %g", c, worst);
        assert_int_equal(worst > 1e-3, cases[c].bf16);
    }
    assert_false(sp_rope_needs_two(&d, 8192));
    free(want[0]), free(want[1]);
}

// ---- trajectory ---------------------------------------------------------------------------------

static sp_prefill_args args_for(sp_selector s) {
    return (sp_prefill_args){.selector = s,
                             .selection = sp_model_selection(test_tiny_nosa()->desc, false),
                             .teacher = teacher_grid,
                             .align = SP_ALIGN_MAX,
                             .forecast_sees = SP_SEES_COMPLETE,
                             .forecast = &shared.forecast,
                             .seed = 1};
}

static sp_status run(const int32_t *tokens, int64_t T, const sp_prefill_args *a) {
    return sp_prefill(test_tiny_nosa(), &shared.w, &shared.rope, tokens, T, a);
}

typedef struct trajectory {
    float *hidden, *attn, *cis, *cis_d, *block_scores;
    int layers_seen;
} trajectory;

static sp_status check_layer(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                             const sp_tensor *lists) {
    trajectory *g = user;
    const sp_model *m = test_tiny_nosa();
    (void)lists;
    g->layers_seen++;
    assert_rows_close("hidden", sp_tensor_rows(w->h, 0, T), 7, 16,
                      g->hidden + layer * KEPT_ROWS * D, 5e-6);
    if (layer == 4)
        assert_rows_close("attn.3", sp_tensor_rows(w->attn, 0, T), 7, 16, g->attn, 1e-5);
    sp_tensor cis = sp_workspace_cis(m, w, T), order;
    float *got = test_download(cis), by_token[T0 * HKV];
    for (int64_t t = 0; t < T0; t++)
        for (int64_t h = 0; h < HKV; h++) by_token[t * HKV + h] = got[h * T0 + t];
    assert_close("cis", by_token, g->cis + layer * T0 * HKV, T0 * HKV, 5e-6);
    free(got);
    sp_cis_ranking rank;
    assert_ok(sp_cis_ranking_make(m->backend, m->desc, T, &rank));
    assert_ok(sp_cis_rank(m->desc, &rank, cis, &order));
    assert_tensor_close("cis_block_scores", rank.scores, g->block_scores + layer * HKV * NB, 5e-6);
    sp_cis_ranking_free(&rank);
    return SP_OK;
}

static void golden_trajectory(void **state) {
    (void)state;
    trajectory g = {.hidden = golden_f32(golden, "hidden", (L + 1) * KEPT_ROWS * D),
                    .attn = golden_f32(golden, "attn.3", KEPT_ROWS * HQ * HEAD),
                    .cis = golden_f32(golden, "cis", L * T0 * HKV),
                    .block_scores = golden_f32(golden, "cis_block_scores", L * HKV * NB)};
    int32_t *tokens = golden_i32(golden, "tokens", T0);
    int32_t *lists = golden_bits(golden, "lists.bits", L, HKV, T0, K);
    sp_prefill_args a = args_for(SP_SELECT_TEACHER);
    a.fixed_lists = lists;
    a.on_layer = check_layer;
    a.user = &g;
    assert_ok(run(tokens, T0, &a));
    assert_int_equal(g.layers_seen, L);
    assert_rows_close("hidden", sp_tensor_rows(shared.w.h, 0, T0), 7, 16,
                      g.hidden + L * KEPT_ROWS * D, 5e-6);
    free(g.hidden), free(g.attn), free(g.cis), free(g.block_scores), free(tokens), free(lists);
}

// From the golden A and cis every row must come out, exact ties included.
static void lists_from_golden_rows(void **state) {
    (void)state;
    enum { LAYER = 4 };
    static const char *const names[2][2] = {{"short.bits", "lists.bits"},
                                            {"short_masked.bits", "lists_masked.bits"}};
    float *A = golden_rows_f32(golden, "A.4", 1, HKV, T0, ND);
    float *by_token = golden_f32(golden, "cis", L * T0 * HKV), cis[HKV * T0];
    for (int64_t t = 0; t < T0; t++)
        for (int64_t h = 0; h < HKV; h++) cis[h * T0 + t] = by_token[(LAYER * T0 + t) * HKV + h];
    const sp_model_desc *d = test_tiny_nosa()->desc;
    sp_backend *be = test_backend();
    sp_tensor a = test_upload(A, T0, HKV * ND), c = test_upload(cis, HKV, T0), chosen, lists;
    sp_tensor order;
    sp_cis_ranking rank;
    assert_ok(sp_tensor_alloc(be, SP_I32, T0, HKV * K1, "shortlists", &chosen));
    assert_ok(sp_tensor_alloc(be, SP_I32, T0, HKV * K, "lists", &lists));
    assert_ok(sp_cis_ranking_make(be, d, T0, &rank));
    assert_ok(sp_cis_rank(d, &rank, c, &order));
    for (int masked = 0; masked < 2; masked++) {
        sp_selection s = sp_model_shortlist(d, masked);
        assert_ok(sp_select_blocks(&s, deployed, HKV, a, 0, NB, chosen));
        assert_ok(sp_extend_lists(BLOCK, HKV, chosen, 0, order, lists));
        const sp_tensor *got[] = {&chosen, &lists};
        for (int stage = 0; stage < 2; stage++) {
            int64_t k = stage ? K : K1, n = T0 * HKV * k;
            int32_t *all = golden_bits(golden, names[masked][stage], L, HKV, T0, k);
            int32_t *own = test_download_i32(*got[stage]);
            assert_lists(names[masked][stage], own, all + LAYER * n, NULL, T0, HKV, k);
            free(all), free(own);
        }
    }
    sp_cis_ranking_free(&rank);
    sp_tensor *all[] = {&a, &c, &chosen, &lists};
    for (int i = 0; i < 4; i++) sp_tensor_free(all[i]);
    free(A), free(by_token);
}

// ---- logits and own lists of every selector -----------------------------------------------------

static void check_logits(const char *name, int64_t row) {
    sp_tensor logits;
    float *want = golden_f32(golden, name, VOCAB);
    assert_ok(sp_tensor_alloc(test_backend(), SP_F32, 1, VOCAB, "logits", &logits));
    assert_ok(sp_forward_logits(test_tiny_nosa(), &shared.w, row, 1, logits));
    float *got = test_download(logits);
    double e = test_max_abs_error(got, want, VOCAB);
    if (!(e <= 1e-4)) fail_msg("%s: largest difference %.3g, limit 1e-4", name, e);
    sp_tensor_free(&logits);
    free(got), free(want);
}

// A row counts unless one of its cuts was a near tie (golden README: lists).
typedef struct list_check {
    const char *what;
    int32_t *want;
    float *gap;
} list_check;

static float *both_gaps(const char *first, const char *second, int64_t n) {
    float *a = golden_f32(golden, first, n), *b = golden_f32(golden, second, n);
    for (int64_t i = 0; i < n; i++)
        if (b[i] > 0 && b[i] <= 1e-5f) a[i] = b[i];
    free(b);
    return a;
}

static sp_status check_lists(void *user, int64_t layer, const sp_workspace *w, int64_t T,
                             const sp_tensor *lists) {
    (void)w;
    const list_check *c = user;
    int32_t *got = test_download_i32(*lists);
    assert_lists(c->what, got, c->want + layer * T * HKV * K, c->gap + layer * HKV * T, T, HKV, K);
    free(got);
    return SP_OK;
}

static void logits_of_every_selector(void **state) {
    (void)state;
    static const struct {
        sp_selector selector;
        sp_visibility sees;
        bool mask, ragged;
        const char *logits, *lists, *first_gap, *second_gap; // lists NULL: none stored
    } run_of[] = {
        {SP_SELECT_DENSE, 0, false, false, "logits.dense", NULL, NULL, NULL},
        {SP_SELECT_ORIGINAL, 0, false, false, "logits.original", "lists.original.bits",
         "cut_gap_short.original", "cut_gap_cis.original"},
        {SP_SELECT_TEACHER, 0, false, false, "logits.teacher", "lists.bits", "cut_gap_short",
         "cut_gap_cis"},
        {SP_SELECT_TEACHER, 0, true, false, "logits.teacher_masked", NULL, NULL, NULL},
        {SP_SELECT_FORECAST, SP_SEES_COMPLETE, false, false, "logits.forecast",
         "lists.forecast.bits", "cut_gap_short.forecast", "cut_gap_cis.forecast"},
        {SP_SELECT_FORECAST, SP_SEES_START, false, false, "logits.forecast_start",
         "lists.forecast_start.bits", "cut_gap_short.forecast_start", "cut_gap_cis.forecast_start"},
        {SP_SELECT_DENSE, 0, false, true, "ragged.logits.dense", NULL, NULL, NULL},
        {SP_SELECT_ORIGINAL, 0, false, true, "ragged.logits.original", NULL, NULL, NULL},
        {SP_SELECT_TEACHER, 0, false, true, "ragged.logits.teacher", "ragged.lists.bits",
         "ragged.cut_gap_short", "ragged.cut_gap_cis"},
        {SP_SELECT_FORECAST, SP_SEES_COMPLETE, false, true, "ragged.logits.forecast", NULL, NULL,
         NULL},
    };
    for (size_t i = 0; i < sizeof run_of / sizeof *run_of; i++) {
        int64_t T = run_of[i].ragged ? RAGGED : T0;
        int32_t *tokens = golden_i32(golden, run_of[i].ragged ? "ragged.tokens" : "tokens", T);
        sp_prefill_args a = args_for(run_of[i].selector);
        a.forecast_sees = run_of[i].sees;
        a.selection.mask_future = run_of[i].mask;
        a.tile = 100; // several tiles: each must find its rows of everything
        list_check check = {.what = run_of[i].logits};
        if (run_of[i].lists) {
            check.want = golden_bits(golden, run_of[i].lists, L, HKV, T, K);
            check.gap = both_gaps(run_of[i].first_gap, run_of[i].second_gap, L * HKV * T);
            a.on_layer = check_lists;
            a.user = &check;
        }
        assert_ok(run(tokens, T, &a));
        check_logits(run_of[i].logits, T - 1);
        free(check.want), free(check.gap), free(tokens);
    }
}

// Token by token the same as at once, with every kind of list.
static void decode_equals_prefill(void **state) {
    (void)state;
    enum { DECODED = 40 };
    const sp_model *m = test_tiny_nosa();
    int32_t *tokens = golden_i32(golden, "ragged.tokens", RAGGED);
    static const sp_selector selectors[] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL, SP_SELECT_FORECAST,
                                            SP_SELECT_RANDOM};
    sp_engine *e;
    float whole[VOCAB], steps[VOCAB];
    assert_ok(sp_engine_open(&(sp_engine_args){.model = m, .max_tokens = RAGGED}, &e));
    for (size_t i = 0; i < sizeof selectors / sizeof *selectors; i++) {
        sp_engine_run r = {.selector = selectors[i], .forecast = &shared.forecast, .seed = 3};
        assert_ok(sp_engine_start(e, &r));
        assert_ok(sp_engine_append(e, tokens, RAGGED, 1));
        assert_ok(sp_engine_logits(e, 0, 1, whole));
        assert_ok(sp_engine_start(e, &r));
        assert_ok(sp_engine_append(e, tokens, RAGGED - DECODED, 1));
        for (int64_t t = RAGGED - DECODED; t < RAGGED; t++)
            assert_ok(sp_engine_append(e, tokens + t, 1, 1));
        assert_ok(sp_engine_logits(e, 0, 1, steps));
        assert_close(sp_selector_name(selectors[i]), steps, whole, VOCAB, 2e-5);
    }
    sp_engine_close(e);
    free(tokens);
}

// ---- training -----------------------------------------------------------------------------------

static stepper open_stepper(int64_t max_tokens, const sp_distill_args *a, float factor) {
    return stepper_open(test_tiny_nosa(), max_tokens, a, forecast(factor));
}

static void check_norms(const char *what, const float *g, const char *name) {
    float *want = golden_f32(golden, name, L);
    for (int l = 0; l < L; l++)
        assert_within(what, test_norm(g + l * ROWS * D, ROWS * D), want[l], 1e-5);
    free(want);
}

// The loss reads the shortlist, attention the longer list.
static void golden_losses(void **state) {
    (void)state;
    int32_t *tokens = golden_i32(golden, "tokens", T0);
    int32_t *first = golden_bits(golden, "short.bits", L, HKV, T0, K1);
    int32_t *lists = golden_bits(golden, "lists.bits", L, HKV, T0, K);
    float *loss = golden_f32(golden, "loss", L), *dW = golden_f32(golden, "dW.2", ROWS * D);
    float *row_loss = golden_rows_f32(golden, "row_loss", L, HKV, T0, 1);
    float *gap = golden_f32(golden, "cut_gap_short", L * HKV * T0);
    float *gaps = both_gaps("cut_gap_short", "cut_gap_cis", L * HKV * T0);
    stepper t = open_stepper(T0, &plain, 1);
    for (int fixed = 0; fixed < 2; fixed++)
        for (int l = 0; l < L; l++) {
            sp_distill_probe p = {.layer = l,
                                  .fixed_lists = fixed ? lists : NULL,
                                  .fixed_loss_lists = fixed ? first : NULL,
                                  .row_loss = test_filled(T0 * HKV, "row losses"),
                                  .loss_lists = test_filled(T0 * HKV * K1, "shortlists"),
                                  .lists = test_filled(T0 * HKV * K, "lists")};
            float *g = stepper_gradient(&t, tokens, T0, 1, &p);
            assert_within("loss", t.loss[l], loss[l], 1e-5);
            assert_close("row_loss", p.row_loss, row_loss + l * T0 * HKV, T0 * HKV, 1e-5);
            assert_lists("loss lists", p.loss_lists, first + l * T0 * HKV * K1, gap + l * HKV * T0,
                         T0, HKV, K1);
            if (l + 1 < L)
                assert_lists("lists", p.lists, lists + l * T0 * HKV * K, gaps + l * HKV * T0, T0,
                             HKV, K);
            if (l == 2) assert_close("dW", g + l * ROWS * D, dW, ROWS * D, 1e-5);
            check_norms("norm of dW", g, "dW_norm");
            free(p.row_loss), free(p.loss_lists), free(p.lists), free(g);
        }
    stepper_close(&t);
    free(tokens), free(first), free(lists), free(loss), free(dW), free(row_loss), free(gap);
    free(gaps);
}

static void golden_peaked_and_ragged(void **state) {
    (void)state;
    int32_t *tokens = golden_i32(golden, "tokens", T0);
    int32_t *ragged = golden_i32(golden, "ragged.tokens", RAGGED);
    float *peaked = golden_f32(golden, "peaked.loss", L);
    float *loss = golden_f32(golden, "ragged.loss", L);
    int32_t *first = golden_bits(golden, "ragged.short.bits", L, HKV, RAGGED, K1);
    float *gap = golden_f32(golden, "ragged.cut_gap_short", L * HKV * RAGGED);
    stepper t = open_stepper(T0, &plain, 32);
    float *g = stepper_gradient(&t, tokens, T0, 1, NULL);
    for (int l = 0; l < L; l++) assert_within("peaked loss", t.loss[l], peaked[l], 1e-5);
    check_norms("peaked norm of dW", g, "peaked.dW_norm");
    free(g);
    stepper_close(&t);
    sp_distill_args tiled = plain;
    tiled.tile = 90;
    t = open_stepper(RAGGED + 50, &tiled, 1);
    sp_distill_probe p = {.layer = 3, .loss_lists = test_filled(RAGGED * HKV * K1, "shortlists")};
    g = stepper_gradient(&t, ragged, RAGGED, 1, &p);
    for (int l = 0; l < L; l++) assert_within("ragged loss", t.loss[l], loss[l], 1e-5);
    check_norms("ragged norm of dW", g, "ragged.dW_norm");
    assert_lists("ragged loss lists", p.loss_lists, first + 3 * RAGGED * HKV * K1,
                 gap + 3 * HKV * RAGGED, RAGGED, HKV, K1);
    stepper_close(&t);
    free(tokens), free(ragged), free(peaked), free(loss), free(first), free(gap), free(g);
    free(p.loss_lists);
}

static void golden_three_steps(void **state) {
    (void)state;
    enum { N = ROWS * D };
    int32_t *tokens = golden_i32(golden, "adamw3.tokens", STEPS * T0);
    int32_t *first = golden_i32(golden, "tokens", T0);
    float *loss = golden_f32(golden, "adamw3.loss", STEPS * L);
    float *norm = golden_f32(golden, "adamw3.grad_norm", STEPS);
    float *weights = golden_f32(golden, "adamw3.weights.3", N);
    float *loss_after = golden_f32(golden, "adamw3.loss_after", L);
    stepper t = open_stepper(T0, &plain, 1);
    sp_tensor w = test_upload(t.host.w, L * ROWS, D), m, v;
    assert_ok(sp_tensor_alloc(t.m->backend, SP_F32, L * ROWS, D, "m", &m));
    assert_ok(sp_tensor_alloc(t.m->backend, SP_F32, L * ROWS, D, "v", &v));
    for (int s = 0; s < STEPS; s++) {
        free(stepper_gradient(&t, tokens + s * T0, T0, 1, NULL));
        double squares;
        assert_ok(sp_sum_squares(t.grad, &squares));
        assert_within("grad_norm", sqrt(squares), norm[s], 1e-5);
        for (int l = 0; l < L; l++) assert_within("loss", t.loss[l], loss[s * L + l], 1e-5);
        const sp_adamw_args a = {.lr = 2e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-6f,
                                 .weight_decay = 0.01f,
                                 .grad_scale = (float)fmin(1, 0.5 / (sqrt(squares) + 1e-6)),
                                 .step = s + 1};
        assert_ok(sp_adamw(&a, w, m, v, t.grad));
        for (int l = 0; l < L; l++) assert_ok(sp_copy(t.w.w[l], sp_tensor_rows(w, l * ROWS, ROWS)));
    }
    float *got = test_download(w);
    for (int64_t i = 0; i < N; i++) {
        got[3 * N + i] -= t.host.w[3 * N + i];
        weights[i] -= t.host.w[3 * N + i];
    }
    assert_close("weights minus the initial ones", got + 3 * N, weights, N, 2e-4);
    assert_ok(sp_distill_step(t.d, &t.w, first, T0, 1, NULL, t.loss));
    for (int l = 0; l < L; l++) assert_within("loss_after", t.loss[l], loss_after[l], 1e-5);
    sp_tensor_free(&w), sp_tensor_free(&m), sp_tensor_free(&v);
    stepper_close(&t);
    free(tokens), free(first), free(loss), free(norm), free(weights), free(loss_after), free(got);
}

static void awkward_lengths_and_memory(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 79, 395};
    const sp_model *m = test_tiny_nosa();
    int32_t *tokens = golden_i32(golden, "ragged.tokens", RAGGED);
    int64_t before = sp_backend_bytes(m->backend, NULL);
    sp_distill *d;
    assert_ok(sp_distill_open(m, RAGGED, &plain, &d));
    int64_t used = sp_backend_bytes(m->backend, NULL) - before;
    int64_t predicted = sp_distill_bytes(m->backend, m->desc, RAGGED);
    assert_in_range(used, predicted, predicted + 32 * 4096); // alignment
    sp_distill_close(d);
    stepper t = open_stepper(RAGGED, &plain, 1);
    double recall[L], mass[L], rows[L];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        float *g = stepper_gradient(&t, tokens, lengths[i], 1, NULL);
        double size = test_norm(g, L * ROWS * D);
        assert_true(isfinite(size) && (lengths[i] <= 4 * BLOCK ? size == 0 : size > 0));
        assert_ok(sp_distill_recall(t.d, &t.w, tokens, lengths[i], recall, mass, rows));
        // rows in which more than the 10 of the shortlist compete
        int64_t first = K1 * BLOCK, n = lengths[i] > first ? (lengths[i] - first) * HKV : 0;
        for (int l = 0; l < L; l++) {
            assert_true(rows[l] == (double)n);
            assert_true(n == 0 || (recall[l] > 0 && recall[l] <= (double)n));
        }
        free(g);
    }
    stepper_close(&t);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_folder_is_recognised),
        cmocka_unit_test(what_is_missing_is_told),
        cmocka_unit_test(rope_tables),
        cmocka_unit_test(golden_trajectory),
        cmocka_unit_test(lists_from_golden_rows),
        cmocka_unit_test(logits_of_every_selector),
        cmocka_unit_test(decode_equals_prefill),
        cmocka_unit_test(golden_losses),
        cmocka_unit_test(golden_peaked_and_ragged),
        cmocka_unit_test(golden_three_steps),
        cmocka_unit_test(awkward_lengths_and_memory),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
