// The description of a base model: right values from right folders, every wrong folder refused
// with all its problems (bugs.md S02, S05, S06, S33).
#include "tests/support.h"

#include "common/util.h"
#include "model/model.h"
#include "tests/mini_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *in_tmp(const char *name) {
    return sp_path_join(test_tmpdir(), name);
}

// Sets the keys of `patch`, JSON text; the value "-" removes the key.
static void apply(json_t *config, const char *patch) {
    json_error_t e;
    json_t *p = json_loads(patch, 0, &e), *v;
    if (!p) fail_msg("bad patch in the test: %s: %s", patch, e.text);
    const char *key;
    json_object_foreach(p, key, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), "-") == 0)
            json_object_del(config, key);
        else
            json_object_set(config, key, v);
    }
    json_decref(p);
}

// A mini model whose weights are written once; only config.json changes from case to case.
typedef struct folder {
    mini_model *model;
    char *dir;
} folder;

static folder make_folder(const char *name, const mini_dims *d) {
    folder f = {mini_new(d), in_tmp(name)};
    mini_write(f.model, f.dir, 0);
    return f;
}

static void free_folder(folder *f) {
    mini_free(f->model);
    free(f->dir);
}

static sp_status describe_with(const folder *f, const char *patch, const sp_recipe *recipe_or_null,
                               sp_model_desc **out) {
    json_t *config = json_deep_copy(f->model->config);
    apply(config, patch);
    char *path = sp_path_join(f->dir, "config.json");
    assert_int_equal(json_dump_file(config, path, 0), 0);
    free(path);
    json_decref(config);
    return sp_model_describe(f->dir, recipe_or_null, out);
}

typedef struct config_case {
    const char *patch, *says; // says NULL: accepted
} config_case;

static void run_cases(const folder *f, const config_case *c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        sp_model_desc *d;
        sp_status st = describe_with(f, c[i].patch, NULL, &d);
        if (st != (c[i].says ? SP_BAD_INPUT : SP_OK))
            fail_msg("%s: status %d: %s", c[i].patch, st, st ? sp_error_text() : "");
        if (c[i].says && !strstr(sp_error_text(), c[i].says))
            fail_msg("%s: the message lacks \"%s\": %s", c[i].patch, c[i].says, sp_error_text());
        sp_model_desc_free(d);
    }
}
#define RUN_CASES(f, c) run_cases(&(f), (c), sizeof(c) / sizeof(c)[0])

// ---- right folders ------------------------------------------------------------------------------

static void tiny_base_is_described(void **state) {
    (void)state;
    char *dir = test_path("data/tiny-base/"), *text;
    sp_model_desc *d;
    assert_ok(sp_model_describe(dir, NULL, &d));
    assert_string_equal(d->name, "tiny-base");
    assert_string_equal(d->model_type, "minicpm");
    assert_string_equal(d->architecture, "MiniCPMForCausalLM");
    assert_string_equal(d->config_sha256,
                        "85a376ac3925b5a6bcb45d7c41462b59f4ec9272ba14b720deb93e9ba6f82edd");
    assert_true(d->layers == 6 && d->hidden == 256 && d->ffn == 512 && d->vocab == 1024);
    assert_true(d->heads.q_heads == 8 && d->heads.kv_heads == 2 && d->heads.head_dim == 64);
    assert_true(d->max_positions == 8192 && d->original_max_positions == 4096);
    assert_true(d->norm_eps == 1e-5f && d->tied_head);
    assert_true(d->n_eos == 1 && d->eos[0] == 2 && d->bos == 1);
    assert_true(d->embed_scale == 12 && d->logit_divisor == 4);
    assert_true(fabs(d->residual_scale - 1.4 / sqrt(6)) < 1e-15);
    assert_string_equal(d->rope_kind, "longrope");
    assert_true(d->rope_theta == 10000 && d->rope_short[31] == 1.25 && d->rope_long[31] == 4);
    assert_true(fabs(d->rope_attention_factor - 1.0408329997330663) < 1e-15);
    const sp_sparse_config *c = &d->sparse;
    assert_true(c->kernel_size == 8 && c->kernel_stride == 4 && c->init_blocks == 1 &&
                c->block_size == 16 && c->window_size == 32 && c->topk == 8 && c->dense_len == 256);
    assert_true(c->topk_from == SP_FROM_MODEL && c->kernel_size_from == SP_FROM_MODEL);
    assert_true(d->parameters == 4590848 && d->tensors == 56 && d->ignored_tensors == 0);
    assert_int_equal(d->weight_bytes, 2 * 4590848);
    sp_selection s = sp_model_selection(d, true);
    assert_true(s.block == 16 && s.init_blocks == 1 && s.local_blocks == 2 && s.topk == 10);
    assert_true(s.mask_future && !sp_model_selection(d, false).mask_future);
    sp_grid g = sp_deployed_grid(d);
    assert_true(g.kernel == 8 && g.stride == 4);
    assert_ok(sp_model_describe_text(d, &text));
    assert_non_null(strstr(text, "6 layers, hidden 256"));
    assert_non_null(strstr(text, "kernel_size 8 (config.json)"));
    assert_non_null(strstr(text, "layers 0 to 5: block-sparse"));
    assert_non_null(strstr(text, "dense while the sequence is shorter than dense_len = 256"));
    free(text);
    sp_model_desc_free(d);
    free(dir);
}

