// See serve.h.
#include "common/build.h"

#if SPARDA_HAVE_CUDA
#include "common/hash.h"
#include "common/util.h"
#include "infer/infinigen.h"
#include "infer/prefill_engine.h"
#include "validate/serve.h"
#include "validate/stats.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

// ---- hand-over ----------------------------------------------------------------------------------

sp_status sp_engine_hand_over(const sp_engine *from, sp_infer *to, int64_t seq, int32_t next) {
    const sp_tensor none = {0};
    int64_t T = sp_engine_tokens(from), layers = sp_engine_model(from)->desc->layers;
    for (int64_t l = 0; l < layers; l++) {
        sp_tensor k = sp_engine_keys(from, l), v = sp_engine_values(from, l);
        sp_tensor c = sp_engine_compressed(from, l), cis = sp_engine_importance(from, l);
        SP_TRY(sp_infer_put(to, l, seq, 0, k, v, cis));
        if (c.rows > 0)
            SP_TRY(sp_copy(sp_tensor_rows(sp_infer_compressed(to, l, seq), 0, c.rows), c));
        SP_TRY(sp_infer_fill(to, l, seq, k, v, cis, T, none));
    }
    return sp_infer_start(to, seq, T, next);
}

// InfiniGen's bases of a sequence, from the queries of a dense prefill of its prompt.
typedef struct bases {
    sp_infer *e;
    const sp_model_desc *d;
    int64_t seq;
} bases;

static sp_status set_basis(void *user, const sp_engine_layer *layer) {
    bases *b = user;
    int64_t d = b->d->heads.head_dim, n = layer->n;
    float *q = NULL, *projection = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&q, n * layer->q.cols, sizeof *q, "queries"));
    SP_GO(sp_alloc(&projection, b->d->heads.kv_heads * d * SP_INFINIGEN_CHANNELS,
                   sizeof *projection, "projections"));
    SP_GO(sp_download(layer->q, q));
    SP_GO(sp_infinigen_projection(&b->d->heads, q, n, projection));
    SP_GO(sp_decode_set_projection(sp_infer_decode(b->e), layer->layer, b->seq, projection));
done:
    free(q);
    free(projection);
    return st;
}

static sp_status prefill_simply(const sp_serve_args *a, sp_infer *e, int64_t seq) {
    const sp_serve_prompt *p = &a->prompt[seq];
    const sp_model *m = a->engine.model;
    sp_engine *slow = NULL;
    float *logits = NULL;
    sp_status st = SP_OK;
    // The capacity is the fast engine's, so that both choose the same rotary factors.
    SP_GO(sp_engine_open(&(sp_engine_args){.model = m,
                                           .max_tokens = a->engine.max_tokens,
                                           .max_append = p->n,
                                           .allow_longer = a->engine.allow_longer},
                         &slow));
    bases b = {e, m->desc, seq};
    sp_engine_run r = {.selector = sp_infer_prefill_selector(a->engine.mode),
                       .forecast = a->engine.forecast};
    if (a->engine.mode == SP_MODE_INFINIGEN)
        r = (sp_engine_run){.selector = SP_SELECT_DENSE, .probe = set_basis, .user = &b};
    SP_GO(sp_engine_start(slow, &r));
    SP_GO(sp_engine_append(slow, p->tokens, p->n, 1));
    SP_GO(sp_alloc(&logits, m->desc->vocab, sizeof *logits, "logits"));
    SP_GO(sp_engine_logits(slow, 0, 1, logits));
    SP_GO(sp_engine_hand_over(slow, e, seq, (int32_t)sp_logits_look(logits, m->desc->vocab).best));
done:
    free(logits);
    sp_engine_close(slow);
    return st;
}

