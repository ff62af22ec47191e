// The training loop: one optimiser step after another until the end, a signal or the time limit.
//
// A step is the mean over the used sequences of the global batch, each divided by its own Hkv*T
// (training.md 7.2, design 3.2). Every rank adds up the gradients of its sequences; the sums over
// ranks are divided by the number of used sequences only in the update, so the numbers do not
// depend on how the batch is cut beyond the order of additions.
#include "train/trainer.h"

#include "common/log.h"
#include "common/util.h"
#include "model/flops.h"
#include "train/signals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

// t->sums: [0..L) losses by layer, then these.
enum { USED, SKIPPED, TOKENS, FLOP, STOP_VOTES, N_COUNTS };

static double *counts(const sp_trainer *t) {
    return t->sums + t->desc->layers;
}

// ---- one step -----------------------------------------------------------------------------------

// Rows below one window keep their place in the order, add nothing and are not in the mean.
static void tell_skipped(sp_trainer *t, const sp_sample *s) {
    enum { TOLD = 10 };
    if (++t->told_skipped <= TOLD)
        sp_info("sample %llu skipped: %s has %lld tokens, one window takes %lld%s",
                (unsigned long long)s->index, s->id, (long long)s->n,
                (long long)sp_distill_min_tokens(t->desc),
                t->told_skipped == TOLD ? "; further ones are only counted" : "");
}

static sp_status add_gradients(sp_trainer *t) {
    int64_t L = t->desc->layers, least = sp_distill_min_tokens(t->desc);
    SP_TRY(sp_fill(t->grad, 0));
    for (int64_t i = 0; i < t->batch.per_rank; i++) {
        sp_sample s;
        SP_TRY(sp_loader_next(t->loader, &s));
        if (!s.tokens) return sp_error(SP_ENVIRONMENT, "the loader ended before the run");
        if (s.n < least) {
            tell_skipped(t, &s);
            counts(t)[SKIPPED]++;
            continue;
        }
        SP_TRY(sp_distill_step(t->distill, &t->device, s.tokens, s.n, 1.0, &t->grad, t->losses));
        for (int64_t l = 0; l < L; l++) {
            t->sums[l] += t->losses[l];
            if (!isfinite(t->losses[l]))
                sp_warn("step %lld: the loss of layer %lld is not finite for sample %llu (%s)",
                        (long long)t->at.step + 1, (long long)l, (unsigned long long)s.index, s.id);
        }
        counts(t)[USED]++;
        counts(t)[TOKENS] += (double)s.n;
        sp_flops work = sp_flops_training(t->desc, t->stages.grid[t->at.stage], s.n);
        counts(t)[FLOP] += sp_flops_total(&work);
    }
    return SP_OK;
}

static sp_status set_stage(sp_trainer *t) {
    int64_t stage = sp_stage(&t->stages, t->config->steps, t->at.step);
    if (stage <= t->at.stage) return SP_OK;
    t->at.stage = stage;
    sp_grid g = t->stages.grid[stage];
    sp_info("teacher     stage %lld from step %lld: window %lld, stride %lld", (long long)stage,
            (long long)t->at.step + 1, (long long)g.kernel, (long long)g.stride);
    return sp_distill_set_teacher(t->distill, g);
}

static bool out_of_time(const sp_trainer *t) {
    int64_t limit = t->config->time_limit_min;
    return limit > 0 && sp_now() - t->began >= 60.0 * (double)limit;
}

// AdamW on the mean gradient, clipped (training.md 8.1). All ranks hold the same sums, bit by bit,
// and so decide and compute the same.
static sp_status update(sp_trainer *t, double lr, double *norm) {
    const sp_config *c = t->config;
    double used = counts(t)[USED], squares = 0;
    *norm = 0;
    if (used == 0) {
        sp_warn("step %lld: no sample of the batch holds a whole window; no update",
                (long long)t->at.step + 1);
        return SP_OK;
    }
    SP_TRY(sp_sum_squares(t->grad, &squares));
    *norm = sqrt(squares) / used;
    if (!isfinite(*norm)) {
        t->at.nonfinite_in_a_row++;
        return SP_OK;
    }
    t->at.nonfinite_in_a_row = 0;
    t->at.updates++;
    double clip = c->max_grad_norm > 0 ? fmin(1, c->max_grad_norm / (*norm + 1e-6)) : 1;
    sp_adamw_args a = {.lr = (float)lr,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-6f,
                       .weight_decay = (float)c->weight_decay,
                       .grad_scale = (float)(clip / used),
                       .step = t->at.updates};
    SP_TRY(sp_adamw(&a, t->master, t->moment1, t->moment2, t->grad));
    return sp_trainer_refresh(t);
}

