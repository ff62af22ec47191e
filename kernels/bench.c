// Micro-benchmarks of the operations (bench.h): a table of calls, and the tensors each of them
// needs.
//
// Ceilings: operations made of products are held against sp_backend_matmul_gflops; the others
// against sp_copy moving the same number of bytes between tensors that are touched as often, so
// that both find their data in the same caches.
//
// Window rows [R, Hkv*n_d] exist for a tile of queries at a time, as in training and prefill; an
// operation on them is called tile by tile until all T queries are done.
//
// Legend: T tokens, D hidden, F feed-forward, Hq and Hkv heads of size d, k list length.
#include "kernels/bench.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- shapes -------------------------------------------------------------------------------------

typedef struct bench_shape {
    const char *name;
    int64_t tokens[2]; // measured when none are asked for; 0: no second one
    int64_t D, F, vocabulary;
    sp_heads heads;
    sp_grid deployed, teacher;
    sp_selection selection;
} bench_shape;

static const bench_shape shapes[] = {
    {"tiny", {1024, 2048}, 256, 512, 1024, {8, 2, 64}, {8, 4}, {2, 1}, {16, 1, 2, 10, true}},
    {"minicpm4.1-8b",
     {65536, 0},
     4096,
     16384,
     73448,
     {32, 2, 128},
     {32, 16},
     {2, 1},
     {64, 1, 32, 96, true}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

// ---- fixture ------------------------------------------------------------------------------------

enum { WARM_UPS = 3, MIN_RUNS = 5, MAX_RUNS = 200, MAX_CALLS = 64 };
static const double seconds_per_case = 0.15, ms_per_sample = 2;

// clang-format off
#define TENSORS(X) \
    X(tokens) X(table) X(x) X(h) X(norm) X(cos) X(sin) X(qkv) X(attn) X(gate_up) X(act) X(w_qkv) \
    X(w_o) X(w_gate_up) X(w_down) X(w_forecast) X(f) X(kd) X(kt) X(a) X(scores) X(lists) \
    X(row_loss) X(df) X(g) X(weight) X(m1) X(m2) X(delta) X(scale) X(cis) X(block_cis) X(order) \
    X(longer)
// clang-format on
#define ID(name) ID_##name,
enum { TENSORS(ID) N_TENSORS };
#undef ID
#define BIT(name) ((uint64_t)1 << ID_##name)

typedef struct fixture {
    sp_backend *be;
    const bench_shape *s;
    int64_t T, n_d, n_t, nb, tile;
#define MEMBER(name) sp_tensor name;
    TENSORS(MEMBER)
#undef MEMBER
    sp_tensor q, k, v;
    double list_share;   // of a query's chosen blocks that stand in the list of the query before
    int64_t listed_keys; // over rows and KV heads
} fixture;

enum { ZEROS, RANDOM, INTEGERS };

// Random contents: some rows are made here and repeated, so that gigabytes take no minutes.
static sp_status make(fixture *f, int kind, int64_t rows, int64_t cols, float spread,
                      sp_tensor *out) {
    enum { UNIQUE = 1 << 24 };
    sp_status st = SP_OK;
    float *values = NULL;
    sp_dtype t = kind == INTEGERS ? SP_I32 : kind == RANDOM ? sp_backend_storage(f->be) : SP_F32;
    SP_TRY(sp_tensor_alloc(f->be, t, rows, cols, "a benchmark tensor", out));
    if (kind != RANDOM || rows * cols == 0) return SP_OK;
    int64_t unique = UNIQUE / cols > 1 ? UNIQUE / cols : 1;
    if (unique > rows) unique = rows;
    SP_GO(sp_alloc(&values, unique * cols, sizeof *values, "benchmark data"));
    uint64_t seed = 1 + (uint64_t)(out - &f->tokens);
    for (int64_t i = 0; i < unique * cols; i++)
        values[i] = spread * (float)(2 * sp_uniform(&seed) - 1);
    SP_GO(sp_upload(sp_tensor_rows(*out, 0, unique), values));
    for (int64_t r = unique; r < rows; r += unique) {
        int64_t n = rows - r < unique ? rows - r : unique;
        SP_GO(sp_copy(sp_tensor_rows(*out, r, n), sp_tensor_rows(*out, 0, n)));
    }
done:
    free(values);
    return st;
}

static sp_importance_args importance_args(const fixture *f, bool original) {
    return (sp_importance_args){.heads = f->s->heads,
                                .fine = original ? f->s->deployed : f->s->teacher,
                                .deployed = f->s->deployed,
                                .n_d = f->n_d,
                                .align = SP_ALIGN_MAX,
                                .visibility = original ? SP_SEES_COMPLETE : SP_SEES_START};
}

// One row's list: the forced blocks, those of `chosen` (bits, of the row before) that stay with
// probability `share`, and random others.
static void next_list(const sp_selection *s, int64_t qb, double share, uint64_t *seed,
                      uint8_t *chosen, int32_t *list) {
    int64_t lo = s->init_blocks, hi = qb - s->local_blocks > lo ? qb - s->local_blocks : lo;
    int64_t forced_lo = lo < qb + 1 ? lo : qb + 1, forced_hi = qb + 1 - hi > 0 ? qb + 1 - hi : 0;
    int64_t want = s->topk - forced_lo - forced_hi, n = 0;
    if (want > hi - lo) want = hi - lo;
    for (int64_t b = lo; b < hi; b++)
        if (chosen[b] && (n >= want || sp_uniform(seed) >= share))
            chosen[b] = 0;
        else
            n += chosen[b];
    while (n < want) {
        int64_t b = lo + (int64_t)(sp_uniform(seed) * (double)(hi - lo));
        if (b < hi && !chosen[b]) chosen[b] = 1, n++;
    }
    int64_t at = 0;
    for (int64_t b = 0; b <= qb && at < s->topk; b++)
        if (b < lo || b >= hi || chosen[b]) list[at++] = (int32_t)b;
    while (at < s->topk) list[at++] = -1;
}

static sp_status make_lists(fixture *f) {
    const sp_selection *s = &f->s->selection;
    int64_t hk = f->s->heads.kv_heads, k = s->topk;
    int32_t *lists = NULL;
    uint8_t *chosen = NULL;
    uint64_t seed = 1;
    sp_status st = SP_OK;
    f->listed_keys = 0;
    SP_GO(sp_alloc(&lists, f->T * hk * k, sizeof *lists, "block lists"));
    SP_GO(sp_alloc(&chosen, hk * f->nb, sizeof *chosen, "block lists"));
    for (int64_t i = 0; i < f->T; i++)
        for (int64_t h = 0; h < hk; h++) {
            int32_t *list = lists + (i * hk + h) * k;
            next_list(s, i / s->block, f->list_share, &seed, chosen + h * f->nb, list);
            for (int64_t e = 0; e < k && list[e] >= 0; e++) {
                int64_t keys = i + 1 - (int64_t)list[e] * s->block;
                f->listed_keys += keys < s->block ? keys : s->block;
            }
        }
    SP_GO(sp_upload(f->lists, lists));
done:
    free(lists);
    free(chosen);
    return st;
}

static void fixture_close(fixture *f) {
#define FREE(name) sp_tensor_free(&f->name);
    TENSORS(FREE)
#undef FREE
}

static sp_status fixture_fill(fixture *f, uint64_t needs) {
    const bench_shape *s = f->s;
    int64_t T = f->T, D = s->D, F = s->F, d = s->heads.head_dim, hk = s->heads.kv_heads;
    int64_t q = s->heads.q_heads * d, kv = hk * d;
#define NEED(name, kind, rows, cols, spread)                                                       \
    if (needs & BIT(name)) SP_TRY(make(f, kind, rows, cols, spread, &f->name))
    NEED(tokens, INTEGERS, T, 1, 0);
    NEED(table, RANDOM, s->vocabulary, D, 1);
    NEED(x, RANDOM, T, D, 1);
    NEED(h, RANDOM, T, D, 1);
    NEED(norm, RANDOM, 1, D, 1);
    NEED(cos, ZEROS, T, d / 2, 0);
    NEED(sin, ZEROS, T, d / 2, 0);
    NEED(qkv, RANDOM, T, q + 2 * kv, 1);
    NEED(attn, RANDOM, T, q, 1);
    NEED(gate_up, RANDOM, T, 2 * F, 1);
    NEED(act, RANDOM, T, F, 1);
    NEED(w_qkv, RANDOM, q + 2 * kv, D, 0.1f);
    NEED(w_o, RANDOM, D, q, 0.1f);
    NEED(w_gate_up, RANDOM, 2 * F, D, 0.1f);
    NEED(w_down, RANDOM, D, F, 0.1f);
    NEED(w_forecast, RANDOM, kv, D, 0.1f);
    NEED(f, RANDOM, T, kv, 1);
    NEED(kd, RANDOM, f->n_d, kv, 1);
    NEED(kt, RANDOM, f->n_t, kv, 1);
    NEED(a, ZEROS, f->tile, hk * f->n_d, 0);
    NEED(scores, ZEROS, f->tile, hk * f->nb, 0);
    NEED(lists, INTEGERS, T, hk * s->selection.topk, 0);
    NEED(row_loss, ZEROS, T, hk, 0);
    NEED(df, ZEROS, T, kv, 0);
    NEED(g, ZEROS, 6 * kv, D, 0);
    NEED(weight, ZEROS, 6 * kv, D, 0);
    NEED(m1, ZEROS, 6 * kv, D, 0);
    NEED(m2, ZEROS, 6 * kv, D, 0);
    NEED(delta, RANDOM, hk, kv, 0.1f);
    NEED(scale, ZEROS, 1, hk, 0);
    NEED(cis, ZEROS, hk, T, 0);
    NEED(block_cis, ZEROS, hk, f->nb, 0);
    NEED(order, INTEGERS, hk, f->nb, 0);
    NEED(longer, INTEGERS, T, hk * 2 * s->selection.topk, 0);
#undef NEED
    if (needs & BIT(qkv)) {
        f->q = sp_tensor_cols(f->qkv, 0, q);
        f->k = sp_tensor_cols(f->qkv, q, kv);
        f->v = sp_tensor_cols(f->qkv, q + kv, kv);
    }
    if (needs & BIT(cos)) { // a rotation: values keep their size
        SP_TRY(sp_fill(f->cos, 0.6f));
        SP_TRY(sp_fill(f->sin, 0.8f));
    }
    if (needs & BIT(lists)) SP_TRY(make_lists(f));
    if (needs & BIT(scale)) SP_TRY(sp_fill(f->scale, 1));
    if (needs & BIT(delta)) SP_TRY(sp_cis(s->heads, f->v, f->delta, f->scale, f->cis));
    if (needs & BIT(order))
        SP_TRY(sp_cis_blocks(f->cis, s->deployed, s->selection.block, f->block_cis, f->order));
    // Window rows of the last tile, the longest.
    if ((needs & BIT(a)) && (needs & BIT(kt))) {
        sp_importance_args a = importance_args(f, false);
        SP_TRY(sp_importance(&a, sp_tensor_rows(f->q, T - f->tile, f->tile), T - f->tile, f->kt,
                             f->a));
    }
    return SP_OK;
}

static fixture fixture_of(sp_backend *be, const bench_shape *s, int64_t T) {
    fixture f = {.be = be, .s = s, .T = T, .list_share = 0.8};
    f.nb = (T + s->selection.block - 1) / s->selection.block;
    f.n_d = sp_windows(s->deployed, T);
    f.n_t = sp_windows(s->teacher, T);
    int64_t row_bytes = 4 * s->heads.kv_heads * (f.n_d ? f.n_d : 1);
    f.tile = sp_backend_tile_bytes(be) / row_bytes / 64 * 64;
    if (f.tile < 64) f.tile = 64;
    if (f.tile > T) f.tile = T;
    return f;
}

// ---- cases --------------------------------------------------------------------------------------

static sp_status run_embed(fixture *f) {
    return sp_embed(f->tokens, f->table, 12, f->x);
}
static sp_status run_rmsnorm(fixture *f) {
    return sp_rmsnorm(f->h, f->norm, 1e-5f, f->x);
}
static sp_status run_qkv(fixture *f) {
    return sp_linear(f->x, f->w_qkv, f->qkv);
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
    return sp_rope(f->q, f->cos, f->sin, 0, f->s->heads.head_dim, false);
}
static sp_status run_residual(fixture *f) {
    return sp_residual_add(f->h, f->x, 0.01f);
}
static sp_status run_swiglu(fixture *f) {
    return sp_swiglu(f->gate_up, f->act);
}
static sp_status run_dense(fixture *f) {
    return sp_dense_attention(f->s->heads, f->q, 0, f->k, f->v, SP_NO_TENSOR, f->attn);
}
static sp_status run_sparse(fixture *f) {
    return sp_sparse_attention(f->s->heads, f->q, 0, f->k, f->v, SP_NO_TENSOR, f->lists,
                               f->s->selection.block, f->attn);
}
static sp_status run_sparse_biased(fixture *f) {
    return sp_sparse_attention(f->s->heads, f->q, 0, f->k, f->v, f->cis, f->lists,
                               f->s->selection.block, f->attn);
}
static sp_status run_cis(fixture *f) {
    return sp_cis(f->s->heads, f->v, f->delta, f->scale, f->cis);
}
static sp_status run_cis_blocks(fixture *f) {
    return sp_cis_blocks(f->cis, f->s->deployed, f->s->selection.block, f->block_cis, f->order);
}
static sp_status run_extend(fixture *f) {
    return sp_extend_lists(f->s->selection.block, f->s->heads.kv_heads, f->lists, 0, f->order,
                           f->longer);
}
static sp_status run_compress(fixture *f) {
    return sp_compress_keys(f->k, f->s->teacher, 0, f->kt);
}

// Calls `one` with rows i0 .. i0+n-1 of every tile.
static sp_status each_tile(fixture *f, sp_status (*one)(fixture *, int64_t i0, int64_t n)) {
    for (int64_t i0 = 0; i0 < f->T; i0 += f->tile)
        SP_TRY(one(f, i0, f->T - i0 < f->tile ? f->T - i0 : f->tile));
    return SP_OK;
}
static sp_status tile_teacher(fixture *f, int64_t i0, int64_t n) {
    sp_importance_args a = importance_args(f, false);
    return sp_importance(&a, sp_tensor_rows(f->q, i0, n), i0, f->kt, sp_tensor_rows(f->a, 0, n));
}
static sp_status tile_original(fixture *f, int64_t i0, int64_t n) {
    sp_importance_args a = importance_args(f, true);
    return sp_importance(&a, sp_tensor_rows(f->q, i0, n), i0, f->kd, sp_tensor_rows(f->a, 0, n));
}
static sp_status tile_select(fixture *f, int64_t i0, int64_t n) {
    return sp_select_blocks(&f->s->selection, f->s->deployed, f->s->heads.kv_heads,
                            sp_tensor_rows(f->a, 0, n), i0, f->nb, sp_tensor_rows(f->lists, i0, n));
}
static sp_status tile_original_lists(fixture *f, int64_t i0, int64_t n) {
    SP_TRY(tile_original(f, i0, n));
    return tile_select(f, i0, n);
}
static sp_status tile_scores(fixture *f, int64_t i0, int64_t n) {
    return sp_forecast_scores(f->s->heads, f->s->deployed, SP_SEES_COMPLETE,
                              sp_tensor_rows(f->f, i0, n), i0, f->kd, sp_tensor_rows(f->a, 0, n));
}
static sp_status tile_blocks(fixture *f, int64_t i0, int64_t n) {
    return sp_block_scores(&f->s->selection, f->s->deployed, f->s->heads.kv_heads,
                           sp_tensor_rows(f->a, 0, n), i0, f->nb, sp_tensor_rows(f->scores, 0, n));
}
static sp_status tile_kl(fixture *f, int64_t i0, int64_t n) {
    sp_kl_args p = {f->s->heads, f->s->deployed, f->s->selection, SP_KL_EXACT,
                    1.0 / (double)(f->s->heads.kv_heads * f->T)};
    return sp_kl(&p, sp_tensor_rows(f->f, i0, n), i0, f->kd, sp_tensor_rows(f->a, 0, n),
                 sp_tensor_rows(f->lists, i0, n), sp_tensor_rows(f->row_loss, i0, n),
                 sp_tensor_rows(f->df, i0, n), NULL, NULL);
}
static sp_status run_teacher(fixture *f) {
    return each_tile(f, tile_teacher);
}
static sp_status run_original(fixture *f) {
    return each_tile(f, tile_original);
}
static sp_status run_select(fixture *f) {
    return each_tile(f, tile_select);
}
static sp_status run_original_lists(fixture *f) {
    return each_tile(f, tile_original_lists);
}
static sp_status run_forecast_scores(fixture *f) {
    return each_tile(f, tile_scores);
}
static sp_status run_block_scores(fixture *f) {
    return each_tile(f, tile_blocks);
}
static sp_status run_kl(fixture *f) {
    return each_tile(f, tile_kl);
}
static sp_status run_forecast_lists(fixture *f) {
    return sp_forecast_lists(f->s->heads, f->s->deployed, SP_SEES_COMPLETE, &f->s->selection, f->f,
                             0, f->kd, f->nb, f->lists);
}
static sp_status run_grad_weight(fixture *f) {
    return sp_grad_weight(f->df, f->x, sp_tensor_rows(f->g, 0, f->df.cols));
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
    uint64_t needs; // tensors
    // Work of one call: products (0: bound by memory) and bytes that must move at least.
    double flop, bytes;
    double list_share; // of neighbouring lists; 0 = as the fixture has it
} bench_case;

enum { MAX_CASES = 48 };

static int list_cases(const fixture *f, bench_case *list) {
    const bench_shape *s = f->s;
    const double e = (double)sp_dtype_size(sp_backend_storage(f->be)), T = (double)f->T;
    const double D = (double)s->D, F = (double)s->F, d = (double)s->heads.head_dim;
    const double HQ = (double)s->heads.q_heads, HKV = (double)s->heads.kv_heads;
    const double K = (double)s->selection.topk;
    const double qkv = (HQ + 2 * HKV) * d, keys = T * HKV * d, weights = 6.0 * HKV * d * D;
    const double n_d = (double)f->n_d, nb = (double)f->nb, rows_a = 4 * T * HKV * n_d;
    const double lists = 4 * T * HKV * K;
    double teacher_pairs = 0, original_pairs = 0, student_pairs = 0, listed = 0;
    for (int64_t i = 0; i < f->T; i++) {
        teacher_pairs += (double)sp_visible(s->teacher, SP_SEES_START, i, f->n_t);
        original_pairs += (double)sp_visible(s->deployed, SP_SEES_COMPLETE, i, f->n_d);
        student_pairs += (double)sp_visible(s->deployed, SP_SEES_START, i, f->n_d);
        // keys of a full list: all blocks, or k of them and the part of the query's own
        double own = (double)(i % s->selection.block + 1), whole = (double)s->selection.block;
        double blocks = (double)(i / s->selection.block);
        listed += own + whole * fmin(blocks, K - 1);
    }
    // Two products a pair, as in model/flops.h: the sum of exponentials comes before the
    // probabilities. (The CPU backend keeps the first one's logits, and so may pass its ceiling.)
    const double teacher_flop = 4 * d * HQ * teacher_pairs;
    const double original_flop = 4 * d * HQ * original_pairs;
    const double attention = 4 * d * HQ * listed,
                 attention_bytes = e * (2 * T * HQ * d + 2 * keys) + lists;
#define LINEAR(in, out) 2 * T *(in) * (out), e *(T * ((in) + (out)) + (in) * (out))
#define B(name) BIT(name)
    const uint64_t CIS = B(delta) | B(scale) | B(cis);
    const bench_case all[] = {
        {"embed", "", run_embed, B(tokens) | B(table) | B(x), 0, T * (4 + 2 * e * D), 0},
        {"rmsnorm", "", run_rmsnorm, B(h) | B(norm) | B(x), 0, 2 * e * T * D, 0},
        {"linear", "q, k, v", run_qkv, B(x) | B(w_qkv) | B(qkv), LINEAR(D, qkv), 0},
        {"linear", "o", run_o, B(attn) | B(w_o) | B(x), LINEAR(HQ * d, D), 0},
        {"linear", "gate and up", run_gate_up, B(x) | B(w_gate_up) | B(gate_up), LINEAR(D, 2.0 * F),
         0},
        {"linear", "down", run_down, B(act) | B(w_down) | B(x), LINEAR(F, D), 0},
        {"linear", "forecast", run_forecast, B(x) | B(w_forecast) | B(df), LINEAR(D, HKV * d), 0},
        {"rope", "queries", run_rope, B(qkv) | B(cos) | B(sin), 0, T * (2 * e * HQ * d + 4 * d), 0},
        {"residual_add", "", run_residual, B(h) | B(x), 0, 3 * e * T * D, 0},
        {"swiglu", "", run_swiglu, B(gate_up) | B(act), 0, 3 * e * T * F, 0},
        {"dense_attention", "", run_dense, B(qkv) | B(attn), 4.0 * d * HQ * T * (T + 1) / 2,
         e * (2 * T * HQ * d + 2 * keys), 0},
        {"sparse_attention", "80% of a list stays", run_sparse, B(qkv) | B(lists) | B(attn),
         attention, attention_bytes, 0},
        {"sparse_attention", "random lists", run_sparse, B(qkv) | B(lists) | B(attn), attention,
         attention_bytes, -1},
        {"sparse_attention", "80% stays, with a bias", run_sparse_biased,
         B(qkv) | B(lists) | B(attn) | CIS, attention, attention_bytes + 4 * T * HKV, 0},
        {"compress_keys", "teacher", run_compress, B(qkv) | B(kt), 0, 2 * e * keys, 0},
        {"importance", "teacher", run_teacher, B(qkv) | B(kt) | B(a), teacher_flop,
         e * (T * HQ * d + keys) + rows_a, 0},
        {"importance", "original", run_original, B(qkv) | B(kd) | B(a), original_flop,
         e * (T * HQ * d + n_d * HKV * d) + rows_a, 0},
        {"forecast_scores", "", run_forecast_scores, B(f) | B(kd) | B(a),
         2.0 * d * HKV * original_pairs, e * (keys + n_d * HKV * d) + rows_a, 0},
        {"block_scores", "", run_block_scores, B(a) | B(scores) | B(qkv) | B(kt), 0,
         rows_a + 4 * T * HKV * nb, 0},
        {"select_blocks", "", run_select, B(a) | B(lists) | B(qkv) | B(kt), 0, rows_a + lists, 0},
        {"forecast_lists", "", run_forecast_lists, B(f) | B(kd) | B(lists),
         2.0 * d * HKV * original_pairs, e * (keys + n_d * HKV * d) + lists, 0},
        {"original_lists", "importance, then the cut", run_original_lists,
         B(qkv) | B(kd) | B(a) | B(lists), original_flop,
         e * (T * HQ * d + n_d * HKV * d) + 2 * rows_a + lists, 0},
        {"cis", "", run_cis, B(qkv) | CIS, 2 * keys * HKV, e * keys + 4 * T * HKV, 0},
        {"cis_blocks", "", run_cis_blocks, B(qkv) | CIS | B(block_cis) | B(order), 0,
         4 * HKV * (T + 2 * nb), 0},
        {"extend_lists", "to twice the length", run_extend,
         B(qkv) | CIS | B(block_cis) | B(order) | B(lists) | B(longer), 0, 3 * lists, 0},
        {"kl", "exact gradient", run_kl,
         B(f) | B(kd) | B(a) | B(qkv) | B(kt) | B(lists) | B(row_loss) | B(df),
         4.0 * d * HKV * student_pairs,
         e * (2 * keys + n_d * HKV * d) + rows_a + lists + 4 * T * HKV, 0},
        {"grad_weight", "", run_grad_weight, B(df) | B(x) | B(g), 2 * T * HKV * d * D,
         4 * T * HKV * d + e * T * D + 8.0 * HKV * d * D, 0},
        {"scale", "", run_scale, B(m1), 0, 8 * weights, 0},
        {"sum", "", run_sum, B(m1), 0, 4 * weights, 0},
        {"sum_squares", "", run_sum_squares, B(m1), 0, 4 * weights, 0},
        {"adamw", "", run_adamw, B(weight) | B(m1) | B(m2) | B(g), 0, 28 * weights, 0},
    };
#undef LINEAR
#undef B
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

// ---- measuring ----------------------------------------------------------------------------------

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Milliseconds of one call of `run`, sorted: at least MIN_RUNS samples, more while they are cheap.
// A sample is several calls where one is short, so that waiting for the device does not count.
static sp_status measure(fixture *f, sp_status (*run)(fixture *), double ms[MAX_RUNS], int *n) {
    for (int i = 0; i < WARM_UPS; i++) SP_TRY(run(f));
    SP_TRY(sp_backend_synchronize(f->be));
    double start = sp_now();
    SP_TRY(run(f));
    SP_TRY(sp_backend_synchronize(f->be));
    double one = 1e3 * (sp_now() - start);
    int calls = one * MAX_CALLS < ms_per_sample ? MAX_CALLS : (int)(ms_per_sample / one);
    if (calls < 1) calls = 1;
    start = sp_now();
    for (*n = 0; *n < MAX_RUNS && (*n < MIN_RUNS || sp_now() - start < seconds_per_case); ++*n) {
        double before = sp_now();
        for (int c = 0; c < calls; c++) SP_TRY(run(f));
        SP_TRY(sp_backend_synchronize(f->be));
        ms[*n] = 1e3 * (sp_now() - before) / calls;
    }
    qsort(ms, (size_t)*n, sizeof *ms, ascending);
    return SP_OK;
}

static sp_tensor copy_from, copy_to;
static sp_status run_copy(fixture *f) {
    (void)f;
    return sp_copy(copy_to, copy_from);
}

// GB/s of a copy that moves `bytes` in all, at most 8 GB: more is no faster.
static sp_status copy_rate(fixture *f, double bytes, double *gbps) {
    sp_status st = SP_OK;
    double ms[MAX_RUNS];
    int n;
    int64_t rows = (int64_t)(fmin(bytes, 8e9) / 8 / 256) + 1;
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
    double ms[MAX_RUNS], ceiling;
    int n;
    if (c->flop)
        ceiling = 1e-3 * sp_backend_matmul_gflops(f->be);
    else
        SP_TRY(copy_rate(f, c->bytes, &ceiling));
    if (c->list_share) f->list_share = c->list_share;
    SP_TRY(fixture_fill(f, c->needs));
    SP_TRY(measure(f, c->run, ms, &n));
    double median = ms[n / 2], tflops = c->flop / median * 1e-9, gbps = c->bytes / median * 1e-6;
    double reached = c->flop ? tflops : gbps;
    char shape[160];
    snprintf(shape, sizeof shape, "%s T=%lld D=%lld F=%lld Hq=%lld Hkv=%lld d=%lld%s%s", f->s->name,
             (long long)f->T, (long long)f->s->D, (long long)f->s->F,
             (long long)f->s->heads.q_heads, (long long)f->s->heads.kv_heads,
             (long long)f->s->heads.head_dim, c->variant[0] ? ", " : "", c->variant);
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

static sp_status find_shape(const char *name, const bench_shape **out) {
    sp_text known = {0};
    for (int i = 0; i < N_SHAPES; i++) {
        *out = &shapes[i];
        if (!name || strcmp(name, shapes[i].name) == 0) return SP_OK;
        sp_text_add(&known, "%s%s", i ? ", " : "", shapes[i].name);
    }
    sp_status st = sp_error(SP_BAD_INPUT, "--like '%s' is not known; known are: %s", name,
                            known.data ? known.data : "");
    sp_text_free(&known);
    return st;
}

static sp_status bench_length(sp_backend *be, const bench_shape *s, const char *name, int64_t T,
                              json_t *results) {
    bench_case list[MAX_CASES];
    fixture plain = fixture_of(be, s, T);
    int n = list_cases(&plain, list), found = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(name, "all") != 0 && strcmp(name, list[i].operation) != 0) continue;
        found++;
        fixture f = plain;
        sp_status st = run_case(&f, &list[i], results);
        fixture_close(&f);
        SP_TRY(st);
    }
    return found ? SP_OK : unknown(name, list, n);
}

sp_status sp_bench_operation(sp_backend *be, const sp_bench_args *a, json_t *results) {
    const bench_shape *s;
    SP_TRY(find_shape(a->like, &s));
    if (a->tokens) {
        if (sp_windows(s->deployed, a->tokens) < 1)
            return sp_error(SP_BAD_INPUT, "--tokens %lld is below one window of %lld tokens",
                            (long long)a->tokens, (long long)s->deployed.kernel);
        return bench_length(be, s, a->name, a->tokens, results);
    }
    for (int i = 0; i < 2; i++)
        if (s->tokens[i]) SP_TRY(bench_length(be, s, a->name, s->tokens[i], results));
    return SP_OK;
}
