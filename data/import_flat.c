// Flat token files: .bin (integers, rows ended by one of them) and .jsonl (a row a line), read in
// pieces by any number of workers.
#include "common/util.h"
#include "data/import.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

// ---- a window that slides over a file -----------------------------------------------------------

typedef struct window {
    int fd;
    const char *path;
    int64_t file_bytes;
    sp_buffer *buffer;
    int64_t at;    // file offset of buffer->data[0]
    int64_t bytes; // valid in the buffer
} window;

static sp_status grow(sp_buffer *b, int64_t cap) {
    if (cap <= b->cap) return SP_OK;
    if (cap < 2 * b->cap) cap = 2 * b->cap;
    uint8_t *grown = realloc(b->data, (size_t)cap);
    if (!grown)
        return sp_error(SP_ENVIRONMENT, "out of memory for a row of %lld bytes", (long long)cap);
    b->data = grown;
    b->cap = cap;
    return SP_OK;
}

static sp_status open_window(const sp_flat_file *f, int64_t at, sp_buffer *b, window *w) {
    *w = (window){.path = f->path, .file_bytes = f->bytes, .buffer = b, .at = at};
    int64_t bytes;
    SP_TRY(sp_open_regular(f->path, &w->fd, &bytes));
    posix_fadvise(w->fd, at, 0, POSIX_FADV_SEQUENTIAL);
    return SP_OK;
}

