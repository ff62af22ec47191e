// Block lists: the best k blocks of every row and KV head, ascending (training.md 5.2).
//
// A threshold is found by bisection over integers that order like the scores, then one pass over
// the blocks collects everything above it and, from the left, as many of its equals as there is
// room for: the order is ascending and ties go to the lower index by construction. Counting has no
// branches and is vectorised, which a few hundred blocks repay against quickselect.
#include "kernels/cpu/cpu.h"

#include <string.h>

// Integers that compare like the scores; both zeros give 0. No score is NaN.
static void keys_of(const float *scores, int64_t n, int32_t *keys) {
    for (int64_t b = 0; b < n; b++) {
        float score = scores[b] + 0.0f;
        int32_t bits;
        memcpy(&bits, &score, sizeof bits);
        keys[b] = bits >= 0 ? bits : bits ^ INT32_MAX;
    }
}

static int64_t count_from(const int32_t *keys, int64_t n, int32_t least) {
    int32_t count = 0; // as wide as the keys: vectors of equal length
    for (int64_t b = 0; b < n; b++) count += keys[b] >= least;
    return count;
}

// The largest t with at least k keys >= t; or any t with exactly k of them, which is as good.
static int32_t threshold_of(const int32_t *keys, int64_t n, int64_t k) {
    int64_t lo = INT32_MIN, hi = INT32_MAX;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2, count = count_from(keys, n, (int32_t)mid);
        if (count == k) return (int32_t)mid;
        if (count > k)
            lo = mid;
        else
            hi = mid - 1;
    }
    return (int32_t)lo;
}

void sp_cpu_select_row(const sp_selection *s, sp_grid deployed, const float *a, int64_t n_d,
                       int64_t i, int64_t nb, float *scratch, int32_t *list) {
    int64_t qb = i / s->block, k = sp_min(s->topk, nb), n = 0;
    float *scores = scratch;
    int32_t *keys = (int32_t *)(scores + nb);
    sp_cpu_row_block_scores(s, deployed, a, n_d, i, nb, scores);
    keys_of(scores, nb, keys);
    int32_t last = threshold_of(keys, nb, k);
    int64_t above = last == INT32_MAX ? 0 : count_from(keys, nb, last + 1);
    int64_t room = k - above; // for blocks that equal the last one
    for (int64_t b = 0; b < nb && b <= qb; b++)
        if (keys[b] > last || (keys[b] == last && room-- > 0)) list[n++] = (int32_t)b;
    while (n < s->topk) list[n++] = -1; // blocks of the future and empty slots
}

sp_status sp_cpu_select_blocks(const sp_selection *s, sp_grid deployed, int64_t kv_heads,
                               sp_tensor a, int64_t i0, int64_t nb, sp_tensor lists) {
    sp_cpu *cpu = sp_cpu_of(a);
    int64_t n_d = a.cols / kv_heads;
    SP_TRY(sp_cpu_scratch(cpu, 2 * nb));
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t h = 0; h < kv_heads; h++)
            sp_cpu_select_row(s, deployed, sp_row_f32(a, r) + h * n_d, n_d, i0 + r, nb,
                              sp_cpu_private(cpu), sp_row_i32(lists, r) + h * s->topk);
    return SP_OK;
}