static void plain_llama_has_no_scalings(void **state) {
    (void)state;
    folder f = make_folder("llama", &mini_default);
    sp_model_desc *d;
    assert_ok(describe_with(&f,
                            "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],"
                            "\"scale_emb\":\"-\",\"scale_depth\":\"-\",\"dim_model_base\":\"-\","
                            "\"head_dim\":\"-\",\"rope_scaling\":null,\"eos_token_id\":[2,40],"
                            "\"bos_token_id\":null}",
                            NULL, &d));
    assert_true(d->embed_scale == 1 && d->residual_scale == 1 && d->logit_divisor == 1);
    assert_int_equal(d->heads.head_dim, 6); // hidden 24 / 4 heads
    assert_string_equal(d->rope_kind, "default");
    assert_null(d->rope_short);
    assert_true(d->rope_attention_factor == 1 && d->original_max_positions == 512);
    assert_true(d->n_eos == 2 && d->eos[1] == 40 && d->bos == -1);
    sp_model_desc_free(d);
    free_folder(&f);
}

// ---- fields -------------------------------------------------------------------------------------

static void every_needed_field_is_needed(void **state) {
    (void)state;
    static const char *const needed[] = {
        "model_type",   "num_hidden_layers",   "hidden_size",         "intermediate_size",
        "vocab_size",   "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
        "rms_norm_eps", "rope_theta",          "tie_word_embeddings", "hidden_act",
        "scale_emb",    "scale_depth",         "dim_model_base"};
    folder f = make_folder("needed", &mini_default);
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        char patch[128], says[128];
        sp_model_desc *d;
        snprintf(patch, sizeof patch, "{\"%s\":\"-\"}", needed[i]);
        snprintf(says, sizeof says, "config.json: \"%s\" is missing", needed[i]);
        assert_fails(describe_with(&f, patch, NULL, &d), SP_BAD_INPUT, says);
        assert_null(d);
        snprintf(patch, sizeof patch, "{\"%s\":null}", needed[i]);
        assert_fails(describe_with(&f, patch, NULL, &d), SP_BAD_INPUT, says);
    }
    free_folder(&f);
}

