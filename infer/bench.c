// sparda bench decode and transfer; what is printed:
//
// decode   Every mode of inference.md section 4 at one context length, by batch and slots, as
//          measure.h says, with the roofline there; hidden is T3 of 5.4 beside its cap.
//
// transfer The engine alone: random units of a pinned pool, by kind, thread blocks and list length.
#include "infer/bench.h"

#include "common/arguments.h"
#include "common/build.h"
#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "infer/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "sparda bench decode [options]      decode steps of every way of serving\n"
    "  --base DIR       model (default data/tiny-base); random weights do: sparda data "
    "synth-model\n"
    "  --layers N       run N layers: the base's first, its middle ones in turn, its last\n"
    "  --context N      tokens of each sequence (default 131072)\n"
    "  --batch LIST     sequences (default 4,8,16)\n"
    "  --slots LIST     slots of a sequence and head (default and least: k)\n"
    "  --miss M         share of new units in a step's lists (default 0.20)\n"
    "  --modes LIST     dense, sparse-resident, sparse-offload, forecast-resident,\n"
    "                   forecast-inline, sparda, infinigen; default all\n"
    "  --steps N        timed steps (default 64), after --warmup N (default 16)\n"
    "  --transfer NAME  auto, kernel, wide, resident, bulk, batch, loop, gather; --ctas N\n"
    "  --home-gib G     pinned memory for blocks; less than the whole is shared by layers "
    "(default\n"
    "                   the whole)\n"
    "  --host-gib G     host memory that may be pinned (default what the system says is free)\n"
    "\n"
    "sparda bench transfer [options]    copies from pinned memory into slots\n"
    "  --units LIST     lengths of lists (default 8,32,128,512,2048,8192)\n"
    "  --ctas LIST      thread blocks of the kernels (default 4,8,16,32,64)\n"
    "  --kinds LIST     default all but auto and resident\n"
    "  --unit-bytes N   default 32768\n"
    "  --pool-gib G     pinned memory that units come from (default 8)\n"
    "  --repeats N      lists (default 20)\n"
    "  --matmul N       1: also beside matrix products\n"
    "\n"
    "  --json FILE      results as JSON; '-' writes them to stdout\n";

typedef struct serving_args {
    const char *what, *base, *json, *modes, *transfer, *kinds;
    int64_t layers, context, steps, warmup, unit_bytes, repeats, matmul, host_gib;
    sp_number_list batch, slots, units, ctas;
    double miss, home_gib, pool_gib;
    bool mode[SP_MODES], kind[SP_TRANSFER_KINDS];
    sp_transfer_kind chosen;
    bool help;
} serving_args;

// ---- arguments ----------------------------------------------------------------------------------

// Marks the comma-separated names of `list` that `index_of` knows (below `n`).
static void take_names(const char *option, const char *list, int n, int (*index_of)(const char *),
                       bool *out, sp_problems *p) {
    char *copy = sp_strdup(list);
    for (char *at = copy, *next; at; at = next) {
        next = strchr(at, ',');
        if (next) *next++ = 0;
        int i = index_of(at);
        if (i >= n)
            sp_problems_add(p, "%s: '%s' is not known; --help lists them", option, at);
        else
            out[i] = true;
    }
    free(copy);
}

static int mode_index(const char *s) {
    return sp_infer_mode_named(s);
}
static int kind_index(const char *s) {
    return sp_transfer_named(s);
}

