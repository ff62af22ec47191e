// The inner loops that deserve vectors, compiled once per instruction set and chosen at start, so
// that one binary runs on every machine of its architecture (vector_body.h has the code).
//
// "Columns" means that lanes are query rows: a tile of query rows stands side by side in a vector
// and keys run downwards, s[key][lane]. Then softmax, alignment and the causal rule need no sums
// across a vector, and every lane sums in the order of the keys whatever tile it sits in.
#ifndef SPARDA_KERNELS_CPU_VECTOR_H
#define SPARDA_KERNELS_CPU_VECTOR_H

#include <stdbool.h>
#include <stdint.h>

enum { SP_MAX_LANES = 32 };

typedef struct sp_vector {
    const char *isa;
    int64_t width; // floats in a vector
    int64_t lanes; // query rows of a tile of columns: 2 * width

    // C[m][n] = (accumulate ? C : 0) + sum over k of A(m,k) * B[k][n], A(m,k) = a[m*am + k*ak],
    // k in ascending order, one accumulator an element. For small factors that stay in cache.
    void (*gemm)(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                 const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate);

    // s[n][lanes]: lane l sees keys j < visible[l]. s becomes exp(s - max), 0 where not seen;
    // inverse[l] = 1 / sum, 0 if nothing is seen.
    void (*softmax_columns)(float *s, int64_t n, const int64_t *visible, float *inverse);
    // One step of online softmax over n more keys: s becomes exp(s - new max); `max`, `sum` are
    // brought up to date and rescale[l] = exp(old max - new max). max starts as -inf, sum as 0.
    void (*online_columns)(float *s, int64_t n, const int64_t *visible, float *max, float *sum,
                           float *rescale);
    // x[n][lanes] *= factor[lane]
    void (*scale_columns)(float *x, int64_t n, const float *factor);
    // total[l] = sum over j of x[j][l]
    void (*sum_columns)(const float *x, int64_t n, float *total);
    // Importance (training.md 4.1, 4.3): P[j] = sum over heads g < G of e[g][j] * inverse[g], keys
    // j >= n are 0; out[a], a < n_out, is its alignment with ratio rho; `pooled` cells exist.
    // e is [G][stride] rows of lanes, inverse [G][lanes], out [n_out][lanes].
    void (*align_columns)(const float *e, int64_t stride, int64_t G, const float *inverse,
                          int64_t n, int64_t rho, bool mean, int64_t pooled, int64_t n_out,
                          float *out);

    // x[n] becomes exp(x - max x); the sum is returned. All -inf: zeros and 0.
    float (*softmax_row)(float *x, int64_t n);
    void (*exp)(const float *x, float *y, int64_t n);
    float (*sum)(const float *x, int64_t n);
    double (*sum_squares)(const float *x, int64_t n); // in double
    void (*swiglu)(const float *gate, const float *up, float *out, int64_t n);
} sp_vector;

// exp: relative error below 2e-7 for x in [-86.9, 88.72]; 0 below, +inf above; NaN stays NaN.

const sp_vector *sp_vector_best(void);
// Every set of loops that this machine can run, NULL-terminated: for tests.
const sp_vector *const *sp_vector_all(void);

extern const sp_vector sp_vector_baseline;
#if defined(__x86_64__)
extern const sp_vector sp_vector_v3; // AVX2 and FMA
extern const sp_vector sp_vector_v4; // AVX-512
#endif

#endif
