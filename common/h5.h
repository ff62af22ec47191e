// HDF5 is not thread-safe as Debian builds it, and prints its own error stacks. Every use of the
// library stands between sp_h5_begin and sp_h5_end: one lock for the process, printing off.
//
// A file whose H5Fclose failed (disk full) is still open inside the library. Never close it a
// second time: HDF5 1.10 crashes. Cut its file to 0 bytes, to free the disk, and remove it.
#ifndef SPARDA_H5_H
#define SPARDA_H5_H

#include "common/status.h"

#include <hdf5.h>

void sp_h5_begin(void); // recursive per thread
void sp_h5_end(void);
// What went wrong, innermost: of the last HDF5 function of this thread that failed since
// sp_h5_begin. For use in our message, before sp_h5_end.
const char *sp_h5_reason(void);
// Read-only and without a file lock (network file systems refuse it). Between begin and end.
hid_t sp_h5_open_readonly(const char *path);

#endif
