// The order of samples: permutations, passes, mixture, short rows.
#include "tests/shards.h"

#include <math.h>

// ---- permutations
// --------------------------------------------------------------------------------

static void a_permutation_hits_everything_once(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1000, 1023, 1024, 1025, 4096, 4097, 65535, 65537, 100003};
    unsigned char *seen = malloc(100003);
    for (uint64_t k = 0; k < 300 + sizeof sizes / sizeof sizes[0]; k++) {
        uint64_t n = k < 300 ? k + 1 : sizes[k - 300];
        for (uint64_t key = 0; key < (n < 300 ? 8 : 2); key++) {
            memset(seen, 0, n);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t p = sp_permute(key * 0x123456789abcdef1u, n, i);
                assert_true(p < n);
                assert_int_equal(seen[p]++, 0);
            }
        }
    }
    free(seen);
}

// Too many to visit: in range, and no two of a stretch agree.
static void large_permutations_stay_in_range(void **state) {
    (void)state;
    static const uint64_t sizes[] = {(1ull << 32) - 1, 1ull << 32, (1ull << 32) + 1,
                                     1ull << 40,       1ull << 63, UINT64_MAX};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        uint64_t p[200];
        for (uint64_t i = 0; i < 200; i++) {
            p[i] = sp_permute(9, sizes[k], i < 100 ? i : sizes[k] - 1 - (i - 100));
            assert_true(p[i] < sizes[k]);
            for (uint64_t j = 0; j < i; j++) assert_true(p[i] != p[j]);
        }
    }
}

// Values of an independent implementation of the definition in data/README.md.
static void permutations_are_those_of_the_definition(void **state) {
    (void)state;
    static const uint64_t one[10] = {2, 6, 4, 8, 5, 7, 0, 9, 3, 1},
                          two[10] = {3, 0, 7, 4, 9, 1, 5, 2, 8, 6};
    static const uint64_t large[5] = {999769, 561230, 56666, 568409, 622862};
    for (uint64_t i = 0; i < 10; i++) {
        assert_int_equal(sp_permute(1, 10, i), one[i]);
        assert_int_equal(sp_permute(2, 10, i), two[i]);
    }
    for (uint64_t i = 0; i < 5; i++) assert_int_equal(sp_permute(12345, 1000003, i), large[i]);
    assert_true(sp_permute(7, UINT64_MAX, UINT64_MAX - 1) == 4092175540096053927u);
    assert_true(sp_permute(7, 1ull << 40, 5) == 58333633188u);
    assert_int_equal(sp_permute(7, 1, 0), 0);
}

// All orders of three things come about equally often: 6 x 2000, standard deviation 41.
static void every_order_of_three_occurs(void **state) {
    (void)state;
    int count[27] = {0};
    for (uint64_t key = 0; key < 12000; key++) {
        uint64_t k = key * 0x9e3779b97f4a7c15u;
        count[sp_permute(k, 3, 0) * 9 + sp_permute(k, 3, 1) * 3 + sp_permute(k, 3, 2)]++;
    }
    static const int orders[6] = {0 * 9 + 1 * 3 + 2, 0 * 9 + 2 * 3 + 1, 1 * 9 + 0 * 3 + 2,
                                  1 * 9 + 2 * 3 + 0, 2 * 9 + 0 * 3 + 1, 2 * 9 + 1 * 3 + 0};
    for (int i = 0; i < 6; i++) assert_in_range(count[orders[i]], 1800, 2200);
}

// ---- data for the orders
// -------------------------------------------------------------------------

// Two entries: a.h5 and b.h5 with rows of 10 tokens.
static void two_entries(int64_t rows_a, int64_t rows_b, const double *proportion, sp_dataset **d) {
    char *a = make_even_shard("a.h5", 0, rows_a, 10), *b = make_even_shard("b.h5", 1, rows_b, 10);
    const char *paths[2] = {a, b};
    assert_ok(open_paths(paths, proportion, 2, (sp_dataset_options){0}, d));
    free(a);
    free(b);
}

static sp_sampler *open_sampler(const sp_dataset *d, sp_data_order order, sp_short_rows short_rows,
                                int64_t seq_len, uint64_t seed) {
    const sp_sampler_args a = {order, short_rows, seq_len, seed};
    sp_sampler *s;
    assert_ok(sp_sampler_open(d, &a, &s));
    return s;
}

