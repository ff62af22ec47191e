// MDS in memory: index.json, shard headers, samples, arrays (data/mds.h).
#include "common/json.h"
#include "common/util.h"
#include "data/mds.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 4096 };
static const char token_column[] = "input_ids";

// formats.md 1.5; unsigned 64-bit ids above 2^63 look negative and are refused as such.
static const sp_mds_type types[] = {
    {"uint8", 8, 1, false},   {"int8", 9, 1, true},     {"uint16", 16, 2, false},
    {"int16", 17, 2, true},   {"uint32", 32, 4, false}, {"int32", 33, 4, true},
    {"uint64", 64, 8, false}, {"int64", 65, 8, true},
};
enum { N_TYPES = sizeof types / sizeof types[0] };
#define TOKEN_ENCODINGS                                                                            \
    "'ndarray', 'ndarray:TYPE' and 'ndarray:TYPE:N', where TYPE is an integer type such as int32"

uint32_t sp_mds_u32(const uint8_t *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

int64_t sp_mds_table_bytes(int64_t samples) {
    return 4 + 4 * (samples + 1);
}

// ---- index.json
// ----------------------------------------------------------------------------------

static const char *text_of(const json_t *v) {
    return json_is_string(v) ? json_string_value(v) : NULL;
}

// {basename, bytes} of raw_data or zip_data.
static bool parse_file(const json_t *v, const char *key, const char *where, sp_problems *p,
                       const char **basename, int64_t *bytes) {
    const char *name = text_of(json_object_get(v, "basename"));
    const json_t *size = json_object_get(v, "bytes");
    if (!name || !json_is_integer(size) || json_integer_value(size) < 0 ||
        json_integer_value(size) > UINT32_MAX) {
        sp_problems_add(p, "%s: '%s' must have a basename and a number of bytes below 2^32", where,
                        key);
        return false;
    }
    if (!sp_path_is_safe(name)) {
        sp_problems_add(p, "%s: '%s' names '%s', which leaves the folder of the index", where, key,
                        name);
        return false;
    }
    *basename = name;
    *bytes = (int64_t)json_integer_value(size);
    return true;
}

static void list_columns(const json_t *names, const json_t *codes, sp_text *out) {
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *n = text_of(json_array_get(names, i)), *e = text_of(json_array_get(codes, i));
        sp_text_add(out, "%s%s (%s)", i ? ", " : "", n ? n : "?", e ? e : "?");
    }
}

const sp_mds_type *sp_mds_type_of(const char *name, size_t n) {
    for (int i = 0; i < N_TYPES; i++)
        if (strlen(types[i].name) == n && strncmp(name, types[i].name, n) == 0) return &types[i];
    return NULL;
}

// Bytes of a column of that encoding: 0 if variable, -1 if the encoding is not known, -2 if its
// shape makes no sense.
static int64_t encoded_size(const char *code) {
    static const struct {
        const char *name;
        int64_t size;
    } scalars[] = {{"int", 8},         {"uint8", 1},   {"uint16", 2},  {"uint32", 4},
                   {"uint64", 8},      {"int8", 1},    {"int16", 2},   {"int32", 4},
                   {"int64", 8},       {"float16", 2}, {"float32", 4}, {"float64", 8},
                   {"bytes", 0},       {"str", 0},     {"str_int", 0}, {"str_float", 0},
                   {"str_decimal", 0}, {"json", 0},    {"pkl", 0},     {"ndarray", 0},
                   {"pil", 0},         {"jpeg", 0},    {"png", 0}};
    const size_t n_scalars = sizeof scalars / sizeof scalars[0];
    for (size_t i = 0; i < n_scalars; i++)
        if (strcmp(code, scalars[i].name) == 0) return scalars[i].size;
    if (strncmp(code, "ndarray:", 8) != 0) return -1;
    const char *type = code + 8, *shape = strchr(type, ':');
    size_t n = shape ? (size_t)(shape - type) : strlen(type);
    int64_t size = -1;
    for (size_t i = 1; i < n_scalars && scalars[i].size; i++)
        if (strlen(scalars[i].name) == n && strncmp(type, scalars[i].name, n) == 0)
            size = scalars[i].size;
    if (size < 0 || !shape) return size < 0 ? -1 : 0;
    do {
        char *end;
        long long d = strtoll(shape + 1, &end, 10);
        if (end == shape + 1 || d < 1 || d > UINT32_MAX || !sp_mul(size, d, &size)) return -2;
        shape = end;
    } while (*shape == ',');
    return *shape ? -2 : size;
}

