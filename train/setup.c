// From the command line to the first step: configuration, run folder, model, data, resume, tensors.
// Everything that can be wrong with the input is found before anything is written (bugs.md, rule
// 1), and the ranks agree after every part, so that none waits for one that failed.
#include "train/trainer.h"

#include "common/build.h"
#include "common/log.h"
#include "common/util.h"
#include "model/selection.h"
#include "train/signals.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---- configuration ------------------------------------------------------------------------------

static sp_status load_config(sp_trainer *t) {
    const sp_train_args *a = t->args;
    sp_status st = sp_config_load(a->config_file, a->sets, a->n_sets, &t->config);
    if (st == SP_OK && (!t->config->base || t->config->data.n == 0))
        st = sp_error(SP_BAD_INPUT, "%s: %s%s%s missing; a run needs a base model and data",
                      a->config_file ? a->config_file : "--set", t->config->base ? "" : "base",
                      !t->config->base && t->config->data.n == 0 ? " and " : "",
                      t->config->data.n == 0 ? "data" : "");
    return sp_ranks_agree(st);
}

// After the values that the base model decides are known.
static sp_status compare_configs(const sp_trainer *t) {
    char *text = NULL;
    SP_TRY(sp_ranks_agree(sp_config_print(t->config, false, &text)));
    sp_status st = sp_ranks_same("the configuration", text);
    free(text);
    return st;
}

// Ranks of different builds could disagree on anything, so this is the first thing they compare.
static sp_status compare_programs(void) {
    return sp_ranks_same("the program", "sparda " SPARDA_VERSION " (" SPARDA_GIT
                                        ", " SPARDA_COMPILER ", " SPARDA_BUILD_TYPE ")");
}

// ---- run folder ---------------------------------------------------------------------------------

static char *default_folder(const sp_config *c) {
    char stamp[32];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &tm);
    return sp_format("runs/%s-%s", c->name, stamp);
}

static void check_stays(const sp_trainer *t, const char *key, const char *path, sp_problems *p) {
    if (sp_same_file(path, t->folder.dir))
        sp_problems_add(p, "%s: %s is the run folder itself", key, path);
    else if (sp_run_folder_moves(&t->folder, t->args->start, path))
        sp_problems_add(p, "%s: %s would be moved to old-N/ there", key, path);
}

// What the run goes on reading may not be moved aside with the earlier run, nor become its folder.
// (init_from may be moved: it has been read by then.)
static sp_status check_inputs_stay(const sp_trainer *t) {
    const sp_config *c = t->config;
    sp_problems p = {0};
    check_stays(t, "base", c->base, &p);
    for (int64_t i = 0; i < c->data.n; i++) check_stays(t, "data", c->data.entry[i].path, &p);
    for (int64_t i = 0; i < c->eval_data.n; i++)
        check_stays(t, "eval_data", c->eval_data.entry[i].path, &p);
    return sp_problems_end(&p, SP_BAD_INPUT, "this run needs what lies in %s; choose another --out",
                           t->folder.dir);
}

static sp_status open_folder(sp_trainer *t) {
    sp_status st = SP_OK;
    if (t->ranks->rank == 0) {
        char *chosen = t->args->out ? sp_strdup(t->args->out) : default_folder(t->config);
        st = chosen ? sp_run_folder_open(chosen, t->args->start, t->args->dry_run, &t->folder)
                    : sp_error(SP_ENVIRONMENT, "out of memory");
        free(chosen);
        if (st == SP_OK) st = check_inputs_stay(t);
    }
    SP_TRY(sp_ranks_agree(st));
    // Every rank writes its log there.
    int64_t len = t->ranks->rank == 0 ? (int64_t)strlen(t->folder.dir) : 0;
    SP_TRY(sp_ranks_broadcast(&len, sizeof len));
    char *dir = t->folder.dir;
    if (t->ranks->rank != 0) {
        t->folder.lock = -1;
        SP_TRY(sp_alloc(&t->folder.dir, len + 1, 1, "the run folder's path"));
        dir = t->folder.dir;
    }
    SP_TRY(sp_ranks_broadcast(dir, len));
    int64_t resume = t->ranks->rank == 0 && t->folder.checkpoint;
    SP_TRY(sp_ranks_broadcast(&resume, sizeof resume));
    t->resumed = resume;
    return SP_OK;
}

