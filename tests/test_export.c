// Export of a training state on the embedded tiny base: what the files hold, that they depend on
// the checkpoint alone, parity vectors against plain C, merging, and every refusal.
#include "checkpoints/checkpoints.h"
#include "common/json.h"
#include "common/util.h"
#include "model/safetensors.h"
#include "tests/support.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char *base_dir, *run_dir;

static char *in_tmp(const char *name) {
    char *p = sp_path_join(test_tmpdir(), name);
    assert_non_null(p);
    return p;
}

// A run folder (inside the temporary folder if the path is relative) with one checkpoint, step 30,
// of random weights that are no bf16 numbers.
static char *make_run(const char *name, const char *base) {
    sp_model_desc *d;
    sp_train_state s = {.step = 30,
                        .updates = 30,
                        .samples = 960,
                        .tokens = 983040,
                        .used_rows = 960,
                        .seed = 42,
                        .teacher = {2, 1}};
    assert_ok(sp_model_describe(base_dir, NULL, &d));
    assert_ok(sp_forecast_alloc(d, &s.weights));
    sp_forecast_init(&s.weights, 7);
    uint64_t seed = 9;
    for (int64_t i = 0; i < (d->layers + 1) * s.weights.rows * s.weights.cols; i++)
        s.weights.w[i] += test_uniform(&seed, -1e-3f, 1e-3f);
    s.base_name = sp_strdup("tiny-base");
    s.program = sp_strdup("sparda test");
    s.cpu_blas = sp_strdup("openblas");
    s.heads = d->heads;
    s.hidden = d->hidden;
    s.sparse = d->sparse;
    strcpy(s.base_config_sha256, d->config_sha256);
    assert_ok(sp_model_weights_sha256(d, s.base_weights_sha256));
    s.config = sp_format("base: %s\ndata: [{path: %s}]\nbackend: cpu\nthreads: 1\n"
                         "validate: {samples: 2, lengths: [256], lm_rows: 2}\n",
                         base, base);
    char *run = in_tmp(name), *dir = sp_path_join(run, "checkpoints"),
         *path = sp_checkpoint_path(run, s.step);
    assert_ok(sp_mkdirs(dir));
    assert_ok(sp_state_save(path, &s));
    sp_train_state_free(&s);
    sp_model_desc_free(d);
    free(dir), free(path);
    return run;
}

static int set_up(void **unused) {
    (void)unused;
    base_dir = test_path("data/tiny-base");
    run_dir = make_run("run", base_dir);
    return 0;
}

static int tear_down(void **unused) {
    (void)unused;
    free(base_dir), free(run_dir);
    return 0;
}

static char *slurp(const char *dir, const char *name, int64_t *n) {
    char *path = sp_path_join(dir, name), *bytes;
    assert_ok(sp_read_file(path, 64 << 20, &bytes, n));
    free(path);
    return bytes;
}

static bool has(const char *dir, const char *name) {
    char *path = sp_path_join(dir, name);
    bool yes = access(path, F_OK) == 0;
    free(path);
    return yes;
}

static void expect_same_file(const char *a, const char *b, const char *name) {
    int64_t an, bn;
    char *x = slurp(a, name, &an), *y = slurp(b, name, &bn);
    if (an != bn || memcmp(x, y, (size_t)an) != 0) fail_msg("%s differs", name);
    free(x), free(y);
}

// No file or folder of ours is left in the temporary folder under a hidden name.
static void expect_no_leftovers(void) {
    char *command = sp_format("test -z \"$(ls -A %s | grep '^\\.')\"", test_tmpdir());
    assert_int_equal(system(command), 0);
    free(command);
}

static const char *const bundle[] = {"forecast.safetensors", "forecast.pt", "sparda_config.json",
                                     "parity.safetensors"};

