// HDF5 token shards that others wrote (h5_faults.h): never a crash; no file but this one is opened;
// what is accepted obeys its contract, and what nothing is wrong with is accepted.
// seed: tests/fuzz/seeds/h5-shard.bin
// seed: tests/fuzz/seeds/h5-links.bin
#include "common/hash.h"
#include "data/source.h"
#include "tests/fuzz/h5_faults.h"

enum { ROWS = 6, ROW = 12, VOCAB = 300, DOMAINS = 3 };

static void put_attribute(hid_t at, const char *name, int64_t v) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(at, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    require(a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, &v) >= 0, "cannot write an attribute");
    H5Aclose(a);
    H5Sclose(space);
}

static void put_text(hid_t at, const char *name, const char *text) {
    hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
    bool variable = take(2);
    H5Tset_size(type, variable ? H5T_VARIABLE : strlen(text));
    hid_t a = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    require(a >= 0 && H5Awrite(a, type, variable ? (const void *)&text : text) >= 0,
            "cannot write a text");
    H5Aclose(a);
    H5Tclose(type);
    H5Sclose(space);
}

// With or without chunks, filters and checksums of blocks of two, as the bytes say.
static void put_column(hid_t file, const char *name, hid_t type, hid_t memory, hsize_t n,
                       const void *values, size_t size, bool sums) {
    hid_t space = H5Screate_simple(1, &n, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    unsigned layout = n ? take(3) : 0;
    if (layout) H5Pset_chunk(plist, 1, &(hsize_t){1 + take((unsigned)n)});
    if (layout == 2) H5Pset_deflate(plist, 6);
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    require(d >= 0 && H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0,
            "cannot write a column");
    H5Dclose(d);
    H5Pclose(plist);
    H5Sclose(space);
    if (!sums) return;
    uint64_t sum[ROWS * ROW];
    hsize_t blocks = 0;
    for (hsize_t at = 0; at < n; at += 2)
        sum[blocks++] =
            sp_xxh3((const uint8_t *)values + at * size, (n - at < 2 ? n - at : 2) * size);
    char label[32];
    snprintf(label, sizeof label, "%s_xxh3", name);
    space = H5Screate_simple(1, &blocks, NULL);
    d = H5Dcreate2(file, label, H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    require(d >= 0, "cannot write");
    if (blocks) H5Dwrite(d, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, sum);
    put_attribute(d, "block", 2);
    H5Dclose(d);
    H5Sclose(space);
}

typedef struct rows {
    int64_t n;
    int32_t token[ROWS * ROW], domain[ROWS];
    uint64_t offset[ROWS + 1];
} rows;

static const names shard_names = {
    {"/@format", "/@version", "/@vocab", "/@tokenizer", "tokens_xxh3@block", "offsets_xxh3@block",
     "domain_xxh3@block"},
    {"tokens", "offsets", "domain", "domain_names", "tokens_xxh3", "offsets_xxh3", "domain_xxh3"},
    7,
    7};

// False if something is wrong with it.
static bool write_shard(const char *path, rows *r) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (take(2)) H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    require(file >= 0, "cannot write");
    r->n = take(ROWS + 1);
    for (int64_t i = 0; i < r->n; i++) {
        r->offset[i + 1] = r->offset[i] + 1 + take(ROW);
        r->domain[i] = (int32_t)take(DOMAINS);
    }
    for (uint64_t i = 0; i < r->offset[r->n]; i++) r->token[i] = (int32_t)take(256);
    bool sums = take(2), domains = take(2);
    put_text(file, "format", "sparda-tokens");
    put_text(file, "tokenizer", "any");
    put_attribute(file, "version", 1);
    put_attribute(file, "vocab", VOCAB);
    put_column(file, "tokens", take(2) ? H5T_STD_I32BE : H5T_STD_I32LE, H5T_NATIVE_INT32,
               r->offset[r->n], r->token, 4, sums);
    put_column(file, "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, (hsize_t)r->n + 1, r->offset, 8,
               sums);
    if (domains) {
        static const char *const text[DOMAINS] = {"prose", "code", "x"};
        char fixed[DOMAINS][8] = {"prose", "code", "x"};
        bool variable = take(2);
        hid_t type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, variable ? H5T_VARIABLE : 8);
        put_column(file, "domain", H5T_STD_I32LE, H5T_NATIVE_INT32, (hsize_t)r->n, r->domain, 4,
                   sums);
        put_column(file, "domain_names", type, type, DOMAINS,
                   variable ? (const void *)text : (const void *)fixed, 8, false);
        H5Tclose(type);
    }
    bool spoilt = spoil(file, &shard_names);
    require(H5Fclose(file) >= 0, "cannot close");
    return !spoilt;
}

