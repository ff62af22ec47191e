// Tokenizers against the libraries that define them: tests/tokenizers/expected.json holds the ids
// of texts in many scripts, code, emoji, marks, invalid UTF-8, long words and added tokens, and the
// texts of ids, made by tests/tokenizers/make.py.
#include "tests/support.h"

#include "common/json.h"
#include "common/util.h"
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { JSON_MAX = 1 << 24 };

static char *file_of(const char *name) {
    char *relative = sp_format("tests/tokenizers/%s", name), *path = test_path(relative);
    free(relative);
    return path;
}

static char *from_hex(const char *hex, int64_t *n) {
    *n = (int64_t)strlen(hex) / 2;
    char *out = malloc((size_t)*n + 1);
    for (int64_t i = 0; i < *n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    out[*n] = 0;
    return out;
}

static int32_t *ids_of(const json_t *list, int64_t *n) {
    *n = (int64_t)json_array_size(list);
    int32_t *ids = malloc((size_t)*n * sizeof *ids + 1);
    for (int64_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

static void check_encoding(sp_coder *c, const char *name, const json_t *rows) {
    size_t i;
    json_t *row;
    assert_true(json_array_size(rows) > 100);
    json_array_foreach((json_t *)rows, i, row) {
        int64_t bytes, n, want_n;
        char *text = from_hex(json_string_value(json_object_get(row, "text")), &bytes);
        int32_t *want = ids_of(json_object_get(row, "ids"), &want_n);
        const int32_t *got;
        assert_ok(sp_encode(c, text, bytes, &got, &n));
        int64_t k = 0;
        while (k < n && k < want_n && got[k] == want[k]) k++;
        if (n != want_n || k < n)
            fail_msg("%s, text %zu: %d ids, expected %d; the first %d agree, then %d, expected %d; "
                     "the text is '%.60s'",
                     name, i, (int)n, (int)want_n, (int)k, k < n ? (int)got[k] : -1,
                     k < want_n ? (int)want[k] : -1, text);
        free(text);
        free(want);
    }
}

static void check_decoding(sp_coder *c, const char *name, const json_t *rows) {
    size_t i;
    json_t *row;
    assert_true(json_array_size(rows) > 50);
    json_array_foreach((json_t *)rows, i, row) {
        int64_t n, bytes, want_bytes;
        int32_t *ids = ids_of(json_object_get(row, "ids"), &n);
        char *want = from_hex(json_string_value(json_object_get(row, "text")), &want_bytes);
        const char *got;
        assert_ok(sp_decode(c, ids, n, &got, &bytes));
        if (bytes != want_bytes || memcmp(got, want, (size_t)bytes) != 0)
            fail_msg("%s, ids %zu: '%.*s', expected '%s'", name, i, (int)bytes, got, want);
        free(ids);
        free(want);
    }
}

static void ids_and_texts_are_those_of_the_libraries(void **state) {
    (void)state;
    char *path = file_of("expected.json");
    json_t *all;
    assert_ok(sp_json_load(path, JSON_MAX, &all));
    free(path);
    const char *name;
    json_t *part;
    assert_int_equal(json_object_size(all), 5);
    json_object_foreach(all, name, part) {
        sp_tokenizer *t;
        sp_coder *c;
        path = file_of(name);
        assert_ok(sp_tokenizer_open(path, &t));
        assert_non_null(strstr(sp_tokenizer_identity(t), name));
        assert_ok(sp_coder_new(t, &c));
        for (int pass = 0; pass < 2; pass++) { // the second time from the cache
            check_encoding(c, name, json_object_get(part, "encode"));
            check_decoding(c, name, json_object_get(part, "decode"));
        }
        sp_coder_free(c);
        sp_tokenizer_close(t);
        free(path);
    }
    json_decref(all);
}

// What is decoded and encoded again by the same tokenizer is the same text.
static void texts_survive_the_way_there_and_back(void **state) {
    (void)state;
    static const char *const names[] = {"bytes.json", "gpt2.json", "marks.json", "marks.model"};
    uint64_t random = 5;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        sp_tokenizer *t;
        sp_coder *a, *b;
        char *path = file_of(names[k]);
        assert_ok(sp_tokenizer_open(path, &t));
        assert_ok(sp_coder_new(t, &a));
        assert_ok(sp_coder_new(t, &b));
        for (int i = 0; i < 300; i++) {
            char text[200];
            int64_t n = 1 + (int64_t)(test_random(&random) % 199), bytes, m;
            for (int64_t j = 0; j < n; j++) text[j] = "ab .,\n\tcde'7"[test_random(&random) % 12];
            const int32_t *ids;
            const char *back;
            assert_ok(sp_encode(a, text, n, &ids, &m));
            assert_ok(sp_decode(b, ids, m, &back, &bytes));
            assert_int_equal(bytes, n);
            assert_memory_equal(back, text, (size_t)n);
        }
        sp_coder_free(a);
        sp_coder_free(b);
        sp_tokenizer_close(t);
        free(path);
    }
}

static void ids_that_are_none_are_refused(void **state) {
    (void)state;
    sp_tokenizer *t;
    sp_coder *c;
    char *path = file_of("bytes.json");
    assert_ok(sp_tokenizer_open(path, &t));
    assert_ok(sp_coder_new(t, &c));
    const char *text;
    int64_t n;
    int32_t ids[3] = {5, 6, (int32_t)sp_tokenizer_vocab(t)};
    assert_fails(sp_decode(c, ids, 3, &text, &n), SP_BAD_INPUT, "position 2: token id 20");
    ids[2] = -1;
    assert_fails(sp_decode(c, ids, 3, &text, &n), SP_BAD_INPUT, "position 2: token id -1");
    assert_ok(sp_decode(c, ids, 2, &text, &n));
    assert_ok(sp_decode(c, ids, 0, &text, &n));
    assert_int_equal(n, 0);
    sp_coder_free(c);
    sp_tokenizer_close(t);
    free(path);
}

static void clean_up_is_that_of_the_python_library(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"a . b ? c ! d , e", "a. b? c! d, e"},
        {"rock ' n ' roll", "rock'n'roll"},
        {"do n't I 'm it 's we 've they 're he 'd", "don't I'm it's we've they're he 'd"},
        {" .", "."},
        {" . .", ".."},
        {"  .", " ."},
        {" ' 's", "''s"},
        {"", ""},
        {"nothing", "nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[100];
        strcpy(text, cases[i][0]);
        int64_t n = sp_clean_up(text, (int64_t)strlen(text));
        text[n] = 0;
        assert_string_equal(text, cases[i][1]);
    }
}

// Files that ask for something else are refused by name, damaged ones too.
static void other_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{}", "'model.vocab' is missing"},
        {"", "an empty file"},
        {"{\"model\": {\"type\": \"WordPiece\"}}", "a model of type 'WordPiece'"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1}}", "dropout"},
        {"{\"model\": {\"end_of_word_suffix\": \"</w>\"}}", "prefix or suffix"},
        {"{\"normalizer\": {\"type\": \"NFC\"}}",
         "normalizer is not supported: {\"type\":\"NFC\"}"},
        {"{\"pre_tokenizer\": {\"type\": \"Whitespace\"}}", "pre_tokenizer is not supported"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, "
         "\"behavior\": \"Isolated\"}}",
         "its pattern '(' cannot be used"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0}, "
         "\"merges\": []}}",
         "no token for the byte 0 alone"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}", "the vocabulary lacks"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [7]}}", "merge 0 is neither"},
        {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", "ids must be 0 to"},
        {"{\"model\": {\"vocab\": {\"a\": 99999999999}, \"merges\": []}}", "ids must be 0 to"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}", "without byte fallback"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"byte_fallback\": true}}",
         "<0x00> is missing"},
        {"\x0a\x05\x0a\x01x\x15", "no sentencepiece model, or a damaged one"},
        {"\x0a\x03\x0a\x01x", "no sentencepiece model, or a damaged one"},
        {"\x0a\x03\x0a\x01x\x12\x02\x18\x01\x1a\x02\x18\x01", "a model of type 1"},
        {"\x0a\x03\x0a\x01x\x12\x02\x18\x02\x1a\x02\x18\x01", "without byte fallback"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sp_tokenizer *t;
        assert_fails(sp_tokenizer_parse("FILE", cases[i].text, (int64_t)strlen(cases[i].text), &t),
                     SP_BAD_INPUT, cases[i].part);
        assert_non_null(strstr(sp_error_text(), "FILE"));
    }
    sp_tokenizer *t;
    assert_fails(sp_tokenizer_open(test_tmpdir(), &t), SP_BAD_INPUT, "holds neither");
    char *path = file_of("marks.model"), *bytes;
    int64_t n;
    assert_ok(sp_read_file(path, JSON_MAX, &bytes, &n));
    for (int64_t cut = 1; cut < n; cut += 97)
        assert_fails(sp_tokenizer_parse("FILE", bytes, cut, &t), SP_BAD_INPUT, "FILE");
    free(bytes);
    free(path);
}

