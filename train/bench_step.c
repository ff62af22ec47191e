// See bench_step.h.
#include "train/bench_step.h"

#include "common/util.h"
#include "data/corpus.h"
#include "model/selection.h"
#include "train/ranks.h"

#include <math.h>
#include <stdlib.h>

static sp_status make_tokens(const sp_bench_step_args *a, sp_bench_step *b) {
    int64_t n;
    if (!sp_mul(a->batch, a->seq_len, &n))
        return sp_error(SP_BAD_INPUT, "batch x seq-len overflows");
    SP_TRY(sp_alloc(&b->tokens, n, sizeof *b->tokens, "tokens"));
    if (b->desc->vocab == SP_CORPUS_VOCAB) {
        sp_corpus_args corpus = sp_corpus_defaults(1);
        for (int64_t i = 0; i < a->batch; i++)
            SP_TRY(
                sp_corpus_sequence(&corpus, (uint64_t)i, a->seq_len, b->tokens + i * a->seq_len));
        return SP_OK;
    }
    uint64_t state = 1;
    for (int64_t i = 0; i < n; i++)
        b->tokens[i] = (int32_t)(sp_splitmix64(&state) % (uint64_t)b->desc->vocab);
    return SP_OK;
}

sp_status sp_bench_step_open(sp_backend *be, const sp_bench_step_args *a, sp_bench_step *b) {
    SP_TRY(sp_model_describe(a->base, NULL, &b->desc));
    const sp_model_desc *d = b->desc;
    if (a->seq_len < sp_distill_min_tokens(d))
        return sp_error(SP_BAD_INPUT, "--seq-len %lld is below one window of %lld tokens",
                        (long long)a->seq_len, (long long)sp_distill_min_tokens(d));
    const sp_grid teacher = {2, 1};
    SP_TRY(sp_model_supported(be, d, teacher, a->seq_len));
    double start = sp_now();
    SP_TRY(sp_model_load(be, d, &(sp_model_load_options){.progress = a->progress}, &b->model));
    b->load_s = sp_now() - start;
    sp_distill_args args = {.teacher = teacher};
    SP_TRY(sp_distill_open(b->model, a->seq_len, &args, &b->distill));
    SP_TRY(sp_forecast_alloc(d, &b->forecast));
    sp_forecast_init(&b->forecast, 42);
    SP_TRY(sp_forecast_upload(be, &b->forecast, &b->device));
    int64_t rows = d->layers * b->forecast.rows;
    sp_tensor *parts[] = {&b->master, &b->moment1, &b->moment2, &b->grad};
    for (int i = 0; i < 4; i++)
        SP_TRY(sp_tensor_alloc(be, SP_F32, rows, d->hidden, "optimiser state", parts[i]));
    SP_TRY(sp_upload(b->master, b->forecast.w));
    SP_TRY(sp_alloc(&b->losses, d->layers, sizeof(double), "losses"));
    return make_tokens(a, b);
}

void sp_bench_step_close(sp_bench_step *b) {
    sp_tensor_free(&b->master);
    sp_tensor_free(&b->moment1);
    sp_tensor_free(&b->moment2);
    sp_tensor_free(&b->grad);
    sp_forecast_device_free(&b->device);
    sp_forecast_free(&b->forecast);
    sp_distill_close(b->distill);
    sp_model_free(b->model);
    sp_model_desc_free(b->desc);
    free(b->tokens);
    free(b->losses);
}

sp_status sp_bench_step_run(const sp_bench_step_args *a, sp_bench_step *b, int64_t step) {
    SP_TRY(sp_fill(b->grad, 0));
    for (int64_t i = 0; i < a->batch; i++)
        SP_TRY(sp_distill_step(b->distill, &b->device, b->tokens + i * a->seq_len, a->seq_len, 1.0,
                               &b->grad, b->losses));
    double used = (double)a->batch, squares;
    if (a->sum) {
        SP_TRY(sp_ranks_sum(&b->grad));
        SP_TRY(sp_ranks_sum_doubles(&used, 1));
    }
    SP_TRY(sp_sum_squares(b->grad, &squares));
    double norm = sqrt(squares) / used;
    sp_adamw_args adam = {.lr = 5e-4f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-6f,
                          .weight_decay = 0.01f,
                          .grad_scale = (float)(fmin(1, 0.5 / (norm + 1e-6)) / used),
                          .step = step};
    SP_TRY(sp_adamw(&adam, b->master, b->moment1, b->moment2, b->grad));
    int64_t R = b->forecast.rows;
    for (int64_t l = 0; l < b->forecast.layers; l++)
        SP_TRY(sp_copy(b->device.w[l], sp_tensor_rows(b->master, l * R, R)));
    return SP_OK;
}