static void files_and_purity(void **unused) {
    (void)unused;
    char *a = in_tmp("out-a"), *b = in_tmp("deeper/out-b/");
    char *file = sp_checkpoint_path(run_dir, 30);
    sp_export_args args = {.out_dir = a, .safetensors = true, .pt = true};
    assert_ok(sp_export(run_dir, &args));
    args.out_dir = b;
    assert_ok(sp_export(file, &args));
    for (int i = 0; i < 4; i++) expect_same_file(a, b, bundle[i]);
    expect_no_leftovers();

    // no path, user or host in any of them
    for (int i = 0; i < 4; i++) {
        int64_t n;
        char *bytes = slurp(a, bundle[i], &n);
        assert_null(memmem(bytes, (size_t)n, base_dir, strlen(base_dir)));
        assert_null(memmem(bytes, (size_t)n, test_tmpdir(), strlen(test_tmpdir())));
        free(bytes);
    }
    free(a), free(b), free(file);
}

static void weights_and_metadata(void **unused) {
    (void)unused;
    char *out = in_tmp("out-a"), *path = sp_path_join(out, "forecast.safetensors"),
         *pt = sp_path_join(out, "forecast.pt"), *file = sp_checkpoint_path(run_dir, 30);
    sp_train_state s;
    sp_st *st;
    assert_ok(sp_state_load(file, &s));
    assert_ok(sp_st_open(path, &st));
    int64_t n = s.weights.rows * s.weights.cols;
    assert_int_equal(st->n, 7);
    for (int64_t l = 0; l <= s.weights.layers; l++) {
        char name[64];
        sp_forecast_name(l, name);
        const sp_st_tensor *t = sp_st_find(st, name);
        assert_non_null(t);
        assert_int_equal(t->dtype, SP_ST_BF16);
        assert_int_equal(t->shape[0], 128);
        assert_int_equal(t->shape[1], 256);
        for (int64_t i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, t->data + 2 * i, 2);
            assert_int_equal(v, sp_f32_to_bf16(s.weights.w[l * n + i]));
        }
    }
    static const char *const want[][2] = {{"format", "pt"},
                                          {"sparda.step", "30"},
                                          {"sparda.base_model", "tiny-base"},
                                          {"sparda.train_tokens", "983040"}};
    for (int i = 0; i < 4; i++)
        assert_string_equal(json_string_value(json_object_get(st->metadata, want[i][0])),
                            want[i][1]);
    assert_string_equal(json_string_value(json_object_get(st->metadata, "sparda.base_config_hash")),
                        s.base_config_sha256);

    sp_forecast in = {.layers = s.weights.layers, .rows = 128, .cols = 256};
    assert_ok(sp_alloc(&in.w, 7 * n, sizeof *in.w, "test"));
    sp_imported info;
    assert_ok(sp_forecast_import(pt, &in, &info));
    for (int64_t i = 0; i < 7 * n; i++)
        assert_true(in.w[i] == sp_bf16_to_f32(sp_f32_to_bf16(s.weights.w[i])));
    json_t *c = info.sparse_config;
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"kernel_size", 8}, {"kernel_stride", 4},          {"training_kernel_size", 2},
                {"topk", 8},        {"training_kernel_stride", 1}, {"k_effective", 10},
                {"block_size", 16}, {"window_size", 32},           {"dense_len", 256}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        assert_int_equal(json_integer_value(json_object_get(c, ints[i].key)), ints[i].value);
    assert_string_equal(json_string_value(json_object_get(c, "kl_target_align_pooling")), "max");
    assert_int_equal(info.step, 30);
    assert_string_equal(info.base_model, "tiny-base");
    sp_imported_free(&info);
    sp_forecast_free(&in);
    sp_st_close(st);
    sp_train_state_free(&s);
    free(out), free(path), free(pt), free(file);
}

