// See data/shard_sets.h.
#include "data/shard_sets.h"

#include "common/contents.h"
#include "common/hash.h"
#include "common/util.h"
#include "data/shard.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

sp_status sp_shard_bad(const char *path, const char *fmt, ...) {
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) text = NULL;
    va_end(ap);
    sp_status st = sp_error(SP_BAD_INPUT, "%s: %s", path, text ? text : "not a valid token shard");
    free(text);
    return st;
}

sp_status sp_shard_explain_open(const char *path) {
    char *reason = sp_strdup(sp_h5_reason());
    sp_map m;
    sp_status st = sp_map_open(path, &m);
    if (st == SP_OK) {
        const char *is = sp_contents_of(m.data, m.bytes);
        if (is && H5Fis_hdf5(path) <= 0)
            st = sp_shard_bad(path, "expected an HDF5 token shard, but this is %s", is);
        else if (H5Fis_hdf5(path) == 0)
            st = sp_shard_bad(
                path, "expected an HDF5 token shard, but this is not an HDF5 file; 'sparda data "
                      "import' makes shards of .jsonl and .bin files");
        else
            st = sp_shard_bad(path,
                              "HDF5 cannot open it: %s. The file may be cut short or damaged, or "
                              "locked by another program (try HDF5_USE_FILE_LOCKING=FALSE)",
                              reason ? reason : "unknown reason");
        sp_map_close(&m);
    }
    free(reason);
    return st;
}

sp_status sp_shard_get_integer(hid_t object, const char *path, const char *name, int64_t *out) {
    if (H5Aexists(object, name) <= 0)
        return sp_shard_bad(path, "the attribute '%s' is missing", name);
    hid_t a = H5Aopen(object, name, H5P_DEFAULT), type = H5Aget_type(a), space = H5Aget_space(a);
    bool ok = a >= 0 && H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) <= 8 &&
              H5Sget_simple_extent_npoints(space) == 1 && H5Aread(a, H5T_NATIVE_INT64, out) >= 0;
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(a);
    return ok ? SP_OK : sp_shard_bad(path, "the attribute '%s' is not one whole number", name);
}

sp_status sp_shard_get_text(hid_t object, const char *path, const char *name, char **out) {
    *out = NULL;
    if (H5Aexists(object, name) <= 0)
        return sp_shard_bad(path, "the attribute '%s' is missing", name);
    hid_t a = H5Aopen(object, name, H5P_DEFAULT), type = H5Aget_type(a), space = H5Aget_space(a);
    sp_status st = SP_OK;
    if (a < 0 || H5Tget_class(type) != H5T_STRING || H5Sget_simple_extent_npoints(space) != 1) {
        st = sp_shard_bad(path, "the attribute '%s' is not one text", name);
    } else if (H5Tis_variable_str(type) > 0) {
        char *text = NULL;
        if (H5Aread(a, type, &text) < 0 || !text)
            st = sp_shard_bad(path, "the attribute '%s' cannot be read", name);
        else if (strlen(text) > SP_SHARD_TEXT_MAX)
            st = sp_shard_bad(path, "the attribute '%s' has %zu bytes; at most %d are expected",
                              name, strlen(text), SP_SHARD_TEXT_MAX);
        else
            *out = sp_strdup(text);
        if (text) H5free_memory(text);
    } else if (H5Tget_size(type) > SP_SHARD_TEXT_MAX) {
        st = sp_shard_bad(path, "the attribute '%s' has %zu bytes; at most %d are expected", name,
                          H5Tget_size(type), SP_SHARD_TEXT_MAX);
    } else {
        st = sp_alloc(out, (int64_t)H5Tget_size(type) + 1, 1, "an attribute");
        if (st == SP_OK && H5Aread(a, type, *out) < 0)
            st = sp_shard_bad(path, "the attribute '%s' cannot be read", name);
    }
    if (st == SP_OK && !*out) st = sp_error(SP_ENVIRONMENT, "out of memory");
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(a);
    return st;
}