static void wrong_fields_are_refused(void **state) {
    (void)state;
    static const config_case cases[] = {
        {"{}", NULL},
        {"{\"num_hidden_layers\":2.0}", "\"num_hidden_layers\" must be a whole number"},
        {"{\"num_hidden_layers\":\"2\"}",
         "\"num_hidden_layers\" must be a whole number, found text"},
        {"{\"num_hidden_layers\":0}", "must be between 1 and"},
        {"{\"num_hidden_layers\":9223372036854775807}", "must be between 1 and"},
        {"{\"hidden_size\":-24}", "\"hidden_size\" is -24"},
        {"{\"num_key_value_heads\":3}", "must be a multiple of"},
        {"{\"num_attention_heads\":5,\"num_key_value_heads\":5,\"head_dim\":\"-\"}",
         "no multiple of \"num_attention_heads\""},
        {"{\"head_dim\":5}", "head size 5 is odd"},
        {"{\"head_dim\":0}", "\"head_dim\" is 0"},
        {"{\"model_type\":\"qwen2\"}", "\"model_type\" is 'qwen2'"},
        {"{\"model_type\":7}", "\"model_type\" must be text"},
        {"{\"model_type\":\"llama\"}", "\"scale_emb\" belongs to model_type 'minicpm'"},
        {"{\"hidden_act\":\"gelu\"}", "must be \"silu\", found \"gelu\""},
        {"{\"hidden_act\":1}", "must be \"silu\", found a whole number"},
        {"{\"attention_bias\":true}", "\"attention_bias\" is true; biases are not supported"},
        {"{\"attention_bias\":false}", NULL},
        {"{\"attention_bias\":0}", "\"attention_bias\" must be true or false"},
        {"{\"mlp_bias\":true}", "\"mlp_bias\" is true"},
        {"{\"rms_norm_eps\":0}", "\"rms_norm_eps\" is 0; it must be positive"},
        {"{\"rms_norm_eps\":\"1e-5\"}", "\"rms_norm_eps\" must be a number"},
        {"{\"scale_depth\":-1.4}", "\"scale_depth\" is -1.4; it must be positive"},
        {"{\"rope_theta\":0}", "\"rope_theta\" is 0"},
        {"{\"tie_word_embeddings\":1}", "\"tie_word_embeddings\" must be true or false"},
        {"{\"quantization_config\":{\"bits\":4}}", "quantised weights are not supported"},
        {"{\"partial_rotary_factor\":0.5}", "\"partial_rotary_factor\" other than 1"},
        {"{\"partial_rotary_factor\":1.0}", NULL},
        {"{\"eos_token_id\":50}", "\"eos_token_id\" is 50; it must be between 0 and 49"},
        {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "lists 9 tokens"},
        {"{\"eos_token_id\":[1,\"2\"]}", "\"eos_token_id\" must be a whole number"},
        {"{\"eos_token_id\":null,\"bos_token_id\":\"-\"}", NULL},
        {"{\"bos_token_id\":-1}", "\"bos_token_id\" is -1"},
    };
    folder f = make_folder("fields", &mini_default);
    RUN_CASES(f, cases);
    free_folder(&f);
}

static void all_problems_come_at_once(void **state) {
    (void)state;
    folder f = make_folder("many", &mini_default);
    char *weights = sp_path_join(f.dir, "model.safetensors");
    sp_model_desc *d;
    assert_ok(sp_write_file(weights, "version https://git-lfs.github.com/spec/v1\n", 43));
    assert_fails(describe_with(&f,
                               "{\"hidden_act\":\"-\",\"head_dim\":5,\"sparse_config\":null,"
                               "\"rope_scaling\":{\"type\":\"yarn\"}}",
                               NULL, &d),
                 SP_BAD_INPUT, "many cannot be used:");
    static const char *const parts[] = {"\"hidden_act\" is missing", "head size 5 is odd",
                                        "sparse_config is absent", "'yarn' is not supported",
                                        "Git LFS pointer"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(sp_error_text(), parts[i]))
            fail_msg("the message lacks \"%s\": %s", parts[i], sp_error_text());
    free(weights);
    free_folder(&f);
}

static void a_config_must_be_one_json_object(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"hidden_size\":24,\"hidden_size\":24}",
         "config.json:1:31: the key \"hidden_size\" stands"},
        {"{\"rope_scaling\":{\"a_key_of_some_length\":1,\"a_key_of_some_length\":2}}",
         "the key \"a_key_of_some_length\" stands twice"},
        {"[]", "expected a JSON object, found a list"},
        {"", "an empty file"},
        {"{\"a\":1,}", "not valid JSON"},
        {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
        {"<!DOCTYPE html><html></html>", "an HTML or XML page"},
    };
    folder f = make_folder("json", &mini_default);
    char *path = sp_path_join(f.dir, "config.json");
    sp_model_desc *d;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(sp_write_file(path, cases[i].text, (int64_t)strlen(cases[i].text)));
        assert_fails(sp_model_describe(f.dir, NULL, &d), SP_BAD_INPUT, cases[i].says);
    }
    assert_int_equal(remove(path), 0);
    assert_fails(sp_model_describe(f.dir, NULL, &d), SP_BAD_INPUT, "config.json: No such file");
    assert_fails(sp_model_describe("/no/such/folder", NULL, &d), SP_BAD_INPUT, "is no folder");
    free(path);
    free_folder(&f);
}

