// ctest: timeout=600
// Sequences of 1,048,576 tokens on a GPU: tensors of more than 2^32 elements, more blocks than
// registers hold. Skipped where no device is, or too little memory on it.
//
//   test_cuda_long [--portable]
//
// Whole tensors: an operation on all rows gives the last ones what it gives them alone; a place
// computed in 32 bits would be another one. The end of the sequence: rows there against the CPU
// backend, with bounds as in test_cuda_operations.c, for sums of as many terms as there are keys.
#include "tests/golden.h"
#include "tests/gpu_options.h"
#include "tests/gpu_pairs.h"

enum {
    T = 1 << 20,
    LAST = 96,
    PERIOD = 4099, // of the rows of a random tensor; no place 2^31 or 2^32 elements away is alike
    HIDDEN = 4096,
    BLOCK = 64,
    BLOCKS = T / BLOCK,
};
static const sp_grid fine = {2, 1}, deployed = {32, 16};

static sp_tensor on_gpu(sp_dtype type, int64_t rows, int64_t cols) {
    sp_tensor t;
    assert_ok(sp_tensor_alloc(gpu, type, rows, cols, "test", &t));
    return t;
}

static sp_tensor last_rows(sp_tensor t) {
    return sp_tensor_rows(t, t.rows - LAST, LAST);
}

static sp_tensor copy_of(sp_tensor t) {
    sp_tensor copy = on_gpu(t.dtype, t.rows, t.cols);
    assert_ok(sp_copy(copy, t));
    return copy;
}

static sp_tensor random_rows(sp_dtype type, int64_t rows, int64_t cols) {
    sp_tensor t = on_gpu(type, rows, cols);
    int64_t have = rows < PERIOD ? rows : PERIOD;
    float *x = malloc((size_t)(have * cols) * sizeof *x);
    for (int64_t i = 0; i < have * cols; i++) x[i] = test_uniform(&seed, -1.7f, 1.7f); // variance 1
    assert_ok(sp_upload(sp_tensor_rows(t, 0, have), x));
    free(x);
    while (have < rows) { // doubled, as far as it goes
        int64_t n = have < rows - have ? have : rows - have;
        assert_ok(sp_copy(sp_tensor_rows(t, have, n), sp_tensor_rows(t, 0, n)));
        have += n;
    }
    return t;
}

// k blocks a row, ascending, one of each k-th part of what the row sees.
static sp_tensor random_lists(int64_t kv_heads, int64_t k) {
    enum { AT_ONCE = 65536 };
    sp_tensor lists = on_gpu(SP_I32, T, kv_heads * k);
    int32_t *x = malloc((size_t)(AT_ONCE * kv_heads * k) * sizeof *x);
    for (int64_t r0 = 0; r0 < T; r0 += AT_ONCE) {
        int32_t *to = x;
        for (int64_t r = r0; r < r0 + AT_ONCE; r++)
            for (int64_t h = 0; h < kv_heads; h++)
                for (int64_t i = 0, sees = r / BLOCK + 1; i < k; i++) {
                    int64_t from = i * sees / k, room = (i + 1) * sees / k - from;
                    int64_t at = (int64_t)(test_random(&seed) >> 33) % (room > 0 ? room : 1);
                    *to++ = (int32_t)(room > 0 ? from + at : -1);
                }
        assert_ok(sp_upload(sp_tensor_rows(lists, r0, AT_ONCE), x));
    }
    free(x);
    return lists;
}

// Matrix products: a library may sum another number of rows in another order.
static void nearly_same(sp_tensor whole, sp_tensor part, double bound, const char *what) {
    float *a = test_download(whole), *b = test_download(part);
    double error = test_rel_error(a, b, part.rows * part.cols);
    printf("    %-28s rel %.2e (bound %.0e)\n", what, error, bound);
    if (!(error <= bound)) fail_msg("%s: relative error %g above %g", what, error, bound);
    free(a), free(b);
}

static void free_all(sp_tensor *const *t, size_t n) {
    for (size_t i = 0; i < n; i++) sp_tensor_free(t[i]);
}

static bool enough_memory(void) {
    sp_tensor all;
    if (sp_tensor_alloc(gpu, SP_BF16, T, 12288, "test", &all) == SP_OK) {
        sp_tensor_free(&all);
        return true;
    }
    sp_error_clear();
    printf("skipped: less than 24 GiB of free device memory\n");
    return false;
}

