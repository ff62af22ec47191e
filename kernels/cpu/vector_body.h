// The inner loops of vector.h for one vector width. Included by vector_baseline.c, vector_v3.c and
// vector_v4.c, which define SP_WIDTH (floats in a vector), SP_ISA and SP_VECTOR (the table's name)
// and are compiled for their instruction set with contraction of a*b+c allowed.
//
// Legend: W vector width, L = 2W lanes, v vector of W floats.
#include "kernels/cpu/vector.h"

#include <math.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { W = SP_WIDTH, L = 2 * SP_WIDTH };

typedef float v __attribute__((vector_size(4 * SP_WIDTH)));
typedef int32_t vi __attribute__((vector_size(4 * SP_WIDTH)));
typedef uint32_t vu __attribute__((vector_size(4 * SP_WIDTH)));
// The same in memory: any alignment.
typedef float v_any __attribute__((vector_size(4 * SP_WIDTH), aligned(4), may_alias));

INLINE v load(const float *p) {
    return *(const v_any *)p;
}
INLINE void store(float *p, v x) {
    *(v_any *)p = x;
}
INLINE v splat(float x) {
    return x - (v){0};
} // x - 0 keeps the sign of zero
INLINE v choose(vi mask, v a, v b) {
    return (v)((mask & (vi)a) | (~mask & (vi)b));
}
INLINE v max2(v a, v b) { // b if either is NaN
#if SP_WIDTH == 16 && defined(__AVX512F__)
    return (v)_mm512_max_ps((__m512)a, (__m512)b);
#elif SP_WIDTH == 8 && defined(__AVX__)
    return (v)_mm256_max_ps((__m256)a, (__m256)b);
#elif SP_WIDTH == 4 && defined(__SSE2__)
    return (v)_mm_max_ps((__m128)a, (__m128)b);
#else
    return choose(a > b, a, b);
#endif
}
INLINE float horizontal_sum(v x) {
    float s[W];
    memcpy(s, &x, sizeof s);
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) s[i] += s[i + half];
    return s[0];
}

// exp(x) = 2^n e^r with n = round(x / ln 2), |r| <= ln(2)/2. ln 2 is split so that n*high is exact;
// e^r is a minimax polynomial of degree 6 (relative error 3.1e-9 before rounding). `bias` is what
// the exponent field of 2^n holds for n = 0; the low bits of `shifted` hold n.
INLINE v exp_times(v x, uint32_t bias) {
    const float round_to_int = 0x1.8p23f;
    v shifted = x * 0x1.715476p+0f + round_to_int;
    v n = shifted - round_to_int;
    v r = x - n * 0x1.62ep-1f;   // 12 bits: exact product for |n| < 2^12
    r = r - n * 0x1.0bfbe8p-15f; // ln 2 - high
    v p = r * 0x1.6a23cfp-10f + 0x1.123a20p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (v)(((vu)shifted << 23) + (bias << 23));
}

// Results below 2^-125 are flushed to 0, which also covers -inf.
static const float lowest = -86.9f, highest = 0x1.62e42ep+6f;

INLINE v exp_of(v x) {
    v y = exp_times(x, 126) * 2.0f; // n may be 128, one too many for the exponent field
    y = choose(x < splat(lowest), splat(0), y);
    return choose(x > splat(highest), splat(INFINITY), y);
}

// For x <= 0 only, where nothing overflows: a softmax after its maximum was subtracted.
INLINE v exp_of_negative(v x) {
    return choose(x < splat(lowest), splat(0), exp_times(x, 127));
}

// ---- small matrix product -----------------------------------------------------------------------

// MR rows by NV vectors in registers.
INLINE void gemm_tile(int MR, int NV, int64_t k, const float *a, int64_t am, int64_t ak,
                      const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate) {
    v acc[6][2];
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) acc[i][j] = accumulate ? load(c + i * ldc + j * W) : splat(0);
    for (int64_t kk = 0; kk < k; kk++) {
        v bv[2];
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) bv[j] = load(b + kk * ldb + j * W);
#pragma GCC unroll 6
        for (int i = 0; i < MR; i++) {
            v x = splat(a[i * am + kk * ak]);
#pragma GCC unroll 2
            for (int j = 0; j < NV; j++) acc[i][j] += x * bv[j];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) store(c + i * ldc + j * W, acc[i][j]);
}

INLINE void gemm_strip(int NV, int64_t m, int64_t k, const float *a, int64_t am, int64_t ak,
                       const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate) {
    int64_t i = 0;
    for (; i + 6 <= m; i += 6)
        gemm_tile(6, NV, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, accumulate);
    a += i * am;
    c += i * ldc;
    switch (m - i) {
    case 5:
        gemm_tile(5, NV, k, a, am, ak, b, ldb, c, ldc, accumulate);
        break;
    case 4:
        gemm_tile(4, NV, k, a, am, ak, b, ldb, c, ldc, accumulate);
        break;
    case 3:
        gemm_tile(3, NV, k, a, am, ak, b, ldb, c, ldc, accumulate);
        break;
    case 2:
        gemm_tile(2, NV, k, a, am, ak, b, ldb, c, ldc, accumulate);
        break;
    case 1:
        gemm_tile(1, NV, k, a, am, ak, b, ldb, c, ldc, accumulate);
        break;
    default:
        break;
    }
}