// ---- rotary embedding (S06) ---------------------------------------------------------------------

#define THREE "[1,1.5,2]"
#define LONGROPE(extra)                                                                            \
    "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":" THREE                        \
    ",\"long_factor\":" THREE "" extra "}}"

static void wrong_rope_settings_are_refused(void **state) {
    (void)state;
    static const config_case cases[] = {
        {LONGROPE(",\"original_max_position_embeddings\":512"), NULL},
        {LONGROPE(",\"original_max_position_embeddings\":512,\"factor\":4.0"), NULL},
        {LONGROPE(""), "\"original_max_position_embeddings\" is missing"},
        {LONGROPE(",\"original_max_position_embeddings\":0"), "must be between 1"},
        {LONGROPE(",\"original_max_position_embeddings\":1.5"), "must be a whole number"},
        {LONGROPE(",\"original_max_position_embeddings\":1"), "no attention factor follows"},
        {LONGROPE(",\"original_max_position_embeddings\":1024"), "give \"attention_factor\""},
        {LONGROPE(",\"original_max_position_embeddings\":1024,\"attention_factor\":1.2"), NULL},
        {LONGROPE(",\"original_max_position_embeddings\":512,\"attention_factor\":0"),
         "\"attention_factor\" is 0"},
        {LONGROPE(",\"original_max_position_embeddings\":512,\"long_mscale\":1.2"),
         "\"long_mscale\" is not supported"},
        {LONGROPE(",\"original_max_position_embeddings\":512,\"type\":\"yarn\""),
         "\"rope_type\" and \"type\" must be one text"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2,3],\"long_factor\":[1,2,3]"
         ","
         "\"original_max_position_embeddings\":512}}",
         NULL},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2,3],\"long_factor\":[1,2,3]"
         "},"
         "\"original_max_position_embeddings\":512}",
         NULL},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2,3],\"long_factor\":[1,2,3]"
         ","
         "\"original_max_position_embeddings\":256},\"original_max_position_embeddings\":512}",
         "is 256 here and 512 in config.json"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1,2,3],"
         "\"original_max_position_embeddings\":512}}",
         "\"short_factor\" is missing"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":7,\"long_factor\":[1,2,3],"
         "\"original_max_position_embeddings\":512}}",
         "\"short_factor\" must be a list"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,0,3],\"long_factor\":[1,2,3]"
         ","
         "\"original_max_position_embeddings\":512}}",
         "\"short_factor\": entry 1 is 0; it must be a positive number"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2,3],"
         "\"long_factor\":[1,2,\"x\"],\"original_max_position_embeddings\":512}}",
         "\"long_factor\": entry 2 is \"x\""},
        {"{\"rope_scaling\":{\"rope_type\":\"yarn2\",\"factor\":4}}", "the type 'yarn2' is not"},
        {"{\"rope_scaling\":{\"rope_type\":7}}", "must be one text"},
        {"{\"rope_scaling\":{}}", "\"rope_type\" is missing"},
        {"{\"rope_scaling\":[1]}", "must be an object or null"},
        {"{\"rope_scaling\":{\"rope_type\":\"default\"}}", NULL},
        {"{\"rope_theta\":\"-\",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5000}"
         "}",
         NULL},
        {"{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5000}}",
         "\"rope_theta\" is 5000 here and 10000 in"},
        {"{\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_parameters\":{\"rope_type\":"
         "\"default\"}}",
         "keep one"},
    };
    folder f = make_folder("rope", &mini_default);
    RUN_CASES(f, cases);
    free_folder(&f);
}

