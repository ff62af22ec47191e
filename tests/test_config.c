// The table of options: right values from every source, every kind of mistake with its place, and
// texts that load back to the same values.
#include "tests/support.h"

#include "common/config.h"
#include "common/config_table.h"
#include "common/util.h"
#include "common/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A file of that content in the test's folder. The name stays valid until the next call.
static const char *write_config(const char *text) {
    static char *path;
    free(path);
    path = sp_path_join(test_tmpdir(), "c.yaml");
    assert_ok(sp_write_file(path, text, (int64_t)strlen(text)));
    return path;
}

static sp_config *load(const char *text) {
    sp_config *c = NULL;
    assert_ok(sp_config_load(write_config(text), NULL, 0, &c));
    return c;
}

static sp_config *load_sets(const char *const *sets, int n) {
    sp_config *c = NULL;
    assert_ok(sp_config_load(NULL, sets, n, &c));
    return c;
}

// One mistake: the message is exactly "<place>: <what>", the place being line:column of the file.
static void one_mistake(const char *text, const char *place, const char *what) {
    sp_config *c = (sp_config *)1;
    const char *path = write_config(text);
    sp_status st = sp_config_load(path, NULL, 0, &c);
    char *want = sp_format("%s:\n  - %s:%s: %s", path, path, place, what);
    if (st != SP_BAD_INPUT || strcmp(sp_error_text(), want) != 0)
        fail_msg("for\n%s\nstatus %d, got:  %s\nwant: %s", text, st, sp_error_text(), want);
    assert_null(c);
    free(want);
}

static void one_set_mistake(const char *set, const char *what) {
    sp_config *c = (sp_config *)1;
    const char *sets[] = {set};
    sp_status st = sp_config_load(NULL, sets, 1, &c);
    if (st != SP_BAD_INPUT || !strstr(sp_error_text(), what))
        fail_msg("--set %s: status %d, got: %s\nwant: %s", set, st, sp_error_text(), what);
    assert_null(c);
}

// ---- right values -------------------------------------------------------------------------------

static void defaults(void **state) {
    (void)state;
    sp_config *c = NULL;
    assert_ok(sp_config_load(NULL, NULL, 0, &c));
    // training.md 8.1, 8.2, 8.9
    assert_int_equal(c->steps, 2000);
    assert_true(c->lr == 5e-4);
    assert_int_equal(c->warmup_steps, 0);
    assert_true(c->weight_decay == 0.01);
    assert_true(c->max_grad_norm == 0.5);
    assert_int_equal(c->global_batch, 32);
    assert_int_equal(c->micro_batch, 1);
    assert_int_equal(c->seed, 42);
    assert_int_equal(c->training_kernel_size, 2);
    assert_int_equal(c->training_kernel_stride, 1);
    assert_int_equal(c->kl_target_align_pooling, 0);
    assert_false(c->progressive_training_kernel);
    assert_int_equal(c->save_every_steps, 50);
    assert_int_equal(c->keep_last, 5);
    // design 3.2
    assert_int_equal(c->data_order, SP_ORDER_SHUFFLED);
    assert_int_equal(c->short_rows, SP_SHORT_KEEP);
    assert_false(c->mask_future_blocks);
    assert_int_equal(c->kl_gradient, 0);
    assert_false(c->allow_longer);
    assert_false(c->seq_len.given);
    assert_false(c->sparse_config.topk.given);
    assert_null(c->base);
    assert_null(c->init_from);
    assert_int_equal(c->data.n, 0);
    assert_string_equal(c->backend, "auto");
    assert_string_equal(c->name, "run");
    assert_int_equal(c->after_training, 0);
    assert_int_equal(c->validate.samples, 32);
    for (int i = 0; i < sp_option_count; i++) assert_null(c->source[i]);
    sp_config_free(c);
}

