// Linear layers for a few rows: the weights are streamed once, at the speed of memory.
//
// A thread block stays on its multiprocessor and takes tiles of 16 * MT rows of weights (the M side
// of the product) in turn; rows of x are the N side. K is cut among the warps, 64 at a time. Each
// warp loads its own pieces of weights and of x, STAGES deep, across the borders of tiles, so that
// loads never stop; at the end of a tile the warps' sums meet in shared memory and are added in
// order: results repeat to the bit.
//
// Weights depend on nothing: a block begins to load them while the kernel before it still runs
// (programmatic dependent launch), and waits for that kernel only before it touches x.
#include "kernels/cuda/ampere.cuh"
#include "kernels/cuda/decode.cuh"

using namespace decode;

enum Epilogue {
    PLAIN,     // bf16
    PLAIN_F32, // times `factor`
    RESIDUAL,  // out += factor * result
    SWIGLU,    // w0 is gate | up, out = silu(gate) * up
};

enum { WARPS = 8, CHUNK = 64, TILE_ROWS = 16 }; // CHUNK elements of K a warp takes at once

struct LinearArgs {
    const bf16 *x, *w0, *w1;
    int64_t x_ld, w0_ld, w1_ld, out_ld, second; // swiglu: rows from gate to up
    int rows, n0, n, k, tiles;                  // rows of x; weight rows in w0, in all
    void *out;
    float factor;
};

// NT: groups of 8 rows of x. MT: tiles of 16 weight rows at once.
template <int NT, int MT> struct Shared {
    static constexpr int STAGES = NT == 4 ? 3 : 4;
    struct Stage {
        bf16 w[MT][TILE_ROWS * CHUNK], x[NT * 8 * CHUNK];
    } stage[WARPS][STAGES];
    float sums[WARPS][MT][TILE_ROWS][NT * 8 + 1];
};

template <int NT, int MT, Epilogue E>
__global__ void __launch_bounds__(WARPS * 32) linear_kernel(LinearArgs a) {
    extern __shared__ __align__(128) uint8_t raw[];
    using S = Shared<NT, MT>;
    constexpr int STAGES = S::STAGES, RESULTS = E == SWIGLU ? TILE_ROWS : MT * TILE_ROWS;
    S &s = *(S *)raw;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int each = (a.k / CHUNK - warp + WARPS - 1) / WARPS; // chunks of a tile for this warp
    int mine = (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * each;

    // Chunk j of all that this warp will see, its weights and its part of x.
    auto load_weights = [&](int j) {
        if (j >= mine) return;
        int tile = blockIdx.x + j / each * gridDim.x, k = (warp + j % each * WARPS) * CHUNK;
        auto &to = s.stage[warp][j % STAGES];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            int64_t row0 = E == SWIGLU ? (int64_t)tile * TILE_ROWS + i * a.second
                                       : ((int64_t)tile * MT + i) * TILE_ROWS;
            if (row0 >= a.n && E != SWIGLU) break; // a last, odd tile
            const bf16 *w = row0 < a.n0 ? a.w0 + row0 * a.w0_ld : a.w1 + (row0 - a.n0) * a.w1_ld;
            int64_t ld = row0 < a.n0 ? a.w0_ld : a.w1_ld;
#pragma unroll
            for (int y = 0; y < 4; y++) { // 8 lanes a row: whole lines of memory
                int r = y * 4 + lane / 8, c = lane % 8;
                ampere::copy_16(ampere::chunk_at<CHUNK>(to.w[i], r, c), w + r * ld + k + c * 8,
                                true);
            }
        }
    };
    auto load_x = [&](int j) {
        if (j >= mine) return;
        int k = (warp + j % each * WARPS) * CHUNK;
        auto &to = s.stage[warp][j % STAGES];
#pragma unroll
        for (int y = 0; y < NT * 2; y++) {
            int r = y * 4 + lane / 8, c = lane % 8;
            bool valid = r < a.rows;
            ampere::copy_16(ampere::chunk_at<CHUNK>(to.x, r, c),
                            a.x + (valid ? r : 0) * a.x_ld + k + c * 8, valid);
        }
    };

    next_may_start();
#pragma unroll
    for (int j = 0; j < STAGES - 1; j++) load_weights(j);
    wait_for_previous();
#pragma unroll
    for (int j = 0; j < STAGES - 1; j++) {
        load_x(j);
        ampere::copy_commit();
    }
    for (int j = 0, tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        float c[MT][NT * 4] = {};
        for (int i = 0; i < each; i++, j++) {
            ampere::copy_wait<STAGES - 2>();
            __syncwarp(); // the stage filled next was read by all lanes
            load_weights(j + STAGES - 1);
            load_x(j + STAGES - 1);
            ampere::copy_commit();
            auto &from = s.stage[warp][j % STAGES];
            uint32_t b[4];
#pragma unroll
            for (int step = 0; step < CHUNK / 16; step++) {
                if (NT == 1 && step % 2 == 0) // one group of 8: two steps at once
                    ampere::load_fragments(
                        b, ampere::chunk_at<CHUNK>(from.x, lane % 8, 2 * step + lane / 8));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    uint32_t w[4];
                    ampere::left_fragment<CHUNK>(w, from.w[m], 0, step);
                    if constexpr (NT == 1)
                        ampere::mma(c[m], w, b[step % 2 * 2], b[step % 2 * 2 + 1]);
                    else
                        ampere::times_keys<CHUNK, NT * 8>(c[m], w, from.x, step);
                }
            }
        }
        int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s.sums[warp][m][g + 8 * (e / 2)][n * 8 + 2 * t + e % 2] = c[m][n * 4 + e];
        __syncthreads();
        for (int i = threadIdx.x; i < RESULTS * a.rows; i += WARPS * 32) {
            int r = i % RESULTS, row = i / RESULTS; // neighbours write neighbouring columns
            int m = E == SWIGLU ? 0 : r / TILE_ROWS, x = tile * RESULTS + r;
            if (x >= a.n) continue;
            float y = 0, up = 0;
            for (int v = 0; v < WARPS; v++) y += s.sums[v][m][r % TILE_ROWS][row];
            if (E == SWIGLU)
                for (int v = 0; v < WARPS; v++) up += s.sums[v][MT - 1][r][row];
            int64_t at = row * a.out_ld + x;
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
        __syncthreads();
    }
    ampere::copy_wait<0>();
}

