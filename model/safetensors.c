// Reading and writing safetensors (formats.md 2).
//
//   8 bytes N | N bytes JSON header | data area: the tensors, covering it exactly
#include "model/safetensors.h"

#include "common/contents.h"
#include "common/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 100000000, MAX_INDEX = 100000000 };

static const struct {
    const char *name;
    int64_t size;
} dtypes[] = {
    [SP_ST_BOOL] = {"BOOL", 1},
    [SP_ST_U8] = {"U8", 1},
    [SP_ST_I8] = {"I8", 1},
    [SP_ST_F8_E5M2] = {"F8_E5M2", 1},
    [SP_ST_F8_E4M3] = {"F8_E4M3", 1},
    [SP_ST_F8_E8M0] = {"F8_E8M0", 1},
    [SP_ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 1},
    [SP_ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 1},
    [SP_ST_I16] = {"I16", 2},
    [SP_ST_U16] = {"U16", 2},
    [SP_ST_F16] = {"F16", 2},
    [SP_ST_BF16] = {"BF16", 2},
    [SP_ST_I32] = {"I32", 4},
    [SP_ST_U32] = {"U32", 4},
    [SP_ST_F32] = {"F32", 4},
    [SP_ST_C64] = {"C64", 8},
    [SP_ST_F64] = {"F64", 8},
    [SP_ST_I64] = {"I64", 8},
    [SP_ST_U64] = {"U64", 8},
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *sp_st_dtype_name(sp_st_dtype t) {
    return dtypes[t].name;
}
int64_t sp_st_dtype_size(sp_st_dtype t) {
    return dtypes[t].size;
}

static bool dtype_from_name(const char *name, sp_st_dtype *out) {
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (sp_st_dtype)i;
            return true;
        }
    return false;
}

char *sp_st_shape_text(int dims, const int64_t *shape) {
    sp_text t = {0};
    sp_text_add(&t, "[");
    for (int i = 0; i < dims; i++) sp_text_add(&t, "%s%lld", i ? ", " : "", (long long)shape[i]);
    sp_text_add(&t, "]");
    return t.data;
}

// ---- one file -----------------------------------------------------------------------------------

// What reading one image needs to pass around.
typedef struct reader {
    const char *origin; // names the file in messages
    sp_problems *problems;
    const uint8_t *data; // the data area
    int64_t data_bytes;
    // Tensors that end behind the data area are one problem of the file, not one each.
    int64_t n_beyond, furthest;
    const char *first_beyond;
    bool bad_spans; // some range is unknown: do not look for holes
} reader;

typedef struct span {
    int64_t begin, end;
    const char *name;
} span;

static bool is_sub_byte(const char *dtype) {
    return strcmp(dtype, "F4") == 0 || strcmp(dtype, "F6_E2M3") == 0 ||
           strcmp(dtype, "F6_E3M2") == 0;
}

static bool read_dtype(reader *r, const char *name, const json_t *entry, sp_st_dtype *out) {
    const json_t *v = json_object_get(entry, "dtype");
    if (!json_is_string(v)) {
        sp_problems_add(r->problems, "%s: tensor %s: \"dtype\" must be text, found %s", r->origin,
                        name, sp_json_kind(v));
    } else if (is_sub_byte(json_string_value(v))) {
        sp_problems_add(r->problems,
                        "%s: tensor %s has the type %s, which is narrower than a byte and not "
                        "supported; convert the weights to BF16",
                        r->origin, name, json_string_value(v));
    } else if (!dtype_from_name(json_string_value(v), out)) {
        sp_problems_add(r->problems, "%s: tensor %s has the unknown type '%s'", r->origin, name,
                        json_string_value(v));
    } else {
        return true;
    }
    return false;
}

