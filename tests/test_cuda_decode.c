// ctest: timeout=600
// The decode engine's operations on a GPU against double precision, slot assignment against a
// simulation. Whole runs: test_cuda_serve.c. Skipped where no device is. With --small (for
// compute-sanitizer) runs are short; a name or pattern after it chooses tests.
#include "common/build.h"
#include "tests/gpu_options.h"
#include "tests/support.h"

#include <stdio.h>
#include <string.h>

#if SPARDA_HAVE_CUDA
#include "common/util.h"
#include "kernels/backend.h"
#include "kernels/decode.h"

#include <math.h>
#include <stdlib.h>

static sp_backend *gpu;
static uint64_t seed = 20260604;
static bool small, portable;

static float normal(void) {
    float u = test_uniform(&seed, 0, 1), v = test_uniform(&seed, 0, 1);
    return sqrtf(-2 * logf(u + 1e-9f)) * cosf(6.2831853f * v);
}

// Random bf16 values on the GPU; *host gets the same as fp32 (caller frees).
static sp_tensor random_tensor(int64_t rows, int64_t cols, float sigma, float **host) {
    sp_tensor t;
    assert_ok(sp_tensor_alloc(gpu, SP_BF16, rows, cols, "test", &t));
    *host = malloc((size_t)(rows * cols) * sizeof **host);
    for (int64_t i = 0; i < rows * cols; i++)
        (*host)[i] = sp_bf16_to_f32(sp_f32_to_bf16(sigma * normal()));
    assert_ok(sp_upload(t, *host));
    return t;
}

// ---- shapes -------------------------------------------------------------------------------------

enum { BATCH = 3, LAYERS = 2 };

typedef struct shape {
    const char *name;
    sp_heads heads;
    sp_grid grid;
    sp_selection s;
    int64_t max_tokens, slots;
    int64_t tokens[BATCH];
    int64_t shortlist; // 0: keys have no importance
} shape;

static const shape shapes[] = {
    {"minicpm", {32, 2, 128}, {32, 16}, {64, 1, 4, 16, true}, 4096, 16, {3000, 1531, 191}, 0},
    {"minicpm, more slots",
     {32, 2, 128},
     {32, 16},
     {64, 1, 4, 16, true},
     4096,
     40,
     {3005, 2047, 640},
     0},
    {"tiny", {8, 2, 64}, {8, 4}, {16, 1, 2, 10, true}, 1024, 12, {900, 255, 31}, 0},
    {"one head, group 16", {16, 1, 64}, {32, 16}, {64, 2, 1, 6, true}, 3000, 7, {2900, 63, 64}, 0},
    {"group 3", {6, 2, 128}, {16, 8}, {32, 0, 1, 5, true}, 2000, 9, {1900, 5, 1}, 0},
    {"nosa", {32, 2, 128}, {32, 16}, {64, 1, 4, 16, true}, 4096, 20, {3000, 1531, 191}, 9},
    {"tiny nosa", {8, 2, 64}, {8, 4}, {16, 1, 2, 14, true}, 1024, 14, {900, 255, 31}, 10},
};

typedef struct fixture {
    const shape *c;
    sp_decode *d;
    int64_t blocks, unit, kv_cols, q_cols;
    float *keys[LAYERS][BATCH]; // compressed, host
    float *partial[LAYERS][BATCH];
} fixture;

static fixture open_fixture(const shape *c, sp_transfer_kind kind) {
    fixture f = {.c = c, .blocks = (c->max_tokens + c->s.block - 1) / c->s.block};
    f.unit = 2 * c->s.block * c->heads.head_dim;
    f.kv_cols = c->heads.kv_heads * c->heads.head_dim;
    f.q_cols = c->heads.q_heads * c->heads.head_dim;
    sp_decode_args a = {.heads = c->heads,
                        .grid = c->grid,
                        .selection = c->s,
                        .shortlist = c->shortlist,
                        .layers = LAYERS,
                        .batch = BATCH,
                        .max_tokens = c->max_tokens,
                        .slots = c->slots,
                        .resident = 0,
                        .transfer = kind,
                        .ctas = 4,
                        .original = true,
                        .channels = 32};
    sp_decode_bytes predicted, taken;
    sp_decode_predict(&a, &predicted);
    assert_ok(sp_decode_open(gpu, &a, &f.d));
    sp_decode_allocated(f.d, &taken);
    assert_memory_equal(&predicted, &taken, sizeof taken);
    assert_ok(sp_decode_randomise(f.d, 5));
    for (int64_t l = 0; l < LAYERS; l++)
        for (int64_t b = 0; b < BATCH; b++) {
            sp_tensor view = sp_decode_compressed(f.d, l, b), t;
            t = random_tensor(view.rows, view.cols, 1, &f.keys[l][b]);
            assert_ok(sp_copy(view, t));
            sp_tensor_free(&t);
            view = sp_decode_partial(f.d, l, b);
            t = random_tensor(view.rows, view.cols, 1, &f.partial[l][b]);
            assert_ok(sp_copy(view, t));
            sp_tensor_free(&t);
        }
    for (int64_t b = 0; b < BATCH; b++) assert_ok(sp_decode_set(f.d, b, c->tokens[b], 0));
    return f;
}

