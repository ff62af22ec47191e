// Every check of an export (group E) can fail: exports that are wrong in one way each.
#include "checkpoints/checkpoints.h"
#include "common/util.h"
#include "model/safetensors.h"
#include "tests/golden.h"
#include "validate/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char base_hash[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

// One export folder; the fields spoil it.
typedef struct export {
    sp_forecast safetensors, pt; // what each format holds
    const char *rename_from, *rename_to;
    sp_st_dtype dtype;
    const char *base; // recorded hash
    int64_t k_effective, topk, block_size;
    bool no_record, no_pt, no_last;
}
export;

static export good(void) {
    return (export){.safetensors = test_trained_forecast(),
                    .pt = test_trained_forecast(),
                    .dtype = SP_ST_BF16,
                    .base = base_hash,
                    .k_effective = 10,
                    .topk = 8,
                    .block_size = 16};
}

static void write_safetensors(const export *x, const char *path) {
    const sp_forecast *f = &x->safetensors;
    int64_t size = f->rows * f->cols, n = f->layers + !x->no_last;
    uint16_t *bits = malloc((size_t)(n * size) * sizeof *bits);
    sp_st_out out[16];
    char name[16][64];
    for (int64_t l = 0; l < n; l++) {
        sp_forecast_name(l, name[l]);
        if (x->rename_from && strcmp(name[l], x->rename_from) == 0)
            snprintf(name[l], sizeof name[l], "%s", x->rename_to);
        const float *w = sp_forecast_matrix(f, l);
        for (int64_t i = 0; i < size; i++) bits[l * size + i] = sp_f32_to_bf16(w[i]);
        out[l] = (sp_st_out){.name = name[l],
                             .dtype = x->dtype,
                             .dims = 2,
                             .shape = {f->rows, f->cols},
                             .data = bits + l * size};
    }
    json_t *metadata = json_pack(
        "{s:o}", "sparda.sparse_config",
        json_sprintf("{\"topk\": %d, \"block_size\": %d}", (int)x->topk, (int)x->block_size));
    assert_ok(sp_st_write(path, out, n, metadata));
    json_decref(metadata);
    free(bits);
}

// The record always holds the hashes of the trained fixture.
static void write_record(const export *x, const char *path) {
    sp_forecast f = test_trained_forecast();
    int64_t size = f.rows * f.cols;
    json_t *tensors = json_array();
    for (int64_t l = 0; l <= f.layers; l++) {
        char name[64], hex[SP_SHA256_HEX];
        uint16_t *bits = malloc((size_t)size * sizeof *bits);
        for (int64_t i = 0; i < size; i++) bits[i] = sp_f32_to_bf16(sp_forecast_matrix(&f, l)[i]);
        assert_ok(sp_sha256_of(bits, (size_t)size * sizeof *bits, hex));
        free(bits);
        sp_forecast_name(l, name);
        json_array_append_new(tensors,
                              json_pack("{s:s, s:s, s:[i,i], s:s}", "name", name, "dtype", "BF16",
                                        "shape", (int)f.rows, (int)f.cols, "sha256", hex));
    }
    json_t *o =
        json_pack("{s:{s:s}, s:{s:I, s:I, s:I, s:I}, s:o}", "base", "weights_sha256", x->base,
                  "selection", "k_effective", (json_int_t)x->k_effective, "topk", (json_int_t)8,
                  "k_forced", (json_int_t)4, "k_chosen", (json_int_t)6, "tensors", tensors);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
    sp_forecast_free(&f);
}

static char *write_export(export *x) {
    static int serial;
    char *name = sp_format("export-%d", serial++), *dir = sp_path_join(test_tmpdir(), name);
    char *st = sp_path_join(dir, "forecast.safetensors"), *pt = sp_path_join(dir, "forecast.pt");
    char *record = sp_path_join(dir, "sparda_config.json");
    assert_ok(sp_mkdirs(dir));
    write_safetensors(x, st);
    if (!x->no_pt) {
        json_t *sparse = json_pack("{s:i}", "topk", 8);
        assert_ok(sp_pt_write(pt, &x->pt, 50, sparse, "tiny-base"));
        json_decref(sparse);
    }
    if (!x->no_record) write_record(x, record);
    sp_forecast_free(&x->safetensors);
    sp_forecast_free(&x->pt);
    free(name);
    free(st);
    free(pt);
    free(record);
    return dir;
}

// The outcomes of E1 to E5 as letters, e.g. "pppfp", the reason of the first failure, what helps,
// and why checks were skipped, each as lines "E1: ...".
static char outcomes[8], why[2048], advice[1024], skips[1024];
static sp_export_state verdict;