static sp_status prefill_all(const sp_serve_args *a, sp_infer *e) {
    const sp_infer_args *x = &a->engine;
    sp_prefiller *p = NULL;
    sp_status st = SP_OK;
    if (a->simple_prefill || x->mode == SP_MODE_INFINIGEN) {
        for (int64_t b = 0; b < x->batch; b++) SP_TRY(prefill_simply(a, e, b));
        return SP_OK;
    }
    sp_prefiller_args args = {.model = x->model,
                              .forecast = x->forecast,
                              .selector = sp_infer_prefill_selector(x->mode),
                              .max_tokens = x->max_tokens,
                              .allow_longer = x->allow_longer};
    for (int64_t b = 0; b < x->batch; b++)
        if (a->prompt[b].n > args.max_prompt) args.max_prompt = a->prompt[b].n;
    SP_TRY(sp_prefiller_open(&args, &p));
    for (int64_t b = 0; b < x->batch && st == SP_OK; b++)
        st = sp_infer_prefill(p, e, b, a->prompt[b].tokens, a->prompt[b].n, NULL);
    sp_prefiller_close(p);
    return st;
}

// ---- a run --------------------------------------------------------------------------------------

typedef struct serving {
    const sp_serve_args *a;
    sp_serve_run *out;
    sp_infer *e;
    float *logits;
    int32_t *lists, *maps;
    int64_t lists_n, maps_n, resident; // of one layer; layers without a map
} serving;

// What this process has allocated and not freed. (Its resident pages come and go for reasons of the
// allocator.)
static int64_t heap_bytes(void) {
    struct mallinfo2 m = mallinfo2();
    return (int64_t)(m.uordblks + m.hblkhd);
}

static sp_status hash_lists(serving *s, int64_t step) {
    int64_t L = s->out->layers;
    uint64_t *h;
    sp_status st = SP_OK;
    sp_decode *d = sp_infer_decode(s->e);
    SP_TRY(sp_alloc(&h, 2 * L, sizeof *h, "hashes"));
    if (s->a->engine.mode != SP_MODE_DENSE)
        for (int64_t l = 0; l < L; l++) {
            SP_GO(sp_decode_lists(d, l, s->lists, NULL));
            if (s->out->kept_lists)
                memcpy(s->out->kept_lists + (step * L + l) * s->lists_n, s->lists,
                       (size_t)s->lists_n * sizeof *s->lists);
            h[l] = sp_xxh3(s->lists, (size_t)s->lists_n * sizeof *s->lists);
            if (l < s->resident) continue;
            SP_GO(sp_decode_map(d, l, s->maps));
            h[L + l] = sp_xxh3(s->maps, (size_t)s->maps_n * sizeof *s->maps);
        }
    s->out->lists[step] = sp_xxh3(h, (size_t)L * sizeof *h);
    s->out->maps[step] = sp_xxh3(h + L, (size_t)L * sizeof *h);
done:
    free(h);
    return st;
}

static sp_status one_step(serving *s, int64_t step) {
    const sp_serve_args *a = s->a;
    int64_t B = s->out->batch, V = a->engine.model->desc->vocab;
    SP_TRY(sp_infer_step(s->e, a->forced ? a->forced + step * B : NULL));
    SP_TRY(sp_infer_logits(s->e, s->logits));
    s->out->logits[step] = sp_xxh3(s->logits, (size_t)(B * V) * sizeof *s->logits);
    if (s->out->kept)
        memcpy(s->out->kept + step * B * V, s->logits, (size_t)(B * V) * sizeof(float));
    SP_TRY(hash_lists(s, step));
    for (int64_t l = 0; a->check_copies && l < s->out->layers; l++) {
        int64_t checked, different;
        SP_TRY(sp_decode_check_copies(sp_infer_decode(s->e), l, &checked, &different));
        s->out->units_checked += checked;
        s->out->units_different += different;
    }
    return SP_OK;
}