// head size 128: lists of 64 and nothing else.
static void factor_lists_have_half_the_head_size(void **state) {
    (void)state;
    const mini_dims d = {1, 16, 8, 50, 1, 1, 128};
    folder f = make_folder("factors", &d);
    for (int n = 62; n <= 66; n++) {
        for (int which = 0; which < 2; which++) {
            json_t *right = json_array(), *tried = json_array();
            for (int i = 0; i < 64; i++) json_array_append_new(right, json_real(1 + 0.1 * i));
            for (int i = 0; i < n; i++) json_array_append_new(tried, json_real(1 + 0.1 * i));
            const char *key = which ? "long_factor" : "short_factor";
            json_t *patch = json_pack("{s:{s:s, s:i, s:o, s:o}}", "rope_scaling", "rope_type",
                                      "longrope", "original_max_position_embeddings", 512, key,
                                      tried, which ? "short_factor" : "long_factor", right);
            char *text = json_dumps(patch, 0), says[96];
            sp_model_desc *desc;
            snprintf(says, sizeof says, "\"%s\" lists %d numbers; it must list 64", key, n);
            sp_status st = describe_with(&f, text, NULL, &desc);
            assert_int_equal(st, n == 64 ? SP_OK : SP_BAD_INPUT);
            if (n == 64)
                assert_true(desc->rope_long[63] == 1 + 0.1 * 63);
            else
                assert_non_null(strstr(sp_error_text(), says));
            sp_model_desc_free(desc);
            free(text);
            json_decref(patch);
        }
    }
    free_folder(&f);
}

static void the_attention_factor_follows_the_lengths(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        double factor;
    } cases[] = {
        {"{\"max_position_embeddings\":131072,\"rope_scaling\":{\"rope_type\":\"longrope\","
         "\"short_factor\":" THREE ",\"long_factor\":" THREE
         ",\"original_max_position_embeddings\":65536}}",
         1.0307764064044151},
        {"{\"max_position_embeddings\":65536,\"rope_scaling\":{\"rope_type\":\"longrope\","
         "\"short_factor\":" THREE ",\"long_factor\":" THREE
         ",\"original_max_position_embeddings\":65536}}",
         1},
        {"{\"max_position_embeddings\":131072,\"rope_scaling\":{\"rope_type\":\"longrope\","
         "\"short_factor\":" THREE ",\"long_factor\":" THREE
         ",\"original_max_position_embeddings\":65536,\"attention_factor\":1.25}}",
         1.25},
    };
    folder f = make_folder("factor", &mini_default);
    for (size_t i = 0; i < 3; i++) {
        sp_model_desc *d;
        assert_ok(describe_with(&f, cases[i].patch, NULL, &d));
        assert_true(fabs(d->rope_attention_factor - cases[i].factor) < 1e-15);
        sp_model_desc_free(d);
    }
    free_folder(&f);
}

// ---- sparse settings (S33) ----------------------------------------------------------------------

static const int64_t v32 = 32, v16 = 16, v1 = 1, v64 = 64, v128 = 128, v3 = 3, v8192 = 8192;
static const sp_recipe recipe = {.kernel_size = &v32,
                                 .kernel_stride = &v16,
                                 .init_blocks = &v1,
                                 .block_size = &v64,
                                 .window_size = &v128,
                                 .topk = &v3,
                                 .dense_len = &v8192};

static void a_recipe_fills_what_the_model_lacks(void **state) {
    (void)state;
    static const char *const absent[] = {"{\"sparse_config\":null}", "{\"sparse_config\":\"-\"}",
                                         "{\"sparse_config\":{}}"};
    folder f = make_folder("recipe", &mini_default);
    sp_model_desc *d;
    char *text;
    for (int i = 0; i < 3; i++) {
        assert_fails(describe_with(&f, absent[i], NULL, &d), SP_BAD_INPUT,
                     "kernel_size, kernel_stride, init_blocks, block_size, window_size, topk, "
                     "dense_len");
        assert_non_null(strstr(sp_error_text(), "configs/minicpm4.1-8b.yaml"));
        assert_ok(describe_with(&f, absent[i], &recipe, &d));
        const sp_sparse_config *c = &d->sparse;
        assert_true(c->kernel_size == 32 && c->kernel_stride == 16 && c->init_blocks == 1 &&
                    c->block_size == 64 && c->window_size == 128 && c->topk == 3 &&
                    c->dense_len == 8192);
        assert_true(c->kernel_size_from == SP_FROM_RECIPE && c->dense_len_from == SP_FROM_RECIPE);
        assert_ok(sp_model_describe_text(d, &text));
        assert_non_null(strstr(text, "topk 3 (run configuration)"));
        free(text);
        sp_model_desc_free(d);
    }
    // What the model says wins; the rest is filled.
    assert_ok(describe_with(&f,
                            "{\"sparse_config\":{\"topk\":9,\"dense_len\":null,\"use_nope\":false,"
                            "\"infinigen_enabled\":false}}",
                            &recipe, &d));
    assert_true(d->sparse.topk == 9 && d->sparse.topk_from == SP_FROM_MODEL);
    assert_true(d->sparse.dense_len == 8192 && d->sparse.dense_len_from == SP_FROM_RECIPE);
    sp_model_desc_free(d);
    const sp_recipe topk = {.topk = &v3};
    assert_fails(describe_with(&f, "{\"sparse_config\":{\"block_size\":16}}", &topk, &d),
                 SP_BAD_INPUT,
                 "incomplete and the run configuration does not give: kernel_size, kernel_stride, "
                 "init_blocks, window_size, dense_len;");
    free_folder(&f);
}