// ---- model, schedule, batch ---------------------------------------------------------------------

static sp_status describe_model(sp_trainer *t) {
    sp_recipe recipe = sp_recipe_of(t->config);
    return sp_model_describe(t->config->base, &recipe, &t->desc);
}

// What depends on several settings at once; all findings together.
static sp_status plan_steps(sp_trainer *t) {
    sp_config *c = t->config;
    sp_problems p = {0};
    if (!c->seq_len.given) c->seq_len = (sp_int_option){true, t->desc->max_positions};
    int64_t seq_len = c->seq_len.value, least = sp_distill_min_tokens(t->desc);
    if (seq_len > t->desc->max_positions && !c->allow_longer)
        sp_problems_add(&p,
                        "seq_len %lld is beyond the %lld positions of the base model; lower it or "
                        "set allow_longer: true",
                        (long long)seq_len, (long long)t->desc->max_positions);
    if (seq_len < least)
        sp_problems_add(&p,
                        "seq_len %lld is below one compression window of %lld tokens: there would "
                        "be nothing to train on",
                        (long long)seq_len, (long long)least);
    else if (seq_len <= sp_forced_tokens(t->desc))
        sp_warn("seq_len %lld leaves no query a choice of blocks, so nothing can be learned; more "
                "than %lld tokens are needed",
                (long long)seq_len, (long long)sp_forced_tokens(t->desc));
    sp_grid teacher = {c->training_kernel_size, c->training_kernel_stride};
    if (sp_stages_make(sp_deployed_grid(t->desc), teacher, c->progressive_training_kernel,
                       &t->stages) != SP_OK)
        sp_problems_add(&p, "%s", sp_error_text());
    else
        for (int64_t i = 0; i < t->stages.n; i++)
            if (sp_check_grids(t->desc, t->stages.grid[i]) != SP_OK)
                sp_problems_add(&p, "%s", sp_error_text());
    if (sp_batch_plan_make(c->global_batch, c->micro_batch, t->ranks->size, &t->batch) != SP_OK)
        sp_problems_add(&p, "%s", sp_error_text());
    return sp_problems_end(&p, SP_BAD_INPUT, "this configuration cannot be trained");
}

// An error in data: where they are named, and how others are.
static sp_status of_data(const sp_trainer *t, const char *key, sp_status st) {
    if (st == SP_BAD_INPUT)
        sp_error_prefix("%s (from %s; --set '%s=[...]' names others)", key,
                        sp_config_source(t->config, key), key);
    return st;
}

static sp_status open_data(sp_trainer *t) {
    const sp_config *c = t->config;
    sp_dataset_options o = {
        .vocab = t->desc->vocab, .allow_missing = c->allow_missing_domains, .model = t->desc->dir};
    SP_TRY(of_data(t, "data", sp_dataset_open(&c->data, &o, &t->data)));
    SP_TRY(sp_dataset_identity(t->data, true, t->data_identity));
    sp_sampler_args s = {.order = (sp_data_order)c->data_order,
                         .short_rows = (sp_short_rows)c->short_rows,
                         .seq_len = c->seq_len.value,
                         .seed = (uint64_t)c->seed};
    SP_TRY(sp_sampler_open(t->data, &s, &t->sampler));
    // What only the validation after the run reads is opened now, too, not after hours.
    bool validates = (c->after_training & SP_AFTER_VALIDATE) && c->eval_data.n > 0;
    if (c->eval_every_steps == 0 && !validates) return SP_OK;
    o.allow_missing = false;
    SP_TRY(of_data(t, "eval_data", sp_dataset_open(&c->eval_data, &o, &t->eval_data)));
    if (c->eval_every_steps == 0) {
        sp_dataset_close(t->eval_data);
        t->eval_data = NULL;
        return SP_OK;
    }
    s.order = SP_ORDER_SEQUENTIAL;
    s.short_rows = SP_SHORT_KEEP;
    return sp_sampler_open(t->eval_data, &s, &t->eval_sampler);
}