// Every layer's compressed keys against sp_compress_keys over its keys, read back from their
// blocks.
static sp_status compare_compressed(serving *s) {
    const sp_model_desc *d = s->a->engine.model->desc;
    sp_backend *be = s->a->engine.model->backend;
    sp_grid grid = sp_deployed_grid(d);
    int64_t block = sp_model_selection(d, true).block, D = d->heads.head_dim;
    int64_t kv = d->heads.kv_heads, longest = s->a->engine.max_tokens;
    sp_tensor k = {0}, c = {0};
    float *unit = NULL, *rows = NULL, *got = NULL, *want = NULL;
    sp_status st = SP_OK;
    int64_t windows = sp_windows(grid, longest) > 0 ? sp_windows(grid, longest) : 1;
    SP_GO(sp_tensor_alloc(be, sp_backend_storage(be), longest, kv * D, "keys", &k));
    SP_GO(sp_tensor_alloc(be, sp_backend_storage(be), windows, kv * D, "compressed keys", &c));
    SP_GO(sp_alloc(&unit, 2 * block * D + block, sizeof *unit, "a unit"));
    SP_GO(sp_alloc(&rows, longest * kv * D, sizeof *rows, "keys"));
    SP_GO(sp_alloc(&got, windows * kv * D, sizeof *got, "compressed keys"));
    SP_GO(sp_alloc(&want, windows * kv * D, sizeof *want, "compressed keys"));
    s->out->unequal_compressed = 0;
    for (int64_t b = 0; b < s->out->batch; b++)
        for (int64_t l = 0; l < d->layers; l++) {
            int64_t T = sp_infer_tokens(s->e, b), n = sp_windows(grid, T);
            if (n == 0) continue;
            for (int64_t h = 0; h < kv; h++)
                for (int64_t t = 0; t < T; t++) {
                    if (t % block == 0)
                        SP_GO(
                            sp_decode_unit(sp_infer_decode(s->e), l, b * kv + h, t / block, unit));
                    memcpy(rows + (t * kv + h) * D, unit + t % block * D, (size_t)D * sizeof *unit);
                }
            SP_GO(sp_upload(sp_tensor_rows(k, 0, T), rows));
            SP_GO(sp_compress_keys(sp_tensor_rows(k, 0, T), grid, 0, sp_tensor_rows(c, 0, n)));
            SP_GO(sp_download(sp_tensor_rows(c, 0, n), want));
            SP_GO(sp_download(sp_tensor_rows(sp_infer_compressed(s->e, l, b), 0, n), got));
            for (int64_t i = 0; i < n * kv * D; i++)
                s->out->unequal_compressed += memcmp(&got[i], &want[i], sizeof *got) != 0;
        }
done:
    free(unit);
    free(rows);
    free(got);
    free(want);
    sp_tensor_free(&k);
    sp_tensor_free(&c);
    return st;
}

static sp_status prepare(serving *s) {
    const sp_serve_args *a = s->a;
    sp_serve_run *r = s->out;
    const sp_model_desc *d = a->engine.model->desc;
    sp_backend *be = a->engine.model->backend;
    int64_t before, after, k = sp_model_selection(d, true).topk, B = a->engine.batch;
    r->steps = a->steps;
    r->layers = d->layers;
    r->batch = B;
    r->unequal_compressed = -1;
    SP_TRY(sp_alloc(&r->logits, a->steps, sizeof *r->logits, "hashes"));
    SP_TRY(sp_alloc(&r->lists, a->steps, sizeof *r->lists, "hashes"));
    SP_TRY(sp_alloc(&r->maps, a->steps, sizeof *r->maps, "hashes"));
    SP_TRY(sp_alloc(&s->logits, B * d->vocab, sizeof *s->logits, "logits"));
    if (a->keep_logits)
        SP_TRY(sp_alloc(&r->kept, a->steps * B * d->vocab, sizeof *r->kept, "logits"));
    s->resident = !sp_infer_mode_offloads(a->engine.mode) ? d->layers : !a->engine.offload_layer0;
    s->lists_n = B * d->heads.kv_heads * k;
    s->maps_n = B * d->heads.kv_heads * (a->engine.slots ? a->engine.slots : k);
    SP_TRY(sp_alloc(&s->lists, s->lists_n, sizeof *s->lists, "lists"));
    if (a->keep_lists)
        SP_TRY(sp_alloc(&r->kept_lists, a->steps * d->layers * s->lists_n, sizeof *r->kept_lists,
                        "lists"));
    // Written once now, so that filling it later does not look like growth.
    if (r->kept_lists)
        memset(r->kept_lists, 0xff,
               (size_t)(a->steps * d->layers * s->lists_n) * sizeof *r->kept_lists);
    SP_TRY(sp_alloc(&s->maps, s->maps_n, sizeof *s->maps, "slot maps"));
    SP_TRY(sp_infer_predict(&a->engine, &r->predicted));
    SP_TRY(sp_decode_free_memory(be, &before));
    SP_TRY(sp_infer_open(&a->engine, &s->e));
    SP_TRY(sp_decode_free_memory(be, &after));
    r->measured_device = before - after;
    sp_infer_allocated(s->e, &r->allocated);
    return prefill_all(a, s->e);
}

