#include "data/mds_write.h"

#include "common/util.h"
#include "data/mds.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

struct sp_mds_writer {
    sp_mds_writer_args a;
    const sp_mds_type *type;
    bool plain, fixed;
    json_t *config, *shards;
    sp_text samples; // of the present shard
    uint32_t *end;   // of every sample, relative to the first
    int64_t rows, cap;
};

static void free_writer(sp_mds_writer *w) {
    json_decref(w->config);
    json_decref(w->shards);
    sp_text_free(&w->samples);
    free(w->end);
    free(w);
}

static void add_column(json_t *config, const char *name, const char *encoding, int64_t size) {
    json_array_append_new(json_object_get(config, "column_names"), json_string(name));
    json_array_append_new(json_object_get(config, "column_encodings"), json_string(encoding));
    json_array_append_new(json_object_get(config, "column_sizes"),
                          size ? json_integer((json_int_t)size) : json_null());
}

sp_status sp_mds_create(const sp_mds_writer_args *a, sp_mds_writer **out) {
    *out = NULL;
    SP_TRY(sp_mkdirs(a->dir));
    sp_mds_writer *w;
    SP_TRY(sp_alloc(&w, 1, sizeof *w, "an MDS writer"));
    w->a = *a;
    const char *type = strncmp(a->encoding, "ndarray:", 8) == 0 ? a->encoding + 8 : "int32";
    const char *shape = strchr(type, ':');
    w->plain = strcmp(a->encoding, "ndarray") == 0;
    w->fixed = shape != NULL;
    w->type = sp_mds_type_of(type, shape ? (size_t)(shape - type) : strlen(type));
    w->shards = json_array();
    char level[32];
    snprintf(level, sizeof level, "zstd:%d", a->zstd_level);
    w->config =
        json_pack("{s:i,s:s,s:s?,s:[],s:I,s:[],s:[],s:[]}", "version", 2, "format", "mds",
                  "compression", a->zstd_level ? level : NULL, "hashes", "size_limit",
                  (json_int_t)a->size_limit, "column_names", "column_encodings", "column_sizes");
    if (!w->type || !w->config || !w->shards) {
        free_writer(w);
        return sp_error(SP_BAD_INPUT, "an MDS data set cannot be written as '%s'", a->encoding);
    }
    if (a->hash) json_array_append_new(json_object_get(w->config, "hashes"), json_string(a->hash));
    add_column(w->config, "input_ids", a->encoding,
               shape ? strtoll(shape + 1, NULL, 10) * w->type->size : 0);
    if (a->length_column) add_column(w->config, "length", "int64", 8);
    *out = w;
    return SP_OK;
}

