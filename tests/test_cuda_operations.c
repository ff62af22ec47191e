// ctest: timeout=600
// Every operation of the CUDA backend against the CPU backend on the same bf16 inputs, over a table
// of shapes. Skipped where no device is.
//
// Bounds: a result stored in bf16 differs from the fp32 one by its rounding, at most 2^-9 of each
// value, 1.7e-3 in L2 for what is spread evenly; 4e-3 allows for twice that. Results in fp32 from
// the same bf16 inputs differ by fp32 rounding only, growing with the length of the sums;
// probabilities use the hardware's exp2, good to 2^-22.
#include "tests/gpu_options.h"
#include "tests/gpu_pairs.h"

typedef struct shape {
    const char *name;
    int64_t T, i0;
    sp_heads heads;
    sp_grid deployed, fine;
    sp_selection s;
    int64_t hidden, ffn;
    float sigma;
} shape;

static const shape shapes[] = {
    {"tiny", 1024, 0, {8, 2, 64}, {8, 4}, {2, 1}, {16, 1, 2, 10, false}, 256, 512, 1},
    {"tiny ragged", 203, 0, {8, 2, 64}, {8, 4}, {2, 1}, {16, 1, 2, 10, true}, 256, 512, 1},
    {"tiny peaked", 203, 0, {8, 2, 64}, {8, 4}, {2, 1}, {16, 1, 2, 10, false}, 256, 512, 4},
    {"one window", 9, 0, {8, 2, 64}, {8, 4}, {2, 1}, {16, 1, 2, 10, false}, 256, 512, 1},
    {"small, blocks of 64",
     700,
     0,
     {32, 2, 128},
     {32, 16},
     {2, 1},
     {64, 1, 2, 6, false},
     64,
     128,
     1},
    {"minicpm", 3000, 0, {32, 2, 128}, {32, 16}, {2, 1}, {64, 1, 4, 16, false}, 512, 1024, 1},
    {"minicpm tile",
     3000,
     2048,
     {32, 2, 128},
     {32, 16},
     {2, 1},
     {64, 1, 4, 16, true},
     512,
     1024,
     1},
    {"minicpm, windows of two thread blocks", // importance.cu: at most 4096 a block
     4800,
     4500,
     {32, 2, 128},
     {32, 16},
     {2, 1},
     {64, 1, 4, 16, false},
     64,
     128,
     1},
    {"native grid", 1500, 0, {32, 2, 128}, {32, 16}, {32, 16}, {64, 1, 4, 12, false}, 512, 1024, 1},
    {"grid 8/4", 777, 0, {4, 4, 64}, {32, 16}, {8, 4}, {64, 1, 2, 6, false}, 264, 520, 1},
    // wide windows at small strides: the last deployed window exists, but alignment gives it
    // nothing
    {"grid 32/1", 1044, 0, {8, 2, 128}, {32, 16}, {32, 1}, {64, 1, 2, 8, false}, 64, 128, 1},
    {"grid 32/2", 1031, 0, {4, 2, 64}, {32, 16}, {32, 2}, {64, 1, 2, 8, false}, 64, 128, 1},
    {"grid 32/4", 1047, 0, {4, 2, 64}, {32, 16}, {32, 4}, {64, 1, 2, 8, false}, 64, 128, 1},
    {"group 3, block 128", 900, 0, {6, 2, 64}, {16, 8}, {2, 1}, {128, 1, 1, 4, false}, 192, 384, 1},
    {"group 5", 500, 0, {10, 2, 64}, {32, 16}, {2, 1}, {64, 1, 1, 4, false}, 192, 384, 1},
    {"group 8", 1300, 0, {16, 2, 128}, {32, 16}, {16, 8}, {64, 2, 3, 9, false}, 256, 256, 1},
};