typedef struct seen {
    const sp_source *s;
    int64_t rows;
    const rows *want; // NULL: not known
} seen;

static sp_status see_row(void *user, int64_t row, const int32_t *tokens, int64_t n) {
    seen *x = user;
    int32_t again[ROWS * ROW + 1];
    int64_t got, length;
    require(row == x->rows++ && row < x->s->rows && n >= 1, "rows are not in order");
    for (int64_t i = 0; i < n; i++)
        require(tokens[i] >= 0 && tokens[i] < x->s->vocab, "a token is outside the vocabulary");
    require(x->s->ops->length(x->s, row, &length) == SP_OK && length == n, "a row's length");
    if (n <= ROWS * ROW)
        require(x->s->ops->read(x->s, row, n, again, &got) == SP_OK && got == n &&
                    memcmp(again, tokens, (size_t)n * 4) == 0,
                "a row that is read alone differs");
    if (x->want) {
        const rows *w = x->want;
        require(w->offset[row + 1] - w->offset[row] == (uint64_t)n &&
                    memcmp(w->token + w->offset[row], tokens, (size_t)n * 4) == 0,
                "a row differs from what was written");
    }
    return SP_OK;
}

static void try_shard(void) {
    rows r = {0};
    sp_source *s;
    bool right = write_shard(own, &r);
    begin_reading();
    sp_status st = sp_shard_open(own, &s);
    require(st == SP_OK || st == SP_BAD_INPUT, "an unexpected status");
    require(st == SP_OK || !right, "a right shard is refused");
    if (st == SP_OK) {
        require(s->rows >= 0 && s->vocab >= 1 && s->vocab <= INT32_MAX && s->n_domains >= 1,
                "wrong sizes are accepted");
        for (int64_t i = 0; i < s->n_domains; i++)
            require(s->domain[i] && strlen(s->domain[i]) <= 4096, "a domain has no name");
        if (right) require(s->rows == r.n && s->vocab == VOCAB, "other sizes than written");
        seen x = {s, 0, right ? &r : NULL};
        sp_scan scan = {.visit = see_row, .user = &x, .thorough = true};
        st = s->ops->scan(s, &scan);
        require(st == SP_OK ? x.rows == s->rows : st == SP_BAD_INPUT && !right, "a wrong scan");
        int32_t *domain = malloc((size_t)s->rows * sizeof *domain + 1);
        require(domain != NULL, "no memory");
        st = s->ops->domains(s, domain);
        require(st == SP_OK || (st == SP_BAD_INPUT && !right), "wrong domains");
        for (int64_t i = 0; i < s->rows && st == SP_OK; i++)
            require(domain[i] >= 0 && domain[i] < s->n_domains, "an unknown domain");
        free(domain);
        sp_scan_free(&scan);
        s->ops->close(s);
    }
    end_reading();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    sp_h5_begin();
    if (!own[0]) { // the other file is a right shard, with all that a link could ask for
        static const uint8_t whole[] = {0, 2, 3, 0, 3, 1, 5, 6, 7, 8, 9, 10, 11, 1, 1};
        rows r = {0};
        name_files();
        begin(whole, sizeof whole);
        require(write_shard(other, &r), "the other shard is spoilt");
    }
    begin(data, bytes);
    try_shard();
    sp_h5_end();
    sp_error_clear();
    return 0;
}
