// What the fuzzers of HDF5 readers share. The fuzzer's bytes choose what is in a file and then what
// is wrong with it: attributes and data sets that are missing or of other types, ranks, sizes and
// values, chunked and filtered, links, external storage, virtual data sets. HDF5 itself writes the
// file, so it is whole; test_damaged_h5 is about files that are not. While `reading`, the program
// may open the file `own` and no other.
#ifndef SPARDA_H5_FAULTS_H
#define SPARDA_H5_FAULTS_H

#include "common/h5.h"
#include "common/util.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// HDF5 1.10.8 itself loses a few hundred bytes on some of its ways out of an error: 18 times in
// 85,329 inputs. Handles left open, which would be ours, are counted below.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5";
}

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "%s; %s; HDF5: %s\n", what, sp_error_text(), sp_h5_reason());
    abort();
}

// ---- no other file -----------------------------------------------------------------------------

static char own[64], other[64]; // the file to be read, and one beside it that links may name
static bool reading;

static int open_checked(const char *path, int flags, mode_t mode) {
    if (reading && strcmp(path, own) != 0) {
        reading = false;
        fprintf(stderr, "the reader opens %s\n", path);
        abort();
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

// In place of the C library's, also for the HDF5 library.
#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...);                                                    \
    int name(const char *path, int flags, ...) {                                                   \
        va_list ap;                                                                                \
        va_start(ap, flags);                                                                       \
        mode_t mode = flags & O_CREAT ? (mode_t)va_arg(ap, int) : 0;                               \
        va_end(ap);                                                                                \
        return open_checked(path, flags, mode);                                                    \
    }
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)

static void remove_files(void) {
    unlink(own);
    unlink(other);
}

// In memory where the machine has it; HDF5 wants files with a name.
static void name_files(void) {
    const char *dir = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".";
    snprintf(own, sizeof own, "%s/fuzz-own-%ld.h5", dir, (long)getpid());
    snprintf(other, sizeof other, "%s/fuzz-other-%ld.h5", dir, (long)getpid());
    atexit(remove_files);
}

// ---- no handle is forgotten --------------------------------------------------------------------

static hsize_t open_handles(void) {
    static const H5I_type_t kinds[] = {H5I_FILE,    H5I_GROUP, H5I_DATATYPE,   H5I_DATASPACE,
                                       H5I_DATASET, H5I_ATTR,  H5I_GENPROP_LST};
    hsize_t n, all = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (H5Inmembers(kinds[i], &n) >= 0) all += n;
    return all;
}

static hsize_t handles;

static void begin_reading(void) {
    static bool once;
    if (!once) H5Fclose(sp_h5_open_readonly(other)); // keeps a property list
    once = true;
    handles = open_handles();
    reading = true;
}

static void end_reading(void) {
    reading = false;
    require(open_handles() == handles, "the reader leaves handles open");
}

// ---- choices -----------------------------------------------------------------------------------

static const uint8_t *input;
static size_t left;

static void begin(const uint8_t *data, size_t bytes) {
    input = data;
    left = bytes;
}

static unsigned take(unsigned n) { // 0..n-1; 0 when the bytes are used up
    if (left == 0) return 0;
    left--;
    return *input++ % n;
}

static int64_t number(void) {
    static const int64_t borders[] = {0,
                                      1,
                                      2,
                                      -1,
                                      7,
                                      255,
                                      256,
                                      300,
                                      INT32_MAX,
                                      (int64_t)1 << 31,
                                      INT64_MAX,
                                      INT64_MIN,
                                      (int64_t)1 << 40};
    unsigned i = take(2 * sizeof borders / sizeof borders[0]);
    return i < sizeof borders / sizeof borders[0] ? borders[i] : (int64_t)take(40);
}

static hid_t some_type(void) { // caller closes
    switch (take(12)) {
    case 1:
        return H5Tcopy(H5T_STD_I32LE);
    case 2:
        return H5Tcopy(H5T_STD_I32BE);
    case 3:
        return H5Tcopy(H5T_STD_U64LE);
    case 4:
        return H5Tcopy(H5T_STD_U8LE);
    case 5:
        return H5Tcopy(H5T_IEEE_F32LE);
    case 6:
        return H5Tcopy(H5T_IEEE_F64BE);
    case 7: {
        hid_t t = H5Tcopy(H5T_C_S1);
        H5Tset_size(t, H5T_VARIABLE);
        return t;
    }
    case 8: {
        hid_t t = H5Tcopy(H5T_C_S1);
        H5Tset_size(t, 1 + take(255) * (take(4) ? 1 : 300));
        return t;
    }
    case 9: { // an integer of odd width
        hid_t t = H5Tcopy(H5T_STD_I64LE);
        H5Tset_precision(t, 1 + take(64));
        return t;
    }
    case 10: {
        hid_t t = H5Tcreate(H5T_COMPOUND, 16);
        H5Tinsert(t, "a", 0, H5T_STD_I32LE);
        H5Tinsert(t, "b", 8, H5T_STD_I64LE);
        return t;
    }
    case 11:
        return H5Tvlen_create(H5T_STD_I32LE);
    default:
        return H5Tcopy(H5T_STD_I64LE);
    }
}

static hid_t some_space(hsize_t limit) {
    hsize_t dim[3], most[3];
    int rank = (int)take(4);
    for (int i = 0; i < rank; i++) {
        int64_t n = number();
        dim[i] = (uint64_t)n < limit ? (hsize_t)n : (hsize_t)take(9);
        most[i] = take(3) ? dim[i] : H5S_UNLIMITED;
    }
    if (rank > 0) return H5Screate_simple(rank, dim, most);
    return take(2) ? H5Screate(H5S_NULL) : H5Screate(H5S_SCALAR);
}

// ---- what is wrong -----------------------------------------------------------------------------

typedef struct names {
    const char *attribute[16], *object[32]; // attributes as "OBJECT@NAME"
    unsigned n_attributes, n_objects;
} names;

static const char *some_object(const names *n) {
    return n->object[take(n->n_objects)];
}

static void write_values(hid_t at, hid_t type, hid_t space, bool attribute) {
    enum { MAX = 1 << 16 };
    static uint8_t values[MAX];
    hssize_t n = H5Sget_simple_extent_npoints(space);
    size_t size = H5Tget_size(type);
    if (n <= 0 || (size_t)n > MAX / size || H5Tget_class(type) == H5T_VLEN) return;
    for (hssize_t i = 0; i < n && H5Tis_variable_str(type) > 0; i++)
        ((const char **)(void *)values)[i] = take(2) ? "prose" : "";
    for (size_t i = 0; i < (size_t)n * size && H5Tis_variable_str(type) <= 0; i++)
        values[i] = (uint8_t)take(256);
    if (attribute)
        H5Awrite(at, type, values);
    else
        H5Dwrite(at, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
}

static void other_link(hid_t file, const names *n) {
    const char *name = some_object(n), *to = some_object(n);
    H5Ldelete(file, name, H5P_DEFAULT);
    switch (take(5)) {
    case 0: // nothing
        break;
    case 1:
        H5Lcreate_soft(take(2) ? to : "nowhere", file, name, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 2:
        H5Lcreate_external(other, to, file, name, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 3:
        H5Lcreate_hard(file, to, file, name, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 4:
        H5Gclose(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        break;
    }
}

static void other_data(hid_t file, const names *n) {
    const char *name = some_object(n);
    unsigned layout = take(6);
    bool values = layout < 4;
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE), type = -1, space = -1;
    hid_t old = take(4) ? H5Dopen2(file, name, H5P_DEFAULT) : -1;
    if (old >= 0) { // type or size may stay
        if (take(4)) type = H5Dget_type(old);
        if (take(4)) space = H5Dget_space(old);
        H5Dclose(old);
    }
    if (type < 0) type = some_type();
    if (space < 0) space = some_space(layout == 1 || layout == 2 ? (hsize_t)1 << 50 : 1000);
    H5Ldelete(file, name, H5P_DEFAULT);
    int rank = H5Sget_simple_extent_ndims(space);
    hsize_t chunk[3] = {1 + take(9), 1 + take(3), 1};
    switch (layout) {
    case 0:
        break;
    case 1:
    case 2:
        if (take(3) == 1) chunk[0] = (hsize_t)1 << 16;
        if (rank > 0) H5Pset_chunk(plist, rank, chunk);
        if (take(2)) H5Pset_shuffle(plist);
        if (layout == 2) H5Pset_deflate(plist, 1 + take(9));
        if (take(3) == 1) H5Pset_fletcher32(plist);
        if (take(5) == 1) { // only named, see has_scaleoffset
            H5Pset_scaleoffset(plist, H5Z_SO_INT, 0);
            values = false;
        }
        break;
    case 3:
        H5Pset_layout(plist, H5D_COMPACT);
        break;
    case 4:
        H5Pset_external(plist, other, (off_t)take(256), H5F_UNLIMITED);
        break;
    case 5:
        H5Pset_virtual(plist, space, other, take(2) ? name : "tokens", space);
        break;
    }
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    if (d >= 0 && values && take(4)) write_values(d, type, space, false);
    if (d >= 0) H5Dclose(d);
    H5Sclose(space);
    H5Tclose(type);
    H5Pclose(plist);
}

// HDF5 makes an attribute in memory, twice.
static bool fits_memory(hid_t type, hid_t space) {
    const hssize_t most = 1 << 24; // bytes
    return H5Sget_simple_extent_npoints(space) <= most / (hssize_t)H5Tget_size(type);
}

static void other_attribute(hid_t file, const names *n) {
    const char *name = n->attribute[take(n->n_attributes)], *at = strchr(name, '@');
    char object[128];
    snprintf(object, sizeof object, "%.*s", (int)(at - name), name);
    hid_t o = H5Oopen(file, object, H5P_DEFAULT);
    if (o < 0) return;
    H5Adelete(o, at + 1);
    if (take(4)) {
        hid_t type = some_type(), space = take(2) ? H5Screate(H5S_SCALAR) : some_space(100);
        hid_t a = -1;
        if (fits_memory(type, space))
            a = H5Acreate2(o, at + 1, type, space, H5P_DEFAULT, H5P_DEFAULT);
        int64_t v = number();
        if (a >= 0 && H5Tget_class(type) == H5T_INTEGER && H5Sget_simple_extent_npoints(space) == 1)
            H5Awrite(a, H5T_NATIVE_INT64, &v);
        else if (a >= 0)
            write_values(a, type, space, true);
        if (a >= 0) H5Aclose(a);
        H5Sclose(space);
        H5Tclose(type);
    }
    H5Oclose(o);
}

// Nothing must go through this filter here: HDF5 1.10.8 overwrites memory in it. The readers refuse
// it.
static bool has_scaleoffset(hid_t d) {
    hid_t plist = H5Dget_create_plist(d);
    bool found = false;
    for (int i = H5Pget_nfilters(plist) - 1; i >= 0 && !found; i--) {
        size_t values = 0;
        unsigned flags, info;
        found = H5Pget_filter2(plist, (unsigned)i, &flags, &values, NULL, 0, NULL, &info) ==
                H5Z_FILTER_SCALEOFFSET;
    }
    H5Pclose(plist);
    return found;
}

// A value or two of a data set of numbers; everything else about it stays right.
static void other_values(hid_t file, const names *n) {
    enum { MAX = 1 << 12 };
    static int64_t v[MAX];
    hid_t d = H5Dopen2(file, some_object(n), H5P_DEFAULT);
    if (d < 0) return;
    if (has_scaleoffset(d)) {
        H5Dclose(d);
        return;
    }
    hid_t type = H5Dget_type(d), space = H5Dget_space(d);
    hssize_t points = H5Sget_simple_extent_npoints(space);
    if (H5Tget_class(type) == H5T_INTEGER && points > 0 && points <= MAX &&
        H5Dread(d, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0) {
        v[take((unsigned)points)] = number();
        H5Dwrite(d, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, v);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(d);
}

// Returns whether anything was done.
static bool spoil(hid_t file, const names *n) {
    unsigned times = take(4);
    for (unsigned i = 0; i < times; i++) switch (take(4)) {
        case 0:
            other_link(file, n);
            break;
        case 1:
            other_data(file, n);
            break;
        case 2:
            other_attribute(file, n);
            break;
        case 3:
            other_values(file, n);
            break;
        }
    return times > 0;
}

#endif
