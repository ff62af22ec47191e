// YAML text as a tree of nodes that know their line and column. The only file that knows the YAML
// library. Configuration needs the plain part of YAML: one document, no anchors, aliases or tags;
// those are refused by name, and so is everything that would lose information (a zero byte inside a
// text). Repeated keys are kept: who knows the keys reports them.
#ifndef SPARDA_YAML_H
#define SPARDA_YAML_H

#include "common/status.h"

#include <stdint.h>

typedef enum sp_yaml_kind { SP_YAML_SCALAR, SP_YAML_LIST, SP_YAML_MAP } sp_yaml_kind;

typedef struct sp_yaml sp_yaml;
struct sp_yaml {
    sp_yaml_kind kind;
    int64_t line, column; // of its first character, from 1
    char *text;           // scalar: its value
    bool quoted;    // scalar: written with quotes or as a block, so it is a text whatever it says
    sp_yaml **key;  // map: n scalars
    sp_yaml **item; // list: n items; map: n values
    int64_t n;
};

// Faults of the text are added to `problems` as "origin:line:column: ..."; *root is NULL then. An
// empty document gives *root NULL and no problem. The status is not SP_OK only if memory is short.
sp_status sp_yaml_parse(const char *text, int64_t bytes, const char *origin, sp_problems *problems,
                        sp_yaml **root);
void sp_yaml_free(sp_yaml *y);

// False: `*at` is the offset of the first character that is no UTF-8.
bool sp_is_utf8(const char *text, int64_t bytes, int64_t *at);

// A plain null, ~ or nothing at all.
bool sp_yaml_is_null(const sp_yaml *y);
// "the text \"abc\"", "a list", ...: what was found, for messages. Caller frees.
char *sp_yaml_describe(const sp_yaml *y);

#endif
