// JSON texts with messages that name the place: jansson, repeated keys refused by name (bugs.md
// S02), and a cap on the size of the text.
#ifndef SPARDA_JSON_H
#define SPARDA_JSON_H

#include "common/status.h"

#include <jansson.h>
#include <stdint.h>

// The JSON object in `bytes` bytes of `text` (no terminator needed; trailing white space allowed).
// `origin` names the text in messages. SP_BAD_INPUT for anything else than one object, with
// line:column, and with the key's name if an object holds a key twice.
sp_status sp_json_parse(const char *text, int64_t bytes, const char *origin, json_t **out);
// The same of a whole file of at most `max_bytes`.
sp_status sp_json_load(const char *path, int64_t max_bytes, json_t **out);

// Writes a document, indented, as a complete file, or to standard output if the path is "-".
sp_status sp_json_write(const char *path, const json_t *v);
// Before hours of measuring: whether sp_json_write has a place to write to. NULL: nothing to write.
sp_status sp_json_check_place(const char *path);

// "an object", "a list", "text", "a whole number", ...: for "expected X, found Y".
const char *sp_json_kind(const json_t *v);

#endif