static void frozen_layers(const shape *c) {
    int64_t R = c->T - c->i0, q_cols = c->heads.q_heads * c->heads.head_dim;
    pair x = random_pair(SP_BF16, R, c->hidden, 1), w = random_pair(SP_BF16, 1, c->hidden, 1);
    pair y = make(SP_BF16, R, c->hidden);
    assert_ok(sp_rmsnorm(x.on_cpu, w.on_cpu, 1e-5f, y.on_cpu));
    assert_ok(sp_rmsnorm(x.on_gpu, w.on_gpu, 1e-5f, y.on_gpu));
    compare(y, "rmsnorm", 4e-3);
    drop(&y);
    pair q_w = random_pair(SP_BF16, q_cols, c->hidden, 0.05f);
    y = make(SP_BF16, R, q_cols);
    assert_ok(sp_linear(x.on_cpu, q_w.on_cpu, y.on_cpu));
    assert_ok(sp_linear(x.on_gpu, q_w.on_gpu, y.on_gpu));
    compare(y, "linear", 4e-3);
    pair cs = random_pair(SP_F32, c->T, c->heads.head_dim / 2, 0.5f);
    pair sn = random_pair(SP_F32, c->T, c->heads.head_dim / 2, 0.5f);
    for (int back = 0; back < 2; back++) {
        assert_ok(sp_rope(y.on_cpu, cs.on_cpu, sn.on_cpu, c->i0, c->heads.head_dim, back));
        assert_ok(sp_rope(y.on_gpu, cs.on_gpu, sn.on_gpu, c->i0, c->heads.head_dim, back));
    }
    compare(y, "rope twice", 8e-3);
    pair branch = random_pair(SP_BF16, R, c->hidden, 1);
    assert_ok(sp_residual_add(x.on_cpu, branch.on_cpu, 0.2475f));
    assert_ok(sp_residual_add(x.on_gpu, branch.on_gpu, 0.2475f));
    compare(x, "residual_add", 4e-3);
    pair gu = random_pair(SP_BF16, R, 2 * c->ffn, 2), act = make(SP_BF16, R, c->ffn);
    assert_ok(sp_swiglu(gu.on_cpu, act.on_cpu));
    assert_ok(sp_swiglu(gu.on_gpu, act.on_gpu));
    compare(act, "swiglu", 4e-3);
    pair dy = random_pair(SP_BF16, R, 2 * c->heads.head_dim, 1);
    pair g = random_pair(SP_F32, 2 * c->heads.head_dim, c->hidden, 1);
    assert_ok(sp_grad_weight(dy.on_cpu, x.on_cpu, g.on_cpu));
    assert_ok(sp_copy(branch.on_gpu, x.on_gpu));
    assert_ok(sp_grad_weight(dy.on_gpu, x.on_gpu, g.on_gpu));
    compare(g, "grad_weight", 4e-3); // x was rounded on one side only
    float *same = malloc((size_t)g.n * sizeof *same);
    double a, b, size;
    assert_ok(sp_download(g.on_gpu, same));
    assert_ok(sp_upload(g.on_cpu, same));
    free(same);
    assert_ok(sp_sum_squares(g.on_cpu, &size));
    assert_ok(sp_sum_squares(g.on_gpu, &b));
    assert_true(fabs(size - b) <= 1e-12 * size); // summed in double on both sides
    assert_ok(sp_sum(g.on_cpu, &a));
    assert_ok(sp_sum(g.on_gpu, &b));
    assert_true(fabs(a - b) <= 1e-12 * sqrt(size * (double)g.n));
    pair *all[] = {&x, &w, &y, &q_w, &cs, &sn, &branch, &gu, &act, &dy, &g};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

// NOSA's importance of the keys (returned), and the lists that follow `shortlist` from it.
static pair second_stage(const shape *c, pair v, pair shortlist) {
    int64_t Hkv = c->heads.kv_heads, kv_cols = Hkv * c->heads.head_dim;
    int64_t nb = (c->T + c->s.block - 1) / c->s.block, k = c->s.topk + 3;
    pair delta = random_pair(SP_BF16, Hkv, kv_cols, 0.1f), scale = random_pair(SP_F32, 1, Hkv, 1);
    pair cis = make(SP_F32, Hkv, c->T), scores = make(SP_F32, Hkv, nb);
    pair order = make(SP_I32, Hkv, nb), lists = make(SP_I32, shortlist.on_cpu.rows, Hkv * k);
    assert_ok(sp_cis(c->heads, v.on_cpu, delta.on_cpu, scale.on_cpu, cis.on_cpu));
    assert_ok(sp_cis(c->heads, v.on_gpu, delta.on_gpu, scale.on_gpu, cis.on_gpu));
    compare(cis, "cis", 2e-6);
    float *same = malloc((size_t)cis.n * sizeof *same);
    assert_ok(sp_download(cis.on_gpu, same)); // the same on both sides from here on
    assert_ok(sp_upload(cis.on_cpu, same));
    free(same);
    assert_ok(sp_cis_blocks(cis.on_cpu, c->deployed, c->s.block, scores.on_cpu, order.on_cpu));
    assert_ok(sp_cis_blocks(cis.on_gpu, c->deployed, c->s.block, scores.on_gpu, order.on_gpu));
    compare(scores, "cis_blocks", 1e-6);
    assert_int_equal(rows_of_different_lists(order), 0);
    assert_ok(
        sp_extend_lists(c->s.block, Hkv, shortlist.on_cpu, c->i0, order.on_cpu, lists.on_cpu));
    assert_ok(
        sp_extend_lists(c->s.block, Hkv, shortlist.on_gpu, c->i0, order.on_gpu, lists.on_gpu));
    assert_int_equal(rows_of_different_lists(lists), 0);
    drop(&delta), drop(&scale), drop(&scores), drop(&order), drop(&lists);
    return cis;
}

static void method(const shape *c) {
    int64_t R = c->T - c->i0, d = c->heads.head_dim, q_cols = c->heads.q_heads * d;
    int64_t kv_cols = c->heads.kv_heads * d, nb = (c->T + c->s.block - 1) / c->s.block;
    int64_t n_d = sp_windows(c->deployed, c->T), n_t = sp_windows(c->fine, c->T);
    bool native = c->fine.kernel == c->deployed.kernel && c->fine.stride == c->deployed.stride;
    pair q = random_pair(SP_BF16, R, q_cols, c->sigma), k = random_pair(SP_BF16, c->T, kv_cols, 1);
    pair v = random_pair(SP_BF16, c->T, kv_cols, 1), f = random_pair(SP_BF16, R, kv_cols, c->sigma);
    pair cd = make(SP_BF16, n_d, kv_cols), ct = make(SP_BF16, n_t, kv_cols);
    assert_ok(sp_compress_keys(k.on_cpu, c->deployed, 0, cd.on_cpu));
    assert_ok(sp_compress_keys(k.on_gpu, c->deployed, 0, cd.on_gpu));
    compare(cd, "compress_keys deployed", 4e-3);
    assert_ok(sp_compress_keys(k.on_cpu, c->fine, 0, ct.on_cpu));
    assert_ok(sp_compress_keys(k.on_gpu, c->fine, 0, ct.on_gpu));
    compare(ct, "compress_keys fine", 4e-3);
    // from here on the same compressed keys on both sides
    float *same = malloc((size_t)(ct.n > cd.n ? ct.n : cd.n) * sizeof *same);
    assert_ok(sp_download(cd.on_gpu, same));
    assert_ok(sp_upload(cd.on_cpu, same));
    assert_ok(sp_download(ct.on_gpu, same));
    assert_ok(sp_upload(ct.on_cpu, same));
    free(same);

    for (int mean = 0; mean < 2; mean++) {
        sp_importance_args a = {.heads = c->heads,
                                .fine = c->fine,
                                .deployed = c->deployed,
                                .n_d = n_d,
                                .align = mean ? SP_ALIGN_MEAN : SP_ALIGN_MAX,
                                .visibility = native ? SP_SEES_COMPLETE : SP_SEES_START};
        pair imp = make(SP_F32, R, c->heads.kv_heads * n_d);
        assert_ok(sp_importance(&a, q.on_cpu, c->i0, ct.on_cpu, imp.on_cpu));
        assert_ok(sp_importance(&a, q.on_gpu, c->i0, ct.on_gpu, imp.on_gpu));
        compare(imp, mean ? "importance mean" : "importance max", 1e-5);
        if (!mean) { // selection and loss from the same importance on both sides
            float *rows = malloc((size_t)imp.n * sizeof *rows);
            assert_ok(sp_download(imp.on_cpu, rows));
            assert_ok(sp_upload(imp.on_gpu, rows));
            free(rows);
            pair scores = make(SP_F32, R, c->heads.kv_heads * nb);
            assert_ok(sp_block_scores(&c->s, c->deployed, c->heads.kv_heads, imp.on_cpu, c->i0, nb,
                                      scores.on_cpu));
            assert_ok(sp_block_scores(&c->s, c->deployed, c->heads.kv_heads, imp.on_gpu, c->i0, nb,
                                      scores.on_gpu));
            compare(scores, "block_scores", 0);
            pair lists = make(SP_I32, R, c->heads.kv_heads * c->s.topk);
            assert_ok(sp_select_blocks(&c->s, c->deployed, c->heads.kv_heads, imp.on_cpu, c->i0, nb,
                                       lists.on_cpu));
            assert_ok(sp_select_blocks(&c->s, c->deployed, c->heads.kv_heads, imp.on_gpu, c->i0, nb,
                                       lists.on_gpu));
            assert_int_equal(rows_of_different_lists(lists), 0);
            for (int ideal = 0; ideal < 2; ideal++) {
                sp_kl_args kl = {.heads = c->heads,
                                 .deployed = c->deployed,
                                 .selection = c->s,
                                 .gradient = ideal ? SP_KL_IDEAL : SP_KL_EXACT,
                                 .weight = 1.0 / (double)(c->heads.kv_heads * c->T)};
                pair loss = make(SP_F32, R, c->heads.kv_heads), df = make(SP_BF16, R, kv_cols);
                pair sp = make(SP_F32, R, c->heads.kv_heads * n_d);
                pair dz = make(SP_F32, R, c->heads.kv_heads * n_d);
                assert_ok(sp_kl(&kl, f.on_cpu, c->i0, cd.on_cpu, imp.on_cpu, lists.on_cpu,
                                loss.on_cpu, df.on_cpu, &sp.on_cpu, &dz.on_cpu));
                assert_ok(sp_kl(&kl, f.on_gpu, c->i0, cd.on_gpu, imp.on_gpu, lists.on_gpu,
                                loss.on_gpu, df.on_gpu, &sp.on_gpu, &dz.on_gpu));
                compare(sp, "kl student_p", 1e-5);
                compare(loss, "kl row_loss", 2e-5);
                compare(dz, "kl dz", 5e-5);
                compare(df, "kl df", 8e-3);
                // without the optional outputs the same
                assert_ok(sp_fill(df.on_gpu, NAN));
                assert_ok(sp_kl(&kl, f.on_gpu, c->i0, cd.on_gpu, imp.on_gpu, lists.on_gpu,
                                loss.on_gpu, df.on_gpu, NULL, NULL));
                compare(df, "kl df, no probes", 8e-3);
                drop(&loss), drop(&df), drop(&sp), drop(&dz);
            }
            pair cis = second_stage(c, v, lists);
            pair attn = make(SP_BF16, R, q_cols);
            for (int biased = 0; biased < 2; biased++) {
                sp_tensor cpu_bias = biased ? cis.on_cpu : SP_NO_TENSOR;
                sp_tensor gpu_bias = biased ? cis.on_gpu : SP_NO_TENSOR;
                assert_ok(sp_fill(attn.on_gpu, NAN));
                assert_ok(sp_sparse_attention(c->heads, q.on_cpu, c->i0, k.on_cpu, v.on_cpu,
                                              cpu_bias, lists.on_cpu, c->s.block, attn.on_cpu));
                assert_ok(sp_sparse_attention(c->heads, q.on_gpu, c->i0, k.on_gpu, v.on_gpu,
                                              gpu_bias, lists.on_gpu, c->s.block, attn.on_gpu));
                // probabilities are rounded to bf16 too
                compare(attn, biased ? "sparse_attention, bias" : "sparse_attention", 6e-3);
                assert_ok(sp_fill(attn.on_gpu, NAN));
                assert_ok(sp_dense_attention(c->heads, q.on_cpu, c->i0, k.on_cpu, v.on_cpu,
                                             cpu_bias, attn.on_cpu));
                assert_ok(sp_dense_attention(c->heads, q.on_gpu, c->i0, k.on_gpu, v.on_gpu,
                                             gpu_bias, attn.on_gpu));
                compare(attn, biased ? "dense_attention, bias" : "dense_attention", 6e-3);
            }
            drop(&attn), drop(&scores), drop(&lists), drop(&cis);
        }
        drop(&imp);
    }
    pair raw = make(SP_F32, R, c->heads.kv_heads * n_d);
    for (int complete = 0; complete < 2; complete++) {
        sp_visibility see = complete ? SP_SEES_COMPLETE : SP_SEES_START;
        assert_ok(
            sp_forecast_scores(c->heads, c->deployed, see, f.on_cpu, c->i0, cd.on_cpu, raw.on_cpu));
        assert_ok(
            sp_forecast_scores(c->heads, c->deployed, see, f.on_gpu, c->i0, cd.on_gpu, raw.on_gpu));
        compare(raw, "forecast_scores", 1e-5);
    }
    drop(&raw);
    pair *all[] = {&q, &k, &v, &f, &cd, &ct};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

static size_t n_shapes = sizeof shapes / sizeof *shapes;
// Of unlike_rows_and_logits, products_of_many_shapes; fewer under a sanitizer.
static int64_t unlike_rows = 2000, many_products = 1500;

static void operations_agree_with_the_cpu(void **state) {
    (void)state;
    for (size_t i = 0; i < n_shapes; i++) {
        printf("  %s\n", shapes[i].name);
        frozen_layers(&shapes[i]);
        method(&shapes[i]);
    }
}

// Logits that rise, or fall, along the keys, by 100 or by 10 from row to row and head to head: sums
// that were scaled for the first keys must not overflow, or vanish, at the last, nor what becomes
// of a row depend on the rows beside it. Queries point along one direction, keys lie on it.
static void set_rising(pair q, pair k, sp_heads h, float from, float to) {
    float *x = malloc((size_t)(q.n > k.n ? q.n : k.n) * sizeof *x), length = 1;
    for (int64_t i = 0; i < q.n; i++) {
        if (i % h.head_dim == 0) length = test_uniform(&seed, 0, 1) < 0.5f ? 1 : 0.1f;
        x[i] = sp_bf16_to_f32(sp_f32_to_bf16(length * (1 + test_uniform(&seed, -0.1f, 0.1f))));
    }
    assert_ok(sp_upload(q.on_cpu, x));
    assert_ok(sp_upload(q.on_gpu, x));
    for (int64_t j = 0; j < k.on_cpu.rows; j++)
        for (int64_t c = 0; c < k.on_cpu.cols; c++) {
            float at = (float)j / (float)k.on_cpu.rows, along = from + (to - from) * at;
            float y = along / sqrtf((float)h.head_dim) * (1 + test_uniform(&seed, -0.1f, 0.1f));
            x[j * k.on_cpu.cols + c] = sp_bf16_to_f32(sp_f32_to_bf16(y));
        }
    assert_ok(sp_upload(k.on_cpu, x));
    assert_ok(sp_upload(k.on_gpu, x));
    free(x);
}

// Rows that share a thread block of sparse_attention_sm90.cuh but, warpgroup by warpgroup, no other
// block than their own: the first third of the blocks, the second, the last.
static void set_apart(pair lists, sp_heads h, int64_t block) {
    int64_t k = lists.on_cpu.cols / h.kv_heads, rows = lists.on_cpu.rows;
    int64_t of_warpgroup = 64 / (h.q_heads / h.kv_heads);
    int32_t *x = malloc((size_t)lists.n * sizeof *x);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t head = 0; head < h.kv_heads; head++) {
            int32_t *list = x + r * lists.on_cpu.cols + head * k;
            int64_t own = r / block, part = (r / of_warpgroup + head) % 3, n = 0;
            for (int64_t b = own * part / 3; b < own * (part + 1) / 3 && n + 1 < k; b++)
                list[n++] = (int32_t)b;
            list[n++] = (int32_t)own;
            while (n < k) list[n++] = -1;
        }
    assert_ok(sp_upload(lists.on_cpu, x));
    assert_ok(sp_upload(lists.on_gpu, x));
    free(x);
}

static void unlike_rows_and_logits(void **state) {
    (void)state;
    const sp_heads of[] = {{32, 2, 128}, {8, 2, 64}, {12, 4, 128}};
    const sp_grid fine = {2, 1}, deployed = {32, 16};
    const int64_t T = unlike_rows;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int falling = 0; falling < 2; falling++) {
            sp_heads h = of[i];
            int64_t q_cols = h.q_heads * h.head_dim, kv_cols = h.kv_heads * h.head_dim;
            int64_t n_d = sp_windows(deployed, T), n_t = sp_windows(fine, T);
            pair q = make(SP_BF16, T, q_cols), k = make(SP_BF16, T, kv_cols);
            pair ct = make(SP_BF16, n_t, kv_cols), v = random_pair(SP_BF16, T, kv_cols, 1);
            set_rising(q, k, h, falling ? 60 : -40, falling ? -40 : 60);
            set_rising(q, ct, h, falling ? 60 : -40, falling ? -40 : 60);
            sp_importance_args a = {h, fine, deployed, n_d, SP_ALIGN_MAX, SP_SEES_START};
            pair imp = make(SP_F32, T, h.kv_heads * n_d);
            assert_ok(sp_importance(&a, q.on_cpu, 0, ct.on_cpu, imp.on_cpu));
            assert_ok(sp_importance(&a, q.on_gpu, 0, ct.on_gpu, imp.on_gpu));
            // logits up to 60 from 128 products, on both sides: 2 * 60 * 2^-24 * sqrt(128)
            compare(imp, "importance, far apart", 8e-5);
            const int64_t first = 37; // the rows of a thread block, and of a warp, are others
            sp_tensor q_part = sp_tensor_rows(q.on_gpu, first, T - first);
            pair imp_part = make(SP_F32, T - first, h.kv_heads * n_d);
            assert_ok(sp_importance(&a, q_part, first, ct.on_gpu, imp_part.on_gpu));
            same_bits(imp.on_gpu, imp_part.on_gpu, first, "importance");
            pair lists = make(SP_I32, T, h.kv_heads * 12), out = make(SP_BF16, T, q_cols);
            set_apart(lists, h, 64);
            assert_ok(sp_sparse_attention(h, q.on_cpu, 0, k.on_cpu, v.on_cpu, SP_NO_TENSOR,
                                          lists.on_cpu, 64, out.on_cpu));
            assert_ok(sp_sparse_attention(h, q.on_gpu, 0, k.on_gpu, v.on_gpu, SP_NO_TENSOR,
                                          lists.on_gpu, 64, out.on_gpu));
            compare(out, "sparse_attention, far apart", 6e-3);
            pair out_part = make(SP_BF16, T - first, q_cols);
            assert_ok(sp_sparse_attention(h, q_part, first, k.on_gpu, v.on_gpu, SP_NO_TENSOR,
                                          sp_tensor_rows(lists.on_gpu, first, T - first), 64,
                                          out_part.on_gpu));
            same_bits(out.on_gpu, out_part.on_gpu, first, "sparse_attention");
            assert_ok(
                sp_dense_attention(h, q.on_cpu, 0, k.on_cpu, v.on_cpu, SP_NO_TENSOR, out.on_cpu));
            assert_ok(
                sp_dense_attention(h, q.on_gpu, 0, k.on_gpu, v.on_gpu, SP_NO_TENSOR, out.on_gpu));
            compare(out, "dense_attention, far apart", 6e-3);
            assert_ok(sp_dense_attention(h, q_part, first, k.on_gpu, v.on_gpu, SP_NO_TENSOR,
                                         out_part.on_gpu));
            same_bits(out.on_gpu, out_part.on_gpu, first, "dense_attention");
            pair *all[] = {&q, &k, &ct, &v, &imp, &imp_part, &lists, &out, &out_part};
            for (size_t n = 0; n < sizeof all / sizeof *all; n++) drop(all[n]);
        }
}

