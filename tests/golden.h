// The tiny base model and the golden arrays, for the tests of model/ and train/.
//
// Layouts: golden arrays are [.., KV head, row, ..]; tensors have [row, KV head, ..]. Everything
// loaded here lives until the process ends, the helpers fail the running test on any error.
#ifndef SPARDA_TEST_GOLDEN_H
#define SPARDA_TEST_GOLDEN_H

#include "model/forecast.h"
#include "model/model.h"
#include "tests/support.h"

sp_backend *test_backend(void);       // CPU, opened once
const sp_model *test_tiny_base(void); // data/tiny-base, loaded once
const sp_model *test_tiny_nosa(void); // data/tiny-nosa, loaded once

// A model of any dimensions with random weights. `desc` is copied; only numbers need be set
// (head_dim, layers, hidden, ..., sparse), there is no folder behind it.
const sp_model *test_random_model(const sp_model_desc *desc, uint64_t seed);

// Arrays of tests/golden/FILE.safetensors; F64 is rounded to fp32. `n` is the number expected.
float *golden_f32(const char *file, const char *name, int64_t n);
int32_t *golden_i32(const char *file, const char *name, int64_t n);
// [outer][heads][rows][cols] -> [outer][rows][heads][cols]
float *golden_rows_f32(const char *file, const char *name, int64_t outer, int64_t heads,
                       int64_t rows, int64_t cols);
// Bit sets [outer][heads][rows] (bit b: block b) -> ascending lists [outer][rows][heads][k].
int32_t *golden_bits(const char *file, const char *name, int64_t outer, int64_t heads, int64_t rows,
                     int64_t k);
// Weights of forecast_init.safetensors by scored layer, times `factor`.
sp_forecast golden_forecast(float factor);
sp_forecast test_trained_forecast(void); // of the tiny base, tests/trained; caller frees

float *test_download(sp_tensor t); // caller frees
int32_t *test_download_i32(sp_tensor t);
sp_tensor test_upload(const float *v, int64_t rows, int64_t cols);
sp_tensor test_upload_i32(const int32_t *v, int64_t rows, int64_t cols);

// Fails unless the arrays agree within `limit`, L2 of the difference over L2 of `want`, with
// infinities in the same places and no NaN.
void assert_close(const char *what, const float *got, const float *want, int64_t n, double limit);
void assert_tensor_close(const char *what, sp_tensor got, const float *want, double limit);
// `want` holds rows first, first + step, ... of `got`.
void assert_rows_close(const char *what, sp_tensor got, int64_t first, int64_t step,
                       const float *want, double limit);
void assert_within(const char *what, double got, double want, double relative);
// Lists of [rows][heads][k] must be equal wherever cut_gap [heads][rows] is 0 or above 1e-5.
void assert_lists(const char *what, const int32_t *got, const int32_t *want, const float *cut_gap,
                  int64_t rows, int64_t heads, int64_t k);

#endif
