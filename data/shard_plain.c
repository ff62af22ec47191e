// See data/shard_plain.h. The layouts are those of the "HDF5 File Format Specification Version
// 2.0", whose sections are named here; integers in it are little-endian, addresses have 8 bytes.
//
// Nothing that a file says is believed: addresses and sizes are compared with the file's size when
// they are used, walks through trees and headers are bounded.
#include "data/shard_plain.h"

#include "common/hash.h"
#include "common/util.h"
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    WINDOW = 8192,      // bytes seen at once; a shard's metadata takes 3 or 4 of them
    BLOCKS_MAX = 16,    // of an object header
    LEVELS_MAX = 8,     // of a tree
    CHILDREN_MAX = 64,  // of a node: the library's default
    STEPS_MAX = 1 << 18 // nodes, names and texts looked at in all
};
enum { SPACE = 1, TYPE = 3, EXTERNAL = 7, LAYOUT = 8, FILTERS = 11, ATTRIBUTE = 12, MORE = 16 };
enum { SYMBOL_TABLE = 17, ATTRIBUTE_INFO = 21 }; // types of messages (IV.A.2)
enum { INTEGER, TEXT, VARIABLE_TEXT };
#define NOWHERE UINT64_MAX

typedef struct plain_file {
    int fd;
    uint64_t bytes;
    uint64_t from, have; // bytes from..from+have-1 are in the window
    uint8_t window[WINDOW];
    int steps;
    uint64_t text_bytes;             // of names so far: many may refer to the same bytes
    struct data_set *offsets, *sums; // sums NULL: none
    int64_t block;                   // elements of a checksum
} file;

typedef struct element { // its type
    int kind;
    bool is_signed;
    int64_t bytes;
} element;

typedef struct data_set {
    uint64_t header; // address
    element type;
    int64_t n;     // elements
    int64_t chunk; // elements of a chunk; 0: contiguous
    uint64_t *at;  // address of every chunk, or of the whole
} data_set;

