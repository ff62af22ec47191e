// MDS folders on disk: opening checks index and shard headers, reading takes one row by its offset.
//
// Nothing of a shard stays in memory and no file stays open: a row costs one open and a few short
// reads. Only uncompressed shards are read; the raw copy of a compressed shard is, if it has the
// size that the index states.
#include "data/mds.h"
#include "common/log.h"
#include "common/util.h"
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    INDEX_MAX = 1 << 30,  // bytes of index.json
    CONFIG_MAX = 1 << 24, // bytes of a shard's description of itself
    FIRST_READ = 512,     // of a sample; usually holds the column sizes and the array's head
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token values are copied as they lie");

typedef struct mds {
    sp_source base;
    sp_mds_columns columns;
} mds;

// `n` bytes at `at`. `code` is for the fault of a file that ends too early or cannot be read.
static sp_status read_at(int fd, int64_t at, void *out, int64_t n, sp_status code) {
    for (int64_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)out + done, (size_t)(n - done), at + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return sp_error(SP_ENVIRONMENT, "cannot read %lld bytes at %lld: %s", (long long)n,
                            (long long)at, strerror(errno));
        if (got == 0)
            return sp_error(code, "ends at byte %lld, expected %lld more", (long long)(at + done),
                            (long long)(n - done));
        done += got;
    }
    return SP_OK;
}

// ---- rows
// ----------------------------------------------------------------------------------------

// A row, found: where its tokens lie in the file and how many there are.
typedef struct place {
    int64_t at, count;
} place;

static sp_status find_row(int fd, const mds *m, int64_t row, place *out) {
    const sp_mds_columns *c = &m->columns;
    uint8_t bounds[8], first[FIRST_READ], head[SP_MDS_HEAD], *sizes = first;
    sp_status st = SP_OK;
    SP_GO(read_at(fd, 4 + 4 * row, bounds, 8, SP_BAD_INPUT));
    int64_t at = sp_mds_u32(bounds), end = sp_mds_u32(bounds + 4), bytes = end - at;
    if (at < sp_mds_table_bytes(m->base.rows) || bytes < 0 || end > m->base.bytes) {
        st = sp_error(SP_BAD_INPUT, "lies at bytes %lld to %lld of %lld", (long long)at,
                      (long long)end, (long long)m->base.bytes);
        goto done;
    }
    int64_t have = bytes < FIRST_READ ? bytes : FIRST_READ;
    if (4 * c->n_variable > FIRST_READ) {
        have = 4 * c->n_variable < bytes ? 4 * c->n_variable : bytes;
        SP_GO(sp_alloc(&sizes, have, 1, "column sizes"));
    }
    SP_GO(read_at(fd, at, sizes, have, SP_BAD_INPUT));
    int64_t begin, size, values;
    SP_GO(sp_mds_find_column(sizes, have, bytes, c, &begin, &size));
    int64_t head_bytes = size < SP_MDS_HEAD ? size : SP_MDS_HEAD;
    if (begin + head_bytes <= have)
        memcpy(head, sizes + begin, (size_t)head_bytes);
    else
        SP_GO(read_at(fd, at + begin, head, head_bytes, SP_BAD_INPUT));
    SP_GO(sp_mds_parse_array(head, head_bytes, size, c->encoding, &values, &out->count));
    out->at = at + begin + values;
done:
    if (sizes != first) free(sizes);
    return st;
}

