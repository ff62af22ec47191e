// Folders for export (merge.h).
#include "checkpoints/merge.h"
#include "checkpoints/export.h"
#include "common/hash.h"
#include "common/util.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 16, COPY_BYTES = 1 << 20 };

static sp_status out_of_memory(void) {
    return sp_error(SP_ENVIRONMENT, "out of memory");
}

// For every folder and file below `from`: its path below `to`; a folder comes before its files.
typedef struct visitor {
    sp_status (*folder)(const char *to);
    sp_status (*file)(const char *from, const char *to, void *user);
} visitor;

static sp_status walk(const char *from, const char *to, int depth, visitor visit, void *user) {
    char **names = NULL;
    int64_t n = 0;
    sp_status st = SP_OK;
    if (depth > MAX_DEPTH)
        return sp_error(SP_BAD_INPUT, "%s: folders are nested more than %d deep", from, MAX_DEPTH);
    SP_GO(visit.folder(to));
    SP_GO(sp_list_dir(from, "", &names, &n));
    for (int64_t i = 0; st == SP_OK && i < n; i++) {
        char *a = sp_path_join(from, names[i]), *b = sp_path_join(to, names[i]);
        st = !a || !b             ? out_of_memory()
             : sp_path_is_dir(a)  ? walk(a, b, depth + 1, visit, user)
             : sp_path_is_file(a) ? visit.file(a, b, user)
                                  : sp_error(SP_BAD_INPUT, "%s is neither a file nor a folder", a);
        free(a);
        free(b);
    }
done:
    sp_free_names(names, n);
    return st;
}

// ---- the base model -----------------------------------------------------------------------------

// What stands under the names of the base's files and folders can be replaced by them.
static sp_status folder_is_free(const char *to) {
    struct stat s;
    if (lstat(to, &s) != 0 || sp_path_is_dir(to)) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s is no folder, and a folder of that name is to be written; choose another "
                    "--out, or remove it",
                    to);
}

static sp_status file_is_free(const char *from, const char *to, void *merged_before) {
    struct stat s;
    if (lstat(to, &s) != 0) return SP_OK;
    if (!*(bool *)merged_before && !S_ISDIR(s.st_mode))
        return sp_error(SP_BAD_INPUT,
                        "%s was not put there by an export, and is not replaced; choose another "
                        "--out, or remove it",
                        to);
    if (!S_ISDIR(s.st_mode)) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s is a folder, and the file %s is to be put there; choose another --out, or "
                    "remove the folder",
                    to, from);
}

sp_status sp_merge_check(const char *base, const char *out) {
    if (!sp_path_is_dir(base))
        return sp_error(SP_BAD_INPUT, "--merge %s: there is no such folder", base);
    char *inner = sp_path_join(base, "sparda"), *parent = sp_path_dir(out),
         *inner_out = sp_path_join(out, "sparda");
    char *real_base = realpath(base, NULL), *real_parent = parent ? realpath(parent, NULL) : NULL,
         *real_out = realpath(out, NULL);
    static const char *const own[] = {SP_FORECAST_SAFETENSORS, SP_FORECAST_PT,
                                      SP_PARITY_SAFETENSORS, SP_EXPORT_RECORD};
    sp_status st = SP_OK;
    if (!inner || !parent || !inner_out) SP_GO(out_of_memory());
    if (sp_path_is_dir(inner))
        SP_GO(sp_error(SP_BAD_INPUT,
                       "%s holds a folder sparda/ already, so it is a merged model; give the base "
                       "model's own folder",
                       base));
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) { // read in place of those in sparda/
        char *path = sp_path_join(base, own[i]);
        if (path && sp_path_is_file(path))
            st = sp_error(SP_BAD_INPUT,
                          "%s: an export lies in the base model's folder; move its files out of it",
                          path);
        free(path);
        if (st != SP_OK) goto done;
    }
    const char *inside[] = {real_parent, real_out};
    size_t len = real_base ? strlen(real_base) : 0;
    for (int i = 0; i < 2; i++)
        if (inside[i] && real_base && strncmp(inside[i], real_base, len) == 0 &&
            (inside[i][len] == '/' || inside[i][len] == 0))
            SP_GO(sp_error(SP_BAD_INPUT,
                           "%s lies inside the base model's folder %s; choose "
                           "another --out",
                           out, base));
    SP_GO(folder_is_free(inner_out));
    char *record = sp_path_join(inner_out, SP_EXPORT_RECORD);
    bool merged_before = record && sp_path_is_file(record);
    free(record);
    SP_GO(walk(base, out, 0, (visitor){folder_is_free, file_is_free}, &merged_before));
done:
    free(inner_out);
    free(inner);
    free(parent);
    free(real_base);
    free(real_parent);
    free(real_out);
    return st;
}

static sp_status copy_bytes(const char *from, const char *to) {
    int fd;
    int64_t bytes;
    SP_TRY(sp_open_regular(from, &fd, &bytes));
    FILE *in = fdopen(fd, "rb");
    if (!in) {
        close(fd);
        return sp_error(SP_ENVIRONMENT, "cannot read %s: %s", from, strerror(errno));
    }
    sp_atomic out = {0};
    char *buffer = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&buffer, COPY_BYTES, 1, "a copy buffer"));
    SP_GO(sp_atomic_open(&out, to));
    for (size_t n; (n = fread(buffer, 1, COPY_BYTES, in)) > 0;)
        SP_GO(sp_atomic_write(&out, buffer, (int64_t)n));
    if (ferror(in)) SP_GO(sp_error(SP_ENVIRONMENT, "cannot read %s", from));
    SP_GO(sp_atomic_commit(&out));
done:
    sp_atomic_abandon(&out);
    free(buffer);
    fclose(in);
    return st;
}

static sp_status link_or_copy(const char *from, const char *to, void *unused) {
    (void)unused;
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0) return SP_OK;
    char a[SP_SHA256_HEX], b[SP_SHA256_HEX];
    SP_TRY(copy_bytes(from, to));
    SP_TRY(sp_sha256_file(from, a));
    SP_TRY(sp_sha256_file(to, b));
    return strcmp(a, b) == 0 ? SP_OK
                             : sp_error(SP_ENVIRONMENT, "the copy %s differs from %s", to, from);
}

sp_status sp_merge_base(const char *base, const char *to) {
    return walk(base, to, 0, (visitor){sp_mkdirs, link_or_copy}, NULL);
}

// ---- our own folders ----------------------------------------------------------------------------

typedef struct move {
    const char *last;
    bool last_round;
} move;

static sp_status move_file(const char *from, const char *to, void *user) {
    const move *m = user;
    if ((strcmp(sp_path_base(from), m->last) == 0) != m->last_round) return SP_OK;
    if (rename(from, to) == 0) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

sp_status sp_move_tree(const char *from, const char *to, const char *last) {
    move m = {.last = last};
    SP_TRY(walk(from, to, 0, (visitor){sp_mkdirs, move_file}, &m));
    m.last_round = true;
    return walk(from, to, 0, (visitor){sp_mkdirs, move_file}, &m);
}

static int remove_entry(const char *path, const struct stat *s, int flag, struct FTW *ftw) {
    (void)s, (void)flag, (void)ftw;
    return remove(path);
}

void sp_remove_tree(const char *dir) {
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
