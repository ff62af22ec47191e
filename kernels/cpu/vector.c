// Which inner loops this machine can run; the widest vectors come first.
#include "kernels/cpu/vector.h"

#include <stddef.h>

const sp_vector *const *sp_vector_all(void) {
    static const sp_vector *list[4]; // the same values every time
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        list[n++] = &sp_vector_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        list[n++] = &sp_vector_v3;
#endif
    list[n++] = &sp_vector_baseline;
    list[n] = NULL;
    return list;
}

const sp_vector *sp_vector_best(void) {
    return sp_vector_all()[0];
}
