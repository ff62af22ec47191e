// The validation pass from its inputs to its report; see validate.h and inference.md 5.4.
#include "validate/validate.h"
#include "common/build.h"
#include "common/log.h"
#include "common/util.h"
#include "kernels/machine.h"
#include "validate/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---- progress -----------------------------------------------------------------------------------

// In units of one token through the layers; attention over everything grows with the length.
double sp_run_cost(const sp_pass *p, sp_selector s, int64_t T) {
    double positions =
        s == SP_SELECT_DENSE ? (double)T / 2 : (double)(p->selection.topk * p->selection.block);
    double attention = positions / (double)(3 * p->desc->hidden + 6 * p->desc->ffn);
    return (double)T * (1 + attention);
}

void sp_meter_phase(sp_meter *m, const char *phase) {
    snprintf(m->phase, sizeof m->phase, "%s", phase);
    sp_meter_add(m, 0);
}

void sp_meter_add(sp_meter *m, double cost) {
    m->done += cost;
    double share = m->total > 0 ? fmin(m->done / m->total, 1) : 1, passed = sp_now() - m->start;
    if (share < 0.01) {
        sp_progress("validate: %s", m->phase);
        return;
    }
    int64_t left = (int64_t)ceil(passed / share * (1 - share));
    sp_progress("validate: %s  %3.0f%%  %lld:%02lld left", m->phase, 100 * share,
                (long long)(left / 60), (long long)(left % 60));
}

// ---- the fixed sections of the report -----------------------------------------------------------

static void set(json_t *o, const char *key, json_t *value) {
    json_object_set_new(o, key, value);
}

static const char *weight_type(const sp_model_desc *d) {
    const char *s = json_string_value(json_object_get(d->config, "torch_dtype"));
    return s ? s : json_string_value(json_object_get(d->config, "dtype"));
}

static json_t *version(int cuda) {
    return json_sprintf("%d.%d", cuda / 1000, cuda % 1000 / 10);
}

static void write_machine(const sp_backend *be, json_t *root) {
    json_t *o = json_object_get(root, "machine"), *build;
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    set(o, "host_ram_gib", bytes > 0 ? json_real(bytes / (1 << 30)) : json_null());
    set(o, "backend", json_string(sp_backend_description(be)));
    sp_gpu_facts f;
    if (!sp_gpu_facts_of(be, &f)) return;
    build = json_object_get(json_object_get(root, "tool"), "build");
    set(build, "cuda", version(f.cuda_built));
    set(build, "arch", json_string(SPARDA_CUDA_CODE));
    set(o, "gpu", sp_json_text(f.name));
    set(o, "sm_count", json_integer(f.multiprocessors));
    set(o, "hbm_gib", json_real(f.memory_gib));
    if (*f.driver) set(o, "driver", sp_json_text(f.driver));
    set(o, "cuda", version(f.cuda));
    json_t *link = json_object_get(o, "pcie");
    if (f.pcie_generation) set(link, "gen", json_integer(f.pcie_generation));
    if (f.pcie_width) set(link, "width", json_integer(f.pcie_width));
    if (f.numa_node >= 0) set(o, "numa_node", json_integer(f.numa_node));
}

