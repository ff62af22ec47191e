// MDS folders: the reference writer's files row by row, and faulty ones of every kind.
#include "tests/support.h"

#include "common/hash.h"
#include "common/json.h"
#include "common/util.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sp_status open_path(const char *path, sp_dataset **out) {
    sp_data_entry e = {.path = (char *)path};
    const sp_data_list list = {&e, 1};
    return sp_dataset_open(&list, &(sp_dataset_options){0}, out);
}

// ---- files of the reference writer
// ---------------------------------------------------------------

static const json_t *rows_of(const json_t *all, const char *domain) {
    return json_object_get(json_object_get(json_object_get(all, "domains"), domain), "row");
}

static json_t *load_rows(void) {
    json_t *all;
    char *path = test_path("tests/mds/rows.json");
    assert_ok(sp_json_load(path, 1 << 20, &all));
    free(path);
    return all;
}

// Rows first..first+n-1 of the data set are the rows of `domain`.
static void assert_domain(const sp_dataset *d, int64_t first, const json_t *rows) {
    int32_t *t = malloc(65537 * sizeof *t);
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) {
        int64_t n, length, want = json_integer_value(json_object_get(row, "T"));
        assert_ok(sp_dataset_row_length(d, 0, first + (int64_t)i, &length));
        assert_int_equal(length, want);
        t[want] = 77777;
        assert_ok(sp_dataset_read(d, 0, first + (int64_t)i, 65537, t, &n));
        assert_int_equal(n, want);
        assert_int_equal(t[want], 77777);
        const char *hash = json_string_value(json_object_get(row, "fnv1a64"));
        assert_true(sp_fnv1a_tokens(t, n) == strtoull(hash, NULL, 16));
        if (want < 5) continue;
        t[4] = 77777;
        assert_ok(sp_dataset_read(d, 0, first + (int64_t)i, 4, t, &n)); // cut
        assert_int_equal(n, 4);
        assert_int_equal(t[4], 77777);
    }
    free(t);
}

static void every_row_of_the_fixtures_matches(void **state) {
    (void)state;
    json_t *all = load_rows();
    static const char *const domains[] = {"ledger", "prose-code"};
    for (int i = 0; i < 4; i++) {
        char *relative = sp_format("tests/mds/%s/%s", i < 2 ? "raw" : "zstd", domains[i % 2]);
        char *path = test_path(relative);
        sp_dataset *d;
        assert_ok(open_path(path, &d));
        assert_int_equal(sp_dataset_rows(d, 0), json_array_size(rows_of(all, domains[i % 2])));
        assert_domain(d, 0, rows_of(all, domains[i % 2]));
        sp_dataset_close(d);
        free(path);
        free(relative);
    }
    char *root = test_path("tests/mds/raw"); // both, in name order
    sp_dataset *d;
    sp_dataset_info info;
    assert_ok(open_path(root, &d));
    assert_domain(d, 0, rows_of(all, "ledger"));
    assert_domain(d, 40, rows_of(all, "prose-code"));
    assert_ok(sp_dataset_describe(d, &info));
    assert_int_equal(info.n_domains, 2);
    assert_string_equal(info.domain[0].name, "ledger");
    assert_int_equal(info.domain[0].rows, 40);
    assert_int_equal(info.domain[0].tokens, 17680);
    assert_string_equal(info.domain[1].name, "prose-code");
    assert_int_equal(info.domain[1].rows, 24);
    assert_int_equal(info.domain[1].tokens, 142645);
    assert_int_equal(info.min_length, 4);
    assert_int_equal(info.max_length, 65536);
    sp_dataset_info_free(&info);
    sp_dataset_close(d);
    free(root);
    json_decref(all);
}

// Without waiting for the disk.
static void put_file(const char *path, const char *bytes, int64_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, (size_t)n, f), n);
    assert_int_equal(fclose(f), 0);
}

// ---- our own small files, right and wrong
// --------------------------------------------------------

// A shard in the making; a test changes what it wants to be wrong.
typedef struct maker {
    char *dir;
    json_t *config, *shard; // description in the file; object of the index
    sp_text samples;        // their bytes, one after another
    uint32_t offset[64];    // relative to the first sample
    int n;
    uint32_t count;   // stated in the file
    int shift_offset; // added to every offset
} maker;

