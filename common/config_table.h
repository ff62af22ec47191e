// The table of options: one row says everything about a key. The YAML reader, --set, --help,
// --print-config, the resume check and configs/reference.yaml are all made from it.
#ifndef SPARDA_CONFIG_TABLE_H
#define SPARDA_CONFIG_TABLE_H

#include "common/config.h"

typedef enum sp_option_type {
    SP_OPT_INT,      // int64_t
    SP_OPT_MAYBE,    // sp_int_option
    SP_OPT_NUMBER,   // double
    SP_OPT_BOOL,     // bool
    SP_OPT_CHOICE,   // int: position in `choices`
    SP_OPT_WORD,     // char *: one of `choices`
    SP_OPT_TEXT,     // char *, NULL if not given
    SP_OPT_PATH,     // char *, absolute; NULL if not given
    SP_OPT_DATA,     // sp_data_list
    SP_OPT_INT_LIST, // sp_int_list
    SP_OPT_SET,      // unsigned: bit i stands for word i of `choices`
} sp_option_type;

typedef struct sp_option {
    const char *key;      // with dots: sparse_config.topk
    const char *fallback; // default as YAML text; "null": not given
    const char *unit;     // "" if none
    const char *choices;  // words separated by spaces
    const char *help;
    sp_option_type type;
    bool may_change;     // on resume
    size_t offset;       // into sp_config
    int64_t least, most; // of integers, both included
    double min, max;     // of other numbers, both included
} sp_option;

extern const sp_option sp_options[];
extern const int sp_option_count;

// Word `i` of "auto cpu cuda"; its length in *len, NULL past the end.
const char *sp_choice(const char *choices, int i, int *len);

#endif
