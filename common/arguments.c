#include "common/arguments.h"

#include "common/util.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE_MOST = 64 };

static int64_t most_of(const sp_argument *a) {
    return a->most ? a->most : (int64_t)1 << 40;
}

// The number that `s` begins with; *end is what follows it.
static bool whole(const char *s, const sp_argument *a, int64_t *out, const char **end) {
    char *stop;
    if (!strchr("-0123456789", *s)) return false; // strtoll passes over blanks, and takes "+"
    errno = 0;
    long long v = strtoll(s, &stop, 10);
    *end = stop;
    if (errno || stop == s || v < a->least || v > most_of(a)) return false;
    *out = v;
    return true;
}

static bool whole_list(const char *s, const sp_argument *a) {
    sp_number_list *out = a->list;
    out->n = 0;
    while (out->n < SP_ARGUMENT_LIST && whole(s, a, &out->value[out->n], &s)) {
        out->n++;
        if (!*s) return true;
        if (*s++ != ',') return false;
    }
    return false;
}

static void take_names(const sp_argument *a, const char *value, sp_problems *p) {
    const sp_names *names = a->names;
    memset(names->chosen, 0, (size_t)names->n * sizeof *names->chosen);
    for (const char *s = value;; s++) {
        size_t length = strcspn(s, ",");
        int i = 0;
        while (i < names->n &&
               (strlen(names->known[i]) != length || strncmp(s, names->known[i], length) != 0))
            i++;
        if (i < names->n) {
            names->chosen[i] = true;
        } else {
            sp_text known = {0};
            for (int k = 0; k < names->n; k++)
                sp_text_add(&known, "%s%s", k ? ", " : "", names->known[k]);
            sp_problems_add(p, "%s: '%.*s' is none of %s", a->name, (int)length, s,
                            known.data ? known.data : "them");
            free(known.data);
        }
        s += length;
        if (!*s) return;
    }
}

static void take(const sp_argument *a, const char *value, sp_problems *p) {
    const char *end = "";
    char *stop;
    long long least = a->least, most = most_of(a);
    if (a->text) {
        *a->text = value;
    } else if (a->words) {
        if (a->words->n == a->words->most)
            sp_problems_add(p, "%s: at most %d of them", a->name, a->words->most);
        else
            a->words->at[a->words->n++] = value;
    } else if (a->number) {
        if (!whole(value, a, a->number, &end) || *end)
            sp_problems_add(p, "%s: a whole number from %lld to %lld is expected, not '%s'",
                            a->name, least, most, value);
    } else if (a->list) {
        if (!whole_list(value, a))
            sp_problems_add(p,
                            "%s: up to %d whole numbers from %lld to %lld are expected, such as "
                            "4,8, not '%s'",
                            a->name, SP_ARGUMENT_LIST, least, most, value);
    } else if (a->names) {
        take_names(a, value, p);
    } else if (a->seed) {
        errno = 0;
        *a->seed = strtoull(value, &stop, 10);
        if (errno || *stop || !strchr("0123456789", *value)) // strtoull negates
            sp_problems_add(p, "%s: a whole number from 0 is expected, not '%s'", a->name, value);
    } else {
        double x = strtod(value, &stop);
        if (stop == value || *stop || !isfinite(x) || !strchr("-.0123456789", *value))
            sp_problems_add(p, "%s: a number is expected, not '%s'", a->name, value);
        else
            *a->real = x;
    }
}

bool sp_arguments_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

// The option that `word` names; a value after "=" follows its name.
static const sp_argument *find(const sp_argument *table, const char *word) {
    for (const sp_argument *a = table; a->name; a++) {
        size_t n = strlen(a->name);
        if (strncmp(word, a->name, n) == 0 && (word[n] == 0 || word[n] == '=')) return a;
    }
    return NULL;
}

void sp_arguments_read(int argc, char **argv, const sp_argument *table, sp_words *rest,
                       sp_problems *p) {
    bool given[TABLE_MOST] = {false}, skip = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || !word[1]) {
            if (!word[0])
                sp_problems_add(p, "an argument is empty");
            else if (rest && rest->n < rest->most)
                rest->at[rest->n++] = word;
            else if (!skip)
                sp_problems_add(p, "unexpected argument '%s'", word);
            skip = false;
            continue;
        }
        skip = false;
        const sp_argument *a = find(table, word);
        if (!a || a - table >= TABLE_MOST) {
            sp_problems_add(p, "unknown option '%s'", word);
            skip = !strchr(word, '='); // what follows may be its value: one fault, not two
            continue;
        }
        const char *value = word + strlen(a->name);
        value = *value ? value + 1 : NULL;
        if (!a->flag && !value && i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0)
            value = argv[++i];
        bool again = given[a - table] && !a->words && !a->flag;
        given[a - table] = true;
        if (again)
            sp_problems_add(p, "%s is given twice", a->name);
        else if (a->flag && value)
            sp_problems_add(p, "%s takes no value, found '%s'", a->name, value);
        else if (a->flag)
            *a->flag = true;
        else if (!value || !*value)
            sp_problems_add(p, "%s needs a value", a->name);
        else
            take(a, value, p);
    }
}
