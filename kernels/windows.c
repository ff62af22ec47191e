// Counting of compressed-key windows (training.md 3.1, 4.1, 4.4): pure integer rules shared by
// hosts and backends.
#include "kernels/kernels.h"

int64_t sp_windows(sp_grid g, int64_t T) {
    return T < g.kernel ? 0 : (T - g.kernel) / g.stride + 1;
}

int64_t sp_visible(sp_grid g, sp_visibility v, int64_t i, int64_t n) {
    int64_t last = v == SP_SEES_START ? i : i - (g.kernel - 1); // latest start that is seen
    int64_t seen = last < 0 ? 0 : last / g.stride + 1;
    return seen < n ? seen : n;
}
