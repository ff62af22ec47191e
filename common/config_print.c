// Writing configurations: the resolved form, the reference with every key explained, the help
// lines, and the comparison on resume. All from the table of options.
#include "common/config.h"
#include "common/config_table.h"
#include "common/util.h"

#include <stdlib.h>
#include <string.h>

static const void *member(const sp_config *c, const sp_option *o) {
    return (const char *)c + o->offset;
}

// ---- values as YAML -----------------------------------------------------------------------------

// The shortest decimal form that reads back as the same double.
static void add_double(sp_text *t, double v) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    sp_text_add(t, "%s", text);
}

// Without quotes only what every YAML reader takes for a text.
static void add_quoted(sp_text *t, const char *s) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.-";
    static const char *const words[] = {"true", "false", "null", "yes", "no",
                                        "on",   "off",   "y",    "n"};
    bool simple = s[0] && strchr(plain, s[0]) && !strchr("0123456789.-", s[0]) &&
                  strspn(s, plain) == strlen(s);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(s, words[i]) == 0) simple = false;
    if (simple) {
        sp_text_add(t, "%s", s);
        return;
    }
    sp_text_add(t, "\"");
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\')
            sp_text_add(t, "\\%c", ch);
        else if (ch < 32 || ch == 127)
            sp_text_add(t, "\\x%02x", ch);
        else
            sp_text_bytes(t, s, 1);
    }
    sp_text_add(t, "\"");
}

static void add_word(sp_text *t, const char *choices, int i) {
    int len;
    const char *word = sp_choice(choices, i, &len);
    sp_text_add(t, "%.*s", len, word ? word : "");
}

// Entries in flow form, or as the lines of a block.
static void add_data(sp_text *t, const sp_data_list *d, bool block) {
    for (int64_t i = 0; i < d->n; i++) {
        sp_text_add(t, "%s{path: ", block ? "\n  - " : i ? ", " : "");
        add_quoted(t, d->entry[i].path);
        if (d->entry[i].proportion > 0) {
            sp_text_add(t, ", proportion: ");
            add_double(t, d->entry[i].proportion);
        }
        sp_text_add(t, "}");
    }
}

// The value on one line.
static void add_value(sp_text *t, const sp_config *c, const sp_option *o) {
    const void *at = member(c, o);
    switch (o->type) {
    case SP_OPT_INT:
        sp_text_add(t, "%lld", (long long)*(const int64_t *)at);
        break;
    case SP_OPT_MAYBE: {
        const sp_int_option *v = at;
        if (v->given)
            sp_text_add(t, "%lld", (long long)v->value);
        else
            sp_text_add(t, "null");
        break;
    }
    case SP_OPT_NUMBER:
        add_double(t, *(const double *)at);
        break;
    case SP_OPT_BOOL:
        sp_text_add(t, "%s", *(const bool *)at ? "true" : "false");
        break;
    case SP_OPT_CHOICE:
        add_word(t, o->choices, *(const int *)at);
        break;
    case SP_OPT_WORD:
    case SP_OPT_TEXT:
    case SP_OPT_PATH: {
        const char *s = *(char *const *)at;
        if (s)
            add_quoted(t, s);
        else
            sp_text_add(t, "null");
        break;
    }
    case SP_OPT_DATA:
        sp_text_add(t, "[");
        add_data(t, at, false);
        sp_text_add(t, "]");
        break;
    case SP_OPT_INT_LIST: {
        const sp_int_list *v = at;
        sp_text_add(t, "[");
        for (int64_t i = 0; i < v->n; i++)
            sp_text_add(t, "%s%lld", i ? ", " : "", (long long)v->value[i]);
        sp_text_add(t, "]");
        break;
    }
    case SP_OPT_SET: {
        bool any = false;
        sp_text_add(t, "[");
        for (int i = 0; i < 32; i++)
            if (*(const unsigned *)at & 1u << i) {
                sp_text_add(t, "%s", any ? ", " : "");
                add_word(t, o->choices, i);
                any = true;
            }
        sp_text_add(t, "]");
        break;
    }
    }
}

// ---- whole texts --------------------------------------------------------------------------------

static sp_status hand_over(sp_text *t, char **text) {
    if (t->failed) return sp_error(SP_ENVIRONMENT, "out of memory for a configuration text");
    *text = t->data;
    return SP_OK;
}

// Opens the mapping of row `i`'s key if it begins there. Gives the key's last part and indent.
static const char *open_group(sp_text *t, int i, const char **indent) {
    const char *key = sp_options[i].key, *dot = strchr(key, '.');
    *indent = dot ? "  " : "";
    if (!dot) return key;
    size_t n = (size_t)(dot - key) + 1;
    if (i == 0 || strncmp(key, sp_options[i - 1].key, n) != 0)
        sp_text_add(t, "%.*s:\n", (int)n - 1, key);
    return dot + 1;
}

