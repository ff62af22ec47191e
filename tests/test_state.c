// Training state: round trip, every kind of damage, comparison with a base model, and the rotation
// and pointer of a run folder.
#include "checkpoints/checkpoints.h"
#include "checkpoints/internal.h"
#include "common/h5.h"
#include "common/util.h"
#include "tests/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 3, KV = 2, HEAD = 4, HIDDEN = 6, SIZE = KV * HEAD * HIDDEN };

static char *in_tmp(const char *name) {
    char *p = sp_path_join(test_tmpdir(), name);
    assert_non_null(p);
    return p;
}

static float *random_floats(int64_t n, uint64_t seed) {
    float *w;
    assert_ok(sp_alloc(&w, n, sizeof *w, "test"));
    for (int64_t i = 0; i < n; i++) w[i] = test_uniform(&seed, -1, 1);
    return w;
}

static sp_train_state make_state(int64_t step) {
    sp_train_state s = {
        .weights = {.layers = LAYERS, .rows = KV * HEAD, .cols = HIDDEN},
        .step = step,
        .updates = step - 1,
        .samples = step * 32,
        .tokens = INT64_C(5000000000),
        .used_rows = 7,
        .skipped_rows = 1,
        .stage = 2,
        .seed = 0xfedcba9876543210u,
        .config = sp_strdup("base: /models/tiny\nsteps: 10\n# \xc3\xa4\n"),
        .data_identity = sp_strdup("0123456789abcdef"),
        .cpu_blas = sp_strdup("openblas"),
        .base_name = sp_strdup("tiny"),
        .heads = {4, KV, HEAD},
        .hidden = HIDDEN,
        .sparse = {8, 4, 1, 16, 32, 8, 256, 0, 0, 0, SP_FROM_RECIPE, 0, 0, 0},
        .teacher = {2, 1},
        .align = 1,
        .mask_future = true,
        .program = sp_strdup("sparda test"),
    };
    memset(s.base_config_sha256, 'a', 64);
    memset(s.base_weights_sha256, 'b', 64);
    s.weights.w = random_floats((LAYERS + 1) * SIZE, 1);
    s.exp_avg = random_floats(LAYERS * SIZE, 2);
    s.exp_avg_sq = random_floats(LAYERS * SIZE, 3);
    s.weights.w[0] = -0.0f; // bits that a comparison of values would not see
    s.weights.w[1] = 0x1p-149f;
    return s;
}

