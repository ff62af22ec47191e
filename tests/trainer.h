// A distillation step with its weights and gradient at hand, for the tests of train/.
#ifndef SPARDA_TEST_TRAINER_H
#define SPARDA_TEST_TRAINER_H

#include "tests/golden.h"
#include "train/distill.h"

typedef struct trainer {
    const sp_model *m;
    sp_distill *d;
    sp_forecast host;
    sp_forecast_device w;
    sp_tensor grad; // [L*Hkv*d, D]
    double *loss;   // [L]
} trainer;

// Takes over `weights`.
trainer trainer_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                     sp_forecast weights);
void trainer_close(trainer *t);
// The tiny base with the golden weights times `factor`, sequences of up to 256 tokens.
trainer golden_trainer(const sp_distill_args *a, float factor);
// Random Forecast weights, strong enough that students differ.
trainer random_trainer(const sp_model *m, int64_t max_tokens, const sp_distill_args *a);

// Gradient of one step with the present weights, losses in t->loss; caller frees.
float *trainer_gradient(trainer *t, const int32_t *tokens, int64_t T, double scale,
                        sp_distill_probe *probe);
// Losses alone with the host weights, which are uploaded first.
void trainer_losses(trainer *t, const int32_t *tokens, int64_t T, double *loss);

double test_norm(const float *v, int64_t n);
void *test_filled(int64_t n, const char *what); // n zeroed 4-byte elements

// A model of other dimensions than the tiny base.
typedef struct test_shape {
    const char *what;
    sp_heads heads;
    int64_t hidden, layers;
    int64_t kernel, stride, block, window, init, topk;
    sp_grid teacher;
    int64_t T;
} test_shape;
sp_model_desc test_desc(const test_shape *s); // plain Llama scalings and rotary embedding
int32_t *test_tokens(int64_t T, uint64_t seed, int64_t vocab);

#endif