static void close_fixture(fixture *f) {
    for (int64_t l = 0; l < LAYERS; l++)
        for (int64_t b = 0; b < BATCH; b++) free(f->keys[l][b]), free(f->partial[l][b]);
    sp_decode_close(f->d);
}

// ---- selection ----------------------------------------------------------------------------------

typedef enum source { FORECAST, ORIGINAL, PARTIAL } source;
static const char *const source_name[] = {"forecast", "original", "partial"};

// x . y in double; *size grows to 2 n eps sum|x y|, which bounds the error of the sum in fp32.
static double dot(const float *x, const float *y, int64_t n, double *bound) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i] * y[i];
        size += fabs((double)x[i] * y[i]);
    }
    *bound = fmax(*bound, 2 * (double)n * 0x1p-24 * size);
    return sum;
}

// Sum over the group's heads of the probabilities of windows [0, n).
static void original_scores(const fixture *f, const float *keys, const float *q, int64_t n,
                            double *out) {
    int64_t d = f->c->heads.head_dim, G = f->c->heads.q_heads / f->c->heads.kv_heads;
    double *z = malloc((size_t)(n + 1) * sizeof *z), unused = 0;
    for (int64_t g = 0; g < G; g++) {
        double best = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) {
            z[j] = dot(q + g * d, keys + j * f->kv_cols, d, &unused) / sqrt((double)d);
            best = fmax(best, z[j]);
        }
        for (int64_t j = 0; j < n; j++) sum += exp(z[j] - best);
        for (int64_t j = 0; j < n; j++) out[j] += exp(z[j] - best) / sum;
    }
    free(z);
}

// Scores of windows [0, n) of one (sequence, head) in double, and a bound for their error in fp32.
static double window_scores(const fixture *f, source how, int64_t layer, int64_t b, int64_t h,
                            const float *x, int64_t n, double *out) {
    int64_t d = f->c->heads.head_dim, G = f->c->heads.q_heads / f->c->heads.kv_heads;
    int64_t wide = f->c->heads.kv_heads * 32;
    const float *keys = f->keys[layer][b] + h * d, *partial = f->partial[layer][b] + h * 32;
    double bound = 0;
    for (int64_t j = 0; j < n; j++) out[j] = 0;
    if (how == ORIGINAL) {
        original_scores(f, keys, x + b * f->q_cols + h * G * d, n, out);
        for (int64_t j = 0; j < n; j++)
            bound = fmax(bound, 1e-5 * out[j]); // of the logits, relative
        return bound;
    }
    for (int64_t j = 0; j < n && how == FORECAST; j++)
        out[j] = dot(x + b * f->kv_cols + h * d, keys + j * f->kv_cols, d, &bound);
    for (int64_t j = 0; j < n && how == PARTIAL; j++) {
        out[j] = -INFINITY;
        for (int64_t t = j * f->c->grid.stride; t < (j + 1) * f->c->grid.stride; t++)
            out[j] = fmax(out[j], dot(x + b * wide + h * 32, partial + t * wide, 32, &bound));
    }
    return bound;
}

