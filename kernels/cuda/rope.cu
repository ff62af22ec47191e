// Rotary embedding in place, half-split convention: rotated in fp32, rounded once
// (training.md 1.5). Works on bf16 and fp32 rows.
#include "kernels/cuda/cuda.cuh"

template <class T> __device__ __forceinline__ float get(const T &v) {
    return (float)v;
}

template <class T>
__global__ void rope_kernel(T *x, int64_t ld, int64_t rows, int64_t heads, int half,
                            const float *cos, const float *sin, int64_t table_ld, int64_t pos0,
                            float sign) {
    int64_t n = rows * heads * half;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int m = (int)(i % half);
        int64_t h = i / half % heads, r = i / half / heads;
        T *u = x + r * ld + h * 2 * half + m;
        float c = cos[(pos0 + r) * table_ld + m], s = sign * sin[(pos0 + r) * table_ld + m];
        float a = get(u[0]), b = get(u[half]);
        u[0] = (T)(a * c - b * s);
        u[half] = (T)(b * c + a * s);
    }
}

// Eight frequencies at once: 16-byte accesses.
__global__ void rope_kernel_x8(bf16 *x, int64_t ld, int64_t rows, int64_t heads, int half,
                               const float *cos, const float *sin, int64_t table_ld, int64_t pos0,
                               float sign) {
    int eighths = half / 8;
    int64_t n = rows * heads * eighths;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int m = (int)(i % eighths) * 8;
        int64_t h = i / eighths % heads, r = i / eighths / heads;
        bf16 *u = x + r * ld + h * 2 * half + m;
        bf16x8 lo = {*(uint4 *)u}, hi = {*(uint4 *)(u + half)};
        float a[8], b[8], c[8], s[8];
        lo.unpack(a);
        hi.unpack(b);
        const float4 *ct = (const float4 *)(cos + (pos0 + r) * table_ld + m);
        const float4 *st = (const float4 *)(sin + (pos0 + r) * table_ld + m);
        *(float4 *)c = ct[0], *(float4 *)(c + 4) = ct[1];
        *(float4 *)s = st[0], *(float4 *)(s + 4) = st[1];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float p = a[e], q = b[e], t = sign * s[e];
            a[e] = p * c[e] - q * t;
            b[e] = q * c[e] + p * t;
        }
        lo.pack(a);
        hi.pack(b);
        *(uint4 *)u = lo.raw;
        *(uint4 *)(u + half) = hi.raw;
    }
}

OP sp_cuda_rope(sp_tensor x, sp_tensor cos, sp_tensor sin, int64_t pos0, int64_t head_dim,
                bool transpose) {
    sp_cuda *c = sp_cuda_of(x);
    int half = (int)(head_dim / 2);
    int64_t heads = x.cols / head_dim;
    float sign = transpose ? -1.f : 1.f;
    const float *ct = (const float *)cos.data, *st = (const float *)sin.data;
    bool vector = x.dtype == SP_BF16 && half % 8 == 0 && x.ld % 8 == 0 && cos.ld % 4 == 0 &&
                  sin.ld == cos.ld &&
                  (((uintptr_t)x.data | (uintptr_t)ct | (uintptr_t)st) & 15) == 0;
    if (sin.ld != cos.ld)
        return sp_error(SP_ENVIRONMENT, "broken contract in rope: tables of different strides");
    int64_t n = x.rows * heads * half / (vector ? 8 : 1);
    unsigned grid = (unsigned)(ceil_div(n, 256) < 132 * 64 ? ceil_div(n, 256) : 132 * 64);
    if (vector)
        rope_kernel_x8<<<grid, 256, 0, c->stream>>>((bf16 *)x.data, x.ld, x.rows, heads, half, ct,
                                                    st, cos.ld, pos0, sign);
    else if (x.dtype == SP_BF16)
        rope_kernel<<<grid, 256, 0, c->stream>>>((bf16 *)x.data, x.ld, x.rows, heads, half, ct, st,
                                                 cos.ld, pos0, sign);
    else
        rope_kernel<<<grid, 256, 0, c->stream>>>((float *)x.data, x.ld, x.rows, heads, half, ct, st,
                                                 cos.ld, pos0, sign);
    LAUNCHED("rope", "[%lld, %lld] heads of %lld", (long long)x.rows, (long long)x.cols,
             (long long)head_dim);
    return SP_OK;
}
