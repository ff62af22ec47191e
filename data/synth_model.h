// A base model folder with random weights of given dimensions, for benchmarks and tests that must
// not download anything (`sparda data synth-model`).
#ifndef SPARDA_SYNTH_MODEL_H
#define SPARDA_SYNTH_MODEL_H

#include "common/status.h"

#include <stdint.h>

typedef struct sp_synth_model_args {
    const char *like;      // "minicpm4.1-8b" or "nosa-8b"
    const char *out;       // folder, made if absent; must be empty
    int64_t layers;        // 0: as many as the original
    int64_t max_positions; // 0: as the original
    uint64_t seed;
} sp_synth_model_args;

// Writes config.json (with a sparse_config), one safetensors shard per layer and one for the rest,
// and the index. Weights are bf16, uniform with variance 1/fan_in, so that activations stay of
// order 1; norms are 1. The same seed gives the same bytes.
sp_status sp_synth_model(const sp_synth_model_args *a);

#endif
