// `sparda validate`: its arguments.
#include "common/util.h"
#include "validate/validate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(void) {
    fputs(
        "sparda validate --base DIR --forecast FILE_OR_DIR --report DIR [--data PATH] [--strict]\n"
        "                [--set key=value ...]\n\n"
        "Checks an exported Forecast and measures its quality on its base model, from the "
        "exported\n"
        "files. Writes validation_report.json and validation_report.html.\n\n"
        "  --base DIR              folder of the base model (config.json, safetensors)\n"
        "  --forecast FILE_OR_DIR  export folder, or a .safetensors, .pt or .h5 file\n"
        "  --report DIR            where the report goes; reports of an earlier run there are\n"
        "                          removed first\n"
        "  --data PATH             held-out rows (HDF5 shards or an MDS folder); without it a "
        "model\n"
        "                          with the vocabulary of the synthetic corpus uses the corpus, "
        "any\n"
        "                          other skips the quality checks\n"
        "  --strict                a missed soft gate fails, too\n"
        "  --set key=value         configuration, e.g. validate.samples=128,\n"
        "                          validate.lengths='[1024, 2048]', validate.lm_rows=32,\n"
        "                          validate.positions=65536, seed=1,\n"
        "                          backend=cpu, sparse_config.topk=64\n\n"
        "Exit status: 0 passed, perhaps with warnings; 1 a check failed (see the report); 2 wrong\n"
        "input and 3 failed environment, both without a report.\n",
        stdout);
}

// The value of option `name` if argv[*i] is that option ("--name value" or "--name=value").
static sp_status option(int argc, char **argv, int *i, const char *name, const char **value,
                        bool *is) {
    size_t n = strlen(name);
    *is = strncmp(argv[*i], name, n) == 0 && (argv[*i][n] == 0 || argv[*i][n] == '=');
    if (!*is) return SP_OK;
    if (argv[*i][n] == '=')
        *value = argv[*i] + n + 1;
    else if (*i + 1 < argc)
        *value = argv[++*i];
    else
        return sp_error(SP_BAD_INPUT, "%s needs a value; see 'sparda validate --help'", name);
    if (!**value) return sp_error(SP_BAD_INPUT, "%s is empty", name);
    return SP_OK;
}

static sp_status parse(int argc, char **argv, sp_validate_args *a, char **sets, int *n_sets,
                       bool *help) {
    for (int i = 1; i < argc; i++) {
        const struct {
            const char *name;
            const char **value;
        } known[] = {{"--base", &a->base},
                     {"--forecast", &a->forecast},
                     {"--report", &a->report},
                     {"--data", &a->data}};
        bool is = false;
        for (size_t k = 0; k < sizeof known / sizeof *known && !is; k++)
            SP_TRY(option(argc, argv, &i, known[k].name, known[k].value, &is));
        if (is) continue;
        const char *assignment;
        SP_TRY(option(argc, argv, &i, "--set", &assignment, &is));
        if (is) {
            sets[(*n_sets)++] = (char *)assignment;
        } else if (strcmp(argv[i], "--strict") == 0) {
            a->strict = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *help = true;
        } else {
            return sp_error(SP_BAD_INPUT, "unknown argument '%s'; see 'sparda validate --help'",
                            argv[i]);
        }
    }
    return SP_OK;
}

sp_status sp_validate_command(int argc, char **argv) {
    sp_validate_args a = {0};
    sp_config *config = NULL;
    char **sets = NULL;
    int n_sets = 0;
    bool help = false;
    sp_problems missing = {0};
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&sets, argc, sizeof *sets, "a list of settings"));
    SP_GO(parse(argc, argv, &a, sets, &n_sets, &help));
    if (help) {
        print_help();
        goto done;
    }
    if (!a.base) sp_problems_add(&missing, "--base DIR, the folder of the base model");
    if (!a.forecast) sp_problems_add(&missing, "--forecast FILE_OR_DIR, what to validate");
    if (!a.report) sp_problems_add(&missing, "--report DIR, where the report goes");
    SP_GO(sp_problems_end(&missing, SP_BAD_INPUT, "missing (see 'sparda validate --help')"));
    SP_GO(sp_config_load(NULL, sets, n_sets, &config));
    a.config = config;
    st = sp_validate(&a);
done:
    sp_config_free(config);
    free(sets);
    return st;
}
