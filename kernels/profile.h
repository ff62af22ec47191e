// How long each operation of a backend takes, for `sparda bench`: while a profile is open, the
// backend's table of operations is a copy whose entries also read the clock. Nothing is measured,
// and nothing costs anything, outside of that. Every timed operation is waited for. One profile at
// a time.
#ifndef SPARDA_KERNELS_PROFILE_H
#define SPARDA_KERNELS_PROFILE_H

#include "kernels/kernels.h"

typedef struct sp_profile_row {
    const char *name; // of the operation
    int64_t calls;
    double seconds;
} sp_profile_row;

sp_status sp_profile_open(sp_backend *be);
// Rows of all operations, in the order of the table; valid until the close. Returns their number.
int sp_profile_rows(const sp_profile_row **rows);
void sp_profile_reset(void); // all counts to 0
void sp_profile_close(void); // the backend has its own table again

#endif