// The form of the token column, whose size suits its encoding.
static void parse_token_encoding(const char *code, const char *where, sp_problems *p,
                                 sp_mds_columns *c) {
    if (strcmp(code, "ndarray") == 0) return; // form and type are those of a zeroed c
    const char *type = strncmp(code, "ndarray:", 8) == 0 ? code + 8 : NULL;
    const char *shape = type ? strchr(type, ':') : NULL;
    if (type) c->type = sp_mds_type_of(type, shape ? (size_t)(shape - type) : strlen(type));
    if (c->type && shape && !strchr(shape, ',')) {
        c->form = SP_MDS_FIXED;
        c->count = c->size[c->token] / c->type->size;
    } else if (c->type && !shape) {
        c->form = SP_MDS_TYPED;
    } else {
        sp_problems_add(p,
                        "%s: column '%s' has the encoding '%s', which cannot hold rows of tokens; "
                        "those that can are " TOKEN_ENCODINGS,
                        where, token_column, code);
    }
}

static sp_status parse_columns(const json_t *o, const char *where, sp_problems *p,
                               sp_mds_columns *c) {
    const json_t *names = json_object_get(o, "column_names");
    const json_t *codes = json_object_get(o, "column_encodings");
    const json_t *sizes = json_object_get(o, "column_sizes");
    size_t n = json_array_size(names);
    if (!json_is_array(names) || !json_is_array(codes) || !json_is_array(sizes) || n < 1 ||
        n > COLUMNS_MAX || json_array_size(codes) != n || json_array_size(sizes) != n) {
        sp_problems_add(p,
                        "%s: column_names, column_encodings and column_sizes must be lists of one "
                        "length, 1 to %d",
                        where, COLUMNS_MAX);
        return SP_OK;
    }
    SP_TRY(sp_alloc(&c->size, (int64_t)n, sizeof *c->size, "MDS columns"));
    c->n = (int64_t)n;
    c->token = -1;
    for (size_t i = 0; i < n; i++) {
        const char *name = text_of(json_array_get(names, i));
        const char *code = text_of(json_array_get(codes, i));
        const json_t *size = json_array_get(sizes, i);
        if (!name || !code ||
            !(json_is_null(size) || (json_is_integer(size) && json_integer_value(size) >= 0))) {
            sp_problems_add(p, "%s: column %zu needs a name, an encoding and a size or null", where,
                            i);
            continue;
        }
        for (size_t k = 0; k < i; k++)
            if (text_of(json_array_get(names, k)) &&
                strcmp(name, text_of(json_array_get(names, k))) == 0)
                sp_problems_add(p, "%s: there are two columns '%s'", where, name);
        if (strcmp(code, "pkl") == 0)
            sp_problems_add(p,
                            "%s: column '%s' is a Python pickle ('pkl'), which is refused: reading "
                            "one can run code. Write the data set again without it",
                            where, name);
        c->size[i] = json_is_null(size) ? 0 : (int64_t)json_integer_value(size);
        int64_t natural = encoded_size(code);
        if (natural == -2)
            sp_problems_add(p, "%s: column '%s' has the encoding '%s', whose shape makes no sense",
                            where, name, code);
        else if (natural >= 0 && natural != c->size[i])
            sp_problems_add(p,
                            "%s: column '%s' has a size of %lld bytes (0: variable), but '%s' has "
                            "%lld; the index is damaged",
                            where, name, (long long)c->size[i], code, (long long)natural);
        c->n_variable += c->size[i] == 0;
        if (!sp_add(c->fixed, c->size[i], &c->fixed)) c->fixed = INT64_MAX;
        if (strcmp(name, token_column) == 0) {
            c->token = (int64_t)i;
            parse_token_encoding(code, where, p, c);
        }
    }
    if (c->fixed > UINT32_MAX)
        sp_problems_add(p, "%s: the columns of fixed size are larger than a shard can be", where);
    if (c->token < 0) {
        sp_text found = {0};
        list_columns(names, codes, &found);
        sp_problems_add(p, "%s: there is no column '%s' of tokens; the columns are %s", where,
                        token_column, found.data ? found.data : "none");
        sp_text_free(&found);
    }
    return SP_OK;
}

