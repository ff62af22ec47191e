// Tokenizers from their own files: byte-level BPE (tokenizer.json of Llama-3, GPT-2), and BPE over
// characters with byte fallback (tokenizer.json or tokenizer.model of Llama-2, MiniCPM). Ids are
// those of the libraries that define the files (`tokenizers`, `sentencepiece`) without any token
// added; what a file asks for and is not done here is refused by name. Internal to data/.
//
// A tokenizer does not change after opening; every thread works through a coder of its own, whose
// results are valid until its next call.
#ifndef SPARDA_TOKENIZER_H
#define SPARDA_TOKENIZER_H

#include "common/status.h"
#include "common/util.h"

#include <stdint.h>

typedef struct sp_tokenizer sp_tokenizer;
typedef struct sp_coder sp_coder;

// `path`: tokenizer.json, tokenizer.model, or a folder with one of them (the first is preferred).
sp_status sp_tokenizer_open(const char *path, sp_tokenizer **out);
void sp_tokenizer_close(sp_tokenizer *t);
int64_t sp_tokenizer_vocab(const sp_tokenizer *t);        // ids are below it
const char *sp_tokenizer_identity(const sp_tokenizer *t); // "NAME FILE sha256:..."
bool sp_tokenizer_cleans_up(const sp_tokenizer *t);       // tokenizer_config.json beside it says so

// Any bytes and any name: a parser of foreign files. `bytes` are those of a tokenizer.json (they
// begin with '{') or of a tokenizer.model.
sp_status sp_tokenizer_parse(const char *name, const void *bytes, int64_t n, sp_tokenizer **out);

sp_status sp_coder_new(const sp_tokenizer *t, sp_coder **out);
void sp_coder_free(sp_coder *c); // NULL is allowed
// Text of `ids`, special tokens left out; always valid UTF-8. SP_BAD_INPUT for an id that is none.
sp_status sp_decode(sp_coder *c, const int32_t *ids, int64_t n, const char **text, int64_t *bytes);
// Ids of a text; bytes that are not UTF-8 count as U+FFFD.
sp_status sp_encode(sp_coder *c, const char *text, int64_t bytes, const int32_t **ids, int64_t *n);
// Removes blanks before punctuation and English short forms in place, as the Python library's
// decoder does if asked to; returns the new length.
int64_t sp_clean_up(char *text, int64_t bytes);

#endif
