// Inner loops for x86-64-v4 (AVX-512); the build compiles this file for that level.
#if defined(__AVX512F__)
#define SP_WIDTH 16
#define SP_ISA "AVX-512"
#define SP_VECTOR sp_vector_v4
#include "kernels/cpu/vector_body.h"
#elif defined(__x86_64__)
#error "vector_v4.c must be compiled with -march=x86-64-v4"
#endif
