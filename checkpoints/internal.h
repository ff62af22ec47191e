// What the files of checkpoints/ share among themselves.
#ifndef SPARDA_CHECKPOINTS_INTERNAL_H
#define SPARDA_CHECKPOINTS_INTERNAL_H

#include "checkpoints/checkpoints.h"

// Step of a complete state, read without its tensors: format, version and end mark are checked.
sp_status sp_state_peek_step(const char *path, int64_t *step);

// What a file is by its first bytes. SP_FILE_PT includes bare pickles, so that the reader of .pt
// files can say what is wrong with them; SP_FILE_OTHER is left to the reader of safetensors.
typedef enum sp_file_kind { SP_FILE_HDF5, SP_FILE_PT, SP_FILE_OTHER } sp_file_kind;
sp_status sp_file_kind_of(const char *path, sp_file_kind *kind);

// sparse_config of inference.md 6.2 for exported files: the base model's values and the training
// grid, with both top-k conventions. NULL if out of memory; caller owns it.
json_t *sp_state_sparse_json(const sp_train_state *s);

#endif
