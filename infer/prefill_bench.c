// See prefill_bench.h. Useful FLOP as in model/flops.h. One further run, with a wait after every
// operation, says where the time goes.
//
// Legend: T tokens, L layers.
#include "infer/prefill_bench.h"

#include "common/arguments.h"
#include "common/build.h"
#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "infer/prefill.h"
#include "kernels/profile.h"
#include "model/flops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "sparda bench prefill [options]     whole prompts through all layers\n"
                            "  --base DIR        model (default data/tiny-base); random weights "
                            "do: sparda data synth-model\n"
                            "  --tokens LIST     lengths of prompts (default 1024)\n"
                            "  --selectors LIST  dense, original, forecast; default all\n"
                            "  --chunk N         tokens at once (default 16384)\n"
                            "  --repeats N       timed runs after one to warm up (default 5)\n"
                            "  --backend NAME    auto, cpu or cuda; --threads N host threads\n"
                            "  --json FILE       results as JSON; '-' writes them to stdout\n";

enum { SELECTORS = 3 };
static const sp_selector selectors[SELECTORS] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL,
                                                 SP_SELECT_FORECAST};

typedef struct prefill_bench {
    const char *base, *json;
    sp_number_list tokens;
    int64_t chunk, repeats;
    bool chosen[SELECTORS];
    sp_model_desc *desc;
    sp_model *model;
    sp_forecast_device forecast;
    json_t *results;
} prefill_bench;

// ---- arguments ----------------------------------------------------------------------------------

static sp_status parse(int argc, char **argv, prefill_bench *b, sp_backend_options *o) {
    int64_t threads = 0; // all cores
    const char *known[SELECTORS];
    sp_names names = {known, b->chosen, SELECTORS};
    sp_problems p = {0};
    *b = (prefill_bench){.base = "data/tiny-base", .tokens = {{1024}, 1}, .repeats = 5};
    *o = (sp_backend_options){.name = "auto", .cpu_blas = "auto", .local_ranks = 1};
    for (int i = 0; i < SELECTORS; i++) {
        known[i] = sp_selector_name(selectors[i]);
        b->chosen[i] = true;
    }
    const sp_argument options[] = {
        {"--base", .text = &b->base},
        {"--json", .text = &b->json},
        {"--selectors", .names = &names},
        {"--tokens", .list = &b->tokens, .least = 1},
        {"--chunk", .number = &b->chunk, .least = 1},
        {"--repeats", .number = &b->repeats, .least = 1},
        {"--backend", .text = &o->name},
        {"--threads", .number = &threads, .least = 1, .most = 1024},
        {0},
    };
    sp_arguments_read(argc - 1, argv + 1, options, NULL, &p);
    o->threads = (int)threads;
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda bench prefill (see --help)"));
    return sp_json_check_place(b->json);
}

// ---- a sink that keeps nothing ------------------------------------------------------------------

static sp_status put(void *user, int64_t layer, int64_t pos0, sp_tensor k, sp_tensor v,
                     sp_tensor cis) {
    (void)user, (void)layer, (void)pos0, (void)k, (void)v, (void)cis;
    return SP_OK;
}
static sp_tensor compressed(void *user, int64_t layer) {
    (void)layer;
    return *(sp_tensor *)user; // of whatever layer is at work
}
static sp_status fill(void *user, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                      sp_tensor list) {
    (void)user, (void)layer, (void)k, (void)v, (void)cis, (void)list;
    return SP_OK;
}

// ---- measuring ----------------------------------------------------------------------------------

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static json_t *operations(void) {
    const sp_profile_row *rows;
    int n = sp_profile_rows(&rows);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        if (!rows[i].calls) continue;
        json_array_append_new(list,
                              json_pack("{s:s, s:f, s:I}", "name", rows[i].name, "ms",
                                        1e3 * rows[i].seconds, "calls", (json_int_t)rows[i].calls));
    }
    return list;
}

static void print_operations(json_t *list) {
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o) {
        double ms = json_number_value(json_object_get(o, "ms"));
        sp_info("    %-18s %10.2f ms", json_string_value(json_object_get(o, "name")), ms);
    }
}

// All layers but the last, and of that the projections: the rest of it runs on one row.
static double flop_of(const sp_model_desc *d, const sp_prefill_args *a, int64_t T) {
    sp_flops useful = sp_flops_prefill(d, a, T, 0);
    double L = (double)d->layers, hidden = (double)d->hidden;
    double rows = (double)((d->heads.q_heads + 2 * d->heads.kv_heads) * d->heads.head_dim);
    return sp_flops_total(&useful) * (L - 1) / L + 2 * (double)T * hidden * rows;
}

// Takes `list`, the times of the operations.
static void report(prefill_bench *b, sp_selector s, int64_t T, double *ms, json_t *list) {
    const sp_prefill_args a = {.selector = s,
                               .selection = sp_model_selection(b->desc, true),
                               .forecast_sees = SP_SEES_COMPLETE};
    sp_backend *be = b->model->backend;
    double flop = flop_of(b->desc, &a, T), ceiling = 1e-3 * sp_backend_matmul_gflops(be);
    qsort(ms, (size_t)b->repeats, sizeof *ms, ascending);
    double median = ms[b->repeats / 2], p99 = ms[(int64_t)ceil(0.99 * (double)b->repeats) - 1];
    double tflops = 1e-9 * flop / median;
    sp_info("  %-9s %8lld tokens  %10.1f ms (slowest %.1f)  %9.0f tokens/s  %7.2f TFLOP/s",
            sp_selector_name(s), (long long)T, median, ms[b->repeats - 1], 1e3 * (double)T / median,
            tflops);
    char shape[160];
    snprintf(shape, sizeof shape, "%s, %lld layers, %lld tokens, %s", b->desc->name,
             (long long)b->desc->layers, (long long)T, sp_selector_name(s));
    json_array_append_new(
        b->results,
        json_pack("{s:s, s:s, s:f, s:f, s:f, s:I, s:f, s:n, s:f, s:n, s:f, s:s, s:f, s:f, s:o}",
                  "name", "prefill", "shape", shape, "ms_median", median, "ms_min", ms[0], "ms_p99",
                  p99, "n", (json_int_t)b->repeats, "flop", flop, "bytes", "tflops", tflops, "gbps",
                  "ceiling", ceiling, "ceiling_unit", "tflops", "share", tflops / ceiling,
                  "tokens_per_s", 1e3 * (double)T / median, "operations", list));
    print_operations(list);
}

