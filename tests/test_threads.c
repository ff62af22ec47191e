// Every operation gives the same bits for every number of threads, with every matrix library.
#include "common/build.h"
#include "tests/guarded.h"

#include <stdlib.h>
#include <string.h>

enum { T = 203, D = 96, F = 130, HQ = 4, HKV = 2, d = 24, K = 5, N_D = 49, N_T = 202, NB = 13 };
enum { MAX_OUTPUTS = 24 };
static const sp_heads heads = {HQ, HKV, d};
static const sp_grid deployed = {8, 4}, teacher = {2, 1};
static const sp_selection selection = {16, 1, 2, K, false};

typedef struct outputs {
    const char *what[MAX_OUTPUTS];
    void *data[MAX_OUTPUTS];
    size_t bytes[MAX_OUTPUTS];
    int n;
} outputs;

static void keep(outputs *o, const char *what, sp_tensor t) {
    assert_true(o->n < MAX_OUTPUTS);
    o->what[o->n] = what;
    o->bytes[o->n] = (size_t)(t.rows * t.cols) * 4;
    o->data[o->n] = malloc(o->bytes[o->n]);
    assert_ok(sp_download(t, o->data[o->n++]));
}

static void keep_number(outputs *o, const char *what, double x) {
    o->what[o->n] = what;
    o->bytes[o->n] = sizeof x;
    o->data[o->n] = malloc(sizeof x);
    memcpy(o->data[o->n++], &x, sizeof x);
}

static sp_tensor tensor(sp_backend *be, int64_t rows, int64_t cols, uint64_t *seed) {
    sp_tensor t;
    assert_ok(sp_tensor_alloc(be, SP_F32, rows, cols, "test tensor", &t));
    if (seed) {
        float *v = test_values(seed, rows * cols, -1, 1);
        assert_ok(sp_upload(t, v));
        free(v);
    }
    return t;
}

