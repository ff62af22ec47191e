// Writes a torch .pt that torch.load reads with weights_only=True and mmap=True (formats.md 3.3,
// inference.md 6.3): stored zip entries on 64-byte boundaries, a protocol 2 pickle with none but
// torch's own names, one storage per tensor. Equal contents give equal bytes: entry dates are
// fixed.
#include "checkpoints/checkpoints.h"
#include "common/hash.h"
#include "common/util.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, LOCAL_HEADER = 30, DOS_DATE_1980 = 0x0021 };

// ---- pickle -------------------------------------------------------------------------------------

static void put_le(sp_text *t, uint64_t v, int bytes) {
    uint8_t b[8];
    for (int i = 0; i < bytes; i++) b[i] = (uint8_t)(v >> (8 * i));
    sp_text_bytes(t, b, (size_t)bytes);
}

static void put_op(sp_text *t, int op) {
    put_le(t, (uint64_t)op, 1);
}

static void put_text(sp_text *t, const char *s) {
    put_op(t, 'X');
    put_le(t, strlen(s), 4);
    sp_text_bytes(t, s, strlen(s));
}

static void put_int(sp_text *t, int64_t v) {
    if (v >= INT32_MIN && v <= INT32_MAX) {
        put_op(t, 'J');
        put_le(t, (uint64_t)v, 4);
    } else {
        put_op(t, 0x8a);
        put_op(t, 8);
        put_le(t, (uint64_t)v, 8);
    }
}

static void put_float(sp_text *t, double v) {
    uint64_t bits;
    memcpy(&bits, &v, 8);
    put_op(t, 'G');
    for (int i = 7; i >= 0; i--) put_op(t, (int)(bits >> (8 * i) & 255));
}

static void put_global(sp_text *t, const char *module, const char *name) {
    sp_text_add(t, "c%s\n%s\n", module, name);
}

static void put_empty_ordered_dict(sp_text *t) {
    put_global(t, "collections", "OrderedDict");
    put_op(t, ')');
    put_op(t, 'R');
}

static void put_json(sp_text *t, const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_NULL:
        put_op(t, 'N');
        break;
    case JSON_TRUE:
        put_op(t, 0x88);
        break;
    case JSON_FALSE:
        put_op(t, 0x89);
        break;
    case JSON_INTEGER:
        put_int(t, json_integer_value(v));
        break;
    case JSON_REAL:
        put_float(t, json_real_value(v));
        break;
    case JSON_STRING:
        put_text(t, json_string_value(v));
        break;
    case JSON_ARRAY:
        put_op(t, ']');
        put_op(t, '(');
        for (size_t i = 0; i < json_array_size(v); i++) put_json(t, json_array_get(v, i));
        put_op(t, 'e');
        break;
    case JSON_OBJECT: {
        const char *key;
        json_t *item;
        put_op(t, '}');
        put_op(t, '(');
        json_object_foreach((json_t *)(uintptr_t)v, key, item) {
            put_text(t, key);
            put_json(t, item);
        }
        put_op(t, 'u');
        break;
    }
    }
}

// torch._utils._rebuild_tensor_v2(storage, 0, (rows, cols), (cols, 1), False, OrderedDict())
static void put_tensor(sp_text *t, int64_t index, int64_t rows, int64_t cols) {
    char key[24];
    snprintf(key, sizeof key, "%lld", (long long)index);
    put_global(t, "torch._utils", "_rebuild_tensor_v2");
    put_op(t, '(');
    put_op(t, '(');
    put_text(t, "storage");
    put_global(t, "torch", "BFloat16Storage");
    put_text(t, key);
    put_text(t, "cpu");
    put_int(t, rows * cols);
    put_op(t, 't');
    put_op(t, 'Q');
    put_int(t, 0);
    put_int(t, rows);
    put_int(t, cols);
    put_op(t, 0x86);
    put_int(t, cols);
    put_int(t, 1);
    put_op(t, 0x86);
    put_op(t, 0x89);
    put_empty_ordered_dict(t);
    put_op(t, 't');
    put_op(t, 'R');
}

// Scored layers in the order of training.md 2.1: layer 0 future, layer 0 current, layer 1 future...
static int64_t in_file_order(int64_t i) {
    return i < 2 ? 1 - i : i;
}

static void put_checkpoint(sp_text *t, const sp_forecast *f, int64_t step,
                           const json_t *sparse_config, const char *base_model) {
    put_op(t, 0x80);
    put_op(t, 2);
    put_op(t, '}');
    put_op(t, '(');
    put_text(t, "model_state_dict");
    put_empty_ordered_dict(t);
    put_op(t, '(');
    for (int64_t i = 0; i <= f->layers; i++) {
        char name[64];
        sp_forecast_name(in_file_order(i), name);
        put_text(t, name);
        put_tensor(t, i, f->rows, f->cols);
    }
    put_op(t, 'u');
    put_text(t, "step");
    put_int(t, step);
    put_text(t, "sparse_config");
    put_json(t, sparse_config);
    put_text(t, "base_model_path");
    put_text(t, base_model);
    put_op(t, 'u');
    put_op(t, '.');
}

// ---- zip ----------------------------------------------------------------------------------------

typedef struct archive {
    sp_atomic file;
    int64_t at;        // bytes written so far
    sp_text directory; // central headers so far
    int64_t entries;
    char *stem;
} archive;

static sp_status write_bytes(archive *a, const void *data, int64_t bytes) {
    SP_TRY(sp_atomic_write(&a->file, data, bytes));
    a->at += bytes;
    return SP_OK;
}

