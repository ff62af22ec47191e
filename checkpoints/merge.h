// Folders for export: a base model's files beside the Forecast, and moving finished folders.
#ifndef SPARDA_CHECKPOINTS_MERGE_H
#define SPARDA_CHECKPOINTS_MERGE_H

#include "common/status.h"

// SP_BAD_INPUT if `out` lies in `base` or is it, if `base` holds a Forecast already (a sparda/
// folder or an export), or if something in `out` cannot be replaced by the file or folder of that
// name.
sp_status sp_merge_check(const char *base, const char *out);
// Every file of `base`, sub-folders too, names with a leading dot excepted, appears under `to`: as
// a hard link where the file system allows, else as a copy that was read back and compared.
// Symbolic links (a Hugging Face cache) are followed.
sp_status sp_merge_base(const char *base, const char *to);

// Moves the files of the folder `from` into `to`, replacing files of the same name; those called
// `last` after all others.
sp_status sp_move_tree(const char *from, const char *to, const char *last);
// Removes a folder of ours with everything in it; nothing if it is not there.
void sp_remove_tree(const char *dir);

#endif
