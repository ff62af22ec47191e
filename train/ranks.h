// Ranks: who else trains. MPI is started only under a launcher; alone, everything is a no-op.
//
// Functions marked [collective] must be called by all ranks in the same order.
#ifndef SPARDA_RANKS_H
#define SPARDA_RANKS_H

#include "common/status.h"
#include "kernels/kernels.h"

#include <stdint.h>

typedef struct sp_ranks {
    int rank, size, local_rank, local_size;
    char host[256];
} sp_ranks;

// [collective] Detects a launcher; SP_BAD_INPUT if its environment announces several tasks but the
// communicator has one (bugs.md S18).
sp_status sp_ranks_open(const sp_ranks **out);
void sp_ranks_close(void); // normal end; safe if never opened
// The local status of every rank: SP_OK only if all are; otherwise the worst, with the text of the
// first failing rank known to all. [collective]
sp_status sp_ranks_agree(sp_status local);
// Ends all ranks at once with this exit code; does not return under MPI, does nothing alone.
void sp_ranks_abort(int code);

sp_status sp_ranks_sum(sp_tensor *grad);                     // [collective] F32, in place, all ranks
sp_status sp_ranks_sum_doubles(double *v, int64_t n);        // [collective]
sp_status sp_ranks_max_int(int64_t *v);                      // [collective]
sp_status sp_ranks_broadcast(void *data, int64_t bytes);     // [collective] from rank 0
// SP_BAD_INPUT naming the rank whose `text` differs from rank 0's. [collective]
sp_status sp_ranks_same(const char *what, const char *text);

#endif