#define SPARSE(size, stride, init, block, window, topk, dense)                                     \
    "{\"sparse_config\":{\"kernel_size\":" #size ",\"kernel_stride\":" #stride                     \
    ",\"init_blocks\":" #init ",\"block_size\":" #block ",\"window_size\":" #window                \
    ",\"topk\":" #topk ",\"dense_len\":" #dense

static void wrong_sparse_settings_are_refused(void **state) {
    (void)state;
    static const config_case cases[] = {
        {SPARSE(8, 4, 1, 16, 32, 8, 256) "}}", NULL},
        {SPARSE(8, 4, 0, 16, 40, 1, -1) "}}", NULL},
        {SPARSE(8, 4, 1, 16, 32, 8, 256) ",\"use_nope\":false,\"training_kernel_size\":2,"
                                         "\"kl_target_align_pooling\":\"max\"}}",
         NULL},
        {SPARSE(8, 4, 1, 16, 32, 8, 256) ",\"use_nope\":true}}", "\"use_nope\" is true"},
        {SPARSE(8, 4, 1, 16, 32, 8, 256) ",\"blok_size\":16}}",
         "unknown key \"blok_size\"; is it \"block_size\"?"},
        {SPARSE(8, 4, 1, 16, 32, 8, 256) ",\"attention_sink\":16}}",
         "unknown key \"attention_sink\"; remove it"},
        {SPARSE(8, 4, 1, 16, 32, 8, 256) ",\"select_blocks\":4}}",
         "says that this is a NOSA backbone"},
        {SPARSE(8, 4, 1, 16, 32, 8, 256) ",\"select_blocks\":0}}", "\"select_blocks\" is 0"},
        {"{\"sparse_config\":{\"kernel_size\":8,\"kernel_stride\":4,\"init_blocks\":1,"
         "\"block_sise\":16,\"window_size\":32,\"topk\":8,\"dense_len\":256}}",
         "unknown key \"block_sise\"; is it \"block_size\"?"},
        {SPARSE(0, 4, 1, 16, 32, 8, 256) "}}", "\"kernel_size\" is 0"},
        {SPARSE(8, 0, 1, 16, 32, 8, 256) "}}", "\"kernel_stride\" is 0"},
        {SPARSE(8, 4, -1, 16, 32, 8, 256) "}}", "\"init_blocks\" is -1"},
        {SPARSE(8, 4, 1, 0, 32, 8, 256) "}}", "\"block_size\" is 0"},
        {SPARSE(8, 4, 1, 16, 32.5, 8, 256) "}}", "\"window_size\" must be a whole number"},
        {SPARSE(8, 4, 1, 16, 32, 8, -2) "}}", "\"dense_len\" is -2"},
        {SPARSE(8, 4, 1, 18, 36, 8, 256) "}}",
         "\"block_size\" (18) must be a multiple of \"kernel_stride\" (4)"},
        {SPARSE(8, 4, 2, 16, 32, 2, 256) "}}", "\"topk\" (2) must hold the initial blocks (2)"},
        {"{\"sparse_config\":[]}", "sparse_config must be an object or null"},
        {"{\"sparse_config\":true}", "sparse_config must be an object or null"},
    };
    folder f = make_folder("sparse", &mini_default);
    RUN_CASES(f, cases);
    const int64_t bad = 0;
    const sp_recipe wrong = {.kernel_size = &bad};
    sp_model_desc *d;
    assert_fails(describe_with(&f, "{\"sparse_config\":null}", &wrong, &d), SP_BAD_INPUT,
                 "the run configuration: sparse_config: \"kernel_size\" is 0");
    free_folder(&f);
}

