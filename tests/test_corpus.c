// The corpus generator against the golden streams of data/corpus.md.
#include "tests/support.h"

#include "common/hash.h"
#include "common/json.h"
#include "data/corpus.h"

#include <stdlib.h>
#include <string.h>

static json_t *golden;

static int load(void **state) {
    (void)state;
    char *path = test_path("tests/golden/corpus_golden.json");
    sp_status st = sp_json_load(path, 1 << 20, &golden);
    free(path);
    return st == SP_OK ? 0 : -1;
}

static int unload(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

static const json_t *get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!v) fail_msg("the golden file lacks %s", key);
    return v;
}
static int64_t integer(const json_t *o, const char *key) {
    return json_integer_value(get(o, key));
}
static double real(const json_t *o, const char *key) {
    return json_number_value(get(o, key));
}
static uint64_t u64(const json_t *text, int base) {
    return strtoull(json_string_value(text), NULL, base);
}

static void assert_stream(const json_t *row, const int32_t *tokens, int64_t T) {
    const json_t *first = get(row, "first");
    size_t i;
    json_t *v;
    assert_int_equal(json_array_size(first), T < 200 ? T : 200);
    json_array_foreach((json_t *)first, i, v) assert_int_equal(tokens[i], json_integer_value(v));
    assert_true(sp_fnv1a_tokens(tokens, T) == u64(get(row, "fnv1a64"), 16));
}

static void random_numbers_match(void **state) {
    (void)state;
    const json_t *rng = get(golden, "rng");
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)get(rng, "mix"), i, v)
        assert_true(sp_mix64(u64(json_array_get(v, 0), 10)) == u64(json_array_get(v, 1), 10));
    assert_int_equal(i, 6);
    uint64_t s = 0;
    json_array_foreach((json_t *)get(rng, "state_0_raw"), i, v)
        assert_true(sp_corpus_draw(&s) == u64(v, 10));
    s = 0;
    json_array_foreach((json_t *)get(rng, "state_0_below_256"), i, v)
        assert_int_equal(sp_corpus_below(&s, 256), json_integer_value(v));
    s = 0;
    json_array_foreach((json_t *)get(rng, "state_0_below_448"), i, v)
        assert_int_equal(sp_corpus_below(&s, 448), json_integer_value(v));
    s = 0;
    json_array_foreach((json_t *)get(rng, "state_0_uniform"), i, v)
        assert_true(sp_corpus_uniform(&s) == json_real_value(v)); // exact
    assert_int_equal(i, 6);
    s = sp_mix64(1 * 1000003u + 0);
    assert_true(s == u64(get(rng, "seed_1_index_0_state"), 10));
    json_array_foreach((json_t *)get(rng, "seed_1_index_0_raw"), i, v)
        assert_true(sp_corpus_draw(&s) == u64(v, 10));
    assert_int_equal(i, 4);
}

static void words_match(void **state) {
    (void)state;
    const json_t *g = get(golden, "words");
    uint64_t s = u64(get(g, "state"), 10);
    int32_t prev = (int32_t)integer(g, "prev");
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)get(g, "tokens"), i, v) {
        prev = sp_corpus_word(&s, (uint64_t)integer(g, "topic"), prev);
        assert_int_equal(prev, json_integer_value(v));
    }
    assert_int_equal(i, 24);
}

static void sequences_match(void **state) {
    (void)state;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)get(golden, "corpus"), i, row) {
        sp_corpus_args a = {.seed = u64(get(row, "seed"), 10),
                            .mean_doc = integer(row, "mean_doc"),
                            .question_rate = real(row, "q"),
                            .ledger_share = real(row, "pl"),
                            .prose_share = real(row, "pp")};
        int64_t T = integer(row, "T");
        int32_t *tokens = malloc((size_t)T * sizeof *tokens);
        assert_ok(sp_corpus_sequence(&a, (uint64_t)integer(row, "index"), T, tokens));
        assert_stream(row, tokens, T);
        sp_corpus_args d = sp_corpus_defaults(a.seed); // the settings used unless stated otherwise
        if (a.mean_doc == (int64_t)(0.9 * (double)T) && a.question_rate == d.question_rate &&
            a.ledger_share == d.ledger_share && a.prose_share == d.prose_share) {
            assert_ok(sp_corpus_sequence(&d, (uint64_t)integer(row, "index"), T, tokens));
            assert_stream(row, tokens, T);
        }
        free(tokens);
    }
    assert_true(i >= 10);
}

