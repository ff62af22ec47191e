// Weights: from mapped files to a backend, checked and hashed on the way.
//
// Host threads take the tensors in file order, hash them and look for NaN and infinity, which
// brings their pages into memory; one thread uploads them in the same order as they become ready.
// So a model of any size is read from disk once, and at most AHEAD_BYTES of it are mapped in at a
// time.
#include "model/private.h"

#include "common/log.h"
#include "common/util.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const int64_t AHEAD_BYTES = (int64_t)8 << 30;

typedef struct job {
    const sp_st_tensor *t;
    sp_tensor dst; // where the values go
    char sha256[SP_SHA256_HEX];
    int64_t first_bad; // index of the first NaN or infinity, -1 if none
    double bad_value;
    bool failed;          // the hash could not be computed
    int64_t bytes_before; // of the jobs in front of it
    atomic_bool inspected;
} job;

// ---- checking -----------------------------------------------------------------------------------

// Unaligned sources: memcpy is what the compiler turns into plain loads.
static float value_at(const sp_st_tensor *t, int64_t i) {
    uint16_t half;
    float f;
    if (t->dtype == SP_ST_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    memcpy(&half, t->data + 2 * i, 2);
    return t->dtype == SP_ST_BF16 ? sp_bf16_to_f32(half) : sp_f16_to_f32(half);
}

// True if an element of data[0..n) has all exponent bits set, or is too large for the storage type.
// Maxima of integers, which compilers turn into vector code.
static bool has_nonfinite(const sp_st_tensor *t, int64_t begin, int64_t n, int32_t f32_limit) {
    if (t->dtype == SP_ST_F32) {
        int32_t worst = 0;
        for (int64_t i = begin; i < begin + n; i++) {
            int32_t v;
            memcpy(&v, t->data + 4 * i, 4);
            v &= 0x7fffffff;
            worst = v > worst ? v : worst;
        }
        return worst >= f32_limit;
    }
    int16_t exponent = t->dtype == SP_ST_BF16 ? 0x7f80 : 0x7c00, worst = 0;
    for (int64_t i = begin; i < begin + n; i++) {
        int16_t v;
        memcpy(&v, t->data + 2 * i, 2);
        v &= exponent;
        worst = v > worst ? v : worst;
    }
    return worst == exponent;
}

static void inspect(job *j, sp_dtype storage) {
    enum { STRIP = 16384 }; // elements looked at and hashed while they are in a cache
    // The smallest magnitude that bf16 rounds to infinity; fp32 stores all but infinity itself.
    int32_t limit = storage == SP_BF16 ? 0x7f7f8000 : 0x7f800000;
    int64_t size = j->t->dtype == SP_ST_F32 ? 4 : 2;
    sp_sha256 *hash;
    j->first_bad = -1;
    j->failed = sp_sha256_new(&hash) != SP_OK;
    if (j->failed) return;
    for (int64_t i = 0; i < j->t->elements; i += STRIP) {
        int64_t n = j->t->elements - i < STRIP ? j->t->elements - i : STRIP;
        sp_sha256_add(hash, j->t->data + size * i, (size_t)(size * n));
        if (j->first_bad >= 0 || !has_nonfinite(j->t, i, n, limit)) continue;
        for (int64_t k = i; k < i + n && j->first_bad < 0; k++)
            if (has_nonfinite(j->t, k, 1, limit)) j->first_bad = k;
        j->bad_value = value_at(j->t, j->first_bad);
    }
    sp_sha256_end(hash, j->sha256);
}

// ---- identity -----------------------------------------------------------------------------------

static int by_tensor_name(const void *a, const void *b) {
    return strcmp(((const job *)a)->t->name, ((const job *)b)->t->name);
}

// Sorts the jobs by name.
static sp_status identity(job *jobs, int64_t n, char hex[SP_SHA256_HEX]) {
    sp_text lines = {0};
    qsort(jobs, (size_t)n, sizeof *jobs, by_tensor_name);
    for (int64_t i = 0; i < n; i++) {
        char *shape = sp_st_shape_text(jobs[i].t->dims, jobs[i].t->shape);
        sp_text_add(&lines, "%s %s %s %s\n", jobs[i].t->name, sp_st_dtype_name(jobs[i].t->dtype),
                    shape ? shape : "", jobs[i].sha256);
        lines.failed |= !shape;
        free(shape);
    }
    sp_status st = lines.failed ? sp_error(SP_ENVIRONMENT, "out of memory")
                                : sp_sha256_of(lines.data, lines.len, hex);
    sp_text_free(&lines);
    return st;
}

// ---- loading ------------------------------------------------------------------------------------

static sp_dtype backend_dtype(sp_st_dtype t) {
    return t == SP_ST_BF16 ? SP_BF16 : t == SP_ST_F16 ? SP_F16 : SP_F32;
}

static sp_status alloc_weights(sp_model *m) {
    const sp_model_desc *d = m->desc;
    sp_dtype t = sp_backend_storage(m->backend);
    int64_t D = d->hidden, F = d->ffn, hd = d->heads.head_dim;
    int64_t Q = d->heads.q_heads * hd, KV = d->heads.kv_heads * hd;
    SP_TRY(sp_tensor_alloc(m->backend, t, d->vocab, D, "the embedding", &m->embed));
    SP_TRY(sp_tensor_alloc(m->backend, t, 1, D, "the final norm", &m->final_norm));
    if (d->tied_head)
        m->head = m->embed;
    else
        SP_TRY(sp_tensor_alloc(m->backend, t, d->vocab, D, "the output matrix", &m->head));
    for (int64_t l = 0; l < d->layers; l++) {
        sp_layer_weights *w = &m->layer[l];
        SP_TRY(sp_tensor_alloc(m->backend, t, 1, D, "a norm", &w->attn_norm));
        SP_TRY(sp_tensor_alloc(m->backend, t, 1, D, "a norm", &w->mlp_norm));
        SP_TRY(sp_tensor_alloc(m->backend, t, Q + 2 * KV, D, "a qkv matrix", &w->qkv));
        SP_TRY(sp_tensor_alloc(m->backend, t, D, Q, "an output projection", &w->o));
        SP_TRY(sp_tensor_alloc(m->backend, t, 2 * F, D, "a gate and up matrix", &w->gate_up));
        SP_TRY(sp_tensor_alloc(m->backend, t, D, F, "a down matrix", &w->down));
        if (!d->cis) continue;
        int64_t H = d->heads.kv_heads;
        SP_TRY(sp_tensor_alloc(m->backend, SP_F32, 1, H, "scales of importance", &w->cis_scale));
        SP_TRY(sp_tensor_alloc(m->backend, t, H, KV, "weights of importance", &w->cis_delta));
    }
    return SP_OK;
}

// Where the rows of a stored tensor stand in the model.
static sp_tensor place_of(const sp_model *m, sp_part part, int64_t l) {
    const sp_model_desc *d = m->desc;
    int64_t Q = d->heads.q_heads * d->heads.head_dim, KV = d->heads.kv_heads * d->heads.head_dim;
    const sp_layer_weights *w = &m->layer[l];
    switch (part) {
    case SP_PART_EMBED:
        return m->embed;
    case SP_PART_FINAL_NORM:
        return m->final_norm;
    case SP_PART_HEAD:
        return m->head;
    case SP_PART_ATTN_NORM:
        return w->attn_norm;
    case SP_PART_Q:
        return sp_tensor_rows(w->qkv, 0, Q);
    case SP_PART_K:
        return sp_tensor_rows(w->qkv, Q, KV);
    case SP_PART_V:
        return sp_tensor_rows(w->qkv, Q + KV, KV);
    case SP_PART_O:
        return w->o;
    case SP_PART_MLP_NORM:
        return w->mlp_norm;
    case SP_PART_GATE:
        return sp_tensor_rows(w->gate_up, 0, d->ffn);
    case SP_PART_UP:
        return sp_tensor_rows(w->gate_up, d->ffn, d->ffn);
    case SP_PART_DOWN:
        return w->down;
    case SP_PART_CIS_SCALE:
        return w->cis_scale;
    case SP_PART_CIS_DELTA:
        return w->cis_delta;
    case SP_N_PARTS:
        break;
    }
    return (sp_tensor){0};
}

// Every used tensor in file order, so that a disk is read forwards. `m` NULL: no destinations.
static int by_position(const void *a, const void *b) {
    const sp_st_tensor *x = ((const job *)a)->t, *y = ((const job *)b)->t;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->data < y->data ? -1 : x->data > y->data;
}

static sp_status make_jobs(const sp_model_desc *d, const sp_model *m, const sp_st *st, job **out,
                           int64_t *n) {
    *n = 0;
    SP_TRY(sp_alloc(out, d->layers * SP_N_PARTS + SP_N_PARTS, sizeof **out, "the tensor list"));
    for (sp_part part = 0; part < SP_N_PARTS; part++) {
        if (!sp_has_part(d, part)) continue;
        for (int64_t l = 0; l < (part < SP_FIRST_LAYER_PART ? 1 : d->layers); l++) {
            job *j = &(*out)[(*n)++];
            SP_TRY(sp_weight_find(d, st, part, l, &j->t));
            if (m) j->dst = place_of(m, part, l);
        }
    }
    qsort(*out, (size_t)*n, sizeof **out, by_position);
    return SP_OK;
}

// Gives the pages of a tensor back, so that the process never seems to hold the whole model; they
// stay in the page cache while there is room.
static void forget(const sp_st_tensor *t) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint8_t *data = (uint8_t *)t->data, *end = data + t->bytes;
    data += (page - (uintptr_t)data % page) % page;
    end -= (uintptr_t)end % page;
    if (data < end) madvise(data, (size_t)(end - data), MADV_DONTNEED);
}