// What is forced is there, in order, and nothing left out beats anything chosen; with all scores
// `equal`, nothing left out lies below anything chosen.
static void check_list(const fixture *f, source how, int64_t layer, int64_t b, int64_t h,
                       const float *x, bool equal, int64_t pos, const int32_t *list) {
    const shape *c = f->c;
    int64_t qb = pos / c->s.block, per = c->s.block / c->grid.stride;
    int64_t windows = sp_windows(c->grid, pos + 1), n = 0;
    bool *chosen = calloc((size_t)qb + 1, sizeof *chosen);
    while (n < c->s.topk && list[n] >= 0) {
        assert_true(list[n] <= qb && (n == 0 || list[n] > list[n - 1]));
        chosen[list[n++]] = true;
    }
    for (int64_t i = n; i < c->s.topk; i++) assert_int_equal(list[i], -1);
    assert_int_equal(n, qb + 1 < c->s.topk ? qb + 1 : c->s.topk);
    double *w = malloc((size_t)(windows + 1) * sizeof *w);
    double bound = window_scores(f, how, layer, b, h, x, windows, w);
    double worst_in = INFINITY, best_out = -INFINITY;
    bool left_out = false;
    for (int64_t m = 0; m <= qb; m++) {
        if (m < c->s.init_blocks || m >= qb - c->s.local_blocks) {
            assert_true(chosen[m]);
            continue;
        }
        double score = -INFINITY;
        for (int64_t j = m * per - 1; j <= m * per + per - 1; j++)
            if (j >= 0 && j < windows) score = fmax(score, w[j]);
        if (equal) assert_false(chosen[m] && left_out);
        left_out |= !chosen[m];
        if (chosen[m])
            worst_in = fmin(worst_in, score);
        else
            best_out = fmax(best_out, score);
    }
    if (best_out > worst_in + 2 * bound)
        fail_msg("%s: layer %d sequence %d head %d position %d: %g left out, %g chosen", c->name,
                 (int)layer, (int)b, (int)h, (int)pos, best_out, worst_in);
    free(w);
    free(chosen);
}

// The rule of decode.h, in plain C: hits stay, misses take the least recently used slots.
typedef struct simulation {
    int32_t *held, *used; // [slots]
} simulation;

static void simulate(const fixture *f, simulation *s, const int32_t *list, int step,
                     int32_t *slot_list) {
    int64_t C = f->c->slots, k = f->c->s.topk;
    int32_t *victims = malloc((size_t)C * sizeof *victims);
    int64_t misses = 0, n = 0;
    for (int64_t i = 0; i < k; i++) {
        slot_list[i] = -1;
        if (list[i] < 0) continue;
        for (int64_t x = 0; x < C; x++)
            if (s->held[x] == list[i]) slot_list[i] = (int32_t)x;
        if (slot_list[i] >= 0)
            s->used[slot_list[i]] = step;
        else
            misses++;
    }
    while (n < misses) { // one after another: oldest, then lowest slot
        int64_t best = -1;
        for (int64_t x = 0; x < C; x++) {
            bool taken = s->used[x] == step;
            for (int64_t v = 0; v < n; v++) taken |= victims[v] == x;
            if (!taken && (best < 0 || s->used[x] < s->used[best])) best = x;
        }
        assert_true(best >= 0);
        victims[n++] = (int32_t)best;
    }
    for (int64_t i = 0; i < n; i++) // in ascending slot order
        for (int64_t j = i + 1; j < n; j++)
            if (victims[j] < victims[i]) {
                int32_t t = victims[i];
                victims[i] = victims[j], victims[j] = t;
            }
    for (int64_t i = 0, v = 0; i < k; i++)
        if (list[i] >= 0 && slot_list[i] < 0) {
            slot_list[i] = victims[v];
            s->held[victims[v]] = list[i];
            s->used[victims[v++]] = step;
        }
    free(victims);
}

