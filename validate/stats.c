// See stats.h.
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>

sp_mean sp_mean_of(const double *v, int64_t n) {
    sp_mean m = {NAN, NAN, 0};
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(v[i])) sum += v[i], m.n++;
    if (m.n == 0) return m;
    m.mean = sum / (double)m.n;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(v[i])) squares += (v[i] - m.mean) * (v[i] - m.mean);
    if (m.n > 1) m.se = sqrt(squares / (double)(m.n - 1) / (double)m.n);
    return m;
}

double sp_z(sp_mean m) {
    if (isnan(m.se) || isnan(m.mean)) return NAN;
    if (m.mean == 0) return 0;
    double z = m.mean / m.se;
    return z > 1e6 ? 1e6 : z < -1e6 ? -1e6 : z;
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double sp_quantile(float *v, int64_t n, double q) {
    if (n == 0) return NAN;
    qsort(v, (size_t)n, sizeof *v, compare);
    int64_t rank = (int64_t)ceil(q * (double)n);
    return (double)v[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1];
}

sp_logit_row sp_logits_look(const float *logits, int64_t V) {
    sp_logit_row r = {0};
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < V; i++) {
        if (logits[i] > first) {
            second = first;
            first = logits[i];
            r.best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    double sum = 0;
    for (int64_t i = 0; i < V; i++) sum += (double)expf(logits[i] - first);
    r.log_sum = (double)first + log(sum);
    r.margin = (double)first - (double)second;
    return r;
}

double sp_logits_kl(const float *p, sp_logit_row lp, const float *q, sp_logit_row lq, int64_t V) {
    double kl = 0;
    for (int64_t i = 0; i < V; i++) {
        double log_p = (double)p[i] - lp.log_sum, log_q = (double)q[i] - lq.log_sum;
        kl += exp(log_p) * (log_p - log_q);
    }
    return kl < 0 ? 0 : kl; // rounding may leave it a hair below; NaN stays
}
