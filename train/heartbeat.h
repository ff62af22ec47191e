// Deadlines of everything that waits for other ranks. For train/ranks.c, built with MPI only.
//
// A thread of every rank sends a word to the next rank several times per deadline and listens to
// the one before it, in a ring, so each rank is watched by exactly one other. A rank that is late
// because it computes, loads or saves still sends; one that is stopped, whose host is gone or whose
// network is cut does not. The rank that misses it says so and ends all ranks with exit code 3.
//
// What MPI itself does without our thread (its start and end) has a fixed deadline instead.
//
// MPI is open at MPI_THREAD_SERIALIZED: between sp_heartbeat_start and sp_heartbeat_stop every MPI
// call is made with the lock held, and none of them blocks: collectives are begun as MPI_I..., and
// waited for with sp_heartbeat_wait.
#ifndef SPARDA_HEARTBEAT_H
#define SPARDA_HEARTBEAT_H

#include "common/status.h"

#include <mpi.h>
#include <stdint.h>

// Seconds that MPI_Init and MPI_Finalize may take: 120 and 30 unless called before the first. The
// program never calls it; its tests have less patience.
void sp_heartbeat_deadlines(double start, double end);
// Before MPI_Init_thread. The thread takes no signals.
sp_status sp_heartbeat_prepare(void);
// [collective] After MPI_Init_thread, which gave `provided`. `host` is this rank's. Returns an MPI
// error code. With less than MPI_THREAD_SERIALIZED there are no heartbeats, and a warning.
int sp_heartbeat_start(int provided, const char *host);
void sp_heartbeat_limit(double seconds); // of silence; 30 until called
void sp_heartbeat_step(int64_t step);    // for messages; 0: not in a step
// [collective] Then calls MPI_Finalize, still with a deadline.
void sp_heartbeat_stop(void);

void sp_heartbeat_lock(void);
void sp_heartbeat_unlock(void);
// Until the request is done; sleeps more the longer it takes. Returns an MPI error code. `what` is
// what this rank waits for, in messages; `is_long` says that waiting is no news.
int sp_heartbeat_wait(MPI_Request *request, const char *what, bool is_long);
// Ends all ranks with this code, and does not return even if MPI cannot reach them.
_Noreturn void sp_heartbeat_abort(int code);

#endif
