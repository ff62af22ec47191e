// Reading HDF5 token shards, our own and those that others write with any HDF5 library.
//
// Opening reads everything but the tokens, in blocks, and checks it; it keeps the length of every
// row (4 bytes each). The file is then closed again: of all shards of the process at most
// OPEN_MAX are open at a time, so that ten thousand shards need no ten thousand descriptors.
//
// All HDF5 calls are between sp_h5_begin and sp_h5_end, which also guard the list of open shards.
#include "common/contents.h"
#include "common/h5.h"
#include "common/hash.h"
#include "common/util.h"
#include "data/shard.h"
#include "data/source.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { OPEN_MAX = 64, STRIDE = 1024 };

typedef struct shard {
    sp_source base;
    int64_t tokens;
    uint32_t *length; // [rows]
    uint64_t *start;  // offset of every STRIDE-th row
    bool has_domains;
    int64_t checked;    // checksums compared on opening
    atomic_bool loaded; // all of the above is there
    // Guarded by the HDF5 lock:
    hid_t file, set;
    struct shard *newer, *older; // list of open shards
} shard;

static shard *newest, *oldest;
static int n_open;

// ---- small pieces of HDF5; between sp_h5_begin and sp_h5_end ------------------------------------

static sp_status bad(const char *path, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static sp_status bad(const char *path, const char *fmt, ...) {
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) text = NULL;
    va_end(ap);
    sp_status st = sp_error(SP_BAD_INPUT, "%s: %s", path, text ? text : "not a valid token shard");
    free(text);
    return st;
}

// The reason why HDF5 does not open the file, as far as its first bytes tell.
static sp_status explain_open(const char *path) {
    char *reason = sp_strdup(sp_h5_reason());
    sp_map m;
    sp_status st = sp_map_open(path, &m);
    if (st == SP_OK) {
        const char *is = sp_contents_of(m.data, m.bytes);
        if (is && H5Fis_hdf5(path) <= 0)
            st = bad(path, "expected an HDF5 token shard, but this is %s", is);
        else if (H5Fis_hdf5(path) == 0)
            st = bad(path, "expected an HDF5 token shard, but this is not an HDF5 file");
        else
            st = bad(path,
                     "HDF5 cannot open it: %s. The file may be cut short or damaged, or "
                     "locked by another program (try HDF5_USE_FILE_LOCKING=FALSE)",
                     reason ? reason : "unknown reason");
        sp_map_close(&m);
    }
    free(reason);
    return st;
}

static sp_status get_integer(hid_t object, const char *path, const char *name, int64_t *out) {
    if (H5Aexists(object, name) <= 0) return bad(path, "the attribute '%s' is missing", name);
    hid_t a = H5Aopen(object, name, H5P_DEFAULT), type = H5Aget_type(a), space = H5Aget_space(a);
    bool ok = a >= 0 && H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) <= 8 &&
              H5Sget_simple_extent_npoints(space) == 1 && H5Aread(a, H5T_NATIVE_INT64, out) >= 0;
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(a);
    return ok ? SP_OK : bad(path, "the attribute '%s' is not one whole number", name);
}