static void check_selection(const shape *c, source how, sp_transfer_kind kind, int steps) {
    fixture f = open_fixture(c, kind);
    int64_t pairs = BATCH * c->heads.kv_heads, k = c->s.topk, copied = 0, wrong = 0;
    int32_t *blocks = malloc((size_t)(pairs * k) * sizeof *blocks);
    int32_t *slots = malloc((size_t)(pairs * k) * sizeof *slots);
    int32_t *map = malloc((size_t)(pairs * c->slots) * sizeof *map);
    int32_t *want = malloc((size_t)k * sizeof *want);
    simulation *sim = calloc((size_t)(LAYERS * pairs), sizeof *sim);
    for (int64_t i = 0; i < LAYERS * pairs; i++) {
        sim[i].held = malloc((size_t)c->slots * 4), sim[i].used = malloc((size_t)c->slots * 4);
        memset(sim[i].held, 0xff, (size_t)c->slots * 4);
        memset(sim[i].used, 0xff, (size_t)c->slots * 4);
    }
    sp_tensor logits;
    assert_ok(sp_tensor_alloc(gpu, SP_F32, BATCH, 8, "logits", &logits));
    for (int step = 1; step <= steps; step++) {
        for (int64_t l = 0; l < LAYERS; l++) {
            float *x;
            // Equal scores now and then: the lowest blocks must win.
            bool equal = step % 5 == 2;
            int64_t cols = how == FORECAST   ? f.kv_cols
                           : how == ORIGINAL ? f.q_cols
                                             : c->heads.kv_heads * 32;
            sp_tensor t = random_tensor(BATCH, cols, equal ? 0 : 1, &x);
            bool ahead = l == 1 && how != ORIGINAL;
            assert_ok(how == FORECAST   ? sp_decode_select_forecast(f.d, l, t, ahead)
                      : how == ORIGINAL ? sp_decode_select_original(f.d, l, t)
                                        : sp_decode_select_partial(f.d, l, t, ahead));
            assert_ok(sp_decode_transfer(f.d, l, ahead));
            if (ahead) assert_ok(sp_decode_transfer_wait(f.d, l));
            assert_ok(sp_decode_lists(f.d, l, blocks, slots));
            assert_ok(sp_decode_map(f.d, l, map));
            for (int64_t p = 0; p < pairs; p++) {
                int64_t b = p / c->heads.kv_heads, pos = c->tokens[b] + step - 1;
                simulation *s = &sim[l * pairs + p];
                check_list(&f, how, l, b, p % c->heads.kv_heads, x, equal, pos, blocks + p * k);
                simulate(&f, s, blocks + p * k, step, want);
                assert_memory_equal(slots + p * k, want, (size_t)k * 4);
                assert_memory_equal(map + p * c->slots, s->held, (size_t)c->slots * 4);
            }
            int64_t n, different;
            assert_ok(sp_decode_check_copies(f.d, l, &n, &different));
            copied += n, wrong += different;
            free(x);
            sp_tensor_free(&t);
        }
        assert_ok(sp_decode_advance(f.d, logits)); // positions and step + 1
    }
    printf("    %-22s %-9s by %-9s %lld units copied\n", c->name, source_name[how],
           sp_transfer_name(kind), (long long)copied);
    assert_int_equal(wrong, 0);
    assert_true(copied > 0);
    for (int64_t i = 0; i < LAYERS * pairs; i++) free(sim[i].held), free(sim[i].used);
    free(sim), free(blocks), free(slots), free(map), free(want);
    sp_tensor_free(&logits);
    close_fixture(&f);
}

static void selection_and_slots(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (shapes[i].shortlist) continue; // below
        check_selection(&shapes[i], FORECAST, SP_TRANSFER_KERNEL, small ? 3 : 40);
        check_selection(&shapes[i], ORIGINAL, SP_TRANSFER_KERNEL, small ? 2 : 12);
        check_selection(&shapes[i], PARTIAL, SP_TRANSFER_KERNEL, small ? 2 : 12);
    }
}

// Best blocks lo..hi-1 that are not `taken`, the lower index first among equals.
static void take_best(const double *score, int64_t lo, int64_t hi, int64_t n, bool *taken) {
    for (; n > 0; n--) {
        int64_t best = -1;
        for (int64_t m = lo; m < hi; m++)
            if (!taken[m] && (best < 0 || score[m] > score[best])) best = m;
        if (best < 0) return;
        taken[best] = true;
    }
}

