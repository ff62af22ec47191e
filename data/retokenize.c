// Re-tokenisation as the public pipeline does it (docs/spec/training.md 9.4): the text of a row,
// without special tokens, encoded without adding any. Rows that become empty are left out.
#include "data/retokenize.h"
#include "common/log.h"
#include "data/identity.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

typedef struct worker {
    const sp_retokenizer *r;
    sp_coder *from, *to;
    sp_text cleaned;
} worker;

static void end(void *user) {
    worker *w = user;
    if (!w) return;
    sp_coder_free(w->from);
    sp_coder_free(w->to);
    sp_text_free(&w->cleaned);
    free(w);
}

static sp_status start(void *user, void **out) {
    worker *w;
    *out = NULL;
    SP_TRY(sp_alloc(&w, 1, sizeof *w, "a worker"));
    w->r = user;
    sp_status st = sp_coder_new(w->r->from, &w->from);
    if (st == SP_OK) st = sp_coder_new(w->r->to, &w->to);
    if (st != SP_OK)
        end(w);
    else
        *out = w;
    return st;
}

static sp_status change(void *user, const int32_t *tokens, int64_t n, const int32_t **out,
                        int64_t *n_out) {
    worker *w = user;
    const char *text;
    int64_t bytes;
    SP_TRY(sp_decode(w->from, tokens, n, &text, &bytes));
    if (w->r->clean_up && bytes > 0) {
        w->cleaned.len = 0;
        sp_text_bytes(&w->cleaned, text, (size_t)bytes);
        if (w->cleaned.failed) return sp_error(SP_ENVIRONMENT, "out of memory for a text");
        text = w->cleaned.data;
        bytes = sp_clean_up(w->cleaned.data, bytes);
    }
    return sp_encode(w->to, text, bytes, out, n_out);
}

// Identities are free text, so that another one is a reason for a look, not for a refusal.
static void look(void *user, const sp_source *s) {
    sp_retokenizer *r = user;
    const char *from = sp_tokenizer_identity(r->from);
    if (!s->tokenizer || strcmp(s->tokenizer, SP_TOKENIZER_UNKNOWN) == 0 ||
        sp_tokenizers_may_be_equal(s->tokenizer, from) ||
        (r->warned && strcmp(r->warned, s->tokenizer) == 0))
        return;
    free(r->warned);
    r->warned = sp_strdup(s->tokenizer);
    sp_warn("%s states that its rows are of the tokenizer '%s', but --from is '%s'; unless these "
            "are the same, the text is not what was meant",
            s->path, s->tokenizer, from);
}

void sp_retokenizer_close(sp_retokenizer *r) {
    sp_tokenizer_close(r->from);
    sp_tokenizer_close(r->to);
    free(r->identity);
    free(r->warned);
    *r = (sp_retokenizer){0};
}

sp_status sp_retokenizer_open(const char *from, const char *to, const char *clean_up,
                              sp_retokenizer *r) {
    *r = (sp_retokenizer){0};
    if (strcmp(clean_up, "auto") != 0 && strcmp(clean_up, "yes") != 0 &&
        strcmp(clean_up, "no") != 0)
        return sp_error(SP_BAD_INPUT, "--clean-up is auto, yes or no, not '%s'", clean_up);
    sp_status st = sp_tokenizer_open(from, &r->from);
    if (st == SP_OK) st = sp_tokenizer_open(to, &r->to);
    if (st == SP_OK) {
        r->clean_up = clean_up[0] == 'y' || (clean_up[0] == 'a' && sp_tokenizer_cleans_up(r->from));
        r->identity = sp_format("from %s to %s%s", sp_tokenizer_identity(r->from),
                                sp_tokenizer_identity(r->to), r->clean_up ? ", cleaned up" : "");
        if (!r->identity) st = sp_error(SP_ENVIRONMENT, "out of memory");
    }
    if (st != SP_OK) {
        sp_retokenizer_close(r);
        return st;
    }
    r->change = (sp_row_change){.start = start,
                                .row = change,
                                .end = end,
                                .look = look,
                                .user = r,
                                .identity = r->identity};
    return SP_OK;
}
