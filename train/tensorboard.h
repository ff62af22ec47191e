// Scalars as TensorBoard event files: records of length, masked CRC-32C and a protocol-buffer
// message each. One file per start of a run; a later start that repeats steps says so with a
// session record, and TensorBoard drops the repeated ones.
#ifndef SPARDA_TENSORBOARD_H
#define SPARDA_TENSORBOARD_H

#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct sp_tensorboard sp_tensorboard;

// Creates DIR/events.out.tfevents.<seconds>.<host>.<pid>. `first_step` is the next step to come.
sp_status sp_tensorboard_open(const char *dir, int64_t first_step, sp_tensorboard **out);
// One scalar; buffered until the flush. Values of one step share a record.
void sp_tensorboard_scalar(sp_tensorboard *t, const char *tag, double value);
// Writes the scalars collected for `step`.
sp_status sp_tensorboard_step(sp_tensorboard *t, int64_t step);
void sp_tensorboard_close(sp_tensorboard *t);

uint32_t sp_crc32c(const void *data, size_t bytes);

#endif
