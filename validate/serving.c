// Groups P2 to P4, M and T of the report: the decode engine on a GPU (inference.md 5.4).
//
// P and M compare whole runs (serve.h) of the same prompts: batch of two, lengths chosen so that
// blocks must be chosen and blocks are finished on the way. T measures speed on random blocks
// (infer/measure.h), except for the miss curve, which needs real lists and takes those of P3.
//
// Legend: k list length, bs block, E layer time, T copy time of a layer.
#include "common/build.h"
#include "validate/pass.h"

#if SPARDA_HAVE_CUDA
#include "common/util.h"
#include "infer/measure.h"
#include "infer/prefill_bench.h"
#include "infer/prefill_engine.h"
#include "validate/serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, MIN_STEPS = 256, MIN_ROLLOVERS = 4, MIN_COMPRESSED = 16 };

static void set(json_t *o, const char *key, json_t *value) {
    json_object_set_new(o, key, value);
}

// ---- runs ---------------------------------------------------------------------------------------

typedef struct serving_check {
    sp_pass *p;
    int64_t length[BATCH], steps, capacity;
    int32_t *tokens[BATCH];
    sp_serve_prompt prompt[BATCH];
    sp_serve_run forecast, inlined, ahead, sparse, away;
} serving_check;

static sp_status serve(serving_check *s, sp_infer_mode mode, bool copies, sp_serve_run *out) {
    const sp_pass *p = s->p;
    const sp_serve_args a = {.engine = {.model = p->model,
                                        .forecast = p->trained,
                                        .mode = mode,
                                        .batch = BATCH,
                                        .max_tokens = s->capacity,
                                        .transfer = p->transfer,
                                        .ctas = 8},
                             .prompt = s->prompt,
                             .steps = s->steps,
                             .check_copies = copies,
                             .keep_lists = mode == SP_MODE_SPARDA};
    sp_meter_phase(&s->p->meter, sp_infer_mode_name(mode));
    return sp_serve(&a, out);
}

static sp_status prepare(serving_check *s, bool *possible) {
    sp_pass *p = s->p;
    const sp_selection *sel = &p->selection;
    s->length[0] = 2 * sel->topk * sel->block + 5;
    s->length[1] = sel->topk * sel->block + sel->block / 2 + 3;
    s->steps = (MIN_ROLLOVERS + 1) * sel->block;
    if (s->steps < MIN_STEPS) s->steps = MIN_STEPS;
    while (s->steps < MIN_COMPRESSED * p->grid.stride) s->steps += sel->block;
    s->capacity = s->length[0] + s->steps + 1;
    *possible = s->capacity <= p->desc->max_positions;
    if (!*possible) return SP_OK;
    for (int b = 0; b < BATCH; b++) {
        SP_TRY(sp_alloc(&s->tokens[b], s->length[b], sizeof **s->tokens, "tokens"));
        SP_TRY(sp_pass_any_text(p, s->length[b], s->tokens[b]));
        s->prompt[b] = (sp_serve_prompt){s->tokens[b], s->length[b]};
    }
    return SP_OK;
}

static int64_t steps_that_differ(const uint64_t *a, const uint64_t *b, int64_t n) {
    int64_t differ = 0;
    for (int64_t i = 0; i < n; i++) differ += a[i] != b[i];
    return differ;
}

// ---- P2, P3, P4 ---------------------------------------------------------------------------------

static sp_status check_offload(const serving_check *s) {
    sp_check c = sp_check_blank("P2");
    int64_t forecast = steps_that_differ(s->forecast.logits, s->inlined.logits, s->steps);
    int64_t original = steps_that_differ(s->sparse.logits, s->away.logits, s->steps);
    c.value = (double)(forecast + original);
    c.threshold = 0;
    c.n = 2 * s->steps * BATCH;
    c.detail =
        json_pack("{s:I, s:I, s:I}", "steps", (json_int_t)s->steps, "steps_that_differ_forecast",
                  (json_int_t)forecast, "steps_that_differ_original", (json_int_t)original);
    if (forecast + original) {
        c.outcome = SP_FAIL;
        c.reason = "logits of a step are not the same bits when blocks come from host memory";
    }
    return sp_report_add(s->p->report, &c);
}

