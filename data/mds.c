// MDS folders on disk: opening checks index and shard headers, reading takes one row by its offset.
//
// Of an uncompressed shard nothing stays in memory and no file stays open: a row costs one open and
// a few short reads. A compressed shard is unpacked in memory for a row, its hash and header are
// checked then, and the last few unpacked shards of the process are kept. The raw copy of a
// compressed shard is read instead if it has the size that the index states.
#include "data/mds.h"
#include "common/log.h"
#include "common/util.h"
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    INDEX_MAX = 1 << 30,  // bytes of index.json
    CONFIG_MAX = 1 << 24, // bytes of a shard's description of itself
    FIRST_READ = 512,     // of a sample; usually holds the column sizes and the array's head
    SHORT_ROW = 1 << 14,  // bytes of a row, in the mean
    KEPT = 4,             // unpacked shards of the process ...
    KEPT_BYTES = 1 << 29, // ... and their bytes, of which one more may be in use
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token values are copied as they lie");

typedef struct mds {
    sp_source base;
    sp_mds_shard shard; // packed: base.path is the compressed file
} mds;

// What rows are read from: a file, or memory.
typedef struct reader {
    int fd; // -1: memory
    const uint8_t *data;
    int64_t bytes;
    struct unpacked *kept; // that memory belongs to it
} reader;