static maker start(const char *name) {
    maker m = {.dir = sp_path_join(test_tmpdir(), name)};
    assert_ok(sp_mkdirs(m.dir));
    m.config = json_pack("{s:i,s:s,s:n,s:[],s:i,s:[],s:[],s:[]}", "version", 2, "format", "mds",
                         "compression", "hashes", "size_limit", 1000, "column_names",
                         "column_encodings", "column_sizes");
    assert_non_null(m.config);
    return m;
}

static void column(maker *m, const char *name, const char *encoding, int size) {
    json_array_append_new(json_object_get(m->config, "column_names"), json_string(name));
    json_array_append_new(json_object_get(m->config, "column_encodings"), json_string(encoding));
    json_array_append_new(json_object_get(m->config, "column_sizes"),
                          size ? json_integer(size) : json_null());
}

static void add_u32(sp_text *t, uint32_t v) {
    sp_text_bytes(t, &v, 4);
}

// The array of n tokens first, first + 1, ..., with the length in 1 << s bytes.
static void add_array(sp_text *t, int32_t first, uint32_t n, int s) {
    const uint8_t head = (uint8_t)(1 << 2 | s);
    const uint64_t length = n;
    sp_text_bytes(t, &head, 1);
    sp_text_bytes(t, &length, (size_t)1 << s);
    for (uint32_t i = 0; i < n; i++) add_u32(t, (uint32_t)first + i);
}

static uint32_t array_bytes(uint32_t n, int s) {
    return 1 + (1u << s) + 4 * n;
}

static void end_sample(maker *m) {
    m->offset[++m->n] = (uint32_t)m->samples.len;
}

// The usual shard: columns input_ids and length, rows of 3, 1 and 4 tokens.
static maker usual(const char *name) {
    maker m = start(name);
    column(&m, "input_ids", "ndarray:int32", 0);
    column(&m, "length", "int64", 8);
    const uint32_t n[3] = {3, 1, 4};
    for (int i = 0; i < 3; i++) {
        const uint64_t length = n[i];
        add_u32(&m.samples, array_bytes(n[i], 0));
        add_array(&m.samples, 10 * (i + 1), n[i], 0);
        sp_text_bytes(&m.samples, &length, 8);
        end_sample(&m);
    }
    m.count = 3;
    return m;
}

static char *shard_path(const maker *m) {
    return sp_path_join(m->dir, "shard.00000.mds");
}

// Writes the shard and makes its entry of the index.
static void write_shard(maker *m) {
    char *config = json_dumps(m->config, JSON_SORT_KEYS), *path = shard_path(m);
    sp_text t = {0};
    uint32_t base = (uint32_t)(4 + 4 * (m->n + 1) + strlen(config));
    add_u32(&t, m->count);
    for (int i = 0; i <= m->n; i++) add_u32(&t, base + m->offset[i] + (uint32_t)m->shift_offset);
    sp_text_bytes(&t, config, strlen(config));
    sp_text_bytes(&t, m->samples.data, m->samples.len);
    put_file(path, t.data, (int64_t)t.len);
    m->shard = json_deep_copy(m->config);
    json_object_set_new(m->shard, "samples", json_integer(m->n));
    json_object_set_new(m->shard, "raw_data",
                        json_pack("{s:s,s:I,s:{}}", "basename", "shard.00000.mds", "bytes",
                                  (json_int_t)t.len, "hashes"));
    json_object_set_new(m->shard, "zip_data", json_null());
    sp_text_free(&t);
    free(config);
    free(path);
}

static void write_index(const maker *m) {
    json_t *index = json_pack("{s:[O],s:i}", "shards", m->shard, "version", 2);
    char *text = json_dumps(index, JSON_SORT_KEYS), *path = sp_path_join(m->dir, "index.json");
    put_file(path, text, (int64_t)strlen(text));
    free(text);
    free(path);
    json_decref(index);
}

static void discard(maker *m) {
    json_decref(m->config);
    json_decref(m->shard);
    sp_text_free(&m->samples);
    free(m->dir);
}

static void assert_reads(const maker *m, int rows, const int32_t *first, const int64_t *length) {
    sp_dataset *d;
    int32_t t[2000];
    assert_ok(open_path(m->dir, &d));
    assert_int_equal(sp_dataset_rows(d, 0), rows);
    for (int r = 0; r < rows; r++) {
        int64_t n;
        assert_ok(sp_dataset_read(d, 0, r, 2000, t, &n));
        assert_int_equal(n, length[r]);
        for (int64_t p = 0; p < n; p++) assert_int_equal(t[p], first[r] + p);
    }
    sp_dataset_close(d);
}

