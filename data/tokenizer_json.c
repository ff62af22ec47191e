// tokenizer.json of the library `tokenizers`: a pipeline of named steps. Those that the byte-level
// and the character-level kinds of BPE use are known; any other one is refused by its name.
#include "common/json.h"
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

typedef struct parser {
    sp_tokenizer *t;
} parser;

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static sp_status unknown(const char *what, const json_t *o) {
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY);
    sp_status st = sp_error(SP_BAD_INPUT, "its %s is not supported: %.200s", what,
                            text ? text : "(out of memory)");
    free(text);
    return st;
}

// ---- the alphabet of byte-level tokens ----------------------------------------------------------

// Printable bytes stand for themselves; the others, in order, are U+0100, U+0101, ...
static int code_of_byte[256], byte_of_code[512];

static void make_alphabet(void) {
    for (int c = 0; c < 512; c++) byte_of_code[c] = -1;
    for (int b = 0, other = 256; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        code_of_byte[b] = printable ? b : other++;
        byte_of_code[code_of_byte[b]] = b;
    }
}

// The bytes that `text` stands for; false if it holds anything else.
static bool to_bytes(const char *text, size_t n, char *out, size_t *m) {
    *m = 0;
    for (size_t i = 0; i < n;) {
        uint8_t a = (uint8_t)text[i];
        int code = a;
        if (a >= 0x80) {
            if ((a & 0xe0) != 0xc0 || i + 1 == n) return false; // U+0080 to U+07FF
            code = (a & 0x1f) << 6 | ((uint8_t)text[i + 1] & 0x3f);
        }
        if (code >= 512 || byte_of_code[code] < 0) return false;
        out[(*m)++] = (char)byte_of_code[code];
        i += a >= 0x80 ? 2 : 1;
    }
    return true;
}

// ---- vocabulary, merges, added tokens -----------------------------------------------------------

static sp_status set_token(parser *p, int64_t id, const char *text, size_t n) {
    if (!p->t->byte_level) return sp_tokenizer_set(p->t, id, text, n);
    char *bytes = malloc(n + 1);
    size_t m;
    if (!bytes) return sp_error(SP_ENVIRONMENT, "out of memory for a vocabulary");
    sp_status st = to_bytes(text, n, bytes, &m) ? sp_tokenizer_set(p->t, id, bytes, m)
                                                : sp_tokenizer_set(p->t, id, text, n);
    free(bytes);
    return st;
}

static sp_status read_vocab(parser *p, const json_t *vocab) {
    const char *key;
    json_t *v;
    if (json_object_size(vocab) == 0) return sp_error(SP_BAD_INPUT, "'model.vocab' is missing");
    json_object_foreach((json_t *)vocab, key, v) {
        if (!json_is_integer(v))
            return sp_error(SP_BAD_INPUT, "the id of the token '%.40s' is no whole number", key);
        SP_TRY(set_token(p, (int64_t)json_integer_value(v), key, strlen(key)));
    }
    return sp_tokenizer_index(p->t);
}

static int32_t find_token(const parser *p, const char *text, size_t n) {
    char small[256], *bytes = n < sizeof small ? small : malloc(n + 1);
    size_t m;
    int32_t id = SP_NO_TOKEN;
    if (!bytes) return id;
    if (p->t->byte_level && to_bytes(text, n, bytes, &m))
        id = sp_tokenizer_find(p->t, bytes, m);
    else
        id = sp_tokenizer_find(p->t, text, n);
    if (bytes != small) free(bytes);
    return id;
}

