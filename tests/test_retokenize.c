// `sparda data retokenize`: rows of one tokenizer become those that the other library gives for the
// same text; special tokens vanish, empty rows are left out, threads do not alter the result.
#include "tests/support.h"

#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "data/mds_write.h"
#include "data/retokenize.h"
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

static sp_status alone(sp_status st) {
    return st;
}

static char *file_of(const char *name) {
    char *relative = sp_format("tests/tokenizers/%s", name), *path = test_path(relative);
    free(relative);
    return path;
}

static sp_status retokenize(const char *src, const char *from, const char *to, const char *out,
                            int64_t threads, int64_t shard_tokens) {
    char *f = file_of(from), *t = file_of(to);
    sp_retokenizer r;
    sp_status st = sp_retokenizer_open(f, t, "auto", &r);
    free(f);
    free(t);
    SP_TRY(st);
    const sp_import_args a = {.source = &src,
                              .n_sources = 1,
                              .out = out,
                              .vocab = sp_tokenizer_vocab(r.from),
                              .out_vocab = sp_tokenizer_vocab(r.to),
                              .tokenizer = sp_tokenizer_identity(r.to),
                              .threads = threads,
                              .shard_tokens = shard_tokens,
                              .change = &r.change};
    const sp_data_team team = {0, 1, 1, alone};
    st = sp_import_run(&a, &team);
    sp_retokenizer_close(&r);
    return st;
}

// The ids of `list` as a row of the data set; none if it is empty.
static void append(sp_mds_writer *w, const json_t *list) {
    int32_t ids[4096];
    int64_t n = (int64_t)json_array_size(list);
    assert_true(n <= 4096);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    if (n) assert_ok(sp_mds_append(w, ids, n));
}

static bool is_utf8(const char *hex) {
    char text[16384];
    int64_t n = 0;
    int bad, length = 1;
    assert_true(strlen(hex) < 2 * sizeof text);
    for (; hex[2 * n]; n++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * n, "%2x", &v), 1);
        text[n] = (char)v;
    }
    for (int64_t i = 0; i < n && length; i += length)
        length = sp_utf8_length(text + i, n - i, &bad);
    return length > 0;
}

// Texts in which nothing gets lost: without what one of the two tokenizers takes for a token.
static bool is_plain(const json_t *row) {
    const char *hex = json_string_value(json_object_get(row, "text"));
    return hex[0] && is_utf8(hex) && !strstr(hex, "e29681") && !strstr(hex, "3c7c") &&
           !strstr(hex, "3c746f6f6c") && !strstr(hex, "3c73") && !strstr(hex, "3c2f73") &&
           !strstr(hex, "3c756e6b") && !strstr(hex, "3c622062") && !strstr(hex, "3c3078");
}

static const json_t *find_text(const json_t *rows, const char *hex) {
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i,
                       row) if (strcmp(json_string_value(json_object_get(row, "text")), hex) ==
                                0) return row;
    return NULL;
}

static sp_status open_path(const char *path, sp_dataset **out) {
    sp_data_entry e = {.path = (char *)path};
    const sp_data_list list = {&e, 1};
    return sp_dataset_open(&list, &(sp_dataset_options){.quiet = true}, out);
}

static const json_t *encodings(const json_t *all, const char *name) {
    return json_object_get(json_object_get(all, name), "encode");
}

