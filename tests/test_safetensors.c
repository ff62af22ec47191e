// safetensors: right files in every shape, and every wrong one refused with the right words
// (formats.md 2, bugs.md S01 to S04).
#include "tests/support.h"

#include "common/hash.h"
#include "common/util.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// A file image: length, header, `data_bytes` bytes 0, 1, 2, ... Caller frees.
static uint8_t *make_image(const char *header, int64_t data_bytes, int64_t *bytes) {
    int64_t n = (int64_t)strlen(header);
    *bytes = 8 + n + data_bytes;
    uint8_t *image = malloc((size_t)*bytes);
    for (int i = 0; i < 8; i++) image[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(image + 8, header, (size_t)n);
    for (int64_t i = 0; i < data_bytes; i++) image[8 + n + i] = (uint8_t)i;
    return image;
}

static char *in_tmp(const char *name) {
    return sp_path_join(test_tmpdir(), name);
}

static void put_file(const char *path, const void *data, int64_t bytes) {
    assert_ok(sp_write_file(path, data, bytes));
}

static void put_image(const char *path, const char *header, int64_t data_bytes) {
    int64_t bytes;
    uint8_t *image = make_image(header, data_bytes, &bytes);
    put_file(path, image, bytes);
    free(image);
}

#define ENTRY(name, dtype, shape, from, to)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to   \
    "]}"

// ---- right files --------------------------------------------------------------------------------

static void legal_headers_are_read(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int64_t data, tensors;
    } cases[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}     ", 0, 0},
        {"{" ENTRY("s", "F32", "[]", 0, 4) "}", 4, 1},  // scalar
        {"{" ENTRY("e", "F32", "[0]", 0, 0) "}", 0, 1}, // empty
        {"{" ENTRY("e", "F32", "[3,0,5]", 4, 4) "," ENTRY("a", "U8", "[4]", 0, 4) "}", 4, 2},
        {"{" ENTRY("e", "I64", "[8589934592,8589934592,0]", 0, 0) "}", 0, 1}, // empty all the same
        {"{" ENTRY("b", "BF16", "[2]", 4, 8) "," ENTRY("a", "F16", "[2]", 0, 4) "}", 8, 2},
        {"{" ENTRY("x", "U8", "[3]", 0, 3) "," ENTRY("y", "F32", "[1]", 3, 7) "}", 7, 2},
        {"{" ENTRY("d", "U8", "[1,1,1,1,1,1,1,1]", 0, 1) "}", 1, 1},
        {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":null}}", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t bytes;
        uint8_t *image = make_image(cases[i].header, cases[i].data, &bytes);
        sp_st *s;
        assert_ok(sp_st_parse(image, bytes, "image", &s));
        assert_int_equal(s->n, cases[i].tensors);
        for (int64_t k = 0; k < s->n; k++)
            assert_true(s->tensor[k].data + s->tensor[k].bytes <= image + bytes);
        sp_st_close(s);
        free(image);
    }
}

