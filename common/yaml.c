#include "common/yaml.h"
#include "common/util.h"

#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

typedef struct reader {
    struct fy_parser *parser;
    const char *text, *origin;
    sp_problems *problems;
    bool bad; // a fault of the text was reported
} reader;

static void problem_at(reader *r, int64_t line, int64_t column, const char *what) {
    sp_problems_add(r->problems, "%s:%lld:%lld: %s", r->origin, (long long)line, (long long)column,
                    what);
    r->bad = true;
}

// Line and column of an event, from 1; 0 for an empty value, which has none (take_place). The
// library's mark of a quoted text lies behind the quote.
static void place_of(const reader *r, struct fy_event *e, int64_t *line, int64_t *column) {
    const struct fy_mark *m = fy_event_start_mark(e);
    *line = m ? m->line + 1 : 0;
    *column = m ? m->column + 1 : 0;
    if (!m || e->type != FYET_SCALAR || !e->scalar.value || m->input_pos == 0) return;
    enum fy_scalar_style style = fy_scalar_token_get_style(e->scalar.value);
    char quote = style == FYSS_SINGLE_QUOTED ? '\'' : style == FYSS_DOUBLE_QUOTED ? '"' : 0;
    if (quote && r->text[m->input_pos - 1] == quote) --*column;
}

static void problem_event(reader *r, struct fy_event *e, const char *what) {
    int64_t line, column;
    place_of(r, e, &line, &column);
    problem_at(r, line ? line : 1, column ? column : 1, what);
}

void sp_yaml_free(sp_yaml *y) {
    if (!y) return;
    for (int64_t i = 0; i < y->n; i++) {
        if (y->key) sp_yaml_free(y->key[i]);
        sp_yaml_free(y->item[i]);
    }
    free(y->key);
    free(y->item);
    free(y->text);
    free(y);
}

static sp_status append(sp_yaml *parent, sp_yaml *key, sp_yaml *value) {
    int64_t n = parent->n;
    if ((n & (n - 1)) == 0) { // room doubles at powers of two
        size_t bytes = (size_t)(n ? 2 * n : 1) * sizeof(sp_yaml *);
        sp_yaml **item = realloc(parent->item, bytes);
        if (item) parent->item = item;
        sp_yaml **keys = item && key ? realloc(parent->key, bytes) : NULL;
        if (keys) parent->key = keys;
        if (!item || (key && !keys)) {
            sp_yaml_free(key);
            sp_yaml_free(value);
            return sp_error(SP_ENVIRONMENT, "out of memory for a configuration");
        }
    }
    if (key) parent->key[n] = key;
    parent->item[n] = value;
    parent->n++;
    return SP_OK;
}

// An empty value has no place of its own.
static void take_place(sp_yaml *y, const sp_yaml *from) {
    if (y->line > 0) return;
    y->line = from->line;
    y->column = from->column;
}

static sp_status read_node(reader *r, struct fy_event *e, int depth, sp_yaml **out);

// The items of a list or map up to its end event.
static sp_status read_items(reader *r, sp_yaml *parent, int depth) {
    enum fy_event_type end = parent->kind == SP_YAML_LIST ? FYET_SEQUENCE_END : FYET_MAPPING_END;
    for (;;) {
        sp_yaml *key = NULL, *value = NULL;
        struct fy_event *e = fy_parser_parse(r->parser);
        if (!e) {
            r->bad = true;
            return SP_OK;
        }
        if (e->type == end) {
            fy_parser_event_free(r->parser, e);
            return SP_OK;
        }
        sp_status st = SP_OK;
        if (parent->kind == SP_YAML_MAP) {
            if (e->type != FYET_SCALAR && e->type != FYET_ALIAS)
                problem_event(r, e, "a key must be a name, not a list or a mapping");
            st = read_node(r, e, depth + 1, &key);
            e = st == SP_OK && !r->bad ? fy_parser_parse(r->parser) : NULL;
        }
        if (st == SP_OK && !r->bad && e) st = read_node(r, e, depth + 1, &value);
        if (st != SP_OK || r->bad || !value) {
            sp_yaml_free(key);
            sp_yaml_free(value);
            r->bad = true;
            return st;
        }
        if (key) take_place(key, parent);
        take_place(value, key ? key : parent);
        SP_TRY(append(parent, key, value));
    }
}

