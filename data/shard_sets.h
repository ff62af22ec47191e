// Pieces of HDF5 of which reading a token shard is made; they name what is wrong with the file.
// Internal to data/shard_*.c. All of them are called between sp_h5_begin and sp_h5_end.
#ifndef SPARDA_SHARD_SETS_H
#define SPARDA_SHARD_SETS_H

#include "common/h5.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

// SP_BAD_INPUT about the file.
sp_status sp_shard_bad(const char *path, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
// The reason why HDF5 does not open the file, as far as its first bytes tell.
sp_status sp_shard_explain_open(const char *path);

// The attribute `name` of an object of the file at `path`, which is for messages. Texts, of fixed
// or variable size, are the caller's to free.
sp_status sp_shard_get_integer(hid_t object, const char *path, const char *name, int64_t *out);
sp_status sp_shard_get_text(hid_t object, const char *path, const char *name, char **out);

// A one-dimensional data set of integers of `size` bytes, or of texts if size is 0. Its claimed
// length, *n, is compared with the bytes really stored, so that the caller may allocate by it.
sp_status sp_shard_open_set(hid_t file, const char *path, const char *name, int size,
                            bool is_signed, hid_t *out, int64_t *n);
// Elements start..start+n-1.
bool sp_shard_read_range(hid_t set, hid_t memory_type, int64_t start, int64_t n, void *out);
bool sp_shard_read_with(hid_t transfer, hid_t set, hid_t memory_type, int64_t start, int64_t n,
                        void *out);

// Walking through a column in checksum blocks.
typedef sp_status (*sp_shard_visit)(void *user, const void *values, int64_t first, int64_t n);

typedef struct sp_shard_walk_args {
    hid_t file, set;
    const char *path, *name;
    hid_t memory_type;
    int64_t size, n; // bytes of an element, elements
    bool unlock;     // let other threads use HDF5 while a block is visited
} sp_shard_walk_args;
// Calls `f` on every block in order, after comparing its checksum if there is one; adds the number
// of comparisons to *checked.
sp_status sp_shard_walk(const sp_shard_walk_args *w, sp_shard_visit f, void *user,
                        int64_t *checked);

#endif