typedef struct queue {
    job *jobs;
    int64_t n;
    sp_dtype storage;
    atomic_llong next;     // first job that nobody has taken
    atomic_llong finished; // bytes of the jobs that are uploaded
    atomic_bool stop;
} queue;

static void nap(void) {
    nanosleep(&(struct timespec){0, 100000}, NULL);
}

// Inspects the next job that nobody has taken; false if there is none.
static bool inspect_next(queue *q) {
    int64_t i = atomic_fetch_add(&q->next, 1);
    if (i >= q->n) return false;
    while (q->jobs[i].bytes_before > atomic_load(&q->finished) + AHEAD_BYTES &&
           !atomic_load(&q->stop))
        nap();
    if (!atomic_load(&q->stop)) inspect(&q->jobs[i], q->storage);
    atomic_store(&q->jobs[i].inspected, true);
    return true;
}

// One thread: uploads the jobs in order (with a model), inspecting where nobody else does.
static sp_status finish_jobs(queue *q, const sp_model_desc *d, const sp_model *m,
                             const sp_model_load_options *o) {
    sp_problems p = {0};
    sp_status st = SP_OK;
    double start = sp_now(), shown = start;
    for (int64_t i = 0; i < q->n; i++) {
        const job *j = &q->jobs[i];
        while (!atomic_load(&j->inspected))
            if (i < atomic_load(&q->next) || !inspect_next(q)) nap();
        if (j->failed) {
            st = sp_error(SP_ENVIRONMENT, "SHA-256 of tensor %s failed", j->t->name);
            goto done;
        }
        if (j->first_bad >= 0 && !o->allow_nonfinite)
            sp_problems_add(&p, "tensor %s: element %lld is %g", j->t->name,
                            (long long)j->first_bad, j->bad_value);
        if (m && p.count == 0) SP_GO(sp_upload_raw(j->dst, backend_dtype(j->t->dtype), j->t->data));
        forget(j->t);
        int64_t bytes = j->bytes_before + j->t->bytes;
        atomic_store(&q->finished, bytes);
        double now = sp_now();
        if (!o->progress || (now - shown < 0.2 && i + 1 < q->n)) continue;
        shown = now;
        sp_progress("loading %s: %.0f of %.0f MB, %.0f MB/s", d->name, (double)bytes * 1e-6,
                    (double)d->weight_bytes * 1e-6, (double)bytes * 1e-6 / (now - start + 1e-9));
    }
done:
    atomic_store(&q->stop, true);
    if (o->progress) {
        double seconds = sp_now() - start;
        sp_progress("%s", "");
        if (st == SP_OK && p.count == 0)
            sp_info("loaded      %s: %.0f MB in %.2f s, %.0f MB/s", d->name,
                    (double)d->weight_bytes * 1e-6, seconds,
                    (double)d->weight_bytes * 1e-6 / (seconds + 1e-9));
    }
    sp_status listed = sp_problems_end(
        &p, SP_BAD_INPUT, "the weights of %s are not finite numbers%s; get the files again", d->dir,
        q->storage == SP_BF16 ? " of bf16" : "");
    return st == SP_OK ? listed : st;
}

