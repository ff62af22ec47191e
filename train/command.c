// sparda train: arguments, help, and the order of a run's phases.
#include "train/train.h"

#include "common/arguments.h"
#include "common/log.h"
#include "common/util.h"
#include "train/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "sparda train CONFIG.yaml [--set key=value ...] [--out DIR] [--resume[=auto] | --force]\n"
    "             [--dry-run] [--print-config]\n"
    "sparda train --reference\n"
    "\n"
    "  --set key=value  overrides the file; repeatable; sparse_config.topk=64 for nested keys\n"
    "  --out DIR        run folder; default runs/<name>-<time>. It must be absent or empty "
    "unless:\n"
    "  --resume         continue from the newest complete checkpoint in it; none is an error. A "
    "run\n"
    "                   that is finished does what after_training asks for and is not done yet\n"
    "  --resume=auto    the same, but none is a fresh start (for requeue scripts)\n"
    "  --force          start anew in it; what an earlier run left is moved to old-N/ there\n"
    "  --dry-run        check everything and print the run header; write nothing\n"
    "  --print-config   print the resolved configuration as YAML on stdout\n"
    "  --reference      print every key with its meaning, type, range and default on stdout\n"
    "\n"
    "SIGTERM, SIGINT or SIGUSR1: finish the step, save, end with status 0. A second one: end at "
    "once.\n"
    "Several ranks: mpirun -n 4 sparda train ..., or srun. The configuration's keys:\n\n";

typedef struct arguments {
    sp_train_args train;
    bool print_config, reference, help;
} arguments;

// ---- command line -------------------------------------------------------------------------------

static void quote(sp_text *t, const char *word) {
    bool plain = word[0] != 0;
    for (const char *c = word; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%", *c))
            plain = false;
    if (plain) {
        sp_text_add(t, "%s", word);
        return;
    }
    sp_text_add(t, "'");
    for (const char *c = word; *c; c++) sp_text_add(t, *c == '\'' ? "'\\''" : "%c", *c);
    sp_text_add(t, "'");
}

// What starts this run again, but for --out and --resume.
static char *command_text(const sp_train_args *a) {
    sp_text t = {0};
    quote(&t, program_invocation_name); // as this run was called: it can be pasted
    sp_text_add(&t, " train");
    if (a->config_file) {
        sp_text_add(&t, " ");
        quote(&t, a->config_file);
    }
    for (int i = 0; i < a->n_sets; i++) {
        sp_text_add(&t, " --set ");
        quote(&t, a->sets[i]);
    }
    return t.data;
}

static sp_status parse(int argc, char **argv, arguments *out) {
    sp_train_args *a = &out->train;
    sp_problems p = {0};
    bool resume = false, resume_auto = false, force = false;
    const char *config[1];
    sp_words configs = {config, 0, 1}, sets = {NULL, 0, argc};
    SP_TRY(sp_alloc(&a->sets, argc, sizeof *a->sets, "arguments"));
    sets.at = a->sets;
    const sp_argument options[] = {{"--set", .words = &sets},
                                   {"--out", .text = &a->out},
                                   {"--resume=auto", .flag = &resume_auto},
                                   {"--resume", .flag = &resume},
                                   {"--force", .flag = &force},
                                   {"--dry-run", .flag = &a->dry_run},
                                   {"--print-config", .flag = &out->print_config},
                                   {"--reference", .flag = &out->reference},
                                   {0}};
    out->help = sp_arguments_help(argc, argv);
    if (out->help) return SP_OK;
    sp_arguments_read(argc, argv, options, &configs, &p);
    a->config_file = configs.n ? config[0] : NULL;
    a->n_sets = sets.n;
    a->start = resume_auto ? SP_START_RESUME_AUTO
               : resume    ? SP_START_RESUME
               : force     ? SP_START_FORCE
                           : a->start;
    resume |= resume_auto;
    if (resume && force) sp_problems_add(&p, "--resume and --force exclude each other");
    if (resume && !a->out)
        sp_problems_add(&p, "--resume needs --out DIR, the folder of the run to continue");
    bool prints = out->print_config || out->reference;
    // (--print-config may be added to the command line of any run.)
    if (out->reference && argc > 2) sp_problems_add(&p, "--reference stands alone");
    if (!prints && !a->config_file && a->n_sets == 0)
        sp_problems_add(&p, "no configuration; for example: sparda train configs/tiny.yaml");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda train (see --help)"));
    a->command = command_text(a);
    return a->command ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
}

// ---- commands that print ------------------------------------------------------------------------

static sp_status print_help(void) {
    char *text = NULL;
    SP_TRY(sp_config_help(&text));
    printf("%s%s", usage, text);
    free(text);
    return SP_OK;
}

static sp_status print_reference(void) {
    char *text = NULL;
    SP_TRY(sp_config_reference(&text));
    fputs(text, stdout);
    free(text);
    return SP_OK;
}

static sp_status print_config(const sp_train_args *a) {
    sp_config *c = NULL;
    char *text = NULL;
    SP_TRY(sp_config_load(a->config_file, a->sets, a->n_sets, &c));
    sp_status st = sp_config_print(c, true, &text);
    if (st == SP_OK) fputs(text, stdout);
    free(text);
    sp_config_free(c);
    return st;
}

// ---- run ----------------------------------------------------------------------------------------

static sp_status train(sp_trainer *t, const sp_train_args *a) {
    SP_TRY(sp_trainer_plan(t, a));
    if (a->dry_run) {
        sp_trainer_header(t);
        sp_info("dry run: everything but the weights was checked; nothing was written");
        return SP_OK;
    }
    if (t->was_finished) {
        sp_info("%s holds a finished run (%lld steps); nothing to do", t->folder.dir,
                (long long)t->at.step);
        return SP_OK;
    }
    SP_TRY(sp_trainer_start(t));
    SP_TRY(sp_trainer_loop(t));
    return sp_trainer_finish(t);
}

sp_status sp_train_command(int argc, char **argv) {
    const sp_ranks *ranks;
    arguments a = {0};
    SP_TRY(sp_ranks_open(&ranks));
    SP_TRY(sp_log_open(ranks->rank, NULL, false));
    sp_status st = sp_ranks_agree(parse(argc, argv, &a));
    if (st == SP_OK && (a.help || a.print_config || a.reference)) {
        if (ranks->rank == 0)
            st = a.help ? print_help() : a.reference ? print_reference() : print_config(&a.train);
        st = sp_ranks_agree(st);
    } else if (st == SP_OK) {
        sp_trainer *t = NULL; // large and long-lived
        st = sp_alloc(&t, 1, sizeof *t, "the trainer");
        if (st == SP_OK) {
            st = train(t, &a.train);
            sp_trainer_close(t, st);
        }
        free(t);
    }
    free(a.train.command);
    free(a.train.sets);
    return st;
}
