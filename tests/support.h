// Shared by the tests: cmocka, temporary folders, golden arrays, comparison.
#ifndef SPARDA_TEST_SUPPORT_H
#define SPARDA_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/status.h"
#include "kernels/kernels.h"

// Fails with the error's text and trace unless the status is SP_OK.
#define assert_ok(expr) test_assert_status((expr), SP_OK, NULL, #expr, __FILE__, __LINE__)
// Expects a status and (if not NULL) a part of the message.
#define assert_fails(expr, code, part)                                                             \
    test_assert_status((expr), (code), (part), #expr, __FILE__, __LINE__)
void test_assert_status(sp_status got, sp_status want, const char *part, const char *expr,
                        const char *file, int line);

const char *test_tmpdir(void);         // an empty folder of this process, removed at exit
char *test_path(const char *relative); // inside the source tree; caller frees

// Deterministic random numbers for inputs (splitmix64).
uint64_t test_random(uint64_t *state);
float test_uniform(uint64_t *state, float lo, float hi);

// L2 norm of the difference over the L2 norm of `want` (0/0 = 0); infinities and NaN must be equal.
double test_rel_error(const float *got, const float *want, int64_t n);
double test_max_abs_error(const float *got, const float *want, int64_t n);

#endif
