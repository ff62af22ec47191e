// The second stage of a selection in two stages (training.md 5.4).
//
// A warp per row and KV head. Chosen blocks are bits in shared memory: first the shortlist's, then
// those of the first k - k1 others of the order, 32 places of it at a time.
#include "kernels/cuda/cuda.cuh"

enum { WARPS = 4 };

__global__ void __launch_bounds__(WARPS * 32)
    extend_kernel(int64_t block, int kv_heads, const int32_t *shortlist, int64_t short_ld, int k1,
                  int64_t i0, int64_t rows, const int32_t *order, int64_t order_ld, int nb,
                  int32_t *lists, int64_t lists_ld, int k) {
    extern __shared__ uint32_t every[]; // [WARPS][words]
    int lane = threadIdx.x & 31, words = (nb + 31) / 32;
    uint32_t *bits = every + (threadIdx.x >> 5) * words;
    int64_t unit = blockIdx.x * (int64_t)WARPS + (threadIdx.x >> 5);
    if (unit >= rows * kv_heads) return;
    int64_t r = unit / kv_heads;
    int h = (int)(unit % kv_heads);
    int64_t qb = (i0 + r) / block;
    const int32_t *few = shortlist + r * short_ld + (int64_t)h * k1,
                  *by_rank = order + h * order_ld;
    int32_t *list = lists + r * lists_ld + (int64_t)h * k;

    for (int w = lane; w < words; w += 32) bits[w] = 0;
    __syncwarp();
    for (int s = lane; s < k1; s += 32) {
        int b = few[s];
        if (b >= 0 && b < nb) atomicOr(bits + (b >> 5), 1u << (b & 31));
    }
    __syncwarp();
    int room = k - k1;
    for (int x0 = 0; x0 < nb && room > 0; x0 += 32) {
        int b = x0 + lane < nb ? by_rank[x0 + lane] : -1;
        bool other = b >= 0 && b <= qb && !(bits[b >> 5] >> (b & 31) & 1);
        unsigned votes = __ballot_sync(~0u, other);
        if (other && __popc(votes & ((1u << lane) - 1)) < room)
            atomicOr(bits + (b >> 5), 1u << (b & 31));
        room -= __popc(votes);
        __syncwarp();
    }
    int n = 0;
    for (int w0 = 0; w0 < words; w0 += 32) { // ascending: the words of a stretch, lane by lane
        uint32_t mine = w0 + lane < words ? bits[w0 + lane] : 0;
        int count = __popc(mine), at = count;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            int before = __shfl_up_sync(~0u, at, m);
            if (lane >= m) at += before;
        }
        int total = __shfl_sync(~0u, at, 31);
        for (at += n - count; mine; mine &= mine - 1)
            list[at++] = (w0 + lane) * 32 + __ffs(mine) - 1;
        n += total;
    }
    for (int x = n + lane; x < k; x += 32) list[x] = -1;
}

OP sp_cuda_extend_lists(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                        sp_tensor order, sp_tensor lists) {
    sp_cuda *c = sp_cuda_of(lists);
    size_t shared = (size_t)(WARPS * ceil_div(order.cols, 32)) * 4;
    if (shared > 48 << 10)
        return sp_error(SP_ENVIRONMENT, "extend_lists on CUDA holds at most %d blocks, not %lld",
                        (48 << 10) / 4 / WARPS * 32, (long long)order.cols);
    extend_kernel<<<(unsigned)ceil_div(lists.rows * kv_heads, WARPS), WARPS * 32, shared,
                    c->stream>>>(block, (int)kv_heads, (const int32_t *)shortlist.data,
                                 shortlist.ld, (int)(shortlist.cols / kv_heads), i0, lists.rows,
                                 (const int32_t *)order.data, order.ld, (int)order.cols,
                                 (int32_t *)lists.data, lists.ld, (int)(lists.cols / kv_heads));
    LAUNCHED("extend_lists", "%lld rows, %lld blocks", (long long)lists.rows,
             (long long)order.cols);
    return SP_OK;
}
