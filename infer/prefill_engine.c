// See prefill_engine.h.
#include "infer/prefill_engine.h"
#include "common/util.h"

#include <stdlib.h>

typedef struct target {
    sp_infer *e;
    int64_t seq, T;
} target;

static sp_status put(void *user, int64_t layer, int64_t pos0, sp_tensor k, sp_tensor v,
                     sp_tensor cis) {
    target *t = user;
    return sp_infer_put(t->e, layer, t->seq, pos0, k, v, cis);
}

static sp_tensor compressed(void *user, int64_t layer) {
    target *t = user;
    return sp_infer_compressed(t->e, layer, t->seq);
}

static sp_status fill(void *user, int64_t layer, sp_tensor k, sp_tensor v, sp_tensor cis,
                      sp_tensor list) {
    target *t = user;
    return sp_infer_fill(t->e, layer, t->seq, k, v, cis, t->T, list);
}

sp_selector sp_infer_prefill_selector(sp_infer_mode m) {
    if (m == SP_MODE_DENSE) return SP_SELECT_DENSE;
    return sp_infer_mode_forecasts(m) ? SP_SELECT_FORECAST : SP_SELECT_ORIGINAL;
}

static int32_t most_likely(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

sp_status sp_infer_prefill(sp_prefiller *p, sp_infer *e, int64_t seq, const int32_t *tokens,
                           int64_t T, int32_t *next) {
    target t = {e, seq, T};
    const sp_prefill_sink sink = {&t, put, compressed, fill};
    int64_t vocab = sp_prefiller_model(p)->desc->vocab;
    float *logits;
    SP_TRY(sp_alloc(&logits, vocab, sizeof *logits, "logits"));
    sp_status st = sp_prefiller_run(p, tokens, T, &sink, logits);
    int32_t first = st == SP_OK ? most_likely(logits, vocab) : 0;
    if (st == SP_OK) st = sp_infer_start(e, seq, T, first);
    free(logits);
    if (st == SP_OK && next) *next = first;
    return st;
}
