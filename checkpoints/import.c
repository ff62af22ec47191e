// Forecast weights of other people's files, and of our own (inference.md 6.1, 6.2): safetensors,
// torch .pt, HDF5 state, or a folder that holds one of them.
//
// Each format is turned into one list of named tensors; names and shapes are then judged in one
// place, with all findings in one error, before anything is read into the caller's arrays.
#include "checkpoints/internal.h"
#include "checkpoints/pt.h"
#include "common/json.h"
#include "common/util.h"
#include "model/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    char *name;
    int64_t scored; // index into sp_forecast, -1: no well-formed name
    int dims;
    const int64_t *shape;
    const char *type;
    bool is_float;
    const void *tensor; // sp_st_tensor or sp_pt_tensor
} candidate;

// An opened file and its Forecast-like tensors.
typedef struct source {
    const char *path;
    sp_st *st;
    sp_pt *pt;
    sp_train_state *state;
    candidate *list;
    int64_t n, cap;
} source;

// Any prefix in front of "layers." is accepted, as the public loaders do.
static int64_t scored_layer(const char *name) {
    const char *tail = name;
    for (const char *p = name; (p = strstr(p, "layers.")); p++)
        if (p == name || p[-1] == '.') tail = p;
    return sp_forecast_index(tail);
}

static sp_status add_candidate(source *s, const char *name, int64_t len, const candidate *c) {
    if (!sp_forecast_like(name, len)) return SP_OK;
    if (s->n == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 64;
        candidate *grown = realloc(s->list, (size_t)cap * sizeof *grown);
        if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory");
        s->list = grown;
        s->cap = cap;
    }
    candidate *to = &s->list[s->n];
    *to = *c;
    if (!(to->name = strndup(name, (size_t)len))) return sp_error(SP_ENVIRONMENT, "out of memory");
    to->scored = scored_layer(to->name);
    s->n++;
    return SP_OK;
}

static void close_source(source *s) {
    sp_st_close(s->st);
    sp_pt_close(s->pt);
    if (s->state) sp_train_state_free(s->state);
    free(s->state);
    for (int64_t i = 0; i < s->n; i++) free(s->list[i].name);
    free(s->list);
}

// ---- formats ------------------------------------------------------------------------------------

static json_t *json_of_text(const char *text, const char *origin) {
    json_t *v = NULL;
    if (text && sp_json_parse(text, (int64_t)strlen(text), origin, &v) != SP_OK) sp_error_clear();
    return v;
}

static sp_status open_safetensors(source *s, sp_imported *info) {
    SP_TRY(sp_st_open(s->path, &s->st));
    for (int64_t i = 0; i < s->st->n; i++) {
        const sp_st_tensor *t = &s->st->tensor[i];
        bool is_float = t->dtype == SP_ST_F16 || t->dtype == SP_ST_BF16 || t->dtype == SP_ST_F32 ||
                        t->dtype == SP_ST_F64;
        candidate c = {.dims = t->dims,
                       .shape = t->shape,
                       .type = sp_st_dtype_name(t->dtype),
                       .is_float = is_float,
                       .tensor = t};
        SP_TRY(add_candidate(s, t->name, (int64_t)strlen(t->name), &c));
    }
    info->format = sp_strdup("safetensors");
    const json_t *m = s->st->metadata;
    const char *step = json_string_value(json_object_get(m, "sparda.step"));
    if (step) {
        char *end;
        long long v = strtoll(step, &end, 10);
        if (end != step && !*end && v >= 0) info->step = v;
    }
    info->base_model = sp_strdup(json_string_value(json_object_get(m, "sparda.base_model")));
    info->sparse_config =
        json_of_text(json_string_value(json_object_get(m, "sparda.sparse_config")), s->path);
    return SP_OK;
}