// "left right" or ["left", "right"], the first with the lowest rank.
static sp_status read_merges(parser *p, const json_t *merges) {
    size_t n = json_array_size(merges);
    if (!json_is_array(merges)) return sp_error(SP_BAD_INPUT, "'model.merges' is missing");
    SP_TRY(sp_tokenizer_pairs(p->t, (int64_t)n));
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i);
        const char *a = json_string_value(json_is_array(m) ? json_array_get(m, 0) : m), *b = NULL;
        size_t an = 0, bn = 0;
        if (json_is_array(m) && json_array_size(m) == 2) {
            b = json_string_value(json_array_get(m, 1));
            an = a ? strlen(a) : 0;
        } else if (a && !json_is_array(m) && (b = strchr(a, ' '))) {
            an = (size_t)(b++ - a);
        }
        if (!a || !b)
            return sp_error(SP_BAD_INPUT, "merge %zu is neither 'a b' nor a pair of texts", i);
        bn = strlen(b);
        char *joined = sp_format("%.*s%s", (int)an, a, b);
        if (!joined) return sp_error(SP_ENVIRONMENT, "out of memory for a table of merges");
        int32_t left = find_token(p, a, an), right = find_token(p, b, bn);
        int32_t id = find_token(p, joined, an + bn);
        free(joined);
        if (left == SP_NO_TOKEN || right == SP_NO_TOKEN || id == SP_NO_TOKEN)
            return sp_error(
                SP_BAD_INPUT,
                "merge %zu, '%.*s' and '%.40s': the vocabulary lacks one of them or what "
                "they make",
                i, (int)(an < 40 ? an : 40), a, b);
        sp_tokenizer_pair(p->t, left, right, (int32_t)i, id);
    }
    return SP_OK;
}

// The library looks for it as the normaliser makes it: with a mark in front and for every blank.
static sp_status add_normalised(sp_tokenizer *t, const char *content, size_t n, int32_t id) {
    sp_text text = {0};
    if (t->mark_front) sp_text_bytes(&text, SP_BLANK_MARK, SP_BLANK_MARK_BYTES);
    for (size_t i = 0; i < n; i++)
        if (content[i] == ' ' && t->mark_blanks)
            sp_text_bytes(&text, SP_BLANK_MARK, SP_BLANK_MARK_BYTES);
        else
            sp_text_bytes(&text, content + i, 1);
    sp_status st = text.failed ? sp_error(SP_ENVIRONMENT, "out of memory for added tokens")
                               : sp_added_add(&t->normalised, text.data, text.len, id);
    if (st == SP_OK && !t->byte_level) { // it decodes to that, too
        bool special = t->token[id].special;
        st = sp_tokenizer_set(t, id, text.data, text.len);
        if (st == SP_OK) t->token[id].special = special;
    }
    sp_text_free(&text);
    return st;
}

static sp_status read_added(parser *p, const json_t *added) {
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)added, i, v) {
        const char *content = text_of(v, "content");
        const json_t *id = json_object_get(v, "id");
        size_t n = strlen(content);
        if (!json_is_integer(id) || n == 0)
            return sp_error(SP_BAD_INPUT, "added token %zu needs a content and an id", i);
        if (json_is_true(json_object_get(v, "lstrip")) ||
            json_is_true(json_object_get(v, "rstrip")) ||
            json_is_true(json_object_get(v, "single_word")))
            return unknown("added token with lstrip, rstrip or single_word", v);
        int64_t number = (int64_t)json_integer_value(id);
        SP_TRY(set_token(p, number, content, n));
        p->t->token[number].special = json_is_true(json_object_get(v, "special"));
        bool normalised = json_is_true(json_object_get(v, "normalized"));
        if (normalised && (p->t->mark_unless || p->t->front_blank))
            return unknown("normalized added token beside this pre_tokenizer", v);
        if (normalised)
            SP_TRY(add_normalised(p->t, content, n, (int32_t)number));
        else
            SP_TRY(sp_added_add(&p->t->raw, content, n, (int32_t)number));
    }
    return SP_OK;
}

// ---- normaliser ---------------------------------------------------------------------------------

static sp_status read_normaliser(parser *p, const json_t *o, int depth) {
    const char *type = text_of(o, "type");
    sp_tokenizer *t = p->t;
    if (!o || json_is_null(o)) return SP_OK;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(o, "normalizers"), i, v)
            SP_TRY(read_normaliser(p, v, depth + 1));
        return SP_OK;
    }
    if (strcmp(type, "Prepend") == 0 && strcmp(text_of(o, "prepend"), SP_BLANK_MARK) == 0 &&
        !t->mark_front) {
        t->mark_front = true;
        return SP_OK;
    }
    if (strcmp(type, "Replace") == 0 && strcmp(text_of(o, "content"), SP_BLANK_MARK) == 0 &&
        strcmp(text_of(json_object_get(o, "pattern"), "String"), " ") == 0) {
        t->mark_blanks = true;
        return SP_OK;
    }
    return unknown("normalizer", o);
}

