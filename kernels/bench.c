// Micro-benchmarks of the operations (bench.h): one set of tensors per sequence length, a table of
// calls on them.
//
// Ceilings: operations made of products are held against the SGEMM rate that the backend measured
// at start; the others against sp_copy moving the same number of bytes between tensors that are
// touched as often, so that both find their data in the same caches.
//
// Legend (shapes of the tiny base model): T tokens, D hidden, F feed-forward, Hq and Hkv heads of
// size d, grids 8/4 (deployed) and 2/1 (teacher), blocks of 16 tokens, lists of 10.
#include "kernels/bench.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 256, F = 512, HQ = 8, HKV = 2, d = 64, BLOCK = 16, K = 10, VOCABULARY = 1024 };
static const sp_heads heads = {HQ, HKV, d};
static const sp_grid deployed = {8, 4}, teacher = {2, 1};
static const sp_selection selection = {BLOCK, 1, 2, K, false};

enum { MAX_TENSORS = 32, WARM_UPS = 3, MIN_RUNS = 5, MAX_RUNS = 200 };
static const double seconds_per_case = 0.15;

typedef struct fixture {
    sp_backend *be;
    int64_t T, n_d, n_t, nb;
    sp_tensor tokens, table, x, h, norm, cos, sin, qkv, q, k, v, attn, gate_up, act, w_qkv, w_o,
        w_gate_up, w_down, w_forecast, f, kd, kt, a, scores, lists, row_loss, df, g, weight, m1, m2;
    sp_tensor owned[MAX_TENSORS];
    int n_owned;
    int64_t listed_keys; // over rows and KV heads
} fixture;

// ---- fixture ------------------------------------------------------------------------------------

static sp_status make(fixture *f, int64_t rows, int64_t cols, uint64_t *seed, float spread,
                      sp_tensor *out) {
    sp_status st = SP_OK;
    float *values = NULL;
    SP_GO(sp_tensor_alloc(f->be, seed ? sp_backend_storage(f->be) : SP_F32, rows, cols,
                          "a benchmark tensor", out));
    f->owned[f->n_owned++] = *out;
    if (!seed) return SP_OK;
    SP_GO(sp_alloc(&values, rows * cols, sizeof *values, "benchmark data"));
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = spread * (float)(2 * sp_uniform(seed) - 1);
    SP_GO(sp_upload(*out, values));
done:
    free(values);
    return st;
}

static sp_status make_integers(fixture *f, int64_t rows, int64_t cols, sp_tensor *out) {
    SP_TRY(sp_tensor_alloc(f->be, SP_I32, rows, cols, "a benchmark tensor", out));
    f->owned[f->n_owned++] = *out;
    return SP_OK;
}

static sp_importance_args importance_args(const fixture *f, bool original) {
    return (sp_importance_args){.heads = heads,
                                .fine = original ? deployed : teacher,
                                .deployed = deployed,
                                .n_d = f->n_d,
                                .align = SP_ALIGN_MAX,
                                .visibility = original ? SP_SEES_COMPLETE : SP_SEES_START};
}

// Counts what the lists of the fixture make attention read.
static sp_status count_listed_keys(fixture *f) {
    int32_t *lists;
    SP_TRY(sp_alloc(&lists, f->T * HKV * K, sizeof *lists, "block lists"));
    sp_status st = sp_download(f->lists, lists);
    for (int64_t e = 0; st == SP_OK && e < f->T * HKV * K; e++) {
        int64_t i = e / (HKV * K), first = (int64_t)lists[e] * BLOCK;
        if (lists[e] >= 0) f->listed_keys += i + 1 - first < BLOCK ? i + 1 - first : BLOCK;
    }
    free(lists);
    return st;
}