sp_status sp_config_print(const sp_config *c, bool sources, char **text) {
    sp_text t = {0};
    for (int i = 0; i < sp_option_count; i++) {
        const sp_option *o = &sp_options[i];
        const sp_data_list *d = o->type == SP_OPT_DATA ? member(c, o) : NULL;
        const char *indent, *key = open_group(&t, i, &indent);
        sp_text_add(&t, "%s%s:", indent, key);
        if (!d || d->n == 0) {
            sp_text_add(&t, " ");
            add_value(&t, c, o);
        }
        if (sources) {
            sp_text_add(&t, "  # ");
            for (const char *p = c->source[i] ? c->source[i] : "default"; *p; p++)
                sp_text_bytes(&t, (unsigned char)*p < 32 ? "?" : p, 1);
        }
        if (d && d->n > 0) add_data(&t, d, true);
        sp_text_add(&t, "\n");
    }
    return hand_over(&t, text);
}

// "integer, 1 to 65536, tokens"
static void add_type(sp_text *t, const sp_option *o) {
    switch (o->type) {
    case SP_OPT_INT:
    case SP_OPT_MAYBE:
        sp_text_add(t, "integer, %lld to %lld", (long long)o->least, (long long)o->most);
        break;
    case SP_OPT_NUMBER:
        sp_text_add(t, "number, %g to %g", o->min, o->max);
        break;
    case SP_OPT_BOOL:
        sp_text_add(t, "true or false");
        break;
    case SP_OPT_TEXT:
        sp_text_add(t, "text");
        break;
    case SP_OPT_PATH:
        sp_text_add(t, "path");
        break;
    case SP_OPT_DATA:
        sp_text_add(t, "list of {path, proportion}");
        break;
    case SP_OPT_INT_LIST:
        sp_text_add(t, "list of integers, %lld to %lld", (long long)o->least, (long long)o->most);
        break;
    case SP_OPT_CHOICE:
    case SP_OPT_WORD:
    case SP_OPT_SET: {
        const char *word;
        int len;
        sp_text_add(t, o->type == SP_OPT_SET ? "list of " : "");
        for (int i = 0; (word = sp_choice(o->choices, i, &len)); i++)
            sp_text_add(t, "%s%.*s", i ? " or " : "", len, word);
        break;
    }
    }
    if (o->unit[0]) sp_text_add(t, ", %s", o->unit);
}

// `help` in comment lines of at most 98 columns.
static void add_comment(sp_text *t, const char *indent, const char *help) {
    const int width = 96 - (int)strlen(indent);
    while (*help) {
        int n = (int)strlen(help);
        if (n > width)
            for (n = width; n > 1 && help[n] != ' '; n--) {
            }
        sp_text_add(t, "%s# %.*s\n", indent, n, help);
        help += n;
        help += strspn(help, " ");
    }
}

sp_status sp_config_reference(char **text) {
    sp_text t = {0};
    sp_text_add(&t,
                "# Every key of a configuration with its default. Made from the table of options\n"
                "# (common/config_table.c) by `sparda train --reference`; do not edit.\n"
                "#\n"
                "# Relative paths start at the folder of the configuration file, with --set at "
                "the\n"
                "# working directory. `null` means not given.\n");
    for (int i = 0; i < sp_option_count; i++) {
        const sp_option *o = &sp_options[i];
        sp_text_add(&t, "\n");
        const char *indent, *key = open_group(&t, i, &indent);
        add_comment(&t, indent, o->help);
        sp_text_add(&t, "%s# (", indent);
        add_type(&t, o);
        sp_text_add(&t, ")\n%s%s: %s\n", indent, key, o->fallback);
    }
    return hand_over(&t, text);
}

sp_status sp_config_help(char **text) {
    sp_text t = {0};
    for (int i = 0; i < sp_option_count; i++) {
        const sp_option *o = &sp_options[i];
        sp_text_add(&t, "  %-28s %s (", o->key, o->help);
        add_type(&t, o);
        if (strcmp(o->fallback, "null") != 0) sp_text_add(&t, "; default %s", o->fallback);
        sp_text_add(&t, ")\n");
    }
    return hand_over(&t, text);
}

static bool same_proportions(const sp_data_list *a, const sp_data_list *b) {
    bool same = a->n == b->n;
    for (int64_t i = 0; same && i < a->n; i++)
        same = a->entry[i].proportion == b->entry[i].proportion;
    return same;
}

void sp_config_compare(const sp_config *saved, const sp_config *now, sp_problems *problems,
                       sp_text *changes) {
    for (int i = 0; i < sp_option_count; i++) {
        const sp_option *o = &sp_options[i];
        bool moved = o->type == SP_OPT_DATA && same_proportions(member(saved, o), member(now, o));
        bool free_to = o->may_change || moved || strcmp(o->key, "steps") == 0;
        sp_text a = {0}, b = {0};
        add_value(&a, saved, o);
        add_value(&b, now, o);
        const char *old = a.data ? a.data : "?", *new = b.data ? b.data : "?";
        if (a.failed || b.failed || strcmp(old, new) != 0) {
            if (!free_to)
                sp_problems_add(problems, "%s: %s -> %s", o->key, old, new);
            else if (changes)
                sp_text_add(changes, "%s: %s -> %s\n", o->key, old, new);
        }
        sp_text_free(&a);
        sp_text_free(&b);
    }
}