static int64_t int_at(json_t *o, const char *a, const char *b) {
    json_t *v = json_object_get(json_object_get(o, a), b);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static void record(void **unused) {
    (void)unused;
    char *out = in_tmp("out-a"), *path = sp_path_join(out, "sparda_config.json"),
         *weights = sp_path_join(out, "forecast.safetensors");
    json_t *o;
    sp_st *st;
    assert_ok(sp_json_load(path, 1 << 20, &o));
    assert_ok(sp_st_open(weights, &st));
    assert_int_equal(int_at(o, "selection", "topk"), 8); // both conventions
    assert_int_equal(int_at(o, "selection", "k_effective"), 10);
    assert_int_equal(int_at(o, "selection", "k_forced"), 4);
    assert_int_equal(int_at(o, "selection", "k_chosen"), 6);
    assert_int_equal(int_at(o, "training", "step"), 30);
    assert_int_equal(int_at(o, "training", "training_kernel_size"), 2);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(o, "selection"), "visibility")),
        "complete");
    sp_model_desc *d;
    char hex[SP_SHA256_HEX];
    assert_ok(sp_model_describe(base_dir, NULL, &d));
    assert_ok(sp_model_weights_sha256(d, hex));
    json_t *base = json_object_get(o, "base");
    assert_string_equal(json_string_value(json_object_get(base, "weights_sha256")), hex);
    assert_string_equal(json_string_value(json_object_get(base, "config_sha256")),
                        d->config_sha256);
    json_t *tensors = json_object_get(o, "tensors"), *t;
    size_t i;
    assert_int_equal(json_array_size(tensors), 7);
    json_array_foreach(tensors, i, t) {
        const char *name = json_string_value(json_object_get(t, "name"));
        const sp_st_tensor *x = sp_st_find(st, name);
        assert_ok(sp_sha256_of(x->data, (size_t)x->bytes, hex));
        assert_string_equal(json_string_value(json_object_get(t, "sha256")), hex);
        assert_int_equal(json_is_true(json_object_get(t, "used")),
                         strcmp(name, "model.layers.5.self_attn.q_future_proj.weight") != 0);
    }
    sp_model_desc_free(d);
    sp_st_close(st);
    json_decref(o);
    free(out), free(path), free(weights);
}

// ---- parity vectors: recomputed here from the inputs in the file, without the program's kernels
// --

enum { D = 256, KV = 2, HD = 64, K = 10, B = 16 };

typedef struct arrays {
    float *input, *forecast, *keys, *scores;
    int32_t *blocks, *positions;
    int64_t rows, n_d;
} arrays;

static void *array_of(const sp_st *st, const char *prefix, const char *name, int64_t *first) {
    char *full = sp_format("%s%s", prefix, name);
    const sp_st_tensor *t = sp_st_find(st, full);
    if (!t) fail_msg("%s is missing", full);
    void *p;
    assert_ok(sp_alloc(&p, t->elements, 4, full));
    if (t->dtype == SP_ST_I32)
        assert_ok(sp_st_read_i32(st, t, p));
    else
        assert_ok(sp_st_read_f32(st, t, p));
    if (first) *first = t->shape[0];
    free(full);
    return p;
}

static void rotate(float *u, int64_t position, const sp_model_desc *d, int64_t positions) {
    float *cs, *sn;
    assert_ok(sp_alloc(&cs, positions * HD / 2, 4, "cos"));
    assert_ok(sp_alloc(&sn, positions * HD / 2, 4, "sin"));
    sp_rope_values(d, positions, cs, sn);
    for (int h = 0; h < KV; h++)
        for (int m = 0; m < HD / 2; m++) {
            float c = cs[position * (HD / 2) + m], s = sn[position * (HD / 2) + m];
            float a = u[h * HD + m], b = u[h * HD + HD / 2 + m];
            u[h * HD + m] = a * c - b * s;
            u[h * HD + HD / 2 + m] = b * c + a * s;
        }
    free(cs), free(sn);
}

// Lists by the definition of inference.md 1.2, from the scores in the file.
static void choose(const float *scores, int64_t n_d, int64_t position, int64_t nb, int32_t *list) {
    float block[1024];
    int64_t q = position / B;
    bool taken[1024] = {0};
    for (int64_t m = 0; m < nb; m++) {
        block[m] = -INFINITY;
        for (int64_t j = 4 * m - 1; j <= 4 * m + 3; j++)
            if (j >= 0 && j < n_d) block[m] = fmaxf(block[m], scores[j]);
        if (m < 1 || (m >= q - 2 && m <= q)) block[m] = INFINITY;
    }
    for (int n = 0; n < K && n < nb; n++) {
        int64_t best = -1;
        for (int64_t m = 0; m < nb; m++)
            if (!taken[m] && (best < 0 || block[m] > block[best])) best = m;
        taken[best] = true;
    }
    int n = 0;
    for (int64_t m = 0; m <= q && m < nb; m++)
        if (taken[m]) list[n++] = (int32_t)m;
    while (n < K) list[n++] = -1;
}

