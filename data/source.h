// One file of rows, whatever its format: what a format has to offer to the data set. Internal to
// data/.
//
// A source is opened once, checked completely except for the tokens themselves, and then only read,
// by any number of threads.
#ifndef SPARDA_SOURCE_H
#define SPARDA_SOURCE_H

#include "data/dataset.h"
#include "data/mds.h"

typedef struct sp_source sp_source;

// Going through all rows of a file in order, for import and verification.
typedef sp_status (*sp_row_visit)(void *user, int64_t row, const int32_t *tokens, int64_t n);
typedef struct sp_scan {
    int64_t vocab;      // ids must be below it; 0: only not negative
    bool thorough;      // every hash and checksum, not only the quick ones
    sp_row_visit visit; // each row; tokens are valid during the call only
    void *user;
    // Results:
    int64_t checked;     // hashes and checksums compared
    const char *unknown; // name of a hash that could not be compared; NULL
    sp_buffer buffer[3]; // of the scanning thread, used again for the next file; free them at last
} sp_scan;
void sp_scan_free(sp_scan *scan);

typedef struct sp_source_ops {
    // Tokens of one row; of all rows, out[rows].
    sp_status (*length)(const sp_source *s, int64_t row, int64_t *out);
    sp_status (*lengths)(const sp_source *s, uint32_t *out);
    // First min(length, max) tokens of a row, ids unchecked.
    sp_status (*read)(const sp_source *s, int64_t row, int64_t max, int32_t *tokens, int64_t *n);
    // Index into domain[] of every row, out[rows].
    sp_status (*domains)(const sp_source *s, int32_t *out);
    // Everything checked that can be, ids included; SP_BAD_INPUT names file, row and byte.
    sp_status (*scan)(const sp_source *s, sp_scan *scan);
    // Where the token lies, for messages: "byte 1234", "tokens[17]".
    void (*place)(const sp_source *s, int64_t row, int64_t position, char text[48]);
    void (*close)(sp_source *s); // frees s
} sp_source_ops;

struct sp_source {
    const sp_source_ops *ops;
    char *path;          // as messages show it
    int64_t rows, bytes; // of the file
    int64_t unpacked;    // bytes when unpacked, about those of its tokens
    bool packed;         // compressed as a whole: a row costs unpacking the file
    int64_t vocab;       // stated by the file, 0 if it does not say
    char *tokenizer;     // likewise, NULL
    char **domain;       // names
    int64_t n_domains;
};

// SP_BAD_INPUT about token `id` at a position of a row; `vocab` as above, `of` whose it is
// ("model", "file"). Says so when the ids look like those of the public, not yet re-tokenised data.
sp_status sp_bad_token(const sp_source *s, int64_t row, int64_t position, int64_t id, int64_t vocab,
                       const char *of);
// What an id outside a vocabulary (0: any) suggests about the data, in words.
const char *sp_token_hint(int64_t id, int64_t vocab);
// First position of a token below 0 or at or above `vocab` (0: no limit); n if there is none.
int64_t sp_find_bad_token(const int32_t *tokens, int64_t n, int64_t vocab);

void sp_source_clear(sp_source *s); // frees the common fields, for close()

typedef struct sp_sources { // a growing list; zero-initialise
    sp_source **at;
    int64_t n, cap;
} sp_sources;
sp_status sp_sources_add(sp_sources *list, sp_source *s); // takes s, also on failure

// A folder with more faulty files than this is not looked at any further, which is said.
enum { SP_PROBLEMS_PER_FOLDER = 20 };

// HDF5 token shard. SP_BAD_INPUT describes the first fault of the file.
sp_status sp_shard_open(const char *path, sp_source **out);

// The same of a shard described by the folder's list (rows, bytes, unpacked, vocab and names of
// `like`, which is taken): it is opened and compared at its first use.
sp_status sp_shard_open_later(sp_source *like, sp_source **out);

// All shards of the MDS folder `dir`, in index order. What is wrong with index or shards is added
// to `problems`; the status is that of the machine. That there is no index or no sample in it is
// left to the caller: *missing says so then (caller frees), else it is NULL.
sp_status sp_mds_open(const char *dir, sp_problems *problems, char **missing, sp_sources *out);

// ---- of a data set, for the sampler and verification --------------------------------------------

// The file of `row` and the row's number in it.
const sp_source *sp_dataset_locate(const sp_dataset *d, int64_t entry, int64_t row,
                                   int64_t *row_in_file);
int64_t sp_dataset_files(const sp_dataset *d, int64_t entry);
const sp_source *sp_dataset_file(const sp_dataset *d, int64_t entry, int64_t i);

#endif
