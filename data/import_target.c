// Where an import may write: never where its sources lie, and over nothing but an earlier import.
#include "common/json.h"
#include "common/util.h"
#include "common/yaml.h"
#include "data/folder_index.h"
#include "data/folders.h"
#include "data/import.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool sp_import_makes(const char *name) {
    return strcmp(name, SP_IMPORT_RECORD) == 0 || strcmp(name, SP_FOLDER_INDEX) == 0 ||
           sp_folder_shard(name) >= 0;
}

static sp_status not_ours(const char *path, const char *is) {
    return sp_error(SP_BAD_INPUT,
                    "%s %s, and is not replaced; choose another --out or --domain, or remove it "
                    "yourself",
                    path, is);
}

// The record says that an import made the folder: any shards could have such names.
static sp_status check_record(const char *dir) {
    char *path = sp_path_join(dir, SP_IMPORT_RECORD);
    if (!path) return sp_error(SP_ENVIRONMENT, "out of memory");
    json_t *root = NULL;
    sp_status st = SP_OK;
    if (sp_path_is_file(path)) st = sp_json_load(path, SP_IMPORT_RECORD_MAX, &root);
    const char *format = json_string_value(json_object_get(root, "format"));
    if (st != SP_ENVIRONMENT && (!format || strcmp(format, SP_IMPORT_FORMAT) != 0))
        st = not_ours(dir, "was not made by an import (it has no " SP_IMPORT_RECORD " of one)");
    json_decref(root);
    free(path);
    return st;
}

sp_status sp_import_replaceable(const char *dir) {
    struct stat info;
    char **name;
    int64_t n;
    if (lstat(dir, &info) != 0)
        return sp_error(SP_ENVIRONMENT, "cannot look at %s: %s", dir, strerror(errno));
    if (S_ISLNK(info.st_mode)) return not_ours(dir, "is a symbolic link");
    if (!S_ISDIR(info.st_mode)) return not_ours(dir, "is no folder");
    SP_TRY(sp_folder_list(dir, &name, &n));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < n && st == SP_OK; i++) {
        char *path = sp_path_join(dir, name[i]);
        if (!path)
            st = sp_error(SP_ENVIRONMENT, "out of memory");
        else if (!sp_import_makes(name[i]) || lstat(path, &info) != 0 || !S_ISREG(info.st_mode))
            st = not_ours(path, "is nothing that an import makes");
        free(path);
    }
    sp_free_names(name, n);
    return st == SP_OK && n > 0 ? check_record(dir) : st;
}

sp_status sp_import_check_text(const char *what, const char *text, const char *remedy) {
    int64_t at = 0;
    if (sp_is_utf8(text, (int64_t)strlen(text), &at)) return SP_OK;
    return sp_error(SP_BAD_INPUT, "%s '%s' is no UTF-8 from byte %lld on; %s", what, text,
                    (long long)at, remedy);
}

// ---- sources ------------------------------------------------------------------------------------

typedef struct checking {
    char **final; // [n] real paths of the domains to be made
    const sp_import_list *list;
    const char *out;
    sp_problems *problems;
} checking;

// A file must not lie in what is made, a folder nor the other way round.
static sp_status compare(const checking *c, const char *source, bool folder) {
    char *real = sp_folder_real(source);
    if (!real) return sp_error(SP_ENVIRONMENT, "out of memory");
    for (int64_t i = 0; i < c->list->n; i++)
        if (c->problems->count == 0 && (sp_folder_within(real, c->final[i]) ||
                                        (folder && sp_folder_within(c->final[i], real))))
            sp_problems_add(c->problems,
                            "%s/%s is, holds or lies in the source %s, which must stay as it is; "
                            "choose another --out or --domain",
                            c->out, c->list->at[i].name, source);
    free(real);
    return SP_OK;
}

sp_status sp_import_check_places(const sp_import_args *a, const sp_import_list *list,
                                 sp_problems *problems) {
    checking c = {.list = list, .out = a->out, .problems = problems};
    SP_TRY(sp_alloc(&c.final, list->n, sizeof *c.final, "the domains"));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < list->n && st == SP_OK; i++) {
        char *path = sp_path_join(a->out, list->at[i].name);
        if (!path || !(c.final[i] = sp_folder_real(path)))
            st = sp_error(SP_ENVIRONMENT, "out of memory");
        free(path);
    }
    for (int64_t i = 0; i < a->n_sources && st == SP_OK; i++)
        st = compare(&c, a->source[i], sp_path_is_dir(a->source[i]));
    for (int64_t i = 0; i < list->n && st == SP_OK; i++) { // reached by links, perhaps
        const sp_import_domain *d = &list->at[i];
        st = compare(&c, d->path, sp_path_is_dir(d->path));
        for (int64_t k = 0; k < d->sources.n && st == SP_OK; k++)
            st = compare(&c, d->sources.at[k]->path, false);
        for (int64_t k = 0; k < d->n_flat && st == SP_OK; k++)
            st = compare(&c, d->flat[k].path, false);
    }
    for (int64_t i = 0; i < list->n; i++) free(c.final[i]);
    free(c.final);
    return st;
}
