// Reading ahead: order, end, errors in their place, stopping at any time, measured waiting.
#include "tests/shards.h"

#include "data/prefetch.h"

#include <time.h>
#include <unistd.h>

enum { ROWS = 50, T = 12 };

typedef struct stride { // indices first, first + step, ..., below end
    uint64_t at, step, end;
    long pause_us;
    _Atomic int calls;
} stride;

static bool next_index(void *user, uint64_t *index) {
    stride *s = user;
    s->calls++;
    if (s->pause_us) usleep((useconds_t)s->pause_us);
    if (s->at >= s->end) return false;
    *index = s->at;
    s->at += s->step;
    return true;
}

static sp_dataset *data;
static sp_sampler *sampler;

static int open_data(void **state) {
    (void)state;
    char *path = make_even_shard("loader.h5", 0, ROWS, T);
    assert_ok(open_path(path, &data));
    const sp_sampler_args a = {SP_ORDER_SEQUENTIAL, SP_SHORT_KEEP, T, 1};
    assert_ok(sp_sampler_open(data, &a, &sampler));
    free(path);
    return 0;
}

static int close_data(void **state) {
    (void)state;
    sp_sampler_close(sampler);
    sp_dataset_close(data);
    return 0;
}

static void assert_sample(const sp_sample *s, uint64_t index) {
    char id[32];
    snprintf(id, sizeof id, "/loader.h5:%d", (int)(index % ROWS));
    assert_int_equal(s->index, index);
    assert_int_equal(s->n, T);
    assert_row(s->tokens, T, 0, (int64_t)(index % ROWS));
    assert_non_null(strstr(s->id, id));
}

static void samples_come_in_order_and_end(void **state) {
    (void)state;
    static const int64_t depths[] = {1, 2, 7, 200};
    for (size_t k = 0; k < sizeof depths / sizeof depths[0]; k++) {
        stride s = {.at = 1, .step = 3, .end = 301};
        sp_loader *l;
        sp_sample x;
        assert_ok(sp_loader_open(sampler, next_index, &s, depths[k], &l));
        for (uint64_t i = 1; i < 301; i += 3) {
            assert_ok(sp_loader_next(l, &x));
            assert_sample(&x, i);
        }
        for (int i = 0; i < 3; i++) { // the end stays the end
            assert_ok(sp_loader_next(l, &x));
            assert_null(x.tokens);
            assert_int_equal(x.n, 0);
        }
        sp_loader_close(l);
    }
    stride s = {.end = 0};
    sp_loader *l;
    sp_sample x;
    assert_ok(sp_loader_open(sampler, next_index, &s, 2, &l));
    assert_ok(sp_loader_next(l, &x));
    assert_null(x.tokens);
    sp_loader_close(l);
    assert_fails(sp_loader_open(sampler, next_index, &s, 0, &l), SP_BAD_INPUT, "read-ahead of 0");
}

// Not more than `depth` ahead, and the sample in the consumer's hands stays as it is.
static void reading_ahead_is_bounded(void **state) {
    (void)state;
    stride s = {.at = 0, .step = 1, .end = UINT64_MAX};
    sp_loader *l;
    sp_sample x;
    assert_ok(sp_loader_open(sampler, next_index, &s, 3, &l));
    assert_ok(sp_loader_next(l, &x));
    for (int i = 0; i < 500 && s.calls < 4; i++) usleep(1000);
    usleep(20000);
    assert_int_equal(s.calls, 4); // the one held and three more
    assert_sample(&x, 0);
    sp_loader_close(l);
}

static void it_stops_at_any_time(void **state) {
    (void)state;
    for (int taken = 0; taken < 6; taken++)
        for (int wait = 0; wait < 2; wait++) {
            stride s = {.at = 0, .step = 1, .end = UINT64_MAX};
            sp_loader *l;
            sp_sample x;
            assert_ok(sp_loader_open(sampler, next_index, &s, 2, &l));
            for (int i = 0; i < taken; i++) assert_ok(sp_loader_next(l, &x));
            if (wait) usleep(2000); // the queue is full
            sp_loader_close(l);
        }
    sp_loader_close(NULL);
}

