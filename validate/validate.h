// The validation pass after export (inference.md 5.4, 5.5): loads the exported files, checks them,
// measures the Forecast's quality, writes validation_report.json and .html.
#ifndef SPARDA_VALIDATE_H
#define SPARDA_VALIDATE_H

#include "common/config.h"
#include "common/status.h"

typedef struct sp_validate_args {
    const char *base, *forecast, *report; // folders (forecast: file or folder)
    const char *data; // held-out rows; NULL: the corpus, if the vocabulary is its
    bool strict;
    const sp_config *config; // backend, sparse_config, validate.* and the like
} sp_validate_args;

// SP_OK (pass, with or without warnings), SP_CHECK_FAILED, or an error without a report. Prints a
// 20-line summary on stderr.
sp_status sp_validate(const sp_validate_args *a);
sp_status sp_validate_command(int argc, char **argv); // argv[0] is "validate"

#endif
