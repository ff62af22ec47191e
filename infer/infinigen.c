// See infinigen.h. Singular vectors come from the eigenvectors of M^T M, by cyclic Jacobi rotations
// in double: d is 64 or 128, and the small singular values, which lose digits that way, belong to
// channels that are not kept.
#include "infer/infinigen.h"

#include "common/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BASIS_ROWS = 2048 };

// Diagonalises the symmetric a [d][d] in place; columns of v become its eigenvectors.
static void jacobi(double *a, double *v, int64_t d) {
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) v[i * d + j] = i == j;
    for (int sweep = 0; sweep < 30; sweep++) {
        double off = 0, all = 0;
        for (int64_t i = 0; i < d * d; i++) {
            all += a[i] * a[i];
            if (i / d != i % d) off += a[i] * a[i];
        }
        if (off <= 1e-24 * all) return;
        for (int64_t p = 0; p < d; p++)
            for (int64_t q = p + 1; q < d; q++) {
                if (a[p * d + q] == 0) continue;
                double theta = (a[q * d + q] - a[p * d + p]) / (2 * a[p * d + q]);
                double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
                double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int64_t k = 0; k < d; k++) {
                    double x = a[k * d + p], y = a[k * d + q];
                    a[k * d + p] = c * x - s * y;
                    a[k * d + q] = s * x + c * y;
                }
                for (int64_t k = 0; k < d; k++) {
                    double x = a[p * d + k], y = a[q * d + k];
                    a[p * d + k] = c * x - s * y;
                    a[q * d + k] = s * x + c * y;
                }
                for (int64_t k = 0; k < d; k++) {
                    double x = v[k * d + p], y = v[k * d + q];
                    v[k * d + p] = c * x - s * y;
                    v[k * d + q] = s * x + c * y;
                }
            }
    }
}

typedef struct ranked {
    double size;
    int64_t index;
} ranked;

static int larger_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static int lower_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

typedef struct scratch {
    double *mean, *square, *vectors; // [d], [d][d], [d][d]
    double *channel, *sum;           // [d]: a row's channels, what they add up to
    ranked *by_value, *by_size;      // [d]
} scratch;

static void mean_query(const sp_heads *heads, const float *row, int64_t h, double *mean) {
    int64_t d = heads->head_dim, G = heads->q_heads / heads->kv_heads;
    for (int64_t x = 0; x < d; x++) mean[x] = 0;
    for (int64_t g = 0; g < G; g++)
        for (int64_t x = 0; x < d; x++) mean[x] += row[(h * G + g) * d + x];
    for (int64_t x = 0; x < d; x++) mean[x] /= (double)G;
}

// The Gram matrix of mean queries, its eigenvectors by falling value, then the sums.
static void one_head(const sp_heads *heads, const float *q, int64_t n, int64_t h, scratch *s,
                     float *out) {
    const int64_t d = heads->head_dim, ld = heads->q_heads * d;
    memset(s->square, 0, (size_t)(d * d) * sizeof(double));
    for (int64_t r = 0; r < n && r < BASIS_ROWS; r++) {
        mean_query(heads, q + r * ld, h, s->mean);
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) s->square[i * d + j] += s->mean[i] * s->mean[j];
    }
    jacobi(s->square, s->vectors, d);
    for (int64_t i = 0; i < d; i++) s->by_value[i] = (ranked){s->square[i * d + i], i};
    qsort(s->by_value, (size_t)d, sizeof *s->by_value, larger_first);
    memset(s->sum, 0, (size_t)d * sizeof *s->sum);
    for (int64_t r = 0; r < n; r++) {
        mean_query(heads, q + r * ld, h, s->mean);
        memset(s->channel, 0, (size_t)d * sizeof *s->channel);
        for (int64_t x = 0; x < d; x++)
            for (int64_t i = 0; i < d; i++) s->channel[i] += s->mean[x] * s->vectors[x * d + i];
        for (int64_t i = 0; i < d; i++) s->sum[i] += fabs(s->channel[i]);
    }
    for (int64_t c = 0; c < d; c++) s->by_size[c] = (ranked){s->sum[s->by_value[c].index], c};
    qsort(s->by_size, (size_t)d, sizeof *s->by_size, larger_first);
    qsort(s->by_size, SP_INFINIGEN_CHANNELS, sizeof *s->by_size, lower_first);
    for (int64_t x = 0; x < d; x++)
        for (int64_t c = 0; c < SP_INFINIGEN_CHANNELS; c++)
            out[x * SP_INFINIGEN_CHANNELS + c] =
                (float)s->vectors[x * d + s->by_value[s->by_size[c].index].index];
}

sp_status sp_infinigen_projection(const sp_heads *heads, const float *q, int64_t n, float *out) {
    int64_t d = heads->head_dim;
    scratch s = {0};
    sp_status st = SP_OK;
    if (d < SP_INFINIGEN_CHANNELS)
        return sp_error(SP_ENVIRONMENT, "heads of %lld have no %d channels to choose", (long long)d,
                        SP_INFINIGEN_CHANNELS);
    SP_GO(sp_alloc(&s.mean, d, sizeof(double), "a mean query"));
    SP_GO(sp_alloc(&s.channel, d, sizeof(double), "channels"));
    SP_GO(sp_alloc(&s.sum, d, sizeof(double), "channels"));
    SP_GO(sp_alloc(&s.square, d * d, sizeof(double), "a Gram matrix"));
    SP_GO(sp_alloc(&s.vectors, d * d, sizeof(double), "eigenvectors"));
    SP_GO(sp_alloc(&s.by_value, d, sizeof(ranked), "channels"));
    SP_GO(sp_alloc(&s.by_size, d, sizeof(ranked), "channels"));
    for (int64_t h = 0; h < heads->kv_heads; h++)
        one_head(heads, q, n, h, &s, out + h * d * SP_INFINIGEN_CHANNELS);
done:
    free(s.mean);
    free(s.square);
    free(s.vectors);
    free(s.channel);
    free(s.sum);
    free(s.by_value);
    free(s.by_size);
    return st;
}