static void look_at_export(const char *path) {
    static const char *const ids[] = {"E1", "E2", "E3", "E4", "E5"};
    const sp_model_desc *d = test_tiny_base()->desc;
    sp_exported x;
    sp_report r;
    assert_ok(sp_report_open(&r));
    assert_ok(sp_exported_open(path, d, &x));
    assert_ok(sp_check_export(&r, d, base_hash, &x, &verdict));
    why[0] = advice[0] = skips[0] = 0;
    for (int i = 0; i < 5; i++) outcomes[i] = "pwfs"[sp_report_outcome(&r, ids[i])];
    outcomes[5] = 0;
    size_t k;
    json_t *c;
    json_array_foreach(r.checks, k,
                       c) if (!why[0] &&
                              strcmp(json_string_value(json_object_get(c, "status")), "fail") == 0)
        snprintf(why, sizeof why, "%s", json_string_value(json_object_get(c, "reason")));
    json_array_foreach(r.checks, k, c) {
        const char *id = json_string_value(json_object_get(c, "id"));
        const char *remedy = json_string_value(json_object_get(c, "remedy"));
        const char *reason = json_string_value(json_object_get(c, "reason"));
        size_t a = strlen(advice), s = strlen(skips);
        if (remedy) snprintf(advice + a, sizeof advice - a, "%s: %s\n", id, remedy);
        if (sp_report_outcome(&r, id) == SP_SKIP)
            snprintf(skips + s, sizeof skips - s, "%s: %s\n", id, reason);
    }
    sp_exported_close(&x);
    sp_report_close(&r);
}

static void assert_export(export *x, const char *want, const char *reason) {
    char *dir = write_export(x);
    look_at_export(dir);
    if (strcmp(outcomes, want) != 0) fail_msg("E1..E5 are %s, not %s: %s", outcomes, want, why);
    assert_true((verdict == SP_EXPORT_USABLE) == !strchr(want, 'f'));
    if (reason && !strstr(why, reason)) fail_msg("the reason lacks \"%s\": %s", reason, why);
    free(dir);
}

