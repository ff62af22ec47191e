// The pieces of the frozen layers; their numbers are compared with golden values in
// test_selection.c, which runs them all.
#include "common/util.h"
#include "tests/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 256, T0 = 256, VOCAB = 1024 };

static sp_rope_table rope_of(const sp_model *m, int64_t T) {
    sp_rope_table t;
    assert_ok(sp_rope_table_make(m->backend, m->desc, T, false, &t));
    return t;
}

static void embedding_is_scaled(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    float *hidden = golden_f32("forward", "hidden", 7 * T0 / 8 * D);
    sp_workspace w;
    assert_ok(sp_workspace_make(m, T0, &w));
    assert_ok(sp_forward_embed(m, &w, tokens, T0));
    assert_rows_close("h", w.h, 7, 8, hidden, 1e-7);
    sp_workspace_free(&w);
    sp_workspace_free(&w); // harmless
    free(tokens), free(hidden);
}

// In training the last layer has no values; queries and keys must not change by that, and the value
// columns must not be written.
static void queries_and_keys_without_values(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    enum { T = 37 };
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    sp_rope_table rope = rope_of(m, T);
    sp_workspace w;
    assert_ok(sp_workspace_make(m, T0, &w));
    assert_ok(sp_forward_embed(m, &w, tokens, T));
    assert_ok(sp_forward_qkv(m, &w, 2, T, &rope, 0, true));
    float *q = test_download(sp_workspace_q(m, &w, T)),
          *k = test_download(sp_workspace_k(m, &w, T));
    assert_ok(sp_fill(w.qkv, 7));
    assert_ok(sp_forward_qkv(m, &w, 2, T, &rope, 0, false));
    sp_tensor v = sp_workspace_v(m, &w, T);
    assert_tensor_close("q", sp_workspace_q(m, &w, T), q, 1e-6);
    assert_tensor_close("k", sp_workspace_k(m, &w, T), k, 1e-6);
    float *values = test_download(v);
    for (int64_t i = 0; i < v.rows * v.cols; i++) assert_true(values[i] == 7);
    float *beyond = test_download(sp_tensor_rows(w.qkv, T, T0 - T));
    for (int64_t i = 0; i < (T0 - T) * w.qkv.cols; i++) assert_true(beyond[i] == 7);
    free(q), free(k), free(values), free(beyond), free(tokens);
    sp_rope_table_free(&rope);
    sp_workspace_free(&w);
}

// Positions: rows computed alone at position pos0 equal the same rows of the whole.
static void chunk_at_a_position(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    enum { T = 61, POS0 = 23 };
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    sp_rope_table rope = rope_of(m, T);
    sp_workspace w;
    assert_ok(sp_workspace_make(m, T, &w));
    assert_ok(sp_forward_embed(m, &w, tokens, T));
    assert_ok(sp_forward_qkv(m, &w, 1, T, &rope, 0, true));
    float *whole = test_download(w.qkv);
    assert_ok(sp_forward_embed(m, &w, tokens + POS0, T - POS0));
    assert_ok(sp_forward_qkv(m, &w, 1, T - POS0, &rope, POS0, true));
    assert_tensor_close("qkv", sp_tensor_rows(w.qkv, 0, T - POS0), whole + POS0 * w.qkv.cols, 1e-6);
    free(whole), free(tokens);
    sp_rope_table_free(&rope);
    sp_workspace_free(&w);
}

static void tail_keeps_the_attention_input(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    enum { T = 19 };
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    sp_rope_table rope = rope_of(m, T);
    sp_workspace w;
    assert_ok(sp_workspace_make(m, T, &w));
    assert_ok(sp_forward_embed(m, &w, tokens, T));
    assert_ok(sp_forward_qkv(m, &w, 0, T, &rope, 0, true));
    float *x = test_download(w.x), *h = test_download(w.h);
    assert_ok(sp_fill(w.attn, 0.25f));
    assert_ok(sp_forward_tail(m, &w, 0, T));
    float *x_after = test_download(w.x), *h_after = test_download(w.h);
    assert_memory_equal(x, x_after, T * D * sizeof *x);
    assert_true(test_rel_error(h_after, h, T * D) > 0.01);
    free(x), free(h), free(x_after), free(h_after), free(tokens);
    sp_rope_table_free(&rope);
    sp_workspace_free(&w);
}

static void logits_of_chosen_rows(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    int32_t *tokens = golden_i32("forward", "tokens", T0);
    sp_workspace w;
    sp_tensor all, some;
    assert_ok(sp_workspace_make(m, T0, &w));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, T0, VOCAB, "logits", &all));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, 2, VOCAB, "logits", &some));
    assert_ok(sp_forward_embed(m, &w, tokens, T0));
    assert_ok(sp_forward_logits(m, &w, 0, T0, all));
    float *want = test_download(all);
    static const int64_t row0[] = {0, 101, T0 - 2};
    for (int i = 0; i < 3; i++) {
        assert_ok(sp_forward_logits(m, &w, row0[i], 2, some));
        assert_tensor_close("logits", some, want + row0[i] * VOCAB, 1e-6);
    }
    assert_fails(sp_forward_logits(m, &w, T0 - 1, 2, some), SP_ENVIRONMENT, "workspace");
    assert_fails(sp_forward_logits(m, &w, -1, 1, some), SP_ENVIRONMENT, "workspace");
    assert_fails(sp_forward_embed(m, &w, tokens, T0 + 1), SP_ENVIRONMENT, "workspace");
    assert_fails(sp_forward_embed(m, &w, tokens, 0), SP_ENVIRONMENT, "workspace");
    free(want), free(tokens);
    sp_tensor_free(&all);
    sp_tensor_free(&some);
    sp_workspace_free(&w);
}

static void workspace_memory_is_predicted(void **state) {
    (void)state;
    const sp_model *m = test_tiny_base();
    static const int64_t tokens[] = {1, 203, 1024};
    for (int i = 0; i < 3; i++) {
        sp_workspace w;
        int64_t before = sp_backend_bytes(m->backend, NULL);
        assert_ok(sp_workspace_make(m, tokens[i], &w));
        int64_t used = sp_backend_bytes(m->backend, NULL) - before;
        int64_t predicted = sp_workspace_bytes(m->desc, tokens[i], sp_backend_storage(m->backend));
        assert_in_range(used, predicted, predicted + 8 * 4096); // alignment
        sp_workspace_free(&w);
        assert_int_equal(sp_backend_bytes(m->backend, NULL), before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_is_scaled),   cmocka_unit_test(queries_and_keys_without_values),
        cmocka_unit_test(chunk_at_a_position),   cmocka_unit_test(tail_keeps_the_attention_input),
        cmocka_unit_test(logits_of_chosen_rows), cmocka_unit_test(workspace_memory_is_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