static sp_status fixture_open(sp_backend *be, int64_t T, fixture *f) {
    *f = (fixture){.be = be, .T = T, .nb = (T + BLOCK - 1) / BLOCK};
    f->n_d = sp_windows(deployed, T);
    f->n_t = sp_windows(teacher, T);
    uint64_t s = 1;
    SP_TRY(make_integers(f, T, 1, &f->tokens));
    SP_TRY(make_integers(f, T, HKV * K, &f->lists));
    SP_TRY(make(f, VOCABULARY, D, &s, 1, &f->table));
    SP_TRY(make(f, T, D, &s, 1, &f->x));
    SP_TRY(make(f, T, D, &s, 1, &f->h));
    SP_TRY(make(f, 1, D, &s, 1, &f->norm));
    SP_TRY(make(f, T, (HQ + 2 * HKV) * d, &s, 1, &f->qkv));
    SP_TRY(make(f, T, HQ * d, &s, 1, &f->attn));
    SP_TRY(make(f, T, 2 * F, &s, 1, &f->gate_up));
    SP_TRY(make(f, T, F, &s, 1, &f->act));
    SP_TRY(make(f, (HQ + 2 * HKV) * d, D, &s, 0.1f, &f->w_qkv));
    SP_TRY(make(f, D, HQ * d, &s, 0.1f, &f->w_o));
    SP_TRY(make(f, 2 * F, D, &s, 0.1f, &f->w_gate_up));
    SP_TRY(make(f, D, F, &s, 0.1f, &f->w_down));
    SP_TRY(make(f, HKV * d, D, &s, 0.1f, &f->w_forecast));
    SP_TRY(make(f, T, HKV * d, &s, 1, &f->f));
    SP_TRY(make(f, f->n_d, HKV * d, &s, 1, &f->kd));
    SP_TRY(make(f, f->n_t, HKV * d, &s, 1, &f->kt));
    SP_TRY(make(f, T, d / 2, NULL, 0, &f->cos));
    SP_TRY(make(f, T, d / 2, NULL, 0, &f->sin));
    SP_TRY(make(f, T, HKV * f->n_d, NULL, 0, &f->a));
    SP_TRY(make(f, T, HKV * f->nb, NULL, 0, &f->scores));
    SP_TRY(make(f, T, HKV, NULL, 0, &f->row_loss));
    SP_TRY(make(f, T, HKV * d, NULL, 0, &f->df));
    SP_TRY(make(f, 6 * HKV * d, D, NULL, 0, &f->g));
    SP_TRY(make(f, 6 * HKV * d, D, NULL, 0, &f->weight));
    SP_TRY(make(f, 6 * HKV * d, D, NULL, 0, &f->m1));
    SP_TRY(make(f, 6 * HKV * d, D, NULL, 0, &f->m2));
    f->q = sp_tensor_cols(f->qkv, 0, HQ * d);
    f->k = sp_tensor_cols(f->qkv, HQ * d, HKV * d);
    f->v = sp_tensor_cols(f->qkv, (HQ + HKV) * d, HKV * d);
    SP_TRY(sp_fill(f->cos, 0.6f)); // a rotation: values keep their size
    SP_TRY(sp_fill(f->sin, 0.8f));
    sp_importance_args a = importance_args(f, false);
    SP_TRY(sp_importance(&a, f->q, 0, f->kt, f->a));
    SP_TRY(sp_select_blocks(&selection, deployed, HKV, f->a, 0, f->nb, f->lists));
    SP_TRY(count_listed_keys(f));
    return SP_OK;
}

static void fixture_close(fixture *f) {
    for (int i = 0; i < f->n_owned; i++) sp_tensor_free(&f->owned[i]);
}

// ---- cases --------------------------------------------------------------------------------------

