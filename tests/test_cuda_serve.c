// ctest: timeout=600
// The decode engine on a GPU in whole runs on the tiny bases, with and without importance of keys:
// against each other to the bit, and against the CPU engine. Skipped where no device is. With
// --small (for compute-sanitizer) runs are short.
#include "common/build.h"
#include "tests/gpu_options.h"
#include "tests/support.h"

#include <stdio.h>
#include <string.h>

#if SPARDA_HAVE_CUDA
#include "common/util.h"
#include "infer/infinigen.h"
#include "kernels/backend.h"
#include "tests/golden.h"
#include "validate/serve.h"
#include "validate/stats.h"

#include <math.h>
#include <stdlib.h>

static sp_backend *gpu;
static bool small, portable;
static int64_t leaked; // the most of any run; a sanitizer takes memory of its own

static struct {
    sp_model *gpu_model;
    const sp_model *on_cpu_model;
    sp_model_desc *desc;
    sp_forecast_device on_cpu, on_gpu;
} tiny;

enum { PROMPTS = 3, MAX_TOKENS = 768, V = 1024 };
static int32_t text[PROMPTS][MAX_TOKENS];
static const int64_t lengths[PROMPTS] = {301, 64, 470};

static int open_base(const char *folder, sp_forecast f) {
    char *dir = test_path(folder);
    assert_ok(sp_model_describe(dir, NULL, &tiny.desc));
    assert_ok(sp_model_load(gpu, tiny.desc, &(sp_model_load_options){0}, &tiny.gpu_model));
    free(dir);
    assert_ok(sp_forecast_upload(test_backend(), &f, &tiny.on_cpu));
    assert_ok(sp_forecast_upload(gpu, &f, &tiny.on_gpu));
    sp_forecast_free(&f);
    uint64_t s = 9;
    for (int p = 0; p < PROMPTS; p++)
        for (int i = 0; i < MAX_TOKENS; i++) text[p][i] = (int32_t)(test_random(&s) % V);
    return 0;
}

static int open_tiny(void **state) {
    (void)state;
    tiny.on_cpu_model = test_tiny_base();
    return open_base("data/tiny-base", golden_forecast(1));
}

static int open_nosa(void **state) {
    (void)state;
    sp_forecast f;
    tiny.on_cpu_model = test_tiny_nosa();
    assert_ok(sp_forecast_alloc(tiny.on_cpu_model->desc, &f));
    sp_forecast_init(&f, 20260605);
    return open_base("data/tiny-nosa", f);
}

static int close_tiny(void **state) {
    (void)state;
    sp_forecast_device_free(&tiny.on_cpu);
    sp_forecast_device_free(&tiny.on_gpu);
    sp_model_free(tiny.gpu_model);
    sp_model_desc_free(tiny.desc);
    return 0;
}

static sp_serve_prompt prompts[PROMPTS];

static sp_serve_args serving(sp_infer_mode mode, sp_transfer_kind kind, int64_t slots,
                             bool no_graph, bool offload0, int64_t steps, const int32_t *forced) {
    for (int p = 0; p < PROMPTS; p++) prompts[p] = (sp_serve_prompt){text[p], lengths[p]};
    return (sp_serve_args){.engine = {.model = tiny.gpu_model,
                                      .forecast = &tiny.on_gpu,
                                      .mode = mode,
                                      .batch = PROMPTS,
                                      .max_tokens = MAX_TOKENS,
                                      .slots = slots,
                                      .transfer = kind,
                                      .ctas = 4,
                                      .no_graph = no_graph,
                                      .offload_layer0 = offload0},
                           .prompt = prompts,
                           .steps = steps,
                           .forced = forced,
                           .check_copies = true,
                           .keep_logits = forced != NULL};
}

static sp_serve_run run_checked(const sp_serve_args *a) {
    sp_serve_run r;
    assert_ok(sp_serve(a, &r));
    assert_int_equal(r.units_different, 0);
    if (!small) leaked = r.growth_device > leaked ? r.growth_device : leaked;
    if (!small && sp_serve_leak(&r) > leaked) leaked = sp_serve_leak(&r);
    assert_int_equal(r.predicted.device, r.allocated.device);
    assert_int_equal(r.predicted.host, r.allocated.host);
    return r;
}