static void parity_vectors(void **unused) {
    (void)unused;
    char *out = in_tmp("out-a"), *path = sp_path_join(out, "parity.safetensors"),
         *weights = sp_path_join(out, "forecast.safetensors");
    sp_st *st, *wst;
    sp_model_desc *d;
    assert_ok(sp_st_open(path, &st));
    assert_ok(sp_st_open(weights, &wst));
    assert_ok(sp_model_describe(base_dir, NULL, &d));
    int64_t T, rows, n_d;
    int32_t *tokens = array_of(st, "", "tokens", &T), *at = array_of(st, "", "positions", &rows);
    assert_int_equal(T, 2 * K * B);
    assert_int_equal(rows, 64);
    assert_int_equal(at[63], T - 1);
    for (int64_t i = 0; i < T; i++) assert_in_range(tokens[i], 0, 1023);
    static const struct {
        const char *prefix, *projection;
    } layers[] = {{"layer.0.", "model.layers.0.self_attn.q_curr_proj.weight"},
                  {"layer.5.", "model.layers.4.self_attn.q_future_proj.weight"}};
    int differ = 0;
    for (int l = 0; l < 2; l++) {
        float *x = array_of(st, layers[l].prefix, "input", NULL),
              *f = array_of(st, layers[l].prefix, "forecast", NULL),
              *c = array_of(st, layers[l].prefix, "compressed_keys", &n_d);
        float *w = array_of(wst, "", layers[l].projection, NULL);
        assert_int_equal(n_d, (T - 8) / 4 + 1);
        float *mine;
        assert_ok(sp_alloc(&mine, rows * KV * HD, 4, "test"));
        for (int64_t i = 0; i < rows; i++) {
            for (int o = 0; o < KV * HD; o++) {
                double sum = 0;
                for (int j = 0; j < D; j++) sum += (double)w[o * D + j] * (double)x[i * D + j];
                mine[i * KV * HD + o] = (float)sum;
            }
            rotate(mine + i * KV * HD, at[i], d, T);
        }
        assert_true(test_rel_error(f, mine, rows * KV * HD) < 1e-5);

        for (int rule = 0; rule < 2; rule++) {
            float *scores =
                array_of(st, layers[l].prefix, rule ? "scores.start" : "scores.complete", NULL);
            int32_t *blocks =
                array_of(st, layers[l].prefix, rule ? "blocks.start" : "blocks.complete", NULL);
            for (int64_t i = 0; i < rows; i++)
                for (int h = 0; h < KV; h++) {
                    const float *row = scores + (i * KV + h) * n_d;
                    for (int64_t j = 0; j < n_d; j++) {
                        bool seen = rule ? 4 * j <= at[i] : 4 * j + 7 <= at[i];
                        double sum = 0, size = 0;
                        for (int m = 0; m < HD; m++) {
                            double term =
                                (double)f[(i * KV + h) * HD + m] * (double)c[(j * KV + h) * HD + m];
                            sum += term, size += fabs(term);
                        }
                        if (!seen)
                            assert_true(row[j] == -INFINITY);
                        else
                            assert_true(fabs((double)row[j] - sum) <= HD * 1.2e-7 * size);
                    }
                    int32_t want[K];
                    choose(row, n_d, at[i], T / B, want);
                    assert_memory_equal(want, blocks + (i * KV + h) * K, sizeof want);
                    if (!rule) continue;
                    // the two rules must not be one and the same thing
                    float other[1024];
                    for (int64_t j = 0; j < n_d; j++)
                        other[j] = 4 * j + 7 <= at[i] ? row[j] : -INFINITY;
                    choose(other, n_d, at[i], T / B, want);
                    differ += memcmp(want, blocks + (i * KV + h) * K, sizeof want) != 0;
                }
            free(scores), free(blocks);
        }
        free(x), free(f), free(c), free(w), free(mine);
    }
    print_message("%d of 256 lists differ between the two visibility rules\n", differ);
    assert_true(differ > 0);
    sp_model_desc_free(d);
    sp_st_close(st), sp_st_close(wst);
    free(tokens), free(at), free(out), free(path), free(weights);
}

