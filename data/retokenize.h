// Re-tokenisation of rows, for import. Internal to data/.
#ifndef SPARDA_RETOKENIZE_H
#define SPARDA_RETOKENIZE_H

#include "data/import.h"
#include "data/tokenizer.h"

typedef struct sp_retokenizer {
    sp_tokenizer *from, *to;
    bool clean_up;
    char *identity;
    char *warned;         // stated by a source and not that of `from`; NULL
    sp_row_change change; // refers to this structure, which must stay where it is
} sp_retokenizer;

// `clean_up`: "auto" (as tokenizer_config.json beside `from` says), "yes" or "no".
sp_status sp_retokenizer_open(const char *from, const char *to, const char *clean_up,
                              sp_retokenizer *r);
void sp_retokenizer_close(sp_retokenizer *r);

#endif
