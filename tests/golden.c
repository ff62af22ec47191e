#include "tests/golden.h"
#include "checkpoints/checkpoints.h"
#include "common/util.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sp_backend *test_backend(void) {
    static sp_backend *be;
    // One thread: on a busy machine every parallel region waits until each of its threads got a
    // processor. That results do not depend on the number of threads is test_threads.
    const sp_backend_options o = {
        .name = "cpu", .cpu_blas = "auto", .threads = 1, .local_ranks = 1};
    if (!be) assert_ok(sp_backend_open(&o, &be));
    return be;
}

static sp_model *load_model(const char *folder) {
    char *dir = test_path(folder);
    sp_model_desc *desc;
    sp_model *model;
    const sp_model_load_options o = {0};
    assert_ok(sp_model_describe(dir, NULL, &desc));
    assert_ok(sp_model_load(test_backend(), desc, &o, &model));
    free(dir);
    return model;
}

const sp_model *test_tiny_base(void) {
    static sp_model *model;
    if (!model) model = load_model("data/tiny-base");
    return model;
}

const sp_model *test_tiny_nosa(void) {
    static sp_model *model;
    if (!model) model = load_model("data/tiny-nosa");
    return model;
}

static sp_tensor random_weight(uint64_t *state, int64_t rows, int64_t cols, float lo, float hi) {
    float *v;
    assert_ok(sp_alloc(&v, rows * cols, sizeof *v, "weight"));
    for (int64_t i = 0; i < rows * cols; i++) v[i] = test_uniform(state, lo, hi);
    sp_tensor t;
    assert_ok(sp_tensor_alloc(test_backend(), sp_backend_storage(test_backend()), rows, cols,
                              "weight", &t));
    assert_ok(sp_upload(t, v));
    free(v);
    return t;
}

const sp_model *test_random_model(const sp_model_desc *desc, uint64_t seed) {
    static struct random_model {
        sp_model model;
        sp_model_desc desc;
        struct random_model *before;
    } * all; // kept to the end
    struct random_model *r;
    assert_ok(sp_alloc(&r, 1, sizeof *r, "model"));
    r->before = all;
    all = r;
    sp_model_desc *d = &r->desc;
    sp_model *m = &r->model;
    *d = *desc;
    *m = (sp_model){.desc = d, .backend = test_backend()};
    assert_ok(sp_alloc(&m->layer, d->layers, sizeof *m->layer, "layers"));
    int64_t q = d->heads.q_heads * d->heads.head_dim, kv = d->heads.kv_heads * d->heads.head_dim;
    float a = sqrtf(6.0f / (float)d->hidden), b = sqrtf(3.0f / (float)d->ffn);
    m->embed = random_weight(&seed, d->vocab, d->hidden, -1, 1);
    m->head = m->embed;
    m->final_norm = random_weight(&seed, 1, d->hidden, 0.5f, 1.5f);
    for (int64_t l = 0; l < d->layers; l++) {
        sp_layer_weights *w = &m->layer[l];
        w->attn_norm = random_weight(&seed, 1, d->hidden, 0.5f, 1.5f);
        w->mlp_norm = random_weight(&seed, 1, d->hidden, 0.5f, 1.5f);
        w->qkv = random_weight(&seed, q + 2 * kv, d->hidden, -a, a);
        w->o = random_weight(&seed, d->hidden, q, -a, a);
        w->gate_up = random_weight(&seed, 2 * d->ffn, d->hidden, -a, a);
        w->down = random_weight(&seed, d->hidden, d->ffn, -b, b);
        if (!d->cis) continue;
        w->cis_scale = random_weight(&seed, 1, d->heads.kv_heads, 0.2f, 1.5f);
        w->cis_delta = random_weight(&seed, d->heads.kv_heads, kv, -a, a);
    }
    return m;
}

// ---- golden arrays ------------------------------------------------------------------------------

static const sp_st_tensor *golden_find(const char *file, const char *name, int64_t n,
                                       const sp_st **st) {
    enum { MAX_FILES = 8 };
    static struct {
        char *name;
        sp_st *st;
    } cache[MAX_FILES];
    int i = 0;
    while (i < MAX_FILES && cache[i].name && strcmp(cache[i].name, file) != 0) i++;
    if (i == MAX_FILES) fail_msg("more golden files than the test helper keeps open");
    if (!cache[i].name) {
        char *relative = sp_format("tests/golden/%s.safetensors", file);
        char *path = test_path(relative);
        assert_ok(sp_st_open(path, &cache[i].st));
        cache[i].name = sp_strdup(file);
        free(path);
        free(relative);
    }
    *st = cache[i].st;
    const sp_st_tensor *t = sp_st_find(*st, name);
    if (!t) fail_msg("%s.safetensors has no array %s", file, name);
    if (t->elements != n)
        fail_msg("%s has %lld elements, expected %lld", name, (long long)t->elements, (long long)n);
    return t;
}

float *golden_f32(const char *file, const char *name, int64_t n) {
    const sp_st *st;
    const sp_st_tensor *t = golden_find(file, name, n, &st);
    float *v;
    assert_ok(sp_alloc(&v, n, sizeof *v, name));
    assert_ok(sp_st_read_f32(st, t, v));
    return v;
}

int32_t *golden_i32(const char *file, const char *name, int64_t n) {
    const sp_st *st;
    const sp_st_tensor *t = golden_find(file, name, n, &st);
    int32_t *v;
    assert_ok(sp_alloc(&v, n, sizeof *v, name));
    assert_ok(sp_st_read_i32(st, t, v));
    return v;
}

