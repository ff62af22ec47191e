// The order in which training reads rows: a pure function of (seed, index), O(1) per sample.
// data/README.md defines it; a change of anything here changes every training run.
//
// A "unit" is what one sample is made of: a row, or with `short: pack` several consecutive rows. An
// entry has one list of units; order is defined on their numbers.
#include "common/hash.h"
#include "common/util.h"
#include "data/source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CYCLE_MAX = 10000, ROUNDS = 8, WORD = 64, BLOCK = 512 };
static const uint64_t golden = 0x9e3779b97f4a7c15u;

typedef struct units {
    int64_t n, rows, packs; // packs: units of more than one row
    uint64_t *begins;       // bit r: row r begins a unit; NULL: unit i is row i
    int64_t *before;        // [rows / BLOCK + 1] units that begin before each block of rows
    bool span;              // a unit reaches to where the next one begins, else it is one row
    int64_t first;          // units of the entries before
} units;

struct sp_sampler {
    const sp_dataset *d;
    sp_sampler_args a;
    units *entry;
    int64_t n, total; // entries, units of all
    // Mixture by proportions; cycle 0: none given
    int64_t cycle;
    int64_t *slot; // [n + 1] first slot of every entry in a cycle
};

// ---- keyed permutations -------------------------------------------------------------------------

uint64_t sp_permute(uint64_t key, uint64_t n, uint64_t i) {
    if (n < 2) return 0;
    int half = (64 - __builtin_clzll(n - 1) + 1) / 2;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do { // cycle walking: at most 4 numbers of the network's domain for every one of ours
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t r = 1; r <= ROUNDS; r++) {
            uint64_t next = left ^ (sp_mix64(right ^ sp_mix64(key + r * golden)) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

// Stream 0: slots of cycle `number`. Stream 1 + e: pass `number` over entry e.
static uint64_t order_key(uint64_t seed, uint64_t stream, uint64_t number) {
    uint64_t k = sp_mix64(seed + golden);
    k = sp_mix64(k + (stream + 1) * golden);
    return sp_mix64(k + (number + 1) * golden);
}

// ---- units --------------------------------------------------------------------------------------

// Some rows begin a unit: one bit each, so that 1e8 rows take 14 MB, and their lengths are looked
// at file by file.

typedef sp_status (*length_visit)(void *user, const uint32_t *length, int64_t first, int64_t n);

// Calls `f` with the lengths of all rows of an entry, those of a file at a time.
static sp_status each_file(const sp_dataset *d, int64_t e, length_visit f, void *user) {
    uint32_t *length = NULL;
    int64_t most = 0, first = 0;
    for (int64_t i = 0; i < sp_dataset_files(d, e); i++)
        if (sp_dataset_file(d, e, i)->rows > most) most = sp_dataset_file(d, e, i)->rows;
    SP_TRY(sp_alloc(&length, most, sizeof *length, "row lengths"));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < sp_dataset_files(d, e) && st == SP_OK; i++) {
        const sp_source *s = sp_dataset_file(d, e, i);
        st = s->ops->lengths(s, length);
        if (st == SP_OK) st = f(user, length, first, s->rows);
        first += s->rows;
    }
    free(length);
    return st;
}

typedef struct marking {
    units *u;
    int64_t seq_len, room, in; // room: left in the pack that is being filled; in: rows in it
} marking;

static void mark(units *u, int64_t row) {
    u->begins[row / WORD] |= (uint64_t)1 << (row % WORD);
    u->n++;
}

static sp_status mark_packs(void *user, const uint32_t *length, int64_t first, int64_t n) {
    marking *m = user;
    for (int64_t r = 0; r < n; r++) {
        if (length[r] > m->room || length[r] >= m->seq_len) {
            mark(m->u, first + r);
            m->room = m->seq_len; // a row of full length leaves none
            m->in = 0;
        }
        m->u->packs += ++m->in == 2;
        m->room = length[r] < m->room ? m->room - length[r] : 0;
    }
    return SP_OK;
}

static sp_status mark_full(void *user, const uint32_t *length, int64_t first, int64_t n) {
    marking *m = user;
    for (int64_t r = 0; r < n; r++)
        if (length[r] >= m->seq_len) mark(m->u, first + r);
    return SP_OK;
}

static sp_status find_units(const sp_sampler *s, int64_t e) {
    units *u = &s->entry[e];
    marking m = {.u = u, .seq_len = s->a.seq_len};
    const int64_t blocks = u->rows / BLOCK + 1, words = blocks * (BLOCK / WORD);
    u->span = s->a.short_rows == SP_SHORT_PACK;
    SP_TRY(sp_alloc(&u->begins, words, sizeof *u->begins, "the rows that begin a sample"));
    SP_TRY(sp_alloc(&u->before, blocks, sizeof *u->before, "the rows that begin a sample"));
    SP_TRY(each_file(s->d, e, u->span ? mark_packs : mark_full, &m));
    int64_t n = 0;
    for (int64_t w = 0; w < words; w++) {
        if (w % (BLOCK / WORD) == 0) u->before[w / (BLOCK / WORD)] = n;
        n += __builtin_popcountll(u->begins[w]);
    }
    return SP_OK;
}

static sp_status make_units(sp_sampler *s, int64_t e) {
    units *u = &s->entry[e];
    u->rows = sp_dataset_rows(s->d, e);
    u->first = s->total;
    if (s->a.short_rows == SP_SHORT_KEEP)
        u->n = u->rows;
    else
        SP_TRY(find_units(s, e));
    s->total += u->n;
    if (u->n > 0) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s: none of its %lld rows has %lld tokens, and 'short: drop' leaves shorter "
                    "ones out; use 'short: keep' or 'pack', or a smaller seq_len",
                    sp_dataset_entry_path(s->d, e), (long long)u->rows, (long long)s->a.seq_len);
}

// The row at which unit i begins; after the last unit, the number of rows.
static int64_t row_of_unit(const units *u, int64_t i) {
    if (i >= u->n) return u->rows;
    int64_t lo = 0, hi = u->rows / BLOCK + 1; // before[lo] <= i < before[hi]
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        *(u->before[mid] <= i ? &lo : &hi) = mid;
    }
    int64_t left = i - u->before[lo], w = lo * (BLOCK / WORD), here;
    while (left >= (here = __builtin_popcountll(u->begins[w]))) {
        left -= here;
        w++;
    }
    uint64_t bits = u->begins[w];
    while (left-- > 0) bits &= bits - 1;
    return w * WORD + __builtin_ctzll(bits);
}

