// Any bytes as JSON lines or, behind a byte 0 or 1, as .bin: never a crash; and a file that is cut
// into jobs anywhere gives the rows of the whole, or fails as the whole does.
// seed: tests/fuzz/seeds/rows.jsonl
// seed: tests/fuzz/seeds/rows.bin
#include "common/hash.h"
#include "data/import.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool ok) {
    if (!ok) abort();
}

typedef struct sum {
    int64_t rows, tokens;
    uint64_t hash;
} sum;

static sp_status add(void *user, int64_t row, const int32_t *tokens, int64_t n) {
    sum *s = user;
    (void)row;
    require(n >= 1);
    for (int64_t i = 0; i < n; i++) require(tokens[i] >= 0);
    s->rows++;
    s->tokens += n;
    s->hash = sp_mix64(s->hash) ^ sp_xxh3(tokens, (size_t)n * 4);
    return SP_OK;
}

static sp_status scan(const sp_flat_file *f, const sp_flat_format *format, int64_t step, sum *out) {
    sp_scan s = {.visit = add, .user = out};
    sp_status st = SP_OK;
    *out = (sum){0};
    for (int64_t at = 0; at < f->bytes && st == SP_OK; at += step) {
        sp_import_job job = {.begin_at = at, .end_at = f->bytes - at < step ? f->bytes : at + step};
        st = sp_flat_scan(f, format, &job, &s);
    }
    sp_scan_free(&s);
    return st;
}

static void try_file(const uint8_t *data, size_t bytes, bool json, const sp_flat_format *format) {
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    require(fd >= 0 && ftruncate(fd, 0) == 0);
    require(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    const sp_flat_file f = {.path = path, .bytes = (int64_t)bytes, .json = json};
    const int unit = json ? 1 : format->itemsize;
    sum whole, cut;
    sp_status st = scan(&f, format, (int64_t)bytes, &whole);
    require(st == SP_OK || st == SP_BAD_INPUT);
    for (int64_t step = unit; step < (int64_t)bytes && step < 40 * unit; step = 3 * step + unit) {
        if ((int64_t)bytes / step > 200) continue;
        require(scan(&f, format, step, &cut) == st);
        require(st != SP_OK || memcmp(&whole, &cut, sizeof whole) == 0);
    }
    sp_error_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > 1 && data[0] <= 1) {
        sp_flat_format format = {.itemsize = data[0] ? 2 : 4,
                                 .is_signed = true,
                                 .has_eod = true,
                                 .drop_eod = data[1] & 1,
                                 .eod = data[1]};
        size_t n = (bytes - 2) / (size_t)format.itemsize * (size_t)format.itemsize;
        if (n) try_file(data + 2, n, false, &format);
    } else if (bytes) {
        try_file(data, bytes, true, &(sp_flat_format){0});
    }
    return 0;
}