static void frozen_layers_of_all_rows(void **state) {
    (void)state;
    sp_tensor x = random_rows(SP_BF16, T, HIDDEN), y = on_gpu(SP_BF16, T, HIDDEN);
    sp_tensor part = on_gpu(SP_BF16, LAST, HIDDEN), w = random_rows(SP_BF16, 1, HIDDEN);
    assert_ok(sp_rmsnorm(x, w, 1e-5f, y));
    assert_ok(sp_rmsnorm(last_rows(x), w, 1e-5f, part));
    same_bits(y, part, T - LAST, "rmsnorm");
    assert_ok(sp_residual_add(part, last_rows(x), 0.25f));
    assert_ok(sp_residual_add(y, x, 0.25f));
    same_bits(y, part, T - LAST, "residual_add");

    sp_tensor narrow = random_rows(SP_BF16, 64, HIDDEN), wide = random_rows(SP_BF16, HIDDEN, 64);
    sp_tensor z = on_gpu(SP_BF16, T, 64), z_part = on_gpu(SP_BF16, LAST, 64);
    assert_ok(sp_linear(x, narrow, z));
    assert_ok(sp_linear(last_rows(x), narrow, z_part));
    nearly_same(last_rows(z), z_part, 4e-3, "linear of many columns");
    assert_ok(sp_linear(z, wide, y));
    assert_ok(sp_linear(last_rows(z), wide, part));
    nearly_same(last_rows(y), part, 4e-3, "linear to many columns");

    sp_tensor g = on_gpu(SP_F32, 64, HIDDEN), halves = on_gpu(SP_F32, 64, HIDDEN); // zero
    assert_ok(sp_grad_weight(z, x, g));
    for (int64_t row = 0; row < T; row += T / 2)
        assert_ok(
            sp_grad_weight(sp_tensor_rows(z, row, T / 2), sp_tensor_rows(x, row, T / 2), halves));
    nearly_same(g, halves, 0x1p-24 * 1024, "grad_weight"); // 2^20 terms in any order

    sp_tensor act = sp_tensor_cols(y, 0, HIDDEN / 2);
    sp_tensor act_part = sp_tensor_cols(part, 0, HIDDEN / 2);
    assert_ok(sp_swiglu(x, act));
    assert_ok(sp_swiglu(last_rows(x), act_part));
    same_bits(act, act_part, T - LAST, "swiglu");

    sp_tensor table = random_rows(SP_BF16, PERIOD, HIDDEN), ids = on_gpu(SP_I32, T, 1);
    int32_t *id = malloc(T * sizeof *id);
    for (int64_t t = 0; t < T; t++) id[t] = (int32_t)(test_random(&seed) % PERIOD);
    assert_ok(sp_upload(ids, id));
    free(id);
    assert_ok(sp_embed(ids, table, 12, y));
    assert_ok(sp_embed(last_rows(ids), table, 12, part));
    same_bits(y, part, T - LAST, "embed");
    sp_tensor *const all[] = {&x, &y,      &part, &w,      &narrow, &wide,
                              &z, &z_part, &g,    &halves, &table,  &ids};
    free_all(all, sizeof all / sizeof *all);
}