static void values_from_a_file(void **state) {
    (void)state;
    sp_config *c = load("# comment\n"
                        "name: 123\n"
                        "base: model\n"
                        "data:\n"
                        "  - {path: a, proportion: 0.3}\n"
                        "  - path: /b c\n"
                        "    proportion: 7\n"
                        "data_order: sequential\n"
                        "short: \"pack\"\n"
                        "seq_len: 65536\n"
                        "lr: .5e-3\n"
                        "weight_decay: 0\n"
                        "max_grad_norm: -1\n"
                        "seed: 9223372036854775807\n"
                        "deterministic: true\n"
                        "kl_gradient: ideal\n"
                        "backend: cpu\n"
                        "sparse_config:\n"
                        "  topk: 64\n"
                        "  use_nope: false\n"
                        "eval_every_steps: 5\n"
                        "eval_data: [held, /x/../y]\n"
                        "after_training: [export, validate]\n"
                        "validate: {lengths: [256, 1024], samples: 3}\n"
                        "init_from: null\n");
    const char *dir = test_tmpdir();
    char *model = sp_path_join(dir, "model"), *a = sp_path_join(dir, "a"),
         *held = sp_path_join(dir, "held");
    assert_string_equal(c->name, "123");
    assert_string_equal(c->base, model);
    assert_int_equal(c->data.n, 2);
    assert_string_equal(c->data.entry[0].path, a);
    assert_true(c->data.entry[0].proportion == 0.3);
    assert_string_equal(c->data.entry[1].path, "/b c");
    assert_true(c->data.entry[1].proportion == 7);
    assert_int_equal(c->data_order, SP_ORDER_SEQUENTIAL);
    assert_int_equal(c->short_rows, SP_SHORT_PACK);
    assert_true(c->seq_len.given);
    assert_int_equal(c->seq_len.value, 65536);
    assert_true(c->lr == 0.0005);
    assert_true(c->weight_decay == 0);
    assert_true(c->max_grad_norm == -1);
    assert_true(c->seed == INT64_MAX);
    assert_true(c->deterministic);
    assert_int_equal(c->kl_gradient, 1);
    assert_string_equal(c->backend, "cpu");
    assert_true(c->sparse_config.topk.given);
    assert_int_equal(c->sparse_config.topk.value, 64);
    assert_false(c->sparse_config.block_size.given);
    assert_int_equal(c->eval_data.n, 2);
    assert_string_equal(c->eval_data.entry[0].path, held);
    assert_true(c->eval_data.entry[0].proportion == 0);
    assert_int_equal(c->after_training, SP_AFTER_EXPORT | SP_AFTER_VALIDATE);
    assert_int_equal(c->validate.lengths.n, 2);
    assert_int_equal(c->validate.lengths.value[1], 1024);
    assert_int_equal(c->validate.samples, 3);
    assert_int_equal(c->validate.lm_rows, 0); // chosen
    assert_int_equal(c->validate.positions, 4096);
    assert_null(c->init_from);
    free(model), free(a), free(held);
    sp_config_free(c);
}

static void names(void **state) {
    (void)state;
    sp_config *c = load("");
    assert_string_equal(c->name, "c"); // c.yaml
    sp_config_free(c);
    c = load("name: \"true\"\n");
    assert_string_equal(c->name, "true");
    sp_config_free(c);
    c = load("name: h\xc3\xa9l\xc3\xa8ne\n");
    assert_string_equal(c->name, "h\xc3\xa9l\xc3\xa8ne");
    sp_config_free(c);
    const char *what =
        "it becomes part of a folder's name: 1 to 200 characters, no '/', no control "
        "characters, not beginning with '.'";
    one_mistake("name: a/b\n", "1: name", what);
    one_mistake("name: ..\n", "1: name", what);
    one_mistake("\nname: \"\"\n", "2: name", what);
    one_mistake("name: \"a\\nb\"\n", "1: name", what);
}

static void paths(void **state) {
    (void)state;
    const char *dir = test_tmpdir();
    char *real = sp_path_join(dir, "real/deep"), *link = sp_path_join(dir, "link"),
         *want = sp_path_join(dir, "x"), *kept = sp_path_join(dir, "link/../x"),
         *missing = sp_path_join(dir, "none/../x");
    assert_ok(sp_mkdirs(real));
    assert_int_equal(symlink(real, link), 0);
    sp_config *c = load("eval_data: [real/../x, ./real//deep/../../x/., link/../x, none/../x, "
                        "/../../y/, /]\n");
    assert_string_equal(c->eval_data.entry[0].path, want);
    assert_string_equal(c->eval_data.entry[1].path, want);
    assert_string_equal(c->eval_data.entry[2].path, kept); // means real/x, not x
    assert_string_equal(c->eval_data.entry[3].path, missing);
    assert_string_equal(c->eval_data.entry[4].path, "/y");
    assert_string_equal(c->eval_data.entry[5].path, "/");
    sp_config_free(c);
    free(real), free(link), free(want), free(kept), free(missing);
}