// A window that is NaN counts as absent, and so does a block of nothing else.
static void lists_of_rows_with_nan(void **state) {
    (void)state;
    const sp_grid deployed = {32, 16};
    for (int future = 0; future < 2; future++) {
        const sp_selection s = {64, 1, 2, 12, future};
        const int64_t T = 3000, n_d = sp_windows(deployed, T), nb = (T + 63) / 64, rows = 500;
        pair a = random_pair(SP_F32, rows, 2 * n_d, 1);
        float *x = malloc((size_t)a.n * sizeof *x);
        assert_ok(sp_download(a.on_cpu, x));
        for (int64_t i = 0; i < a.n; i += 6)
            if (test_uniform(&seed, 0, 1) < 0.4f)
                for (int64_t j = i; j < i + 6 && j < a.n; j++) x[j] = NAN;
        assert_ok(sp_upload(a.on_cpu, x));
        assert_ok(sp_upload(a.on_gpu, x));
        free(x);
        pair lists = make(SP_I32, rows, 2 * s.topk);
        assert_ok(sp_select_blocks(&s, deployed, 2, a.on_cpu, T - rows, nb, lists.on_cpu));
        assert_ok(sp_select_blocks(&s, deployed, 2, a.on_gpu, T - rows, nb, lists.on_gpu));
        assert_int_equal(rows_of_different_lists(lists), 0);
        drop(&a), drop(&lists);
    }
}