static bool same_text(const char *a, const char *b) {
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool same_state(const sp_train_state *a, const sp_train_state *b) {
    size_t all = (LAYERS + 1) * SIZE * sizeof(float), trained = LAYERS * SIZE * sizeof(float);
    return a->weights.layers == b->weights.layers && a->weights.rows == b->weights.rows &&
           a->weights.cols == b->weights.cols && memcmp(a->weights.w, b->weights.w, all) == 0 &&
           !a->exp_avg == !b->exp_avg && !a->exp_avg_sq == !b->exp_avg_sq &&
           (!a->exp_avg || (memcmp(a->exp_avg, b->exp_avg, trained) == 0 &&
                            memcmp(a->exp_avg_sq, b->exp_avg_sq, trained) == 0)) &&
           a->step == b->step && a->updates == b->updates && a->samples == b->samples &&
           a->tokens == b->tokens && a->used_rows == b->used_rows &&
           a->skipped_rows == b->skipped_rows && a->stage == b->stage && a->seed == b->seed &&
           same_text(a->config, b->config) && same_text(a->data_identity, b->data_identity) &&
           same_text(a->cpu_blas, b->cpu_blas) && same_text(a->base_name, b->base_name) &&
           strcmp(a->base_config_sha256, b->base_config_sha256) == 0 &&
           strcmp(a->base_weights_sha256, b->base_weights_sha256) == 0 &&
           memcmp(&a->heads, &b->heads, sizeof a->heads) == 0 && a->hidden == b->hidden &&
           memcmp(&a->sparse, &b->sparse, sizeof a->sparse) == 0 &&
           memcmp(&a->teacher, &b->teacher, sizeof a->teacher) == 0 && a->align == b->align &&
           a->mask_future == b->mask_future && same_text(a->program, b->program);
}

// ---- the file -----------------------------------------------------------------------------------

static void round_trip(void **unused) {
    (void)unused;
    char *path = in_tmp("state.h5"), *again = in_tmp("again.h5");
    sp_train_state s = make_state(100), r;
    assert_ok(sp_state_save(path, &s));
    assert_ok(sp_state_load(path, &r));
    assert_true(same_state(&s, &r));

    char *a, *b; // equal states are equal files
    int64_t an, bn;
    assert_ok(sp_state_save(again, &r));
    assert_ok(sp_read_file(path, 1 << 20, &a, &an));
    assert_ok(sp_read_file(again, 1 << 20, &b, &bn));
    assert_int_equal(an, bn);
    assert_memory_equal(a, b, (size_t)an);
    free(a), free(b);

    sp_train_state_free(&r);
    free(s.exp_avg), free(s.exp_avg_sq); // a state without moments, with empty texts
    free(s.cpu_blas);
    s.exp_avg = s.exp_avg_sq = NULL;
    s.cpu_blas = NULL;
    assert_ok(sp_state_save(path, &s));
    assert_ok(sp_state_load(path, &r));
    assert_true(same_state(&s, &r));
    assert_null(r.exp_avg);
    assert_string_equal(r.cpu_blas, "");
    sp_train_state_free(&r);
    sp_train_state_free(&s);
    free(path), free(again);
}

// select_blocks stands in the file of a NOSA backbone only, so that other files are what they were.
static void backbone_of_nosa(void **unused) {
    (void)unused;
    char *path = in_tmp("nosa.h5");
    for (int64_t blocks = 0; blocks < 8; blocks += 7) {
        sp_train_state s = make_state(3), r;
        s.sparse.select_blocks = blocks;
        s.sparse.select_blocks_from = blocks ? SP_FROM_RECIPE : SP_FROM_MODEL;
        assert_ok(sp_state_save(path, &s));
        assert_ok(sp_state_load(path, &r));
        assert_true(same_state(&s, &r));
        sp_h5_begin();
        hid_t f = sp_h5_open_readonly(path), g = H5Gopen2(f, "sparse_config", H5P_DEFAULT);
        assert_int_equal(H5Aexists(g, "select_blocks") > 0, blocks > 0);
        H5Gclose(g);
        H5Fclose(f);
        sp_h5_end();
        json_t *o = sp_state_sparse_json(&s);
        assert_int_equal(json_integer_value(json_object_get(o, "select_blocks")), blocks);
        assert_int_equal(json_object_get(o, "select_blocks") != NULL, blocks > 0);
        json_decref(o);
        sp_train_state_free(&r);
        sp_train_state_free(&s);
    }
    free(path);
}

// What an outside reader sees: names, shapes and true 32-bit floats.
static void layout_for_others(void **unused) {
    (void)unused;
    char *path = in_tmp("layout.h5");
    sp_train_state s = make_state(3);
    assert_ok(sp_state_save(path, &s));
    sp_h5_begin();
    hid_t f = sp_h5_open_readonly(path);
    assert_true(f >= 0);
    static const char *const names[] = {
        "/weights/model.layers.0.self_attn.q_curr_proj.weight",
        "/weights/model.layers.0.self_attn.q_future_proj.weight",
        "/weights/model.layers.2.self_attn.q_future_proj.weight",
        "/exp_avg/model.layers.1.self_attn.q_future_proj.weight",
        "/exp_avg_sq/model.layers.0.self_attn.q_curr_proj.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        hid_t d = H5Dopen2(f, names[i], H5P_DEFAULT);
        if (d < 0) fail_msg("%s is missing", names[i]);
        hid_t t = H5Dget_type(d), space = H5Dget_space(d);
        hsize_t shape[2];
        assert_true(H5Tequal(t, H5T_IEEE_F32LE) > 0);
        assert_int_equal(H5Sget_simple_extent_dims(space, shape, NULL), 2);
        assert_int_equal(shape[0], KV * HEAD);
        assert_int_equal(shape[1], HIDDEN);
        float w[SIZE];
        assert_true(H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, w) >= 0);
        // scored layers: current = 0, future of layer 0 = 1, future of layer 2 = 3
        static const int scored[] = {0, 1, 3, 2, 0};
        const float *want = (i < 3 ? s.weights.w : i == 3 ? s.exp_avg : s.exp_avg_sq);
        assert_memory_equal(w, want + scored[i] * SIZE, sizeof w);
        H5Sclose(space), H5Tclose(t), H5Dclose(d);
    }
    // the last layer's projection is not trained and has no moments
    assert_int_equal(
        H5Lexists(f, "/exp_avg/model.layers.2.self_attn.q_future_proj.weight", H5P_DEFAULT), 0);
    H5Fclose(f);
    sp_h5_end();
    sp_train_state_free(&s);
    free(path);
}

