// torch .pt files: pickles opcode by opcode, the zip container under damage, our own writer. Files
// made by torch itself (tests/pt) are read in test_import.c.
#include "checkpoints/checkpoints.h"
#include "checkpoints/pt.h"
#include "common/hash.h"
#include "common/util.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

// ---- pickles ------------------------------------------------------------------------------------

static sp_pickle *run(const char *bytes, size_t n) {
    sp_pickle *p;
    assert_ok(sp_pickle_run((const uint8_t *)bytes, (int64_t)n, "pickle", &p));
    return p;
}
#define RUN(text) run(text, sizeof(text) - 1)

static void refused(const char *bytes, size_t n, const char *part) {
    sp_pickle *p;
    assert_fails(sp_pickle_run((const uint8_t *)bytes, (int64_t)n, "pickle", &p), SP_BAD_INPUT,
                 part);
    assert_null(p);
}
#define REFUSED(text, part) refused(text, sizeof(text) - 1, part)

static void expect_int(const char *bytes, size_t n, int64_t want) {
    sp_pickle *p = run(bytes, n);
    assert_int_equal(sp_pickle_root(p)->kind, SP_PT_INT);
    assert_int_equal(sp_pickle_root(p)->u.i, want);
    sp_pickle_free(p);
}
#define INT(text, want) expect_int(text, sizeof(text) - 1, want)

static void numbers(void **unused) {
    (void)unused;
    INT("K\xff.", 255);
    INT("M\x01\x02.", 0x201);
    INT("J\xff\xff\xff\xff.", -1);
    INT("J\x00\x00\x00\x80.", INT32_MIN);
    INT("\x8a\x00.", 0);
    INT("\x8a\x01\xff.", -1);
    INT("\x8a\x02\xff\x00.", 255);
    INT("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", INT64_MIN);
    INT("\x8b\x02\x00\x00\x00\x10\x27.", 10000);
    INT("\x80\x02K\x07.", 7);
    INT("\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00K\x07.", 7);
    sp_pickle *p = RUN("G\x3f\xf8\x00\x00\x00\x00\x00\x00."); // big-endian
    assert_true(sp_pickle_root(p)->u.f == 1.5);
    sp_pickle_free(p);
    p = RUN("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."); // 2^64 is carried, not read
    assert_int_equal(sp_pickle_root(p)->kind, SP_PT_OPAQUE);
    sp_pickle_free(p);
    p = RUN("\x88.");
    assert_true(sp_pickle_root(p)->kind == SP_PT_BOOL && sp_pickle_root(p)->u.b);
    sp_pickle_free(p);
}

static void containers(void **unused) {
    (void)unused;
    // {"a": (1, 2), "b": [3, None], "a": 4}: the last value of a key counts
    sp_pickle *p = RUN("}(X\x01\x00\x00\x00"
                       "aK\x01K\x02\x86\x8c\x01"
                       "b](K\x03Ne"
                       "X\x01\x00\x00\x00"
                       "aK\x04u.");
    const sp_pt_value *d = sp_pickle_root(p), *b = sp_pt_get(d, "b");
    assert_int_equal(d->kind, SP_PT_DICT);
    assert_int_equal(sp_pt_get(d, "a")->u.i, 4);
    assert_int_equal(b->u.list.n, 2);
    assert_int_equal(b->u.list.item[1]->kind, SP_PT_NONE);
    assert_null(sp_pt_get(d, "c"));
    json_t *j = sp_pt_to_json(d);
    char *text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"a\":4,\"b\":[3,null]}");
    free(text), json_decref(j), sp_pickle_free(p);

    // memo: the same list twice, changed through either
    p = RUN("]q\x05(h\x05K\x09"
            "e0h\x05."); // [itself, 9]
    d = sp_pickle_root(p);
    assert_int_equal(d->u.list.n, 2);
    assert_ptr_equal(d->u.list.item[0], d);
    char what[64];
    sp_pt_describe(d, what, sizeof what);
    assert_string_equal(what, "a list of 2");
    sp_pickle_free(p);
    p = RUN("}\x94(\x8c\x01xh\x00u."); // a dictionary in itself: as JSON it must end
    j = sp_pt_to_json(sp_pickle_root(p));
    assert_non_null(json_object_get(json_object_get(j, "x"), "x"));
    json_decref(j), sp_pickle_free(p);
    INT("K\x01r\x00\x01\x00\x00"
        "0j\x00\x01\x00\x00.",
        1);
    INT("(K\x01K\x02"
        "1K\x03.",
        3);             // POP_MARK
    INT("(0K\x03.", 3); // POP of a mark
    INT("K\x03"
        "20.",
        3); // DUP, POP
}

