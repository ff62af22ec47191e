#include "common/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool whole(const char *s, int64_t least, int64_t *out, const char **end_of) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || v < least || v > (long long)1 << 40) return false;
    *out = v;
    *end_of = end;
    return true;
}

static bool whole_list(const char *s, int64_t least, sp_number_list *out) {
    out->n = 0;
    while (out->n < SP_ARGUMENT_LIST && whole(s, least, &out->value[out->n], &s)) {
        out->n++;
        if (!*s) return true;
        if (*s++ != ',') return false;
    }
    return false;
}

static void take(const sp_argument *a, const char *value, sp_problems *p) {
    const char *end = "";
    if (a->text) {
        *a->text = value;
    } else if (a->number) {
        if (!whole(value, a->least, a->number, &end) || *end)
            sp_problems_add(p, "%s: a whole number from %lld is expected, not '%s'", a->name,
                            (long long)a->least, value);
    } else if (a->list) {
        if (!whole_list(value, a->least, a->list))
            sp_problems_add(
                p, "%s: up to %d whole numbers from %lld are expected, such as 4,8, not '%s'",
                a->name, SP_ARGUMENT_LIST, (long long)a->least, value);
    } else {
        char *stop;
        double x = strtod(value, &stop);
        if (stop == value || *stop || !isfinite(x))
            sp_problems_add(p, "%s: a number is expected, not '%s'", a->name, value);
        else
            *a->real = x;
    }
}

void sp_parse_arguments(int argc, char **argv, const sp_argument *table, int n, const char **what,
                        bool *help, sp_problems *p) {
    *what = NULL;
    *help = false;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *help = true;
            return;
        }
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            if (*what) sp_problems_add(p, "two things to measure: %s and %s", *what, argv[i]);
            *what = argv[i];
            continue;
        }
        int o = 0;
        size_t length = 0;
        for (; o < n; o++) {
            length = strlen(table[o].name);
            char after = strncmp(argv[i], table[o].name, length) == 0 ? argv[i][length] : 'x';
            if (after == 0 || after == '=') break;
        }
        if (o == n) {
            sp_problems_add(p, "unknown option %s", argv[i]);
            continue;
        }
        const char *value = argv[i][length] == '=' ? argv[i] + length + 1
                            : i + 1 < argc         ? argv[++i]
                                                   : NULL;
        if (!value || !*value)
            sp_problems_add(p, "%s needs a value", table[o].name);
        else
            take(&table[o], value, p);
    }
}
