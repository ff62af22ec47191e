// Any bytes as a torch .pt, or as a bare pickle if they do not begin like a zip archive: never a
// crash, never a read beyond the bytes, whatever the directory, the pickle and the tensors claim.
// seed: tests/pt/ckpt-7.pt
// seed: tests/pt/views.pt
// seed: tests/pt/weights-f64.pt
// seed: tests/fuzz/seeds/ckpt.pkl
// seed: tests/fuzz/seeds/protocol4.pkl
#include "checkpoints/pt.h"
#include "common/hash.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MAX_ELEMENTS = 1 << 16, MAX_TENSORS = 64 };

static uint32_t le(const uint8_t *p, int n) {
    uint32_t v = 0;
    for (int i = n - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

// Makes the checksums right, or no mutation would ever get past them.
static void repair_checksums(uint8_t *b, size_t n) {
    for (size_t at = 0; n >= 46 && at <= n - 46; at++) {
        if (memcmp(b + at, "PK\1\2", 4) != 0) continue;
        size_t bytes = le(b + at + 20, 4), local = le(b + at + 42, 4);
        if (local > n - 30) continue;
        size_t start = local + 30 + le(b + local + 26, 2) + le(b + local + 28, 2);
        if (start > n || bytes > n - start) continue;
        uint32_t crc = sp_crc32(0, b + start, bytes);
        memcpy(b + at + 16, &crc, 4);
    }
}

static void read_tensors(const sp_pt *p, const sp_pt_value *dict) {
    int64_t read = 0;
    for (int64_t i = 0; i + 1 < dict->u.list.n && read < MAX_TENSORS; i += 2) {
        const sp_pt_value *v = dict->u.list.item[i + 1];
        int64_t elements = 1, ignored;
        if (v->kind != SP_PT_TENSOR) continue;
        bool small = true;
        for (int k = 0; k < v->u.tensor->dims && small; k++)
            small = sp_mul(elements, v->u.tensor->shape[k], &elements) && elements <= MAX_ELEMENTS;
        float *out = small ? malloc((size_t)elements * sizeof *out + 1) : NULL;
        if (out) (void)sp_pt_read_f32(p, v->u.tensor, "tensor", out);
        (void)sp_pt_read_int(p, v, &ignored);
        free(out);
        read++;
    }
}

static void look_at(const sp_pt_value *root) {
    char text[96];
    sp_pt_describe(root, text, sizeof text);
    json_decref(sp_pt_to_json(root));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint8_t *exact = malloc(bytes ? bytes : 1);
    if (!exact) return 0;
    if (bytes) memcpy(exact, data, bytes);
    sp_pt *p;
    sp_pickle *pickle;
    const sp_pt_value *dict;
    if (bytes >= 2 && memcmp(exact, "PK", 2) == 0) {
        repair_checksums(exact, bytes);
        if (sp_pt_parse(exact, (int64_t)bytes, "fuzz", &p) == SP_OK) {
            look_at(p->root);
            if (sp_pt_weights(p, &dict) == SP_OK) read_tensors(p, dict);
            sp_pt_close(p);
        }
    } else if (sp_pickle_run(exact, (int64_t)bytes, "fuzz", &pickle) == SP_OK) {
        look_at(sp_pickle_root(pickle));
        sp_pickle_free(pickle);
    }
    free(exact);
    return 0;
}
