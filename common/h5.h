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

// A file from a stranger must not make this program open others, so whoever reads asks these two
// before anything else about the object, between begin and end. Filters come from the library
// alone: its plug-ins are off.
//
// What stands under `name` (one component): nothing, an object of this file, or a soft, external or
// user-defined link, which may lead out of it.
typedef enum { SP_H5_ABSENT, SP_H5_OBJECT, SP_H5_LINK } sp_h5_member;
sp_h5_member sp_h5_look(hid_t group, const char *name);
// NULL if the values of an open data set lie in its own file, else where they lie, in words.
// H5Dget_space of a virtual data set already opens its sources.
const char *sp_h5_stored_elsewhere(hid_t data_set);

// Whether every filter of a creation property list is deflate, shuffle or fletcher32. The others of
// the library are rare, and its older versions crash in them.
bool sp_h5_usual_filters(hid_t plist);

#endif