sp_status sp_measure_prefill(const sp_prefiller_args *a, int64_t T, int64_t n, double *ms,
                             sp_prefill_again after, void *user) {
    const sp_model_desc *d = a->model->desc;
    sp_backend *be = a->model->backend;
    int64_t windows = sp_windows(sp_deployed_grid(d), T);
    sp_prefiller *p = NULL;
    sp_tensor keys = {0};
    const sp_prefill_sink sink = {&keys, put, compressed, fill};
    float *logits = NULL;
    int32_t *tokens = NULL;
    uint64_t state = 1;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&logits, d->vocab, sizeof *logits, "logits"));
    SP_GO(sp_alloc(&tokens, T, sizeof *tokens, "tokens"));
    for (int64_t i = 0; i < T; i++)
        tokens[i] = (int32_t)(sp_splitmix64(&state) % (uint64_t)d->vocab);
    SP_GO(sp_tensor_alloc(be, sp_backend_storage(be), windows > 0 ? windows : 1,
                          d->heads.kv_heads * d->heads.head_dim, "compressed keys", &keys));
    SP_GO(sp_prefiller_open(a, &p));
    for (int64_t i = -1; i < n; i++) { // logits come to the host: everything has run
        double start = sp_now();
        SP_GO(sp_prefiller_run(p, tokens, T, &sink, logits));
        if (i >= 0) ms[i] = 1e3 * (sp_now() - start);
    }
    if (after) st = after(user, p, tokens, T, &sink, logits);
done:
    sp_prefiller_close(p);
    sp_tensor_free(&keys);
    free(tokens);
    free(logits);
    return st;
}

// One more run, operation by operation.
static sp_status profile(void *user, sp_prefiller *p, const int32_t *tokens, int64_t T,
                         const sp_prefill_sink *sink, float *logits) {
    json_t **list = user;
    SP_TRY(sp_profile_open(sp_prefiller_model(p)->backend));
    sp_status st = sp_prefiller_run(p, tokens, T, sink, logits);
    *list = operations();
    sp_profile_close();
    return st;
}

static sp_status measure(prefill_bench *b, sp_selector s, int64_t T) {
    const sp_prefiller_args a = {.model = b->model,
                                 .forecast = &b->forecast,
                                 .selector = s,
                                 .max_prompt = T,
                                 .max_tokens = T,
                                 .chunk = b->chunk,
                                 .allow_longer = true};
    json_t *list = NULL;
    double *ms;
    SP_TRY(sp_alloc(&ms, b->repeats, sizeof *ms, "times"));
    sp_status st = sp_measure_prefill(&a, T, b->repeats, ms, profile, &list);
    if (st == SP_OK)
        report(b, s, T, ms, list);
    else
        json_decref(list);
    free(ms);
    return st;
}

static sp_status open_model(sp_backend *be, prefill_bench *b) {
    sp_forecast f = {0};
    SP_TRY(sp_model_describe(b->base, NULL, &b->desc));
    SP_TRY(sp_model_load(be, b->desc, &(sp_model_load_options){.progress = true}, &b->model));
    SP_TRY(sp_forecast_alloc(b->desc, &f));
    sp_forecast_init(&f, 42);
    sp_status st = sp_forecast_upload(be, &f, &b->forecast);
    sp_forecast_free(&f);
    return st;
}

sp_status sp_bench_prefill(int argc, char **argv) {
    prefill_bench b;
    sp_backend_options o;
    sp_backend *be = NULL;
    sp_status st = SP_OK;
    if (sp_arguments_help(argc, argv)) {
        fputs(usage, stdout);
        return SP_OK;
    }
    SP_TRY(parse(argc, argv, &b, &o));
    b.results = json_array();
    SP_GO(sp_backend_open(&o, &be));
    sp_info("sparda %s (%s, %s)", SPARDA_VERSION, SPARDA_GIT, SPARDA_BUILD_TYPE);
    sp_info("backend     %s", sp_backend_description(be));
    SP_GO(open_model(be, &b));
    sp_info("prefill     %s, %lld layers, random tokens and Forecasts, median of %lld",
            b.desc->name, (long long)b.desc->layers, (long long)b.repeats);
    for (int64_t i = 0; i < b.tokens.n; i++)
        for (int k = 0; k < SELECTORS; k++)
            if (b.chosen[k]) SP_GO(measure(&b, selectors[k], b.tokens.value[i]));
    if (b.json) SP_GO(sp_json_write(b.json, b.results));
done:
    json_decref(b.results);
    sp_forecast_device_free(&b.forecast);
    sp_model_free(b.model);
    sp_model_desc_free(b.desc);
    sp_backend_close(be);
    return st;
}