static void gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                 const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate) {
    int64_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W)
        gemm_strip(2, m, k, a, am, ak, b + j, ldb, c + j, ldc, accumulate);
    for (; j + W <= n; j += W) gemm_strip(1, m, k, a, am, ak, b + j, ldb, c + j, ldc, accumulate);
    for (; j < n; j++) // less than a vector
        for (int64_t i = 0; i < m; i++) {
            float s = accumulate ? c[i * ldc + j] : 0;
            for (int64_t kk = 0; kk < k; kk++) s += a[i * am + kk * ak] * b[kk * ldb + j];
            c[i * ldc + j] = s;
        }
}

// ---- columns ------------------------------------------------------------------------------------

static int64_t least(const int64_t *x) {
    int64_t m = x[0];
    for (int l = 1; l < L; l++)
        if (x[l] < m) m = x[l];
    return m;
}

// Sets s[j][l] to -inf for visible[l] <= j < n.
static void hide_columns(float *s, int64_t n, const int64_t *visible) {
    for (int64_t j = least(visible) < 0 ? 0 : least(visible); j < n; j++)
        for (int l = 0; l < L; l++)
            if (j >= visible[l]) s[j * L + l] = -INFINITY;
}

INLINE void max_columns(const float *s, int64_t n, v *m0, v *m1) {
    for (int64_t j = 0; j < n; j++) {
        *m0 = max2(*m0, load(s + j * L));
        *m1 = max2(*m1, load(s + j * L + W));
    }
}

// s = exp(s - m), sums in chunks of 64 keys, so that long rows lose no precision.
INLINE void exp_columns(float *s, int64_t n, v m0, v m1, v *sum0, v *sum1) {
    for (int64_t start = 0; start < n; start += 64) {
        int64_t end = start + 64 < n ? start + 64 : n;
        v c0 = splat(0), c1 = splat(0);
        for (int64_t j = start; j < end; j++) {
            v e0 = exp_of_negative(load(s + j * L) - m0),
              e1 = exp_of_negative(load(s + j * L + W) - m1);
            store(s + j * L, e0);
            store(s + j * L + W, e1);
            c0 += e0;
            c1 += e1;
        }
        *sum0 += c0;
        *sum1 += c1;
    }
}

// A lane that sees nothing has maximum -inf; 0 in its place makes all its exponentials 0.
INLINE v finite_max(v m) {
    return choose(m == splat(-INFINITY), splat(0), m);
}
INLINE v inverse_or_zero(v sum) {
    return choose(sum == splat(0), splat(0), 1.0f / sum);
}

static void softmax_columns(float *s, int64_t n, const int64_t *visible, float *inverse) {
    hide_columns(s, n, visible);
    v m0 = splat(-INFINITY), m1 = m0, s0 = splat(0), s1 = s0;
    max_columns(s, n, &m0, &m1);
    exp_columns(s, n, finite_max(m0), finite_max(m1), &s0, &s1);
    store(inverse, inverse_or_zero(s0));
    store(inverse + W, inverse_or_zero(s1));
}

static void online_columns(float *s, int64_t n, const int64_t *visible, float *max, float *sum,
                           float *rescale) {
    hide_columns(s, n, visible);
    v old0 = load(max), old1 = load(max + W), m0 = old0, m1 = old1;
    max_columns(s, n, &m0, &m1);
    v f0 = finite_max(m0), f1 = finite_max(m1);
    v r0 = exp_of_negative(old0 - f0), r1 = exp_of_negative(old1 - f1);
    v s0 = splat(0), s1 = s0;
    exp_columns(s, n, f0, f1, &s0, &s1);
    store(max, m0);
    store(max + W, m1);
    store(sum, load(sum) * r0 + s0);
    store(sum + W, load(sum + W) * r1 + s1);
    store(rescale, r0);
    store(rescale + W, r1);
}

static void scale_columns(float *x, int64_t n, const float *factor) {
    v f0 = load(factor), f1 = load(factor + W);
    for (int64_t j = 0; j < n; j++) {
        store(x + j * L, load(x + j * L) * f0);
        store(x + j * L + W, load(x + j * L + W) * f1);
    }
}

static void sum_columns(const float *x, int64_t n, float *total) {
    v t0 = splat(0), t1 = t0;
    for (int64_t start = 0; start < n; start += 64) {
        int64_t end = start + 64 < n ? start + 64 : n;
        v c0 = splat(0), c1 = c0;
        for (int64_t j = start; j < end; j++) {
            c0 += load(x + j * L);
            c1 += load(x + j * L + W);
        }
        t0 += c0;
        t1 += c1;
    }
    store(total, t0);
    store(total + W, t1);
}

