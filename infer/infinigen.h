// InfiniGen's basis (inference.md 4): which 32 directions of a head's queries to keep.
#ifndef SPARDA_INFER_INFINIGEN_H
#define SPARDA_INFER_INFINIGEN_H

#include "kernels/kernels.h"

enum { SP_INFINIGEN_CHANNELS = 32 };

// From rotated queries q [n][Hq*d] of one layer and prompt: for each KV head the right singular
// vectors of the group's mean queries of the first 2048 rows (an orthogonal basis, so that dot
// products keep their value in it), then the channels whose mean queries have the largest summed
// size over all n rows, lower channel first among equals, in ascending order of channel (channels
// are numbered by falling singular value).
// out [Hkv][d][SP_INFINIGEN_CHANNELS]. SP_ENVIRONMENT if d is below the number of channels.
sp_status sp_infinigen_projection(const sp_heads *heads, const float *q, int64_t n, float *out);

#endif
