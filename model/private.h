// Between the files that read a base model: config.c, weights.c, describe.c, load.c.
#ifndef SPARDA_MODEL_PRIVATE_H
#define SPARDA_MODEL_PRIVATE_H

#include "model/model.h"
#include "model/safetensors.h"

// ---- config.c -----------------------------------------------------------------------------------

typedef struct sp_config_verdict {
    bool shapes_known; // dimensions are good enough to say which tensors there must be
} sp_config_verdict;

// Fills the description from d->config; problems go to the list.
sp_status sp_model_read_config(sp_model_desc *d, const sp_recipe *recipe, sp_problems *p,
                               sp_config_verdict *verdict);

// The values of a sparse configuration as a table: key in config.json, value, source, smallest
// value.
typedef struct sp_sparse_field {
    const char *key;
    int64_t *value;
    sp_source *from;
    int64_t least;
} sp_sparse_field;
enum { SP_SPARSE_NEEDED = 7, SP_SPARSE_FIELDS = 8 }; // the last, select_blocks, is NOSA's
void sp_sparse_fields(sp_sparse_config *c, sp_sparse_field out[SP_SPARSE_FIELDS]);

// ---- weights.c ----------------------------------------------------------------------------------

// The tensors a model uses, in the order in which loading takes them.
typedef enum sp_part {
    SP_PART_EMBED,
    SP_PART_FINAL_NORM,
    SP_PART_HEAD, // absent if tied
    SP_PART_ATTN_NORM,
    SP_PART_Q,
    SP_PART_K,
    SP_PART_V,
    SP_PART_O,
    SP_PART_MLP_NORM,
    SP_PART_GATE,
    SP_PART_UP,
    SP_PART_DOWN,
    SP_PART_CIS_SCALE, // these two with `cis` only
    SP_PART_CIS_DELTA,
    SP_N_PARTS,
    SP_FIRST_LAYER_PART = SP_PART_ATTN_NORM, // those before it stand outside the layers
} sp_part;

typedef struct sp_weight {
    sp_part part;
    int64_t layer; // 0 for those outside the layers
    char name[96];
    int dims;
    int64_t shape[2];
} sp_weight;
sp_weight sp_weight_of(const sp_model_desc *d, sp_part part, int64_t layer);
bool sp_has_part(const sp_model_desc *d, sp_part part); // whether this kind of model has it

// Compares the headers of all files with what the description demands, and counts what is there.
// Sets d->cis: by select_blocks or by the tensors, and both must be there.
void sp_model_check_weights(sp_model_desc *d, const sp_st *st, sp_problems *p);

// The stored tensor of a weight, compared once more with what the description demands.
sp_status sp_weight_find(const sp_model_desc *d, const sp_st *st, sp_part part, int64_t layer,
                         const sp_st_tensor **out);

#endif
