// Parsing of MDS folders (docs/spec/formats.md 1): functions of bytes in memory, which trust
// nothing. Internal to data/; fuzzed by tests/fuzz/fuzz_mds.c.
//
// Messages name the place inside the bytes; the caller puts the file's name in front.
#ifndef SPARDA_MDS_H
#define SPARDA_MDS_H

#include "common/status.h"

#include <jansson.h>
#include <stdint.h>

// How a token column stores a row: the one place to extend for another encoding.
typedef struct sp_mds_encoding {
    const char *name;
    int itemsize;
} sp_mds_encoding;

typedef struct sp_mds_columns {
    int64_t n, n_variable;
    int64_t *size; // [n] bytes, 0: variable
    int64_t fixed; // sum of size[]
    int64_t token; // which column holds the tokens
    const sp_mds_encoding *encoding;
} sp_mds_columns;

typedef struct sp_mds_shard {
    char *basename; // raw file, relative to the folder, safe
    int64_t bytes;  // of the raw file
    int64_t samples;
    char *zip;         // compressed file, NULL if none
    char *compression; // "zstd:7", NULL if none
    sp_mds_columns columns;
    const json_t *json; // the shard's object, borrowed from the index
} sp_mds_shard;

typedef struct sp_mds_index {
    json_t *json;
    sp_mds_shard *shard;
    int64_t n;
    int64_t samples; // of all shards
} sp_mds_index;

// index.json. Every fault is added to `problems` (with `where` in front) and leaves out->n == 0;
// the status is that of the machine. An index without shards is no fault here: n and samples are 0.
sp_status sp_mds_parse_index(const char *text, int64_t bytes, const char *where,
                             sp_problems *problems, sp_mds_index *out);
void sp_mds_index_free(sp_mds_index *x);

// The beginning of a shard file up to the first sample: its count, offsets and configuration, which
// must agree with the index and with the size of the file. len >= offset[0].
sp_status sp_mds_parse_header(const uint8_t *bytes, int64_t len, int64_t file_bytes,
                              const sp_mds_shard *s);
// Bytes of the count and the offset table.
int64_t sp_mds_table_bytes(int64_t samples);
uint32_t sp_mds_u32(const uint8_t *bytes);

// Where the token column lies in a sample of `sample_bytes` bytes, of which the first `len` are
// given; they must hold the sizes of the variable columns.
sp_status sp_mds_find_column(const uint8_t *bytes, int64_t len, int64_t sample_bytes,
                             const sp_mds_columns *c, int64_t *begin, int64_t *size);
// The head of a one-dimensional array of `size` bytes, of which the first `len` are given (at least
// min(size, SP_MDS_HEAD)). *values: offset of the first value.
enum { SP_MDS_HEAD = 9 };
sp_status sp_mds_parse_array(const uint8_t *bytes, int64_t len, int64_t size,
                             const sp_mds_encoding *e, int64_t *values, int64_t *count);

#endif
