// Inner loops 16 floats wide without AVX-512: the compiler makes them of narrower vectors. So the
// logic of the widest loops is tested on machines that cannot run them.
#define SP_WIDTH 16
#define SP_ISA "16 wide, emulated"
#define SP_VECTOR test_vector_wide
#include "kernels/cpu/vector_body.h"
