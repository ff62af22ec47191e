// What the parts of `sparda bench data` share. Internal to data/bench*.c.
#ifndef SPARDA_DATA_BENCH_H
#define SPARDA_DATA_BENCH_H

#include "common/status.h"

#include <jansson.h>
#include <stdint.h>

enum { BENCH_ROW = 65536, BENCH_VOCAB = 73448, BENCH_REPEATS = 5 };

typedef struct sp_data_bench_run {
    const char *dir, *text, *from, *to, *json, *out_dir;
    int64_t mb, threads, shards;
    char *raw, *zip, *out; // folders below dir and out_dir, which nobody else has
    json_t *results;
} sp_data_bench_run;

// Prints a figure and keeps it for --json.
void sp_bench_report(sp_data_bench_run *b, const char *name, double value, const char *unit,
                     const char *note);
double sp_bench_median(double *v, int n); // sorts v

// Times to open data sets of --shards shards.
sp_status sp_bench_opening(sp_data_bench_run *b);

#endif
