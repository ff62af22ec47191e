// Reading a configuration: YAML nodes into sp_config by way of the table of options. Every fault of
// the input is collected before anything fails.
#include "common/config.h"
#include "common/config_table.h"
#include "common/util.h"
#include "common/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_CONFIG_BYTES = 1 << 24 };

typedef struct loader {
    sp_config *c;
    sp_problems problems;
    const char *origin; // file name or "--set" for messages and as the source of values
    bool has_lines;     // the origin is a text whose lines mean something to the user
    const char *dir;    // absolute; relative paths start here
    int64_t *seen_line; // per table row: where this origin set it, 0 if it did not
} loader;

static void *member(const sp_config *c, const sp_option *o) {
    return (char *)c + o->offset;
}

static sp_status no_memory(void) {
    return sp_error(SP_ENVIRONMENT, "out of memory for options");
}

// ---- problems -----------------------------------------------------------------------------------

static void problem(loader *l, const sp_yaml *y, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void problem(loader *l, const sp_yaml *y, const char *fmt, ...) {
    va_list ap;
    char *what = NULL;
    va_start(ap, fmt);
    if (vasprintf(&what, fmt, ap) < 0) what = NULL;
    va_end(ap);
    if (l->has_lines)
        sp_problems_add(&l->problems, "%s:%lld:%lld: %s", l->origin, (long long)y->line,
                        (long long)y->column, what ? what : "");
    else
        sp_problems_add(&l->problems, "%s: %s", l->origin, what ? what : "");
    free(what);
}

static void problem_expected(loader *l, const sp_yaml *y, const char *key, const char *expected) {
    char *found = sp_yaml_describe(y);
    problem(l, y, "%s: expected %s, found %s", key, expected, found ? found : "something else");
    free(found);
}

// Edit distance with neighbours swapped counting one; gives up beyond 4.
static int edit_distance(const char *a, const char *b) {
    enum { LONGEST = 64 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= LONGEST || m >= LONGEST || n > m + 4 || m > n + 4) return 5;
    int d[LONGEST][LONGEST];
    for (size_t i = 0; i <= n; i++)
        for (size_t j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (int)(i + j);
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

static const char *nearest_key(const char *key) {
    const char *best = NULL;
    int best_distance = strlen(key) > 6 ? 4 : strlen(key) > 3 ? 3 : 2; // exclusive
    for (int i = 0; i < sp_option_count; i++) {
        int d = edit_distance(key, sp_options[i].key);
        const char *last = strrchr(sp_options[i].key, '.');
        int without_group = last ? edit_distance(key, last + 1) : d;
        if (without_group < d) d = without_group;
        if (d < best_distance) {
            best_distance = d;
            best = sp_options[i].key;
        }
    }
    return best;
}

static void problem_unknown(loader *l, const sp_yaml *y, const char *key) {
    const char *near = nearest_key(key);
    if (near)
        problem(l, y, "unknown key '%s'; did you mean '%s'?", key, near);
    else
        problem(l, y, "unknown key '%s'; 'sparda train --help' lists the keys", key);
}

// ---- paths --------------------------------------------------------------------------------------

// `path` from `dir`, without ".", "//" and those ".." that do not follow a symbolic link.
static char *absolute_path(const char *dir, const char *path) {
    char *full = sp_path_join(dir, path), *out = full ? malloc(strlen(full) + 2) : NULL;
    size_t n = 0;
    for (const char *p = full; out && p && *p;) {
        size_t len = strcspn(p, "/");
        if (len == 2 && p[0] == '.' && p[1] == '.') {
            struct stat s;
            out[n] = 0;
            const char *slash = memrchr(out, '/', n);
            bool stays =
                n > 0 && (strcmp(slash, "/..") == 0 || lstat(out, &s) != 0 || !S_ISDIR(s.st_mode));
            if (n == 0 || !stays) {
                n = n ? (size_t)(slash - out) : 0;
                len = 0;
            }
        }
        if (len > 0 && !(len == 1 && p[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, p, len);
            n += len;
        }
        p += strcspn(p, "/");
        p += strspn(p, "/");
    }
    if (out) {
        if (n == 0) out[n++] = '/';
        out[n] = 0;
    }
    free(full);
    return out;
}

// ---- values -------------------------------------------------------------------------------------

static bool plain_scalar(const sp_yaml *y) {
    return y->kind == SP_YAML_SCALAR && !y->quoted && !sp_yaml_is_null(y);
}

static sp_status set_text(loader *l, const sp_yaml *y, const char *key, bool path, char **out) {
    if (y->kind != SP_YAML_SCALAR || sp_yaml_is_null(y)) {
        problem_expected(l, y, key, path ? "a path" : "a text");
        return SP_OK;
    }
    if (path && !y->text[0]) {
        problem(l, y, "%s: the path is empty", key);
        return SP_OK;
    }
    char *text = path ? absolute_path(l->dir, y->text) : sp_strdup(y->text);
    if (!text) return no_memory();
    int64_t at;
    if (sp_is_utf8(text, (int64_t)strlen(text), &at)) {
        *out = text;
    } else {
        problem(l, y, "%s: the path '%s' is not UTF-8", key, text);
        free(text);
    }
    return SP_OK;
}

static bool parse_int(loader *l, const sp_yaml *y, const sp_option *o, int64_t *out) {
    const char *p = plain_scalar(y) ? y->text : "";
    size_t sign = *p == '-' || *p == '+', digits = strspn(p + sign, "0123456789");
    if (digits == 0 || p[sign + digits] || (digits > 1 && p[sign] == '0')) {
        problem_expected(l, y, o->key, "an integer");
        return false;
    }
    errno = 0;
    long long v = strtoll(p, NULL, 10);
    if (errno || v < o->least || v > o->most) {
        problem(l, y, "%s: %s is out of range (%lld to %lld)", o->key, p, (long long)o->least,
                (long long)o->most);
        return false;
    }
    *out = v;
    return true;
}

// Decimal numbers only; strtod alone would also take hexadecimal, inf and nan.
static bool looks_decimal(const char *p) {
    p += *p == '-' || *p == '+';
    size_t whole = strspn(p, "0123456789"), part = 0;
    p += whole;
    if (*p == '.') {
        part = strspn(p + 1, "0123456789");
        p += 1 + part;
    }
    if (whole + part == 0) return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        if (!isdigit((unsigned char)*p)) return false;
        p += strspn(p, "0123456789");
    }
    return !*p;
}

static bool parse_number(loader *l, const sp_yaml *y, const char *key, double min, double max,
                         double *out) {
    if (!plain_scalar(y) || !looks_decimal(y->text)) {
        problem_expected(l, y, key, "a number");
        return false;
    }
    errno = 0;
    double v = strtod(y->text, NULL);
    if (errno || !isfinite(v)) {
        problem(l, y, "%s: %s is too large or too small for a double", key, y->text);
        return false;
    }
    if (v < min || v > max) {
        problem(l, y, "%s: %s is out of range (%g to %g)", key, y->text, min, max);
        return false;
    }
    *out = v;
    return true;
}

// Position of the scalar in the option's choices, or -1 with a problem.
static int parse_choice(loader *l, const sp_yaml *y, const sp_option *o) {
    sp_text expected = {0};
    const char *word;
    int len;
    for (int i = 0; (word = sp_choice(o->choices, i, &len)); i++) {
        if (y->kind == SP_YAML_SCALAR && strlen(y->text) == (size_t)len &&
            memcmp(y->text, word, (size_t)len) == 0) {
            sp_text_free(&expected);
            return i;
        }
        sp_text_add(&expected, "%s%.*s", i ? " or " : "", len, word);
    }
    problem_expected(l, y, o->key, expected.data ? expected.data : o->choices);
    sp_text_free(&expected);
    return -1;
}

// ---- lists --------------------------------------------------------------------------------------

static sp_status read_data_entry(loader *l, const sp_yaml *y, const char *key, sp_data_entry *e,
                                 bool *has_proportion) {
    if (y->kind != SP_YAML_MAP) return set_text(l, y, key, true, &e->path);
    const sp_yaml *path = NULL, *proportion = NULL;
    for (int64_t i = 0; i < y->n; i++) {
        const char *name = y->key[i]->text;
        const sp_yaml **slot = strcmp(name, "path") == 0         ? &path
                               : strcmp(name, "proportion") == 0 ? &proportion
                                                                 : NULL;
        if (!slot)
            problem(l, y->key[i], "%s: unknown key '%s'; an entry has path and proportion", key,
                    name);
        else if (*slot)
            problem(l, y->key[i], "%s: key '%s' is repeated", key, name);
        else
            *slot = y->item[i];
    }
    if (path)
        SP_TRY(set_text(l, path, key, true, &e->path));
    else
        problem(l, y, "%s: an entry without a path", key);
    *has_proportion = proportion != NULL;
    if (proportion && parse_number(l, proportion, key, 0, 1e9, &e->proportion) &&
        e->proportion == 0)
        problem(l, proportion, "%s: a proportion must be above 0; leave the entry out instead",
                key);
    return SP_OK;
}

static sp_status set_data(loader *l, const sp_yaml *y, const sp_option *o, sp_data_list *out) {
    if (y->kind != SP_YAML_LIST) {
        problem_expected(l, y, o->key, "a list, such as [{path: a, proportion: 0.5}] or [a]");
        return SP_OK;
    }
    SP_TRY(sp_alloc(&out->entry, y->n, sizeof *out->entry, o->key));
    out->n = y->n;
    int64_t with = 0, first_without = -1;
    for (int64_t i = 0; i < y->n; i++) {
        bool has = false;
        SP_TRY(read_data_entry(l, y->item[i], o->key, &out->entry[i], &has));
        with += has;
        if (!has && first_without < 0) first_without = i;
    }
    if (with > 0 && with < y->n)
        problem(l, y->item[first_without],
                "%s: this entry has no proportion but others have; give all or none", o->key);
    return SP_OK;
}

static sp_status set_int_list(loader *l, const sp_yaml *y, const sp_option *o, sp_int_list *out) {
    if (y->kind != SP_YAML_LIST) {
        problem_expected(l, y, o->key, "a list of integers");
        return SP_OK;
    }
    SP_TRY(sp_alloc(&out->value, y->n, sizeof *out->value, o->key));
    out->n = y->n;
    for (int64_t i = 0; i < y->n; i++) parse_int(l, y->item[i], o, &out->value[i]);
    return SP_OK;
}

static void set_words(loader *l, const sp_yaml *y, const sp_option *o, unsigned *out) {
    if (y->kind != SP_YAML_LIST) {
        problem_expected(l, y, o->key, "a list");
        return;
    }
    for (int64_t i = 0; i < y->n; i++) {
        int word = parse_choice(l, y->item[i], o);
        if (word >= 0 && *out & 1u << word)
            problem(l, y->item[i], "%s: '%s' is repeated", o->key, y->item[i]->text);
        if (word >= 0) *out |= 1u << word;
    }
}

// ---- options ------------------------------------------------------------------------------------

// Back to "nothing", freeing what the value owned.
static void clear_value(sp_config *c, const sp_option *o) {
    void *at = member(c, o);
    switch (o->type) {
    case SP_OPT_INT:
        *(int64_t *)at = 0;
        break;
    case SP_OPT_MAYBE:
        *(sp_int_option *)at = (sp_int_option){0};
        break;
    case SP_OPT_NUMBER:
        *(double *)at = 0;
        break;
    case SP_OPT_BOOL:
        *(bool *)at = false;
        break;
    case SP_OPT_CHOICE:
        *(int *)at = 0;
        break;
    case SP_OPT_SET:
        *(unsigned *)at = 0;
        break;
    case SP_OPT_WORD:
    case SP_OPT_TEXT:
    case SP_OPT_PATH:
        free(*(char **)at);
        *(char **)at = NULL;
        break;
    case SP_OPT_DATA: {
        sp_data_list *d = at;
        for (int64_t i = 0; i < d->n; i++) free(d->entry[i].path);
        free(d->entry);
        *d = (sp_data_list){0};
        break;
    }
    case SP_OPT_INT_LIST:
        free(((sp_int_list *)at)->value);
        *(sp_int_list *)at = (sp_int_list){0};
        break;
    }
}

static sp_status set_value(loader *l, const sp_option *o, const sp_yaml *y) {
    void *at = member(l->c, o);
    clear_value(l->c, o);
    bool optional = o->type == SP_OPT_MAYBE || o->type == SP_OPT_TEXT || o->type == SP_OPT_PATH;
    if (optional && sp_yaml_is_null(y)) return SP_OK;
    switch (o->type) {
    case SP_OPT_INT:
        parse_int(l, y, o, at);
        break;
    case SP_OPT_MAYBE: {
        sp_int_option *v = at;
        v->given = parse_int(l, y, o, &v->value);
        break;
    }
    case SP_OPT_NUMBER:
        parse_number(l, y, o->key, o->min, o->max, at);
        break;
    case SP_OPT_BOOL:
        if (plain_scalar(y) && strcmp(y->text, "true") == 0)
            *(bool *)at = true;
        else if (!plain_scalar(y) || strcmp(y->text, "false") != 0)
            problem_expected(l, y, o->key, "true or false");
        break;
    case SP_OPT_CHOICE: {
        int word = parse_choice(l, y, o);
        if (word >= 0) *(int *)at = word;
        break;
    }
    case SP_OPT_WORD:
        if (parse_choice(l, y, o) >= 0 && !(*(char **)at = sp_strdup(y->text))) return no_memory();
        break;
    case SP_OPT_TEXT:
        return set_text(l, y, o->key, false, at);
    case SP_OPT_PATH:
        return set_text(l, y, o->key, true, at);
    case SP_OPT_DATA:
        return set_data(l, y, o, at);
    case SP_OPT_INT_LIST:
        return set_int_list(l, y, o, at);
    case SP_OPT_SET:
        set_words(l, y, o, at);
        break;
    }
    return SP_OK;
}

static int find_option(const char *key) {
    for (int i = 0; i < sp_option_count; i++)
        if (strcmp(key, sp_options[i].key) == 0) return i;
    return -1;
}

const char *sp_config_source(const sp_config *c, const char *key) {
    const char *source = c->source[find_option(key)];
    return source ? source : "default";
}

static bool is_group(const char *key) {
    size_t n = strlen(key);
    for (int i = 0; i < sp_option_count; i++)
        if (strncmp(key, sp_options[i].key, n) == 0 && sp_options[i].key[n] == '.') return true;
    return false;
}

static sp_status apply_map(loader *l, const char *prefix, const sp_yaml *map);

// `key_node` gives the place for messages about the key itself.
static sp_status apply_key(loader *l, const char *key, const sp_yaml *key_node,
                           const sp_yaml *value) {
    int row = find_option(key);
    if (row < 0) {
        if (!is_group(key)) {
            problem_unknown(l, key_node, key);
            return SP_OK;
        }
        if (sp_yaml_is_null(value)) return SP_OK;
        if (value->kind == SP_YAML_MAP) return apply_map(l, key, value);
        problem_expected(l, value, key, "a mapping");
        return SP_OK;
    }
    if (l->seen_line[row]) {
        problem(l, key_node, "key '%s' is repeated; it is already in line %lld", key,
                (long long)l->seen_line[row]);
        return SP_OK;
    }
    l->seen_line[row] = key_node->line ? key_node->line : 1;
    char *source = l->has_lines ? sp_format("%s:%lld", l->origin, (long long)l->seen_line[row])
                                : sp_strdup(l->origin);
    if (!source) return no_memory();
    free(l->c->source[row]);
    l->c->source[row] = source;
    return set_value(l, &sp_options[row], value);
}

static sp_status apply_map(loader *l, const char *prefix, const sp_yaml *map) {
    for (int64_t i = 0; i < map->n; i++) {
        char *key = sp_format("%s%s%s", prefix, prefix[0] ? "." : "", map->key[i]->text);
        if (!key) return no_memory();
        sp_status st = apply_key(l, key, map->key[i], map->item[i]);
        free(key);
        if (st != SP_OK) return st;
    }
    return SP_OK;
}

// ---- origins: defaults, a text, an assignment ---------------------------------------------------

static sp_status set_defaults(loader *l) {
    for (int i = 0; i < sp_option_count; i++) {
        const char *text = sp_options[i].fallback;
        sp_yaml *y = NULL;
        SP_TRY(sp_yaml_parse(text, (int64_t)strlen(text), "default", &l->problems, &y));
        sp_status st = y ? set_value(l, &sp_options[i], y) : SP_OK;
        sp_yaml_free(y);
        if (st != SP_OK) return st;
    }
    return SP_OK;
}

static sp_status apply_text(loader *l, const char *text, int64_t bytes) {
    sp_yaml *root = NULL;
    sp_status st = sp_yaml_parse(text, bytes, l->origin, &l->problems, &root);
    if (st == SP_OK && root && !sp_yaml_is_null(root)) {
        if (root->kind == SP_YAML_MAP)
            st = apply_map(l, "", root);
        else
            problem_expected(l, root, "configuration", "a mapping of keys to values");
    }
    sp_yaml_free(root);
    return st;
}

static sp_status apply_assignment(loader *l, const char *set) {
    const char *equals = strchr(set, '=');
    if (!equals || equals == set) {
        sp_problems_add(&l->problems, "--set %s: expected key=value", set);
        return SP_OK;
    }
    char *key = strndup(set, (size_t)(equals - set));
    char *origin = key ? sp_format("--set %s", key) : NULL;
    sp_yaml *value = NULL, nothing = {.kind = SP_YAML_SCALAR, .text = (char[]){""}};
    sp_status st = SP_OK;
    if (!origin) {
        st = no_memory();
        goto done;
    }
    int before = l->problems.count;
    SP_GO(sp_yaml_parse(equals + 1, (int64_t)strlen(equals + 1), origin, &l->problems, &value));
    const sp_yaml *v = value ? value : &nothing;
    if (l->problems.count == before) SP_GO(apply_key(l, key, v, v));
done:
    sp_yaml_free(value);
    free(origin);
    free(key);
    return st;
}

// ---- what concerns several keys -----------------------------------------------------------------

// "key (where it was set)"
static void problem_about(loader *l, const char *key, const char *what) {
    const char *source = l->c->source[find_option(key)];
    sp_problems_add(&l->problems, "%s%s%s: %s", source ? source : "", source ? ": " : "", key,
                    what);
}

static void check_name(loader *l) {
    const char *p = l->c->name;
    bool control = false;
    for (const char *q = p; *q; q++) control = control || (unsigned char)*q < 32 || *q == 127;
    if (!*p || *p == '.' || strchr(p, '/') || control || strlen(p) > 200)
        problem_about(l, "name",
                      "it becomes part of a folder's name: 1 to 200 characters, no '/', no control "
                      "characters, not beginning with '.'");
}

static void check_together(loader *l) {
    const sp_config *c = l->c;
    check_name(l);
    if (c->sparse_config.use_nope)
        problem_about(l, "sparse_config.use_nope", "true is not supported");
    if (c->eval_every_steps > 0 && c->eval_data.n == 0)
        problem_about(l, "eval_every_steps", "there is no eval_data to evaluate on");
    if (c->after_training & SP_AFTER_VALIDATE && !(c->after_training & SP_AFTER_EXPORT))
        problem_about(l, "after_training", "validate needs export: [export, validate]");
}

static sp_status default_name(sp_config *c) {
    if (c->name) return SP_OK;
    const char *base = c->file ? sp_path_base(c->file) : "";
    const char *dot = strrchr(base, '.');
    c->name = strndup(base, dot ? (size_t)(dot - base) : strlen(base));
    if (c->name && !c->name[0]) {
        free(c->name);
        c->name = sp_strdup("run");
    }
    return c->name ? SP_OK : no_memory();
}

// ---- public -------------------------------------------------------------------------------------

static sp_status begin(loader *l) {
    SP_TRY(sp_alloc(&l->c, 1, sizeof *l->c, "options"));
    SP_TRY(sp_alloc(&l->c->source, sp_option_count, sizeof(char *), "options"));
    SP_TRY(sp_alloc(&l->seen_line, sp_option_count, sizeof(int64_t), "options"));
    l->dir = "/";
    l->origin = "default";
    return set_defaults(l);
}

// The common end: all problems in one error, or the configuration handed over.
static sp_status finish(loader *l, sp_status st, const char *heading, sp_config **out) {
    if (st == SP_OK) st = default_name(l->c);
    if (st == SP_OK) check_together(l);
    sp_status listed = sp_problems_end(&l->problems, SP_BAD_INPUT, "%s", heading);
    if (st == SP_OK) st = listed;
    free(l->seen_line);
    if (st == SP_OK)
        *out = l->c;
    else
        sp_config_free(l->c);
    return st;
}

static sp_status working_directory(char **cwd) {
    *cwd = getcwd(NULL, 0);
    if (*cwd) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "the working directory has no path: %s", strerror(errno));
}

sp_status sp_config_load(const char *file, const char *const *sets, int n_sets, sp_config **out) {
    loader l = {0};
    char *cwd = NULL, *text = NULL, *dir = NULL, *file_dir = NULL;
    sp_status st = SP_OK;
    *out = NULL;
    SP_GO(begin(&l));
    SP_GO(working_directory(&cwd));
    if (file) {
        int64_t bytes = 0;
        SP_GO(sp_read_file(file, MAX_CONFIG_BYTES, &text, &bytes));
        l.c->file = sp_strdup(file);
        dir = sp_path_dir(file);
        file_dir = dir ? absolute_path(cwd, dir) : NULL;
        if (!l.c->file || !file_dir) {
            st = no_memory();
            goto done;
        }
        l.dir = file_dir;
        l.origin = file;
        l.has_lines = true;
        SP_GO(apply_text(&l, text, bytes));
    }
    l.dir = cwd;
    l.origin = "--set";
    l.has_lines = false;
    for (int i = 0; i < n_sets; i++) {
        memset(l.seen_line, 0, (size_t)sp_option_count * sizeof *l.seen_line);
        SP_GO(apply_assignment(&l, sets[i])); // a later one wins
    }
done:
    free(file_dir);
    free(dir);
    free(text);
    free(cwd);
    return finish(&l, st, file ? file : "options", out);
}

sp_status sp_config_parse(const char *yaml, const char *origin, sp_config **out) {
    loader l = {0};
    char *cwd = NULL;
    *out = NULL;
    sp_status st = begin(&l);
    if (st == SP_OK) st = working_directory(&cwd);
    if (st == SP_OK) {
        l.dir = cwd;
        l.origin = origin;
        l.has_lines = true;
        st = apply_text(&l, yaml, (int64_t)strlen(yaml));
    }
    free(cwd);
    return finish(&l, st, origin, out);
}

void sp_config_free(sp_config *c) {
    if (!c) return;
    for (int i = 0; i < sp_option_count; i++) {
        clear_value(c, &sp_options[i]);
        if (c->source) free(c->source[i]);
    }
    free(c->source);
    free(c->file);
    free(c);
}