static void objects(void **unused) {
    (void)unused;
    sp_pickle *p = RUN("(l."); // nothing was ever on the stack
    assert_int_equal(sp_pickle_root(p)->u.list.n, 0);
    sp_pickle_free(p);
    p = RUN("ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00"
            "aK\x01u}b.");
    assert_int_equal(sp_pt_get(sp_pickle_root(p), "a")->u.i, 1); // BUILD leaves it alone
    sp_pickle_free(p);
    p = RUN("ccollections\nOrderedDict\n]((\x8c\x01"
            "aK\x07t"
            "e\x85R.");
    assert_int_equal(sp_pt_get(sp_pickle_root(p), "a")->u.i, 7);
    sp_pickle_free(p);
    // unknown things are named, carried, and swallow what is done to them
    p = RUN("cos\nsystem\n\x8c\x04"
            "echo\x85R}(\x8c\x01xK\x01ub(\x8c\x01yK\x02u(K\x01"
            "e.");
    assert_int_equal(sp_pickle_root(p)->kind, SP_PT_OPAQUE);
    char what[64];
    sp_pt_describe(sp_pickle_root(p), what, sizeof what);
    assert_string_equal(what, "an object of os.system");
    assert_null(sp_pt_to_json(sp_pickle_root(p)));
    sp_pickle_free(p);
}

#define PID(type, key, n)                                                                          \
    "(\x8c\x07storagectorch\n" type "\n\x8c\x01" key "\x8c\x03"                                    \
    "cpuK" n "tQ"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"

static void tensors(void **unused) {
    (void)unused;
    sp_pickle *p =
        RUN(REBUILD "(" PID("HalfStorage", "7", "\x30") "K\x02K\x03K\x04\x86K\x04K\x01\x86"
                                                        "\x89"
                                                        "ccollections\nOrderedDict\n)RtR.");
    const sp_pt_value *v = sp_pickle_root(p);
    assert_int_equal(v->kind, SP_PT_TENSOR);
    const sp_pt_tensor *t = v->u.tensor;
    assert_int_equal(t->storage.dtype, SP_PT_F16);
    assert_int_equal(t->storage.elements, 0x30);
    assert_true(sp_pt_text_is(t->storage.key, "7"));
    assert_int_equal(t->offset, 2);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->stride[0], 4);
    char what[64];
    sp_pt_describe(v, what, sizeof what);
    assert_string_equal(what, "a tensor float16 [3,4]");
    sp_pickle_free(p);
    // a storage type, a shape or an argument list that we do not know: opaque, no error
    static const char *const odd[] = {
        REBUILD "(" PID("QInt8Storage", "7", "\x30") "K\x02K\x03\x85K\x01\x85tR.",
        REBUILD "(" PID("HalfStorage", "7", "\x30") "K\x02K\x03\x85K\x04K\x01\x86tR.",
        REBUILD "(K\x01K\x02))tR.",
        REBUILD ")R.",
    };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        p = run(odd[i], strlen(odd[i]));
        assert_int_equal(sp_pickle_root(p)->kind, SP_PT_OPAQUE);
        sp_pickle_free(p);
    }
}

static void malformed(void **unused) {
    (void)unused;
    REFUSED("", "ends without a stop");
    REFUSED("K", "middle of a value");
    REFUSED("K\x01", "ends without a stop");
    REFUSED(".", "stack is too short");
    REFUSED("K\x01K\x02.", "left over");
    REFUSED("(K\x01.", "left over");
    REFUSED("t.", "mark is missing");
    REFUSED("K\x01(\x85.", "stack is too short"); // would reach below the mark
    REFUSED("(q\x01.", "stack is too short");
    REFUSED("X\xff\xff\xff\xff"
            "a.",
            "middle of a value");
    REFUSED("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
            "a.",
            "middle of a value");
    REFUSED("\x8b\xff\xff\xff\xff"
            "a.",
            "middle of a value");
    REFUSED("}K\x01"
            "a.",
            "holds none");
    REFUSED("](K\x01K\x02u.", "holds none");
    REFUSED("}(K\x01u.", "without a value");
    REFUSED("h\x05.", "never stored");
    REFUSED("j\xff\xff\xff\xff.", "never stored");
    REFUSED("K\x01r\xff\xff\xff\xff.", "too large");
    REFUSED("cos\nsystem", "middle of a name");
    REFUSED("K\x01K\x02\x93.", "no text");
    REFUSED("I1\n.", "0x49");
    REFUSED("\x80\x09.", "protocols");
    REFUSED("cos\nsystem\n}b.", "BUILD on a name");

    // a list of a million entries, put into OrderedDicts again and again
    sp_text bomb = {0};
    sp_text_add(&bomb, "](");
    for (int i = 0; i < 200000; i++) sp_text_bytes(&bomb, "NN\x86", 3);
    sp_text_add(&bomb, "e\x85q");
    sp_text_bytes(&bomb,
                  "\x00"
                  "0",
                  2);
    for (int i = 0; i < 200; i++) {
        sp_text_add(&bomb, "ccollections\nOrderedDict\nh");
        sp_text_bytes(&bomb, "\x00R", 2);
    }
    refused(bomb.data, bomb.len, "again and again");
    sp_text_free(&bomb);

    sp_text deep = {0}; // nesting needs no recursion of ours
    for (int i = 0; i < 300000; i++) sp_text_add(&deep, "](");
    for (int i = 0; i < 300000; i++) sp_text_add(&deep, "e");
    sp_text_add(&deep, ".");
    sp_pickle *p = run(deep.data, deep.len);
    assert_int_equal(sp_pickle_root(p)->kind, SP_PT_LIST);
    sp_pickle_free(p);
    sp_text_free(&deep);
}

