// Arguments of the `sparda data` commands. Internal to data/.
#ifndef SPARDA_DATA_ARGS_H
#define SPARDA_DATA_ARGS_H

#include "common/status.h"

#include <stdint.h>

typedef struct sp_data_argument {
    const char *name; // with its dashes
    enum { SP_ARG_TEXT, SP_ARG_COUNT, SP_ARG_SEED, SP_ARG_REAL, SP_ARG_FLAG } kind;
    void *to; // const char *, int64_t, uint64_t, double, bool
} sp_data_argument;

// What is no option. `most` of them are allowed; `at` is taken from argv.
typedef struct sp_operands {
    const char **at; // [most]
    int n, most;
} sp_operands;

// "--name value", "--name=value", "--flag"; everything else goes to `rest` (NULL: nothing else may
// come). `list` ends with a zeroed element.
sp_status sp_arguments_parse(const char *command, int argc, char **argv,
                             const sp_data_argument *list, sp_operands *rest);

#endif
