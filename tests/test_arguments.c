// Command-line arguments: what each kind takes, and that every fault is named.
#include "common/arguments.h"
#include "tests/support.h"

#include <stdio.h>
#include <string.h>

typedef struct values {
    bool flag, automatic;
    const char *text;
    const char *set_at[4], *rest_at[2];
    sp_words sets, rest;
    int64_t number;
    uint64_t seed;
    double real;
    sp_number_list list;
    bool chosen[2];
} values;

// Reads the words after the program's name; faults in *said, "" if none.
static void read_into(values *v, char *said, size_t size, int n, const char *const *words) {
    static const char *const known[] = {"pt", "safetensors"};
    sp_names names = {known, v->chosen, 2};
    char *argv[32] = {"program"};
    assert_true(n < 32);
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)words[i];
    *v = (values){.number = 7, .list = {{1, 2}, 2}, .chosen = {true, true}};
    v->sets = (sp_words){v->set_at, 0, 4};
    v->rest = (sp_words){v->rest_at, 0, 2};
    const sp_argument table[] = {{"--flag=auto", .flag = &v->automatic},
                                 {"--flag", .flag = &v->flag},
                                 {"--text", .text = &v->text},
                                 {"--set", .words = &v->sets},
                                 {"--number", .number = &v->number, .least = 2, .most = 9},
                                 {"--seed", .seed = &v->seed},
                                 {"--real", .real = &v->real},
                                 {"--list", .list = &v->list, .least = 1},
                                 {"--names", .names = &names},
                                 {0}};
    sp_problems p = {0};
    sp_arguments_read(n + 1, argv, table, &v->rest, &p);
    *said = 0;
    if (sp_problems_end(&p, SP_BAD_INPUT, "faults") != SP_OK) {
        snprintf(said, size, "%s", sp_error_text());
        sp_error_clear();
    }
}
#define READ(...)                                                                                  \
    read_into(&v, said, sizeof said,                                                               \
              (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                       \
              (const char *[]){__VA_ARGS__})

static void everything_is_taken(void **state) {
    (void)state;
    values v;
    char said[1024];
    READ("one", "--flag", "--text", "a=b", "--set=x=1", "--set", "y=-2", "--number", "9", "--seed",
         "18446744073709551615", "--real=-1.5e3", "two", "--list", "4,8,16", "--names=pt");
    assert_string_equal(said, "");
    assert_true(v.flag && !v.automatic);
    assert_string_equal(v.text, "a=b");
    assert_int_equal(v.sets.n, 2);
    assert_string_equal(v.set_at[0], "x=1");
    assert_string_equal(v.set_at[1], "y=-2");
    assert_int_equal(v.number, 9);
    assert_true(v.seed == UINT64_MAX);
    assert_true(v.real == -1500);
    assert_int_equal(v.list.n, 3);
    assert_int_equal(v.list.value[2], 16);
    assert_true(v.chosen[0] && !v.chosen[1]);
    assert_int_equal(v.rest.n, 2);
    assert_string_equal(v.rest_at[1], "two");
}

static void defaults_stay(void **state) {
    (void)state;
    values v;
    char said[1024];
    READ("-", "--flag=auto", "--flag=auto"); // "-" is a word; a flag may be repeated
    assert_string_equal(said, "");
    assert_true(v.automatic && !v.flag && !v.text && v.number == 7 && v.list.n == 2);
    assert_true(v.chosen[0] && v.chosen[1]);
    assert_string_equal(v.rest_at[0], "-");
}

static void faults_are_named(void **state) {
    (void)state;
    static const struct {
        const char *words[3];
        const char *said;
    } wrong[] = {
        {{"--flags"}, "unknown option '--flags'"},
        {{"-x"}, "unknown option '-x'"},
        {{"--flag=yes"}, "--flag takes no value, found 'yes'"},
        {{"--text"}, "--text needs a value"},
        {{"--text="}, "--text needs a value"},
        {{"--text", ""}, "--text needs a value"},
        {{"--text", "--flag"}, "--text needs a value"}, // and not a file of that name
        {{"--text=a", "--text=b"}, "--text is given twice"},
        {{"--number", "1"}, "--number: a whole number from 2 to 9 is expected, not '1'"},
        {{"--number", "10"}, "not '10'"},
        {{"--number", "3x"}, "not '3x'"},
        {{"--number", " 3"}, "not ' 3'"},
        {{"--number", "\r3"}, "not '\r3'"},
        {{"--number", "+3"}, "not '+3'"},
        {{"--number", "99999999999999999999"}, "not '99999999999999999999'"},
        {{"--seed", "-1"}, "--seed: a whole number from 0 is expected, not '-1'"},
        {{"--seed", "18446744073709551616"}, "not '18446744073709551616'"},
        {{"--real", "nan"}, "--real: a number is expected, not 'nan'"},
        {{"--real", "1e999"}, "not '1e999'"},
        {{"--real", "2 "}, "not '2 '"},
        {{"--list", "4,"}, "not '4,'"},
        {{"--list", "4,0"}, "whole numbers from 1 to"},
        {{"--names", "pt,onnx"}, "--names: 'onnx' is none of pt, safetensors"},
        {{"--names", "pt,"}, "--names: '' is none of"},
        {{"--seed", "+1"}, "not '+1'"},
        {{"a", "b", "c"}, "unexpected argument 'c'"},
        {{"a", ""}, "an argument is empty"},
    };
    values v;
    char said[1024];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int n = 0;
        while (n < 3 && wrong[i].words[n]) n++;
        read_into(&v, said, sizeof said, n, wrong[i].words);
        if (!strstr(said, wrong[i].said)) fail_msg("case %zu said '%s'", i, said);
    }
    READ("--flags", "--number=1", "--set=1", "--set=2", "--set=3", "--set=4", "--set=5");
    assert_non_null(strstr(said, "--flags")); // all of them together
    assert_non_null(strstr(said, "--number"));
    assert_non_null(strstr(said, "--set: at most 4 of them"));
    assert_int_equal(v.number, 7);
    READ("a", "b", "--rows", "3", "4"); // 3 may have been the value
    assert_null(strstr(said, "'3'"));
    assert_non_null(strstr(said, "unexpected argument '4'"));
}

static void help_is_found_anywhere(void **state) {
    (void)state;
    char *with[] = {"program", "--text", "--help"}, *without[] = {"--help", "help", "-help"};
    assert_true(sp_arguments_help(3, with));
    assert_false(sp_arguments_help(2, with));
    assert_false(sp_arguments_help(3, without)); // the program's own name does not count
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_taken), cmocka_unit_test(defaults_stay),
        cmocka_unit_test(faults_are_named), cmocka_unit_test(help_is_found_anywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
