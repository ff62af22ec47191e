#include "tests/support.h"
#include "common/util.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void test_assert_status(sp_status got, sp_status want, const char *part, const char *expr,
                        const char *file, int line) {
    if (got != want)
        fail_msg("%s:%d: %s: status %d, expected %d: %s\n%s", file, line, expr, got, want,
                 got ? sp_error_text() : "", got ? sp_error_trace() : "");
    if (part && !strstr(sp_error_text(), part))
        fail_msg("%s:%d: %s: the message lacks \"%s\": %s", file, line, expr, part,
                 sp_error_text());
}

static char tmpdir[64];

static int remove_entry(const char *path, const struct stat *s, int flag, struct FTW *ftw) {
    (void)s, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_tmpdir(void) {
    nftw(tmpdir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_tmpdir(void) {
    if (!tmpdir[0]) {
        snprintf(tmpdir, sizeof tmpdir, "%s/sparda-test-XXXXXX", P_tmpdir);
        if (!mkdtemp(tmpdir)) fail_msg("cannot create a temporary folder");
        atexit(remove_tmpdir);
    }
    return tmpdir;
}

char *test_path(const char *relative) {
    return sp_path_join(SPARDA_SOURCE_DIR, relative);
}

uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float test_uniform(uint64_t *state, float lo, float hi) {
    return lo + (hi - lo) * (float)((double)(test_random(state) >> 11) * 0x1p-53);
}

static bool both_special(float a, float b) {
    return (isnan(a) && isnan(b)) || (isinf(a) && a == b);
}

double test_rel_error(const float *got, const float *want, int64_t n) {
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        if (both_special(got[i], want[i])) continue;
        double e = (double)got[i] - want[i];
        diff += e * e;
        norm += (double)want[i] * want[i];
    }
    return diff == 0 ? 0 : sqrt(diff) / sqrt(norm);
}

double test_max_abs_error(const float *got, const float *want, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (both_special(got[i], want[i])) continue;
        double e = fabs((double)got[i] - want[i]);
        if (!(e <= worst)) worst = e; // NaN sticks
    }
    return worst;
}