// The list of one pair in two stages (training.md 5.4), in double.
static void list_in_two_stages(const fixture *f, int64_t layer, int64_t b, int64_t h,
                               const float *x, const float *cis, int64_t pos, int32_t *list) {
    const shape *c = f->c;
    int64_t qb = pos / c->s.block, per = c->s.block / c->grid.stride, n = 0;
    int64_t windows = sp_windows(c->grid, pos + 1), lo = c->s.init_blocks;
    int64_t hi = qb - c->s.local_blocks > lo ? qb - c->s.local_blocks : lo;
    double *w = calloc((size_t)windows + 1, sizeof *w), *score[2];
    bool *taken = calloc((size_t)qb + 1, sizeof *taken);
    window_scores(f, FORECAST, layer, b, h, x, windows, w);
    for (int stage = 0; stage < 2; stage++) {
        score[stage] = malloc((size_t)(qb + 1) * sizeof **score);
        for (int64_t m = 0; m <= qb; m++) {
            score[stage][m] = -INFINITY;
            for (int64_t j = m * per - 1; j <= m * per + per - 1; j++)
                if (j >= 0 && j < windows) score[stage][m] = fmax(score[stage][m], w[j]);
        }
        for (int64_t j = 0; j < windows; j++) {
            w[j] = 0;
            for (int64_t t = 0; t < c->grid.kernel; t++)
                w[j] += (double)cis[h * c->max_tokens + j * c->grid.stride + t] /
                        (double)c->grid.kernel;
        }
    }
    for (int64_t m = 0; m <= qb; m++) taken[m] = m < lo || m >= hi;
    int64_t forced = qb + 1 - (hi - lo);
    take_best(score[0], lo, hi, c->shortlist - forced, taken);
    int64_t so_far = 0;
    for (int64_t m = 0; m <= qb; m++) so_far += taken[m];
    take_best(score[1], lo, hi, c->s.topk - so_far, taken);
    for (int64_t m = 0; m <= qb; m++)
        if (taken[m]) list[n++] = (int32_t)m;
    while (n < c->s.topk) list[n++] = -1;
    free(w), free(score[0]), free(score[1]), free(taken);
}

// Blocks of the prompt have their importance from sp_decode_fill, later ones from sp_decode_append.
static void two_stages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *c = &shapes[i];
        if (!c->shortlist) continue;
        fixture f = open_fixture(c, SP_TRANSFER_KERNEL);
        int64_t hk = c->heads.kv_heads, k = c->s.topk, wide = hk * c->max_tokens, rows = 0;
        int64_t steps = small ? 4 : 5 * c->s.block;
        int32_t *blocks = malloc((size_t)(BATCH * hk * k) * 4), *want = malloc((size_t)k * 4);
        float *kv, *cis[BATCH];
        sp_tensor all = random_tensor(c->max_tokens, f.kv_cols, 1, &kv), importance, logits, now;
        assert_ok(sp_tensor_alloc(gpu, SP_F32, hk, c->max_tokens, "importance", &importance));
        assert_ok(sp_tensor_alloc(gpu, SP_F32, hk, BATCH, "importance", &now));
        assert_ok(sp_tensor_alloc(gpu, SP_F32, BATCH, 8, "logits", &logits));
        for (int64_t b = 0; b < BATCH; b++) {
            cis[b] = malloc((size_t)wide * 4);
            for (int64_t e = 0; e < wide; e++) cis[b][e] = test_uniform(&seed, 0, 3);
            assert_ok(sp_upload(importance, cis[b]));
            int64_t T = c->tokens[b];
            sp_tensor k_rows = sp_tensor_rows(all, 0, T), cols = sp_tensor_cols(importance, 0, T);
            assert_ok(sp_decode_put(f.d, 0, b, 0, k_rows, k_rows, cols));
            assert_ok(sp_decode_fill(f.d, 0, b, k_rows, k_rows, cols, T, SP_NO_TENSOR));
            assert_ok(sp_decode_set(f.d, b, T, 0)); // waits for what was put
        }
        for (int64_t step = 0; step < steps; step++) {
            float *x, *token, column[BATCH * 2];
            sp_tensor ft = random_tensor(BATCH, f.kv_cols, 1, &x);
            sp_tensor kt = random_tensor(BATCH, f.kv_cols, 1, &token);
            for (int64_t h = 0; h < hk; h++)
                for (int64_t b = 0; b < BATCH; b++)
                    column[h * BATCH + b] = cis[b][h * c->max_tokens + c->tokens[b] + step];
            assert_ok(sp_upload(now, column));
            assert_ok(sp_decode_select_forecast(f.d, 0, ft, false));
            assert_ok(sp_decode_transfer(f.d, 0, false));
            // compressed keys stay those of the fixture
            assert_ok(sp_decode_append(f.d, 0, kt, kt, now, false));
            assert_ok(sp_decode_lists(f.d, 0, blocks, NULL));
            for (int64_t p = 0; p < BATCH * hk; p++, rows++) {
                int64_t b = p / hk, pos = c->tokens[b] + step;
                list_in_two_stages(&f, 0, b, p % hk, x, cis[b], pos, want);
                if (memcmp(want, blocks + p * k, (size_t)k * 4) != 0)
                    fail_msg("%s: sequence %d, head %d, position %d", c->name, (int)b,
                             (int)(p % hk), (int)pos);
            }
            int64_t n, different;
            assert_ok(sp_decode_check_copies(f.d, 0, &n, &different));
            assert_int_equal(different, 0);
            assert_ok(sp_decode_advance(f.d, logits));
            free(x), free(token);
            sp_tensor_free(&ft), sp_tensor_free(&kt);
        }
        printf("    %-22s %lld lists\n", c->name, (long long)rows);
        for (int64_t b = 0; b < BATCH; b++) free(cis[b]);
        free(blocks), free(want), free(kv);
        sp_tensor_free(&all), sp_tensor_free(&importance), sp_tensor_free(&now);
        sp_tensor_free(&logits);
        close_fixture(&f);
    }
}

