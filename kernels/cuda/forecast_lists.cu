// Block lists straight from Forecasts (inference.md 1.2): the fused Hopper kernel, or
// forecast_scores and select_blocks over tiles of rows for the shapes it does not take.
#include "kernels/cuda/forecast_lists_sm90.cuh"

#include <algorithm>

using lists_sm90::KEYS;
using lists_sm90::Layout;
using lists_sm90::Params;

struct Call {
    sp_heads heads;
    sp_grid grid;
    sp_visibility sees;
    const sp_selection *s;
    sp_tensor f, c, lists;
    int64_t i0, nb;
};

template <int D, int P, int MAX> static sp_status launch(sp_cuda *c, const Call &x) {
    int n = (int)x.c.rows, key_tiles = n / KEYS + 1, kv = (int)x.heads.kv_heads;
    auto kernel = lists_sm90::lists_kernel<D, P, MAX>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)Layout<D>::SMEM));
    int per_sm = 0;
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, lists_sm90::THREADS,
                                                           Layout<D>::SMEM));
    int items = (int)ceil_div(x.f.rows, lists_sm90::ROWS) * kv;
    int blocks = std::min(items, std::max(per_sm, 1) * c->sms);
    int64_t keys = (int64_t)kv * key_tiles * KEYS;
    int64_t key_bytes = round_up(keys * D * (int64_t)sizeof(bf16), 1024);
    int64_t cells = (int64_t)key_tiles * (KEYS / P);
    void *scratch;
    SP_TRY(sp_cuda_scratch(c, key_bytes + blocks * lists_sm90::ROWS * cells * 4,
                           "block scores of the queries at work", &scratch));
    lists_sm90::permute_keys<D>
        <<<dim3((unsigned)ceil_div((int64_t)key_tiles * KEYS * (D / 8), 256), (unsigned)kv), 256, 0,
           c->stream>>>((const bf16 *)x.c.data, x.c.ld, n, key_tiles, (bf16 *)scratch);
    LAUNCHED("permute_keys", "%d windows, %d heads of %d", n, kv, D);
    sp_tensor k = x.c;
    k.data = scratch;
    k.rows = keys;
    k.cols = k.ld = D;
    CUtensorMap f_map, k_map;
    SP_TRY(sp_cuda_map(c, x.f, lists_sm90::ROWS, &f_map));
    SP_TRY(sp_cuda_map(c, k, KEYS, &k_map));
    Params p = {.rule = block_rule(x.s, x.grid),
                .i0 = x.i0,
                .rows = (int)x.f.rows,
                .kv_heads = kv,
                .nb = (int)x.nb,
                .n = n,
                .key_tiles = key_tiles,
                .stride = (int)x.grid.stride,
                .extent = (int)window_extent(x.grid, x.sees),
                .items = items,
                .scores = (float *)((uint8_t *)scratch + key_bytes),
                .lists = (int32_t *)x.lists.data,
                .lists_ld = x.lists.ld};
    kernel<<<blocks, lists_sm90::THREADS, Layout<D>::SMEM, c->stream>>>(f_map, k_map, p);
    LAUNCHED("forecast_lists", "%d rows, %d windows, %d blocks, %d heads of %d", p.rows, n, p.nb,
             kv, D);
    return SP_OK;
}

// The same by two operations, with the window scores of a tile of rows in memory.
static sp_status by_tiles(const Call &x) {
    sp_backend *be = x.f.backend;
    int64_t row_bytes = std::max<int64_t>(x.lists.cols / x.s->topk * x.c.rows * 4, 4);
    int64_t tile = std::min(std::max<int64_t>(be->tile_bytes / row_bytes, 64), x.f.rows);
    sp_tensor scores;
    SP_TRY(sp_tensor_alloc(be, SP_F32, tile, std::max<int64_t>(row_bytes / 4, 1),
                           "window scores of a tile of queries", &scores));
    sp_tensor rows = sp_tensor_cols(scores, 0, x.heads.kv_heads * x.c.rows);
    sp_status st = SP_OK;
    for (int64_t r = 0; r < x.f.rows && st == SP_OK; r += tile) {
        int64_t n = std::min(tile, x.f.rows - r);
        sp_tensor a = sp_tensor_rows(rows, 0, n);
        st = sp_cuda_forecast_scores(x.heads, x.grid, x.sees, sp_tensor_rows(x.f, r, n), x.i0 + r,
                                     x.c, a);
        if (st == SP_OK)
            st = sp_cuda_select_blocks(x.s, x.grid, x.heads.kv_heads, a, x.i0 + r, x.nb,
                                       sp_tensor_rows(x.lists, r, n));
    }
    sp_tensor_free(&scores);
    return st;
}

template <int D> static sp_status run(sp_cuda *c, const Call &x) {
    bool small = x.nb <= 64 * 32;
    switch (x.s->block / x.grid.stride) {
    case 2:
        if (small) return launch<D, 2, 64>(c, x);
        break;
    case 4:
        if (small) return launch<D, 4, 64>(c, x);
        if (x.nb <= 128 * 32) return launch<D, 4, 128>(c, x);
        break;
    case 8:
        if (small) return launch<D, 8, 64>(c, x);
        break;
    case 16:
        if (small) return launch<D, 16, 64>(c, x);
        break;
    }
    return by_tiles(x);
}

OP sp_cuda_forecast_lists(sp_heads heads, sp_grid g, sp_visibility v, const sp_selection *s,
                          sp_tensor f, int64_t i0, sp_tensor c, int64_t nb, sp_tensor lists) {
    Call x = {heads, g, v, s, f, c, lists, i0, nb};
    sp_cuda *cuda = sp_cuda_of(f);
    bool fused = cuda->hopper && sp_cuda_aligned(f);
    if (fused && heads.head_dim == 128) return run<128>(cuda, x);
    if (fused && heads.head_dim == 64) return run<64>(cuda, x);
    return by_tiles(x);
}
