// Training state in HDF5: everything a run needs to go on with the same bits.
//
// Layout (readable by h5dump and h5py):
//   /                attributes format, version; end_mark, written last
//   /training        attributes step, samples, tokens, ..., seed
//   /base            attributes name, config_sha256, weights_sha256, layers, hidden, heads
//   /sparse_config   attributes kernel_size, ..., each with NAME_from = model | recipe
//   /config          the resolved configuration, one string
//   /weights/NAME    fp32 [Hkv*d, D], L+1 tensors under their full names
//   /exp_avg/NAME, /exp_avg_sq/NAME   moments of the L trained ones (both or neither)
// Every data set carries its XXH3 in the attribute xxh3. end_mark is the XXH3 of a text that lists
// all attributes and all checksums, so no part can be exchanged unnoticed. The "1.8" file format is
// used because its metadata is checksummed by HDF5 itself.
//
// The file is built in memory and written by sp_write_file: a full disk is then an error of our own
// write, never one of HDF5's close, which cannot give up.
#include "checkpoints/checkpoints.h"
#include "checkpoints/internal.h"
#include "common/h5.h"
#include "common/util.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "sparda training state"
enum { VERSION = 1, MAX_TEXT = 60000, MAX_CONFIG = 64 << 20 };

// ---- table of scalar members --------------------------------------------------------------------

typedef enum field_type { F_INT, F_UINT, F_BOOL, F_ENUM, F_TEXT, F_SHA } field_type;
typedef struct field {
    const char *group, *name;
    field_type type;
    size_t at;
    const char *const *names; // F_ENUM: the two values
} field;

static const char *const align_names[] = {"max", "mean"};
static const char *const source_names[] = {"model", "recipe"};

#define AT(member) offsetof(sp_train_state, member)
#define SPARSE(key)                                                                                \
    {"sparse_config", #key, F_INT, AT(sparse.key), NULL}, {                                        \
        "sparse_config", #key "_from", F_ENUM, AT(sparse.key##_from), source_names                 \
    }

static const field fields[] = {
    {"training", "step", F_INT, AT(step), NULL},
    {"training", "updates", F_INT, AT(updates), NULL},
    {"training", "samples", F_INT, AT(samples), NULL},
    {"training", "tokens", F_INT, AT(tokens), NULL},
    {"training", "used_rows", F_INT, AT(used_rows), NULL},
    {"training", "skipped_rows", F_INT, AT(skipped_rows), NULL},
    {"training", "stage", F_INT, AT(stage), NULL},
    {"training", "seed", F_UINT, AT(seed), NULL},
    {"training", "data_identity", F_TEXT, AT(data_identity), NULL},
    {"training", "cpu_blas", F_TEXT, AT(cpu_blas), NULL},
    {"training", "program", F_TEXT, AT(program), NULL},
    {"training", "training_kernel_size", F_INT, AT(teacher.kernel), NULL},
    {"training", "training_kernel_stride", F_INT, AT(teacher.stride), NULL},
    {"training", "kl_target_align_pooling", F_ENUM, AT(align), align_names},
    {"training", "mask_future_blocks", F_BOOL, AT(mask_future), NULL},
    {"base", "name", F_TEXT, AT(base_name), NULL},
    {"base", "config_sha256", F_SHA, AT(base_config_sha256), NULL},
    {"base", "weights_sha256", F_SHA, AT(base_weights_sha256), NULL},
    {"base", "layers", F_INT, AT(weights.layers), NULL},
    {"base", "hidden", F_INT, AT(hidden), NULL},
    {"base", "q_heads", F_INT, AT(heads.q_heads), NULL},
    {"base", "kv_heads", F_INT, AT(heads.kv_heads), NULL},
    {"base", "head_dim", F_INT, AT(heads.head_dim), NULL},
    SPARSE(kernel_size),
    SPARSE(kernel_stride),
    SPARSE(init_blocks),
    SPARSE(block_size),
    SPARSE(window_size),
    SPARSE(topk),
    SPARSE(dense_len),
    SPARSE(select_blocks),
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };
static const char *const attribute_groups[] = {"training", "base", "sparse_config"};
static const char *const tensor_groups[] = {"weights", "exp_avg", "exp_avg_sq"};

static void *member(const sp_train_state *s, const field *f) {
    return (char *)(uintptr_t)s + f->at;
}

