// Which tokenizer rows are of: free text, of which the form "NAME FILE sha256:HEX" is ours.
// Internal to data/.
#ifndef SPARDA_DATA_IDENTITY_H
#define SPARDA_DATA_IDENTITY_H

#include "common/status.h"

#include <stdbool.h>

// "MODEL tokenizer.json sha256:..." of a model folder; only its name if it has no such file. Caller
// frees.
sp_status sp_tokenizer_of_model(const char *dir, char **identity);

// As far as two texts tell: by the hash if both have one, else by the name.
bool sp_tokenizers_may_be_equal(const char *a, const char *b);

// As far as `identity` tells, whether rows of it may be for the model in a folder. True if the
// folder has no tokenizer; by the hashes of its files, else only for the synthetic corpus false.
sp_status sp_tokenizer_may_be_of_model(const char *identity, const char *dir, bool *may);

#endif
