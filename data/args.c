#include "data/args.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool parse_value(const sp_data_argument *a, const char *text) {
    char *end = NULL;
    errno = 0;
    switch (a->kind) {
    case SP_ARG_TEXT:
        *(const char **)a->to = text;
        return text[0] != 0;
    case SP_ARG_COUNT:
        *(int64_t *)a->to = strtoll(text, &end, 10);
        break;
    case SP_ARG_SEED:
        *(uint64_t *)a->to = strtoull(text, &end, 10);
        if (text[0] == '-') return false;
        break;
    case SP_ARG_REAL:
        *(double *)a->to = strtod(text, &end);
        if (!isfinite(*(double *)a->to)) return false;
        break;
    case SP_ARG_FLAG:
        return false;
    }
    return errno == 0 && end != text && *end == 0 && strchr(" \t\n", text[0]) == NULL;
}

sp_status sp_arguments_parse(const char *command, int argc, char **argv,
                             const sp_data_argument *list, sp_operands *rest) {
    static const char *const kinds[] = {"a path or name", "a whole number", "a whole number >= 0",
                                        "a number", "no value"};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            if (!rest || rest->n == rest->most)
                return sp_error(SP_BAD_INPUT,
                                "sparda data %s: unexpected argument '%s'; see 'sparda "
                                "data %s --help'",
                                command, argv[i], command);
            rest->at[rest->n++] = argv[i];
            continue;
        }
        size_t n = strcspn(argv[i], "=");
        const sp_data_argument *a = list;
        while (a->name && (strlen(a->name) != n || strncmp(a->name, argv[i], n) != 0)) a++;
        if (!a->name)
            return sp_error(SP_BAD_INPUT,
                            "sparda data %s: unknown option '%s'; see 'sparda data %s --help'",
                            command, argv[i], command);
        if (a->kind == SP_ARG_FLAG && argv[i][n] == 0) {
            *(bool *)a->to = true;
            continue;
        }
        const char *value = argv[i][n] ? argv[i] + n + 1 : i + 1 < argc ? argv[++i] : "";
        if (!parse_value(a, value))
            return sp_error(SP_BAD_INPUT, "sparda data %s: %s takes %s, found '%s'", command,
                            a->name, kinds[a->kind], value);
    }
    return SP_OK;
}
