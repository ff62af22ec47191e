// The corpus generator, section by section as data/corpus.md numbers them.
//
// The order of the draws is the specification: an argument list may be evaluated in any order, so
// no expression here makes more than one draw. Reals are doubles, each operation rounded by
// itself: the build turns contraction off for this file, and the assertion below refuses machines
// that compute in a wider format.
#pragma STDC FP_CONTRACT OFF

#include "data/corpus.h"
#include "common/hash.h"
#include "common/util.h"

#include <float.h>
#include <stdlib.h>

_Static_assert(FLT_EVAL_METHOD == 0, "doubles must be computed as doubles (x86: -mfpmath=sse)");

// ---- 1. tokens
// -----------------------------------------------------------------------------------

enum {
    BOS = 1,
    FACT = 3,
    IS = 4,
    ASK = 5,
    QUOTE = 6,
    ENDQ = 7,
    SET = 8,
    EQ = 9,
    PRINT = 10,
    NL = 11,
    REF = 14,
    KIND = 16, // LEDGER, PROSE, CODE
    KEY = 32,
    VALUE = 288,
    WORD = 576,
    N_WORDS = 448
};
enum { LEDGER_KIND, PROSE_KIND, CODE_KIND };
enum { MAX_FACTS = 4096 };

typedef struct fact {
    int16_t k1, k2, v1, v2, depth;
} fact;

typedef struct writer {
    uint64_t s; // state of the random stream
    int32_t *tokens;
    int64_t pos, start, end; // next position; the document is start..end-1
    uint64_t topic;
    int32_t prev;
    fact *facts; // [MAX_FACTS]
    int64_t n_facts;
} writer;

// ---- 2. random numbers
// ---------------------------------------------------------------------------

uint64_t sp_corpus_draw(uint64_t *state) {
    return sp_mix64(*state += 0x9e3779b97f4a7c15u);
}

uint64_t sp_corpus_below(uint64_t *state, uint64_t n) {
    return ((sp_corpus_draw(state) >> 32) * n) >> 32;
}

static double unit(uint64_t raw) {
    return (double)(raw >> 11) * 0x1p-53;
}

double sp_corpus_uniform(uint64_t *state) {
    return unit(sp_corpus_draw(state));
}

static int64_t below(writer *w, int64_t n) {
    return (int64_t)sp_corpus_below(&w->s, (uint64_t)n);
}

// ---- 3. words
// ------------------------------------------------------------------------------------

int32_t sp_corpus_word(uint64_t *state, uint64_t topic, int32_t prev) {
    double u = sp_corpus_uniform(state);
    uint64_t j = u < 0.5 ? 0 : u < 0.75 ? 1 : u < 0.9 ? 2 : 3;
    double x = unit(sp_mix64((topic << 40) ^ ((uint64_t)prev << 8) ^ j ^ 0x5bd1e995u));
    double y = x * x;
    int32_t n = (int32_t)(y * N_WORDS);
    return WORD + (n < N_WORDS ? n : N_WORDS - 1);
}

static void put(writer *w, int32_t token) {
    if (w->pos < w->end) w->tokens[w->pos++] = token;
}

static void put_line(writer *w, int32_t head, int32_t a, int32_t b, int32_t middle, int32_t c,
                     int32_t d) {
    put(w, head);
    put(w, a);
    put(w, b);
    put(w, middle);
    put(w, c);
    put(w, d);
    put(w, NL);
}

static void words(writer *w, int64_t len) {
    for (int64_t i = 0; i < len && w->pos < w->end; i++) {
        w->prev = sp_corpus_word(&w->s, w->topic, w->prev);
        put(w, w->prev);
    }
}

static void word_line(writer *w, int64_t len) {
    words(w, len);
    put(w, NL);
}

static int32_t draw_key(writer *w) {
    return KEY + (int32_t)below(w, 256);
}

static int32_t draw_value(writer *w) {
    return VALUE + (int32_t)below(w, 256);
}

static void draw_topic_and_word(writer *w) {
    w->topic = (uint64_t)below(w, 16);
    w->prev = WORD + (int32_t)below(w, N_WORDS);
}

static fact draw_fact(writer *w) {
    fact f = {.k1 = (int16_t)draw_key(w)};
    f.k2 = (int16_t)draw_key(w);
    f.v1 = (int16_t)draw_value(w);
    f.v2 = (int16_t)draw_value(w);
    return f;
}

// ---- 4. documents
// --------------------------------------------------------------------------------

