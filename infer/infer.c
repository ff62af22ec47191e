// Opening an engine: modes, memory, hand-over. The step is in step.c.
#include "infer/private.h"

#include "common/log.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

// ---- modes --------------------------------------------------------------------------------------

typedef struct mode {
    const char *name;
    bool offloads, forecasts, original, ahead;
} mode;

static const mode modes[SP_MODES] = {
    [SP_MODE_DENSE] = {"dense", false, false, false, false},
    [SP_MODE_SPARSE_RESIDENT] = {"sparse-resident", false, false, true, false},
    [SP_MODE_SPARSE_OFFLOAD] = {"sparse-offload", true, false, true, false},
    [SP_MODE_FORECAST_RESIDENT] = {"forecast-resident", false, true, false, false},
    [SP_MODE_FORECAST_INLINE] = {"forecast-inline", true, true, false, false},
    [SP_MODE_SPARDA] = {"sparda", true, true, false, true},
    [SP_MODE_INFINIGEN] = {"infinigen", true, false, true, true},
};

const char *sp_infer_mode_name(sp_infer_mode m) {
    return (unsigned)m < SP_MODES ? modes[m].name : "unknown";
}

bool sp_infer_mode_offloads(sp_infer_mode m) {
    return modes[m].offloads;
}

bool sp_infer_mode_forecasts(sp_infer_mode m) {
    return modes[m].forecasts;
}

int64_t sp_infer_unit_bytes(const sp_model_desc *d) {
    return 4 * sp_model_selection(d, true).block * (d->heads.head_dim + (d->cis ? 1 : 0));
}

bool sp_infer_mode_ahead(sp_infer_mode m) {
    return modes[m].ahead;
}

// ---- memory -------------------------------------------------------------------------------------

static sp_decode_args decode_args(const sp_infer_args *a) {
    const sp_model_desc *d = a->model->desc;
    sp_selection s = sp_model_selection(d, true);
    return (sp_decode_args){
        .heads = d->heads,
        .grid = sp_deployed_grid(d),
        .selection = s,
        .shortlist = d->cis ? sp_model_shortlist(d, true).topk : 0,
        .layers = d->layers,
        .batch = a->batch,
        .max_tokens = a->max_tokens,
        .slots = a->slots ? a->slots : s.topk,
        .resident = !modes[a->mode].offloads ? d->layers
                    : a->offload_layer0      ? 0
                                             : 1,
        .home_layers = a->home_layers,
        .transfer = a->transfer == SP_TRANSFER_AUTO ? SP_TRANSFER_KERNEL : a->transfer,
        .ctas = a->ctas                               ? a->ctas
                : a->transfer == SP_TRANSFER_RESIDENT ? 4
                                                      : 16,
        .ahead = modes[a->mode].ahead,
        .original = modes[a->mode].original,
        .channels = a->mode == SP_MODE_INFINIGEN ? SP_INFINIGEN_CHANNELS : 0,
    };
}

enum { TENSORS = 13 };

typedef struct part {
    sp_tensor *tensor;
    sp_dtype dtype;
    int64_t rows, cols;
    const char *what;
} part;