// What the validation after the run would refuse is refused now, not after hours.
static sp_status foresee_validation(const sp_trainer *t) {
    if (!(t->config->after_training & SP_AFTER_VALIDATE) || t->ranks->rank != 0) return SP_OK;
    sp_validate_args v = sp_trainer_validation(t, NULL);
    sp_status st = sp_validate_foresee(&v, t->desc);
    if (st != SP_OK) sp_error_prefix("the validation after training");
    return st;
}

// What would make the last save, or the export after it, fail for want of a name.
static sp_status check_obstacles(const sp_trainer *t) {
    if (t->ranks->rank != 0 || t->was_finished) return SP_OK;
    sp_problems p = {0};
    sp_status st = sp_run_folder_obstacles(&t->folder, t->args->start,
                                           t->resumed ? t->at.step + 1 : 0, t->config->steps, &p);
    char *dir = sp_run_path(&t->folder, "export");
    bool moved = dir && sp_run_folder_moves(&t->folder, t->args->start, dir);
    sp_export_args e = {.out_dir = dir, .force = true};
    if (st == SP_OK && dir && !moved && (t->after & SP_AFTER_EXPORT) &&
        sp_export_check_destination(&e) != SP_OK)
        sp_problems_add(&p, "after_training: %s", sp_error_text());
    free(dir);
    if (st == SP_OK)
        return sp_problems_end(&p, SP_BAD_INPUT,
                               "%s holds what is in the way of this run; move it elsewhere, or "
                               "choose another --out",
                               t->folder.dir);
    free(p.text);
    return st;
}

// ---- backend and memory -------------------------------------------------------------------------

int64_t sp_base_parameters(const sp_model_desc *d) {
    int64_t q = d->heads.q_heads * d->heads.head_dim, kv = d->heads.kv_heads * d->heads.head_dim;
    int64_t layer =
        2 * d->hidden + (q + 2 * kv) * d->hidden + q * d->hidden + 3 * d->ffn * d->hidden;
    if (d->cis) layer += d->heads.kv_heads * (1 + kv);
    return d->vocab * d->hidden * (d->tied_head ? 1 : 2) + d->hidden + d->layers * layer;
}

static int64_t trained_elements(const sp_model_desc *d) {
    return d->layers * d->heads.kv_heads * d->heads.head_dim * d->hidden;
}

int64_t sp_trainer_predicted_bytes(const sp_trainer *t) {
    sp_dtype storage = sp_backend_storage(t->backend);
    int64_t trained = trained_elements(t->desc);
    int64_t all = trained / t->desc->layers * (t->desc->layers + 1);
    return sp_base_parameters(t->desc) * sp_dtype_size(storage) +
           sp_distill_bytes(t->backend, t->desc, t->config->seq_len.value) +
           4 * trained * 4 +              // master, moments, gradient
           all * sp_dtype_size(storage) + // the copies that are used
           all * 4 + 2 * trained * 4;     // host copies for checkpoints
}

static sp_status open_backend(sp_trainer *t) {
    const sp_config *c = t->config;
    // A resumed run computes with the library it began with, for the same bits.
    bool resolved = strcmp(c->cpu_blas, "auto") == 0 && t->cpu_blas[0];
    sp_backend_options o = {.name = c->backend,
                            .cpu_blas = resolved ? t->cpu_blas : c->cpu_blas,
                            .threads = c->threads ? (int)c->threads : sp_ranks_threads(),
                            .local_rank = t->ranks->local_rank,
                            .local_ranks = t->ranks->local_size,
                            .deterministic = c->deterministic,
                            .portable_kernels = strcmp(c->cuda_kernels, "portable") == 0};
    // Rank 0 measures, undisturbed; the others take its choice.
    sp_status st = SP_OK;
    if (t->ranks->rank == 0) st = sp_backend_open(&o, &t->backend);
    SP_TRY(sp_ranks_agree(st));
    char chosen[32] = "";
    if (t->ranks->rank == 0) snprintf(chosen, sizeof chosen, "%s", sp_backend_blas(t->backend));
    SP_TRY(sp_ranks_broadcast(chosen, sizeof chosen));
    if (t->ranks->rank != 0) {
        if (chosen[0]) o.cpu_blas = chosen;
        st = sp_backend_open(&o, &t->backend);
    }
    SP_TRY(sp_ranks_agree(st));
    // One host without its GPU would slow all of them down and be hard to find.
    SP_TRY(sp_ranks_same("the backend", sp_backend_name(t->backend)));
    return sp_ranks_connect(t->backend, (double)t->config->watchdog_s);
}