static sp_status read_scalar(reader *r, struct fy_event *e, sp_yaml *y) {
    struct fy_token *token = e->scalar.value;
    size_t length = 0;
    const char *text = token ? fy_token_get_text(token, &length) : "";
    if (text && memchr(text, 0, length)) problem_event(r, e, "a zero byte in a text");
    y->quoted = token && fy_scalar_token_get_style(token) != FYSS_PLAIN;
    y->text = text ? strndup(text, length) : NULL;
    return y->text ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory for a configuration");
}

// Takes over and frees `e`. *out stays NULL if the text is at fault (r->bad).
static sp_status read_node(reader *r, struct fy_event *e, int depth, sp_yaml **out) {
    sp_yaml *y = NULL;
    sp_status st = SP_OK;
    bool anchored = (e->type == FYET_SCALAR && e->scalar.anchor) ||
                    (e->type == FYET_SEQUENCE_START && e->sequence_start.anchor) ||
                    (e->type == FYET_MAPPING_START && e->mapping_start.anchor);
    bool tagged = (e->type == FYET_SCALAR && e->scalar.tag) ||
                  (e->type == FYET_SEQUENCE_START && e->sequence_start.tag) ||
                  (e->type == FYET_MAPPING_START && e->mapping_start.tag);
    if (anchored || e->type == FYET_ALIAS)
        problem_event(r, e,
                      "anchors (&) and aliases (*) are not supported; write the value out, or "
                      "quote a text that begins with one of these signs");
    else if (tagged)
        problem_event(r, e, "tags (!) are not supported; quote a text that begins with this sign");
    else if (depth > MAX_DEPTH)
        problem_event(r, e, "nested too deeply");
    if (r->bad) goto done;
    SP_GO(sp_alloc(&y, 1, sizeof *y, "a configuration"));
    place_of(r, e, &y->line, &y->column);
    switch (e->type) {
    case FYET_SCALAR:
        y->kind = SP_YAML_SCALAR;
        SP_GO(read_scalar(r, e, y));
        break;
    case FYET_SEQUENCE_START:
    case FYET_MAPPING_START:
        y->kind = e->type == FYET_SEQUENCE_START ? SP_YAML_LIST : SP_YAML_MAP;
        SP_GO(read_items(r, y, depth));
        break;
    default:
        problem_event(r, e, "a value is missing here");
    }
done:
    fy_parser_event_free(r->parser, e);
    if (st == SP_OK && !r->bad)
        *out = y;
    else
        sp_yaml_free(y);
    return st;
}

// What the library itself complained about.
static void add_library_errors(reader *r, struct fy_diag *diag) {
    void *iterator = NULL;
    struct fy_diag_error *e;
    bool any = false;
    while ((e = fy_diag_errors_iterate(diag, &iterator))) {
        char *what = sp_format("YAML syntax: %s", e->msg ? e->msg : "unknown error");
        problem_at(r, e->line > 0 ? e->line : 1, e->column > 0 ? e->column : 1,
                   what ? what : "YAML syntax");
        free(what);
        any = true;
    }
    if (!any) problem_at(r, 1, 1, "YAML syntax error");
}

bool sp_is_utf8(const char *text, int64_t bytes, int64_t *at) {
    const unsigned char *s = (const unsigned char *)text;
    for (int64_t i = 0, more; i < bytes; i += more + 1) {
        *at = i;
        more = s[i] < 0x80 ? 0 : s[i] < 0xc2 ? -1 : s[i] < 0xe0 ? 1 : s[i] < 0xf0 ? 2 : 3;
        if (more < 0 || s[i] > 0xf4 || i + more >= bytes) return false;
        for (int64_t j = 1; j <= more; j++)
            if (s[i + j] >> 6 != 2) return false;
        // overlong forms, surrogates, beyond the last code point
        if ((s[i] == 0xe0 && s[i + 1] < 0xa0) || (s[i] == 0xed && s[i + 1] > 0x9f) ||
            (s[i] == 0xf0 && s[i + 1] < 0x90) || (s[i] == 0xf4 && s[i + 1] > 0x8f))
            return false;
    }
    return true;
}

