// Token shards with rows that tell where they come from: token p of row r of file f is
// (f * 97 + r * 31 + p) mod 1000.
#ifndef SPARDA_TEST_SHARDS_H
#define SPARDA_TEST_SHARDS_H

#include "tests/support.h"

#include "common/util.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

static inline int32_t shard_token(int64_t file, int64_t row, int64_t pos) {
    return (int32_t)((file * 97 + row * 31 + pos) % 1000);
}

// Rows of the given lengths under test_tmpdir()/`name` (folders are made). Caller frees the path.
static inline char *make_shard(const char *name, int64_t file, int64_t rows,
                               const int64_t *length) {
    static const char *const domains[] = {"even", "odd"};
    const sp_shard_meta meta = {"test", 1000, domains, 2};
    char *path = sp_path_join(test_tmpdir(), name), *dir = sp_path_dir(path);
    assert_ok(sp_mkdirs(dir));
    sp_shard_writer *w;
    assert_ok(sp_shard_create(path, &meta, &w));
    for (int64_t r = 0; r < rows; r++) {
        int32_t *t = malloc((size_t)length[r] * sizeof *t);
        for (int64_t p = 0; p < length[r]; p++) t[p] = shard_token(file, r, p);
        assert_ok(sp_shard_append(w, t, length[r], r % 2));
        free(t);
    }
    assert_ok(sp_shard_finish(w));
    free(dir);
    return path;
}

// `rows` rows of `tokens` tokens each.
static inline char *make_even_shard(const char *name, int64_t file, int64_t rows, int64_t tokens) {
    int64_t *length = malloc((size_t)rows * sizeof *length);
    for (int64_t r = 0; r < rows; r++) length[r] = tokens;
    char *path = make_shard(name, file, rows, length);
    free(length);
    return path;
}

static inline void assert_row(const int32_t *t, int64_t n, int64_t file, int64_t row) {
    for (int64_t p = 0; p < n; p++)
        if (t[p] != shard_token(file, row, p))
            fail_msg("file %d, row %d, position %d: token %d, expected %d", (int)file, (int)row,
                     (int)p, (int)t[p], (int)shard_token(file, row, p));
}

static inline sp_status open_paths(const char *const *path, const double *proportion, int64_t n,
                                   sp_dataset_options o, sp_dataset **out) {
    sp_data_entry *e = calloc((size_t)n, sizeof *e);
    for (int64_t i = 0; i < n; i++) {
        e[i].path = (char *)path[i];
        if (proportion) e[i].proportion = proportion[i];
    }
    sp_data_list list = {e, n};
    sp_status st = sp_dataset_open(&list, &o, out);
    free(e);
    return st;
}

static inline sp_status open_path(const char *path, sp_dataset **out) {
    return open_paths(&path, NULL, 1, (sp_dataset_options){0}, out);
}

#endif
