// tokenizer.model: the protocol buffer of sentencepiece, read by field numbers.
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
enum { MODEL_BPE = 2 };

typedef struct reader {
    const uint8_t *at, *end;
    bool failed;
} reader;

typedef struct field {
    uint64_t number, type, value; // value: of types 0, 1, 5
    reader inside;                // of type 2
} field;

static uint64_t varint(reader *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at == r->end) break;
        uint8_t b = *r->at++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return v;
    }
    r->failed = true;
    return 0;
}

// False at the end, or at something that is no field.
static bool next_field(reader *r, field *f) {
    if (r->failed || r->at == r->end) return false;
    uint64_t key = varint(r);
    *f = (field){.number = key >> 3, .type = key & 7};
    uint64_t n = 0;
    switch (f->type) {
    case 0:
        f->value = varint(r);
        break;
    case 1:
    case 5:
        n = f->type == 1 ? 8 : 4;
        if ((uint64_t)(r->end - r->at) < n) r->failed = true;
        if (!r->failed) memcpy(&f->value, r->at, n); // little-endian
        break;
    case 2:
        n = varint(r);
        if (!r->failed && (uint64_t)(r->end - r->at) < n) r->failed = true;
        if (!r->failed) f->inside = (reader){r->at, r->at + n, false};
        break;
    default:
        r->failed = true;
    }
    if (r->failed) return false;
    r->at += n;
    return true;
}

typedef struct piece {
    int32_t id;
    float score;
} piece;

typedef struct model {
    sp_tokenizer *t;
    piece *normal; // that can be made by merging
    int64_t n_normal, cap, n;
    uint8_t *type;
    int64_t cap_type;
    bool fallback, dummy_prefix, squeeze, escape, suffix;
    bool has_trainer, has_normaliser; // specifications
    uint64_t kind;
    int64_t charsmap; // bytes
} model;

static sp_status add_piece(model *m, reader r) {
    const uint8_t *text = NULL;
    size_t bytes = 0;
    float score = 0;
    uint64_t type = NORMAL;
    field f;
    while (next_field(&r, &f)) {
        if (f.number == 1 && f.type == 2) {
            text = f.inside.at;
            bytes = (size_t)(f.inside.end - f.inside.at);
        } else if (f.number == 2 && f.type == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, 4);
        } else if (f.number == 3 && f.type == 0) {
            type = f.value;
        }
    }
    if (r.failed || !text || bytes == 0 || type < NORMAL || type > BYTE)
        return sp_error(SP_BAD_INPUT, "piece %lld is damaged", (long long)m->n);
    if (type == UNUSED)
        return sp_error(SP_BAD_INPUT, "piece %lld is marked as unused, which is not supported",
                        (long long)m->n);
    if (m->n >= m->cap) {
        int64_t cap = m->cap ? 2 * m->cap : 1024;
        piece *grown = realloc(m->normal, (size_t)cap * sizeof *grown);
        if (grown) m->normal = grown;
        uint8_t *types = realloc(m->type, (size_t)cap);
        if (types) m->type = types;
        if (!grown || !types) return sp_error(SP_ENVIRONMENT, "out of memory for a vocabulary");
        m->cap = cap;
    }
    SP_TRY(sp_tokenizer_set(m->t, m->n, (const char *)text, bytes));
    m->type[m->n] = (uint8_t)type;
    if (type == NORMAL) m->normal[m->n_normal++] = (piece){(int32_t)m->n, score};
    if (type == CONTROL) m->t->token[m->n].special = true;
    if (type == USER_DEFINED)
        SP_TRY(sp_added_add(&m->t->normalised, (const char *)text, bytes, (int32_t)m->n));
    m->n++;
    return SP_OK;
}