// Keeps a fact with new keys while there is room.
static bool keep_fact(writer *w, fact f) {
    if (w->n_facts >= MAX_FACTS) return false;
    for (int64_t i = 0; i < w->n_facts; i++)
        if (w->facts[i].k1 == f.k1 && w->facts[i].k2 == f.k2) return false;
    w->facts[w->n_facts++] = f;
    return true;
}

static void ledger_step(writer *w, double u, double q) {
    if (w->n_facts == 0 || u < 0.25) {
        if (w->n_facts >= MAX_FACTS) return;
        fact f = draw_fact(w);
        if (keep_fact(w, f)) put_line(w, FACT, f.k1, f.k2, IS, f.v1, f.v2);
    } else if (u < 0.25 + q) {
        fact f = w->facts[below(w, w->n_facts)];
        put_line(w, ASK, f.k1, f.k2, IS, f.v1, f.v2);
    } else {
        word_line(w, 4 + below(w, 12));
    }
}

static void prose_step(writer *w, double u, double q) {
    int64_t p = w->pos, length = p - w->start;
    if (!(length > 64 && u < q * 0.6)) {
        word_line(w, 8 + below(w, 24));
        return;
    }
    int64_t len = 8 + below(w, 40);
    int64_t src = w->start + 2 + below(w, length - 10);
    if (src + len > p) len = p - src;
    put(w, QUOTE);
    for (int64_t i = 0; i < len && w->pos < w->end; i++) {
        int32_t t = w->tokens[src + i];
        put(w, t == QUOTE || t == ENDQ ? NL : t);
    }
    put(w, ENDQ);
    w->prev = WORD + (int32_t)below(w, N_WORDS);
}

static void code_step(writer *w, double u, double q) {
    if (w->n_facts == 0 || u < 0.2) {
        fact f = draw_fact(w);
        if (keep_fact(w, f)) put_line(w, SET, f.k1, f.k2, EQ, f.v1, f.v2);
    } else if (u < 0.3) {
        fact s = w->facts[below(w, w->n_facts)];
        if (s.depth >= 2) return;
        fact f = {.v1 = s.v1, .v2 = s.v2, .depth = (int16_t)(s.depth + 1)};
        f.k1 = (int16_t)draw_key(w);
        f.k2 = (int16_t)draw_key(w);
        if (keep_fact(w, f)) put_line(w, SET, f.k1, f.k2, REF, s.k1, s.k2);
    } else if (u < 0.3 + q) {
        fact f = w->facts[below(w, w->n_facts)];
        put_line(w, PRINT, f.k1, f.k2, IS, f.v1, f.v2);
    } else {
        word_line(w, 3 + below(w, 8));
    }
}

static void document(writer *w, int kind, int64_t end, double q) {
    w->start = w->pos;
    w->end = end;
    w->n_facts = 0;
    draw_topic_and_word(w);
    put(w, BOS);
    put(w, KIND + kind);
    while (w->pos < w->end) {
        double u = sp_corpus_uniform(&w->s);
        if (kind == LEDGER_KIND)
            ledger_step(w, u, q);
        else if (kind == PROSE_KIND)
            prose_step(w, u, q);
        else
            code_step(w, u, q);
    }
}

// ---- 5. a corpus sequence
// ------------------------------------------------------------------------

sp_corpus_args sp_corpus_defaults(uint64_t seed) {
    return (sp_corpus_args){
        .seed = seed, .question_rate = 0.3, .ledger_share = 0.45, .prose_share = 0.25};
}

sp_status sp_corpus_check(const sp_corpus_args *a, int64_t T) {
    sp_problems p = {0};
    if (T < 1 || T > INT32_MAX)
        sp_problems_add(&p, "%lld tokens a sequence; it must be 1 to 2147483647", (long long)T);
    if (a->mean_doc != 0 && (a->mean_doc < 2 || a->mean_doc > INT32_MAX))
        sp_problems_add(&p,
                        "mean document length %lld; it must be 2 to 2147483647, or 0 for 0.9 of "
                        "the sequence",
                        (long long)a->mean_doc);
    if (!(a->question_rate >= 0 && a->question_rate <= 1))
        sp_problems_add(&p, "question rate %g; it must be 0 to 1", a->question_rate);
    if (!(a->ledger_share >= 0 && a->prose_share >= 0 && a->ledger_share + a->prose_share <= 1))
        sp_problems_add(&p,
                        "shares %g of ledger and %g of prose documents; both must be at least 0 "
                        "and together at most 1",
                        a->ledger_share, a->prose_share);
    return sp_problems_end(&p, SP_BAD_INPUT, "the synthetic corpus cannot be made so");
}

