// Block lists: the best k blocks of every row and KV head, ascending, ties to the lower index
// (training.md 5.2).
//
// One warp per (row, head) with the scores in registers (select_row.cuh) up to 4096 blocks; beyond,
// a thread block with the scores in shared memory and the same steps.
#include "kernels/cuda/select_row.cuh"

enum { ROWS = 4, THREADS = 512 }; // rows of a thread block; threads of a row

// As block_score, of the blocks b0 .. b0+31, one a lane, with four windows a block: loads that do
// not wait for each other, and the window before a block from the lane to the left.
__device__ __forceinline__ float score_of_four(const BlockRule &s, const float *row, int n_d,
                                               int b0, int qb) {
    int lane = threadIdx.x & 31, b = b0 + lane, first = 4 * b;
    float window[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        window[e] = (b <= qb || !s.mask_future) && first + e < n_d ? row[first + e] : -INFINITY;
    float before = __shfl_up_sync(~0u, window[3], 1);
    if (lane == 0) before = b > 0 && first <= n_d ? row[first - 1] : -INFINITY;
    if (b < s.init || (b <= qb && qb <= b + s.local)) return INFINITY;
    if (s.mask_future && b > qb) return -INFINITY;
    float best = fmaxf(fmaxf(window[0], window[1]), fmaxf(window[2], window[3]));
    return fmaxf(-INFINITY, fmaxf(before, best)); // all NaN: absent
}

// Scores of the blocks first .. first+31 and every `step` further, by a warp.
__device__ __forceinline__ void score_row(const BlockRule &s, const float *row, int64_t n_d, int nb,
                                          int64_t qb, int first, int step, uint32_t *key) {
    int lane = threadIdx.x & 31;
    if (s.per_block == 4) {
#pragma unroll 2
        for (int b0 = first; b0 < nb; b0 += step) {
            float score = score_of_four(s, row, (int)n_d, b0, (int)qb);
            if (b0 + lane < nb) key[b0 + lane] = ordered(score);
        }
    } else {
        for (int b = first + lane; b < nb; b += step)
            key[b] = ordered(block_score(s, row, n_d, b, qb));
    }
}

// The scores pass through shared memory, so that the loop over their windows need not be unrolled
// with the registers.
template <int MAX>
__global__ void __launch_bounds__(32 * ROWS)
    warp_kernel(BlockRule s, const float *a, int64_t a_ld, int64_t n_d, int64_t rows, int64_t i0,
                int nb, int32_t *lists, int64_t lists_ld) {
    int64_t r = blockIdx.x * (int64_t)ROWS + threadIdx.x / 32, h = blockIdx.y;
    if (r >= rows) return;
    int64_t qb = (i0 + r) / s.block;
    int32_t *list = lists + r * lists_ld + h * s.topk;
    extern __shared__ uint32_t keys[]; // [ROWS][nb]
    int lane = threadIdx.x & 31;
    uint32_t *mine = keys + threadIdx.x / 32 * nb;
    score_row(s, a + r * a_ld + h * n_d, n_d, nb, qb, 0, 32, mine);
    with_row_size<MAX>(nb, [&]<int N>() {
        uint32_t key[N];
#pragma unroll
        for (int i = 0; i < N; i++) key[i] = 32 * i + lane < nb ? mine[32 * i + lane] : 0;
        select_row(key, nb, (int)s.topk, (int)qb, list);
    });
}

// Exclusive prefix over the block's threads of a flag, and the total.
__device__ __forceinline__ int prefix(bool flag, int *warp_counts, int *total) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned votes = __ballot_sync(~0u, flag);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) {
        if (w < warp) before += warp_counts[w];
        all += warp_counts[w];
    }
    __syncthreads();
    *total = all;
    return before;
}