static void rows_become_those_of_the_other_library(void **state) {
    (void)state;
    char *path = file_of("expected.json");
    json_t *all, *row;
    size_t i;
    assert_ok(sp_json_load(path, 1 << 24, &all));
    free(path);
    static const char *const ways[][2] = {{"bytes.json", "marks.model"},
                                          {"bytes.json", "marks.json"},
                                          {"gpt2.json", "bytes.json"},
                                          {"marks.json", "gpt2.json"},
                                          {"marks.model", "marks.json"}};
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        char *set = sp_format("%s/way-%zu", test_tmpdir(), way);
        const json_t *from = encodings(all, ways[way][0]), *to = encodings(all, ways[way][1]);
        json_t *want = json_array();
        sp_mds_writer *w;
        assert_ok(sp_mds_create(&(sp_mds_writer_args){.dir = set,
                                                      .encoding = "ndarray:uint16",
                                                      .zstd_level = (int)way % 2,
                                                      .hash = "xxh64",
                                                      .size_limit = 3000},
                                &w));
        json_array_foreach((json_t *)from, i, row) {
            const json_t *other = find_text(to, json_string_value(json_object_get(row, "text")));
            if (!is_plain(row) || !other) continue;
            append(w, json_object_get(row, "ids"));
            json_array_append(want, json_object_get(other, "ids"));
        }
        assert_ok(sp_mds_finish(w));
        assert_true(json_array_size(want) > 80);
        for (int64_t threads = 1; threads <= 3; threads += 2) {
            char *out = sp_format("%s/out-%zu-%d", test_tmpdir(), way, (int)threads);
            assert_ok(retokenize(set, ways[way][0], ways[way][1], out, threads, 2000));
            sp_dataset *d;
            assert_ok(open_path(out, &d));
            assert_int_equal(sp_dataset_rows(d, 0), json_array_size(want));
            for (int64_t r = 0; r < sp_dataset_rows(d, 0); r++) {
                int32_t ids[4096];
                int64_t n;
                const json_t *list = json_array_get(want, (size_t)r);
                assert_ok(sp_dataset_read(d, 0, r, 4096, ids, &n));
                if (n != (int64_t)json_array_size(list)) {
                    char *text = json_dumps(list, 0);
                    fail_msg("%s to %s, row %d: %d ids instead of %s", ways[way][0], ways[way][1],
                             (int)r, (int)n, text);
                }
                for (int64_t k = 0; k < n; k++)
                    assert_int_equal(ids[k], json_integer_value(json_array_get(list, (size_t)k)));
            }
            sp_dataset_close(d);
            free(out);
        }
        json_decref(want);
        free(set);
    }
    json_decref(all);
}

static void special_tokens_vanish_and_empty_rows_are_left_out(void **state) {
    (void)state;
    char *set = sp_format("%s/special", test_tmpdir()), *out = sp_format("%s/plain", test_tmpdir());
    char *path = file_of("bytes.json");
    sp_tokenizer *t;
    sp_coder *c;
    sp_mds_writer *w;
    const int32_t *ids;
    int64_t n;
    assert_ok(sp_tokenizer_open(path, &t));
    assert_ok(sp_coder_new(t, &c));
    assert_ok(sp_mds_create(
        &(sp_mds_writer_args){.dir = set, .encoding = "ndarray:int32", .size_limit = 1 << 20}, &w));
    static const char *const texts[] = {"<|begin_of_text|>one<|end_of_text|> two", "<|eot_id|>",
                                        "one two"};
    for (int i = 0; i < 3; i++) {
        assert_ok(sp_encode(c, texts[i], (int64_t)strlen(texts[i]), &ids, &n));
        assert_ok(sp_mds_append(w, ids, n));
    }
    assert_ok(sp_mds_finish(w));
    assert_ok(retokenize(set, "bytes.json", "marks.model", out, 2, 1000));
    sp_dataset *d;
    int32_t a[64], b[64];
    int64_t m;
    assert_ok(open_path(out, &d));
    assert_int_equal(sp_dataset_rows(d, 0), 2);
    assert_ok(sp_dataset_read(d, 0, 0, 64, a, &n));
    assert_ok(sp_dataset_read(d, 0, 1, 64, b, &m));
    assert_int_equal(n, m);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    sp_dataset_close(d);
    sp_coder_free(c);
    sp_tokenizer_close(t);
    free(path);
    free(out);
    free(set);
}

// The wrong source tokenizer shows itself by an id that it does not have.
static void ids_of_another_tokenizer_are_refused(void **state) {
    (void)state;
    char *set = sp_format("%s/other", test_tmpdir()), *out = sp_format("%s/none", test_tmpdir());
    sp_mds_writer *w;
    assert_ok(sp_mds_create(
        &(sp_mds_writer_args){.dir = set, .encoding = "ndarray:int32", .size_limit = 1 << 20}, &w));
    assert_ok(sp_mds_append(w, (int32_t[]){5, 100000, 6}, 3));
    assert_ok(sp_mds_finish(w));
    assert_fails(retokenize(set, "bytes.json", "marks.model", out, 1, 1000), SP_BAD_INPUT,
                 "row 0, position 1: token id 100000");
    assert_fails(retokenize(set, "bytes.json", "expected.json", out, 1, 1000), SP_BAD_INPUT,
                 "expected.json");
    free(out);
    free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_those_of_the_other_library),
        cmocka_unit_test(special_tokens_vanish_and_empty_rows_are_left_out),
        cmocka_unit_test(ids_of_another_tokenizer_are_refused),
    };
    sp_log_open(0, NULL, true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
