// Small random base models for tests: any dimensions, any storage type, easily spoiled.
#ifndef SPARDA_TEST_MINI_MODEL_H
#define SPARDA_TEST_MINI_MODEL_H

#include "model/safetensors.h"

#include <jansson.h>

typedef struct mini_dims {
    int64_t layers, hidden, ffn, vocab, q_heads, kv_heads, head_dim;
} mini_dims;

typedef struct mini_tensor {
    char name[96];
    sp_st_dtype dtype;
    int dims;
    int64_t shape[2];
    float *value; // exact in BF16, F16 and F32 alike
} mini_tensor;

typedef struct mini_model {
    json_t *config; // change it with jansson
    mini_tensor *tensor;
    int64_t n;
} mini_model;

// 2 layers, hidden 24, ffn 40, vocabulary 50, 4 and 2 heads of 6.
extern const mini_dims mini_default;

// MiniCPM-like configuration without rope_scaling, tied head, sparse_config 8/4, block 16, window
// 32, topk 8; BF16 weights, multiples of 1/64 below 2 in size.
mini_model *mini_new(const mini_dims *d);
void mini_free(mini_model *m);
mini_tensor *mini_find(mini_model *m, const char *name); // fails the test if absent
void mini_remove(mini_model *m, const char *name);
mini_tensor *mini_add(mini_model *m, const char *name, int dims, int64_t rows, int64_t cols);
void mini_set(mini_model *m, const char *key, json_t *value); // steals; NULL deletes

// Writes config.json and model.safetensors, or `shards` shards and an index (round robin).
void mini_write(const mini_model *m, const char *dir, int shards);

#endif