// entry * 1000 + row of a sample of one row; also reads it and compares its tokens and name.
static int64_t place(const sp_sampler *s, uint64_t index) {
    int64_t entry, row, rows, n;
    int32_t t[64];
    char id[128];
    sp_sampler_locate(s, index, &entry, &row, &rows);
    assert_int_equal(rows, 1);
    assert_ok(sp_sampler_read(s, index, t, &n, id));
    assert_row(t, n, entry, row);
    char *tail = sp_format("/%c.h5:%d", (char)('a' + entry), (int)row);
    assert_string_equal(id + strlen(id) - strlen(tail), tail);
    free(tail);
    return entry * 1000 + row;
}

// ---- orders
// --------------------------------------------------------------------------------------

static void sequential_goes_through_the_files_again_and_again(void **state) {
    (void)state;
    sp_dataset *d;
    two_entries(5, 3, (double[]){0.9, 0.1}, &d); // proportions are ignored
    sp_sampler *s = open_sampler(d, SP_ORDER_SEQUENTIAL, SP_SHORT_KEEP, 10, 1);
    static const int64_t pass[8] = {0, 1, 2, 3, 4, 1000, 1001, 1002};
    for (uint64_t i = 0; i < 24; i++) assert_int_equal(place(s, i), pass[i % 8]);
    assert_int_equal(place(s, 8ull * 1000000007ull * 1000000009ull + 6), 1001);
    sp_sampler_counts c;
    assert_ok(sp_sampler_count(s, &c));
    assert_int_equal(c.rows, 8);
    assert_int_equal(c.samples, 8);
    assert_int_equal(c.cut + c.short_kept + c.short_dropped + c.packs, 0);
    sp_sampler_close(s);
    sp_dataset_close(d);
}

static void without_proportions_every_pass_has_every_row_once(void **state) {
    (void)state;
    sp_dataset *d;
    two_entries(50, 30, NULL, &d);
    assert_false(sp_dataset_has_proportions(d));
    sp_sampler *s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 7);
    int moved = 0;
    for (uint64_t pass = 0; pass < 5; pass++) {
        int seen[2000] = {0};
        for (uint64_t i = 0; i < 80; i++) {
            int64_t p = place(s, pass * 80 + i);
            assert_int_equal(seen[p]++, 0);
            moved += p != place(s, i); // another order in every pass
        }
    }
    assert_true(moved > 300);
    sp_sampler *other = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 8);
    moved = 0;
    for (uint64_t i = 0; i < 80; i++) moved += place(s, i) != place(other, i);
    assert_true(moved > 60); // another order with another seed
    sp_sampler_close(other);
    sp_sampler_close(s);
    sp_dataset_close(d);
}

static void shuffled_orders_are_those_of_the_definition(void **state) {
    (void)state;
    static const int64_t all[16] = {1002, 0, 4, 1000, 1,    1001, 3, 2,
                                    1001, 1, 3, 4,    1000, 1002, 2, 0},
                         mixed[24] = {2, 4,    1001, 0, 2, 1,    1002, 3, 1, 4, 3,    1000,
                                      1, 1001, 4,    0, 0, 1000, 2,    3, 0, 3, 1002, 2};
    sp_dataset *d;
    two_entries(5, 3, NULL, &d);
    sp_sampler *s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 42);
    for (uint64_t i = 0; i < 16; i++) assert_int_equal(place(s, i), all[i]);
    sp_sampler_close(s);
    sp_dataset_close(d);

    two_entries(5, 3, (double[]){0.75, 0.25}, &d); // a cycle of 3 + 1 slots
    s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 42);
    for (uint64_t i = 0; i < 24; i++) assert_int_equal(place(s, i), mixed[i]);
    sp_sampler_close(s);
    sp_dataset_close(d);
}

// Entries of the first n samples.
static void count_entries(const sp_sampler *s, uint64_t n, int64_t *count) {
    for (uint64_t i = 0; i < n; i++) {
        int64_t entry, row, rows;
        sp_sampler_locate(s, i, &entry, &row, &rows);
        count[entry]++;
    }
}

