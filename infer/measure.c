// See measure.h.
#include "infer/measure.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

sp_status sp_measure_ceilings(sp_backend *be, sp_ceilings *out) {
    enum { RUNS = 7, COPIES = 4 };
    const int64_t rows = 1 << 14, cols = 1 << 14; // 1 GiB
    sp_tensor from = {0}, to = {0};
    double ms[RUNS];
    sp_status st = SP_OK;
    sp_transfer_bench *t = NULL;
    SP_GO(sp_tensor_alloc(be, SP_F32, rows, cols, "a benchmark tensor", &from));
    SP_GO(sp_tensor_alloc(be, SP_F32, rows, cols, "a benchmark tensor", &to));
    for (int i = -2; i < RUNS; i++) {
        double start = sp_now();
        for (int n = 0; n < COPIES; n++) SP_GO(sp_copy(to, from));
        SP_GO(sp_backend_synchronize(be));
        if (i >= 0) ms[i] = 1e3 * (sp_now() - start) / COPIES;
    }
    qsort(ms, RUNS, sizeof *ms, ascending);
    out->device_gbps = 8e-6 * (double)(rows * cols) / ms[RUNS / 2];
    SP_GO(sp_transfer_bench_open(be, (int64_t)256 << 20, 32768, 64, &t));
    out->link_gbps = sp_transfer_bench_reference(t);
done:
    sp_transfer_bench_close(t);
    sp_tensor_free(&from);
    sp_tensor_free(&to);
    return st;
}

// ---- limits -------------------------------------------------------------------------------------

static double bytes_of(sp_tensor t) {
    return (double)(t.rows * t.cols * sp_dtype_size(t.dtype));
}

static void set_limits(const sp_decode_measurement *m, sp_decode_speed *out) {
    const sp_model *model = m->engine.model;
    const sp_model_desc *d = model->desc;
    sp_infer_mode mode = m->engine.mode;
    sp_selection s = sp_model_selection(d, true);
    double B = (double)m->engine.batch, Hkv = (double)d->heads.kv_heads, T = (double)m->context;
    double D = (double)d->heads.head_dim, unit = (double)sp_infer_unit_bytes(d);
    double L = (double)d->layers;
    const sp_layer_weights *w = &model->layer[d->layers > 1];
    double bytes = bytes_of(w->qkv) + bytes_of(w->o) + bytes_of(w->gate_up) + bytes_of(w->down);
    double blocks = ceil(T / (double)s.block);
    bytes += B * Hkv * unit * (mode == SP_MODE_DENSE ? blocks : fmin(blocks, (double)s.topk));
    if (sp_infer_mode_forecasts(mode)) bytes += bytes_of(m->engine.forecast->w[0]);
    if (mode == SP_MODE_INFINIGEN) // partial keys of 32 channels; the next layer's query weights
        bytes += B * T * Hkv * 64 + bytes_of(w->o);
    else if (mode != SP_MODE_DENSE)
        bytes += B * (double)sp_windows(sp_deployed_grid(d), m->context) * Hkv * D * 2;
    out->e_min_ms = bytes / m->ceilings.device_gbps * 1e-6;
    out->head_ms = bytes_of(model->head) / m->ceilings.device_gbps * 1e-6;
    out->t_min_ms =
        sp_infer_mode_offloads(mode) ? out->units_missed * unit / m->ceilings.link_gbps * 1e-6 : 0;
    double each = sp_infer_mode_ahead(mode) ? fmax(out->e_min_ms, out->t_min_ms)
                                            : out->e_min_ms + out->t_min_ms;
    out->roofline_ms = out->head_ms + out->e_min_ms + (L - 1) * each;
}

// ---- measuring ----------------------------------------------------------------------------------