static void attention_of_all_rows(void **state) {
    (void)state;
    const sp_heads h = {32, 2, 128};
    const int64_t q_cols = h.q_heads * h.head_dim, kv_cols = h.kv_heads * h.head_dim;
    sp_tensor qkv = random_rows(SP_BF16, T, q_cols + 2 * kv_cols);
    sp_tensor q = sp_tensor_cols(qkv, 0, q_cols), k = sp_tensor_cols(qkv, q_cols, kv_cols);
    sp_tensor v = sp_tensor_cols(qkv, q_cols + kv_cols, kv_cols);
    sp_tensor cos = random_rows(SP_F32, T, h.head_dim / 2);
    sp_tensor sin = random_rows(SP_F32, T, h.head_dim / 2);
    sp_tensor rotated = sp_tensor_cols(qkv, 0, q_cols + kv_cols),
              some = copy_of(last_rows(rotated));
    assert_ok(sp_rope(rotated, cos, sin, 0, h.head_dim, false));
    assert_ok(sp_rope(some, cos, sin, T - LAST, h.head_dim, false));
    same_bits(rotated, some, T - LAST, "rope");

    const sp_grid grids[] = {fine, deployed};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        int64_t n = sp_windows(grids[i], T);
        sp_tensor c = on_gpu(SP_BF16, n, kv_cols), c_part = on_gpu(SP_BF16, LAST, kv_cols);
        assert_ok(sp_compress_keys(k, grids[i], 0, c));
        assert_ok(sp_compress_keys(k, grids[i], n - LAST, c_part));
        same_bits(c, c_part, n - LAST, "compress_keys");
        sp_tensor_free(&c), sp_tensor_free(&c_part);
    }

    sp_tensor delta = random_rows(SP_BF16, h.kv_heads, kv_cols);
    sp_tensor scale = random_rows(SP_F32, 1, h.kv_heads);
    sp_tensor cis = on_gpu(SP_F32, h.kv_heads, T), cis_part = on_gpu(SP_F32, h.kv_heads, LAST);
    assert_ok(sp_cis(h, v, delta, scale, cis));
    assert_ok(sp_cis(h, last_rows(v), delta, scale, cis_part));
    same_bits(sp_tensor_cols(cis, T - LAST, LAST), cis_part, 0, "cis");

    sp_tensor lists = random_lists(h.kv_heads, 96);
    sp_tensor out = on_gpu(SP_BF16, T, q_cols), part = on_gpu(SP_BF16, LAST, q_cols);
    for (int biased = 0; biased < 2; biased++) {
        sp_tensor bias = biased ? cis : SP_NO_TENSOR;
        assert_ok(sp_fill(out, NAN));
        assert_ok(sp_sparse_attention(h, q, 0, k, v, bias, lists, BLOCK, out));
        assert_ok(sp_sparse_attention(h, last_rows(q), T - LAST, k, v, bias, last_rows(lists),
                                      BLOCK, part));
        same_bits(out, part, T - LAST, biased ? "sparse_attention, bias" : "sparse_attention");
    }
    sp_tensor *const all[] = {&qkv, &cos,      &sin,   &some, &delta, &scale,
                              &cis, &cis_part, &lists, &out,  &part};
    free_all(all, sizeof all / sizeof *all);
}

// As random_rows, on both sides.
static pair many_rows(int64_t rows, int64_t cols) {
    pair p = {.n = rows * cols, .on_gpu = random_rows(SP_BF16, rows, cols)};
    assert_ok(sp_tensor_alloc(cpu, SP_F32, rows, cols, "test", &p.on_cpu));
    float *x = test_download(p.on_gpu);
    assert_ok(sp_upload(p.on_cpu, x));
    free(x);
    return p;
}