static sp_status run_jobs(const sp_model_desc *d, job *jobs, int64_t n, const sp_model *m,
                          const sp_model_load_options *o) {
    queue q = {.jobs = jobs, .n = n, .storage = m ? sp_backend_storage(m->backend) : SP_F32};
    for (int64_t i = 1; i < n; i++)
        jobs[i].bytes_before = jobs[i - 1].bytes_before + jobs[i - 1].t->bytes;
    sp_status st = SP_OK;
#pragma omp parallel
    {
#pragma omp master
        st = finish_jobs(&q, d, m, o);
        while (inspect_next(&q)) {
        }
    }
    return st;
}

sp_status sp_model_load(sp_backend *be, const sp_model_desc *d, const sp_model_load_options *o,
                        sp_model **out) {
    static const sp_model_load_options defaults = {0};
    sp_model *m = NULL;
    sp_st *files = NULL;
    job *jobs = NULL;
    int64_t n;
    sp_status st = SP_OK;
    *out = NULL;
    SP_GO(sp_st_open(d->dir, &files));
    SP_GO(sp_alloc(&m, 1, sizeof *m, "a model"));
    m->desc = d;
    m->backend = be;
    SP_GO(sp_alloc(&m->layer, d->layers, sizeof *m->layer, "the layers"));
    SP_GO(alloc_weights(m));
    SP_GO(make_jobs(d, m, files, &jobs, &n));
    SP_GO(run_jobs(d, jobs, n, m, o ? o : &defaults));
    SP_GO(identity(jobs, n, m->weights_sha256));
    *out = m;
done:
    free(jobs);
    sp_st_close(files);
    if (st != SP_OK) sp_model_free(m);
    return st;
}

