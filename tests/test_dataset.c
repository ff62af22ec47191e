// A data set: what a path can be, problems together, missing parts, proportions, identity, threads.
#include "tests/shards.h"

#include "common/log.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

static const sp_dataset_options plain = {0};

static char *inside(const char *relative) {
    return sp_path_join(test_tmpdir(), relative);
}

static void copy_file(const char *from, const char *to) {
    char *bytes, *dir = sp_path_dir(to);
    int64_t n;
    assert_ok(sp_read_file(from, 1 << 24, &bytes, &n));
    assert_ok(sp_mkdirs(dir));
    assert_ok(sp_write_file(to, bytes, n));
    free(bytes);
    free(dir);
}

// The MDS domain `ledger` of the fixtures under another name.
static void copy_domain(const char *to) {
    char *from = test_path("tests/mds/raw/ledger"), *dir = inside(to), **name;
    int64_t n;
    assert_ok(sp_list_dir(from, "", &name, &n));
    for (int64_t i = 0; i < n; i++) {
        char *a = sp_path_join(from, name[i]), *b = sp_path_join(dir, name[i]);
        copy_file(a, b);
        free(a);
        free(b);
    }
    sp_free_names(name, n);
    free(from);
    free(dir);
}

static void a_path_may_be_a_file_a_folder_a_domain_or_a_root(void **state) {
    (void)state;
    free(make_even_shard("kinds/shards/b.h5", 1, 3, 5));
    free(make_even_shard("kinds/shards/a.h5", 0, 2, 5));
    free(make_even_shard("kinds/shards/c.hdf5", 2, 1, 5));
    char *note = inside("kinds/shards/notes.txt");
    assert_ok(sp_write_file(note, "x", 1));
    copy_domain("kinds/mds");
    char *file = inside("kinds/shards/b.h5"), *folder = inside("kinds/shards/");
    char *mds = inside("kinds/mds"), *root = inside("kinds");
    const char *paths[4] = {file, folder, mds, root};
    sp_dataset *d;
    assert_ok(open_paths(paths, NULL, 4, plain, &d));
    assert_int_equal(sp_dataset_entries(d), 4);
    const int64_t rows[4] = {3, 6, 40, 46};
    for (int64_t e = 0; e < 4; e++) {
        assert_int_equal(sp_dataset_rows(d, e), rows[e]);
        assert_string_equal(sp_dataset_entry_path(d, e), paths[e]);
        assert_true(fabs(sp_dataset_proportion(d, e) - (double)rows[e] / 95) < 1e-15);
    }
    // The folder: a, b, c in name order. The root: mds before shards.
    static const int64_t where[6][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}, {2, 0}};
    for (int64_t r = 0; r < 6; r++) {
        int32_t t[5];
        int64_t n;
        assert_ok(sp_dataset_read(d, 1, r, 5, t, &n));
        assert_row(t, 5, where[r][0], where[r][1]);
        assert_ok(sp_dataset_read(d, 3, 40 + r, 5, t, &n));
        assert_row(t, 5, where[r][0], where[r][1]);
    }
    sp_dataset_info info;
    assert_ok(sp_dataset_describe(d, &info));
    assert_int_equal(info.rows, 95);
    assert_int_equal(info.n_files, 1 + 3 + 4 + 7);
    assert_int_equal(info.n_domains, 3); // even, odd, mds: one domain of a name
    sp_dataset_info_free(&info);
    sp_dataset_close(d);
    free(note);
    free(file);
    free(folder);
    free(mds);
    free(root);
}

static void all_problems_come_together(void **state) {
    (void)state;
    free(make_even_shard("bad/good.h5", 0, 2, 5));
    char *junk = inside("bad/junk.h5"), *none = inside("bad/none"), *both = inside("both");
    assert_ok(sp_write_file(junk, "junk", 4));
    copy_domain("both");
    free(make_even_shard("both/a.h5", 0, 2, 5));
    char *empty = inside("empty"), *text = inside("text.bin");
    assert_ok(sp_mkdirs(empty));
    assert_ok(sp_write_file(text, "junk", 4));
    const char *paths[5] = {junk, none, both, empty, text};
    sp_dataset *d;
    assert_fails(open_paths(paths, (double[]){1, 0, -1, NAN, 1}, 5, plain, &d), SP_BAD_INPUT,
                 "bad/junk.h5: expected an HDF5 token shard");
    static const char *const parts[] = {"bad/none does not exist",
                                        "both holds both index.json and *.h5",
                                        "empty holds neither *.h5 files nor index.json",
                                        "text.bin: expected",
                                        "both: proportion -1",
                                        "empty: proportion nan",
                                        "none has no proportion"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(sp_error_text(), parts[i]))
            fail_msg("missing \"%s\" in: %s", parts[i], sp_error_text());
    const sp_data_list no_entries = {NULL, 0};
    assert_fails(sp_dataset_open(&no_entries, &plain, &d), SP_BAD_INPUT, "no data was given");
    free(junk);
    free(none);
    free(both);
    free(empty);
    free(text);
}

