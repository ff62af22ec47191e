// Writing HDF5 token shards: three growing columns (tokens, offsets, domain), each written chunk by
// chunk together with a checksum per chunk, so that memory does not depend on the size of the file.
#include "common/h5.h"
#include "common/hash.h"
#include "common/util.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "data/source.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct column {
    const char *name;
    hid_t set, type;
    int64_t size, block; // bytes of an element, elements of a chunk
    uint8_t *buffer;     // [block]
    int64_t fill, written;
    uint64_t *sum; // XXH3 of every block written
    int64_t n_sums, cap_sums;
} column;

struct sp_shard_writer {
    char *path, *tmp;
    int sync; // of the temporary file, for early writing; -1
    hid_t file;
    int64_t vocab, n_domains, rows; // vocab 0: not known beforehand
    int32_t largest;                // id written
    uint64_t tokens;
    column column[3];
};
enum { TOKENS, OFFSETS, DOMAIN, N_COLUMNS };

static sp_status write_error(const sp_shard_writer *w, const char *what) {
    return sp_error(SP_ENVIRONMENT, "cannot write %s of %s (%llu tokens so far): %s", what, w->path,
                    (unsigned long long)w->tokens, sp_h5_reason());
}

// ---- small pieces of HDF5; between sp_h5_begin and sp_h5_end
// -------------------------------------

static bool put_attribute(hid_t object, const char *name, hid_t type, hid_t memory,
                          const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = a >= 0 && H5Awrite(a, memory, value) >= 0;
    if (a >= 0 && H5Aclose(a) < 0) ok = false;
    H5Sclose(space);
    return ok;
}

static bool put_integer(hid_t object, const char *name, int64_t v) {
    return put_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &v);
}

static hid_t text_type(size_t bytes) {
    hid_t t = H5Tcopy(H5T_C_S1);
    H5Tset_size(t, bytes ? bytes : 1);
    H5Tset_strpad(t, H5T_STR_NULLPAD);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
}

static bool put_text(hid_t object, const char *name, const char *text) {
    hid_t t = text_type(strlen(text));
    bool ok = put_attribute(object, name, t, t, text);
    H5Tclose(t);
    return ok;
}

