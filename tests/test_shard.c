// HDF5 token shards: round trip, foreign and faulty files, checksums, disk limits, locks.
#include "tests/shards.h"

#include "common/h5.h"
#include "common/hash.h"
#include "data/shard.h"
#include "data/source.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// ---- round trip --------------------------------------------------------------------------------

// Lengths around the chunk of 2^18 tokens, and more rows than the block of 8192.
static void every_row_comes_back(void **state) {
    (void)state;
    enum { ROWS = 9000 };
    int64_t *length = malloc(ROWS * sizeof *length), total = 0;
    for (int64_t r = 0; r < ROWS; r++) length[r] = 1 + r % 7;
    length[0] = 262143; // one short of a chunk: row 1 crosses it
    length[1] = 2;
    length[5000] = 300000;
    length[ROWS - 1] = 1;
    for (int64_t r = 0; r < ROWS; r++) total += length[r];
    char *path = make_shard("round.h5", 3, ROWS, length);

    sp_dataset *d;
    assert_ok(open_path(path, &d));
    assert_int_equal(sp_dataset_entries(d), 1);
    assert_int_equal(sp_dataset_rows(d, 0), ROWS);
    int32_t *t = malloc(300001 * sizeof *t);
    for (int64_t r = 0; r < ROWS; r++) {
        int64_t n;
        assert_ok(sp_dataset_row_length(d, 0, r, &n));
        assert_int_equal(n, length[r]);
        t[length[r]] = 77777;
        assert_ok(sp_dataset_read(d, 0, r, 300000, t, &n));
        assert_int_equal(n, length[r]);
        assert_row(t, n, 3, r);
        assert_int_equal(t[length[r]], 77777);
    }
    int64_t n;
    t[10] = 77777;
    assert_ok(sp_dataset_read(d, 0, 5000, 10, t, &n)); // cut
    assert_int_equal(n, 10);
    assert_row(t, n, 3, 5000);
    assert_int_equal(t[10], 77777);
    assert_fails(sp_dataset_read(d, 0, ROWS, 10, t, &n), SP_ENVIRONMENT, "does not exist");

    sp_dataset_info info;
    assert_ok(sp_dataset_describe(d, &info));
    assert_int_equal(info.rows, ROWS);
    assert_int_equal(info.tokens, total);
    assert_int_equal(info.min_length, 1);
    assert_int_equal(info.max_length, 300000);
    assert_int_equal(info.n_domains, 2);
    assert_string_equal(info.domain[1].name, "odd");
    assert_int_equal(info.domain[1].rows, ROWS / 2);
    assert_int_equal(info.domain[0].tokens + info.domain[1].tokens, total);
    assert_string_equal(info.tokenizer, "test");
    assert_int_equal(info.vocab, 1000);
    sp_dataset_info_free(&info);
    sp_dataset_close(d);

    int64_t checked;
    assert_ok(sp_shard_verify(path, &checked));
    assert_int_equal(checked, (total + 262143) / 262144 + 2 + 2); // offsets 9001, domain 9000
    free(t);
    free(length);
    free(path);
}

static void equal_rows_give_equal_files(void **state) {
    (void)state;
    char *a = make_even_shard("equal-a.h5", 1, 20, 33), *bytes;
    const struct timespec pause = {.tv_nsec = 20000000};
    for (time_t then = time(NULL); time(NULL) == then;) nanosleep(&pause, NULL); // no time is kept
    char *b = make_even_shard("equal-b.h5", 1, 20, 33);
    char ha[SP_SHA256_HEX], hb[SP_SHA256_HEX];
    int64_t n;
    assert_ok(sp_read_file(a, 1 << 24, &bytes, &n));
    assert_true(n > 9 && bytes[8] >= 2); // of a superblock with checksums
    free(bytes);
    assert_ok(sp_sha256_file(a, ha));
    assert_ok(sp_sha256_file(b, hb));
    assert_string_equal(ha, hb);
    free(a);
    free(b);
}

