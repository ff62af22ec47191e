// The numbers of every optimiser step, for programs: metrics.jsonl (design 3.3), one object a line.
// Rank 0 only.
#ifndef SPARDA_METRICS_H
#define SPARDA_METRICS_H

#include "common/status.h"

#include <stdint.h>

typedef struct sp_step_metrics {
    int64_t step; // from 1
    int64_t layers;
    double kl;               // mean over layers and used sequences
    const double *kl_layers; // [layers], by scored layer
    double grad_norm;        // before clipping
    double lr;
    int64_t tokens; // of used rows, cumulative over the run
    double step_ms, tokens_per_s, data_wait_ms;
    double tflops;     // useful TFLOP/s of a rank (training.md 10)
    double gemm_share; // of the rate of large matrix products there; NaN: not known
    int64_t peak_bytes;
    const double *recall_layers, *mass_layers; // [layers], held-out; NULL on steps without
} sp_step_metrics;

// The line without its newline. Non-finite numbers become null and are named in a list "nonfinite"
// ("train/kl_layers[3]"). Numbers read back to the same bits. Caller frees.
sp_status sp_metrics_text(const sp_step_metrics *m, char **line);

typedef struct sp_metrics sp_metrics;
// Opens PATH for appending after the lines of steps 1..done; later lines and a torn last one (of a
// run that was killed) are removed, so that the file has one line per step. Lines of those steps
// that are not there are counted in a warning: the training state is what counts. `skipped`, may be
// NULL, receives the number of updates skipped in a row (non-finite gradient norm) just before.
sp_status sp_metrics_open(const char *path, int64_t done, sp_metrics **out, int64_t *skipped);
// Writes and flushes. When the disk is full the line is kept and written with the next one; a
// reader never sees half a line, except while it is being written.
sp_status sp_metrics_add(sp_metrics *w, const sp_step_metrics *m);
// Puts what was written on disk for good, before a checkpoint that counts on it.
sp_status sp_metrics_sync(sp_metrics *w);
void sp_metrics_close(sp_metrics *w);

#endif
