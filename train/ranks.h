// Ranks: who else trains. MPI is started only under a launcher; alone, everything is a no-op.
//
// The ranks of a process are one module-wide thing, like MPI itself. Functions marked [collective]
// must be called by all ranks in the same order, by the thread that opened the ranks.
//
// How a failure ends all ranks (bugs.md S15, S20). A rank that fails between two collectives
// returns its error to main, which prints it and calls sp_ranks_abort: the launcher then ends the
// others. A failure that went through sp_ranks_agree is known to all: every rank returns the same
// status, only the failing one prints, and all end normally with that exit code. A rank that says
// nothing any more, wherever it is, is noticed by another one (heartbeat.h), which ends all.
#ifndef SPARDA_RANKS_H
#define SPARDA_RANKS_H

#include "common/status.h"
#include "kernels/kernels.h"

#include <stdint.h>

typedef struct sp_ranks {
    int rank, size;
    int local_rank, local_size; // among the ranks that share this host's memory
    char host[256];
    char *note; // what launcher variables say about the local rank, where it differs; or NULL
} sp_ranks;

// [collective] Looks for a launcher and starts MPI under one. The local rank is that of the
// shared-memory communicator, never a variable's (S17). SP_BAD_INPUT if the launcher announces
// several tasks but the communicator has one (S18). Later calls return the same ranks.
sp_status sp_ranks_open(const sp_ranks **out);
void sp_ranks_close(void); // normal end; safe if never opened

// What the environment says of a launcher; a pure function of it, for sp_ranks_open and its tests.
typedef struct sp_launcher {
    const char *name; // NULL: none
    int64_t size;     // announced tasks; 0 if it does not say
    int64_t rank;     // announced rank; -1 if it does not say
    bool has_pmi;     // variables through which an MPI library finds its peers are there
} sp_launcher;
typedef const char *(*sp_getenv)(const char *name);
sp_launcher sp_launcher_detect(sp_getenv get);

// Host threads of this rank: the cores of the host divided by its ranks, or the cores it is bound
// to if those are fewer; at least 1.
int sp_ranks_threads(void);

// The first rank whose device has the same id as that of `rank`, if it comes before it; else -1. An
// empty id equals none. `ids` holds `size` texts of SP_RANKS_ID bytes.
enum { SP_RANKS_ID = 48 };
int sp_ranks_same_device(const char *ids, int size, int rank);

// [collective] SP_OK only if `local` is on every rank; otherwise the worst status, with the text of
// the first rank that has it known to all.
sp_status sp_ranks_agree(sp_status local);
// Whether this rank prints the present error: false if sp_ranks_agree made it another's.
bool sp_ranks_reports(void);
// Ends all ranks at once with this exit code and does not return, unless this rank is alone or the
// failure was agreed on, so that all end by themselves.
void sp_ranks_abort(int code);

// [collective] From here on the backends of all ranks sum gradients among themselves, if every one
// of them can (kernels.h, "several GPUs"). A rank that is silent for
// `deadline_s` seconds ends all ranks, as does a sum among backends that takes 5 s longer; until
// this call it is 30 s. SP_ENVIRONMENT naming two ranks that have the same GPU.
sp_status sp_ranks_connect(sp_backend *be, double deadline_s);
// [collective] F32, in place: the sum over ranks, each element added in rank order, so that the
// same number of ranks gives the same bits, and all ranks the same ones.
sp_status sp_ranks_sum(sp_tensor *grad);
sp_status sp_ranks_sum_doubles(double *v, int64_t n);    // [collective] also in rank order
sp_status sp_ranks_max(int64_t *v, int64_t n);           // [collective]
sp_status sp_ranks_broadcast(void *data, int64_t bytes); // [collective] from rank 0
// [collective] SP_BAD_INPUT naming the first rank whose `text` differs from rank 0's.
sp_status sp_ranks_same(const char *what, const char *text);
// [collective] A barrier whose waiting ranks sleep instead of spinning, for long work of one rank.
sp_status sp_ranks_rest(void);
void sp_ranks_step(int64_t step); // the step being computed, for messages; 0: none

#endif
