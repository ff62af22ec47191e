// Held-out text of a validation pass: where it comes from, which lengths, how many rows and which
// positions are measured.
#include "common/log.h"
#include "common/util.h"
#include "data/corpus.h"
#include "validate/pass.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_SEED = 5 }; // of the standard language-model rows (corpus.md 6)

// Lengths of rows in the order in which find_rows meets them, as far as it has come: to ask for one
// may cost opening a file, or unpacking it.
struct sp_seen_rows {
    int64_t *length, n, cap;
};

static sp_status length_of(const sp_text_source *text, int64_t at, int64_t entry, int64_t row,
                           int64_t *length) {
    struct sp_seen_rows *seen = text->seen;
    if (at == seen->cap) {
        int64_t cap = seen->cap ? 2 * seen->cap : 1024, *more;
        SP_TRY(sp_alloc(&more, cap, sizeof *more, "row lengths"));
        if (seen->n) memcpy(more, seen->length, (size_t)seen->n * sizeof *more);
        free(seen->length);
        seen->length = more;
        seen->cap = cap;
    }
    if (at == seen->n) {
        SP_TRY(sp_dataset_row_length(text->dataset, entry, row, &seen->length[at]));
        seen->n++;
    }
    *length = seen->length[at];
    return SP_OK;
}

// Looks for rows of at least T tokens, the entries of the data in turn, until `wanted` are found.
// *n of them there are; the last is *row of *entry.
static sp_status find_rows(const sp_text_source *text, int64_t T, int64_t wanted, int64_t *n,
                           int64_t *entry, int64_t *row) {
    const sp_dataset *d = text->dataset;
    *n = 0;
    bool more = wanted > 0;
    for (int64_t r = 0, at = 0; more; r++) {
        more = false;
        for (int64_t e = 0; e < sp_dataset_entries(d); e++) {
            if (r >= sp_dataset_rows(d, e)) continue;
            more = true;
            int64_t length;
            SP_TRY(length_of(text, at++, e, r, &length));
            if (length < T) continue;
            *entry = e;
            *row = r;
            if (++*n == wanted) return SP_OK;
        }
    }
    return SP_OK;
}

sp_status sp_pass_text(const sp_pass *p, int64_t index, int64_t T, int32_t *tokens) {
    if (p->text.corpus) {
        sp_corpus_args a = sp_corpus_defaults(TEXT_SEED);
        return sp_corpus_sequence(&a, (uint64_t)index, T, tokens);
    }
    int64_t entry, row, n;
    SP_TRY(find_rows(&p->text, T, index + 1, &n, &entry, &row));
    if (n <= index)
        return sp_error(SP_BAD_INPUT, "%s has no held-out row %lld of %lld tokens", p->text.name,
                        (long long)index, (long long)T);
    return sp_dataset_read(p->text.dataset, entry, row, T, tokens, &n);
}

sp_status sp_pass_text_rows(const sp_pass *p, int64_t T, int64_t wanted, int64_t *n) {
    int64_t entry, row;
    *n = p->text.corpus ? wanted : 0;
    if (!p->text.dataset) return SP_OK;
    return find_rows(&p->text, T, wanted, n, &entry, &row);
}

sp_status sp_pass_any_text(const sp_pass *p, int64_t T, int32_t *tokens) {
    int64_t n;
    SP_TRY(sp_pass_text_rows(p, T, 1, &n));
    if (n > 0) return sp_pass_text(p, 0, T, tokens);
    uint64_t state = p->seed;
    for (int64_t i = 0; i < T; i++)
        tokens[i] = (int32_t)(sp_splitmix64(&state) % (uint64_t)p->desc->vocab);
    return SP_OK;
}

sp_status sp_pass_open_text(sp_pass *p) {
    p->needles = p->desc->vocab == SP_CORPUS_VOCAB;
    if (!p->args->data) {
        p->text.corpus = p->needles;
        p->text.name =
            sp_strdup(p->needles ? "synthetic corpus, standard held-out rows (seed 5)" : "none");
        return p->text.name ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    }
    const sp_data_list *data = p->args->data;
    p->text.name = data->n == 1
                       ? sp_strdup(data->entry[0].path)
                       : sp_format("%s and %lld more", data->entry[0].path, (long long)data->n - 1);
    if (!p->text.name) return sp_error(SP_ENVIRONMENT, "out of memory");
    // A run has opened the same rows before, and said what there is to say.
    sp_dataset_options o = {.vocab = p->desc->vocab,
                            .model = p->args->after_training ? NULL : p->desc->dir,
                            .quiet = p->args->after_training};
    SP_TRY(sp_alloc(&p->text.seen, 1, sizeof *p->text.seen, "row lengths"));
    return sp_dataset_open(data, &o, &p->text.dataset);
}

