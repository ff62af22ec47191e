// Writing MDS folders, for benchmarks and tests: what the public writer would write for the same
// rows (docs/spec/formats.md 1). Internal to data/.
#ifndef SPARDA_MDS_WRITE_H
#define SPARDA_MDS_WRITE_H

#include "common/status.h"

#include <stdint.h>

typedef struct sp_mds_writer sp_mds_writer;
typedef struct sp_mds_writer_args {
    const char *dir;      // made if absent
    const char *encoding; // of input_ids: "ndarray", "ndarray:TYPE" or "ndarray:TYPE:N"
    int zstd_level;       // 0: not compressed
    const char *hash;     // xxh64, xxh3_64, sha1, ...; NULL: none
    bool length_column;   // an int64 with the number of tokens
    int64_t size_limit;   // bytes of a shard
} sp_mds_writer_args;

sp_status sp_mds_create(const sp_mds_writer_args *a, sp_mds_writer **out);
// The caller sees to it that ids fit the type and, in the fixed form, that n is its N.
sp_status sp_mds_append(sp_mds_writer *w, const int32_t *tokens, int64_t n);
sp_status sp_mds_finish(sp_mds_writer *w); // index.json last; frees w in every case

#endif