static void proportions_are_reached_in_every_cycle(void **state) {
    (void)state;
    const struct {
        double a, b;
        int64_t cycle, of_a;
    } cases[] = {{0.75, 0.25, 4, 3},
                 {3, 1, 4, 3},
                 {1, 1, 2, 1},
                 {0.3, 0.7, 10, 3},
                 {31, 69, 100, 31},
                 {1, 2, 3, 1},
                 {0.001, 0.999, 1000, 1},
                 {1, 1.41421356237, 10000, 4142}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        sp_dataset *d;
        two_entries(5, 3, (double[]){cases[k].a, cases[k].b}, &d);
        sp_sampler *s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, k);
        for (int64_t c = 1; c <= 3; c++) {
            int64_t count[2] = {0};
            count_entries(s, (uint64_t)(c * cases[k].cycle), count);
            assert_int_equal(count[0], c * cases[k].of_a);
        }
        sp_sampler_close(s);
        sp_dataset_close(d);
    }
    char *a = make_even_shard("a.h5", 0, 5, 10); // three equal shares
    const char *paths[3] = {a, a, a};
    sp_dataset *d;
    assert_ok(open_paths(paths, (double[]){0.1, 0.1, 0.1}, 3, (sp_dataset_options){0}, &d));
    sp_sampler *s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 1);
    int64_t count[3] = {0};
    count_entries(s, 3, count);
    assert_true(count[0] == 1 && count[1] == 1 && count[2] == 1);
    sp_sampler_close(s);
    sp_dataset_close(d);
    free(a);
}

static void a_share_too_small_to_mix_is_refused(void **state) {
    (void)state;
    sp_dataset *d;
    sp_sampler *s;
    two_entries(5, 3, (double[]){1, 0.00001}, &d);
    const sp_sampler_args a = {SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 1};
    assert_fails(sp_sampler_open(d, &a, &s), SP_BAD_INPUT, "b.h5: its share 9.9999e-06");
    sp_dataset_close(d);
}

// With proportions, sample k of an entry counts its own passes: each row once before any twice.
static void a_mixture_uses_every_row_of_an_entry_equally(void **state) {
    (void)state;
    sp_dataset *d;
    two_entries(7, 4, (double[]){0.75, 0.25}, &d);
    sp_sampler *s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 3);
    int seen[2000] = {0};
    // 28 cycles: 84 samples of a = 12 passes over 7 rows, 28 of b = 7 passes over 4.
    for (uint64_t i = 0; i < 28 * 4; i++) seen[place(s, i)]++;
    for (int r = 0; r < 7; r++) assert_int_equal(seen[r], 12);
    for (int r = 0; r < 4; r++) assert_int_equal(seen[1000 + r], 7);
    sp_sampler_close(s);
    sp_dataset_close(d);
}

// One entry: the same order with and without a proportion.
static void a_single_entry_needs_no_proportion(void **state) {
    (void)state;
    char *a = make_even_shard("a.h5", 0, 11, 10);
    const char *path = a;
    sp_dataset *with, *without;
    assert_ok(open_paths(&path, (double[]){0.2}, 1, (sp_dataset_options){0}, &with));
    assert_ok(open_paths(&path, NULL, 1, (sp_dataset_options){0}, &without));
    sp_sampler *s = open_sampler(with, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 5);
    sp_sampler *t = open_sampler(without, SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 10, 5);
    for (uint64_t i = 0; i < 50; i++) assert_int_equal(place(s, i), place(t, i));
    sp_sampler_close(s);
    sp_sampler_close(t);
    sp_dataset_close(with);
    sp_dataset_close(without);
    free(a);
}

// ---- short and long rows
// -------------------------------------------------------------------------

// Rows of two files in one entry; seq_len 10.
static const int64_t lengths[2][7] = {{4, 3, 10, 2, 3, 5, 1}, {9, 1, 25, 6, 5, 4, 10}};

static sp_dataset *uneven(void) {
    char *a = make_shard("uneven/a.h5", 0, 7, lengths[0]);
    char *b = make_shard("uneven/b.h5", 1, 7, lengths[1]), *dir = sp_path_dir(a);
    sp_dataset *d;
    assert_ok(open_path(dir, &d));
    free(a);
    free(b);
    free(dir);
    return d;
}

static void assert_counts(const sp_sampler *s, sp_sampler_counts want) {
    sp_sampler_counts c;
    assert_ok(sp_sampler_count(s, &c));
    assert_int_equal(c.rows, want.rows);
    assert_int_equal(c.samples, want.samples);
    assert_int_equal(c.cut, want.cut);
    assert_int_equal(c.short_kept, want.short_kept);
    assert_int_equal(c.short_dropped, want.short_dropped);
    assert_int_equal(c.packs, want.packs);
}