static sp_status check_prefetch(const serving_check *s) {
    const sp_serve_run *a = &s->inlined, *b = &s->ahead;
    sp_check c = sp_check_blank("P3");
    int64_t lists = steps_that_differ(a->lists, b->lists, s->steps);
    int64_t maps = steps_that_differ(a->maps, b->maps, s->steps);
    int64_t logits = steps_that_differ(a->logits, b->logits, s->steps);
    int64_t first = sp_serve_first_difference(a, b, true);
    char *reason = NULL;
    c.value = (double)(lists + maps + logits);
    c.threshold = 0;
    c.n = s->steps * BATCH;
    c.detail = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "steps", (json_int_t)s->steps,
                         "rollovers", (json_int_t)b->rollovers, "compressed",
                         (json_int_t)b->compressed, "lists_differ", (json_int_t)lists,
                         "slot_maps_differ", (json_int_t)maps, "logits_differ", (json_int_t)logits);
    if (first >= 0) {
        c.outcome = SP_FAIL;
        reason =
            sp_format("first at decode step %lld of %lld", (long long)first, (long long)s->steps);
    }
    c.reason = reason;
    sp_status st = sp_report_add(s->p->report, &c);
    free(reason);
    set(json_object_get(s->p->report->root, "prefetch"), "bit_equal_steps",
        json_integer(first < 0 ? s->steps : first));
    return st;
}

static sp_status check_copies(const serving_check *s) {
    int64_t n = s->inlined.units_checked + s->ahead.units_checked;
    int64_t wrong = s->inlined.units_different + s->ahead.units_different;
    json_t *o = json_object_get(s->p->report->root, "prefetch");
    set(o, "units_checked", json_integer(n));
    set(o, "checksum_errors", json_integer(wrong));
    if (n == 0) return sp_report_skip(s->p->report, "P4", "no block was copied at these lengths");
    sp_check c = sp_check_blank("P4");
    c.value = (double)wrong;
    c.threshold = 0;
    c.n = n;
    if (wrong) {
        c.outcome = SP_FAIL;
        c.reason = "a block on the GPU is not what its home in host memory holds";
    }
    return sp_report_add(s->p->report, &c);
}

// ---- M ------------------------------------------------------------------------------------------

// The driver hands out device memory in pieces of 2 MiB, and loads kernels and graphs into it when
// they are first used: that much is not held against the prediction.
static const double driver_bytes = 64 << 20;

