// torch .pt checkpoints: opening, finding the weights (inference.md 6.2), reading tensors.
#include "checkpoints/internal.h"
#include "checkpoints/pt.h"
#include "common/contents.h"
#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool begins(const uint8_t *b, int64_t n, const char *magic, int64_t len) {
    return n >= len && memcmp(b, magic, (size_t)len) == 0;
}

// Why these bytes are no zip archive.
static sp_status not_a_zip(const uint8_t *b, int64_t n, const char *origin) {
    if (begins(b, n, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14))
        return sp_error(
            SP_BAD_INPUT,
            "%s has torch's old format (before 1.6, or "
            "_use_new_zipfile_serialization=False), which is not read; load it in torch "
            "and save it again with torch.save(obj, path)",
            origin);
    if (n >= 2 && b[0] == 0x80 && b[1] >= 2 && b[1] <= 5)
        return sp_error(SP_BAD_INPUT,
                        "%s is a bare Python pickle, not a torch checkpoint; save the state "
                        "dictionary with torch.save(obj, path)",
                        origin);
    const char *what = sp_contents_of(b, n);
    return sp_error(SP_BAD_INPUT, "%s is no torch checkpoint (a zip archive): %s%s", origin,
                    what ? "this is " : "it does not begin with 'PK'", what ? what : "");
}

// The entry "<top>/data.pkl" (or "data.pkl") that makes an archive a torch file.
static const sp_zip_entry *find_pickle(const sp_zip *z) {
    static const char name[] = "data.pkl";
    int64_t len = sizeof name - 1;
    for (int64_t i = 0; i < z->n; i++) {
        const sp_zip_entry *e = &z->entry[i];
        if (e->name_len < len || memcmp(e->name + e->name_len - len, name, (size_t)len) != 0)
            continue;
        const char *slash = memchr(e->name, '/', (size_t)e->name_len);
        if (!slash ? e->name_len == len : slash + 1 == e->name + e->name_len - len) return e;
    }
    return NULL;
}

// Entry <top><a><b>.
static const sp_zip_entry *find_entry(const sp_pt *p, const char *a, sp_pt_text b) {
    sp_text name = {0};
    sp_text_bytes(&name, p->top, (size_t)p->top_len);
    sp_text_add(&name, "%s", a);
    sp_text_bytes(&name, b.data, (size_t)b.n);
    const sp_zip_entry *e = name.data ? sp_zip_find(&p->zip, name.data, (int64_t)name.len) : NULL;
    sp_text_free(&name);
    return e;
}

static sp_status check_entry(const sp_pt *p, const sp_zip_entry *e) {
    if (!e->stored)
        return sp_error(SP_BAD_INPUT,
                        "%s: entry %.*s is compressed or encrypted, which torch never does; "
                        "save the file again with torch.save",
                        p->origin, (int)e->name_len, e->name);
    if (sp_crc32(0, e->data, (size_t)e->bytes) != e->crc)
        return sp_error(SP_BAD_INPUT,
                        "%s: entry %.*s does not match its CRC-32: the file is damaged (or was "
                        "saved with CRC computation switched off); copy or save it again",
                        p->origin, (int)e->name_len, e->name);
    return SP_OK;
}

static sp_status parse(sp_pt *p, const uint8_t *bytes, int64_t n) {
    if (!begins(bytes, n, "PK\x03\x04", 4)) return not_a_zip(bytes, n, p->origin);
    SP_TRY(sp_zip_open(bytes, n, p->origin, &p->zip));
    const sp_zip_entry *pickle = find_pickle(&p->zip);
    if (!pickle)
        return sp_error(SP_BAD_INPUT,
                        "%s is a zip archive without <folder>/data.pkl, so no torch checkpoint",
                        p->origin);
    p->top = pickle->name;
    p->top_len = pickle->name_len - (int64_t)strlen("data.pkl");
    SP_TRY(check_entry(p, pickle));
    const sp_zip_entry *order = find_entry(p, "byteorder", (sp_pt_text){"", 0});
    if (order && !begins(order->data, order->bytes, "little", 6))
        return sp_error(SP_BAD_INPUT, "%s was saved on a big-endian machine, which is not read",
                        p->origin);
    SP_TRY(sp_pickle_run(pickle->data, pickle->bytes, p->origin, &p->pickle));
    p->root = sp_pickle_root(p->pickle);
    return SP_OK;
}

sp_status sp_pt_parse(const uint8_t *bytes, int64_t n, const char *origin, sp_pt **out) {
    *out = NULL;
    sp_pt *p;
    SP_TRY(sp_alloc(&p, 1, sizeof *p, "a torch checkpoint"));
    sp_status st = (p->origin = sp_strdup(origin)) ? parse(p, bytes, n)
                                                   : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK)
        *out = p;
    else
        sp_pt_close(p);
    return st;
}

sp_status sp_pt_open(const char *path, sp_pt **out) {
    *out = NULL;
    sp_map map;
    SP_TRY(sp_map_open(path, &map));
    sp_status st = sp_pt_parse(map.data, map.bytes, path, out);
    if (st == SP_OK)
        (*out)->map = map;
    else
        sp_map_close(&map);
    return st;
}

void sp_pt_close(sp_pt *p) {
    if (!p) return;
    sp_pickle_free(p->pickle);
    sp_zip_free(&p->zip);
    sp_map_close(&p->map);
    free(p->origin);
    free(p);
}

static bool has_forecast(const sp_pt_value *dict) {
    for (int64_t i = 0; i + 1 < dict->u.list.n; i += 2) {
        const sp_pt_value *k = dict->u.list.item[i];
        if (k->kind == SP_PT_TEXT && sp_forecast_like(k->u.text.data, k->u.text.n)) return true;
    }
    return false;
}