// select_blocks stands in the file of a NOSA backbone only; others are as they were before NOSA.
static bool may_be_absent(const field *f) {
    return f->at == AT(sparse.select_blocks) || f->at == AT(sparse.select_blocks_from);
}

static bool is_stored(const sp_train_state *s, const field *f) {
    return !may_be_absent(f) || s->sparse.select_blocks > 0;
}

// "group/name=value" in the text that the end mark covers.
static void list_field(sp_text *list, const sp_train_state *s, const field *f) {
    const void *p = member(s, f);
    if (!is_stored(s, f)) return;
    sp_text_add(list, "%s/%s=", f->group, f->name);
    switch (f->type) {
    case F_INT:
        sp_text_add(list, "%" PRId64, *(const int64_t *)p);
        break;
    case F_UINT:
        sp_text_add(list, "%" PRIu64, *(const uint64_t *)p);
        break;
    case F_BOOL:
        sp_text_add(list, "%d", *(const bool *)p);
        break;
    case F_ENUM:
        sp_text_add(list, "%d", *(const int *)p);
        break;
    case F_TEXT: {
        const char *text = *(char *const *)p;
        sp_text_add(list, "%s", text ? text : "");
        break;
    }
    case F_SHA:
        sp_text_add(list, "%s", (const char *)p);
        break;
    }
    sp_text_add(list, "\n");
}

static void list_checksum(sp_text *list, const char *group, const char *name, uint64_t sum) {
    sp_text_add(list, "%s/%s %016" PRIx64 "\n", group, name, sum);
}

static sp_status end_mark_of(const sp_text *list, uint64_t *mark) {
    if (list->failed || !list->data) return sp_error(SP_ENVIRONMENT, "out of memory");
    *mark = sp_xxh3(list->data, list->len);
    return SP_OK;
}

void sp_train_state_free(sp_train_state *s) {
    sp_forecast_free(&s->weights);
    free(s->exp_avg);
    free(s->exp_avg_sq);
    for (int i = 0; i < N_FIELDS; i++)
        if (fields[i].type == F_TEXT) free(*(char **)member(s, &fields[i]));
    free(s->config);
    *s = (sp_train_state){0};
}

// The array of a tensor group by scored layer, and how many it has; NULL if absent.
static float *group_data(const sp_train_state *s, int group, int64_t *n) {
    *n = group == 0 ? s->weights.layers + 1 : s->weights.layers;
    return group == 0 ? s->weights.w : group == 1 ? s->exp_avg : s->exp_avg_sq;
}

// ---- writing ------------------------------------------------------------------------------------

static sp_status write_failed(const char *path, const char *what) {
    return sp_error(SP_ENVIRONMENT, "%s: cannot build %s: %s", path, what, sp_h5_reason());
}

