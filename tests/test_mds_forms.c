// MDS data sets of every form, written by our writer: encodings, compression, hashes; and what is
// wrong with compressed files.
#include "tests/support.h"

#include "common/json.h"
#include "common/util.h"
#include "data/dataset.h"
#include "data/mds.h"
#include "data/mds_write.h"
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

static sp_status open_path(const char *path, sp_dataset **out) {
    sp_data_entry e = {.path = (char *)path};
    const sp_data_list list = {&e, 1};
    return sp_dataset_open(&list, &(sp_dataset_options){.quiet = true}, out);
}

static const int64_t lengths[] = {1, 7, 255, 256, 300, 65535, 65536};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

static int32_t token(int64_t row, int64_t p) {
    return (int32_t)((row * 31 + p) % 120);
}

static char *write_set(const sp_mds_writer_args *args, const char *name, int64_t fixed) {
    sp_mds_writer_args a = *args;
    char *dir = sp_path_join(test_tmpdir(), name);
    int32_t *t = malloc(65536 * sizeof *t);
    sp_mds_writer *w;
    a.dir = dir;
    a.size_limit = 100000;
    assert_ok(sp_mds_create(&a, &w));
    for (int64_t r = 0; r < N_LENGTHS; r++) {
        int64_t n = fixed ? fixed : lengths[r];
        for (int64_t p = 0; p < n; p++) t[p] = token(r, p);
        assert_ok(sp_mds_append(w, t, n));
    }
    assert_ok(sp_mds_finish(w));
    free(t);
    return dir;
}

static void assert_rows(const sp_dataset *d, int64_t fixed) {
    int32_t *t = malloc(65536 * sizeof *t);
    assert_int_equal(sp_dataset_rows(d, 0), N_LENGTHS);
    for (int64_t r = 0; r < N_LENGTHS; r++) {
        int64_t n, length, want = fixed ? fixed : lengths[r];
        assert_ok(sp_dataset_row_length(d, 0, r, &length));
        assert_int_equal(length, want);
        assert_ok(sp_dataset_read(d, 0, r, 65536, t, &n));
        assert_int_equal(n, want);
        for (int64_t p = 0; p < n; p++) assert_int_equal(t[p], token(r, p));
    }
    free(t);
}

typedef struct seen {
    int64_t rows;
    int64_t fixed;
} seen;

static sp_status see(void *user, int64_t row, const int32_t *tokens, int64_t n) {
    (void)row;
    seen *s = user;
    assert_int_equal(n, s->fixed ? s->fixed : lengths[s->rows]);
    for (int64_t p = 0; p < n; p++) assert_int_equal(tokens[p], token(s->rows, p));
    s->rows++;
    return SP_OK;
}

static void every_form_is_read_by_rows_and_as_a_whole(void **state) {
    (void)state;
    static const char *const types[] = {"uint8", "int8",   "uint16", "int16",
                                        "int32", "uint32", "int64",  "uint64"};
    static const char *const hashes[] = {"xxh64", "xxh3_64", "xxh32", "xxh128", "sha1", "sha256"};
    int k = 0;
    for (int zip = 0; zip < 2; zip++)
        for (int form = 0; form < 3; form++)
            for (int i = 0; i < (form == 0 ? 1 : 8); i++, k++) {
                char encoding[40] = "ndarray", name[40];
                if (form > 0) snprintf(encoding, sizeof encoding, "ndarray:%s", types[i]);
                if (form == 2) strcat(encoding, ":777");
                snprintf(name, sizeof name, "form-%d", k);
                sp_mds_writer_args a = {.encoding = encoding,
                                        .zstd_level = 3 * zip,
                                        .hash = k % 7 < 6 ? hashes[k % 7] : NULL,
                                        .length_column = i % 2};
                char *dir = write_set(&a, name, form == 2 ? 777 : 0);
                sp_dataset *d;
                assert_ok(open_path(dir, &d));
                assert_rows(d, form == 2 ? 777 : 0);
                seen s = {.fixed = form == 2 ? 777 : 0};
                sp_scan scan = {.visit = see, .user = &s, .thorough = true};
                for (int64_t f = 0; f < sp_dataset_files(d, 0); f++) {
                    const sp_source *file = sp_dataset_file(d, 0, f);
                    assert_int_equal(file->packed, zip);
                    assert_ok(file->ops->scan(file, &scan));
                }
                assert_int_equal(s.rows, N_LENGTHS);
                assert_int_equal(scan.checked, a.hash ? sp_dataset_files(d, 0) * (zip ? 2 : 1) : 0);
                sp_scan_free(&scan);
                sp_dataset_close(d);
                free(dir);
            }
}

