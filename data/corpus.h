// The synthetic corpus and its needle tests: token-identical to the corpus specification
// (data/corpus.md). All functions are pure.
#ifndef SPARDA_CORPUS_H
#define SPARDA_CORPUS_H

#include "common/status.h"

#include <stdint.h>

enum { SP_CORPUS_VOCAB = 1024 };
#define SP_CORPUS_TOKENIZER "synthetic-1024" // tokenizer identity of token shards made from it

typedef struct sp_corpus_args {
    uint64_t seed;
    int64_t mean_doc; // >= 2; 0 = floor(0.9 * T), at least 2
    double question_rate, ledger_share, prose_share;
} sp_corpus_args;
sp_corpus_args sp_corpus_defaults(uint64_t seed); // mean_doc 0, 0.3, 0.45, 0.25
// SP_BAD_INPUT listing every value out of range: T 1..2^31-1, mean_doc as above, the rates and
// shares in 0..1, both shares together at most 1.
sp_status sp_corpus_check(const sp_corpus_args *a, int64_t T);

// Section 5: sequence `index`, T tokens.
sp_status sp_corpus_sequence(const sp_corpus_args *a, uint64_t index, int64_t T, int32_t *tokens);

typedef enum sp_needle { SP_NEEDLE_SINGLE, SP_NEEDLE_MULTI, SP_NEEDLE_VAR } sp_needle;
const char *sp_needle_name(sp_needle mode); // "single", "multi", "var"
// Section 6, T >= 128. The answer is tokens[T-2], tokens[T-1].
sp_status sp_needle_sequence(uint64_t seed, uint64_t index, int64_t T, sp_needle mode, double lo,
                             double hi, int32_t *tokens);
enum { SP_NEEDLE_STANDARD = 128 }; // sequences of the standard evaluation set
// Sample n (0..127) of the standard evaluation set.
sp_status sp_needle_standard(int64_t n, int64_t T, sp_needle mode, int32_t *tokens);

// Sections 2 and 3, for the golden values. `state` is S.
uint64_t sp_corpus_draw(uint64_t *state);
uint64_t sp_corpus_below(uint64_t *state, uint64_t n);
double sp_corpus_uniform(uint64_t *state);
int32_t sp_corpus_word(uint64_t *state, uint64_t topic, int32_t prev);

#endif