static void short_rows_are_kept(void **state) {
    (void)state;
    sp_dataset *d = uneven();
    sp_sampler *s = open_sampler(d, SP_ORDER_SEQUENTIAL, SP_SHORT_KEEP, 10, 1);
    for (uint64_t i = 0; i < 14; i++) {
        int32_t t[11];
        int64_t n, length = lengths[i / 7][i % 7];
        t[10] = 77777;
        assert_ok(sp_sampler_read(s, i, t, &n, NULL));
        assert_int_equal(n, length < 10 ? length : 10);
        assert_row(t, n, (int64_t)i / 7, (int64_t)i % 7);
        assert_int_equal(t[10], 77777);
    }
    assert_counts(s, (sp_sampler_counts){.rows = 14, .samples = 14, .cut = 1, .short_kept = 11});
    sp_sampler_close(s);
    sp_dataset_close(d);
}

static void short_rows_are_dropped(void **state) {
    (void)state;
    sp_dataset *d = uneven();
    sp_sampler *s = open_sampler(d, SP_ORDER_SEQUENTIAL, SP_SHORT_DROP, 10, 1);
    static const int64_t left[3] = {2, 7 + 2, 7 + 6};
    for (uint64_t i = 0; i < 9; i++) {
        int64_t entry, row, rows;
        sp_sampler_locate(s, i, &entry, &row, &rows);
        assert_int_equal(row, left[i % 3]);
        assert_int_equal(rows, 1);
    }
    assert_counts(s, (sp_sampler_counts){.rows = 14, .samples = 3, .cut = 1, .short_dropped = 11});
    sp_sampler_close(s);
    s = NULL;
    const sp_sampler_args a = {SP_ORDER_SHUFFLED, SP_SHORT_DROP, 26, 1};
    assert_fails(sp_sampler_open(d, &a, &s), SP_BAD_INPUT, "none of its 14 rows has 26 tokens");
    const sp_sampler_args none = {SP_ORDER_SHUFFLED, SP_SHORT_KEEP, 0, 1};
    assert_fails(sp_sampler_open(d, &none, &s), SP_BAD_INPUT, "seq_len 0");
    sp_dataset_close(d);
}

static void short_rows_are_packed(void **state) {
    (void)state;
    sp_dataset *d = uneven();
    sp_sampler *s = open_sampler(d, SP_ORDER_SEQUENTIAL, SP_SHORT_PACK, 10, 1);
    // 4+3 | 10 | 2+3+5 | 1+9 (across the files) | 1 | 25 | 6 | 5+4 | 10
    static const int64_t first[9] = {0, 2, 3, 6, 8, 9, 10, 11, 13},
                         count[9] = {2, 1, 3, 2, 1, 1, 1, 2, 1};
    for (uint64_t i = 0; i < 18; i++) {
        int64_t entry, row, rows, n, at = 0;
        int32_t t[11];
        char id[128];
        t[10] = 77777;
        sp_sampler_locate(s, i, &entry, &row, &rows);
        assert_int_equal(row, first[i % 9]);
        assert_int_equal(rows, count[i % 9]);
        assert_ok(sp_sampler_read(s, i, t, &n, id));
        for (int64_t r = row; r < row + rows; r++) { // whole rows, one behind the other
            int64_t length = lengths[r / 7][r % 7] < 10 ? lengths[r / 7][r % 7] : 10;
            assert_row(t + at, length, r / 7, r % 7);
            at += length;
        }
        assert_int_equal(n, at);
        assert_int_equal(t[10], 77777);
        if (i == 2) assert_string_equal(id + strlen(id) - 9, "/a.h5:3+3");
    }
    assert_counts(
        s, (sp_sampler_counts){.rows = 14, .samples = 9, .cut = 1, .short_kept = 11, .packs = 4});
    sp_sampler_close(s);

    s = open_sampler(d, SP_ORDER_SHUFFLED, SP_SHORT_PACK, 10, 1); // each row once in a pass
    int seen[14] = {0};
    for (uint64_t i = 0; i < 9; i++) {
        int64_t entry, row, rows;
        sp_sampler_locate(s, i, &entry, &row, &rows);
        for (int64_t r = row; r < row + rows; r++) assert_int_equal(seen[r]++, 0);
    }
    for (int r = 0; r < 14; r++) assert_int_equal(seen[r], 1);
    sp_sampler_close(s);
    sp_dataset_close(d);
}

