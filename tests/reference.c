#include "tests/reference.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

static void *allocate(int64_t n, size_t size) {
    void *p = calloc((size_t)(n ? n : 1), size);
    if (!p) fail_msg("out of memory");
    return p;
}

static double dot(const float *a, const float *b, int64_t n) {
    double s = 0;
    for (int64_t x = 0; x < n; x++) s += (double)a[x] * b[x];
    return s;
}

static bool listed(const int32_t *list, int64_t slots, int64_t b) {
    for (int64_t s = 0; s < slots; s++)
        if (list[s] == b) return true;
    return false;
}

void ref_attention(sp_heads h, const float *q, int64_t R, int64_t q0, const float *k,
                   const float *v, const float *bias, const int32_t *lists, int64_t slots,
                   int64_t block, double *out) {
    int64_t d = h.head_dim, G = h.q_heads / h.kv_heads;
    double *z = allocate(q0 + R, sizeof *z);
    for (int64_t r = 0; r < R; r++)
        for (int64_t a = 0; a < h.q_heads; a++) {
            int64_t kv = a / G;
            double max = -INFINITY, sum = 0, *o = out + (r * h.q_heads + a) * d;
            for (int64_t j = 0; j <= q0 + r; j++) {
                bool in = !lists || listed(lists + (r * h.kv_heads + kv) * slots, slots, j / block);
                z[j] = in ? dot(q + (r * h.q_heads + a) * d, k + (j * h.kv_heads + kv) * d, d) /
                                    sqrt((double)d) +
                                (bias ? (double)bias[kv * (q0 + R) + j] : 0)
                          : -INFINITY;
                if (z[j] > max) max = z[j];
            }
            for (int64_t x = 0; x < d; x++) o[x] = 0;
            for (int64_t j = 0; j <= q0 + r; j++) {
                if (z[j] == -INFINITY) continue;
                sum += exp(z[j] - max);
                for (int64_t x = 0; x < d; x++)
                    o[x] += exp(z[j] - max) * (double)v[(j * h.kv_heads + kv) * d + x];
            }
            for (int64_t x = 0; x < d && sum > 0; x++) o[x] /= sum;
        }
    free(z);
}

void ref_align(const double *row, int64_t n, int64_t rho, bool mean, int64_t n_d, double *out) {
    for (int64_t a = 0; a < n_d; a++) {
        out[a] = 0;
        if (rho == 1) {
            if (a < n) out[a] = row[a];
            continue;
        }
        if (n + 2 < rho + 1 || a >= (n + 2 - (rho + 1)) / rho + 1) continue;
        for (int64_t j = a * rho - 1; j <= a * rho + rho - 1; j++) {
            if (j < 0 || j >= n) continue;
            out[a] = mean ? out[a] + row[j] / (double)(rho + 1) : fmax(out[a], row[j]);
        }
    }
}

void ref_importance(const sp_importance_args *args, const float *q, int64_t R, int64_t i0,
                    const float *c, int64_t n, double *out) {
    sp_heads h = args->heads;
    int64_t d = h.head_dim, G = h.q_heads / h.kv_heads;
    double *p = allocate(n, sizeof *p), *z = allocate(n, sizeof *z);
    for (int64_t r = 0; r < R; r++)
        for (int64_t kv = 0; kv < h.kv_heads; kv++) {
            for (int64_t j = 0; j < n; j++) p[j] = 0;
            for (int64_t a = kv * G; a < (kv + 1) * G; a++) {
                double max = -INFINITY, sum = 0;
                for (int64_t j = 0; j < n; j++) {
                    int64_t needs = j * args->fine.stride;
                    if (args->visibility == SP_SEES_COMPLETE) needs += args->fine.kernel - 1;
                    z[j] = needs <= i0 + r ? dot(q + (r * h.q_heads + a) * d,
                                                 c + (j * h.kv_heads + kv) * d, d) /
                                                 sqrt((double)d)
                                           : -INFINITY;
                    max = fmax(max, z[j]);
                }
                for (int64_t j = 0; j < n; j++)
                    if (z[j] > -INFINITY) sum += exp(z[j] - max);
                for (int64_t j = 0; j < n; j++)
                    if (z[j] > -INFINITY) p[j] += exp(z[j] - max) / sum;
            }
            bool same = args->fine.kernel == args->deployed.kernel &&
                        args->fine.stride == args->deployed.stride;
            ref_align(p, n, same ? 1 : args->deployed.stride / args->fine.stride,
                      args->align == SP_ALIGN_MEAN, args->n_d,
                      out + (r * h.kv_heads + kv) * args->n_d);
        }
    free(p);
    free(z);
}

void ref_block_scores(const sp_selection *s, sp_grid g, const float *a, int64_t n_d, int64_t i,
                      int64_t nb, double *scores) {
    int64_t per = s->block / g.stride, qb = i / s->block;
    for (int64_t b = 0; b < nb; b++) {
        scores[b] = -INFINITY;
        for (int64_t j = per * b - 1; j < per * b + per; j++)
            if (j >= 0 && j < n_d) scores[b] = fmax(scores[b], (double)a[j]);
        if (s->mask_future && b > qb) scores[b] = -INFINITY;
        if (b < s->init_blocks || (b <= qb && qb <= b + s->local_blocks)) scores[b] = INFINITY;
    }
}