// bugs.md S10: three domains, one without index, with an empty one, without shards, misspelt.
static void a_missing_domain_is_an_error_unless_allowed(void **state) {
    (void)state;
    static const char *const index[] = {NULL, "{}", "{\"version\": 2, \"shards\": []}"};
    sp_dataset_options allow = {.allow_missing = true};
    sp_dataset *d;
    copy_domain("three/alpha");
    copy_domain("three/beta");
    char *root = inside("three"), *gamma = inside("three/gamma"),
         *path = inside("three/gamma/index.json");
    const char *one = root;
    assert_ok(sp_mkdirs(gamma));
    for (int i = 0; i < 3; i++) {
        if (index[i]) assert_ok(sp_write_file(path, index[i], (int64_t)strlen(index[i])));
        assert_fails(open_paths(&one, NULL, 1, plain, &d), SP_BAD_INPUT, "three/gamma");
        assert_ok(open_paths(&one, NULL, 1, allow, &d));
        assert_int_equal(sp_dataset_rows(d, 0), 80);
        sp_dataset_close(d);
        const char *alone = gamma; // nothing else is left
        assert_fails(open_paths(&alone, NULL, 1, plain, &d), SP_BAD_INPUT, "three/gamma");
        assert_fails(open_paths(&alone, NULL, 1, allow, &d), SP_BAD_INPUT, "no data is left");
    }
    assert_ok(sp_write_file(path, "{\"version\": 2,", 14)); // broken is not missing
    assert_fails(open_paths(&one, NULL, 1, allow, &d), SP_BAD_INPUT, "not valid JSON");

    char *alpha = inside("three/alpha"), *beta = inside("three/beta"), *typo = inside("three/bate");
    const char *paths[3] = {alpha, typo, beta};
    const double p[3] = {0.6, 0.2, 0.2};
    assert_fails(open_paths(paths, p, 3, plain, &d), SP_BAD_INPUT, "three/bate does not exist");
    assert_ok(open_paths(paths, p, 3, allow, &d));
    assert_int_equal(sp_dataset_entries(d), 2);
    assert_string_equal(sp_dataset_entry_path(d, 1), beta);
    assert_true(fabs(sp_dataset_proportion(d, 0) - 0.75) < 1e-15); // the rest renormalised
    assert_true(fabs(sp_dataset_proportion(d, 1) - 0.25) < 1e-15);
    sp_dataset_close(d);
    free(root);
    free(gamma);
    free(path);
    free(alpha);
    free(beta);
    free(typo);
}

static void a_shard_without_rows_is_missing_data(void **state) {
    (void)state;
    char *path = make_shard("norows.h5", 0, 0, NULL);
    sp_dataset *d;
    assert_fails(open_path(path, &d), SP_BAD_INPUT, "norows.h5 holds no rows");
    free(path);
}

static void ids_are_compared_with_the_vocabulary(void **state) {
    (void)state;
    char *path = test_path("tests/mds/raw/ledger");
    const char *one = path;
    sp_dataset *d;
    int32_t t[300];
    int64_t n;
    assert_ok(open_paths(&one, NULL, 1, (sp_dataset_options){.vocab = 500}, &d));
    assert_fails(sp_dataset_read(d, 0, 0, 300, t, &n), SP_BAD_INPUT, "outside 0..499");
    assert_non_null(strstr(sp_error_text(), "ledger/shard.00000.mds: row 0, position "));
    assert_non_null(strstr(sp_error_text(), "vocabulary of the model"));
    int64_t at = strtoll(strstr(sp_error_text(), "position ") + 9, NULL, 10);
    int64_t id = strtoll(strstr(sp_error_text(), "token id ") + 9, NULL, 10);
    sp_dataset_close(d);
    assert_ok(open_paths(&one, NULL, 1, (sp_dataset_options){.vocab = 1024}, &d));
    assert_ok(sp_dataset_read(d, 0, 0, 300, t, &n));
    assert_int_equal(t[at], id);
    for (int64_t i = 0; i < at; i++) assert_in_range(t[i], 0, 499);
    sp_dataset_close(d);
    free(path);

    path = make_even_shard("vocab.h5", 0, 2, 5); // states 1000
    one = path;
    assert_fails(open_paths(&one, NULL, 1, (sp_dataset_options){.vocab = 999}, &d), SP_BAD_INPUT,
                 "made for a vocabulary of 1000 tokens ('test'), the model has 999");
    assert_ok(open_paths(&one, NULL, 1, (sp_dataset_options){.vocab = 1000}, &d));
    sp_dataset_close(d);
    free(path);
}