// Sets dims, shape and elements.
static bool read_shape(reader *r, const json_t *entry, sp_st_tensor *t) {
    const json_t *v = json_object_get(entry, "shape");
    if (!json_is_array(v)) {
        sp_problems_add(r->problems, "%s: tensor %s: \"shape\" must be a list, found %s", r->origin,
                        t->name, sp_json_kind(v));
        return false;
    }
    if (json_array_size(v) > SP_ST_MAX_DIMS) {
        sp_problems_add(r->problems, "%s: tensor %s has %zu dimensions; at most %d are supported",
                        r->origin, t->name, json_array_size(v), SP_ST_MAX_DIMS);
        return false;
    }
    t->dims = (int)json_array_size(v);
    t->elements = 1;
    bool fits = true, empty = false;
    for (int i = 0; i < t->dims; i++) {
        const json_t *n = json_array_get(v, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0) {
            sp_problems_add(r->problems,
                            "%s: tensor %s: dimension %d of \"shape\" is no number of elements",
                            r->origin, t->name, i);
            return false;
        }
        t->shape[i] = json_integer_value(n);
        empty |= t->shape[i] == 0;
        fits = fits && sp_mul(t->elements, t->shape[i], &t->elements);
    }
    if (empty) t->elements = 0;
    if (!fits && !empty) {
        char *shape = sp_st_shape_text(t->dims, t->shape);
        sp_problems_add(r->problems, "%s: tensor %s: the shape %s has more than 2^63 elements",
                        r->origin, t->name, shape ? shape : "");
        free(shape);
        return false;
    }
    return true;
}

static bool read_span(reader *r, const json_t *entry, const char *name, span *out) {
    const json_t *v = json_object_get(entry, "data_offsets");
    const json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e) ||
        json_integer_value(b) < 0 || json_integer_value(e) < json_integer_value(b)) {
        sp_problems_add(r->problems,
                        "%s: tensor %s: \"data_offsets\" must be two whole numbers, begin <= end",
                        r->origin, name);
        return false;
    }
    *out = (span){json_integer_value(b), json_integer_value(e), name};
    return true;
}

// One entry of the header. Problems are added to the list; `t->data` stays NULL with any of them.
static void read_entry(reader *r, const json_t *entry, sp_st_tensor *t, span *where) {
    *where = (span){0, 0, t->name};
    if (!json_is_object(entry)) {
        sp_problems_add(r->problems, "%s: tensor %s must be described by an object, found %s",
                        r->origin, t->name, sp_json_kind(entry));
        r->bad_spans = true;
        return;
    }
    bool dtype_ok = read_dtype(r, t->name, entry, &t->dtype);
    bool shape_ok = read_shape(r, entry, t);
    if (!read_span(r, entry, t->name, where)) {
        r->bad_spans = true;
        return;
    }
    if (where->end > r->data_bytes) {
        if (r->n_beyond++ == 0) r->first_beyond = t->name;
        if (where->end > r->furthest) r->furthest = where->end;
    }
    if (!dtype_ok || !shape_ok) return;
    int64_t size = sp_st_dtype_size(t->dtype), have = where->end - where->begin;
    if (!sp_mul(t->elements, size, &t->bytes) || t->bytes != have) {
        char *shape = sp_st_shape_text(t->dims, t->shape);
        sp_problems_add(r->problems,
                        "%s: tensor %s: %s of %s elements needs %lld x %lld bytes, but its range "
                        "has %lld",
                        r->origin, t->name, shape ? shape : "", sp_st_dtype_name(t->dtype),
                        (long long)t->elements, (long long)size, (long long)have);
        free(shape);
        return;
    }
    if (where->end <= r->data_bytes) t->data = r->data + where->begin;
}

