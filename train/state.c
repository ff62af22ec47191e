// The training state of a run: loading on rank 0 for all, saving by rank 0.
#include "train/trainer.h"

#include "common/build.h"
#include "common/log.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

// ---- resume -------------------------------------------------------------------------------------

// Everything that must be as it was (design 3.1), in one list.
static sp_status check_unchanged(sp_trainer *t, const char *path) {
    const sp_train_state *s = &t->state;
    sp_config *saved = NULL;
    char early[65];
    SP_TRY(sp_dataset_identity(t->data, false, early));
    SP_TRY(sp_config_parse(s->config, path, &saved));
    sp_problems p = {0};
    sp_config_compare(saved, t->config, &p, &t->changes);
    if (sp_schedule_may_change(&t->stages, t->config->lr, t->config->warmup_steps, s->step,
                               saved->steps, t->config->steps) != SP_OK)
        sp_problems_add(&p, "%s", sp_error_text());
    const char *saved_data = s->data_identity ? s->data_identity : "";
    if (strcmp(saved_data, t->data_identity) != 0 && strcmp(saved_data, early) != 0)
        sp_problems_add(
            &p, "the training data has changed: files, sizes, row counts or rows differ from "
                "those the run began with");
    if (s->samples != s->step * saved->global_batch)
        sp_problems_add(&p, "the checkpoint contradicts itself: %lld samples in %lld steps of %lld",
                        (long long)s->samples, (long long)s->step, (long long)saved->global_batch);
    sp_config_free(saved);
    return sp_problems_end(
        &p, SP_BAD_INPUT,
        "cannot resume from %s; what alters the numbers may not change (undo the "
        "changes, or begin a new run from its weights with init_from)",
        path);
}

// Of after_training, what a finished run has not done: it may be asked for later. A new export is
// validated again.
static unsigned undone(const sp_trainer *t) {
    unsigned what = t->config->after_training;
    const json_t *info = t->folder.info;
    char *record = sp_run_path(&t->folder, "export/sparda_config.json");
    bool exported = json_object_get(info, "export") && record && sp_path_is_file(record);
    free(record);
    if (!exported) return what;
    return what & ~(json_object_get(info, "validation") ? SP_AFTER_EXPORT | SP_AFTER_VALIDATE
                                                        : SP_AFTER_EXPORT);
}

static sp_status load_on_root(sp_trainer *t) {
    const char *path = t->folder.checkpoint;
    SP_TRY(sp_state_load(path, &t->state));
    SP_TRY(check_unchanged(t, path));
    const sp_train_state *s = &t->state;
    if (!s->exp_avg || !s->exp_avg_sq)
        return sp_error(SP_BAD_INPUT,
                        "%s holds no optimiser moments, so a run cannot continue from it; begin a "
                        "new one with init_from",
                        path);
    int64_t stage = s->stage;
    if (t->at.step < t->config->steps) { // never back to a coarser grid
        int64_t due = sp_stage(&t->stages, t->config->steps, s->step);
        stage = due > stage ? due : stage;
    }
    if (stage >= t->stages.n) stage = t->stages.n - 1;
    t->at = (sp_position){.step = s->step,
                          .updates = s->updates,
                          .tokens = s->tokens,
                          .used_rows = s->used_rows,
                          .skipped_rows = s->skipped_rows,
                          .stage = stage};
    if (t->at.step == t->config->steps) {
        const char *status = json_string_value(json_object_get(t->folder.info, "status"));
        bool finished = status && strcmp(status, "finished") == 0;
        if (finished) t->after = undone(t);
        t->was_finished = finished && !t->after;
    }
    snprintf(t->cpu_blas, sizeof t->cpu_blas, "%s", s->cpu_blas ? s->cpu_blas : "");
    return SP_OK;
}

sp_status sp_trainer_load(sp_trainer *t) {
    SP_TRY(sp_ranks_agree(t->ranks->rank == 0 ? load_on_root(t) : SP_OK));
    SP_TRY(sp_ranks_broadcast(&t->at, sizeof t->at));
    SP_TRY(sp_ranks_broadcast(t->cpu_blas, sizeof t->cpu_blas));
    SP_TRY(sp_ranks_broadcast(&t->was_finished, sizeof t->was_finished));
    t->saved_step = t->at.step;
    return SP_OK;
}

// ---- first weights ------------------------------------------------------------------------------

static sp_status initial_weights(sp_trainer *t) {
    const char *from = t->config->init_from;
    int64_t trained = sp_forecast_trained_elements(&t->forecast);
    if (t->resumed) {
        if (t->ranks->rank != 0) return SP_OK; // comes by broadcast
        const sp_forecast *w = &t->state.weights;
        if (w->layers != t->forecast.layers || w->rows != t->forecast.rows ||
            w->cols != t->forecast.cols)
            return sp_error(SP_BAD_INPUT,
                            "%s: its Forecast is of another shape than the base model",
                            t->folder.checkpoint);
        memcpy(t->forecast.w, w->w, (size_t)((w->layers + 1) * w->rows * w->cols) * sizeof *w->w);
        memcpy(t->moments[0], t->state.exp_avg, (size_t)trained * sizeof(float));
        memcpy(t->moments[1], t->state.exp_avg_sq, (size_t)trained * sizeof(float));
        sp_train_state_free(&t->state);
        memset(&t->state, 0, sizeof t->state);
        return SP_OK;
    }
    if (!from) // else sp_trainer_import has read them
        sp_forecast_init(&t->forecast, (uint64_t)t->config->seed);
    return SP_OK;
}