static int64_t peak_bytes(const sp_trainer *t) {
    int64_t peak = 0;
    sp_backend_bytes(t->backend, &peak);
    if (strcmp(sp_backend_name(t->backend), "cpu") != 0) return peak;
    struct rusage u; // on the host, what really was resident
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : peak;
}

static sp_status one_step(sp_trainer *t, sp_step_metrics *m, bool *stop) {
    int64_t L = t->desc->layers;
    double start = sp_now(), waited = sp_loader_waited(t->loader);
    sp_ranks_step(t->at.step + 1);
    memset(t->sums, 0, (size_t)(L + N_COUNTS) * sizeof(double));
    sp_status st = set_stage(t);
    if (st == SP_OK) st = add_gradients(t);
    if (st != SP_OK) sp_error_prefix("step %lld", (long long)t->at.step + 1);
    counts(t)[STOP_VOTES] = sp_signals_stop() || out_of_time(t);
    SP_TRY(sp_ranks_agree(st));
    sp_phase_begin(t->backend, "sum over ranks");
    SP_TRY(sp_ranks_sum(&t->grad));
    sp_phase_end(t->backend);
    SP_TRY(sp_ranks_sum_doubles(t->sums, L + N_COUNTS));
    int64_t most[2] = {(int64_t)(1e6 * (sp_loader_waited(t->loader) - waited)), peak_bytes(t)};
    SP_TRY(sp_ranks_max(most, 2));
    *stop = counts(t)[STOP_VOTES] > 0;

    double lr =
        sp_learning_rate(t->config->lr, t->config->warmup_steps, t->config->steps, t->at.step);
    double norm, used = counts(t)[USED], kl = 0;
    sp_phase_begin(t->backend, "update");
    SP_TRY(update(t, lr, &norm));
    sp_phase_end(t->backend);
    for (int64_t l = 0; l < L && used > 0; l++) {
        t->sums[l] /= used;
        kl += t->sums[l] / (double)L;
    }
    t->at.step++;
    t->at.tokens += (int64_t)counts(t)[TOKENS];
    t->at.used_rows += (int64_t)used;
    t->at.skipped_rows += (int64_t)counts(t)[SKIPPED];
    t->peak_bytes = most[1];
    double seconds = sp_now() - start;
    double tflops = 1e-12 * counts(t)[FLOP] / (double)t->ranks->size / seconds;
    *m = (sp_step_metrics){.step = t->at.step,
                           .layers = L,
                           .kl = kl,
                           .kl_layers = t->sums,
                           .grad_norm = norm,
                           .lr = lr,
                           .tokens = t->at.tokens,
                           .step_ms = 1e3 * seconds,
                           .tokens_per_s = counts(t)[TOKENS] / seconds,
                           .data_wait_ms = 1e-3 * (double)most[0],
                           .tflops = tflops,
                           .gemm_share = t->matmul_tflops > 0 ? tflops / t->matmul_tflops : NAN,
                           .peak_bytes = most[1]};
    return SP_OK;
}

// ---- reporting, rank 0 --------------------------------------------------------------------------

static double mean(const double *v, int64_t n) {
    double s = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i])) s += v[i], finite++;
    return finite ? s / (double)finite : NAN;
}

static void print_columns(void) {
    sp_info("%8s  %10s  %9s  %9s  %9s  %9s  %8s  %8s  %7s", "step", "kl", "grad norm", "lr",
            "tokens/s", "ms/step", "wait ms", "peak GiB", "left");
}