static int by_begin(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

// The data area must be covered exactly: no holes, no overlaps, nothing left over.
static void check_cover(reader *r, span *spans, int64_t n) {
    if (n) qsort(spans, (size_t)n, sizeof *spans, by_begin);
    int64_t end = 0;
    const char *before = NULL;
    for (int64_t i = 0; i < n; i++) {
        if (spans[i].begin > end)
            sp_problems_add(r->problems, "%s: %lld bytes before tensor %s belong to no tensor",
                            r->origin, (long long)(spans[i].begin - end), spans[i].name);
        else if (spans[i].begin < end)
            sp_problems_add(r->problems, "%s: tensor %s overlaps tensor %s by %lld bytes",
                            r->origin, spans[i].name, before ? before : "",
                            (long long)(end - spans[i].begin));
        if (spans[i].end >= end) {
            end = spans[i].end;
            before = spans[i].name;
        }
    }
    if (end < r->data_bytes)
        sp_problems_add(r->problems, "%s: %lld bytes after the last tensor belong to no tensor",
                        r->origin, (long long)(r->data_bytes - end));
}

static void check_metadata(reader *r, json_t *metadata) {
    const char *key;
    json_t *v;
    if (!json_is_object(metadata)) {
        sp_problems_add(r->problems, "%s: \"__metadata__\" must be an object, found %s", r->origin,
                        sp_json_kind(metadata));
        return;
    }
    json_object_foreach(metadata, key, v) {
        if (!json_is_string(v))
            sp_problems_add(r->problems, "%s: \"__metadata__\": \"%s\" must be text, found %s",
                            r->origin, key, sp_json_kind(v));
    }
}

// The header's JSON, or NULL after adding a problem.
static sp_status read_header(const uint8_t *image, int64_t bytes, const char *origin,
                             sp_problems *p, json_t **header, int64_t *header_bytes) {
    uint64_t n = 0;
    *header = NULL;
    for (int i = 0; i < 8 && i < bytes; i++) n |= (uint64_t)image[i] << 8 * i;
    bool fits = bytes > 8 && n >= 2 && n <= MAX_HEADER && n <= (uint64_t)bytes - 8;
    if (!fits || image[8] != '{') {
        const char *what = sp_contents_of(image, bytes);
        if (what)
            sp_problems_add(p, "%s is no safetensors file; this is %s", origin, what);
        else if (bytes > 8 && n >= 2 && n <= MAX_HEADER && image[8] == '{')
            sp_problems_add(p,
                            "%s is cut short: its header has %llu bytes, the file only %lld in "
                            "all; get it again",
                            origin, (unsigned long long)n, (long long)bytes);
        else if (bytes <= 8)
            sp_problems_add(p,
                            "%s has only %lld bytes, too few for a safetensors file; get it again",
                            origin, (long long)bytes);
        else
            sp_problems_add(p,
                            "%s is no safetensors file: it must begin with the length of a JSON "
                            "header (2 to %d bytes) and the header itself",
                            origin, MAX_HEADER);
        return SP_OK;
    }
    *header_bytes = (int64_t)n;
    char *where = sp_format("%s, header", origin);
    if (!where) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = sp_json_parse((const char *)image + 8, (int64_t)n, where, header);
    free(where);
    if (st != SP_BAD_INPUT) return st;
    sp_problems_add(p, "%s", sp_error_text());
    return SP_OK;
}

static sp_status grow_tensors(sp_st *s, int64_t more) {
    int64_t count, bytes;
    if (!sp_add(s->n, more, &count) || !sp_mul(count, sizeof *s->tensor, &bytes))
        return sp_error(SP_ENVIRONMENT, "out of memory for the tensor list");
    sp_st_tensor *grown = realloc(s->tensor, (size_t)(bytes ? bytes : 1));
    if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for the tensor list");
    s->tensor = grown;
    memset(s->tensor + s->n, 0, (size_t)more * sizeof *s->tensor);
    return SP_OK;
}

// Adds the tensors of one image to `s` (unsorted) and its problems to the list; fails only for lack
// of memory. `metadata`, if not NULL, receives a new reference.
static sp_status read_image(sp_st *s, int file, const uint8_t *image, int64_t bytes,
                            const char *origin, sp_problems *p, json_t **metadata) {
    sp_status st = SP_OK;
    json_t *header;
    span *spans = NULL;
    int64_t header_bytes = 0, n = 0;
    SP_TRY(read_header(image, bytes, origin, p, &header, &header_bytes));
    if (!header) return SP_OK;

    reader r = {.origin = origin,
                .problems = p,
                .data = image + 8 + header_bytes,
                .data_bytes = bytes - 8 - header_bytes};
    SP_GO(grow_tensors(s, (int64_t)json_object_size(header)));
    SP_GO(sp_alloc(&spans, (int64_t)json_object_size(header), sizeof *spans, "tensor ranges"));
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            check_metadata(&r, entry);
            if (metadata) *metadata = json_incref(entry);
            continue;
        }
        sp_st_tensor *t = &s->tensor[s->n];
        t->file = file;
        if (!(t->name = sp_strdup(name))) {
            st = sp_error(SP_ENVIRONMENT, "out of memory for a tensor name");
            goto done;
        }
        s->n++;
        read_entry(&r, entry, t, &spans[n++]);
    }
    if (r.n_beyond)
        sp_problems_add(p,
                        "%s is cut short: its header describes %lld bytes of data, the file holds "
                        "%lld; %lld tensors are incomplete, the first is %s; get the file again",
                        origin, (long long)r.furthest, (long long)r.data_bytes,
                        (long long)r.n_beyond, r.first_beyond);
    else if (!r.bad_spans)
        check_cover(&r, spans, n);
