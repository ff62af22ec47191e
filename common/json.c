#include "common/json.h"
#include "common/contents.h"
#include "common/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// jansson stops right behind the closing quote of a repeated key but does not tell the key when it
// is long. Finds the quoted text that ends at `end`, or NULL.
static const char *quoted_before(const char *text, int64_t end, int *len) {
    if (end < 2 || text[end - 1] != '"') return NULL;
    for (int64_t i = end - 2; i >= 0; i--) {
        if (text[i] != '"') continue;
        int64_t slashes = 0;
        while (i - slashes > 0 && text[i - slashes - 1] == '\\') slashes++;
        if (slashes % 2) continue; // an escaped quote inside the key
        *len = (int)(end - i);
        return text + i;
    }
    return NULL;
}

sp_status sp_json_parse(const char *text, int64_t bytes, const char *origin, json_t **out) {
    json_error_t e;
    *out = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &e);
    if (json_is_object(*out)) return SP_OK;
    if (*out) {
        json_decref(*out);
        *out = NULL;
        return sp_error(SP_BAD_INPUT, "%s: expected a JSON object, found a list", origin);
    }
    if (json_error_code(&e) == json_error_out_of_memory)
        return sp_error(SP_ENVIRONMENT, "%s: out of memory while reading JSON", origin);
    int len;
    const char *key = NULL;
    if (json_error_code(&e) == json_error_duplicate_key && e.position > 0 && e.position <= bytes)
        key = quoted_before(text, e.position, &len);
    if (key)
        return sp_error(SP_BAD_INPUT,
                        "%s:%d:%d: the key %.*s stands twice in one object; remove one of them",
                        origin, e.line, e.column, len, key);
    const char *what = sp_contents_of((const uint8_t *)text, bytes);
    if (what) return sp_error(SP_BAD_INPUT, "%s is no JSON file; this is %s", origin, what);
    return sp_error(SP_BAD_INPUT, "%s:%d:%d: this is not valid JSON: %s", origin, e.line, e.column,
                    e.text);
}

sp_status sp_json_load(const char *path, int64_t max_bytes, json_t **out) {
    char *text;
    int64_t bytes;
    *out = NULL;
    SP_TRY(sp_read_file(path, max_bytes, &text, &bytes));
    sp_status st = sp_json_parse(text, bytes, path, out);
    free(text);
    return st;
}

const char *sp_json_kind(const json_t *v) {
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

sp_status sp_json_check_place(const char *path) {
    if (!path || strcmp(path, "-") == 0) return SP_OK;
    struct stat s;
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode))
        return sp_error(SP_BAD_INPUT, "%s is a folder; name a file", path);
    char *dir = sp_path_dir(path);
    sp_status st = SP_OK;
    if (!dir)
        st = sp_error(SP_ENVIRONMENT, "out of memory");
    else if (stat(dir, &s) != 0 || !S_ISDIR(s.st_mode))
        st = sp_error(SP_BAD_INPUT, "%s cannot be written: %s is no folder; make it first", path,
                      dir);
    else if (access(dir, W_OK | X_OK) != 0)
        st = sp_error(SP_ENVIRONMENT, "cannot write in the folder %s: %s", dir, strerror(errno));
    free(dir);
    return st;
}

sp_status sp_json_write(const char *path, const json_t *v) {
    char *json = json_dumps(v, JSON_INDENT(2));
    char *text = json ? sp_format("%s\n", json) : NULL;
    sp_status st = SP_OK;
    if (!text)
        st = sp_error(SP_ENVIRONMENT, "out of memory");
    else if (strcmp(path, "-") == 0)
        fputs(text, stdout);
    else
        st = sp_write_file(path, text, (int64_t)strlen(text));
    free(text);
    free(json);
    return st;
}
