// Reader of torch .pt files (formats.md 3): a zip archive of stored entries, whose data.pkl is a
// pickle that names tensors in the other entries.
//
// The pickle is run by a stack machine that builds a tree of values and calls nothing: what is not
// known becomes an opaque value that can be carried and skipped. Every length, offset and count of
// the file is checked, so the reader may be fed anything.
//
// Ownership: an sp_pt owns its values; texts point into the file's bytes and are not terminated.
// Values may be shared and may even contain themselves: walk them with a bound on depth and count.
#ifndef SPARDA_CHECKPOINTS_PT_H
#define SPARDA_CHECKPOINTS_PT_H

#include "common/status.h"
#include "common/util.h"

#include <jansson.h>
#include <stdint.h>

// ---- values (pt_pickle.c) -----------------------------------------------------------------------

typedef enum sp_pt_kind {
    SP_PT_NONE,
    SP_PT_BOOL,
    SP_PT_INT,
    SP_PT_FLOAT,
    SP_PT_TEXT,
    SP_PT_BYTES,
    SP_PT_LIST,    // list, tuple, set: items
    SP_PT_DICT,    // items are key, value, key, value, ...
    SP_PT_GLOBAL,  // a name "module attribute": a type or function, never called
    SP_PT_STORAGE, // named bytes of the archive
    SP_PT_TENSOR,  // a view of a storage
    SP_PT_OPAQUE,  // an object of a type unknown to us; text: what made it
} sp_pt_kind;

typedef enum sp_pt_dtype {
    SP_PT_BF16,
    SP_PT_F16,
    SP_PT_F32,
    SP_PT_F64,
    SP_PT_U8,
    SP_PT_I8,
    SP_PT_I16,
    SP_PT_I32,
    SP_PT_I64,
    SP_PT_BOOLS,
} sp_pt_dtype;
const char *sp_pt_dtype_name(sp_pt_dtype t); // torch's: "bfloat16"
int64_t sp_pt_dtype_size(sp_pt_dtype t);

enum { SP_PT_MAX_DIMS = 8 };

typedef struct sp_pt_text {
    const char *data; // not terminated
    int64_t n;
} sp_pt_text;

typedef struct sp_pt_storage {
    sp_pt_dtype dtype;
    sp_pt_text key; // entry data/<key>
    int64_t elements;
} sp_pt_storage;

typedef struct sp_pt_tensor {
    sp_pt_storage storage;
    int64_t offset; // elements
    int dims;
    int64_t shape[SP_PT_MAX_DIMS], stride[SP_PT_MAX_DIMS]; // stride in elements
} sp_pt_tensor;

typedef struct sp_pt_value sp_pt_value;
struct sp_pt_value {
    sp_pt_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        sp_pt_text text; // TEXT, BYTES, GLOBAL, OPAQUE
        struct {
            sp_pt_value **item;
            int64_t n, cap;
        } list; // LIST, DICT
        sp_pt_storage storage;
        sp_pt_tensor *tensor;
    } u;
};

typedef struct sp_pickle sp_pickle;
// Runs `bytes` of pickle. `origin` names them in messages. SP_BAD_INPUT for anything malformed.
sp_status sp_pickle_run(const uint8_t *bytes, int64_t n, const char *origin, sp_pickle **out);
void sp_pickle_free(sp_pickle *p);
const sp_pt_value *sp_pickle_root(const sp_pickle *p);

bool sp_pt_text_is(sp_pt_text t, const char *s);
// The last value under a text key; NULL if `v` is no dictionary or has no such key.
const sp_pt_value *sp_pt_get(const sp_pt_value *v, const char *key);
// "a dictionary of 5", "a tensor", "an object of collections.Counter", for messages. Caller's
// buffer.
void sp_pt_describe(const sp_pt_value *v, char *text, size_t size);
// Numbers, texts, lists and dictionaries with text keys as JSON; everything else is left out.
// NULL if `v` is no dictionary, or out of memory. Caller owns it.
json_t *sp_pt_to_json(const sp_pt_value *v);

// ---- container (pt_zip.c) -----------------------------------------------------------------------

typedef struct sp_zip_entry {
    const char *name; // not terminated, in the file's bytes
    int64_t name_len;
    uint32_t crc;
    const uint8_t *data;
    int64_t bytes;
    bool stored; // neither compressed nor encrypted
} sp_zip_entry;

typedef struct sp_zip {
    sp_zip_entry *entry; // sorted by name
    int64_t n;
} sp_zip;

// The directory of an archive in memory; `entry` points into it. Sizes come from the central
// directory, data positions from the local headers (formats.md 3.1). Free with sp_zip_free.
sp_status sp_zip_open(const uint8_t *bytes, int64_t n, const char *origin, sp_zip *out);
void sp_zip_free(sp_zip *z);
const sp_zip_entry *sp_zip_find(const sp_zip *z, const char *name, int64_t name_len);

// ---- checkpoint (pt_read.c) ---------------------------------------------------------------------

typedef struct sp_pt {
    char *origin;
    sp_map map; // empty if parsed from memory
    sp_zip zip;
    sp_pickle *pickle;
    const char *top; // "ckpt-2000/", not terminated
    int64_t top_len;
    const sp_pt_value *root;
} sp_pt;

sp_status sp_pt_open(const char *path, sp_pt **out);
// The same from memory that outlives `out`.
sp_status sp_pt_parse(const uint8_t *bytes, int64_t n, const char *origin, sp_pt **out);
void sp_pt_close(sp_pt *p);

// The dictionary with the weights: under the first of state_dict, model_state_dict, model, net,
// weights that is a dictionary with Forecast tensors, else the root itself (inference.md 6.2).
// SP_BAD_INPUT, telling what is there, if there is none.
sp_status sp_pt_weights(const sp_pt *p, const sp_pt_value **dict);

// Elements of a tensor in row-major order, gathered through its strides, as F32; only floats (the
// caller has looked at the shape and allocated). The storage's CRC-32 is compared.
sp_status sp_pt_read_f32(const sp_pt *p, const sp_pt_tensor *t, const char *name, float *out);
// A whole number from an int, or a tensor with one element of an integer type. False if it is none.
bool sp_pt_read_int(const sp_pt *p, const sp_pt_value *v, int64_t *out);

#endif