static uint64_t number(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static bool read_at(const file *f, uint64_t at, void *out, uint64_t n) {
    if (at > f->bytes || n > f->bytes - at) return false;
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, (char *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (uint64_t)got;
    }
    return true;
}

// Bytes at..at+n-1, valid until the next call; NULL if they are not there.
static const uint8_t *see(file *f, uint64_t at, uint64_t n) {
    if (n > WINDOW || at > f->bytes || n > f->bytes - at) return NULL;
    if (at < f->from || at - f->from > f->have || n > f->have - (at - f->from)) {
        uint64_t most = f->bytes - at < WINDOW ? f->bytes - at : WINDOW;
        f->have = 0;
        if (!read_at(f, at, f->window, most)) return NULL;
        f->from = at;
        f->have = most;
    }
    return f->window + (at - f->from);
}

// ---- object headers (IV.A.1.a)
// -------------------------------------------------------------------

typedef struct message {
    int type;
    uint64_t at, bytes; // of its contents
} message;

typedef struct messages { // of a header, being walked through
    struct {
        uint64_t at, end;
    } block[BLOCKS_MAX];
    int n, i;      // blocks known, present one
    uint64_t left; // messages
} messages;

static bool header_begin(file *f, uint64_t at, messages *h) {
    const uint8_t *p = see(f, at, 16);
    if (!p || p[0] != 1) return false;
    uint64_t bytes = number(p + 8, 4);
    *h = (messages){.n = 1, .left = number(p + 2, 2)};
    h->block[0].at = at + 16;
    h->block[0].end = at + 16 + bytes;
    return bytes <= f->bytes;
}

// 1: a message; 0: there are no more; -1: not understood.
static int header_next(file *f, messages *h, message *m) {
    for (; h->left > 0; h->left--) {
        while (h->i < h->n && h->block[h->i].at == h->block[h->i].end) h->i++;
        if (h->i == h->n) return -1;
        uint64_t at = h->block[h->i].at, end = h->block[h->i].end;
        const uint8_t *p = end - at >= 8 ? see(f, at, 8) : NULL;
        if (!p) return -1;
        *m = (message){(int)number(p, 2), at + 8, number(p + 2, 2)};
        const bool shared = p[4] & 2;
        if (m->bytes > end - at - 8 || m->type == ATTRIBUTE_INFO) return -1;
        h->block[h->i].at = at + 8 + m->bytes;
        if (m->type != MORE) {
            h->left--;
            return shared ? -1 : 1;
        }
        if (m->bytes < 16 || h->n == BLOCKS_MAX || !(p = see(f, m->at, 16))) return -1;
        uint64_t next = number(p, 8), bytes = number(p + 8, 8);
        if (next > f->bytes || bytes > f->bytes - next) return -1;
        h->block[h->n].at = next;
        h->block[h->n++].end = next + bytes;
    }
    return 0;
}

// The first message of a type; the library takes that one, too.
static bool find_message(file *f, uint64_t at, int type, message *m) {
    messages h;
    if (!header_begin(f, at, &h)) return false;
    for (int r; (r = header_next(f, &h, m)) != 0;) {
        if (r < 0) return false;
        if (m->type == type) return true;
    }
    return false;
}

// Dataspace (IV.A.2.b) of one dimension, or none: *n is 1 then. In p[bytes].
static bool parse_space(const uint8_t *p, uint64_t bytes, int rank, int64_t *n) {
    if (bytes < 4 || p[1] != rank) return false;
    uint64_t head = p[0] == 1 ? 8 : 4;
    if (p[0] != 1 && (p[0] != 2 || p[3] != rank)) return false; // 2: scalar 0, simple 1
    *n = 1;
    if (rank == 0) return true;
    if (bytes < head + 8) return false;
    uint64_t dim = number(p + head, 8);
    *n = (int64_t)dim;
    return dim <= INT64_MAX;
}

// Datatype (IV.A.2.d): little-endian integers of all bits, texts.
static bool parse_type(const uint8_t *p, uint64_t bytes, element *t) {
    if (bytes < 8) return false;
    const int class = p[0] & 15;
    *t = (element){.bytes = (int64_t)number(p + 4, 4)};
    if (class == 0) {
        t->is_signed = p[1] & 8;
        return bytes >= 12 && !(p[1] & 1) && t->bytes <= 8 && number(p + 8, 2) == 0 &&
               (int64_t)number(p + 10, 2) == 8 * t->bytes;
    }
    t->kind = class == 9 ? VARIABLE_TEXT : TEXT;
    return class == 9 ? (p[1] & 15) == 1 && t->bytes == 16 : class == 3;
}

// ---- groups and heaps (III.A, III.B, III.D, III.E)
// -----------------------------------------------

static bool tree_node(file *f, uint64_t at, int kind, int key_bytes, int *level, int *n,
                      uint8_t *body) {
    const uint8_t *p = see(f, at, 24);
    if (!p || memcmp(p, "TREE", 4) != 0 || p[4] != kind || f->steps++ > STEPS_MAX) return false;
    *level = p[5];
    *n = (int)number(p + 6, 2);
    if (*n > CHILDREN_MAX || *level > LEVELS_MAX) return false;
    uint64_t bytes = (uint64_t)(*n * (8 + key_bytes) + key_bytes);
    p = see(f, at + 24, bytes);
    if (p) memcpy(body, p, bytes);
    return p != NULL;
}

// Looks for a name in the symbols of a leaf: 1 found, 0 not, -1 not understood.
static int find_in_leaf(file *f, uint64_t at, uint64_t names, uint64_t names_bytes,
                        const char *name, uint64_t *header) {
    const uint8_t *p = see(f, at, 8);
    if (!p || memcmp(p, "SNOD", 4) != 0 || p[4] != 1) return -1;
    const int n = (int)number(p + 6, 2);
    const uint64_t len = strlen(name) + 1;
    for (int i = 0; i < n; i++) {
        if (f->steps++ > STEPS_MAX || !(p = see(f, at + 8 + 40 * (uint64_t)i, 40))) return -1;
        uint64_t offset = number(p, 8), to = number(p + 8, 8);
        const bool link = number(p + 16, 4) == 2; // a symbolic one
        if (offset >= names_bytes) return -1;
        if (len > names_bytes - offset) continue;
        if (!(p = see(f, names + offset, len))) return -1;
        if (memcmp(p, name, len) != 0) continue;
        *header = to;
        return link ? -1 : 1;
    }
    return 0;
}

static int find_in_tree(file *f, uint64_t at, int above, uint64_t names, uint64_t names_bytes,
                        const char *name, uint64_t *header) {
    uint8_t body[16 * CHILDREN_MAX + 8];
    int level, n;
    if (!tree_node(f, at, 0, 8, &level, &n, body) || (above >= 0 && level != above - 1)) return -1;
    for (int i = 0; i < n; i++) {
        uint64_t child = number(body + 8 + 16 * i, 8);
        int r = level ? find_in_tree(f, child, level, names, names_bytes, name, header)
                      : find_in_leaf(f, child, names, names_bytes, name, header);
        if (r != 0) return r;
    }
    return 0;
}

// The header of an object of the root group: 1 found, 0 not, -1 not understood.
static int find(file *f, uint64_t root, const char *name, uint64_t *header) {
    message m;
    const uint8_t *p;
    if (!find_message(f, root, SYMBOL_TABLE, &m) || m.bytes < 16 || !(p = see(f, m.at, 16)))
        return -1;
    uint64_t tree = number(p, 8), heap = number(p + 8, 8);
    if (!(p = see(f, heap, 32)) || memcmp(p, "HEAP", 4) != 0 || p[4] != 0) return -1;
    uint64_t bytes = number(p + 8, 8), names = number(p + 24, 8);
    if (names > f->bytes || bytes > f->bytes - names) return -1;
    return find_in_tree(f, tree, -1, names, bytes, name, header);
}

// A text of the global heap (III.E), which has `n` bytes. Caller frees.
static char *heap_text(file *f, uint64_t heap, uint64_t index, uint64_t n) {
    if (n == 0) return sp_strdup("");
    const uint8_t *p = see(f, heap, 16);
    if (!p || memcmp(p, "GCOL", 4) != 0 || p[4] != 1 || n > SP_SHARD_TEXT_MAX) return NULL;
    if ((f->text_bytes += n) > f->bytes) return NULL;
    uint64_t end = number(p + 8, 8), at = 16;
    while (end >= at + 16 && end <= f->bytes && f->steps++ < STEPS_MAX) {
        if (!(p = see(f, heap + at, 16)) || number(p, 2) == 0) return NULL; // 0: free room
        uint64_t bytes = number(p + 8, 8);
        if (bytes > end - at - 16) return NULL;
        if (number(p, 2) == index) {
            p = n <= bytes ? see(f, heap + at + 16, n) : NULL;
            return p ? strndup((const char *)p, n) : NULL;
        }
        at += 16 + (bytes + 7) / 8 * 8;
    }
    return NULL;
}

// ---- attributes (IV.A.2.m)
// -----------------------------------------------------------------------

// The only value of an attribute, copied to value[room]; its bytes follow from its type.
static bool get_attribute(file *f, uint64_t object, const char *name, element *t, uint8_t *value,
                          int64_t room) {
    messages h;
    message m;
    if (!header_begin(f, object, &h)) return false;
    for (int r; (r = header_next(f, &h, &m)) != 0;) {
        if (r < 0) return false;
        if (m.type != ATTRIBUTE) continue;
        const uint8_t *p = m.bytes >= 9 ? see(f, m.at, m.bytes) : NULL;
        if (!p || p[0] < 1 || p[0] > 3 || (p[0] > 1 && p[1])) return false; // flags: shared parts
        const uint64_t pad = p[0] == 1 ? 7 : 0;
        uint64_t name_bytes = number(p + 2, 2), type_bytes = number(p + 4, 2);
        uint64_t space_bytes = number(p + 6, 2), at = p[0] == 3 ? 9 : 8;
        uint64_t type_at = at + ((name_bytes + pad) & ~pad);
        uint64_t space_at = type_at + ((type_bytes + pad) & ~pad);
        uint64_t value_at = space_at + ((space_bytes + pad) & ~pad);
        if (value_at > m.bytes) return false;
        if (name_bytes != strlen(name) + 1 || memcmp(p + at, name, name_bytes) != 0) continue;
        int64_t n;
        bool ok = parse_type(p + type_at, type_bytes, t) &&
                  parse_space(p + space_at, space_bytes, 0, &n) && t->bytes <= room &&
                  (uint64_t)t->bytes <= m.bytes - value_at;
        if (ok) memcpy(value, p + value_at, (size_t)t->bytes);
        return ok;
    }
    return false;
}

static bool get_integer(file *f, uint64_t object, const char *name, int64_t *out) {
    uint8_t value[8];
    element t;
    if (!get_attribute(f, object, name, &t, value, 8) || t.kind != INTEGER) return false;
    uint64_t v = number(value, (int)t.bytes);
    *out = (int64_t)v;
    return v >> 31 == 0; // negative ones and others that no shard has are left to the library
}

static char *get_text(file *f, uint64_t object, const char *name) {
    uint8_t value[SP_SHARD_TEXT_MAX];
    element t;
    if (!get_attribute(f, object, name, &t, value, sizeof value)) return NULL;
    if (t.kind == TEXT) return strndup((char *)value, (size_t)t.bytes);
    if (t.kind != VARIABLE_TEXT) return NULL;
    return heap_text(f, number(value + 4, 8), number(value + 12, 4), number(value, 4));
}

// ---- data sets
// -----------------------------------------------------------------------------------

static void free_set(data_set *o) {
    if (o) free(o->at);
    free(o);
}

// Chunks come in order; *have counts them.
static bool walk_chunks(file *f, uint64_t at, int above, data_set *o, int64_t *have) {
    enum { KEY = 24 };
    uint8_t body[(8 + KEY) * CHILDREN_MAX + KEY];
    const int64_t n = o->n / o->chunk + (o->n % o->chunk != 0), bytes = o->chunk * o->type.bytes;
    int level, children;
    if (!tree_node(f, at, 1, KEY, &level, &children, body) || (above >= 0 && level != above - 1))
        return false;
    for (int i = 0; i < children; i++) {
        const uint8_t *key = body + (KEY + 8) * i;
        uint64_t child = number(key + KEY, 8);
        if (level > 0) {
            if (!walk_chunks(f, child, level, o, have)) return false;
            continue;
        }
        if (*have >= n || (int64_t)number(key, 4) != bytes || number(key + 4, 4) != 0 ||
            number(key + 8, 8) != (uint64_t)(*have * o->chunk) || child > f->bytes ||
            (uint64_t)bytes > f->bytes - child)
            return false;
        o->at[(*have)++] = child;
    }
    return true;
}

// Where the elements lie (IV.A.2.i).
static bool read_layout(file *f, data_set *o) {
    message m;
    const uint8_t *p;
    if (!find_message(f, o->header, LAYOUT, &m) || m.bytes < 18 || !(p = see(f, m.at, m.bytes)) ||
        p[0] != 3)
        return false;
    int64_t all;
    if (!sp_mul(o->n, o->type.bytes, &all) || (uint64_t)all > f->bytes) return false;
    if (p[1] == 1) {
        uint64_t at = number(p + 2, 8);
        if (at > f->bytes || (uint64_t)all > f->bytes - at || number(p + 10, 8) < (uint64_t)all ||
            sp_alloc(&o->at, 1, sizeof *o->at, "a layout") != SP_OK)
            return false;
        o->at[0] = at;
        return true;
    }
    if (p[1] != 2 || p[2] != 2 || m.bytes < 19) return false; // dimensions, and one for the bytes
    uint64_t tree = number(p + 3, 8);
    o->chunk = (int64_t)number(p + 11, 4);
    if (o->chunk < 1 || (int64_t)number(p + 15, 4) != o->type.bytes) return false;
    int64_t n = o->n / o->chunk + (o->n % o->chunk != 0), have = 0;
    if (sp_alloc(&o->at, n, sizeof *o->at, "a layout") != SP_OK) return false;
    return n == 0 || (walk_chunks(f, tree, -1, o, &have) && have == n);
}

// A data set of the root group, of one dimension and without filters. NULL: not understood, or not
// there, which *missing tells (may be NULL).
static data_set *open_set(file *f, uint64_t root, const char *name, bool *missing) {
    data_set *o;
    uint64_t at;
    message m;
    const uint8_t *p;
    int r = find(f, root, name, &at);
    if (missing) *missing = r == 0;
    if (r <= 0 || sp_alloc(&o, 1, sizeof *o, "a data set") != SP_OK) return NULL;
    o->header = at;
    bool ok = find_message(f, at, SPACE, &m) && (p = see(f, m.at, m.bytes)) &&
              parse_space(p, m.bytes, 1, &o->n) && find_message(f, at, TYPE, &m) &&
              (p = see(f, m.at, m.bytes)) && parse_type(p, m.bytes, &o->type) && read_layout(f, o);
    messages h;
    ok = ok && header_begin(f, at, &h);
    for (; ok && (r = header_next(f, &h, &m)) != 0;)
        ok = r > 0 && m.type != FILTERS && m.type != EXTERNAL;
    if (ok) return o;
    free_set(o);
    return NULL;
}

static bool is_integers(const data_set *o, int64_t bytes, bool is_signed) {
    return o && o->type.kind == INTEGER && o->type.bytes == bytes && o->type.is_signed == is_signed;
}

static bool read_range(const file *f, const data_set *o, int64_t start, int64_t n, void *out) {
    const int64_t size = o->type.bytes;
    if (o->chunk == 0)
        return read_at(f, o->at[0] + (uint64_t)(start * size), out, (uint64_t)(n * size));
    while (n > 0) {
        int64_t in = start % o->chunk, take = o->chunk - in < n ? o->chunk - in : n;
        if (!read_at(f, o->at[start / o->chunk] + (uint64_t)(in * size), out,
                     (uint64_t)(take * size)))
            return false;
        out = (char *)out + take * size;
        start += take;
        n -= take;
    }
    return true;
}

// ---- the shard
// -----------------------------------------------------------------------------------

static bool read_names(file *f, const data_set *o, sp_plain_shard *out) {
    uint8_t *raw = NULL;
    const int64_t width = o->type.bytes;
    if (o->type.kind == INTEGER || o->n < 1 || o->n > SP_SHARD_DOMAINS_MAX || width < 1 ||
        width > SP_SHARD_TEXT_MAX)
        return false;
    bool ok = sp_alloc(&raw, o->n, width, "domain names") == SP_OK &&
              sp_alloc(&out->domain, o->n, sizeof *out->domain, "domain names") == SP_OK &&
              read_range(f, o, 0, o->n, raw);
    for (int64_t i = 0; i < o->n && ok; i++) {
        const uint8_t *p = raw + i * width;
        out->n_domains = i + 1;
        out->domain[i] = o->type.kind == TEXT
                             ? strndup((const char *)p, (size_t)width)
                             : heap_text(f, number(p + 4, 8), number(p + 12, 4), number(p, 4));
        ok = out->domain[i] != NULL;
    }
    free(raw);
    return ok;
}

static bool read_domains(file *f, uint64_t root, sp_plain_shard *out) {
    bool no_column, no_names;
    data_set *column = open_set(f, root, "domain", &no_column);
    data_set *names = open_set(f, root, "domain_names", &no_names);
    bool ok = no_column && no_names;
    out->has_domains = !no_column;
    if (column && names)
        ok = is_integers(column, 4, true) && column->n == out->rows && read_names(f, names, out);
    free_set(column);
    free_set(names);
    return ok;
}

static bool read_shard(file *f, sp_plain_shard *out) {
    static const uint8_t begin[] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n',
                                    0,    0,   0,   0,   0,    8,    8};
    int64_t version;
    bool missing;
    const uint8_t *p = see(f, 0, 96); // superblock (II.A)
    if (!p || memcmp(p, begin, sizeof begin) != 0 || number(p + 24, 8) != 0 ||
        number(p + 40, 8) > f->bytes || number(p + 48, 8) != NOWHERE)
        return false;
    const uint64_t root = number(p + 64, 8);

    char *format = get_text(f, root, "format");
    bool ok = format && strcmp(format, SP_SHARD_FORMAT) == 0;
    free(format);
    if (!ok || !get_integer(f, root, "version", &version) || version != SP_SHARD_VERSION ||
        !get_integer(f, root, "vocab", &out->vocab) || out->vocab < 1 ||
        !(out->tokenizer = get_text(f, root, "tokenizer")))
        return false;

    data_set *tokens = open_set(f, root, "tokens", NULL);
    ok = is_integers(tokens, 4, true);
    out->tokens = ok ? tokens->n : 0;
    free_set(tokens);
    if (!ok) return false;
    f->offsets = open_set(f, root, "offsets", NULL);
    if (!is_integers(f->offsets, 8, false) || f->offsets->n < 1) return false;
    out->rows = f->offsets->n - 1;
    f->block = SP_SHARD_TOKEN_BLOCK;
    f->sums = open_set(f, root, "offsets_xxh3", &missing);
    if (f->sums) {
        if (!is_integers(f->sums, 8, false) || !get_integer(f, f->sums->header, "block", &f->block))
            return false;
        if (f->block < 1 || f->block > SP_SHARD_BLOCK_MAX ||
            f->sums->n != f->offsets->n / f->block + (f->offsets->n % f->block != 0))
            return false;
    } else if (!missing) {
        return false;
    }
    return out->rows <= out->tokens && read_domains(f, root, out);
}

