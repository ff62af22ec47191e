// shards.json: what a folder of HDF5 token shards holds, so that ten thousand of them need not be
// opened one by one before training begins. Written by import; internal to data/.
//
// A shard that is listed with the size that its file has is opened, and compared with the list,
// when its first row is asked for. Every other one is opened at once, as without the list.
#ifndef SPARDA_FOLDER_INDEX_H
#define SPARDA_FOLDER_INDEX_H

#include "data/source.h"

#include <jansson.h>

#define SP_FOLDER_INDEX "shards.json"

// Opens all shards of `dir` and writes the list. rows and tokens: of all of them.
sp_status sp_folder_index_write(const char *dir, int64_t *rows, int64_t *tokens);

typedef struct sp_folder_index { // zeroed: there is none
    json_t *root;                // owned
    const json_t *shards;
} sp_folder_index;
// A damaged list is left out with a warning.
sp_status sp_folder_index_load(const char *dir, sp_folder_index *out);
void sp_folder_index_free(sp_folder_index *x);
// The shard `name` from the list; *out NULL if it is not listed as it is.
sp_status sp_folder_index_open(const sp_folder_index *x, const char *path, const char *name,
                               sp_source **out);
// Adds a problem for every shard that is listed but is not among the sorted names of the folder.
void sp_folder_index_missing(const sp_folder_index *x, const char *dir, char *const *name,
                             int64_t n, sp_problems *problems);

#endif