sp_status sp_shard_open_set(hid_t file, const char *path, const char *name, int size,
                            bool is_signed, hid_t *out, int64_t *n) {
    *out = -1;
    *n = 0;
    switch (sp_h5_look(file, name)) {
    case SP_H5_ABSENT:
        return sp_shard_bad(path, "the data set '%s' is missing", name);
    case SP_H5_LINK:
        return sp_shard_bad(
            path,
            "'%s' is a link, which could lead to another file and is not followed; store "
            "the data set itself under this name",
            name);
    case SP_H5_OBJECT:
        break;
    }
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 0, 0, 1.0); // a row is read as it lies, without its whole chunk
    hid_t d = H5Dopen2(file, name, access);
    H5Pclose(access);
    if (d < 0)
        return sp_shard_bad(path, "'%s' cannot be opened as a data set: %s", name, sp_h5_reason());
    const char *elsewhere = sp_h5_stored_elsewhere(d);
    if (elsewhere) {
        H5Dclose(d);
        return sp_shard_bad(
            path, "the values of '%s' are stored %s, which are not read; store them in this file",
            name, elsewhere);
    }

    hid_t type = H5Dget_type(d), space = H5Dget_space(d), plist = H5Dget_create_plist(d);
    H5T_class_t class = H5Tget_class(type);
    hsize_t dim = 0;
    sp_status st = SP_OK;
    if (size ? class != H5T_INTEGER || H5Tget_size(type) != (size_t)size ||
                   (H5Tget_sign(type) == H5T_SGN_2) != is_signed
             : class != H5T_STRING)
        st = size ? sp_shard_bad(path, "'%s' must hold %ssigned %d-bit integers", name,
                                 is_signed ? "" : "un", 8 * size)
                  : sp_shard_bad(path, "'%s' must hold texts", name);
    else if (H5Sget_simple_extent_ndims(space) != 1 ||
             H5Sget_simple_extent_dims(space, &dim, NULL) != 1)
        st = sp_shard_bad(path, "'%s' must have one dimension", name);
    if (st == SP_OK) {
        // No filter of HDF5 packs more than about 1:1030. What is said to be stored is a claim,
        // too: overlapping chunks or a length beyond the end of the file.
        hsize_t file_bytes = 0, chunk = 0;
        int64_t stored = (int64_t)H5Dget_storage_size(d), need, most, chunk_bytes = 0;
        bool packed = H5Pget_nfilters(plist) > 0;
        int64_t element = (int64_t)H5Tget_size(type);
        H5Fget_filesize(file, &file_bytes);
        if (packed && H5Pget_chunk(plist, 1, &chunk) != 1) chunk = 0;
        if (!sp_h5_usual_filters(plist))
            st = sp_shard_bad(
                path,
                "'%s' has a filter that is not read; known are deflate (gzip), shuffle and "
                "fletcher32",
                name);
        else if (dim > INT64_MAX || !sp_mul((int64_t)dim, element, &need) || stored < 0 ||
                 !sp_mul(stored, packed ? 1100 : 1, &most) || need > most)
            st = sp_shard_bad(path, "'%s' claims %llu elements, but only %lld bytes are stored",
                              name, (unsigned long long)dim, (long long)stored);
        else if ((hsize_t)stored > file_bytes)
            st = sp_shard_bad(path, "'%s' claims %lld stored bytes in a file of %llu", name,
                              (long long)stored, (unsigned long long)file_bytes);
        else if (stored > 0 && packed &&
                 (!sp_mul((int64_t)chunk, element, &chunk_bytes) || chunk_bytes > most))
            st = sp_shard_bad(path,
                              "'%s' has chunks of %llu elements, but only %lld bytes are stored",
                              name, (unsigned long long)chunk, (long long)stored);
    }
    H5Pclose(plist);
    H5Sclose(space);
    H5Tclose(type);
    if (st != SP_OK) {
        H5Dclose(d);
        return st;
    }
    *out = d;
    *n = (int64_t)dim;
    return SP_OK;
}

