// Small things every part needs: checked sizes and allocation, growing strings, paths, files that
// are complete or absent, float conversion, time.
#ifndef SPARDA_UTIL_H
#define SPARDA_UTIL_H

#include "common/status.h"

#include <stdint.h>
#include <stdio.h>

// ---- sizes and memory ----
bool sp_mul(int64_t a, int64_t b, int64_t *out); // false on overflow or a negative operand
bool sp_add(int64_t a, int64_t b, int64_t *out);
// `count` x `size` zeroed bytes, or SP_ENVIRONMENT naming `what` and the bytes. count 0 gives a
// valid pointer. Free with free().
sp_status sp_alloc(void *out_ptr, int64_t count, int64_t size, const char *what);
char *sp_strdup(const char *s); // NULL only if s is NULL or no memory
char *sp_format(const char *fmt, ...) __attribute__((format(printf, 1, 2))); // caller frees

// ---- growing text; out of memory is remembered and turns `text` into NULL ----
typedef struct sp_text {
    char *data; // always terminated once something was added
    size_t len, cap;
    bool failed;
} sp_text;
void sp_text_add(sp_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sp_text_bytes(sp_text *t, const void *bytes, size_t n);
void sp_text_free(sp_text *t);

// ---- paths and files ----
char *sp_path_join(const char *dir, const char *name); // absolute `name` wins; caller frees
char *sp_path_dir(const char *path);                   // "a/b" -> "a", "b" -> "."; caller frees
bool sp_same_file(const char *a, const char *b); // by whatever names, NULL for none; both exist
const char *sp_path_base(const char *path);      // points into `path`
bool sp_path_is_dir(const char *path);
bool sp_path_is_file(const char *path);
// A relative path without "..", not absolute, not empty: safe to join under a folder of ours.
bool sp_path_is_safe(const char *name);
sp_status sp_mkdirs(const char *path);
// Whether sp_mkdirs(path) and writing there would succeed, as far as can be seen beforehand;
// creates nothing. For long work whose result goes to `path`.
sp_status sp_check_destination(const char *path);

// What the host could still give, in bytes: memory that is free or only caches files. INT64_MAX if
// the system does not say.
int64_t sp_host_available(void);
// Names in `dir` with the given suffix ("" = all), sorted bytewise, without "." entries.
sp_status sp_list_dir(const char *dir, const char *suffix, char ***names, int64_t *n);
void sp_free_names(char **names, int64_t n);
// Whole file with a terminating 0 added (not counted). Refuses more than `max_bytes`.
sp_status sp_read_file(const char *path, int64_t max_bytes, char **data, int64_t *len);

// A read-only mapping of a file.
typedef struct sp_map {
    const uint8_t *data;
    int64_t bytes;
} sp_map;
sp_status sp_map_open(const char *path, sp_map *out);
void sp_map_close(sp_map *m);

// A file that appears under its final name only when complete: written as
// "<dir>/.<name>.tmp.<pid>", flushed, synced, renamed, folder synced. A failed or abandoned write
// removes the temporary and leaves any older file untouched.
typedef struct sp_atomic {
    FILE *f;
    char *tmp, *path;
} sp_atomic;
sp_status sp_atomic_open(sp_atomic *a, const char *path);
sp_status sp_atomic_write(sp_atomic *a, const void *data, int64_t bytes);
sp_status sp_atomic_commit(sp_atomic *a); // frees `a` in every case
void sp_atomic_abandon(sp_atomic *a);     // safe on a zeroed or committed `a`
sp_status sp_write_file(const char *path, const void *data, int64_t bytes);
// Opens a regular file for reading and takes its size. Anything else is SP_BAD_INPUT without
// waiting: a named pipe would block until somebody writes to it.
sp_status sp_open_regular(const char *path, int *fd, int64_t *bytes);

// Opens, and creates if need be, a file that is written in place. SP_BAD_INPUT if the name is a
// symbolic link: it could lead out of the folder it stands in.
sp_status sp_open_own(const char *path, int flags, int *fd);
// For writers that need a path (HDF5): a temporary name beside `path`; then sync + rename.
char *sp_temporary_name(const char *path);
sp_status sp_commit_file(const char *tmp, const char *path);

// ---- numbers ----
uint16_t sp_f32_to_bf16(float x); // round to nearest even; NaN stays NaN
float sp_bf16_to_f32(uint16_t x);
float sp_f16_to_f32(uint16_t x);
uint16_t sp_f32_to_f16(float x); // round to nearest even; beyond 65504 gives infinity

// Next number of the splitmix64 stream in *state (data/corpus.md 2); uniform in [0,1) from it.
uint64_t sp_splitmix64(uint64_t *state);
double sp_uniform(uint64_t *state); // 53 bits

double sp_now(void); // monotonic seconds

#endif
