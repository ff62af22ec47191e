// See bench_scaling.h.
#include "train/bench_scaling.h"

#include "common/build.h"
#include "common/log.h"
#include "common/util.h"
#include "train/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { WARM_UPS = 3, SUMS = 20, DEADLINE_S = 60 };

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *v, int64_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// Milliseconds since `start`, the slowest rank's; everybody is at the same place after it.
static sp_status slowest(sp_backend *be, double start, double *ms) {
    SP_TRY(sp_backend_synchronize(be));
    int64_t ns = (int64_t)(1e9 * (sp_now() - start));
    SP_TRY(sp_ranks_max(&ns, 1));
    *ms = 1e-6 * (double)ns;
    return SP_OK;
}

// Milliseconds. Exposed: how much longer a step with the sum takes than its neighbour without it;
// noise: half of those differences lie so close to their median.
typedef struct times {
    double step, alone, sum, exposed, noise;
} times;

static sp_status measure(sp_backend *be, sp_bench_step_args a, sp_bench_step *b, int64_t steps,
                         double *scratch, times *out) {
    double *with = scratch, *without = scratch + steps, *more = scratch + 2 * steps, sums[SUMS];
    for (int64_t i = -WARM_UPS; i < steps; i++)
        for (int half = 0; half < 2; half++) {
            double start = sp_now(), ms;
            bool sum = a.sum = (i + half) % 2 == 0; // which one is first, in turn
            SP_TRY(sp_bench_step_run(&a, b, i + WARM_UPS + 1));
            SP_TRY(slowest(be, start, &ms));
            if (i >= 0) (sum ? with : without)[i] = ms;
        }
    for (int i = -WARM_UPS; i < SUMS; i++) {
        double start = sp_now(), ms;
        SP_TRY(sp_ranks_sum(&b->grad));
        SP_TRY(slowest(be, start, &ms));
        SP_TRY(sp_fill(b->grad, 0)); // sums of sums would overflow
        SP_TRY(slowest(be, start, &start));
        if (i >= 0) sums[i] = ms;
    }
    for (int64_t i = 0; i < steps; i++) more[i] = with[i] - without[i];
    out->exposed = median(more, steps);
    for (int64_t i = 0; i < steps; i++) more[i] = fabs(more[i] - out->exposed);
    out->noise = median(more, steps);
    out->step = median(with, steps);
    out->alone = median(without, steps);
    out->sum = median(sums, SUMS);
    return SP_OK;
}

static void report(const sp_ranks *r, int64_t hosts, const sp_bench_step_args *a,
                   const sp_bench_step *b, int64_t steps, times t, const int64_t worst[2],
                   json_t *results) {
    double bytes = 4 * (double)b->grad.rows * (double)b->grad.cols, n = r->size;
    double bus = r->size > 1 ? 2 * (n - 1) / n * bytes / t.sum * 1e-6 : 0;
    double load_s = 1e-9 * (double)worst[0], weights = (double)b->desc->weight_bytes;
    sp_info("scaling     %s, ranks %d, hosts %lld, %lld x %lld tokens a rank, median of %lld",
            b->desc->name, r->size, (long long)hosts, (long long)a->batch, (long long)a->seq_len,
            (long long)steps);
    sp_info("  step %.2f ms, without the sum %.2f ms: %.2f ms exposed (median difference, half "
            "within %.2f); %.0f "
            "tokens/s",
            t.step, t.alone, t.exposed, t.noise,
            1e3 * n * (double)a->batch * (double)a->seq_len / t.step);
    if (r->size > 1)
        sp_info("  sum of %.1f MB alone %.3f ms, %.1f GB/s on the bus", 1e-6 * bytes, t.sum, bus);
    sp_info(
        "  loading %.2f s, %.2f GB/s on the slowest rank; resident host memory of a rank %.2f GiB",
        load_s, 1e-9 * weights / load_s, (double)worst[1] / 0x1p30);
    json_array_append_new(
        results,
        json_pack(
            "{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
            "name", "scaling", "model", b->desc->name, "ranks", r->size, "hosts", (json_int_t)hosts,
            "seq_len", (json_int_t)a->seq_len, "batch", (json_int_t)a->batch, "n",
            (json_int_t)steps, "step_ms", t.step, "alone_ms", t.alone, "exposed_ms", t.exposed,
            "noise_ms", t.noise, "sum_ms", t.sum, "sum_bytes", bytes, "bus_gbps", bus, "load_s",
            load_s, "host_rss", (json_int_t)worst[1]));
}

sp_status sp_bench_scaling(const sp_bench_step_args *a, const sp_backend_options *backend,
                           int64_t steps, json_t *results) {
    const sp_ranks *r;
    sp_backend *be = NULL;
    sp_bench_step b = {0};
    double *scratch = NULL;
    times t;
    struct rusage u;
    SP_TRY(sp_ranks_open(&r));
    sp_backend_options o = *backend;
    o.local_rank = r->local_rank;
    o.local_ranks = r->local_size;
    sp_status st = sp_ranks_agree(sp_backend_open(&o, &be));
    if (st != SP_OK) goto done;
    double hosts = r->local_rank == 0;
    SP_GO(sp_ranks_sum_doubles(&hosts, 1));
    if (r->rank == 0) {
        sp_info("sparda %s (%s, %s)", SPARDA_VERSION, SPARDA_GIT, SPARDA_BUILD_TYPE);
        sp_info("backend     %s", sp_backend_description(be));
    }
    SP_GO(sp_ranks_connect(be, DEADLINE_S));
    sp_bench_step_args own = *a;
    own.progress = r->rank == 0;
    SP_GO(sp_ranks_agree(sp_bench_step_open(be, &own, &b)));
    SP_GO(sp_ranks_agree(sp_alloc(&scratch, 3 * steps, sizeof *scratch, "times")));
    SP_GO(measure(be, own, &b, steps, scratch, &t));
    int64_t worst[2] = {(int64_t)(1e9 * b.load_s),
                        getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0};
    SP_GO(sp_ranks_max(worst, 2));
    if (r->rank == 0) report(r, (int64_t)hosts, a, &b, steps, t, worst, results);
done:
    sp_bench_step_close(&b);
    free(scratch);
    sp_backend_close(be);
    return st;
}