static const int32_t usual_first[3] = {10, 20, 30};
static const int64_t usual_length[3] = {3, 1, 4};

static void assert_refused(maker *m, const char *part) {
    sp_dataset *d;
    assert_fails(open_path(m->dir, &d), SP_BAD_INPUT, part);
    assert_non_null(strstr(sp_error_text(), m->dir)); // names the file
}

// The tokens lie behind, between and before variable columns, also far from the sample's start.
static void other_columns_are_stepped_over(void **state) {
    (void)state;
    static const uint8_t junk[3000] = {0xff, 0xfe};
    for (int before = 0; before <= 200; before += before < 3 ? 1 : 197) {
        char name[32];
        snprintf(name, sizeof name, "step-%d", before);
        maker m = start(name);
        for (int i = 0; i < before; i++) {
            snprintf(name, sizeof name, "a%03d", i);
            column(&m, name, i % 2 ? "bytes" : "jpeg", 0);
        }
        column(&m, "fixed", "ndarray:float32:3", 12);
        column(&m, "input_ids", "ndarray:int32", 0);
        column(&m, "text", "str", 0);
        for (int r = 0; r < 2; r++) {
            for (int i = 0; i < before; i++) add_u32(&m.samples, r ? 0 : 7 + (uint32_t)i);
            add_u32(&m.samples, array_bytes(300, 1));
            add_u32(&m.samples, r ? 3000 : 0);
            for (int i = 0; i < before && !r; i++) sp_text_bytes(&m.samples, junk, 7 + (size_t)i);
            sp_text_bytes(&m.samples, junk, 12);
            add_array(&m.samples, 100 * r, 300, 1);
            sp_text_bytes(&m.samples, junk, r ? 3000 : 0);
            end_sample(&m);
        }
        m.count = 2;
        write_shard(&m);
        write_index(&m);
        assert_reads(&m, 2, (int32_t[]){0, 100}, (int64_t[]){300, 300});
        discard(&m);
    }
}

// Wider lengths than needed are no fault.
static void lengths_of_every_width_are_read(void **state) {
    (void)state;
    maker m = start("widths");
    column(&m, "input_ids", "ndarray:int32", 0);
    for (int s = 0; s < 4; s++) {
        add_u32(&m.samples, array_bytes(5, s));
        add_array(&m.samples, 10 * s, 5, s);
        end_sample(&m);
    }
    m.count = 4;
    write_shard(&m);
    write_index(&m);
    assert_reads(&m, 4, (int32_t[]){0, 10, 20, 30}, (int64_t[]){5, 5, 5, 5});
    discard(&m);
}

static void every_cut_of_a_shard_is_refused(void **state) {
    (void)state;
    maker m = usual("cut");
    write_shard(&m);
    write_index(&m);
    assert_reads(&m, 3, usual_first, usual_length);
    char *path = shard_path(&m), *bytes;
    int64_t len;
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &len));
    for (int64_t n = 0; n < len; n++) { // against the index, and with an index that agrees
        put_file(path, bytes, n);
        assert_refused(&m, "not complete");
        json_object_set_new(json_object_get(m.shard, "raw_data"), "bytes", json_integer(n));
        write_index(&m);
        assert_refused(&m, "shard.00000.mds");
        json_object_set_new(json_object_get(m.shard, "raw_data"), "bytes", json_integer(len));
        write_index(&m);
    }
    unlink(path);
    assert_refused(&m, "which index.json names, cannot be opened");
    assert_ok(sp_mkdirs(path)); // a folder of that name
    assert_refused(&m, "not a regular file");
    rmdir(path);
    free(bytes);
    free(path);
    discard(&m);
}