static int64_t count(const int32_t *ids, int64_t n, int32_t id) {
    int64_t times = 0;
    for (int64_t i = 0; i < n; i++) times += ids[i] == id;
    return times;
}

// Fuzzing found a copy that ended at the zero while its length did not.
static void an_added_token_may_contain_a_zero_byte(void **state) {
    (void)state;
    static const char piece[] = "\x0a\x0c\x0a\x03q\0z\x15\0\0\0\0\x18\x04"; // user-defined
    char *path = file_of("marks.model"), *bytes;
    int64_t n;
    assert_ok(sp_read_file(path, JSON_MAX, &bytes, &n));
    char *longer = realloc(bytes, (size_t)n + sizeof piece - 1);
    assert_non_null(longer);
    memcpy(longer + n, piece, sizeof piece - 1);
    sp_tokenizer *t;
    sp_coder *c;
    assert_ok(sp_tokenizer_parse("FILE", longer, n + (int64_t)sizeof piece - 1, &t));
    assert_ok(sp_coder_new(t, &c));
    const int32_t added = (int32_t)sp_tokenizer_vocab(t) - 1, *ids;
    assert_ok(sp_encode(c, "a q\0z b q\0zq\0", 13, &ids, &n));
    assert_int_equal(count(ids, n, added), 2);
    const char *text;
    int64_t m;
    assert_ok(sp_decode(c, &added, 1, &text, &m));
    assert_int_equal(m, 3);
    assert_memory_equal(text, "q\0z", 3);
    sp_coder_free(c);
    sp_tokenizer_close(t);
    free(longer);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_added_token_may_contain_a_zero_byte),
        cmocka_unit_test(ids_and_texts_are_those_of_the_libraries),
        cmocka_unit_test(texts_survive_the_way_there_and_back),
        cmocka_unit_test(ids_that_are_none_are_refused),
        cmocka_unit_test(clean_up_is_that_of_the_python_library),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
