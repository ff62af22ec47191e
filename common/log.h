// What a run says to people (stderr) and keeps in its log file.
//
// Only rank 0 talks on stderr unless sp_log_open was told otherwise; every rank writes its own log
// file if it has one. Programs read files or stdout, never this. Thread-safe.
#ifndef SPARDA_LOG_H
#define SPARDA_LOG_H

#include "common/status.h"

// `path` NULL: no file. `quiet`: nothing but warnings and errors on stderr. Call again to change.
sp_status sp_log_open(int rank, const char *path, bool quiet);
void sp_log_close(void);

void sp_info(const char *fmt, ...) __attribute__((format(printf, 1, 2))); // one line, no newline
void sp_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2))); // "sparda: warning: ..."
// A line that overwrites itself on a terminal; elsewhere printed at most every 10 s. An empty
// text ends the line. Never written to the log file.
void sp_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