static void values_are_read_at_any_alignment(void **state) {
    (void)state;
    // 1 byte before everything else: no tensor is aligned.
    const char *header =
        "{" ENTRY("pad", "U8", "[1]", 0, 1) "," ENTRY("f", "F32", "[2]", 1, 9) "," ENTRY(
            "h", "F16", "[2]", 9, 13) "," ENTRY("b", "BF16", "[1,2]", 13,
                                                17) "," ENTRY("d", "F64", "[1]", 17,
                                                              25) "," ENTRY("i", "I32", "[2]", 25,
                                                                            33) "}";
    int64_t bytes;
    uint8_t *image = make_image(header, 33, &bytes), *data = image + bytes - 33;
    const float f[2] = {1.5f, -0.0f};
    const uint16_t h[2] = {0x3c00, 0x8001}, b[2] = {0x4049, 0xff80};
    const double d = 1 + 0x1p-30;
    const int32_t ints[2] = {INT32_MIN, 7};
    memcpy(data + 1, f, 8);
    memcpy(data + 9, h, 4);
    memcpy(data + 13, b, 4);
    memcpy(data + 17, &d, 8);
    memcpy(data + 25, ints, 8);
    sp_st *s;
    float out[2];
    int32_t out_i[2];
    assert_ok(sp_st_parse(image, bytes, "image", &s));
    assert_int_equal(s->n, 6);
    assert_ok(sp_st_read_f32(s, sp_st_find(s, "f"), out));
    assert_memory_equal(out, f, 8);
    assert_ok(sp_st_read_f32(s, sp_st_find(s, "h"), out));
    assert_true(out[0] == 1 && out[1] == -0x1p-24f);
    assert_ok(sp_st_read_f32(s, sp_st_find(s, "b"), out));
    assert_true(out[0] == 3.140625f && out[1] == -INFINITY);
    assert_ok(sp_st_read_f32(s, sp_st_find(s, "d"), out));
    assert_true(out[0] == 1);
    assert_ok(sp_st_read_i32(s, sp_st_find(s, "i"), out_i));
    assert_memory_equal(out_i, ints, 8);
    assert_fails(sp_st_read_f32(s, sp_st_find(s, "i"), out), SP_BAD_INPUT, "tensor i");
    assert_fails(sp_st_read_i32(s, sp_st_find(s, "f"), out_i), SP_BAD_INPUT, "expected I32");
    assert_null(sp_st_find(s, "absent"));
    const sp_st_tensor *t = sp_st_find(s, "b");
    assert_true(t->dims == 2 && t->shape[0] == 1 && t->shape[1] == 2 && t->elements == 2);
    sp_st_close(s);
    free(image);
}

static void the_fixtures_are_read(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int64_t tensors, elements;
    } cases[] = {{"data/tiny-base", 56, 4590848},
                 {"data/tiny-base/model.safetensors", 56, 4590848},
                 {"tests/golden/forecast_init.safetensors", 7, 7 * 128 * 256}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path = test_path(cases[i].path);
        sp_st *s;
        int64_t elements = 0;
        assert_ok(sp_st_open(path, &s));
        for (int64_t k = 0; k < s->n; k++) elements += s->tensor[k].elements;
        assert_int_equal(s->n, cases[i].tensors);
        assert_int_equal(elements, cases[i].elements);
        sp_st_close(s);
        free(path);
    }
}

// ---- wrong files --------------------------------------------------------------------------------