// P[j] of the vector at `lane`.
INLINE v group_sum(const float *e, int64_t stride, int64_t G, const float *inverse, int64_t j,
                   int lane) {
    v p = splat(0);
    for (int64_t g = 0; g < G; g++)
        p += load(e + (g * stride + j) * L + lane) * load(inverse + g * L + lane);
    return p;
}

static void align_columns(const float *e, int64_t stride, int64_t G, const float *inverse,
                          int64_t n, int64_t rho, bool mean, int64_t pooled, int64_t n_out,
                          float *out) {
    if (pooled > n_out) pooled = n_out;
    for (int lane = 0; lane < L; lane += W) {
        // The cell a*rho - 1 ends window a-1 and begins window a: it is computed once.
        v shared = splat(0);
        int64_t a = 0;
        for (; a < pooled; a++) {
            int64_t from = rho == 1 ? a : a * rho, to = rho == 1 ? a + 1 : a * rho + rho;
            if (from >= n && (rho == 1 || from - 1 >= n)) break;
            v best = rho == 1 ? splat(0) : shared; // probabilities are >= 0
            for (int64_t j = from; j < to && j < n; j++) {
                shared = group_sum(e, stride, G, inverse, j, lane);
                best = mean ? best + shared : max2(best, shared);
            }
            if (to > n) shared = splat(0); // cell a*rho+rho-1 does not exist
            if (mean && rho > 1) best /= splat((float)(rho + 1));
            store(out + a * L + lane, best);
        }
        for (; a < n_out; a++) store(out + a * L + lane, splat(0));
    }
}

// ---- rows ---------------------------------------------------------------------------------------

static float softmax_row(float *x, int64_t n) {
    v mv = splat(-INFINITY);
    int64_t i = 0;
    for (; i + W <= n; i += W) mv = max2(mv, load(x + i));
    float m = -INFINITY;
    for (int l = 0; l < W; l++)
        if (mv[l] > m) m = mv[l];
    for (int64_t t = i; t < n; t++)
        if (x[t] > m) m = x[t];
    if (m == -INFINITY) m = 0;
    v sv = splat(0);
    for (i = 0; i + W <= n; i += W) {
        v e = exp_of_negative(load(x + i) - m);
        store(x + i, e);
        sv += e;
    }
    if (i < n) {
        float rest[W];
        for (int l = 0; l < W; l++) rest[l] = i + l < n ? x[i + l] : -INFINITY;
        v e = exp_of_negative(load(rest) - m);
        store(rest, e);
        for (int l = 0; i + l < n; l++) x[i + l] = rest[l];
        sv += e;
    }
    return horizontal_sum(sv);
}

static void exp_array(const float *x, float *y, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(y + i, exp_of(load(x + i)));
    if (i < n) {
        float rest[W] = {0};
        memcpy(rest, x + i, (size_t)(n - i) * sizeof(float));
        store(rest, exp_of(load(rest)));
        memcpy(y + i, rest, (size_t)(n - i) * sizeof(float));
    }
}

static float sum_row(const float *x, int64_t n) {
    v t = splat(0);
    int64_t i = 0;
    while (i + W <= n) {
        v c = splat(0);
        for (int64_t end = i + 64 * W; i + W <= n && i < end; i += W) c += load(x + i);
        t += c;
    }
    float s = horizontal_sum(t);
    for (; i < n; i++) s += x[i];
    return s;
}

static double sum_squares_row(const float *x, int64_t n) {
    double s[W] = {0};
    int64_t i = 0;
    for (; i + W <= n; i += W)
        for (int l = 0; l < W; l++) s[l] += (double)x[i + l] * x[i + l];
    for (int l = 1; l < W; l++) s[0] += s[l];
    for (; i < n; i++) s[0] += (double)x[i] * x[i];
    return s[0];
}

INLINE v swiglu_of(v gate, v up) {
    return gate / (1.0f + exp_of(-gate)) * up;
}

static void swiglu(const float *gate, const float *up, float *out, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(out + i, swiglu_of(load(gate + i), load(up + i)));
    if (i < n) {
        float g[W] = {0}, u[W] = {0};
        memcpy(g, gate + i, (size_t)(n - i) * sizeof(float));
        memcpy(u, up + i, (size_t)(n - i) * sizeof(float));
        store(g, swiglu_of(load(g), load(u)));
        memcpy(out + i, g, (size_t)(n - i) * sizeof(float));
    }
}

const sp_vector SP_VECTOR = {
    .isa = SP_ISA,
    .width = W,
    .lanes = L,
    .gemm = gemm,
    .softmax_columns = softmax_columns,
    .online_columns = online_columns,
    .scale_columns = scale_columns,
    .sum_columns = sum_columns,
    .align_columns = align_columns,
    .softmax_row = softmax_row,
    .exp = exp_array,
    .sum = sum_row,
    .sum_squares = sum_squares_row,
    .swiglu = swiglu,
};