static sp_serve_run serve(sp_infer_mode mode, sp_transfer_kind kind, int64_t slots, bool no_graph,
                          bool offload0, int64_t steps, const int32_t *forced) {
    sp_serve_args a = serving(mode, kind, slots, no_graph, offload0, steps, forced);
    return run_checked(&a);
}

static void assert_same(const char *what, const sp_serve_run *a, const sp_serve_run *b, bool maps) {
    int64_t at = sp_serve_first_difference(a, b, maps);
    printf("    %-44s %lld steps%s%s\n", what, (long long)b->steps,
           at < 0 ? ", all bits equal" : ", DIFFERENT", maps ? " (and slot maps)" : "");
    if (at >= 0) fail_msg("%s: first difference at step %d", what, (int)at);
}

// The statements P2 to P5 of inference.md 5.4, and that graph, transfer and slots do not matter.
static void ways_of_serving(void **state) {
    (void)state;
    int64_t steps = small ? 6 : 272, K = SP_TRANSFER_KERNEL;
    sp_serve_run home = serve(SP_MODE_FORECAST_RESIDENT, K, 0, false, false, steps, NULL);
    printf("    %lld rollovers, %lld compressed keys\n", (long long)home.rollovers,
           (long long)home.compressed);
    assert_int_equal(home.unequal_compressed, 0);
    if (!small) assert_true(home.rollovers >= 4 * PROMPTS && home.compressed >= 16);
    sp_serve_run inlined = serve(SP_MODE_FORECAST_INLINE, K, 0, false, false, steps, NULL);
    assert_same("offloaded, copied when needed", &home, &inlined, false);
    assert_true(inlined.units_checked > 0 && inlined.missed > 0);
    sp_serve_run ahead = serve(SP_MODE_SPARDA, K, 0, false, false, steps, NULL);
    assert_same("copied a layer ahead", &home, &ahead, false);
    assert_same("ahead against inline", &inlined, &ahead, true);
    assert_int_equal(inlined.missed, ahead.missed);
    for (sp_transfer_kind k = SP_TRANSFER_WIDE; k < SP_TRANSFER_KINDS; k++) {
        // Its kernel waits for later ones: it could not run under a tool that runs them one by one.
        if (small && k == SP_TRANSFER_RESIDENT) continue;
        if (portable && k == SP_TRANSFER_BULK) continue; // needs Hopper's kernels
        char name[64];
        snprintf(name, sizeof name, "ahead, transfer %s", sp_transfer_name(k));
        sp_serve_run r = serve(SP_MODE_SPARDA, k, 0, false, false, small ? 6 : 64, NULL);
        r.steps = r.steps < steps ? r.steps : steps;
        sp_serve_run part = ahead;
        part.steps = r.steps;
        assert_same(name, &part, &r, true);
        sp_serve_free(&r);
    }
    sp_serve_run live = serve(SP_MODE_SPARDA, K, 0, true, false, small ? 6 : 64, NULL);
    sp_serve_run part = ahead;
    part.steps = live.steps;
    assert_same("operation by operation, no graph", &part, &live, true);
    sp_serve_run more = serve(SP_MODE_SPARDA, K, 25, false, true, steps, NULL);
    assert_same("25 slots, layer 0 offloaded too", &home, &more, false);
    sp_serve_run wide = serve(SP_MODE_SPARDA, K, 48, false, false, steps, NULL);
    assert_same("48 slots hold every block", &home, &wide, false);
    printf("    units missed: %lld with 10 slots, %lld with 48\n", (long long)ahead.missed,
           (long long)wide.missed);
    if (!small) assert_true(wide.missed < ahead.missed);
    sp_serve_run sparse = serve(SP_MODE_SPARSE_RESIDENT, K, 0, false, false, steps, NULL);
    sp_serve_run away = serve(SP_MODE_SPARSE_OFFLOAD, K, 0, false, false, steps, NULL);
    assert_same("original selector, offloaded", &sparse, &away, false);
    assert_int_equal(sparse.unequal_compressed, 0);
    if (!small) assert_true(sp_serve_first_difference(&sparse, &home, false) >= 0);
    sp_serve_run proxy = serve(SP_MODE_INFINIGEN, K, 0, false, false, steps, NULL);
    sp_serve_run again = serve(SP_MODE_INFINIGEN, K, 48, true, false, steps, NULL);
    assert_same("InfiniGen with 48 slots, no graph", &proxy, &again, false);
    if (!small) assert_true(sp_serve_first_difference(&proxy, &home, false) >= 0);
    sp_serve_run *all[] = {&home, &inlined, &ahead, &live,  &more,
                           &wide, &sparse,  &away,  &proxy, &again};
    for (int i = 0; i < 10; i++) sp_serve_free(all[i]);
}

