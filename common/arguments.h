// Command-line options of the tools that measure: `--name value` or `--name=value`, from one table.
#ifndef SPARDA_ARGUMENTS_H
#define SPARDA_ARGUMENTS_H

#include "common/status.h"

#include <stdint.h>

enum { SP_ARGUMENT_LIST = 32 };
typedef struct sp_number_list { // "4,8,16"
    int64_t value[SP_ARGUMENT_LIST];
    int64_t n;
} sp_number_list;

// One of the four places is set: it says what the option takes.
typedef struct sp_argument {
    const char *name;
    const char **text;
    int64_t *number;      // a whole number, at least `least`
    double *real;         // finite
    sp_number_list *list; // of whole numbers, each at least `least`
    int64_t least;
} sp_argument;

// Reads argv[1..]; *what is the one word that is no option, NULL if there is none. `help` is set,
// and nothing else looked at, if --help or -h is there. Faults are added to `p`.
void sp_parse_arguments(int argc, char **argv, const sp_argument *table, int n, const char **what,
                        bool *help, sp_problems *p);

#endif
