// TensorBoard event files. See tensorboard.h.
//
// Record: u64 length, u32 masked CRC of those 8 bytes, payload, u32 masked CRC of the payload, all
// little-endian. Payload: message Event {1: double wall_time, 2: int64 step, 3: string
// file_version, 5: Summary {1: repeated Value {1: string tag, 2: float simple_value}}, 7:
// SessionLog {1: status}}.
#include "train/tensorboard.h"

#include "common/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

struct sp_tensorboard {
    int fd;
    int64_t good_bytes; // length of the file up to its last whole record
    char *path;
    sp_text summary; // Summary message of the step being collected
};

// ---- CRC-32C (Castagnoli), bit-reflected polynomial 0x82f63b78 ----------------------------------

uint32_t sp_crc32c(const void *data, size_t bytes) {
    const uint8_t *p = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int b = 0; b < 8; b++) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return ~crc;
}

// A CRC of data that itself holds CRCs is weak, hence the format's rotation and constant.
static uint32_t masked(const void *data, size_t bytes) {
    uint32_t crc = sp_crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// ---- protocol buffers ---------------------------------------------------------------------------

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(sp_text *t, uint64_t v) {
    do {
        uint8_t byte = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
        sp_text_bytes(t, &byte, 1);
        v >>= 7;
    } while (v);
}

static void put_little(sp_text *t, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++, v >>= 8) sp_text_bytes(t, &(uint8_t){(uint8_t)v}, 1);
}

static void put_key(sp_text *t, unsigned field, unsigned type) {
    put_varint(t, (uint64_t)field << 3 | type);
}

static void put_bytes(sp_text *t, unsigned field, const void *data, size_t n) {
    put_key(t, field, BYTES);
    put_varint(t, n);
    sp_text_bytes(t, data, n);
}

// ---- records ------------------------------------------------------------------------------------

static bool write_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        ssize_t w = write(fd, data, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        data += w;
        n -= (size_t)w;
    }
    return true;
}

static sp_status write_event(sp_tensorboard *t, int64_t step, unsigned field, const void *data,
                             size_t bytes) {
    struct timeval now;
    gettimeofday(&now, NULL);
    double wall = (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
    uint64_t wall_bits;
    memcpy(&wall_bits, &wall, sizeof wall_bits);

    sp_text event = {0}, record = {0};
    put_key(&event, 1, FIXED64);
    put_little(&event, wall_bits, 8);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, field, data, bytes);

    put_little(&record, event.len, 8);
    if (!record.failed) put_little(&record, masked(record.data, 8), 4);
    sp_text_bytes(&record, event.data, event.len);
    put_little(&record, event.failed ? 0 : masked(event.data, event.len), 4);

    sp_status st = SP_OK;
    if (event.failed || record.failed) {
        st = sp_error(SP_ENVIRONMENT, "out of memory for an event record");
    } else if (write_all(t->fd, record.data, record.len)) {
        t->good_bytes += (int64_t)record.len;
    } else {
        st = sp_error(SP_ENVIRONMENT, "cannot write %s: %s", t->path, strerror(errno));
        // A torn record would hide everything after it from readers.
        if (ftruncate(t->fd, t->good_bytes) == 0) lseek(t->fd, t->good_bytes, SEEK_SET);
    }
    sp_text_free(&event);
    sp_text_free(&record);
    return st;
}

sp_status sp_tensorboard_open(const char *dir, int64_t first_step, sp_tensorboard **out) {
    *out = NULL;
    sp_tensorboard *t;
    SP_TRY(sp_alloc(&t, 1, sizeof *t, "the event writer"));
    t->fd = -1;
    sp_status st = SP_OK;
    char host[256] = "host";
    gethostname(host, sizeof host - 1);
    struct timeval now;
    gettimeofday(&now, NULL);
    SP_GO(sp_mkdirs(dir));
    // Two starts within a second by one process id cannot happen, but two within a test can.
    for (int try = 0; t->fd < 0; try++) {
        free(t->path);
        t->path = sp_format("%s/events.out.tfevents.%lld.%s.%ld.%d", dir, (long long)now.tv_sec,
                            host, (long)getpid(), try);
        if (!t->path) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (t->fd < 0 && errno != EEXIST)
            SP_GO(sp_error(SP_ENVIRONMENT, "cannot create %s: %s", t->path, strerror(errno)));
    }
    static const char version[] = "brain.Event:2";
    SP_GO(write_event(t, 0, 3, version, sizeof version - 1));
    static const uint8_t session_start[] = {1 << 3 | VARINT, 1};
    SP_GO(write_event(t, first_step, 7, session_start, sizeof session_start));
    *out = t;
    return SP_OK;
done:
    sp_tensorboard_close(t);
    return st;
}

void sp_tensorboard_scalar(sp_tensorboard *t, const char *tag, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    sp_text v = {0};
    put_bytes(&v, 1, tag, strlen(tag));
    put_key(&v, 2, FIXED32);
    put_little(&v, bits, 4);
    if (!v.failed) put_bytes(&t->summary, 1, v.data, v.len);
    sp_text_free(&v);
}

sp_status sp_tensorboard_step(sp_tensorboard *t, int64_t step) {
    sp_status st = write_event(t, step, 5, t->summary.data, t->summary.len);
    sp_text_free(&t->summary);
    return st;
}

void sp_tensorboard_close(sp_tensorboard *t) {
    if (!t) return;
    if (t->fd >= 0) close(t->fd);
    sp_text_free(&t->summary);
    free(t->path);
    free(t);
}
