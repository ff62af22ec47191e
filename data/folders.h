// Folders that commands of data/ make and remove where the user has files as well: nothing goes but
// what they made. Internal to data/.
#ifndef SPARDA_FOLDERS_H
#define SPARDA_FOLDERS_H

#include "common/status.h"

#include <stdint.h>

// All names, also those that begin with a dot, in no order.
sp_status sp_folder_list(const char *dir, char ***name, int64_t *n);

// The number of a shard that `synth` or an import made, by its name shard-NNNNN.h5; -1: other name.
int64_t sp_folder_shard(const char *name);

// How many bytes of `path` name a folder that is there: what of it making it would add.
int64_t sp_folder_there(const char *path);
// Removes what was made of `path` beyond its first `there` bytes, as far as it is empty.
void sp_folder_unmake(const char *path, int64_t there);

// A new folder DIR/PREFIX-XXXXXX that nobody else has; caller frees its name.
sp_status sp_folder_private(const char *dir, const char *prefix, char **out);
// Removes a folder of ours with all that is in it. Links are removed, not followed.
void sp_folder_remove(const char *dir);

// The absolute path without links, also of what is not there yet; NULL without memory.
char *sp_folder_real(const char *path);
// Whether one is the other, or lies in it; both from sp_folder_real.
bool sp_folder_within(const char *path, const char *in);

#endif