static sp_status run_embed(fixture *f) {
    return sp_embed(f->tokens, f->table, 12, f->x);
}
static sp_status run_rmsnorm(fixture *f) {
    return sp_rmsnorm(f->h, f->norm, 1e-5f, f->x);
}
static sp_status run_qkv(fixture *f) {
    SP_TRY(sp_linear(f->x, f->w_qkv, f->qkv));
    return SP_OK;
}
static sp_status run_o(fixture *f) {
    return sp_linear(f->attn, f->w_o, f->x);
}
static sp_status run_gate_up(fixture *f) {
    return sp_linear(f->x, f->w_gate_up, f->gate_up);
}
static sp_status run_down(fixture *f) {
    return sp_linear(f->act, f->w_down, f->x);
}
static sp_status run_forecast(fixture *f) {
    return sp_linear(f->x, f->w_forecast, f->df);
}
static sp_status run_rope(fixture *f) {
    return sp_rope(f->q, f->cos, f->sin, 0, d, false);
}
static sp_status run_residual(fixture *f) {
    return sp_residual_add(f->h, f->x, 0.01f);
}
static sp_status run_swiglu(fixture *f) {
    return sp_swiglu(f->gate_up, f->act);
}
static sp_status run_dense(fixture *f) {
    return sp_dense_attention(heads, f->q, 0, f->k, f->v, SP_NO_TENSOR, f->attn);
}
static sp_status run_sparse(fixture *f) {
    return sp_sparse_attention(heads, f->q, 0, f->k, f->v, SP_NO_TENSOR, f->lists, BLOCK, f->attn);
}
static sp_status run_compress(fixture *f) {
    return sp_compress_keys(f->k, teacher, 0, f->kt);
}
static sp_status run_teacher(fixture *f) {
    sp_importance_args a = importance_args(f, false);
    return sp_importance(&a, f->q, 0, f->kt, f->a);
}
static sp_status run_original(fixture *f) {
    sp_importance_args a = importance_args(f, true);
    return sp_importance(&a, f->q, 0, f->kd, f->a);
}
static sp_status run_forecast_scores(fixture *f) {
    return sp_forecast_scores(heads, deployed, SP_SEES_COMPLETE, f->f, 0, f->kd, f->a);
}
static sp_status run_block_scores(fixture *f) {
    return sp_block_scores(&selection, deployed, HKV, f->a, 0, f->nb, f->scores);
}
static sp_status run_select(fixture *f) {
    return sp_select_blocks(&selection, deployed, HKV, f->a, 0, f->nb, f->lists);
}
static sp_status run_kl(fixture *f) {
    sp_kl_args p = {heads, deployed, selection, SP_KL_EXACT, 1.0 / (double)(HKV * f->T)};
    return sp_kl(&p, f->f, 0, f->kd, f->a, f->lists, f->row_loss, f->df, NULL, NULL);
}
static sp_status run_grad_weight(fixture *f) {
    return sp_grad_weight(f->df, f->x, sp_tensor_rows(f->g, 0, HKV * d));
}
static sp_status run_scale(fixture *f) {
    return sp_scale(f->m1, 1);
}
static sp_status run_sum(fixture *f) {
    double unused;
    return sp_sum(f->m1, &unused);
}
static sp_status run_sum_squares(fixture *f) {
    double unused;
    return sp_sum_squares(f->m1, &unused);
}
static sp_status run_adamw(fixture *f) {
    sp_adamw_args p = {1e-3f, 0.9f, 0.95f, 1e-6f, 0.01f, 1, 100};
    return sp_adamw(&p, f->weight, f->m1, f->m2, f->g);
}

typedef struct bench_case {
    const char *operation, *variant;
    sp_status (*run)(fixture *);
    // Work of one call: products (0: bound by memory) and bytes that must move at least.
    double flop, bytes;
} bench_case;

enum { MAX_CASES = 32 };