static void assignments(void **state) {
    (void)state;
    char *cwd = getcwd(NULL, 0), *a = sp_path_join(cwd, "a");
    const char *sets[] = {"lr=1e-3",
                          "steps=7",
                          "data=[a, {path: /b}]",
                          "sparse_config.topk=3",
                          "lr=0.25",
                          "init_from=a",
                          "sparse_config={topk: 4, init_blocks: 0}",
                          "name=x=y",
                          "base=\"/with # and: \""};
    sp_config *c = load_sets(sets, 9);
    assert_true(c->lr == 0.25); // the later one wins
    assert_int_equal(c->steps, 7);
    assert_int_equal(c->data.n, 2);
    assert_string_equal(c->data.entry[0].path, a); // from the working directory
    assert_string_equal(c->data.entry[1].path, "/b");
    assert_int_equal(c->sparse_config.topk.value, 4);
    assert_true(c->sparse_config.init_blocks.given);
    assert_int_equal(c->sparse_config.init_blocks.value, 0);
    assert_string_equal(c->init_from, a);
    assert_string_equal(c->name, "x=y");
    assert_string_equal(c->base, "/with # and: ");
    sp_config_free(c);

    const char *over[] = {"steps=3", "init_from=null"};
    assert_ok(sp_config_load(write_config("steps: 9\nlr: 1\ninit_from: w\n"), over, 2, &c));
    assert_int_equal(c->steps, 3);
    assert_true(c->lr == 1);
    assert_null(c->init_from);
    sp_config_free(c);
    free(cwd), free(a);
}

// ---- mistakes -----------------------------------------------------------------------------------

static void wrong_keys(void **state) {
    (void)state;
    one_mistake("stepss: 5\n", "1:1", "unknown key 'stepss'; did you mean 'steps'?");
    one_mistake("lr: 1\n\n  \nsetps: 5\n", "4:1", "unknown key 'setps'; did you mean 'steps'?");
    one_mistake("topk: 5\n", "1:1", "unknown key 'topk'; did you mean 'sparse_config.topk'?");
    one_mistake("sparse_config:\n  block_sise: 5\n", "2:3",
                "unknown key 'sparse_config.block_sise'; did you mean 'sparse_config.block_size'?");
    one_mistake("Seed: 5\n", "1:1", "unknown key 'Seed'; did you mean 'seed'?");
    // later work is not accepted in advance
    one_mistake("telemetry: {}\n", "1:1",
                "unknown key 'telemetry'; 'sparda train --help' lists the keys");
    one_mistake("\"\": 1\n", "1:1", "unknown key ''; 'sparda train --help' lists the keys");
    one_mistake("lr: 1\nlr: 1\n", "2:1", "key 'lr' is repeated; it is already in line 1");
    one_mistake("sparse_config: {topk: 1}\nsparse_config:\n  topk: 1\n", "3:3",
                "key 'sparse_config.topk' is repeated; it is already in line 1");
    one_mistake("? \n", "1:1", "unknown key ''; 'sparda train --help' lists the keys");
    one_mistake("? [a]\n: 1\n", "1:3", "a key must be a name, not a list or a mapping");
    one_set_mistake("stepss=5", "--set: unknown key 'stepss'; did you mean 'steps'?");
    one_set_mistake("steps", "--set steps: expected key=value");
    one_set_mistake("=5", "--set =5: expected key=value");
    one_set_mistake("", "--set : expected key=value");
}

