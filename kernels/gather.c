// The CPU's part of the gathering transfer (inference.md 3.4, T7).
#include "kernels/backend.h"

#include <string.h>

void sp_gather_units(uint8_t *to, const uint8_t *home, const uint32_t *items, int64_t n,
                     int64_t unit_bytes) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * unit_bytes, home + (int64_t)items[2 * i] * unit_bytes, (size_t)unit_bytes);
}
