// sparda bench: operations alone (kernels/bench.h), and the whole training step.
//
// train-step runs the real step on one rank: `batch` sequences through sp_distill_step, then norm,
// clipping and AdamW. Useful FLOP are those of training.md 10 (model/flops.h), whatever is really
// executed; the ceiling is the SGEMM rate of the same cores, measured when the backend was opened.
//
// Legend: L layers, R = Hkv*d, D hidden, T tokens.
#include "train/train.h"

#include "common/arguments.h"
#include "common/build.h"
#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "data/corpus.h"
#include "data/dataset.h"
#include "infer/bench.h"
#include "infer/prefill_bench.h"
#include "kernels/bench.h"
#include "kernels/profile.h"
#include "model/flops.h"
#include "train/bench_scaling.h"
#include "train/bench_step.h"
#include "train/ranks.h"

#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "sparda bench train-step [--base DIR] [--seq-len T] [--batch B] [--steps N] [options]\n"
    "sparda bench OPERATION|all [--like DIMENSIONS] [--tokens T] [options]\n"
    "sparda bench scaling [--base DIR] [--seq-len T] [--batch B] [--steps N] [options]\n"
    "sparda bench prefill --help              whole prompts under each selector\n"
    "sparda bench decode|transfer --help      serving on a GPU\n"
    "sparda bench data --help                 importing and reading token data\n"
    "\n"
    "  train-step       whole training steps: 3 to warm up, then N >= 1 measured (default 5) of B\n"
    "                   sequences (default 1) of T tokens (default 1024) on the base model\n"
    "                   (default data/tiny-base)\n"
    "  scaling          the same step on every rank of an mpirun or srun, with and without the sum "
    "of\n"
    "                   gradients, and the sum alone\n"
    "  OPERATION        one operation of kernels/kernels.h without its sp_, such as importance, "
    "or\n"
    "                   original_lists (importance and select_blocks, tile by tile), at the\n"
    "                   dimensions tiny (default; T = 1024 and 2048) or minicpm4.1-8b (T = 65536)\n"
    "\n"
    "  --threads N      host threads; default: all cores\n"
    "  --blas NAME      auto, openblas or onednn; default auto, the fastest by measurement\n"
    "  --backend NAME   auto, cpu or cuda\n"
    "  --cuda-kernels K auto, or portable: those for compute capability 8.0\n"
    "  --json FILE      results as JSON; '-' writes them to stdout\n";

typedef struct bench_args {
    const char *what, *base, *json, *like;
    int64_t tokens, seq_len, batch, steps;
    sp_backend_options backend;
    bool scaling, steps_of_training;
} bench_args;

// ---- arguments ----------------------------------------------------------------------------------

