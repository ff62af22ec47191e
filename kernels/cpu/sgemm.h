// Single-precision matrix product by a library, chosen at start by measurement.
#ifndef SPARDA_KERNELS_CPU_SGEMM_H
#define SPARDA_KERNELS_CPU_SGEMM_H

#include "common/status.h"

#include <stdint.h>

// Row-major C[m,n] = op(A) . op(B) + beta * C on the calling thread alone; `ta`, `tb`: transposed.
typedef void sp_sgemm_fn(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a,
                         int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                         int64_t ldc);

typedef struct sp_sgemm_choice {
    const char *name; // "openblas" or "onednn"
    char label[96];   // with version and core, for people
    sp_sgemm_fn *run;
    double gflops; // measured on all threads
} sp_sgemm_choice;

// `name`: "auto" or a library. Every candidate is checked against scalar products first; one that
// is wrong is an error if it was asked for and is left out, with a warning, otherwise. auto takes
// oneDNN, which looks at the processor itself, unless OpenBLAS is clearly faster; with
// `deterministic` it does not depend on a clock and takes oneDNN wherever it is built in.
sp_status sp_sgemm_choose(const char *name, int threads, bool deterministic, sp_sgemm_choice *out);

#endif
