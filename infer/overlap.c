// See overlap.h.
#include "infer/overlap.h"

#include <math.h>

sp_decode_parts sp_decode_parts_of(const double *trace, int64_t layers) {
    const double *end = trace + layers * SP_MOMENTS;
    sp_decode_parts p = {.other = end[SP_AT_END] - end[SP_AT_LAYER]};
    for (const double *t = trace; t < end; t += SP_MOMENTS) {
        p.linear += t[SP_AT_CHOOSE] - t[SP_AT_LAYER] + t[SP_AT_MLP] - t[SP_AT_ATTENDED];
        p.select += t[SP_AT_WAIT] - t[SP_AT_CHOOSE];
        if (isfinite(t[SP_AT_CHOSEN])) p.select += t[SP_AT_CHOSEN] - t[SP_AT_AHEAD];
        p.wait += t[SP_AT_GO] - t[SP_AT_WAIT];
        p.attention += t[SP_AT_ATTENDED] - t[SP_AT_GO];
        p.mlp += t[SP_MOMENTS + SP_AT_LAYER] - t[SP_AT_MLP];
    }
    return p;
}

double sp_hidden_share(double ahead_ms, double inline_ms, double without_ms) {
    return 1 - (ahead_ms - without_ms) / (inline_ms - without_ms);
}

double sp_hidden_cap(double inline_ms, double without_ms) {
    return fmin(1, without_ms / (inline_ms - without_ms));
}
