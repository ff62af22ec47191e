// One file of rows, whatever its format: what a format has to offer to the data set. Internal to
// data/.
//
// A source is opened once, checked completely except for the tokens themselves, and then only read,
// by any number of threads.
#ifndef SPARDA_SOURCE_H
#define SPARDA_SOURCE_H

#include "data/dataset.h"

typedef struct sp_source sp_source;

typedef struct sp_source_ops {
    // Tokens of one row; of all rows, out[rows].
    sp_status (*length)(const sp_source *s, int64_t row, int64_t *out);
    sp_status (*lengths)(const sp_source *s, uint32_t *out);
    // First min(length, max) tokens of a row, ids unchecked.
    sp_status (*read)(const sp_source *s, int64_t row, int64_t max, int32_t *tokens, int64_t *n);
    // Index into domain[] of every row, out[rows].
    sp_status (*domains)(const sp_source *s, int32_t *out);
    void (*close)(sp_source *s); // frees s
} sp_source_ops;

struct sp_source {
    const sp_source_ops *ops;
    char *path;          // as messages show it
    int64_t rows, bytes; // of the file
    int64_t vocab;       // stated by the file, 0 if it does not say
    char *tokenizer;     // likewise, NULL
    char **domain;       // names
    int64_t n_domains;
};

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

// All shards of the MDS folder `dir`, in index order. What is wrong with index or shards is added
// to `problems`; the status is that of the machine. That there is no index or no sample in it is
// left to the caller: *missing says so then (caller frees), else it is NULL.
sp_status sp_mds_open(const char *dir, sp_problems *problems, char **missing, sp_sources *out);

// ---- of a data set, for the sampler
// --------------------------------------------------------------

// The file of `row` and the row's number in it.
const sp_source *sp_dataset_locate(const sp_dataset *d, int64_t entry, int64_t row,
                                   int64_t *row_in_file);
// Lengths of all rows of an entry, [rows]. Caller frees.
sp_status sp_dataset_lengths(const sp_dataset *d, int64_t entry, uint32_t **out);

#endif