static bool put_attribute(hid_t at, const char *name, hid_t file_type, hid_t memory_type,
                          const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(at, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = a >= 0 && H5Awrite(a, memory_type, value) >= 0;
    if (a >= 0 && H5Aclose(a) < 0) ok = false;
    H5Sclose(space);
    return ok;
}

static hid_t text_type(size_t bytes) {
    hid_t t = H5Tcopy(H5T_C_S1);
    H5Tset_size(t, bytes);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
}

static bool put_text_attribute(hid_t at, const char *name, const char *text) {
    hid_t t = text_type(strlen(text) + 1);
    bool ok = put_attribute(at, name, t, t, text);
    H5Tclose(t);
    return ok;
}

static bool put_u64_attribute(hid_t at, const char *name, uint64_t v) {
    return put_attribute(at, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &v);
}

static bool put_field(hid_t at, const sp_train_state *s, const field *f) {
    const void *p = member(s, f);
    if (!is_stored(s, f)) return true;
    switch (f->type) {
    case F_INT:
        return put_attribute(at, f->name, H5T_STD_I64LE, H5T_NATIVE_INT64, p);
    case F_UINT:
        return put_attribute(at, f->name, H5T_STD_U64LE, H5T_NATIVE_UINT64, p);
    case F_BOOL: {
        int64_t v = *(const bool *)p;
        return put_attribute(at, f->name, H5T_STD_I64LE, H5T_NATIVE_INT64, &v);
    }
    case F_ENUM:
        return put_text_attribute(at, f->name, f->names[*(const int *)p != 0]);
    case F_TEXT: {
        const char *text = *(char *const *)p;
        return put_text_attribute(at, f->name, text ? text : "");
    }
    case F_SHA:
        return put_text_attribute(at, f->name, p);
    }
    return false;
}

// A data set with its checksum.
static bool put_data(hid_t at, const char *name, hid_t file_type, hid_t memory_type, int dims,
                     const hsize_t *shape, const void *data, uint64_t sum) {
    hid_t space = dims ? H5Screate_simple(dims, shape, NULL) : H5Screate(H5S_SCALAR);
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(plist, false); // equal states are equal files
    hid_t d = H5Dcreate2(at, name, file_type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    bool ok = d >= 0 && H5Dwrite(d, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0 &&
              put_u64_attribute(d, "xxh3", sum);
    if (d >= 0 && H5Dclose(d) < 0) ok = false;
    H5Pclose(plist);
    H5Sclose(space);
    return ok;
}

static hid_t make_group(hid_t file, const char *name) {
    hid_t plist = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_obj_track_times(plist, false);
    hid_t g = H5Gcreate2(file, name, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Pclose(plist);
    return g;
}

static sp_status write_attributes(hid_t file, const char *path, const sp_train_state *s,
                                  sp_text *list) {
    for (size_t g = 0; g < sizeof attribute_groups / sizeof attribute_groups[0]; g++) {
        hid_t group = make_group(file, attribute_groups[g]);
        bool ok = group >= 0;
        for (int i = 0; ok && i < N_FIELDS; i++) {
            if (strcmp(fields[i].group, attribute_groups[g]) != 0) continue;
            ok = put_field(group, s, &fields[i]);
            list_field(list, s, &fields[i]);
        }
        sp_status st = ok ? SP_OK : write_failed(path, attribute_groups[g]);
        if (group >= 0) H5Gclose(group);
        SP_TRY(st);
    }
    return SP_OK;
}

static sp_status write_tensors(hid_t file, const char *path, const sp_train_state *s,
                               sp_text *list) {
    int64_t size = s->weights.rows * s->weights.cols, n;
    hsize_t shape[2] = {(hsize_t)s->weights.rows, (hsize_t)s->weights.cols};
    for (int g = 0; g < 3; g++) {
        const float *data = group_data(s, g, &n);
        if (!data) continue;
        hid_t group = make_group(file, tensor_groups[g]);
        sp_status st = group >= 0 ? SP_OK : write_failed(path, tensor_groups[g]);
        for (int64_t l = 0; st == SP_OK && l < n; l++) {
            char name[64];
            const float *matrix = data + l * size;
            uint64_t sum = sp_xxh3(matrix, (size_t)size * sizeof *matrix);
            sp_forecast_name(l, name);
            if (!put_data(group, name, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, shape, matrix, sum))
                st = write_failed(path, name);
            list_checksum(list, tensor_groups[g], name, sum);
        }
        if (group >= 0) H5Gclose(group);
        SP_TRY(st);
    }
    return SP_OK;
}

static sp_status write_all(hid_t file, const char *path, const sp_train_state *s, sp_text *list) {
    int64_t version = VERSION;
    if (!put_text_attribute(file, "format", FORMAT) ||
        !put_attribute(file, "version", H5T_STD_I64LE, H5T_NATIVE_INT64, &version))
        return write_failed(path, "the format mark");
    SP_TRY(write_attributes(file, path, s, list));

    const char *config = s->config ? s->config : "";
    size_t bytes = strlen(config) + 1;
    uint64_t sum = sp_xxh3(config, bytes), mark = 0;
    hid_t type = text_type(bytes);
    bool ok = put_data(file, "config", type, type, 0, NULL, config, sum);
    H5Tclose(type);
    if (!ok) return write_failed(path, "/config");
    list_checksum(list, "", "config", sum);

    SP_TRY(write_tensors(file, path, s, list));
    SP_TRY(end_mark_of(list, &mark));
    if (!put_u64_attribute(file, "end_mark", mark)) return write_failed(path, "the end mark");
    return SP_OK;
}

// The memory of a file under construction. HDF5 leaves it to us when it closes the file: only then
// is the superblock what a reader expects (H5Fget_file_image gives one with a wrong checksum).
typedef struct image {
    uint8_t *data;
    size_t bytes; // of `data`
} image;

static void *image_malloc(size_t bytes, H5FD_file_image_op_t op, void *user) {
    (void)op, (void)user;
    return malloc(bytes);
}

static void *image_realloc(void *p, size_t bytes, H5FD_file_image_op_t op, void *user) {
    (void)op;
    image *im = user;
    uint8_t *grown = realloc(p, bytes);
    if (!grown) return NULL;
    if (bytes > im->bytes) memset(grown + im->bytes, 0, bytes - im->bytes);
    *im = (image){grown, bytes};
    return grown;
}

static void *image_copy(void *to, const void *from, size_t bytes, H5FD_file_image_op_t op,
                        void *user) {
    (void)op, (void)user;
    return memcpy(to, from, bytes);
}

static herr_t image_free(void *p, H5FD_file_image_op_t op, void *user) {
    (void)op;
    const image *im = user;
    if (p != im->data) free(p);
    return 0;
}

static void *image_user_copy(void *user) {
    return user;
}

static herr_t image_user_free(void *user) {
    (void)user;
    return 0;
}

// Between sp_h5_begin and sp_h5_end. `bytes` receives the length of the file in im->data.
static sp_status build_image(const char *path, const sp_train_state *s, image *im, int64_t *bytes) {
    sp_status st = SP_OK;
    sp_text list = {0};
    H5FD_file_image_callbacks_t hooks = {
        image_malloc, image_copy, image_realloc, image_free, image_user_copy, image_user_free, im};
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_fapl_core(access, 16 << 20, false);
    H5Pset_file_image_callbacks(access, &hooks);
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Pset_obj_track_times(create, false);
    // Nothing is written under this name, but an older file of that name would be read.
    char *name = sp_temporary_name(path);
    hid_t file = name ? H5Fcreate(name, H5F_ACC_TRUNC, create, access) : -1;
    free(name);
    if (file < 0) SP_GO(write_failed(path, "the file"));
    SP_GO(write_all(file, path, s, &list));
done:
    if (file >= 0 && H5Fclose(file) < 0 && st == SP_OK) st = write_failed(path, "the file");
    H5Pclose(create);
    H5Pclose(access);
    sp_text_free(&list);
    if (st != SP_OK) return st;
    // The end-of-file address of a version 2 superblock; the memory is a little larger.
    uint64_t end = 0;
    for (int i = 7; i >= 0 && im->bytes >= 36; i--) end = end << 8 | im->data[28 + i];
    *bytes = (int64_t)end;
    return end && end <= im->bytes ? SP_OK
                                   : sp_error(SP_ENVIRONMENT, "%s: HDF5 built no file", path);
}

sp_status sp_state_save(const char *path, const sp_train_state *s) {
    const sp_forecast *w = &s->weights;
    if (!w->w || w->rows != s->heads.kv_heads * s->heads.head_dim || w->cols != s->hidden ||
        !s->exp_avg != !s->exp_avg_sq)
        return sp_error(SP_ENVIRONMENT,
                        "%s: the state to be saved contradicts itself: weights [%lld,%lld], "
                        "%lld KV heads of %lld, hidden size %lld%s",
                        path, (long long)w->rows, (long long)w->cols, (long long)s->heads.kv_heads,
                        (long long)s->heads.head_dim, (long long)s->hidden,
                        !s->exp_avg != !s->exp_avg_sq ? ", one moment without the other" : "");
    image im = {0};
    int64_t bytes = 0;
    sp_h5_begin();
    sp_status st = build_image(path, s, &im, &bytes);
    sp_h5_end();
    if (st == SP_OK) st = sp_write_file(path, im.data, bytes);
    free(im.data);
    return st;
}

// ---- reading ------------------------------------------------------------------------------------

static sp_status damaged(const char *path, const char *group, const char *name, const char *why) {
    return sp_error(SP_BAD_INPUT, "%s: %s/%s %s; the file is damaged, use another checkpoint", path,
                    group, name, why);
}

static hid_t open_group(hid_t file, const char *name) {
    return sp_h5_look(file, name) == SP_H5_OBJECT ? H5Gopen2(file, name, H5P_DEFAULT) : -1;
}

// A data set as this format has them: no link, and its values in this file and in one piece.
static hid_t open_data(hid_t group, const char *name) {
    if (sp_h5_look(group, name) != SP_H5_OBJECT) return -1;
    hid_t d = H5Dopen2(group, name, H5P_DEFAULT);
    if (d < 0) return -1;
    hid_t plist = H5Dget_create_plist(d);
    bool fits = !sp_h5_stored_elsewhere(d) && H5Pget_layout(plist) == H5D_CONTIGUOUS;
    H5Pclose(plist);
    if (fits) return d;
    H5Dclose(d);
    return -1;
}

// One attribute as bytes of `memory_type`, after its class and size were checked.
static sp_status get_attribute(hid_t at, const char *path, const char *group, const char *name,
                               H5T_class_t class, size_t size, hid_t memory_type, void *value) {
    hid_t a = H5Aopen(at, name, H5P_DEFAULT);
    if (a < 0) return damaged(path, group, name, "is missing or unreadable");
    hid_t t = H5Aget_type(a), space = H5Aget_space(a);
    bool fits = H5Tget_class(t) == class && H5Tget_size(t) == size &&
                H5Sget_simple_extent_npoints(space) == 1;
    sp_status st = SP_OK;
    if (!fits)
        st = damaged(path, group, name, "has another type than this format says");
    else if (H5Aread(a, memory_type, value) < 0)
        st = damaged(path, group, name, sp_h5_reason());
    H5Sclose(space);
    H5Tclose(t);
    H5Aclose(a);
    return st;
}

static sp_status get_int(hid_t at, const char *path, const char *group, const char *name,
                         int64_t *v) {
    return get_attribute(at, path, group, name, H5T_INTEGER, 8, H5T_NATIVE_INT64, v);
}

static sp_status get_uint(hid_t at, const char *path, const char *group, const char *name,
                          uint64_t *v) {
    return get_attribute(at, path, group, name, H5T_INTEGER, 8, H5T_NATIVE_UINT64, v);
}

// A fixed-length string; caller frees.
static sp_status get_text(hid_t at, const char *path, const char *group, const char *name,
                          char **text) {
    hid_t a = H5Aopen(at, name, H5P_DEFAULT);
    if (a < 0) return damaged(path, group, name, "is missing or unreadable");
    hid_t t = H5Aget_type(a);
    size_t size = H5Tget_size(t);
    bool fits = H5Tget_class(t) == H5T_STRING && H5Tis_variable_str(t) == 0 && size <= MAX_TEXT;
    H5Tclose(t);
    H5Aclose(a);
    if (!fits) return damaged(path, group, name, "is not a text");
    SP_TRY(sp_alloc(text, (int64_t)size + 1, 1, name));
    hid_t memory = text_type(size);
    sp_status st = get_attribute(at, path, group, name, H5T_STRING, size, memory, *text);
    H5Tclose(memory);
    if (st != SP_OK) {
        free(*text);
        *text = NULL;
    }
    return st;
}

static sp_status get_field(hid_t at, const char *path, sp_train_state *s, const field *f) {
    void *p = member(s, f);
    char *text = NULL;
    int64_t v = 0;
    if (may_be_absent(f) && H5Aexists(at, f->name) == 0) return SP_OK;
    switch (f->type) {
    case F_INT:
        SP_TRY(get_int(at, path, f->group, f->name, p));
        if (*(int64_t *)p < 0) return damaged(path, f->group, f->name, "is negative");
        return SP_OK;
    case F_UINT:
        return get_uint(at, path, f->group, f->name, p);
    case F_BOOL:
        SP_TRY(get_int(at, path, f->group, f->name, &v));
        *(bool *)p = v != 0;
        return SP_OK;
    case F_TEXT:
        return get_text(at, path, f->group, f->name, p);
    case F_ENUM:
    case F_SHA:
        break;
    }
    SP_TRY(get_text(at, path, f->group, f->name, &text));
    sp_status st = SP_OK;
    if (f->type == F_SHA) {
        if (strlen(text) < SP_SHA256_HEX)
            strcpy(p, text);
        else
            st = damaged(path, f->group, f->name, "is longer than a SHA-256");
    } else {
        int which = strcmp(text, f->names[0]) == 0 ? 0 : strcmp(text, f->names[1]) == 0 ? 1 : -1;
        *(int *)p = which;
        if (which < 0) st = damaged(path, f->group, f->name, "has an unknown value");
    }
    free(text);
    return st;
}

static sp_status read_attributes(hid_t file, const char *path, sp_train_state *s, sp_text *list) {
    for (size_t g = 0; g < sizeof attribute_groups / sizeof attribute_groups[0]; g++) {
        hid_t group = open_group(file, attribute_groups[g]);
        if (group < 0)
            return damaged(path, "", attribute_groups[g], "is missing, unreadable or a link");
        sp_status st = SP_OK;
        for (int i = 0; st == SP_OK && i < N_FIELDS; i++) {
            if (strcmp(fields[i].group, attribute_groups[g]) != 0) continue;
            st = get_field(group, path, s, &fields[i]);
            if (st == SP_OK) list_field(list, s, &fields[i]);
        }
        H5Gclose(group);
        SP_TRY(st);
    }
    return SP_OK;
}

// Checks the stored type and shape, reads, compares the checksum.
static sp_status get_tensor(hid_t group, const char *path, const char *group_name, const char *name,
                            int64_t rows, int64_t cols, float *out, uint64_t *sum) {
    hid_t d = open_data(group, name);
    if (d < 0)
        return damaged(path, group_name, name,
                       "is missing, unreadable, a link or not stored in one piece");
    hid_t t = H5Dget_type(d), space = H5Dget_space(d);
    hsize_t shape[2] = {0};
    uint64_t stored = 0;
    sp_status st = SP_OK;
    if (H5Tequal(t, H5T_IEEE_F32LE) <= 0)
        st = damaged(path, group_name, name, "is not of 32-bit floats");
    else if (H5Sget_simple_extent_ndims(space) != 2 ||
             H5Sget_simple_extent_dims(space, shape, NULL) != 2 || shape[0] != (hsize_t)rows ||
             shape[1] != (hsize_t)cols)
        st = sp_error(SP_BAD_INPUT, "%s: %s/%s has the shape [%llu,%llu], expected [%lld,%lld]",
                      path, group_name, name, (unsigned long long)shape[0],
                      (unsigned long long)shape[1], (long long)rows, (long long)cols);
    else if (H5Dget_storage_size(d) != (hsize_t)rows * (hsize_t)cols * sizeof *out)
        st = damaged(path, group_name, name, "has no data for its shape");
    else if (H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0)
        st = damaged(path, group_name, name, sp_h5_reason());
    if (st == SP_OK) st = get_uint(d, path, name, "xxh3", &stored);
    if (st == SP_OK) {
        *sum = sp_xxh3(out, (size_t)(rows * cols) * sizeof *out);
        if (*sum != stored) st = damaged(path, group_name, name, "does not match its checksum");
    }
    H5Sclose(space);
    H5Tclose(t);
    H5Dclose(d);
    return st;
}

static sp_status read_tensors(hid_t file, const char *path, sp_train_state *s, sp_text *list) {
    sp_forecast *w = &s->weights;
    int64_t size = w->rows * w->cols, n;
    for (int g = 0; g < 3; g++) {
        group_data(s, g, &n);
        htri_t there = H5Lexists(file, tensor_groups[g], H5P_DEFAULT);
        if (there < 0) return damaged(path, "", tensor_groups[g], sp_h5_reason());
        if (!there) {
            if (g == 0) return damaged(path, "", tensor_groups[g], "is missing");
            continue;
        }
        float *data = NULL;
        SP_TRY(sp_alloc(&data, n * size, sizeof *data, tensor_groups[g]));
        *(g == 0 ? &w->w : g == 1 ? &s->exp_avg : &s->exp_avg_sq) = data;
        hid_t group = open_group(file, tensor_groups[g]);
        if (group < 0) return damaged(path, "", tensor_groups[g], "is unreadable or a link");
        sp_status st = SP_OK;
        for (int64_t l = 0; st == SP_OK && l < n; l++) {
            char name[64];
            uint64_t sum = 0;
            sp_forecast_name(l, name);
            st = get_tensor(group, path, tensor_groups[g], name, w->rows, w->cols, data + l * size,
                            &sum);
            if (st == SP_OK) list_checksum(list, tensor_groups[g], name, sum);
        }
        H5Gclose(group);
        SP_TRY(st);
    }
    if (!s->exp_avg != !s->exp_avg_sq)
        return damaged(path, "", s->exp_avg ? "exp_avg_sq" : "exp_avg", "is missing");
    return SP_OK;
}

static sp_status read_config(hid_t file, const char *path, sp_train_state *s, sp_text *list) {
    hid_t d = open_data(file, "config");
    if (d < 0)
        return damaged(path, "", "config",
                       "is missing, unreadable, a link or not stored in one piece");
    hid_t t = H5Dget_type(d), space = H5Dget_space(d);
    size_t size = H5Tget_size(t);
    uint64_t stored = 0, sum = 0;
    sp_status st = SP_OK;
    if (H5Tget_class(t) != H5T_STRING || H5Tis_variable_str(t) != 0 || size > MAX_CONFIG ||
        H5Dget_storage_size(d) != size || H5Sget_simple_extent_npoints(space) != 1)
        st = damaged(path, "", "config", "is not one text");
    if (st == SP_OK) st = sp_alloc(&s->config, (int64_t)size + 1, 1, "the configuration");
    if (st == SP_OK && H5Dread(d, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, s->config) < 0)
        st = damaged(path, "", "config", sp_h5_reason());
    if (st == SP_OK) st = get_uint(d, path, "config", "xxh3", &stored);
    if (st == SP_OK && (sum = sp_xxh3(s->config, size)) != stored)
        st = damaged(path, "", "config", "does not match its checksum");
    list_checksum(list, "", "config", sum);
    H5Sclose(space);
    H5Tclose(t);
    H5Dclose(d);
    return st;
}

// Opens and recognises a state: it is ours, of a version we know, and has its end mark.
static sp_status open_state(const char *path, hid_t *out, uint64_t *mark) {
    *out = -1;
    if (sp_path_is_dir(path))
        return sp_error(SP_BAD_INPUT, "%s is a folder, not a checkpoint", path);
    if (!sp_path_is_file(path)) return sp_error(SP_BAD_INPUT, "%s does not exist", path);
    hid_t file = sp_h5_open_readonly(path);
    if (file < 0)
        return sp_error(SP_BAD_INPUT, "%s is not a complete HDF5 file: %s; use another checkpoint",
                        path, sp_h5_reason());
    char *format = NULL;
    int64_t version = 0;
    sp_status st = SP_OK;
    if (H5Aexists(file, "format") <= 0)
        SP_GO(sp_error(SP_BAD_INPUT,
                       "%s is an HDF5 file but no training state of this program (the attribute "
                       "'format' is missing)",
                       path));
    SP_GO(get_text(file, path, "", "format", &format));
    if (strcmp(format, FORMAT) != 0)
        SP_GO(sp_error(SP_BAD_INPUT, "%s is no training state: its format is '%s'", path, format));
    SP_GO(get_int(file, path, "", "version", &version));
    if (version != VERSION)
        SP_GO(sp_error(SP_BAD_INPUT, "%s has version %lld of the format; this program reads %d",
                       path, (long long)version, VERSION));
    if (H5Aexists(file, "end_mark") <= 0)
        SP_GO(sp_error(SP_BAD_INPUT, "%s has no end mark: it was not written completely", path));
    SP_GO(get_uint(file, path, "", "end_mark", mark));
done:
    free(format);
    if (st != SP_OK)
        H5Fclose(file);
    else
        *out = file;
    return st;
}

// Sizes of the tensors, against the file's own size, before anything is allocated for them.
static sp_status check_sizes(const char *path, hid_t file, sp_train_state *s) {
    sp_forecast *w = &s->weights;
    hsize_t file_bytes = 0;
    int64_t matrices, bytes;
    H5Fget_filesize(file, &file_bytes);
    w->cols = s->hidden;
    if (w->layers < 1 || !sp_add(w->layers, 1, &matrices) ||
        !sp_mul(s->heads.kv_heads, s->heads.head_dim, &w->rows) ||
        !sp_mul(w->rows, w->cols, &bytes) || !sp_mul(bytes, matrices, &bytes) ||
        !sp_mul(bytes, 4, &bytes) || bytes < 1 || (hsize_t)bytes > file_bytes)
        return damaged(path, "base", "layers",
                       "and the sizes beside it do not fit the size of the file");
    return SP_OK;
}

static sp_status load_all(const char *path, sp_train_state *s) {
    hid_t file;
    uint64_t stored = 0, mark = 0;
    sp_text list = {0};
    SP_TRY(open_state(path, &file, &stored));
    sp_status st = SP_OK;
    SP_GO(read_attributes(file, path, s, &list));
    SP_GO(check_sizes(path, file, s));
    SP_GO(read_config(file, path, s, &list));
    SP_GO(read_tensors(file, path, s, &list));
    SP_GO(end_mark_of(&list, &mark));
    if (mark != stored) SP_GO(damaged(path, "", "end_mark", "does not match the contents"));
done:
    sp_text_free(&list);
    H5Fclose(file);
    return st;
}

sp_status sp_state_load(const char *path, sp_train_state *out) {
    sp_train_state s = {0};
    *out = s;
    sp_h5_begin();
    sp_status st = load_all(path, &s);
    sp_h5_end();
    if (st == SP_OK)
        *out = s;
    else
        sp_train_state_free(&s);
    return st;
}

sp_status sp_state_peek_step(const char *path, int64_t *step) {
    hid_t file = -1, group = -1;
    uint64_t mark;
    sp_h5_begin();
    sp_status st = open_state(path, &file, &mark);
    if (st == SP_OK && (group = open_group(file, "training")) < 0)
        st = damaged(path, "", "training", "is missing, unreadable or a link");
    if (st == SP_OK) st = get_int(group, path, "training", "step", step);
    if (group >= 0) H5Gclose(group);
    if (file >= 0) H5Fclose(file);
    sp_h5_end();
    return st;
}

json_t *sp_state_sparse_json(const sp_train_state *s) {
    const sp_sparse_config *c = &s->sparse;
    int64_t local = c->block_size > 0 ? c->window_size / c->block_size : 0;
    json_t *o = json_pack(
        "{s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:b}", "kernel_size",
        (json_int_t)c->kernel_size, "kernel_stride", (json_int_t)c->kernel_stride,
        "training_kernel_size", (json_int_t)s->teacher.kernel, "training_kernel_stride",
        (json_int_t)s->teacher.stride, "kl_target_align_pooling", align_names[s->align != 0],
        "init_blocks", (json_int_t)c->init_blocks, "block_size", (json_int_t)c->block_size,
        "window_size", (json_int_t)c->window_size, "topk", (json_int_t)c->topk, "k_effective",
        (json_int_t)(c->topk + local), "dense_len", (json_int_t)c->dense_len, "use_nope", 0);
    if (o && c->select_blocks)
        json_object_set_new(o, "select_blocks", json_integer((json_int_t)c->select_blocks));
    return o;
}

// ---- comparison with a base model ---------------------------------------------------------------

static void differ_int(sp_problems *p, const char *what, int64_t state, int64_t base) {
    if (state != base)
        sp_problems_add(p, "%s: %lld in the checkpoint, %lld in the base model", what,
                        (long long)state, (long long)base);
}

static void differ_text(sp_problems *p, const char *what, const char *state, const char *base) {
    if (strcmp(state, base) != 0)
        sp_problems_add(p, "%s: %s in the checkpoint, %s in the base model", what, state, base);
}

sp_status sp_state_check_base(const sp_train_state *s, const sp_model_desc *d,
                              const char *weights_sha256) {
    sp_problems p = {0};
    differ_text(&p, "SHA-256 of config.json", s->base_config_sha256, d->config_sha256);
    if (weights_sha256)
        differ_text(&p, "SHA-256 of the weights", s->base_weights_sha256, weights_sha256);
    differ_int(&p, "layers", s->weights.layers, d->layers);
    differ_int(&p, "hidden size", s->hidden, d->hidden);
    differ_int(&p, "query heads", s->heads.q_heads, d->heads.q_heads);
    differ_int(&p, "KV heads", s->heads.kv_heads, d->heads.kv_heads);
    differ_int(&p, "head size", s->heads.head_dim, d->heads.head_dim);
    differ_int(&p, "sparse_config.kernel_size", s->sparse.kernel_size, d->sparse.kernel_size);
    differ_int(&p, "sparse_config.kernel_stride", s->sparse.kernel_stride, d->sparse.kernel_stride);
    differ_int(&p, "sparse_config.init_blocks", s->sparse.init_blocks, d->sparse.init_blocks);
    differ_int(&p, "sparse_config.block_size", s->sparse.block_size, d->sparse.block_size);
    differ_int(&p, "sparse_config.window_size", s->sparse.window_size, d->sparse.window_size);
    differ_int(&p, "sparse_config.topk", s->sparse.topk, d->sparse.topk);
    differ_int(&p, "sparse_config.dense_len", s->sparse.dense_len, d->sparse.dense_len);
    differ_int(&p, "sparse_config.select_blocks", s->sparse.select_blocks, d->sparse.select_blocks);
    return sp_problems_end(&p, SP_BAD_INPUT,
                           "the checkpoint was trained for another base model (%s) than %s",
                           s->base_name ? s->base_name : "?", d->dir);
}
