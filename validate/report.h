// The validation report (inference.md 5.5): the list of checks, the sections of the JSON document,
// the HTML page made from that document, and the summary for people.
//
// The JSON document is the only source: the page and the summary are made from it, so they cannot
// say anything else. Absent numbers are null; non-finite ones too. A check has one key more than
// the specification names: "remedy", what a user can do where it was missed, else null.
#ifndef SPARDA_REPORT_H
#define SPARDA_REPORT_H

#include "common/status.h"

#include <jansson.h>
#include <stdint.h>

typedef enum sp_severity { SP_HARD, SP_SOFT, SP_NOTE } sp_severity; // "hard", "soft", "info"
typedef enum sp_outcome { SP_PASS, SP_WARN, SP_FAIL, SP_SKIP } sp_outcome;

// One row of the table of checks (report.c): what is checked, whatever the outcome.
typedef struct sp_check_info {
    const char *id; // "P1"; its first letter is the group
    sp_severity severity;
    const char *title; // for people
    const char *unit, *op;
    const char *gpu_only; // reason of the skip on a machine without the means, NULL if it runs here
    const char *remedy;   // what a user can do where it was missed; NULL: information only
} sp_check_info;
const sp_check_info *sp_check_table(int64_t *n);

// A result. NAN in a number means absent. Where a check has a hard gate and a softer one, value and
// threshold are those of the gate that was missed, and a warning is recorded as a soft gate's.
typedef struct sp_check {
    const char *id;
    sp_outcome outcome;
    const char *reason; // may be NULL; required for warn, fail and skip
    double value, threshold, noise_floor;
    int64_t n; // how many were looked at; -1 absent
    double ci95[2];
    json_t *detail;   // extra numbers, owned by the report from now on; may be NULL
    const char *unit; // of value and threshold; NULL: as in the table
    // What helps with the cause at hand; NULL: as in the table; "": nothing of its own, since the
    // reason says it or another check has the cause.
    const char *remedy;
} sp_check;
sp_check sp_check_blank(const char *id); // all absent, outcome pass

typedef struct sp_report {
    json_t *root;   // the document
    json_t *checks; // its "checks", in the order of the table
} sp_report;

// With every section of the schema present, all null or empty.
sp_status sp_report_open(sp_report *r);
void sp_report_close(sp_report *r);
// Records a result; every id of the table at most once.
sp_status sp_report_add(sp_report *r, const sp_check *c);
// Shorthand: skip with a reason.
sp_status sp_report_skip(sp_report *r, const char *id, const char *reason);
// The outcome of a check that was added; SP_SKIP if it was not.
sp_outcome sp_report_outcome(const sp_report *r, const char *id);
// Puts the checks in order (what nobody added becomes a skip), computes the status: a failed hard
// check is "fail", a missed soft one "pass_with_warnings", or "fail" with `strict`.
sp_status sp_report_finish(sp_report *r, bool strict, bool *failed);

// validation_report.json and .html in `dir` (made if need be). Each appears complete or not at all,
// and neither if either cannot be written.
sp_status sp_report_write(const sp_report *r, const char *dir);
// Removes reports of an earlier run from `dir`, so that a report there is always of the last one.
sp_status sp_report_remove(const char *dir);

// One self-contained page. All text of the document is escaped. Caller frees.
sp_status sp_report_html(json_t *root, char **html);
// About twenty lines, the selector table and its footer last. Caller frees.
sp_status sp_report_summary(json_t *root, char **text);

// ---- helpers for sections -----------------------------------------------------------------------

json_t *sp_json_number(double x); // null if not finite
// Text that may hold any byte, like a path: what is not UTF-8 becomes "?", since JSON refuses it.
json_t *sp_json_text(const char *s);
double sp_json_at(json_t *o, const char *key); // NAN if absent or null
// Block recall of a row of the selector table ("original", "forecast", ...) in one entry of
// selection.per_length: 1 for the original selector, chance for random blocks, NAN for dense.
double sp_selector_recall(json_t *per_length, const char *key);

#endif