bool sp_shard_read_with(hid_t transfer, hid_t set, hid_t memory_type, int64_t start, int64_t n,
                        void *out) {
    if (n == 0) return true;
    hsize_t from = (hsize_t)start, count = (hsize_t)n;
    hid_t file = H5Dget_space(set), memory = H5Screate_simple(1, &count, NULL);
    bool ok = file >= 0 && memory >= 0 &&
              H5Sselect_hyperslab(file, H5S_SELECT_SET, &from, NULL, &count, NULL) >= 0 &&
              H5Dread(set, memory_type, memory, file, transfer, out) >= 0;
    H5Sclose(memory);
    H5Sclose(file);
    return ok;
}

bool sp_shard_read_range(hid_t set, hid_t memory_type, int64_t start, int64_t n, void *out) {
    return sp_shard_read_with(H5P_DEFAULT, set, memory_type, start, n, out);
}

// ---- walking through a column in checksum blocks ------------------------------------------------

static sp_status get_checksums(const sp_shard_walk_args *w, uint64_t **sum, int64_t *block) {
    *sum = NULL;
    char *name = sp_format("%s_xxh3", w->name);
    if (!name) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = SP_OK;
    hid_t set = -1;
    int64_t n = 0;
    if (sp_h5_look(w->file, name) != SP_H5_ABSENT) {
        SP_GO(sp_shard_open_set(w->file, w->path, name, 8, false, &set, &n));
        SP_GO(sp_shard_get_integer(set, w->path, "block", block));
        if (*block < 1 || *block > SP_SHARD_BLOCK_MAX ||
            n != w->n / *block + (w->n % *block != 0)) {
            st = sp_shard_bad(w->path,
                              "'%s' has %lld checksums of blocks of %lld, which does not suit %lld "
                              "elements of '%s'",
                              name, (long long)n, (long long)*block, (long long)w->n, w->name);
            goto done;
        }
        SP_GO(sp_alloc(sum, n, sizeof **sum, "checksums"));
        if (!sp_shard_read_range(set, H5T_NATIVE_UINT64, 0, n, *sum))
            st = sp_shard_bad(w->path, "'%s' cannot be read: %s", name, sp_h5_reason());
    }
done:
    if (set >= 0) H5Dclose(set);
    free(name);
    return st;
}

sp_status sp_shard_walk(const sp_shard_walk_args *w, sp_shard_visit f, void *user,
                        int64_t *checked) {
    uint64_t *sum = NULL;
    void *values = NULL;
    int64_t block = SP_SHARD_TOKEN_BLOCK;
    sp_status st = SP_OK;
    SP_GO(get_checksums(w, &sum, &block));
    if (block > w->n) block = w->n;
    SP_GO(sp_alloc(&values, block, w->size, "a block of a token shard"));
    for (int64_t at = 0, i = 0; at < w->n; at += block, i++) {
        int64_t n = w->n - at < block ? w->n - at : block;
        if (!sp_shard_read_range(w->set, w->memory_type, at, n, values)) {
            st = sp_shard_bad(w->path, "'%s' cannot be read at element %lld: %s", w->name,
                              (long long)at, sp_h5_reason());
            goto done;
        }
        if (sum && sp_xxh3(values, (size_t)(n * w->size)) != sum[i]) {
            st = sp_shard_bad(w->path,
                              "'%s' is damaged: elements %lld to %lld do not have their checksum. "
                              "Make or fetch the file again",
                              w->name, (long long)at, (long long)(at + n - 1));
            goto done;
        }
        *checked += sum != NULL;
        if (w->unlock) sp_h5_end();
        st = f(user, values, at, n);
        if (w->unlock) sp_h5_begin();
        SP_GO(st);
    }
done:
    free(values);
    free(sum);
    return st;
}