// "9s", "4m05s", "31h07m".
static void duration_text(double seconds, char text[24]) {
    long long s = (long long)(seconds + 0.5);
    if (s < 60)
        snprintf(text, 24, "%llds", s);
    else if (s < 3600)
        snprintf(text, 24, "%lldm%02llds", s / 60, s % 60);
    else
        snprintf(text, 24, "%lldh%02lldm", s / 3600, s / 60 % 60);
}

static void print_step(const sp_step_metrics *m, double seconds_left) {
    char left[24];
    duration_text(seconds_left, left);
    sp_info("%8lld  %10.6f  %9.3e  %9.3e  %9.0f  %9.1f  %8.1f  %8.2f  %7s", (long long)m->step,
            m->kl, m->grad_norm, m->lr, m->tokens_per_s, m->step_ms, m->data_wait_ms,
            (double)m->peak_bytes / 1073741824, left);
    if (!m->recall_layers) return;
    double recall = mean(m->recall_layers, m->layers), mass = mean(m->mass_layers, m->layers);
    if (isfinite(recall))
        sp_info("%8s  held out: recall %.4f, mass %.4f", "", recall, mass);
    else
        sp_info("%8s  held out: no row is long enough to leave a choice between blocks", "");
}

static void scalar_list(sp_tensorboard *tb, const char *tag, const double *v, int64_t n) {
    for (int64_t l = 0; l < n; l++) {
        char *name = sp_format("%s/%02lld", tag, (long long)l);
        if (name) sp_tensorboard_scalar(tb, name, v[l]);
        free(name);
    }
}

static sp_status write_scalars(sp_tensorboard *tb, const sp_step_metrics *m) {
    sp_tensorboard_scalar(tb, "train/kl", m->kl);
    scalar_list(tb, "train_kl_layers", m->kl_layers, m->layers);
    sp_tensorboard_scalar(tb, "train/grad_norm", m->grad_norm);
    sp_tensorboard_scalar(tb, "train/lr", m->lr);
    sp_tensorboard_scalar(tb, "train/tokens", (double)m->tokens);
    sp_tensorboard_scalar(tb, "perf/step_ms", m->step_ms);
    sp_tensorboard_scalar(tb, "perf/tokens_per_s", m->tokens_per_s);
    sp_tensorboard_scalar(tb, "perf/data_wait_ms", m->data_wait_ms);
    sp_tensorboard_scalar(tb, "perf/tflops", m->tflops);
    if (isfinite(m->gemm_share)) sp_tensorboard_scalar(tb, "perf/gemm_share", m->gemm_share);
    sp_tensorboard_scalar(tb, "mem/peak_bytes", (double)m->peak_bytes);
    if (m->recall_layers) {
        sp_tensorboard_scalar(tb, "eval/recall", mean(m->recall_layers, m->layers));
        sp_tensorboard_scalar(tb, "eval/mass", mean(m->mass_layers, m->layers));
        scalar_list(tb, "eval_recall_layers", m->recall_layers, m->layers);
        scalar_list(tb, "eval_mass_layers", m->mass_layers, m->layers);
    }
    return sp_tensorboard_step(tb, m->step);
}

// Neither file is worth a run: a failure is told once, and tried again at the next step.
static void tell_once(bool *told, sp_status st) {
    if (st != SP_OK && !*told) sp_warn("%s", sp_error_text());
    if (st == SP_OK && *told) sp_info("metrics are being written again");
    *told = st != SP_OK;
}

static void report(sp_trainer *t, const sp_step_metrics *m, double seconds_left) {
    print_step(m, seconds_left);
    if (!isfinite(m->grad_norm))
        sp_warn("step %lld: the gradient norm is not finite; update skipped (%lld in a row)",
                (long long)m->step, (long long)t->at.nonfinite_in_a_row);
    if (m->kl == 0 && m->grad_norm == 0 && !t->told_no_choice) {
        t->told_no_choice = true;
        sp_warn("step %lld: the loss is 0 and nothing was learned: in rows of up to %lld tokens no "
                "query sees a block that is not attended to anyway",
                (long long)m->step, (long long)sp_forced_tokens(t->desc));
    }
    tell_once(&t->metrics_failed, sp_metrics_add(t->metrics, m));
    tell_once(&t->tensorboard_failed, write_scalars(t->tensorboard, m));
}

