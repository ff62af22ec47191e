// `sparda validate`: its arguments.
#include "common/arguments.h"
#include "common/config_table.h"
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
        "                          backend=cpu; sparse_config.* where config.json lacks it\n\n"
        "Exit status: 0 passed, perhaps with warnings; 1 a check failed (see the report); 2 wrong\n"
        "input and 3 failed environment, both without a report.\n",
        stdout);
}

// Options of training, which a validation does not read, are refused: `--set data=` is not --data.
static void refuse_others(const sp_config *c, sp_problems *p) {
    static const char *const read[] = {"seed",
                                       "training_kernel_size",
                                       "training_kernel_stride",
                                       "rope_tables",
                                       "backend",
                                       "cpu_blas",
                                       "cuda_kernels",
                                       "transfer",
                                       "threads",
                                       "deterministic",
                                       "sparse_config.",
                                       "validate."};
    for (int i = 0; i < sp_option_count; i++) {
        const char *key = sp_options[i].key;
        bool is_read = !c->source[i];
        for (size_t k = 0; k < sizeof read / sizeof *read && !is_read; k++) {
            size_t n = strlen(read[k]);
            is_read = strncmp(key, read[k], n) == 0 && (key[n] == 0 || read[k][n - 1] == '.');
        }
        if (is_read) continue;
        bool data = strcmp(key, "data") == 0 || strcmp(key, "eval_data") == 0;
        sp_problems_add(p, "--set %s has no effect here%s", key,
                        data                       ? "; held-out rows: --data PATH"
                        : strcmp(key, "base") == 0 ? "; the base model: --base DIR"
                                                   : "");
    }
}

sp_status sp_validate_command(int argc, char **argv) {
    if (sp_arguments_help(argc, argv)) {
        print_help();
        return SP_OK;
    }
    sp_validate_args a = {0};
    sp_data_entry rows = {0};
    const sp_data_list data = {&rows, 1};
    const char *data_path = NULL;
    sp_config *config = NULL;
    sp_words sets = {NULL, 0, argc};
    sp_problems p = {0};
    SP_TRY(sp_alloc(&sets.at, argc, sizeof *sets.at, "a list of settings"));
    const sp_argument options[] = {{"--base", .text = &a.base},
                                   {"--forecast", .text = &a.forecast},
                                   {"--report", .text = &a.report},
                                   {"--data", .text = &data_path},
                                   {"--strict", .flag = &a.strict},
                                   {"--set", .words = &sets},
                                   {0}};
    sp_arguments_read(argc, argv, options, NULL, &p);
    if (!a.base) sp_problems_add(&p, "--base DIR, the folder of the base model, is missing");
    if (!a.forecast) sp_problems_add(&p, "--forecast FILE_OR_DIR, what to validate, is missing");
    if (!a.report) sp_problems_add(&p, "--report DIR, where the report goes, is missing");
    sp_status st = sp_problems_end(&p, SP_BAD_INPUT, "sparda validate (see --help)");
    if (st == SP_OK) st = sp_config_load(NULL, sets.at, sets.n, &config);
    if (st == SP_OK) {
        refuse_others(config, &p);
        st = sp_problems_end(&p, SP_BAD_INPUT, "sparda validate (see --help)");
    }
    a.config = config;
    rows.path = (char *)data_path;
    if (data_path) a.data = &data;
    if (st == SP_OK) st = sp_validate(&a);
    sp_config_free(config);
    free(sets.at);
    return st;
}
