// Any bytes as a tokenizer file: never a crash; what is accepted encodes and decodes any text, into
// ids below its vocabulary.
// seed: tests/tokenizers/small.json
// seed: tests/tokenizers/small-marks.json
// seed: tests/tokenizers/small.model
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool ok) {
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const texts[] = {"", "a",
                                        " hello  world's 123\n\n\xe4\xb8\xad\xe2\x96\x81x ",
                                        "\xff\xf0\x9f\x98", "<s>ab<tool> ab"};
    sp_tokenizer *t;
    sp_coder *c, *back;
    if (sp_tokenizer_parse("fuzz", data, (int64_t)bytes, &t) != SP_OK) {
        sp_error_clear();
        return 0;
    }
    require(sp_coder_new(t, &c) == SP_OK && sp_coder_new(t, &back) == SP_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] + 1; i++) {
        const int32_t *ids;
        int64_t n, m;
        const char *text;
        // also the file itself as a text
        bool own = i == sizeof texts / sizeof texts[0];
        const char *from = own ? (const char *)data : texts[i];
        int64_t length = own ? (int64_t)(bytes < 2000 ? bytes : 2000) : (int64_t)strlen(texts[i]);
        if (sp_encode(c, from, length, &ids, &n) != SP_OK) { // a pattern that finds no end
            sp_error_clear();
            continue;
        }
        for (int64_t k = 0; k < n; k++) require(ids[k] >= 0 && ids[k] < sp_tokenizer_vocab(t));
        require(sp_decode(back, ids, n, &text, &m) == SP_OK);
        require(m >= 0);
    }
    sp_coder_free(c);
    sp_coder_free(back);
    sp_tokenizer_close(t);
    return 0;
}