static void a_shard_is_complete_or_absent(void **state) {
    (void)state;
    char *dir = sp_path_join(test_tmpdir(), "absent"), *path = sp_path_join(dir, "x.h5");
    assert_ok(sp_mkdirs(dir));
    const char *const domains[] = {"d"};
    sp_shard_meta meta = {"test", 1000, domains, 1};
    sp_shard_writer *w;
    int32_t t[4] = {0, 1, 2, 999};
    assert_ok(sp_shard_create(path, &meta, &w));
    assert_ok(sp_shard_append(w, t, 4, 0));
    assert_false(sp_path_is_file(path));
    assert_fails(sp_shard_append(w, t, 0, 0), SP_BAD_INPUT, "row 1 has 0 tokens");
    assert_fails(sp_shard_append(w, t, 4, 1), SP_BAD_INPUT, "domain 1");
    t[2] = 1000;
    assert_fails(sp_shard_append(w, t, 4, 0), SP_BAD_INPUT, "row 1, position 2: token id 1000");
    t[2] = -1;
    assert_fails(sp_shard_append(w, t, 4, 0), SP_BAD_INPUT, "token id -1");
    sp_shard_abandon(w);
    assert_int_equal(rmdir(dir), 0); // nothing left, hidden files included

    meta.vocab = -1;
    assert_fails(sp_shard_create(path, &meta, &w), SP_BAD_INPUT, "vocabulary of -1");
    meta.vocab = 1000;
    assert_fails(sp_shard_create(path, &meta, &w), SP_ENVIRONMENT, "absent/x.h5");
    free(path);
    free(dir);
}

// A list that grows with the input is no attribute (bugs.md S14).
static void thousands_of_domain_names_fit(void **state) {
    (void)state;
    enum { N = 3000 };
    char **name = malloc(N * sizeof *name);
    for (int i = 0; i < N; i++) name[i] = sp_format("%060d", i);
    sp_shard_meta meta = {"test", 10, (const char *const *)name, N};
    char *path = sp_path_join(test_tmpdir(), "many.h5");
    sp_shard_writer *w;
    assert_ok(sp_shard_create(path, &meta, &w));
    for (int i = 0; i < N; i++) assert_ok(sp_shard_append(w, &(int32_t){i % 10}, 1, i));
    assert_ok(sp_shard_finish(w));
    sp_dataset *d;
    sp_dataset_info info;
    assert_ok(open_path(path, &d));
    assert_ok(sp_dataset_describe(d, &info));
    assert_int_equal(info.n_domains, N);
    assert_string_equal(info.domain[2999].name, name[2999]);
    sp_dataset_info_free(&info);
    sp_dataset_close(d);
    for (int i = 0; i < N; i++) free(name[i]);
    free(name);
    free(path);
}

// ---- damage ------------------------------------------------------------------------------------

static void a_flipped_bit_is_found(void **state) {
    (void)state;
    char *path = make_even_shard("flip.h5", 0, 8, 100), *bytes;
    int64_t len, checked;
    assert_ok(sp_read_file(path, 1 << 24, &bytes, &len));
    const int32_t row3[4] = {shard_token(0, 3, 50), shard_token(0, 3, 51), shard_token(0, 3, 52),
                             shard_token(0, 3, 53)};
    // Rows repeat one another shifted; the first place is row 0, which has these tokens later.
    uint8_t *at = memmem(bytes, (size_t)len, row3, sizeof row3);
    assert_non_null(at);
    at[0] ^= 1;
    assert_ok(sp_write_file(path, bytes, len));
    assert_fails(sp_shard_verify(path, &checked), SP_BAD_INPUT, "'tokens' is damaged");
    at[0] ^= 1;

    const uint64_t offsets[3] = {100, 200, 300};
    at = memmem(bytes, (size_t)len, offsets, sizeof offsets);
    assert_non_null(at);
    at[0] = 101; // still in order: only the checksum tells
    assert_ok(sp_write_file(path, bytes, len));
    sp_dataset *d;
    assert_fails(open_path(path, &d), SP_BAD_INPUT, "'offsets' is damaged");
    free(bytes);
    free(path);
}

