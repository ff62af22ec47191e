// Any text as a configuration: never a crash; what is accepted prints to a text that loads to the
// same values.
// seed: configs/reference.yaml
// seed: configs/tiny.yaml
// seed: configs/minicpm4.1-8b.yaml
#include "common/config.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char *text = malloc(bytes + 1), *first = NULL, *second = NULL;
    if (!text) return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    sp_config *c = NULL, *again = NULL;
    if (sp_config_parse(text, "fuzz", &c) == SP_OK) {
        if (sp_config_print(c, true, &first) != SP_OK ||
            sp_config_parse(first, "printed", &again) != SP_OK) {
            fprintf(stderr, "accepted, but its printed form is not: %s\n%s\n", sp_error_text(),
                    first ? first : "");
            abort();
        }
        free(first);
        first = NULL;
        if (sp_config_print(c, false, &first) != SP_OK ||
            sp_config_print(again, false, &second) != SP_OK || strcmp(first, second) != 0) {
            fprintf(stderr, "printed and read again, other values:\n%s\n%s\n", first, second);
            abort();
        }
    }
    sp_config_free(c);
    sp_config_free(again);
    free(first);
    free(second);
    free(text);
    return 0;
}