// "a, b, c and 12 more": the keys of a dictionary.
static void list_keys(const sp_pt_value *dict, sp_text *out) {
    int64_t shown = 0;
    for (int64_t i = 0; i + 1 < dict->u.list.n && shown < 12; i += 2) {
        const sp_pt_value *k = dict->u.list.item[i];
        char text[256];
        sp_pt_describe(k, text, sizeof text);
        sp_text_add(out, "%s%s", shown++ ? ", " : "", text);
    }
    if (dict->u.list.n / 2 > shown)
        sp_text_add(out, " and %lld more", (long long)(dict->u.list.n / 2 - shown));
}

sp_status sp_pt_weights(const sp_pt *p, const sp_pt_value **dict) {
    static const char *const wrappers[] = {"state_dict", "model_state_dict", "model", "net",
                                           "weights"};
    const sp_pt_value *root = p->root;
    *dict = NULL;
    if (root->kind != SP_PT_DICT) {
        char what[320];
        sp_pt_describe(root, what, sizeof what);
        return sp_error(SP_BAD_INPUT,
                        "%s holds %s, not a dictionary of tensors; save model.state_dict()",
                        p->origin, what);
    }
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++) {
        const sp_pt_value *inner = sp_pt_get(root, wrappers[i]);
        if (inner && inner->kind == SP_PT_DICT && has_forecast(inner)) {
            *dict = inner;
            return SP_OK;
        }
    }
    if (has_forecast(root)) {
        *dict = root;
        return SP_OK;
    }
    sp_text keys = {0};
    list_keys(root, &keys);
    sp_status st = sp_error(SP_BAD_INPUT,
                            "%s holds no q_future_proj or q_curr_proj tensors (looked at the top "
                            "and under state_dict, model_state_dict, model, net, weights); its "
                            "keys: %s",
                            p->origin, keys.data ? keys.data : "none");
    sp_text_free(&keys);
    return st;
}

// The storage's bytes, and that every element of the tensor lies inside.
static sp_status locate(const sp_pt *p, const sp_pt_tensor *t, const char *name,
                        const sp_zip_entry **entry, int64_t *elements) {
    const sp_pt_storage *s = &t->storage;
    const sp_zip_entry *e = find_entry(p, "data/", s->key);
    int64_t bytes, last = t->offset;
    *elements = 1;
    if (!e)
        return sp_error(SP_BAD_INPUT, "%s: the bytes of %s are missing (entry data/%.*s)",
                        p->origin, name, (int)s->key.n, s->key.data);
    if (!sp_mul(s->elements, sp_pt_dtype_size(s->dtype), &bytes) || bytes > e->bytes)
        return sp_error(SP_BAD_INPUT,
                        "%s: %s needs a storage of %lld elements, entry has %lld "
                        "bytes",
                        p->origin, name, (long long)s->elements, (long long)e->bytes);
    for (int i = 0; i < t->dims; i++)
        if (!sp_mul(*elements, t->shape[i], elements))
            return sp_error(SP_BAD_INPUT, "%s: %s has an impossible shape", p->origin, name);
    bool inside = t->offset >= 0;
    for (int i = 0; inside && *elements && i < t->dims; i++) {
        int64_t reach;
        inside = sp_mul(t->shape[i] - 1, t->stride[i], &reach) && sp_add(last, reach, &last);
    }
    if (!inside || (*elements && last >= s->elements))
        return sp_error(SP_BAD_INPUT, "%s: %s reaches outside its storage of %lld elements",
                        p->origin, name, (long long)s->elements);
    *entry = e;
    return check_entry(p, e);
}

static float element(sp_pt_dtype t, const uint8_t *p) {
    uint16_t h;
    float f;
    double d;
    switch (t) {
    case SP_PT_BF16:
        memcpy(&h, p, 2);
        return sp_bf16_to_f32(h);
    case SP_PT_F16:
        memcpy(&h, p, 2);
        return sp_f16_to_f32(h);
    case SP_PT_F32:
        memcpy(&f, p, 4);
        return f;
    default:
        memcpy(&d, p, 8);
        return (float)d;
    }
}

sp_status sp_pt_read_f32(const sp_pt *p, const sp_pt_tensor *t, const char *name, float *out) {
    const sp_zip_entry *e;
    int64_t elements, index[SP_PT_MAX_DIMS] = {0}, at = t->offset;
    sp_pt_dtype type = t->storage.dtype;
    if (type > SP_PT_F64)
        return sp_error(SP_BAD_INPUT, "%s: %s has the type %s, expected floats", p->origin, name,
                        sp_pt_dtype_name(type));
    SP_TRY(locate(p, t, name, &e, &elements));
    int64_t size = sp_pt_dtype_size(type);
    for (int64_t n = 0; n < elements; n++) {
        out[n] = element(type, e->data + at * size);
        for (int i = t->dims - 1; i >= 0; i--) { // odometer: the last index turns fastest
            at += t->stride[i];
            if (++index[i] < t->shape[i]) break;
            at -= index[i] * t->stride[i];
            index[i] = 0;
        }
    }
    return SP_OK;
}

bool sp_pt_read_int(const sp_pt *p, const sp_pt_value *v, int64_t *out) {
    if (!v) return false;
    if (v->kind == SP_PT_INT) {
        *out = v->u.i;
        return true;
    }
    const sp_zip_entry *e;
    int64_t elements;
    if (v->kind != SP_PT_TENSOR || v->u.tensor->storage.dtype != SP_PT_I64) return false;
    if (locate(p, v->u.tensor, "a number", &e, &elements) != SP_OK) {
        sp_error_clear();
        return false;
    }
    if (elements != 1) return false;
    memcpy(out, e->data + v->u.tensor->offset * 8, 8);
    return true;
}