// ---- our own files ------------------------------------------------------------------------------

enum { LAYERS = 2, ROWS = 8, COLS = 6, SIZE = ROWS * COLS };

static sp_forecast make_forecast(void) {
    sp_forecast f = {.layers = LAYERS, .rows = ROWS, .cols = COLS};
    uint64_t seed = 5;
    assert_ok(sp_alloc(&f.w, (LAYERS + 1) * SIZE, sizeof *f.w, "test"));
    for (int i = 0; i < (LAYERS + 1) * SIZE; i++) f.w[i] = test_uniform(&seed, -1, 1);
    return f;
}

static char *write_one(const char *name) {
    char *path = sp_path_join(test_tmpdir(), name);
    sp_forecast f = make_forecast();
    json_t *sparse = json_pack("{s:i,s:b,s:s,s:f,s:n,s:I,s:[i,i],s:{}}", "topk", 8, "use_nope", 0,
                               "align", "max", "rate", 0.5, "none", "large", (json_int_t)INT64_MIN,
                               "list", 1, -2, "empty");
    assert_ok(sp_pt_write(path, &f, 2000, sparse, "tiny-base"));
    json_decref(sparse);
    sp_forecast_free(&f);
    return path;
}

static void own_round_trip(void **unused) {
    (void)unused;
    char *path = write_one("forecast.pt"), *again = write_one("again.pt"), *text;
    sp_forecast f = make_forecast(), in = {.layers = LAYERS, .rows = ROWS, .cols = COLS};
    assert_ok(sp_alloc(&in.w, (LAYERS + 1) * SIZE, sizeof *in.w, "test"));
    sp_imported info;
    assert_ok(sp_forecast_import(path, &in, &info));
    for (int i = 0; i < (LAYERS + 1) * SIZE; i++)
        assert_true(in.w[i] == sp_bf16_to_f32(sp_f32_to_bf16(f.w[i])));
    assert_int_equal(info.step, 2000);
    assert_string_equal(info.base_model, "tiny-base");
    assert_string_equal(info.format, "pt");
    text = json_dumps(info.sparse_config, JSON_COMPACT);
    assert_string_equal(text,
                        "{\"topk\":8,\"use_nope\":false,\"align\":\"max\",\"rate\":0.5,\"none\":"
                        "null,\"large\":-9223372036854775808,\"list\":[1,-2],\"empty\":{}}");
    free(text), sp_imported_free(&info);

    // every entry on a 64-byte boundary, every tensor with a storage of its own; own bytes depend
    // on the contents alone (the top folder is the file's name)
    sp_pt *p;
    assert_ok(sp_pt_open(path, &p));
    assert_int_equal(p->zip.n, 3 + LAYERS + 1);
    for (int64_t i = 0; i < p->zip.n; i++)
        assert_int_equal((p->zip.entry[i].data - p->map.data) % 64, 0);
    const sp_pt_value *dict;
    assert_ok(sp_pt_weights(p, &dict));
    assert_int_equal(dict->u.list.n / 2, LAYERS + 1);
    for (int64_t i = 0; i <= LAYERS; i++) {
        const sp_pt_tensor *t = dict->u.list.item[2 * i + 1]->u.tensor;
        assert_int_equal(t->storage.key.data[0], '0' + i);
        assert_int_equal(t->storage.elements, SIZE);
        assert_int_equal(t->offset, 0);
    }
    sp_pt_close(p);
    char *a, *b;
    int64_t an, bn;
    assert_ok(sp_read_file(path, 1 << 20, &a, &an));
    free(again), again = write_one("sub.pt"), free(again), again = write_one("forecast.pt");
    assert_ok(sp_read_file(again, 1 << 20, &b, &bn));
    assert_int_equal(an, bn);
    assert_memory_equal(a, b, (size_t)an);
    free(a), free(b), free(path), free(again);
    sp_forecast_free(&f), sp_forecast_free(&in);
}

