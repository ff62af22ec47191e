// `sparda export` and `sparda info`: their arguments.
#include "checkpoints/checkpoints.h"
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
    "  --force           DIR may hold files; those of an earlier export are replaced\n"
    "  --validate        run the checks of sparda validate on the result; the report goes to "
    "DIR\n\n"
    "Files: forecast.safetensors, forecast.pt, sparda_config.json, parity.safetensors.\n"
    "Exit status: 0 done; 1 the export is written but a check failed; 2 wrong input;\n"
    "3 failed environment.\n";

static const char info_help[] =
    "sparda info PATH [PATH ...]\n\n"
    "Describes any file or folder that the program reads: training state, safetensors, torch .pt,\n"
    "token shards, MDS data, model folder, run folder, export folder.\n";

// "--name value" or "--name=value" at argv[*i]; `is` tells whether it was this option.
static sp_status option(int argc, char **argv, int *i, const char *name, const char **value,
                        bool *is) {
    size_t n = strlen(name);
    *is = strncmp(argv[*i], name, n) == 0 && (argv[*i][n] == 0 || argv[*i][n] == '=');
    if (!*is) return SP_OK;
    const char *found = argv[*i][n] ? argv[*i] + n + 1 : *i + 1 < argc ? argv[++*i] : "";
    if (!*found)
        return sp_error(SP_BAD_INPUT, "%s needs a value; see 'sparda export --help'", name);
    if (*value) return sp_error(SP_BAD_INPUT, "%s is given twice", name);
    *value = found;
    return SP_OK;
}

static sp_status parse_formats(const char *list, sp_export_args *a) {
    a->safetensors = a->pt = !list;
    for (const char *p = list; p; p = *p ? p + 1 : NULL) {
        size_t n = strcspn(p, ",");
        bool *format = n == 11 && strncmp(p, "safetensors", n) == 0 ? &a->safetensors
                       : n == 2 && strncmp(p, "pt", n) == 0         ? &a->pt
                                                                    : NULL;
        if (!format)
            return sp_error(SP_BAD_INPUT, "--format %s: '%.*s' is not safetensors or pt", list,
                            (int)n, p);
        *format = true;
        p += n;
        if (*p && !p[1]) return sp_error(SP_BAD_INPUT, "--format %s ends in a comma", list);
        if (!*p) break;
    }
    return SP_OK;
}

static sp_status parse_export(int argc, char **argv, sp_export_args *a, const char **checkpoint) {
    const char *formats = NULL;
    struct {
        const char *name;
        const char **value;
    } texts[] = {{"--out", &a->out_dir},
                 {"--format", &formats},
                 {"--merge", &a->merge_base},
                 {"--base", &a->base}};
    struct {
        const char *name;
        bool *value;
    } flags[] = {
        {"--no-parity", &a->no_parity}, {"--force", &a->force}, {"--validate", &a->validate}};
    for (int i = 1; i < argc; i++) {
        bool is = false;
        for (size_t k = 0; k < sizeof texts / sizeof texts[0] && !is; k++)
            SP_TRY(option(argc, argv, &i, texts[k].name, texts[k].value, &is));
        for (size_t k = 0; k < sizeof flags / sizeof flags[0] && !is; k++)
            if (strcmp(argv[i], flags[k].name) == 0) is = *flags[k].value = true;
        if (is) continue;
        if (argv[i][0] == '-')
            return sp_error(SP_BAD_INPUT, "unknown option '%s'; see 'sparda export --help'",
                            argv[i]);
        if (*checkpoint)
            return sp_error(SP_BAD_INPUT, "unexpected argument '%s'; one checkpoint at a time",
                            argv[i]);
        *checkpoint = argv[i];
    }
    if (!*checkpoint)
        return sp_error(SP_BAD_INPUT, "no checkpoint given; see 'sparda export --help'");
    if (!a->out_dir)
        return sp_error(SP_BAD_INPUT,
                        "no destination given: --out DIR; see 'sparda export --help'");
    return parse_formats(formats, a);
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

sp_status sp_export_command(int argc, char **argv) {
    if (wants_help(argc, argv)) {
        fputs(export_help, stdout);
        return SP_OK;
    }
    sp_export_args a = {0};
    const char *checkpoint = NULL;
    SP_TRY(parse_export(argc, argv, &a, &checkpoint));
    return sp_export(checkpoint, &a);
}

sp_status sp_info_command(int argc, char **argv) {
    if (wants_help(argc, argv)) {
        fputs(info_help, stdout);
        return SP_OK;
    }
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-' && argv[i][1])
            return sp_error(SP_BAD_INPUT, "unknown option '%s'; see 'sparda info --help'", argv[i]);
    if (argc < 2) return sp_error(SP_BAD_INPUT, "info wants a path; see 'sparda info --help'");
    for (int i = 1; i < argc; i++) {
        char *text;
        SP_TRY(sp_info_text(argv[i], &text));
        printf("%s%s", i > 1 ? "\n" : "", text);
        free(text);
    }
    return SP_OK;
}
