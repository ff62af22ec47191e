// What the times of decode steps say (infer/overlap.h), on times made up by hand.
#include "infer/overlap.h"
#include "tests/support.h"

#include <math.h>

static void parts_of_a_step(void **state) {
    (void)state;
    enum { L = 2 };
    // Two layers of 10 ms, then 4 ms of the head; the second one waits for its blocks.
    double t[(L + 1) * SP_MOMENTS];
    for (int i = 0; i < (L + 1) * SP_MOMENTS; i++) t[i] = NAN; // as where nothing was noted
    static const struct {
        sp_decode_moment moment;
        double at[L];
    } noted[] = {{SP_AT_LAYER, {0, 10}},  {SP_AT_CHOOSE, {2, 12}},    {SP_AT_WAIT, {3, 13.5}},
                 {SP_AT_GO, {3, 15}},     {SP_AT_ATTENDED, {4, 16}},  {SP_AT_MLP, {5, 17}},
                 {SP_AT_AHEAD, {NAN, 2}}, {SP_AT_CHOSEN, {NAN, 2.5}}, {SP_AT_COPY, {NAN, 2.5}}};
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++)
        for (int l = 0; l < L; l++) t[l * SP_MOMENTS + noted[i].moment] = noted[i].at[l];
    t[L * SP_MOMENTS + SP_AT_LAYER] = 20;
    t[L * SP_MOMENTS + SP_AT_END] = 24;
    sp_decode_parts p = sp_decode_parts_of(t, L);
    assert_true(p.linear == (2 + 1) + (2 + 1) && p.select == 1 + 1.5 + 0.5 && p.wait == 0 + 1.5);
    assert_true(p.attention == 1 + 1 && p.mlp == 5 + 3 && p.other == 4);
    // all of it, and half a millisecond of choosing beside it
    assert_true(p.linear + p.select + p.wait + p.attention + p.mlp + p.other == 24.5);
}

static void hidden_share(void **state) {
    (void)state;
    // Without copies 100, copied when needed 140: T is 40, all of it could be hidden.
    assert_true(sp_hidden_share(100, 140, 100) == 1 && sp_hidden_cap(140, 100) == 1);
    assert_true(sp_hidden_share(140, 140, 100) == 0);
    assert_true(sp_hidden_share(110, 140, 100) == 0.75);
    // T is twice E: at most half of it.
    assert_true(sp_hidden_cap(300, 100) == 0.5 && sp_hidden_share(200, 300, 100) == 0.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_step),
        cmocka_unit_test(hidden_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