static void write_setting(const sp_pass *p) {
    json_t *root = p->report->root, *o;
    const sp_model_desc *d = p->desc;
    char now[32];
    time_t t = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    set(root, "created_utc", json_string(now));
    o = json_object_get(root, "tool");
    set(o, "version", json_string(SPARDA_VERSION));
    set(o, "git", json_string(SPARDA_GIT));
    set(json_object_get(o, "build"), "flags", json_string(SPARDA_BUILD_TYPE ", " SPARDA_COMPILER));
    write_machine(p->model->backend, root);

    o = json_object_get(root, "model");
    set(o, "name", sp_json_text(d->name));
    set(o, "layers", json_integer(d->layers));
    set(o, "hidden", json_integer(d->hidden));
    set(o, "q_heads", json_integer(d->heads.q_heads));
    set(o, "kv_heads", json_integer(d->heads.kv_heads));
    set(o, "head_dim", json_integer(d->heads.head_dim));
    set(o, "vocab", json_integer(d->vocab));
    set(o, "dtype", weight_type(d) ? sp_json_text(weight_type(d)) : json_null());
    set(o, "rope", d->rope_kind ? sp_json_text(d->rope_kind) : json_null());
    set(o, "backbone_sha256", json_string(p->model->weights_sha256));

    o = json_object_get(root, "sparse");
    set(o, "block", json_integer(p->selection.block));
    set(o, "kernel", json_integer(p->grid.kernel));
    set(o, "stride", json_integer(p->grid.stride));
    set(o, "init_blocks", json_integer(p->selection.init_blocks));
    set(o, "local_blocks", json_integer(p->selection.local_blocks));
    set(o, "k_effective", json_integer(p->selection.topk));
    set(o, "k_forced", json_integer(p->shortlist.topk - p->chosen));
    set(o, "k_chosen", json_integer(p->chosen));
    if (d->cis) // the rest, which no query chooses
        set(o, "k_by_importance", json_integer(p->selection.topk - p->shortlist.topk));
    set(o, "dense_len", json_integer(d->sparse.dense_len));

    o = json_object_get(root, "workload");
    set(o, "text_source", sp_json_text(p->text.name));
    for (int64_t i = 0; i < p->n_lengths; i++)
        json_array_append_new(json_object_get(o, "lengths"), json_integer(p->lengths[i]));
    set(o, "batch", json_integer(1));
    set(o, "seed", json_integer((json_int_t)p->seed));
    set(o, "needle_samples", p->needles ? json_integer(p->samples) : json_null());
}

// ---- the pass -----------------------------------------------------------------------------------

static sp_status describe_base(const sp_validate_args *a, sp_model_desc **d) {
    sp_recipe recipe = sp_recipe_of(a->config);
    return sp_model_describe(a->base, &recipe, d);
}

static sp_status run_measurements(sp_pass *p, const sp_exported *x) {
    sp_forecast random = {0};
    sp_forecast_device trained = {0}, untrained = {0};
    sp_backend *be = p->model->backend;
    sp_status st = SP_OK;
    SP_GO(sp_forecast_upload(be, x->forecast, &trained));
    SP_GO(sp_forecast_alloc(p->desc, &random));
    sp_forecast_init(&random, p->seed);
    SP_GO(sp_forecast_upload(be, &random, &untrained));
    p->trained = &trained;
    p->untrained = &untrained;
    p->meter = (sp_meter){.start = sp_now()};
    p->meter.total = 4 * sp_run_cost(p, SP_SELECT_FORECAST, p->lengths[0]) + sp_quality_cost(p) +
                     sp_needle_cost(p);
    SP_GO(sp_check_serving(p));
    SP_GO(sp_check_paths(p));
    SP_GO(sp_measure_quality(p));
    SP_GO(sp_measure_needles(p));
done:
    sp_progress("%s", "");
    sp_forecast_free(&random);
    sp_forecast_device_free(&trained);
    sp_forecast_device_free(&untrained);
    return st;
}

// P and Q of an export that cannot be trusted would only repeat that.
static sp_status skip_measurements(sp_pass *p, const char *why) {
    static const char *const paths[] = {"P1", "P5", "P6"};
    for (int i = 0; i < 3; i++) SP_TRY(sp_report_skip(p->report, paths[i], why));
    SP_TRY(sp_skip_quality(p, why));
    return sp_report_skip(p->report, "Q6", why);
}

static sp_status check_all(sp_pass *p, const sp_exported *x) {
    static const char other[] = "not run: the export does not fit the base model (E2)";
    sp_export_state state;
    SP_TRY(sp_check_export(p->report, p->desc, p->model->weights_sha256, x, &state));
    write_setting(p);
    if (state == SP_EXPORT_OTHER_BASE) {
        SP_TRY(sp_report_skip(p->report, "P7", other));
        return skip_measurements(p, other);
    }
    SP_TRY(sp_check_lookahead(p));
    if (state == SP_EXPORT_FAULTY)
        return skip_measurements(p, "not run: the export failed a hard check of group E");
    return run_measurements(p, x);
}

static void print_lines(char *text) {
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        if (!end) break;
        *end = 0;
        sp_info("%s", line);
    }
}