static void rows_of_unit(const units *u, int64_t i, int64_t *row, int64_t *rows) {
    *row = u->begins ? row_of_unit(u, i) : i;
    *rows = u->span ? row_of_unit(u, i + 1) - *row : 1;
}

// ---- mixture ------------------------------------------------------------------------------------

// The shortest cycle in which every entry has a whole number of slots, or the longest one allowed.
static int64_t cycle_length(const sp_dataset *d) {
    int64_t n = sp_dataset_entries(d);
    for (int64_t c = n; c < CYCLE_MAX; c++) {
        bool whole = true;
        for (int64_t e = 0; e < n && whole; e++) {
            double slots = sp_dataset_proportion(d, e) * (double)c;
            whole = slots > 0.5 && fabs(slots - nearbyint(slots)) < 1e-9 * (double)c;
        }
        if (whole) return c;
    }
    return CYCLE_MAX;
}

// Largest remainder; the earlier entry of two equal ones.
static sp_status share_slots(sp_sampler *s) {
    int64_t *quota;
    bool *extra;
    s->cycle = cycle_length(s->d);
    SP_TRY(sp_alloc(&s->slot, s->n + 1, sizeof *s->slot, "the mixture"));
    quota = s->slot + 1; // turned into running sums at the end
    SP_TRY(sp_alloc(&extra, s->n, sizeof *extra, "the mixture"));
    int64_t left = s->cycle;
    for (int64_t e = 0; e < s->n; e++) {
        double exact = sp_dataset_proportion(s->d, e) * (double)s->cycle;
        quota[e] = (int64_t)(exact + 1e-9 * (double)s->cycle);
        left -= quota[e];
    }
    for (; left > 0; left--) {
        int64_t best = -1;
        double most = -INFINITY;
        for (int64_t e = 0; e < s->n; e++) {
            double rest = sp_dataset_proportion(s->d, e) * (double)s->cycle - (double)quota[e];
            if (!extra[e] && rest > most) {
                most = rest;
                best = e;
            }
        }
        if (best < 0) break;
        extra[best] = true;
        quota[best]++;
    }
    free(extra);
    for (int64_t e = 0; e < s->n; e++) {
        if (quota[e] == 0)
            return sp_error(SP_BAD_INPUT,
                            "%s: its share %g of the data is below 1/%d, the smallest that can be "
                            "mixed in; raise its proportion or leave it out",
                            sp_dataset_entry_path(s->d, e), sp_dataset_proportion(s->d, e),
                            CYCLE_MAX);
    }
    for (int64_t e = 0; e < s->n; e++) s->slot[e + 1] += s->slot[e];
    return SP_OK;
}

// ---- the sampler --------------------------------------------------------------------------------

void sp_sampler_close(sp_sampler *s) {
    if (!s) return;
    for (int64_t e = 0; s->entry && e < s->n; e++) {
        free(s->entry[e].begins);
        free(s->entry[e].before);
    }
    free(s->entry);
    free(s->slot);
    free(s);
}