static void set(pair p, const float *x) {
    assert_ok(sp_upload(p.on_cpu, x));
    assert_ok(sp_upload(p.on_gpu, x));
}

// A student that leaves 2^-131 to what is outside its list, where the teacher has half: by the
// ideal gradient the cells outside get nothing, not infinity.
static void remainder_too_small_to_divide_by(void **state) {
    (void)state;
    enum { D = 64, K = 20, T = 512, CELLS = 127, WHERE = T - 1, OF_LIST = 10, OUTSIDE = 100 };
    float query[D] = {16}, key[CELLS * D] = {0}, mass[CELLS] = {0};
    for (int j = 0; j < CELLS; j++) key[j * D] = j >= 4 && j < 68 ? 0 : -100; // blocks 1 to 16
    key[OUTSIDE * D] = -43.5f;
    mass[OF_LIST] = mass[OUTSIDE] = 0.5f;
    int32_t list[K] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 29, 30, 31};
    pair f = make(SP_BF16, 1, D), c = make(SP_BF16, CELLS, D), a = make(SP_F32, 1, CELLS);
    pair lists = make(SP_I32, 1, K), loss = make(SP_F32, 1, 1), df = make(SP_BF16, 1, D);
    for (int i = 0; i < D; i++) key[OF_LIST * D + i] = i == 1; // so that df is not 0
    set(f, query), set(c, key), set(a, mass);
    assert_ok(sp_upload(lists.on_cpu, list));
    assert_ok(sp_upload(lists.on_gpu, list));
    const sp_kl_args kl = {.heads = {1, 1, D},
                           .deployed = {8, 4},
                           .selection = {16, 1, 2, K, false},
                           .gradient = SP_KL_IDEAL,
                           .weight = 1};
    assert_ok(sp_kl(&kl, f.on_cpu, WHERE, c.on_cpu, a.on_cpu, lists.on_cpu, loss.on_cpu, df.on_cpu,
                    NULL, NULL));
    assert_ok(sp_kl(&kl, f.on_gpu, WHERE, c.on_gpu, a.on_gpu, lists.on_gpu, loss.on_gpu, df.on_gpu,
                    NULL, NULL));
    compare(loss, "kl row_loss", 2e-5);
    compare(df, "kl df", 8e-3);
    pair *all[] = {&f, &c, &a, &lists, &loss, &df};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

