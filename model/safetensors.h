// safetensors files (formats.md 2): reading with every length checked, sharded folders, writing.
#ifndef SPARDA_SAFETENSORS_H
#define SPARDA_SAFETENSORS_H

#include "common/status.h"
#include "common/util.h"

#include <jansson.h>
#include <stdint.h>

typedef enum sp_st_dtype {
    SP_ST_BOOL, SP_ST_U8, SP_ST_I8, SP_ST_I16, SP_ST_U16, SP_ST_F16, SP_ST_BF16, SP_ST_I32,
    SP_ST_U32, SP_ST_F32, SP_ST_F64, SP_ST_I64, SP_ST_U64, SP_ST_F8_E4M3, SP_ST_F8_E5M2,
    SP_ST_F8_E8M0, SP_ST_F8_E4M3FNUZ, SP_ST_F8_E5M2FNUZ, SP_ST_C64,
} sp_st_dtype;
const char *sp_st_dtype_name(sp_st_dtype t);
int64_t sp_st_dtype_size(sp_st_dtype t);

enum { SP_ST_MAX_DIMS = 8 };

typedef struct sp_st_tensor {
    char *name;
    sp_st_dtype dtype;
    int dims;
    int64_t shape[SP_ST_MAX_DIMS];
    int64_t elements, bytes;
    const uint8_t *data; // into the mapping; no alignment promised; NULL for headers only
    int file;            // index into sp_st.files
} sp_st_tensor;

typedef struct sp_st {
    sp_st_tensor *tensor; // sorted by name
    int64_t n;
    char **files; // paths of the shards
    sp_map *maps;
    int64_t n_files;
    json_t *metadata; // of a single file's __metadata__, else NULL
} sp_st;

// A file, or a folder holding model.safetensors or model.safetensors.index.json. Everything of
// formats.md 2 and of the wrong-contents list (LFS pointer, HTML, zip, short file) is checked and
// all problems are reported at once, SP_BAD_INPUT.
sp_status sp_st_open(const char *path, sp_st **out);
void sp_st_close(sp_st *s);
const sp_st_tensor *sp_st_find(const sp_st *s, const char *name); // NULL if absent
// F32 copy of a float tensor (F32, F16, BF16, F64); other types are SP_BAD_INPUT.
sp_status sp_st_read_f32(const sp_st *s, const sp_st_tensor *t, float *out);
sp_status sp_st_read_i32(const sp_st *s, const sp_st_tensor *t, int32_t *out);

// Writing: tensors in the reference writer's order (wide types first, then by name), header padded
// to 8 bytes, "format": "pt" always in the metadata, complete or absent.
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