void sp_model_free(sp_model *m) {
    if (!m) return;
    if (!m->desc->tied_head) sp_tensor_free(&m->head);
    sp_tensor_free(&m->embed);
    sp_tensor_free(&m->final_norm);
    for (int64_t l = 0; m->layer && l < m->desc->layers; l++) {
        sp_layer_weights *w = &m->layer[l];
        sp_tensor_free(&w->attn_norm);
        sp_tensor_free(&w->mlp_norm);
        sp_tensor_free(&w->qkv);
        sp_tensor_free(&w->o);
        sp_tensor_free(&w->gate_up);
        sp_tensor_free(&w->down);
        sp_tensor_free(&w->cis_scale);
        sp_tensor_free(&w->cis_delta);
    }
    free(m->layer);
    free(m);
}

sp_status sp_model_weights_sha256(const sp_model_desc *d, char hex[SP_SHA256_HEX]) {
    const sp_model_load_options any = {.allow_nonfinite = true};
    sp_st *files = NULL;
    job *jobs = NULL;
    int64_t n;
    sp_status st = SP_OK;
    SP_GO(sp_st_open(d->dir, &files));
    SP_GO(make_jobs(d, NULL, files, &jobs, &n));
    SP_GO(run_jobs(d, jobs, n, NULL, &any));
    SP_GO(identity(jobs, n, hex));
done:
    free(jobs);
    sp_st_close(files);
    return st;
}