sp_status sp_sampler_open(const sp_dataset *d, const sp_sampler_args *a, sp_sampler **out) {
    *out = NULL;
    if (a->seq_len < 1 || a->seq_len > INT32_MAX)
        return sp_error(SP_BAD_INPUT, "seq_len %lld; it must be 1 to 2147483647",
                        (long long)a->seq_len);
    sp_sampler *s;
    SP_TRY(sp_alloc(&s, 1, sizeof *s, "a sampler"));
    s->d = d;
    s->a = *a;
    s->n = sp_dataset_entries(d);
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&s->entry, s->n, sizeof *s->entry, "a sampler"));
    for (int64_t e = 0; e < s->n; e++) SP_GO(make_units(s, e));
    if (a->order == SP_ORDER_SHUFFLED && sp_dataset_has_proportions(d)) SP_GO(share_slots(s));
done:
    if (st != SP_OK)
        sp_sampler_close(s);
    else
        *out = s;
    return st;
}

int64_t sp_sampler_seq_len(const sp_sampler *s) {
    return s->a.seq_len;
}

// The last place of first[0..n-1] that is not above `x`.
static int64_t find_entry(const sp_sampler *s, int64_t x, bool by_slot) {
    int64_t lo = 0, hi = s->n;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        int64_t first = by_slot ? s->slot[mid] : s->entry[mid].first;
        *(first <= x ? &lo : &hi) = mid;
    }
    return lo;
}

void sp_sampler_locate(const sp_sampler *s, uint64_t index, int64_t *entry, int64_t *row,
                       int64_t *rows) {
    int64_t e, unit;
    if (s->cycle) {
        const uint64_t cycle = (uint64_t)s->cycle, number = index / cycle;
        int64_t slot = (int64_t)sp_permute(order_key(s->a.seed, 0, number), cycle, index % cycle);
        e = find_entry(s, slot, true);
        const uint64_t quota = (uint64_t)(s->slot[e + 1] - s->slot[e]);
        const uint64_t pass = (uint64_t)s->entry[e].n;
        const uint64_t k = number * quota + (uint64_t)(slot - s->slot[e]); // of this entry
        unit = (int64_t)sp_permute(order_key(s->a.seed, 1 + (uint64_t)e, k / pass), pass, k % pass);
    } else {
        const uint64_t total = (uint64_t)s->total;
        uint64_t i = index % total;
        if (s->a.order == SP_ORDER_SHUFFLED)
            i = sp_permute(order_key(s->a.seed, 1, index / total), total, i);
        e = find_entry(s, (int64_t)i, false);
        unit = (int64_t)i - s->entry[e].first;
    }
    *entry = e;
    rows_of_unit(&s->entry[e], unit, row, rows);
}

static void name_sample(const sp_sampler *s, int64_t e, int64_t row, int64_t rows, char id[128]) {
    int64_t r;
    const char *path = sp_dataset_locate(s->d, e, row, &r)->path;
    char tail[48];
    int n = rows > 1 ? snprintf(tail, sizeof tail, ":%lld+%lld", (long long)r, (long long)rows)
                     : snprintf(tail, sizeof tail, ":%lld", (long long)r);
    size_t room = 127 - (size_t)n, have = strlen(path);
    if (have <= room)
        snprintf(id, 128, "%s%s", path, tail);
    else
        snprintf(id, 128, "...%s%s", path + have - (room - 3), tail);
}

sp_status sp_sampler_read(const sp_sampler *s, uint64_t index, int32_t *tokens, int64_t *n,
                          char id[128]) {
    int64_t e, row, rows, got;
    sp_sampler_locate(s, index, &e, &row, &rows);
    if (id) name_sample(s, e, row, rows, id);
    *n = 0;
    for (int64_t r = row; r < row + rows; r++) {
        SP_TRY(sp_dataset_read(s->d, e, r, s->a.seq_len - *n, tokens + *n, &got));
        *n += got;
    }
    return SP_OK;
}

typedef struct counting {
    int64_t seq_len, below, cut;
} counting;

static sp_status count_lengths(void *user, const uint32_t *length, int64_t first, int64_t n) {
    counting *c = user;
    (void)first;
    for (int64_t r = 0; r < n; r++) {
        c->below += length[r] < c->seq_len;
        c->cut += length[r] > c->seq_len;
    }
    return SP_OK;
}

sp_status sp_sampler_count(const sp_sampler *s, sp_sampler_counts *out) {
    *out = (sp_sampler_counts){.samples = s->total};
    for (int64_t e = 0; e < s->n; e++) {
        const units *u = &s->entry[e];
        counting c = {.seq_len = s->a.seq_len};
        SP_TRY(each_file(s->d, e, count_lengths, &c));
        out->rows += u->rows;
        out->cut += c.cut;
        *(s->a.short_rows == SP_SHORT_DROP ? &out->short_dropped : &out->short_kept) += c.below;
        out->packs += u->packs;
    }
    return SP_OK;
}
