// Status codes and error reporting.
//
// Every fallible function returns sp_status; SP_OK is 0 everywhere. The text of the error lives in
// thread-local storage: the function that detects a fault writes it (sp_error), callers add one
// line of trace each (SP_TRY), and only main() prints it and ends the process. The values of
// sp_status are the exit codes of the program (README, "Exit status").
//
// A good message says what happened, where (file, key, tensor, line:column), and what to do.
#ifndef SPARDA_STATUS_H
#define SPARDA_STATUS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum sp_status {
    SP_OK = 0,
    SP_CHECK_FAILED = 1, // a validation check failed; the report says which
    SP_BAD_INPUT = 2,    // the user's input is wrong: usage, configuration, file contents
    SP_ENVIRONMENT = 3, // the machine failed: memory, disk, device, a lost peer, a broken invariant
} sp_status;

// Records the error and returns `code`. Replaces any earlier error of this thread.
sp_status sp_error_at(const char *file, int line, sp_status code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// Adds "file:line expr" to the trace of the current error; returns `code` unchanged.
sp_status sp_error_trace_at(const char *file, int line, sp_status code, const char *expr);
// Puts "prefix: " in front of the current message (to add a file name known only to the caller).
void sp_error_prefix(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

const char *sp_error_text(void);  // message of the last error of this thread; "" if none
const char *sp_error_trace(void); // trace lines of it, innermost first; "" if none
void sp_error_clear(void);

// The code is repeated so that the compiler sees what it is: never SP_OK.
#define sp_error(code, ...) (sp_error_at(__FILE__, __LINE__, (code), __VA_ARGS__), (code))

// Return on failure, adding a trace line.
#define SP_TRY(expr)                                                                               \
    do {                                                                                           \
        sp_status sp_try_ = (expr);                                                                \
        if (sp_try_ != SP_OK) {                                                                    \
            sp_error_trace_at(__FILE__, __LINE__, sp_try_, #expr);                                 \
            return sp_try_;                                                                        \
        }                                                                                          \
    } while (0)

// The same for functions with a `done:` label that frees what they own and returns `st`.
#define SP_GO(expr)                                                                                \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != SP_OK) {                                                                         \
            sp_error_trace_at(__FILE__, __LINE__, st, #expr);                                      \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

// A list of problems of one input, reported together in one error.
typedef struct sp_problems {
    char *text;
    size_t len, cap;
    int count;
} sp_problems; // zero-initialise; sp_problems_end frees it

void sp_problems_add(sp_problems *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// SP_OK if the list is empty; else an error with `code` whose text is the heading and all problems,
// one a line. Frees the list either way.
sp_status sp_problems_end(sp_problems *p, sp_status code, const char *heading_fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