static void end_of_the_sequence(void **state) {
    (void)state;
    enum { ROWS = 16, I0 = T - ROWS, TOPK = 96 };
    const sp_heads h = {4, 1, 128};
    const sp_selection s = {BLOCK, 1, 32, TOPK, false};
    const int64_t q_cols = h.q_heads * h.head_dim, d = h.head_dim;
    const int64_t n_d = sp_windows(deployed, T), n_t = sp_windows(fine, T);
    pair q = random_pair(SP_BF16, ROWS, q_cols, 2), f = random_pair(SP_BF16, ROWS, d, 2);
    pair k = many_rows(T, d), v = many_rows(T, d), ct = many_rows(n_t, d), cd = many_rows(n_d, d);

    const sp_importance_args a = {h, fine, deployed, n_d, SP_ALIGN_MAX, SP_SEES_START};
    pair imp = make(SP_F32, ROWS, n_d);
    assert_ok(sp_importance(&a, q.on_cpu, I0, ct.on_cpu, imp.on_cpu));
    assert_ok(sp_importance(&a, q.on_gpu, I0, ct.on_gpu, imp.on_gpu));
    compare(imp, "importance", 0x1p-24 * 1024); // sums of 2^20 terms
    float *same = test_download(imp.on_cpu);
    assert_ok(sp_upload(imp.on_gpu, same));
    free(same);

    pair scores = make(SP_F32, ROWS, BLOCKS), lists = make(SP_I32, ROWS, TOPK);
    assert_ok(sp_block_scores(&s, deployed, 1, imp.on_cpu, I0, BLOCKS, scores.on_cpu));
    assert_ok(sp_block_scores(&s, deployed, 1, imp.on_gpu, I0, BLOCKS, scores.on_gpu));
    compare(scores, "block_scores", 0);
    assert_ok(sp_select_blocks(&s, deployed, 1, imp.on_cpu, I0, BLOCKS, lists.on_cpu));
    assert_ok(sp_select_blocks(&s, deployed, 1, imp.on_gpu, I0, BLOCKS, lists.on_gpu));
    assert_int_equal(rows_of_different_lists(lists), 0);

    const sp_kl_args kl = {h, deployed, s, SP_KL_EXACT, 1.0 / T};
    pair loss = make(SP_F32, ROWS, 1), df = make(SP_BF16, ROWS, d), raw = make(SP_F32, ROWS, n_d);
    assert_ok(sp_kl(&kl, f.on_cpu, I0, cd.on_cpu, imp.on_cpu, lists.on_cpu, loss.on_cpu, df.on_cpu,
                    NULL, NULL));
    assert_ok(sp_kl(&kl, f.on_gpu, I0, cd.on_gpu, imp.on_gpu, lists.on_gpu, loss.on_gpu, df.on_gpu,
                    NULL, NULL));
    compare(loss, "kl row_loss", 2e-5);
    compare(df, "kl df", 8e-3);
    assert_ok(
        sp_forecast_scores(h, deployed, SP_SEES_COMPLETE, f.on_cpu, I0, cd.on_cpu, raw.on_cpu));
    assert_ok(
        sp_forecast_scores(h, deployed, SP_SEES_COMPLETE, f.on_gpu, I0, cd.on_gpu, raw.on_gpu));
    same = test_download(raw.on_cpu); // -inf where a window is not complete
    float *got = test_download(raw.on_gpu);
    for (int64_t i = 0; i < raw.n; i++) {
        assert_int_equal(isinf(same[i]), isinf(got[i]));
        if (isinf(same[i])) same[i] = got[i] = 0;
    }
    double error = test_rel_error(got, same, raw.n);
    if (!(error <= 1e-5)) fail_msg("forecast_scores: relative error %g", error);
    free(same), free(got);

    pair cis = random_pair(SP_F32, 1, T, 1), rank = make(SP_F32, 1, BLOCKS);
    pair order = make(SP_I32, 1, BLOCKS), extended = make(SP_I32, ROWS, TOPK + 32);
    assert_ok(sp_cis_blocks(cis.on_cpu, deployed, BLOCK, rank.on_cpu, order.on_cpu));
    assert_ok(sp_cis_blocks(cis.on_gpu, deployed, BLOCK, rank.on_gpu, order.on_gpu));
    compare(rank, "cis_blocks", 1e-6);
    int32_t *ranked = malloc(BLOCKS * sizeof *ranked); // scores that rounding brings together
    assert_ok(sp_download(order.on_cpu, ranked));
    assert_ok(sp_upload(order.on_gpu, ranked));
    free(ranked);
    assert_ok(sp_extend_lists(BLOCK, 1, lists.on_cpu, I0, order.on_cpu, extended.on_cpu));
    assert_ok(sp_extend_lists(BLOCK, 1, lists.on_gpu, I0, order.on_gpu, extended.on_gpu));
    assert_int_equal(rows_of_different_lists(extended), 0);

    pair out = make(SP_BF16, ROWS, q_cols);
    assert_ok(sp_sparse_attention(h, q.on_cpu, I0, k.on_cpu, v.on_cpu, cis.on_cpu, extended.on_cpu,
                                  BLOCK, out.on_cpu));
    assert_ok(sp_sparse_attention(h, q.on_gpu, I0, k.on_gpu, v.on_gpu, cis.on_gpu, extended.on_gpu,
                                  BLOCK, out.on_gpu));
    compare(out, "sparse_attention", 6e-3);
    assert_ok(sp_fill(out.on_gpu, NAN));
    assert_ok(sp_dense_attention(h, q.on_cpu, I0, k.on_cpu, v.on_cpu, SP_NO_TENSOR, out.on_cpu));
    assert_ok(sp_dense_attention(h, q.on_gpu, I0, k.on_gpu, v.on_gpu, SP_NO_TENSOR, out.on_gpu));
    compare(out, "dense_attention", 6e-3);
    pair *all[] = {&q,    &f,  &k,   &v,   &ct,   &cd,    &imp,      &scores, &lists,
                   &loss, &df, &raw, &cis, &rank, &order, &extended, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

int main(int argc, char **argv) {
    if (!gpu_opens(gpu_options_of(argc, argv), &gpu, &cpu)) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_layers_of_all_rows),
        cmocka_unit_test(attention_of_all_rows),
        cmocka_unit_test(end_of_the_sequence),
    };
    int failed = enough_memory() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
    sp_backend_close(gpu);
    sp_backend_close(cpu);
    return failed;
}