// Median and p99 of the steps, and what they missed.
static sp_status timed(const sp_decode_measurement *m, sp_infer *e, bool copies, double *ms,
                       sp_decode_speed *out) {
    sp_decode *d = sp_infer_decode(e);
    int64_t n = m->steps, away = 0;
    sp_decode_suppress_copies(d, !copies);
    sp_infer_recapture(e);
    if (m->warmup) SP_TRY(sp_infer_timed_steps(e, m->warmup, ms));
    SP_TRY(sp_decode_count_reset(d));
    SP_TRY(sp_infer_timed_steps(e, n, ms));
    qsort(ms, (size_t)n, sizeof *ms, ascending);
    if (!copies) {
        out->ms_without_copies = ms[n / 2];
        return SP_OK;
    }
    out->ms_p50 = ms[n / 2];
    out->ms_p99 = ms[(int64_t)(0.99 * (double)(n - 1) + 0.5)];
    for (int64_t l = m->engine.offload_layer0 ? 0 : 1; l < m->engine.model->desc->layers;
         l++, away++) {
        sp_decode_counters c;
        SP_TRY(sp_decode_count(d, l, &c));
        out->units_missed += (double)c.missed / (double)n;
        out->units_wanted += (double)c.wanted / (double)n;
    }
    if (away) out->units_missed /= (double)away, out->units_wanted /= (double)away;
    return SP_OK;
}

// Projections of InfiniGen: speed does not depend on their values.
static sp_status some_projections(sp_infer *e, const sp_model_desc *d, int64_t batch) {
    int64_t n = d->heads.kv_heads * d->heads.head_dim * 32;
    float *p;
    SP_TRY(sp_alloc(&p, n, sizeof *p, "projections"));
    uint64_t state = 3;
    for (int64_t i = 0; i < n; i++) p[i] = (float)(sp_uniform(&state) - 0.5) * 0.1f;
    sp_status st = SP_OK;
    for (int64_t i = 0; i < d->layers * batch && st == SP_OK; i++)
        st = sp_decode_set_projection(sp_infer_decode(e), i / batch, i % batch, p);
    free(p);
    return st;
}

static sp_status prepare(const sp_decode_measurement *m, sp_infer *e) {
    const sp_model_desc *d = m->engine.model->desc;
    uint64_t state = 1;
    SP_TRY(sp_decode_randomise(sp_infer_decode(e), 7));
    if (m->engine.mode == SP_MODE_INFINIGEN) SP_TRY(some_projections(e, d, m->engine.batch));
    for (int64_t b = 0; b < m->engine.batch; b++) {
        int32_t token = (int32_t)(sp_splitmix64(&state) % (uint64_t)d->vocab);
        SP_TRY(sp_infer_start(e, b, m->context, token));
    }
    return sp_decode_synthetic(sp_infer_decode(e), m->miss, 11);
}

sp_status sp_measure_decode(const sp_decode_measurement *m, sp_decode_speed *out) {
    sp_infer_args a = m->engine;
    bool ahead = sp_infer_mode_ahead(a.mode);
    sp_infer *e = NULL;
    double *ms = NULL;
    sp_status st = SP_OK;
    *out = (sp_decode_speed){0};
    a.max_tokens = m->context + (ahead ? 2 : 1) * (m->warmup + m->steps) + 1 + (m->trace ? 2 : 0);
    if (m->home_bytes > 0 && sp_infer_mode_offloads(a.mode)) {
        sp_infer_memory needed;
        SP_TRY(sp_infer_predict(&a, &needed));
        int64_t away = a.model->desc->layers - !a.offload_layer0;
        double each = (double)needed.decode.home / (double)(away > 0 ? away : 1);
        a.home_layers = (int64_t)fmax(1, floor(m->home_bytes / each));
    }
    SP_GO(sp_alloc(&ms, m->steps > m->warmup ? m->steps : m->warmup, sizeof *ms, "times"));
    SP_GO(sp_infer_open(&a, &e));
    sp_infer_allocated(e, &out->memory);
    snprintf(out->transfer, sizeof out->transfer, "%s", sp_infer_transfer(e));
    SP_GO(prepare(m, e));
    SP_GO(timed(m, e, true, ms, out));
    if (m->trace) SP_GO(sp_infer_trace(e, m->trace));
    if (ahead) SP_GO(timed(m, e, false, ms, out));
    set_limits(m, out);
done:
    sp_infer_close(e);
    free(ms);
    return st;
}