static void warn_of_cpu(const sp_trainer *t) {
    double billions = 1e-9 * (double)sp_base_parameters(t->desc);
    if (t->ranks->rank != 0 || strcmp(t->config->backend, "auto") != 0 ||
        strcmp(sp_backend_name(t->backend), "cpu") != 0 || billions < 0.5)
        return;
    sp_warn("the base model of %.1f billion parameters is on the CPU, since %s; with backend: cuda "
            "that ends the run, with the reason",
            billions,
            SPARDA_HAVE_CUDA ? "no GPU here can be used" : "this program was built without CUDA");
}

static sp_status check_shapes(const sp_trainer *t) {
    for (int64_t i = 0; i < t->stages.n; i++)
        SP_TRY(
            sp_model_supported(t->backend, t->desc, t->stages.grid[i], t->config->seq_len.value));
    return SP_OK;
}

static sp_status check_memory(const sp_trainer *t) {
    if (strcmp(sp_backend_name(t->backend), "cpu") != 0) return SP_OK;
    double need = (double)sp_trainer_predicted_bytes(t) * t->ranks->local_size;
    double have = (double)sp_host_available();
    if (need <= have) return SP_OK;
    return sp_error(
        SP_ENVIRONMENT,
        "the ranks of this run on %s (%d) need about %.1f GiB, and the host has %.1f GiB of memory "
        "to give now; lower seq_len, or use fewer ranks per host",
        t->ranks->host, t->ranks->local_size, need / 1073741824, have / 1073741824);
}

// ---- plan ---------------------------------------------------------------------------------------

static sp_status plan_locally(sp_trainer *t) {
    SP_TRY(describe_model(t));
    SP_TRY(plan_steps(t));
    SP_TRY(open_data(t));
    return foresee_validation(t);
}

sp_status sp_trainer_plan(sp_trainer *t, const sp_train_args *args) {
    *t = (sp_trainer){
        .args = args, .began = sp_now(), .saved_step = -1, .newest_step = -1, .folder.lock = -1};
    SP_TRY(sp_ranks_open(&t->ranks));
    SP_TRY(sp_signals_catch());
    SP_TRY(compare_programs());
    double hosts = t->ranks->local_rank == 0;
    SP_TRY(sp_ranks_sum_doubles(&hosts, 1));
    t->hosts = (int64_t)hosts;
    SP_TRY(load_config(t));
    t->after = t->config->after_training;
    SP_TRY(open_folder(t));
    SP_TRY(sp_ranks_agree(plan_locally(t)));
    SP_TRY(compare_configs(t));
    SP_TRY(sp_ranks_same("the base model's config.json", t->desc->config_sha256));
    SP_TRY(sp_ranks_same("the training data", t->data_identity));
    if (t->resumed) SP_TRY(sp_trainer_load(t));
    SP_TRY(sp_ranks_agree(check_obstacles(t)));
    SP_TRY(sp_ranks_agree(sp_trainer_import(t)));
    SP_TRY(open_backend(t));
    warn_of_cpu(t);
    SP_TRY(sp_ranks_agree(check_shapes(t)));
    if (t->ranks->rank == 0) t->matmul_tflops = 1e-3 * sp_backend_matmul_gflops(t->backend);
    return sp_ranks_agree(check_memory(t));
}

// ---- start --------------------------------------------------------------------------------------

