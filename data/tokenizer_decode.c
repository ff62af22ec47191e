// Ids to text.
#include "data/tokenizer_private.h"

#include <string.h>

// A run of fallback bytes: as it is if it is UTF-8; else every byte becomes U+FFFD, or only those
// that are not part of a character.
static void put_run(const sp_coder *c, sp_text *to, const char *run, int64_t n) {
    bool valid = true;
    for (int64_t i = 0; i < n && valid;) {
        int bad, length = sp_utf8_length(run + i, n - i, &bad);
        valid = length > 0;
        i += length;
    }
    if (!valid && c->t->bytes_together)
        for (int64_t i = 0; i < n; i++) sp_text_bytes(to, "\xef\xbf\xbd", 3);
    else
        sp_utf8_copy(to, run, n, true);
}

static void put_unmarked(sp_text *to, const sp_token *k) {
    for (int32_t i = 0; i < k->n; i++)
        if (k->n - i >= SP_BLANK_MARK_BYTES &&
            memcmp(k->bytes + i, SP_BLANK_MARK, SP_BLANK_MARK_BYTES) == 0) {
            sp_text_bytes(to, " ", 1);
            i += SP_BLANK_MARK_BYTES - 1;
        } else {
            sp_text_bytes(to, k->bytes + i, 1);
        }
}

static sp_status bad_id(int64_t position, int32_t id, int64_t n) {
    return sp_error(SP_BAD_INPUT,
                    "position %lld: token id %d is none of the source tokenizer (it has %lld); is "
                    "this the one the rows were made with?",
                    (long long)position, (int)id, (long long)n);
}

// Characters: fallback bytes are collected in c->normal until another token comes.
static sp_status decode_characters(sp_coder *c, const int32_t *ids, int64_t n) {
    const sp_tokenizer *t = c->t;
    sp_text *to = &c->text, *run = &c->normal;
    run->len = 0;
    bool front = t->strip_front; // nothing has been put yet
    for (int64_t i = 0; i < n; i++) {
        const sp_token *k = &t->token[ids[i]];
        if (k->special) continue;
        if (k->byte >= 0) {
            char b = (char)k->byte;
            sp_text_bytes(run, &b, 1);
            continue;
        }
        if (run->len) {
            put_run(c, to, run->data, (int64_t)run->len);
            run->len = 0;
        }
        size_t at = to->len;
        if (t->unmark)
            put_unmarked(to, k);
        else
            sp_text_bytes(to, k->bytes, (size_t)k->n);
        // squeeze: however many blanks stand in front
        while (t->sentencepiece && front && at == 0 && to->len > 0 && to->data[0] == ' ') {
            memmove(to->data, to->data + 1, --to->len);
            if (!t->squeeze) break;
        }
        if (to->len > 0 || !t->squeeze) front = false;
    }
    if (run->len) put_run(c, to, run->data, (int64_t)run->len);
    if (!t->sentencepiece && t->strip_front && to->len > 0 && to->data[0] == ' ')
        memmove(to->data, to->data + 1, --to->len);
    return SP_OK;
}

// Bytes: joined first, since a character may be spread over tokens.
static sp_status decode_bytes(sp_coder *c, const int32_t *ids, int64_t n) {
    sp_text *run = &c->normal;
    run->len = 0;
    for (int64_t i = 0; i < n; i++) {
        const sp_token *k = &c->t->token[ids[i]];
        if (!k->special) sp_text_bytes(run, k->bytes, (size_t)k->n);
    }
    if (run->len) sp_utf8_copy(&c->text, run->data, (int64_t)run->len, false);
    return SP_OK;
}

sp_status sp_decode(sp_coder *c, const int32_t *ids, int64_t n, const char **text, int64_t *bytes) {
    *text = "";
    *bytes = 0;
    c->text.len = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= c->t->n || !c->t->token[ids[i]].known)
            return bad_id(i, ids[i], c->t->n);
    SP_TRY(c->t->byte_level ? decode_bytes(c, ids, n) : decode_characters(c, ids, n));
    if (c->text.failed || c->normal.failed)
        return sp_error(SP_ENVIRONMENT, "out of memory for a text");
    if (c->text.len == 0) return SP_OK;
    *text = c->text.data;
    *bytes = (int64_t)c->text.len;
    return SP_OK;
}

int64_t sp_clean_up(char *text, int64_t bytes) {
    // One after another over the whole text, in this order: a later one sees what an earlier made.
    static const char *const rules[][2] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++) {
        const char *from = rules[r][0], *to = rules[r][1];
        const size_t nf = strlen(from), nt = strlen(to);
        char *out = NULL, *at = text, *end = text + bytes;
        for (char *hit; (hit = memmem(at, (size_t)(end - at), from, nf));) {
            if (!out)
                out = hit;
            else
                memmove(out, at, (size_t)(hit - at)), out += hit - at;
            memcpy(out, to, nt);
            out += nt;
            at = hit + nf;
        }
        if (!out) continue;
        memmove(out, at, (size_t)(end - at));
        bytes = out + (end - at) - text;
    }
    return bytes;
}
