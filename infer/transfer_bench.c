// sparda bench transfer: the transfer engine alone, random units of a pinned pool, by kind, thread
// blocks and list length (inference.md 3.4).
#include "infer/bench.h"

#include "common/arguments.h"
#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "kernels/decode.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *json;
    int64_t unit_bytes, repeats, matmul;
    sp_number_list units, ctas;
    double pool_gib;
    bool kind[SP_TRANSFER_KINDS];
} arguments;

static sp_status parse(int argc, char **argv, arguments *a) {
    const char *kinds[SP_TRANSFER_KINDS];
    bool chosen[SP_TRANSFER_KINDS];
    sp_transfer_kind kind[SP_TRANSFER_KINDS];
    sp_names names = {kinds, chosen, 0};
    sp_problems p = {0};
    *a = (arguments){.unit_bytes = 32768,
                     .pool_gib = 8,
                     .repeats = 20,
                     .units = {{8, 32, 128, 512, 2048, 8192}, 6},
                     .ctas = {{4, 8, 16, 32, 64}, 5}};
    for (int k = 0; k < SP_TRANSFER_KINDS; k++) {
        if (k == SP_TRANSFER_AUTO || k == SP_TRANSFER_RESIDENT) continue; // only in a step
        kind[names.n] = (sp_transfer_kind)k;
        kinds[names.n] = sp_transfer_name((sp_transfer_kind)k);
        chosen[names.n++] = true;
    }
    const sp_argument options[] = {
        {"--json", .text = &a->json},
        {"--ctas", .list = &a->ctas, .least = 1},
        {"--units", .list = &a->units, .least = 1},
        {"--kinds", .names = &names},
        {"--unit-bytes", .number = &a->unit_bytes, .least = 16},
        {"--pool-gib", .real = &a->pool_gib},
        {"--repeats", .number = &a->repeats, .least = 1},
        {"--matmul", .number = &a->matmul, .most = 1},
        {0},
    };
    sp_arguments_read(argc - 1, argv + 1, options, NULL, &p);
    for (int i = 0; i < names.n; i++) a->kind[kind[i]] = chosen[i];
    if (a->pool_gib <= 0) sp_problems_add(&p, "--pool-gib: a size above 0 is expected");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda bench transfer (see --help)"));
    return sp_json_check_place(a->json);
}

// ---- measuring ----------------------------------------------------------------------------------

static sp_status transfer_cell(sp_transfer_bench *t, const arguments *a, sp_transfer_kind kind,
                               int64_t ctas, int64_t units, json_t *results) {
    sp_transfer_result r;
    sp_transfer_case c = {.kind = kind,
                          .ctas = ctas,
                          .units = units,
                          .unit_bytes = a->unit_bytes,
                          .with_matmul = a->matmul > 0,
                          .repeats = a->repeats};
    SP_TRY(sp_transfer_bench_run(t, &c, &r));
    bool counted = kind == SP_TRANSFER_KERNEL || kind == SP_TRANSFER_BULK;
    char blocks[16] = "", slow[16] = "";
    if (counted) snprintf(blocks, sizeof blocks, "%lld", (long long)ctas);
    if (a->matmul) snprintf(slow, sizeof slow, "%.3f", r.matmul_slowdown);
    sp_info("  %-8s %6s %7lld %10.2f %10.1f %10.1f %8.1f %6.1f%% %9s %6lld", sp_transfer_name(kind),
            blocks, (long long)units, (double)(units * a->unit_bytes) / 0x1p20, r.us_median,
            r.us_p99, r.gbps, 100 * r.gbps / r.reference_gbps, slow, (long long)r.wrong_units);
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:f, s:o, s:I}",
                          "name", "transfer", "kind", sp_transfer_name(kind), "ctas",
                          (json_int_t)(counted ? ctas : 0), "units", (json_int_t)units,
                          "unit_bytes", (json_int_t)a->unit_bytes, "us_median", r.us_median,
                          "us_p99", r.us_p99, "gbps", r.gbps, "ceiling", r.reference_gbps,
                          "ceiling_unit", "gbps", "share", r.gbps / r.reference_gbps,
                          "matmul_slowdown", a->matmul ? json_real(r.matmul_slowdown) : json_null(),
                          "wrong_units", (json_int_t)r.wrong_units);
    if (o) json_array_append_new(results, o);
    if (r.wrong_units)
        return sp_error(SP_ENVIRONMENT, "transfer %s copied %lld of %lld units wrong",
                        sp_transfer_name(kind), (long long)r.wrong_units, (long long)units);
    return SP_OK;
}

static sp_status bench(sp_backend *be, const void *of, json_t *results) {
    const arguments *a = of;
    int64_t most = 0;
    for (int64_t i = 0; i < a->units.n; i++)
        if (a->units.value[i] > most) most = a->units.value[i];
    sp_transfer_bench *t;
    SP_TRY(sp_transfer_bench_open(be, (int64_t)(a->pool_gib * 0x1p30), a->unit_bytes, most, &t));
    sp_status st = SP_OK;
    sp_info("  %-8s %6s %7s %10s %10s %10s %8s %7s %9s %6s", "kind", "blocks", "units", "MiB",
            "us p50", "us p99", "GB/s", "of copy", "slowdown", "wrong");
    for (int64_t u = 0; u < a->units.n; u++)
        for (int k = 0; k < SP_TRANSFER_KINDS; k++) {
            if (!a->kind[k]) continue;
            bool counted = k == SP_TRANSFER_KERNEL || k == SP_TRANSFER_BULK;
            for (int64_t c = 0; c < (counted ? a->ctas.n : 1); c++)
                SP_GO(transfer_cell(t, a, (sp_transfer_kind)k, a->ctas.value[c], a->units.value[u],
                                    results));
        }
done:
    sp_transfer_bench_close(t);
    return st;
}

// ---- command ------------------------------------------------------------------------------------

sp_status sp_bench_transfer(int argc, char **argv) {
    arguments a;
    SP_TRY(parse(argc, argv, &a));
    return sp_bench_on_gpu(bench, &a, a.json);
}