// ---- loop ---------------------------------------------------------------------------------------

// Names the samples of the step just done, for whoever has to find the bad one.
static sp_status too_many_nonfinite(sp_trainer *t) {
    if (t->at.nonfinite_in_a_row < t->config->max_nonfinite_steps) return SP_OK;
    int64_t step = t->at.step - 1;
    uint64_t first = sp_batch_sample(&t->batch, step, 0, 0);
    sp_text names = {0};
    for (int64_t i = 0; i < t->batch.global; i++) {
        char id[128] = "?";
        int64_t n;
        if (sp_sampler_read(t->sampler, first + (uint64_t)i, t->eval_row, &n, id) != SP_OK)
            snprintf(id, sizeof id, "unreadable");
        sp_text_add(&names, "%s%s", i ? ", " : "", id);
    }
    sp_status st = sp_error(
        SP_ENVIRONMENT,
        "the gradient norm was not finite in %lld steps in a row "
        "(max_nonfinite_steps); the last one, step %lld, used samples %llu to "
        "%llu: %s. The weights are those before these steps; look at the data "
        "and at lr",
        (long long)t->at.nonfinite_in_a_row, (long long)t->at.step, (unsigned long long)first,
        (unsigned long long)(first + (uint64_t)t->batch.global - 1), names.data ? names.data : "");
    sp_text_free(&names);
    return st;
}

static bool save_is_due(const sp_trainer *t) {
    return t->at.step % t->config->save_every_steps == 0 && t->at.step < t->config->steps;
}

// The step after which a run ends is saved in any case; that this fails is an error.
static sp_status save_last(sp_trainer *t) {
    sp_status st = SP_OK;
    if (t->ranks->rank == 0 && t->saved_step != t->at.step) {
        st = sp_trainer_save(t);
        if (st != SP_OK)
            sp_error_prefix(t->newest_step == t->at.step
                                ? "step %lld is done and saved in %s, but the save is not complete"
                                : "step %lld is done but could not be saved; the newest checkpoint "
                                  "is %s",
                            (long long)t->at.step, t->newest ? t->newest : "none");
    } else if (t->ranks->rank == 0 && t->resumed) {
        // The run was killed right after its last file: what belongs to that save is made up for.
        st = sp_trainer_conclude_save(t, t->newest);
    }
    return sp_ranks_agree(st);
}

sp_status sp_trainer_loop(sp_trainer *t) {
    const sp_config *c = t->config;
    bool root = t->ranks->rank == 0;
    int64_t stop_now = sp_signals_stop(); // while weights were being loaded
    SP_TRY(sp_ranks_max(&stop_now, 1));
    bool stop = stop_now;
    if (root && t->at.step < c->steps) print_columns();
    const double start = sp_now();
    const int64_t first = t->at.step;
    while (t->at.step < c->steps && !stop) {
        sp_step_metrics m;
        SP_TRY(one_step(t, &m, &stop));
        if (c->eval_every_steps > 0 &&
            (t->at.step % c->eval_every_steps == 0 || t->at.step == c->steps)) {
            SP_TRY(sp_trainer_evaluate(t));
            m.recall_layers = t->recall;
            m.mass_layers = t->recall + t->desc->layers;
        }
        // At the pace so far, held-out evaluations and saving included.
        double pace = (sp_now() - start) / (double)(t->at.step - first);
        if (root) report(t, &m, pace * (double)(c->steps - t->at.step));
        SP_TRY(sp_ranks_agree(root ? too_many_nonfinite(t) : SP_OK));
        if (root && save_is_due(t) && !stop && sp_trainer_save(t) != SP_OK)
            sp_warn("step %lld could not be saved%s, the run goes on: %s", (long long)t->at.step,
                    t->newest_step == t->at.step ? " completely" : "", sp_error_text());
    }
    sp_ranks_step(0);
    SP_TRY(save_last(t));
    t->stopped = t->at.step < c->steps;
    return SP_OK;
}

