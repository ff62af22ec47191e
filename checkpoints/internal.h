// What the files of checkpoints/ share among themselves.
#ifndef SPARDA_CHECKPOINTS_INTERNAL_H
#define SPARDA_CHECKPOINTS_INTERNAL_H

#include "checkpoints/checkpoints.h"

// Step of a complete state, read without its tensors: format, version and end mark are checked.
sp_status sp_state_peek_step(const char *path, int64_t *step);

#endif