static sp_status conclude(const sp_pass *p) {
    const sp_validate_args *a = p->args;
    bool failed;
    char *summary = NULL;
    SP_TRY(sp_report_finish(p->report, a->strict, &failed));
    SP_TRY(sp_report_summary(p->report->root, &summary));
    sp_status st = sp_report_write(p->report, a->report);
    if (st == SP_OK) {
        print_lines(summary);
        sp_info("report: %s/validation_report.html and .json", a->report);
    }
    free(summary);
    SP_TRY(st);
    return failed ? sp_error(SP_CHECK_FAILED, "a validation check failed; see %s", a->report)
                  : SP_OK;
}

// What is measured, where, and with what, from the options, the model's description and the text:
// all that can be refused without weights.
static sp_status plan(sp_pass *p, const sp_model_desc *d) {
    const sp_config *c = p->args->config;
    p->desc = d;
    p->seed = (uint64_t)c->seed;
    p->selection = sp_model_selection(d, true);
    p->shortlist = sp_model_shortlist(d, true);
    p->grid = sp_deployed_grid(d);
    p->fine = (sp_grid){c->training_kernel_size, c->training_kernel_stride};
    p->chosen = p->shortlist.topk - p->shortlist.init_blocks - p->shortlist.local_blocks - 1;
    p->rows = c->validate.lm_rows;
    p->positions = c->validate.positions;
    p->samples = c->validate.samples;
    SP_TRY(sp_check_grids(d, p->fine));
    SP_TRY(sp_pass_open_text(p));
    return sp_pass_take_lengths(p);
}

// Rows given to be measured that cannot be are wrong input. A run must not lose its validation over
// its eval_data: there it is a warning, before the run and in the report (quality.c).
static sp_status judge_text(const sp_pass *p, bool foreseen) {
    char *why;
    SP_TRY(sp_pass_unmeasured(p, &why));
    if (!why) return SP_OK;
    sp_status st = SP_OK;
    if (p->args->data && !p->args->after_training)
        st = sp_error(SP_BAD_INPUT, "--data %s cannot be measured: %s; without --data %s",
                      p->text.name, why,
                      p->needles ? "the synthetic corpus is used"
                                 : "the quality checks (group Q) are skipped");
    else if (foreseen)
        sp_warn("the validation will not measure the quality on %s: %s", p->text.name, why);
    free(why);
    return st;
}

sp_status sp_validate_foresee(const sp_validate_args *a, const sp_model_desc *d) {
    sp_pass p = {.args = a};
    sp_status st = plan(&p, d);
    if (st == SP_OK) st = judge_text(&p, true);
    sp_pass_close_text(&p);
    return st;
}

static int64_t longest(const sp_pass *p) {
    int64_t most = p->n_lengths ? p->lengths[p->n_lengths - 1] : 1;
    int64_t text = p->n_text_lengths ? p->text_lengths[p->n_text_lengths - 1] : 1;
    return text > most ? text : most;
}

sp_status sp_validate(const sp_validate_args *a) {
    const sp_config *c = a->config;
    sp_model_desc *d = NULL;
    sp_backend *be = NULL;
    sp_model *m = NULL;
    sp_exported x = {0};
    sp_report report = {0};
    sp_pass p = {.args = a, .report = &report, .noise_kl = NAN};
    sp_status st = SP_OK;
    SP_GO(sp_check_destination(a->report));
    SP_GO(sp_report_remove(a->report));
    SP_GO(describe_base(a, &d));
    SP_GO(plan(&p, d));
    SP_GO(judge_text(&p, false));
    SP_GO(sp_exported_open(a->forecast, d, &x));
    SP_GO(sp_backend_open(
        &(sp_backend_options){.name = c->backend,
                              .cpu_blas = c->cpu_blas,
                              .threads = (int)c->threads,
                              .local_ranks = 1,
                              .deterministic = c->deterministic,
                              .portable_kernels = strcmp(c->cuda_kernels, "portable") == 0},
        &be));
    SP_GO(sp_model_supported(be, d, p.fine, longest(&p)));
    SP_GO(sp_model_load(be, d, NULL, &m));
#if SPARDA_HAVE_CUDA
    p.transfer = sp_transfer_named(c->transfer);
#endif
    p.model = m;
    SP_GO(sp_report_open(&report));
    SP_GO(check_all(&p, &x));
    st = conclude(&p);
done:
    sp_report_close(&report);
    sp_exported_close(&x);
    sp_pass_close_text(&p);
    sp_model_free(m);
    sp_backend_close(be);
    sp_model_desc_free(d);
    return st;
}
