// Operation counts. Legend: T tokens, D hidden, F feed-forward width, Hq query heads, Hkv KV heads,
// d head size, L layers.
#include "model/flops.h"

double sp_flops_total(const sp_flops *f) {
    return f->linear + f->forecast + f->selection + f->attention + f->student + f->student_grad +
           f->grad_weight + f->head;
}

double sp_count_window_pairs(sp_grid g, sp_visibility v, int64_t T) {
    int64_t n = sp_windows(g, T);
    double pairs = 0;
    for (int64_t i = 0; i < T; i++) pairs += (double)sp_visible(g, v, i, n);
    return pairs;
}

double sp_count_listed_keys(int64_t block, int64_t k, int64_t T) {
    double keys = 0;
    for (int64_t i = 0; i < T; i++) {
        int64_t own = i % block + 1, before = i / block;
        keys += (double)(own + block * (before < k - 1 ? before : k - 1));
    }
    return keys;
}

static double matmul(double rows, double inner, double cols) {
    return 2 * rows * inner * cols;
}

// `full`: with values, output projection and MLP.
static double layer_linear(const sp_model_desc *d, int64_t T, bool full) {
    double t = (double)T, D = (double)d->hidden, F = (double)d->ffn;
    double q = (double)(d->heads.q_heads * d->heads.head_dim);
    double kv = (double)(d->heads.kv_heads * d->heads.head_dim);
    double flops = matmul(t, D, q) + matmul(t, D, kv);
    if (full) flops += matmul(t, D, kv) + matmul(t, q, D) + 3 * matmul(t, D, F);
    return flops;
}

static double forecast_matmul(const sp_model_desc *d, int64_t T) {
    return matmul((double)T, (double)d->hidden, (double)(d->heads.kv_heads * d->heads.head_dim));
}

// Two passes of all query heads over the visible windows.
static double importance(const sp_model_desc *d, sp_grid g, sp_visibility v, int64_t T) {
    double per_pair = 2 * (double)(d->heads.q_heads * d->heads.head_dim);
    return 2 * per_pair * sp_count_window_pairs(g, v, T);
}

// One product of a KV-head vector per pair.
static double kv_pairs(const sp_model_desc *d, double pairs) {
    return 2 * pairs * (double)(d->heads.kv_heads * d->heads.head_dim);
}

static double attention(const sp_model_desc *d, double keys) {
    return 4 * keys * (double)(d->heads.q_heads * d->heads.head_dim);
}

sp_flops sp_flops_training(const sp_model_desc *d, sp_grid teacher, int64_t T) {
    sp_grid deployed = sp_deployed_grid(d);
    if (sp_windows(deployed, T) == 0) return (sp_flops){0};
    double layers = (double)d->layers;
    sp_selection s = sp_model_selection(d, false);
    sp_visibility v = sp_teacher_importance(d, teacher, SP_ALIGN_MAX, 0).visibility;
    double student = kv_pairs(d, sp_count_window_pairs(deployed, SP_SEES_START, T));
    return (sp_flops){
        .linear = (layers - 1) * layer_linear(d, T, true) + layer_linear(d, T, false),
        .forecast = layers * forecast_matmul(d, T),
        .selection = layers * importance(d, teacher, v, T),
        .attention = (layers - 1) * attention(d, sp_count_listed_keys(s.block, s.topk, T)),
        .student = layers * student,
        .student_grad = layers * student,
        .grad_weight = layers * forecast_matmul(d, T),
    };
}

sp_flops sp_flops_prefill(const sp_model_desc *d, const sp_prefill_args *a, int64_t T,
                          int64_t logit_rows) {
    sp_grid deployed = sp_deployed_grid(d);
    double layers = (double)d->layers;
    sp_flops f = {
        .linear = layers * layer_linear(d, T, true),
        .head = matmul((double)logit_rows, (double)d->hidden, (double)d->vocab),
    };
    double keys = sp_count_listed_keys(a->selection.block, a->selection.topk, T);
    if (a->selector == SP_SELECT_DENSE && !a->fixed_lists) keys = (double)T * (double)(T + 1) / 2;
    f.attention = layers * attention(d, keys);
    if (a->fixed_lists) return f;
    switch (a->selector) {
    case SP_SELECT_DENSE:
    case SP_SELECT_RANDOM:
        break;
    case SP_SELECT_TEACHER: {
        sp_visibility v = sp_teacher_importance(d, a->teacher, a->align, 0).visibility;
        f.selection = layers * importance(d, a->teacher, v, T);
        break;
    }
    case SP_SELECT_INFINIGEN: // queries are made once more, but for layer 0
        f.linear += (layers - 1) * matmul((double)T, (double)d->hidden,
                                          (double)(d->heads.q_heads * d->heads.head_dim));
        f.selection = layers * importance(d, deployed, SP_SEES_COMPLETE, T);
        break;
    case SP_SELECT_ORIGINAL:
        f.selection = layers * importance(d, deployed, SP_SEES_COMPLETE, T);
        break;
    case SP_SELECT_FORECAST:
        f.forecast = layers * forecast_matmul(d, T);
        f.selection = layers * kv_pairs(d, sp_count_window_pairs(deployed, a->forecast_sees, T));
        break;
    }
    return f;
}