static void a_file_cut_short_is_refused(void **state) {
    (void)state;
    char *path = make_even_shard("cut.h5", 0, 4, 10), *cut = sp_path_join(test_tmpdir(), "cut2.h5");
    char *bytes;
    int64_t len;
    sp_dataset *d;
    assert_ok(sp_read_file(path, 1 << 24, &bytes, &len));
    for (int64_t n = 0; n < len; n += n < 700 ? 7 : 9973) {
        assert_ok(sp_write_file(cut, bytes, n));
        assert_fails(open_path(cut, &d), SP_BAD_INPUT, "cut2.h5");
    }
    assert_ok(sp_write_file(cut, bytes, len - 1));
    assert_fails(open_path(cut, &d), SP_BAD_INPUT, "cut short");
    assert_ok(sp_write_file(cut, "", 0));
    assert_fails(open_path(cut, &d), SP_BAD_INPUT, "empty file");
    const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    assert_ok(sp_write_file(cut, lfs, sizeof lfs - 1));
    assert_fails(open_path(cut, &d), SP_BAD_INPUT, "Git LFS pointer");
    assert_ok(sp_write_file(cut, "hello, hello, hello", 19));
    assert_fails(open_path(cut, &d), SP_BAD_INPUT, "not an HDF5 file");
    free(bytes);
    free(path);
    free(cut);
}

// ---- foreign files -----------------------------------------------------------------------------

// A shard as another program might write it, with one thing wrong; the defaults are right.
typedef struct foreign {
    const char *format;
    int64_t version, vocab;
    hid_t tokens_type, offsets_type;
    int tokens_rank;
    int64_t n_offsets;
    uint64_t offset[4];
    int64_t claimed_tokens; // 0: the 6 that are stored
    int64_t n_domain;       // -1: no such data set
    int32_t domain[3];
    bool names, variable_names, no_offsets, no_tokenizer, packed;
    int64_t n_sums; // -1: none
    uint64_t sum;
    int64_t sum_block;
} foreign;

static const foreign right = {.format = "sparda-tokens",
                              .version = 1,
                              .vocab = 10,
                              .tokens_rank = 1,
                              .n_offsets = 4,
                              .offset = {0, 1, 4, 6},
                              .n_domain = -1,
                              .n_sums = -1};

static void put_attribute(hid_t at, const char *name, hid_t type, const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(a, type, value) >= 0);
    H5Aclose(a);
    H5Sclose(space);
}

