// Import: whatever rows of tokens there are, into HDF5 token shards, one folder per domain
// (`sparda data import`, `retokenize`; data/README.md describes both). Internal to data/.
//
// A domain is a list of inputs: MDS or HDF5 sources, or flat token files. It is cut into jobs, each
// of which makes one shard, by the inputs alone: threads and ranks take jobs, and the result does
// not depend on their number. Shards are collected in a hidden folder beside the final one, under
// names that nothing reads, and appear together when the domain is complete. A run that was
// interrupted goes on with the jobs that are missing.
#ifndef SPARDA_IMPORT_H
#define SPARDA_IMPORT_H

#include "data/source.h"

// How flat token files are to be read.
typedef struct sp_flat_format {
    int itemsize; // of .bin: 2 or 4; 0: not given
    bool is_signed;
    bool has_eod, drop_eod; // rows end with the token `eod`, which stays part of them or not
    int64_t eod;
} sp_flat_format;

typedef struct sp_flat_file { // .bin or .jsonl
    char *path;
    int64_t bytes;
    bool json;
} sp_flat_file;

typedef struct sp_import_job {
    int64_t first, end;       // inputs first..end-1 of the domain
    int64_t begin_at, end_at; // of a flat file: rows that begin in these bytes
    int64_t bytes;            // to be read, for progress
} sp_import_job;

typedef struct sp_import_domain {
    char *name;
    char *path; // where it comes from
    sp_sources sources;
    sp_flat_file *flat;
    int64_t n_flat;
    sp_import_job *job;
    int64_t n_jobs, bytes;
} sp_import_domain;

typedef struct sp_import_list {
    sp_import_domain *at;
    int64_t n;
} sp_import_list;

// Everything that the paths hold. Faults are added to `problems`, the status is the machine's.
sp_status sp_import_find(const char *const *path, int64_t n, const sp_flat_format *format,
                         sp_problems *problems, sp_import_list *out);
// Cuts all domains into jobs of about `tokens` tokens.
sp_status sp_import_cut(sp_import_list *list, const sp_flat_format *format, int64_t tokens);
void sp_import_free(sp_import_list *list);

// Calls scan->visit for every row of a flat file that begins in job's bytes; ids are checked
// against scan->vocab. SP_BAD_INPUT names the file, the row (of JSONL: the line) and the byte.
sp_status sp_flat_scan(const sp_flat_file *file, const sp_flat_format *format,
                       const sp_import_job *job, sp_scan *scan);
// One line of JSONL: a list of ids, or an object whose "input_ids" or "tokens" is one. The ids go
// to scan->buffer[2], their number to *n. *fault: byte of the line that a message is about.
sp_status sp_json_row_parse(const char *line, int64_t bytes, sp_scan *scan, int64_t *n,
                            int64_t *fault);

// Changes rows on their way (re-tokenisation). One worker per thread.
typedef struct sp_row_change {
    sp_status (*start)(void *user, void **worker);
    // *out: [n_out], valid until the next call; n_out 0 leaves the row out.
    sp_status (*row)(void *worker, const int32_t *tokens, int64_t n, const int32_t **out,
                     int64_t *n_out);
    void (*end)(void *worker); // NULL is allowed
    // Of every source, before the work, by one thread: room for a warning.
    void (*look)(void *user, const sp_source *s);
    void *user;
    const char *identity; // of the change, for the plan
} sp_row_change;

typedef struct sp_import_args {
    const char *const *source;
    int64_t n_sources;
    const char *out, *domain; // domain: name instead of the source's; NULL
    int64_t vocab;            // ids of the sources must be below it; 0: only not negative
    int64_t out_vocab;        // of the shards; 0: not known
    const char *tokenizer;    // identity for the shards
    sp_flat_format format;
    int64_t threads, shard_tokens;
    bool force;                  // replace domains that are there
    const sp_row_change *change; // NULL: rows stay as they are
} sp_import_args;

// ---- where it may write ----
#define SP_IMPORT_FORMAT "sparda-import"
#define SP_IMPORT_RECORD "import.json" // what a domain was made from, in its folder
enum { SP_IMPORT_RECORD_MAX = 1 << 28 };

// Adds a problem if a domain would be made where a source lies, in or around it, links resolved.
sp_status sp_import_check_places(const sp_import_args *a, const sp_import_list *list,
                                 sp_problems *problems);
// Whether --force may replace `dir`: a folder, no link, that an import made and that holds nothing
// else, or nothing at all. SP_BAD_INPUT names what is in the way.
sp_status sp_import_replaceable(const char *dir);
bool sp_import_makes(const char *name); // a file of a finished domain

// The record of an import and the list of its shards are JSON, and a shard's texts are UTF-8:
// SP_BAD_INPUT says that `what` (with `text`) is not, and what to do.
sp_status sp_import_check_text(const char *what, const char *text, const char *remedy);

// [collective if team->size > 1] The whole work, with progress and a closing line per domain.
sp_status sp_import_run(const sp_import_args *a, const sp_data_team *team);

#endif