static void every_transfer(void **state) {
    (void)state;
    for (sp_transfer_kind k = SP_TRANSFER_KERNEL; k < SP_TRANSFER_KINDS; k++)
        if (k != SP_TRANSFER_BULK || !portable) // needs Hopper's
            check_selection(&shapes[small ? 2 : 0], FORECAST, k, small ? 2 : 6);
}

// ---- attention ----------------------------------------------------------------------------------

// One head over n keys and values [n][d], in double; bias [n] on the logits.
static void attend_slowly(const float *q, const float *k, const float *v, const float *bias,
                          int64_t n, int64_t d, float *out) {
    double *z = malloc((size_t)n * sizeof *z), best = -INFINITY, total = 0;
    for (int64_t t = 0; t < n; t++) {
        z[t] = 0;
        for (int64_t e = 0; e < d; e++) z[t] += (double)q[e] * k[t * d + e];
        z[t] = z[t] / sqrt((double)d) + (double)bias[t];
        best = fmax(best, z[t]);
    }
    for (int64_t t = 0; t < n; t++) total += exp(z[t] - best);
    for (int64_t e = 0; e < d; e++) {
        double sum = 0;
        for (int64_t t = 0; t < n; t++) sum += exp(z[t] - best) * v[t * d + e];
        out[e] = (float)(sum / total);
    }
    free(z);
}

static void attention_over_slots(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *c = &shapes[i];
        fixture f = open_fixture(c, SP_TRANSFER_KERNEL);
        int64_t d = c->heads.head_dim, G = c->heads.q_heads / c->heads.kv_heads, k = c->s.topk;
        int64_t pairs = BATCH * c->heads.kv_heads, half = c->s.block * d, n = BATCH * f.q_cols;
        float *x, *q, *unit = malloc((size_t)(f.unit + c->s.block) * 4);
        float *bias = calloc((size_t)(k * c->s.block), 4);
        float *keys = malloc((size_t)(k * half) * 4), *values = malloc((size_t)(k * half) * 4);
        float *got = malloc((size_t)n * 4), *want = malloc((size_t)n * 4);
        int32_t *blocks = malloc((size_t)(pairs * k) * 4), *slots = malloc((size_t)(pairs * k) * 4);
        sp_tensor ft = random_tensor(BATCH, f.kv_cols, 1, &x), out;
        sp_tensor qt = random_tensor(BATCH, f.q_cols, 2, &q);
        assert_ok(sp_tensor_alloc(gpu, SP_BF16, BATCH, f.q_cols, "out", &out));
        assert_ok(sp_fill(out, NAN));
        assert_ok(sp_decode_select_forecast(f.d, 0, ft, false));
        assert_ok(sp_decode_transfer(f.d, 0, false));
        assert_ok(sp_decode_attend(f.d, 0, qt, out));
        assert_ok(sp_download(out, got));
        assert_ok(sp_decode_lists(f.d, 0, blocks, slots));
        for (int64_t p = 0; p < pairs; p++) {
            int64_t pos = c->tokens[p / c->heads.kv_heads], rows = 0;
            for (int64_t s = p * k; s < (p + 1) * k && blocks[s] >= 0; s++) {
                int64_t there = pos + 1 - blocks[s] * c->s.block;
                if (there > c->s.block) there = c->s.block;
                assert_ok(sp_decode_unit(f.d, 0, p, slots[s], unit));
                memcpy(keys + rows * d, unit, (size_t)(there * d) * 4);
                memcpy(values + rows * d, unit + half, (size_t)(there * d) * 4);
                if (c->shortlist) memcpy(bias + rows, unit + 2 * half, (size_t)there * 4);
                rows += there;
            }
            for (int64_t g = p * G; g < (p + 1) * G; g++) // heads of all pairs lie in order
                attend_slowly(q + g * d, keys, values, bias, rows, d, want + g * d);
        }
        // Weights and results are rounded to bf16: 2^-9 each.
        double error = test_rel_error(got, want, n);
        printf("    %-22s rel %.2e\n", c->name, error);
        assert_true(error < 4e-3);
        free(x), free(q), free(unit), free(keys), free(values), free(got), free(want);
        free(blocks), free(slots), free(bias);
        sp_tensor_free(&ft), sp_tensor_free(&qt), sp_tensor_free(&out);
        close_fixture(&f);
    }
}