// What the library would pass over in silence: zero bytes and what is no UTF-8.
static void check_bytes(reader *r, const char *text, int64_t bytes) {
    int64_t at = 0, line = 1, begin = 0;
    const char *zero = memchr(text, 0, (size_t)bytes);
    bool utf8 = sp_is_utf8(text, zero ? zero - text : bytes, &at);
    if (utf8 && !zero) return;
    if (utf8) at = zero - text;
    for (int64_t i = 0; i < at; i++)
        if (text[i] == '\n') line++, begin = i + 1;
    problem_at(r, line, at - begin + 1, utf8 ? "a zero byte" : "this is not UTF-8 text");
}

static sp_status read_document(reader *r, sp_yaml **root) {
    int documents = 0;
    struct fy_event *e;
    while (!r->bad && (e = fy_parser_parse(r->parser))) {
        switch (e->type) {
        case FYET_STREAM_START:
        case FYET_STREAM_END:
        case FYET_DOCUMENT_END:
            fy_parser_event_free(r->parser, e);
            break;
        case FYET_DOCUMENT_START:
            if (++documents > 1)
                problem_event(r, e, "a second document (---); a configuration is one document");
            fy_parser_event_free(r->parser, e);
            break;
        default:
            SP_TRY(read_node(r, e, 0, root));
        }
    }
    return SP_OK;
}

sp_status sp_yaml_parse(const char *text, int64_t bytes, const char *origin, sp_problems *problems,
                        sp_yaml **root) {
    *root = NULL;
    struct fy_diag_cfg diag_cfg;
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL;
    struct fy_diag *diag = fy_diag_create(&diag_cfg);
    if (!diag) return sp_error(SP_ENVIRONMENT, "out of memory for the YAML reader");
    fy_diag_set_collect_errors(diag, true);
    struct fy_parse_cfg cfg = {.flags = FYPCF_DEFAULT_VERSION_1_2 | FYPCF_JSON_NONE, .diag = diag};
    reader r = {
        .parser = fy_parser_create(&cfg), .text = text, .origin = origin, .problems = problems};
    sp_status st = SP_OK;
    if (!r.parser || fy_parser_set_string(r.parser, text, (size_t)bytes) != 0) {
        st = sp_error(SP_ENVIRONMENT, "out of memory for the YAML reader");
    } else {
        int before = problems->count;
        check_bytes(&r, text, bytes);
        if (!r.bad) st = read_document(&r, root);
        bool library = fy_parser_get_stream_error(r.parser) || fy_diag_got_error(diag);
        if (st == SP_OK && (library || r.bad) && problems->count == before)
            add_library_errors(&r, diag);
        if (st != SP_OK || r.bad) {
            sp_yaml_free(*root);
            *root = NULL;
        }
    }
    if (r.parser) fy_parser_destroy(r.parser);
    fy_diag_destroy(diag);
    return st;
}

bool sp_yaml_is_null(const sp_yaml *y) {
    return y->kind == SP_YAML_SCALAR && !y->quoted &&
           (!y->text[0] || strcmp(y->text, "~") == 0 || strcmp(y->text, "null") == 0);
}

char *sp_yaml_describe(const sp_yaml *y) {
    if (y->kind == SP_YAML_LIST) return sp_strdup("a list");
    if (y->kind == SP_YAML_MAP) return sp_strdup("a mapping");
    if (sp_yaml_is_null(y)) return sp_strdup("nothing");
    return sp_format(y->quoted ? "the quoted text \"%s\"" : "'%s'", y->text);
}