sp_status sp_trainer_import(sp_trainer *t) {
    const char *from = t->config->init_from;
    SP_TRY(sp_forecast_alloc(t->desc, &t->forecast));
    if (t->resumed || !from) return SP_OK;
    sp_imported info = {0};
    SP_TRY(sp_forecast_import(from, &t->forecast, &info));
    sp_info("weights     from %s (%s%s%s)", from, info.format ? info.format : "?",
            info.base_model ? ", made for " : "", info.base_model ? info.base_model : "");
    if (info.base_model && strcmp(sp_path_base(info.base_model), t->desc->name) != 0)
        sp_warn("the weights of init_from were made for the base model '%s', and this one is '%s'; "
                "unless these are the same, they are no better than random ones",
                sp_path_base(info.base_model), t->desc->name);
    sp_imported_free(&info);
    return sp_forecast_require_finite(&t->forecast, from);
}

static sp_status upload_weights(sp_trainer *t) {
    SP_TRY(sp_upload(t->master, t->forecast.w)); // its trained part
    SP_TRY(sp_upload(t->moment1, t->moments[0]));
    SP_TRY(sp_upload(t->moment2, t->moments[1]));
    return sp_forecast_upload(t->backend, &t->forecast, &t->device);
}

sp_status sp_trainer_init_weights(sp_trainer *t) {
    SP_TRY(sp_ranks_agree(initial_weights(t)));
    const sp_forecast *f = &t->forecast;
    int64_t trained = sp_forecast_trained_elements(f) * (int64_t)sizeof(float);
    SP_TRY(sp_ranks_broadcast(f->w, (f->layers + 1) * f->rows * f->cols * (int64_t)sizeof(float)));
    if (t->resumed) {
        SP_TRY(sp_ranks_broadcast(t->moments[0], trained));
        SP_TRY(sp_ranks_broadcast(t->moments[1], trained));
    }
    return sp_ranks_agree(upload_weights(t));
}

sp_status sp_trainer_refresh(sp_trainer *t) {
    int64_t R = t->forecast.rows;
    for (int64_t l = 0; l < t->forecast.layers; l++)
        SP_TRY(sp_copy(t->device.w[l], sp_tensor_rows(t->master, l * R, R)));
    return SP_OK;
}

// ---- saving -------------------------------------------------------------------------------------

static sp_status write_state(sp_trainer *t, const char *path) {
    SP_TRY(sp_download(t->master, t->forecast.w));
    SP_TRY(sp_download(t->moment1, t->moments[0]));
    SP_TRY(sp_download(t->moment2, t->moments[1]));
    const sp_model_desc *d = t->desc;
    const sp_config *c = t->config;
    char *config = NULL;
    SP_TRY(sp_config_print(c, false, &config));
    sp_train_state s = {.weights = t->forecast, // all members are borrowed
                        .exp_avg = t->moments[0],
                        .exp_avg_sq = t->moments[1],
                        .step = t->at.step,
                        .updates = t->at.updates,
                        .samples = t->at.step * t->batch.global,
                        .tokens = t->at.tokens,
                        .used_rows = t->at.used_rows,
                        .skipped_rows = t->at.skipped_rows,
                        .stage = t->at.stage,
                        .seed = (uint64_t)c->seed,
                        .config = config,
                        .data_identity = t->data_identity,
                        .cpu_blas = (char *)sp_backend_blas(t->backend),
                        .base_name = d->name,
                        .heads = d->heads,
                        .hidden = d->hidden,
                        .sparse = d->sparse,
                        .teacher = t->stages.grid[t->at.stage],
                        .align = c->kl_target_align_pooling,
                        .mask_future = c->mask_future_blocks,
                        .program = (char *)"sparda " SPARDA_VERSION " (" SPARDA_GIT ")"};
    memcpy(s.base_config_sha256, d->config_sha256, sizeof s.base_config_sha256);
    memcpy(s.base_weights_sha256, t->model->weights_sha256, sizeof s.base_weights_sha256);
    sp_status st = sp_state_save(path, &s);
    free(config);
    return st;
}

sp_status sp_trainer_conclude_save(sp_trainer *t, const char *path) {
    const char *dir = t->folder.dir;
    SP_TRY(sp_latest_write(dir, path));
    sp_run_set(&t->folder, "step", json_integer(t->at.step));
    sp_run_set(&t->folder, "tokens", json_integer(t->at.tokens));
    sp_run_set(&t->folder, "checkpoint", json_sprintf("checkpoints/%s", sp_path_base(path)));
    // Old files are in nobody's way: failing to remove them is no failed save.
    if (sp_rotate_checkpoints(dir, t->config->keep_last, t->config->keep_every, path,
                              t->folder.checkpoint) != SP_OK ||
        sp_run_write_info(&t->folder) != SP_OK)
        sp_warn("%s", sp_error_text());
    return SP_OK;
}

sp_status sp_trainer_save(sp_trainer *t) {
    char *path = sp_checkpoint_path(t->folder.dir, t->at.step);
    sp_status st = path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_metrics_sync(t->metrics); // resume continues these lines
    if (st == SP_OK) st = write_state(t, path);
    if (st == SP_OK) { // a resume finds it, whatever becomes of the pointer to it
        free(t->newest);
        t->newest = sp_strdup(path);
        t->newest_step = t->at.step;
        st = sp_trainer_conclude_save(t, path);
    }
    if (st == SP_OK) t->saved_step = t->at.step;
    free(path);
    return st;
}