done:
    free(spans);
    json_decref(header);
    return st;
}

static int by_name(const void *a, const void *b) {
    const sp_st_tensor *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c ? c : x->file - y->file;
}

static void sort_tensors(sp_st *s) {
    if (s->n) qsort(s->tensor, (size_t)s->n, sizeof *s->tensor, by_name);
}

sp_status sp_st_parse(const void *image, int64_t bytes, const char *origin, sp_st **out) {
    sp_st *s;
    sp_problems p = {0};
    *out = NULL;
    SP_TRY(sp_alloc(&s, 1, sizeof *s, "a tensor list"));
    sp_status st = read_image(s, 0, image, bytes, origin, &p, &s->metadata);
    sort_tensors(s);
    sp_status listed = sp_problems_end(&p, SP_BAD_INPUT, "problems in %s", origin);
    if (st == SP_OK) st = listed;
    if (st == SP_OK)
        *out = s;
    else
        sp_st_close(s);
    return st;
}

// ---- files and folders --------------------------------------------------------------------------

// Maps a file and reads it. A file that cannot be read is a problem, with `lost` (what it should
// hold) in the message; NULL: nothing to say.
static sp_status add_file(sp_st *s, const char *path, sp_problems *p, const char *lost,
                          json_t **metadata) {
    int64_t i = s->n_files;
    char **files = realloc(s->files, (size_t)(i + 1) * sizeof *files);
    if (files) s->files = files;
    sp_map *maps = files ? realloc(s->maps, (size_t)(i + 1) * sizeof *maps) : NULL;
    if (maps) s->maps = maps;
    if (!files || !maps || !(s->files[i] = sp_strdup(path)))
        return sp_error(SP_ENVIRONMENT, "out of memory");
    s->maps[i] = (sp_map){0};
    s->n_files++;
    sp_status st = sp_map_open(path, &s->maps[i]);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(p, "%s%s%s", sp_error_text(), lost ? "; it must hold " : "",
                        lost ? lost : "");
        return SP_OK;
    }
    SP_TRY(st);
    return read_image(s, (int)i, s->maps[i].data, s->maps[i].bytes, path, p, metadata);
}

typedef struct mapping { // one line of the index
    const char *tensor, *file;
} mapping;

static int by_file(const void *a, const void *b) {
    const mapping *x = a, *y = b;
    int c = strcmp(x->file, y->file);
    return c ? c : strcmp(x->tensor, y->tensor);
}