// Damage anywhere: refused, or harmless (bytes that nothing depends on, such as the padding).
static void damage(const char *path, double least_refused) {
    char *bytes;
    int64_t n, refused_count = 0, tried = 0;
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &n));
    float want[4][SIZE], got[SIZE];
    for (int mode = 0; mode < 2; mode++) { // the first pass reads the undamaged file
        for (int64_t i = 0; i < (mode ? n : 1); i += mode ? 3 : 1) {
            if (mode) bytes[i] ^= (char)(1 << (i % 8));
            sp_pt *p = NULL;
            const sp_pt_value *dict;
            sp_status st = sp_pt_parse((const uint8_t *)bytes, n, "damaged", &p);
            if (st == SP_OK) st = sp_pt_weights(p, &dict);
            int tensors_read = 0;
            for (int64_t k = 0; st == SP_OK && k + 1 < dict->u.list.n && tensors_read < 4; k += 2) {
                const sp_pt_value *v = dict->u.list.item[k + 1];
                if (v->kind != SP_PT_TENSOR) continue;
                int64_t elements = 1;
                for (int d = 0; d < v->u.tensor->dims; d++) elements *= v->u.tensor->shape[d];
                assert_int_equal(elements, SIZE);
                st = sp_pt_read_f32(p, v->u.tensor, "x", mode ? got : want[tensors_read]);
                if (st == SP_OK && mode) assert_memory_equal(got, want[tensors_read], sizeof got);
                tensors_read++;
            }
            if (!mode) assert_int_equal(st, SP_OK);
            if (mode && st != SP_OK) {
                assert_int_equal(st, SP_BAD_INPUT);
                refused_count++;
            }
            tried += mode;
            sp_pt_close(p);
            if (mode) bytes[i] ^= (char)(1 << (i % 8));
        }
    }
    print_message("%lld of %lld flips refused\n", (long long)refused_count, (long long)tried);
    assert_true((double)refused_count > least_refused * (double)tried);
    for (int64_t len = 0; len < n; len += len < 100 || len > n - 300 ? 1 : 53) {
        sp_pt *p;
        char *cut; // its own allocation, so that a sanitizer sees every byte too far
        assert_ok(sp_alloc(&cut, len, 1, "test"));
        memcpy(cut, bytes, (size_t)len);
        assert_fails(sp_pt_parse((uint8_t *)cut, len, "cut", &p), SP_BAD_INPUT, "cut");
        free(cut);
    }
    free(bytes);
}

static void damaged_files(void **unused) {
    (void)unused;
    char *own = write_one("damaged.pt"), *torch = test_path("tests/pt/ckpt-7.pt");
    damage(own, 0.5);
    damage(torch, 0.5);
    free(own), free(torch);
}

// A directory that lies about sizes and places.
static void lying_directory(void **unused) {
    (void)unused;
    char *path = write_one("lying.pt"), *bytes;
    int64_t n;
    assert_ok(sp_read_file(path, 1 << 20, &bytes, &n));
    uint8_t *b = (uint8_t *)bytes, *end = b + n - 22;
    uint32_t directory;
    sp_pt *p;
    memcpy(&directory, end + 16, 4);
    struct {
        int64_t at;
        int bytes;
        const char *part;
    } lies[] = {
        {n - 22 + 16, 4, "central directory lies outside"}, // directory offset
        {n - 22 + 12, 4, "central directory lies outside"}, // directory size
        {n - 22 + 10, 2, "too short for its entries"},      // count
        {directory + 20, 4, NULL},                          // packed size
        {directory + 24, 4, NULL},                          // raw size
        {directory + 28, 2, NULL},                          // name length
        {directory + 42, 4, NULL},                          // local header
        {26, 2, "another name"},                            // local name length
        {28, 2, NULL},                                      // local extra length
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        uint8_t keep[4];
        memcpy(keep, b + lies[i].at, 4);
        memset(b + lies[i].at, 0xff, (size_t)lies[i].bytes);
        assert_fails(sp_pt_parse(b, n, "lying", &p), SP_BAD_INPUT, lies[i].part);
        memcpy(b + lies[i].at, keep, 4);
    }
    b[directory + 10] = 8; // deflated
    b[directory + 8] |= 1;
    assert_fails(sp_pt_parse(b, n, "lying", &p), SP_BAD_INPUT, "compressed or encrypted");
    free(bytes), free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),       cmocka_unit_test(containers),
        cmocka_unit_test(objects),       cmocka_unit_test(tensors),
        cmocka_unit_test(malformed),     cmocka_unit_test(own_round_trip),
        cmocka_unit_test(damaged_files), cmocka_unit_test(lying_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
