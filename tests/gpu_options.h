// The command line of the programs that test on a GPU: PROGRAM [--small] [--portable] [FILTER].
#ifndef SPARDA_TEST_GPU_OPTIONS_H
#define SPARDA_TEST_GPU_OPTIONS_H

#include "tests/support.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct gpu_options {
    bool small;    // shapes and runs that a sanitizer can follow
    bool portable; // the kernels for older cards
} gpu_options;

// FILTER, a pattern of cmocka's, chooses tests by name. What a program says is written line by
// line: one that hangs and is killed has told where.
static inline gpu_options gpu_options_of(int argc, char **argv) {
    gpu_options o = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            o.small = true;
        else if (strcmp(argv[i], "--portable") == 0)
            o.portable = true;
        else
            cmocka_set_test_filter(argv[i]);
    }
    return o;
}

#endif