// ---- linear layers ------------------------------------------------------------------------------

static void linear_layers(void **state) {
    (void)state;
    static const int64_t cases[][4] = {{1, 64, 16, 16},    {3, 256, 768, 128}, {8, 512, 4608, 256},
                                       {9, 4096, 512, 32}, {16, 1024, 96, 16}, {17, 320, 64, 48},
                                       {32, 128, 64, 16},  {33, 128, 64, 16},  {4, 100, 40, 16}};
    fixture f = open_fixture(&shapes[2], SP_TRANSFER_KERNEL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t R = cases[i][0], K = cases[i][1], N0 = cases[i][2], N1 = cases[i][3], N = N0 + N1;
        float *x, *w0, *w1, *h;
        sp_tensor xt = random_tensor(R, K, 1, &x), w0t = random_tensor(N0, K, 0.1f, &w0);
        sp_tensor w1t = random_tensor(N1, K, 0.1f, &w1), ht = random_tensor(R, N0, 1, &h);
        sp_tensor y, both, act, branch;
        assert_ok(sp_tensor_alloc(gpu, SP_BF16, R, N, "y", &y));
        assert_ok(sp_tensor_alloc(gpu, SP_BF16, R, N0, "both", &both));
        assert_ok(sp_tensor_alloc(gpu, SP_BF16, R, N0 / 2, "act", &act));
        assert_ok(sp_tensor_alloc(gpu, SP_BF16, R, N0, "branch", &branch));
        assert_ok(sp_fill(y, NAN));
        assert_ok(sp_fill(act, NAN));
        float *want = malloc((size_t)(R * N) * 4), *got = malloc((size_t)(R * N) * 4);
        for (int64_t r = 0; r < R; r++)
            for (int64_t n = 0; n < N; n++) {
                double sum = 0;
                const float *w = n < N0 ? w0 + n * K : w1 + (n - N0) * K;
                for (int64_t k = 0; k < K; k++) sum += (double)x[r * K + k] * w[k];
                want[r * N + n] = (float)sum;
            }
        assert_ok(sp_decode_linear(f.d, xt, w0t, w1t, y));
        assert_ok(sp_download(y, got));
        double plain = test_rel_error(got, want, R * N);
        // residual and swiglu from the plain results, rounded on the way as the operations say
        assert_ok(sp_decode_linear_residual(f.d, xt, w0t, 0.25f, branch, ht));
        assert_ok(sp_decode_linear_swiglu(f.d, xt, w0t, both, act));
        float *sum = malloc((size_t)(R * N0) * 4), *gated = malloc((size_t)(R * N0) * 4);
        float *got2 = malloc((size_t)(R * N0) * 4);
        for (int64_t r = 0; r < R; r++)
            for (int64_t n = 0; n < N0; n++)
                sum[r * N0 + n] = h[r * N0 + n] + 0.25f * want[r * N + n];
        for (int64_t r = 0; r < R; r++)
            for (int64_t n = 0; n < N0 / 2; n++) {
                float g = want[r * N + n], u = want[r * N + N0 / 2 + n];
                gated[r * (N0 / 2) + n] = g / (1 + expf(-g)) * u;
            }
        assert_ok(sp_download(ht, got2));
        double residual = test_rel_error(got2, sum, R * N0);
        assert_ok(sp_download(act, got2));
        double swiglu = test_rel_error(got2, gated, R * (N0 / 2));
        printf("    [%lld, %lld] to %lld + %lld: rel %.1e, residual %.1e, swiglu %.1e\n",
               (long long)R, (long long)K, (long long)N0, (long long)N1, plain, residual, swiglu);
        assert_true(plain < 4e-3 && residual < 4e-3 && swiglu < 8e-3);
        free(x), free(w0), free(w1), free(h), free(want), free(got), free(sum), free(gated),
            free(got2);
        sp_tensor *all[] = {&xt, &w0t, &w1t, &ht, &y, &both, &act, &branch};
        for (int t = 0; t < 8; t++) sp_tensor_free(all[t]);
    }
    close_fixture(&f);
}