static sp_status check_memory(const serving_check *s) {
    const sp_serve_run *r = &s->ahead;
    const sp_infer_memory *m = &r->predicted;
    sp_report *report = s->p->report;
    double device = fabs((double)(r->measured_device - m->device));
    device = device > driver_bytes ? (device - driver_bytes) / (double)m->device : 0;
    double counted = fabs((double)(r->allocated.device - m->device)) / (double)m->device;
    double host = m->host ? fabs((double)(r->allocated.host - m->host)) / (double)m->host : 0;
    sp_check c = sp_check_blank("M1");
    c.value = fmax(device, fmax(counted, host));
    c.threshold = 0.05;
    c.detail = json_pack("{s:I, s:I, s:I, s:I, s:I}", "device_predicted", (json_int_t)m->device,
                         "device_allocated", (json_int_t)r->allocated.device, "device_measured",
                         (json_int_t)r->measured_device, "host_predicted", (json_int_t)m->host,
                         "host_allocated", (json_int_t)r->allocated.host);
    if (!(c.value <= c.threshold)) {
        c.outcome = SP_FAIL;
        c.reason = "memory is not what was predicted before opening the engine";
    }
    SP_TRY(sp_report_add(report, &c));
    c = sp_check_blank("M2");
    c.value = (double)sp_serve_leak(r);
    c.threshold = 0;
    c.n = s->steps;
    c.detail = json_pack("{s:I, s:I}", "device", (json_int_t)r->growth_device, "host",
                         (json_int_t)r->growth_host);
    if (c.value > 0) {
        c.outcome = SP_FAIL;
        c.reason = "memory in use grew between the first quarter and the end of the decode steps";
    }
    SP_TRY(sp_report_add(report, &c));
    c = sp_check_blank("M3");
    c.value = (double)m->max_batch;
    c.n = s->capacity;
    SP_TRY(sp_report_add(report, &c));

    json_t *o = json_object_get(report->root, "memory"), *hbm = json_object_get(o, "hbm_bytes");
    const sp_decode_bytes *b = &r->allocated.decode;
    set(hbm, "weights", json_integer(r->allocated.weights));
    set(hbm, "slots", json_integer(b->slots));
    set(hbm, "compressed_keys", json_integer(b->compressed));
    set(hbm, "layer0", json_integer(b->resident));
    set(hbm, "workspace", json_integer(b->workspace + b->maps + r->allocated.workspace));
    set(o, "host_pinned_bytes", json_integer(r->allocated.host));
    set(json_object_get(o, "predicted"), "device", json_integer(m->device));
    set(json_object_get(o, "predicted"), "host", json_integer(m->host));
    o = json_object_get(o, "max_batch");
    set(o, "len", json_integer(s->capacity));
    set(o, "hbm", json_integer(m->max_batch_device));
    set(o, "host", json_integer(m->max_batch_host));
    return SP_OK;
}

// ---- T7, T8: misses against slots, from the lists of a real run ---------------------------------

enum { CAPACITIES = 6 };

typedef struct locality {
    int64_t capacity[CAPACITIES], missed[CAPACITIES];
    int64_t wanted, chosen; // entries of lists; those that are not forced
    int64_t fresh;          // not in the list before
} locality;

// One (layer, sequence, head). A block that was last used before C others were is not among the C
// slots. Blocks used in the same step count as later: no more misses than this happen.
static void follow_pair(const serving_check *s, int64_t layer, int64_t pair, int32_t *last,
                        locality *out) {
    const sp_selection *sel = &s->p->selection;
    int64_t k = sel->topk, lists_n = s->ahead.batch * s->p->desc->heads.kv_heads * k;
    int64_t blocks = (s->capacity + sel->block - 1) / sel->block;
    for (int64_t b = 0; b < blocks; b++) last[b] = -1;
    for (int64_t i = 0; i < s->steps; i++) {
        const int32_t *list =
            s->ahead.kept_lists + (i * s->ahead.layers + layer) * lists_n + pair * k;
        int64_t n = 0;
        while (n < k && list[n] >= 0) n++;
        for (int64_t x = 0; i > 0 && x < n; x++) {
            int32_t used = last[list[x]];
            int64_t later = 0, q = list[n - 1];     // the present block is always listed
            if (list[x] == q && used < 0) continue; // a new block is nowhere to be fetched
            for (int64_t b = 0; used < i - 1 && b < blocks; b++)
                later += b != list[x] && last[b] >= used && last[b] >= 0;
            for (int c = 0; c < CAPACITIES; c++)
                out->missed[c] += used < 0 || (used < i - 1 && later >= out->capacity[c]);
            out->fresh += used != i - 1;
            out->wanted++;
            out->chosen += list[x] >= sel->init_blocks && list[x] < q - sel->local_blocks;
        }
        for (int64_t x = 0; x < n; x++) last[list[x]] = (int32_t)i;
    }
}