// The weight map as pairs sorted by file. Borrows from `index`.
static sp_status read_weight_map(const json_t *index, const char *path, sp_problems *p,
                                 mapping **out, int64_t *n) {
    const json_t *map = json_object_get(index, "weight_map");
    *n = 0;
    *out = NULL;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        sp_problems_add(p,
                        "%s: \"weight_map\" must be an object that gives each tensor's file, "
                        "found %s",
                        path, json_is_object(map) ? "an empty one" : sp_json_kind(map));
        return SP_OK;
    }
    SP_TRY(sp_alloc(out, (int64_t)json_object_size(map), sizeof **out, "the weight map"));
    const char *tensor;
    const json_t *file;
    json_object_foreach((json_t *)map, tensor, file) {
        if (!json_is_string(file))
            sp_problems_add(p, "%s: the file of tensor %s must be text, found %s", path, tensor,
                            sp_json_kind(file));
        else if (!sp_path_is_safe(json_string_value(file)))
            sp_problems_add(p,
                            "%s: tensor %s is said to be in '%s', which is not a name inside the "
                            "folder",
                            path, tensor, json_string_value(file));
        else
            (*out)[(*n)++] = (mapping){tensor, json_string_value(file)};
    }
    if (*n) qsort(*out, (size_t)*n, sizeof **out, by_file);
    return SP_OK;
}

// Opens the shard that `run` (n lines of the index, one file) names; all its tensors must be there.
static sp_status add_shard(sp_st *s, const char *dir, const mapping *run, int64_t n,
                           sp_problems *p) {
    sp_text lost = {0};
    sp_text_add(&lost, "%lld tensors: ", (long long)n);
    for (int64_t i = 0; i < n; i++) sp_text_add(&lost, "%s%s", i ? ", " : "", run[i].tensor);
    char *path = sp_path_join(dir, run->file);
    int64_t first = s->n;
    int before = p->count;
    sp_status st = path && lost.data ? add_file(s, path, p, lost.data, NULL)
                                     : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK && p->count == before) {
        sp_st_tensor *t = s->tensor + first;
        int64_t have = s->n - first, j = 0;
        if (have) qsort(t, (size_t)have, sizeof *t, by_name);
        for (int64_t i = 0; i < n; i++) { // both sides sorted by tensor name
            for (; j < have && strcmp(t[j].name, run[i].tensor) < 0; j++)
                sp_problems_add(p, "%s holds tensor %s, but the index does not put it there", path,
                                t[j].name);
            if (j < have && strcmp(t[j].name, run[i].tensor) == 0)
                j++;
            else
                sp_problems_add(p, "%s lacks tensor %s, which the index puts there", path,
                                run[i].tensor);
        }
        for (; j < have; j++)
            sp_problems_add(p, "%s holds tensor %s, but the index does not put it there", path,
                            t[j].name);
    }
    free(path);
    sp_text_free(&lost);
    return st;
}

static sp_status open_sharded(sp_st *s, const char *dir, const char *index_path, sp_problems *p) {
    json_t *index = NULL;
    mapping *map = NULL;
    int64_t n = 0;
    sp_status st = sp_json_load(index_path, MAX_INDEX, &index);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(p, "%s", sp_error_text());
        return SP_OK;
    }
    SP_TRY(st);
    SP_GO(read_weight_map(index, index_path, p, &map, &n));
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && strcmp(map[end].file, map[i].file) == 0;) end++;
        SP_GO(add_shard(s, dir, map + i, end - i, p));
    }
done:
    free(map);
    json_decref(index);
    return st;
}

static sp_status open_folder(sp_st *s, const char *dir, sp_problems *p) {
    sp_status st = SP_OK;
    char *single = sp_path_join(dir, "model.safetensors");
    char *index = sp_path_join(dir, "model.safetensors.index.json");
    if (!single || !index) {
        st = sp_error(SP_ENVIRONMENT, "out of memory");
    } else if (sp_path_is_file(single) && sp_path_is_file(index)) {
        sp_problems_add(p,
                        "%s holds both model.safetensors and model.safetensors.index.json; remove "
                        "the one that is out of date",
                        dir);
    } else if (sp_path_is_file(index)) {
        st = open_sharded(s, dir, index, p);
    } else if (sp_path_is_file(single)) {
        st = add_file(s, single, p, NULL, &s->metadata);
    } else {
        char **names;
        int64_t n;
        bool torch = false;
        if (sp_list_dir(dir, ".bin", &names, &n) == SP_OK) {
            torch = n > 0;
            sp_free_names(names, n);
        }
        sp_problems_add(p, "%s holds neither model.safetensors nor model.safetensors.index.json%s",
                        dir,
                        torch ? "; it holds .bin files, which must be converted to safetensors"
                              : "; is it the right folder?");
    }
    free(single);
    free(index);
    return st;
}

