// `sparda export` and `sparda info`: their arguments.
#include "checkpoints/checkpoints.h"
#include "common/arguments.h"
#include "common/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char export_help[] =
    "sparda export CHECKPOINT --out DIR [--format safetensors,pt] [--merge BASE_DIR] [--base DIR]\n"
    "              [--no-parity] [--force] [--validate]\n\n"
    "Writes an inference-ready Forecast from a training state: a checkpoint file of sparda train,\n"
    "or a run folder (its newest checkpoint).\n\n"
    "  --out DIR         destination; must be absent or empty\n"
    "  --format LIST     safetensors, pt, or both separated by a comma (default both)\n"
    "  --merge BASE_DIR  DIR receives the base model's files (hard links where possible, bytes\n"
    "                    unchanged) and the Forecast in its sub-folder sparda/\n"
    "  --base DIR        where the base model is now, if not where it was in training\n"
    "  --no-parity       without parity.safetensors, which needs the base model\n"
    "  --force           DIR may hold files; those of an earlier export, merged or not as this "
    "one,\n"
    "                    are replaced\n"
    "  --validate        run the checks of sparda validate on the result; the report goes to "
    "DIR\n\n"
    "Files: forecast.safetensors, forecast.pt, sparda_config.json, parity.safetensors.\n"
    "Exit status: 0 done; 1 the export is written but a check failed; 2 wrong input;\n"
    "3 failed environment.\n";

static const char info_help[] =
    "sparda info PATH [PATH ...]\n\n"
    "Describes any file or folder that the program reads: training state, safetensors, torch .pt,\n"
    "token shards, MDS data, model folder, run folder, export folder.\n";

static sp_status parse_export(int argc, char **argv, sp_export_args *a, const char **checkpoint) {
    static const char *const formats[] = {"safetensors", "pt"};
    bool chosen[2] = {true, true};
    sp_names names = {formats, chosen, 2};
    sp_words words = {checkpoint, 0, 1};
    sp_problems p = {0};
    const sp_argument options[] = {
        {"--out", .text = &a->out_dir},         {"--format", .names = &names},
        {"--merge", .text = &a->merge_base},    {"--base", .text = &a->base},
        {"--no-parity", .flag = &a->no_parity}, {"--force", .flag = &a->force},
        {"--validate", .flag = &a->validate},   {0}};
    sp_arguments_read(argc, argv, options, &words, &p);
    if (words.n == 0) sp_problems_add(&p, "no checkpoint is given");
    if (!a->out_dir) sp_problems_add(&p, "no destination is given: --out DIR");
    a->safetensors = chosen[0];
    a->pt = chosen[1];
    return sp_problems_end(&p, SP_BAD_INPUT, "sparda export (see --help)");
}

sp_status sp_export_command(int argc, char **argv) {
    if (sp_arguments_help(argc, argv)) {
        fputs(export_help, stdout);
        return SP_OK;
    }
    sp_export_args a = {0};
    const char *checkpoint = NULL;
    SP_TRY(parse_export(argc, argv, &a, &checkpoint));
    return sp_export(checkpoint, &a);
}

sp_status sp_info_command(int argc, char **argv) {
    if (sp_arguments_help(argc, argv)) {
        fputs(info_help, stdout);
        return SP_OK;
    }
    sp_words paths = {NULL, 0, argc};
    sp_problems p = {0};
    SP_TRY(sp_alloc(&paths.at, argc, sizeof *paths.at, "paths"));
    sp_arguments_read(argc, argv, &(sp_argument){0}, &paths, &p);
    if (paths.n == 0) sp_problems_add(&p, "a path is missing");
    sp_status st = sp_problems_end(&p, SP_BAD_INPUT, "sparda info (see --help)");
    for (int i = 0; i < paths.n && st == SP_OK; i++) {
        char *text = NULL;
        st = sp_info_text(paths.at[i], &text);
        if (text) printf("%s%s", i ? "\n" : "", text);
        free(text);
    }
    free(paths.at);
    return st;
}
