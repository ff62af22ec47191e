// metrics.jsonl. See metrics.h.
#include "train/metrics.h"

#include "common/log.h"
#include "common/util.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sp_metrics {
    int fd;
    int64_t good_bytes; // length of the file up to its last whole line
    char *path;
    sp_text pending; // lines not yet on disk
};

static const char NORM_KEY[] = "train/grad_norm";

// ---- one line -----------------------------------------------------------------------------------

static json_t *real(double v, json_t *nonfinite, const char *name) {
    if (isfinite(v)) return json_real(v);
    json_array_append_new(nonfinite, json_string(name));
    return json_null();
}

static json_t *list(const double *v, int64_t n, json_t *nonfinite, const char *name) {
    json_t *a = json_array();
    for (int64_t i = 0; i < n; i++) {
        char *element = sp_format("%s[%lld]", name, (long long)i);
        json_array_append_new(a, real(v[i], nonfinite, element ? element : name));
        free(element);
    }
    return a;
}

sp_status sp_metrics_text(const sp_step_metrics *m, char **line) {
    json_t *o = json_object(), *bad = json_array();
    json_object_set_new(o, "step", json_integer(m->step));
    json_object_set_new(o, "train/kl", real(m->kl, bad, "train/kl"));
    json_object_set_new(o, "train/kl_layers",
                        list(m->kl_layers, m->layers, bad, "train/kl_layers"));
    json_object_set_new(o, NORM_KEY, real(m->grad_norm, bad, NORM_KEY));
    json_object_set_new(o, "train/lr", real(m->lr, bad, "train/lr"));
    json_object_set_new(o, "train/tokens", json_integer(m->tokens));
    json_object_set_new(o, "perf/step_ms", real(m->step_ms, bad, "perf/step_ms"));
    json_object_set_new(o, "perf/tokens_per_s", real(m->tokens_per_s, bad, "perf/tokens_per_s"));
    json_object_set_new(o, "perf/data_wait_ms", real(m->data_wait_ms, bad, "perf/data_wait_ms"));
    json_object_set_new(o, "perf/tflops", real(m->tflops, bad, "perf/tflops"));
    if (isfinite(m->gemm_share))
        json_object_set_new(o, "perf/gemm_share", json_real(m->gemm_share));
    json_object_set_new(o, "mem/peak_bytes", json_integer(m->peak_bytes));
    if (m->recall_layers)
        json_object_set_new(o, "eval/recall_layers",
                            list(m->recall_layers, m->layers, bad, "eval/recall_layers"));
    if (m->mass_layers)
        json_object_set_new(o, "eval/mass_layers",
                            list(m->mass_layers, m->layers, bad, "eval/mass_layers"));
    if (json_array_size(bad) > 0) json_object_set(o, "nonfinite", bad);
    *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(bad);
    json_decref(o);
    return *line ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory for a line of metrics");
}

// ---- the file -----------------------------------------------------------------------------------

static bool update_was_skipped(json_t *line) {
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(line, "nonfinite"), i, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), NORM_KEY) == 0) return true;
    }
    return false;
}

// Bytes at the start of `text` that hold whole lines of rising steps up to `done`.
static int64_t keep_lines(const char *path, const char *text, int64_t len, int64_t done,
                          int64_t *skipped) {
    int64_t kept = 0, last = 0, lines = 0;
    while (last < done) {
        const char *start = text + kept;
        const char *end = memchr(start, '\n', (size_t)(len - kept));
        json_error_t where;
        json_t *o = end ? json_loadb(start, (size_t)(end - start), 0, &where) : NULL;
        json_int_t step = o ? json_integer_value(json_object_get(o, "step")) : 0;
        bool good = step > last && step <= done;
        if (good) {
            *skipped = update_was_skipped(o) ? *skipped + 1 : 0;
            kept = end + 1 - text;
            last = step;
            lines++;
        }
        json_decref(o);
        if (!good) break;
    }
    if (lines < done)
        sp_warn("%s: the lines of %lld of the %lld steps done are missing", path,
                (long long)(done - lines), (long long)done);
    return kept;
}

sp_status sp_metrics_open(const char *path, int64_t done, sp_metrics **out, int64_t *skipped) {
    *out = NULL;
    int64_t in_a_row = 0, kept = 0;
    char *text = NULL;
    sp_metrics *w;
    SP_TRY(sp_alloc(&w, 1, sizeof *w, "the metrics writer"));
    w->fd = -1;
    sp_status st = SP_OK;
    if (!(w->path = sp_strdup(path))) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    if (done > 0) {
        int64_t len = 0;
        if (sp_path_is_file(path)) SP_GO(sp_read_file(path, INT64_MAX - 1, &text, &len));
        kept = keep_lines(path, text ? text : "", len, done, &in_a_row);
    }
    SP_GO(sp_open_own(path, O_WRONLY, &w->fd));
    if (ftruncate(w->fd, kept) != 0 || lseek(w->fd, kept, SEEK_SET) != kept)
        SP_GO(sp_error(SP_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno)));
    w->good_bytes = kept;
    if (skipped) *skipped = in_a_row;
    *out = w;
    w = NULL;
done:
    free(text);
    sp_metrics_close(w);
    return st;
}

static sp_status flush(sp_metrics *w) {
    size_t at = 0;
    while (at < w->pending.len) {
        ssize_t n = write(w->fd, w->pending.data + at, w->pending.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int e = errno;
            if (ftruncate(w->fd, w->good_bytes) == 0) lseek(w->fd, w->good_bytes, SEEK_SET);
            return sp_error(SP_ENVIRONMENT, "cannot write %s: %s", w->path, strerror(e));
        }
        at += (size_t)n;
    }
    w->good_bytes += (int64_t)w->pending.len;
    w->pending.len = 0;
    return SP_OK;
}

sp_status sp_metrics_add(sp_metrics *w, const sp_step_metrics *m) {
    char *line;
    SP_TRY(sp_metrics_text(m, &line));
    sp_text_add(&w->pending, "%s\n", line);
    free(line);
    if (w->pending.failed) return sp_error(SP_ENVIRONMENT, "out of memory for a line of metrics");
    return flush(w);
}

sp_status sp_metrics_sync(sp_metrics *w) {
    SP_TRY(flush(w));
    if (fsync(w->fd) != 0 && errno != EINVAL && errno != EROFS)
        return sp_error(SP_ENVIRONMENT, "cannot write %s to disk: %s", w->path, strerror(errno));
    return SP_OK;
}

void sp_metrics_close(sp_metrics *w) {
    if (!w) return;
    if (w->fd >= 0) {
        if (flush(w) != SP_OK) sp_warn("%s", sp_error_text());
        close(w->fd);
    }
    sp_text_free(&w->pending);
    free(w->path);
    free(w);
}