static sp_status parse(int argc, char **argv, serving_args *a) {
    *a = (serving_args){.base = "data/tiny-base",
                        .context = 131072,
                        .steps = 64,
                        .warmup = 16,
                        .miss = 0.20,
                        .unit_bytes = 32768,
                        .pool_gib = 8,
                        .repeats = 20,
                        .transfer = "auto",
                        .batch = {{4, 8, 16}, 3},
                        .units = {{8, 32, 128, 512, 2048, 8192}, 6},
                        .ctas = {{4, 8, 16, 32, 64}, 5}};
    bool decode = argc > 1 && strcmp(argv[1], "decode") == 0;
    if (decode) a->ctas = (sp_number_list){{0}, 1};
    const sp_argument both[] = {
        {"--json", .text = &a->json},
        {"--ctas", .list = &a->ctas, .least = 1},
        // decode
        {"--base", .text = &a->base},
        {"--layers", .number = &a->layers, .least = 2},
        {"--context", .number = &a->context, .least = 1},
        {"--batch", .list = &a->batch, .least = 1},
        {"--slots", .list = &a->slots, .least = 1},
        {"--miss", .real = &a->miss},
        {"--modes", .text = &a->modes},
        {"--steps", .number = &a->steps, .least = 1},
        {"--warmup", .number = &a->warmup, .least = 0},
        {"--transfer", .text = &a->transfer},
        {"--home-gib", .real = &a->home_gib},
        {"--host-gib", .number = &a->host_gib, .least = 1},
        // transfer
        {"--units", .list = &a->units, .least = 1},
        {"--kinds", .text = &a->kinds},
        {"--unit-bytes", .number = &a->unit_bytes, .least = 16},
        {"--pool-gib", .real = &a->pool_gib},
        {"--repeats", .number = &a->repeats, .least = 1},
        {"--matmul", .number = &a->matmul, .least = 0},
    };
    sp_problems p = {0};
    sp_parse_arguments(argc, argv, both, sizeof both / sizeof *both, &a->what, &a->help, &p);
    if (a->help) return SP_OK;
    if (a->modes)
        take_names("--modes", a->modes, SP_MODES, mode_index, a->mode, &p);
    else
        memset(a->mode, true, sizeof a->mode);
    if (a->kinds)
        take_names("--kinds", a->kinds, SP_TRANSFER_KINDS, kind_index, a->kind, &p);
    else
        memset(a->kind, true, sizeof a->kind);
    a->kind[SP_TRANSFER_AUTO] = a->kind[SP_TRANSFER_RESIDENT] = false; // part of a step
    a->chosen = sp_transfer_named(a->transfer);
    if (a->chosen == SP_TRANSFER_KINDS)
        sp_problems_add(&p, "--transfer: '%s' is not known; --help lists them", a->transfer);
    if (a->miss < 0 || a->miss > 1) sp_problems_add(&p, "--miss: a share from 0 to 1 is expected");
    if (a->home_gib < 0 || a->pool_gib <= 0) sp_problems_add(&p, "sizes in GiB must be positive");
    if (a->steps > 4000) sp_problems_add(&p, "--steps: at most 4000");
    return sp_problems_end(&p, SP_BAD_INPUT, "sparda bench %s (see --help)",
                           decode ? "decode" : "transfer");
}

// ---- decode -------------------------------------------------------------------------------------

typedef struct decode_bench {
    const serving_args *a;
    sp_backend *be;
    sp_model_desc *described, desc; // of the base; with the number of layers that run
    sp_model *loaded, model;
    sp_layer_weights *layers;
    sp_forecast forecast;
    sp_forecast_device weights;
    sp_ceilings ceilings;
} decode_bench;

// Layer l of N from a base of n: the first, the last, and the middle ones in turn.
static int64_t base_layer(int64_t l, int64_t N, int64_t n) {
    if (l == 0 || n == 1) return 0;
    if (l == N - 1) return n - 1;
    return n > 2 ? 1 + (l - 1) % (n - 2) : n - 1;
}

static sp_status stretch_model(decode_bench *b) {
    int64_t n = b->described->layers, N = b->a->layers ? b->a->layers : n;
    b->desc = *b->described;
    b->desc.layers = N;
    b->model = *b->loaded;
    b->model.desc = &b->desc;
    SP_TRY(sp_alloc(&b->layers, N, sizeof *b->layers, "layers"));
    for (int64_t l = 0; l < N; l++) b->layers[l] = b->loaded->layer[base_layer(l, N, n)];
    b->model.layer = b->layers;
    SP_TRY(sp_forecast_alloc(&b->desc, &b->forecast));
    sp_forecast_init(&b->forecast, 42);
    return sp_forecast_upload(b->be, &b->forecast, &b->weights);
}

static void add_row(json_t *results, const decode_bench *b, const sp_decode_measurement *m,
                    const sp_decode_speed *s, double hidden, double cap) {
    const sp_infer_args *e = &m->engine;
    json_t *o = json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f}",
                          "name", "decode", "mode", sp_infer_mode_name(e->mode), "shape",
                          json_sprintf("%s, %lld layers", b->desc.name, (long long)b->desc.layers),
                          "len", (json_int_t)m->context, "batch", (json_int_t)e->batch, "slots",
                          (json_int_t)e->slots, "layers", (json_int_t)b->desc.layers, "ms_median",
                          s->ms_p50, "ms_p99", s->ms_p99, "decode_tok_s",
                          1e3 * (double)e->batch / s->ms_p50, "n", (json_int_t)m->steps,
                          "units_per_layer", s->units_missed, "miss",
                          s->units_wanted > 0 ? s->units_missed / s->units_wanted : 0.0);
    json_t *more = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:s, s:I, s:I}", "limit_ms_per_layer", s->e_min_ms,
        "copy_ms_per_layer", s->t_min_ms, "roofline_ms", s->roofline_ms, "share",
        s->roofline_ms / s->ms_p50, "ms_without_copies", s->ms_without_copies, "hidden",
        isfinite(hidden) ? json_real(hidden) : json_null(), "hidden_cap",
        isfinite(cap) ? json_real(cap) : json_null(), "transfer", s->transfer, "device_bytes",
        (json_int_t)s->memory.device, "host_bytes", (json_int_t)s->memory.host);
    if (o && more) json_object_update(o, more);
    json_decref(more);
    if (o) json_array_append_new(results, o);
}