static sp_status read_fields(model *m, reader r) {
    field f, g;
    while (next_field(&r, &f)) {
        if (f.type != 2) continue;
        if (f.number == 1) SP_TRY(add_piece(m, f.inside));
        m->has_trainer |= f.number == 2;
        m->has_normaliser |= f.number == 3;
        while (f.number == 2 && next_field(&f.inside, &g)) {
            if (g.number == 3) m->kind = g.value;
            if (g.number == 24) m->suffix = g.value;
            if (g.number == 35) m->fallback = g.value;
        }
        while (f.number == 3 && next_field(&f.inside, &g)) {
            if (g.number == 2 && g.type == 2) m->charsmap = g.inside.end - g.inside.at;
            if (g.number == 3) m->dummy_prefix = g.value;
            if (g.number == 4) m->squeeze = g.value;
            if (g.number == 5) m->escape = g.value;
        }
        r.failed |= f.inside.failed;
    }
    if (r.failed || m->n == 0 || !m->has_trainer || !m->has_normaliser)
        return sp_error(SP_BAD_INPUT, "this is no sentencepiece model, or a damaged one");
    return SP_OK;
}

static int by_score(const void *a, const void *b) {
    const piece *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

// Any two symbols whose texts joined are a piece may merge, the highest score first.
static sp_status make_pairs(model *m) {
    sp_tokenizer *t = m->t;
    int64_t most = 0;
    for (int64_t i = 0; i < m->n_normal; i++) most += t->token[m->normal[i].id].n;
    SP_TRY(sp_tokenizer_pairs(t, most));
    if (m->n_normal) qsort(m->normal, (size_t)m->n_normal, sizeof *m->normal, by_score);
    int32_t rank = 0;
    for (int64_t i = 0; i < m->n_normal; i++) {
        const sp_token *k = &t->token[m->normal[i].id];
        if (i > 0 && m->normal[i].score != m->normal[i - 1].score) rank++;
        for (int32_t cut = 1; cut < k->n; cut++) {
            if (((uint8_t)k->bytes[cut] & 0xc0) == 0x80) continue; // inside a character
            int32_t left = sp_tokenizer_find(t, k->bytes, (size_t)cut);
            int32_t right = sp_tokenizer_find(t, k->bytes + cut, (size_t)(k->n - cut));
            if (left == SP_NO_TOKEN || right == SP_NO_TOKEN) continue;
            if (m->type[left] == NORMAL && m->type[right] == NORMAL)
                sp_tokenizer_pair(t, left, right, rank, m->normal[i].id);
        }
    }
    return SP_OK;
}

static sp_status finish(model *m) {
    sp_tokenizer *t = m->t;
    if (m->kind != MODEL_BPE)
        return sp_error(SP_BAD_INPUT,
                        "a model of type %llu (1 unigram, 3 word, 4 char); only 2, BPE, is read",
                        (unsigned long long)m->kind);
    if (!m->fallback)
        return sp_error(SP_BAD_INPUT, "a model without byte fallback, which is not supported");
    if (m->charsmap || m->suffix || !m->escape)
        return sp_error(
            SP_BAD_INPUT,
            "its normalisation is not supported: only that of the name 'identity', with "
            "escaped blanks, is");
    SP_TRY(sp_tokenizer_index(t));
    for (int64_t i = 0; i < m->n; i++) // texts of control pieces do not stand for them
        if (m->type[i] == CONTROL || m->type[i] == UNKNOWN) t->token[i].special = true;
    SP_TRY(sp_tokenizer_fallback(t));
    SP_TRY(make_pairs(m));
    t->sentencepiece = true;
    t->mark_front = m->dummy_prefix;
    t->first_only = true;
    t->mark_blanks = true;
    t->squeeze = m->squeeze;
    t->unmark = true;
    t->strip_front = m->dummy_prefix || m->squeeze;
    sp_tokenizer_find_splits(t);
    return SP_OK;
}

sp_status sp_tokenizer_from_model(const char *name, const uint8_t *bytes, int64_t n,
                                  sp_tokenizer *t) {
    model m = {.t = t, .kind = 1, .dummy_prefix = true, .squeeze = true, .escape = true};
    sp_status st = read_fields(&m, (reader){bytes, bytes + n, false});
    if (st == SP_OK) st = finish(&m);
    if (st == SP_BAD_INPUT) sp_error_prefix("%s", name);
    free(m.normal);
    free(m.type);
    return st;
}