// The benchmark's name, then options of its own and those of all.
static sp_status parse(int argc, char **argv, bench_args *a) {
    int64_t threads = sp_ranks_threads();
    const char *cuda_kernels = "auto";
    *a = (bench_args){.base = "data/tiny-base",
                      .seq_len = 1024,
                      .batch = 1,
                      .steps = 5,
                      .backend = {.name = "auto", .cpu_blas = "auto", .local_ranks = 1}};
    sp_problems p = {0};
    if (argc < 2 || argv[1][0] == '-')
        return sp_error(SP_BAD_INPUT,
                        "sparda bench (see --help): nothing to measure: its name, such as "
                        "train-step, comes first%s%s",
                        argc < 2 ? "" : ", before ", argc < 2 ? "" : argv[1]);
    a->what = argv[1];
    a->scaling = strcmp(a->what, "scaling") == 0;
    a->steps_of_training = a->scaling || strcmp(a->what, "train-step") == 0;
    const sp_argument all[] = {{"--json", .text = &a->json},
                               {"--blas", .text = &a->backend.cpu_blas},
                               {"--backend", .text = &a->backend.name},
                               {"--cuda-kernels", .text = &cuda_kernels},
                               {"--threads", .number = &threads, .least = 1, .most = 1024}};
    const sp_argument steps[] = {{"--base", .text = &a->base},
                                 {"--seq-len", .number = &a->seq_len, .least = 1},
                                 {"--batch", .number = &a->batch, .least = 1},
                                 {"--steps", .number = &a->steps, .least = 1},
                                 {0}};
    const sp_argument operation[] = {
        {"--like", .text = &a->like}, {"--tokens", .number = &a->tokens, .least = 1}, {0}};
    sp_argument options[sizeof all / sizeof *all + sizeof steps / sizeof *steps] = {{0}};
    memcpy(options, all, sizeof all);
    if (a->steps_of_training)
        memcpy(options + sizeof all / sizeof *all, steps, sizeof steps);
    else
        memcpy(options + sizeof all / sizeof *all, operation, sizeof operation);
    sp_arguments_read(argc - 1, argv + 1, options, NULL, &p);
    a->backend.threads = (int)threads;
    a->backend.portable_kernels = strcmp(cuda_kernels, "portable") == 0;
    if (!a->backend.portable_kernels && strcmp(cuda_kernels, "auto") != 0)
        sp_problems_add(&p, "--cuda-kernels: auto or portable is expected, not '%s'", cuda_kernels);
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda bench %s (see --help)", a->what));
    return sp_json_check_place(a->json);
}

// ---- train-step ---------------------------------------------------------------------------------

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static int by_time(const void *x, const void *y) {
    double a = ((const sp_profile_row *)x)->seconds, b = ((const sp_profile_row *)y)->seconds;
    return a > b ? -1 : a < b;
}

// Useful FLOP of a step that an operation does; 0 where it only moves data or is not counted.
static double operation_flop(const char *name, const sp_flops *f) {
    static const struct {
        const char *name;
        size_t parts[2];
        int n;
    } owners[] = {
        {"linear", {offsetof(sp_flops, linear), offsetof(sp_flops, forecast)}, 2},
        {"importance", {offsetof(sp_flops, selection), 0}, 1},
        {"sparse_attention", {offsetof(sp_flops, attention), 0}, 1},
        {"kl", {offsetof(sp_flops, student), offsetof(sp_flops, student_grad)}, 2},
        {"grad_weight", {offsetof(sp_flops, grad_weight), 0}, 1},
    };
    double flop = 0;
    for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++)
        if (strcmp(owners[i].name, name) == 0)
            for (int k = 0; k < owners[i].n; k++)
                flop += *(const double *)((const char *)f + owners[i].parts[k]);
    return flop;
}