static void wrong_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int64_t data;
        const char *says;
    } cases[] = {
        // S02: by name, whatever the offsets say
        {"{" ENTRY("model.norm.weight", "BF16", "[2]", 0, 4) "," ENTRY("model.norm.weight", "BF16",
                                                                       "[2]", 0, 4) "}",
         4, "\"model.norm.weight\" stands twice"},
        {"{" ENTRY("model.norm.weight", "BF16", "[2]", 0, 4) "," ENTRY("model.norm.weight", "BF16",
                                                                       "[2]", 4, 8) "}",
         8, "\"model.norm.weight\" stands twice"},
        {"{" ENTRY("a", "U8", "[1]", 0, 1) "," ENTRY("a", "U8", "[1]", 0, 1) "}", 1,
         "\"a\" stands twice"},
        {"{" ENTRY("q\\\"q", "U8", "[1]", 0, 1) "," ENTRY("q\\\"q", "U8", "[1]", 0, 1) "}", 1,
         "\"q\\\"q\" stands twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
         "\"shape\" stands twice"},
        // S03: shape, type and range
        {"{" ENTRY("w", "BF16", "[512,512]", 0, 4) "}", 4,
         "tensor w: [512, 512] of BF16 elements needs 262144 x 2 bytes, but its range has 4"},
        {"{" ENTRY("w", "BF16", "[3,2]", 0, 8) "}", 8, "needs 6 x 2 bytes, but its range has 8"},
        {"{" ENTRY("w", "BF16", "[8589934592,8589934592]", 0, 0) "}", 0,
         "[8589934592, 8589934592] has more than 2^63"},
        {"{" ENTRY("w", "F64", "[4611686018427387904]", 0, 0) "}", 0, "but its range has 0"},
        {"{" ENTRY("w", "U8", "[99999999999999999999]", 0, 0) "}", 0, "too big integer"},
        {"{" ENTRY("w", "U8", "[-1]", 0, 0) "}", 0, "dimension 0"},
        {"{" ENTRY("w", "U8", "[1.0]", 0, 1) "}", 1, "dimension 0"},
        {"{" ENTRY("w", "U8", "3", 0, 3) "}", 3, "\"shape\" must be a list"},
        {"{" ENTRY("w", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "9 dimensions"},
        {"{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "found nothing"},
        {"{" ENTRY("w", "F4", "[2]", 0, 1) "}", 1, "type F4, which is narrower than a byte"},
        {"{" ENTRY("w", "F6_E2M3", "[4]", 0, 3) "}", 3, "F6_E2M3"},
        {"{" ENTRY("w", "F6_E3M2", "[4]", 0, 3) "}", 3, "F6_E3M2"},
        {"{" ENTRY("w", "Q8", "[1]", 0, 1) "}", 1, "unknown type 'Q8'"},
        {"{\"w\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "\"dtype\" must be text"},
        {"{\"w\":7}", 0, "must be described by an object"},
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"data_offsets\" must be two"},
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "must be two"},
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "must be two"},
        {"{" ENTRY("w", "U8", "[1]", 1, 0) "}", 1, "begin <= end"},
        {"{" ENTRY("w", "U8", "[1]", -1, 0) "}", 1, "begin <= end"},
        {"{" ENTRY("w", "U8", "[1]", 0.0, 1) "}", 1, "two whole numbers"},
        // the data area
        {"{" ENTRY("w", "U8", "[4]", 1, 5) "}", 5, "1 bytes before tensor w belong to no tensor"},
        {"{" ENTRY("v", "U8", "[4]", 0, 4) "," ENTRY("w", "U8", "[2]", 6, 8) "}", 8,
         "2 bytes before tensor w"},
        {"{" ENTRY("v", "U8", "[4]", 0, 4) "," ENTRY("w", "U8", "[4]", 2, 6) "}", 6,
         "tensor w overlaps tensor v by 2 bytes"},
        {"{" ENTRY("v", "U8", "[8]", 0, 8) "," ENTRY("w", "U8", "[2]", 2,
                                                     4) "," ENTRY("x", "U8", "[2]", 6, 8) "}",
         8, "tensor x overlaps tensor v"},
        {"{" ENTRY("v", "U8", "[4]", 0, 4) "," ENTRY("e", "U8", "[0]", 2, 2) "}", 4,
         "tensor e overlaps tensor v"},
        {"{" ENTRY("w", "U8", "[4]", 0, 4) "}", 6, "2 bytes after the last tensor"},
        {"{}", 1, "1 bytes after the last tensor"},
        {"{" ENTRY("v", "U8", "[4]", 0, 4) "," ENTRY("w", "U8", "[4]", 4, 8) "}", 7,
         "cut short: its header describes 8 bytes of data, the file holds 7; 1 tensors are "
         "incomplete, the first is w"},
        {"{" ENTRY("w", "U8", "[9223372036854775807]", 0, 9223372036854775807) "}", 1, "cut short"},
        // metadata and JSON
        {"{\"__metadata__\":{\"step\":3}}", 0, "\"step\" must be text, found a whole number"},
        {"{\"__metadata__\":[]}", 0, "\"__metadata__\" must be an object"},
        {"{\"a\":}", 0, "not valid JSON"},
        {"{} x", 0, "not valid JSON"},
        {"{\"a\\u0000b\":{}}", 0, "not valid JSON"},
        {"{\"\xff\":{}}", 0, "not valid JSON"},
        {"[]", 0, "is no safetensors file"},
        {"  {}", 0, "is no safetensors file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t bytes;
        uint8_t *image = make_image(cases[i].header, cases[i].data, &bytes);
        sp_st *s;
        assert_fails(sp_st_parse(image, bytes, "f.safetensors", &s), SP_BAD_INPUT, cases[i].says);
        assert_fails(sp_st_parse(image, bytes, "f.safetensors", &s), SP_BAD_INPUT, "f.safetensors");
        assert_null(s);
        free(image);
    }
}