template <int NT, int MT, Epilogue E> static sp_status launch(sp_cuda *c, int sms, LinearArgs a) {
    auto kernel = linear_kernel<NT, MT, E>;
    size_t shared = sizeof(Shared<NT, MT>);
    CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    int per_sm = shared <= 110 << 10 ? 2 : 1;
    a.tiles = (int)ceil_div(a.n, E == SWIGLU ? TILE_ROWS : MT * TILE_ROWS);
    CUDA_TRY(launch_chained(c, kernel, dim3((unsigned)std::min(a.tiles, per_sm * sms)),
                            dim3(WARPS * 32), shared, a));
    LAUNCHED("decode linear", "%d rows, %d by %d", a.rows, a.n, a.k);
    return SP_OK;
}

// Two tiles share a read of x; with few rows of x that is not worth the shared memory.
template <Epilogue E> static sp_status launch_rows(sp_cuda *c, int sms, const LinearArgs &a) {
    if (a.rows > 16) return launch<4, 2, E>(c, sms, a);
    if (a.rows > 8) return launch<2, 2, E>(c, sms, a);
    constexpr int FEW = E == SWIGLU ? 2 : 1; // gate and up are two tiles
    return a.rows > 4 ? launch<1, 2, E>(c, sms, a) : launch<1, FEW, E>(c, sms, a);
}

static bool aligned(sp_tensor t) {
    return ((uintptr_t)t.data & 15) == 0 && t.ld % 8 == 0;
}

// Whether there is a kernel for the shape; else cuBLASLt does it.
static bool streams(sp_tensor x, sp_tensor w0, sp_tensor w1, Epilogue e) {
    int64_t unit = e == SWIGLU ? 32 : 16;
    return x.rows <= 32 && x.cols % CHUNK == 0 && w0.rows % unit == 0 &&
           (!w1.data || (w1.rows % 16 == 0 && aligned(w1))) && aligned(x) && aligned(w0);
}

static sp_status linear(const sp_decode *d, sp_tensor x, sp_tensor w0, sp_tensor w1, Epilogue e,
                        float factor, sp_tensor out) {
    sp_cuda *c = d->c;
    int sms = std::max(1, c->sms - transfer_multiprocessors(d));
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
    switch (e) {
    case PLAIN:
        return launch_rows<PLAIN>(c, sms, a);
    case PLAIN_F32:
        return launch_rows<PLAIN_F32>(c, sms, a);
    case RESIDUAL:
        return launch_rows<RESIDUAL>(c, sms, a);
    default:
        return launch_rows<SWIGLU>(c, sms, a);
    }
}

static const sp_tensor none = {};

OP sp_decode_linear(sp_decode *d, sp_tensor x, sp_tensor w0, sp_tensor w1, sp_tensor out) {
    Epilogue e = out.dtype == SP_F32 ? PLAIN_F32 : PLAIN;
    if (streams(x, w0, w1, e)) return linear(d, x, w0, w1, e, 1, out);
    SP_TRY(sp_linear(x, w0, sp_tensor_cols(out, 0, w0.rows)));
    return w1.data ? sp_linear(x, w1, sp_tensor_cols(out, w0.rows, w1.rows)) : SP_OK;
}

OP sp_decode_linear_residual(sp_decode *d, sp_tensor x, sp_tensor w, float factor, sp_tensor branch,
                             sp_tensor h) {
    if (streams(x, w, none, RESIDUAL)) return linear(d, x, w, none, RESIDUAL, factor, h);
    SP_TRY(sp_linear(x, w, branch));
    return sp_residual_add(h, branch, factor);
}

OP sp_decode_linear_swiglu(sp_decode *d, sp_tensor x, sp_tensor gate_up, sp_tensor both,
                           sp_tensor out) {
    if (streams(x, gate_up, none, SWIGLU)) return linear(d, x, gate_up, none, SWIGLU, 1, out);
    SP_TRY(sp_linear(x, gate_up, both));
    return sp_swiglu(both, out);
}