static void report_step(sp_backend *be, const bench_args *a, sp_bench_step *b, double *ms,
                        json_t *results) {
    sp_flops one = sp_flops_training(b->desc, (sp_grid){2, 1}, a->seq_len);
    double ceiling = sp_backend_matmul_gflops(be), total_ms = 0;
    for (int64_t i = 0; i < a->steps; i++) total_ms += ms[i];
    qsort(ms, (size_t)a->steps, sizeof(double), by_value);
    double median = a->steps % 2 ? ms[a->steps / 2] : (ms[a->steps / 2 - 1] + ms[a->steps / 2]) / 2;
    double p99 = ms[(int64_t)ceil(0.99 * (double)a->steps) - 1];
    double tokens = (double)a->batch * (double)a->seq_len;
    double flop = (double)a->batch * sp_flops_total(&one), gflops = 1e-6 * flop / median;
    int64_t peak = 0;
    sp_backend_bytes(be, &peak);

    sp_info("train-step  %s, %lld x %lld tokens, median of %lld", b->desc->name,
            (long long)a->batch, (long long)a->seq_len, (long long)a->steps);
    sp_info("  %.1f ms (slowest %.1f), %.0f tokens/s, %.2f GFLOP useful, %.1f GFLOP/s", median,
            ms[a->steps - 1], 1e3 * tokens / median, 1e-9 * flop, gflops);
    if (ceiling > 0)
        sp_info("  %.1f%% of the rate of large matrix products here, %.1f GFLOP/s",
                100 * gflops / ceiling, ceiling);

    const sp_profile_row *rows;
    int n = sp_profile_rows(&rows);
    sp_profile_row *sorted = malloc((size_t)n * sizeof *sorted);
    double timed = 0;
    json_t *operations = json_array();
    sp_info("  %-18s %10s %8s %8s %10s %8s", "operation", "ms/step", "share", "calls", "GFLOP/s",
            "of GEMM");
    for (int i = 0; sorted && i < n; i++) sorted[i] = rows[i];
    if (sorted) qsort(sorted, (size_t)n, sizeof *sorted, by_time);
    for (int i = 0; sorted && i < n && sorted[i].calls > 0; i++) {
        double mine = 1e3 * sorted[i].seconds / (double)a->steps;
        double share = 1e3 * sorted[i].seconds / total_ms;
        double rate = (double)a->batch * operation_flop(sorted[i].name, &one) / mine * 1e-6;
        timed += share;
        char rate_text[32] = "", of_text[32] = "";
        if (rate > 0) snprintf(rate_text, sizeof rate_text, "%.1f", rate);
        if (rate > 0 && ceiling > 0)
            snprintf(of_text, sizeof of_text, "%.1f%%", 100 * rate / ceiling);
        sp_info("  %-18s %10.2f %7.1f%% %8lld %10s %8s", sorted[i].name, mine, 100 * share,
                (long long)(sorted[i].calls / a->steps), rate_text, of_text);
        json_array_append_new(operations,
                              json_pack("{s:s, s:f, s:f, s:I, s:o}", "name", sorted[i].name,
                                        "ms_per_step", mine, "share_of_step", share,
                                        "calls_per_step", (json_int_t)(sorted[i].calls / a->steps),
                                        "gflops", rate > 0 ? json_real(rate) : json_null()));
    }
    free(sorted);
    sp_info("  %-18s %10.2f %7.1f%%", "between operations",
            total_ms / (double)a->steps * (1 - timed), 100 * (1 - timed));

    json_t *o =
        json_pack("{s:s, s:o, s:f, s:f, s:f, s:I, s:f, s:n, s:f, s:n, s:o, s:s, s:o}", "name",
                  "train-step", "shape",
                  json_sprintf("%s, %lld x %lld tokens", b->desc->name, (long long)a->batch,
                               (long long)a->seq_len),
                  "ms_median", median, "ms_min", ms[0], "ms_p99", p99, "n", (json_int_t)a->steps,
                  "flop", flop, "bytes", "tflops", 1e-3 * gflops, "gbps", "ceiling",
                  ceiling > 0 ? json_real(1e-3 * ceiling) : json_null(), "ceiling_unit", "tflops",
                  "share", ceiling > 0 ? json_real(gflops / ceiling) : json_null());
    json_object_set_new(o, "tokens_per_s", json_real(1e3 * tokens / median));
    json_object_set_new(o, "peak_bytes", json_integer(peak));
    json_object_set_new(o, "operations", operations);
    json_array_append_new(results, o);
}

static sp_status bench_step(sp_backend *be, const bench_args *a, json_t *results) {
    enum { WARM_UPS = 3 };
    sp_bench_step b = {0};
    sp_bench_step_args step = {
        .base = a->base, .seq_len = a->seq_len, .batch = a->batch, .progress = true};
    double *ms = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&ms, a->steps, sizeof *ms, "times"));
    SP_GO(sp_bench_step_open(be, &step, &b));
    SP_GO(sp_profile_open(be));
    for (int64_t i = -WARM_UPS; i < a->steps; i++) {
        if (i == 0) sp_profile_reset();
        sp_progress("step %lld of %lld%s", (long long)(i < 0 ? i + WARM_UPS : i) + 1,
                    (long long)(i < 0 ? WARM_UPS : a->steps), i < 0 ? " to warm up" : "");
        double start = sp_now();
        SP_GO(sp_bench_step_run(&step, &b, i + WARM_UPS + 1));
        if (i >= 0) ms[i] = 1e3 * (sp_now() - start);
    }
    sp_progress("%s", "");
    report_step(be, a, &b, ms, results);
