// What a tokenizer is made of, and from which file.
#include "common/contents.h"
#include "common/hash.h"
#include "common/json.h"
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 28, TOKENS_MAX = 1 << 24 };

// ---- tokens -------------------------------------------------------------------------------------

sp_status sp_tokenizer_set(sp_tokenizer *t, int64_t id, const char *bytes, size_t n) {
    if (id < 0 || id >= TOKENS_MAX || n > INT32_MAX)
        return sp_error(SP_BAD_INPUT, "token %lld; ids must be 0 to %d", (long long)id,
                        TOKENS_MAX - 1);
    if (id >= t->n) {
        int64_t cap = id + 1 > 2 * t->n ? id + 1 : 2 * t->n;
        sp_token *grown = realloc(t->token, (size_t)cap * sizeof *grown);
        if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for a vocabulary");
        memset(grown + t->n, 0, (size_t)(cap - t->n) * sizeof *grown);
        t->token = grown;
        t->n = cap;
    }
    sp_token *k = &t->token[id];
    char *copy = malloc(n + 1);
    if (!copy) return sp_error(SP_ENVIRONMENT, "out of memory for a vocabulary");
    memcpy(copy, bytes, n);
    copy[n] = 0;
    free(k->bytes);
    *k = (sp_token){.bytes = copy, .n = (int32_t)n, .known = true, .byte = -1};
    return SP_OK;
}

static uint64_t power_above(int64_t n) {
    uint64_t p = 16;
    while (p < 2 * (uint64_t)n) p *= 2;
    return p;
}

sp_status sp_tokenizer_index(sp_tokenizer *t) {
    while (t->n > 0 && !t->token[t->n - 1].known) t->n--; // what growing left over
    uint64_t size = power_above(t->n);
    free(t->by_text);
    SP_TRY(sp_alloc(&t->by_text, (int64_t)size, sizeof *t->by_text, "a vocabulary"));
    memset(t->by_text, 0xff, size * sizeof *t->by_text);
    t->text_mask = size - 1;
    for (int64_t id = 0; id < t->n; id++) {
        const sp_token *k = &t->token[id];
        if (!k->known || sp_tokenizer_find(t, k->bytes, (size_t)k->n) != SP_NO_TOKEN) continue;
        uint64_t at = sp_xxh3(k->bytes, (size_t)k->n) & t->text_mask;
        while (t->by_text[at] >= 0) at = (at + 1) & t->text_mask;
        t->by_text[at] = (int32_t)id;
    }
    return SP_OK;
}

int32_t sp_tokenizer_find(const sp_tokenizer *t, const char *bytes, size_t n) {
    uint64_t at = sp_xxh3(bytes, n) & t->text_mask;
    for (; t->by_text[at] >= 0; at = (at + 1) & t->text_mask) {
        const sp_token *k = &t->token[t->by_text[at]];
        if ((size_t)k->n == n && memcmp(k->bytes, bytes, n) == 0) return t->by_text[at];
    }
    return SP_NO_TOKEN;
}

sp_status sp_tokenizer_fallback(sp_tokenizer *t) {
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        int32_t id = sp_tokenizer_find(t, name, 6);
        if (id == SP_NO_TOKEN)
            return sp_error(SP_BAD_INPUT,
                            "the token %s is missing; a vocabulary of characters is read only with "
                            "all 256 fallback bytes",
                            name);
        t->byte_id[b] = id;
        t->token[id].byte = (int16_t)b;
    }
    return SP_OK;
}

// ---- pairs --------------------------------------------------------------------------------------

sp_status sp_tokenizer_pairs(sp_tokenizer *t, int64_t n) {
    uint64_t size = power_above(n);
    SP_TRY(sp_alloc(&t->pair, (int64_t)size, sizeof *t->pair, "a table of merges"));
    for (uint64_t i = 0; i < size; i++) t->pair[i].key = UINT64_MAX;
    t->pair_mask = size - 1;
    return SP_OK;
}

void sp_tokenizer_pair(sp_tokenizer *t, int32_t left, int32_t right, int32_t rank, int32_t id) {
    const uint64_t key = (uint64_t)left << 32 | (uint32_t)right;
    uint64_t at = sp_mix64(key) & t->pair_mask;
    while (t->pair[at].key != UINT64_MAX && t->pair[at].key != key) at = (at + 1) & t->pair_mask;
    t->pair[at] = (sp_pair){key, rank, id}; // of two equal ones the later counts
}

// ---- added tokens -------------------------------------------------------------------------------

sp_status sp_added_add(sp_added_list *list, const char *text, size_t n, int32_t id) {
    if (n == 0) return SP_OK;
    sp_added *grown = realloc(list->at, (size_t)(list->n + 1) * sizeof *grown);
    if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for added tokens");
    list->at = grown;
    char *copy = malloc(n); // may contain zero bytes
    if (!copy) return sp_error(SP_ENVIRONMENT, "out of memory for added tokens");
    memcpy(copy, text, n);
    grown[list->n++] = (sp_added){.text = copy, .n = (int32_t)n, .id = id};
    return SP_OK;
}