void sp_pass_close_text(sp_pass *p) {
    sp_dataset_close(p->text.dataset);
    if (p->text.seen) free(p->text.seen->length);
    free(p->text.seen);
    free(p->text.name);
    free(p->lengths);
    free(p->text_lengths);
    p->text = (sp_text_source){0};
    p->lengths = p->text_lengths = NULL;
}

// ---- lengths ------------------------------------------------------------------------------------

// The smallest power of two whose last query has 8 times as many candidates as it may choose, so
// that chance is an eighth, and twice that; halved while they exceed the model's positions.
static sp_status choose_lengths(sp_pass *p) {
    const sp_selection *s = &p->selection;
    int64_t chosen = p->chosen > 0 ? p->chosen : 1, T = 2;
    while (sp_candidates(s, T - 1) < 8 * chosen) T *= 2;
    while (2 * T > p->desc->max_positions && T > 2) T /= 2;
    SP_TRY(sp_alloc(&p->lengths, 2, sizeof *p->lengths, "lengths"));
    p->lengths[p->n_lengths++] = T;
    if (2 * T <= p->desc->max_positions) p->lengths[p->n_lengths++] = 2 * T;
    return SP_OK;
}

static bool has_a_choice(const sp_pass *p, int64_t T) {
    return sp_candidates(&p->selection, T - 1) > p->chosen;
}

// Halves T until `need` rows are that long, as long as its last query has a choice of blocks.
static sp_status fit(const sp_pass *p, int64_t need, int64_t *T, bool *fits) {
    for (int64_t n;; *T /= 2) {
        SP_TRY(sp_pass_text_rows(p, *T, need, &n));
        *fits = n >= need;
        if (*fits || !has_a_choice(p, *T / 2)) return SP_OK;
    }
}

