// Event files are parsed back by an independent reader: framing, checksums, protocol buffers.
// Where the tensorboard package of Python is there, it reads them too.
#include "common/util.h"
#include "tests/support.h"
#include "train/tensorboard.h"

#include <stdlib.h>
#include <string.h>

static void test_crc32c(void **state) {
    (void)state;
    // RFC 3720, appendix B.4
    uint8_t zeros[32] = {0}, ones[32], rising[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) rising[i] = (uint8_t)i;
    assert_int_equal(sp_crc32c(zeros, 32), 0x8a9136aau);
    assert_int_equal(sp_crc32c(ones, 32), 0x62a8ab43u);
    assert_int_equal(sp_crc32c(rising, 32), 0x46dd794eu);
    assert_int_equal(sp_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(sp_crc32c("", 0), 0);
}

typedef struct reader {
    const uint8_t *p, *end;
} reader;

static uint64_t fixed(reader *r, int bytes) {
    assert_true(r->end - r->p >= bytes);
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)*r->p++ << (8 * i);
    return v;
}

static uint64_t varint(reader *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = (uint8_t)fixed(r, 1);
        v |= (uint64_t)(b & 127) << shift;
        if (!(b & 128)) return v;
    }
    fail_msg("varint too long");
    return 0;
}

static reader bytes(reader *r) {
    uint64_t n = varint(r);
    assert_true((uint64_t)(r->end - r->p) >= n);
    reader inner = {r->p, r->p + n};
    r->p += n;
    return inner;
}

static uint32_t unmask(uint32_t masked) {
    uint32_t rotated = masked - 0xa282ead8u;
    return (rotated >> 17) | (rotated << 15);
}

typedef struct event {
    double wall;
    int64_t step;
    char version[32];
    int session; // status, 0 if none
    int n;
    struct {
        char tag[64];
        float value;
    } scalar[8];
} event;

static void copy_text(char *to, size_t cap, reader r) {
    size_t n = (size_t)(r.end - r.p);
    assert_true(n < cap);
    memcpy(to, r.p, n);
    to[n] = 0;
}

static void read_summary(event *e, reader summary) {
    while (summary.p < summary.end) {
        assert_int_equal(varint(&summary), 1 << 3 | 2);
        reader v = bytes(&summary);
        assert_true(e->n < 8);
        while (v.p < v.end) {
            uint64_t key = varint(&v);
            if (key == (1 << 3 | 2)) {
                copy_text(e->scalar[e->n].tag, 64, bytes(&v));
            } else {
                assert_int_equal(key, 2 << 3 | 5);
                uint32_t bits = (uint32_t)fixed(&v, 4);
                memcpy(&e->scalar[e->n].value, &bits, 4);
            }
        }
        e->n++;
    }
}

static event read_event(reader *file) {
    const uint8_t *head = file->p;
    uint64_t len = fixed(file, 8);
    assert_int_equal(unmask((uint32_t)fixed(file, 4)), sp_crc32c(head, 8));
    assert_true((uint64_t)(file->end - file->p) >= len + 4);
    reader r = {file->p, file->p + len};
    file->p += len;
    assert_int_equal(unmask((uint32_t)fixed(file, 4)), sp_crc32c(r.p, len));
    event e = {0};
    while (r.p < r.end) {
        uint64_t key = varint(&r);
        switch (key) {
        case 1 << 3 | 1: {
            uint64_t v = fixed(&r, 8);
            memcpy(&e.wall, &v, 8);
            break;
        }
        case 2 << 3:
            e.step = (int64_t)varint(&r);
            break;
        case 3 << 3 | 2:
            copy_text(e.version, sizeof e.version, bytes(&r));
            break;
        case 5 << 3 | 2:
            read_summary(&e, bytes(&r));
            break;
        case 7 << 3 | 2: {
            reader s = bytes(&r);
            assert_int_equal(varint(&s), 1 << 3);
            e.session = (int)varint(&s);
            break;
        }
        default:
            fail_msg("unknown field key %llu", (unsigned long long)key);
        }
    }
    return e;
}

static char *only_file(const char *dir) {
    char **names;
    int64_t n;
    assert_ok(sp_list_dir(dir, "", &names, &n));
    assert_int_equal(n, 1);
    assert_true(strncmp(names[0], "events.out.tfevents.", 20) == 0);
    char *path = sp_path_join(dir, names[0]);
    sp_free_names(names, n);
    return path;
}

static void test_round_trip(void **state) {
    (void)state;
    char *dir = sp_path_join(test_tmpdir(), "tb");
    sp_tensorboard *t;
    assert_ok(sp_tensorboard_open(dir, 11, &t));
    sp_tensorboard_scalar(t, "train/kl", 0.75);
    sp_tensorboard_scalar(t, "train/lr", 5e-4);
    assert_ok(sp_tensorboard_step(t, 11));
    sp_tensorboard_scalar(t, "train/kl", 0.5);
    assert_ok(sp_tensorboard_step(t, 300)); // a step of two varint bytes
    sp_tensorboard_close(t);

    char *path = only_file(dir), *data;
    int64_t len;
    assert_ok(sp_read_file(path, 1 << 20, &data, &len));
    reader r = {(uint8_t *)data, (uint8_t *)data + len};
    event e = read_event(&r);
    assert_string_equal(e.version, "brain.Event:2");
    assert_true(e.wall > 1.6e9);
    e = read_event(&r);
    assert_int_equal(e.session, 1); // start: later records of steps >= 11 are superseded
    assert_int_equal(e.step, 11);
    e = read_event(&r);
    assert_int_equal(e.step, 11);
    assert_int_equal(e.n, 2);
    assert_string_equal(e.scalar[0].tag, "train/kl");
    assert_true(e.scalar[0].value == 0.75f);
    assert_string_equal(e.scalar[1].tag, "train/lr");
    assert_true(e.scalar[1].value == 5e-4f);
    e = read_event(&r);
    assert_int_equal(e.step, 300);
    assert_int_equal(e.n, 1);
    assert_true(e.scalar[0].value == 0.5f);
    assert_ptr_equal(r.p, r.end);
    free(data);

    if (system("python3 -c 'import tensorboard' >/dev/null 2>&1") == 0) {
        char *command = sp_format(
            "python3 -c 'import sys; from tensorboard.backend.event_processing.event_accumulator "
            "import EventAccumulator as E; e = E(sys.argv[1]); e.Reload(); "
            "s = e.Scalars(\"train/kl\"); sys.exit([(x.step, x.value) for x in s] != "
            "[(11, 0.75), (300, 0.5)])' %s",
            path);
        assert_int_equal(system(command), 0);
        free(command);
    } else {
        print_message(
            "note: the tensorboard package of Python is absent, so it does not read the file\n");
    }
    free(path);
    free(dir);
}

static void test_second_start(void **state) {
    (void)state;
    char *dir = sp_path_join(test_tmpdir(), "tb2");
    sp_tensorboard *a, *b;
    assert_ok(sp_tensorboard_open(dir, 1, &a));
    assert_ok(sp_tensorboard_open(dir, 1, &b)); // its own file, even in the same second
    sp_tensorboard_close(a);
    sp_tensorboard_close(b);
    char **names;
    int64_t n;
    assert_ok(sp_list_dir(dir, "", &names, &n));
    assert_int_equal(n, 2);
    sp_free_names(names, n);
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_second_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