static int by_byte_and_length(const void *a, const void *b) {
    const sp_added *x = a, *y = b;
    int fx = (uint8_t)x->text[0], fy = (uint8_t)y->text[0];
    if (fx != fy) return fx - fy;
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void sp_added_sort(sp_added_list *list) {
    if (list->n) qsort(list->at, (size_t)list->n, sizeof *list->at, by_byte_and_length);
    int64_t k = 0;
    for (int b = 0; b <= 256; b++) {
        while (k < list->n && (uint8_t)list->at[k].text[0] < b) k++;
        list->first[b] = (int32_t)k;
    }
}

static void free_added(sp_added_list *list) {
    for (int64_t i = 0; i < list->n; i++) free(list->at[i].text);
    free(list->at);
}

// A token such as "x_y", with a mark behind another character, may come from both sides of the
// place where a word would be cut.
void sp_tokenizer_find_splits(sp_tokenizer *t) {
    t->split_blanks = true;
    for (int64_t id = 0; id < t->n && t->split_blanks; id++) {
        const sp_token *k = &t->token[id];
        bool other = false;
        for (int32_t i = 0; k->known && i < k->n; i++) {
            bool mark = k->n - i >= SP_BLANK_MARK_BYTES &&
                        memcmp(k->bytes + i, SP_BLANK_MARK, SP_BLANK_MARK_BYTES) == 0;
            if (mark && other) t->split_blanks = false;
            if (mark)
                i += SP_BLANK_MARK_BYTES - 1;
            else
                other = true;
        }
    }
}

// ---- files --------------------------------------------------------------------------------------

void sp_tokenizer_close(sp_tokenizer *t) {
    if (!t) return;
    for (int64_t i = 0; i < t->n; i++) free(t->token[i].bytes);
    for (int i = 0; i < t->n_splits; i++) pcre2_code_free(t->split[i].code);
    free_added(&t->raw);
    free_added(&t->normalised);
    free(t->token);
    free(t->by_text);
    free(t->pair);
    free(t->identity);
    free(t);
}

sp_status sp_tokenizer_parse(const char *name, const void *bytes, int64_t n, sp_tokenizer **out) {
    sp_tokenizer *t;
    *out = NULL;
    SP_TRY(sp_alloc(&t, 1, sizeof *t, "a tokenizer"));
    const char *what = n > 0 && *(const char *)bytes == '{' ? NULL : sp_contents_of(bytes, n);
    sp_status st = what ? sp_error(SP_BAD_INPUT, "%s is no tokenizer; this is %s", name, what)
                   : n > 0 && *(const char *)bytes == '{'
                       ? sp_tokenizer_from_json(name, bytes, n, t)
                       : sp_tokenizer_from_model(name, bytes, n, t);
    if (st == SP_OK) {
        sp_added_sort(&t->raw);
        sp_added_sort(&t->normalised);
        *out = t;
    } else {
        sp_tokenizer_close(t);
    }
    return st;
}

static char *find_file(const char *path) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    if (!sp_path_is_dir(path)) return sp_strdup(path);
    for (int i = 0; i < 2; i++) {
        char *file = sp_path_join(path, names[i]);
        if (file && sp_path_is_file(file)) return file;
        free(file);
    }
    return NULL;
}

static bool read_clean_up(const char *dir) {
    char *path = sp_path_join(dir, "tokenizer_config.json");
    json_t *root = NULL;
    bool yes = false;
    if (path && sp_path_is_file(path) && sp_json_load(path, FILE_MAX, &root) == SP_OK)
        yes = json_is_true(json_object_get(root, "clean_up_tokenization_spaces"));
    sp_error_clear();
    json_decref(root);
    free(path);
    return yes;
}

sp_status sp_tokenizer_open(const char *path, sp_tokenizer **out) {
    char *file = find_file(path), *text = NULL, *dir = NULL, *real = NULL, hex[SP_SHA256_HEX];
    int64_t n;
    sp_status st = SP_OK;
    *out = NULL;
    if (!file)
        return sp_error(SP_BAD_INPUT, "%s holds neither tokenizer.json nor tokenizer.model", path);
    SP_GO(sp_read_file(file, FILE_MAX, &text, &n));
    SP_GO(sp_tokenizer_parse(file, text, n, out));
    SP_GO(sp_sha256_of(text, (size_t)n, hex));
    dir = sp_path_dir(file);
    real = dir ? realpath(dir, NULL) : NULL;
    (*out)->identity =
        sp_format("%s %s sha256:%.16s", sp_path_base(real ? real : path), sp_path_base(file), hex);
    (*out)->cleans_up = dir && read_clean_up(dir);
    if (!(*out)->identity) st = sp_error(SP_ENVIRONMENT, "out of memory");
done:
    if (st != SP_OK) {
        sp_tokenizer_close(*out);
        *out = NULL;
    }
    free(real);
    free(dir);
    free(text);
    free(file);
    return st;
}

int64_t sp_tokenizer_vocab(const sp_tokenizer *t) {
    return t->n;
}
const char *sp_tokenizer_identity(const sp_tokenizer *t) {
    return t->identity;
}
bool sp_tokenizer_cleans_up(const sp_tokenizer *t) {
    return t->cleans_up;
}
