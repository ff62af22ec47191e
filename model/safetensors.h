// safetensors files (formats.md 2): reading with every length checked, sharded folders, writing.
//
// Reading maps the files: a tensor's bytes are borrowed from the mapping until sp_st_close. All
// problems of a file or folder come in one SP_BAD_INPUT error. Repeated names are refused by name
// before offsets are looked at, and contents that are something else are recognised (bugs.md
// S01-S04). Memory is bounded by a multiple of the headers, never by a number read from a file.
#ifndef SPARDA_SAFETENSORS_H
#define SPARDA_SAFETENSORS_H

#include "common/status.h"
#include "common/util.h"

#include <jansson.h>
#include <stdint.h>

// In the reference writer's order: wide types last, so that writing in descending order aligns all.
typedef enum sp_st_dtype {
    SP_ST_BOOL,
    SP_ST_U8,
    SP_ST_I8,
    SP_ST_F8_E5M2,
    SP_ST_F8_E4M3,
    SP_ST_F8_E8M0,
    SP_ST_F8_E4M3FNUZ,
    SP_ST_F8_E5M2FNUZ,
    SP_ST_I16,
    SP_ST_U16,
    SP_ST_F16,
    SP_ST_BF16,
    SP_ST_I32,
    SP_ST_U32,
    SP_ST_F32,
    SP_ST_C64,
    SP_ST_F64,
    SP_ST_I64,
    SP_ST_U64,
} sp_st_dtype;
const char *sp_st_dtype_name(sp_st_dtype t); // as in the file: "BF16"
int64_t sp_st_dtype_size(sp_st_dtype t);     // bytes

enum { SP_ST_MAX_DIMS = 8 };

typedef struct sp_st_tensor {
    char *name;
    sp_st_dtype dtype;
    int dims; // 0 for a scalar
    int64_t shape[SP_ST_MAX_DIMS];
    int64_t elements, bytes;
    const uint8_t *data; // into the mapping, row-major, little-endian; no alignment promised
    int file;            // index into sp_st.files
} sp_st_tensor;

typedef struct sp_st {
    sp_st_tensor *tensor; // sorted by name
    int64_t n;
    char **files; // paths of the shards
    sp_map *maps;
    int64_t n_files;
    json_t *metadata; // a single file's __metadata__ (an object of strings), else NULL
} sp_st;

// A file, or a folder holding model.safetensors or model.safetensors.index.json. sp_st_close frees.
sp_status sp_st_open(const char *path, sp_st **out);
// The same of a file's image in memory, which must outlive the result; `origin` names it.
sp_status sp_st_parse(const void *image, int64_t bytes, const char *origin, sp_st **out);
void sp_st_close(sp_st *s);                                       // safe on NULL
const sp_st_tensor *sp_st_find(const sp_st *s, const char *name); // NULL if absent
// "[256, 4096]" for messages. Caller frees; NULL without memory.
char *sp_st_shape_text(int dims, const int64_t *shape);

// F32 copy of a float tensor (F32, F16, BF16, F64); other types are SP_BAD_INPUT.
sp_status sp_st_read_f32(const sp_st *s, const sp_st_tensor *t, float *out);
// Copy of an I32 tensor; other types are SP_BAD_INPUT.
sp_status sp_st_read_i32(const sp_st *s, const sp_st_tensor *t, int32_t *out);

// Writing: tensors in the reference writer's order (wide types first, then by name), metadata by
// key, header padded to 8 bytes, "format": "pt" always in the metadata. The bytes of the file
// depend on the arguments alone. Complete or absent.
typedef struct sp_st_out {
    const char *name;
    sp_st_dtype dtype;
    int dims;
    int64_t shape[SP_ST_MAX_DIMS];
    const void *data; // packed
} sp_st_out;
// `metadata`: object of string values, or NULL; borrowed.
sp_status sp_st_write(const char *path, const sp_st_out *tensors, int64_t n, json_t *metadata);

#endif