static void swap_layers(sp_forecast *f) {
    int64_t size = f->rows * f->cols;
    float *a = sp_forecast_matrix(f, 2), *b = sp_forecast_matrix(f, 3);
    for (int64_t i = 0; i < size; i++) {
        float t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

static const char second[] = "model.layers.1.self_attn.q_future_proj.weight";

static void test_good_export(void **state) {
    (void)state;
    export x = good();
    assert_export(&x, "ppppp", NULL);
    x = good();
    x.no_record = true;
    assert_export(&x, "ppppp", NULL); // two formats to compare, no hashes
    x = good();
    x.no_pt = true;
    assert_export(&x, "ppppp", NULL); // hashes to compare
    x = good();
    x.no_pt = x.no_record = true;
    assert_export(&x, "spppp", NULL); // nothing to compare with
}

static void test_formats_that_differ(void **state) {
    (void)state;
    export x = good();
    swap_layers(&x.pt);
    assert_export(&x, "fpppp", "forecast.pt");
    x = good();
    swap_layers(&x.pt);
    x.no_record = true;
    assert_export(&x, "fpppp", "differs in");
    x = good();
    swap_layers(&x.pt);
    swap_layers(&x.safetensors); // both alike: only the record knows
    assert_export(&x, "fpppp", "sparda_config.json records");
    x = good();
    float *w = sp_forecast_matrix(&x.safetensors, 4) + 17;
    *w = sp_bf16_to_f32((uint16_t)(sp_f32_to_bf16(*w) ^ 1)); // one bit
    assert_export(&x, "fpppp", "q_future_proj");
}

static void test_damaged_file(void **state) {
    (void)state;
    export x = good();
    char *dir = write_export(&x), *path = sp_path_join(dir, "forecast.safetensors"), *data;
    int64_t n;
    assert_ok(sp_read_file(path, 1 << 24, &data, &n));
    data[n - 1000] ^= 4; // in the tensors
    assert_ok(sp_write_file(path, data, n));
    look_at_export(dir);
    assert_string_equal(outcomes, "fpppp");
    assert_ok(sp_write_file(path, data, n - 7)); // cut short: the other format still loads
    look_at_export(dir);
    assert_string_equal(outcomes, "fsppp");
    assert_int_equal(verdict, SP_EXPORT_FAULTY);
    assert_non_null(strstr(why, "forecast.safetensors is cut short"));
    assert_string_equal(skips, "E2: forecast.safetensors is not looked at: see E1\n");
    assert_string_equal(advice,
                        "E1: get the file again from where it was exported; if it is damaged "
                        "there too, export again\n");
    free(path);
    path = sp_path_join(dir, "forecast.pt");
    assert_ok(sp_write_file(path, "<!doctype html>", 15)); // now nothing does
    sp_exported e;
    assert_fails(sp_exported_open(dir, test_tiny_base()->desc, &e), SP_BAD_INPUT,
                 "forecast.safetensors is cut short");
    assert_non_null(strstr(sp_error_text(), "forecast.pt"));
    x = good(); // a damaged one, and a sound one that does not fit
    x.rename_from = second;
    x.rename_to = "model.layers.9.self_attn.q_future_proj.weight";
    x.no_record = true;
    free(dir);
    dir = write_export(&x);
    free(path);
    path = sp_path_join(dir, "forecast.pt");
    assert_ok(sp_write_file(path, "<!doctype html>", 15));
    look_at_export(dir);
    assert_string_equal(outcomes, "ffssp");
    free(path);
    path = sp_path_join(dir, "sparda_config.json");
    assert_ok(sp_write_file(path, "{\"base\": ", 9)); // the record
    assert_fails(sp_exported_open(dir, test_tiny_base()->desc, &e), SP_BAD_INPUT,
                 "the record of the export is damaged (get the file again");
    free(data);
    free(path);
    free(dir);
}

static void test_names_and_identity(void **state) {
    (void)state;
    export x = good();
    x.rename_from = second;
    x.rename_to = "model.layers.1.self_attn.q_curr_proj.weight"; // belongs to layer 0 only
    x.no_pt = true;
    assert_export(&x, "sfspp", "q_curr_proj");
    x = good();
    x.rename_from = second;
    x.rename_to = "layers.1.self_attn.q_future_proj.weight"; // a loader may accept it, others not
    assert_export(&x, "pfppp", "should be named");
    x = good();
    x.rename_from = second;
    x.rename_to = "model.layers.9.self_attn.q_future_proj.weight";
    x.no_pt = true;
    assert_export(&x, "sfspp", "missing");
    assert_string_equal(skips, "E1: forecast.safetensors is not compared: see E2\n"
                               "E3: no file could be loaded: see E2\n");
    assert_string_equal(advice, "E2: export again\n");
    x = good();
    x.rename_from = second;
    x.rename_to = "model.layers.9.self_attn.q_future_proj.weight";
    assert_export(&x, "sfppp", "missing"); // the other format loads
    x = good();
    x.rename_from = second;
    x.rename_to = "model.layers.9.self_attn.q_future_proj.weight";
    x.no_pt = x.no_record = true; // of another base model, or not an export
    assert_export(&x, "sfssp", "missing");
    assert_int_equal(verdict, SP_EXPORT_OTHER_BASE);
    assert_string_equal(advice, "E2: give the base model that the Forecast was trained for with "
                                "--base; if it is that one, export again\n");
    x = good();
    x.dtype = SP_ST_F16; // same size, other numbers
    assert_export(&x, "ffppp", NULL);
    x = good();
    x.base = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
    assert_export(&x, "pfpsp", "another base model");
    assert_int_equal(verdict, SP_EXPORT_OTHER_BASE);
    assert_string_equal(skips, "E4: not compared with the base model: see E2\n");
    static const char base_helps[] =
        "E2: give the base model that the Forecast was trained for with --base\n";
    assert_string_equal(advice, base_helps);
    x = good();
    x.base = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
    x.topk = 10; // the other one's
    x.rename_from = second;
    x.rename_to = "model.layers.9.self_attn.q_future_proj.weight"; // it has more layers, too
    assert_export(&x, "sfpsp", "another base model");
    assert_null(strstr(why, "missing"));
    assert_string_equal(advice, base_helps);
    x = good();
    x.no_last = x.no_pt = x.no_record = true; // never used: may be left out
    assert_export(&x, "spppp", NULL);
}

static void test_values(void **state) {
    (void)state;
    export x = good();
    sp_forecast_matrix(&x.safetensors, 2)[300] = NAN;
    x.no_pt = x.no_record = true;
    assert_export(&x, "spfpp", "row 1");
    assert_non_null(strstr(advice, "E3: the training diverged"));
    x = good();
    sp_forecast_matrix(&x.safetensors, 2)[300] = NAN; // and it is not what was exported
    assert_export(&x, "fpfpp", NULL);
    assert_string_equal(advice,
                        "E1: export again; if it stays, memory or disk of this host changes "
                        "data\n");
    x = good();
    sp_forecast_matrix(&x.safetensors, 5)[0] = INFINITY;
    x.no_pt = x.no_record = true;
    assert_export(&x, "spfpp", "NaN or infinite");
    x = good();
    memset(sp_forecast_matrix(&x.safetensors, 0) + 256 * 7, 0, 256 * sizeof(float));
    x.no_pt = x.no_record = true;
    assert_export(&x, "spfpp", "row 7");
}

static void test_topk_conventions(void **state) {
    (void)state;
    export x = good();
    x.k_effective = 8; // topk without the local blocks
    assert_export(&x, "pppfp", "k_effective is 8, the base model's is 10");
    x = good();
    x.topk = 10; // topk with them
    assert_export(&x, "pppfp", "topk is 10");
    x = good();
    x.block_size = 64;
    assert_export(&x, "pppfp", "block_size is 64");
}

static void test_nothing_to_validate(void **state) {
    (void)state;
    sp_exported x;
    const sp_model_desc *d = test_tiny_base()->desc;
    assert_fails(sp_exported_open("/nowhere/export", d, &x), SP_BAD_INPUT, "/nowhere/export");
    char *dir = sp_path_join(test_tmpdir(), "empty");
    assert_ok(sp_mkdirs(dir));
    assert_fails(sp_exported_open(dir, d, &x), SP_BAD_INPUT, "sparda export");
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_export),
        cmocka_unit_test(test_formats_that_differ),
        cmocka_unit_test(test_damaged_file),
        cmocka_unit_test(test_names_and_identity),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_topk_conventions),
        cmocka_unit_test(test_nothing_to_validate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