static int list_cases(const fixture *f, bench_case *list) {
    const double e = (double)sp_dtype_size(sp_backend_storage(f->be)), T = (double)f->T;
    const double qkv = (HQ + 2 * HKV) * d, keys = T * HKV * d, weights = 6.0 * HKV * d * D;
    const double n_d = (double)f->n_d, nb = (double)f->nb, rows_a = 4 * T * HKV * n_d;
    double teacher_pairs = 0, original_pairs = 0, student_pairs = 0;
    for (int64_t i = 0; i < f->T; i++) {
        teacher_pairs += (double)sp_visible(teacher, SP_SEES_START, i, f->n_t);
        original_pairs += (double)sp_visible(deployed, SP_SEES_COMPLETE, i, f->n_d);
        student_pairs += (double)sp_visible(deployed, SP_SEES_START, i, f->n_d);
    }
#define LINEAR(in, out) 2 * T *(in) * (out), e *(T * ((in) + (out)) + (in) * (out))
    const bench_case all[] = {
        {"embed", "", run_embed, 0, T * (4 + 2 * e * D)},
        {"rmsnorm", "", run_rmsnorm, 0, 2 * e * T * D},
        {"linear", "q, k, v", run_qkv, LINEAR(D, qkv)},
        {"linear", "o", run_o, LINEAR(HQ * d, D)},
        {"linear", "gate and up", run_gate_up, LINEAR(D, 2.0 * F)},
        {"linear", "down", run_down, LINEAR(F, D)},
        {"linear", "forecast", run_forecast, LINEAR(D, HKV * d)},
        {"rope", "queries", run_rope, 0, T * (2 * e * HQ * d + 4 * d)},
        {"residual_add", "", run_residual, 0, 3 * e * T * D},
        {"swiglu", "", run_swiglu, 0, 3 * e * T * F},
        {"dense_attention", "", run_dense, 4.0 * d * HQ * T * (T + 1) / 2,
         e * (2 * T * HQ * d + 2 * keys)},
        {"sparse_attention", "", run_sparse, 4.0 * d * HQ / HKV * (double)f->listed_keys,
         e * (2 * T * HQ * d + 2 * keys) + 4 * T * HKV * K},
        {"compress_keys", "2/1", run_compress, 0, 2 * e * keys},
        {"importance", "teacher 2/1 to 8/4", run_teacher, 2.0 * d * HQ * teacher_pairs,
         e * (T * HQ * d + keys) + rows_a},
        {"importance", "original 8/4", run_original, 2.0 * d * HQ * original_pairs,
         e * (T * HQ * d + n_d * HKV * d) + rows_a},
        {"forecast_scores", "", run_forecast_scores, 2.0 * d * HKV * original_pairs,
         e * (keys + n_d * HKV * d) + rows_a},
        {"block_scores", "", run_block_scores, 0, rows_a + 4 * T * HKV * nb},
        {"select_blocks", "", run_select, 0, rows_a + 4 * T * HKV * K},
        {"kl", "exact gradient", run_kl, 4.0 * d * HKV * student_pairs,
         e * (2 * keys + n_d * HKV * d) + rows_a + 4 * T * HKV * (K + 1)},
        {"grad_weight", "", run_grad_weight, 2 * T * HKV * d * D,
         4 * T * HKV * d + e * T * D + 8.0 * HKV * d * D},
        {"scale", "", run_scale, 0, 8 * weights},
        {"sum", "", run_sum, 0, 4 * weights},
        {"sum_squares", "", run_sum_squares, 0, 4 * weights},
        {"adamw", "", run_adamw, 0, 28 * weights},
    };
#undef LINEAR
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

// ---- measuring ----------------------------------------------------------------------------------

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// sp_sum of one number waits for everything issued before it, whatever the backend.
static sp_status wait_for(fixture *f) {
    double unused;
    return sp_sum(sp_tensor_rows(f->row_loss, 0, 1), &unused);
}

// Milliseconds of `run`, sorted. At least MIN_RUNS, more while they are cheap.
static sp_status measure(fixture *f, sp_status (*run)(fixture *), double ms[MAX_RUNS], int *n) {
    for (int i = 0; i < WARM_UPS; i++) SP_TRY(run(f));
    SP_TRY(wait_for(f));
    double start = sp_now();
    for (*n = 0; *n < MAX_RUNS && (*n < MIN_RUNS || sp_now() - start < seconds_per_case); ++*n) {
        double before = sp_now();
        SP_TRY(run(f));
        SP_TRY(wait_for(f));
        ms[*n] = 1e3 * (sp_now() - before);
    }
    qsort(ms, (size_t)*n, sizeof *ms, ascending);
    return SP_OK;
}

static sp_tensor copy_from, copy_to;
static sp_status run_copy(fixture *f) {
    (void)f;
    return sp_copy(copy_to, copy_from);
}

// GB/s of a copy that moves `bytes` in all.
static sp_status copy_rate(fixture *f, double bytes, double *gbps) {
    sp_status st = SP_OK;
    double ms[MAX_RUNS];
    int n;
    int64_t rows = (int64_t)(bytes / 8 / 256) + 1;
    copy_from = copy_to = (sp_tensor){0};
    SP_GO(sp_tensor_alloc(f->be, SP_F32, rows, 256, "a benchmark tensor", &copy_from));
    SP_GO(sp_tensor_alloc(f->be, SP_F32, rows, 256, "a benchmark tensor", &copy_to));
    SP_GO(measure(f, run_copy, ms, &n));
    *gbps = 8e-6 * 256 * (double)rows / ms[n / 2];
done:
    sp_tensor_free(&copy_from);
    sp_tensor_free(&copy_to);
    return st;
}

static json_t *real_or_null(double x) {
    return isfinite(x) && x > 0 ? json_real(x) : json_null();
}

static sp_status run_case(fixture *f, const bench_case *c, json_t *results) {
    double ms[MAX_RUNS];
    int n;
    SP_TRY(measure(f, c->run, ms, &n));
    double median = ms[n / 2], tflops = c->flop / median * 1e-9, gbps = c->bytes / median * 1e-6;
    double ceiling = sp_backend_matmul_gflops(f->be) * 1e-3, reached = tflops;
    if (!c->flop) {
        reached = gbps;
        SP_TRY(copy_rate(f, c->bytes, &ceiling));
    }
    char shape[128];
    snprintf(shape, sizeof shape, "T=%lld D=%d F=%d Hq=%d Hkv=%d d=%d%s%s", (long long)f->T, D, F,
             HQ, HKV, d, c->variant[0] ? ", " : "", c->variant);
    json_t *object =
        json_pack("{ss ss sf sf sf si sf sf so sf so ss so}", "name", c->operation, "shape", shape,
                  "ms_median", median, "ms_min", ms[0], "ms_p99", ms[(int)(0.99 * (n - 1) + 0.5)],
                  "n", n, "flop", c->flop, "bytes", c->bytes, "tflops", real_or_null(tflops),
                  "gbps", gbps, "ceiling", real_or_null(ceiling), "ceiling_unit",
                  c->flop ? "tflops" : "gbps", "share", real_or_null(reached / ceiling));
    if (!object || json_array_append_new(results, object) != 0)
        return sp_error(SP_ENVIRONMENT, "out of memory for benchmark results");
    return SP_OK;
}

static sp_status unknown(const char *name, const bench_case *list, int n) {
    sp_text known = {0};
    for (int i = 0; i < n; i++)
        if (i == 0 || strcmp(list[i].operation, list[i - 1].operation) != 0)
            sp_text_add(&known, ", %s", list[i].operation);
    sp_status st = sp_error(SP_BAD_INPUT, "unknown operation '%s'; known are: all%s", name,
                            known.data ? known.data : "");
    sp_text_free(&known);
    return st;
}

sp_status sp_bench_operation(sp_backend *be, const char *name, json_t *results) {
    static const int64_t lengths[] = {1024, 2048};
    for (int l = 0; l < 2; l++) {
        fixture f;
        bench_case list[MAX_CASES];
        sp_status st = fixture_open(be, lengths[l], &f);
        int n = st == SP_OK ? list_cases(&f, list) : 0, found = 0;
        for (int i = 0; st == SP_OK && i < n; i++) {
            if (strcmp(name, "all") != 0 && strcmp(name, list[i].operation) != 0) continue;
            found++;
            st = run_case(&f, &list[i], results);
        }
        if (st == SP_OK && !found) st = unknown(name, list, n);
        fixture_close(&f);
        SP_TRY(st);
    }
    return SP_OK;
}