// A text of fixed or variable size. Caller frees.
static sp_status get_text(hid_t object, const char *path, const char *name, char **out) {
    *out = NULL;
    if (H5Aexists(object, name) <= 0) return bad(path, "the attribute '%s' is missing", name);
    hid_t a = H5Aopen(object, name, H5P_DEFAULT), type = H5Aget_type(a), space = H5Aget_space(a);
    sp_status st = SP_OK;
    if (a < 0 || H5Tget_class(type) != H5T_STRING || H5Sget_simple_extent_npoints(space) != 1) {
        st = bad(path, "the attribute '%s' is not one text", name);
    } else if (H5Tis_variable_str(type) > 0) {
        char *text = NULL;
        if (H5Aread(a, type, &text) < 0 || !text)
            st = bad(path, "the attribute '%s' cannot be read", name);
        else if (strlen(text) > SP_SHARD_TEXT_MAX)
            st = bad(path, "the attribute '%s' has %zu bytes; at most %d are expected", name,
                     strlen(text), SP_SHARD_TEXT_MAX);
        else
            *out = sp_strdup(text);
        if (text) H5free_memory(text);
    } else if (H5Tget_size(type) > SP_SHARD_TEXT_MAX) {
        st = bad(path, "the attribute '%s' has %zu bytes; at most %d are expected", name,
                 H5Tget_size(type), SP_SHARD_TEXT_MAX);
    } else {
        st = sp_alloc(out, (int64_t)H5Tget_size(type) + 1, 1, "an attribute");
        if (st == SP_OK && H5Aread(a, type, *out) < 0)
            st = bad(path, "the attribute '%s' cannot be read", name);
    }
    if (st == SP_OK && !*out) st = sp_error(SP_ENVIRONMENT, "out of memory");
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(a);
    return st;
}

