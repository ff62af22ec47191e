// Block lists: the best k blocks of every row and KV head, ascending (training.md 5.2).
//
// The score of the last block taken is found by selection, then one pass over the blocks collects
// everything above it and, from the left, as many of its equals as there is room for: the order is
// ascending and ties go to the lower index by construction.
#include "kernels/cpu/cpu.h"

// The value of rank k (0 = largest) of x[n], which is reordered.
static float nth_largest(float *x, int64_t n, int64_t k) {
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        float a = x[lo], b = x[lo + (hi - lo) / 2], c = x[hi];
        float pivot = a > b ? (b > c ? b : (a > c ? c : a)) : (a > c ? a : (b > c ? c : b));
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i <= j) {
                float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (k <= j)
            hi = j;
        else if (k >= i)
            lo = i;
        else
            return x[k];
    }
    return x[k];
}

sp_status sp_cpu_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                               sp_tensor a, int64_t i0, int64_t nb, sp_tensor lists) {
    sp_cpu *cpu = sp_cpu_of(a);
    int64_t n_d = a.cols / kv_heads, k = sp_min(s->topk, nb);
    SP_TRY(sp_cpu_scratch(cpu, 2 * nb));
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t h = 0; h < kv_heads; h++) {
            int32_t *list = sp_row_i32(lists, r) + h * s->topk;
            int64_t qb = (i0 + r) / s->block, n = 0;
            float *scores = sp_cpu_private(cpu), *order = scores + nb;
            sp_cpu_row_block_scores(s, deployed, sp_row_f32(a, r) + h * n_d, n_d, i0 + r, nb,
                                    scores);
            for (int64_t b = 0; b < nb; b++) order[b] = scores[b];
            float last = nth_largest(order, nb, k - 1);
            int64_t room = k; // for blocks that equal the last one
            for (int64_t b = 0; b < nb; b++) room -= scores[b] > last;
            for (int64_t b = 0; b < nb && b <= qb; b++)
                if (scores[b] > last || (scores[b] == last && room-- > 0)) list[n++] = (int32_t)b;
            while (n < s->topk) list[n++] = -1; // blocks of the future and empty slots
        }
    return SP_OK;
}