// Three files whose borders lie inside words and blocks of the marks, also stretches without any,
// against the definition written down plainly.
static void units_of_many_rows_are_found(void **state) {
    (void)state;
    enum { ROWS = 2500, SEQ = 40 };
    static const int64_t from[4] = {0, 700, 1537, ROWS};
    int64_t *length = calloc(ROWS, sizeof *length);
    uint64_t random = 7;
    for (int64_t r = 0; r < ROWS; r++) {
        length[r] = 1 + (int64_t)(60 * sp_uniform(&random));
        if (r >= 600 && r < 1800) length[r] = 1; // 1200 rows, none of them full: 30 packs of 40
    }
    char *dir = sp_path_join(test_tmpdir(), "many");
    for (int64_t f = 0; f < 3; f++) {
        char *name = sp_format("many/%d.h5", (int)f);
        free(make_shard(name, f, from[f + 1] - from[f], length + from[f]));
        free(name);
    }
    sp_dataset *d;
    assert_ok(open_path(dir, &d));
    for (int pack = 0; pack < 2; pack++) {
        sp_sampler *s =
            open_sampler(d, SP_ORDER_SEQUENTIAL, pack ? SP_SHORT_PACK : SP_SHORT_DROP, SEQ, 1);
        sp_sampler_counts want = {.rows = ROWS};
        for (int64_t r = 0, next; r < ROWS; r = next) {
            int64_t sum = length[r];
            want.cut += length[r] > SEQ;
            *(pack ? &want.short_kept : &want.short_dropped) += length[r] < SEQ;
            for (next = r + 1; pack && next < ROWS && sum + length[next] <= SEQ; next++) {
                sum += length[next];
                want.short_kept++;
            }
            if (!pack && length[r] < SEQ) continue;
            want.packs += next - r > 1;
            int64_t entry, row, rows;
            sp_sampler_locate(s, (uint64_t)want.samples++, &entry, &row, &rows);
            assert_int_equal(row, r);
            assert_int_equal(rows, next - r);
        }
        assert_counts(s, want);
        sp_sampler_close(s);
    }
    sp_dataset_close(d);
    free(dir);
    free(length);
}

static void long_paths_lose_their_beginning(void **state) {
    (void)state;
    char name[160];
    memset(name, 'x', sizeof name);
    memcpy(name + sizeof name - 6, "/a.h5", 6);
    char *path = make_even_shard(name, 0, 12, 10), id[128];
    sp_dataset *d;
    assert_ok(open_path(path, &d));
    sp_sampler *s = open_sampler(d, SP_ORDER_SEQUENTIAL, SP_SHORT_KEEP, 10, 1);
    int32_t t[10];
    int64_t n;
    assert_ok(sp_sampler_read(s, 11, t, &n, id));
    assert_int_equal(strlen(id), 127);
    assert_memory_equal(id, "...xxx", 6);
    assert_string_equal(id + 127 - 9, "x/a.h5:11");
    sp_sampler_close(s);
    sp_dataset_close(d);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_permutation_hits_everything_once),
        cmocka_unit_test(large_permutations_stay_in_range),
        cmocka_unit_test(permutations_are_those_of_the_definition),
        cmocka_unit_test(every_order_of_three_occurs),
        cmocka_unit_test(sequential_goes_through_the_files_again_and_again),
        cmocka_unit_test(without_proportions_every_pass_has_every_row_once),
        cmocka_unit_test(shuffled_orders_are_those_of_the_definition),
        cmocka_unit_test(proportions_are_reached_in_every_cycle),
        cmocka_unit_test(a_share_too_small_to_mix_is_refused),
        cmocka_unit_test(a_mixture_uses_every_row_of_an_entry_equally),
        cmocka_unit_test(a_single_entry_needs_no_proportion),
        cmocka_unit_test(short_rows_are_kept),
        cmocka_unit_test(short_rows_are_dropped),
        cmocka_unit_test(short_rows_are_packed),
        cmocka_unit_test(units_of_many_rows_are_found),
        cmocka_unit_test(long_paths_lose_their_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
