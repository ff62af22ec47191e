// What the programs that test on a GPU share: their command line, PROGRAM [--small] [--portable]
// [FILTER], and opening the GPU.
#ifndef SPARDA_TEST_GPU_OPTIONS_H
#define SPARDA_TEST_GPU_OPTIONS_H

#include "common/build.h"
#include "kernels/backend.h"
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

// Opens the GPU, and the CPU backend beside it unless cpu is NULL. False where there is no GPU,
// which is said; a GPU that cannot be opened is a failure.
static inline bool gpu_opens(gpu_options options, sp_backend **gpu, sp_backend **cpu) {
#if SPARDA_HAVE_CUDA
    sp_backend_options o = {.name = "cuda", .local_ranks = 1, .portable_kernels = options.portable};
    if (sp_cuda_device_present()) {
        assert_ok(sp_backend_open(&o, gpu));
        o.name = "cpu";
        if (cpu) assert_ok(sp_backend_open(&o, cpu));
        printf("%s\n", sp_backend_description(*gpu));
        return true;
    }
    printf("skipped: no GPU that this build has code for\n");
#else
    (void)options, (void)gpu, (void)cpu;
    printf("skipped: built without CUDA\n");
#endif
    return false;
}

#endif