static void training_grids_must_fit(void **state) {
    (void)state;
    sp_model_desc d = {.name = "m",
                       .sparse = {.kernel_size = 32,
                                  .kernel_stride = 16,
                                  .init_blocks = 1,
                                  .block_size = 64,
                                  .window_size = 128,
                                  .topk = 8}};
    static const struct {
        sp_grid g;
        const char *says;
    } cases[] = {
        {{2, 1}, NULL},
        {{32, 16}, NULL},
        {{16, 8}, NULL},
        {{3, 1}, NULL},
        {{1, 1}, NULL},
        {{2, 3}, "training_kernel_stride 3 must divide"},
        {{32, 32}, "stride 32 must divide"},
        {{33, 1}, "training_kernel_size 33 must not be larger"},
        {{0, 1}, "must be positive"},
        {{2, 0}, "must be positive"},
        {{2, -1}, "must be positive"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].says)
            assert_fails(sp_check_grids(&d, cases[i].g), SP_BAD_INPUT, cases[i].says);
        else
            assert_ok(sp_check_grids(&d, cases[i].g));
    }
    d.sparse.window_size = 63; // no whole block: 0 >= 32 - 16 fails
    assert_fails(sp_check_grids(&d, (sp_grid){2, 1}), SP_BAD_INPUT, "window_size 63 must hold");
    d.sparse.kernel_size = 16;
    assert_ok(sp_check_grids(&d, (sp_grid){2, 1}));
    d.sparse.block_size = 40;
    assert_fails(sp_check_grids(&d, (sp_grid){2, 1}), SP_BAD_INPUT, "block_size 40 must be");
}

// ---- tensors against the configuration ----------------------------------------------------------

// Writes `m` to a fresh folder and describes it.
static sp_status describe_mini(mini_model *m, sp_model_desc **out) {
    static int count;
    char name[32];
    snprintf(name, sizeof name, "mini-%d", count++);
    char *dir = in_tmp(name);
    mini_write(m, dir, 0);
    sp_status st = sp_model_describe(dir, NULL, out);
    free(dir);
    return st;
}