static hid_t put_set(hid_t file, const char *name, hid_t type, int rank, const hsize_t *dims,
                     hid_t memory, const void *values, bool packed) {
    hid_t space = H5Screate_simple(rank, dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    if (packed) {
        H5Pset_chunk(plist, rank, dims);
        H5Pset_deflate(plist, 6);
    }
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    assert_true(d >= 0);
    if (values) assert_true(H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Pclose(plist);
    H5Sclose(space);
    return d;
}

static char *make_foreign(const foreign *f) {
    static const int32_t tokens[6] = {5, 1, 2, 3, 8, 9};
    char *path = sp_path_join(test_tmpdir(), "foreign.h5");
    sp_h5_begin();
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE); // what h5py writes
    if (f->format) put_attribute(file, "format", text, &f->format);
    put_attribute(file, "version", H5T_NATIVE_INT64, &f->version);
    put_attribute(file, "vocab", H5T_NATIVE_INT64, &f->vocab);
    const char *name = "foreign";
    if (!f->no_tokenizer) put_attribute(file, "tokenizer", text, &name);
    hsize_t dims[2] = {f->claimed_tokens ? (hsize_t)f->claimed_tokens : 6, 1};
    H5Dclose(put_set(file, "tokens", f->tokens_type ? f->tokens_type : H5T_STD_I32LE,
                     f->tokens_rank, dims, H5T_NATIVE_INT32, f->claimed_tokens ? NULL : tokens,
                     f->packed));
    dims[0] = (hsize_t)f->n_offsets;
    if (!f->no_offsets)
        H5Dclose(put_set(file, "offsets", f->offsets_type ? f->offsets_type : H5T_STD_U64LE, 1,
                         dims, H5T_NATIVE_UINT64, f->offset, f->packed));
    dims[0] = (hsize_t)f->n_domain;
    if (f->n_domain >= 0)
        H5Dclose(
            put_set(file, "domain", H5T_STD_I32LE, 1, dims, H5T_NATIVE_INT32, f->domain, false));
    dims[0] = 2;
    const char *names[2] = {"alpha", "beta"};
    if (f->names && f->variable_names) {
        H5Dclose(put_set(file, "domain_names", text, 1, dims, text, names, false));
    } else if (f->names) {
        hid_t five = H5Tcopy(H5T_C_S1);
        H5Tset_size(five, 5);
        H5Tset_strpad(five, H5T_STR_NULLPAD);
        H5Dclose(put_set(file, "domain_names", five, 1, dims, five, "alphabeta\0", false));
        H5Tclose(five);
    }
    dims[0] = (hsize_t)f->n_sums;
    if (f->n_sums >= 0) {
        const uint64_t sums[4] = {f->sum, f->sum, f->sum, f->sum};
        hid_t d =
            put_set(file, "tokens_xxh3", H5T_STD_U64LE, 1, dims, H5T_NATIVE_UINT64, sums, false);
        put_attribute(d, "block", H5T_NATIVE_INT64, &f->sum_block);
        H5Dclose(d);
    }
    H5Tclose(text);
    assert_true(H5Fclose(file) >= 0);
    sp_h5_end();
    return path;
}

static void assert_foreign_reads(const foreign *f) {
    char *path = make_foreign(f);
    static const int32_t rows[3][3] = {{5}, {1, 2, 3}, {8, 9}};
    sp_dataset *d;
    assert_ok(open_path(path, &d));
    assert_int_equal(sp_dataset_rows(d, 0), 3);
    for (int64_t r = 0; r < 3; r++) {
        int32_t t[8];
        int64_t n;
        assert_ok(sp_dataset_read(d, 0, r, 8, t, &n));
        assert_int_equal(n, r == 0 ? 1 : r == 1 ? 3 : 2);
        assert_memory_equal(t, rows[r], (size_t)n * sizeof *t);
    }
    sp_dataset_close(d);
    free(path);
}

static void files_of_other_writers_are_read(void **state) {
    (void)state;
    foreign f = right;
    assert_foreign_reads(&f);
    f.packed = true; // gzip, chunked
    assert_foreign_reads(&f);
    f = right;
    f.tokens_type = H5T_STD_I32BE;
    f.offsets_type = H5T_STD_U64BE;
    assert_foreign_reads(&f);

    for (int variable = 0; variable < 2; variable++) {
        f = right;
        f.n_domain = 3;
        f.domain[1] = 1;
        f.names = true;
        f.variable_names = variable;
        assert_foreign_reads(&f);
        char *path = make_foreign(&f);
        sp_dataset *d;
        sp_dataset_info info;
        assert_ok(open_path(path, &d));
        assert_ok(sp_dataset_describe(d, &info));
        assert_int_equal(info.n_domains, 2);
        assert_string_equal(info.domain[0].name, "alpha");
        assert_string_equal(info.domain[1].name, "beta");
        assert_int_equal(info.domain[1].tokens, 3);
        sp_dataset_info_free(&info);
        sp_dataset_close(d);
        free(path);
    }
    char *path = make_foreign(&right); // without a table: named after the file
    sp_dataset *d;
    sp_dataset_info info;
    int64_t checked;
    assert_ok(open_path(path, &d));
    assert_ok(sp_dataset_describe(d, &info));
    assert_string_equal(info.domain[0].name, "foreign");
    sp_dataset_info_free(&info);
    sp_dataset_close(d);
    assert_ok(sp_shard_verify(path, &checked));
    assert_int_equal(checked, 0);
    free(path);
}

static void assert_foreign_refused(const foreign *f, const char *part) {
    char *path = make_foreign(f);
    sp_dataset *d;
    assert_fails(open_path(path, &d), SP_BAD_INPUT, part);
    assert_non_null(strstr(sp_error_text(), "foreign.h5"));
    free(path);
}

static void faulty_files_are_refused(void **state) {
    (void)state;
    foreign f;
#define REFUSED(part, ...)                                                                         \
    f = right;                                                                                     \
    __VA_ARGS__;                                                                                   \
    assert_foreign_refused(&f, part)
    REFUSED("no token shard", f.format = NULL);
    REFUSED("format 'mine'", f.format = "mine");
    REFUSED("version 2", f.version = 2);
    REFUSED("vocabulary of 0", f.vocab = 0);
    REFUSED("'tokenizer' is missing", f.no_tokenizer = true);
    REFUSED("'offsets' is missing", f.no_offsets = true);
    REFUSED("'tokens' must hold signed 32-bit", f.tokens_type = H5T_STD_I64LE);
    REFUSED("'tokens' must hold signed 32-bit", f.tokens_type = H5T_STD_U32LE);
    REFUSED("'tokens' must hold signed 32-bit", f.tokens_type = H5T_IEEE_F32LE);
    REFUSED("'offsets' must hold unsigned 64-bit", f.offsets_type = H5T_STD_I64LE);
    REFUSED("'tokens' must have one dimension", f.tokens_rank = 2);
    REFUSED("first row must start at 0", f.offset[0] = 1);
    REFUSED("offsets[2] is 1 after 1", f.offset[2] = 1);         // an empty row
    REFUSED("offsets[2] is 0 after 1", f.offset[2] = 0);         // backwards
    REFUSED("offsets[2] is 7 after 1, with 6", f.offset[2] = 7); // beyond the end
    REFUSED("last offset is 5, but there are 6", f.offset[3] = 5);
    REFUSED("offsets[1] is 18446744073709551615", f.offset[1] = UINT64_MAX);
    REFUSED("'offsets' is empty", f.n_offsets = 0);
    REFUSED("claims 1099511627776 elements", f.claimed_tokens = (int64_t)1 << 40);
    REFUSED("claims 1152921504606846976", f.claimed_tokens = (int64_t)1 << 60);
    REFUSED("'domain_names' is missing", f.n_domain = 3);
    REFUSED("'domain' is missing", f.names = true);
    REFUSED("'domain' has 2 elements for 3 rows", f.n_domain = 2; f.names = true);

    f = right; // what only a look at every row shows
    f.n_domain = 3;
    f.names = true;
    f.domain[2] = 2;
    char *path = make_foreign(&f);
    sp_dataset *d;
    sp_dataset_info info;
    int64_t checked;
    assert_ok(open_path(path, &d));
    assert_fails(sp_dataset_describe(d, &info), SP_BAD_INPUT, "row 2 has domain 2");
    sp_dataset_close(d);
    free(path);

    f = right;
    f.vocab = 9;
    path = make_foreign(&f);
    assert_ok(open_path(path, &d));
    int32_t t[3];
    int64_t n;
    assert_fails(sp_dataset_read(d, 0, 2, 3, t, &n), SP_BAD_INPUT,
                 "row 2, position 1: token id 9 is outside 0..8");
    sp_dataset_close(d);
    assert_fails(sp_shard_verify(path, &checked), SP_BAD_INPUT, "(tokens[5])");
    free(path);

    const struct {
        int64_t n, block;
        const char *part;
    } sums[] = {{1, 6, "damaged"},
                {1, 5, "1 checksums of blocks of 5"},
                {2, 6, "2 checksums"},
                {1, 0, "blocks of 0"},
                {1, -6, "blocks of -6"}};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        f = right;
        f.n_sums = sums[i].n;
        f.sum_block = sums[i].block;
        path = make_foreign(&f);
        assert_fails(sp_shard_verify(path, &checked), SP_BAD_INPUT, sums[i].part);
        free(path);
    }
    static const int32_t tokens[6] = {5, 1, 2, 3, 8, 9};
    f.n_sums = 1;
    f.sum_block = 6;
    f.sum = sp_xxh3(tokens, sizeof tokens);
    path = make_foreign(&f);
    assert_ok(sp_shard_verify(path, &checked));
    assert_int_equal(checked, 1);
    free(path);
}

