#include "data/folders.h"
#include "common/util.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sp_status sp_folder_list(const char *dir, char ***name, int64_t *n) {
    *name = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d) return sp_error(SP_ENVIRONMENT, "cannot read the folder %s: %s", dir, strerror(errno));
    sp_status st = SP_OK;
    for (struct dirent *e; st == SP_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char **grown = realloc(*name, (size_t)(*n + 1) * sizeof *grown);
        if (grown) *name = grown;
        if (grown && (grown[*n] = sp_strdup(e->d_name)))
            ++*n;
        else
            st = sp_error(SP_ENVIRONMENT, "out of memory");
    }
    closedir(d);
    if (st == SP_OK) return SP_OK;
    sp_free_names(*name, *n);
    *name = NULL;
    *n = 0;
    return st;
}

int64_t sp_folder_shard(const char *name) {
    int digits = 0;
    int64_t k = 0;
    if (strncmp(name, "shard-", 6) != 0) return -1;
    for (name += 6; name[digits] >= '0' && name[digits] <= '9' && digits < 5; digits++)
        k = 10 * k + (name[digits] - '0');
    return digits == 5 && strcmp(name + digits, ".h5") == 0 ? k : -1;
}

int64_t sp_folder_there(const char *path) {
    char *at = sp_strdup(path);
    int64_t there = 0, n = at ? (int64_t)strlen(at) : 0;
    for (int64_t i = 1; at && i <= n; i++) {
        if (path[i] && path[i] != '/') continue;
        at[i] = 0;
        if (access(at, F_OK) != 0) break;
        at[i] = path[i];
        there = i;
    }
    free(at);
    return there;
}

void sp_folder_unmake(const char *path, int64_t there) {
    char *at = sp_strdup(path);
    for (int64_t n = at ? (int64_t)strlen(at) : 0; at && n > there; n--) {
        if (at[n] && at[n] != '/') continue;
        at[n] = 0;
        if (rmdir(at) != 0) break;
    }
    free(at);
}

sp_status sp_folder_private(const char *dir, const char *prefix, char **out) {
    *out = sp_format("%s/%s-XXXXXX", dir, prefix);
    if (!*out) return sp_error(SP_ENVIRONMENT, "out of memory");
    if (mkdtemp(*out)) return SP_OK;
    sp_status st = sp_error(SP_ENVIRONMENT, "cannot make a folder in %s: %s", dir, strerror(errno));
    free(*out);
    *out = NULL;
    return st;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    remove(path); // what cannot be removed stays
    return 0;
}

void sp_folder_remove(const char *dir) {
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

char *sp_folder_real(const char *path) {
    char *at = sp_strdup(path), *real = NULL;
    // The part that is there, by the system; the names behind it are no links yet.
    int64_t n = at ? (int64_t)strlen(at) : 0;
    while (at && n > 0 && !(real = realpath(at, NULL))) {
        while (n > 0 && path[n - 1] == '/') n--;
        while (n > 0 && path[n - 1] != '/') n--;
        at[n] = 0;
    }
    if (at && !real) real = realpath(".", NULL);
    free(at);
    for (const char *name = path + n; real && *name;) {
        size_t l = strcspn(name, "/");
        if (l == 2 && memcmp(name, "..", 2) == 0) {
            char *up = strrchr(real, '/');
            up[up == real] = 0;
        } else if (l > 0 && !(l == 1 && *name == '.')) {
            char *longer = sp_format("%s/%.*s", real[1] ? real : "", (int)l, name);
            free(real);
            real = longer;
        }
        name += l + (name[l] == '/');
    }
    return real;
}

bool sp_folder_within(const char *path, const char *in) {
    size_t n = strlen(in);
    if (in[n - 1] == '/') return true; // the root
    return strncmp(path, in, n) == 0 && (path[n] == 0 || path[n] == '/');
}
