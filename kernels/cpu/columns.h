// Tiles of query rows as vector columns: loading queries and storing results (see vector.h).
//
// Legend: L lanes, rows of the tile that do not exist repeat the last one; d head size.
#ifndef SPARDA_KERNELS_CPU_COLUMNS_H
#define SPARDA_KERNELS_CPU_COLUMNS_H

#include "kernels/cpu/cpu.h"

// to[x][lane] = scale * row(lane)[x], x < d; row(lane) = t[row0 + lane][col0 ...].
static inline void sp_load_columns(sp_tensor t, int64_t row0, int64_t rows, int64_t col0, int64_t d,
                                   int64_t lanes, float scale, float *to) {
    for (int64_t l = 0; l < lanes; l++) {
        const float *row = sp_row_f32(t, row0 + sp_min(l, rows - 1)) + col0;
        for (int64_t x = 0; x < d; x++) to[x * lanes + l] = scale * row[x];
    }
}

// t[row0 + lane][col0 + x] = from[x][lane] for x < n, 0 for n <= x < width; lane < rows.
static inline void sp_store_columns(const float *from, int64_t n, int64_t width, int64_t lanes,
                                    sp_tensor t, int64_t row0, int64_t rows, int64_t col0) {
    for (int64_t l = 0; l < rows; l++) {
        float *row = sp_row_f32(t, row0 + l) + col0;
        for (int64_t x = 0; x < n; x++) row[x] = from[x * lanes + l];
        for (int64_t x = n; x < width; x++) row[x] = 0;
    }
}

// Visible windows of every lane; lanes that do not exist see what the last row sees.
static inline void sp_visible_columns(sp_grid g, sp_visibility v, int64_t i0, int64_t rows,
                                      int64_t lanes, int64_t n, int64_t *visible) {
    for (int64_t l = 0; l < lanes; l++) visible[l] = sp_visible(g, v, i0 + sp_min(l, rows - 1), n);
}

#endif
