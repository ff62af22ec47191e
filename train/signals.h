// Signals that ask a run to stop: SIGTERM, SIGINT, SIGUSR1 (bugs.md S26). The first sets a flag
// that the loop looks at once per step; a second one ends the process at once with 143 or 130.
//
// They are never delivered to the threads that compute. oneDNN's SGEMM lets the stack pointer point
// into a small heap buffer while it runs, so a signal frame pushed there would overwrite the heap.
// Hence they are blocked in the caller and in all threads it starts later, and a thread that does
// nothing else takes them.
#ifndef SPARDA_SIGNALS_H
#define SPARDA_SIGNALS_H

#include "common/status.h"

// Call before a backend is opened: threads inherit what is blocked. Until sp_signals_arm there is
// nothing to save, and the first signal ends the process. Launchers and timeout(1) deliver one
// signal twice (to the process and to its group), so signals within 100 ms count as one.
sp_status sp_signals_catch(void);
void sp_signals_arm(bool speak);   // speak: on rank 0, where the first signal is acknowledged
bool sp_signals_stop(void);        // whether one has arrived since
const char *sp_signals_name(void); // "SIGTERM", ...; "" if none

#endif
