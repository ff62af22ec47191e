// Inner loops with what every machine of the architecture has (SSE2, NEON).
#define SP_WIDTH 4
#define SP_ISA "baseline"
#define SP_VECTOR sp_vector_baseline
#include "kernels/cpu/vector_body.h"