// One list for allocating, freeing and predicting.
static void parts(const sp_infer_args *a, sp_infer *e, part out[TENSORS]) {
    const sp_model_desc *d = a->model->desc;
    sp_dtype t = sp_backend_storage(a->model->backend);
    int64_t q = d->heads.q_heads * d->heads.head_dim, kv = d->heads.kv_heads * d->heads.head_dim;
    int64_t B = a->batch, f = modes[a->mode].forecasts ? kv : 0;
    bool partial = a->mode == SP_MODE_INFINIGEN;
    const part list[TENSORS] = {
        {&e->h, t, B, d->hidden, "residual stream"},
        {&e->x, t, B, d->hidden, "layer input"},
        {&e->qkvf[0], t, B, q + 2 * kv + f, "queries, keys, values, Forecasts"},
        {&e->qkvf[1], t, B, q + 2 * kv + f, "queries, keys, values, Forecasts"},
        {&e->cis, SP_F32, d->cis ? d->heads.kv_heads : 0, B, "importance of the keys"},
        {&e->f0, t, f ? B : 0, kv, "Forecast of layer 0"},
        {&e->next_q, t, partial ? B : 0, q, "queries of the next layer"},
        {&e->projected, t, partial ? B : 0, d->heads.kv_heads * SP_INFINIGEN_CHANNELS,
         "projected queries"},
        {&e->attn, t, B, q, "attention output"},
        {&e->branch, t, B, d->hidden, "branch output"},
        {&e->gate_up, t, B, 2 * d->ffn, "gate and up projections"},
        {&e->act, t, B, d->ffn, "MLP activation"},
        {&e->logits, SP_F32, B, d->vocab, "logits"},
    };
    memcpy(out, list, sizeof list);
}

static void sizes(const sp_infer_args *a, sp_infer_memory *m) {
    sp_decode_args da = decode_args(a);
    sp_decode_predict(&da, &m->decode);
    sp_infer unused = {0};
    part list[TENSORS];
    parts(a, &unused, list);
    m->workspace = 2 * a->max_tokens * (a->model->desc->heads.head_dim / 2) * 4; // rotary table
    for (int i = 0; i < TENSORS; i++)
        m->workspace += list[i].rows * list[i].cols * sp_dtype_size(list[i].dtype);
    m->device = sp_decode_device_bytes(&m->decode) + m->workspace;
    m->host = m->decode.home;
    m->weights = a->model->desc->weight_bytes;
}

typedef struct room {
    int64_t device, host;
} room;

static bool fits(const sp_infer_args *a, int64_t batch, room r) {
    sp_infer_args b = *a;
    sp_infer_memory m;
    b.batch = batch;
    sizes(&b, &m);
    return m.device <= r.device && m.host <= r.host;
}

static int64_t largest_batch(const sp_infer_args *a, room r) {
    int64_t high = 1;
    while (high < 1 << 16 && fits(a, high, r)) high *= 2;
    for (int64_t low = high / 2; high - low > 1;) { // `low` fits (or is 0), `high` does not
        int64_t middle = (low + high) / 2;
        if (fits(a, middle, r))
            low = middle;
        else
            high = middle;
    }
    return high - 1;
}

sp_status sp_infer_predict(const sp_infer_args *a, sp_infer_memory *out) {
    enum { KEEP = 512 << 20 }; // of device memory, for the driver, graphs and libraries
    *out = (sp_infer_memory){0};
    sizes(a, out);
    SP_TRY(sp_decode_free_memory(a->model->backend, &out->device_free));
    out->device_free = out->device_free > KEEP ? out->device_free - KEEP : 0;
    out->host_free = a->host_bytes ? a->host_bytes : sp_host_available();
    const room r = {out->device_free, out->host_free};
    out->fits = fits(a, a->batch, r);
    out->max_batch = largest_batch(a, r);
    out->max_batch_device = largest_batch(a, (room){r.device, INT64_MAX});
    out->max_batch_host = largest_batch(a, (room){INT64_MAX, r.host});
    return SP_OK;
}

static sp_status check_memory(const sp_infer_args *a) {
    sp_infer_memory m;
    SP_TRY(sp_infer_predict(a, &m));
    if (m.fits) return SP_OK;
    return sp_error(
        SP_ENVIRONMENT,
        "mode %s with %lld sequences of %lld tokens needs %.2f GiB of device memory (%.2f free) "
        "and %.2f GiB of pinned host memory (%.2f free); the largest batch that fits is %lld",
        sp_infer_mode_name(a->mode), (long long)a->batch, (long long)a->max_tokens,
        (double)m.device / 0x1p30, (double)m.device_free / 0x1p30, (double)m.host / 0x1p30,
        (double)m.host_free / 0x1p30, (long long)m.max_batch);
}