// The chosen lengths, if there are rows for them; else the longest that there are rows for, and
// half of it. Without SP_MIN_TEXT_ROWS anywhere one row is enough; without one the chosen lengths
// stay.
static sp_status fit_to_text(sp_pass *p) {
    int64_t longest = p->lengths[p->n_lengths - 1], n = 0;
    int64_t first = has_a_choice(p, p->lengths[0]) ? p->lengths[0] : longest, T = first;
    bool fits;
    SP_TRY(fit(p, SP_MIN_TEXT_ROWS, &T, &fits));
    if (!fits) {
        T = first;
        SP_TRY(fit(p, 1, &T, &fits));
    }
    if (!fits) return SP_OK;
    p->n_text_lengths = 0;
    if (2 * T <= longest) SP_TRY(sp_pass_text_rows(p, 2 * T, SP_MIN_TEXT_ROWS, &n));
    if (n < SP_MIN_TEXT_ROWS && p->n_lengths > 1 && has_a_choice(p, T / 2))
        p->text_lengths[p->n_text_lengths++] = T / 2;
    p->text_lengths[p->n_text_lengths++] = T;
    if (n >= SP_MIN_TEXT_ROWS) p->text_lengths[p->n_text_lengths++] = 2 * T;
    int64_t got = p->text_lengths[p->n_text_lengths - 1];
    if (got < longest)
        sp_warn("%s has fewer than %d rows of %lld tokens: recall, logits and loss are measured at "
                "%lld at most (validate.lengths: others)",
                p->text.name, SP_MIN_TEXT_ROWS, (long long)longest, (long long)got);
    return SP_OK;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static sp_status take_lengths(sp_pass *p, const sp_int_list *given) {
    sp_problems problems = {0};
    SP_TRY(sp_alloc(&p->lengths, given->n, sizeof *p->lengths, "lengths"));
    memcpy(p->lengths, given->value, (size_t)given->n * sizeof *p->lengths);
    qsort(p->lengths, (size_t)given->n, sizeof *p->lengths, ascending);
    for (int64_t i = 0; i < given->n; i++) {
        int64_t T = p->lengths[i];
        if (T < 2)
            sp_problems_add(&problems, "%lld: at least 2 tokens are needed", (long long)T);
        else if (T > p->desc->max_positions)
            sp_problems_add(&problems, "%lld: the base model has only %lld positions", (long long)T,
                            (long long)p->desc->max_positions);
        if (i == 0 || T != p->lengths[p->n_lengths - 1]) p->lengths[p->n_lengths++] = T;
    }
    return sp_problems_end(&problems, SP_BAD_INPUT, "validate.lengths");
}

// Lengths that were asked for stay, but some may be longer than any row.
static sp_status tell_missing(const sp_pass *p) {
    for (int64_t i = 0, n = 0; i < p->n_lengths; i++) {
        SP_TRY(sp_pass_text_rows(p, p->lengths[i], 1, &n));
        if (n > 0) continue;
        if (i > 0 && has_a_choice(p, p->lengths[i - 1]))
            sp_warn("%s has no row of %lld tokens: recall, logits and loss are measured at %lld at "
                    "most",
                    p->text.name, (long long)p->lengths[i], (long long)p->lengths[i - 1]);
        return SP_OK;
    }
    return SP_OK;
}

sp_status sp_pass_take_lengths(sp_pass *p) {
    const sp_int_list *given = &p->args->config->validate.lengths;
    SP_TRY(given->n > 0 ? take_lengths(p, given) : choose_lengths(p));
    SP_TRY(sp_alloc(&p->text_lengths, p->n_lengths, sizeof *p->lengths, "lengths"));
    memcpy(p->text_lengths, p->lengths, (size_t)p->n_lengths * sizeof *p->lengths);
    p->n_text_lengths = p->n_lengths;
    if (!p->text.dataset) return SP_OK;
    return given->n > 0 ? tell_missing(p) : fit_to_text(p);
}

// The shortest length that text may be measured at, 0 if no query has a choice at any.
static int64_t shortest(const sp_pass *p) {
    int64_t i = 0;
    while (i < p->n_lengths && !has_a_choice(p, p->lengths[i])) i++;
    if (i == p->n_lengths) return 0;
    int64_t T = p->lengths[i];
    while (p->args->config->validate.lengths.n == 0 && has_a_choice(p, T / 2)) T /= 2;
    return T;
}

// Rows that are too short for any choice, rows that are only shorter than the length to measure, or
// lengths at which there is no choice, whatever the rows.
static sp_status describe_lack(const sp_pass *p, char **why) {
    const sp_selection *s = &p->selection;
    bool given = p->args->config->validate.lengths.n > 0;
    long long need = shortest(p), positions = p->desc->max_positions;
    long long choice = s->block * (p->chosen + s->init_blocks + s->local_blocks + 1) + 1;
    if (need > 0) {
        sp_dataset_info info;
        SP_TRY(sp_dataset_describe(p->text.dataset, &info));
        long long longest = info.max_length;
        sp_dataset_info_free(&info);
        if (longest < choice)
            *why =
                sp_format("its longest row has %lld tokens, and only from %lld tokens on a query "
                          "has a choice of blocks; give rows of at least %lld tokens",
                          longest, choice, need);
        else
            *why =
                sp_format("its longest row has %lld tokens, and %s is %lld; give longer rows, or "
                          "validate.lengths of %lld to %lld",
                          longest,
                          given ? "the shortest of validate.lengths with a choice of blocks"
                                : "the shortest length that is chosen without validate.lengths",
                          need, choice, longest);
    } else if (choice > positions) {
        *why = sp_format("no query has a choice of blocks within the base model's %lld positions; "
                         "%lld tokens are needed",
                         positions, choice);
    } else {
        *why = sp_format("no query has a choice of blocks at any %s; %lld tokens are needed%s",
                         given ? "of validate.lengths" : "length that is chosen", choice,
                         given ? "" : ": set validate.lengths");
    }
    return *why ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
}

sp_status sp_pass_unmeasured(const sp_pass *p, char **why) {
    *why = NULL;
    if (!p->text.corpus && !p->text.dataset) return SP_OK;
    for (int64_t i = 0, n = 0; i < p->n_text_lengths; i++) {
        if (!has_a_choice(p, p->text_lengths[i])) continue;
        SP_TRY(sp_pass_text_rows(p, p->text_lengths[i], 1, &n));
        if (n > 0) return SP_OK;
    }
    return describe_lack(p, why);
}

// ---- rows and positions -------------------------------------------------------------------------

int64_t sp_pass_rows(const sp_pass *p, int64_t T) {
    enum { USUAL = 16, FEWEST = 4, TOKENS = 1 << 17 };
    if (p->rows > 0) return p->rows;
    return T * USUAL <= TOKENS ? USUAL : T * FEWEST >= TOKENS ? FEWEST : TOKENS / T;
}

bool sp_next_sample(int64_t T, int64_t positions, int64_t most, sp_sample *s) {
    enum { GROUP = 128 };
    // Groups end with the text; the rest at its beginning belongs to none.
    int64_t groups = T / GROUP, rest = T % GROUP, sampled = positions / GROUP, end = T;
    int64_t row0 = s->row0 + s->n;
    if (T > positions) {
        bool inside = s->n > 0 && (row0 - rest) % GROUP != 0;
        if (!inside && s->group == sampled) return false;
        if (!inside) // in the middle of its share of the text
            row0 = rest + (2 * s->group++ + 1) * groups / (2 * sampled) * GROUP;
        end = row0 + GROUP - (row0 - rest) % GROUP;
    }
    if (row0 >= T) return false;
    s->row0 = row0;
    s->n = end - row0 < most ? end - row0 : most;
    return true;
}
