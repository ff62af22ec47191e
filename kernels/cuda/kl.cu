// Top-k-plus-remainder KL of a tile of rows and its gradient (training.md 7).
//
// Three steps: logits z = F C^T per KV head into scratch (only windows some row of the tile sees),
// one thread block per (row, head) for probabilities, loss and dz, then dF = scale * dz C.
// Remainders are summed directly over the cells outside S (never by subtraction); probabilities,
// sums and logarithms are fp32; dz is rounded to bf16 for the last product.
//
// Legend: S support (cells of valid blocks), x student and t teacher entries, e floor.
#include "kernels/cuda/cuda.cuh"

enum { THREADS = 128 };

struct KlRule {
    int64_t stride, n_d, per_block, block, init, local, topk, kv_heads, i0;
    float scale, weight;
    bool ideal;
};

#define FLOOR_E 1e-8f

struct Support { // blocks of S, one bit each, in shared memory
    uint32_t *bits;
    __device__ bool has(int64_t b) const { return bits[b >> 5] >> (b & 31) & 1; }
};

// Calls use(j) for every cell of S of this row that this thread owns.
template <class Use>
__device__ __forceinline__ void for_cells(const KlRule &k, const int32_t *list, int64_t qb,
                                          int64_t visible, Use use) {
    for (int64_t e = threadIdx.x; e < k.topk * k.per_block; e += THREADS) {
        int64_t b = list[e / k.per_block], j = b * k.per_block + e % k.per_block;
        if (b >= k.init && b < qb - k.local && j < visible) use(j);
    }
}