static void identity_tells_names_sizes_and_rows(void **state) {
    (void)state;
    char first[65], again[65], *a = make_even_shard("id/x/a.h5", 0, 2, 5), *dir = sp_path_dir(a);
    sp_dataset *d;
    assert_ok(open_path(dir, &d));
    assert_ok(sp_dataset_identity(d, true, first));
    sp_dataset_close(d);
    char *moved = inside("id/y");
    assert_int_equal(rename(dir, moved), 0); // the same data in another place
    assert_ok(open_path(moved, &d));
    assert_ok(sp_dataset_identity(d, true, again));
    sp_dataset_close(d);
    assert_string_equal(first, again);
    free(make_even_shard("id/y/a.h5", 0, 3, 5)); // another row
    assert_ok(open_path(moved, &d));
    assert_ok(sp_dataset_identity(d, true, again));
    sp_dataset_close(d);
    assert_string_not_equal(first, again);
    free(make_even_shard("id/y/a.h5", 0, 2, 5));
    free(make_even_shard("id/y/b.h5", 0, 2, 5)); // another file
    assert_ok(open_path(moved, &d));
    assert_ok(sp_dataset_identity(d, true, again));
    sp_dataset_close(d);
    assert_string_not_equal(first, again);
    char *b = inside("id/y/b.h5"), early[65];
    assert_int_equal(unlink(b), 0);
    assert_ok(open_path(moved, &d));
    assert_ok(sp_dataset_identity(d, false, early));
    sp_dataset_close(d);
    free(make_even_shard("id/y/a.h5", 1, 2, 5)); // other tokens, the same name and size
    assert_ok(open_path(moved, &d));
    assert_ok(sp_dataset_identity(d, true, again));
    sp_dataset_close(d);
    assert_string_not_equal(first, again);
    assert_ok(open_path(moved, &d));
    assert_ok(sp_dataset_identity(d, false, again)); // that of early programs does not see it
    sp_dataset_close(d);
    assert_string_equal(early, again);
    free(b);
    free(a);
    free(dir);
    free(moved);
}

// ---- threads
// -------------------------------------------------------------------------------------

enum { FILES = 90, ROWS = 4 }; // more files than are kept open

typedef struct reader {
    pthread_t thread;
    const sp_dataset *d;
    uint64_t seed;
    bool ok;
} reader;

static void *read_everywhere(void *arg) {
    reader *r = arg;
    r->ok = true;
    for (int i = 0; i < 500; i++) {
        int64_t row = (int64_t)(test_random(&r->seed) % (FILES * ROWS)), n;
        int32_t t[16];
        if (sp_dataset_read(r->d, 0, row, 16, t, &n) != SP_OK || n != 16) r->ok = false;
        for (int64_t p = 0; r->ok && p < 16; p++)
            if (t[p] != shard_token(row / ROWS, row % ROWS, p)) r->ok = false;
    }
    return NULL;
}

static void many_threads_read_many_files(void **state) {
    (void)state;
    for (int f = 0; f < FILES; f++) {
        char name[32];
        snprintf(name, sizeof name, "many/%03d.h5", f);
        free(make_even_shard(name, f, ROWS, 16));
    }
    char *dir = inside("many");
    sp_dataset *d;
    assert_ok(open_path(dir, &d));
    reader r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = (reader){.d = d, .seed = (uint64_t)i};
        assert_int_equal(pthread_create(&r[i].thread, NULL, read_everywhere, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(r[i].thread, NULL);
        assert_true(r[i].ok);
    }
    sp_dataset_close(d);
    free(dir);
}

int main(void) {
    sp_log_open(1, NULL, true); // warnings are part of what is tested, but not to be read
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_may_be_a_file_a_folder_a_domain_or_a_root),
        cmocka_unit_test(all_problems_come_together),
        cmocka_unit_test(a_missing_domain_is_an_error_unless_allowed),
        cmocka_unit_test(a_shard_without_rows_is_missing_data),
        cmocka_unit_test(ids_are_compared_with_the_vocabulary),
        cmocka_unit_test(identity_tells_names_sizes_and_rows),
        cmocka_unit_test(many_threads_read_many_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
