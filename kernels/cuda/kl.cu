// Top-k-plus-remainder KL of a tile of rows and its gradient (training.md 7).
//
// Three steps: logits z = F C^T per KV head into scratch (only windows some row of the tile sees),
// one thread block per (row, head) for probabilities, loss and dz, then dF = scale * dz C.
// Remainders are summed directly over the cells outside S (never by subtraction); probabilities,
// sums and logarithms are fp32; dz is rounded to bf16 for the last product.
//
// Legend: S support (cells of valid blocks), x student and t teacher entries, e floor.
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/tensor_core.cuh"

using tensor_core::exp2_fast;

enum { THREADS = 128, AT_ONCE = 4 }; // cells whose loads a thread issues together

struct KlRule {
    int64_t stride, block, i0;
    int n_d, per_block, init, local, topk;
    float scale, weight;
    bool ideal;
};

#define FLOOR_E 1e-8f

// Words of the bits of S, one a cell, with room for whole rounds of the thread block.
__host__ __device__ constexpr int support_words(int n_d) {
    return (n_d + AT_ONCE * THREADS - 1) / (AT_ONCE * THREADS) * (AT_ONCE * THREADS / 32);
}

// Sums of N values over the thread block at once; every thread gets them. `shared` may be used
// again.
template <int N> __device__ __forceinline__ void sum_all(float (&v)[N], float (&shared)[4][N]) {
    static_assert(THREADS == 4 * 32);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int m = 16; m; m /= 2) v[n] += __shfl_xor_sync(~0u, v[n], m);
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int n = 0; n < N; n++) shared[threadIdx.x / 32][n] = v[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++)
        v[n] = (shared[0][n] + shared[1][n]) + (shared[2][n] + shared[3][n]);
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS)
    kl_kernel(KlRule k, const float *__restrict__ z, bf16 *__restrict__ dz, int64_t z_ld,
              int64_t z_head, int columns, const float *__restrict__ a, int64_t a_ld,
              const int32_t *lists, int64_t lists_ld, float *row_loss, int64_t loss_ld,
              float *p_out, int64_t p_ld, float *dz_out, int64_t dz_ld) {
    extern __shared__ uint32_t bits[];                      // [support_words(n_d)]
    int *of_support = (int *)(bits + support_words(k.n_d)); // [topk * per_block], -1: none
    __shared__ float shared[32], sums[4][4], pairs[4][2];
    int64_t r = blockIdx.x, h = blockIdx.y, i = k.i0 + r;
    int qb = (int)(i / k.block), visible = (int)visible_windows(k.stride, 0, i, k.n_d);
    const int32_t *list = lists + r * lists_ld + h * k.topk;
    const float *zr = z + h * z_head + r * z_ld, *ar = a + r * a_ld + h * k.n_d;
    bf16 *dzr = dz + h * z_head + r * z_ld;
    float *pr = p_out ? p_out + r * p_ld + h * k.n_d : NULL;
    float *dr = dz_out ? dz_out + r * dz_ld + h * k.n_d : NULL;

    for (int w = threadIdx.x; w < support_words(k.n_d); w += THREADS) bits[w] = 0;
    __syncthreads();
    float cells = 0;
    for (int e = threadIdx.x; e < k.topk * k.per_block; e += THREADS) {
        int b = list[e / k.per_block], j = b * k.per_block + e % k.per_block;
        bool in = b >= k.init && b < qb - k.local && j < visible;
        of_support[e] = in ? j : -1;
        if (!in) continue;
        cells++;
        atomicOr(bits + (j >> 5), 1u << (j & 31));
    }
    auto for_support = [&](auto use) { // every cell of S that this thread owns
        for (int e = threadIdx.x; e < k.topk * k.per_block; e += THREADS)
            if (of_support[e] >= 0) use(of_support[e]);
    };
    cells = block_sum(cells, shared); // also orders the bits
    if (cells == 0 && !pr) {          // S empty: no loss, no gradient (7.2)
        for (int j = threadIdx.x; j < columns; j += THREADS) dzr[j] = __float2bfloat16(0.f);
        if (dr)
            for (int j = threadIdx.x; j < k.n_d; j += THREADS) dr[j] = 0;
        if (threadIdx.x == 0) row_loss[r * loss_ld + h] = 0;
        return;
    }

    // Student: maximum, sums over S and outside of it, of powers of 2. Teacher: the same sums; its
    // row is zero beyond the first cell after the visible ones.
    float scale_log2 = k.scale * 1.44269504f, m = -INFINITY;
    float sum[4] = {}; // student in and out of S, teacher in and out of S
    int end = visible + 1 < k.n_d ? visible + 1 : k.n_d;
    const uint32_t *words = bits + threadIdx.x / 32, bit = 1u << threadIdx.x % 32;
    auto add = [&]<bool WHOLE>(int first) { // a round of AT_ONCE cells a thread
        float v[AT_ONCE], t[AT_ONCE], top = -INFINITY;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int j = first + u * THREADS + threadIdx.x;
            v[u] = WHOLE || j < visible ? zr[j] : -INFINITY;
            t[u] = WHOLE || j < end ? ar[j] : 0;
            top = fmaxf(top, v[u]);
        }
        top = fmaxf(m, scale_log2 * top);
        float base = top == -INFINITY ? 0 : top, shrink = exp2_fast(m - base); // 0 at first
        sum[0] *= shrink;
        sum[1] *= shrink;
        m = top;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            bool in = words[first / 32 + u * THREADS / 32] & bit;
            float p = exp2_fast(fmaf(v[u], scale_log2, -base));
            sum[0] += in ? p : 0;
            sum[1] += in ? 0 : p;
            sum[2] += in ? t[u] : 0;
            sum[3] += in ? 0 : t[u];
        }
    };
    int first = 0;
    for (; first + AT_ONCE * THREADS <= visible; first += AT_ONCE * THREADS)
        add.template operator()<true>(first);
    if (first < end) add.template operator()<false>(first);
    float M = block_max(m, shared), shrink = m == -INFINITY ? 0 : exp2_fast(m - M);
    sum[0] *= shrink;
    sum[1] *= shrink;
    sum_all(sum, sums);
    float in = sum[0], out = sum[1], a_in = sum[2], a_out = sum[3];
    float inv = 1 / (in + out), p_rest = out * inv;
    auto student = [&](float logit) { return exp2_fast(fmaf(logit, scale_log2, -M)) * inv; };
    bool counts = cells > 0 && a_in + a_out > 0; // 7.5

    float to_x = 1 / ((in + out) * inv + FLOOR_E), to_t = 1 / (a_in + a_out + FLOOR_E);
    float x_rest = p_rest * to_x, t_rest = a_out * to_t;
    float padding = (float)(k.topk * k.per_block) - cells;
    float C = 0, C_t = 0, loss = 0, mean = 0;
    if (counts) {
        float part[2] = {};
        for_support([&](int j) {
            part[0] += fmaxf(student(zr[j]) * to_x, FLOOR_E);
            part[1] += fmaxf(ar[j] * to_t, FLOOR_E);
        });
        sum_all(part, pairs);
        C = part[0] + fmaxf(x_rest, FLOOR_E) + padding * FLOOR_E;
        C_t = part[1] + fmaxf(t_rest, FLOOR_E) + padding * FLOOR_E;
    }
    float log_ratio = counts ? logf(C / C_t) : 0, t_last = fmaxf(t_rest, FLOOR_E) / C_t;
    float b_rest = counts && x_rest >= FLOOR_E ? 1 / C - t_last / x_rest : 0;
    auto slope = [&](float p, float t) { // b of 7.4 for a cell; t already divided by C_t
        float x = p * to_x;
        return x >= FLOOR_E ? 1 / C - t / x : 0.f;
    };
    if (counts) {
        float part[2] = {};
        for_support([&](int j) {
            float p = student(zr[j]), t0 = fmaxf(ar[j] * to_t, FLOOR_E), t = t0 / C_t;
            part[0] += t * (logf(t0 / fmaxf(p * to_x, FLOOR_E)) + log_ratio);
            part[1] += p * slope(p, t);
        });
        sum_all(part, pairs);
        loss = part[0] +
               t_last * (logf(fmaxf(t_rest, FLOOR_E) / fmaxf(x_rest, FLOOR_E)) + log_ratio) +
               padding * FLOOR_E / C_t * log_ratio;
        mean = part[1] + b_rest * p_rest;
    }
    if (threadIdx.x == 0) row_loss[r * loss_ld + h] = counts ? loss : 0;

    float outside = 0; // times p: the gradient of a cell outside S
    if (counts)
        outside = k.ideal ? (p_rest > 0x1p-100f ? (1 - t_rest / p_rest) * k.weight : 0)
                          : (b_rest - mean) * to_x * k.weight;
    auto inside = [&](int j) { // the gradient of a cell of S
        float p = student(zr[j]);
        if (k.ideal) return (p - ar[j] * to_t) * k.weight;
        return p * (slope(p, fmaxf(ar[j] * to_t, FLOOR_E) / C_t) - mean) * to_x * k.weight;
    };
    // all cells as if outside, then those of S; columns and z_ld are multiples of 8
    for (int j = 4 * threadIdx.x; j < columns; j += 4 * THREADS) {
        float4 logits = *(const float4 *)(zr + j);
        const float of[4] = {logits.x, logits.y, logits.z, logits.w};
        float g[4];
#pragma unroll
        for (int e = 0; e < 4; e++) g[e] = j + e < visible ? outside * student(of[e]) : 0;
        const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(g[0], g[1]),
                                        __floats2bfloat162_rn(g[2], g[3])};
        *(uint2 *)(dzr + j) = *(const uint2 *)pair;
    }
    if (counts) {
        __syncthreads();
        for_support([&](int j) { dzr[j] = __float2bfloat16(inside(j)); });
    }
    if (!pr && !dr) return;
    for (int j = threadIdx.x; j < k.n_d; j += THREADS) { // what a probe wants to see
        float p = j < visible ? student(zr[j]) : 0;
        if (pr) pr[j] = p;
        if (dr) dr[j] = counts && words[j / 32 - threadIdx.x / 32] & bit ? inside(j) : outside * p;
    }
}