static void an_error_comes_in_its_place(void **state) {
    (void)state;
    char *path = make_even_shard("fails.h5", 0, 10, T);
    const char *one = path;
    sp_dataset *d;
    sp_sampler *narrow;
    assert_ok(open_paths(&one, NULL, 1, (sp_dataset_options){.vocab = 1000}, &d));
    const sp_sampler_args a = {SP_ORDER_SEQUENTIAL, SP_SHORT_KEEP, T, 1};
    assert_ok(sp_sampler_open(d, &a, &narrow));
    free(make_even_shard("fails.h5", 0, 9, T)); // replaced behind its back
    stride s = {.at = 0, .step = 1, .end = 5};
    sp_loader *l;
    sp_sample x;
    assert_ok(sp_loader_open(narrow, next_index, &s, 2, &l));
    for (int i = 0; i < 3; i++) {
        assert_fails(sp_loader_next(l, &x), SP_BAD_INPUT, "fails.h5: changed while in use");
        assert_null(x.tokens);
    }
    sp_loader_close(l);
    sp_sampler_close(narrow);
    sp_dataset_close(d);

    // Row 3 holds an id beyond the vocabulary.
    free(make_even_shard("fails.h5", 0, 10, T));
    char *bytes;
    int64_t len;
    assert_ok(sp_read_file(path, 1 << 24, &bytes, &len));
    const int32_t row3[3] = {shard_token(0, 3, 0), shard_token(0, 3, 1), shard_token(0, 3, 2)};
    uint8_t *at = memmem(bytes, (size_t)len, row3, sizeof row3);
    assert_non_null(at);
    at[5] = 0xff;
    assert_ok(sp_write_file(path, bytes, len));
    free(bytes);
    assert_ok(open_path(path, &d));
    assert_ok(sp_sampler_open(d, &a, &narrow));
    s = (stride){.at = 0, .step = 1, .end = 24};
    assert_ok(sp_loader_open(narrow, next_index, &s, 5, &l));
    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(sp_loader_next(l, &x));
        assert_row(x.tokens, T, 0, (int64_t)i);
    }
    assert_fails(sp_loader_next(l, &x), SP_BAD_INPUT, "row 3, position 1: token id 65374");
    sp_loader_close(l);
    sp_sampler_close(narrow);
    sp_dataset_close(d);
    free(path);
}

static void waiting_is_measured(void **state) {
    (void)state;
    stride slow = {.at = 0, .step = 1, .end = 5, .pause_us = 20000};
    sp_loader *l;
    sp_sample x;
    assert_ok(sp_loader_open(sampler, next_index, &slow, 2, &l));
    for (int i = 0; i < 5; i++) assert_ok(sp_loader_next(l, &x));
    assert_true(sp_loader_waited(l) > 0.09); // 5 x 20 ms, of which the opening may hide a little
    sp_loader_close(l);

    stride fast = {.at = 0, .step = 1, .end = 4};
    assert_ok(sp_loader_open(sampler, next_index, &fast, 8, &l));
    for (int i = 0; i < 1000 && fast.calls < 5; i++) usleep(1000);
    usleep(5000);
    for (int i = 0; i < 4; i++) assert_ok(sp_loader_next(l, &x));
    assert_true(sp_loader_waited(l) < 0.05); // everything was there
    sp_loader_close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_come_in_order_and_end),
        cmocka_unit_test(reading_ahead_is_bounded),
        cmocka_unit_test(it_stops_at_any_time),
        cmocka_unit_test(an_error_comes_in_its_place),
        cmocka_unit_test(waiting_is_measured),
    };
    return cmocka_run_group_tests(tests, open_data, close_data);
}