// ---- pre-tokeniser ------------------------------------------------------------------------------

// White space in the regular expressions is that of Unicode; what PCRE2 calls \s has U+180E, too.
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"

static void translate(const char *pattern, sp_text *out) {
    bool inside = false;
    for (const char *c = pattern; *c; c++) {
        if (c[0] == '\\' && c[1] == 's') {
            sp_text_add(out, inside ? SPACES : "[" SPACES "]");
            c++;
        } else if (c[0] == '\\' && c[1] == 'S' && !inside) {
            sp_text_add(out, "[^" SPACES "]");
            c++;
        } else if (c[0] == '\\' && c[1]) {
            sp_text_bytes(out, c++, 2);
        } else {
            if (c[0] == '[') inside = true;
            if (c[0] == ']') inside = false;
            sp_text_bytes(out, c, 1);
        }
    }
}

static sp_status add_split(parser *p, const char *pattern) {
    sp_text own = {0};
    int code;
    PCRE2_SIZE at;
    if (p->t->n_splits == (int)(sizeof p->t->split / sizeof *p->t->split))
        return sp_error(SP_BAD_INPUT, "its pre-tokenizer has too many steps");
    translate(pattern, &own);
    if (!own.data) return sp_error(SP_ENVIRONMENT, "out of memory");
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)own.data, own.len,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    sp_text_free(&own);
    if (!re) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        return sp_error(SP_BAD_INPUT, "its pattern '%.200s' cannot be used: %s", pattern,
                        (char *)why);
    }
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); // without it the matching is slower, not different
    p->t->split[p->t->n_splits++].code = re;
    return SP_OK;
}

static sp_status read_byte_level(parser *p, const json_t *o) {
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+";
    p->t->byte_level = true;
    p->t->front_blank = json_is_true(json_object_get(o, "add_prefix_space"));
    if (p->t->front_blank && p->t->n_splits) return unknown("order of pre-tokenizers", o);
    const json_t *regex = json_object_get(o, "use_regex");
    return !regex || json_is_true(regex) ? add_split(p, gpt2) : SP_OK;
}

static sp_status read_metaspace(parser *p, const json_t *o) {
    sp_tokenizer *t = p->t;
    const char *scheme = text_of(o, "prepend_scheme");
    if (!scheme[0])
        scheme = json_is_false(json_object_get(o, "add_prefix_space")) ? "never" : "always";
    if (strcmp(text_of(o, "replacement"), SP_BLANK_MARK) != 0 || t->mark_front || t->mark_blanks)
        return unknown("pre-tokenizer", o);
    t->mark_blanks = true;
    t->mark_front = strcmp(scheme, "never") != 0;
    t->first_only = strcmp(scheme, "first") == 0;
    t->mark_unless = true;
    // By default it cuts words before marks, whatever the vocabulary; here only where it does not
    // matter, which sp_tokenizer_find_splits decides.
    if (!json_is_false(json_object_get(o, "split"))) t->split_blanks = true;
    return SP_OK;
}

static sp_status read_pretokeniser(parser *p, const json_t *o, int depth) {
    const char *type = text_of(o, "type");
    if (!o || json_is_null(o)) return SP_OK;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(o, "pretokenizers"), i, v)
            SP_TRY(read_pretokeniser(p, v, depth + 1));
        return SP_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(p, o);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(p, o);
    const char *regex = text_of(json_object_get(o, "pattern"), "Regex");
    if (strcmp(type, "Split") == 0 && regex[0] && strcmp(text_of(o, "behavior"), "Isolated") == 0 &&
        !json_is_true(json_object_get(o, "invert")))
        return add_split(p, regex);
    return unknown("pre_tokenizer", o);
}

// ---- decoder ------------------------------------------------------------------------------------