static sp_status open_pt(source *s, sp_imported *info) {
    const sp_pt_value *dict;
    SP_TRY(sp_pt_open(s->path, &s->pt));
    SP_TRY(sp_pt_weights(s->pt, &dict));
    for (int64_t i = 0; i + 1 < dict->u.list.n; i += 2) {
        const sp_pt_value *k = dict->u.list.item[i], *v = dict->u.list.item[i + 1];
        if (k->kind != SP_PT_TEXT) continue;
        candidate c = {.type = "not a tensor"};
        if (v->kind == SP_PT_TENSOR) {
            const sp_pt_tensor *t = v->u.tensor;
            c = (candidate){.dims = t->dims,
                            .shape = t->shape,
                            .type = sp_pt_dtype_name(t->storage.dtype),
                            .is_float = t->storage.dtype <= SP_PT_F64,
                            .tensor = t};
        }
        SP_TRY(add_candidate(s, k->u.text.data, k->u.text.n, &c));
    }
    info->format = sp_strdup("pt");
    const sp_pt_value *sparse = sp_pt_get(s->pt->root, "sparse_config"),
                      *base = sp_pt_get(s->pt->root, "base_model_path");
    if (!sp_pt_read_int(s->pt, sp_pt_get(s->pt->root, "step"), &info->step)) info->step = -1;
    if (sparse) info->sparse_config = sp_pt_to_json(sparse);
    if (base && base->kind == SP_PT_TEXT)
        info->base_model = strndup(base->u.text.data, (size_t)base->u.text.n);
    return SP_OK;
}

static sp_status open_state(source *s, sp_imported *info) {
    SP_TRY(sp_alloc(&s->state, 1, sizeof *s->state, "a training state"));
    SP_TRY(sp_state_load(s->path, s->state));
    info->format = sp_strdup("state");
    info->step = s->state->step;
    info->base_model = sp_strdup(s->state->base_name);
    info->sparse_config = sp_state_sparse_json(s->state);
    return SP_OK;
}

// ---- judgement ----------------------------------------------------------------------------------

static void describe_shape(const candidate *c, char *text, size_t size) {
    size_t at = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < c->dims && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRId64, i ? "," : "", c->shape[i]);
    if (at < size) snprintf(text + at, size - at, "]");
}

static void judge(sp_problems *p, const candidate *c, const sp_forecast *f) {
    char shape[160];
    if (c->scored < 0) {
        sp_problems_add(p,
                        "%s: unknown name (expected [model.]layers.<n>.self_attn."
                        "q_future_proj.weight, or q_curr_proj.weight in layer 0)",
                        c->name);
    } else if (c->scored > f->layers) {
        sp_problems_add(p, "%s: the base model has only %" PRId64 " layers", c->name, f->layers);
    } else if (!c->is_float) {
        sp_problems_add(p, "%s: %s, expected a tensor of floats", c->name, c->type);
    } else if (c->dims != 2 || c->shape[0] != f->rows || c->shape[1] != f->cols) {
        describe_shape(c, shape, sizeof shape);
        sp_problems_add(p, "%s: shape %s, expected [%" PRId64 ",%" PRId64 "]", c->name, shape,
                        f->rows, f->cols);
    }
}

// chosen[l]: the candidate of scored layer l, NULL only for the last.
static sp_status choose(const source *s, const sp_forecast *f, const candidate **chosen) {
    sp_problems p = {0};
    for (int64_t i = 0; i < s->n; i++) {
        const candidate *c = &s->list[i];
        judge(&p, c, f);
        if (c->scored < 0 || c->scored > f->layers) continue;
        if (chosen[c->scored])
            sp_problems_add(&p, "%s: the same tensor as %s", c->name, chosen[c->scored]->name);
        chosen[c->scored] = c;
    }
    for (int64_t l = 0; l < f->layers; l++) {
        char name[64];
        sp_forecast_name(l, name);
        if (!chosen[l]) sp_problems_add(&p, "%s: missing", name);
    }
    return sp_problems_end(&p, SP_BAD_INPUT,
                           "%s does not hold Forecast weights for this base model", s->path);
}

static sp_status read_candidate(const source *s, const candidate *c, float *out) {
    if (s->st) return sp_st_read_f32(s->st, c->tensor, out);
    return sp_pt_read_f32(s->pt, c->tensor, c->name, out);
}

static sp_status copy_tensors(const source *s, sp_forecast *out) {
    int64_t size = out->rows * out->cols;
    const candidate **chosen = NULL;
    float *w = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&chosen, out->layers + 1, sizeof *chosen, "a list of tensors"));
    SP_GO(choose(s, out, chosen));
    SP_GO(sp_alloc(&w, (out->layers + 1) * size, sizeof *w, "Forecast weights"));
    for (int64_t l = 0; l <= out->layers; l++) // a missing last one stays 0: nothing reads it
        if (chosen[l]) SP_GO(read_candidate(s, chosen[l], w + l * size));
    memcpy(out->w, w, (size_t)((out->layers + 1) * size) * sizeof *w);
done:
    free(w);
    free(chosen);
    return st;
}

