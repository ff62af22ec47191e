// The HDF5 token shard: what its writer and its reader share (data/README.md).
#ifndef SPARDA_SHARD_H
#define SPARDA_SHARD_H

#include "common/status.h"

#include <stdint.h>

#define SP_SHARD_FORMAT "sparda-tokens"
#define SP_TOKENIZER_UNKNOWN "not stated" // identity that an import without one writes
enum {
    SP_SHARD_VERSION = 1,
    SP_SHARD_TEXT_MAX = 4096,       // bytes of the tokenizer identity and of a domain's name
    SP_SHARD_DOMAINS_MAX = 1 << 20, // names in the table
    SP_SHARD_TOKEN_BLOCK = 1 << 18, // elements of a chunk, also of a checksum block: 1 MiB
    SP_SHARD_ROW_BLOCK = 1 << 13,   // likewise for what has one element a row
    SP_SHARD_BLOCK_MAX = 1 << 24,   // largest checksum block that is read
};

// Reads a shard from end to end: everything sp_shard_open checks, every checksum, and that every
// id is in 0..vocab-1. SP_BAD_INPUT names the data set and the place. *checked receives the number
// of checksums compared (0: the file has none).
sp_status sp_shard_verify(const char *path, int64_t *checked);

#endif