// InfiniGen's proxy: every sequence's queries and keys on its own channels.
static void partial_keys_and_queries(void **state) {
    (void)state;
    enum { ROWS = 40, CH = 32 };
    for (int i = 0; i < 3; i += 2) {
        fixture f = open_fixture(&shapes[i], SP_TRANSFER_KERNEL);
        const int64_t d = f.c->heads.head_dim, H = f.c->heads.kv_heads, l = LAYERS - 1;
        const int64_t G = f.c->heads.q_heads / H, n = H * d * CH;
        float *projection[BATCH], *q, *k[BATCH], *got = malloc((size_t)(ROWS * H * CH) * 4);
        sp_tensor queries = random_tensor(BATCH, f.q_cols, 1, &q), projected;
        assert_ok(sp_tensor_alloc(gpu, SP_BF16, BATCH, H * CH, "projected", &projected));
        for (int64_t b = 0; b < BATCH; b++) {
            projection[b] = malloc((size_t)n * sizeof(float));
            for (int64_t e = 0; e < n; e++) projection[b][e] = 0.1f * normal();
            assert_ok(sp_decode_set_projection(f.d, l, b, projection[b]));
        }
        assert_ok(sp_decode_project_queries(f.d, l, queries, projected));
        for (int64_t b = 0; b < BATCH; b++) {
            sp_tensor keys = random_tensor(ROWS, f.kv_cols, 1, &k[b]);
            assert_ok(sp_decode_put(f.d, l, b, 0, keys, keys, SP_NO_TENSOR));
            assert_ok(sp_decode_set(f.d, b, ROWS, 0)); // waits for what was put
            assert_ok(sp_download(sp_tensor_rows(sp_decode_partial(f.d, l, b), 0, ROWS), got));
            for (int64_t e = 0; e < ROWS * H * CH; e++) {
                int64_t c = e % CH, h = e / CH % H, r = e / CH / H;
                const float *key = k[b] + r * f.kv_cols + h * d;
                double want = 0, size = 0;
                for (int64_t x = 0; x < d; x++) {
                    double y = (double)key[x] * projection[b][(h * d + x) * CH + c];
                    want += y;
                    size += fabs(y);
                }
                assert_true(fabs(got[e] - want) <= 0x1p-8 * fabs(want) + 0x1p-16 * size);
            }
            sp_tensor_free(&keys);
        }
        assert_ok(sp_download(projected, got));
        for (int64_t e = 0; e < BATCH * H * CH; e++) {
            int64_t c = e % CH, h = e / CH % H, b = e / CH / H;
            double want = 0, size = 0;
            for (int64_t x = 0; x < G * d; x++) {
                double y = (double)q[b * f.q_cols + h * G * d + x] *
                           projection[b][(h * d + x % d) * CH + c];
                want += y;
                size += fabs(y);
            }
            assert_true(fabs(got[e] - want) <= 0x1p-8 * fabs(want) + 0x1p-16 * size);
        }
        for (int64_t b = 0; b < BATCH; b++) free(projection[b]), free(k[b]);
        free(q), free(got);
        sp_tensor_free(&queries), sp_tensor_free(&projected);
        close_fixture(&f);
    }
}

int main(int argc, char **argv) {
    const gpu_options options = gpu_options_of(argc, argv);
    small = options.small, portable = options.portable;
    if (!gpu_opens(options, &gpu, NULL)) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers),        cmocka_unit_test(selection_and_slots),
        cmocka_unit_test(two_stages),           cmocka_unit_test(every_transfer),
        cmocka_unit_test(attention_over_slots), cmocka_unit_test(partial_keys_and_queries),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sp_backend_close(gpu);
    return failed;
}
#else
int main(int argc, char **argv) {
    sp_backend *gpu = NULL;
    return gpu_opens(gpu_options_of(argc, argv), &gpu, NULL); // false: says why
}
#endif
