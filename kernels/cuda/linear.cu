// Matrix products through cuBLASLt: linear layers, scores, weight gradients.
//
// cuBLASLt is column-major: a row-major [rows, cols] matrix is its [cols, rows] with the same
// leading dimension. Plans (layouts and the chosen algorithm) are kept, of the shapes used last:
// rows of ever other lengths make ever other shapes.
#include "kernels/cuda/cuda.cuh"

#include <algorithm>
#include <time.h>

static const size_t lt_workspace_bytes = 64 << 20;
static const int most_plans = 1024; // a step of 65,536 tokens has some 200 shapes

struct shape {
    int64_t m, n, k, lda, ldb, ldc; // column-major: C[m,n] = op(A) op(B)
    int op_a, op_b, c_type, alignment;
    bool operator==(const shape &o) const {
        return m == o.m && n == o.n && k == o.k && lda == o.lda && ldb == o.ldb && ldc == o.ldc &&
               op_a == o.op_a && op_b == o.op_b && c_type == o.c_type && alignment == o.alignment;
    }
};

struct sp_matmul_plan {
    sp_matmul_plan *next;
    shape key;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

#define LT_TRY(expr)                                                                               \
    do {                                                                                           \
        cublasStatus_t lt_try_ = (expr);                                                           \
        if (lt_try_ != CUBLAS_STATUS_SUCCESS)                                                      \
            return sp_error(SP_ENVIRONMENT,                                                        \
                            "cuBLASLt: %s failed with status %d (m %lld, n %lld, k %lld, ld %lld " \
                            "%lld %lld)",                                                          \
                            #expr, (int)lt_try_, (long long)s.m, (long long)s.n, (long long)s.k,   \
                            (long long)s.lda, (long long)s.ldb, (long long)s.ldc);                 \
    } while (0)

static void free_plan(sp_matmul_plan *p) {
    if (p->op) cublasLtMatmulDescDestroy(p->op);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

void sp_cuda_matmul_close(sp_cuda *c) {
    while (c->plans) {
        sp_matmul_plan *next = c->plans->next;
        free_plan(c->plans);
        c->plans = next;
    }
}

static sp_status fill_plan(sp_cuda *c, sp_matmul_plan *p) {
    const shape &s = p->key;
    cublasOperation_t op_a = (cublasOperation_t)s.op_a, op_b = (cublasOperation_t)s.op_b;
    bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
    LT_TRY(cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_TRY(cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    LT_TRY(cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    LT_TRY(cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, ta ? s.k : s.m, ta ? s.m : s.k, s.lda));
    LT_TRY(cublasLtMatrixLayoutCreate(&p->b, CUDA_R_16BF, tb ? s.n : s.k, tb ? s.k : s.n, s.ldb));
    LT_TRY(cublasLtMatrixLayoutCreate(&p->c, (cudaDataType)s.c_type, s.m, s.n, s.ldc));
    cublasLtMatmulPreference_t pref;
    LT_TRY(cublasLtMatmulPreferenceCreate(&pref));
    uint32_t align = (uint32_t)s.alignment;
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &lt_workspace_bytes, sizeof lt_workspace_bytes);
    for (auto attr :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        cublasLtMatmulPreferenceSetAttribute(pref, attr, &align, sizeof align);
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    cublasStatus_t got =
        cublasLtMatmulAlgoGetHeuristic(c->lt, p->op, p->a, p->b, p->c, p->c, pref, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(pref);
    if (got != CUBLAS_STATUS_SUCCESS || n == 0)
        return sp_error(SP_ENVIRONMENT,
                        "cuBLASLt has no algorithm for m %lld, n %lld, k %lld, ld %lld %lld %lld, "
                        "alignment %d (status %d)",
                        (long long)s.m, (long long)s.n, (long long)s.k, (long long)s.lda,
                        (long long)s.ldb, (long long)s.ldc, s.alignment, (int)got);
    p->algo = found.algo;
    return SP_OK;
}

static sp_status plan_for(sp_cuda *c, const shape &s, sp_matmul_plan **out) {
    int n = 0;
    for (sp_matmul_plan **at = &c->plans; *at; at = &(*at)->next) {
        sp_matmul_plan *p = *at;
        if (p->key == s) {
            *at = p->next;
            p->next = c->plans;
            *out = c->plans = p;
            return SP_OK;
        }
        if (++n < most_plans) continue;
        *at = NULL; // p is the last: others have more recent uses
        free_plan(p);
        break;
    }
    sp_matmul_plan *p;
    SP_TRY(sp_alloc(&p, 1, sizeof *p, "a matrix product plan"));
    p->key = s;
    sp_status st = fill_plan(c, p);
    if (st != SP_OK) {
        free_plan(p);
        return st;
    }
    p->next = c->plans;
    *out = c->plans = p;
    return SP_OK;
}

static int alignment_of(const void *a, const void *b, const void *y) {
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)y;
    int align = 256;
    while (align > 2 && bits % align) align /= 2;
    return align;
}

static sp_status run(sp_cuda *c, const shape &s, float alpha, const void *a, const void *b,
                     float beta, void *y) {
    sp_matmul_plan *p;
    SP_TRY(plan_for(c, s, &p));
    LT_TRY(cublasLtMatmul(c->lt, p->op, &alpha, a, p->a, b, p->b, &beta, y, p->c, y, p->c, &p->algo,
                          c->lt_workspace, lt_workspace_bytes, c->stream));
    return SP_OK;
}

sp_status sp_cuda_matmul(sp_cuda *c, int64_t M, int64_t N, int64_t K, float alpha, const void *a,
                         int64_t lda, const void *b, int64_t ldb, bool b_is_kn, float beta, void *y,
                         sp_dtype y_type, int64_t ldy) {
    // column-major: y^T[N,M] = b[N,K] . a^T[K,M]
    shape s = {N,
               M,
               K,
               ldb,
               lda,
               ldy,
               b_is_kn ? CUBLAS_OP_N : CUBLAS_OP_T,
               CUBLAS_OP_N,
               y_type == SP_F32 ? CUDA_R_32F : CUDA_R_16BF,
               alignment_of(a, b, y)};
    return run(c, s, alpha, b, a, beta, y);
}

sp_status sp_cuda_matmul_tn(sp_cuda *c, int64_t N, int64_t K, int64_t T, const void *dy,
                            int64_t lddy, const void *x, int64_t ldx, float *g, int64_t ldg) {
    // column-major: g^T[K,N] = x^T[K,T] . dy[T,N]
    shape s = {K,   N,           T,           ldx,        lddy,
               ldg, CUBLAS_OP_N, CUBLAS_OP_T, CUDA_R_32F, alignment_of(dy, x, g)};
    return run(c, s, 1, x, dy, 1, g);
}

OP sp_cuda_linear(sp_tensor x, sp_tensor w, sp_tensor out) {
    return sp_cuda_matmul(sp_cuda_of(x), x.rows, w.rows, x.cols, 1, x.data, x.ld, w.data, w.ld,
                          false, 0, out.data, out.dtype, out.ld);
}

OP sp_cuda_grad_weight(sp_tensor dy, sp_tensor x, sp_tensor g) {
    sp_cuda *c = sp_cuda_of(x);
    const void *bytes = dy.data;
    int64_t ld = dy.ld;
    if (dy.dtype != SP_BF16) // an fp32 gradient is rounded: both factors of the product are bf16
        return sp_error(SP_ENVIRONMENT, "broken contract in grad_weight on CUDA: dy is %s",
                        sp_dtype_name(dy.dtype));
    return sp_cuda_matmul_tn(c, dy.cols, x.cols, dy.rows, bytes, ld, x.data, x.ld, (float *)g.data,
                             g.ld);
}

// ---- the ceiling --------------------------------------------------------------------------------

__global__ void random_kernel(bf16 *x, int64_t n, uint32_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u + seed; // random bits matter: zeros run faster
        h = (h ^ (h >> 16)) * 0x85ebca6bu;
        h = (h ^ (h >> 13)) * 0xc2b2ae35u;
        x[i] = __float2bfloat16((float)(h >> 8) * 0x1p-23f - 1);
    }
}

struct MatmulShape {
    int64_t m, n, k;
};
static const MatmulShape ceiling_shapes[] = {{8192, 8192, 8192}, {32768, 8192, 4096}};
static const int64_t ceiling_elements = 32768LL * 4096 + 8192LL * 4096 + 32768LL * 8192;

// GFLOP/s of one shape: the best of seven bursts of about 10 ms with pauses in between, as products
// come in a training step. Without pauses the card's power limit makes them a seventh slower.
static double matmul_rate(sp_cuda *c, bf16 *x, MatmulShape s, cudaEvent_t begin, cudaEvent_t end) {
    const int bursts = 7, each = 6;
    const struct timespec pause = {0, 20000000};
    bf16 *w = x + s.m * s.k, *y = w + s.n * s.k;
    float best = 0;
    for (int i = 0; i < bursts; i++) {
        nanosleep(&pause, NULL);
        cudaEventRecord(begin, c->stream);
        for (int k = 0; k < each; k++)
            if (sp_cuda_matmul(c, s.m, s.n, s.k, 1, x, s.k, w, s.k, false, 0, y, SP_BF16, s.n) !=
                SP_OK)
                return 0;
        cudaEventRecord(end, c->stream);
        float took = 0;
        if (cudaEventSynchronize(end) != cudaSuccess ||
            cudaEventElapsedTime(&took, begin, end) != cudaSuccess)
            return 0;
        if (best == 0 || took < best) best = took;
    }
    return 2e-6 * (double)s.m * (double)s.n * (double)s.k * each / best;
}

extern "C" double sp_cuda_matmul_rate(sp_backend *be) {
    sp_cuda *c = (sp_cuda *)be;
    bf16 *x = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    double rate = 0;
    if (cudaMalloc(&x, (size_t)ceiling_elements * 2) == cudaSuccess &&
        cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess) {
        random_kernel<<<1024, 256, 0, c->stream>>>(x, ceiling_elements, 1);
        for (MatmulShape s : ceiling_shapes)
            rate = std::max(rate, matmul_rate(c, x, s, begin, end));
    }
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    cudaFree(x);
    cudaGetLastError();
    return rate;
}
