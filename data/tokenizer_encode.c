// Text to ids (data/tokenizer_private.h describes the steps), and UTF-8.
#include "common/hash.h"
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

// ---- UTF-8 --------------------------------------------------------------------------------------

int sp_utf8_length(const char *s, int64_t n, int *bad) {
    const uint8_t *u = (const uint8_t *)s;
    *bad = 1;
    if (u[0] < 0x80) return 1;
    int length = u[0] >= 0xc2 && u[0] <= 0xdf   ? 2
                 : u[0] >= 0xe0 && u[0] <= 0xef ? 3
                 : u[0] >= 0xf0 && u[0] <= 0xf4 ? 4
                                                : 0;
    // The second byte excludes overlong forms, surrogates and what is beyond U+10FFFF.
    uint8_t low = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < length; i++) {
        if (i >= n || u[i] < low || u[i] > high) {
            *bad = i;
            return 0;
        }
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

// Bytes at the beginning that are ASCII, in steps of eight.
static int64_t ascii_prefix(const char *s, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t v;
        memcpy(&v, s + i, 8);
        if (v & 0x8080808080808080u) break;
    }
    return i;
}

void sp_utf8_copy(sp_text *to, const char *s, int64_t n, bool single) {
    int64_t from = 0; // not yet copied
    for (int64_t i = 0; i < n;) {
        int64_t plain = ascii_prefix(s + i, n - i);
        i += plain;
        if (i == n) break;
        int bad, length = sp_utf8_length(s + i, n - i, &bad);
        if (length == 0) {
            sp_text_bytes(to, s + from, (size_t)(i - from));
            sp_text_bytes(to, "\xef\xbf\xbd", 3);
            i += single ? 1 : bad;
            from = i;
        } else {
            i += length;
        }
    }
    sp_text_bytes(to, s + from, (size_t)(n - from));
}

// ---- the coder ----------------------------------------------------------------------------------

enum { CACHE = 1 << 15, CACHED_BYTES = 40, CACHED_IDS = 16, SHORT = 32 };

typedef struct word {
    uint64_t hash;
    uint8_t bytes, ids; // bytes 0: empty
    char text[CACHED_BYTES];
    int32_t id[CACHED_IDS];
} word;

struct sp_word_cache {
    word at[CACHE];
};

sp_status sp_coder_new(const sp_tokenizer *t, sp_coder **out) {
    sp_coder *c;
    *out = NULL;
    SP_TRY(sp_alloc(&c, 1, sizeof *c, "a coder"));
    c->t = t;
    sp_status st = sp_alloc(&c->cache, 1, sizeof *c->cache, "a cache of words");
    c->match = pcre2_match_data_create(1, NULL);
    c->context = pcre2_match_context_create(NULL);
    c->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (st == SP_OK && (!c->match || !c->context))
        st = sp_error(SP_ENVIRONMENT, "out of memory for a coder");
    if (st != SP_OK) {
        sp_coder_free(c);
        return st;
    }
    if (c->stack) pcre2_jit_stack_assign(c->context, NULL, c->stack);
    *out = c;
    return SP_OK;
}

void sp_coder_free(sp_coder *c) {
    if (!c) return;
    sp_text_free(&c->text);
    sp_text_free(&c->normal);
    free(c->ids);
    free(c->cache);
    free(c->symbol);
    free(c->rank);
    free(c->next);
    free(c->prev);
    free(c->heap);
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->context);
    if (c->stack) pcre2_jit_stack_free(c->stack);
    free(c);
}

static sp_status put(sp_coder *c, const int32_t *id, int64_t n) {
    if (c->n + n > c->cap) {
        int64_t cap = c->n + n > 2 * c->cap ? c->n + n + 1024 : 2 * c->cap;
        int32_t *grown = realloc(c->ids, (size_t)cap * sizeof *grown);
        if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for a row of tokens");
        c->ids = grown;
        c->cap = cap;
    }
    for (int64_t i = 0; i < n; i++) c->ids[c->n++] = id[i];
    return SP_OK;
}

// ---- merging ------------------------------------------------------------------------------------

static const sp_pair *find_pair(const sp_tokenizer *t, int32_t left, int32_t right) {
    const uint64_t key = (uint64_t)left << 32 | (uint32_t)right;
    uint64_t at = sp_mix64(key) & t->pair_mask;
    for (; t->pair[at].key != UINT64_MAX; at = (at + 1) & t->pair_mask)
        if (t->pair[at].key == key) return &t->pair[at];
    return NULL;
}

typedef struct heap_item {
    int32_t rank, at, left, right; // symbols as they were
} heap_item;