static void add_values(sp_mds_writer *w, const int32_t *tokens, int64_t n) {
    if (w->type->size == 4) {
        sp_text_bytes(&w->samples, tokens, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t v = tokens[i]; // little-endian: the low bytes come first
        sp_text_bytes(&w->samples, &v, w->type->size);
    }
}

static sp_status put_file(const sp_mds_writer *w, const char *name, const void *data, size_t n,
                          json_t *shard, const char *key) {
    char *path = sp_path_join(w->a.dir, name);
    json_t *hashes = json_object();
    char hex[SP_MDS_HASH_HEX];
    if (w->a.hash && sp_mds_hash_of(w->a.hash, data, n, hex))
        json_object_set_new(hashes, w->a.hash, json_string(hex));
    json_object_set_new(
        shard, key,
        json_pack("{s:s,s:I,s:o}", "basename", name, "bytes", (json_int_t)n, "hashes", hashes));
    FILE *f = path ? fopen(path, "wbe") : NULL;
    bool ok = f && fwrite(data, 1, n, f) == n;
    if (f && fclose(f) != 0) ok = false;
    sp_status st = ok ? SP_OK : sp_error(SP_ENVIRONMENT, "cannot write %s", path ? path : name);
    free(path);
    return st;
}

static sp_status put_packed(sp_mds_writer *w, const char *raw_name, const sp_text *raw,
                            json_t *shard) {
    size_t most = ZSTD_compressBound(raw->len);
    char *packed, *name = sp_format("%s.zstd", raw_name), hex[SP_MDS_HASH_HEX];
    SP_TRY(sp_alloc(&packed, (int64_t)most, 1, "a compressed shard"));
    size_t n = ZSTD_compress(packed, most, raw->data, raw->len, w->a.zstd_level);
    sp_status st = ZSTD_isError(n) || !name
                       ? sp_error(SP_ENVIRONMENT, "zstd cannot compress a shard")
                       : put_file(w, name, packed, n, shard, "zip_data");
    json_t *hashes = json_object();
    if (w->a.hash && sp_mds_hash_of(w->a.hash, (const uint8_t *)raw->data, raw->len, hex))
        json_object_set_new(hashes, w->a.hash, json_string(hex));
    json_object_set_new(shard, "raw_data",
                        json_pack("{s:s,s:I,s:o}", "basename", raw_name, "bytes",
                                  (json_int_t)raw->len, "hashes", hashes));
    free(packed);
    free(name);
    return st;
}

static sp_status flush(sp_mds_writer *w) {
    if (w->rows == 0) return SP_OK;
    char *config = json_dumps(w->config, JSON_SORT_KEYS);
    char *name = sp_format("shard.%05zu.mds", json_array_size(w->shards));
    json_t *shard = json_deep_copy(w->config);
    sp_text raw = {0};
    if (!config || !name || !shard) return sp_error(SP_ENVIRONMENT, "out of memory");
    const uint32_t n = (uint32_t)w->rows, first = 4 + 4 * (n + 1) + (uint32_t)strlen(config);
    sp_text_bytes(&raw, &n, 4);
    for (int64_t i = 0; i <= w->rows; i++) {
        uint32_t at = first + (i ? w->end[i - 1] : 0);
        sp_text_bytes(&raw, &at, 4);
    }
    sp_text_bytes(&raw, config, strlen(config));
    sp_text_bytes(&raw, w->samples.data, w->samples.len);
    sp_status st =
        raw.failed || w->samples.failed ? sp_error(SP_ENVIRONMENT, "out of memory") : SP_OK;
    json_object_set_new(shard, "samples", json_integer(w->rows));
    json_object_set_new(shard, "zip_data", json_null());
    if (st == SP_OK)
        st = w->a.zstd_level ? put_packed(w, name, &raw, shard)
                             : put_file(w, name, raw.data, raw.len, shard, "raw_data");
    json_array_append_new(w->shards, shard);
    sp_text_free(&raw);
    free(config);
    free(name);
    w->samples.len = 0;
    w->rows = 0;
    return st;
}

sp_status sp_mds_append(sp_mds_writer *w, const int32_t *tokens, int64_t n) {
    uint8_t head[10];
    uint32_t h = 0;
    if (!w->fixed) {
        int s = n <= UINT8_MAX ? 0 : n <= UINT16_MAX ? 1 : 2;
        if (w->plain) head[h++] = w->type->code;
        head[h++] = (uint8_t)(1 << 2 | s);
        for (int i = 0; i < 1 << s; i++) head[h++] = (uint8_t)(n >> (8 * i));
    }
    const int64_t size = h + n * w->type->size, length = n;
    const uint32_t size32 = (uint32_t)size;
    if (w->rows && (int64_t)w->samples.len + size > w->a.size_limit) SP_TRY(flush(w));
    if (!w->fixed) sp_text_bytes(&w->samples, &size32, 4);
    sp_text_bytes(&w->samples, head, h);
    add_values(w, tokens, n);
    if (w->a.length_column) sp_text_bytes(&w->samples, &length, 8);
    if (w->rows == w->cap) {
        int64_t cap = w->cap ? 2 * w->cap : 64;
        uint32_t *grown = realloc(w->end, (size_t)cap * sizeof *grown);
        if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for an MDS writer");
        w->end = grown;
        w->cap = cap;
    }
    w->end[w->rows++] = (uint32_t)w->samples.len;
    return SP_OK;
}

sp_status sp_mds_finish(sp_mds_writer *w) {
    sp_status st = flush(w);
    json_t *index = json_pack("{s:O,s:i}", "shards", w->shards, "version", 2);
    char *text = index ? json_dumps(index, JSON_SORT_KEYS) : NULL;
    char *path = sp_path_join(w->a.dir, "index.json");
    if (st == SP_OK)
        st = text && path ? sp_write_file(path, text, (int64_t)strlen(text))
                          : sp_error(SP_ENVIRONMENT, "out of memory");
    free(text);
    free(path);
    json_decref(index);
    free_writer(w);
    return st;
}