static void wrong_integers(void **state) {
    (void)state;
    one_mistake("steps: 5x\n", "1:8", "steps: expected an integer, found '5x'");
    one_mistake("steps: 1.5\n", "1:8", "steps: expected an integer, found '1.5'");
    one_mistake("steps: 5.0\n", "1:8", "steps: expected an integer, found '5.0'");
    one_mistake("steps: 1e3\n", "1:8", "steps: expected an integer, found '1e3'");
    one_mistake("steps: 0x10\n", "1:8", "steps: expected an integer, found '0x10'");
    one_mistake("steps: 010\n", "1:8", "steps: expected an integer, found '010'");
    one_mistake("steps: 1_000\n", "1:8", "steps: expected an integer, found '1_000'");
    one_mistake("steps: 5 6\n", "1:8", "steps: expected an integer, found '5 6'");
    one_mistake("steps: '5'\n", "1:8", "steps: expected an integer, found the quoted text \"5\"");
    one_mistake("steps: true\n", "1:8", "steps: expected an integer, found 'true'");
    one_mistake("steps: [5]\n", "1:8", "steps: expected an integer, found a list");
    one_mistake("steps: {a: 5}\n", "1:8", "steps: expected an integer, found a mapping");
    one_mistake("steps:\n", "1:1", "steps: expected an integer, found nothing");
    one_mistake("steps: ~\n", "1:8", "steps: expected an integer, found nothing");
    one_mistake("steps: 0\n", "1:8", "steps: 0 is out of range (1 to 1000000000)");
    one_mistake("steps: -3\n", "1:8", "steps: -3 is out of range (1 to 1000000000)");
    one_mistake("steps: 9000000000000000000\n", "1:8",
                "steps: 9000000000000000000 is out of range (1 to 1000000000)");
    one_mistake("seed: 9223372036854775808\n", "1:7",
                "seed: 9223372036854775808 is out of range (0 to 9223372036854775807)");
    one_mistake("steps: 18446744073709551621\n", "1:8", // 5 modulo 2^64
                "steps: 18446744073709551621 is out of range (1 to 1000000000)");
    one_set_mistake("steps=5x", "--set: steps: expected an integer, found '5x'");
    one_set_mistake("steps=", "--set: steps: expected an integer, found nothing");
    one_set_mistake("validate.lengths=[1, 2, x]",
                    "validate.lengths: expected an integer, found 'x'");
    one_set_mistake("validate.lengths=7",
                    "validate.lengths: expected a list of integers, found '7'");
}

static void wrong_numbers(void **state) {
    (void)state;
    one_mistake("lr: 1e-3x\n", "1:5", "lr: expected a number, found '1e-3x'");
    one_mistake("lr: 1e\n", "1:5", "lr: expected a number, found '1e'");
    one_mistake("lr: 0x1p-3\n", "1:5", "lr: expected a number, found '0x1p-3'");
    one_mistake("lr: 1,5\n", "1:5", "lr: expected a number, found '1,5'");
    one_mistake("lr: .\n", "1:5", "lr: expected a number, found '.'");
    one_mistake("lr: nan\n", "1:5", "lr: expected a number, found 'nan'");
    one_mistake("lr: .inf\n", "1:5", "lr: expected a number, found '.inf'");
    one_mistake("lr: '0.1'\n", "1:5", "lr: expected a number, found the quoted text \"0.1\"");
    one_mistake("lr:\n", "1:1", "lr: expected a number, found nothing");
    one_mistake("lr: 1e400\n", "1:5", "lr: 1e400 is too large or too small for a double");
    one_mistake("lr: 1e-400\n", "1:5", "lr: 1e-400 is too large or too small for a double");
    one_mistake("lr: 1.1\n", "1:5", "lr: 1.1 is out of range (0 to 1)");
    one_mistake("lr: -1e-9\n", "1:5", "lr: -1e-9 is out of range (0 to 1)");
}

static void wrong_words(void **state) {
    (void)state;
    const char *const no[] = {"yes", "no", "True", "TRUE", "on", "1", "0", "'true'"};
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        char *text = sp_format("deterministic: %s\n", no[i]);
        char *what = no[i][0] == '\''
                         ? sp_strdup("deterministic: expected true or false, found the quoted text "
                                     "\"true\"")
                         : sp_format("deterministic: expected true or false, found '%s'", no[i]);
        one_mistake(text, "1:16", what);
        free(text), free(what);
    }
    one_mistake("deterministic:\n", "1:1", "deterministic: expected true or false, found nothing");
    one_mistake("backend: gpu\n", "1:10", "backend: expected auto or cpu or cuda, found 'gpu'");
    one_mistake("backend: au\n", "1:10", "backend: expected auto or cpu or cuda, found 'au'");
    one_mistake("backend: auto cpu\n", "1:10",
                "backend: expected auto or cpu or cuda, found 'auto cpu'");
    one_mistake("backend:\n", "1:1", "backend: expected auto or cpu or cuda, found nothing");
    one_mistake("short: Keep\n", "1:8", "short: expected keep or drop or pack, found 'Keep'");
    one_mistake("name: [a]\n", "1:7", "name: expected a text, found a list");
    one_mistake("base: ''\n", "1:7", "base: the path is empty");
    one_mistake("sparse_config: 3\n", "1:16", "sparse_config: expected a mapping, found '3'");
    one_mistake("sparse_config:\n  use_nope: true\n", "2: sparse_config.use_nope",
                "true is not supported");
    one_mistake("after_training: export\n", "1:17",
                "after_training: expected a list, found 'export'");
    one_mistake("after_training: [export, merge]\n", "1:26",
                "after_training: expected export or validate, found 'merge'");
    one_mistake("after_training: [export, export]\n", "1:26",
                "after_training: 'export' is repeated");
    one_mistake("after_training: [validate]\n", "1: after_training",
                "validate needs export: [export, validate]");
    one_mistake("eval_every_steps: 5\n", "1: eval_every_steps",
                "there is no eval_data to evaluate on");
}