static void all_problems_come_at_once(void **state) {
    (void)state;
    int64_t bytes;
    sp_st *s;
    uint8_t *image = make_image("{" ENTRY("a", "F4", "[2]", 0, 1) "," ENTRY(
                                    "b", "BF16", "[2]", 1, 3) "," ENTRY("c", "U8", "[1]", 4, 5) "}",
                                6, &bytes);
    assert_fails(sp_st_parse(image, bytes, "f", &s), SP_BAD_INPUT, "tensor a has the type F4");
    assert_non_null(strstr(sp_error_text(), "tensor b: [2] of BF16"));
    assert_non_null(strstr(sp_error_text(), "1 bytes before tensor c"));
    assert_non_null(strstr(sp_error_text(), "1 bytes after the last tensor"));
    free(image);
}

static void a_header_nested_deeply_is_refused(void **state) {
    (void)state;
    int64_t n = 100000, bytes;
    char *header = malloc((size_t)n + 16);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', (size_t)n);
    header[5 + n] = 0;
    uint8_t *image = make_image(header, 0, &bytes);
    sp_st *s;
    assert_fails(sp_st_parse(image, bytes, "f", &s), SP_BAD_INPUT, "not valid JSON");
    free(image);
    free(header);
}

// S01: the first bytes say what it really is.
static void other_contents_are_recognised(void **state) {
    (void)state;
    static const char lfs[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 12345678\n";
    static const struct {
        const char *bytes;
        int64_t n;
        const char *says;
    } cases[] = {
        {lfs, sizeof lfs - 1, "Git LFS pointer"},
        {lfs, sizeof lfs - 1, "git lfs pull"},
        {"<!DOCTYPE html><html><body>404</body></html>", 44, "HTML"},
        {"\n  <HTML>not found</HTML>", 25, "HTML"},
        {"\xef\xbb\xbf<?xml version=\"1.0\"?><Error/>", 32, "HTML or XML"},
        {"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0", 20, "PyTorch's .pt"},
        {"PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20, "zip archive"},
        {"PK\x03\x04", 4, "zip archive"},
        {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15, "before version 1.6"},
        {"\x80\x04\x95\0\0\0\0\0\0\0\0", 11, "pickle"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\x03", 10, "gzip"},
        {"\x28\xb5\x2f\xfd\x24\x04\x21\0\0\0", 10, "zstd"},
        {"\x89HDF\r\n\x1a\n\0\0", 10, "HDF5"},
        {"GGUF\x03\0\0\0\0\0", 10, "GGUF"},
        {"", 0, "empty file"},
        {"\x10\0\0\0\0\0\0", 7, "only 7 bytes"},
        {"\x10\0\0\0\0\0\0\0", 8, "only 8 bytes"},
        {"\0\0\0\0\0\0\0\0\0\0\0\0", 12, "file of zeros"},
        {"\x80\0\0\0\0\0\0\0{\"a\"", 12, "cut short: its header has 128 bytes, the file only 12"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "is no safetensors file"},
        {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, "is no safetensors file"}, // 100,000,001
        {"\x01\0\0\0\0\0\0\0{", 9, "is no safetensors file"},
        {"hello, world", 12, "is no safetensors file"},
    };
    char *path = in_tmp("other.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sp_st *s;
        put_file(path, cases[i].bytes, cases[i].n);
        assert_fails(sp_st_open(path, &s), SP_BAD_INPUT, cases[i].says);
        assert_fails(sp_st_open(path, &s), SP_BAD_INPUT, "other.safetensors");
        assert_null(s);
    }
    sp_st *s;
    assert_fails(sp_st_open("/nonexistent/x.safetensors", &s), SP_BAD_INPUT, "cannot open");
    unlink(path);
    free(path);
}

// ---- folders ------------------------------------------------------------------------------------

static char *make_folder(const char *name) {
    char *dir = in_tmp(name);
    assert_ok(sp_mkdirs(dir));
    return dir;
}

static void put_in(const char *dir, const char *name, const char *header, int64_t data) {
    char *path = sp_path_join(dir, name);
    if (header)
        put_image(path, header, data);
    else
        put_file(path, "", 0);
    free(path);
}

static void put_text(const char *dir, const char *name, const char *text) {
    char *path = sp_path_join(dir, name);
    put_file(path, text, (int64_t)strlen(text));
    free(path);
}

static const char first[] = "{" ENTRY("a", "U8", "[2]", 0, 2) "," ENTRY("c", "U8", "[1]", 2, 3) "}";
static const char second[] = "{" ENTRY("b", "U8", "[4]", 0, 4) "}";
static const char index_text[] =
    "{\"metadata\":{\"total_size\":7},\"weight_map\":{\"a\":\"m1.safetensors\","
    "\"b\":\"m2.safetensors\",\"c\":\"m1.safetensors\"}}";

static void sharded_folders_are_read(void **state) {
    (void)state;
    char *dir = make_folder("sharded");
    put_in(dir, "m1.safetensors", first, 3);
    put_in(dir, "m2.safetensors", second, 4);
    put_text(dir, "model.safetensors.index.json", index_text);
    sp_st *s;
    assert_ok(sp_st_open(dir, &s));
    assert_int_equal(s->n, 3);
    assert_int_equal(s->n_files, 2);
    assert_null(s->metadata);
    assert_string_equal(s->tensor[1].name, "b");
    assert_string_equal(sp_path_base(s->files[s->tensor[1].file]), "m2.safetensors");
    assert_memory_equal(s->tensor[1].data, "\0\1\2\3", 4);
    assert_memory_equal(s->tensor[2].data, "\2", 1); // c lies behind a
    sp_st_close(s);
    free(dir);
}

static void wrong_folders_are_refused(void **state) {
    (void)state;
    static const char extra[] = "{" ENTRY("b", "U8", "[4]", 0, 4) "," ENTRY(
        "a", "U8", "[1]", 4, 5) "," ENTRY("z", "U8", "[1]", 5, 6) "}";
    static const struct {
        const char *index, *m1, *m2; // NULL: empty file; "-": none
        int64_t d1, d2;
        const char *says, *also;
    } cases[] = {
        {index_text, first, "-", 3, 0, "m2.safetensors: No such file", "1 tensors: b"},
        {index_text, "-", "-", 0, 0, "2 tensors: a, c", "1 tensors: b"},
        {index_text, first, NULL, 3, 0, "m2.safetensors is no safetensors file; this is an empty",
         NULL},
        {index_text, first, "{}", 3, 0, "m2.safetensors lacks tensor b", NULL},
        {index_text, first, second, 3, 3, "m2.safetensors is cut short", NULL},
        {index_text, first, extra, 3, 6, "holds tensor z, but the index does not put it there",
         "tensor a is both in"},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"c\":\"m1.safetensors\","
         "\"n\":\"m1.safetensors\",\"b\":\"m2.safetensors\"}}",
         first, second, 3, 4, "m1.safetensors lacks tensor n", NULL},
        {"{\"weight_map\":{\"a\":\"../m1.safetensors\",\"b\":\"/m2.safetensors\","
         "\"c\":\"x/../../y\"}}",
         first, second, 3, 4, "'../m1.safetensors', which is not a name inside",
         "'/m2.safetensors'"},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"a\":\"m2.safetensors\"}}", first, second, 3,
         4, "\"a\" stands twice", "model.safetensors.index.json"},
        {"{\"weight_map\":{\"a\":7,\"c\":\"m1.safetensors\"}}", first, second, 3, 4,
         "file of tensor a must be text", NULL},
        {"{\"weight_map\":{}}", first, second, 3, 4, "found an empty one", NULL},
        {"{\"weight_map\":null}", first, second, 3, 4, "found null", NULL},
        {"{}", first, second, 3, 4, "found nothing", NULL},
        {"[", first, second, 3, 4, "not valid JSON", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "wrong-%zu", i);
        char *dir = make_folder(name);
        put_text(dir, "model.safetensors.index.json", cases[i].index);
        if (!cases[i].m1 || cases[i].m1[0] != '-')
            put_in(dir, "m1.safetensors", cases[i].m1, cases[i].d1);
        if (!cases[i].m2 || cases[i].m2[0] != '-')
            put_in(dir, "m2.safetensors", cases[i].m2, cases[i].d2);
        sp_st *s;
        assert_fails(sp_st_open(dir, &s), SP_BAD_INPUT, cases[i].says);
        if (cases[i].also) assert_fails(sp_st_open(dir, &s), SP_BAD_INPUT, cases[i].also);
        assert_null(s);
        free(dir);
    }
}

static void a_folder_must_be_unambiguous(void **state) {
    (void)state;
    char *dir = make_folder("ambiguous");
    sp_st *s;
    assert_fails(sp_st_open(dir, &s), SP_BAD_INPUT, "neither model.safetensors nor");
    put_text(dir, "pytorch_model.bin", "x");
    assert_fails(sp_st_open(dir, &s), SP_BAD_INPUT, "must be converted to safetensors");
    put_in(dir, "model.safetensors", first, 3);
    assert_ok(sp_st_open(dir, &s));
    assert_null(s->metadata);
    sp_st_close(s);
    put_text(dir, "model.safetensors.index.json", index_text);
    assert_fails(sp_st_open(dir, &s), SP_BAD_INPUT, "both model.safetensors and");
    free(dir);
}

// ---- writing ------------------------------------------------------------------------------------

static void files_are_written_as_the_reference_does(void **state) {
    (void)state;
    char *path = in_tmp("written.safetensors"), *text;
    const uint16_t bf[3] = {1, 2, 3};
    const float f[2] = {4, 5};
    const uint8_t u[1] = {6};
    const int64_t wide[1] = {7};
    const sp_st_out t[] = {{"b", SP_ST_U8, 1, {1}, u},
                           {"z", SP_ST_F32, 2, {1, 2}, f},
                           {"a", SP_ST_BF16, 1, {3}, bf},
                           {"i", SP_ST_I64, 0, {0}, wide},
                           {"c", SP_ST_F32, 1, {0}, NULL}};
    json_t *metadata = json_pack("{s:s, s:s}", "sparda.step", "12", "a.first", "\"quoted\"");
    assert_ok(sp_st_write(path, t, 5, metadata));
    json_decref(metadata);
    int64_t bytes;
    assert_ok(sp_read_file(path, 1 << 20, &text, &bytes));
    const char *header =
        "{\"__metadata__\":{\"a.first\":\"\\\"quoted\\\"\",\"format\":\"pt\",\"sparda.step\":"
        "\"12\"}," ENTRY("i", "I64", "[]", 0, 8) "," ENTRY("c", "F32", "[0]", 8, 8) "," ENTRY(
            "z", "F32", "[1,2]", 8, 16) "," ENTRY("a", "BF16", "[3]", 16,
                                                  22) "," ENTRY("b", "U8", "[1]", 22, 23) "}";
    int64_t length = (int64_t)(uint8_t)text[0] | (int64_t)(uint8_t)text[1] << 8;
    assert_int_equal(length % 8, 0);
    assert_true(length >= (int64_t)strlen(header) && length < (int64_t)strlen(header) + 8);
    assert_memory_equal(text + 8, header, strlen(header));
    for (int64_t i = (int64_t)strlen(header); i < length; i++) assert_int_equal(text[8 + i], ' ');
    assert_int_equal(bytes, 8 + length + 23);
    free(text);

    sp_st *s;
    assert_ok(sp_st_open(path, &s));
    float back[2];
    assert_ok(sp_st_read_f32(s, sp_st_find(s, "z"), back));
    assert_memory_equal(back, f, 8);
    assert_string_equal(json_string_value(json_object_get(s->metadata, "format")), "pt");
    assert_memory_equal(sp_st_find(s, "a")->data, bf, 6);
    sp_st_close(s);

    // The same arguments in another order: the same bytes.
    const sp_st_out again[] = {t[4], t[3], t[2], t[1], t[0]};
    char *other = in_tmp("again.safetensors"), a[SP_SHA256_HEX], b[SP_SHA256_HEX];
    metadata =
        json_pack("{s:s, s:s, s:s}", "a.first", "\"quoted\"", "format", "np", "sparda.step", "12");
    assert_ok(sp_st_write(other, again, 5, metadata));
    json_decref(metadata);
    assert_ok(sp_sha256_file(path, a));
    assert_ok(sp_sha256_file(other, b));
    assert_string_equal(a, b);
    free(other);
    free(path);
}

static void no_tensors_and_no_metadata_make_a_file(void **state) {
    (void)state;
    char *path = in_tmp("nothing.safetensors");
    assert_ok(sp_st_write(path, NULL, 0, NULL));
    sp_st *s;
    assert_ok(sp_st_open(path, &s));
    assert_int_equal(s->n, 0);
    assert_int_equal(json_object_size(s->metadata), 1);
    sp_st_close(s);
    free(path);
}

static void a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    char *path = in_tmp("kept.safetensors"), *text;
    const float f[1] = {1};
    const sp_st_out twice[] = {{"a", SP_ST_F32, 1, {1}, f}, {"a", SP_ST_F32, 1, {1}, f}};
    const sp_st_out huge[] = {{"a", SP_ST_F32, 2, {INT64_MAX, 2}, f}};
    put_file(path, "old", 3);
    assert_fails(sp_st_write(path, twice, 2, NULL), SP_ENVIRONMENT, "tensor a");
    assert_fails(sp_st_write(path, huge, 1, NULL), SP_ENVIRONMENT, "tensor a");
    int64_t bytes;
    assert_ok(sp_read_file(path, 100, &text, &bytes));
    assert_string_equal(text, "old");
    free(text);
    free(path);
    char *nowhere = in_tmp("no/such/folder.safetensors");
    assert_fails(sp_st_write(nowhere, twice, 1, NULL), SP_ENVIRONMENT, "cannot write");
    free(nowhere);
}