static sp_status one_cell(decode_bench *b, sp_infer_mode mode, int64_t batch, int64_t slots,
                          double *inline_ms, json_t *results) {
    const serving_args *a = b->a;
    const sp_decode_measurement m = {.engine = {.model = &b->model,
                                                .forecast = &b->weights,
                                                .mode = mode,
                                                .batch = batch,
                                                .slots = slots,
                                                .allow_longer = true,
                                                .transfer = a->chosen,
                                                .ctas = a->ctas.value[0],
                                                .host_bytes = a->host_gib << 30},
                                     .context = a->context,
                                     .steps = a->steps,
                                     .warmup = a->warmup,
                                     .miss = a->miss,
                                     .home_bytes = a->home_gib * 0x1p30,
                                     .ceilings = b->ceilings};
    sp_decode_speed s;
    sp_progress("decode %s, batch %lld", sp_infer_mode_name(mode), (long long)batch);
    sp_status st = sp_measure_decode(&m, &s);
    sp_progress("%s", "");
    if (st == SP_ENVIRONMENT && strstr(sp_error_text(), "largest batch that fits")) {
        sp_info("  %-18s %5lld %6lld  %s", sp_infer_mode_name(mode), (long long)batch,
                (long long)slots, sp_error_text());
        sp_error_clear();
        return SP_OK;
    }
    SP_TRY(st);
    double hidden = NAN, cap = NAN;
    char text[64] = "";
    if (mode == SP_MODE_FORECAST_INLINE) *inline_ms = s.ms_p50;
    if (mode == SP_MODE_SPARDA && *inline_ms > s.ms_without_copies) {
        hidden = sp_hidden_share(s.ms_p50, *inline_ms, s.ms_without_copies);
        cap = sp_hidden_cap(*inline_ms, s.ms_without_copies);
        snprintf(text, sizeof text, "%.2f of %.2f", hidden, cap);
    }
    sp_info("  %-18s %5lld %6lld %8.3f %8.3f %8.0f %7.3f %7.3f %8.3f %6.1f%% %6.1f%% %9.3f  %s",
            sp_infer_mode_name(mode), (long long)batch, (long long)slots, s.ms_p50, s.ms_p99,
            1e3 * (double)batch / s.ms_p50, s.e_min_ms, s.t_min_ms, s.roofline_ms,
            100 * s.roofline_ms / s.ms_p50,
            s.units_wanted > 0 ? 100 * s.units_missed / s.units_wanted : 0, s.ms_without_copies,
            text);
    add_row(results, b, &m, &s, hidden, cap);
    return SP_OK;
}

static sp_status run_decode(decode_bench *b, json_t *results) {
    const serving_args *a = b->a;
    SP_TRY(sp_model_describe(a->base, NULL, &b->described));
    SP_TRY(
        sp_model_load(b->be, b->described, &(sp_model_load_options){.progress = true}, &b->loaded));
    SP_TRY(stretch_model(b));
    SP_TRY(sp_measure_ceilings(b->be, &b->ceilings));
    int64_t k = sp_model_selection(&b->desc, true).topk;
    sp_number_list slots = a->slots;
    if (slots.n == 0) slots = (sp_number_list){{k}, 1};
    sp_info(
        "decode      %s, %lld layers (%lld in the files), context %lld, k %lld, new units %.0f%%",
        b->desc.name, (long long)b->desc.layers, (long long)b->described->layers,
        (long long)a->context, (long long)k, 100 * a->miss);
    sp_info("ceilings    device memory %.0f GB/s (copy, read and write), link %.1f GB/s (256 MiB)",
            b->ceilings.device_gbps, b->ceilings.link_gbps);
    sp_info("  %-18s %5s %6s %8s %8s %8s %7s %7s %8s %7s %7s %9s  %s", "mode", "batch", "slots",
            "ms p50", "ms p99", "tok/s", "E ms", "T ms", "roofline", "share", "missed", "no copies",
            "hidden of cap");
    for (int64_t i = 0; i < a->batch.n; i++)
        for (int64_t s = 0; s < slots.n; s++) {
            double inline_ms = NAN;
            for (int mode = 0; mode < SP_MODES; mode++) {
                if (!a->mode[mode] || (s > 0 && !sp_infer_mode_offloads((sp_infer_mode)mode)))
                    continue;
                SP_TRY(one_cell(b, (sp_infer_mode)mode, a->batch.value[i], slots.value[s],
                                &inline_ms, results));
            }
        }
    return SP_OK;
}