// A data set of fixed size, written at once. `set` (may be NULL) receives it open.
static bool put_list(hid_t file, const char *name, hid_t type, hid_t memory, int64_t n,
                     const void *values, hid_t *set) {
    hsize_t dim = (hsize_t)n;
    hid_t space = H5Screate_simple(1, &dim, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(plist, false);
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    bool ok = d >= 0 && (n == 0 || H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    if (set)
        *set = d;
    else if (d >= 0 && H5Dclose(d) < 0)
        ok = false;
    H5Pclose(plist);
    H5Sclose(space);
    return ok;
}

static bool create_column(hid_t file, column *c) {
    hsize_t none = 0, unlimited = H5S_UNLIMITED, chunk = (hsize_t)c->block;
    hid_t space = H5Screate_simple(1, &none, &unlimited);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE), access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk(create, 1, &chunk);
    H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(create, false); // equal input gives equal files
    H5Pset_chunk_cache(access, 0, 0, 1.0); // whole chunks go to the file at once, with its errors
    c->set = H5Dcreate2(file, c->name, c->type, space, H5P_DEFAULT, create, access);
    H5Pclose(access);
    H5Pclose(create);
    H5Sclose(space);
    return c->set >= 0;
}

static bool write_block(column *c) {
    hsize_t start = (hsize_t)c->written, n = (hsize_t)c->fill, size = start + n;
    if (H5Dset_extent(c->set, &size) < 0) return false;
    hid_t file = H5Dget_space(c->set), memory = H5Screate_simple(1, &n, NULL);
    bool ok = file >= 0 && memory >= 0 &&
              H5Sselect_hyperslab(file, H5S_SELECT_SET, &start, NULL, &n, NULL) >= 0 &&
              H5Dwrite(c->set, c->type, memory, file, H5P_DEFAULT, c->buffer) >= 0;
    H5Sclose(memory);
    H5Sclose(file);
    return ok;
}

static bool put_checksums(hid_t file, const column *c) {
    char *name = sp_format("%s_xxh3", c->name);
    hid_t set = -1;
    bool ok =
        name && put_list(file, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, c->n_sums, c->sum, &set);
    ok = ok && put_integer(set, "block", c->block);
    if (set >= 0 && H5Dclose(set) < 0) ok = false;
    free(name);
    return ok;
}

static bool put_domain_names(hid_t file, const sp_shard_meta *meta) {
    size_t width = 1;
    for (int64_t i = 0; i < meta->n_domains; i++)
        if (strlen(meta->domains[i]) > width) width = strlen(meta->domains[i]);
    char *table;
    if (sp_alloc(&table, meta->n_domains, (int64_t)width, "domain names") != SP_OK) return false;
    for (int64_t i = 0; i < meta->n_domains; i++)
        memcpy(table + (size_t)i * width, meta->domains[i], strlen(meta->domains[i]));
    hid_t t = text_type(width);
    bool ok = put_list(file, "domain_names", t, t, meta->n_domains, table, NULL);
    H5Tclose(t);
    free(table);
    return ok;
}

// ---- the writer
// ----------------------------------------------------------------------------------

static sp_status flush_block(sp_shard_writer *w, column *c) {
    if (c->fill == 0) return SP_OK;
    if (c->n_sums == c->cap_sums) {
        int64_t cap = c->cap_sums ? 2 * c->cap_sums : 64;
        uint64_t *grown = realloc(c->sum, (size_t)cap * sizeof *grown);
        if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for the checksums of a shard");
        c->sum = grown;
        c->cap_sums = cap;
    }
    c->sum[c->n_sums++] = sp_xxh3(c->buffer, (size_t)(c->fill * c->size));
    sp_h5_begin();
    sp_status st = write_block(c) ? SP_OK : write_error(w, c->name);
    sp_h5_end();
    // What is in the page cache goes to the disk meanwhile, so that the end has little to wait for.
    if (c == &w->column[TOKENS] && w->sync >= 0)
        sync_file_range(w->sync, 0, 0, SYNC_FILE_RANGE_WRITE);
    c->written += c->fill;
    c->fill = 0;
    return st;
}

static sp_status append(sp_shard_writer *w, int which, const void *values, int64_t n) {
    column *c = &w->column[which];
    const uint8_t *from = values;
    while (n > 0) {
        int64_t take = c->block - c->fill < n ? c->block - c->fill : n;
        memcpy(c->buffer + c->fill * c->size, from, (size_t)(take * c->size));
        c->fill += take;
        from += take * c->size;
        n -= take;
        if (c->fill == c->block) SP_TRY(flush_block(w, c));
    }
    return SP_OK;
}

static sp_status check_meta(const char *path, const sp_shard_meta *m) {
    if (m->vocab < 0 || m->vocab > INT32_MAX)
        return sp_error(SP_BAD_INPUT, "%s: a vocabulary of %lld tokens cannot be stored", path,
                        (long long)m->vocab);
    if (!m->tokenizer || !m->tokenizer[0] || strlen(m->tokenizer) > SP_SHARD_TEXT_MAX)
        return sp_error(SP_BAD_INPUT, "%s: the tokenizer identity must have 1 to %d bytes", path,
                        SP_SHARD_TEXT_MAX);
    if (m->n_domains < 1 || m->n_domains > SP_SHARD_DOMAINS_MAX)
        return sp_error(SP_BAD_INPUT, "%s: %lld domains; a shard has 1 to %d", path,
                        (long long)m->n_domains, SP_SHARD_DOMAINS_MAX);
    for (int64_t i = 0; i < m->n_domains; i++)
        if (!m->domains[i][0] || strlen(m->domains[i]) > SP_SHARD_TEXT_MAX)
            return sp_error(SP_BAD_INPUT, "%s: the name of domain %lld must have 1 to %d bytes",
                            path, (long long)i, SP_SHARD_TEXT_MAX);
    return SP_OK;
}

static hid_t create_file(const char *path) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_FILE_CREATE);
#if H5_VERSION_GE(1, 10, 7)
    H5Pset_file_locking(access, false, true); // network file systems refuse locks
#endif
    // Its metadata have checksums, so that damage is noticed before the library believes it.
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Pset_obj_track_times(create, false);
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, create, access);
    H5Pclose(create);
    H5Pclose(access);
    return f;
}

sp_status sp_shard_create(const char *path, const sp_shard_meta *meta, sp_shard_writer **out) {
    *out = NULL;
    SP_TRY(check_meta(path, meta));
    sp_shard_writer *w;
    SP_TRY(sp_alloc(&w, 1, sizeof *w, "a shard writer"));
    w->file = w->sync = -1;
    w->vocab = meta->vocab;
    w->n_domains = meta->n_domains;
    w->column[TOKENS] = (column){.name = "tokens", .size = 4, .block = SP_SHARD_TOKEN_BLOCK};
    w->column[OFFSETS] = (column){.name = "offsets", .size = 8, .block = SP_SHARD_ROW_BLOCK};
    w->column[DOMAIN] = (column){.name = "domain", .size = 4, .block = SP_SHARD_ROW_BLOCK};
    for (int i = 0; i < N_COLUMNS; i++) w->column[i].set = -1;
    w->path = sp_strdup(path);
    w->tmp = sp_temporary_name(path);
    sp_status st = SP_OK;
    if (!w->path || !w->tmp) st = sp_error(SP_ENVIRONMENT, "out of memory");
    for (int i = 0; i < N_COLUMNS && st == SP_OK; i++)
        st = sp_alloc(&w->column[i].buffer, w->column[i].block, w->column[i].size,
                      "a block of a token shard");
    if (st != SP_OK) {
        sp_shard_abandon(w);
        return st;
    }

    sp_h5_begin();
    w->column[TOKENS].type = H5T_STD_I32LE;
    w->column[OFFSETS].type = H5T_STD_U64LE;
    w->column[DOMAIN].type = H5T_STD_I32LE;
    w->file = create_file(w->tmp);
    if (w->file < 0) {
        st = sp_error(SP_ENVIRONMENT, "cannot create %s: %s", path, sp_h5_reason());
    } else {
        bool ok = put_text(w->file, "format", SP_SHARD_FORMAT) &&
                  put_integer(w->file, "version", SP_SHARD_VERSION) &&
                  put_text(w->file, "tokenizer", meta->tokenizer) &&
                  (meta->vocab == 0 || put_integer(w->file, "vocab", meta->vocab));
        for (int i = 0; i < N_COLUMNS; i++) ok = ok && create_column(w->file, &w->column[i]);
        if (!ok || !put_domain_names(w->file, meta)) st = write_error(w, "the header");
    }
    sp_h5_end();
    if (st == SP_OK) w->sync = open(w->tmp, O_WRONLY | O_CLOEXEC);
    const uint64_t zero = 0;
    if (st == SP_OK) st = append(w, OFFSETS, &zero, 1);
    if (st != SP_OK) {
        sp_shard_abandon(w);
        return st;
    }
    *out = w;
    return SP_OK;
}