sp_status sp_st_open(const char *path, sp_st **out) {
    sp_st *s;
    sp_problems p = {0};
    *out = NULL;
    SP_TRY(sp_alloc(&s, 1, sizeof *s, "a tensor list"));
    sp_status st =
        sp_path_is_dir(path) ? open_folder(s, path, &p) : add_file(s, path, &p, NULL, &s->metadata);
    if (st == SP_OK) {
        sort_tensors(s);
        for (int64_t i = 1; i < s->n; i++)
            if (strcmp(s->tensor[i - 1].name, s->tensor[i].name) == 0)
                sp_problems_add(&p, "tensor %s is both in %s and in %s", s->tensor[i].name,
                                s->files[s->tensor[i - 1].file], s->files[s->tensor[i].file]);
    }
    sp_status listed = sp_problems_end(&p, SP_BAD_INPUT, "weights in %s", path);
    if (st == SP_OK) st = listed;
    if (st == SP_OK)
        *out = s;
    else
        sp_st_close(s);
    return st;
}

void sp_st_close(sp_st *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) free(s->tensor[i].name);
    for (int64_t i = 0; i < s->n_files; i++) {
        free(s->files[i]);
        sp_map_close(&s->maps[i]);
    }
    free(s->tensor);
    free(s->files);
    free(s->maps);
    json_decref(s->metadata);
    free(s);
}

static int name_against(const void *key, const void *tensor) {
    return strcmp(key, ((const sp_st_tensor *)tensor)->name);
}

const sp_st_tensor *sp_st_find(const sp_st *s, const char *name) {
    return s->n ? bsearch(name, s->tensor, (size_t)s->n, sizeof *s->tensor, name_against) : NULL;
}

// ---- values -------------------------------------------------------------------------------------

static sp_status wrong_type(const sp_st *s, const sp_st_tensor *t, const char *wanted) {
    return sp_error(SP_BAD_INPUT, "%s: tensor %s has the type %s; expected %s",
                    s->n_files ? s->files[t->file] : "the file", t->name,
                    sp_st_dtype_name(t->dtype), wanted);
}

sp_status sp_st_read_f32(const sp_st *s, const sp_st_tensor *t, float *out) {
    const uint8_t *p = t->data; // perhaps misaligned: copy, do not cast
    switch (t->dtype) {
    case SP_ST_F32:
        if (t->bytes) memcpy(out, p, (size_t)t->bytes);
        return SP_OK;
    case SP_ST_BF16:
    case SP_ST_F16:
        for (int64_t i = 0; i < t->elements; i++) {
            uint16_t u;
            memcpy(&u, p + 2 * i, 2);
            out[i] = t->dtype == SP_ST_BF16 ? sp_bf16_to_f32(u) : sp_f16_to_f32(u);
        }
        return SP_OK;
    case SP_ST_F64:
        for (int64_t i = 0; i < t->elements; i++) {
            double d;
            memcpy(&d, p + 8 * i, 8);
            out[i] = (float)d;
        }
        return SP_OK;
    default:
        return wrong_type(s, t, "F32, F16, BF16 or F64");
    }
}

sp_status sp_st_read_i32(const sp_st *s, const sp_st_tensor *t, int32_t *out) {
    if (t->dtype != SP_ST_I32) return wrong_type(s, t, "I32");
    if (t->bytes) memcpy(out, t->data, (size_t)t->bytes);
    return SP_OK;
}

// ---- writing ------------------------------------------------------------------------------------

