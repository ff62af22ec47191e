// Inside of train/: what one run consists of, and its phases. Everything here is [collective]
// unless said otherwise: all ranks call it in the same order.
//
//   plan    reads and checks everything that can be checked without weights; writes nothing
//   header  the run introduces itself
//   start   run folder, log, weights, tensors
//   loop    steps until the end, a signal, the time limit or a failure; checkpoints
//   finish  what follows training, the last word in run.json
//
// Legend: L layers, R = Hkv*d rows of a Forecast matrix, D hidden.
#ifndef SPARDA_TRAINER_H
#define SPARDA_TRAINER_H

#include "checkpoints/checkpoints.h"
#include "common/config.h"
#include "common/util.h"
#include "data/dataset.h"
#include "data/prefetch.h"
#include "model/forecast.h"
#include "model/model.h"
#include "train/distill.h"
#include "train/metrics.h"
#include "train/ranks.h"
#include "train/run_folder.h"
#include "train/schedule.h"
#include "train/tensorboard.h"
#include "validate/validate.h"

typedef struct sp_train_args {
    const char *config_file; // NULL: only `sets`
    const char **sets;
    int n_sets;
    const char *out; // NULL: runs/<name>-<time>
    sp_start start;
    bool dry_run;
    char *command; // the command line without --out, --resume, --force; for the resume command
} sp_train_args;

// Where a run stands; part of every checkpoint and equal on all ranks.
typedef struct sp_position {
    int64_t step;    // optimiser steps done
    int64_t updates; // of them, those that changed the weights
    int64_t tokens, used_rows, skipped_rows;
    int64_t stage;              // of the progressive schedule
    int64_t nonfinite_in_a_row; // updates skipped just before
} sp_position;

typedef struct sp_trainer {
    const sp_train_args *args;
    const sp_ranks *ranks;
    double matmul_tflops; // rank 0: the rate of large matrix products; 0: not known
    double began;         // sp_now() of the command's start, for time_limit_min
    int64_t hosts;        // that the ranks run on

    // plan
    sp_config *config; // resolved
    sp_model_desc *desc;
    sp_stages stages;
    sp_batch_plan batch;
    sp_dataset *data, *eval_data; // eval_data NULL: no evaluation
    sp_sampler *sampler, *eval_sampler;
    char data_identity[65];
    sp_run_folder folder; // rank 0
    bool resumed;
    bool was_finished; // the run in the folder had already come to its end, `after` included
    unsigned after;    // of after_training, what is to be done; rank 0
    sp_position at;
    sp_train_state state; // rank 0, until its arrays are on the backend
    char cpu_blas[32];    // of the checkpoint; "": none
    sp_text changes;      // lines "key: old -> new" of a resumed run's options
    sp_backend *backend;

    // start
    sp_model *model;
    sp_distill *distill;
    sp_forecast forecast;                     // host copy; its last matrix is never trained
    float *moments[2];                        // host copies of the moments [L*R*D], for checkpoints
    sp_forecast_device device;                // storage precision
    sp_tensor master, moment1, moment2, grad; // F32 [L*R, D]
    sp_metrics *metrics;                      // rank 0
    sp_tensorboard *tensorboard;              // rank 0
    sp_loader *loader;
    sp_position loader_at; // what the loader's thread has asked for: step, and `sequence` in it
    int64_t loader_sequence;

    // loop
    double *losses;      // [L] of one sequence
    double *sums;        // of a step over all ranks, see loop.c
    double *recall;      // [6 L]: results, then sums of an evaluation
    int32_t *eval_row;   // [seq_len]
    int64_t saved_step;  // -1: nothing saved or resumed from
    char *newest;        // path of the newest checkpoint, or NULL; rank 0
    int64_t newest_step; // its step: saved_step, unless what belongs to the save failed
    bool stopped;        // by a signal or the time limit
    int64_t peak_bytes;  // of the last step, the largest of all ranks
    int64_t told_skipped;
    bool tensorboard_failed, metrics_failed, told_no_choice;
} sp_trainer;

sp_status sp_trainer_plan(sp_trainer *t, const sp_train_args *args);
void sp_trainer_header(const sp_trainer *t); // not collective: each rank writes its log
sp_status sp_trainer_start(sp_trainer *t);
sp_status sp_trainer_loop(sp_trainer *t);
sp_status sp_trainer_finish(sp_trainer *t);
// Frees loader, model, tensors and backend: what follows training has needs of its own. Not
// collective.
void sp_trainer_release(sp_trainer *t);
// Not collective. `outcome` is that of the run: a failure goes into run.json.
void sp_trainer_close(sp_trainer *t, sp_status outcome);

// The validation after the run, of the export in `dir` (loop.c). Not collective.
sp_validate_args sp_trainer_validation(const sp_trainer *t, const char *dir);

// setup.c
int64_t sp_base_parameters(const sp_model_desc *d);
int64_t sp_trainer_predicted_bytes(const sp_trainer *t); // of one rank

// state.c
// Rank 0 loads and checks the folder's checkpoint; all learn the position.
sp_status sp_trainer_load(sp_trainer *t);
// Allocates `forecast` and reads init_from into it, before anything is written.
sp_status sp_trainer_import(sp_trainer *t);
// Fills forecast, master, moments from the checkpoint, from init_from, or from the seed.
sp_status sp_trainer_init_weights(sp_trainer *t);
sp_status sp_trainer_refresh(sp_trainer *t); // storage copies := master; not collective
sp_status sp_trainer_save(sp_trainer *t);    // rank 0 only; not collective
// What belongs to a save once the file `path` of this step is there: the pointer, run.json, the
// removal of old files. Rank 0 only.
sp_status sp_trainer_conclude_save(sp_trainer *t, const char *path);

// evaluate.c: recall[0..L) and mass[0..L) (the next L) of t->recall
sp_status sp_trainer_evaluate(sp_trainer *t);

#endif
