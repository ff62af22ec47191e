// sparda <command>: dispatch, the one place that prints errors and ends the process.
#include "checkpoints/checkpoints.h"
#include "common/build.h"
#include "common/log.h"
#include "data/dataset.h"
#include "train/ranks.h"
#include "train/train.h"
#include "validate/validate.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The ranks for a data command that can share its work.
static sp_status assemble(sp_data_team *out) {
    const sp_ranks *ranks;
    SP_TRY(sp_ranks_open(&ranks));
    *out = (sp_data_team){ranks->rank, ranks->size, sp_ranks_threads(), sp_ranks_agree};
    return sp_log_open(ranks->rank, NULL, false);
}

static sp_status run_data(int argc, char **argv) {
    return sp_data_command(argc, argv, assemble);
}

typedef struct command {
    const char *name, *usage, *help;
    sp_status (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"train", "CONFIG.yaml [--set key=value ...] [--out DIR] [--resume[=auto] | --force]",
     "train the Forecast projections of a base model", sp_train_command},
    {"export", "CHECKPOINT --out DIR [--format safetensors,pt] [--merge BASE_DIR] [--validate]",
     "write an inference-ready checkpoint from a training state", sp_export_command},
    {"validate",
     "--base DIR --forecast FILE_OR_DIR --report DIR [--data PATH] [--strict] [--set key=value "
     "...]",
     "check an exported checkpoint and measure its quality", sp_validate_command},
    {"data", "import|retokenize|verify|info|synth|synth-model ...",
     "import, check or make token data, make a random model", run_data},
    {"info", "PATH ...", "describe any file or folder the program reads", sp_info_command},
    {"bench", "OPERATION|train-step|prefill|decode|transfer|... [--json FILE]", "measure speed",
     sp_bench_command},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *f) {
    fprintf(f, "sparda %s: trains, exports and validates SparDA Forecast projections\n\n",
            SPARDA_VERSION);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  sparda %-9s%s\n      %s\n", commands[i].name, commands[i].usage,
                commands[i].help);
    fputs("\n  sparda COMMAND --help   its arguments\n  sparda --version\n\n"
          "Exit status: 0 success, 1 a validation check failed, 2 wrong input, 3 the environment "
          "failed.\n",
          f);
}

static sp_status run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return sp_error(SP_BAD_INPUT, "no command given; try 'sparda train configs/tiny.yaml'");
    }
    if (strcmp(argv[1], "help") == 0 && argc == 3) { // help COMMAND is COMMAND --help
        char *swapped[] = {argv[0], argv[2], (char *)"--help", NULL};
        return run(3, swapped);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return SP_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sparda %s (%s, %s, %s, MPI %s, CUDA %s)\n", SPARDA_VERSION, SPARDA_GIT,
               SPARDA_COMPILER, SPARDA_BUILD_TYPE, SPARDA_HAVE_MPI ? "yes" : "no",
               SPARDA_HAVE_CUDA ? "yes" : "no");
        return SP_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    return sp_error(SP_BAD_INPUT, "unknown command '%s'; 'sparda --help' lists them", argv[1]);
}

// Results on stdout that did not get there are no success.
static sp_status flush_output(void) {
    bool failed = ferror(stdout);
    if (fflush(stdout) == 0 && !failed) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "cannot write to standard output: %s", strerror(errno));
}

// Threads that wait for others must sleep: when they spin, a machine that is busy with other
// programs makes us many times slower (docs/notes/cpu-speed.md). The OpenMP library reads its
// policy before main, so the program starts itself once more with it set. A user's own choice
// stays.
static void wait_asleep(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    char self[PATH_MAX] = ""; // by its own name, which ps and the kernel's messages show
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv(self, argv);
    // Not possible (no /proc): the same results, only slower on a busy machine.
}

int main(int argc, char **argv) {
    wait_asleep(argv);
    signal(SIGXFSZ, SIG_IGN); // a file-size limit is then an error of write(), with a message
    sp_status st = run(argc, argv);
    if (st == SP_OK) st = flush_output();
    if (st != SP_OK && st != SP_CHECK_FAILED && sp_ranks_reports()) {
        sp_progress("%s", "");
        fprintf(stderr, "sparda: error: %s\n", sp_error_text());
        // A fault of ours or of the machine is easier to find with its path through the program.
        if (st == SP_ENVIRONMENT) fputs(sp_error_trace(), stderr);
    }
    sp_log_close();
    if (st == SP_BAD_INPUT || st == SP_ENVIRONMENT) sp_ranks_abort((int)st);
    sp_ranks_close();
    return (int)st;
}
