// Token rows from whatever the user has: HDF5 token shards, MDS domains, folders of either; and the
// order in which training reads them.
//
// A data set is a list of entries (design 3.2 `data`); an entry is the concatenation of the rows of
// its files, in name or index order. Opening reads headers and indexes only, checks every size,
// count and offset, and reports all problems together. Reading is thread-safe.
//
// The order is a pure function of (seed, index): it does not depend on ranks, hosts, accumulation
// or resume, and costs O(1) per sample (documented in data/README.md).
#ifndef SPARDA_DATASET_H
#define SPARDA_DATASET_H

#include "common/config.h"
#include "common/status.h"

#include <stdint.h>

typedef struct sp_dataset sp_dataset;

typedef struct sp_dataset_options {
    int64_t vocab;      // of the model: ids must be below it, and below what their file states; 0:
                        // only the latter, and never negative
    bool allow_missing; // a missing entry is skipped with a warning and the rest renormalised
    const char *model;  // folder of the model that the rows are for, whose tokenizer they should be
                        // of: others are warned of; NULL: none
    bool quiet;         // no remarks on speed
} sp_dataset_options;

sp_status sp_dataset_open(const sp_data_list *entries, const sp_dataset_options *o,
                          sp_dataset **out);
void sp_dataset_close(sp_dataset *d);

int64_t sp_dataset_entries(const sp_dataset *d);
const char *sp_dataset_entry_path(const sp_dataset *d, int64_t entry);
// Whether some file is compressed as a whole: then even the length of a row costs unpacking a file.
bool sp_dataset_packed(const sp_dataset *d);
// Share of the samples: the given proportions normalised; by rows if none was given.
double sp_dataset_proportion(const sp_dataset *d, int64_t entry);
bool sp_dataset_has_proportions(const sp_dataset *d);
int64_t sp_dataset_rows(const sp_dataset *d, int64_t entry);
sp_status sp_dataset_row_length(const sp_dataset *d, int64_t entry, int64_t row, int64_t *tokens);
// First min(length, max) tokens of a row. An id out of range is SP_BAD_INPUT naming file, row,
// position and id.
sp_status sp_dataset_read(const sp_dataset *d, int64_t entry, int64_t row, int64_t max,
                          int32_t *tokens, int64_t *n);

typedef struct sp_domain_info {
    char *name;
    int64_t rows, tokens;
} sp_domain_info;
enum { SP_LENGTH_BINS = 32 };
typedef struct sp_dataset_info { // for `data info`
    sp_domain_info *domain;
    int64_t lengths[SP_LENGTH_BINS]; // rows of 2^i to 2^(i+1)-1 tokens
    int64_t n_domains, rows, tokens, min_length, max_length;
    int64_t n_files, bytes;
    int64_t vocab;   // largest that a file states, 0: none does
    char *tokenizer; // of the first file that states one, NULL
} sp_dataset_info;
// Reads the length of every row.
sp_status sp_dataset_describe(const sp_dataset *d, sp_dataset_info *out);
void sp_dataset_info_free(sp_dataset_info *i);
// Identity for resume: hash over the files' names, sizes and row counts and, with `rows`, over the
// beginnings of three rows of each entry. (States of early programs have the one without.)
sp_status sp_dataset_identity(const sp_dataset *d, bool rows, char hex[65]);

// ---- order --------------------------------------------------------------------------------------

typedef struct sp_sampler sp_sampler;
typedef struct sp_sampler_args {
    sp_data_order order;
    sp_short_rows short_rows;
    int64_t seq_len;
    uint64_t seed;
} sp_sampler_args;
typedef struct sp_sampler_counts { // over all rows of the data set
    int64_t rows;                  // of all entries
    int64_t samples;               // that one pass over all rows gives
    int64_t cut;                   // rows longer than seq_len, whose end is not used
    int64_t short_kept;            // rows below seq_len that are used
    int64_t short_dropped;         // rows below seq_len that are left out (short: drop)
    int64_t packs;                 // samples made of several short rows (short: pack)
} sp_sampler_counts;

sp_status sp_sampler_open(const sp_dataset *d, const sp_sampler_args *a, sp_sampler **out);
void sp_sampler_close(sp_sampler *s);
int64_t sp_sampler_seq_len(const sp_sampler *s);
// Looks at the length of every row: with MDS that reads a few bytes of each (data/README.md).
sp_status sp_sampler_count(const sp_sampler *s, sp_sampler_counts *out);
// Sample `index` (0, 1, 2, ...) of the run: up to seq_len tokens. `id` receives the row's name for
// messages, e.g. "data/train-0000.h5:17", "...:17+3" for a pack of rows 17 to 19; a long path loses
// its beginning (128 bytes; may be NULL). Thread-safe.
sp_status sp_sampler_read(const sp_sampler *s, uint64_t index, int32_t *tokens, int64_t *n,
                          char id[128]);

// Where sample `index` comes from: `rows` consecutive rows of an entry from `row` on (more than one
// only in a pack). Reads nothing.
void sp_sampler_locate(const sp_sampler *s, uint64_t index, int64_t *entry, int64_t *row,
                       int64_t *rows);

// The keyed permutation of 0..n-1 behind the shuffled order (a Feistel network with cycle walking).
uint64_t sp_permute(uint64_t key, uint64_t n, uint64_t i);

// ---- HDF5 token shards (design 3.4) -------------------------------------------------------------

typedef struct sp_shard_writer sp_shard_writer;
typedef struct sp_shard_meta {
    const char *tokenizer; // identity text, e.g. "synthetic-1024"
    int64_t vocab;         // 0: the largest id written, plus 1
    const char *const *domains;
    int64_t n_domains;
} sp_shard_meta;
// Complete or absent: appears under `path` only when finished.
sp_status sp_shard_create(const char *path, const sp_shard_meta *meta, sp_shard_writer **out);
sp_status sp_shard_append(sp_shard_writer *w, const int32_t *tokens, int64_t n, int64_t domain);
sp_status sp_shard_finish(sp_shard_writer *w); // frees w in every case
void sp_shard_abandon(sp_shard_writer *w);     // removes the temporary file

// ---- commands (`sparda data ...`) ---------------------------------------------------------------

// Who else works on the same command: ranks, which data/ knows only through this.
typedef struct sp_data_team {
    int rank, size;
    int threads;                         // that this rank should use
    sp_status (*agree)(sp_status local); // [collective] the worst status of all, known to all
} sp_data_team;
// Called by the commands that can share their work, before they begin.
typedef sp_status (*sp_data_assemble)(sp_data_team *out);

sp_status sp_data_command(int argc, char **argv, sp_data_assemble assemble); // argv[0] is "data"

sp_status sp_data_bench(int argc, char **argv); // `sparda bench data`; argv[0] is "data"

#endif