static sp_status run(serving *s) {
    const sp_serve_args *a = s->a;
    sp_serve_run *r = s->out;
    const sp_model_desc *d = a->engine.model->desc;
    sp_backend *be = a->engine.model->backend;
    int64_t device = 0, host = 0, block = sp_model_selection(d, true).block, at;
    sp_grid grid = sp_deployed_grid(d);
    SP_TRY(prepare(s));
    for (int64_t b = 0; b < r->batch; b++) {
        int64_t T = sp_infer_tokens(s->e, b);
        r->rollovers += (T + a->steps) / block - T / block;
        r->compressed += sp_windows(grid, T + a->steps) - sp_windows(grid, T);
    }
    for (int64_t i = 0; i < a->steps; i++) {
        SP_TRY(one_step(s, i));
        if (i > a->steps / 4 && device) continue; // caches of libraries fill in the first quarter
        SP_TRY(sp_decode_free_memory(be, &device));
        host = heap_bytes();
    }
    SP_TRY(sp_decode_free_memory(be, &at));
    r->growth_device = device - at;
    r->growth_host = heap_bytes() - host;
    for (int64_t l = s->resident; l < r->layers; l++) {
        sp_decode_counters c;
        SP_TRY(sp_decode_count(sp_infer_decode(s->e), l, &c));
        r->wanted += c.wanted;
        r->missed += c.missed;
    }
    return s->resident == r->layers ? compare_compressed(s) : SP_OK;
}

sp_status sp_serve(const sp_serve_args *a, sp_serve_run *out) {
    *out = (sp_serve_run){0};
    serving s = {.a = a, .out = out};
    sp_status st = run(&s);
    sp_infer_close(s.e);
    free(s.logits);
    free(s.lists);
    free(s.maps);
    if (st == SP_OK) return SP_OK;
    sp_serve_free(out);
    return sp_error_trace_at(__FILE__, __LINE__, st, "run(&s)");
}

int64_t sp_serve_leak(const sp_serve_run *r) {
    int64_t host = r->growth_host >= r->steps * 3 / 4 * 32 ? r->growth_host : 0;
    return r->growth_device > host ? r->growth_device : host;
}

void sp_serve_free(sp_serve_run *r) {
    free(r->logits);
    free(r->lists);
    free(r->maps);
    free(r->kept);
    free(r->kept_lists);
    *r = (sp_serve_run){0};
}

int64_t sp_serve_first_difference(const sp_serve_run *a, const sp_serve_run *b, bool maps) {
    int64_t n = a->steps < b->steps ? a->steps : b->steps;
    for (int64_t i = 0; i < n; i++)
        if (a->logits[i] != b->logits[i] || a->lists[i] != b->lists[i] ||
            (maps && a->maps[i] != b->maps[i]))
            return i;
    return a->steps == b->steps ? -1 : n;
}
#endif