// ---- formats, force, merge ----------------------------------------------------------------------

static void formats_and_force(void **unused) {
    (void)unused;
    char *out = in_tmp("formats"), *report = sp_path_join(out, "validation_report.json"),
         *own = sp_path_join(out, "notes.txt");
    sp_export_args args = {.out_dir = out, .pt = true, .safetensors = true, .no_parity = true};
    assert_ok(sp_mkdirs(out)); // an empty folder will do
    assert_ok(sp_export(run_dir, &args));
    assert_true(has(out, "forecast.pt") && has(out, "forecast.safetensors"));
    assert_false(has(out, "parity.safetensors"));
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "--force");
    assert_ok(sp_write_file(report, "{}", 2));
    assert_ok(sp_write_file(own, "mine", 4));
    args.force = true;
    args.pt = false;
    assert_ok(sp_export(run_dir, &args));
    // what belonged to the earlier export is gone, what is not ours stays
    assert_true(has(out, "forecast.safetensors") && has(out, "sparda_config.json"));
    assert_true(has(out, "notes.txt"));
    assert_false(has(out, "forecast.pt") || has(out, "validation_report.json"));
    args.safetensors = false;
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "format");
    expect_no_leftovers();
    free(out), free(report), free(own);
}

static void merged(void **unused) {
    (void)unused;
    char *base = in_tmp("base-copy"), *sub = sp_path_join(base, "tokenizer"),
         *extra = sp_path_join(sub, "vocab.txt"), *out = in_tmp("merged"), *cache = in_tmp("blob"),
         *link = sp_path_join(base, "model.safetensors"), *bytes;
    int64_t n;
    // like a Hugging Face cache: the weights are a symbolic link
    assert_ok(sp_mkdirs(sub));
    assert_ok(sp_write_file(extra, "a b c", 5));
    bytes = slurp(base_dir, "config.json", &n);
    char *config = sp_path_join(base, "config.json");
    assert_ok(sp_write_file(config, bytes, n));
    free(bytes);
    bytes = slurp(base_dir, "model.safetensors", &n);
    assert_ok(sp_write_file(cache, bytes, n));
    free(bytes);
    assert_int_equal(symlink(cache, link), 0);

    sp_export_args args = {.out_dir = out, .pt = true, .safetensors = true, .merge_base = base};
    assert_ok(sp_export(run_dir, &args));
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer/vocab.txt"};
    for (int i = 0; i < 3; i++) expect_same_file(base, out, files[i]);
    struct stat s;
    char *weights = sp_path_join(out, "model.safetensors"), *inner = sp_path_join(out, "sparda");
    assert_int_equal(lstat(weights, &s), 0);
    assert_true(S_ISREG(s.st_mode)); // the file itself, not the link
    char *plain = in_tmp("out-a");
    for (int i = 0; i < 4; i++) expect_same_file(plain, inner, bundle[i]);
    assert_false(has(out, "forecast.safetensors"));
    sp_model_desc *d;
    assert_ok(sp_model_describe(out, NULL, &d)); // still a model
    sp_forecast f;
    assert_ok(sp_forecast_alloc(d, &f));
    assert_ok(sp_forecast_import(out, &f, NULL));
    sp_forecast_free(&f);
    sp_model_desc_free(d);

    char *nested = sp_path_join(base, "out"), *again = in_tmp("again");
    args.out_dir = nested;
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "inside the base model's folder");
    args.out_dir = again;
    args.merge_base = out;
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "sparda/ already");
    args.merge_base = test_tmpdir();
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "config.json");
    assert_false(has(again, ""));
    expect_no_leftovers();
    free(base), free(sub), free(extra), free(out), free(cache), free(link), free(config),
        free(weights), free(inner), free(plain), free(nested), free(again);
}