void sp_infer_allocated(const sp_infer *e, sp_infer_memory *out) {
    *out = (sp_infer_memory){.fits = true, .max_batch = e->a.batch};
    sp_decode_allocated(e->d, &out->decode);
    part list[TENSORS];
    parts(&e->a, (sp_infer *)e, list);
    for (int i = 0; i < TENSORS; i++)
        if (list[i].tensor->data)
            out->workspace +=
                list[i].tensor->rows * list[i].tensor->cols * sp_dtype_size(list[i].tensor->dtype);
    out->workspace +=
        (e->rope.cos.rows * e->rope.cos.cols + e->rope.sin.rows * e->rope.sin.cols) * 4;
    out->device = sp_decode_device_bytes(&out->decode) + out->workspace;
    out->host = out->decode.home;
    out->weights = e->m->desc->weight_bytes;
}

// ---- opening ------------------------------------------------------------------------------------

static sp_status check(const sp_infer_args *a) {
    const sp_model_desc *d = a->model->desc;
    int64_t k = sp_model_selection(d, true).topk;
    if ((unsigned)a->mode >= SP_MODES || a->batch < 1 || a->max_tokens < 1)
        return sp_error(SP_BAD_INPUT, "an engine of %lld sequences of %lld tokens is not possible",
                        (long long)a->batch, (long long)a->max_tokens);
    if (a->slots && a->slots < k)
        return sp_error(SP_BAD_INPUT,
                        "%lld slots cannot hold lists of %lld blocks; use at least %lld",
                        (long long)a->slots, (long long)k, (long long)k);
    if (modes[a->mode].forecasts && (!a->forecast || a->forecast->layers != d->layers))
        return sp_error(SP_ENVIRONMENT,
                        "mode %s without Forecast weights of a model with %lld layers",
                        sp_infer_mode_name(a->mode), (long long)d->layers);
    if (modes[a->mode].ahead && a->no_graph &&
        (a->transfer == SP_TRANSFER_RESIDENT || a->transfer == SP_TRANSFER_AUTO))
        return sp_error(SP_BAD_INPUT, "transfer '%s' needs a captured step; choose another",
                        sp_transfer_name(a->transfer));
    if (strcmp(sp_backend_name(a->model->backend), "cuda") != 0)
        return sp_error(SP_ENVIRONMENT, "this engine needs the CUDA backend; the model is on '%s'",
                        sp_backend_name(a->model->backend));
    return SP_OK;
}

// What copies, and with how many thread blocks: as asked, or by measurement on lists as long as a
// fifth of the batch's lists.
static sp_status choose_transfer(sp_infer *e, sp_decode_args *da) {
    if (!modes[e->a.mode].offloads) {
        e->transfer = sp_strdup("none: everything is in device memory");
    } else if (e->a.transfer == SP_TRANSFER_AUTO) {
        int64_t unit = 4 * da->selection.block * (da->heads.head_dim + (da->shortlist ? 1 : 0));
        int64_t units = da->batch * da->heads.kv_heads * da->selection.topk / 5;
        SP_TRY(
            sp_transfer_choose(e->m->backend, unit, units, &da->transfer, &da->ctas, &e->transfer));
        if (e->a.ctas) da->ctas = e->a.ctas;
    } else {
        e->transfer = sp_format("%s with %lld thread blocks", sp_transfer_name(da->transfer),
                                (long long)da->ctas);
    }
    return e->transfer ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
}

static sp_status allocate(sp_infer *e) {
    sp_decode_args da = decode_args(&e->a);
    sp_backend *be = e->m->backend;
    SP_TRY(choose_transfer(e, &da));
    SP_TRY(sp_decode_open(be, &da, &e->d));
    SP_TRY(sp_rope_table_make(be, e->m->desc, e->a.max_tokens, e->a.allow_longer, &e->rope));
    part list[TENSORS];
    parts(&e->a, e, list);
    for (int i = 0; i < TENSORS; i++)
        if (list[i].rows > 0)
            SP_TRY(sp_tensor_alloc(be, list[i].dtype, list[i].rows, list[i].cols, list[i].what,
                                   list[i].tensor));
    return sp_alloc(&e->tokens, e->a.batch, sizeof *e->tokens, "sequence lengths");
}

