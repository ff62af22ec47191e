// What the times of decode steps say about them (inference.md 5.4 T3, 5.5): arithmetic only.
//
// Legend: E a layer's time without copies, T the time of its copies.
#ifndef SPARDA_INFER_OVERLAP_H
#define SPARDA_INFER_OVERLAP_H

#include "kernels/decode.h"

// Milliseconds of a traced step on the main stream, by part. Each part waits for the one before,
// where kernels of an untraced step overlap, so the sum is more than ms_p50.
typedef struct sp_decode_parts {
    double linear; // norm, projections with rotation and appending, output projection
    double select; // scores, lists, slots, also those chosen ahead, beside the main stream; and
                   // appending where it comes after choosing
    double wait;   // for copies that run ahead; else the copies themselves
    double attention;
    double mlp;   // its norm included
    double other; // final norm, head, next token; the embedding comes before the first note
} sp_decode_parts;
sp_decode_parts sp_decode_parts_of(const double *trace, int64_t layers);

// T3 of 5.4 and its cap min(1, E/T), from the times of a step: ahead, inline, without copies.
double sp_hidden_share(double ahead_ms, double inline_ms, double without_ms);
double sp_hidden_cap(double inline_ms, double without_ms);

#endif
