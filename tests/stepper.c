#include "tests/stepper.h"
#include "common/util.h"

#include <math.h>
#include <stdlib.h>

stepper stepper_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                     sp_forecast weights) {
    stepper t = {.m = m, .host = weights};
    assert_ok(sp_distill_open(m, max_tokens, a, &t.d));
    assert_ok(sp_forecast_upload(m->backend, &t.host, &t.w));
    assert_ok(sp_tensor_alloc(m->backend, SP_F32, t.host.layers * t.host.rows, t.host.cols,
                              "gradient", &t.grad));
    assert_ok(sp_alloc(&t.loss, t.host.layers, sizeof *t.loss, "losses"));
    return t;
}

void stepper_close(stepper *t) {
    sp_distill_close(t->d);
    sp_forecast_free(&t->host);
    sp_forecast_device_free(&t->w);
    sp_tensor_free(&t->grad);
    free(t->loss);
}

stepper golden_stepper(const sp_distill_args *a, float factor) {
    return stepper_open(test_tiny_base(), 256, a, golden_forecast(factor));
}

float *stepper_gradient(stepper *t, const int32_t *tokens, int64_t T, double scale,
                        sp_distill_probe *probe) {
    assert_ok(sp_fill(t->grad, 0));
    assert_ok(sp_distill_step_probed(t->d, &t->w, tokens, T, scale, &t->grad, t->loss, probe));
    return test_download(t->grad);
}

void test_prefill_open(const sp_model *m, int64_t T, sp_forecast weights, test_prefill *out) {
    assert_ok(sp_workspace_make(m, T, &out->w));
    assert_ok(sp_rope_table_make(m->backend, m->desc, T, false, &out->rope));
    assert_ok(sp_forecast_upload(m->backend, &weights, &out->forecast));
    sp_forecast_free(&weights);
}

void test_prefill_close(test_prefill *p) {
    sp_workspace_free(&p->w);
    sp_rope_table_free(&p->rope);
    sp_forecast_device_free(&p->forecast);
}

double test_norm(const float *v, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)v[i] * v[i];
    return sqrt(s);
}

void *test_filled(int64_t n, const char *what) {
    void *v;
    assert_ok(sp_alloc(&v, n, 4, what));
    return v;
}

void stepper_losses(stepper *t, const int32_t *tokens, int64_t T, double *loss) {
    for (int64_t l = 0; l < t->host.layers; l++)
        assert_ok(sp_upload(t->w.w[l], sp_forecast_matrix(&t->host, l)));
    assert_ok(sp_distill_step(t->d, &t->w, tokens, T, 1, NULL, loss));
}

sp_model_desc test_desc(const test_shape *s) {
    return (sp_model_desc){
        .name = "random",
        .layers = s->layers,
        .hidden = s->hidden,
        .ffn = 2 * s->hidden,
        .vocab = 97,
        .heads = s->heads,
        .max_positions = 4096,
        .original_max_positions = 4096,
        .norm_eps = 1e-5f,
        .embed_scale = 1,
        .residual_scale = 0.5,
        .logit_divisor = 1,
        .rope_theta = 10000,
        .rope_attention_factor = 1,
        .rope_kind = "default",
        .sparse = {.kernel_size = s->kernel,
                   .kernel_stride = s->stride,
                   .init_blocks = s->init,
                   .block_size = s->block,
                   .window_size = s->window,
                   .topk = s->topk},
    };
}

int32_t *test_tokens(int64_t T, uint64_t seed, int64_t vocab) {
    int32_t *tokens = test_filled(T, "tokens");
    for (int64_t i = 0; i < T; i++) tokens[i] = (int32_t)(test_random(&seed) % (uint64_t)vocab);
    return tokens;
}

stepper random_stepper(const sp_model *m, int64_t max_tokens, const sp_distill_args *a) {
    sp_forecast f;
    uint64_t seed = 99;
    assert_ok(sp_forecast_alloc(m->desc, &f));
    float bound = 3 / sqrtf((float)m->desc->hidden);
    for (int64_t i = 0; i < (f.layers + 1) * f.rows * f.cols; i++)
        f.w[i] = test_uniform(&seed, -bound, bound);
    return stepper_open(m, max_tokens, a, f);
}
