// sparda bench decode: every mode of inference.md section 4 at one context length, by batch and
// slots, as measure.h says, with the roofline there; hidden is T3 of 5.4 beside its cap.
#include "infer/bench.h"

#include "common/arguments.h"
#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "infer/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *base, *json;
    int64_t layers, context, steps, warmup, host_gib, ctas;
    sp_number_list batch, slots;
    double miss, home_gib;
    bool mode[SP_MODES];
    sp_transfer_kind transfer;
} arguments;

static sp_status parse(int argc, char **argv, arguments *a) {
    const char *modes[SP_MODES], *transfer = "auto";
    sp_names names = {modes, a->mode, SP_MODES};
    sp_problems p = {0};
    *a = (arguments){.base = "data/tiny-base",
                     .context = 131072,
                     .steps = 64,
                     .warmup = 16,
                     .miss = 0.20,
                     .batch = {{4, 8, 16}, 3}};
    for (int i = 0; i < SP_MODES; i++) {
        modes[i] = sp_infer_mode_name((sp_infer_mode)i);
        a->mode[i] = true;
    }
    const sp_argument options[] = {
        {"--base", .text = &a->base},
        {"--json", .text = &a->json},
        {"--layers", .number = &a->layers, .least = 2},
        {"--context", .number = &a->context, .least = 1},
        {"--batch", .list = &a->batch, .least = 1},
        {"--slots", .list = &a->slots, .least = 1},
        {"--miss", .real = &a->miss},
        {"--modes", .names = &names},
        {"--steps", .number = &a->steps, .least = 1, .most = 4000},
        {"--warmup", .number = &a->warmup},
        {"--transfer", .text = &transfer},
        {"--ctas", .number = &a->ctas, .least = 1},
        {"--home-gib", .real = &a->home_gib},
        {"--host-gib", .number = &a->host_gib, .least = 1},
        {0},
    };
    sp_arguments_read(argc - 1, argv + 1, options, NULL, &p);
    a->transfer = sp_transfer_named(transfer);
    if (a->transfer == SP_TRANSFER_KINDS)
        sp_problems_add(&p, "--transfer: '%s' is not known; --help lists them", transfer);
    if (a->miss < 0 || a->miss > 1) sp_problems_add(&p, "--miss: a share from 0 to 1 is expected");
    if (a->home_gib < 0) sp_problems_add(&p, "--home-gib: a size from 0 is expected");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda bench decode (see --help)"));
    return sp_json_check_place(a->json);
}

// ---- measuring ----------------------------------------------------------------------------------

typedef struct decode_bench {
    const arguments *a;
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
    const arguments *a = b->a;
    const sp_decode_measurement m = {.engine = {.model = &b->model,
                                                .forecast = &b->weights,
                                                .mode = mode,
                                                .batch = batch,
                                                .slots = slots,
                                                .allow_longer = true,
                                                .transfer = a->transfer,
                                                .ctas = a->ctas,
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
    const arguments *a = b->a;
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

static sp_status bench(sp_backend *be, const void *of, json_t *results) {
    const arguments *a = of;
    decode_bench b = {.a = a, .be = be};
    sp_status st = run_decode(&b, results);
    sp_forecast_device_free(&b.weights);
    sp_forecast_free(&b.forecast);
    free(b.layers);
    sp_model_free(b.loaded);
    sp_model_desc_free(b.described);
    return st;
}

// ---- command ------------------------------------------------------------------------------------

sp_status sp_bench_decode(int argc, char **argv) {
    arguments a;
    SP_TRY(parse(argc, argv, &a));
    return sp_bench_on_gpu(bench, &a, a.json);
}
