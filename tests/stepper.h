// A distillation step with its weights and gradient at hand, and what a prefill needs: for the
// tests of train/ and of selection.
#ifndef SPARDA_TEST_STEPPER_H
#define SPARDA_TEST_STEPPER_H

#include "tests/golden.h"
#include "train/distill.h"

typedef struct stepper {
    const sp_model *m;
    sp_distill *d;
    sp_forecast host;
    sp_forecast_device w;
    sp_tensor grad; // [L*Hkv*d, D]
    double *loss;   // [L]
} stepper;

// Takes over `weights`.
stepper stepper_open(const sp_model *m, int64_t max_tokens, const sp_distill_args *a,
                     sp_forecast weights);
void stepper_close(stepper *t);
// The tiny base with the golden weights times `factor`, sequences of up to 256 tokens.
stepper golden_stepper(const sp_distill_args *a, float factor);
// Random Forecast weights, strong enough that students differ.
stepper random_stepper(const sp_model *m, int64_t max_tokens, const sp_distill_args *a);

// Gradient of one step with the present weights, losses in t->loss; caller frees.
float *stepper_gradient(stepper *t, const int32_t *tokens, int64_t T, double scale,
                        sp_distill_probe *probe);
// Losses alone with the host weights, which are uploaded first.
void stepper_losses(stepper *t, const int32_t *tokens, int64_t T, double *loss);

// What a prefill of up to T tokens needs beside the model. Takes over `weights`.
typedef struct test_prefill {
    sp_workspace w;
    sp_rope_table rope;
    sp_forecast_device forecast;
} test_prefill;
void test_prefill_open(const sp_model *m, int64_t T, sp_forecast weights, test_prefill *out);
void test_prefill_close(test_prefill *p);

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