static outputs run_all(const char *blas, int threads) {
    sp_backend *be;
    sp_backend_options o = {.name = "cpu", .cpu_blas = blas, .threads = threads, .local_ranks = 1};
    assert_ok(sp_backend_open(&o, &be));
    outputs out = {0};
    uint64_t seed = 42;
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = t * 7 % 50;
    sp_tensor tokens, lists, table = tensor(be, 50, D, &seed), x = tensor(be, T, D, NULL);
    assert_ok(sp_tensor_alloc(be, SP_I32, T, 1, "tokens", &tokens));
    assert_ok(sp_tensor_alloc(be, SP_I32, T, HKV * K, "lists", &lists));
    assert_ok(sp_upload(tokens, ids));
    assert_ok(sp_embed(tokens, table, 3, x));
    keep(&out, "embed", x);
    sp_tensor norm = tensor(be, 1, D, &seed);
    assert_ok(sp_rmsnorm(x, norm, 1e-5f, x));
    keep(&out, "rmsnorm", x);
    sp_tensor w = tensor(be, (HQ + 2 * HKV) * d, D, &seed),
              qkv = tensor(be, T, (HQ + 2 * HKV) * d, NULL);
    assert_ok(sp_linear(x, w, qkv));
    keep(&out, "linear", qkv);
    sp_tensor q = sp_tensor_cols(qkv, 0, HQ * d), k = sp_tensor_cols(qkv, HQ * d, HKV * d);
    sp_tensor v = sp_tensor_cols(qkv, (HQ + HKV) * d, HKV * d);
    sp_tensor cos = tensor(be, T, d / 2, &seed), sin = tensor(be, T, d / 2, &seed);
    assert_ok(sp_rope(q, cos, sin, 0, d, false));
    keep(&out, "rope", q);
    sp_tensor kd = tensor(be, N_D, HKV * d, NULL), kt = tensor(be, N_T, HKV * d, NULL);
    assert_ok(sp_compress_keys(k, deployed, 0, kd));
    assert_ok(sp_compress_keys(k, teacher, 0, kt));
    keep(&out, "compress_keys", kt);
    sp_tensor a = tensor(be, T, HKV * N_D, NULL), scores = tensor(be, T, HKV * NB, NULL);
    sp_importance_args importance = {heads, teacher, deployed, N_D, SP_ALIGN_MAX, SP_SEES_START};
    assert_ok(sp_importance(&importance, q, 0, kt, a));
    keep(&out, "importance", a);
    assert_ok(sp_block_scores(&selection, deployed, HKV, a, 0, NB, scores));
    keep(&out, "block_scores", scores);
    assert_ok(sp_select_blocks(&selection, deployed, HKV, a, 0, NB, lists));
    keep(&out, "select_blocks", lists);
    sp_tensor cis = tensor(be, HKV, T, NULL), of_block = tensor(be, HKV, NB, NULL), order, longer;
    sp_tensor delta = tensor(be, HKV, HKV * d, &seed), scale = tensor(be, 1, HKV, &seed);
    assert_ok(sp_tensor_alloc(be, SP_I32, HKV, NB, "order", &order));
    assert_ok(sp_tensor_alloc(be, SP_I32, T, HKV * (K + 2), "longer lists", &longer));
    assert_ok(sp_cis(heads, v, delta, scale, cis));
    keep(&out, "cis", cis);
    assert_ok(sp_cis_blocks(cis, deployed, 16, of_block, order));
    keep(&out, "cis_blocks", of_block);
    assert_ok(sp_extend_lists(16, HKV, lists, 0, order, longer));
    keep(&out, "extend_lists", longer);
    sp_tensor f = tensor(be, T, HKV * d, &seed), raw = tensor(be, T, HKV * N_D, NULL);
    assert_ok(sp_forecast_scores(heads, deployed, SP_SEES_COMPLETE, f, 0, kd, raw));
    keep(&out, "forecast_scores", raw);
    sp_tensor loss = tensor(be, T, HKV, NULL), df = tensor(be, T, HKV * d, NULL);
    sp_kl_args kl = {heads, deployed, selection, SP_KL_EXACT, 1.0 / (HKV * T)};
    assert_ok(sp_kl(&kl, f, 0, kd, a, lists, loss, df, NULL, NULL));
    keep(&out, "kl row_loss", loss);
    keep(&out, "kl df", df);
    sp_tensor attention = tensor(be, T, HQ * d, NULL);
    assert_ok(sp_sparse_attention(heads, q, 0, k, v, cis, lists, 16, attention));
    keep(&out, "sparse_attention", attention);
    assert_ok(sp_dense_attention(heads, q, 0, k, v, cis, attention));
    keep(&out, "dense_attention", attention);
    sp_tensor gate_up = tensor(be, T, 2 * F, &seed), act = tensor(be, T, F, NULL);
    assert_ok(sp_swiglu(gate_up, act));
    keep(&out, "swiglu", act);
    assert_ok(sp_residual_add(act, act, 0.3f));
    keep(&out, "residual_add", act);
    sp_tensor g = tensor(be, HKV * d, D, NULL), weight = tensor(be, HKV * d, D, &seed);
    sp_tensor m1 = tensor(be, HKV * d, D, NULL), m2 = tensor(be, HKV * d, D, NULL);
    assert_ok(sp_grad_weight(df, x, g));
    keep(&out, "grad_weight", g);
    double number;
    assert_ok(sp_sum(loss, &number));
    keep_number(&out, "sum", number);
    assert_ok(sp_sum_squares(g, &number));
    keep_number(&out, "sum_squares", number);
    assert_ok(sp_scale(g, 0.7f));
    sp_adamw_args adamw = {1e-2f, 0.9f, 0.95f, 1e-6f, 0.01f, 0.5f, 1};
    assert_ok(sp_adamw(&adamw, weight, m1, m2, g));
    keep(&out, "adamw", weight);
    sp_tensor *all[] = {&tokens, &lists,     &table,   &x,      &norm,   &w,      &qkv, &cos,
                        &sin,    &kd,        &kt,      &a,      &scores, &f,      &raw, &loss,
                        &df,     &attention, &gate_up, &act,    &g,      &weight, &m1,  &m2,
                        &cis,    &of_block,  &order,   &longer, &delta,  &scale};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sp_tensor_free(all[i]);
    sp_backend_close(be);
    return out;
}

static void same_bits(void **state) {
    (void)state;
    const char *libraries[] = {"openblas", "onednn"};
    for (int l = 0; l < 1 + SPARDA_HAVE_ONEDNN; l++) {
        outputs one = run_all(libraries[l], 1);
        assert_int_equal(one.n, 22);
        for (int threads = 2; threads < 5; threads++) {
            outputs many = run_all(libraries[l], threads);
            for (int i = 0; i < one.n; i++) {
                if (memcmp(one.data[i], many.data[i], one.bytes[i]) != 0)
                    fail_msg("%s, %s: 1 and %d threads differ", libraries[l], one.what[i], threads);
                free(many.data[i]);
            }
        }
        for (int i = 0; i < one.n; i++) free(one.data[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
