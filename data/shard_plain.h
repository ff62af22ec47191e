// The header and the offsets of a token shard, read without the HDF5 library: many shards without a
// list (data/folder_index.h) open several times faster so, and without the library's lock. Internal
// to data/.
//
// Only the plain form of the format is known: superblock 0, object headers 1, groups as symbol
// tables, data sets contiguous or in chunks, no filters; h5py and our writer make such files. On
// everything else, and on everything that is wrong with a file, the functions give up, and the
// library, which knows all forms, reads the file or says what is wrong with it.
#ifndef SPARDA_SHARD_PLAIN_H
#define SPARDA_SHARD_PLAIN_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sp_plain_shard {
    int64_t vocab, tokens, rows, bytes; // bytes of the file
    char *tokenizer;
    char **domain; // [n_domains]
    int64_t n_domains;
    bool has_domains; // else domain is NULL
    int64_t checked;  // checksums compared
    struct plain_file *file;
} sp_plain_shard;

// False: give it to the library. Fields are owned by *out, and may be taken out and set to NULL.
bool sp_plain_open(const char *path, sp_plain_shard *out);
// Calls `visit` with values[n] = offsets first..first+n-1, in order, after comparing their checksum
// if there is one. False if that or a call fails.
bool sp_plain_offsets(sp_plain_shard *p,
                      sp_status (*visit)(void *user, const void *values, int64_t first, int64_t n),
                      void *user);
void sp_plain_close(sp_plain_shard *p);

#endif