// Drops `used` bytes and reads another piece behind the rest. False in *more at the file's end.
static sp_status slide(window *w, int64_t used, bool *more) {
    w->at += used;
    w->bytes -= used;
    if (w->bytes) memmove(w->buffer->data, w->buffer->data + used, (size_t)w->bytes);
    SP_TRY(grow(w->buffer, w->bytes + PIECE));
    int64_t from = w->at + w->bytes, want = w->file_bytes - from;
    if (want > w->buffer->cap - w->bytes) want = w->buffer->cap - w->bytes;
    *more = want > 0;
    while (want > 0) {
        ssize_t got = pread(w->fd, w->buffer->data + w->bytes, (size_t)want, w->at + w->bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return sp_error(SP_ENVIRONMENT, "%s: cannot read at byte %lld: %s", w->path,
                            (long long)(w->at + w->bytes), strerror(errno));
        if (got == 0)
            return sp_error(SP_BAD_INPUT, "%s: ends at byte %lld, but had %lld bytes before",
                            w->path, (long long)(w->at + w->bytes), (long long)w->file_bytes);
        w->bytes += got;
        want -= got;
    }
    return SP_OK;
}

// How many ends of rows lie before byte `end`: the number of the row that begins there.
static int64_t count_ends(const sp_flat_file *f, const sp_flat_format *format, int64_t end) {
    FILE *in = fopen(f->path, "rbe");
    char piece[8192];
    int64_t rows = 0;
    int step = f->json ? 1 : format->itemsize;
    for (int64_t at = 0; in && at < end;) {
        size_t want = end - at < (int64_t)sizeof piece ? (size_t)(end - at) : sizeof piece;
        size_t got = fread(piece, 1, want, in);
        if (got == 0) break;
        for (size_t i = 0; i + (size_t)step <= got; i += (size_t)step) {
            uint32_t v = 0;
            memcpy(&v, piece + i, (size_t)step);
            rows += f->json ? piece[i] == '\n' : v == (uint32_t)format->eod;
        }
        at += (int64_t)got;
    }
    if (in) fclose(in);
    return rows;
}

// ---- .bin ---------------------------------------------------------------------------------------

static sp_status bad_id(const sp_flat_file *f, const sp_flat_format *format, int64_t row_at,
                        int64_t position, int64_t id, int64_t vocab) {
    int64_t row = count_ends(f, format, row_at);
    const long long limit = vocab > 0 ? vocab - 1 : INT32_MAX;
    if (f->json)
        return sp_error(SP_BAD_INPUT,
                        "%s: row %lld (line %lld, byte %lld), position %lld: token id %lld is "
                        "outside 0..%lld, the vocabulary; %s",
                        f->path, (long long)row, (long long)row + 1, (long long)row_at,
                        (long long)position, (long long)id, limit, sp_token_hint(id, vocab));
    return sp_error(
        SP_BAD_INPUT,
        "%s: row %lld, position %lld (byte %lld): token id %lld is outside 0..%lld, the "
        "vocabulary; %s; or its integers are not of the type given with --dtype",
        f->path, (long long)row, (long long)position,
        (long long)(row_at + position * format->itemsize), (long long)id, limit,
        sp_token_hint(id, vocab));
}

static int32_t value_at(const uint8_t *p, const sp_flat_format *format) {
    if (format->itemsize == 2) {
        uint16_t v;
        memcpy(&v, p, 2);
        return v;
    }
    int32_t v; // unsigned ids from 2^31 on look negative, and are refused as such
    memcpy(&v, p, 4);
    return v;
}

// `n` values at `p`, a whole row, to the visitor.
static sp_status show_row(const sp_flat_file *f, const sp_flat_format *format, const uint8_t *p,
                          int64_t n, int64_t row_at, int64_t row, sp_scan *scan) {
    sp_buffer *b = &scan->buffer[2];
    if (n > INT32_MAX)
        return sp_error(SP_BAD_INPUT,
                        "%s: a row of %lld tokens begins at byte %lld; is --eod right?", f->path,
                        (long long)n, (long long)row_at);
    SP_TRY(grow(b, 4 * n));
    int32_t *tokens = (int32_t *)b->data;
    if (format->itemsize == 4)
        memcpy(tokens, p, (size_t)(4 * n));
    else
        for (int64_t i = 0; i < n; i++) tokens[i] = value_at(p + 2 * i, format);
    int64_t k = sp_find_bad_token(tokens, n, scan->vocab);
    if (k < n) {
        int64_t id = format->itemsize == 4 && !format->is_signed ? (int64_t)(uint32_t)tokens[k]
                                                                 : (int64_t)tokens[k];
        return bad_id(f, format, row_at, k, id, scan->vocab);
    }
    if (format->drop_eod && tokens[n - 1] == (int32_t)format->eod) n--;
    return n > 0 ? scan->visit(scan->user, row, tokens, n) : SP_OK;
}

static sp_status scan_bin(const sp_flat_file *f, const sp_flat_format *format,
                          const sp_import_job *job, sp_scan *scan) {
    const int size = format->itemsize;
    const int32_t eod = (int32_t)format->eod;
    // The row that begins at begin_at ends the one before: look at that token first.
    int64_t start = job->begin_at > 0 ? job->begin_at - size : 0;
    window w;
    SP_TRY(open_window(f, start, &scan->buffer[0], &w));
    bool more, inside = job->begin_at == 0; // a row of this job begins at `from`
    int64_t row = 0, searched = 0;          // bytes behind `from` without an end
    sp_status st = slide(&w, 0, &more);
    while (st == SP_OK && (!inside || w.at < job->end_at)) {
        int64_t from = 0;
        while (st == SP_OK && (!inside || w.at + from < job->end_at)) {
            int64_t end = from + searched;
            while (end < w.bytes && value_at(w.buffer->data + end, format) != eod) end += size;
            if (end == w.bytes) break;
            end += size;
            if (inside)
                st = show_row(f, format, w.buffer->data + from, (end - from) / size, w.at + from,
                              row++, scan);
            inside = true;
            from = end;
            searched = 0;
        }
        if (st != SP_OK || (inside && w.at + from >= job->end_at)) break;
        searched = w.bytes - from;
        if (!inside) { // the row before is of no interest
            from = w.bytes;
            searched = 0;
        }
        st = slide(&w, from, &more);
        if (st != SP_OK || more) continue;
        if (inside && w.bytes > 0) // the last row of the file has no end
            st = show_row(f, format, w.buffer->data, w.bytes / size, w.at, row++, scan);
        break;
    }
    close(w.fd);
    return st;
}

// ---- .jsonl -------------------------------------------------------------------------------------

typedef struct json_row {
    const char *text;
    int64_t at, bytes;
    sp_scan *scan;
    int64_t n; // ids
} json_row;

static void skip_space(json_row *r) {
    while (r->at < r->bytes && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) r->at++;
}

static bool take(json_row *r, char c) {
    skip_space(r);
    if (r->at == r->bytes || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

static sp_status not_json(const json_row *r, const char *expected) {
    char found[8] = "the end";
    if (r->at < r->bytes) snprintf(found, sizeof found, "'%c'", r->text[r->at]);
    return sp_error(SP_BAD_INPUT, "expected %s, found %s", expected, found);
}

static sp_status take_id(json_row *r) {
    skip_space(r);
    bool minus = r->at < r->bytes && r->text[r->at] == '-';
    int64_t start = r->at, v = 0;
    r->at += minus;
    int64_t digits = r->at;
    while (r->at < r->bytes && r->text[r->at] >= '0' && r->text[r->at] <= '9') {
        v = 10 * v + (r->text[r->at++] - '0');
        if (v > (int64_t)UINT32_MAX) break;
    }
    if (r->at == digits) {
        r->at = start;
        return not_json(r, "a token id");
    }
    if (v > INT32_MAX || minus) {
        r->at = start;
        return sp_error(SP_BAD_INPUT, "position %lld: token id %s%lld%s is outside 0..2147483647",
                        (long long)r->n, minus ? "-" : "", (long long)v,
                        v > (int64_t)UINT32_MAX ? "..." : "");
    }
    sp_buffer *b = &r->scan->buffer[2];
    SP_TRY(grow(b, 4 * (r->n + 1)));
    ((int32_t *)b->data)[r->n++] = (int32_t)v;
    return SP_OK;
}

static sp_status take_list(json_row *r) {
    if (!take(r, '[')) return not_json(r, "a list of token ids");
    if (take(r, ']')) return sp_error(SP_BAD_INPUT, "a row without tokens");
    do SP_TRY(take_id(r));
    while (take(r, ','));
    return take(r, ']') ? SP_OK : not_json(r, "',' or ']'");
}

// A quoted text; *key, *len: what is between the quotes, escapes as they stand.
static sp_status take_text(json_row *r, const char **key, int64_t *len) {
    if (!take(r, '"')) return not_json(r, "a quoted text");
    *key = r->text + r->at;
    int64_t start = r->at;
    while (r->at < r->bytes && r->text[r->at] != '"') r->at += r->text[r->at] == '\\' ? 2 : 1;
    if (r->at >= r->bytes) {
        r->at = r->bytes;
        return not_json(r, "the end of a text");
    }
    *len = r->at++ - start;
    return SP_OK;
}

// A value of no interest, checked only as far as finding its end needs.
static sp_status skip_value(json_row *r) {
    int64_t depth = 0;
    const char *key;
    int64_t len;
    do {
        skip_space(r);
        if (r->at == r->bytes) return not_json(r, "a value");
        char c = r->text[r->at];
        if (c == '"') {
            SP_TRY(take_text(r, &key, &len));
        } else if (c == '[' || c == '{') {
            depth++;
            r->at++;
        } else if (c == ']' || c == '}') {
            if (depth == 0) return not_json(r, "a value");
            depth--;
            r->at++;
        } else if ((c == ',' || c == ':') && depth > 0) {
            r->at++;
            continue;
        } else {
            int64_t start = r->at;
            while (r->at < r->bytes && !strchr(",:]}[{\" \t\r\n", r->text[r->at])) r->at++;
            if (r->at == start) return not_json(r, "a value");
        }
    } while (depth > 0);
    return SP_OK;
}

static sp_status take_object(json_row *r) {
    bool found = false;
    if (!take(r, '{')) return not_json(r, "'[' or '{'");
    if (!take(r, '}')) {
        do {
            const char *key;
            int64_t len;
            SP_TRY(take_text(r, &key, &len));
            if (!take(r, ':')) return not_json(r, "':'");
            bool ids = (len == 9 && memcmp(key, "input_ids", 9) == 0) ||
                       (len == 6 && memcmp(key, "tokens", 6) == 0);
            if (ids && found) return sp_error(SP_BAD_INPUT, "two lists of token ids in one row");
            SP_TRY(ids ? take_list(r) : skip_value(r));
            found |= ids;
        } while (take(r, ','));
        if (!take(r, '}')) return not_json(r, "',' or '}'");
    }
    return found ? SP_OK
                 : sp_error(SP_BAD_INPUT, "the object has no 'input_ids' and no 'tokens' (token "
                                          "ids; text is not tokenized here)");
}

sp_status sp_json_row_parse(const char *line, int64_t bytes, sp_scan *scan, int64_t *n,
                            int64_t *fault) {
    json_row r = {.text = line, .bytes = bytes, .scan = scan};
    skip_space(&r);
    sp_status st = r.at < r.bytes && r.text[r.at] == '[' ? take_list(&r) : take_object(&r);
    skip_space(&r);
    if (st == SP_OK && r.at < r.bytes) st = not_json(&r, "the end of the line");
    *n = r.n;
    *fault = r.at;
    return st;
}

static sp_status show_line(const sp_flat_file *f, const char *line, int64_t bytes, int64_t at,
                           int64_t row, sp_scan *scan) {
    int64_t n, fault;
    sp_status st = sp_json_row_parse(line, bytes, scan, &n, &fault);
    if (st != SP_OK) {
        int64_t before = count_ends(f, NULL, at);
        sp_error_prefix("%s: row %lld (line %lld, byte %lld)", f->path, (long long)before,
                        (long long)before + 1, (long long)(at + fault));
        return st;
    }
    const int32_t *tokens = (const int32_t *)scan->buffer[2].data;
    int64_t k = sp_find_bad_token(tokens, n, scan->vocab);
    if (k < n) return bad_id(f, NULL, at, k, tokens[k], scan->vocab);
    return scan->visit(scan->user, row, tokens, n);
}

static bool is_blank(const char *line, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

static sp_status scan_jsonl(const sp_flat_file *f, const sp_import_job *job, sp_scan *scan) {
    int64_t start = job->begin_at > 0 ? job->begin_at - 1 : 0;
    window w;
    SP_TRY(open_window(f, start, &scan->buffer[0], &w));
    bool more, inside = job->begin_at == 0;
    int64_t row = 0, searched = 0;
    sp_status st = slide(&w, 0, &more);
    while (st == SP_OK && (!inside || w.at < job->end_at)) {
        int64_t from = 0;
        const char *text = (const char *)w.buffer->data, *end;
        while (st == SP_OK && (!inside || w.at + from < job->end_at) && w.bytes > from + searched &&
               (end = memchr(text + from + searched, '\n', (size_t)(w.bytes - from - searched)))) {
            int64_t n = end - text - from;
            if (inside && !is_blank(text + from, n))
                st = show_line(f, text + from, n, w.at + from, row++, scan);
            inside = true;
            from += n + 1;
            searched = 0;
        }
        if (st != SP_OK || (inside && w.at + from >= job->end_at)) break;
        searched = w.bytes - from;
        if (!inside) { // the line before is of no interest
            from = w.bytes;
            searched = 0;
        }
        st = slide(&w, from, &more);
        if (st != SP_OK || more) continue;
        if (inside && !is_blank((const char *)w.buffer->data, w.bytes)) // no newline at the end
            st = show_line(f, (const char *)w.buffer->data, w.bytes, w.at, row++, scan);
        break;
    }
    close(w.fd);
    return st;
}

sp_status sp_flat_scan(const sp_flat_file *file, const sp_flat_format *format,
                       const sp_import_job *job, sp_scan *scan) {
    return file->json ? scan_jsonl(file, job, scan) : scan_bin(file, format, job, scan);
}