// No windows: no loss, and a gradient that is 0, not what was there before.
static void loss_without_windows(void **state) {
    (void)state;
    const sp_heads h = {4, 2, 64};
    const sp_selection s = {64, 1, 2, 6, false};
    const sp_kl_args kl = {h, {32, 16}, s, SP_KL_EXACT, 1};
    pair f = random_pair(SP_BF16, 16, 128, 1), c = make(SP_BF16, 1, 128), a = make(SP_F32, 16, 2);
    pair lists = make(SP_I32, 16, 2 * s.topk), loss = make(SP_F32, 16, 2);
    pair df = make(SP_BF16, 16, 128);
    assert_ok(sp_kl(&kl, f.on_gpu, 0, sp_tensor_rows(c.on_gpu, 0, 0),
                    sp_tensor_cols(a.on_gpu, 0, 0), lists.on_gpu, loss.on_gpu, df.on_gpu, NULL,
                    NULL));
    double sum;
    assert_ok(sp_sum(loss.on_gpu, &sum));
    assert_true(sum == 0);
    float *x = malloc((size_t)df.n * sizeof *x);
    assert_ok(sp_download(df.on_gpu, x));
    for (int64_t i = 0; i < df.n; i++) assert_true(x[i] == 0);
    free(x);
    pair *all[] = {&f, &c, &a, &lists, &loss, &df};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

// Keys and values of tokens that come later, here in the last row's own block, are not even
// multiplied by 0; and keys may have more rows than values.
static void tokens_that_come_later(void **state) {
    (void)state;
    const sp_heads of[] = {{32, 2, 128}, {4, 2, 64}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const sp_heads h = of[i];
        enum { R = 65, MORE = 128, K = 2 };
        int64_t kv_cols = h.kv_heads * h.head_dim;
        pair q = random_pair(SP_BF16, R, h.q_heads * h.head_dim, 1);
        pair k = random_pair(SP_BF16, MORE, kv_cols, 1), v = random_pair(SP_BF16, MORE, kv_cols, 1);
        sp_tensor later[] = {k.on_cpu, k.on_gpu, v.on_cpu, v.on_gpu};
        for (int t = 0; t < 4; t++) assert_ok(sp_fill(sp_tensor_rows(later[t], R, MORE - R), NAN));
        pair lists = make(SP_I32, R, h.kv_heads * K), out = make(SP_BF16, R, q.on_cpu.cols);
        int32_t *x = malloc((size_t)lists.n * sizeof *x);
        for (int64_t n = 0; n < lists.n; n++)
            x[n] = n % K == 0 ? 0 : n / lists.on_cpu.cols == R - 1 ? 1 : -1;
        assert_ok(sp_upload(lists.on_cpu, x));
        assert_ok(sp_upload(lists.on_gpu, x));
        free(x);
        for (int few = 0; few < 2; few++) {
            sp_tensor values = few ? sp_tensor_rows(v.on_gpu, 0, R) : v.on_gpu;
            assert_ok(sp_sparse_attention(h, q.on_cpu, 0, k.on_cpu, v.on_cpu, SP_NO_TENSOR,
                                          lists.on_cpu, 64, out.on_cpu));
            assert_ok(sp_sparse_attention(h, q.on_gpu, 0, k.on_gpu, values, SP_NO_TENSOR,
                                          lists.on_gpu, 64, out.on_gpu));
            compare(out, "sparse_attention, NaN later", 6e-3);
            assert_ok(
                sp_dense_attention(h, q.on_cpu, 0, k.on_cpu, v.on_cpu, SP_NO_TENSOR, out.on_cpu));
            assert_ok(
                sp_dense_attention(h, q.on_gpu, 0, k.on_gpu, values, SP_NO_TENSOR, out.on_gpu));
            compare(out, "dense_attention, NaN later", 6e-3);
        }
        pair *all[] = {&q, &k, &v, &lists, &out};
        for (size_t n = 0; n < sizeof all / sizeof *all; n++) drop(all[n]);
    }
}

// Views whose rows begin at odd places: attention takes a slower kernel, importance refuses them.
static void views_at_odd_places(void **state) {
    (void)state;
    const sp_heads h = {8, 2, 64};
    enum { R = 200, Q = 512, KV = 128 };
    pair all = random_pair(SP_BF16, R, 3 + Q + 2 * KV, 1), out = make(SP_BF16, R, Q);
    sp_tensor side[2] = {all.on_cpu, all.on_gpu}, q[2], k[2], v[2];
    for (int i = 0; i < 2; i++) {
        q[i] = sp_tensor_cols(side[i], 3, Q);
        k[i] = sp_tensor_cols(side[i], 3 + Q, KV);
        v[i] = sp_tensor_cols(side[i], 3 + Q + KV, KV);
    }
    assert_ok(sp_dense_attention(h, q[0], 0, k[0], v[0], SP_NO_TENSOR, out.on_cpu));
    assert_ok(sp_dense_attention(h, q[1], 0, k[1], v[1], SP_NO_TENSOR, out.on_gpu));
    compare(out, "dense_attention, odd places", 6e-3);
    const sp_importance_args a = {h, {2, 1}, {32, 16}, 11, SP_ALIGN_MAX, SP_SEES_START};
    pair imp = make(SP_F32, R, 2 * 11);
    assert_fails(sp_importance(&a, q[1], 0, sp_tensor_rows(k[1], 0, R - 1), imp.on_gpu),
                 SP_ENVIRONMENT, "multiples of 16 bytes");
    drop(&all), drop(&out), drop(&imp);
}

// More shapes than plans are kept, used again in two orders.
static void products_of_many_shapes(void **state) {
    (void)state;
    const int64_t most = many_products;
    pair x = random_pair(SP_BF16, most, 16, 1), w = random_pair(SP_BF16, 8, 16, 1);
    pair y = make(SP_BF16, most, 8);
    assert_ok(sp_linear(x.on_cpu, w.on_cpu, y.on_cpu));
    for (int back = 0; back < 2; back++) {
        for (int64_t i = 1; i <= most; i++) {
            int64_t n = back ? most + 1 - i : i;
            assert_ok(sp_linear(sp_tensor_rows(x.on_gpu, 0, n), w.on_gpu,
                                sp_tensor_rows(y.on_gpu, 0, n)));
        }
        if (back) // the last product made one row
            assert_ok(sp_linear(x.on_gpu, w.on_gpu, y.on_gpu));
        compare(y, "linear, many shapes", 4e-3);
        assert_ok(sp_fill(y.on_gpu, NAN));
    }
    drop(&x), drop(&w), drop(&y);
}

// Sequences that a kernel has no room for are refused when asked, with the reason.
static void lengths_that_do_not_fit(void **state) {
    (void)state;
    sp_shapes s = {{32, 2, 128}, {2, 1}, {32, 16}, 64, 96, 1 << 20};
    assert_ok(sp_backend_supports(gpu, &s));
    assert_ok(sp_backend_supports(cpu, &s));
    s.tokens = 1 << 24;
    assert_ok(sp_backend_supports(cpu, &s));
    assert_fails(sp_backend_supports(gpu, &s), SP_ENVIRONMENT, "rows of 262144 blocks");
    s = (sp_shapes){{4, 2, 64}, {2, 1}, {16, 1}, 128, 96, 1 << 21};
    assert_fails(sp_backend_supports(gpu, &s), SP_ENVIRONMENT, "rows of 2097137 windows");
}

static void optimiser_and_tables(void **state) {
    (void)state;
    pair w = random_pair(SP_F32, 100, 77, 1), g = random_pair(SP_F32, 100, 77, 1);
    pair m = make(SP_F32, 100, 77), v = make(SP_F32, 100, 77);
    assert_ok(sp_fill(m.on_cpu, 0));
    assert_ok(sp_fill(m.on_gpu, 0));
    assert_ok(sp_fill(v.on_cpu, 0));
    assert_ok(sp_fill(v.on_gpu, 0));
    for (int64_t step = 1; step <= 3; step++) {
        sp_adamw_args a = {1e-3f, 0.9f, 0.95f, 1e-6f, 0.01f, 0.5f, step};
        assert_ok(sp_adamw(&a, w.on_cpu, m.on_cpu, v.on_cpu, g.on_cpu));
        assert_ok(sp_adamw(&a, w.on_gpu, m.on_gpu, v.on_gpu, g.on_gpu));
    }
    compare(w, "adamw weights", 1e-6);
    compare(v, "adamw second moment", 1e-6);
    pair table = random_pair(SP_BF16, 50, 24, 1), out = make(SP_BF16, 3, 24);
    pair ids = make(SP_I32, 3, 1);
    const int32_t tokens[3] = {49, 0, 7}, wrong[3] = {1, 50, 2};
    assert_ok(sp_upload(ids.on_cpu, tokens));
    assert_ok(sp_upload(ids.on_gpu, tokens));
    assert_ok(sp_embed(ids.on_cpu, table.on_cpu, 12, out.on_cpu));
    assert_ok(sp_embed(ids.on_gpu, table.on_gpu, 12, out.on_gpu));
    compare(out, "embed", 4e-3);
    assert_ok(sp_upload(ids.on_gpu, wrong));
    assert_fails(sp_embed(ids.on_gpu, table.on_gpu, 12, out.on_gpu), SP_BAD_INPUT, "position 1");
    pair *all[] = {&w, &g, &m, &v, &table, &out, &ids};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
}

int main(int argc, char **argv) {
    const gpu_options options = gpu_options_of(argc, argv);
    if (!gpu_opens(options, &gpu, &cpu)) return 0;
    if (options.small) n_shapes = 5, unlike_rows = 700, many_products = 40;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_the_cpu),
        cmocka_unit_test(unlike_rows_and_logits),
        cmocka_unit_test(lists_of_rows_with_nan),
        cmocka_unit_test(remainder_too_small_to_divide_by),
        cmocka_unit_test(loss_without_windows),
        cmocka_unit_test(tokens_that_come_later),
        cmocka_unit_test(views_at_odd_places),
        cmocka_unit_test(products_of_many_shapes),
        cmocka_unit_test(lengths_that_do_not_fit),
        cmocka_unit_test(optimiser_and_tables),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sp_backend_close(gpu);
    sp_backend_close(cpu);
    return failed;
}