__global__ void __launch_bounds__(THREADS)
    select_kernel(BlockRule s, const float *a, int64_t a_ld, int64_t n_d, int64_t i0, int nb,
                  int32_t *lists, int64_t lists_ld) {
    extern __shared__ uint32_t key[]; // [nb]
    __shared__ int warp_counts[32];
    int64_t r = blockIdx.x, h = blockIdx.y, qb = (i0 + r) / s.block;
    int k = (int)(s.topk < nb ? s.topk : nb);
    int32_t *list = lists + r * lists_ld + h * s.topk;
    score_row(s, a + r * a_ld + h * n_d, n_d, nb, qb, (int)threadIdx.x & ~31, THREADS, key);
    __syncthreads();

    uint32_t last = 0; // largest value that at least k keys reach
    if (k < nb) {
        for (int bit = 31; bit >= 0; bit--) {
            uint32_t want = last | 1u << bit;
            int count = 0;
            for (int b = threadIdx.x; b < nb; b += THREADS) count += key[b] >= want;
                // counting in two steps: __syncthreads_count adds predicates only
#pragma unroll
            for (int m = 16; m; m /= 2) count += __shfl_xor_sync(~0u, count, m);
            if ((threadIdx.x & 31) == 0) warp_counts[threadIdx.x >> 5] = count;
            __syncthreads();
            count = 0;
#pragma unroll
            for (int w = 0; w < THREADS / 32; w++) count += warp_counts[w];
            __syncthreads();
            if (count >= k) last = want;
            if (count == k) break; // exactly the k best reach it
        }
    }
    int above = 0, n = 0, total;
    for (int b = threadIdx.x; b < nb; b += THREADS) above += key[b] > last;
    above = block_sum(above, warp_counts);
    int room = k - above; // for keys equal to `last`
    for (int b0 = 0; b0 < nb; b0 += THREADS) {
        int b = b0 + threadIdx.x;
        uint32_t v = b < nb ? key[b] : 0;
        bool equal = b < nb && v == last, more = b < nb && v > last;
        int rank = prefix(equal, warp_counts, &total);
        bool take = more || (equal && rank < room);
        room -= total < room ? total : room;
        bool listed = take && b <= qb; // blocks of the future keep no place but the -1 at the end
        int at = prefix(listed, warp_counts, &total);
        if (listed) list[n + at] = b;
        n += total;
    }
    for (int x = n + threadIdx.x; x < s.topk; x += THREADS) list[x] = -1;
}

template <int MAX>
static sp_status launch_warps(sp_cuda *c, const BlockRule &rule, int64_t kv_heads, sp_tensor a,
                              int64_t i0, int64_t nb, sp_tensor lists) {
    size_t shared = (size_t)ROWS * (size_t)nb * sizeof(uint32_t);
    CUDA_TRY(cudaFuncSetAttribute(warp_kernel<MAX>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared));
    warp_kernel<MAX><<<dim3((unsigned)ceil_div(a.rows, ROWS), (unsigned)kv_heads), 32 * ROWS,
                       shared, c->stream>>>(rule, (const float *)a.data, a.ld, a.cols / kv_heads,
                                            a.rows, i0, (int)nb, (int32_t *)lists.data, lists.ld);
    LAUNCHED("select_blocks", "[%lld, %lld], %lld blocks", (long long)a.rows, (long long)a.cols,
             (long long)nb);
    return SP_OK;
}

sp_status sp_cuda_selection_supported(const sp_cuda *c, int64_t blocks) {
    int64_t most = c->shared_most / 4 - 16; // cis_blocks.cu has 16 more
    if (blocks <= most) return SP_OK;
    return sp_error(
        SP_ENVIRONMENT,
        "rows of %lld blocks are more than selection on this GPU can hold, at most %lld; "
        "take shorter sequences or backend 'cpu'",
        (long long)blocks, (long long)most);
}

OP sp_cuda_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads, sp_tensor a,
                         int64_t i0, int64_t nb, sp_tensor lists) {
    sp_cuda *c = sp_cuda_of(a);
    if (nb <= 64 * 32)
        return launch_warps<64>(c, block_rule(s, deployed), kv_heads, a, i0, nb, lists);
    if (nb <= 128 * 32)
        return launch_warps<128>(c, block_rule(s, deployed), kv_heads, a, i0, nb, lists);
    SP_TRY(sp_cuda_selection_supported(c, nb));
    size_t shared = (size_t)nb * sizeof(uint32_t);
    CUDA_TRY(cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)(shared > 48 << 10 ? shared : 48 << 10)));
    select_kernel<<<dim3((unsigned)a.rows, (unsigned)kv_heads), THREADS, shared, c->stream>>>(
        block_rule(s, deployed), (const float *)a.data, a.ld, a.cols / kv_heads, i0, (int)nb,
        (int32_t *)lists.data, lists.ld);
    LAUNCHED("select_blocks", "[%lld, %lld], %lld blocks", (long long)a.rows, (long long)a.cols,
             (long long)nb);
    return SP_OK;
}