// Fields that the local and the central header share, from "version needed" on.
static void put_common(sp_text *h, uint32_t crc, int64_t bytes, size_t name_len, int64_t extra) {
    put_le(h, 0, 2);             // needs version 0
    put_le(h, 1 << 11, 2);       // UTF-8 names
    put_le(h, 0, 2);             // stored
    put_le(h, 0, 2);             // time
    put_le(h, DOS_DATE_1980, 2); // date
    put_le(h, crc, 4);
    put_le(h, (uint64_t)bytes, 4);
    put_le(h, (uint64_t)bytes, 4);
    put_le(h, name_len, 2);
    put_le(h, (uint64_t)extra, 2);
}

// An entry whose data begins on a 64-byte boundary, thanks to an extra field of padding.
static sp_status add_entry(archive *a, const char *name, const void *data, int64_t bytes) {
    char *full = sp_format("%s/%s", a->stem, name);
    if (!full) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_text h = {0};
    size_t len = strlen(full);
    uint32_t crc = sp_crc32(0, data, (size_t)bytes);
    int64_t start = a->at, end = start + LOCAL_HEADER + (int64_t)len + 4;
    int64_t padding = (ALIGN - end % ALIGN) % ALIGN;
    sp_status st = SP_OK;
    if (end + padding + bytes > UINT32_MAX)
        SP_GO(sp_error(SP_BAD_INPUT,
                       "%s would be larger than 4 GiB, which this writer of .pt files does not do; "
                       "export with --format safetensors",
                       a->file.path));
    put_le(&h, 0x04034b50, 4);
    put_common(&h, crc, bytes, len, 4 + padding);
    sp_text_bytes(&h, full, len);
    sp_text_bytes(&h, "FB", 2);
    put_le(&h, (uint64_t)padding, 2);
    for (int64_t i = 0; i < padding; i++) put_op(&h, 'Z');
    if (h.failed) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    SP_GO(write_bytes(a, h.data, (int64_t)h.len));
    SP_GO(write_bytes(a, data, bytes));

    put_le(&a->directory, 0x02014b50, 4);
    put_le(&a->directory, 0, 2); // made by version 0, MS-DOS: no file attributes
    put_common(&a->directory, crc, bytes, len, 0);
    put_le(&a->directory, 0, 2);               // no comment
    put_le(&a->directory, 0, 2);               // disk 0
    put_le(&a->directory, 0, 2);               // internal attributes
    put_le(&a->directory, 0, 4);               // external attributes
    put_le(&a->directory, (uint64_t)start, 4); // local header
    sp_text_bytes(&a->directory, full, len);
    a->entries++;
done:
    sp_text_free(&h);
    free(full);
    return st;
}

static sp_status end_archive(archive *a) {
    sp_text *d = &a->directory;
    int64_t start = a->at, bytes = (int64_t)d->len;
    if (start + bytes > UINT32_MAX || a->entries > UINT16_MAX)
        return sp_error(SP_BAD_INPUT, "%s: too many tensors for a .pt of this writer",
                        a->file.path);
    put_le(d, 0x06054b50, 4);
    put_le(d, 0, 4); // this disk, directory's disk
    put_le(d, (uint64_t)a->entries, 2);
    put_le(d, (uint64_t)a->entries, 2);
    put_le(d, (uint64_t)bytes, 4);
    put_le(d, (uint64_t)start, 4);
    put_le(d, 0, 2); // no comment
    if (d->failed) return sp_error(SP_ENVIRONMENT, "out of memory");
    return write_bytes(a, d->data, (int64_t)d->len);
}

static sp_status add_tensors(archive *a, const sp_forecast *f) {
    int64_t n = f->rows * f->cols;
    uint16_t *half;
    SP_TRY(sp_alloc(&half, n, sizeof *half, "a tensor to be written"));
    sp_status st = SP_OK;
    for (int64_t i = 0; st == SP_OK && i <= f->layers; i++) {
        char name[32];
        const float *w = sp_forecast_matrix(f, in_file_order(i));
        for (int64_t j = 0; j < n; j++) half[j] = sp_f32_to_bf16(w[j]);
        snprintf(name, sizeof name, "data/%lld", (long long)i);
        st = add_entry(a, name, half, n * (int64_t)sizeof *half);
    }
    free(half);
    return st;
}

sp_status sp_pt_write(const char *path, const sp_forecast *f, int64_t step, json_t *sparse_config,
                      const char *base_model) {
    archive a = {0};
    sp_text pickle = {0};
    sp_status st = SP_OK;
    // The top folder is named after the file, as torch does.
    const char *base = sp_path_base(path), *dot = strrchr(base, '.');
    a.stem = sp_format("%.*s", dot && dot != base ? (int)(dot - base) : (int)strlen(base), base);
    put_checkpoint(&pickle, f, step, sparse_config, base_model);
    if (!a.stem || pickle.failed) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    SP_GO(sp_atomic_open(&a.file, path));
    SP_GO(add_entry(&a, "data.pkl", pickle.data, (int64_t)pickle.len));
    SP_GO(add_entry(&a, "byteorder", "little", 6));
    SP_GO(add_tensors(&a, f));
    SP_GO(add_entry(&a, "version", "3\n", 2));
    SP_GO(end_archive(&a));
    SP_GO(sp_atomic_commit(&a.file));
done:
    sp_atomic_abandon(&a.file);
    sp_text_free(&a.directory);
    sp_text_free(&pickle);
    free(a.stem);
    return st;
}