static void wrong_base(void **unused) {
    (void)unused;
    // the same shapes, one weight changed: only the hash can tell
    char *base = in_tmp("other-base"), *config = sp_path_join(base, "config.json"),
         *weights = sp_path_join(base, "model.safetensors"), *out = in_tmp("wrong-base"), *bytes;
    int64_t n;
    assert_ok(sp_mkdirs(base));
    bytes = slurp(base_dir, "config.json", &n);
    assert_ok(sp_write_file(config, bytes, n));
    free(bytes);
    bytes = slurp(base_dir, "model.safetensors", &n);
    bytes[n - 2] ^= 1;
    assert_ok(sp_write_file(weights, bytes, n));
    free(bytes);
    sp_export_args args = {.out_dir = out, .pt = true, .base = base};
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "SHA-256 of the weights");
    args.base = NULL, args.merge_base = base;
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "SHA-256 of the weights");
    args.no_parity = true;
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "SHA-256 of the weights");
    assert_false(has(out, ""));

    char *moved = make_run("moved", "/nowhere/tiny-base");
    args = (sp_export_args){.out_dir = out, .pt = true};
    assert_fails(sp_export(moved, &args), SP_BAD_INPUT, "--no-parity");
    assert_non_null(strstr(sp_error_text(), "--base DIR"));
    assert_non_null(strstr(sp_error_text(), "/nowhere/tiny-base"));
    assert_false(has(out, ""));
    args.base = base_dir;
    assert_ok(sp_export(moved, &args));
    assert_true(has(out, "parity.safetensors"));
    expect_no_leftovers();
    free(moved), free(base), free(config), free(weights), free(out);
}

static void wrong_checkpoints(void **unused) {
    (void)unused;
    char *empty = in_tmp("empty-run"), *out = in_tmp("never"), *pt = in_tmp("out-a/forecast.pt"),
         *missing = in_tmp("missing.h5");
    sp_export_args args = {.out_dir = out, .pt = true};
    assert_ok(sp_mkdirs(empty));
    assert_fails(sp_export(empty, &args), SP_BAD_INPUT, "no complete checkpoint");
    assert_fails(sp_export(pt, &args), SP_BAD_INPUT, "no training state");
    assert_fails(sp_export(missing, &args), SP_BAD_INPUT, "does not exist");
    args.out_dir = pt;
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "not a folder");
    assert_false(has(out, ""));
    free(empty), free(out), free(pt), free(missing);
}

// One export to a place at a time. What a killed one has left, its lock and its hidden folder, is
// in nobody's way and is removed; what another one is writing is not touched.
static void one_at_a_time(void **unused) {
    (void)unused;
    char *out = in_tmp("busy"), *lock = in_tmp(".busy.lock"), *staging = in_tmp(".busy.tmp.1"),
         *file = sp_path_join(staging, "forecast.pt"), *again = in_tmp("busy/new/.");
    sp_export_args args = {.out_dir = out, .pt = true, .no_parity = true};
    assert_ok(sp_mkdirs(staging));
    assert_ok(sp_write_file(file, "half", 4));
    int fd = open(lock, O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "another process is exporting to");
    assert_non_null(strstr(sp_error_text(), out));
    assert_false(has(out, ""));
    assert_true(has(staging, "forecast.pt"));
    assert_int_equal(access(lock, F_OK), 0);
    close(fd);
    assert_ok(sp_export(run_dir, &args));
    assert_true(has(out, "forecast.pt"));
    assert_fails(sp_export(run_dir, &args), SP_BAD_INPUT, "is not empty");
    args.out_dir = again; // a folder that is there as soon as its parent is made
    assert_ok(sp_export(run_dir, &args));
    assert_true(has(out, "new/forecast.pt"));
    assert_false(has(out, ".new.lock"));
    expect_no_leftovers();
    free(out), free(lock), free(staging), free(file), free(again);
}

// "test_export RUN_DIR" makes a run folder for the scripts that test the commands.
int main(int argc, char **argv) {
    if (argc == 2) {
        set_up(NULL);
        free(make_run(argv[1], base_dir));
        return tear_down(NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_purity),
        cmocka_unit_test(weights_and_metadata),
        cmocka_unit_test(record),
        cmocka_unit_test(parity_vectors),
        cmocka_unit_test(formats_and_force),
        cmocka_unit_test(merged),
        cmocka_unit_test(wrong_base),
        cmocka_unit_test(wrong_checkpoints),
        cmocka_unit_test(one_at_a_time),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