static sp_status copy_state(const source *s, sp_forecast *out) {
    const sp_forecast *w = &s->state->weights;
    if (w->layers != out->layers || w->rows != out->rows || w->cols != out->cols)
        return sp_error(SP_BAD_INPUT,
                        "%s holds Forecast weights for another base model (%s): %" PRId64
                        " layers of [%" PRId64 ",%" PRId64 "], expected %" PRId64
                        " layers of [%" PRId64 ",%" PRId64 "]",
                        s->path, s->state->base_name, w->layers, w->rows, w->cols, out->layers,
                        out->rows, out->cols);
    memcpy(out->w, w->w, (size_t)((w->layers + 1) * w->rows * w->cols) * sizeof *w->w);
    return SP_OK;
}

// ---- finding the file ---------------------------------------------------------------------------

// A folder's file: that of an export, also of a merged one, or a run's newest checkpoint.
static sp_status file_of_folder(const char *dir, char **path) {
    static const char *const names[] = {"forecast.safetensors", "forecast.pt",
                                        "sparda/forecast.safetensors", "sparda/forecast.pt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!(*path = sp_path_join(dir, names[i])))
            return sp_error(SP_ENVIRONMENT, "out of memory");
        if (sp_path_is_file(*path)) return SP_OK;
        free(*path);
    }
    *path = NULL;
    SP_TRY(sp_newest_checkpoint(dir, path));
    if (*path) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s holds no Forecast weights: neither forecast.safetensors nor forecast.pt "
                    "(an export folder, or a merged one with sparda/) nor checkpoints/step-*.h5",
                    dir);
}

sp_status sp_file_kind_of(const char *path, sp_file_kind *kind) {
    uint8_t b[9] = {0};
    if (!sp_path_is_file(path)) // asked first: opening a named pipe would wait for a writer
        return sp_error(SP_BAD_INPUT, "%s does not exist or is not a file", path);
    FILE *f = fopen(path, "rbe");
    if (!f) return sp_error(SP_BAD_INPUT, "cannot open %s: %s", path, strerror(errno));
    size_t n = fread(b, 1, sizeof b, f);
    fclose(f);
    *kind = SP_FILE_OTHER;
    // A safetensors file begins with its header's length, whose bytes may look like any other
    // format's first ones (640 is 80 02, a pickle); then comes '{'.
    if (n == 9 && memcmp(b + 4, "\0\0\0\0{", 5) == 0) return SP_OK;
    if (n >= 8 && memcmp(b, "\x89HDF\r\n\x1a\n", 8) == 0) *kind = SP_FILE_HDF5;
    if (n >= 4 && memcmp(b, "PK\x03\x04", 4) == 0) *kind = SP_FILE_PT;
    if (n >= 2 && b[0] == 0x80 && b[1] >= 2 && b[1] <= 5) *kind = SP_FILE_PT; // a bare pickle
    return SP_OK;
}

void sp_imported_free(sp_imported *i) {
    free(i->base_model);
    free(i->format);
    json_decref(i->sparse_config);
    *i = (sp_imported){.step = -1};
}

sp_status sp_forecast_require_finite(const sp_forecast *f, const char *origin) {
    sp_problems p = {0};
    int64_t size = f->rows * f->cols;
    for (int64_t l = 0; l <= f->layers; l++)
        for (int64_t i = 0; i < size; i++) {
            if (isfinite(f->w[l * size + i])) continue;
            char name[64];
            sp_forecast_name(l, name);
            sp_problems_add(&p, "%s: element %" PRId64 " is %g", name, i,
                            (double)f->w[l * size + i]);
            break;
        }
    return sp_problems_end(&p, SP_BAD_INPUT, "the Forecast weights of %s are not finite numbers",
                           origin);
}

sp_status sp_forecast_import(const char *path, sp_forecast *out, sp_imported *info) {
    sp_imported found = {.step = -1};
    char *file = NULL;
    sp_file_kind kind;
    source s = {0};
    sp_status st = SP_OK;
    if (sp_path_is_dir(path)) SP_GO(file_of_folder(path, &file));
    s.path = file ? file : path;
    SP_GO(sp_file_kind_of(s.path, &kind));
    SP_GO(kind == SP_FILE_HDF5 ? open_state(&s, &found)
          : kind == SP_FILE_PT ? open_pt(&s, &found)
                               : open_safetensors(&s, &found));
    SP_GO(kind == SP_FILE_HDF5 ? copy_state(&s, out) : copy_tensors(&s, out));
    if (info) {
        *info = found;
        found = (sp_imported){.step = -1};
    }
done:
    sp_imported_free(&found);
    close_source(&s);
    free(file);
    return st;
}