static void wrong_data(void **state) {
    (void)state;
    const char *list = "data: expected a list, such as [{path: a, proportion: 0.5}] or [a], found ";
    char *what = sp_format("%s'a'", list);
    one_mistake("data: a\n", "1:7", what);
    free(what);
    what = sp_format("%sa mapping", list);
    one_mistake("data: {path: a}\n", "1:7", what);
    free(what);
    one_mistake("data: [{path: a, proportion: 0.5}, {path: b}, c]\n", "1:36",
                "data: this entry has no proportion but others have; give all or none");
    one_mistake("data: [b, {path: a, proportion: 0.5}]\n", "1:8",
                "data: this entry has no proportion but others have; give all or none");
    one_mistake("data: [{path: a, proportion: 0}]\n", "1:30",
                "data: a proportion must be above 0; leave the entry out instead");
    one_mistake("data: [{path: a, proportion: -1}]\n", "1:30",
                "data: -1 is out of range (0 to 1e+09)");
    one_mistake("data: [{path: a, proportion: 1e400}]\n", "1:30",
                "data: 1e400 is too large or too small for a double");
    one_mistake("data: [{path: a, proportion: 30%}]\n", "1:30",
                "data: expected a number, found '30%'");
    one_mistake("data: [{path: a, share: 1}]\n", "1:18",
                "data: unknown key 'share'; an entry has path and proportion");
    one_mistake("data: [{path: a, path: b}]\n", "1:18", "data: key 'path' is repeated");
    one_mistake("data: [{proportion: 1}]\n", "1:8", "data: an entry without a path");
    one_mistake("data: [[a]]\n", "1:8", "data: expected a path, found a list");
    one_mistake("data: ['']\n", "1:8", "data: the path is empty");
    one_mistake("data: [a, ]\ndata: b", "2:1", "key 'data' is repeated; it is already in line 1");
}

static void wrong_yaml(void **state) {
    (void)state;
    sp_config *c;
    assert_fails(sp_config_load(write_config("lr: [1\nsteps: 3\n"), NULL, 0, &c), SP_BAD_INPUT,
                 "c.yaml:3:1: YAML syntax: ");
    assert_fails(sp_config_load(write_config("name: \"abc\n"), NULL, 0, &c), SP_BAD_INPUT,
                 "YAML syntax: ");
    assert_fails(sp_config_load(write_config("lr: 1\n\tsteps: 3\n"), NULL, 0, &c), SP_BAD_INPUT,
                 "YAML syntax: ");
    assert_fails(sp_config_load(write_config("a: b: c\n"), NULL, 0, &c), SP_BAD_INPUT, "c.yaml:1:");
    assert_fails(sp_config_load(write_config("}\n"), NULL, 0, &c), SP_BAD_INPUT, "c.yaml:1:1");
    one_mistake("- a\n", "1:1",
                "configuration: expected a mapping of keys to values, found a list");
    one_mistake("hello\n", "1:1",
                "configuration: expected a mapping of keys to values, found 'hello'");
    one_mistake("lr: 1\n---\nlr: 1\n", "2:1",
                "a second document (---); a configuration is one document");
    const char *anchor = "anchors (&) and aliases (*) are not supported; write the value out, or "
                         "quote a text that begins with one of these signs";
    one_mistake("data: &x [a]\n", "1:10", anchor);
    assert_fails(sp_config_load(write_config("name: *x\n"), NULL, 0, &c), SP_BAD_INPUT, anchor);
    assert_fails(sp_config_load(write_config("steps: -\n"), NULL, 0, &c), SP_BAD_INPUT,
                 "c.yaml:1:8: YAML syntax: ");
    one_mistake("name: !!str 5\n", "1:13",
                "tags (!) are not supported; quote a text that begins with this sign");
    one_mistake("name: \"a\\0b\"\n", "1:7", "a zero byte in a text");
    one_mistake("lr: 1\nname: a\xff\n", "2:8", "this is not UTF-8 text");
    one_mistake("name: \xed\xa0\x80\n", "1:7", "this is not UTF-8 text"); // a surrogate

    sp_text deep = {0};
    sp_text_add(&deep, "data: ");
    for (int i = 0; i < 100000; i++) sp_text_add(&deep, "[");
    assert_fails(sp_config_load(write_config(deep.data), NULL, 0, &c), SP_BAD_INPUT, "c.yaml:1:");
    sp_text_free(&deep);

    char zero[] = "lr: 1\nst\0eps: 3\n", *path = sp_path_join(test_tmpdir(), "zero.yaml");
    assert_ok(sp_write_file(path, zero, sizeof zero - 1));
    assert_fails(sp_config_load(path, NULL, 0, &c), SP_BAD_INPUT, "zero.yaml:2:3: a zero byte");
    free(path);

    assert_fails(sp_config_load("/nowhere/c.yaml", NULL, 0, &c), SP_BAD_INPUT, "/nowhere/c.yaml");
    assert_fails(sp_config_load(test_tmpdir(), NULL, 0, &c), SP_BAD_INPUT, "not a regular file");
}

