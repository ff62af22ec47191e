// Forecast projections: storage, initial values, names (training.md 2).
#include "model/forecast.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

sp_status sp_forecast_alloc(const sp_model_desc *d, sp_forecast *out) {
    *out = (sp_forecast){
        .layers = d->layers, .rows = d->heads.kv_heads * d->heads.head_dim, .cols = d->hidden};
    int64_t matrix;
    if (!sp_mul(out->rows, out->cols, &matrix) || !sp_mul(matrix, sizeof(float), &matrix))
        return sp_error(SP_ENVIRONMENT, "out of memory for the Forecast matrices");
    return sp_alloc(&out->w, d->layers + 1, matrix, "the Forecast matrices");
}

void sp_forecast_free(sp_forecast *f) {
    free(f->w);
    *f = (sp_forecast){0};
}

float *sp_forecast_matrix(const sp_forecast *f, int64_t scored_layer) {
    return f->w + scored_layer * f->rows * f->cols;
}

int64_t sp_forecast_trained_elements(const sp_forecast *f) {
    return f->layers * f->rows * f->cols;
}

void sp_forecast_init(sp_forecast *f, uint64_t seed) {
    double bound = 1 / sqrt((double)f->cols);
    int64_t n = (f->layers + 1) * f->rows * f->cols;
    for (int64_t i = 0; i < n; i++)
        f->w[i] = sp_bf16_to_f32(sp_f32_to_bf16((float)((2 * sp_uniform(&seed) - 1) * bound)));
}

void sp_forecast_name(int64_t scored_layer, char name[64]) {
    if (scored_layer <= 0)
        snprintf(name, 64, "model.layers.0.self_attn.q_curr_proj.weight");
    else
        snprintf(name, 64, "model.layers.%llu.self_attn.q_future_proj.weight",
                 (unsigned long long)scored_layer - 1);
}

static bool skip(const char **p, const char *text) {
    size_t n = strlen(text);
    if (strncmp(*p, text, n) != 0) return false;
    *p += n;
    return true;
}

int64_t sp_forecast_index(const char *name) {
    const char *p = name;
    skip(&p, "module.");
    skip(&p, "model.");
    if (!skip(&p, "layers.")) return -1;
    int64_t layer = 0;
    const char *digits = p;
    for (; *p >= '0' && *p <= '9'; p++)
        if (!sp_mul(layer, 10, &layer) || !sp_add(layer, *p - '0', &layer)) return -1;
    if (p == digits || (digits[0] == '0' && p - digits > 1) || layer == INT64_MAX) return -1;
    if (!skip(&p, ".self_attn.")) return -1;
    if (strcmp(p, "q_curr_proj.weight") == 0) return layer == 0 ? 0 : -1;
    return strcmp(p, "q_future_proj.weight") == 0 ? layer + 1 : -1;
}

bool sp_forecast_like(const char *name, int64_t n) {
    return memmem(name, (size_t)n, "q_future_proj", 13) ||
           memmem(name, (size_t)n, "q_curr_proj", 11);
}
