// Zip directory of a torch archive (formats.md 3.1), read backwards from the end: end record, zip64
// locator and record, central directory; then the local header of each entry for its data position.
#include "checkpoints/pt.h"

#include <stdlib.h>
#include <string.h>

enum {
    END_RECORD = 22,
    END64_LOCATOR = 20,
    END64_RECORD = 56,
    CENTRAL = 46,
    LOCAL = 30,
    MAX_COMMENT = 65535,
    FLAG_ENCRYPTED = 1,
};

typedef struct reader {
    const uint8_t *b;
    int64_t n;
    const char *origin;
} reader;

static uint64_t le(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static bool inside(const reader *r, uint64_t at, uint64_t bytes) {
    return at <= (uint64_t)r->n && bytes <= (uint64_t)r->n - at;
}

static sp_status broken(const reader *r, const char *why) {
    return sp_error(SP_BAD_INPUT,
                    "%s: damaged zip archive: %s; the file is incomplete or was changed, copy or "
                    "save it again",
                    r->origin, why);
}

static int64_t find_end_record(const reader *r) {
    int64_t lowest = r->n - END_RECORD - MAX_COMMENT;
    for (int64_t at = r->n - END_RECORD; at >= 0 && at >= lowest; at--)
        if (le(r->b + at, 4) == 0x06054b50 &&
            (int64_t)le(r->b + at + 20, 2) == r->n - at - END_RECORD)
            return at;
    return -1;
}

typedef struct directory {
    uint64_t entries, bytes, at;
} directory;

static sp_status find_directory(const reader *r, directory *d) {
    int64_t end = find_end_record(r);
    if (end < 0) return broken(r, "no end record (the end of the file is missing)");
    *d = (directory){le(r->b + end + 10, 2), le(r->b + end + 12, 4), le(r->b + end + 16, 4)};
    int64_t limit = end, locator = end - END64_LOCATOR;
    if (locator >= 0 && le(r->b + locator, 4) == 0x07064b50) {
        uint64_t at = le(r->b + locator + 8, 8);
        if (!inside(r, at, END64_RECORD) || le(r->b + at, 4) != 0x06064b50)
            return broken(r, "the zip64 end record is not where it should be");
        *d = (directory){le(r->b + at + 32, 8), le(r->b + at + 40, 8), le(r->b + at + 48, 8)};
        limit = (int64_t)at;
    }
    if (d->at > (uint64_t)limit || d->bytes > (uint64_t)limit - d->at)
        return broken(r, "the central directory lies outside the file");
    if (d->entries > d->bytes / CENTRAL)
        return broken(r, "the central directory is too short for its entries");
    return SP_OK;
}

// Replaces the sizes that a central header leaves to its zip64 field (id 1), in their fixed order.
static bool apply_zip64(const uint8_t *extra, int64_t n, uint64_t *raw, uint64_t *packed,
                        uint64_t *local) {
    uint64_t *wanted[3] = {raw, packed, local};
    while (n >= 4) {
        int64_t id = (int64_t)le(extra, 2), size = (int64_t)le(extra + 2, 2);
        if (size > n - 4) return false;
        if (id == 1) {
            const uint8_t *p = extra + 4, *end = p + size;
            for (int i = 0; i < 3; i++) {
                if (*wanted[i] != 0xffffffff) continue;
                if (end - p < 8) return false;
                *wanted[i] = le(p, 8);
                p += 8;
            }
            return true;
        }
        extra += 4 + size;
        n -= 4 + size;
    }
    return *raw != 0xffffffff && *packed != 0xffffffff && *local != 0xffffffff;
}

static int compare_names(const char *a, int64_t an, const char *b, int64_t bn) {
    int c = memcmp(a, b, (size_t)(an < bn ? an : bn));
    return c ? c : an < bn ? -1 : an > bn;
}

static int by_name(const void *a, const void *b) {
    const sp_zip_entry *x = a, *y = b;
    return compare_names(x->name, x->name_len, y->name, y->name_len);
}

// One central header at p, of `left` bytes; `used` receives its length.
static sp_status read_entry(const reader *r, const uint8_t *p, uint64_t left, uint64_t data_limit,
                            sp_zip_entry *e, uint64_t *used) {
    if (left < CENTRAL || le(p, 4) != 0x02014b50) return broken(r, "a directory entry is missing");
    uint64_t flags = le(p + 8, 2), method = le(p + 10, 2), packed = le(p + 20, 4),
             raw = le(p + 24, 4), name_len = le(p + 28, 2), extra_len = le(p + 30, 2),
             comment_len = le(p + 32, 2), local = le(p + 42, 4);
    *used = CENTRAL + name_len + extra_len + comment_len;
    if (*used > left) return broken(r, "a directory entry is cut off");
    if (!apply_zip64(p + CENTRAL + name_len, (int64_t)extra_len, &raw, &packed, &local))
        return broken(r, "a zip64 field is cut off");
    *e = (sp_zip_entry){.name = (const char *)p + CENTRAL,
                        .name_len = (int64_t)name_len,
                        .crc = (uint32_t)le(p + 16, 4),
                        .stored = method == 0 && !(flags & FLAG_ENCRYPTED)};
    if (!inside(r, local, LOCAL) || le(r->b + local, 4) != 0x04034b50)
        return broken(r, "an entry's local header is not where the directory says");
    const uint8_t *h = r->b + local;
    uint64_t head = LOCAL + le(h + 26, 2) + le(h + 28, 2);
    if (le(h + 26, 2) != name_len || !inside(r, local, head) ||
        memcmp(h + LOCAL, e->name, name_len) != 0)
        return broken(r, "an entry's local header has another name than the directory");
    if (e->stored && raw != packed) return broken(r, "a stored entry has two different sizes");
    uint64_t at = local + head;
    if (at > data_limit || packed > data_limit - at)
        return broken(r, "an entry reaches beyond the end of the data");
    e->data = r->b + at;
    e->bytes = (int64_t)packed;
    return SP_OK;
}

sp_status sp_zip_open(const uint8_t *bytes, int64_t n, const char *origin, sp_zip *out) {
    *out = (sp_zip){0};
    reader r = {bytes, n, origin};
    directory d;
    SP_TRY(find_directory(&r, &d));
    SP_TRY(sp_alloc(&out->entry, (int64_t)d.entries, sizeof *out->entry, "the zip directory"));
    const uint8_t *p = bytes + d.at;
    sp_status st = SP_OK;
    for (uint64_t i = 0, left = d.bytes, used = 0; i < d.entries; i++, p += used, left -= used)
        SP_GO(read_entry(&r, p, left, d.at, &out->entry[i], &used));
    out->n = (int64_t)d.entries;
    qsort(out->entry, (size_t)out->n, sizeof *out->entry, by_name);
    for (int64_t i = 1; i < out->n; i++)
        if (by_name(&out->entry[i - 1], &out->entry[i]) == 0)
            SP_GO(sp_error(SP_BAD_INPUT, "%s: the archive holds the entry %.*s twice", origin,
                           (int)out->entry[i].name_len, out->entry[i].name));
done:
    if (st != SP_OK) sp_zip_free(out);
    return st;
}

void sp_zip_free(sp_zip *z) {
    free(z->entry);
    *z = (sp_zip){0};
}

const sp_zip_entry *sp_zip_find(const sp_zip *z, const char *name, int64_t name_len) {
    sp_zip_entry key = {.name = name, .name_len = name_len};
    return z->n ? bsearch(&key, z->entry, (size_t)z->n, sizeof *z->entry, by_name) : NULL;
}
