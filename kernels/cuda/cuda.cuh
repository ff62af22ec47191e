// Inside of the CUDA backend: its state, error macros, small device helpers.
//
// One stream per backend: operations run in the order of their calls, only downloads and sums wait.
// Scratch belongs to the backend, grows to the largest need and is never used across two calls.
#pragma once

extern "C" {
#include "common/build.h"
#include "common/util.h"
#include "kernels/backend.h"
}

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 bf16;

typedef CUresult (*sp_encode_map)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                  const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                  const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

struct sp_matmul_plan; // linear.cu
struct sp_cuda_comm;   // collective.cu

struct sp_cuda {
    sp_backend base;
    int device, sms;
    int64_t shared_most; // bytes of dynamic shared memory that a thread block may have
    bool hopper;         // launch the kernels that need sm_90a
    cudaStream_t stream;
    cublasLtHandle_t lt;
    sp_matmul_plan *plans; // most recently used first
    void *lt_workspace;
    void *scratch; // sp_cuda_scratch
    int64_t scratch_bytes;
    double *sums;        // partial results of reductions, device
    double *host_sums;   // pinned
    int *flag;           // device: token ids out of range and the like
    uint8_t *staging[2]; // pinned, for transfers
    cudaEvent_t staged[2];
    sp_encode_map encode_map;
    sp_cuda_comm *comm; // NULL: alone, or not joined
};

static inline sp_cuda *sp_cuda_of(sp_tensor t) {
    return (sp_cuda *)t.backend;
}

#define CUDA_TRY(expr)                                                                             \
    do {                                                                                           \
        cudaError_t cuda_try_ = (expr);                                                            \
        if (cuda_try_ != cudaSuccess)                                                              \
            return sp_error(SP_ENVIRONMENT, "CUDA: %s failed: %s", #expr,                          \
                            cudaGetErrorString(cuda_try_));                                        \
    } while (0)

// After a launch: the kernel's name and the shapes it was given.
#define LAUNCHED(name, fmt, ...)                                                                   \
    do {                                                                                           \
        cudaError_t launched_ = cudaGetLastError();                                                \
        if (launched_ != cudaSuccess)                                                              \
            return sp_error(SP_ENVIRONMENT, "CUDA: launch of " name " (" fmt ") failed: %s",       \
                            __VA_ARGS__, cudaGetErrorString(launched_));                           \
    } while (0)

// Rows of bf16 begin at multiples of 16 bytes, as tensor maps and vector loads want it.
static inline bool sp_cuda_aligned(sp_tensor t) {
    return t.ld % 8 == 0 && (uintptr_t)t.data % 16 == 0;
}

// At least `bytes` of device memory, 256-byte aligned, valid until the next call.
sp_status sp_cuda_scratch(sp_cuda *c, int64_t bytes, const char *what, void **out);
// Runs tensor[T x cols] bf16 as a 2-D tensor map with boxes of 64 columns and `box_rows` rows,
// 128-byte swizzle.
sp_status sp_cuda_map(sp_cuda *c, sp_tensor t, int box_rows, CUtensorMap *out);

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}

// y[M,N] (row-major, bf16 or fp32) = alpha * a[M,K] . b[N,K]^T + beta * y, bf16 inputs.
sp_status sp_cuda_matmul(sp_cuda *c, int64_t M, int64_t N, int64_t K, float alpha, const void *a,
                         int64_t lda, const void *b, int64_t ldb, bool b_is_kn, float beta, void *y,
                         sp_dtype y_type, int64_t ldy);
// g[N,K] fp32 += dy[T,N]^T . x[T,K].
sp_status sp_cuda_matmul_tn(sp_cuda *c, int64_t N, int64_t K, int64_t T, const void *dy,
                            int64_t lddy, const void *x, int64_t ldx, float *g, int64_t ldg);
void sp_cuda_matmul_close(sp_cuda *c);
// GFLOP/s of large products of random bf16 numbers, of two shapes the faster; 0 if there is no
// memory for them.
extern "C" double sp_cuda_matmul_rate(sp_backend *be);

// Whether importance.cu and sparse_attention.cu have kernels for these shapes.
sp_status sp_cuda_importance_supported(sp_heads heads, sp_grid fine, sp_grid deployed);
sp_status sp_cuda_attention_supported(sp_heads heads);
// Rows of so many blocks, or windows with lists of `topk` blocks, fit a multiprocessor.
sp_status sp_cuda_selection_supported(const sp_cuda *c, int64_t blocks);
sp_status sp_cuda_kl_supported(const sp_cuda *c, int64_t windows, int64_t topk, int64_t per_block);