static void truncated(void **unused) {
    (void)unused;
    char *path = in_tmp("whole.h5"), *cut = in_tmp("cut.h5"), *bytes;
    sp_train_state s = make_state(5), r;
    int64_t n;
    assert_ok(sp_state_save(path, &s));
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &n));
    for (int64_t len = 0; len < n; len += len < 64 || len > n - 64 ? 1 : 97) {
        assert_ok(sp_write_file(cut, bytes, len));
        sp_status st = sp_state_load(cut, &r);
        if (st != SP_BAD_INPUT)
            fail_msg("cut to %lld of %lld bytes: status %d", (long long)len, (long long)n, st);
        assert_non_null(strstr(sp_error_text(), "cut.h5"));
        assert_null(r.weights.w);
    }
    sp_train_state_free(&s);
    free(bytes), free(path), free(cut);
}

// Every third byte is changed once, in another bit each time: the load fails, or what it gives is
// exactly what was saved.
static void flipped(void **unused) {
    (void)unused;
    char *path = in_tmp("whole2.h5"), *bad = in_tmp("flipped.h5"), *bytes;
    sp_train_state s = make_state(6), r;
    int64_t n, refused = 0, harmless = 0;
    assert_ok(sp_state_save(path, &s));
    assert_ok(sp_state_load(path, &r));
    assert_true(same_state(&s, &r));
    sp_train_state_free(&r);
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &n));
    for (int64_t i = 0; i < n; i += 3) {
        bytes[i] ^= (char)(1 << (i % 8));
        FILE *f = fopen(bad, "wb"); // no sync: thousands of files
        assert_int_equal(fwrite(bytes, 1, (size_t)n, f), n);
        fclose(f);
        bytes[i] ^= (char)(1 << (i % 8));
        if (sp_state_load(bad, &r) == SP_OK) {
            if (!same_state(&s, &r)) fail_msg("a flip in byte %lld was not seen", (long long)i);
            harmless++;
            sp_train_state_free(&r);
        } else {
            refused++;
        }
    }
    print_message("%lld bytes: %lld flips refused, %lld harmless\n", (long long)n,
                  (long long)refused, (long long)harmless);
    // at least all tensor bytes must be among the refused
    assert_true(refused > (int64_t)((3 * LAYERS + 1) * SIZE * sizeof(float) / 3));
    sp_train_state_free(&s);
    free(bytes), free(path), free(bad);
}

static void damage_names_the_tensor(void **unused) {
    (void)unused;
    char *path = in_tmp("named.h5"), *bytes;
    sp_train_state s = make_state(6), r;
    int64_t n;
    assert_ok(sp_state_save(path, &s));
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &n));
    // the bytes of exp_avg of scored layer 2, as they lie in the file
    char *at = memmem(bytes, (size_t)n, s.exp_avg + 2 * SIZE, SIZE * sizeof(float));
    assert_non_null(at);
    at[17] ^= 4;
    assert_ok(sp_write_file(path, bytes, n));
    assert_fails(sp_state_load(path, &r), SP_BAD_INPUT,
                 "exp_avg/model.layers.1.self_attn.q_future_proj.weight does not match its "
                 "checksum");
    sp_train_state_free(&s);
    free(bytes), free(path);
}

static void wrong_files(void **unused) {
    (void)unused;
    sp_train_state r;
    char *path = in_tmp("wrong.h5"), *missing = in_tmp("missing.h5");
    assert_fails(sp_state_load(missing, &r), SP_BAD_INPUT, "does not exist");
    assert_fails(sp_state_load(test_tmpdir(), &r), SP_BAD_INPUT, "is a folder");
    assert_ok(sp_write_file(path, "version https://git-lfs", 23));
    assert_fails(sp_state_load(path, &r), SP_BAD_INPUT, "not a complete HDF5 file");
    sp_h5_begin();
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(f);
    sp_h5_end();
    assert_fails(sp_state_load(path, &r), SP_BAD_INPUT, "no training state");
    free(path), free(missing);
}