__global__ void __launch_bounds__(THREADS)
    kl_kernel(KlRule k, const float *z, bf16 *dz, int64_t z_ld, int64_t z_head, int64_t columns,
              const float *a, int64_t a_ld, const int32_t *lists, int64_t lists_ld, float *row_loss,
              int64_t loss_ld, float *p_out, int64_t p_ld, float *dz_out, int64_t dz_ld) {
    extern __shared__ uint32_t bits[];
    __shared__ float shared[32];
    int64_t r = blockIdx.x, h = blockIdx.y, i = k.i0 + r, qb = i / k.block;
    int64_t visible = visible_windows(k.stride, 0, i, k.n_d);
    const int32_t *list = lists + r * lists_ld + h * k.topk;
    const float *zr = z + h * z_head + r * z_ld, *ar = a + r * a_ld + h * k.n_d;
    bf16 *dzr = dz + h * z_head + r * z_ld;
    float *pr = p_out ? p_out + r * p_ld + h * k.n_d : NULL;
    float *dr = dz_out ? dz_out + r * dz_ld + h * k.n_d : NULL;

    int64_t words = k.n_d / k.per_block / 32 + 1;
    for (int64_t w = threadIdx.x; w < words; w += THREADS) bits[w] = 0;
    __syncthreads();
    float cells = 0;
    for_cells(k, list, qb, visible, [&](int64_t j) {
        cells++;
        int64_t b = j / k.per_block;
        atomicOr(bits + (b >> 5), 1u << (b & 31));
    });
    cells = block_sum(cells, shared); // also orders the bits
    if (cells == 0 && !pr) {          // S empty: no loss, no gradient (7.2)
        for (int64_t j = threadIdx.x; j < columns; j += THREADS) dzr[j] = __float2bfloat16(0.f);
        if (dr)
            for (int64_t j = threadIdx.x; j < k.n_d; j += THREADS) dr[j] = 0;
        if (threadIdx.x == 0) row_loss[r * loss_ld + h] = 0;
        return;
    }
    Support S = {bits};

    // student: maximum, sum over S and outside of it
    float m = -INFINITY, in = 0, out = 0;
    for (int64_t j = threadIdx.x; j < visible; j += THREADS) {
        float v = k.scale * zr[j];
        if (v > m) {
            float f = __expf(m - v); // 0 at the start
            in *= f;
            out *= f;
            m = v;
        }
        float p = __expf(v - m);
        if (S.has(j / k.per_block))
            in += p;
        else
            out += p;
    }
    float M = block_max(m, shared), f = m == -INFINITY ? 0 : __expf(m - M);
    in = block_sum(in * f, shared);
    out = block_sum(out * f, shared);
    float inv = 1 / (in + out), p_rest = out * inv;

    // teacher: the row is zero beyond the first cell after the visible ones
    float a_in = 0, a_out = 0;
    int64_t end = visible + 1 < k.n_d ? visible + 1 : k.n_d;
    for (int64_t j = threadIdx.x; j < end; j += THREADS) {
        if (j < visible && S.has(j / k.per_block))
            a_in += ar[j];
        else
            a_out += ar[j];
    }
    a_in = block_sum(a_in, shared);
    a_out = block_sum(a_out, shared);
    bool counts = cells > 0 && a_in + a_out > 0; // 7.5

    float to_x = 1 / ((in + out) * inv + FLOOR_E), to_t = 1 / (a_in + a_out + FLOOR_E);
    float x_rest = p_rest * to_x, t_rest = a_out * to_t;
    float padding = (float)(k.topk * k.per_block) - cells;
    float C = 0, C_t = 0, loss = 0, mean = 0;
    if (counts) {
        for_cells(k, list, qb, visible, [&](int64_t j) {
            C += fmaxf(__expf(k.scale * zr[j] - M) * inv * to_x, FLOOR_E);
            C_t += fmaxf(ar[j] * to_t, FLOOR_E);
        });
        C = block_sum(C, shared) + fmaxf(x_rest, FLOOR_E) + padding * FLOOR_E;
        C_t = block_sum(C_t, shared) + fmaxf(t_rest, FLOOR_E) + padding * FLOOR_E;
    }
    float log_ratio = counts ? logf(C / C_t) : 0, t_last = fmaxf(t_rest, FLOOR_E) / C_t;
    float b_rest = counts && x_rest >= FLOOR_E ? 1 / C - t_last / x_rest : 0;
    auto slope = [&](float p, float t) { // b of 7.4 for a cell; t already divided by C_t
        float x = p * to_x;
        return x >= FLOOR_E ? 1 / C - t / x : 0.f;
    };
    if (counts) {
        for_cells(k, list, qb, visible, [&](int64_t j) {
            float p = __expf(k.scale * zr[j] - M) * inv, t0 = fmaxf(ar[j] * to_t, FLOOR_E);
            float t = t0 / C_t;
            loss += t * (logf(t0 / fmaxf(p * to_x, FLOOR_E)) + log_ratio);
            mean += p * slope(p, t);
        });
        loss = block_sum(loss, shared) +
               t_last * (logf(fmaxf(t_rest, FLOOR_E) / fmaxf(x_rest, FLOOR_E)) + log_ratio) +
               padding * FLOOR_E / C_t * log_ratio;
        mean = block_sum(mean, shared) + b_rest * p_rest;
    }
    if (threadIdx.x == 0) row_loss[r * loss_ld + h] = counts ? loss : 0;

    float outside = 0;
    if (counts)
        outside = k.ideal ? (p_rest > 0 ? (1 - t_rest / p_rest) * k.weight : 0)
                          : (b_rest - mean) * to_x * k.weight;
    int64_t wide = dr || pr ? (columns > k.n_d ? columns : k.n_d) : columns;
    for (int64_t j = threadIdx.x; j < wide; j += THREADS) {
        float p = 0, g = 0;
        if (j < visible) {
            p = __expf(k.scale * zr[j] - M) * inv;
            g = outside * p;
            if (counts && S.has(j / k.per_block)) {
                if (k.ideal)
                    g = (p - ar[j] * to_t) * k.weight;
                else
                    g = p * (slope(p, fmaxf(ar[j] * to_t, FLOOR_E) / C_t) - mean) * to_x * k.weight;
            }
        }
        if (j < columns) dzr[j] = __float2bfloat16(g);
        if (pr && j < k.n_d) pr[j] = p;
        if (dr && j < k.n_d) dr[j] = g;
    }
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
                   n_d,
                   s->block / p->deployed.stride,
                   s->block,
                   s->init_blocks,
                   s->local_blocks,
                   s->topk,
                   Hkv,
                   i0,
                   scale,
                   (float)p->weight,
                   p->gradient == SP_KL_IDEAL};
    size_t shared = (size_t)(n_d / rule.per_block / 32 + 1) * 4;
    kl_kernel<<<dim3((unsigned)R, (unsigned)Hkv), THREADS, shared, c->stream>>>(
        rule, z, g, ld, head, ld, (const float *)a.data, a.ld, (const int32_t *)lists.data,
        lists.ld, (float *)row_loss.data, row_loss.ld, student_p ? (float *)student_p->data : NULL,
        student_p ? student_p->ld : 0, dz ? (float *)dz->data : NULL, dz ? dz->ld : 0);
    LAUNCHED("kl", "%lld rows, %lld windows, %lld heads of %lld", (long long)R, (long long)n_d,
             (long long)Hkv, (long long)d);
    for (int64_t h = 0; h < Hkv && columns; h++)
        SP_TRY(sp_cuda_matmul(c, R, d, columns, scale, g + h * head, ld,
                              (const bf16 *)cks.data + h * d, cks.ld, true, 0,
                              (char *)df.data + h * d * sp_dtype_size(df.dtype), df.dtype, df.ld));
    return SP_OK;
}
