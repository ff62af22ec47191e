// InfiniGen's basis: what it keeps of the queries it was made from, and which of them it looks at.
#include "infer/infinigen.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

static uint64_t seed = 20260604;

static float normal(void) {
    float u = test_uniform(&seed, 0, 1), v = test_uniform(&seed, 0, 1);
    return sqrtf(-2 * logf(u + 1e-9f)) * cosf(6.2831853f * v);
}

// On an orthogonal basis nothing is lost: with as many channels as dimensions dot products would
// stay. Queries that lie in a plane of 32 dimensions must be found exactly.
static void queries_of_a_plane_are_kept(void **state) {
    (void)state;
    const sp_heads heads = {4, 2, 64};
    enum { ROWS = 100, D = 64, KEEP = 32 };
    float *q = malloc(ROWS * 4 * D * sizeof *q), *p = malloc(2 * D * KEEP * sizeof *p),
          plane[2][KEEP][D];
    for (int h = 0; h < 2; h++)
        for (int c = 0; c < KEEP; c++)
            for (int x = 0; x < D; x++) plane[h][c][x] = normal();
    for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < 4; g++)
            for (int x = 0; x < D; x++) q[(r * 4 + g) * D + x] = 0;
    for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < 4; g++)
            for (int c = 0; c < KEEP; c++) {
                float a = normal();
                for (int x = 0; x < D; x++) q[(r * 4 + g) * D + x] += a * plane[g / 2][c][x];
            }
    assert_ok(sp_infinigen_projection(&heads, q, ROWS, p));
    for (int h = 0; h < 2; h++) {
        for (int a = 0; a < KEEP; a++) // orthonormal
            for (int b = 0; b < KEEP; b++) {
                double sum = 0;
                for (int x = 0; x < D; x++)
                    sum += (double)p[(h * D + x) * KEEP + a] * p[(h * D + x) * KEEP + b];
                assert_true(fabs(sum - (a == b)) < 1e-5);
            }
        for (int r = 0; r < ROWS; r++) { // the query is what its channels say
            const float *row = q + (r * 4 + 2 * h) * D;
            double all = 0, kept = 0;
            for (int x = 0; x < D; x++) all += (double)row[x] * row[x];
            for (int c = 0; c < KEEP; c++) {
                double sum = 0;
                for (int x = 0; x < D; x++) sum += (double)row[x] * p[(h * D + x) * KEEP + c];
                kept += sum * sum;
            }
            assert_true(fabs(kept - all) < 1e-4 * all);
        }
    }
    free(q), free(p);
}

// Query r points along axis r % D, the longer the lower the axis; after the first 2048, which the
// basis is made from, only along the upper half of the axes. Channels are chosen over all.
static void channels_are_chosen_over_the_whole_prompt(void **state) {
    (void)state;
    enum { BASIS = 2048, MORE = 640, D = 64, KEEP = 32 };
    const sp_heads heads = {2, 1, D};
    float *q = calloc((size_t)(BASIS + MORE) * 2 * D, sizeof *q), p[D * KEEP];
    for (int r = 0; r < BASIS + MORE; r++)
        for (int g = 0; g < 2; g++) {
            int axis = r < BASIS ? r % D : D / 2 + r % (D / 2);
            q[(r * 2 + g) * D + axis] = r < BASIS ? (float)(D - axis) : -1000;
        }
    for (int whole = 0; whole < 2; whole++) {
        assert_ok(sp_infinigen_projection(&heads, q, whole ? BASIS + MORE : BASIS, p));
        int first = whole ? D / 2 : 0;
        for (int x = 0; x < D; x++)
            for (int c = 0; c < KEEP; c++)
                assert_true(fabs(fabs(p[x * KEEP + c]) - (x == first + c)) < 1e-6);
    }
    free(q);
}

static void narrow_heads_are_refused(void **state) {
    (void)state;
    const sp_heads heads = {1, 1, 16};
    float q[16] = {1}, p[16 * SP_INFINIGEN_CHANNELS];
    assert_fails(sp_infinigen_projection(&heads, q, 1, p), SP_ENVIRONMENT, "no 32 channels");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_of_a_plane_are_kept),
        cmocka_unit_test(channels_are_chosen_over_the_whole_prompt),
        cmocka_unit_test(narrow_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