static sp_status check_locality(const serving_check *s) {
    static const int thirds[CAPACITIES] = {3, 4, 6, 8, 12, 16}; // of k: 96, 128, 192, 256, 384, 512
    const sp_pass *p = s->p;
    locality l = {0};
    int32_t *last;
    int64_t blocks = s->capacity / p->selection.block + 2;
    SP_TRY(sp_alloc(&last, blocks, sizeof *last, "block uses"));
    for (int c = 0; c < CAPACITIES; c++) l.capacity[c] = (p->selection.topk * thirds[c] + 2) / 3;
    for (int64_t layer = 1; layer < s->ahead.layers; layer++)
        for (int64_t pair = 0; pair < BATCH * p->desc->heads.kv_heads; pair++)
            follow_pair(s, layer, pair, last, &l);
    free(last);
    if (l.wanted == 0 || l.chosen == 0) {
        SP_TRY(sp_report_skip(p->report, "T7", "nothing was chosen at these lengths"));
        return sp_report_skip(p->report, "T8", "nothing was chosen at these lengths");
    }
    json_t *o = json_object_get(p->report->root, "prefetch"),
           *curve = json_object_get(o, "miss_curve");
    for (int c = 0; c < CAPACITIES; c++)
        json_array_append_new(curve, json_pack("{s:I, s:f}", "slots", (json_int_t)l.capacity[c],
                                               "miss", (double)l.missed[c] / (double)l.wanted));
    double all = 1 - (double)l.fresh / (double)l.wanted,
           chosen = 1 - (double)l.fresh / (double)l.chosen;
    set(o, "hit_rate_all", json_real(all));
    set(o, "hit_rate_chosen", json_real(chosen));
    sp_check c = sp_check_blank("T7");
    c.value = (double)l.missed[0] / (double)l.wanted;
    c.n = l.wanted;
    SP_TRY(sp_report_add(p->report, &c));
    c = sp_check_blank("T8");
    c.value = all;
    c.n = l.wanted;
    c.detail = json_pack("{s:f}", "of_chosen", chosen);
    return sp_report_add(p->report, &c);
}

static sp_status compare_runs(serving_check *s) {
    SP_TRY(serve(s, SP_MODE_FORECAST_RESIDENT, false, &s->forecast));
    SP_TRY(serve(s, SP_MODE_FORECAST_INLINE, true, &s->inlined));
    SP_TRY(serve(s, SP_MODE_SPARDA, true, &s->ahead));
    SP_TRY(serve(s, SP_MODE_SPARSE_RESIDENT, false, &s->sparse));
    SP_TRY(serve(s, SP_MODE_SPARSE_OFFLOAD, false, &s->away));
    s->p->decode_unequal = s->forecast.unequal_compressed + s->sparse.unequal_compressed;
    SP_TRY(check_offload(s));
    SP_TRY(check_prefetch(s));
    SP_TRY(check_copies(s));
    SP_TRY(check_locality(s));
    return check_memory(s);
}

static sp_status check_runs(sp_pass *p) {
    static const char *const ids[] = {"P2", "P3", "P4", "T7", "T8", "M1", "M2", "M3"};
    serving_check s = {.p = p};
    bool possible;
    sp_status st = prepare(&s, &possible);
    if (st == SP_OK && possible) st = compare_runs(&s);
    for (size_t i = 0; i < sizeof ids / sizeof *ids && st == SP_OK && !possible; i++)
        st = sp_report_skip(p->report, ids[i],
                            "the model has too few positions for a prompt that "
                            "must choose blocks and 256 decode steps");
    sp_serve_run *runs[] = {&s.forecast, &s.inlined, &s.ahead, &s.sparse, &s.away};
    for (int i = 0; i < 5; i++) sp_serve_free(runs[i]);
    for (int b = 0; b < BATCH; b++) free(s.tokens[b]);
    return st;
}

// ---- T1 to T6 -----------------------------------------------------------------------------------

