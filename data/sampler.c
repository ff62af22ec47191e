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

enum { CYCLE_MAX = 10000, ROUNDS = 8 };
static const uint64_t golden = 0x9e3779b97f4a7c15u;

typedef struct units {
    int64_t n;
    int64_t *row; // first row of every unit, NULL: unit i is row i
    bool span; // a unit reaches to the next one's first row (row[n] is there), else it is one row
    int64_t first; // units of the entries before
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

// ---- keyed permutations
// --------------------------------------------------------------------------

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

// ---- units
// ---------------------------------------------------------------------------------------

static sp_status pack_rows(const uint32_t *length, int64_t rows, int64_t seq_len, units *u) {
    SP_TRY(sp_alloc(&u->row, rows + 1, sizeof *u->row, "packs of short rows"));
    int64_t room = 0; // left in the pack that is being filled
    for (int64_t r = 0; r < rows; r++) {
        if (length[r] > room || length[r] >= seq_len) {
            u->row[u->n++] = r;
            room = seq_len; // a row of full length leaves none
        }
        room = length[r] < room ? room - length[r] : 0;
    }
    u->row[u->n] = rows;
    u->span = true;
    return SP_OK;
}

static sp_status drop_rows(const uint32_t *length, int64_t rows, int64_t seq_len, units *u) {
    SP_TRY(sp_alloc(&u->row, rows, sizeof *u->row, "rows of full length"));
    for (int64_t r = 0; r < rows; r++)
        if (length[r] >= seq_len) u->row[u->n++] = r;
    return SP_OK;
}

static sp_status make_units(sp_sampler *s, int64_t e) {
    units *u = &s->entry[e];
    int64_t rows = sp_dataset_rows(s->d, e);
    u->first = s->total;
    if (s->a.short_rows == SP_SHORT_KEEP) {
        u->n = rows;
    } else {
        uint32_t *length;
        SP_TRY(sp_dataset_lengths(s->d, e, &length));
        sp_status st = s->a.short_rows == SP_SHORT_PACK ? pack_rows(length, rows, s->a.seq_len, u)
                                                        : drop_rows(length, rows, s->a.seq_len, u);
        free(length);
        SP_TRY(st);
    }
    s->total += u->n;
    if (u->n > 0) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s: none of its %lld rows has %lld tokens, and 'short: drop' leaves shorter "
                    "ones out; use 'short: keep' or 'pack', or a smaller seq_len",
                    sp_dataset_entry_path(s->d, e), (long long)rows, (long long)s->a.seq_len);
}

static void rows_of_unit(const units *u, int64_t i, int64_t *row, int64_t *rows) {
    *row = u->row ? u->row[i] : i;
    *rows = u->span ? u->row[i + 1] - u->row[i] : 1;
}

// ---- mixture
// -------------------------------------------------------------------------------------

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

// ---- the sampler
// ---------------------------------------------------------------------------------

void sp_sampler_close(sp_sampler *s) {
    if (!s) return;
    for (int64_t e = 0; s->entry && e < s->n; e++) free(s->entry[e].row);
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

sp_status sp_sampler_count(const sp_sampler *s, sp_sampler_counts *out) {
    *out = (sp_sampler_counts){.samples = s->total};
    for (int64_t e = 0; e < s->n; e++) {
        uint32_t *length;
        int64_t rows = sp_dataset_rows(s->d, e), below = 0;
        SP_TRY(sp_dataset_lengths(s->d, e, &length));
        for (int64_t r = 0; r < rows; r++) {
            below += length[r] < s->a.seq_len;
            out->cut += length[r] > s->a.seq_len;
        }
        free(length);
        out->rows += rows;
        *(s->a.short_rows == SP_SHORT_DROP ? &out->short_dropped : &out->short_kept) += below;
        for (int64_t i = 0; s->entry[e].span && i < s->entry[e].n; i++) {
            int64_t first, k;
            rows_of_unit(&s->entry[e], i, &first, &k);
            out->packs += k > 1;
        }
    }
    return SP_OK;
}