// A one-dimensional data set of integers of `size` bytes, or of texts if size is 0. Its claimed
// length is compared with the bytes really stored, so that the caller may allocate by it.
static sp_status open_set(hid_t file, const char *path, const char *name, int size, bool is_signed,
                          hid_t *out, int64_t *n) {
    *out = -1;
    *n = 0;
    switch (sp_h5_look(file, name)) {
    case SP_H5_ABSENT:
        return bad(path, "the data set '%s' is missing", name);
    case SP_H5_LINK:
        return bad(path,
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
    if (d < 0) return bad(path, "'%s' cannot be opened as a data set: %s", name, sp_h5_reason());
    const char *elsewhere = sp_h5_stored_elsewhere(d);
    if (elsewhere) {
        H5Dclose(d);
        return bad(path,
                   "the values of '%s' are stored %s, which are not read; store them in this file",
                   name, elsewhere);
    }

    hid_t type = H5Dget_type(d), space = H5Dget_space(d), plist = H5Dget_create_plist(d);
    H5T_class_t class = H5Tget_class(type);
    hsize_t dim = 0;
    sp_status st = SP_OK;
    if (size ? class != H5T_INTEGER || H5Tget_size(type) != (size_t)size ||
                   (H5Tget_sign(type) == H5T_SGN_2) != is_signed
             : class != H5T_STRING)
        st = size ? bad(path, "'%s' must hold %ssigned %d-bit integers", name,
                        is_signed ? "" : "un", 8 * size)
                  : bad(path, "'%s' must hold texts", name);
    else if (H5Sget_simple_extent_ndims(space) != 1 ||
             H5Sget_simple_extent_dims(space, &dim, NULL) != 1)
        st = bad(path, "'%s' must have one dimension", name);
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
            st = bad(path,
                     "'%s' has a filter that is not read; known are deflate (gzip), shuffle and "
                     "fletcher32",
                     name);
        else if (dim > INT64_MAX || !sp_mul((int64_t)dim, element, &need) || stored < 0 ||
                 !sp_mul(stored, packed ? 1100 : 1, &most) || need > most)
            st = bad(path, "'%s' claims %llu elements, but only %lld bytes are stored", name,
                     (unsigned long long)dim, (long long)stored);
        else if ((hsize_t)stored > file_bytes)
            st = bad(path, "'%s' claims %lld stored bytes in a file of %llu", name,
                     (long long)stored, (unsigned long long)file_bytes);
        else if (stored > 0 && packed &&
                 (!sp_mul((int64_t)chunk, element, &chunk_bytes) || chunk_bytes > most))
            st = bad(path, "'%s' has chunks of %llu elements, but only %lld bytes are stored", name,
                     (unsigned long long)chunk, (long long)stored);
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

static bool read_with(hid_t transfer, hid_t set, hid_t memory_type, int64_t start, int64_t n,
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

static bool read_range(hid_t set, hid_t memory_type, int64_t start, int64_t n, void *out) {
    return read_with(H5P_DEFAULT, set, memory_type, start, n, out);
}

// ---- walking through a column in checksum blocks ------------------------------------------------

typedef sp_status (*visit)(void *user, const void *values, int64_t first, int64_t n);

typedef struct walk_args {
    hid_t file, set;
    const char *path, *name;
    hid_t memory_type;
    int64_t size, n; // bytes of an element, elements
    bool unlock;     // let other threads use HDF5 while a block is visited
} walk_args;

static sp_status get_checksums(const walk_args *w, uint64_t **sum, int64_t *block) {
    *sum = NULL;
    char *name = sp_format("%s_xxh3", w->name);
    if (!name) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = SP_OK;
    hid_t set = -1;
    int64_t n = 0;
    if (sp_h5_look(w->file, name) != SP_H5_ABSENT) {
        SP_GO(open_set(w->file, w->path, name, 8, false, &set, &n));
        SP_GO(get_integer(set, w->path, "block", block));
        if (*block < 1 || *block > SP_SHARD_BLOCK_MAX ||
            n != w->n / *block + (w->n % *block != 0)) {
            st = bad(w->path,
                     "'%s' has %lld checksums of blocks of %lld, which does not suit %lld "
                     "elements of '%s'",
                     name, (long long)n, (long long)*block, (long long)w->n, w->name);
            goto done;
        }
        SP_GO(sp_alloc(sum, n, sizeof **sum, "checksums"));
        if (!read_range(set, H5T_NATIVE_UINT64, 0, n, *sum))
            st = bad(w->path, "'%s' cannot be read: %s", name, sp_h5_reason());
    }
done:
    if (set >= 0) H5Dclose(set);
    free(name);
    return st;
}

// Calls `f` on every block in order, after comparing its checksum if there is one; adds the number
// of comparisons to *checked.
static sp_status walk(const walk_args *w, visit f, void *user, int64_t *checked) {
    uint64_t *sum = NULL;
    void *values = NULL;
    int64_t block = SP_SHARD_TOKEN_BLOCK;
    sp_status st = SP_OK;
    SP_GO(get_checksums(w, &sum, &block));
    if (block > w->n) block = w->n;
    SP_GO(sp_alloc(&values, block, w->size, "a block of a token shard"));
    for (int64_t at = 0, i = 0; at < w->n; at += block, i++) {
        int64_t n = w->n - at < block ? w->n - at : block;
        if (!read_range(w->set, w->memory_type, at, n, values)) {
            st = bad(w->path, "'%s' cannot be read at element %lld: %s", w->name, (long long)at,
                     sp_h5_reason());
            goto done;
        }
        if (sum && sp_xxh3(values, (size_t)(n * w->size)) != sum[i]) {
            st = bad(w->path,
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

// ---- the columns --------------------------------------------------------------------------------

typedef struct offset_args {
    shard *s;
    uint64_t last; // offset before the block
} offset_args;

static sp_status take_offsets(void *user, const void *values, int64_t first, int64_t n) {
    offset_args *a = user;
    shard *s = a->s;
    const uint64_t *offset = values;
    for (int64_t i = 0; i < n; i++) {
        int64_t k = first + i; // offset k ends row k-1
        uint64_t before = i ? offset[i - 1] : a->last;
        if (k == 0 && offset[0] != 0)
            return bad(s->base.path, "offsets[0] is %llu; the first row must start at 0",
                       (unsigned long long)offset[0]);
        if (k > 0 && (offset[i] <= before || offset[i] > (uint64_t)s->tokens))
            return bad(s->base.path,
                       "offsets[%lld] is %llu after %llu, with %lld tokens in the file; offsets "
                       "must grow and stay inside (no row is empty)",
                       (long long)k, (unsigned long long)offset[i], (unsigned long long)before,
                       (long long)s->tokens);
        if (k > 0 && offset[i] - before > INT32_MAX)
            return bad(s->base.path, "row %lld has %llu tokens; at most 2147483647 are possible",
                       (long long)k - 1, (unsigned long long)(offset[i] - before));
        if (k > 0) s->length[k - 1] = (uint32_t)(offset[i] - before);
        if (k % STRIDE == 0) s->start[k / STRIDE] = offset[i];
    }
    a->last = offset[n - 1];
    if (first + n == s->base.rows + 1 && a->last != (uint64_t)s->tokens)
        return bad(s->base.path, "the last offset is %llu, but there are %lld tokens",
                   (unsigned long long)a->last, (long long)s->tokens);
    return SP_OK;
}

// Memory for names of variable length. Any number of them may refer to the same bytes of the file,
// so there is a limit for all, too.
static void *name_alloc(size_t bytes, void *user) {
    int64_t *left = user;
    if (bytes > SP_SHARD_TEXT_MAX + 1 || (int64_t)bytes > *left) return NULL;
    *left -= (int64_t)bytes;
    return malloc(bytes);
}

static void name_free(void *p, void *user) {
    (void)user;
    free(p);
}

static bool read_variable(shard *s, hid_t file, hid_t set, hid_t type, int64_t n, char **texts) {
    hsize_t file_bytes = 0;
    H5Fget_filesize(file, &file_bytes);
    int64_t left = (int64_t)file_bytes + n; // every name and its final zero
    hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_vlen_mem_manager(transfer, name_alloc, &left, name_free, NULL);
    bool ok = read_with(transfer, set, type, 0, n, texts);
    H5Pclose(transfer);
    for (int64_t i = 0; i < n; i++) s->base.domain[i] = texts[i] ? texts[i] : sp_strdup("");
    return ok;
}

static sp_status read_names(shard *s, hid_t file) {
    const char *path = s->base.path;
    hid_t set = -1, type = -1;
    int64_t n = 0;
    char *table = NULL, **texts = NULL;
    sp_status st = SP_OK;
    SP_GO(open_set(file, path, "domain_names", 0, false, &set, &n));
    type = H5Dget_type(set);
    int64_t width = (int64_t)H5Tget_size(type);
    bool variable = H5Tis_variable_str(type) > 0;
    if (n < 1 || n > SP_SHARD_DOMAINS_MAX || (!variable && width > SP_SHARD_TEXT_MAX)) {
        st = bad(path,
                 "'domain_names' has %lld names of up to %lld bytes; expected 1 to %d names "
                 "of up to %d bytes",
                 (long long)n, (long long)width, SP_SHARD_DOMAINS_MAX, SP_SHARD_TEXT_MAX);
        goto done;
    }
    SP_GO(sp_alloc(&s->base.domain, n, sizeof *s->base.domain, "domain names"));
    s->base.n_domains = n;
    bool ok;
    if (variable) {
        SP_GO(sp_alloc(&texts, n, sizeof *texts, "domain names"));
        ok = read_variable(s, file, set, type, n, texts);
    } else {
        SP_GO(sp_alloc(&table, n, width, "domain names"));
        ok = read_range(set, type, 0, n, table);
        for (int64_t i = 0; i < n; i++)
            s->base.domain[i] = strndup(table + i * width, (size_t)width);
    }
    if (!ok) st = bad(path, "'domain_names' cannot be read: %s", sp_h5_reason());
    for (int64_t i = 0; i < n && st == SP_OK; i++)
        if (!s->base.domain[i]) st = sp_error(SP_ENVIRONMENT, "out of memory for domain names");
done:
    free(table);
    free(texts);
    if (type >= 0) H5Tclose(type);
    if (set >= 0) H5Dclose(set);
    return st;
}

// A shard without a table of domains is one domain, named after the file.
static sp_status read_domain_table(shard *s, hid_t file) {
    bool column = sp_h5_look(file, "domain") != SP_H5_ABSENT;
    bool names = sp_h5_look(file, "domain_names") != SP_H5_ABSENT;
    if (column != names)
        return bad(s->base.path, "'domain' and 'domain_names' must come together; '%s' is missing",
                   column ? "domain_names" : "domain");
    if (!column) {
        SP_TRY(sp_alloc(&s->base.domain, 1, sizeof *s->base.domain, "domain names"));
        s->base.n_domains = 1;
        const char *name = sp_path_base(s->base.path), *dot = strrchr(name, '.');
        s->base.domain[0] = dot && dot > name ? strndup(name, (size_t)(dot - name)) : strdup(name);
        return s->base.domain[0] ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    }
    s->has_domains = true;
    hid_t set;
    int64_t n;
    SP_TRY(open_set(file, s->base.path, "domain", 4, true, &set, &n));
    H5Dclose(set);
    if (n != s->base.rows)
        return bad(s->base.path, "'domain' has %lld elements for %lld rows", (long long)n,
                   (long long)s->base.rows);
    return read_names(s, file);
}

// Everything but the tokens. `set` is the open data set 'tokens'.
static sp_status read_header(shard *s, hid_t file, hid_t *set) {
    const char *path = s->base.path;
    char *format = NULL;
    int64_t version = 0, n = 0;
    hid_t offsets = -1;
    sp_status st = SP_OK;
    *set = -1;
    if (H5Aexists(file, "format") <= 0)
        return bad(path, "an HDF5 file, but no token shard: the attribute 'format' is missing "
                         "(data/README.md says how to make one)");
    SP_GO(get_text(file, path, "format", &format));
    if (strcmp(format, SP_SHARD_FORMAT) != 0) {
        st = bad(path, "an HDF5 file of format '%s'; token shards have '%s'", format,
                 SP_SHARD_FORMAT);
        goto done;
    }
    SP_GO(get_integer(file, path, "version", &version));
    if (version != SP_SHARD_VERSION) {
        st = bad(path, "token shard of version %lld; this program reads version %d",
                 (long long)version, SP_SHARD_VERSION);
        goto done;
    }
    SP_GO(get_integer(file, path, "vocab", &s->base.vocab));
    if (s->base.vocab < 1 || s->base.vocab > INT32_MAX) {
        st = bad(path, "a vocabulary of %lld tokens", (long long)s->base.vocab);
        goto done;
    }
    SP_GO(get_text(file, path, "tokenizer", &s->base.tokenizer));
    SP_GO(open_set(file, path, "tokens", 4, true, set, &s->tokens));
    SP_GO(open_set(file, path, "offsets", 8, false, &offsets, &n));
    if (n < 1) {
        st = bad(path, "'offsets' is empty; it must have one element more than there are rows");
        goto done;
    }
    s->base.rows = n - 1;
    if (s->base.rows > s->tokens) {
        st = bad(path, "%lld rows, but only %lld tokens; no row may be empty",
                 (long long)s->base.rows, (long long)s->tokens);
        goto done;
    }
    SP_GO(sp_alloc(&s->length, s->base.rows, sizeof *s->length, "row lengths"));
    SP_GO(sp_alloc(&s->start, s->base.rows / STRIDE + 1, sizeof *s->start, "row offsets"));
    walk_args w = {.file = file,
                   .set = offsets,
                   .path = path,
                   .name = "offsets",
                   .memory_type = H5T_NATIVE_UINT64,
                   .size = 8,
                   .n = n};
    offset_args a = {.s = s};
    SP_GO(walk(&w, take_offsets, &a, &s->checked));
    SP_GO(read_domain_table(s, file));
done:
    if (offsets >= 0) H5Dclose(offsets);
    free(format);
    if (st != SP_OK && *set >= 0) {
        H5Dclose(*set);
        *set = -1;
    }
    return st;
}

// ---- open shards; all of it under the HDF5 lock -------------------------------------------------

static void unlink_shard(shard *s) {
    *(s->newer ? &s->newer->older : &newest) = s->older;
    *(s->older ? &s->older->newer : &oldest) = s->newer;
    s->newer = s->older = NULL;
    n_open--;
}

static void link_shard(shard *s) {
    s->older = newest;
    s->newer = NULL;
    *(newest ? &newest->newer : &oldest) = s;
    newest = s;
    n_open++;
}

static void close_shard(shard *s) {
    if (s->file < 0) return;
    unlink_shard(s);
    H5Dclose(s->set);
    H5Fclose(s->file);
    s->file = s->set = -1;
}

static sp_status ensure_open(shard *s) {
    if (s->file >= 0) {
        unlink_shard(s);
        link_shard(s);
        return SP_OK;
    }
    hid_t file = sp_h5_open_readonly(s->base.path), set;
    if (file < 0) return explain_open(s->base.path);
    int64_t n;
    sp_status st = open_set(file, s->base.path, "tokens", 4, true, &set, &n);
    if (st == SP_OK && n != s->tokens) {
        st = bad(s->base.path, "changed while in use: %lld tokens, %lld when it was opened",
                 (long long)n, (long long)s->tokens);
        H5Dclose(set);
    }
    if (st != SP_OK) {
        H5Fclose(file);
        return st;
    }
    if (n_open == OPEN_MAX) close_shard(oldest);
    s->file = file;
    s->set = set;
    link_shard(s);
    return SP_OK;
}

// ---- operations of a source ---------------------------------------------------------------------

// Opens what was only described by a list so far.
static sp_status load(const sp_source *base) {
    shard *s = (shard *)base;
    if (s->loaded) return SP_OK;
    sp_source *fresh = NULL;
    sp_h5_begin(); // one thread does it
    sp_status st = s->loaded ? SP_OK : sp_shard_open(base->path, &fresh);
    if (fresh) {
        shard *f = (shard *)fresh;
        s->tokens = base->unpacked / 4;
        if (fresh->rows != base->rows || f->tokens != s->tokens || fresh->vocab != base->vocab ||
            fresh->n_domains != base->n_domains)
            st = bad(
                base->path,
                "has %lld rows, %lld tokens and a vocabulary of %lld, but shards.json beside it "
                "lists %lld, %lld and %lld; remove shards.json, or fetch the shard again",
                (long long)fresh->rows, (long long)f->tokens, (long long)fresh->vocab,
                (long long)base->rows, (long long)s->tokens, (long long)base->vocab);
        if (st == SP_OK) {
            s->length = f->length;
            s->start = f->start;
            s->has_domains = f->has_domains;
            s->checked = f->checked;
            f->length = NULL;
            f->start = NULL;
            s->loaded = true;
        }
        fresh->ops->close(fresh);
    }
    sp_h5_end();
    return st;
}

static sp_status shard_length(const sp_source *base, int64_t row, int64_t *out) {
    SP_TRY(load(base));
    *out = ((const shard *)base)->length[row];
    return SP_OK;
}

static sp_status shard_lengths(const sp_source *base, uint32_t *out) {
    SP_TRY(load(base));
    if (base->rows) memcpy(out, ((const shard *)base)->length, (size_t)base->rows * sizeof *out);
    return SP_OK;
}

static uint64_t row_start(const shard *s, int64_t row) {
    uint64_t at = s->start[row / STRIDE];
    for (int64_t r = row - row % STRIDE; r < row; r++) at += s->length[r];
    return at;
}

static void shard_place(const sp_source *base, int64_t row, int64_t position, char text[48]) {
    snprintf(text, 48, "tokens[%llu]",
             (unsigned long long)(row_start((const shard *)base, row) + (uint64_t)position));
}

static sp_status shard_read(const sp_source *base, int64_t row, int64_t max, int32_t *tokens,
                            int64_t *n) {
    SP_TRY(load(base));
    shard *s = (shard *)base; // the handle changes under the lock, nothing else does
    uint64_t at = row_start(s, row);
    *n = s->length[row] < max ? s->length[row] : max;
    sp_h5_begin();
    sp_status st = ensure_open(s);
    if (st == SP_OK && !read_range(s->set, H5T_NATIVE_INT32, (int64_t)at, *n, tokens))
        st = sp_error(SP_ENVIRONMENT, "%s: row %lld cannot be read: %s", base->path, (long long)row,
                      sp_h5_reason());
    sp_h5_end();
    return st;
}

typedef struct domain_args {
    const sp_source *base;
    int32_t *out; // NULL: only check
} domain_args;

static sp_status take_domains(void *user, const void *values, int64_t first, int64_t n) {
    domain_args *a = user;
    const int32_t *v = values;
    for (int64_t i = 0; i < n; i++)
        if (v[i] < 0 || v[i] >= a->base->n_domains)
            return bad(a->base->path, "row %lld has domain %d; the table has %lld names",
                       (long long)(first + i), (int)v[i], (long long)a->base->n_domains);
    if (a->out) memcpy(a->out + first, v, (size_t)n * sizeof *v);
    return SP_OK;
}

static sp_status walk_domains(const sp_source *base, int32_t *out, int64_t *checked) {
    if (!((const shard *)base)->has_domains) {
        if (out) memset(out, 0, (size_t)base->rows * sizeof *out);
        return SP_OK;
    }
    hid_t file = sp_h5_open_readonly(base->path), set;
    if (file < 0) return explain_open(base->path);
    int64_t n;
    sp_status st = open_set(file, base->path, "domain", 4, true, &set, &n);
    if (st == SP_OK) {
        domain_args a = {base, out};
        walk_args w = {.file = file,
                       .set = set,
                       .path = base->path,
                       .name = "domain",
                       .memory_type = H5T_NATIVE_INT32,
                       .size = 4,
                       .n = n};
        st = n == base->rows ? walk(&w, take_domains, &a, checked)
                             : bad(base->path, "changed while in use");
        H5Dclose(set);
    }
    H5Fclose(file);
    return st;
}

static sp_status shard_domains(const sp_source *base, int32_t *out) {
    SP_TRY(load(base));
    int64_t checked = 0;
    sp_h5_begin();
    sp_status st = walk_domains(base, out, &checked);
    sp_h5_end();
    return st;
}

static void shard_close(sp_source *base) {
    shard *s = (shard *)base;
    sp_h5_begin();
    close_shard(s);
    sp_h5_end();
    free(s->length);
    free(s->start);
    sp_source_clear(base);
    free(s);
}

static sp_status shard_scan(const sp_source *base, sp_scan *scan);

static const sp_source_ops shard_ops = {
    .length = shard_length,
    .lengths = shard_lengths,
    .read = shard_read,
    .domains = shard_domains,
    .scan = shard_scan,
    .place = shard_place,
    .close = shard_close,
};

sp_status sp_shard_open(const char *path, sp_source **out) {
    *out = NULL;
    struct stat info;
    shard *s;
    SP_TRY(sp_alloc(&s, 1, sizeof *s, "a token shard"));
    s->base.ops = &shard_ops;
    s->file = s->set = -1;
    s->base.path = sp_strdup(path);
    sp_status st = s->base.path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) {
        sp_h5_begin();
        hid_t set = -1, file = sp_h5_open_readonly(path);
        st = file >= 0 ? read_header(s, file, &set) : explain_open(path);
        if (set >= 0) H5Dclose(set);
        if (file >= 0) H5Fclose(file);
        sp_h5_end();
    }
    if (st == SP_OK) s->base.bytes = stat(path, &info) == 0 ? (int64_t)info.st_size : 0;
    s->base.unpacked = 4 * s->tokens;
    s->loaded = true;
    if (st != SP_OK) {
        shard_close(&s->base);
        return st;
    }
    *out = &s->base;
    return SP_OK;
}

sp_status sp_shard_open_later(sp_source *like, sp_source **out) {
    shard *s;
    sp_status st = sp_alloc(&s, 1, sizeof *s, "a token shard");
    if (st != SP_OK) {
        sp_source_clear(like);
        return st;
    }
    s->base = *like;
    s->base.ops = &shard_ops;
    s->tokens = like->unpacked / 4;
    s->file = s->set = -1;
    *out = &s->base;
    return SP_OK;
}

// ---- verification -------------------------------------------------------------------------------

// Blocks of tokens become rows: those inside a block are shown where they lie, one that reaches
// over a border is joined in a buffer.
typedef struct scan_args {
    const shard *s;
    sp_scan *scan;
    int64_t row;  // that is being read
    int64_t have; // tokens of it in the buffer
} scan_args;

static sp_status take_tokens(void *user, const void *values, int64_t first, int64_t n) {
    scan_args *a = user;
    const shard *s = a->s;
    const int32_t *v = values;
    const int64_t limit =
        a->scan->vocab > 0 && a->scan->vocab < s->base.vocab ? a->scan->vocab : s->base.vocab;
    int64_t bad_at = sp_find_bad_token(v, n, limit);
    if (bad_at < n) {
        int64_t row = a->row, at = bad_at + a->have;
        while (at >= s->length[row]) at -= s->length[row++];
        return sp_bad_token(&s->base, row, at, v[bad_at], limit,
                            limit == s->base.vocab ? "file" : "model");
    }
    (void)first;
    while (n > 0 && a->row < s->base.rows) {
        int64_t length = s->length[a->row], need = length - a->have, take = need < n ? need : n;
        sp_buffer *b = &a->scan->buffer[2];
        if (a->have == 0 && take == length) {
            SP_TRY(a->scan->visit(a->scan->user, a->row++, v, length));
        } else {
            if (b->cap < 4 * length) {
                uint8_t *grown = realloc(b->data, (size_t)(4 * length));
                if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for a row of tokens");
                b->data = grown;
                b->cap = 4 * length;
            }
            memcpy(b->data + 4 * a->have, v, (size_t)(4 * take));
            a->have += take;
            if (a->have == length) {
                a->have = 0;
                SP_TRY(a->scan->visit(a->scan->user, a->row++, (const int32_t *)b->data, length));
            }
        }
        v += take;
        n -= take;
    }
    return SP_OK;
}

// With a handle of its own, since the lock is released while rows are visited.
static sp_status shard_scan(const sp_source *base, sp_scan *scan) {
    SP_TRY(load(base));
    const shard *s = (const shard *)base;
    scan_args a = {.s = s, .scan = scan};
    int64_t n;
    scan->checked += s->checked;
    sp_h5_begin();
    hid_t file = sp_h5_open_readonly(base->path), set = -1;
    sp_status st = file >= 0 ? open_set(file, base->path, "tokens", 4, true, &set, &n)
                             : explain_open(base->path);
    if (st == SP_OK && n != s->tokens) st = bad(base->path, "changed while in use");
    if (st == SP_OK) {
        walk_args w = {.file = file,
                       .set = set,
                       .path = base->path,
                       .name = "tokens",
                       .memory_type = H5T_NATIVE_INT32,
                       .size = 4,
                       .n = n,
                       .unlock = true};
        st = walk(&w, take_tokens, &a, &scan->checked);
    }
    if (st == SP_OK) st = walk_domains(base, NULL, &scan->checked);
    if (set >= 0) H5Dclose(set);
    if (file >= 0) H5Fclose(file);
    sp_h5_end();
    return st;
}

static sp_status visit_nothing(void *user, int64_t row, const int32_t *tokens, int64_t n) {
    (void)user, (void)row, (void)tokens, (void)n;
    return SP_OK;
}

sp_status sp_shard_verify(const char *path, int64_t *checked) {
    sp_source *base;
    *checked = 0;
    SP_TRY(sp_shard_open(path, &base));
    sp_scan scan = {.visit = visit_nothing, .thorough = true};
    sp_status st = shard_scan(base, &scan);
    *checked = scan.checked;
    sp_scan_free(&scan);
    base->ops->close(base);
    return st;
}