static void the_head_must_agree_with_the_tie_flag(void **state) {
    (void)state;
    static const struct {
        bool tied, head, same, embed;
        const char *says;
        int64_t tensors;
    } cases[] = {
        {true, false, false, true, NULL, 20},
        {true, true, true, true, NULL, 20}, // the stored copy is not used
        {true, true, false, true, "lm_head.weight is there and differs", 0},
        {false, true, false, true, NULL, 21},
        {false, true, true, true, NULL, 21},
        {false, false, false, true, "lm_head.weight is missing", 0},
        {true, false, false, false, "missing: model.embed_tokens.weight", 0},
        {false, true, false, false, "missing: model.embed_tokens.weight", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mini_model *m = mini_new(&mini_default);
        sp_model_desc *d;
        mini_set(m, "tie_word_embeddings", json_boolean(cases[i].tied));
        if (cases[i].head) {
            mini_tensor *head = mini_add(m, "lm_head.weight", 2, 50, 24);
            memcpy(head->value, mini_find(m, "model.embed_tokens.weight")->value,
                   50 * 24 * sizeof(float));
            if (!cases[i].same) head->value[50 * 24 - 1] += 1;
        }
        if (!cases[i].embed) mini_remove(m, "model.embed_tokens.weight");
        sp_status st = describe_mini(m, &d);
        if (st != (cases[i].says ? SP_BAD_INPUT : SP_OK))
            fail_msg("case %zu: status %d: %s", i, st, st ? sp_error_text() : "");
        if (cases[i].says)
            assert_non_null(strstr(sp_error_text(), cases[i].says));
        else
            assert_int_equal(d->tensors, cases[i].tensors);
        sp_model_desc_free(d);
        mini_free(m);
    }
}

static void tensors_must_have_the_shapes_of_the_configuration(void **state) {
    (void)state;
    mini_model *m = mini_new(&mini_default);
    sp_model_desc *d;
    mini_remove(m, "model.layers.1.self_attn.q_proj.weight");
    mini_remove(m, "model.norm.weight");
    mini_find(m, "model.layers.0.mlp.up_proj.weight")->shape[0] = 39;
    mini_find(m, "model.layers.0.input_layernorm.weight")->dtype = SP_ST_F64;
    mini_find(m, "model.layers.1.input_layernorm.weight")->dtype = SP_ST_F64;
    mini_tensor *t = mini_find(m, "model.layers.1.self_attn.k_proj.weight");
    t->shape[0] = 24;
    t->shape[1] = 12;
    assert_fails(describe_mini(m, &d), SP_BAD_INPUT,
                 "missing: model.norm.weight, model.layers.1.self_attn.q_proj.weight");
    static const char *const parts[] = {
        "tensor model.layers.0.mlp.up_proj.weight is [39, 24] of BF16 elements; config.json "
        "demands [40, 24] (intermediate_size, hidden_size)",
        "tensor model.layers.0.input_layernorm.weight (and 1 other layers the same) is [24] of F64",
        "tensor model.layers.1.self_attn.k_proj.weight is [24, 12] of BF16 elements; config.json "
        "demands [12, 24]",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(sp_error_text(), parts[i]))
            fail_msg("the message lacks \"%s\": %s", parts[i], sp_error_text());
    mini_free(m);
}

static void foreign_tensors_are_told_from_harmless_ones(void **state) {
    (void)state;
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
        {"model.layers.1.self_attn.q_future_proj.weight", NULL},
        {"model.layers.0.self_attn.q_curr_proj.weight", NULL},
        {"vision.patch.weight", NULL},
        {"model.layers.0.self_attn.q_proj.bias", "hold: model.layers.0.self_attn.q_proj.bias"},
        {"lm_head.bias", "biases are not supported"},
        {"model.layers.1.self_attn.q_norm.weight", "would compute something else"},
        {"model.layers.0.self_attn.A", "gives select_blocks"},
        {"model.layers.1.self_attn.delta.weight", "gives select_blocks"},
        {"model.layers.2.self_attn.q_proj.weight", "files hold tensors of 3 layers"},
        {"model.layers.900000000.mlp.up_proj.weight", "files hold tensors of 900000001 layers"},
        {"model.layers.99999999999999999999.mlp.up_proj.weight", NULL}, // no layer at all
        {"model.layers.9223372036854775807.mlp.up_proj.weight", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mini_model *m = mini_new(&mini_default);
        sp_model_desc *d;
        char *text;
        mini_add(m, cases[i].name, 1, 1, 3);
        if (cases[i].says) {
            assert_fails(describe_mini(m, &d), SP_BAD_INPUT, cases[i].says);
        } else {
            assert_ok(describe_mini(m, &d));
            assert_true(d->ignored_tensors == 1 && d->tensors == 20);
            assert_string_equal(d->ignored_example, cases[i].name);
            assert_ok(sp_model_describe_text(d, &text));
            assert_non_null(strstr(text, "1 other tensors are ignored"));
            free(text);
        }
        sp_model_desc_free(d);
        mini_free(m);
    }
}

static void missing_layers_are_one_problem(void **state) {
    (void)state;
    mini_model *m = mini_new(&mini_default);
    sp_model_desc *d;
    mini_set(m, "num_hidden_layers", json_integer(1000000));
    assert_fails(describe_mini(m, &d), SP_BAD_INPUT,
                 "\"num_hidden_layers\": 1000000, the files hold tensors of 2 layers");
    assert_true(strlen(sp_error_text()) < 1000);
    mini_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_base_is_described),
        cmocka_unit_test(plain_llama_has_no_scalings),
        cmocka_unit_test(every_needed_field_is_needed),
        cmocka_unit_test(wrong_fields_are_refused),
        cmocka_unit_test(all_problems_come_at_once),
        cmocka_unit_test(a_config_must_be_one_json_object),
        cmocka_unit_test(wrong_rope_settings_are_refused),
        cmocka_unit_test(factor_lists_have_half_the_head_size),
        cmocka_unit_test(the_attention_factor_follows_the_lengths),
        cmocka_unit_test(a_recipe_fills_what_the_model_lacks),
        cmocka_unit_test(wrong_sparse_settings_are_refused),
        cmocka_unit_test(training_grids_must_fit),
        cmocka_unit_test(the_head_must_agree_with_the_tie_flag),
        cmocka_unit_test(tensors_must_have_the_shapes_of_the_configuration),
        cmocka_unit_test(foreign_tensors_are_told_from_harmless_ones),
        cmocka_unit_test(missing_layers_are_one_problem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
