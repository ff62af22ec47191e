// Attention over keys of chosen blocks, for any shape: the portable kernel behind
// dense_attention.cu and, where the Hopper kernel does not apply, sparse_attention.cu.
//
// One thread block per (row, KV head) handles the G query heads of the group. Keys come in chunks
// of 128: each thread one key's G logits, an online softmax per head, then each thread some value
// columns. fp32 throughout; the result is rounded once.
#pragma once

#include "kernels/cuda/cuda.cuh"

namespace attention {

enum { THREADS = 128, MAX_GROUP = 16, MAX_DIM = 256 };

// lists NULL: every block up to the query's own; bias NULL: none.
template <int GROUP>
__global__ void __launch_bounds__(THREADS)
    kernel(int group, int d, float scale, const bf16 *q, int64_t q_ld, int64_t q0, const bf16 *k,
           int64_t k_ld, const bf16 *v, int64_t v_ld, const float *bias, int64_t bias_ld,
           const int32_t *lists, int64_t lists_ld, int list_length, int64_t block, bf16 *out,
           int64_t out_ld) {
    __shared__ float logits[GROUP][THREADS], query[GROUP][MAX_DIM];
    __shared__ float top[GROUP], total[GROUP], rescale[GROUP];
    int64_t r = blockIdx.x, h = blockIdx.y, i = q0 + r;
    const bf16 *qr = q + r * q_ld + h * group * d;
    for (int x = threadIdx.x; x < GROUP * d; x += THREADS)
        query[x / d][x % d] = x / d < group ? __bfloat162float(qr[x]) * scale : 0;
    if (threadIdx.x < GROUP) top[threadIdx.x] = -INFINITY, total[threadIdx.x] = 0;
    float acc[GROUP][MAX_DIM / THREADS] = {};
    __syncthreads();

    const int32_t *list = lists ? lists + r * lists_ld + h * list_length : NULL;
    int64_t candidates = lists ? list_length * block : i + 1;
    for (int64_t c0 = 0; c0 < candidates; c0 += THREADS) {
        int64_t c = c0 + threadIdx.x, j = c;
        if (lists) {
            int64_t b = c < candidates ? list[c / block] : -1;
            j = b < 0 ? -1 : b * block + c % block;
        }
        bool visible = c < candidates && j >= 0 && j <= i;
        const bf16 *kr = k + (visible ? j : 0) * k_ld + h * d;
        float z[GROUP] = {};
        if (visible)
            for (int x = 0; x < d; x++) {
                float key = __bfloat162float(kr[x]);
#pragma unroll
                for (int a = 0; a < GROUP; a++) z[a] += query[a][x] * key;
            }
        float of_key = bias && visible ? bias[h * bias_ld + j] : 0;
#pragma unroll
        for (int a = 0; a < GROUP; a++)
            logits[a][threadIdx.x] = visible ? z[a] + of_key : -INFINITY;
        __syncthreads();
        for (int a = threadIdx.x / 32; a < group; a += THREADS / 32) { // a warp per head
            float m = -INFINITY;
            for (int x = threadIdx.x % 32; x < THREADS; x += 32) m = fmaxf(m, logits[a][x]);
#pragma unroll
            for (int s = 16; s; s /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, s));
            float now = fmaxf(top[a], m), sum = 0;
            for (int x = threadIdx.x % 32; x < THREADS; x += 32) {
                float p = now == -INFINITY ? 0 : __expf(logits[a][x] - now);
                logits[a][x] = p;
                sum += p;
            }
#pragma unroll
            for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                float f = now == -INFINITY ? 1 : __expf(top[a] - now);
                rescale[a] = f;
                total[a] = total[a] * f + sum;
                top[a] = now;
            }
        }
        __syncthreads();
#pragma unroll
        for (int part = 0; part < MAX_DIM / THREADS; part++) {
            int x = part * THREADS + threadIdx.x;
            if (x >= d) break;
#pragma unroll
            for (int a = 0; a < GROUP; a++)
                if (a < group) acc[a][part] *= rescale[a];
            for (int y = 0; y < THREADS; y++) {
                int64_t cy = c0 + y, jy = cy;
                if (cy >= candidates) break;
                if (lists) {
                    int64_t b = list[cy / block];
                    if (b < 0) continue;
                    jy = b * block + cy % block;
                }
                if (jy > i) continue;
                float value = __bfloat162float(v[jy * v_ld + h * d + x]);
#pragma unroll
                for (int a = 0; a < GROUP; a++)
                    if (a < group) acc[a][part] += logits[a][y] * value;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int part = 0; part < MAX_DIM / THREADS; part++) {
        int x = part * THREADS + threadIdx.x;
        if (x >= d) break;
#pragma unroll
        for (int a = 0; a < GROUP; a++)
            if (a < group)
                out[r * out_ld + (h * group + a) * d + x] =
                    __float2bfloat16(total[a] > 0 ? acc[a][part] / total[a] : 0.f);
    }
}

inline sp_status run(sp_cuda *c, sp_heads heads, sp_tensor q, int64_t q0, sp_tensor k, sp_tensor v,
                     sp_tensor bias, const sp_tensor *lists, int64_t block, sp_tensor out) {
    SP_TRY(sp_cuda_attention_supported(heads));
    int group = (int)(heads.q_heads / heads.kv_heads), d = (int)heads.head_dim;
    auto launch = group <= 1   ? kernel<1>
                  : group <= 4 ? kernel<4>
                  : group <= 8 ? kernel<8>
                               : kernel<16>;
    launch<<<dim3((unsigned)q.rows, (unsigned)heads.kv_heads), THREADS, 0, c->stream>>>(
        group, d, (float)(1 / sqrt((double)d)), (const bf16 *)q.data, q.ld, q0,
        (const bf16 *)k.data, k.ld, (const bf16 *)v.data, v.ld, (const float *)bias.data, bias.ld,
        lists ? (const int32_t *)lists->data : NULL, lists ? lists->ld : 0,
        lists ? (int)(lists->cols / heads.kv_heads) : 0, block, (bf16 *)out.data, out.ld);
    LAUNCHED("attention", "%lld rows, %lld/%lld heads of %d", (long long)q.rows,
             (long long)heads.q_heads, (long long)heads.kv_heads, d);
    return SP_OK;
}

} // namespace attention