// ---- operations (kernels.h), one file each ----
#define OP extern "C" sp_status
OP sp_cuda_embed(sp_tensor tokens, sp_tensor table, float scale, sp_tensor out);
OP sp_cuda_rmsnorm(sp_tensor x, sp_tensor w, float eps, sp_tensor out);
OP sp_cuda_linear(sp_tensor x, sp_tensor w, sp_tensor out);
OP sp_cuda_rope(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                bool transpose);
OP sp_cuda_residual_add(sp_tensor h, sp_tensor branch, float factor);
OP sp_cuda_swiglu(sp_tensor gate_up, sp_tensor out);
OP sp_cuda_cis(sp_heads heads, sp_tensor v, sp_tensor delta, sp_tensor scale, sp_tensor out);
OP sp_cuda_dense_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                           sp_tensor bias, sp_tensor out);
// The same by our own kernels.
sp_status sp_cuda_attend_all(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                             sp_tensor bias, sp_tensor out);
OP sp_cuda_sparse_attention(sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                            sp_tensor bias, sp_tensor lists, int64_t block, sp_tensor out);
OP sp_cuda_compress_keys(sp_tensor k, sp_grid g, int64_t j0, sp_tensor out);
OP sp_cuda_importance(const sp_importance_args *a, sp_tensor q, int64_t i0, sp_tensor c,
                      sp_tensor out);
OP sp_cuda_forecast_scores(sp_heads heads, sp_grid g, sp_visibility v, sp_tensor f, int64_t i0,
                           sp_tensor c, sp_tensor out);
OP sp_cuda_block_scores(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                        int64_t i0, int64_t nb, sp_tensor out);
OP sp_cuda_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                         int64_t i0, int64_t nb, sp_tensor lists);
OP sp_cuda_cis_blocks(sp_tensor cis, sp_grid deployed, int64_t block, sp_tensor scores,
                      sp_tensor order);
OP sp_cuda_extend_lists(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                        sp_tensor order, sp_tensor lists);
OP sp_cuda_forecast_lists(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                          sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists);
OP sp_cuda_kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor c, sp_tensor a,
              sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
              const sp_tensor *dz);
OP sp_cuda_grad_weight(sp_tensor dy, sp_tensor x, sp_tensor g);
OP sp_cuda_scale(sp_tensor x, float factor);
OP sp_cuda_sum(sp_tensor x, double *out);
OP sp_cuda_sum_squares(sp_tensor x, double *out);
OP sp_cuda_adamw(const sp_adamw_args *p, sp_tensor w, sp_tensor m, sp_tensor v, sp_tensor g);

OP sp_cuda_comm_id(sp_backend *be, char id[SP_COMM_ID_BYTES]);
OP sp_cuda_comm_join(sp_backend *be, const char id[SP_COMM_ID_BYTES], int rank, int size,
                     double deadline_s);
OP sp_cuda_all_reduce(sp_tensor t);
extern "C" void sp_cuda_comm_leave(sp_backend *be, bool abandon);

// ---- device helpers ----
__device__ __forceinline__ float round_bf16(float x) {
    return __bfloat162float(__float2bfloat16(x));
}

// Eight bf16 as one 16-byte access.
struct bf16x8 {
    uint4 raw;
    __device__ __forceinline__ void unpack(float (&f)[8]) const {
        const uint32_t u[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[2 * i] = __uint_as_float(u[i] << 16);
            f[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
    }
    __device__ __forceinline__ void pack(const float (&f)[8]) {
        uint32_t u[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __nv_bfloat162 b = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
            u[i] = *reinterpret_cast<uint32_t *>(&b);
        }
        raw = make_uint4(u[0], u[1], u[2], u[3]);
    }
};

// Sum (or maximum) over a block of up to 1024 threads; every thread gets the result. `shared` has
// 32 elements and may be used again after the call.
template <class T, class Join>
__device__ __forceinline__ T block_join(T v, T *shared, T none, Join join) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) / 32;
#pragma unroll
    for (int m = 16; m; m /= 2) v = join(v, __shfl_xor_sync(~0u, v, m));
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = lane < warps ? shared[lane] : none;
#pragma unroll
    for (int m = 16; m; m /= 2) v = join(v, __shfl_xor_sync(~0u, v, m));
    __syncthreads();
    return v;
}
template <class T> __device__ __forceinline__ T block_sum(T v, T *shared) {
    return block_join(v, shared, (T)0, [](T a, T b) { return a + b; });
}
template <class T> __device__ __forceinline__ T block_max(T v, T *shared) {
    return block_join(v, shared, (T)-INFINITY, [](T a, T b) { return a > b ? a : b; });
}

// Number of windows of a grid visible from position i (kernels.h, sp_visible).
__device__ __forceinline__ int64_t visible_windows(int64_t stride, int64_t extent, int64_t i,
                                                   int64_t n) {
    if (i < extent) return 0;
    int64_t v = (i - extent) / stride + 1;
    return v < n ? v : n;
}
static inline int64_t window_extent(sp_grid g, sp_visibility v) {
    return v == SP_SEES_START ? 0 : g.kernel - 1;
}