static void every_type_has_its_size(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t size;
    } want[] = {{"BOOL", 1},    {"U8", 1},      {"I8", 1},          {"F8_E5M2", 1},
                {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1},
                {"I16", 2},     {"U16", 2},     {"F16", 2},         {"BF16", 2},
                {"I32", 4},     {"U32", 4},     {"F32", 4},         {"C64", 8},
                {"F64", 8},     {"I64", 8},     {"U64", 8}};
    for (int i = 0; i < 19; i++) {
        assert_string_equal(sp_st_dtype_name((sp_st_dtype)i), want[i].name);
        assert_int_equal(sp_st_dtype_size((sp_st_dtype)i), want[i].size);
    }
    assert_int_equal(SP_ST_U64, 18);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_headers_are_read),
        cmocka_unit_test(values_are_read_at_any_alignment),
        cmocka_unit_test(the_fixtures_are_read),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(all_problems_come_at_once),
        cmocka_unit_test(a_header_nested_deeply_is_refused),
        cmocka_unit_test(other_contents_are_recognised),
        cmocka_unit_test(sharded_folders_are_read),
        cmocka_unit_test(wrong_folders_are_refused),
        cmocka_unit_test(a_folder_must_be_unambiguous),
        cmocka_unit_test(files_are_written_as_the_reference_does),
        cmocka_unit_test(no_tensors_and_no_metadata_make_a_file),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(every_type_has_its_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