void sp_plain_close(sp_plain_shard *p) {
    for (int64_t i = 0; p->domain && i < p->n_domains; i++) free(p->domain[i]);
    free(p->domain);
    free(p->tokenizer);
    if (p->file) {
        if (p->file->fd >= 0) close(p->file->fd);
        free_set(p->file->offsets);
        free_set(p->file->sums);
    }
    free(p->file);
    *p = (sp_plain_shard){0};
}

bool sp_plain_open(const char *path, sp_plain_shard *out) {
    struct stat info;
    *out = (sp_plain_shard){0};
    file *f = malloc(sizeof *f);
    if (!f) return false;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    f->from = f->have = 0;
    f->steps = 0;
    f->text_bytes = 0;
    f->offsets = f->sums = NULL;
    out->file = f;
    bool ok = f->fd >= 0 && fstat(f->fd, &info) == 0 && S_ISREG(info.st_mode);
    if (ok) f->bytes = (uint64_t)(out->bytes = (int64_t)info.st_size);
    if (ok && read_shard(f, out)) return true;
    sp_plain_close(out);
    sp_error_clear();
    return false;
}

bool sp_plain_offsets(sp_plain_shard *p,
                      sp_status (*visit)(void *user, const void *values, int64_t first, int64_t n),
                      void *user) {
    const file *f = p->file;
    const data_set *o = f->offsets;
    const int64_t block = f->block < o->n ? f->block : o->n;
    uint64_t *values = malloc((size_t)block * sizeof *values), sum;
    bool ok = values != NULL;
    for (int64_t at = 0, i = 0; ok && at < o->n; at += block, i++) {
        int64_t n = o->n - at < block ? o->n - at : block;
        ok = read_range(f, o, at, n, values);
        if (ok && f->sums) {
            ok = read_range(f, f->sums, i, 1, &sum) &&
                 sp_xxh3(values, (size_t)n * sizeof *values) == sum;
            p->checked++;
        }
        ok = ok && visit(user, values, at, n) == SP_OK;
    }
    free(values);
    sp_error_clear();
    return ok;
}