static void all_mistakes_together(void **state) {
    (void)state;
    sp_config *c;
    const char *sets[] = {"keep_last=0", "nme=x"};
    assert_int_equal(sp_config_load(write_config("steps: 5x\nlr: 3\nfoo_bar_baz: 1\nname: a/b\n"
                                                 "data: [{proportion: 0}]\n"),
                                    sets, 2, &c),
                     SP_BAD_INPUT);
    const char *const parts[] = {
        "c.yaml:1:8: steps:",   "c.yaml:2:5: lr:",
        "c.yaml:3:1: unknown",  "c.yaml:4: name:",
        "c.yaml:5:8: data: an", "c.yaml:5:21: data: a proportion",
        "--set: keep_last: 0",  "--set: unknown key 'nme'; did you mean 'name'?"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(sp_error_text(), parts[i]))
            fail_msg("\"%s\" is missing in: %s", parts[i], sp_error_text());
}

// ---- texts --------------------------------------------------------------------------------------

static void assert_same(const sp_config *a, const sp_config *b) {
    char *x = NULL, *y = NULL;
    assert_ok(sp_config_print(a, false, &x));
    assert_ok(sp_config_print(b, false, &y));
    assert_string_equal(x, y);
    free(x), free(y);
}

static void printed_form_loads_back(void **state) {
    (void)state;
    sp_config *c = load("name: \"null\"\nlr: 0.1\nweight_decay: 0.30000000000000004\n"
                        "max_grad_norm: 1e-300\nseed: 9007199254740993\nseq_len: 1\n"
                        "base: \"m # x: \\\"q\\\" \\\\ \\t \\u00e9 \\x07\"\n"
                        "data: [{path: 'a, b', proportion: 0.3333333333333333},\n"
                        "       {path: '{c}', proportion: 1e-9}]\n"
                        "eval_data: [x, '- y', '~']\neval_every_steps: 3\n"
                        "sparse_config: {topk: 1, init_blocks: 0}\nvalidate: {lengths: [5, 6]}\n"
                        "after_training: [validate, export]\nprogressive_training_kernel: true\n"
                        "short: drop\nbackend: cuda\n");
    for (int sources = 0; sources < 2; sources++) {
        char *text = NULL;
        sp_config *again = NULL;
        assert_ok(sp_config_print(c, sources, &text));
        assert_ok(sp_config_parse(text, "printed", &again));
        assert_same(c, again);
        assert_string_equal(again->name, "null");
        assert_true(again->lr == c->lr);
        assert_true(again->weight_decay == 0.30000000000000004);
        assert_true(again->max_grad_norm == 1e-300);
        assert_true(again->seed == 9007199254740993);
        assert_string_equal(again->base, c->base);
        assert_int_equal(again->data.n, 2);
        assert_string_equal(again->data.entry[1].path, c->data.entry[1].path);
        assert_true(again->data.entry[0].proportion == 0.3333333333333333);
        assert_int_equal(again->after_training, 3);
        assert_int_equal(again->validate.lengths.n, 2);
        assert_true(again->sparse_config.init_blocks.given);
        assert_false(again->sparse_config.dense_len.given);
        sp_config_free(again);
        free(text);
    }
    sp_config_free(c);
}