static int by_width_then_name(const void *a, const void *b) {
    const sp_st_out *x = *(const sp_st_out *const *)a, *y = *(const sp_st_out *const *)b;
    if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool packed_bytes(const sp_st_out *t, int64_t *bytes) {
    *bytes = sp_st_dtype_size(t->dtype);
    if (t->dims < 0 || t->dims > SP_ST_MAX_DIMS) return false;
    for (int i = 0; i < t->dims; i++)
        if (!sp_mul(*bytes, t->shape[i], bytes)) return false;
    return true;
}

// "__metadata__" with sorted keys and "format": "pt". jansson keeps the order of insertion.
static json_t *sorted_metadata(json_t *given) {
    size_t n = json_object_size(given), i = 0;
    const char **keys = malloc((n + 1) * sizeof *keys);
    json_t *out = json_object();
    bool ok = keys && out;
    if (ok) {
        const char *key;
        json_t *v;
        json_object_foreach(given, key, v) if (strcmp(key, "format") != 0) keys[i++] = key;
        keys[i++] = "format";
        qsort(keys, i, sizeof *keys, by_text);
        for (size_t k = 0; ok && k < i; k++)
            ok = (strcmp(keys[k], "format") == 0
                      ? json_object_set_new(out, "format", json_string("pt"))
                      : json_object_set(out, keys[k], json_object_get(given, keys[k]))) == 0;
    }
    free(keys);
    if (ok) return out;
    json_decref(out);
    return NULL;
}

// The header text, padded so that the data begins on a multiple of 8 bytes.
static sp_status make_header(const char *path, const sp_st_out **order, int64_t n, json_t *metadata,
                             sp_text *out) {
    int64_t begin = 0, end, bytes;
    json_t *header = json_object();
    bool ok = json_object_set_new(header, "__metadata__", sorted_metadata(metadata)) == 0;
    for (int64_t i = 0; ok && i < n; i++, begin = end) {
        const sp_st_out *t = order[i];
        if (!packed_bytes(t, &bytes) || !sp_add(begin, bytes, &end) ||
            json_object_get(header, t->name)) {
            json_decref(header);
            return sp_error(SP_ENVIRONMENT, "%s: tensor %s cannot be written: %s", path, t->name,
                            "its size overflows or its name is used twice");
        }
        json_t *shape = json_array();
        for (int k = 0; k < t->dims; k++) json_array_append_new(shape, json_integer(t->shape[k]));
        ok = json_object_set_new(
                 header, t->name,
                 json_pack("{s:s, s:o, s:[I,I]}", "dtype", sp_st_dtype_name(t->dtype), "shape",
                           shape, "data_offsets", (json_int_t)begin, (json_int_t)end)) == 0;
    }
    char *text = ok ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text) return sp_error(SP_ENVIRONMENT, "%s: out of memory for the header", path);
    uint64_t length = (strlen(text) + 7) / 8 * 8;
    for (int i = 0; i < 8; i++) sp_text_bytes(out, &(uint8_t){(uint8_t)(length >> 8 * i)}, 1);
    sp_text_add(out, "%-*s", (int)length, text);
    free(text);
    if (out->failed) return sp_error(SP_ENVIRONMENT, "%s: out of memory for the header", path);
    return SP_OK;
}

sp_status sp_st_write(const char *path, const sp_st_out *tensors, int64_t n, json_t *metadata) {
    sp_status st = SP_OK;
    sp_atomic a = {0};
    sp_text header = {0};
    const sp_st_out **order;
    SP_TRY(sp_alloc(&order, n, sizeof *order, "the order of tensors"));
    for (int64_t i = 0; i < n; i++) order[i] = &tensors[i];
    if (n) qsort(order, (size_t)n, sizeof *order, by_width_then_name);
    SP_GO(make_header(path, order, n, metadata, &header));
    SP_GO(sp_atomic_open(&a, path));
    SP_GO(sp_atomic_write(&a, header.data, (int64_t)header.len));
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes;
        packed_bytes(order[i], &bytes); // checked in make_header
        SP_GO(sp_atomic_write(&a, order[i]->data, bytes));
    }
    SP_GO(sp_atomic_commit(&a));
done:
    sp_atomic_abandon(&a);
    sp_text_free(&header);
    free(order);
    return st;
}