// Every byte of the shard replaced: opening and reading fail or give rows, but never run astray.
static void every_changed_byte_is_survived(void **state) {
    (void)state;
    maker m = usual("changed");
    write_shard(&m);
    write_index(&m);
    char *path = shard_path(&m), *bytes;
    int64_t len;
    int refused = 0;
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &len));
    const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    for (int64_t i = 0; i < len; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            char keep = bytes[i];
            bytes[i] = (char)values[v];
            put_file(path, bytes, len);
            bytes[i] = keep;
            sp_dataset *d;
            sp_status st = open_path(m.dir, &d);
            if (st == SP_OK) {
                int32_t t[8];
                for (int64_t r = 0; r < 3; r++) {
                    int64_t n = -1;
                    sp_status read = sp_dataset_read(d, 0, r, 8, t, &n);
                    assert_true(read == SP_BAD_INPUT || (read == SP_OK && n == usual_length[r]));
                    refused += read != SP_OK;
                }
                sp_dataset_close(d);
            } else {
                assert_int_equal(st, SP_BAD_INPUT);
                refused++;
            }
        }
    assert_true(refused > len); // most of header and sizes
    free(bytes);
    free(path);
    discard(&m);
}

static void offsets_and_counts_are_checked(void **state) {
    (void)state;
    maker m = usual("offsets");
#define WRONG(part, ...)                                                                           \
    do {                                                                                           \
        maker keep = m;                                                                            \
        __VA_ARGS__;                                                                               \
        write_shard(&m);                                                                           \
        write_index(&m);                                                                           \
        assert_refused(&m, part);                                                                  \
        json_decref(m.shard);                                                                      \
        m = keep;                                                                                  \
    } while (0)
    WRONG("row 1 lies at", m.offset[1] = m.offset[2] + 1); // backwards
    WRONG("row 1 lies at", m.offset[2] = 100000);          // beyond the end
    WRONG("row 2 lies at", m.offset[3] += 1);
    WRONG("last row ends at", m.offset[3] -= 1);
    WRONG("row 1 lies at", m.offset[2] = m.offset[1]); // no room for a row
    WRONG("first sample starts at", m.shift_offset = -1000);
    WRONG("first sample starts at", m.shift_offset = 1 << 30);
    WRONG("holds 2 samples, 3 according", m.count = 2);
    WRONG("holds 4294967295 samples", m.count = UINT32_MAX);
    WRONG("last row ends at", m.samples.len += 1); // the terminating 0

    // The index states one sample more, one less, none.
    write_shard(&m);
    json_object_set_new(m.shard, "samples", json_integer(4));
    write_index(&m);
    assert_refused(&m, "holds 3 samples, 4 according");
    json_object_set_new(m.shard, "samples", json_integer(2));
    write_index(&m);
    assert_refused(&m, "holds 3 samples, 2 according");
    json_object_set_new(m.shard, "samples", json_integer(-1));
    write_index(&m);
    assert_refused(&m, "'samples' must be a count");
    json_object_set_new(m.shard, "samples", json_integer(1 << 29)); // 2 GiB of offsets
    write_index(&m);
    assert_refused(&m, "too few for the offsets");
    discard(&m);
}

