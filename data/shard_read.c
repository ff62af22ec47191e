// Reading HDF5 token shards, our own and those that others write with any HDF5 library.
//
// Opening reads everything but the tokens, in blocks, and checks it; it keeps the length of every
// row (4 bytes each). The file is then closed again: of all shards of the process at most
// OPEN_MAX are open at a time, so that ten thousand shards need no ten thousand descriptors.
//
// All HDF5 calls are between sp_h5_begin and sp_h5_end, which also guard the list of open shards.
#include "common/h5.h"
#include "common/util.h"
#include "data/shard.h"
#include "data/shard_sets.h"
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
            return sp_shard_bad(s->base.path, "offsets[0] is %llu; the first row must start at 0",
                                (unsigned long long)offset[0]);
        if (k > 0 && (offset[i] <= before || offset[i] > (uint64_t)s->tokens))
            return sp_shard_bad(
                s->base.path,
                "offsets[%lld] is %llu after %llu, with %lld tokens in the file; offsets "
                "must grow and stay inside (no row is empty)",
                (long long)k, (unsigned long long)offset[i], (unsigned long long)before,
                (long long)s->tokens);
        if (k > 0 && offset[i] - before > INT32_MAX)
            return sp_shard_bad(s->base.path,
                                "row %lld has %llu tokens; at most 2147483647 are possible",
                                (long long)k - 1, (unsigned long long)(offset[i] - before));
        if (k > 0) s->length[k - 1] = (uint32_t)(offset[i] - before);
        if (k % STRIDE == 0) s->start[k / STRIDE] = offset[i];
    }
    a->last = offset[n - 1];
    if (first + n == s->base.rows + 1 && a->last != (uint64_t)s->tokens)
        return sp_shard_bad(s->base.path, "the last offset is %llu, but there are %lld tokens",
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
    bool ok = sp_shard_read_with(transfer, set, type, 0, n, texts);
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
    SP_GO(sp_shard_open_set(file, path, "domain_names", 0, false, &set, &n));
    type = H5Dget_type(set);
    int64_t width = (int64_t)H5Tget_size(type);
    bool variable = H5Tis_variable_str(type) > 0;
    if (n < 1 || n > SP_SHARD_DOMAINS_MAX || (!variable && width > SP_SHARD_TEXT_MAX)) {
        st = sp_shard_bad(
            path,
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
        ok = sp_shard_read_range(set, type, 0, n, table);
        for (int64_t i = 0; i < n; i++)
            s->base.domain[i] = strndup(table + i * width, (size_t)width);
    }
    if (!ok) st = sp_shard_bad(path, "'domain_names' cannot be read: %s", sp_h5_reason());
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
        return sp_shard_bad(s->base.path,
                            "'domain' and 'domain_names' must come together; '%s' is missing",
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
    SP_TRY(sp_shard_open_set(file, s->base.path, "domain", 4, true, &set, &n));
    H5Dclose(set);
    if (n != s->base.rows)
        return sp_shard_bad(s->base.path, "'domain' has %lld elements for %lld rows", (long long)n,
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
        return sp_shard_bad(path,
                            "an HDF5 file, but no token shard: the attribute 'format' is missing "
                            "(data/README.md says how to make one)");
    SP_GO(sp_shard_get_text(file, path, "format", &format));
    if (strcmp(format, SP_SHARD_FORMAT) != 0) {
        st = sp_shard_bad(path, "an HDF5 file of format '%s'; token shards have '%s'", format,
                          SP_SHARD_FORMAT);
        goto done;
    }
    SP_GO(sp_shard_get_integer(file, path, "version", &version));
    if (version != SP_SHARD_VERSION) {
        st = sp_shard_bad(path, "token shard of version %lld; this program reads version %d",
                          (long long)version, SP_SHARD_VERSION);
        goto done;
    }
    SP_GO(sp_shard_get_integer(file, path, "vocab", &s->base.vocab));
    if (s->base.vocab < 1 || s->base.vocab > INT32_MAX) {
        st = sp_shard_bad(path, "a vocabulary of %lld tokens", (long long)s->base.vocab);
        goto done;
    }
    SP_GO(sp_shard_get_text(file, path, "tokenizer", &s->base.tokenizer));
    SP_GO(sp_shard_open_set(file, path, "tokens", 4, true, set, &s->tokens));
    SP_GO(sp_shard_open_set(file, path, "offsets", 8, false, &offsets, &n));
    if (n < 1) {
        st = sp_shard_bad(path,
                          "'offsets' is empty; it must have one element more than there are rows");
        goto done;
    }
    s->base.rows = n - 1;
    if (s->base.rows > s->tokens) {
        st = sp_shard_bad(path, "%lld rows, but only %lld tokens; no row may be empty",
                          (long long)s->base.rows, (long long)s->tokens);
        goto done;
    }
    SP_GO(sp_alloc(&s->length, s->base.rows, sizeof *s->length, "row lengths"));
    SP_GO(sp_alloc(&s->start, s->base.rows / STRIDE + 1, sizeof *s->start, "row offsets"));
    sp_shard_walk_args w = {.file = file,
                            .set = offsets,
                            .path = path,
                            .name = "offsets",
                            .memory_type = H5T_NATIVE_UINT64,
                            .size = 8,
                            .n = n};
    offset_args a = {.s = s};
    SP_GO(sp_shard_walk(&w, take_offsets, &a, &s->checked));
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
    if (file < 0) return sp_shard_explain_open(s->base.path);
    int64_t n;
    sp_status st = sp_shard_open_set(file, s->base.path, "tokens", 4, true, &set, &n);
    if (st == SP_OK && n != s->tokens) {
        st =
            sp_shard_bad(s->base.path, "changed while in use: %lld tokens, %lld when it was opened",
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
            st = sp_shard_bad(
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
    if (st == SP_OK && !sp_shard_read_range(s->set, H5T_NATIVE_INT32, (int64_t)at, *n, tokens))
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
            return sp_shard_bad(a->base->path, "row %lld has domain %d; the table has %lld names",
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
    if (file < 0) return sp_shard_explain_open(base->path);
    int64_t n;
    sp_status st = sp_shard_open_set(file, base->path, "domain", 4, true, &set, &n);
    if (st == SP_OK) {
        domain_args a = {base, out};
        sp_shard_walk_args w = {.file = file,
                                .set = set,
                                .path = base->path,
                                .name = "domain",
                                .memory_type = H5T_NATIVE_INT32,
                                .size = 4,
                                .n = n};
        st = n == base->rows ? sp_shard_walk(&w, take_domains, &a, checked)
                             : sp_shard_bad(base->path, "changed while in use");
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
        st = file >= 0 ? read_header(s, file, &set) : sp_shard_explain_open(path);
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
    sp_status st = file >= 0 ? sp_shard_open_set(file, base->path, "tokens", 4, true, &set, &n)
                             : sp_shard_explain_open(base->path);
    if (st == SP_OK && n != s->tokens) st = sp_shard_bad(base->path, "changed while in use");
    if (st == SP_OK) {
        sp_shard_walk_args w = {.file = file,
                                .set = set,
                                .path = base->path,
                                .name = "tokens",
                                .memory_type = H5T_NATIVE_INT32,
                                .size = 4,
                                .n = n,
                                .unlock = true};
        st = sp_shard_walk(&w, take_tokens, &a, &scan->checked);
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