static void sources_are_named(void **state) {
    (void)state;
    const char *sets[] = {"lr=0.5"};
    char *text = NULL, *want;
    sp_config *c = NULL;
    const char *path = write_config("# x\nsteps: 5\nlr: 1\n");
    assert_ok(sp_config_load(path, sets, 1, &c));
    assert_ok(sp_config_print(c, true, &text));
    want = sp_format("\nsteps: 5  # %s:2\nlr: 0.5  # --set\nwarmup_steps: 0  # default\n", path);
    assert_non_null(strstr(text, want));
    free(want), free(text);
    sp_config_free(c);
}

static void random_numbers_survive(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 200; i++) {
        double v = (double)(test_random(&seed) >> 11) * 0x1p-53;
        char *set = sp_format("lr=%.17g", v), *text = NULL;
        sp_config *c = load_sets(&(const char *){set}, 1), *again = NULL;
        assert_true(c->lr == v);
        assert_ok(sp_config_print(c, false, &text));
        assert_ok(sp_config_parse(text, "printed", &again));
        assert_true(again->lr == v);
        sp_config_free(c), sp_config_free(again);
        free(set), free(text);
    }
}

// configs/reference.yaml is what the program generates, and says nothing but the defaults.
static void reference(void **state) {
    (void)state;
    char *text = NULL, *path = test_path("configs/reference.yaml"), *kept = NULL;
    int64_t n;
    assert_ok(sp_config_reference(&text));
    assert_ok(sp_read_file(path, 1 << 20, &kept, &n));
    if (strcmp(text, kept) != 0)
        fail_msg("configs/reference.yaml is not what the table of options says; "
                 "run: cmake --build build --target reference");
    sp_config *c = NULL, *d = NULL;
    assert_ok(sp_config_parse(text, "reference", &c));
    assert_ok(sp_config_load(NULL, NULL, 0, &d));
    assert_same(c, d);
    sp_config_free(c), sp_config_free(d);
    free(text), free(path), free(kept);
}

static void help_names_every_key(void **state) {
    (void)state;
    char *text = NULL;
    assert_ok(sp_config_help(&text));
    int lines = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, sp_option_count);
    for (int i = 0; i < sp_option_count; i++) {
        char *start = sp_format("%s  %s ", i ? "\n" : "", sp_options[i].key);
        assert_non_null(strstr(text, start));
        free(start);
    }
    free(text);
}

static void table_is_sound(void **state) {
    (void)state;
    for (int i = 0; i < sp_option_count; i++) {
        const sp_option *o = &sp_options[i];
        assert_true(o->help[0] && o->fallback[0]);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(o->key, sp_options[j].key);
            assert_true(o->offset != sp_options[j].offset);
        }
    }
}

// Every recipe loads.
static void recipes(void **state) {
    (void)state;
    char *dir = test_path("configs"), **name = NULL;
    int64_t n = 0;
    assert_ok(sp_list_dir(dir, ".yaml", &name, &n));
    assert_true(n >= 3);
    for (int64_t i = 0; i < n; i++) {
        char *path = sp_path_join(dir, name[i]);
        sp_config *c = NULL;
        assert_ok(sp_config_load(path, NULL, 0, &c));
        sp_config_free(c);
        free(path);
    }
    sp_free_names(name, n);
    free(dir);
}

// The recipes of the 8B models ship what published folders lack, and the whole mixture
// (training.md 1.1, 1.2, 8.9, 9.2).
static void recipes_of_the_8b_models(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int64_t window, topk, select, seq_len;
    } recipes[] = {{"configs/minicpm4.1-8b.yaml", 2048, 64, 0, 65536},
                   {"configs/nosa-8b.yaml", 1024, 80, 24, 32768}};
    for (int i = 0; i < 2; i++) {
        char *path = test_path(recipes[i].path);
        sp_config *c = NULL;
        assert_ok(sp_config_load(path, NULL, 0, &c));
        assert_int_equal(c->sparse_config.kernel_size.value, 32);
        assert_int_equal(c->sparse_config.kernel_stride.value, 16);
        assert_int_equal(c->sparse_config.init_blocks.value, 1);
        assert_int_equal(c->sparse_config.block_size.value, 64);
        assert_int_equal(c->sparse_config.window_size.value, recipes[i].window);
        assert_int_equal(c->sparse_config.topk.value, recipes[i].topk);
        assert_int_equal(c->sparse_config.dense_len.value, 8192);
        assert_int_equal(c->sparse_config.select_blocks.given, recipes[i].select > 0);
        assert_int_equal(c->sparse_config.select_blocks.value, recipes[i].select);
        assert_int_equal(c->steps, 2000);
        assert_int_equal(c->global_batch, 32);
        assert_true(c->lr == 5e-4);
        assert_int_equal(c->seq_len.value, recipes[i].seq_len);
        assert_int_equal(c->rope_tables, 0);
        assert_int_equal(c->data.n, 10);
        double total = 0, book = 0;
        for (int64_t n = 0; n < c->data.n; n++) {
            total += c->data.entry[n].proportion;
            if (strcmp(sp_path_base(c->data.entry[n].path), "book-65536") == 0)
                book = c->data.entry[n].proportion;
        }
        assert_true(total > 1 - 1e-12 && total < 1 + 1e-12);
        assert_true(book == 0.30);
        sp_config_free(c);
        free(path);
    }
}

