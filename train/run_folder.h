// The run folder (design 3.3): DIR/{config.resolved.yaml, run.json, metrics.jsonl, log/rank-N.log,
// tb/, checkpoints/step-0000100.h5, checkpoints/latest}. Rank 0 owns it and holds a lock on it
// while it runs (bugs.md S18, S39); the lock belongs to the process, so a dead owner never blocks.
#ifndef SPARDA_RUN_FOLDER_H
#define SPARDA_RUN_FOLDER_H

#include "common/status.h"

#include <jansson.h>
#include <stdint.h>

typedef enum sp_start {
    SP_START_NEW,         // the folder must be absent, empty, or of a run that failed before a step
    SP_START_RESUME,      // from the newest checkpoint; none there is an error
    SP_START_RESUME_AUTO, // the same, or new if the folder holds no checkpoint
    SP_START_FORCE,       // anew; what an earlier run left is moved into old-N/
} sp_start;

typedef struct sp_run_folder {
    char *dir;
    char *checkpoint;  // to resume from; NULL: a new run
    int lock;          // file descriptor, -1: none
    bool created;      // DIR did not exist before
    bool failed_start; // it holds a run that failed before its first step, to be moved aside
    bool written;      // something of this run stands in it
    json_t *info;      // run.json
} sp_run_folder;

// Refuses what `start` does not allow (SP_BAD_INPUT) and a folder that cannot be made or written
// in, takes the lock and finds the checkpoint to resume from. Writes nothing but the lock.
// `look_only` (a dry run) does not even do that.
sp_status sp_run_folder_open(const char *dir, sp_start start, bool look_only, sp_run_folder *out);
// Adds to `p` what stands in the way of the files that a run writes there: steps `first` to `last`
// may be saved. Nothing does where sp_run_folder_prepare moves everything aside.
sp_status sp_run_folder_obstacles(const sp_run_folder *f, sp_start start, int64_t first,
                                  int64_t last, sp_problems *p);
// Whether `path` leads through something that sp_run_folder_prepare moves aside.
bool sp_run_folder_moves(const sp_run_folder *f, sp_start start, const char *path);
// Moves an earlier run aside if forced or if it never made a step, removes temporary files of a
// killed run, makes sub-folders.
sp_status sp_run_folder_prepare(sp_run_folder *f, sp_start start);
// Releases the lock; removes a folder that was created and stayed empty. Safe on a zeroed `f`.
void sp_run_folder_close(sp_run_folder *f);

char *sp_run_path(const sp_run_folder *f, const char *name); // DIR/name; caller frees
// Sets a value of run.json (steals `value`) without writing; sp_run_write_info writes the file.
void sp_run_set(sp_run_folder *f, const char *key, json_t *value);
sp_status sp_run_write_info(sp_run_folder *f);
// "2026-01-31T12:34:56Z" of now.
void sp_utc_text(char text[32]);

#endif
