// sp_dense_attention and sp_sparse_attention: the example, golden arrays, a slow version.
#include "tests/golden.h"
#include "tests/guarded.h"
#include "tests/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    sp_heads heads;
    int64_t T, q0, block, slots;
    float spread;
} shape;

static const shape shapes[] = {
    {{8, 2, 64}, 203, 0, 16, 10, 1}, {{8, 2, 64}, 300, 263, 16, 10, 1},
    {{8, 2, 64}, 1, 0, 16, 10, 1},   {{8, 2, 64}, 15, 0, 16, 2, 1},
    {{8, 2, 64}, 17, 0, 16, 2, 1},   {{4, 4, 8}, 65, 0, 12, 3, 1},
    {{5, 1, 6}, 33, 7, 5, 4, 1},     {{16, 1, 32}, 64, 0, 64, 1, 1},
    {{7, 7, 2}, 40, 0, 1, 40, 1},    {{8, 2, 64}, 130, 0, 16, 10, 6},
    {{3, 1, 128}, 33, 32, 8, 0, 1},
};

// Random lists: ascending, -1 anywhere, sometimes empty, sometimes with blocks of the future.
static void random_list(uint64_t *seed, int32_t *list, int64_t slots, int64_t nb) {
    int64_t b = 0;
    bool empty = test_random(seed) % 16 == 0;
    for (int64_t s = 0; s < slots; s++) {
        b += (int64_t)(test_random(seed) % 3);
        bool none = empty || b >= nb || test_random(seed) % 5 == 0;
        list[s] = none ? -1 : (int32_t)b++;
    }
}

static void slow_version(sp_backend *be) {
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const shape *x = &shapes[s];
        int64_t R = x->T - x->q0, qw = x->heads.q_heads * x->heads.head_dim;
        int64_t kw = x->heads.kv_heads * x->heads.head_dim, Hkv = x->heads.kv_heads;
        uint64_t seed = s + 100;
        float *qv = test_values(&seed, R * qw, -x->spread, x->spread);
        float *kv = test_values(&seed, x->T * kw, -x->spread, x->spread);
        float *vv = test_values(&seed, x->T * kw, -1, 1);
        float *bv = test_values(&seed, Hkv * x->T, 0, 4);
        int32_t *lv = malloc((size_t)(R * Hkv * x->slots + 1) * sizeof *lv);
        for (int64_t r = 0; r < R * Hkv; r++)
            random_list(&seed, lv + r * x->slots, x->slots, (x->T + x->block - 1) / x->block);
        double *exact = malloc((size_t)(R * qw) * sizeof *exact);
        float *want = malloc((size_t)(R * qw) * sizeof *want);
        test_guarded q = test_input(be, qv, R, qw), k = test_input(be, kv, x->T, kw);
        test_guarded v = test_input(be, vv, x->T, kw),
                     l = test_input_i32(be, lv, R, Hkv * x->slots);
        test_guarded b = test_input(be, bv, Hkv, x->T);
        for (int form = 0; form < 4; form++) {
            bool sparse = form & 1, biased = form & 2;
            test_guarded out = test_output(be, R, qw);
            sp_tensor bias = biased ? b.t : SP_NO_TENSOR;
            if (sparse)
                assert_ok(sp_sparse_attention(x->heads, q.t, x->q0, k.t, v.t, bias, l.t, x->block,
                                              out.t));
            else
                assert_ok(sp_dense_attention(x->heads, q.t, x->q0, k.t, v.t, bias, out.t));
            ref_attention(x->heads, qv, R, x->q0, kv, vv, biased ? bv : NULL, sparse ? lv : NULL,
                          x->slots, x->block, exact);
            for (int64_t i = 0; i < R * qw; i++) want[i] = (float)exact[i];
            float *got = test_take(&out, sparse ? "sparse" : "dense");
            double error = test_rel_error(got, want, R * qw);
            if (!(error < (x->spread > 1 ? 3e-5 : 2e-6)))
                fail_msg("%s%s, shape %d: error %g", sparse ? "sparse" : "dense",
                         biased ? " with a bias" : "", (int)s, error);
            free(got);
        }
        test_drop(&q), test_drop(&k), test_drop(&v), test_drop(&l), test_drop(&b);
        free(qv), free(kv), free(vv), free(bv), free(lv), free(exact), free(want);
    }
}

static void awkward_shapes(void **state) {
    (void)state;
    test_each_isa(test_backend(), slow_version);
}