static sp_status parse_shard(const json_t *o, const char *where, sp_problems *p, sp_mds_shard *s) {
    if (!json_is_object(o)) {
        sp_problems_add(p, "%s: expected an object, found %s", where, sp_json_kind(o));
        return SP_OK;
    }
    s->json = json_incref((json_t *)o);
    const json_t *version = json_object_get(o, "version"), *v = json_object_get(o, "samples");
    if (!json_is_integer(version) || json_integer_value(version) != 2)
        sp_problems_add(p, "%s: 'version' must be 2; other versions of MDS are not known", where);
    const char *format = text_of(json_object_get(o, "format"));
    if (!format || strcmp(format, "mds") != 0)
        sp_problems_add(p, "%s: 'format' is '%s'; only 'mds' is read", where,
                        format ? format : "missing");
    // Each sample has an offset of 4 bytes in a file below 4 GiB.
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        json_integer_value(v) > UINT32_MAX / 4 - 2)
        sp_problems_add(p, "%s: 'samples' must be a count of rows", where);
    else
        s->samples = (int64_t)json_integer_value(v);

    const char *name;
    int64_t bytes;
    if (parse_file(json_object_get(o, "raw_data"), "raw_data", where, p, &name, &bytes)) {
        s->basename = sp_strdup(name);
        s->bytes = bytes;
        if (!s->basename) return sp_error(SP_ENVIRONMENT, "out of memory");
    }
    v = json_object_get(o, "zip_data");
    if (v && !json_is_null(v) && parse_file(v, "zip_data", where, p, &name, &bytes)) {
        s->zip = sp_strdup(name);
        s->zip_bytes = bytes;
        if (!s->zip) return sp_error(SP_ENVIRONMENT, "out of memory");
    }
    v = json_object_get(o, "compression");
    if (v && !json_is_null(v) && !json_is_string(v))
        sp_problems_add(p, "%s: 'compression' must be a text or null", where);
    if (json_is_string(v) && !(s->compression = sp_strdup(json_string_value(v))))
        return sp_error(SP_ENVIRONMENT, "out of memory");
    return parse_columns(o, where, p, &s->columns);
}

// A file that two entries name would be read twice. `seen`: names so far, without what does not
// alter a path ("./a//b" is "a/b"), and their entries.
static sp_status check_once(json_t *seen, const char *kind, const char *name, int64_t entry,
                            const char *where, sp_problems *p) {
    sp_text key = {0};
    sp_text_add(&key, "%s", kind);
    for (const char *at = name; *at;) {
        size_t n = strcspn(at, "/");
        if (n > 0 && !(n == 1 && *at == '.')) {
            sp_text_add(&key, "/");
            sp_text_bytes(&key, at, n);
        }
        at += n + (at[n] == '/');
    }
    const json_t *before = key.failed ? NULL : json_object_get(seen, key.data);
    sp_status st = SP_OK;
    if (before)
        sp_problems_add(p,
                        "%s: its %s is '%s', which is that of shard %lld already; its rows would "
                        "be read twice. Remove one of the two entries, or name the right file",
                        where, kind, name, (long long)json_integer_value(before));
    else if (key.failed || json_object_set_new_nocheck(seen, key.data, json_integer(entry)) != 0)
        st = sp_error(SP_ENVIRONMENT, "out of memory for an MDS index");
    sp_text_free(&key);
    return st;
}

static sp_status parse_shards(const json_t *shards, const char *where, sp_problems *p,
                              sp_mds_index *out) {
    int64_t n = (int64_t)json_array_size(shards);
    SP_TRY(sp_alloc(&out->shard, n, sizeof *out->shard, "MDS shards"));
    out->n = n;
    json_t *seen = json_object();
    sp_status st = SP_OK;
    for (int64_t i = 0; i < n && st == SP_OK; i++) {
        sp_mds_shard *s = &out->shard[i];
        char *place = sp_format("%s: shard %lld", where, (long long)i);
        if (!place) st = sp_error(SP_ENVIRONMENT, "out of memory");
        if (st == SP_OK) st = parse_shard(json_array_get(shards, (size_t)i), place, p, s);
        if (st == SP_OK && s->basename) st = check_once(seen, "raw_data", s->basename, i, place, p);
        if (st == SP_OK && s->zip) st = check_once(seen, "zip_data", s->zip, i, place, p);
        free(place);
        out->samples += s->samples; // below 2^30 each, and the text is bounded
    }
    json_decref(seen);
    return st;
}