// What a server does all day: copies ahead, step after step; the same bits as without copies, and
// no byte more at the end (memory_stays looks at all runs).
static void a_thousand_steps(void **state) {
    (void)state;
    const int64_t steps = small ? 8 : 1000;
    sp_serve_args a =
        serving(SP_MODE_FORECAST_RESIDENT, SP_TRANSFER_KERNEL, 0, false, false, steps, NULL);
    a.engine.max_tokens = 2 * MAX_TOKENS;
    a.check_copies = false;
    sp_serve_run home = run_checked(&a);
    a.engine.mode = SP_MODE_SPARDA;
    sp_serve_run ahead = run_checked(&a);
    assert_same("copied a layer ahead, many steps", &home, &ahead, false);
    printf("    growth: host %lld bytes, device %lld\n", (long long)ahead.growth_host,
           (long long)ahead.growth_device);
    sp_serve_free(&home);
    sp_serve_free(&ahead);
}

// Logits of the CPU engine for the same tokens, [steps][PROMPTS][V].
static float *cpu_logits(sp_backend *be, const sp_model *m, const sp_forecast_device *f,
                         sp_selector s, int64_t steps) {
    float *out = malloc((size_t)(steps * PROMPTS * V) * 4);
    (void)be;
    for (int p = 0; p < PROMPTS; p++) {
        sp_engine *e;
        assert_ok(sp_engine_open(&(sp_engine_args){.model = m, .max_tokens = MAX_TOKENS}, &e));
        assert_ok(sp_engine_start(e, &(sp_engine_run){.selector = s, .forecast = f}));
        assert_ok(sp_engine_append(e, text[p], lengths[p], 1));
        for (int64_t i = 0; i < steps; i++) {
            assert_ok(sp_engine_append(e, text[p] + lengths[p] + i, 1, 1));
            assert_ok(sp_engine_logits(e, 0, 1, out + (i * PROMPTS + p) * V));
        }
        sp_engine_close(e);
    }
    return out;
}

static double mean_kl(const float *p, const float *q, int64_t rows) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        sp_logit_row a = sp_logits_look(p + r * V, V), b = sp_logits_look(q + r * V, V);
        sum += sp_logits_kl(p + r * V, a, q + r * V, b, V);
    }
    return sum / (double)rows;
}