// ---- resume -------------------------------------------------------------------------------------

static void comparison(void **state) {
    (void)state;
    const char *old[] = {"base=/m", "data=[/d]", "eval_data=[/e]"};
    const char *same[] = {"base=/m",
                          "data=[/d]",
                          "eval_data=[/f]",
                          "save_every_steps=7",
                          "keep_last=9",
                          "keep_every=2",
                          "eval_every_steps=4",
                          "eval_rows=1",
                          "time_limit_min=3",
                          "watchdog_s=7",
                          "threads=2",
                          "name=other",
                          "after_training=[export]",
                          "validate.samples=1",
                          "micro_batch=2",
                          "max_nonfinite_steps=3",
                          "steps=7",
                          "allow_longer=true",
                          "transfer=kernel",
                          "base=/n", // moved: what is there is compared elsewhere
                          "data=[/e]"};
    const char *other[] = {"data=[{path: /d, proportion: 1}]",
                           "seed=43",
                           "lr=5.000000001e-4",
                           "seq_len=5",
                           "global_batch=16",
                           "mask_future_blocks=true",
                           "sparse_config.topk=3",
                           "sparse_config.select_blocks=2",
                           "rope_tables=bf16",
                           "backend=cpu",
                           "cuda_kernels=portable",
                           "deterministic=true"};
    sp_config *a = load_sets(old, 3), *b = load_sets(same, 21), *c = load_sets(other, 12);
    sp_problems p = {0};
    sp_text changes = {0};
    sp_config_compare(a, b, &p, &changes);
    assert_non_null(strstr(changes.data, "steps: 2000 -> 7\n"));
    assert_non_null(strstr(changes.data, "base: /m -> /n\n"));
    assert_non_null(strstr(changes.data, "data: [{path: /d}] -> [{path: /e}]\n"));
    sp_text_free(&changes);
    assert_int_equal(p.count, 0);
    sp_config_compare(a, c, &p, NULL);
    assert_int_equal(p.count, 12);
    assert_non_null(strstr(p.text, "rope_tables: fp32 -> bf16"));
    assert_non_null(strstr(p.text, "data: [{path: /d}] -> [{path: /d, proportion: 1}]"));
    assert_non_null(strstr(p.text, "seed: 42 -> 43"));
    assert_non_null(strstr(p.text, "lr: 0.0005 -> 0.0005000000001"));
    assert_non_null(strstr(p.text, "seq_len: null -> 5"));
    assert_non_null(strstr(p.text, "sparse_config.topk: null -> 3"));
    assert_int_equal(sp_problems_end(&p, SP_BAD_INPUT, "resume"), SP_BAD_INPUT);
    sp_config_free(a), sp_config_free(b), sp_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(values_from_a_file),
        cmocka_unit_test(names),
        cmocka_unit_test(paths),
        cmocka_unit_test(assignments),
        cmocka_unit_test(wrong_keys),
        cmocka_unit_test(wrong_integers),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(wrong_words),
        cmocka_unit_test(wrong_data),
        cmocka_unit_test(wrong_yaml),
        cmocka_unit_test(all_mistakes_together),
        cmocka_unit_test(printed_form_loads_back),
        cmocka_unit_test(sources_are_named),
        cmocka_unit_test(random_numbers_survive),
        cmocka_unit_test(reference),
        cmocka_unit_test(help_names_every_key),
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(recipes),
        cmocka_unit_test(recipes_of_the_8b_models),
        cmocka_unit_test(comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
