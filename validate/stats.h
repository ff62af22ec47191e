// Small statistics of the validation pass: means with standard errors over sequences, quantiles,
// divergences of logits.
#ifndef SPARDA_VALIDATE_STATS_H
#define SPARDA_VALIDATE_STATS_H

#include <stdint.h>

typedef struct sp_mean {
    double mean, se; // se NAN below two values
    int64_t n;       // values used
} sp_mean;

// NAN values are left out.
sp_mean sp_mean_of(const double *v, int64_t n);
// mean / se, +-1e6 at most in size (se 0); 0 for mean 0 and se 0; NAN without a standard error.
double sp_z(sp_mean m);
// q-quantile, nearest rank; sorts v. NAN if n is 0.
double sp_quantile(float *v, int64_t n, double q);

// Of one row of V logits.
typedef struct sp_logit_row {
    double log_sum; // log of the sum of exponentials
    int64_t best;   // index of the largest, the lower one among equals
    double margin;  // largest minus second largest
} sp_logit_row;
sp_logit_row sp_logits_look(const float *logits, int64_t V);
// KL(p || q) in nats, >= 0, in double.
double sp_logits_kl(const float *p, sp_logit_row lp, const float *q, sp_logit_row lq, int64_t V);

#endif
