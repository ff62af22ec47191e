// Forecast projections (training.md 2): L trained matrices and the untrained one of the last layer.
//
// Host copies are fp32 and belong to sp_forecast; sp_forecast_device holds copies on a backend.
// Indexing is by scored layer: matrix l is the one whose loss is that of layer l. So 0 is layer 0's
// q_curr_proj, l = 1..L-1 is q_future_proj of layer l-1, and L is q_future_proj of the last layer,
// which scores nothing and is never trained. Each is [Hkv*d, D].
#ifndef SPARDA_FORECAST_H
#define SPARDA_FORECAST_H

#include "common/status.h"
#include "model/model.h"

typedef struct sp_forecast {
    int64_t layers;     // L
    int64_t rows, cols; // Hkv*d, D
    float *w;           // host fp32 [L+1][rows][cols]
} sp_forecast;

sp_status sp_forecast_alloc(const sp_model_desc *d, sp_forecast *out);
void sp_forecast_free(sp_forecast *f); // safe on a zeroed one
float *sp_forecast_matrix(const sp_forecast *f, int64_t scored_layer);
int64_t sp_forecast_trained_elements(const sp_forecast *f); // L*rows*cols, contiguous from w
// Uniform on +-1/sqrt(D) from `seed`, rounded to bf16, independent of ranks (2.2). One splitmix64
// stream (data/corpus.md 2) with S = seed fills the matrices in the order of this struct (0 is
// q_curr_proj, then q_future_proj of layers 0..L-1), row-major: value = (2u - 1)/sqrt(D), rounded
// to fp32, then to bf16. tests/golden/forecast_init.safetensors is seed 20260604 of the tiny model.
void sp_forecast_init(sp_forecast *f, uint64_t seed);

// Tensor name in every file format: "model.layers.0.self_attn.q_curr_proj.weight" for 0, else
// "model.layers.<l-1>.self_attn.q_future_proj.weight". Caller's buffer of 64 bytes.
void sp_forecast_name(int64_t scored_layer, char name[64]);
// Inverse; accepts optional prefixes "module." and a missing "model."; -1 if it is no such name.
int64_t sp_forecast_index(const char *name);
// Whether a tensor name belongs to a Forecast projection, well-formed or not. Not terminated.
bool sp_forecast_like(const char *name, int64_t n);

// Device copies in storage precision, for use by a forward pass: [L+1] tensors.
typedef struct sp_forecast_device {
    int64_t layers;
    sp_tensor *w; // [L+1], each [rows, cols]
} sp_forecast_device;
sp_status sp_forecast_upload(sp_backend *be, const sp_forecast *f, sp_forecast_device *out);
void sp_forecast_device_free(sp_forecast_device *f);

#endif