static void put_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// The one compressed shard of a data set, its index, and the contents of both.
typedef struct packed {
    char *dir, *zip, *index;
    json_t *root, *shard;
    char *bytes;
    int64_t n;
} packed;

static packed make_packed(const char *name, const char *hash) {
    packed p = {0};
    sp_mds_writer_args a = {.encoding = "ndarray:int32", .zstd_level = 3, .hash = hash};
    a.dir = p.dir = sp_path_join(test_tmpdir(), name);
    a.size_limit = 100000;
    sp_mds_writer *w;
    assert_ok(sp_mds_create(&a, &w));
    for (int64_t r = 0; r < 3; r++)
        assert_ok(sp_mds_append(w, (int32_t[]){(int32_t)r, 10, 20, 30}, r + 2));
    assert_ok(sp_mds_finish(w));
    p.zip = sp_path_join(p.dir, "shard.00000.mds.zstd");
    p.index = sp_path_join(p.dir, "index.json");
    assert_ok(sp_json_load(p.index, 1 << 20, &p.root));
    p.shard = json_array_get(json_object_get(p.root, "shards"), 0);
    assert_ok(sp_read_file(p.zip, 1 << 20, &p.bytes, &p.n));
    return p;
}

static void put_index(const packed *p) {
    char *text = json_dumps(p->root, JSON_SORT_KEYS);
    put_file(p->index, text, strlen(text));
    free(text);
}

static void set_bytes(const packed *p, const char *which, int64_t n) {
    json_object_set_new(json_object_get(p->shard, which), "bytes", json_integer(n));
    put_index(p);
}

static void discard(packed *p) {
    json_decref(p->root);
    free(p->bytes);
    free(p->dir);
    free(p->zip);
    free(p->index);
}

// Opens, reads row 1 and scans; the message of the first that fails.
static sp_status try_all(const packed *p) {
    sp_dataset *d;
    int32_t t[8];
    int64_t n;
    sp_status st = open_path(p->dir, &d);
    if (st != SP_OK) return st;
    st = sp_dataset_read(d, 0, 1, 8, t, &n);
    if (st == SP_OK) {
        assert_int_equal(n, 3);
        assert_int_equal(t[2], 20);
    }
    sp_dataset_close(d);
    return st;
}

static void every_cut_of_a_compressed_shard_is_refused(void **state) {
    (void)state;
    packed p = make_packed("zip-cut", NULL);
    assert_ok(try_all(&p));
    for (int64_t n = 0; n < p.n; n++) {
        put_file(p.zip, p.bytes, (size_t)n);
        assert_fails(try_all(&p), SP_BAD_INPUT, "not complete"); // against the index
        set_bytes(&p, "zip_data", n);                            // with an index that agrees
        assert_fails(try_all(&p), SP_BAD_INPUT, "shard.00000.mds.zstd");
        set_bytes(&p, "zip_data", p.n);
    }
    discard(&p);
}

static void every_changed_byte_of_a_hashed_shard_is_refused(void **state) {
    (void)state;
    packed p = make_packed("zip-changed", "xxh64");
    for (int64_t i = 0; i < p.n; i++) {
        p.bytes[i] ^= 0x10;
        put_file(p.zip, p.bytes, (size_t)p.n);
        p.bytes[i] ^= 0x10;
        assert_fails(try_all(&p), SP_BAD_INPUT, "its xxh64 is");
        assert_non_null(strstr(sp_error_text(), p.zip));
    }
    put_file(p.zip, p.bytes, (size_t)p.n);
    assert_ok(try_all(&p));
    discard(&p);
    p = make_packed("zip-unhashed", NULL); // nobody tells, but nothing runs astray
    for (int64_t i = 0; i < p.n; i++) {
        p.bytes[i] ^= 0x10;
        put_file(p.zip, p.bytes, (size_t)p.n);
        p.bytes[i] ^= 0x10;
        sp_dataset *d;
        int32_t t[8];
        int64_t n;
        assert_ok(open_path(p.dir, &d));
        for (int64_t r = 0; r < 3; r++) {
            sp_status st = sp_dataset_read(d, 0, r, 8, t, &n);
            assert_true(st == SP_BAD_INPUT || (st == SP_OK && n == r + 2));
        }
        sp_dataset_close(d);
    }
    discard(&p);
}

