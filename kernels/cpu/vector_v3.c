// Inner loops for x86-64-v3 (AVX2 and FMA); the build compiles this file for that level.
#if defined(__AVX2__) && defined(__FMA__)
#define SP_WIDTH 8
#define SP_ISA "AVX2"
#define SP_VECTOR sp_vector_v3
#include "kernels/cpu/vector_body.h"
#elif defined(__x86_64__)
#error "vector_v3.c must be compiled with -march=x86-64-v3"
#endif
