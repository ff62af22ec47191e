// Command-line arguments of every command, read by one table: `--name value`, `--name=value`,
// `--flag`, and words that are no options.
#ifndef SPARDA_ARGUMENTS_H
#define SPARDA_ARGUMENTS_H

#include "common/status.h"

#include <stdint.h>

enum { SP_ARGUMENT_LIST = 32 };
typedef struct sp_number_list { // "4,8,16"
    int64_t value[SP_ARGUMENT_LIST];
    int64_t n;
} sp_number_list;

typedef struct sp_words {
    const char **at; // room for `most`, the caller's; filled from argv
    int n, most;
} sp_words;

// Names separated by commas. Those of `known` that are given are the chosen ones; without the
// option `chosen` stays as it is.
typedef struct sp_names {
    const char *const *known; // [n]
    bool *chosen;             // [n]
    int n;
} sp_names;

// One of the places is set: it says what the option takes. It keeps its value, the default, while
// the option is not given.
typedef struct sp_argument {
    const char *name; // with its dashes; a flag's may contain a value, "--resume=auto"
    bool *flag;       // no value
    const char **text;
    sp_words *words;      // a text each time it is given; other values may be given once
    int64_t *number;      // a whole number from `least` to `most`
    uint64_t *seed;       // a whole number from 0
    double *real;         // finite
    sp_number_list *list; // of whole numbers from `least` to `most`
    sp_names *names;
    int64_t least, most; // most 0: 2^40
} sp_argument;

// Whether --help or -h stands in argv[1..], wherever.
bool sp_arguments_help(int argc, char **argv);

// Reads argv[1..] by `table`, which ends with a zeroed element. Words that are no options go to
// `rest` (NULL: there may be none). A value that begins with "--" needs the form with "=". Every
// fault is added to `p`; it names the option or the word.
void sp_arguments_read(int argc, char **argv, const sp_argument *table, sp_words *rest,
                       sp_problems *p);

#endif