static sp_status room_for(sp_coder *c, int64_t n) {
    if (n <= c->cap_symbols) return SP_OK;
    int64_t cap = n > 2 * c->cap_symbols ? n : 2 * c->cap_symbols;
    free(c->heap);
    c->heap = NULL;
    c->cap_symbols = 0;
    int32_t **lists[] = {&c->symbol, &c->rank, &c->next, &c->prev};
    for (int i = 0; i < 4; i++) {
        free(*lists[i]);
        *lists[i] = NULL;
        SP_TRY(sp_alloc(lists[i], cap, sizeof **lists[i], "the symbols of a word"));
    }
    // At first at most one per pair; every merge adds two and has taken one.
    SP_TRY(sp_alloc(&c->heap, 2 * cap + 2, sizeof(heap_item), "the merges of a word"));
    c->cap_symbols = cap;
    return SP_OK;
}

// Bytes or characters as symbols. Needs room for one symbol a byte.
static int64_t first_symbols(sp_coder *c, const char *s, int64_t n) {
    const sp_tokenizer *t = c->t;
    int64_t m = 0;
    if (t->byte_level) {
        for (; m < n; m++) c->symbol[m] = t->byte_id[(uint8_t)s[m]];
        return m;
    }
    for (int64_t i = 0; i < n;) {
        int bad, length = sp_utf8_length(s + i, n - i, &bad); // the text is valid
        if (length == 0) length = 1;
        int32_t id = sp_tokenizer_find(t, s + i, (size_t)length);
        if (id != SP_NO_TOKEN)
            c->symbol[m++] = id;
        else
            for (int k = 0; k < length; k++) c->symbol[m++] = t->byte_id[(uint8_t)s[i + k]];
        i += length;
    }
    return m;
}

enum { NO_RANK = INT32_MAX };

static int32_t rank_of(const sp_tokenizer *t, int32_t left, int32_t right) {
    const sp_pair *p = find_pair(t, left, right);
    return p ? p->rank : NO_RANK;
}

// The pair of lowest rank, the first of equals, until none is left.
static int64_t merge_short(sp_coder *c, int64_t n) {
    int32_t *symbol = c->symbol, *rank = c->rank;
    for (int64_t i = 0; i + 1 < n; i++) rank[i] = rank_of(c->t, symbol[i], symbol[i + 1]);
    while (n > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        symbol[best] = find_pair(c->t, symbol[best], symbol[best + 1])->id;
        n--;
        memmove(symbol + best + 1, symbol + best + 2, (size_t)(n - best - 1) * sizeof *symbol);
        memmove(rank + best, rank + best + 1, (size_t)(n - best - 1) * sizeof *rank);
        if (best > 0) rank[best - 1] = rank_of(c->t, symbol[best - 1], symbol[best]);
        if (best + 1 < n) rank[best] = rank_of(c->t, symbol[best], symbol[best + 1]);
    }
    return n;
}

static bool before(const heap_item *a, const heap_item *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sink(heap_item *h, int64_t n, int64_t i) {
    heap_item x = h[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && before(&h[child + 1], &h[child])) child++;
        if (!before(&h[child], &x)) break;
        h[i] = h[child];
        i = child;
    }
    h[i] = x;
}