sp_status sp_infer_open(const sp_infer_args *a, sp_infer **out) {
    *out = NULL;
    SP_TRY(check(a));
    SP_TRY(check_memory(a));
    sp_infer *e;
    SP_TRY(sp_alloc(&e, 1, sizeof *e, "engine"));
    e->a = *a;
    e->m = a->model;
    if (e->a.transfer != SP_TRANSFER_AUTO && !sp_transfer_captures(e->a.transfer))
        e->a.no_graph = true; // the host takes part in every layer
    sp_status st = allocate(e);
    if (st != SP_OK) {
        sp_infer_close(e);
        return sp_error_trace_at(__FILE__, __LINE__, st, "allocate(e)");
    }
    *out = e;
    return SP_OK;
}

void sp_infer_close(sp_infer *e) {
    if (!e) return;
    part list[TENSORS];
    parts(&e->a, e, list);
    if (e->d) sp_backend_synchronize(e->m->backend);
    for (int i = 0; i < TENSORS; i++) sp_tensor_free(list[i].tensor);
    sp_rope_table_free(&e->rope);
    sp_decode_close(e->d);
    free(e->tokens);
    free(e->transfer);
    free(e);
}

const char *sp_infer_transfer(const sp_infer *e) {
    return e->transfer;
}

sp_decode *sp_infer_decode(sp_infer *e) {
    return e->d;
}

// ---- hand-over ----------------------------------------------------------------------------------

static sp_status check_place(const sp_infer *e, int64_t layer, int64_t seq) {
    if (layer >= 0 && layer < e->m->desc->layers && seq >= 0 && seq < e->a.batch) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "layer %lld of sequence %lld; the engine has %lld and %lld",
                    (long long)layer, (long long)seq, (long long)e->m->desc->layers,
                    (long long)e->a.batch);
}

sp_status sp_infer_put(sp_infer *e, int64_t layer, int64_t seq, int64_t pos0, sp_tensor k,
                       sp_tensor v, sp_tensor cis) {
    SP_TRY(check_place(e, layer, seq));
    return sp_decode_put(e->d, layer, seq, pos0, k, v, cis);
}

sp_tensor sp_infer_compressed(sp_infer *e, int64_t layer, int64_t seq) {
    return sp_decode_compressed(e->d, layer, seq);
}

sp_status sp_infer_fill(sp_infer *e, int64_t layer, int64_t seq, sp_tensor k, sp_tensor v,
                        sp_tensor cis, int64_t tokens, sp_tensor list) {
    SP_TRY(check_place(e, layer, seq));
    return sp_decode_fill(e->d, layer, seq, k, v, cis, tokens, list);
}

sp_status sp_infer_start(sp_infer *e, int64_t seq, int64_t T, int32_t next) {
    SP_TRY(check_place(e, 0, seq));
    if (T < 0 || T >= e->a.max_tokens)
        return sp_error(SP_BAD_INPUT,
                        "a sequence of %lld tokens leaves no room in an engine for %lld",
                        (long long)T, (long long)e->a.max_tokens);
    if (next < 0 || next >= e->m->desc->vocab)
        return sp_error(SP_BAD_INPUT, "token %d is outside the vocabulary of %lld", next,
                        (long long)e->m->desc->vocab);
    SP_TRY(sp_decode_set(e->d, seq, T, next));
    e->tokens[seq] = T;
    return SP_OK;
}

int64_t sp_infer_tokens(const sp_infer *e, int64_t seq) {
    return e->tokens[seq];
}
