// Training state (HDF5), inference export (safetensors, .pt, merged), and import of other people's
// Forecast weights.
//
// Every file is complete or absent (common/util.h). Loading checks everything before it changes the
// caller's data. No call here is collective: rank 0 writes.
#ifndef SPARDA_CHECKPOINTS_H
#define SPARDA_CHECKPOINTS_H

#include "common/status.h"
#include "model/forecast.h"
#include "model/model.h"

#include <jansson.h>

// ---- training state -----------------------------------------------------------------------------

typedef struct sp_train_state {
    sp_forecast weights;         // fp32 master, L+1 matrices
    float *exp_avg, *exp_avg_sq; // moments of the L trained matrices, contiguous; NULL if absent
    int64_t step;                // optimiser steps done
    int64_t updates;             // of them, those that changed the weights: AdamW's t
    int64_t samples;             // global samples consumed = step * global_batch
    int64_t tokens;              // cumulative training tokens used
    int64_t used_rows, skipped_rows;
    int64_t stage; // of the progressive schedule
    uint64_t seed;
    char *config;        // resolved configuration, YAML
    char *data_identity; // sp_dataset_identity
    char *cpu_blas;      // SGEMM library in use, "" on CUDA
    // identity of the base model and of the grids it was trained for
    char *base_name;
    char base_config_sha256[SP_SHA256_HEX], base_weights_sha256[SP_SHA256_HEX];
    sp_heads heads;
    int64_t hidden;
    sp_sparse_config sparse;
    sp_grid teacher; // active teacher grid
    int align;       // sp_align
    bool mask_future;
    char *program; // version text of the writer
} sp_train_state;

void sp_train_state_free(sp_train_state *s); // frees members, not s
sp_status sp_state_save(const char *path, const sp_train_state *s);
// Verifies the per-tensor checksums. Base identity is compared by sp_state_check_base.
sp_status sp_state_load(const char *path, sp_train_state *out);
// SP_BAD_INPUT listing every difference between the state and this base model.
sp_status sp_state_check_base(const sp_train_state *s, const sp_model_desc *d,
                              const char *weights_sha256);

// Newest checkpoint of a run folder, by the step number inside, that is complete and as it was
// written; `path` NULL if the folder has no checkpoints. Files that are not whole are named in a
// warning; SP_BAD_INPUT if all are such. One that cannot be read is SP_ENVIRONMENT.
sp_status sp_newest_checkpoint(const char *run_dir, char **path);
// Removes old ones, judged by the step number inside the files: keeps the `keep_last` newest (0:
// all), every step divisible by keep_every (0: none), and always `written` (just saved), `resumed`
// (started from; both may be NULL) and the one that `latest` names. Steps beyond `written` are left
// alone and not counted. Files that do not open are left
// alone and not counted. Leftovers of killed writers are removed: a run folder has one owner.
sp_status sp_rotate_checkpoints(const char *run_dir, int64_t keep_last, int64_t keep_every,
                                const char *written, const char *resumed);
// <run_dir>/checkpoints/step-0000100.h5; caller frees. NULL if out of memory.
char *sp_checkpoint_path(const char *run_dir, int64_t step);
// Adds to `p` what is no file and stands under a name that saving needs: `latest`, and those of the
// steps `first` to `last`, at each of which a run may be stopped.
sp_status sp_check_checkpoint_names(const char *run_dir, int64_t first, int64_t last,
                                    sp_problems *p);
// The pointer file <run_dir>/checkpoints/latest, one line with a file name. It moves last, after
// the checkpoint is complete. Read: `path` is NULL if there is no pointer file.
sp_status sp_latest_write(const char *run_dir, const char *checkpoint);
sp_status sp_latest_read(const char *run_dir, char **path);

// ---- import -------------------------------------------------------------------------------------

typedef struct sp_imported {
    int64_t step;          // -1 if the file does not say
    json_t *sparse_config; // NULL if the file has none
    char *base_model;      // NULL if unknown
    char *format;          // "safetensors", "pt", "state", for people
} sp_imported;
void sp_imported_free(sp_imported *i);

// Forecast weights from safetensors, .pt (ours or the public trainer's ckpt-N.pt, wrapped or bare)
// or an HDF5 state, a file or an export folder, into `out` (allocated by sp_forecast_alloc for the
// base model, whose shapes must match). Missing, misshapen or unknown Forecast tensors are all
// listed. A missing last-layer matrix (never used) is allowed and set to 0; tensors that are no
// Forecast weights are ignored. `info` may be NULL.
sp_status sp_forecast_import(const char *path, sp_forecast *out, sp_imported *info);
// SP_BAD_INPUT naming every matrix with a NaN or infinity. Import lets them through, so that the
// validator can report them (E3); training asks.
sp_status sp_forecast_require_finite(const sp_forecast *f, const char *origin);

// ---- export -------------------------------------------------------------------------------------

typedef struct sp_export_args {
    const char *out_dir;
    bool safetensors, pt;
    const char *merge_base; // NULL: no merge
    const char *base;       // NULL: merge_base, else the folder named in the checkpoint
    bool no_parity;         // leave parity.safetensors out; the base model is then not needed
    bool force;             // out_dir may hold files; those of an earlier export of the same layout
                            // (merged or not) are replaced
    bool validate;          // run sp_validate on the result; its status is returned
} sp_export_args;
// From a checkpoint file or a run folder (its newest). A pure function of the checkpoint and, for
// parity vectors, of the base model named in it.
sp_status sp_export(const char *checkpoint, const sp_export_args *a);
// What sp_export would refuse about out_dir, for whoever is about to train for it; changes nothing.
sp_status sp_export_check_destination(const sp_export_args *a);

// .pt writing and reading (formats.md 3)
sp_status sp_pt_write(const char *path, const sp_forecast *f, int64_t step, json_t *sparse_config,
                      const char *base_model);

// One-page text about any file this program reads: state, safetensors, .pt, MDS or HDF5 data,
// model folder, run folder, export folder (`sparda info`). Caller frees.
sp_status sp_info_text(const char *path, char **text);

// ---- commands -----------------------------------------------------------------------------------
sp_status sp_export_command(int argc, char **argv); // argv[0] is "export"
sp_status sp_info_command(int argc, char **argv);   // argv[0] is "info"

#endif