static void *swap_heads(void *src, int64_t outer, int64_t heads, int64_t rows, int64_t cols) {
    char *out;
    size_t line = (size_t)cols * 4;
    assert_ok(sp_alloc(&out, outer * heads * rows * cols, 4, "golden rows"));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t r = 0; r < rows; r++)
                memcpy(out + (size_t)((o * rows + r) * heads + h) * line,
                       (char *)src + (size_t)((o * heads + h) * rows + r) * line, line);
    free(src);
    return out;
}

float *golden_rows_f32(const char *file, const char *name, int64_t outer, int64_t heads,
                       int64_t rows, int64_t cols) {
    return swap_heads(golden_f32(file, name, outer * heads * rows * cols), outer, heads, rows,
                      cols);
}

int32_t *golden_bits(const char *file, const char *name, int64_t outer, int64_t heads, int64_t rows,
                     int64_t k) {
    int32_t *sets = golden_i32(file, name, outer * heads * rows), *lists;
    assert_ok(sp_alloc(&lists, outer * heads * rows * k, sizeof *lists, name));
    for (int64_t u = 0; u < outer * heads * rows; u++) {
        int64_t o = u / (heads * rows), h = u / rows % heads, r = u % rows, n = 0;
        int32_t *list = lists + ((o * rows + r) * heads + h) * k;
        for (int32_t b = 0; b < 32; b++)
            if ((uint32_t)sets[u] >> b & 1) {
                assert_true(n < k);
                list[n++] = b;
            }
        while (n < k) list[n++] = -1;
    }
    free(sets);
    return lists;
}

sp_forecast golden_forecast(float factor) {
    sp_forecast f;
    assert_ok(sp_forecast_alloc(test_tiny_base()->desc, &f));
    int64_t n = f.rows * f.cols;
    for (int64_t l = 0; l <= f.layers; l++) {
        char name[64];
        sp_forecast_name(l, name);
        float *w = golden_f32("forecast_init", name, n), *to = sp_forecast_matrix(&f, l);
        for (int64_t i = 0; i < n; i++) to[i] = factor * w[i];
        free(w);
    }
    return f;
}

sp_forecast test_trained_forecast(void) {
    sp_forecast f;
    char *path = test_path("tests/trained/forecast.safetensors");
    assert_ok(sp_forecast_alloc(test_tiny_base()->desc, &f));
    assert_ok(sp_forecast_import(path, &f, NULL));
    free(path);
    return f;
}

// ---- tensors and comparison ---------------------------------------------------------------------

static void *download(sp_tensor t) {
    void *v;
    assert_ok(sp_alloc(&v, t.rows * t.cols, 4, "downloaded tensor"));
    assert_ok(sp_download(t, v));
    return v;
}

float *test_download(sp_tensor t) {
    return download(t);
}
int32_t *test_download_i32(sp_tensor t) {
    return download(t);
}

static sp_tensor upload(const void *v, sp_dtype type, int64_t rows, int64_t cols) {
    sp_tensor t;
    assert_ok(sp_tensor_alloc(test_backend(), type, rows, cols, "test tensor", &t));
    assert_ok(sp_upload(t, v));
    return t;
}

sp_tensor test_upload(const float *v, int64_t rows, int64_t cols) {
    return upload(v, SP_F32, rows, cols);
}

sp_tensor test_upload_i32(const int32_t *v, int64_t rows, int64_t cols) {
    return upload(v, SP_I32, rows, cols);
}

void assert_close(const char *what, const float *got, const float *want, int64_t n, double limit) {
    for (int64_t i = 0; i < n; i++) // special values are no matter of tolerance
        if (isnan(got[i]) || ((isinf(got[i]) || isinf(want[i])) && got[i] != want[i]))
            fail_msg("%s[%lld] is %g, expected %g", what, (long long)i, (double)got[i],
                     (double)want[i]);
    double e = test_rel_error(got, want, n);
    if (!(e <= limit)) fail_msg("%s: relative error %.3g, limit %.3g", what, e, limit);
}

void assert_tensor_close(const char *what, sp_tensor got, const float *want, double limit) {
    float *v = test_download(got);
    assert_close(what, v, want, got.rows * got.cols, limit);
    free(v);
}

void assert_rows_close(const char *what, sp_tensor got, int64_t first, int64_t step,
                       const float *want, double limit) {
    float *v = test_download(got);
    int64_t n = 0;
    for (int64_t r = first; r < got.rows; r += step)
        memmove(v + n++ * got.cols, v + r * got.cols, (size_t)got.cols * sizeof *v);
    assert_close(what, v, want, n * got.cols, limit);
    free(v);
}

void assert_within(const char *what, double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%s is %.12g, expected %.12g within %.1g", what, got, want, relative);
}

void assert_lists(const char *what, const int32_t *got, const int32_t *want, const float *cut_gap,
                  int64_t rows, int64_t heads, int64_t k) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            float gap = cut_gap ? cut_gap[h * rows + r] : 0;
            const int32_t *g = got + (r * heads + h) * k, *w = want + (r * heads + h) * k;
            if (gap > 0 && gap <= 1e-5f) continue;
            for (int64_t i = 0; i < k; i++)
                if (g[i] != w[i])
                    fail_msg("%s: row %lld, head %lld, entry %lld is block %d, expected %d", what,
                             (long long)r, (long long)h, (long long)i, g[i], w[i]);
        }
}