// `n` bytes at `at`. SP_BAD_INPUT if the file ends too early.
static sp_status read_at(const reader *r, int64_t at, void *out, int64_t n) {
    if (r->fd < 0) {
        if (n > r->bytes - at)
            return sp_error(SP_BAD_INPUT, "ends at byte %lld, expected %lld more",
                            (long long)r->bytes, (long long)(n - (r->bytes - at)));
        memcpy(out, r->data + at, (size_t)n);
        return SP_OK;
    }
    for (int64_t done = 0; done < n;) {
        ssize_t got = pread(r->fd, (char *)out + done, (size_t)(n - done), at + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return sp_error(SP_ENVIRONMENT, "cannot read %lld bytes at %lld: %s", (long long)n,
                            (long long)at, strerror(errno));
        if (got == 0)
            return sp_error(SP_BAD_INPUT, "ends at byte %lld, expected %lld more",
                            (long long)(at + done), (long long)(n - done));
        done += got;
    }
    return SP_OK;
}

// ---- unpacking ----------------------------------------------------------------------------------

// The part before the first sample; `len` bytes are given.
static sp_status check_header(const uint8_t *head, int64_t len, const sp_mds_shard *s) {
    int64_t table = sp_mds_table_bytes(s->samples);
    if (len < table || s->bytes < table)
        return sp_error(SP_BAD_INPUT, "%lld bytes are too few for the offsets of %lld samples",
                        (long long)len, (long long)s->samples);
    int64_t first = sp_mds_u32(head + 4);
    return sp_mds_parse_header(head, first > table && first <= len ? first : table, s->bytes, s);
}

static sp_status hashes_of(const mds *m, const char *which, bool all, const uint8_t *data,
                           int64_t n, int64_t *checked, const char **unknown) {
    const json_t *file = json_object_get(m->shard.json, which);
    return sp_mds_check_hashes(json_object_get(file, "hashes"), all, data, n, checked, unknown);
}

// The compressed file in memory, checked, unpacked and checked again.
static sp_status unpack(const mds *m, bool all, sp_buffer *out, int64_t *checked,
                        const char **unknown) {
    sp_map zip;
    SP_TRY(sp_map_open(m->base.path, &zip));
    sp_status st = SP_OK;
    if (zip.bytes != m->shard.zip_bytes)
        st = sp_error(SP_BAD_INPUT,
                      "has %lld bytes, %lld according to index.json; the copy or download is not "
                      "complete",
                      (long long)zip.bytes, (long long)m->shard.zip_bytes);
    if (st == SP_OK) st = hashes_of(m, "zip_data", all, zip.data, zip.bytes, checked, unknown);
    if (st == SP_OK) st = sp_mds_unpack(zip.data, zip.bytes, m->shard.bytes, out);
    sp_map_close(&zip);
    SP_TRY(st);
    if (all) SP_TRY(hashes_of(m, "raw_data", all, out->data, out->bytes, checked, unknown));
    return check_header(out->data, out->bytes, &m->shard);
}

// The last unpacked shards of the process.
typedef struct unpacked {
    const mds *owner; // NULL: free
    sp_buffer buffer;
    int users;
    uint64_t used; // larger is later
} unpacked;
static unpacked kept[KEPT];
static uint64_t kept_clock;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(unpacked *u) {
    sp_buffer_free(&u->buffer);
    u->owner = NULL;
}

static unpacked *find_kept(const mds *m) {
    for (int i = 0; i < KEPT; i++)
        if (kept[i].owner == m) return &kept[i];
    return NULL;
}

// A free place for `bytes`; NULL if all are in use. Under the lock.
static unpacked *make_room(int64_t bytes) {
    for (;;) {
        unpacked *oldest = NULL, *empty = NULL;
        int64_t sum = bytes;
        for (int i = 0; i < KEPT; i++) {
            unpacked *u = &kept[i];
            if (!u->owner) {
                empty = u;
                continue;
            }
            sum += u->buffer.bytes;
            if (u->users == 0 && (!oldest || u->used < oldest->used)) oldest = u;
        }
        if (empty && (sum <= KEPT_BYTES || !oldest)) return empty;
        if (!oldest) return NULL;
        forget(oldest);
    }
}

static sp_status open_packed(const mds *m, reader *r) {
    pthread_mutex_lock(&kept_lock);
    unpacked *u = find_kept(m);
    if (u) u->users++;
    pthread_mutex_unlock(&kept_lock);
    if (!u) {
        sp_buffer b = {0};
        int64_t checked = 0;
        const char *unknown = NULL;
        sp_status st = unpack(m, false, &b, &checked, &unknown);
        if (st != SP_OK) {
            sp_buffer_free(&b);
            return st;
        }
        pthread_mutex_lock(&kept_lock);
        u = find_kept(m); // another thread may have been faster
        if (u) {
            sp_buffer_free(&b);
        } else if ((u = make_room(b.bytes))) {
            *u = (unpacked){.owner = m, .buffer = b};
        } else { // all in use: for this reader alone
            u = calloc(1, sizeof *u);
            if (u) *u = (unpacked){.buffer = b};
        }
        if (u) u->users++;
        pthread_mutex_unlock(&kept_lock);
        if (!u) {
            sp_buffer_free(&b);
            return sp_error(SP_ENVIRONMENT, "out of memory");
        }
    }
    *r = (reader){.fd = -1, .data = u->buffer.data, .bytes = u->buffer.bytes, .kept = u};
    return SP_OK;
}

static void close_packed(unpacked *u) {
    pthread_mutex_lock(&kept_lock);
    u->users--;
    u->used = ++kept_clock;
    if (!u->owner) { // not in the table
        sp_buffer_free(&u->buffer);
        free(u);
    }
    pthread_mutex_unlock(&kept_lock);
}

// ---- rows ---------------------------------------------------------------------------------------

// A row, found: where its tokens lie in the file, how many there are and of which type.
typedef struct place {
    int64_t row_at; // byte where the row begins
    int64_t at, count;
    const sp_mds_type *type;
} place;

// out->row_at is set first, for messages.
static sp_status find_row(const reader *f, const mds *m, int64_t row, place *out) {
    const sp_mds_columns *c = &m->shard.columns;
    uint8_t bounds[8], first[FIRST_READ], head[SP_MDS_HEAD], *sizes = first;
    sp_status st = SP_OK;
    out->row_at = 4 + 4 * row;
    SP_GO(read_at(f, 4 + 4 * row, bounds, 8));
    int64_t at = sp_mds_u32(bounds), end = sp_mds_u32(bounds + 4), bytes = end - at;
    out->row_at = at;
    if (at < sp_mds_table_bytes(m->base.rows) || bytes < 0 || end > m->shard.bytes) {
        st = sp_error(SP_BAD_INPUT, "lies at bytes %lld to %lld of %lld", (long long)at,
                      (long long)end, (long long)m->shard.bytes);
        goto done;
    }
    int64_t have = bytes < FIRST_READ ? bytes : FIRST_READ;
    if (4 * c->n_variable > FIRST_READ) {
        have = 4 * c->n_variable < bytes ? 4 * c->n_variable : bytes;
        SP_GO(sp_alloc(&sizes, have, 1, "column sizes"));
    }
    SP_GO(read_at(f, at, sizes, have));
    int64_t begin, size;
    SP_GO(sp_mds_find_column(sizes, have, bytes, c, &begin, &size));
    int64_t head_bytes = size < SP_MDS_HEAD ? size : SP_MDS_HEAD;
    if (begin + head_bytes <= have)
        memcpy(head, sizes + begin, (size_t)head_bytes);
    else
        SP_GO(read_at(f, at + begin, head, head_bytes));
    sp_mds_array a;
    out->row_at = at + begin;
    SP_GO(sp_mds_parse_array(head, head_bytes, size, c, &a));
    out->at = at + begin + a.values;
    out->count = a.count;
    out->type = a.type;
done:
    if (sizes != first) free(sizes);
    return st;
}

static sp_status open_shard(const mds *m, reader *r) {
    if (m->base.packed) {
        sp_status st = open_packed(m, r);
        if (st == SP_BAD_INPUT) sp_error_prefix("%s", m->base.path);
        return st;
    }
    int64_t bytes;
    *r = (reader){0};
    return sp_open_regular(m->base.path, &r->fd, &bytes);
}

static void close_reader(reader *r) {
    if (r->kept) close_packed(r->kept);
    if (r->fd >= 0) close(r->fd);
}

static sp_status in_row(const mds *m, int64_t row, const place *p, sp_status st) {
    if (st != SP_OK)
        sp_error_prefix("%s: row %lld (byte %lld%s)", m->base.path, (long long)row,
                        (long long)p->row_at, m->base.packed ? " unpacked" : "");
    return st;
}

static sp_status mds_length(const sp_source *base, int64_t row, int64_t *out) {
    const mds *m = (const mds *)base;
    reader r;
    place p;
    SP_TRY(open_shard(m, &r));
    sp_status st = in_row(m, row, &p, find_row(&r, m, row, &p));
    close_reader(&r);
    if (st == SP_OK) *out = p.count;
    return st;
}

// In one go into memory that is used again.
static sp_status read_whole(const mds *m, sp_buffer *b) {
    reader r;
    SP_TRY(open_shard(m, &r));
    sp_status st = SP_OK;
    if (b->cap < m->shard.bytes) {
        sp_buffer_free(b);
        st = sp_alloc(&b->data, m->shard.bytes, 1, "a shard");
        if (st == SP_OK) b->cap = m->shard.bytes;
    }
    if (st == SP_OK) {
        st = read_at(&r, 0, b->data, m->shard.bytes);
        if (st != SP_OK) sp_error_prefix("%s", m->base.path);
    }
    b->bytes = m->shard.bytes;
    close_reader(&r);
    return st;
}

// Short rows are found faster in the whole file than by a few reads each.
static sp_status mds_lengths(const sp_source *base, uint32_t *out) {
    const mds *m = (const mds *)base;
    const bool whole = !base->packed && m->shard.bytes / (base->rows + 1) < SHORT_ROW;
    sp_buffer b = {0};
    reader r = {.fd = -1};
    sp_status st = SP_OK;
    if (whole) {
        SP_GO(read_whole(m, &b));
        r = (reader){.fd = -1, .data = b.data, .bytes = b.bytes};
    } else {
        SP_GO(open_shard(m, &r));
    }
    for (int64_t row = 0; row < base->rows && st == SP_OK; row++) {
        place p;
        st = in_row(m, row, &p, find_row(&r, m, row, &p));
        if (st == SP_OK) out[row] = (uint32_t)p.count;
    }
    close_reader(&r);
done:
    sp_buffer_free(&b);
    return st;
}

static sp_status too_wide(const mds *m, int64_t row, int64_t position, int64_t value) {
    return sp_bad_token(&m->base, row, position, value, 0, "file");
}

static sp_status mds_read(const sp_source *base, int64_t row, int64_t max, int32_t *tokens,
                          int64_t *n) {
    const mds *m = (const mds *)base;
    reader r;
    place p;
    uint8_t *values = NULL;
    SP_TRY(open_shard(m, &r));
    sp_status st = in_row(m, row, &p, find_row(&r, m, row, &p));
    if (st != SP_OK) goto done;
    *n = p.count < max ? p.count : max;
    if (p.type->code == 33) { // int32
        st = in_row(m, row, &p, read_at(&r, p.at, tokens, *n * (int64_t)sizeof *tokens));
        goto done;
    }
    SP_GO(sp_alloc(&values, *n, p.type->size, "a row of tokens"));
    SP_GO(in_row(m, row, &p, read_at(&r, p.at, values, *n * p.type->size)));
    int64_t value = 0, k = sp_mds_convert(values, *n, p.type, tokens, &value);
    if (k < *n) st = too_wide(m, row, k, value);
done:
    free(values);
    close_reader(&r);
    return st;
}

static sp_status mds_domains(const sp_source *base, int32_t *out) {
    memset(out, 0, (size_t)base->rows * sizeof *out);
    return SP_OK;
}

static void mds_place(const sp_source *base, int64_t row, int64_t position, char text[48]) {
    const mds *m = (const mds *)base;
    reader r;
    place p;
    text[0] = 0;
    if (open_shard(m, &r) == SP_OK) {
        if (find_row(&r, m, row, &p) == SP_OK)
            snprintf(text, 48, "byte %lld%s", (long long)(p.at + position * p.type->size),
                     m->base.packed ? " unpacked" : "");
        close_reader(&r);
    }
}

// ---- the whole file -----------------------------------------------------------------------------

static sp_status scan_rows(const mds *m, const reader *f, sp_scan *scan) {
    sp_buffer *row_buffer = &scan->buffer[2];
    for (int64_t row = 0; row < m->base.rows; row++) {
        place p;
        SP_TRY(in_row(m, row, &p, find_row(f, m, row, &p)));
        int64_t bytes = p.count * 4;
        if (row_buffer->cap < bytes) {
            sp_buffer_free(row_buffer);
            SP_TRY(sp_alloc(&row_buffer->data, bytes, 1, "a row of tokens"));
            row_buffer->cap = bytes;
        }
        if (p.count * p.type->size > f->bytes - p.at) // the column lies inside the row
            return in_row(m, row, &p, sp_error(SP_BAD_INPUT, "its tokens pass the file's end"));
        int32_t *tokens = (int32_t *)row_buffer->data;
        int64_t value = 0, k = sp_mds_convert(f->data + p.at, p.count, p.type, tokens, &value);
        if (k < p.count) return too_wide(m, row, k, value);
        k = sp_find_bad_token(tokens, p.count, scan->vocab);
        if (k < p.count) return sp_bad_token(&m->base, row, k, tokens[k], scan->vocab, "model");
        SP_TRY(scan->visit(scan->user, row, tokens, p.count));
    }
    return SP_OK;
}

static sp_status scan_packed(const mds *m, sp_scan *scan) {
    sp_status st = unpack(m, scan->thorough, &scan->buffer[0], &scan->checked, &scan->unknown);
    if (st == SP_BAD_INPUT) sp_error_prefix("%s", m->base.path);
    SP_TRY(st);
    const reader r = {.fd = -1, .data = scan->buffer[0].data, .bytes = scan->buffer[0].bytes};
    return scan_rows(m, &r, scan);
}

// Maps the file and has the kernel bring all of it in at once, which costs half of what reading
// into memory does (docs/notes/data.md). False if the kernel cannot do that or the file cannot be
// read to its end, which reading then explains: a page that is missing later would be a signal.
static bool map_whole(const mds *m, sp_map *map) {
    bool there = false;
    if (sp_map_open(m->base.path, map) == SP_OK) {
#ifdef MADV_POPULATE_READ
        there = map->bytes == m->shard.bytes &&
                madvise((void *)map->data, (size_t)map->bytes, MADV_POPULATE_READ) == 0;
#endif
        if (!there) sp_map_close(map);
    }
    sp_error_clear();
    return there;
}

static sp_status scan_bytes(const mds *m, const uint8_t *data, sp_scan *scan) {
    const reader r = {.fd = -1, .data = data, .bytes = m->shard.bytes};
    sp_status st =
        hashes_of(m, "raw_data", scan->thorough, data, r.bytes, &scan->checked, &scan->unknown);
    if (st == SP_OK) st = check_header(data, r.bytes, &m->shard);
    if (st != SP_OK) sp_error_prefix("%s", m->base.path);
    SP_TRY(st);
    return scan_rows(m, &r, scan);
}

static sp_status scan_raw(const mds *m, sp_scan *scan) {
    sp_map map;
    if (map_whole(m, &map)) {
        sp_status st = scan_bytes(m, map.data, scan);
        sp_map_close(&map);
        return st;
    }
    SP_TRY(read_whole(m, &scan->buffer[0]));
    return scan_bytes(m, scan->buffer[0].data, scan);
}

static sp_status mds_scan(const sp_source *base, sp_scan *scan) {
    const mds *m = (const mds *)base;
    return m->base.packed ? scan_packed(m, scan) : scan_raw(m, scan);
}

static void mds_close(sp_source *base) {
    mds *m = (mds *)base;
    pthread_mutex_lock(&kept_lock);
    unpacked *u = find_kept(m);
    if (u) forget(u);
    pthread_mutex_unlock(&kept_lock);
    sp_mds_shard_free(&m->shard);
    sp_source_clear(base);
    free(m);
}

static const sp_source_ops mds_ops = {
    .length = mds_length,
    .lengths = mds_lengths,
    .read = mds_read,
    .domains = mds_domains,
    .scan = mds_scan,
    .place = mds_place,
    .close = mds_close,
};

// ---- opening ------------------------------------------------------------------------------------

// Reads and checks the part of an uncompressed file before the first sample.
static sp_status read_header(const reader *r, const sp_mds_shard *s) {
    int64_t table = sp_mds_table_bytes(s->samples), len = table;
    uint8_t *head = NULL;
    sp_status st = SP_OK;
    if (s->bytes < table) return check_header(NULL, s->bytes, s);
    SP_GO(sp_alloc(&head, table, 1, "the offsets of a shard"));
    SP_GO(read_at(r, 0, head, table));
    int64_t first = sp_mds_u32(head + 4);
    if (first > table && first <= s->bytes && first - table <= CONFIG_MAX) {
        uint8_t *grown = realloc(head, (size_t)first);
        if (!grown) {
            st = sp_error(SP_ENVIRONMENT, "out of memory for the header of a shard");
            goto done;
        }
        head = grown;
        len = first;
        SP_GO(read_at(r, table, head + table, len - table));
    }
    SP_GO(check_header(head, len, s));
done:
    free(head);
    return st;
}

// Why a file of the index cannot be used; `reason` is an errno, 0 if it is no regular file.
static sp_status not_there(const char *path, int reason) {
    bool ours = reason == EMFILE || reason == ENFILE || reason == ENOMEM || reason == EIO;
    return sp_error(ours ? SP_ENVIRONMENT : SP_BAD_INPUT,
                    "%s, which index.json names, cannot be opened: %s", path,
                    reason ? strerror(reason) : "it is not a regular file");
}

static sp_status wrong_size(const char *path, int64_t is, int64_t should) {
    return sp_error(SP_BAD_INPUT,
                    "%s has %lld bytes, %lld according to index.json; the copy or download is not "
                    "complete",
                    path, (long long)is, (long long)should);
}

// Opens the raw file of a shard. r->fd stays -1 if there is none of the right size, but the index
// names a compressed form.
static sp_status open_raw(const char *path, const sp_mds_shard *s, reader *r) {
    struct stat info = {0};
    *r = (reader){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    int reason = r->fd < 0 ? errno : 0;
    bool regular = r->fd >= 0 && fstat(r->fd, &info) == 0 && S_ISREG(info.st_mode);
    if (regular && info.st_size == s->bytes) return SP_OK;
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
    if (s->zip) return SP_OK;
    return regular ? wrong_size(path, info.st_size, s->bytes) : not_there(path, reason);
}

static sp_status check_packed(const char *path, const sp_mds_shard *s) {
    const char *how = s->compression ? s->compression : "";
    size_t n = strcspn(how, ":");
    if (n != 4 || strncmp(how, "zstd", 4) != 0)
        return sp_error(
            SP_BAD_INPUT,
            "%s is compressed by '%s'; only zstd and uncompressed shards are read. "
            "Unpack it beside the index as %s (%lld bytes), or write the data set again",
            path, how[0] ? how : "an unnamed method", s->basename, (long long)s->bytes);
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return not_there(path, errno);
    bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    close(fd);
    if (!regular) return not_there(path, 0);
    return info.st_size == s->zip_bytes ? SP_OK : wrong_size(path, info.st_size, s->zip_bytes);
}

// The folder's own name, also of "." and "..".
static char *domain_name(const char *dir) {
    char *real = realpath(dir, NULL);
    char *name = sp_strdup(sp_path_base(real ? real : dir));
    free(real);
    return name;
}

// Takes the contents of `s`.
static sp_status make_source(const char *dir, sp_mds_shard *s, const char *path, bool packed,
                             sp_sources *out) {
    mds *m;
    SP_TRY(sp_alloc(&m, 1, sizeof *m, "an MDS shard"));
    m->base = (sp_source){.ops = &mds_ops,
                          .path = sp_strdup(path),
                          .rows = s->samples,
                          .bytes = packed ? s->zip_bytes : s->bytes,
                          .unpacked = s->bytes,
                          .domain = calloc(1, sizeof(char *))};
    m->base.packed = packed;
    m->shard = *s;
    *s = (sp_mds_shard){0};
    if (m->base.domain) {
        m->base.n_domains = 1;
        m->base.domain[0] = domain_name(dir);
    }
    if (m->base.path && m->base.domain && m->base.domain[0]) return sp_sources_add(out, &m->base);
    mds_close(&m->base);
    return sp_error(SP_ENVIRONMENT, "out of memory for an MDS shard");
}

static sp_status open_one(const char *dir, sp_mds_shard *s, sp_problems *problems, bool *packed,
                          sp_sources *out) {
    char *path = sp_path_join(dir, s->basename);
    char *zip = s->zip ? sp_path_join(dir, s->zip) : NULL;
    reader r = {.fd = -1};
    sp_status st = path && (zip || !s->zip) ? open_raw(path, s, &r)
                                            : sp_error(SP_ENVIRONMENT, "out of memory");
    *packed = st == SP_OK && r.fd < 0;
    if (st == SP_OK && *packed) {
        st = check_packed(zip, s);
    } else if (st == SP_OK) {
        st = read_header(&r, s);
        if (st != SP_OK) sp_error_prefix("%s", path);
    }
    if (r.fd >= 0) close(r.fd);
    if (st == SP_OK) st = make_source(dir, s, *packed ? zip : path, *packed, out);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(problems, "%s", sp_error_text());
        st = SP_OK;
    }
    free(path);
    free(zip);
    return st;
}

static sp_status open_shards(const char *dir, sp_mds_index *index, sp_problems *problems,
                             sp_sources *out) {
    const int before = problems->count;
    int64_t copies = 0;
    for (int64_t i = 0; i < index->n; i++) {
        bool packed, has_zip = index->shard[i].zip != NULL;
        if (problems->count - before >= SP_PROBLEMS_PER_FOLDER) {
            sp_problems_add(problems, "%s: the other %lld shards were not looked at", dir,
                            (long long)(index->n - i));
            break;
        }
        SP_TRY(open_one(dir, &index->shard[i], problems, &packed, out));
        copies += !packed && has_zip;
    }
    if (problems->count == before && copies)
        sp_info("%s: %lld compressed shards are read from the unpacked copies beside them", dir,
                (long long)copies);
    return SP_OK;
}

sp_status sp_mds_open(const char *dir, sp_problems *problems, char **missing, sp_sources *out) {
    char *path = sp_path_join(dir, "index.json"), *text = NULL;
    sp_mds_index index = {0};
    int64_t len;
    const int before = problems->count;
    sp_status st = path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    *missing = NULL;
    if (st != SP_OK) return st;
    if (!sp_path_is_file(path)) {
        *missing = sp_format("%s is missing; an MDS folder has one", path);
        goto done;
    }
    st = sp_read_file(path, INDEX_MAX, &text, &len);
    if (st == SP_OK) SP_GO(sp_mds_parse_index(text, len, path, problems, &index));
    if (st == SP_BAD_INPUT) {
        sp_problems_add(problems, "%s", sp_error_text());
        st = SP_OK;
    }
    if (st != SP_OK || problems->count != before) goto done;
    if (index.samples == 0)
        *missing = sp_format("%s lists no %s", path, index.n ? "samples" : "shards");
    else
        SP_GO(open_shards(dir, &index, problems, out));
done:
    sp_mds_index_free(&index);
    free(text);
    free(path);
    return st;
}