static void samples_are_checked_when_read(void **state) {
    (void)state;
    const struct {
        uint32_t size;     // stated for the array
        uint8_t bytes[14]; // array and the rest of the sample, 14 bytes
        const char *part;
    } cases[] = {
        {14, {0x04, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, NULL},
        {14, {0x04, 2, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "length is 2 tokens"},
        {14, {0x04, 4, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "length is 4 tokens"},
        {14, {0x04, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "length is 0 tokens"},
        {14, {0x05, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "length is 259 tokens"},
        {14, {0x07, 255, 255, 255, 255, 255, 255, 255, 255}, "length is 18446744073709551615"},
        {14, {0x07, 0, 0, 0, 0, 0, 0, 0, 64}, "length is 4611686018427387904"},
        {14, {0x08, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "have 2 dimensions"},
        {14, {0x00, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "have 0 dimensions"},
        {13, {0x04, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "take 17 bytes, but it has 18"},
        {15, {0x04, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, "take 19 bytes, but it has 18"},
        {0, {0}, "take 4 bytes"},
        {UINT32_MAX, {0}, "take 4294967299 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "sample-%zu", i);
        maker m = start(name);
        column(&m, "input_ids", "ndarray:int32", 0);
        add_u32(&m.samples, array_bytes(1, 0)); // row 0 is right
        add_array(&m.samples, 7, 1, 0);
        end_sample(&m);
        add_u32(&m.samples, cases[i].size);
        sp_text_bytes(&m.samples, cases[i].bytes, 14);
        end_sample(&m);
        m.count = 2;
        write_shard(&m);
        write_index(&m);
        sp_dataset *d;
        int32_t t[8];
        int64_t n;
        assert_ok(open_path(m.dir, &d));
        assert_ok(sp_dataset_read(d, 0, 0, 8, t, &n));
        assert_int_equal(t[0], 7);
        if (cases[i].part) {
            assert_fails(sp_dataset_read(d, 0, 1, 8, t, &n), SP_BAD_INPUT, cases[i].part);
            assert_non_null(strstr(sp_error_text(), "shard.00000.mds: row 1"));
            assert_fails(sp_dataset_row_length(d, 0, 1, &n), SP_BAD_INPUT, cases[i].part);
        } else {
            assert_ok(sp_dataset_read(d, 0, 1, 8, t, &n));
            assert_int_equal(n, 3);
            assert_int_equal(t[2], 3);
        }
        sp_dataset_close(d);
        discard(&m);
    }
}

static void negative_ids_are_refused(void **state) {
    (void)state;
    maker m = start("negative");
    column(&m, "input_ids", "ndarray:int32", 0);
    add_u32(&m.samples, array_bytes(3, 0));
    add_array(&m.samples, -2, 3, 0); // -2, -1, 0
    end_sample(&m);
    m.count = 1;
    write_shard(&m);
    write_index(&m);
    sp_dataset *d;
    int32_t t[8];
    int64_t n;
    assert_ok(open_path(m.dir, &d));
    assert_fails(sp_dataset_read(d, 0, 0, 8, t, &n), SP_BAD_INPUT,
                 "row 0, position 0: token id -2");
    sp_dataset_close(d);
    discard(&m);
}

static void index_and_shard_must_agree(void **state) {
    (void)state;
    const struct {
        const char *key, *value;
    } cases[] = {{"column_names", "[\"input_ids\", \"other\"]"},
                 {"column_encodings", "[\"ndarray:int32\", \"uint64\"]"},
                 {"size_limit", "1001"},
                 {"hashes", "[\"sha1\"]"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        maker m = usual("agree");
        write_shard(&m);
        json_object_set_new(m.shard, cases[i].key,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        write_index(&m);
        char *part = sp_format("'%s' is ", cases[i].key);
        assert_refused(&m, part);
        free(part);
        json_object_del(m.shard, "hashes"); // absent on one side only
        discard(&m);
    }
    maker m = usual("agree");
    json_object_del(m.config, "hashes");
    write_shard(&m);
    json_object_set_new(m.shard, "hashes", json_pack("[s]", "sha1"));
    write_index(&m);
    assert_refused(&m, "'hashes' is [\"sha1\"] in index.json but missing in the shard");
    discard(&m);
}

static void other_columns_and_forms_are_refused_clearly(void **state) {
    (void)state;
    const struct {
        const char *name, *encoding;
        int size;
        const char *part;
    } cases[] = {
        {"input_ids", "ndarray:float32", 0, "encoding 'ndarray:float32', which cannot hold rows"},
        {"input_ids", "ndarray:int32:8,2", 64, "encoding 'ndarray:int32:8,2', which cannot"},
        {"input_ids", "bytes", 0, "encoding 'bytes', which cannot hold rows of tokens"},
        {"input_ids", "int64", 8, "encoding 'int64', which cannot hold rows of tokens"},
        {"input_ids", "pkl", 0, "column 'input_ids' is a Python pickle"},
        {"input_ids", "ndarray:int32", 8, "a size of 8 bytes (0: variable)"},
        {"input_ids", "ndarray:int32:8", 8,
         "a size of 8 bytes (0: variable), but "
         "'ndarray:int32:8' has 32"},
        {"input_ids", "ndarray:int32:8", 0, "a size of 0 bytes (0: variable)"},
        {"input_ids", "ndarray:int32:0", 0, "whose shape makes no sense"},
        {"input_ids", "ndarray:int32:", 0, "whose shape makes no sense"},
        {"input_ids", "ndarray:int32:8x", 32, "whose shape makes no sense"},
        {"input_ids", "ndarray:uint64:4294967295,4294967295,4", 8, "whose shape makes no sense"},
        {"tokens", "ndarray:int32", 0, "no column 'input_ids' of tokens; the columns are tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        maker m = start("forms");
        column(&m, cases[i].name, cases[i].encoding, cases[i].size);
        write_shard(&m);
        write_index(&m);
        assert_refused(&m, cases[i].part);
        discard(&m);
    }
    const struct {
        const char *encoding;
        int size; // wrong
    } sizes[] = {{"int64", 4}, {"int", 4},     {"float16", 4},           {"uint8", 2}, {"str", 3},
                 {"json", 1},  {"ndarray", 4}, {"ndarray:float32:3", 8}, {"jpeg", 9}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        maker m = start("forms");
        column(&m, "input_ids", "ndarray:int32", 0);
        column(&m, "other", sizes[i].encoding, sizes[i].size);
        write_shard(&m);
        write_index(&m);
        assert_refused(&m, "column 'other' has a size of");
        discard(&m);
    }
    maker m = start("forms");
    column(&m, "input_ids", "ndarray:int32", 0);
    column(&m, "extra", "pkl", 0);
    column(&m, "extra", "int64", 8);
    write_shard(&m);
    write_index(&m);
    assert_refused(&m, "column 'extra' is a Python pickle");
    assert_non_null(strstr(sp_error_text(), "two columns 'extra'")); // together
    discard(&m);
}

static void write_text(const maker *m, const char *text) {
    char *path = sp_path_join(m->dir, "index.json");
    put_file(path, text, (int64_t)strlen(text));
    free(path);
}

static void faulty_indexes_are_refused(void **state) {
    (void)state;
    maker m = usual("index");
    write_shard(&m);
#define SHARD(raw)                                                                                 \
    "{\"version\": 2, \"shards\": [{\"version\": 2, \"format\": \"mds\", \"samples\": 3, "         \
    "\"column_names\": [\"input_ids\"], \"column_encodings\": [\"ndarray:int32\"], "               \
    "\"column_sizes\": [null], \"raw_data\": " raw "}]}"
    const struct {
        const char *text, *part;
    } cases[] = {
        {"", "an empty file"},
        {"[]", "expected a JSON object"},
        {"{}", "lists no shards"},
        {"{\"version\": 2, \"shards\": []}", "lists no shards"},
        {"{\"version\": 2, \"shards\": 7}", "'shards' must be a list"},
        {"{\"version\": 2, \"shards\": [7]}", "shard 0: expected an object"},
        {"{\"version\": 3, \"shards\": [{}]}", "'version' must be 2"},
        {"{\"version\": 2, \"shards\": [], \"shards\": []}", "twice"},
        {SHARD("{\"basename\": \"../a.mds\", \"bytes\": 9}"), "leaves the folder"},
        {SHARD("{\"basename\": \"/etc/passwd\", \"bytes\": 9}"), "leaves the folder"},
        {SHARD("{\"basename\": \"a/../../b\", \"bytes\": 9}"), "leaves the folder"},
        {SHARD("{\"basename\": \"\", \"bytes\": 9}"), "leaves the folder"},
        {SHARD("{\"bytes\": 9}"), "must have a basename"},
        {SHARD("{\"basename\": \"a\", \"bytes\": -1}"), "number of bytes below 2^32"},
        {SHARD("{\"basename\": \"a\", \"bytes\": 4294967296}"), "number of bytes below 2^32"},
        {SHARD("{\"basename\": \"a\", \"bytes\": 1.5}"), "number of bytes below 2^32"},
        {SHARD("null"), "must have a basename"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(&m, cases[i].text);
        assert_refused(&m, cases[i].part);
    }
    static const char *const keys[] = {"version",  "format",       "samples",
                                       "raw_data", "column_names", "column_sizes"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *keep = json_incref(json_object_get(m.shard, keys[i]));
        json_object_del(m.shard, keys[i]);
        write_index(&m);
        assert_refused(&m, "index.json: shard 0: ");
        json_object_set_new(m.shard, keys[i], json_string("tsv"));
        write_index(&m);
        assert_refused(&m, keys[i]);
        json_object_set_new(m.shard, keys[i], keep);
    }
    write_index(&m);
    assert_reads(&m, 3, usual_first, usual_length);
    // Below the folder is allowed.
    char *sub = sp_path_join(m.dir, "part"), *to = sp_path_join(sub, "a.mds"),
         *from = shard_path(&m);
    assert_ok(sp_mkdirs(sub));
    assert_int_equal(rename(from, to), 0);
    json_object_set_new(json_object_get(m.shard, "raw_data"), "basename",
                        json_string("part/a.mds"));
    write_index(&m);
    assert_reads(&m, 3, usual_first, usual_length);
    free(sub);
    free(to);
    free(from);
    discard(&m);
}

// The same rows twice, however the file's name is written.
static void a_shard_listed_twice_is_refused(void **state) {
    (void)state;
    maker m = usual("twice");
    write_shard(&m);
    static const char *const names[] = {"shard.00000.mds", "./shard.00000.mds",
                                        ".//./shard.00000.mds"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int zip = 0; zip < 2; zip++) { // of which the compressed file alone is the same
            json_t *again = json_deep_copy(m.shard);
            json_object_set_new(json_object_get(again, "raw_data"), "basename",
                                json_string(zip ? "another.mds" : names[i]));
            json_t *index = json_pack("{s:[O,o],s:i}", "shards", m.shard, again, "version", 2);
            for (int k = 0; zip && k < 2; k++)
                json_object_set_new(json_array_get(json_object_get(index, "shards"), (size_t)k),
                                    "zip_data",
                                    json_pack("{s:s,s:i,s:{}}", "basename", k ? names[i] : names[0],
                                              "bytes", 9, "hashes"));
            char *text = json_dumps(index, 0);
            write_text(&m, text);
            char *part = sp_format("index.json: shard 1: its %s is '%s', which is that of shard 0",
                                   zip ? "zip_data" : "raw_data", names[i]);
            assert_refused(&m, part);
            free(part);
            free(text);
            json_decref(index);
            json_object_del(m.shard, "zip_data");
        }
    discard(&m);
}

// The raw copy beside a compressed shard is read if it is whole, else the compressed file.
static void a_raw_copy_is_preferred(void **state) {
    (void)state;
    maker m = usual("both");
    json_object_set_new(m.config, "compression", json_string("zstd:3"));
    write_shard(&m);
    json_object_set_new(
        m.shard, "zip_data",
        json_pack("{s:s,s:i,s:{}}", "basename", "shard.00000.mds.zstd", "bytes", 99, "hashes"));
    write_index(&m);
    assert_reads(&m, 3, usual_first, usual_length); // no compressed file
    char *path = shard_path(&m);
    put_file(path, "abcd", 4); // a left-over
    assert_refused(&m, "shard.00000.mds.zstd, which index.json names, cannot be opened");
    free(path);
    static const char *const methods[] = {"gz:9", "br:11", "bz2", "snappy", "zstd2"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        json_object_set_new(m.shard, "compression", json_string(methods[i]));
        write_index(&m);
        char *part = sp_format("is compressed by '%s'; only zstd", methods[i]);
        assert_refused(&m, part);
        free(part);
    }
    discard(&m);
}

// All faults of a folder in one message, but not ten thousand of them.
static void all_faults_are_listed(void **state) {
    (void)state;
    maker m = usual("listed");
    write_shard(&m);
    json_t *shards = json_array();
    for (int i = 0; i < 50; i++) {
        json_t *s = json_deep_copy(m.shard);
        char *name = sp_format("missing.%02d", i);
        json_object_set_new(json_object_get(s, "raw_data"), "basename", json_string(name));
        json_array_append_new(shards, s);
        free(name);
    }
    json_t *index = json_pack("{s:o,s:i}", "shards", shards, "version", 2);
    char *text = json_dumps(index, 0);
    write_text(&m, text);
    assert_refused(&m, "missing.00");
    assert_non_null(strstr(sp_error_text(), "missing.19"));
    assert_null(strstr(sp_error_text(), "missing.20"));
    assert_non_null(strstr(sp_error_text(), "the other 30 shards were not looked at"));
    free(text);
    json_decref(index);
    discard(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_fixtures_matches),
        cmocka_unit_test(other_columns_are_stepped_over),
        cmocka_unit_test(lengths_of_every_width_are_read),
        cmocka_unit_test(every_cut_of_a_shard_is_refused),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(offsets_and_counts_are_checked),
        cmocka_unit_test(samples_are_checked_when_read),
        cmocka_unit_test(negative_ids_are_refused),
        cmocka_unit_test(index_and_shard_must_agree),
        cmocka_unit_test(other_columns_and_forms_are_refused_clearly),
        cmocka_unit_test(faulty_indexes_are_refused),
        cmocka_unit_test(a_shard_listed_twice_is_refused),
        cmocka_unit_test(a_raw_copy_is_preferred),
        cmocka_unit_test(all_faults_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