typedef struct speed_check {
    sp_pass *p;
    sp_decode_measurement m;
    sp_decode_speed speed[SP_MODES];
    bool measured[SP_MODES];
} speed_check;

static sp_status soft(sp_pass *p, const char *id, double value, double threshold, bool met,
                      const char *why) {
    sp_check c = sp_check_blank(id);
    c.value = value;
    c.threshold = threshold;
    if (!met) {
        c.outcome = SP_WARN;
        c.reason = why;
    }
    return sp_report_add(p->report, &c);
}

static sp_status check_transfer(speed_check *s) {
    enum { LIST_BYTES = 8 << 20 };
    sp_pass *p = s->p;
    sp_backend *be = p->model->backend;
    int64_t unit = sp_infer_unit_bytes(p->desc), units = LIST_BYTES / unit + 1;
    json_t *o = json_object_get(p->report->root, "prefetch");
    sp_transfer_case c = {.units = units, .unit_bytes = unit, .repeats = 40};
    sp_transfer_result r = {0};
    sp_transfer_bench *t = NULL;
    sp_status st = SP_OK;
    SP_TRY(sp_transfer_choose(be, unit, units, &c.kind, &c.ctas, NULL));
    SP_TRY(sp_transfer_bench_open(be, (int64_t)1 << 30, unit, units, &t));
    st = sp_transfer_bench_run(t, &c, &r);
    sp_transfer_bench_close(t);
    SP_TRY(st);
    set(o, "engine", json_string(sp_transfer_name(c.kind)));
    set(o, "ctas", json_integer(c.ctas));
    set(o, "gbps", json_real(r.gbps));
    set(o, "gbps_reference", json_real(r.reference_gbps));
    sp_check note = sp_check_blank("T1");
    note.value = r.reference_gbps;
    SP_TRY(sp_report_add(p->report, &note));
    char why[160];
    snprintf(why, sizeof why,
             "lists of 8 MiB in units of %.0f KiB are copied at %.1f GB/s, a plain pinned copy at "
             "%.1f GB/s (0.85 of that wanted)",
             (double)unit / 1024, r.gbps, r.reference_gbps);
    return soft(p, "T2", r.gbps / r.reference_gbps, 0.85, r.gbps >= 0.85 * r.reference_gbps, why);
}

static sp_status measure(speed_check *s, sp_infer_mode mode, double miss, sp_decode_speed *out) {
    sp_decode_measurement m = s->m;
    m.engine.mode = mode;
    m.miss = miss;
    sp_meter_phase(&s->p->meter, sp_infer_mode_name(mode));
    return sp_measure_decode(&m, out);
}

static void add_span(json_t *spans, const char *stream, const char *what, int64_t layer,
                     double from, double to) {
    if (!isfinite(from) || !isfinite(to)) return;
    json_array_append_new(spans,
                          json_pack("{s:s, s:s, s:I, s:f, s:f}", "stream", stream, "what", what,
                                    "layer", (json_int_t)layer, "start_ms", from, "end_ms", to));
}

// What both streams did in one step.
static void add_timeline(const speed_check *s) {
    json_t *spans = json_object_get(json_object_get(s->p->report->root, "prefetch"), "timeline");
    for (int64_t l = 0; l < s->p->desc->layers; l++) {
        const double *t = s->m.trace + l * SP_MOMENTS;
        add_span(spans, "compute", "run", l, t[SP_AT_LAYER], t[SP_AT_WAIT]);
        add_span(spans, "compute", "wait", l, t[SP_AT_WAIT], t[SP_AT_GO]);
        add_span(spans, "compute", "run", l, t[SP_AT_GO], t[SP_MOMENTS + SP_AT_LAYER]);
        add_span(spans, "copy", "choose", l, t[SP_AT_AHEAD], t[SP_AT_CHOSEN]);
        add_span(spans, "copy", "run", l, t[SP_AT_COPY], t[SP_AT_COPIED]);
    }
}

