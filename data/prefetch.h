// Reading ahead: a thread that reads the samples of one rank in order into a bounded queue, so that
// training waits for data only when the disk is slower than the step.
#ifndef SPARDA_PREFETCH_H
#define SPARDA_PREFETCH_H

#include "data/dataset.h"

typedef struct sp_loader sp_loader;

// The next sample index of this rank; false when there is no more. Called from the loader's thread,
// one call at a time, ahead of sp_loader_next: it must depend on nothing but `user`.
typedef bool (*sp_next_index)(void *user, uint64_t *index);

typedef struct sp_sample {
    uint64_t index;
    const int32_t *tokens; // [n], valid until the next sp_loader_next; NULL after the last sample
    int64_t n;
    const char *id; // for messages (sp_sampler_read)
} sp_sample;

// Starts reading at once, up to `depth` >= 1 samples ahead (each seq_len x 4 bytes of memory).
// `s` and `user` outlive the loader.
sp_status sp_loader_open(const sp_sampler *s, sp_next_index next, void *user, int64_t depth,
                         sp_loader **out);
// The next sample in order. An error of reading comes here, in its place in the order, and again on
// every later call. One consumer thread.
sp_status sp_loader_next(sp_loader *l, sp_sample *out);
double sp_loader_waited(const sp_loader *l); // seconds spent waiting in sp_loader_next so far
void sp_loader_close(sp_loader *l);          // stops the thread and waits for it; NULL is allowed

#endif