static int64_t rank(const double *scores, int64_t nb, int64_t b) {
    int64_t before = 0;
    for (int64_t o = 0; o < nb; o++)
        before += scores[o] > scores[b] || (scores[o] == scores[b] && o < b);
    return before;
}

void ref_select(const sp_selection *s, const double *scores, int64_t i, int64_t nb, int32_t *list) {
    int64_t qb = i / s->block, n = 0;
    for (int64_t b = 0; b < nb; b++) // taken if fewer than k blocks stand before it
        if (rank(scores, nb, b) < s->topk && b <= qb) list[n++] = (int32_t)b;
    while (n < s->topk) list[n++] = -1;
}

void ref_select_twice(const sp_selection *s, int64_t k1, const double *qk, const double *cis,
                      int64_t i, int64_t nb, int32_t *list) {
    double *second = allocate(nb, sizeof *second);
    for (int64_t b = 0; b < nb; b++) {
        second[b] = b > i / s->block ? -INFINITY : cis[b];
        if (rank(qk, nb, b) < k1) second[b] = INFINITY;
    }
    ref_select(s, second, i, nb, list);
    free(second);
}

double ref_kl_row(const sp_selection *s, sp_grid g, const double *z, const float *a, int64_t n_d,
                  int64_t i, const int32_t *list, sp_kl_gradient gradient, double *p_out,
                  double *dz) {
    const double e = 1e-8;
    int64_t per = s->block / g.stride, qb = i / s->block, entries = s->topk * per + 1;
    double *p = allocate(n_d, sizeof *p), max = -INFINITY, sum = 0, a_sum = 0, p_sum = 0;
    bool *in_s = allocate(n_d, sizeof *in_s);
    double *x = allocate(entries, sizeof *x), *t = allocate(entries, sizeof *t);
    int64_t *cell = allocate(entries, sizeof *cell);
    for (int64_t j = 0; j < n_d && j * g.stride <= i; j++) max = fmax(max, z[j]);
    for (int64_t j = 0; j < n_d && j * g.stride <= i; j++) sum += exp(z[j] - max);
    for (int64_t j = 0; j < n_d && j * g.stride <= i; j++) p[j] = exp(z[j] - max) / sum;
    for (int64_t j = 0; j < n_d; j++) {
        a_sum += (double)a[j];
        p_sum += p[j];
    }
    for (int64_t m = 0; m < entries; m++) cell[m] = -1;
    for (int64_t slot = 0, m = 0; slot < s->topk; slot++)
        for (int64_t u = 0; u < per; u++, m++) {
            int64_t b = list[slot];
            if (b < s->init_blocks || b >= qb - s->local_blocks) continue;
            cell[m] = per * b + u;
            in_s[cell[m]] = true;
        }
    double x_rest = 0, t_rest = 0, C = 0, C_t = 0, loss = 0, mean = 0;
    for (int64_t j = 0; j < n_d; j++) {
        if (in_s[j]) continue;
        x_rest += p[j] / (p_sum + e);
        t_rest += (double)a[j] / (a_sum + e);
    }
    for (int64_t m = 0; m < entries; m++) {
        if (cell[m] >= 0) {
            x[m] = p[cell[m]] / (p_sum + e);
            t[m] = (double)a[cell[m]] / (a_sum + e);
        }
        if (m == entries - 1) {
            x[m] = x_rest;
            t[m] = t_rest;
        }
        C += fmax(x[m], e);
        C_t += fmax(t[m], e);
    }
    double b_rest = 0;
    double *b = allocate(n_d, sizeof *b);
    for (int64_t m = 0; m < entries; m++) {
        double final = fmax(t[m], e) / C_t;
        loss += final * (log(final) - log(fmax(x[m], e) / C));
        double bm = x[m] >= e ? 1 / C - final / fmax(x[m], e) : 0;
        if (m == entries - 1) b_rest = bm;
        if (cell[m] >= 0) b[cell[m]] = bm;
    }
    for (int64_t j = 0; j < n_d; j++) {
        if (!in_s[j]) b[j] = b_rest;
        mean += p[j] * b[j];
    }
    bool empty = true;
    for (int64_t j = 0; j < n_d; j++) empty &= !in_s[j];
    for (int64_t j = 0; j < n_d; j++) {
        if (p_out) p_out[j] = p[j];
        if (!dz) continue;
        dz[j] = p[j] * (b[j] - mean) / (p_sum + e);
        if (gradient == SP_KL_IDEAL)
            dz[j] = in_s[j] ? p[j] - (double)a[j] / (a_sum + e)
                            : (p[j] > 0 ? p[j] - t_rest * (p[j] / x_rest) : 0);
        if (a_sum == 0 || empty) dz[j] = 0;
    }
    free(p), free(in_s), free(x), free(t), free(cell), free(b);
    return a_sum == 0 ? 0 : loss;
}