static size_t shared_bytes(int64_t windows, int64_t topk, int64_t per_block) {
    return 4 * (size_t)(support_words((int)windows) + topk * per_block);
}

sp_status sp_cuda_kl_supported(const sp_cuda *c, int64_t windows, int64_t topk, int64_t per_block) {
    if ((int64_t)shared_bytes(windows, topk, per_block) <= c->shared_most) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "rows of %lld windows with lists of %lld blocks of %lld windows are more than "
                    "the loss on this GPU can hold; take shorter sequences or backend 'cpu'",
                    (long long)windows, (long long)topk, (long long)per_block);
}

OP sp_cuda_kl(const sp_kl_args *p, sp_tensor f, int64_t i0, sp_tensor cks, sp_tensor a,
              sp_tensor lists, sp_tensor row_loss, sp_tensor df, const sp_tensor *student_p,
              const sp_tensor *dz) {
    sp_cuda *c = sp_cuda_of(f);
    int64_t R = f.rows, d = p->heads.head_dim, Hkv = p->heads.kv_heads, n_d = cks.rows;
    int64_t seen = sp_visible(p->deployed, SP_SEES_START, i0 + R - 1, n_d);
    int64_t columns = round_up(seen, 64) < n_d ? round_up(seen, 64) : n_d; // of the products
    int64_t ld = round_up(columns, 8), head = R * ld;
    void *scratch;
    SP_TRY(sp_cuda_scratch(c, Hkv * head * 6, "student logits of a query tile", &scratch));
    float *z = (float *)scratch;
    bf16 *g = (bf16 *)(z + Hkv * head);
    float scale = (float)(1 / sqrt((double)d));
    for (int64_t h = 0; h < Hkv && columns; h++)
        SP_TRY(sp_cuda_matmul(c, R, columns, d, 1, (const bf16 *)f.data + h * d, f.ld,
                              (const bf16 *)cks.data + h * d, cks.ld, false, 0, z + h * head,
                              SP_F32, ld));
    const sp_selection *s = &p->selection;
    KlRule rule = {p->deployed.stride,
                   s->block,
                   i0,
                   (int)n_d,
                   (int)(s->block / p->deployed.stride),
                   (int)s->init_blocks,
                   (int)s->local_blocks,
                   (int)s->topk,
                   scale,
                   (float)p->weight,
                   p->gradient == SP_KL_IDEAL};
    SP_TRY(sp_cuda_kl_supported(c, n_d, s->topk, rule.per_block));
    size_t shared = shared_bytes(n_d, s->topk, rule.per_block);
    CUDA_TRY(cudaFuncSetAttribute(kl_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)(shared > 48 << 10 ? shared : 48 << 10)));
    kl_kernel<<<dim3((unsigned)R, (unsigned)Hkv), THREADS, shared, c->stream>>>(
        rule, z, g, ld, head, (int)ld, (const float *)a.data, a.ld, (const int32_t *)lists.data,
        lists.ld, (float *)row_loss.data, row_loss.ld, student_p ? (float *)student_p->data : NULL,
        student_p ? student_p->ld : 0, dz ? (float *)dz->data : NULL, dz ? dz->ld : 0);
    LAUNCHED("kl", "%lld rows, %lld windows, %lld heads of %lld", (long long)R, (long long)n_d,
             (long long)Hkv, (long long)d);
    if (!columns) return sp_fill(df, 0);
    for (int64_t h = 0; h < Hkv; h++)
        SP_TRY(sp_cuda_matmul(c, R, d, columns, scale, g + h * head, ld,
                              (const bf16 *)cks.data + h * d, cks.ld, true, 0,
                              (char *)df.data + h * d * sp_dtype_size(df.dtype), df.dtype, df.ld));
    return SP_OK;
}
