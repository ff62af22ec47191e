// Inside of a tokenizer. A text becomes ids in these steps, some of which are absent:
//
//   added tokens are cut out of the text as it is
//   each piece between them is normalised (a mark put in front, blanks replaced)
//   added tokens of the second kind are cut out of the normalised text
//   each piece is split into words (by regular expressions, or before blanks)
//   each word becomes symbols (bytes or characters), which are merged pair by pair
#ifndef SPARDA_TOKENIZER_PRIVATE_H
#define SPARDA_TOKENIZER_PRIVATE_H

#include "data/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SP_BLANK_MARK "\xe2\x96\x81" // U+2581, which stands for a blank
enum { SP_BLANK_MARK_BYTES = 3, SP_NO_TOKEN = -1 };

typedef struct sp_token {
    char *bytes; // as it decodes
    int32_t n;
    bool known;   // the id is used
    bool special; // left out in decoding
    int16_t byte; // that it stands for by fallback; -1
} sp_token;

typedef struct sp_added { // a token that is looked for as such
    char *text;
    int32_t n, id;
} sp_added;

typedef struct sp_added_list {
    sp_added *at; // sorted by first byte, then longest first
    int64_t n;
    int32_t first[257]; // by first byte
} sp_added_list;

typedef struct sp_pair { // two neighbours that become one symbol
    uint64_t key;        // left << 32 | right; UINT64_MAX: empty place
    int32_t rank, id;    // lower ranks first
} sp_pair;

typedef struct sp_split {
    pcre2_code *code;
} sp_split;

struct sp_tokenizer {
    char *identity;
    bool cleans_up;
    sp_token *token; // [n]
    int64_t n;

    // From the text of a symbol to its id: open addressing, -1 is empty.
    int32_t *by_text;
    uint64_t text_mask;
    sp_pair *pair;
    uint64_t pair_mask;
    int32_t byte_id[256]; // of single bytes: byte-level symbols, or fallback tokens

    sp_added_list raw, normalised;

    bool byte_level;    // symbols are bytes, else characters
    bool ignore_merges; // a word that is a token is not taken apart
    bool split_blanks;  // words begin before a mark: no token reaches over such a place

    // Normalisation.
    bool mark_front; // a mark before every piece (or, first_only, before the text's first)
    bool first_only;
    bool mark_unless;   // ... unless there is one already
    bool mark_blanks;   // blanks become marks
    bool squeeze;       // runs of blanks become one, none at the ends
    bool front_blank;   // byte-level: a blank in front unless there is one
    bool sentencepiece; // rules of tokenizer.model: invalid bytes one by one, symbols after marks

    sp_split split[4];
    int n_splits;

    // Decoding.
    bool unmark;         // marks become blanks
    bool strip_front;    // one blank at the beginning goes
    bool bytes_together; // a run of fallback bytes that is not UTF-8 is replaced as a whole
};

// ---- while it is made ----
sp_status sp_tokenizer_set(sp_tokenizer *t, int64_t id, const char *bytes, size_t n);
sp_status sp_tokenizer_index(sp_tokenizer *t); // by_text, of all tokens so far
int32_t sp_tokenizer_find(const sp_tokenizer *t, const char *bytes, size_t n); // SP_NO_TOKEN
sp_status sp_tokenizer_pairs(sp_tokenizer *t, int64_t n);                      // room for n
void sp_tokenizer_pair(sp_tokenizer *t, int32_t left, int32_t right, int32_t rank, int32_t id);
sp_status sp_added_add(sp_added_list *list, const char *text, size_t n, int32_t id);
void sp_added_sort(sp_added_list *list);
// <0x00> to <0xFF> must all be there.
sp_status sp_tokenizer_fallback(sp_tokenizer *t);
// Whether words may be cut before marks without changing any result.
void sp_tokenizer_find_splits(sp_tokenizer *t);

sp_status sp_tokenizer_from_json(const char *name, const char *text, int64_t n, sp_tokenizer *t);
sp_status sp_tokenizer_from_model(const char *name, const uint8_t *bytes, int64_t n,
                                  sp_tokenizer *t);

// ---- UTF-8 ----
// Bytes of the valid character at `s`; 0 if there is none. *bad: how many bytes are then to be
// replaced together (the longest beginning of a character, at least 1).
int sp_utf8_length(const char *s, int64_t n, int *bad);
// Copies with what is invalid replaced by U+FFFD; `single`: every byte for itself.
void sp_utf8_copy(sp_text *to, const char *s, int64_t n, bool single);

// ---- coder ----
typedef struct sp_word_cache sp_word_cache;
struct sp_coder {
    const sp_tokenizer *t;
    sp_text text, normal; // decoded; valid or normalised
    int32_t *ids;
    int64_t n, cap;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    sp_word_cache *cache;
    // Merging of one word:
    int32_t *symbol, *rank, *next, *prev;
    void *heap;
    int64_t cap_symbols;
};

#endif