done:
    sp_profile_close();
    sp_bench_step_close(&b);
    free(ms);
    return st;
}

// ---- operations ---------------------------------------------------------------------------------

static void report_operations(json_t *results) {
    size_t i;
    json_t *o, *v;
    sp_info("%-18s %-76s %9s %9s %9s %8s %6s", "operation", "shape", "ms", "ms p99", "GFLOP/s",
            "GB/s", "share");
    json_array_foreach(results, i, o) {
        char share[16] = "";
        v = json_object_get(o, "share");
        if (json_is_number(v)) snprintf(share, sizeof share, "%.1f%%", 100 * json_number_value(v));
        sp_info("%-18s %-76s %9.3f %9.3f %9.1f %8.2f %6s",
                json_string_value(json_object_get(o, "name")),
                json_string_value(json_object_get(o, "shape")),
                json_number_value(json_object_get(o, "ms_median")),
                json_number_value(json_object_get(o, "ms_p99")),
                1e3 * json_number_value(json_object_get(o, "tflops")),
                json_number_value(json_object_get(o, "gbps")), share);
    }
}

// ---- command ------------------------------------------------------------------------------------

// The benchmarks with files of their own; false if argv[1] names none of them.
static bool elsewhere(int argc, char **argv, sp_status *st) {
    const char *name = argc > 1 ? argv[1] : "";
    bool decode = strcmp(name, "decode") == 0, transfer = strcmp(name, "transfer") == 0;
    if (strcmp(name, "prefill") == 0) {
        *st = sp_bench_prefill(argc, argv);
    } else if (strcmp(name, "data") == 0) {
        *st = sp_data_bench(argc - 1, argv + 1);
    } else if (!decode && !transfer) {
        return false;
    } else if (sp_arguments_help(argc, argv)) {
        fputs(decode ? sp_bench_decode_usage : sp_bench_transfer_usage, stdout);
        *st = SP_OK;
    } else {
#if SPARDA_HAVE_CUDA
        *st = decode ? sp_bench_decode(argc, argv) : sp_bench_transfer(argc, argv);
#else
        *st = sp_error(SP_ENVIRONMENT, "bench %s needs a build with CUDA", name);
#endif
    }
    return true;
}

static sp_status run(const bench_args *a, json_t *results) {
    const sp_bench_step_args step = {.base = a->base, .seq_len = a->seq_len, .batch = a->batch};
    if (a->scaling) return sp_bench_scaling(&step, &a->backend, a->steps, results);
    sp_backend *be;
    SP_TRY(sp_backend_open(&a->backend, &be));
    sp_info("sparda %s (%s, %s)", SPARDA_VERSION, SPARDA_GIT, SPARDA_BUILD_TYPE);
    sp_info("backend     %s", sp_backend_description(be));
    const sp_bench_args operation = {.name = a->what, .like = a->like, .tokens = a->tokens};
    sp_status st = a->steps_of_training ? bench_step(be, a, results)
                                        : sp_bench_operation(be, &operation, results);
    if (st == SP_OK && !a->steps_of_training) report_operations(results);
    sp_backend_close(be);
    return st;
}

sp_status sp_bench_command(int argc, char **argv) {
    bench_args a;
    sp_status st;
    SP_TRY(sp_log_open(0, NULL, false));
    if (elsewhere(argc, argv, &st)) return st;
    if (sp_arguments_help(argc, argv)) {
        fputs(usage, stdout);
        return SP_OK;
    }
    SP_TRY(parse(argc, argv, &a));
    json_t *results = json_array();
    st = run(&a, results);
    // Of several ranks one has results.
    if (st == SP_OK && a.json && json_array_size(results) > 0) st = sp_json_write(a.json, results);
    json_decref(results);
    return st;
}
