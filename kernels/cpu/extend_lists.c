// The second stage of a selection in two stages (training.md 5.4).
//
// The shortlist takes part in the second ranking with infinite scores, so it is in the answer as it
// is; what is left is to take the first k - k1 others from an order that is the same for all rows.
#include "kernels/cpu/cpu.h"

#include <string.h>

sp_status sp_cpu_extend_lists(int64_t block, int64_t kv_heads, sp_tensor shortlist, int64_t i0,
                              sp_tensor order, sp_tensor lists) {
    sp_cpu *cpu = sp_cpu_of(lists);
    const int64_t k1 = shortlist.cols / kv_heads, k = lists.cols / kv_heads, nb = order.cols;
    SP_TRY(sp_cpu_scratch(cpu, sp_ceil_div(nb, (int64_t)sizeof(float))));
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t r = 0; r < lists.rows; r++)
        for (int64_t h = 0; h < kv_heads; h++) {
            const int32_t *few = sp_row_i32(shortlist, r) + h * k1, *by_rank = sp_row_i32(order, h);
            int32_t *list = sp_row_i32(lists, r) + h * k;
            int64_t qb = (i0 + r) / block, room = k - k1, n = 0;
            bool *chosen = (bool *)sp_cpu_private(cpu);
            memset(chosen, 0, (size_t)nb);
            for (int64_t s = 0; s < k1; s++)
                if (few[s] >= 0 && few[s] < nb) chosen[few[s]] = true;
            for (int64_t x = 0; x < nb && room > 0; x++) {
                int32_t b = by_rank[x];
                if (b > qb || chosen[b]) continue;
                chosen[b] = true;
                room--;
            }
            for (int64_t b = 0; b < nb && b <= qb; b++)
                if (chosen[b]) list[n++] = (int32_t)b;
            while (n < k) list[n++] = -1;
        }
    return SP_OK;
}