// `diff`, what is missing against the slots, is part of select here.
static json_t *breakdown(const speed_check *s) {
    sp_decode_parts p = sp_decode_parts_of(s->m.trace, s->p->desc->layers);
    return json_pack("{s:o, s:o, s:n, s:o, s:o, s:o, s:o}", "linear", sp_json_number(p.linear),
                     "select", sp_json_number(p.select), "diff", "attention",
                     sp_json_number(p.attention), "mlp", sp_json_number(p.mlp), "wait",
                     sp_json_number(p.wait), "other", sp_json_number(p.other));
}

// Tokens per second of prefill under the mode's selector, the median of three prompts as long as
// the contexts of decoding; NAN where memory is short.
static sp_status measure_prefill(const speed_check *s, sp_selector selector, double *tokens_per_s) {
    enum { RUNS = 3 };
    int64_t T = s->m.context;
    double ms[RUNS];
    const sp_prefiller_args a = {.model = s->p->model,
                                 .forecast = s->p->trained,
                                 .selector = selector,
                                 .max_prompt = T,
                                 .max_tokens = T};
    sp_meter_phase(&s->p->meter, "prefill");
    *tokens_per_s = NAN;
    sp_status st = sp_measure_prefill(&a, T, RUNS, ms, NULL, NULL);
    if (st == SP_ENVIRONMENT && strstr(sp_error_text(), "out of memory")) {
        sp_error_clear();
        return SP_OK;
    }
    SP_TRY(st);
    double low = fmin(fmin(ms[0], ms[1]), ms[2]), high = fmax(fmax(ms[0], ms[1]), ms[2]);
    *tokens_per_s = 1e3 * (double)T / (ms[0] + ms[1] + ms[2] - low - high);
    return SP_OK;
}

static sp_status measure_modes(speed_check *s) {
    json_t *rows = json_object_get(s->p->report->root, "throughput");
    double prefill[SP_SELECT_FORECAST + 1];
    const sp_selector selectors[] = {SP_SELECT_DENSE, SP_SELECT_ORIGINAL, SP_SELECT_FORECAST};
    for (int i = 0; i < 3; i++) SP_TRY(measure_prefill(s, selectors[i], &prefill[selectors[i]]));
    for (int mode = 0; mode < SP_MODES; mode++) {
        sp_decode_speed *x = &s->speed[mode];
        sp_status st = measure(s, (sp_infer_mode)mode, s->m.miss, x);
        if (st == SP_ENVIRONMENT && strstr(sp_error_text(), "largest batch that fits")) {
            sp_error_clear();
            continue;
        }
        SP_TRY(st);
        s->measured[mode] = true;
        if (mode == SP_MODE_SPARDA) add_timeline(s);
        json_array_append_new(
            rows,
            json_pack("{s:s, s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:o}", "mode",
                      sp_infer_mode_name((sp_infer_mode)mode), "len", (json_int_t)s->m.context,
                      "batch", (json_int_t)s->m.engine.batch, "prefill_tok_s",
                      sp_json_number(prefill[sp_infer_prefill_selector((sp_infer_mode)mode)]),
                      "decode_tok_s", 1e3 * (double)s->m.engine.batch / x->ms_p50, "ms_p50",
                      x->ms_p50, "ms_p99", x->ms_p99, "roofline_ms", x->roofline_ms, "share",
                      x->roofline_ms / x->ms_p50, "breakdown_ms", breakdown(s)));
    }
    return SP_OK;
}

