#include "data/folder_index.h"

#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { VERSION = 1, INDEX_MAX = 1 << 28 };

// ---- writing ------------------------------------------------------------------------------------

static sp_status add_shard(json_t *shards, const char *dir, const char *name, int64_t *rows,
                           int64_t *tokens) {
    char *path = sp_path_join(dir, name);
    sp_source *s = NULL;
    sp_status st = path ? sp_shard_open(path, &s) : sp_error(SP_ENVIRONMENT, "out of memory");
    free(path);
    SP_TRY(st);
    json_t *domains = json_array();
    for (int64_t i = 0; i < s->n_domains; i++)
        json_array_append_new(domains, json_string(s->domain[i]));
    json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:s,s:o}", "bytes", (json_int_t)s->bytes, "rows",
                          (json_int_t)s->rows, "tokens", (json_int_t)(s->unpacked / 4), "vocab",
                          (json_int_t)s->vocab, "tokenizer", s->tokenizer, "domains", domains);
    *rows += s->rows;
    *tokens += s->unpacked / 4;
    s->ops->close(s);
    // Names that are no UTF-8 cannot stand in JSON: such a shard is opened as without a list.
    if (o) json_object_set_new(shards, name, o);
    return SP_OK;
}

sp_status sp_folder_index_write(const char *dir, int64_t *rows, int64_t *tokens) {
    char **name, *text = NULL, *path = sp_path_join(dir, SP_FOLDER_INDEX);
    int64_t n;
    *rows = *tokens = 0;
    SP_TRY(sp_list_dir(dir, ".h5", &name, &n));
    json_t *shards = json_object(), *root = NULL;
    sp_status st = SP_OK;
    for (int64_t i = 0; i < n; i++) SP_GO(add_shard(shards, dir, name[i], rows, tokens));
    root =
        json_pack("{s:s,s:i,s:O}", "format", "sparda-shards", "version", VERSION, "shards", shards);
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    st = text && path ? sp_write_file(path, text, (int64_t)strlen(text))
                      : sp_error(SP_ENVIRONMENT, "out of memory");
done:
    json_decref(shards);
    json_decref(root);
    sp_free_names(name, n);
    free(text);
    free(path);
    return st;
}

// ---- reading ------------------------------------------------------------------------------------

sp_status sp_folder_index_load(const char *dir, sp_folder_index *out) {
    *out = (sp_folder_index){0};
    char *path = sp_path_join(dir, SP_FOLDER_INDEX);
    if (!path) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = SP_OK;
    if (sp_path_is_file(path)) {
        st = sp_json_load(path, INDEX_MAX, &out->root);
        const char *format = json_string_value(json_object_get(out->root, "format"));
        out->shards = json_object_get(out->root, "shards");
        if (st == SP_OK && (!format || strcmp(format, "sparda-shards") != 0 ||
                            json_integer_value(json_object_get(out->root, "version")) != VERSION ||
                            !json_is_object(out->shards)))
            st = sp_error(SP_BAD_INPUT, "%s is no list of shards of version %d", path, VERSION);
        if (st != SP_OK) sp_folder_index_free(out);
        if (st == SP_BAD_INPUT) {
            sp_warn("%s; the shards are opened without it (remove it if it is of no use)",
                    sp_error_text());
            sp_error_clear();
            st = SP_OK;
        }
    }
    free(path);
    return st;
}

void sp_folder_index_free(sp_folder_index *x) {
    json_decref(x->root);
    *x = (sp_folder_index){0};
}

sp_status sp_folder_index_open(const sp_folder_index *x, const char *path, const char *name,
                               sp_source **out) {
    *out = NULL;
    const json_t *o = json_object_get(x->shards, name);
    const json_t *domains = json_object_get(o, "domains");
    const char *tokenizer = json_string_value(json_object_get(o, "tokenizer"));
    int64_t rows = (int64_t)json_integer_value(json_object_get(o, "rows"));
    int64_t tokens = (int64_t)json_integer_value(json_object_get(o, "tokens"));
    int64_t vocab = (int64_t)json_integer_value(json_object_get(o, "vocab"));
    int64_t bytes = (int64_t)json_integer_value(json_object_get(o, "bytes"));
    struct stat info;
    size_t n = json_array_size(domains);
    if (!o || !tokenizer || rows < 1 || tokens < rows || vocab < 1 || vocab > INT32_MAX || n < 1)
        return SP_OK;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != bytes) return SP_OK;
    sp_source s = {.rows = rows, .bytes = bytes, .unpacked = 4 * tokens, .vocab = vocab};
    s.path = sp_strdup(path);
    s.tokenizer = sp_strdup(tokenizer);
    s.domain = calloc(n, sizeof *s.domain);
    bool complete = s.path && s.tokenizer && s.domain;
    for (size_t i = 0; i < n && complete; i++) {
        const char *d = json_string_value(json_array_get(domains, i));
        s.domain[i] = sp_strdup(d ? d : "");
        complete = s.domain[i] != NULL;
    }
    s.n_domains = (int64_t)n;
    if (complete) return sp_shard_open_later(&s, out); // takes what s holds
    sp_source_clear(&s);
    return sp_error(SP_ENVIRONMENT, "out of memory for a list of shards");
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void sp_folder_index_missing(const sp_folder_index *x, const char *dir, char *const *name,
                             int64_t n, sp_problems *problems) {
    const char *key;
    json_t *v;
    int missing = 0;
    json_object_foreach((json_t *)x->shards, key, v) {
        if (bsearch(&key, name, (size_t)n, sizeof *name, by_name)) continue;
        if (missing++ < SP_PROBLEMS_PER_FOLDER)
            sp_problems_add(problems,
                            "%s: %s, which " SP_FOLDER_INDEX
                            " lists, is not there; fetch it again, or "
                            "remove " SP_FOLDER_INDEX " to go without it",
                            dir, key);
    }
}