sp_status sp_mds_parse_index(const char *text, int64_t bytes, const char *where,
                             sp_problems *problems, sp_mds_index *out) {
    *out = (sp_mds_index){0};
    const int before = problems->count;
    sp_status st = sp_json_parse(text, bytes, where, &out->json);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(problems, "%s", sp_error_text());
        return SP_OK;
    }
    SP_TRY(st);
    const json_t *version = json_object_get(out->json, "version");
    const json_t *shards = json_object_get(out->json, "shards");
    if (shards && !json_is_array(shards))
        sp_problems_add(problems, "%s: 'shards' must be a list, found %s", where,
                        sp_json_kind(shards));
    else if (shards && json_array_size(shards) > 0) {
        if (!json_is_integer(version) || json_integer_value(version) != 2)
            sp_problems_add(problems, "%s: 'version' must be 2; other versions are not known",
                            where);
        st = parse_shards(shards, where, problems, out);
    }
    if (st != SP_OK || problems->count != before) sp_mds_index_free(out);
    return st;
}

void sp_mds_shard_free(sp_mds_shard *s) {
    free(s->basename);
    free(s->zip);
    free(s->compression);
    free(s->columns.size);
    json_decref(s->json);
    *s = (sp_mds_shard){0};
}

void sp_mds_index_free(sp_mds_index *x) {
    for (int64_t i = 0; i < x->n; i++) sp_mds_shard_free(&x->shard[i]);
    free(x->shard);
    json_decref(x->json);
    *x = (sp_mds_index){0};
}

// ---- header of a shard
// ---------------------------------------------------------------------------

static sp_status compare_config(const char *text, int64_t bytes, const json_t *index) {
    static const char *const keys[] = {"version",      "format",          "compression",
                                       "hashes",       "size_limit",      "column_names",
                                       "column_sizes", "column_encodings"};
    json_t *own;
    SP_TRY(sp_json_parse(text, bytes, "its own description", &own));
    sp_status st = SP_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && st == SP_OK; i++) {
        const json_t *a = json_object_get(index, keys[i]), *b = json_object_get(own, keys[i]);
        if ((!a || json_is_null(a)) && (!b || json_is_null(b))) continue;
        if (json_equal(a, b)) continue;
        char *in_index = a ? json_dumps(a, JSON_ENCODE_ANY) : NULL;
        char *in_shard = b ? json_dumps(b, JSON_ENCODE_ANY) : NULL;
        st =
            sp_error(SP_BAD_INPUT,
                     "'%s' is %s in index.json but %s in the shard; one of them belongs to another "
                     "data set",
                     keys[i], in_index ? in_index : "missing", in_shard ? in_shard : "missing");
        free(in_index);
        free(in_shard);
    }
    json_decref(own);
    return st;
}

sp_status sp_mds_parse_header(const uint8_t *bytes, int64_t len, int64_t file_bytes,
                              const sp_mds_shard *s) {
    const int64_t table = sp_mds_table_bytes(s->samples);
    if (len < 4 || len < table)
        return sp_error(SP_BAD_INPUT, "%lld bytes are too few for the offsets of %lld samples",
                        (long long)len, (long long)s->samples);
    if (sp_mds_u32(bytes) != s->samples)
        return sp_error(SP_BAD_INPUT, "holds %u samples, %lld according to index.json",
                        sp_mds_u32(bytes), (long long)s->samples);
    const uint8_t *offset = bytes + 4;
    int64_t first = sp_mds_u32(offset), end = sp_mds_u32(offset + 4 * s->samples);
    if (first < table || first > file_bytes || first > len)
        return sp_error(SP_BAD_INPUT, "the first sample starts at byte %lld; expected %lld to %lld",
                        (long long)first, (long long)table, (long long)file_bytes);
    int64_t least = s->columns.fixed + 4 * s->columns.n_variable;
    for (int64_t i = 0; i < s->samples; i++) {
        int64_t a = sp_mds_u32(offset + 4 * i), b = sp_mds_u32(offset + 4 * i + 4);
        if (b > file_bytes || b - a < least)
            return sp_error(SP_BAD_INPUT,
                            "row %lld lies at bytes %lld to %lld of %lld; a row has at least %lld "
                            "bytes and ends inside the file",
                            (long long)i, (long long)a, (long long)b, (long long)file_bytes,
                            (long long)least);
    }
    if (end != file_bytes)
        return sp_error(SP_BAD_INPUT, "the last row ends at byte %lld, the file at %lld",
                        (long long)end, (long long)file_bytes);
    return compare_config((const char *)bytes + table, first - table, s->json);
}