// ---- end ----------------------------------------------------------------------------------------

static sp_status export_run(sp_trainer *t, const char *dir) {
    sp_export_args e = {
        .out_dir = dir, .safetensors = true, .pt = true, .base = t->config->base, .force = true};
    json_object_del(t->folder.info, "validation"); // of the export before
    SP_TRY(sp_export(t->newest, &e));
    sp_run_set(&t->folder, "export", json_string("export"));
    return SP_OK;
}

sp_validate_args sp_trainer_validation(const sp_trainer *t, const char *dir) {
    const sp_config *c = t->config;
    return (sp_validate_args){.base = c->base,
                              .forecast = dir,
                              .report = dir,
                              .data = c->eval_data.n ? &c->eval_data : NULL,
                              .after_training = true,
                              .config = c};
}

static sp_status validate_run(sp_trainer *t, const char *dir) {
    sp_validate_args v = sp_trainer_validation(t, dir);
    sp_status st = sp_validate(&v);
    if (st == SP_OK || st == SP_CHECK_FAILED)
        sp_run_set(&t->folder, "validation", json_string(st == SP_OK ? "passed" : "failed"));
    return st;
}

// after_training. A signal is looked at between the two; what it leaves out, a resume does.
static sp_status export_and_validate(sp_trainer *t) {
    unsigned what = t->after;
    char *dir = sp_run_path(&t->folder, "export");
    sp_status st = dir ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK && (what & SP_AFTER_EXPORT)) st = export_run(t, dir);
    if (st == SP_OK && (what & SP_AFTER_VALIDATE) && !sp_signals_stop()) st = validate_run(t, dir);
    free(dir);
    t->stopped = what && sp_signals_stop();
    return st;
}

static sp_status tell_stopped(sp_trainer *t) {
    const char *why = sp_signals_name()[0] ? sp_signals_name()
                      : out_of_time(t)     ? "time_limit_min"
                                           : "a signal to another rank";
    sp_run_set(&t->folder, "status", json_string("stopped"));
    sp_run_set(&t->folder, "stopped_by", json_string(why));
    SP_TRY(sp_run_write_info(&t->folder));
    sp_info("stopped by %s after step %lld of %lld, saved in %s", why, (long long)t->at.step,
            (long long)t->config->steps, t->newest);
    sp_info("continue with%s: %s --out %s --resume",
            t->ranks->size > 1 ? ", under mpirun or srun as before" : "", t->args->command,
            t->folder.dir);
    return SP_OK;
}

static sp_status finish_on_root(sp_trainer *t) {
    if (t->at.skipped_rows > 0)
        sp_info("%lld of %lld samples were below one window of %lld tokens and not used",
                (long long)t->at.skipped_rows, (long long)(t->at.skipped_rows + t->at.used_rows),
                (long long)sp_distill_min_tokens(t->desc));
    sp_run_set(&t->folder, "step", json_integer(t->at.step));
    sp_run_set(&t->folder, "skipped_rows", json_integer(t->at.skipped_rows));
    if (t->stopped) return tell_stopped(t);
    sp_info("trained     %lld steps, %lld tokens, peak memory %.2f GiB; checkpoint %s",
            (long long)t->at.step, (long long)t->at.tokens, (double)t->peak_bytes / 1073741824,
            t->newest);
    sp_status st = export_and_validate(t);
    if (st != SP_OK && st != SP_CHECK_FAILED) return st;
    if (t->stopped) return tell_stopped(t);
    sp_run_set(&t->folder, "status", json_string("finished"));
    SP_TRY(sp_run_write_info(&t->folder));
    sp_info("run folder  %s", t->folder.dir);
    return st;
}

sp_status sp_trainer_finish(sp_trainer *t) {
    sp_trainer_release(t);
    sp_status st = t->ranks->rank == 0 ? finish_on_root(t) : SP_OK;
    SP_TRY(sp_ranks_rest()); // exporting and validating takes a while
    return sp_ranks_agree(st);
}