sp_status sp_shard_append(sp_shard_writer *w, const int32_t *tokens, int64_t n, int64_t domain) {
    if (n < 1 || n > INT32_MAX)
        return sp_error(SP_BAD_INPUT, "%s: row %lld has %lld tokens; a row holds 1 to 2147483647",
                        w->path, (long long)w->rows, (long long)n);
    if (domain < 0 || domain >= w->n_domains)
        return sp_error(SP_BAD_INPUT, "%s: row %lld: domain %lld is not in the table of %lld",
                        w->path, (long long)w->rows, (long long)domain, (long long)w->n_domains);
    int64_t bad = sp_find_bad_token(tokens, n, w->vocab);
    if (bad < n)
        return sp_error(SP_BAD_INPUT, "%s: row %lld, position %lld: token id %d is outside 0..%lld",
                        w->path, (long long)w->rows, (long long)bad, (int)tokens[bad],
                        (long long)(w->vocab ? w->vocab - 1 : INT32_MAX));
    if (w->vocab == 0) // INT32_MAX itself cannot be below a vocabulary that is stored
        for (int64_t i = 0; i < n; i++)
            w->largest = tokens[i] > w->largest ? tokens[i] : w->largest;
    if (w->largest == INT32_MAX)
        return sp_error(SP_BAD_INPUT, "%s: row %lld: token id %d is too large", w->path,
                        (long long)w->rows, INT32_MAX);
    const int32_t domain32 = (int32_t)domain;
    SP_TRY(append(w, TOKENS, tokens, n));
    w->tokens += (uint64_t)n;
    SP_TRY(append(w, OFFSETS, &w->tokens, 1));
    SP_TRY(append(w, DOMAIN, &domain32, 1));
    w->rows++;
    return SP_OK;
}

// Closes everything that is open, each thing once (common/h5.h).
static bool close_file(sp_shard_writer *w) {
    bool ok = true;
    for (int i = 0; i < N_COLUMNS; i++) {
        if (w->column[i].set >= 0 && H5Dclose(w->column[i].set) < 0) ok = false;
        w->column[i].set = -1;
    }
    if (w->file >= 0 && H5Fclose(w->file) < 0) ok = false;
    w->file = -1;
    return ok;
}

static void free_writer(sp_shard_writer *w) {
    if (w->sync >= 0) close(w->sync);
    for (int i = 0; i < N_COLUMNS; i++) {
        free(w->column[i].buffer);
        free(w->column[i].sum);
    }
    free(w->path);
    free(w->tmp);
    free(w);
}

sp_status sp_shard_finish(sp_shard_writer *w) {
    sp_status st = SP_OK;
    for (int i = 0; i < N_COLUMNS && st == SP_OK; i++) st = flush_block(w, &w->column[i]);
    if (st != SP_OK) {
        sp_shard_abandon(w);
        return st;
    }
    sp_h5_begin();
    if (w->vocab == 0 && !put_integer(w->file, "vocab", (int64_t)w->largest + 1))
        st = write_error(w, "the vocabulary");
    for (int i = 0; i < N_COLUMNS && st == SP_OK; i++)
        if (!put_checksums(w->file, &w->column[i])) st = write_error(w, "the checksums");
    if (st == SP_OK && H5Fflush(w->file, H5F_SCOPE_GLOBAL) < 0) st = write_error(w, "the rest");
    if (st == SP_OK && !close_file(w)) st = write_error(w, "the rest");
    sp_h5_end();
    if (st == SP_OK) st = sp_commit_file(w->tmp, w->path);
    if (st == SP_OK)
        free_writer(w);
    else
        sp_shard_abandon(w);
    return st;
}

void sp_shard_abandon(sp_shard_writer *w) {
    if (!w) return;
    if (w->file >= 0) {
        sp_h5_begin();
        close_file(w);
        sp_h5_end();
    }
    // A file that HDF5 could not close stays open: give its space back.
    if (w->tmp && truncate(w->tmp, 0) == 0) unlink(w->tmp);
    free_writer(w);
}
