// What a file really is, told from its first bytes: for messages about a weights or data file that
// holds something else (bugs.md S01).
#ifndef SPARDA_CONTENTS_H
#define SPARDA_CONTENTS_H

#include <stdint.h>

// "a Git LFS pointer, ...; run 'git lfs pull' ...": a noun phrase and what to do about it, ready to
// follow "this is ". NULL if nothing known is recognised. `bytes` is the file's size, all of it at
// `data`.
const char *sp_contents_of(const uint8_t *data, int64_t bytes);

#endif