static void example(void **state) {
    (void)state;
    json_t *x = test_example("sparse_attention");
    float *qv = test_floats(x, "Q", 32), *kv = test_floats(x, "K", 16),
          *vv = test_floats(x, "V", 16);
    float *bv = test_floats(x, "cis", 8);
    int32_t lists[8 * 3];
    json_t *sel = json_array_get(json_object_get(x, "sel"), 0);
    for (size_t r = 0; r < 8; r++)
        for (size_t s = 0; s < 3; s++) {
            json_t *entry = json_array_get(json_array_get(sel, r), s);
            lists[r * 3 + s] = entry ? (int32_t)json_integer_value(entry) : -1;
        }
    sp_backend *be = test_backend();
    test_guarded q = test_input(be, qv, 8, 4), k = test_input(be, kv, 8, 2),
                 v = test_input(be, vv, 8, 2);
    test_guarded l = test_input_i32(be, lists, 8, 3), b = test_input(be, bv, 1, 8);
    for (int biased = 0; biased < 2; biased++) {
        test_guarded out = test_output(be, 8, 4);
        assert_ok(sp_sparse_attention((sp_heads){2, 1, 2}, q.t, 0, k.t, v.t,
                                      biased ? b.t : SP_NO_TENSOR, l.t, 2, out.t));
        float *got = test_take(&out, "example");
        float *want = test_floats(x, biased ? "out_nosa" : "out", 32);
        assert_close(biased ? "with a bias" : "without", got, want, 32, 1e-6);
        free(want), free(got);
    }
    test_drop(&q), test_drop(&k), test_drop(&v), test_drop(&l), test_drop(&b);
    free(qv), free(kv), free(vv), free(bv);
}

static void golden_layer(void **state) {
    (void)state;
    enum { T = 256 };
    sp_backend *be = test_backend();
    int32_t *lists = golden_bits("forward", "lists.bits", 6, 2, T, 10);
    test_guarded q = test_golden(be, "forward", "q.3", T, 0, T, 512);
    test_guarded k = test_golden(be, "forward", "k.3", T, 0, T, 128);
    test_guarded v = test_golden(be, "forward", "v.3", T, 0, T, 128);
    test_guarded l = test_input_i32(be, lists + 3 * T * 20, T, 20), out = test_output(be, T, 512);
    assert_ok(
        sp_sparse_attention((sp_heads){8, 2, 64}, q.t, 0, k.t, v.t, SP_NO_TENSOR, l.t, 16, out.t));
    float *got = test_take(&out, "attn"), *want = golden_f32("forward", "attn.3", T * 512);
    assert_close("attn.3", got, want, T * 512, 1e-5);
    test_drop(&q), test_drop(&k), test_drop(&v), test_drop(&l);
    free(got), free(want), free(lists);
}

// Lists that hold every block give dense attention; a row does not depend on its tile.
static void all_blocks_and_tiles(void **state) {
    (void)state;
    enum { T = 150, NB = 10 };
    sp_backend *be = test_backend();
    uint64_t seed = 4;
    sp_heads heads = {8, 2, 64};
    float *qv = test_values(&seed, T * 512, -1, 1), *kv = test_values(&seed, T * 128, -1, 1);
    int32_t lists[T * 2 * NB];
    for (int e = 0; e < T * 2 * NB; e++) lists[e] = e % NB;
    test_guarded q = test_input(be, qv, T, 512), k = test_input(be, kv, T, 128);
    test_guarded l = test_input_i32(be, lists, T, 2 * NB);
    test_guarded dense = test_output(be, T, 512), parts = test_output(be, T, 512);
    test_guarded sparse = test_output(be, T, 512), sparse_parts = test_output(be, T, 512);
    assert_ok(sp_dense_attention(heads, q.t, 0, k.t, k.t, SP_NO_TENSOR, dense.t));
    assert_ok(sp_sparse_attention(heads, q.t, 0, k.t, k.t, SP_NO_TENSOR, l.t, 16, sparse.t));
    for (int64_t i = 0, n; i < T; i += n) {
        n = i + 37 < T ? 37 : T - i;
        sp_tensor qi = sp_tensor_rows(q.t, i, n);
        assert_ok(sp_dense_attention(heads, qi, i, k.t, k.t, SP_NO_TENSOR,
                                     sp_tensor_rows(parts.t, i, n)));
        assert_ok(sp_sparse_attention(heads, qi, i, k.t, k.t, SP_NO_TENSOR,
                                      sp_tensor_rows(l.t, i, n), 16,
                                      sp_tensor_rows(sparse_parts.t, i, n)));
    }
    float *d = test_take(&dense, "dense"), *dp = test_take(&parts, "parts");
    float *s = test_take(&sparse, "sparse"), *sp = test_take(&sparse_parts, "sparse parts");
    assert_memory_equal(d, dp, T * 512 * sizeof(float));
    assert_memory_equal(s, sp, T * 512 * sizeof(float));
    assert_close("all blocks", s, d, T * 512, 2e-6);
    test_drop(&q), test_drop(&k), test_drop(&l);
    free(qv), free(kv), free(d), free(dp), free(s), free(sp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(awkward_shapes),
        cmocka_unit_test(example),
        cmocka_unit_test(golden_layer),
        cmocka_unit_test(all_blocks_and_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