// ---- samples
// -------------------------------------------------------------------------------------

sp_status sp_mds_find_column(const uint8_t *bytes, int64_t len, int64_t sample_bytes,
                             const sp_mds_columns *c, int64_t *begin, int64_t *size) {
    int64_t prefix = 4 * c->n_variable, at = prefix;
    if (len < prefix || sample_bytes < prefix)
        return sp_error(SP_BAD_INPUT, "%lld bytes are too few for the sizes of %lld columns",
                        (long long)sample_bytes, (long long)c->n_variable);
    for (int64_t i = 0, v = 0; i < c->n; i++) {
        int64_t n = c->size[i] ? c->size[i] : (int64_t)sp_mds_u32(bytes + 4 * v++);
        if (i == c->token) {
            *begin = at;
            *size = n;
        }
        at += n; // at most 4096 columns below 2^32 each
    }
    if (at != sample_bytes)
        return sp_error(SP_BAD_INPUT, "its columns take %lld bytes, but it has %lld", (long long)at,
                        (long long)sample_bytes);
    return SP_OK;
}

sp_status sp_mds_parse_array(const uint8_t *bytes, int64_t len, int64_t size,
                             const sp_mds_columns *c, sp_mds_array *out) {
    *out = (sp_mds_array){.type = c->type, .count = c->count};
    if (c->form == SP_MDS_FIXED) return SP_OK; // the size of the column has been checked
    int64_t at = 0;
    if (c->form == SP_MDS_PLAIN && size > 0 && len > 0) {
        for (int i = 0; i < N_TYPES; i++)
            if (types[i].code == bytes[0]) out->type = &types[i];
        if (!out->type)
            return sp_error(
                SP_BAD_INPUT,
                "its tokens are of type %d (first byte of the array); integer types are "
                "8, 9, 16, 17, 32, 33, 64 and 65",
                bytes[0]);
        at = 1;
    }
    if (size < at + 2 || len < at + 2)
        return sp_error(SP_BAD_INPUT, "a token array of %lld bytes", (long long)size);
    int dimensions = bytes[at] >> 2, width = 1 << (bytes[at] & 3);
    if (dimensions != 1)
        return sp_error(SP_BAD_INPUT,
                        "its tokens have %d dimensions (array head 0x%02x); a row has one",
                        dimensions, bytes[at]);
    at++;
    if (size < at + width || len < at + width)
        return sp_error(SP_BAD_INPUT, "a token array of %lld bytes with a length of %d bytes",
                        (long long)size, width);
    uint64_t n = 0;
    for (int i = 0; i < width; i++) n |= (uint64_t)bytes[at + i] << (8 * i);
    at += width;
    int64_t rest = size - at;
    if (n < 1 || n > INT32_MAX || (int64_t)n * out->type->size != rest)
        return sp_error(SP_BAD_INPUT, "its length is %llu tokens, but %lld bytes of tokens follow",
                        (unsigned long long)n, (long long)rest);
    out->values = at;
    out->count = (int64_t)n;
    return SP_OK;
}

#define CONVERT(T)                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T v;                                                                                       \
        memcpy(&v, from + i * (int64_t)sizeof v, sizeof v);                                        \
        const int64_t wide = (int64_t)v;                                                           \
        if (wide > INT32_MAX || wide < INT32_MIN) {                                                \
            *value = wide;                                                                         \
            return i;                                                                              \
        }                                                                                          \
        to[i] = (int32_t)wide;                                                                     \
    }                                                                                              \
    return n

int64_t sp_mds_convert(const uint8_t *from, int64_t n, const sp_mds_type *t, int32_t *to,
                       int64_t *value) {
    switch (t->code) {
    case 8:
        CONVERT(uint8_t);
    case 9:
        CONVERT(int8_t);
    case 16:
        CONVERT(uint16_t);
    case 17:
        CONVERT(int16_t);
    case 32:
        CONVERT(uint32_t);
    case 64: // above 2^63: negative, and refused by the caller
    case 65:
        CONVERT(int64_t);
    default: // int32
        memcpy(to, from, (size_t)n * sizeof *to);
        return n;
    }
}