// bf16 costs something against fp32: no more than twice what it costs the simple engine on the same
// GPU, which has other kernels for everything.
static void against_the_cpu_engine(void **state) {
    (void)state;
    static const struct {
        sp_infer_mode mode;
        sp_selector selector;
    } cases[] = {{SP_MODE_DENSE, SP_SELECT_DENSE},
                 {SP_MODE_SPARSE_OFFLOAD, SP_SELECT_ORIGINAL},
                 {SP_MODE_SPARDA, SP_SELECT_FORECAST}};
    int64_t steps = small ? 2 : 40;
    int32_t *forced = malloc((size_t)(steps * PROMPTS) * 4);
    for (int64_t i = 0; i < steps; i++)
        for (int p = 0; p < PROMPTS; p++) forced[i * PROMPTS + p] = text[p][lengths[p] + i];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *want =
            cpu_logits(test_backend(), tiny.on_cpu_model, &tiny.on_cpu, cases[i].selector, steps);
        float *simple = cpu_logits(gpu, tiny.gpu_model, &tiny.on_gpu, cases[i].selector, steps);
        int64_t rows = steps * PROMPTS;
        double base = mean_kl(want, simple, rows), e0 = test_rel_error(simple, want, rows * V);
        // Prompts by sp_infer_prefill, then by the simple engine.
        for (int simply = 0; simply < 2; simply++) {
            sp_serve_args a =
                serving(cases[i].mode, SP_TRANSFER_KERNEL, 0, false, false, steps, forced);
            a.simple_prefill = simply;
            sp_serve_run r = run_checked(&a);
            double mine = mean_kl(want, r.kept, rows), e1 = test_rel_error(r.kept, want, rows * V);
            printf(
                "    %-16s%s KL to the CPU engine %.2e (simple engine %.2e), logits %.2e (%.2e)\n",
                sp_infer_mode_name(cases[i].mode), simply ? ", simple prefill" : "", mine, base, e1,
                e0);
            assert_true(e1 <= 2 * e0 && e1 < 0.1);
            sp_serve_free(&r);
        }
        free(want), free(simple);
    }
    free(forced);
}

static void bad_input(void **state) {
    (void)state;
    sp_infer *e;
    sp_infer_args a = {.model = tiny.gpu_model,
                       .forecast = &tiny.on_gpu,
                       .mode = SP_MODE_SPARDA,
                       .batch = 2,
                       .max_tokens = 256,
                       .slots = 3,
                       .transfer = SP_TRANSFER_KERNEL};
    assert_fails(sp_infer_open(&a, &e), SP_BAD_INPUT, "at least 10");
    a.slots = 0;
    a.host_bytes = 1 << 20;
    assert_fails(sp_infer_open(&a, &e), SP_ENVIRONMENT, "largest batch that fits is 1");
    a.host_bytes = 0;
    a.forecast = NULL;
    assert_fails(sp_infer_open(&a, &e), SP_ENVIRONMENT, "without Forecast");
    a.forecast = &tiny.on_gpu;
    assert_ok(sp_infer_open(&a, &e));
    assert_fails(sp_infer_start(e, 0, 256, 0), SP_BAD_INPUT, "leaves no room");
    assert_fails(sp_infer_start(e, 0, 10, V), SP_BAD_INPUT, "vocabulary");
    assert_ok(sp_infer_start(e, 0, 255, 0));
    assert_ok(sp_infer_start(e, 1, 17, 0));
    assert_ok(sp_infer_step(e, NULL));
    assert_fails(sp_infer_step(e, NULL), SP_BAD_INPUT, "do not fit");
    sp_infer_close(e);
}

// Last, so that a leak does not hide what the runs say.
static void memory_stays(void **state) {
    (void)state;
    assert_int_equal(leaked, 0);
}

int main(int argc, char **argv) {
    const gpu_options options = gpu_options_of(argc, argv);
    small = options.small, portable = options.portable;
    if (!gpu_opens(options, &gpu, NULL)) return 0;
    const struct CMUnitTest of_base[] = {
        cmocka_unit_test(ways_of_serving),  cmocka_unit_test(against_the_cpu_engine),
        cmocka_unit_test(a_thousand_steps), cmocka_unit_test(bad_input),
        cmocka_unit_test(memory_stays),
    };
    const struct CMUnitTest of_nosa[] = {
        cmocka_unit_test(ways_of_serving),
        cmocka_unit_test(against_the_cpu_engine),
        cmocka_unit_test(a_thousand_steps),
        cmocka_unit_test(memory_stays),
    };
    int failed = cmocka_run_group_tests(of_base, open_tiny, close_tiny);
    failed += cmocka_run_group_tests(of_nosa, open_nosa, close_tiny);
    sp_backend_close(gpu);
    return failed;
}
#else
int main(int argc, char **argv) {
    sp_backend *gpu = NULL;
    return gpu_opens(gpu_options_of(argc, argv), &gpu, NULL); // false: says why
}
#endif
