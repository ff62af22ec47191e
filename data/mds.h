// Parsing of MDS folders (docs/spec/formats.md 1): functions of bytes in memory, which trust
// nothing. Internal to data/; fuzzed by tests/fuzz/fuzz_mds.c.
//
// Messages name the place inside the bytes; the caller puts the file's name in front.
#ifndef SPARDA_MDS_H
#define SPARDA_MDS_H

#include "common/status.h"

#include <jansson.h>
#include <stdint.h>

// An integer type in which token ids may be stored.
typedef struct sp_mds_type {
    const char *name; // of NumPy
    uint8_t code;     // leads a plain `ndarray`
    uint8_t size;     // bytes
    bool is_signed;
} sp_mds_type;

const sp_mds_type *sp_mds_type_of(const char *name, size_t n); // NULL if there is none

// How the token column stores a row.
typedef enum sp_mds_form {
    SP_MDS_PLAIN, // `ndarray`: type, shape and values
    SP_MDS_TYPED, // `ndarray:int32`: shape and values
    SP_MDS_FIXED, // `ndarray:int32:65536`: values only
} sp_mds_form;

typedef struct sp_mds_columns {
    int64_t n, n_variable;
    int64_t *size; // [n] bytes, 0: variable
    int64_t fixed; // sum of size[]
    int64_t token; // which column holds the tokens
    sp_mds_form form;
    const sp_mds_type *type; // NULL in the plain form
    int64_t count;           // tokens a row in the fixed form
} sp_mds_columns;

typedef struct sp_mds_shard {
    char *basename; // raw file, relative to the folder, safe
    int64_t bytes;  // of the raw file
    int64_t samples;
    char *zip;         // compressed file, NULL if none
    int64_t zip_bytes; // of it
    char *compression; // "zstd:7", NULL if none
    sp_mds_columns columns;
    json_t *json; // the shard's object, owned
} sp_mds_shard;
void sp_mds_shard_free(sp_mds_shard *s);

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
// The array of tokens, of `size` bytes, of which the first `len` are given (at least min(size,
// SP_MDS_HEAD)). SP_BAD_INPUT if it has no token, or other than one dimension.
enum { SP_MDS_HEAD = 10 };
typedef struct sp_mds_array {
    int64_t values; // offset of the first value
    int64_t count;
    const sp_mds_type *type;
} sp_mds_array;
sp_status sp_mds_parse_array(const uint8_t *bytes, int64_t len, int64_t size,
                             const sp_mds_columns *c, sp_mds_array *out);
// Values of any integer type as ids. Returns the position of the first one that does not fit into
// int32 (*value receives it), or `n`. `from` need not be aligned.
int64_t sp_mds_convert(const uint8_t *from, int64_t n, const sp_mds_type *t, int32_t *to,
                       int64_t *value);

// ---- whole files (mds_file.c) -------------------------------------------------------------------

typedef struct sp_buffer { // memory that is used again and again; zero-initialise
    uint8_t *data;
    int64_t bytes, cap;
} sp_buffer;
void sp_buffer_free(sp_buffer *b);

// Unpacks `n` bytes of zstd to out->data, exactly `want` bytes: SP_BAD_INPUT if they are more,
// fewer or damaged. Memory is taken as it is filled, never by what the input claims.
sp_status sp_mds_unpack(const uint8_t *packed, int64_t n, int64_t want, sp_buffer *out);

// What the first frame claims to unpack to; 0 if it does not say.
int64_t sp_mds_unpacked_size(const uint8_t *packed, int64_t n);

// Compares bytes with the hashes that the index states ({"xxh64": "..."}; may be NULL): all of
// them, or only the quick ones (the xxh family; if there is none, one other). *compared counts;
// names that are not known are left out and stay in *unknown (borrowed; NULL if none).
enum { SP_MDS_HASH_HEX = 129 };
// Hash by its name in the index, as lower-case hex; false if the name is not known.
bool sp_mds_hash_of(const char *name, const uint8_t *data, size_t n, char hex[SP_MDS_HASH_HEX]);
sp_status sp_mds_check_hashes(const json_t *hashes, bool all, const uint8_t *data, int64_t n,
                              int64_t *compared, const char **unknown);

#endif
