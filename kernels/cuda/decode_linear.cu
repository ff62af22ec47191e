// Linear layers for a few rows: the weights are streamed once, at the speed of memory.
//
// A thread block owns 16 rows of weights (the M side of the product) and all of K, cut among its
// warps; rows of x are the N side. Lanes load 16 bytes of a weight row straight into the registers
// of a matrix product: the order of K inside a product is free as long as x is taken in the same.
// The warps' sums meet in shared memory and are added in order, so results repeat to the bit.
#include "kernels/cuda/ampere.cuh"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/decode_linear.cuh"

using namespace decode;

enum { WARPS = 8, CHUNK = 64 }; // CHUNK elements of K a warp takes at once

__device__ __forceinline__ uint4 stream_16(const bf16 *p) { // read once: do not keep in L1
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

struct LinearArgs {
    const bf16 *x, *w0, *w1;
    int64_t x_ld, w0_ld, w1_ld, out_ld, second; // swiglu: rows from gate to up
    int rows, n0, n, k;                         // rows of x; weight rows in w0, in all
    void *out;
    float factor;
};

// NT: groups of 8 rows of x. EPILOGUE: what happens to a result (decode_linear.cuh).
template <int NT, Epilogue E>
__global__ void __launch_bounds__(WARPS * 32, NT <= 2 ? 3 : 1) linear_kernel(LinearArgs a) {
    constexpr int MT = E == SWIGLU ? 2 : 1; // gate and up together
    __shared__ float sums[WARPS][MT][16][NT * 8 + 1];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane % 4;
    int row0 = blockIdx.x * 16;
    const bf16 *w = row0 < a.n0 ? a.w0 + row0 * a.w0_ld : a.w1 + (row0 - a.n0) * a.w1_ld;
    int64_t w_ld = row0 < a.n0 ? a.w0_ld : a.w1_ld;
    w += g * w_ld + t * 8;
    float c[MT][NT][4] = {};
#pragma unroll 2
    for (int k = warp * CHUNK; k < a.k; k += WARPS * CHUNK) {
        uint4 wa[MT][2][2]; // [.][32 of K][rows g, g+8]
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int u = 0; u < 2; u++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    wa[i][u][r] = stream_16(w + (i * a.second + 8 * r) * w_ld + k + 32 * u);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            int row = n * 8 + g;
            const bf16 *x = a.x + row * a.x_ld + k + t * 8;
#pragma unroll
            for (int u = 0; u < 2; u++) {
                uint4 xb = row < a.rows ? *(const uint4 *)(x + 32 * u) : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint4 &lo = wa[i][u][0], &hi = wa[i][u][1];
                    const uint32_t first[4] = {lo.x, hi.x, lo.y, hi.y};
                    const uint32_t second[4] = {lo.z, hi.z, lo.w, hi.w};
                    ampere::mma(c[i][n], first, xb.x, xb.y);
                    ampere::mma(c[i][n], second, xb.z, xb.w);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[warp][i][g + 8 * (e / 2)][n * 8 + 2 * t + e % 2] = c[i][n][e];
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * NT * 8; i += WARPS * 32) {
        int r = i % 16, row = i / 16; // neighbours write neighbouring columns
        if (row >= a.rows) break;
        float y = 0, up = 0;
        for (int v = 0; v < WARPS; v++) y += sums[v][0][r][row];
        if (E == SWIGLU)
            for (int v = 0; v < WARPS; v++) up += sums[v][MT - 1][r][row];
        int64_t at = row * a.out_ld + row0 + r;
        if (E == PLAIN_F32) {
            ((float *)a.out)[at] = y * a.factor;
        } else if (E == PLAIN) {
            ((bf16 *)a.out)[at] = __float2bfloat16(y);
        } else if (E == RESIDUAL) { // residual_add.cu
            bf16 *h = (bf16 *)a.out + at;
            *h = __float2bfloat16(__bfloat162float(*h) + round_bf16(a.factor * round_bf16(y)));
        } else { // swiglu.cu
            float gate = round_bf16(y);
            ((bf16 *)a.out)[at] =
                __float2bfloat16(round_bf16(gate / (1 + __expf(-gate))) * round_bf16(up));
        }
    }
}

template <int NT>
static void launch(sp_cuda *c, Epilogue e, const LinearArgs &a) {
    unsigned grid = (unsigned)(a.n / 16);
    if (e == PLAIN) linear_kernel<NT, PLAIN><<<grid, WARPS * 32, 0, c->stream>>>(a);
    if (e == PLAIN_F32) linear_kernel<NT, PLAIN_F32><<<grid, WARPS * 32, 0, c->stream>>>(a);
    if (e == RESIDUAL) linear_kernel<NT, RESIDUAL><<<grid, WARPS * 32, 0, c->stream>>>(a);
    if (e == SWIGLU) linear_kernel<NT, SWIGLU><<<grid, WARPS * 32, 0, c->stream>>>(a);
}

static bool aligned(sp_tensor t) { return ((uintptr_t)t.data & 15) == 0 && t.ld % 8 == 0; }

// Whether there is a kernel for the shape; else cuBLASLt does it.
bool decode::streams(sp_tensor x, sp_tensor w0, sp_tensor w1, Epilogue e) {
    int64_t unit = e == SWIGLU ? 32 : 16;
    return x.rows <= 32 && x.cols % CHUNK == 0 && w0.rows % unit == 0 &&
           (!w1.data || (w1.rows % 16 == 0 && aligned(w1))) && aligned(x) && aligned(w0);
}

sp_status decode::linear(sp_cuda *c, sp_tensor x, sp_tensor w0, sp_tensor w1, Epilogue e,
                         float factor, sp_tensor out) {
    LinearArgs a = {.x = (const bf16 *)x.data,
                    .w0 = (const bf16 *)w0.data,
                    .w1 = (const bf16 *)w1.data,
                    .x_ld = x.ld,
                    .w0_ld = w0.ld,
                    .w1_ld = w1.ld,
                    .out_ld = out.ld,
                    .second = w0.rows / 2,
                    .rows = (int)x.rows,
                    .n0 = (int)w0.rows,
                    .n = (int)(e == SWIGLU ? w0.rows / 2 : w0.rows + (w1.data ? w1.rows : 0)),
                    .k = (int)x.cols,
                    .out = out.data,
                    .factor = factor};
    if (x.rows <= 8)
        launch<1>(c, e, a);
    else if (x.rows <= 16)
        launch<2>(c, e, a);
    else
        launch<4>(c, e, a);
    LAUNCHED("decode linear", "[%lld, %lld] by %d rows", (long long)x.rows, (long long)x.cols, a.n);
    return SP_OK;
}

static const sp_tensor none = {};

OP sp_decode_linear(sp_decode *d, sp_tensor x, sp_tensor w0, sp_tensor w1, sp_tensor out) {
    Epilogue e = out.dtype == SP_F32 ? PLAIN_F32 : PLAIN;
    if (streams(x, w0, w1, e)) return linear(d->c, x, w0, w1, e, 1, out);
    SP_TRY(sp_linear(x, w0, sp_tensor_cols(out, 0, w0.rows)));
    return w1.data ? sp_linear(x, w1, sp_tensor_cols(out, w0.rows, w1.rows)) : SP_OK;
}

OP sp_decode_linear_residual(sp_decode *d, sp_tensor x, sp_tensor w, float factor, sp_tensor branch,
                             sp_tensor h) {
    if (streams(x, w, none, RESIDUAL)) return linear(d->c, x, w, none, RESIDUAL, factor, h);
    SP_TRY(sp_linear(x, w, branch));
    return sp_residual_add(h, branch, factor);
}

OP sp_decode_linear_swiglu(sp_decode *d, sp_tensor x, sp_tensor gate_up, sp_tensor both,
                           sp_tensor out) {
    if (streams(x, gate_up, none, SWIGLU)) return linear(d->c, x, gate_up, none, SWIGLU, 1, out);
    SP_TRY(sp_linear(x, gate_up, both));
    return sp_swiglu(both, out);
}