// A part that a link or its storage would fetch from another, right file.
static void a_state_opens_no_other_file(void **unused) {
    (void)unused;
    char *path = in_tmp("links.h5"), *other = in_tmp("right.h5");
    static const char *const names[] = {"base", "weights", "config",
                                        "weights/model.layers.0.self_attn.q_future_proj.weight"};
    sp_train_state s = make_state(6), r;
    assert_ok(sp_state_save(other, &s));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_ok(sp_state_save(path, &s));
        sp_h5_begin();
        hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        assert_true(H5Ldelete(f, names[i], H5P_DEFAULT) >= 0);
        assert_true(H5Lcreate_external(other, names[i], f, names[i], H5P_DEFAULT, H5P_DEFAULT) >=
                    0);
        H5Fclose(f);
        sp_h5_end();
        assert_fails(sp_state_load(path, &r), SP_BAD_INPUT, "a link");
    }
    assert_ok(sp_state_save(path, &s));
    sp_h5_begin();
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), plist = H5Pcreate(H5P_DATASET_CREATE);
    hid_t d = H5Dopen2(f, names[3], H5P_DEFAULT), type = H5Dget_type(d), space = H5Dget_space(d);
    H5Dclose(d);
    H5Ldelete(f, names[3], H5P_DEFAULT);
    H5Pset_external(plist, other, 0, H5F_UNLIMITED);
    d = H5Dcreate2(f, names[3], type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    assert_true(d >= 0);
    H5Dclose(d), H5Sclose(space), H5Tclose(type), H5Pclose(plist), H5Fclose(f);
    sp_h5_end();
    assert_fails(sp_state_load(path, &r), SP_BAD_INPUT, "not stored in one piece");
    sp_train_state_free(&s);
    free(path), free(other);
}