static sp_status bench_decode(sp_backend *be, const serving_args *a, json_t *results) {
    decode_bench b = {.a = a, .be = be};
    sp_status st = run_decode(&b, results);
    sp_forecast_device_free(&b.weights);
    sp_forecast_free(&b.forecast);
    free(b.layers);
    sp_model_free(b.loaded);
    sp_model_desc_free(b.described);
    return st;
}

// ---- transfer -----------------------------------------------------------------------------------

static sp_status transfer_cell(sp_transfer_bench *t, const serving_args *a, sp_transfer_kind kind,
                               int64_t ctas, int64_t units, json_t *results) {
    sp_transfer_result r;
    sp_transfer_case c = {.kind = kind,
                          .ctas = ctas,
                          .units = units,
                          .unit_bytes = a->unit_bytes,
                          .with_matmul = a->matmul > 0,
                          .repeats = a->repeats};
    SP_TRY(sp_transfer_bench_run(t, &c, &r));
    bool counted = kind == SP_TRANSFER_KERNEL || kind == SP_TRANSFER_BULK;
    char blocks[16] = "", slow[16] = "";
    if (counted) snprintf(blocks, sizeof blocks, "%lld", (long long)ctas);
    if (a->matmul) snprintf(slow, sizeof slow, "%.3f", r.matmul_slowdown);
    sp_info("  %-8s %6s %7lld %10.2f %10.1f %10.1f %8.1f %6.1f%% %9s %6lld", sp_transfer_name(kind),
            blocks, (long long)units, (double)(units * a->unit_bytes) / 0x1p20, r.us_median,
            r.us_p99, r.gbps, 100 * r.gbps / r.reference_gbps, slow, (long long)r.wrong_units);
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:f, s:o, s:I}",
                          "name", "transfer", "kind", sp_transfer_name(kind), "ctas",
                          (json_int_t)(counted ? ctas : 0), "units", (json_int_t)units,
                          "unit_bytes", (json_int_t)a->unit_bytes, "us_median", r.us_median,
                          "us_p99", r.us_p99, "gbps", r.gbps, "ceiling", r.reference_gbps,
                          "ceiling_unit", "gbps", "share", r.gbps / r.reference_gbps,
                          "matmul_slowdown", a->matmul ? json_real(r.matmul_slowdown) : json_null(),
                          "wrong_units", (json_int_t)r.wrong_units);
    if (o) json_array_append_new(results, o);
    if (r.wrong_units)
        return sp_error(SP_ENVIRONMENT, "transfer %s copied %lld of %lld units wrong",
                        sp_transfer_name(kind), (long long)r.wrong_units, (long long)units);
    return SP_OK;
}

static sp_status bench_transfer(sp_backend *be, const serving_args *a, json_t *results) {
    int64_t most = 0;
    for (int64_t i = 0; i < a->units.n; i++)
        if (a->units.value[i] > most) most = a->units.value[i];
    sp_transfer_bench *t;
    SP_TRY(sp_transfer_bench_open(be, (int64_t)(a->pool_gib * 0x1p30), a->unit_bytes, most, &t));
    sp_status st = SP_OK;
    sp_info("  %-8s %6s %7s %10s %10s %10s %8s %7s %9s %6s", "kind", "blocks", "units", "MiB",
            "us p50", "us p99", "GB/s", "of copy", "slowdown", "wrong");
    for (int64_t u = 0; u < a->units.n; u++)
        for (int k = 0; k < SP_TRANSFER_KINDS; k++) {
            if (!a->kind[k]) continue;
            bool counted = k == SP_TRANSFER_KERNEL || k == SP_TRANSFER_BULK;
            for (int64_t c = 0; c < (counted ? a->ctas.n : 1); c++)
                SP_GO(transfer_cell(t, a, (sp_transfer_kind)k, a->ctas.value[c], a->units.value[u],
                                    results));
        }
done:
    sp_transfer_bench_close(t);
    return st;
}

// ---- command ------------------------------------------------------------------------------------

sp_status sp_bench_serving(int argc, char **argv) {
    serving_args a;
    SP_TRY(parse(argc, argv, &a));
    if (a.help) {
        fputs(usage, stdout);
        return SP_OK;
    }
    sp_backend *be = NULL;
    json_t *results = json_array();
    sp_status st = SP_OK;
    SP_GO(sp_backend_open(&(sp_backend_options){.name = "cuda", .local_ranks = 1}, &be));
    sp_info("sparda %s (%s, %s)", SPARDA_VERSION, SPARDA_GIT, SPARDA_BUILD_TYPE);
    sp_info("backend     %s", sp_backend_description(be));
    if (strcmp(a.what, "decode") == 0)
        SP_GO(bench_decode(be, &a, results));
    else
        SP_GO(bench_transfer(be, &a, results));
    if (a.json) SP_GO(sp_json_write(a.json, results));
done:
    json_decref(results);
    sp_backend_close(be);
    return st;
}