// What unpacks to more than the index states, by claim of the frame or without one.
static void bombs_are_refused(void **state) {
    (void)state;
    packed p = make_packed("bomb", NULL);
    const int64_t raw =
        json_integer_value(json_object_get(json_object_get(p.shard, "raw_data"), "bytes"));
    const size_t much = 64 << 20;
    char *zeros = calloc(1, much), *out = malloc(ZSTD_compressBound(much));
    for (int claim = 0; claim < 2; claim++) {
        ZSTD_CCtx *z = ZSTD_createCCtx();
        ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, claim);
        size_t n = ZSTD_compress2(z, out, ZSTD_compressBound(much), zeros, much);
        ZSTD_freeCCtx(z);
        assert_false(ZSTD_isError(n));
        put_file(p.zip, out, n);
        set_bytes(&p, "zip_data", (int64_t)n);
        set_bytes(&p, "raw_data", raw);
        assert_fails(try_all(&p), SP_BAD_INPUT, "unpacks to more than the");
        set_bytes(&p, "raw_data", UINT32_MAX); // an index that claims far too much
        assert_fails(try_all(&p), SP_BAD_INPUT, "unpacks to 67108864 bytes");
    }
    free(zeros);
    free(out);
    set_bytes(&p, "raw_data", raw + 1);
    put_file(p.zip, p.bytes, (size_t)p.n);
    set_bytes(&p, "zip_data", p.n);
    assert_fails(try_all(&p), SP_BAD_INPUT, "but raw_data in index.json has");
    put_file(p.zip, "no zstd data at all", 19);
    set_bytes(&p, "zip_data", 19);
    assert_fails(try_all(&p), SP_BAD_INPUT, "is not zstd data");
    discard(&p);
}

// Memory is taken by what was unpacked, not by what is claimed.
static void claims_take_no_memory(void **state) {
    (void)state;
    sp_buffer b = {0};
    char small[100] = {0}, out[200];
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, 0);
    size_t n = ZSTD_compress2(z, out, sizeof out, small, sizeof small);
    ZSTD_freeCCtx(z);
    assert_fails(sp_mds_unpack((uint8_t *)out, (int64_t)n, (int64_t)1 << 40, &b), SP_BAD_INPUT,
                 "unpacks to 100 bytes");
    assert_true(b.cap <= 1 << 25);
    assert_ok(sp_mds_unpack((uint8_t *)out, (int64_t)n, 100, &b));
    sp_buffer_free(&b);
}

static void ids_beyond_32_bits_are_refused_with_their_place(void **state) {
    (void)state;
    const sp_mds_type *i64 = sp_mds_type_of("int64", 5), *u32 = sp_mds_type_of("uint32", 6);
    int64_t wide[3] = {5, (int64_t)1 << 40, -1}, value = 0;
    uint32_t large[2] = {7, 0x80000000u};
    int32_t t[3];
    assert_int_equal(sp_mds_convert((uint8_t *)wide, 3, i64, t, &value), 1);
    assert_true(value == (int64_t)1 << 40);
    wide[1] = 6;
    assert_int_equal(sp_mds_convert((uint8_t *)wide, 3, i64, t, &value), 3);
    assert_int_equal(t[2], -1); // for the range check
    assert_int_equal(sp_mds_convert((uint8_t *)large, 2, u32, t, &value), 1);
    assert_int_equal(value, 0x80000000);
    assert_null(sp_mds_type_of("float32", 7));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_is_read_by_rows_and_as_a_whole),
        cmocka_unit_test(every_cut_of_a_compressed_shard_is_refused),
        cmocka_unit_test(every_changed_byte_of_a_hashed_shard_is_refused),
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(claims_take_no_memory),
        cmocka_unit_test(ids_beyond_32_bits_are_refused_with_their_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
