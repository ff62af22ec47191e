// See identity.h.
#include "data/identity.h"
#include "common/hash.h"
#include "common/util.h"
#include "data/corpus.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const tokenizer_files[] = {"tokenizer.json", "tokenizer.model"};
enum { FILES = 2, SHOWN = 16 }; // digits of a hash that an identity shows

// The hash of the i-th file of a folder, empty if it is not there.
static sp_status hash_of(const char *dir, int i, char hex[SP_SHA256_HEX]) {
    char *path = sp_path_join(dir, tokenizer_files[i]);
    hex[0] = 0;
    sp_status st = path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK && sp_path_is_file(path)) st = sp_sha256_file(path, hex);
    free(path);
    return st;
}

sp_status sp_tokenizer_of_model(const char *dir, char **identity) {
    char *real = realpath(dir, NULL), hex[SP_SHA256_HEX];
    const char *name = sp_path_base(real ? real : dir);
    sp_status st = SP_OK;
    *identity = NULL;
    for (int i = 0; i < FILES && st == SP_OK && !*identity; i++) {
        st = hash_of(dir, i, hex);
        if (st == SP_OK && hex[0])
            *identity = sp_format("%s %s sha256:%.*s", name, tokenizer_files[i], SHOWN, hex);
    }
    if (st == SP_OK && !*identity) *identity = sp_strdup(name);
    free(real);
    return st != SP_OK || *identity ? st : sp_error(SP_ENVIRONMENT, "out of memory");
}

// The bytes of an identity "NAME FILE sha256:HEX" that name the tokenizer; all of another text.
static size_t name_length(const char *identity) {
    const char *end = strstr(identity, " sha256:");
    while (end && end > identity && end[-1] != ' ') end--;
    return end && end > identity ? (size_t)(end - identity) - 1 : strlen(identity);
}

static size_t digits(const char *hash) {
    return strspn(hash, "0123456789abcdefABCDEF");
}

// The hash that an identity states; NULL if it states none, or too little of it to tell.
static const char *stated_hash(const char *identity) {
    enum { FEWEST = 8 };
    const char *at = strstr(identity, "sha256:");
    if (at) at += strlen("sha256:");
    return at && digits(at) >= FEWEST ? at : NULL;
}

static bool same_hash(const char *x, const char *y) {
    size_t n = digits(x), m = digits(y); // one may have been cut
    return strncasecmp(x, y, n < m ? n : m) == 0;
}

bool sp_tokenizers_may_be_equal(const char *a, const char *b) {
    const char *x = stated_hash(a), *y = stated_hash(b);
    if (x && y) return same_hash(x, y);
    size_t n = name_length(a);
    return n == name_length(b) && strncmp(a, b, n) == 0;
}

sp_status sp_tokenizer_may_be_of_model(const char *identity, const char *dir, bool *may) {
    const char *stated = stated_hash(identity);
    bool synthetic = strcmp(identity, SP_CORPUS_TOKENIZER) == 0, any = false;
    *may = true;
    if (!stated && !synthetic) return SP_OK;
    for (int i = 0; i < FILES; i++) {
        char hex[SP_SHA256_HEX];
        SP_TRY(hash_of(dir, i, hex));
        if (!hex[0]) continue;
        any = true;
        if (stated && same_hash(stated, hex)) return SP_OK;
    }
    *may = !any;
    return SP_OK;
}