static void describe_run(sp_trainer *t) {
    sp_run_folder *f = &t->folder;
    char now[32];
    sp_utc_text(now);
    sp_run_set(f, "program", json_string("sparda " SPARDA_VERSION));
    sp_run_set(f, "commit", json_string(SPARDA_GIT));
    sp_run_set(f, "status", json_string("running"));
    json_object_del(f->info, "error");
    json_object_del(f->info, "stopped_by");
    if (t->at.step < t->config->steps) { // they were of weights that are about to be trained on
        json_object_del(f->info, "export");
        json_object_del(f->info, "validation");
    }
    json_t *starts = json_object_get(f->info, "starts");
    if (!json_is_array(starts)) {
        starts = json_array();
        sp_run_set(f, "starts", starts);
    }
    json_array_append_new(
        starts, json_pack("{s:s, s:I, s:i, s:s, s:i, s:s}", "time", now, "from_step",
                          (json_int_t)t->at.step, "ranks", t->ranks->size, "host", t->ranks->host,
                          "process", (int)getpid(), "backend", sp_backend_description(t->backend)));
    char *cwd = getcwd(NULL, 0); // relative paths of the command start here
    if (cwd) sp_run_set(f, "working_directory", json_string(cwd));
    free(cwd);
    sp_run_set(f, "resume_command", json_sprintf("%s --out %s --resume", t->args->command, f->dir));
    sp_run_set(
        f, "base",
        json_pack("{s:s, s:s}", "name", t->desc->name, "config_sha256", t->desc->config_sha256));
    sp_run_set(f, "steps", json_integer(t->config->steps));
    sp_run_set(f, "step", json_integer(t->at.step));
}

static sp_status write_config(const sp_trainer *t) {
    char *text = NULL, *path = sp_run_path(&t->folder, "config.resolved.yaml");
    sp_status st =
        path ? sp_config_print(t->config, true, &text) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_write_file(path, text, (int64_t)strlen(text));
    free(text);
    free(path);
    return st;
}

static sp_status open_log(const sp_trainer *t) {
    char *dir = sp_run_path(&t->folder, "log");
    char *path = dir ? sp_format("%s/rank-%d.log", dir, t->ranks->rank) : NULL;
    sp_status st = path ? sp_mkdirs(dir) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_log_open(t->ranks->rank, path, false);
    free(path);
    free(dir);
    return st;
}

static sp_status prepare_folder(sp_trainer *t) {
    if (t->ranks->rank != 0) return SP_OK;
    SP_TRY(sp_run_folder_prepare(&t->folder, t->args->start));
    describe_run(t);
    SP_TRY(write_config(t));
    return sp_run_write_info(&t->folder);
}

static sp_status load_model(sp_trainer *t) {
    sp_model_load_options o = {.progress = true};
    SP_TRY(sp_model_load(t->backend, t->desc, &o, &t->model));
    const sp_config *c = t->config;
    sp_distill_args a = {.teacher = t->stages.grid[t->at.stage],
                         .align = (sp_align)c->kl_target_align_pooling,
                         .mask_future = c->mask_future_blocks,
                         .gradient = (sp_kl_gradient)c->kl_gradient,
                         .allow_longer = c->allow_longer};
    return sp_distill_open(t->model, c->seq_len.value, &a, &t->distill);
}

static sp_status check_base(const sp_trainer *t) {
    if (t->ranks->rank != 0 || !t->resumed) return SP_OK;
    return sp_state_check_base(&t->state, t->desc, t->model->weights_sha256);
}

static sp_status make_tensors(sp_trainer *t) {
    const sp_model_desc *d = t->desc;
    int64_t rows = d->layers * d->heads.kv_heads * d->heads.head_dim, L = d->layers;
    struct {
        sp_tensor *t;
        const char *what;
    } parts[] = {{&t->master, "Forecast master weights"},
                 {&t->moment1, "first moments"},
                 {&t->moment2, "second moments"},
                 {&t->grad, "Forecast gradients"}};
    for (int i = 0; i < 4; i++)
        SP_TRY(sp_tensor_alloc(t->backend, SP_F32, rows, d->hidden, parts[i].what, parts[i].t));
    for (int i = 0; i < 2; i++)
        SP_TRY(sp_alloc(&t->moments[i], rows * d->hidden, sizeof(float), "host copy of moments"));
    SP_TRY(sp_alloc(&t->losses, L, sizeof(double), "losses"));
    SP_TRY(sp_alloc(&t->sums, L + 8, sizeof(double), "sums of a step"));
    SP_TRY(sp_alloc(&t->recall, 6 * L, sizeof(double), "recall"));
    return sp_alloc(&t->eval_row, t->config->seq_len.value, sizeof(int32_t), "an evaluation row");
}