// ---- other files: the data sets of a right shard replaced by what leads out of the file --------

typedef struct detour {
    const char *name, *says;
    enum { SOFT, EXTERNAL, VIRTUAL, FILES, FILTER } how;
} detour;

static void take_detour(hid_t file, const char *other, const detour *d) {
    hid_t set = H5Dopen2(file, d->name, H5P_DEFAULT), type = H5Dget_type(set);
    hid_t space = H5Dget_space(set), plist = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk = 2;
    H5Dclose(set);
    assert_true(H5Lmove(file, d->name, file, "kept", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    if (d->how == SOFT) {
        assert_true(H5Lcreate_soft("/kept", file, d->name, H5P_DEFAULT, H5P_DEFAULT) >= 0);
    } else if (d->how == EXTERNAL) {
        assert_true(H5Lcreate_external(other, d->name, file, d->name, H5P_DEFAULT, H5P_DEFAULT) >=
                    0);
    } else {
        if (d->how == VIRTUAL) H5Pset_virtual(plist, space, other, d->name, space);
        if (d->how == FILES) H5Pset_external(plist, other, 0, H5F_UNLIMITED);
        if (d->how == FILTER) {
            H5Pset_chunk(plist, 1, &chunk);
            H5Pset_scaleoffset(plist, H5Z_SO_INT, 0);
        }
        hid_t made = H5Dcreate2(file, d->name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
        assert_true(made >= 0);
        H5Dclose(made);
    }
    H5Pclose(plist);
    H5Sclose(space);
    H5Tclose(type);
}

static void a_shard_opens_no_other_file(void **state) {
    (void)state;
    foreign f = right;
    f.n_domain = 3;
    f.names = true;
    f.n_sums = 3;
    f.sum_block = 2;
    char *path = make_foreign(&f), *other = sp_path_join(test_tmpdir(), "other.h5");
    assert_int_equal(rename(path, other), 0); // all of the same is in the other file, too
    static const char link[] = "is a link, which could lead to another file";
    const detour detours[] = {
        {"tokens", link, SOFT},
        {"tokens", link, EXTERNAL},
        {"offsets", link, EXTERNAL},
        {"domain", link, EXTERNAL},
        {"domain_names", link, EXTERNAL},
        {"tokens", "'tokens' are stored in other data sets", VIRTUAL},
        {"offsets", "'offsets' are stored in other data sets", VIRTUAL},
        {"tokens", "'tokens' are stored in other files", FILES},
        {"domain", "'domain' are stored in other files", FILES},
        {"domain_names", "'domain_names' are stored in other files", FILES},
        {"tokens", "'tokens' has a filter that is not read", FILTER},
    };
    for (size_t i = 0; i < sizeof detours / sizeof detours[0]; i++) {
        free(make_foreign(&f));
        sp_h5_begin();
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        take_detour(file, other, &detours[i]);
        assert_true(H5Fclose(file) >= 0);
        sp_h5_end();
        sp_dataset *d;
        assert_fails(open_path(path, &d), SP_BAD_INPUT, detours[i].says);
    }
    // checksums are looked at only when they are used
    free(make_foreign(&f));
    sp_h5_begin();
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    take_detour(file, other, &(detour){"tokens_xxh3", link, EXTERNAL});
    assert_true(H5Fclose(file) >= 0);
    sp_h5_end();
    int64_t checked;
    assert_fails(sp_shard_verify(path, &checked), SP_BAD_INPUT, link);
    free(path);
    free(other);
}

// A million names that are all the same long text of the file: the text once, but not for each.
static void names_take_no_more_memory_than_the_file(void **state) {
    (void)state;
    enum { NAMES = 100000, LONG = 3000 };
    foreign f = right;
    f.n_domain = 3;
    f.names = f.variable_names = true;
    char *path = make_foreign(&f), *text = malloc(LONG + 1), *bytes;
    int64_t size;
    memset(text, 'x', LONG);
    text[LONG] = 0;
    const char **name = malloc(NAMES * sizeof *name);
    for (int i = 0; i < NAMES; i++) name[i] = i ? "y" : text;
    sp_h5_begin();
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    assert_true(H5Ldelete(file, "domain_names", H5P_DEFAULT) >= 0);
    H5Dclose(put_set(file, "domain_names", type, 1, (hsize_t[]){NAMES}, type, name, false));
    H5Tclose(type);
    assert_true(H5Fclose(file) >= 0);
    sp_h5_end();
    sp_dataset *d;
    assert_ok(open_path(path, &d));
    sp_dataset_close(d);
    // A name is a length of 4 bytes, an address of 8 and a number of 4: all those that follow the
    // long one become the same.
    assert_ok(sp_read_file(path, 1 << 24, &bytes, &size));
    char first[16] = {(char)(LONG & 255), (char)(LONG >> 8)};
    char *at = memmem(bytes, (size_t)size, first, 4);
    assert_non_null(at);
    assert_true(at + 16L * NAMES <= bytes + size);
    for (int i = 1; i < NAMES; i++) memcpy(at + 16L * i, at, 16);
    assert_ok(sp_write_file(path, bytes, size));
    assert_fails(open_path(path, &d), SP_BAD_INPUT, "'domain_names' cannot be read");
    free(bytes);
    free(text);
    free(name);
    free(path);
}

// ---- the machine -------------------------------------------------------------------------------

// A full disk, as a file-size limit (bugs.md S13): an error, nothing left, and the next file works.
static void a_full_disk_is_an_error(void **state) {
    (void)state;
    char *dir = sp_path_join(test_tmpdir(), "full"), *path = sp_path_join(dir, "x.h5");
    assert_ok(sp_mkdirs(dir));
    const char *const domains[] = {"d"};
    const sp_shard_meta meta = {"test", 1000, domains, 1};
    int32_t *t = calloc(1 << 20, sizeof *t);
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    const rlim_t limits[] = {0, 100, 5000, 1 << 20, (5 << 20) + 1};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        low = old;
        low.rlim_cur = limits[i];
        setrlimit(RLIMIT_FSIZE, &low);
        sp_shard_writer *w = NULL;
        sp_status st = sp_shard_create(path, &meta, &w);
        if (st == SP_OK) {
            for (int k = 0; k < 2 && st == SP_OK; k++) st = sp_shard_append(w, t, 1 << 20, 0);
            if (st == SP_OK)
                st = sp_shard_finish(w);
            else
                sp_shard_abandon(w);
        }
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(st, SP_ENVIRONMENT);
        assert_non_null(strstr(sp_error_text(), "full/x.h5"));
        if (!strstr(sp_error_text(), "File too large")) fail_msg("%s", sp_error_text());
        assert_int_equal(rmdir(dir), 0);
        assert_ok(sp_mkdirs(dir));
    }
    signal(SIGXFSZ, before);
    sp_shard_writer *w;
    sp_dataset *d;
    assert_ok(sp_shard_create(path, &meta, &w));
    assert_ok(sp_shard_append(w, t, 1 << 20, 0));
    assert_ok(sp_shard_finish(w));
    assert_ok(open_path(path, &d));
    sp_dataset_close(d);
    free(t);
    free(path);
    free(dir);
}

// Another process holds a lock, and folder and file are read-only (bugs.md S12).
static void locked_and_read_only_files_are_read(void **state) {
    (void)state;
    char *path = make_even_shard("locked/a.h5", 0, 2, 5), *dir = sp_path_dir(path);
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(dir, 0555), 0);
    sp_dataset *d;
    int32_t t[5];
    int64_t n;
    assert_ok(open_path(path, &d));
    assert_ok(sp_dataset_read(d, 0, 1, 5, t, &n));
    assert_row(t, 5, 0, 1);
    sp_dataset_close(d);
    chmod(dir, 0755);
    close(fd);
    free(dir);
    free(path);
}

static void a_shard_that_changes_in_use_is_noticed(void **state) {
    (void)state;
    char *path = make_even_shard("changing.h5", 0, 4, 5);
    sp_dataset *d;
    int32_t t[5];
    int64_t n;
    assert_ok(open_path(path, &d));
    free(make_even_shard("changing.h5", 0, 3, 5));
    assert_fails(sp_dataset_read(d, 0, 0, 5, t, &n), SP_BAD_INPUT, "changed while in use");
    unlink(path);
    assert_fails(sp_dataset_read(d, 0, 0, 5, t, &n), SP_BAD_INPUT, "changing.h5");
    sp_dataset_close(d);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_comes_back),
        cmocka_unit_test(equal_rows_give_equal_files),
        cmocka_unit_test(a_shard_is_complete_or_absent),
        cmocka_unit_test(thousands_of_domain_names_fit),
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(a_file_cut_short_is_refused),
        cmocka_unit_test(files_of_other_writers_are_read),
        cmocka_unit_test(faulty_files_are_refused),
        cmocka_unit_test(a_shard_opens_no_other_file),
        cmocka_unit_test(names_take_no_more_memory_than_the_file),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(locked_and_read_only_files_are_read),
        cmocka_unit_test(a_shard_that_changes_in_use_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
