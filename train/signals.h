// Signals that ask a run to stop: SIGTERM, SIGINT, SIGUSR1 (bugs.md S26). The first sets a flag
// that the loop looks at once per step; a second one ends the process at once with 143 or 130.
#ifndef SPARDA_SIGNALS_H
#define SPARDA_SIGNALS_H

#include <stdbool.h>

// Installs the handlers. `launched`: under a launcher, which may deliver one keystroke twice
// (directly and forwarded), signals within 100 ms count as one.
void sp_signals_catch(bool launched);
bool sp_signals_stop(void);        // whether one has arrived
const char *sp_signals_name(void); // "SIGTERM", ...; "" if none

#endif