// Indices of this rank's samples, step after step; runs ahead in the loader's thread.
static bool next_index(void *user, uint64_t *index) {
    sp_trainer *t = user;
    if (t->loader_at.step >= t->config->steps) return false;
    *index = sp_batch_sample(&t->batch, t->loader_at.step, t->ranks->rank, t->loader_sequence);
    if (++t->loader_sequence == t->batch.per_rank) {
        t->loader_sequence = 0;
        t->loader_at.step++;
    }
    return true;
}

static sp_status open_outputs(sp_trainer *t) {
    enum { AHEAD = 8 };
    t->loader_at = t->at;
    if (t->at.step < t->config->steps)
        SP_TRY(sp_loader_open(t->sampler, next_index, t, AHEAD, &t->loader));
    if (t->ranks->rank != 0) return SP_OK;
    char *metrics = sp_run_path(&t->folder, "metrics.jsonl"), *tb = sp_run_path(&t->folder, "tb");
    sp_status st = metrics && tb ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK)
        st = sp_metrics_open(metrics, t->at.step, &t->metrics, &t->at.nonfinite_in_a_row);
    if (st == SP_OK) st = sp_tensorboard_open(tb, t->at.step + 1, &t->tensorboard);
    free(metrics);
    free(tb);
    return st;
}

sp_status sp_trainer_start(sp_trainer *t) {
    SP_TRY(sp_ranks_agree(prepare_folder(t)));
    SP_TRY(sp_ranks_agree(open_log(t)));
    sp_signals_arm(t->ranks->rank == 0); // from here on there is something to save
    sp_trainer_header(t);
    SP_TRY(sp_ranks_agree(load_model(t)));
    SP_TRY(sp_ranks_same("the base model's weights", t->model->weights_sha256));
    SP_TRY(sp_ranks_agree(check_base(t)));
    SP_TRY(sp_ranks_agree(make_tensors(t)));
    SP_TRY(sp_trainer_init_weights(t));
    SP_TRY(sp_ranks_agree(open_outputs(t)));
    SP_TRY(sp_ranks_broadcast(&t->at, sizeof t->at));
    if (t->ranks->rank == 0) t->newest = sp_strdup(t->folder.checkpoint);
    t->newest_step = t->saved_step;
    return SP_OK;
}

void sp_trainer_release(sp_trainer *t) {
    sp_loader_close(t->loader);
    sp_distill_close(t->distill);
    sp_tensor_free(&t->master);
    sp_tensor_free(&t->moment1);
    sp_tensor_free(&t->moment2);
    sp_tensor_free(&t->grad);
    sp_forecast_device_free(&t->device);
    sp_model_free(t->model);
    sp_backend_close(t->backend);
    t->loader = NULL;
    t->distill = NULL;
    t->device = (sp_forecast_device){0};
    t->model = NULL;
    t->backend = NULL;
}

void sp_trainer_close(sp_trainer *t, sp_status outcome) {
    sp_trainer_release(t);
    if (t->ranks && t->ranks->rank == 0 && t->folder.written && outcome != SP_OK &&
        outcome != SP_CHECK_FAILED) {
        sp_run_set(&t->folder, "status", json_string("failed"));
        sp_run_set(&t->folder, "error", json_string(sp_error_text()));
        sp_run_set(&t->folder, "step", json_integer(t->at.step));
        // The run's own error is what counts; it must not be replaced by this write's.
        char *keep = sp_strdup(sp_error_text());
        if (sp_run_write_info(&t->folder) != SP_OK) {
            sp_warn("%s", sp_error_text());
            (void)sp_error(outcome, "%s", keep ? keep : "out of memory");
        }
        free(keep);
    }
    sp_metrics_close(t->metrics);
    sp_tensorboard_close(t->tensorboard);
    sp_text_free(&t->changes);
    sp_forecast_free(&t->forecast);
    sp_train_state_free(&t->state);
    free(t->moments[0]);
    free(t->moments[1]);
    free(t->losses);
    free(t->sums);
    free(t->recall);
    free(t->eval_row);
    free(t->newest);
    sp_sampler_close(t->sampler);
    sp_sampler_close(t->eval_sampler);
    sp_dataset_close(t->data);
    sp_dataset_close(t->eval_data);
    sp_model_desc_free(t->desc);
    sp_config_free(t->config);
    sp_run_folder_close(&t->folder);
    memset(t, 0, sizeof *t);
}
