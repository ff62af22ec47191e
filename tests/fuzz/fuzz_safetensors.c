// Any bytes as a safetensors file: never a crash; what is accepted lies inside the bytes, covers
// the data area exactly and can be read.
// seed: tests/fuzz/seeds/small.safetensors
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint8_t *exact = malloc(bytes ? bytes : 1); // so that the sanitizer sees one byte too many
    if (!exact) return 0;
    if (bytes) memcpy(exact, data, bytes);
    sp_st *s;
    if (sp_st_parse(exact, (int64_t)bytes, "fuzz", &s) == SP_OK) {
        uint64_t header = 0;
        int64_t covered = 0;
        for (int i = 0; i < 8; i++) header |= (uint64_t)exact[i] << 8 * i;
        for (int64_t i = 0; i < s->n; i++) {
            const sp_st_tensor *t = &s->tensor[i];
            bool inside = t->data >= exact + 8 + header && t->data + t->bytes <= exact + bytes;
            float *values = malloc(t->elements ? (size_t)t->elements * sizeof *values : 1);
            if (!inside || !values || sp_st_find(s, t->name) != t) {
                fprintf(stderr, "tensor %s is not where it should be\n", t->name);
                abort();
            }
            (void)sp_st_read_f32(s, t, values);
            free(values);
            covered += t->bytes;
        }
        if (covered != (int64_t)(bytes - 8 - header)) {
            fprintf(stderr, "the tensors do not cover the data area\n");
            abort();
        }
        sp_st_close(s);
    }
    free(exact);
    return 0;
}