static sp_status open_shard(const mds *m, int *fd) {
    *fd = open(m->base.path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return sp_error(SP_ENVIRONMENT, "cannot open %s: %s", m->base.path, strerror(errno));
    return SP_OK;
}

static sp_status in_row(const mds *m, int64_t row, sp_status st) {
    if (st != SP_OK) sp_error_prefix("%s: row %lld", m->base.path, (long long)row);
    return st;
}

static sp_status mds_length(const sp_source *base, int64_t row, int64_t *out) {
    const mds *m = (const mds *)base;
    int fd;
    place p;
    SP_TRY(open_shard(m, &fd));
    sp_status st = in_row(m, row, find_row(fd, m, row, &p));
    close(fd);
    if (st == SP_OK) *out = p.count;
    return st;
}

static sp_status mds_lengths(const sp_source *base, uint32_t *out) {
    const mds *m = (const mds *)base;
    int fd;
    sp_status st = SP_OK;
    SP_TRY(open_shard(m, &fd));
    for (int64_t row = 0; row < base->rows && st == SP_OK; row++) {
        place p;
        st = in_row(m, row, find_row(fd, m, row, &p));
        if (st == SP_OK) out[row] = (uint32_t)p.count;
    }
    close(fd);
    return st;
}

static sp_status mds_read(const sp_source *base, int64_t row, int64_t max, int32_t *tokens,
                          int64_t *n) {
    const mds *m = (const mds *)base;
    int fd;
    place p;
    SP_TRY(open_shard(m, &fd));
    sp_status st = find_row(fd, m, row, &p);
    if (st == SP_OK) {
        *n = p.count < max ? p.count : max;
        st = read_at(fd, p.at, tokens, *n * (int64_t)sizeof *tokens, SP_BAD_INPUT);
    }
    close(fd);
    return in_row(m, row, st);
}

static sp_status mds_domains(const sp_source *base, int32_t *out) {
    memset(out, 0, (size_t)base->rows * sizeof *out);
    return SP_OK;
}

static void mds_close(sp_source *base) {
    mds *m = (mds *)base;
    free(m->columns.size);
    sp_source_clear(base);
    free(m);
}

static const sp_source_ops mds_ops = {
    .length = mds_length,
    .lengths = mds_lengths,
    .read = mds_read,
    .domains = mds_domains,
    .close = mds_close,
};

// ---- opening
// -------------------------------------------------------------------------------------

// Reads and checks the part of the file before the first sample; `bytes` is the file's size.
static sp_status check_header(int fd, const sp_mds_shard *s) {
    int64_t table = sp_mds_table_bytes(s->samples), len = table;
    uint8_t *head = NULL;
    sp_status st = SP_OK;
    if (s->bytes < table)
        return sp_error(SP_BAD_INPUT, "%lld bytes are too few for the offsets of %lld samples",
                        (long long)s->bytes, (long long)s->samples);
    SP_GO(sp_alloc(&head, table, 1, "the offsets of a shard"));
    SP_GO(read_at(fd, 0, head, table, SP_BAD_INPUT));
    int64_t first = sp_mds_u32(head + 4);
    if (first > table && first <= s->bytes && first - table <= CONFIG_MAX) {
        uint8_t *grown = realloc(head, (size_t)first);
        if (!grown) {
            st = sp_error(SP_ENVIRONMENT, "out of memory for the header of a shard");
            goto done;
        }
        head = grown;
        len = first;
        SP_GO(read_at(fd, table, head + table, len - table, SP_BAD_INPUT));
    }
    SP_GO(sp_mds_parse_header(head, len, s->bytes, s));
done:
    free(head);
    return st;
}

// Opens the raw file of a shard. *packed: there is none of the right size, but the index names a
// compressed form.
static sp_status open_raw(const char *path, const sp_mds_shard *s, int *fd, bool *packed) {
    struct stat info = {0};
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    int reason = errno;
    bool regular = *fd >= 0 && fstat(*fd, &info) == 0 && S_ISREG(info.st_mode);
    *packed = false;
    if (regular && info.st_size == s->bytes) return SP_OK;
    *packed = s->zip || s->compression;
    if (*packed) return SP_OK;
    if (!regular)
        return sp_error(SP_BAD_INPUT, "%s, which index.json names, cannot be opened: %s", path,
                        *fd < 0 ? strerror(reason) : "it is not a regular file");
    return sp_error(SP_BAD_INPUT,
                    "%s has %lld bytes, %lld according to index.json; the copy or download is not "
                    "complete",
                    path, (long long)info.st_size, (long long)s->bytes);
}

static sp_status copy_columns(const sp_mds_columns *from, sp_mds_columns *to) {
    *to = *from;
    SP_TRY(sp_alloc(&to->size, from->n, sizeof *to->size, "MDS columns"));
    memcpy(to->size, from->size, (size_t)from->n * sizeof *to->size);
    return SP_OK;
}

// The folder's own name, also of "." and "..".
static char *domain_name(const char *dir) {
    char *real = realpath(dir, NULL);
    char *name = sp_strdup(sp_path_base(real ? real : dir));
    free(real);
    return name;
}

static sp_status make_source(const char *dir, const sp_mds_shard *s, char *path, sp_sources *out) {
    mds *m;
    SP_TRY(sp_alloc(&m, 1, sizeof *m, "an MDS shard"));
    m->base = (sp_source){.ops = &mds_ops,
                          .path = sp_strdup(path),
                          .rows = s->samples,
                          .bytes = s->bytes,
                          .domain = calloc(1, sizeof(char *))};
    if (m->base.domain) {
        m->base.n_domains = 1;
        m->base.domain[0] = domain_name(dir);
    }
    sp_status st = copy_columns(&s->columns, &m->columns);
    if (st == SP_OK && (!m->base.path || !m->base.domain || !m->base.domain[0]))
        st = sp_error(SP_ENVIRONMENT, "out of memory for an MDS shard");
    if (st == SP_OK) return sp_sources_add(out, &m->base);
    mds_close(&m->base);
    return st;
}

static sp_status open_one(const char *dir, const sp_mds_shard *s, sp_problems *problems,
                          bool *packed, sp_sources *out) {
    char *path = sp_path_join(dir, s->basename);
    if (!path) return sp_error(SP_ENVIRONMENT, "out of memory");
    int fd = -1;
    sp_status st = open_raw(path, s, &fd, packed);
    if (st == SP_OK && !*packed) {
        st = check_header(fd, s);
        if (st != SP_OK) sp_error_prefix("%s", path);
    }
    if (fd >= 0) close(fd);
    if (st == SP_OK && !*packed) st = make_source(dir, s, path, out);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(problems, "%s", sp_error_text());
        st = SP_OK;
    }
    free(path);
    return st;
}

static sp_status open_shards(const char *dir, const sp_mds_index *index, sp_problems *problems,
                             sp_sources *out) {
    const int before = problems->count;
    const sp_mds_shard *first_packed = NULL;
    int64_t n_packed = 0, from_copies = 0;
    for (int64_t i = 0; i < index->n; i++) {
        const sp_mds_shard *s = &index->shard[i];
        bool packed;
        if (problems->count - before >= SP_PROBLEMS_PER_FOLDER) {
            sp_problems_add(problems, "%s: the other %lld shards were not looked at", dir,
                            (long long)(index->n - i));
            break;
        }
        SP_TRY(open_one(dir, s, problems, &packed, out));
        if (packed && !first_packed) first_packed = s;
        n_packed += packed;
        from_copies += !packed && s->zip;
    }
    if (first_packed)
        sp_problems_add(problems,
                        "%s: %lld of %lld shards are compressed (%s), and this version reads "
                        "uncompressed shards only. Unpack them in that folder (the first one as %s "
                        "of %lld bytes), or write the data set without compression",
                        dir, (long long)n_packed, (long long)index->n,
                        first_packed->compression ? first_packed->compression : "unknown method",
                        first_packed->basename, (long long)first_packed->bytes);
    else if (from_copies && problems->count == before)
        sp_info("%s: %lld compressed shards are read from the unpacked copies beside them", dir,
                (long long)from_copies);
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