static void needles_match(void **state) {
    (void)state;
    size_t i, k;
    json_t *row, *v;
    bool seen[3] = {false};
    json_array_foreach((json_t *)get(golden, "needle"), i, row) {
        int64_t T = integer(row, "T");
        sp_needle mode = (sp_needle)integer(row, "mode");
        int32_t *tokens = malloc((size_t)T * sizeof *tokens);
        assert_ok(sp_needle_sequence(u64(get(row, "seed"), 10), (uint64_t)integer(row, "index"), T,
                                     mode, real(row, "lo"), real(row, "hi"), tokens));
        assert_stream(row, tokens, T);
        json_array_foreach((json_t *)get(row, "last"), k, v)
            assert_int_equal(tokens[T - 6 + (int64_t)k], json_integer_value(v));
        assert_int_equal(k, 6);
        seen[mode] = true;
        free(tokens);
    }
    assert_true(seen[0] && seen[1] && seen[2]);
}

static void the_standard_set_has_8_seeds_of_16(void **state) {
    (void)state;
    int32_t a[256], b[256];
    assert_ok(sp_needle_standard(0, 256, SP_NEEDLE_MULTI, a));
    assert_ok(sp_needle_sequence(7000, 0, 256, SP_NEEDLE_MULTI, 0.05, 0.9, b));
    assert_memory_equal(a, b, sizeof a);
    assert_ok(sp_needle_standard(127, 256, SP_NEEDLE_VAR, a));
    assert_ok(sp_needle_sequence(7112, 15, 256, SP_NEEDLE_VAR, 0.05, 0.9, b));
    assert_memory_equal(a, b, sizeof a);
    assert_fails(sp_needle_standard(128, 256, SP_NEEDLE_VAR, a), SP_BAD_INPUT, "128");
    assert_string_equal(sp_needle_name(SP_NEEDLE_VAR), "var");
}

// Every length is filled exactly, with tokens of the table only, and nothing is written behind it.
static void every_short_length_is_filled(void **state) {
    (void)state;
    sp_corpus_args a = sp_corpus_defaults(3);
    int32_t tokens[301];
    for (int64_t T = 1; T <= 300; T++) {
        memset(tokens, 0x55, sizeof tokens);
        assert_ok(sp_corpus_sequence(&a, (uint64_t)T, T, tokens));
        assert_int_equal(tokens[0], 1);
        for (int64_t i = 0; i < T; i++) assert_in_range(tokens[i], 1, SP_CORPUS_VOCAB - 1);
        assert_int_equal(tokens[T], 0x55555555);
    }
    for (int64_t T = 128; T <= 300; T++) {
        memset(tokens, 0x55, sizeof tokens);
        assert_ok(sp_needle_sequence(1, (uint64_t)T, T, SP_NEEDLE_VAR, 0, 1, tokens));
        for (int64_t i = 0; i < T; i++) assert_in_range(tokens[i], 1, SP_CORPUS_VOCAB - 1);
        assert_int_equal(tokens[T], 0x55555555);
    }
}

static void impossible_settings_are_listed_together(void **state) {
    (void)state;
    int32_t t[128];
    sp_corpus_args a = {
        .seed = 1, .mean_doc = 1, .question_rate = 1.5, .ledger_share = 0.8, .prose_share = 0.3};
    assert_fails(sp_corpus_sequence(&a, 0, 0, t), SP_BAD_INPUT, "0 tokens");
    assert_non_null(strstr(sp_error_text(), "mean document length 1"));
    assert_non_null(strstr(sp_error_text(), "question rate 1.5"));
    assert_non_null(strstr(sp_error_text(), "shares 0.8"));
    assert_fails(sp_needle_sequence(1, 0, 127, SP_NEEDLE_SINGLE, 0, 1, t), SP_BAD_INPUT, "127");
    assert_fails(sp_needle_sequence(1, 0, 128, SP_NEEDLE_SINGLE, 0.6, 0.5, t), SP_BAD_INPUT, "0.6");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_numbers_match),
        cmocka_unit_test(words_match),
        cmocka_unit_test(sequences_match),
        cmocka_unit_test(needles_match),
        cmocka_unit_test(the_standard_set_has_8_seeds_of_16),
        cmocka_unit_test(every_short_length_is_filled),
        cmocka_unit_test(impossible_settings_are_listed_together),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