// One tensor exchanged for another of the same shape, checksum included: the end mark sees it.
static void exchanged_tensor(void **unused) {
    (void)unused;
    char *path = in_tmp("swapped.h5");
    sp_train_state s = make_state(6), r;
    assert_ok(sp_state_save(path, &s));
    sp_h5_begin();
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(f >= 0);
    const char *a = "/weights/model.layers.0.self_attn.q_future_proj.weight",
               *b = "/weights/model.layers.1.self_attn.q_future_proj.weight";
    assert_true(H5Lmove(f, a, f, "/weights/x", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lmove(f, b, f, a, H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lmove(f, "/weights/x", f, b, H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(f);
    sp_h5_end();
    assert_fails(sp_state_load(path, &r), SP_BAD_INPUT, "end_mark");
    sp_train_state_free(&s);
    free(path);
}

// Sizes that fit nothing, up to the largest numbers there are.
static void sizes_out_of_range(void **unused) {
    (void)unused;
    static const char *const names[] = {"layers", "hidden", "kv_heads", "head_dim"};
    static const int64_t values[] = {INT64_MAX, INT64_MAX - 1, INT64_MAX / 2, 1 << 20, 0,
                                     -1,        INT64_MIN};
    char *path = in_tmp("sizes.h5");
    sp_train_state s = make_state(6), r;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            assert_ok(sp_state_save(path, &s));
            sp_h5_begin();
            hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
            hid_t base = H5Gopen2(f, "base", H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
            assert_true(H5Adelete(base, names[i]) >= 0);
            hid_t a = H5Acreate2(base, names[i], H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
            assert_true(a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, &values[k]) >= 0);
            H5Aclose(a), H5Sclose(space), H5Gclose(base);
            H5Fclose(f);
            sp_h5_end();
            assert_fails(sp_state_load(path, &r), SP_BAD_INPUT, "base");
        }
    sp_train_state_free(&s);
    free(path);
}

static void save_failures(void **unused) {
    (void)unused;
    sp_train_state s = make_state(1);
    char *path = in_tmp("no/such/folder/x.h5");
    assert_fails(sp_state_save(path, &s), SP_ENVIRONMENT, "no/such/folder");
    s.hidden++;
    assert_fails(sp_state_save(path, &s), SP_ENVIRONMENT, "contradicts itself");
    s.hidden--;
    sp_train_state_free(&s);
    free(path);
}

static void wrong_base(void **unused) {
    (void)unused;
    sp_train_state s = make_state(1);
    sp_model_desc d = {
        .dir = "other", .layers = LAYERS, .hidden = HIDDEN, .heads = s.heads, .sparse = s.sparse};
    strcpy(d.config_sha256, s.base_config_sha256);
    assert_ok(sp_state_check_base(&s, &d, s.base_weights_sha256));
    assert_ok(sp_state_check_base(&s, &d, NULL));
    d.layers++;
    d.heads.head_dim = 8;
    d.sparse.topk = 9;
    d.config_sha256[5] = 'f';
    assert_fails(sp_state_check_base(&s, &d, "c"), SP_BAD_INPUT, "layers: 3 in the checkpoint, 4");
    static const char *const parts[] = {"config.json", "SHA-256 of the weights", "head size: 4",
                                        "sparse_config.topk: 8"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(sp_error_text(), parts[i]))
            fail_msg("'%s' is missing in: %s", parts[i], sp_error_text());
    assert_null(strstr(sp_error_text(), "hidden size"));
    sp_train_state_free(&s);
}

// ---- the run folder -----------------------------------------------------------------------------

static char *make_run(const char *name, const int64_t *steps, int n) {
    char *run = in_tmp(name), *dir = sp_path_join(run, "checkpoints");
    assert_ok(sp_mkdirs(dir));
    for (int i = 0; i < n; i++) {
        sp_train_state s = make_state(steps[i]);
        char *path = sp_checkpoint_path(run, steps[i]);
        assert_ok(sp_state_save(path, &s));
        sp_train_state_free(&s);
        free(path);
    }
    free(dir);
    return run;
}

static bool there(const char *run, int64_t step) {
    char *path = sp_checkpoint_path(run, step);
    bool yes = sp_path_is_file(path);
    free(path);
    return yes;
}

// bugs.md S25: by number, whatever the names' order and the time stamps say.
static void rotation(void **unused) {
    (void)unused;
    static const int64_t steps[] = {900, 1000, 1100, 9999999, 10000000};
    char *run = make_run("rotation", steps, 5);
    for (int i = 0; i < 5; i++) { // time stamps reversed
        char *p = sp_checkpoint_path(run, steps[i]);
        struct timeval t[2] = {{2000 - i, 0}, {2000 - i, 0}};
        assert_int_equal(utimes(p, t), 0);
        free(p);
    }
    char *newest;
    assert_ok(sp_newest_checkpoint(run, &newest));
    assert_string_equal(sp_path_base(newest), "step-10000000.h5");
    free(newest);

    assert_ok(sp_rotate_checkpoints(run, 0, 0, NULL, NULL)); // 0: all stay
    for (int i = 0; i < 5; i++) assert_true(there(run, steps[i]));

    char *resumed = sp_checkpoint_path(run, 900);
    assert_ok(sp_rotate_checkpoints(run, 2, 500, NULL, resumed));
    assert_true(there(run, 900));   // resumed from
    assert_true(there(run, 1000));  // divisible by 500
    assert_false(there(run, 1100)); // neither
    assert_true(there(run, 9999999) && there(run, 10000000));

    // just written after a resume from an early step: the lowest number of all
    sp_train_state s = make_state(901);
    char *written = sp_checkpoint_path(run, 901);
    assert_ok(sp_state_save(written, &s));
    sp_train_state_free(&s);
    assert_ok(sp_rotate_checkpoints(run, 1, 0, written, NULL));
    assert_true(there(run, 901));
    assert_false(there(run, 900));
    // those of before it went back: neither counted nor removed
    assert_true(there(run, 1000) && there(run, 9999999) && there(run, 10000000));

    // `latest` stays whatever the rest says
    assert_ok(sp_latest_write(run, written));
    assert_ok(sp_rotate_checkpoints(run, 1, 0, NULL, NULL));
    assert_true(there(run, 901) && there(run, 10000000));
    free(written), free(resumed), free(run);
}

static void broken_checkpoints(void **unused) {
    (void)unused;
    static const int64_t steps[] = {900, 1000, 1100};
    char *run = make_run("broken", steps, 3), *newest, *bytes;
    int64_t n;
    char *p = sp_checkpoint_path(run, 1100);
    assert_ok(sp_read_file(p, 1 << 20, &bytes, &n));
    assert_ok(sp_write_file(p, bytes, n / 2));
    assert_ok(sp_newest_checkpoint(run, &newest)); // warns about 1100
    assert_string_equal(sp_path_base(newest), "step-0001000.h5");
    free(newest);
    // the broken one neither counts among the two to be kept nor is it removed
    assert_ok(sp_rotate_checkpoints(run, 2, 0, NULL, NULL));
    assert_true(there(run, 900) && there(run, 1000) && there(run, 1100));

    // names that are no checkpoints, and leftovers of killed writers
    char *odd = sp_path_join(run, "checkpoints/step-12x.h5"),
         *left = sp_path_join(run, "checkpoints/.step-0001200.h5.tmp.1"),
         *other = sp_path_join(run, "checkpoints/.step-notes");
    assert_ok(sp_write_file(odd, "x", 1));
    assert_ok(sp_write_file(left, "x", 1));
    assert_ok(sp_write_file(other, "x", 1));
    assert_ok(sp_rotate_checkpoints(run, 1, 0, NULL, NULL));
    assert_true(sp_path_is_file(odd) && sp_path_is_file(other));
    assert_false(sp_path_is_file(left));
    assert_false(there(run, 900));
    free(odd), free(left), free(other), free(bytes), free(p), free(run);

    char *empty = in_tmp("nothing");
    assert_ok(sp_mkdirs(empty));
    assert_ok(sp_newest_checkpoint(empty, &newest));
    assert_null(newest);
    free(empty);
}

static void latest(void **unused) {
    (void)unused;
    static const int64_t steps[] = {20};
    char *run = make_run("latest", steps, 1), *path,
         *file = sp_path_join(run, "checkpoints/latest");
    assert_ok(sp_latest_read(run, &path));
    assert_null(path);
    char *p = sp_checkpoint_path(run, 20), *text;
    int64_t n;
    assert_ok(sp_latest_write(run, p));
    assert_ok(sp_read_file(file, 100, &text, &n));
    assert_string_equal(text, "step-0000020.h5\n");
    assert_ok(sp_latest_read(run, &path));
    assert_string_equal(path, p);
    free(path);
    assert_ok(sp_write_file(file, "../../etc/passwd\n", 17));
    assert_fails(sp_latest_read(run, &path), SP_BAD_INPUT, "latest should hold a name");
    free(text), free(p), free(file), free(run);
}

// A writer killed at any moment leaves the older file or the newer one, whole (bugs.md S21).
static void killed_while_saving(void **unused) {
    (void)unused;
    static const int64_t steps[] = {1};
    char *run = make_run("killed", steps, 1), *path = sp_checkpoint_path(run, 1);
    int older = 0, newer = 0;
    for (int moment = 0; moment < 20; moment++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            sp_train_state s = make_state(1);
            for (s.samples = 100;; s.samples++)
                if (sp_state_save(path, &s) != SP_OK) _exit(1);
        }
        usleep((useconds_t)(1000 + 3000 * moment));
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status));
        sp_train_state r;
        assert_ok(sp_state_load(path, &r));
        assert_int_equal(r.step, 1);
        r.samples == 32 ? older++ : newer++;
        sp_train_state_free(&r);
    }
    print_message("killed 20 writers: %d times the first file, %d times a later one\n", older,
                  newer);
    assert_ok(sp_rotate_checkpoints(run, 1, 0, path, NULL));
    char *dir = sp_path_join(run, "checkpoints");
    char command[512];
    snprintf(command, sizeof command, "test -z \"$(ls -A %s | grep tmp)\"", dir);
    assert_int_equal(system(command), 0);
    free(dir), free(path), free(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(backbone_of_nosa),
        cmocka_unit_test(layout_for_others),
        cmocka_unit_test(truncated),
        cmocka_unit_test(flipped),
        cmocka_unit_test(damage_names_the_tensor),
        cmocka_unit_test(sizes_out_of_range),
        cmocka_unit_test(a_state_opens_no_other_file),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(exchanged_tensor),
        cmocka_unit_test(save_failures),
        cmocka_unit_test(wrong_base),
        cmocka_unit_test(rotation),
        cmocka_unit_test(broken_checkpoints),
        cmocka_unit_test(latest),
        cmocka_unit_test(killed_while_saving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