sp_status sp_corpus_sequence(const sp_corpus_args *a, uint64_t index, int64_t T, int32_t *tokens) {
    SP_TRY(sp_corpus_check(a, T));
    int64_t mean = a->mean_doc;
    if (mean == 0) mean = (int64_t)(0.9 * (double)T);
    if (mean < 2) mean = 2;
    double ledger_or_prose = a->ledger_share + a->prose_share;

    writer w = {.s = sp_mix64(a->seed * 1000003u + index), .tokens = tokens};
    SP_TRY(sp_alloc(&w.facts, MAX_FACTS, sizeof *w.facts, "the facts of a document"));
    while (w.pos < T) {
        double u = sp_corpus_uniform(&w.s);
        int kind = u < a->ledger_share ? LEDGER_KIND : u < ledger_or_prose ? PROSE_KIND : CODE_KIND;
        int64_t length = mean / 2 + below(&w, mean + 1);
        document(&w, kind, w.pos + length < T ? w.pos + length : T, a->question_rate);
    }
    free(w.facts);
    return SP_OK;
}

// ---- 6. needle tests
// -----------------------------------------------------------------------------

const char *sp_needle_name(sp_needle mode) {
    static const char *const names[] = {"single", "multi", "var"};
    return names[mode];
}

sp_status sp_needle_sequence(uint64_t seed, uint64_t index, int64_t T, sp_needle mode, double lo,
                             double hi, int32_t *tokens) {
    enum { MOST = 24, LINE = 7 };
    if (T < 128 || T > INT32_MAX)
        return sp_error(SP_BAD_INPUT, "a needle test of %lld tokens; it needs 128 to 2147483647",
                        (long long)T);
    if (!(lo >= 0 && lo <= hi && hi <= 1))
        return sp_error(SP_BAD_INPUT, "needle depths %g to %g; expected 0 <= low <= high <= 1", lo,
                        hi);
    const int64_t body = T - 6;
    const int n = mode == SP_NEEDLE_MULTI ? 24 : mode == SP_NEEDLE_VAR ? 12 : 1;
    const bool var = mode == SP_NEEDLE_VAR;

    writer w = {.s = sp_mix64(seed * 7919u + index + 17u), .tokens = tokens, .end = body};
    draw_topic_and_word(&w);
    put(&w, BOS);
    put(&w, KIND + (var ? CODE_KIND : LEDGER_KIND));

    fact f[MOST];
    int64_t at[MOST];
    bool written[MOST] = {false};
    for (int i = 0; i < n; i++) {
        f[i] = draw_fact(&w);
        double u = sp_corpus_uniform(&w.s);
        at[i] = 2 + (int64_t)(u * (double)(body - 40));
    }
    double span = (hi - lo) * sp_corpus_uniform(&w.s);
    double depth = lo + span;
    at[0] = 2 + (int64_t)(depth * (double)(body - 60));
    int32_t r1 = 0, r2 = 0;
    int64_t ref_at = 0;
    bool ref_written = !var;
    if (var) {
        r1 = draw_key(&w);
        r2 = draw_key(&w);
        double u = sp_corpus_uniform(&w.s);
        ref_at = at[0] + 20 + (int64_t)(u * (double)(body - at[0] - 50));
    }

    while (w.pos < body) {
        bool fits = w.pos + LINE <= body;
        int due = 0;
        while (due < n && (written[due] || at[due] > w.pos)) due++;
        if (fits && due < n) {
            put_line(&w, var ? SET : FACT, f[due].k1, f[due].k2, var ? EQ : IS, f[due].v1,
                     f[due].v2);
            written[due] = true;
        } else if (fits && !ref_written && ref_at <= w.pos && written[0]) {
            put_line(&w, SET, r1, r2, REF, f[0].k1, f[0].k2);
            ref_written = true;
        } else {
            word_line(&w, 4 + below(&w, 10));
        }
    }
    const int32_t question[6] = {
        var ? PRINT : ASK, var ? r1 : f[0].k1, var ? r2 : f[0].k2, IS, f[0].v1, f[0].v2};
    for (int i = 0; i < 6; i++) tokens[body + i] = question[i];
    return SP_OK;
}

sp_status sp_needle_standard(int64_t n, int64_t T, sp_needle mode, int32_t *tokens) {
    if (n < 0 || n >= SP_NEEDLE_STANDARD)
        return sp_error(SP_BAD_INPUT, "needle sample %lld; the standard set has %d", (long long)n,
                        SP_NEEDLE_STANDARD);
    return sp_needle_sequence(7000 + 16 * (uint64_t)(n / 16), (uint64_t)(n % 16), T, mode, 0.05,
                              0.9, tokens);
}