static sp_status check_overlap(speed_check *s) {
    sp_pass *p = s->p;
    const sp_decode_speed *a = &s->speed[SP_MODE_SPARDA], *i = &s->speed[SP_MODE_FORECAST_INLINE];
    double L = (double)p->desc->layers, without = a->ms_without_copies;
    double E = without / L, T = (i->ms_p50 - without) / L;
    if (!s->measured[SP_MODE_SPARDA] || !s->measured[SP_MODE_FORECAST_INLINE] || T < 0.05 * E) {
        static const char why[] =
            "copies take too little time at this size to see whether they are hidden";
        SP_TRY(sp_report_skip(p->report, "T3", why));
        SP_TRY(sp_report_skip(p->report, "T4", why));
        return sp_report_skip(p->report, "T5", why);
    }
    double hidden = sp_hidden_share(a->ms_p50, i->ms_p50, without);
    double cap = sp_hidden_cap(i->ms_p50, without);
    json_t *o = json_object_get(p->report->root, "prefetch");
    set(o, "hidden_fraction", json_real(hidden));
    set(o, "hidden_cap", json_real(cap));
    set(o, "units_per_step", json_real(a->units_missed * (L - 1)));
    set(o, "bytes_per_step",
        json_real(a->units_missed * (L - 1) * (double)sp_infer_unit_bytes(p->desc)));
    SP_TRY(soft(p, "T3", hidden, 0.9 * cap, hidden >= 0.9 * cap,
                "copies are hidden less than they could be"));
    // Copies that take half a layer's time disturb but never delay.
    sp_decode_speed half;
    SP_TRY(measure(s, SP_MODE_SPARDA, s->m.miss * fmin(1, 0.5 * E / T), &half));
    double slower = half.ms_p50 / half.ms_without_copies - 1;
    set(o, "interference", json_real(slower));
    SP_TRY(soft(p, "T4", slower, 0.05, slower <= 0.05,
                "kernels are slower while copies run beside them"));
    double ratio = i->ms_p50 / a->ms_p50 / ((E + T) / fmax(E, T));
    return soft(p, "T5", ratio, 0.9, ratio >= 0.9 && ratio <= 1.1,
                "the gain from copying ahead is not that of the overlap model (0.9 to 1.1 of it)");
}

static sp_status check_speed(sp_pass *p) {
    enum { STEPS = 320, LONGEST = 131072, SHARED_HOME = 1 << 30, SPEED_BATCH = 4 };
    int64_t room = p->desc->max_positions - 2 * STEPS - 64;
    speed_check s = {.p = p,
                     .m = {.engine = {.model = p->model,
                                      .forecast = p->trained,
                                      .batch = SPEED_BATCH,
                                      .transfer = p->transfer},
                           .context = room < LONGEST ? room : LONGEST,
                           .steps = STEPS,
                           .warmup = 16,
                           .miss = 0.20,
                           .home_bytes = SHARED_HOME}};
    if (room < p->selection.topk * p->selection.block) {
        static const char *const ids[] = {"T1", "T2", "T3", "T4", "T5", "T6"};
        for (int i = 0; i < 6; i++)
            SP_TRY(sp_report_skip(p->report, ids[i],
                                  "the model has too few positions for long contexts"));
        return SP_OK;
    }
    SP_TRY(check_transfer(&s));
    SP_TRY(sp_measure_ceilings(p->model->backend, &s.m.ceilings));
    SP_TRY(sp_alloc(&s.m.trace, (p->desc->layers + 1) * SP_MOMENTS, sizeof *s.m.trace, "a trace"));
    sp_status st = measure_modes(&s);
    free(s.m.trace);
    s.m.trace = NULL;
    SP_TRY(st);
    sp_check c = sp_check_blank("T6");
    c.value = 1e3 * SPEED_BATCH / s.speed[SP_MODE_SPARDA].ms_p50;
    c.n = s.m.steps;
    SP_TRY(sp_report_add(p->report, &c));
    return check_overlap(&s);
}

sp_status sp_check_serving(sp_pass *p) {
    if (strcmp(sp_backend_name(p->model->backend), "cuda") != 0) return SP_OK; // skips say why
    SP_TRY(check_runs(p));
    return check_speed(p);
}
#else
sp_status sp_check_serving(sp_pass *p) {
    (void)p;
    return SP_OK;
}
#endif