static void rise(heap_item *h, int64_t i) {
    heap_item x = h[i];
    for (; i > 0 && before(&x, &h[(i - 1) / 2]); i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = x;
}

static void offer(sp_coder *c, int64_t *n, int32_t left, int32_t right) {
    const sp_pair *p = find_pair(c->t, c->symbol[left], c->symbol[right]);
    if (!p) return;
    heap_item *h = c->heap;
    h[*n] = (heap_item){p->rank, left, c->symbol[left], c->symbol[right]};
    rise(h, (*n)++);
}

// The same for long words, in n log n.
static int64_t merge_long(sp_coder *c, int64_t n) {
    heap_item *h = c->heap;
    int64_t size = 0;
    for (int64_t i = 0; i < n; i++) {
        c->prev[i] = (int32_t)i - 1;
        c->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (int64_t i = 0; i + 1 < n; i++) {
        const sp_pair *p = find_pair(c->t, c->symbol[i], c->symbol[i + 1]);
        if (p) h[size++] = (heap_item){p->rank, (int32_t)i, c->symbol[i], c->symbol[i + 1]};
    }
    for (int64_t i = size / 2; i-- > 0;) sink(h, size, i);
    while (size > 0) {
        heap_item top = h[0];
        h[0] = h[--size];
        sink(h, size, 0);
        int32_t left = top.at, right = c->symbol[left] < 0 ? -1 : c->next[left];
        if (right < 0 || c->symbol[left] != top.left || c->symbol[right] != top.right) continue;
        c->symbol[left] = find_pair(c->t, top.left, top.right)->id;
        c->symbol[right] = -1; // gone
        c->next[left] = c->next[right];
        if (c->next[left] >= 0) {
            c->prev[c->next[left]] = left;
            offer(c, &size, left, c->next[left]);
        }
        if (c->prev[left] >= 0) offer(c, &size, c->prev[left], left);
    }
    int64_t m = 0;
    for (int32_t i = 0; i >= 0; i = c->next[i]) c->symbol[m++] = c->symbol[i];
    return m;
}

static sp_status encode_word(sp_coder *c, const char *s, int64_t n) {
    const sp_tokenizer *t = c->t;
    if (n <= 0) return SP_OK;
    if (n > INT32_MAX / 2)
        return sp_error(SP_BAD_INPUT, "a word of %lld bytes; at most %d are possible", (long long)n,
                        INT32_MAX / 2);
    word *w = NULL;
    uint64_t hash = 0;
    if (n <= CACHED_BYTES) {
        hash = sp_xxh3(s, (size_t)n);
        w = &c->cache->at[hash % CACHE];
        if (w->hash == hash && w->bytes == n && memcmp(w->text, s, (size_t)n) == 0)
            return put(c, w->id, w->ids);
    }
    int32_t whole = t->ignore_merges ? sp_tokenizer_find(t, s, (size_t)n) : SP_NO_TOKEN;
    SP_TRY(room_for(c, n));
    int64_t m = 1;
    if (whole != SP_NO_TOKEN) {
        c->symbol[0] = whole;
    } else {
        m = first_symbols(c, s, n);
        m = m <= SHORT ? merge_short(c, m) : merge_long(c, m);
    }
    if (w && m <= CACHED_IDS) {
        w->hash = hash;
        w->bytes = (uint8_t)n;
        w->ids = (uint8_t)m;
        memcpy(w->text, s, (size_t)n);
        memcpy(w->id, c->symbol, (size_t)m * sizeof *w->id);
    }
    return put(c, c->symbol, m);
}

// ---- splitting ----------------------------------------------------------------------------------

static sp_status split_words(sp_coder *c, int step, const char *s, int64_t n) {
    const sp_tokenizer *t = c->t;
    if (step == t->n_splits) return encode_word(c, s, n);
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(c->match);
    int64_t at = 0, from = 0; // what lies between matches is a word, too
    while (at < n) {
        int got = pcre2_match(t->split[step].code, (PCRE2_SPTR)s, (PCRE2_SIZE)n, (PCRE2_SIZE)at,
                              PCRE2_NO_UTF_CHECK, c->match, c->context);
        if (got == PCRE2_ERROR_NOMATCH) break;
        if (got < 0) {
            PCRE2_UCHAR why[128];
            pcre2_get_error_message(got, why, sizeof why);
            return sp_error(SP_BAD_INPUT, "the text cannot be split at byte %lld: %s",
                            (long long)at, (char *)why);
        }
        int64_t begin = (int64_t)bounds[0], end = (int64_t)bounds[1];
        if (end <= begin) { // an empty match: go on behind the next character
            int bad;
            at = begin + sp_utf8_length(s + begin, n - begin, &bad);
            continue;
        }
        if (begin > from) SP_TRY(split_words(c, step + 1, s + from, begin - from));
        SP_TRY(split_words(c, step + 1, s + begin, end - begin));
        at = from = end;
    }
    return from < n ? split_words(c, step + 1, s + from, n - from) : SP_OK;
}

// Words begin at a mark that follows another character.
static sp_status split_at_marks(sp_coder *c, const char *s, int64_t n) {
    int64_t from = 0, at = 0;
    while (at < n) {
        const char *mark = memchr(s + at, SP_BLANK_MARK[0], (size_t)(n - at));
        at = mark ? mark - s : n;
        if (!mark || n - at < SP_BLANK_MARK_BYTES ||
            memcmp(mark, SP_BLANK_MARK, SP_BLANK_MARK_BYTES) != 0) {
            at++;
            continue;
        }
        bool after_mark =
            at - from >= SP_BLANK_MARK_BYTES &&
            memcmp(mark - SP_BLANK_MARK_BYTES, SP_BLANK_MARK, SP_BLANK_MARK_BYTES) == 0;
        if (at > from && !after_mark) {
            SP_TRY(encode_word(c, s + from, at - from));
            from = at;
        }
        at += SP_BLANK_MARK_BYTES;
    }
    return encode_word(c, s + from, n - from);
}

static sp_status encode_piece(sp_coder *c, const char *s, int64_t n) {
    if (n == 0) return SP_OK;
    if (c->t->split_blanks) return split_at_marks(c, s, n);
    return split_words(c, 0, s, n);
}

// ---- added tokens -------------------------------------------------------------------------------

// The longest token of the list that begins at `s`.
static const sp_added *added_at(const sp_added_list *l, const char *s, int64_t n) {
    int b = (uint8_t)s[0];
    for (int32_t i = l->first[b]; i < l->first[b + 1]; i++)
        if (l->at[i].n <= n && memcmp(l->at[i].text, s, (size_t)l->at[i].n) == 0) return &l->at[i];
    return NULL;
}

typedef sp_status (*piece_step)(sp_coder *c, const char *s, int64_t n, bool first);

static sp_status cut_added(sp_coder *c, const sp_added_list *l, const char *s, int64_t n,
                           piece_step step) {
    int64_t from = 0;
    for (int64_t i = 0; i < n && l->n > 0; i++) {
        int b = (uint8_t)s[i];
        if (l->first[b] == l->first[b + 1]) continue;
        const sp_added *a = added_at(l, s + i, n - i);
        if (!a) continue;
        SP_TRY(step(c, s + from, i - from, from == 0));
        SP_TRY(put(c, &a->id, 1));
        from = i + a->n;
        i = from - 1;
    }
    return step(c, s + from, n - from, from == 0);
}

static sp_status whole_piece(sp_coder *c, const char *s, int64_t n, bool first) {
    (void)first;
    return encode_piece(c, s, n);
}

static void add_marked(sp_text *to, const char *s, int64_t n) {
    for (int64_t i = 0; i < n;) {
        const char *blank = memchr(s + i, ' ', (size_t)(n - i));
        int64_t end = blank ? blank - s : n;
        sp_text_bytes(to, s + i, (size_t)(end - i));
        if (blank) sp_text_bytes(to, SP_BLANK_MARK, SP_BLANK_MARK_BYTES);
        i = end + 1;
    }
}

static void add_squeezed(sp_text *to, const char *s, int64_t n) {
    while (n > 0 && s[0] == ' ') s++, n--;
    for (int64_t i = 0; i < n; i++)
        if (s[i] != ' ')
            sp_text_bytes(to, s + i, 1);
        else if (s[i - 1] != ' ')
            sp_text_bytes(to, SP_BLANK_MARK, SP_BLANK_MARK_BYTES);
}

static sp_status normalise(sp_coder *c, const char *s, int64_t n, bool first) {
    const sp_tokenizer *t = c->t;
    if (n == 0) return SP_OK;
    if (!t->mark_blanks && !t->mark_front && !t->front_blank && !t->squeeze)
        return cut_added(c, &t->normalised, s, n, whole_piece);
    sp_text *to = &c->normal;
    to->len = 0;
    const bool marked = s[0] == ' ' || (n >= SP_BLANK_MARK_BYTES &&
                                        memcmp(s, SP_BLANK_MARK, SP_BLANK_MARK_BYTES) == 0);
    if (t->mark_front && (first || !t->first_only) && !(t->mark_unless && marked))
        sp_text_bytes(to, SP_BLANK_MARK, SP_BLANK_MARK_BYTES);
    if (t->front_blank && s[0] != ' ') sp_text_bytes(to, " ", 1);
    if (t->squeeze)
        add_squeezed(to, s, n);
    else if (t->mark_blanks)
        add_marked(to, s, n);
    else
        sp_text_bytes(to, s, (size_t)n);
    if (to->failed) return sp_error(SP_ENVIRONMENT, "out of memory for a text");
    // At the end every mark goes, even one of the text, and the one in front of nothing.
    while (t->squeeze && to->len >= SP_BLANK_MARK_BYTES &&
           memcmp(to->data + to->len - SP_BLANK_MARK_BYTES, SP_BLANK_MARK, SP_BLANK_MARK_BYTES) ==
               0)
        to->len -= SP_BLANK_MARK_BYTES;
    if (to->len == 0) return SP_OK;
    return cut_added(c, &t->normalised, to->data, (int64_t)to->len, whole_piece);
}

sp_status sp_encode(sp_coder *c, const char *text, int64_t bytes, const int32_t **ids, int64_t *n) {
    c->n = 0;
    *ids = NULL;
    *n = 0;
    sp_text *valid = &c->text;
    if (bytes > 0 && text != valid->data) { // a decoded text of this coder is valid
        valid->len = 0;
        sp_utf8_copy(valid, text, bytes, c->t->sentencepiece);
        if (valid->failed) return sp_error(SP_ENVIRONMENT, "out of memory for a text");
        text = valid->data;
        bytes = (int64_t)valid->len;
    }
    if (bytes > 0) SP_TRY(cut_added(c, &c->t->raw, text, bytes, normalise));
    *ids = c->ids;
    *n = c->n;
    return SP_OK;
}