static sp_status read_decoder(parser *p, const json_t *o, int depth) {
    const char *type = text_of(o, "type");
    sp_tokenizer *t = p->t;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(o, "decoders"), i, v)
            SP_TRY(read_decoder(p, v, depth + 1));
        return SP_OK;
    }
    if (strcmp(type, "ByteLevel") == 0 && t->byte_level) return SP_OK;
    if (t->byte_level) return unknown("decoder", o);
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0) return SP_OK;
    if (strcmp(type, "Replace") == 0 && strcmp(text_of(o, "content"), " ") == 0 &&
        strcmp(text_of(json_object_get(o, "pattern"), "String"), SP_BLANK_MARK) == 0) {
        t->unmark = true;
        return SP_OK;
    }
    if (strcmp(type, "Strip") == 0 && strcmp(text_of(o, "content"), " ") == 0 &&
        json_integer_value(json_object_get(o, "start")) == 1 &&
        json_integer_value(json_object_get(o, "stop")) == 0) {
        t->strip_front = true;
        return SP_OK;
    }
    return unknown("decoder", o);
}

// ---- the whole ----------------------------------------------------------------------------------

static sp_status check_model(const json_t *m) {
    const char *type = text_of(m, "type");
    if (type[0] && strcmp(type, "BPE") != 0)
        return sp_error(SP_BAD_INPUT, "a model of type '%s'; only BPE is read", type);
    const json_t *dropout = json_object_get(m, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return sp_error(SP_BAD_INPUT, "a model with dropout, whose results are random");
    if (text_of(m, "continuing_subword_prefix")[0] || text_of(m, "end_of_word_suffix")[0])
        return sp_error(SP_BAD_INPUT, "a model with a subword prefix or suffix is not supported");
    return SP_OK;
}

static sp_status check_bytes(sp_tokenizer *t) {
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        t->byte_id[b] = sp_tokenizer_find(t, &c, 1);
        if (t->byte_id[b] == SP_NO_TOKEN)
            return sp_error(SP_BAD_INPUT, "the vocabulary has no token for the byte %d alone", b);
    }
    return SP_OK;
}

static sp_status read_root(parser *p, const json_t *root) {
    sp_tokenizer *t = p->t;
    const json_t *m = json_object_get(root, "model");
    SP_TRY(check_model(m));
    SP_TRY(read_normaliser(p, json_object_get(root, "normalizer"), 0));
    SP_TRY(read_pretokeniser(p, json_object_get(root, "pre_tokenizer"), 0));
    if (t->byte_level && (t->mark_front || t->mark_blanks))
        return unknown("normalizer of a byte-level model", json_object_get(root, "normalizer"));
    if (!t->byte_level && t->n_splits)
        return unknown("pre_tokenizer without ByteLevel", json_object_get(root, "pre_tokenizer"));
    t->ignore_merges = json_is_true(json_object_get(m, "ignore_merges"));
    SP_TRY(read_vocab(p, json_object_get(m, "vocab")));
    SP_TRY(read_merges(p, json_object_get(m, "merges")));
    if (t->byte_level) {
        SP_TRY(check_bytes(t));
    } else {
        if (!json_is_true(json_object_get(m, "byte_fallback")))
            return sp_error(SP_BAD_INPUT, "a vocabulary of characters without byte fallback, which "
                                          "is not supported");
        if (t->ignore_merges)
            return sp_error(SP_BAD_INPUT, "a vocabulary of characters with ignore_merges, which is "
                                          "not supported");
        SP_TRY(sp_tokenizer_fallback(t));
        bool must = t->split_blanks;
        sp_tokenizer_find_splits(t);
        if (must && !t->split_blanks)
            return sp_error(SP_BAD_INPUT, "a Metaspace that splits, but tokens that reach over the "
                                          "places, is not supported");
        t->bytes_together = true;
    }
    SP_TRY(read_decoder(p, json_object_get(root, "decoder"), 0));
    SP_TRY(read_added(p, json_object_get(root, "added_tokens")));
    while (t->n > 0 && !t->token[t->n - 1].known) t->n--;
    return SP_OK;
}

sp_status sp_tokenizer_from_json(const char *name, const char *text, int64_t n, sp_tokenizer *t) {
    json_t *root;
    parser p = {.t = t};
    make_alphabet();
    SP_TRY(sp_json_parse(text, n, name, &root));
    sp_status st = read_root(&p, root);
    json_decref(root);
    if (st == SP_BAD_INPUT) sp_error_prefix("%s", name);
    return st;
}
