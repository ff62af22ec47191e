#include "common/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

bool sp_mul(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

bool sp_add(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}

sp_status sp_alloc(void *out_ptr, int64_t count, int64_t size, const char *what) {
    int64_t bytes;
    void *p = NULL;
    if (sp_mul(count, size, &bytes)) p = calloc((size_t)(bytes ? bytes : 1), 1);
    memcpy(out_ptr, &p, sizeof p);
    if (p) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "out of memory for %s: %lld x %lld bytes", what,
                    (long long)count, (long long)size);
}

char *sp_strdup(const char *s) {
    return s ? strdup(s) : NULL;
}

char *sp_format(const char *fmt, ...) {
    va_list ap;
    char *s = NULL;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0) s = NULL;
    va_end(ap);
    return s;
}

static bool text_reserve(sp_text *t, size_t extra) {
    if (t->failed) return false;
    if (t->len + extra + 1 <= t->cap) return true;
    size_t cap = (t->len + extra + 1) * 2;
    char *grown = realloc(t->data, cap);
    if (!grown) {
        sp_text_free(t);
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->cap = cap;
    return true;
}

void sp_text_add(sp_text *t, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && text_reserve(t, (size_t)n)) {
        vsnprintf(t->data + t->len, (size_t)n + 1, fmt, again);
        t->len += (size_t)n;
    }
    va_end(again);
}

void sp_text_bytes(sp_text *t, const void *bytes, size_t n) {
    if (!text_reserve(t, n)) return;
    if (n) memcpy(t->data + t->len, bytes, n);
    t->len += n;
    t->data[t->len] = 0;
}

void sp_text_free(sp_text *t) {
    free(t->data);
    memset(t, 0, sizeof *t);
}

char *sp_path_join(const char *dir, const char *name) {
    if (name[0] == '/' || !dir[0]) return sp_strdup(name);
    return sp_format("%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", name);
}

char *sp_path_dir(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return sp_strdup(".");
    if (slash == path) return sp_strdup("/");
    return strndup(path, (size_t)(slash - path));
}

const char *sp_path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool sp_path_is_dir(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool sp_path_is_file(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool sp_path_is_safe(const char *name) {
    if (!name[0] || name[0] == '/') return false;
    for (const char *p = name; p; p = strchr(p, '/')) {
        if (*p == '/') p++;
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == 0)) return false;
    }
    return true;
}

sp_status sp_mkdirs(const char *path) {
    char *copy = sp_strdup(path);
    if (!copy) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = SP_OK;
    for (char *p = copy + 1;; p++) {
        if (*p && *p != '/') continue;
        char keep = *p;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            // A file in the way is the user's choice of path.
            st = sp_error(errno == ENOTDIR ? SP_BAD_INPUT : SP_ENVIRONMENT,
                          "cannot create the folder %s: %s%s", copy, strerror(errno),
                          errno == ENOTDIR ? "; choose another path" : "");
            break;
        }
        if (!keep) break;
        *p = keep;
    }
    if (st == SP_OK && !sp_path_is_dir(path))
        st = sp_error(SP_BAD_INPUT, "%s exists and is not a folder; choose another path", path);
    free(copy);
    return st;
}

sp_status sp_check_destination(const char *path) {
    char *at = sp_strdup(path);
    struct stat s;
    struct statfs fs;
    // Up to the first folder that is there.
    while (at && stat(at, &s) != 0 && (errno == ENOENT || errno == ENOTDIR) &&
           strcmp(at, ".") != 0) {
        if (lstat(at, &s) == 0 && S_ISLNK(s.st_mode)) {
            sp_status dangling =
                sp_error(SP_BAD_INPUT, "%s is a link that leads nowhere; choose another path", at);
            free(at);
            return dangling;
        }
        char *up = sp_path_dir(at);
        free(at);
        at = up;
    }
    if (!at) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = SP_OK;
    if (stat(at, &s) != 0)
        st = sp_error(SP_BAD_INPUT, "cannot create the folder %s: %s", path, strerror(errno));
    else if (!S_ISDIR(s.st_mode))
        st = sp_error(SP_BAD_INPUT, "%s exists and is not a folder; choose another path", at);
    else if (access(at, W_OK | X_OK) != 0)
        st = sp_error(SP_ENVIRONMENT, "cannot write in the folder %s: %s", at, strerror(errno));
    else if (statfs(at, &fs) == 0 && (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC))
        // Root may write anywhere, says access, but nobody makes folders there.
        st = sp_error(SP_BAD_INPUT,
                      "cannot create the folder %s: %s belongs to the kernel; choose another path",
                      path, at);
    free(at);
    return st;
}

bool sp_same_file(const char *a, const char *b) {
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

// Line by line: files of the kernel state no size.
int64_t sp_host_available(void) {
    long long kib = -1;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1) kib = -1;
    if (f) fclose(f);
    return kib < 0 ? INT64_MAX : kib * 1024;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Whether a failed open is the machine's fault, not that of the path.
static bool errno_is_ours(int e) {
    return e == EMFILE || e == ENFILE || e == ENOMEM || e == EIO;
}

sp_status sp_list_dir(const char *dir, const char *suffix, char ***names, int64_t *n) {
    *names = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return sp_error(errno_is_ours(errno) ? SP_ENVIRONMENT : SP_BAD_INPUT,
                        "cannot read the folder %s: %s", dir, strerror(errno));
    size_t cap = 0, sl = strlen(suffix);
    sp_status st = SP_OK;
    for (struct dirent *e; st == SP_OK && (e = readdir(d));) {
        size_t l = strlen(e->d_name);
        if (e->d_name[0] == '.' || l < sl || strcmp(e->d_name + l - sl, suffix) != 0) continue;
        if ((size_t)*n == cap) {
            cap = cap ? cap * 2 : 16;
            char **grown = realloc(*names, cap * sizeof **names);
            if (!grown) {
                st = sp_error(SP_ENVIRONMENT, "out of memory");
                break;
            }
            *names = grown;
        }
        if (((*names)[*n] = sp_strdup(e->d_name)))
            ++*n;
        else
            st = sp_error(SP_ENVIRONMENT, "out of memory");
    }
    closedir(d);
    if (st != SP_OK) {
        sp_free_names(*names, *n);
        *names = NULL;
        *n = 0;
    } else if (*n) {
        qsort(*names, (size_t)*n, sizeof **names, by_name);
    }
    return st;
}

void sp_free_names(char **names, int64_t n) {
    for (int64_t i = 0; i < n; i++) free(names[i]);
    free(names);
}

sp_status sp_open_regular(const char *path, int *fd, int64_t *bytes) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) {
        return sp_error(errno_is_ours(errno) ? SP_ENVIRONMENT : SP_BAD_INPUT, "cannot open %s: %s",
                        path[0] ? path : "a file without a name", strerror(errno));
    }
    struct stat s;
    if (fstat(*fd, &s) == 0 && S_ISREG(s.st_mode)) {
        *bytes = s.st_size;
        return SP_OK;
    }
    close(*fd);
    *fd = -1;
    return sp_error(SP_BAD_INPUT, "%s is not a regular file", path);
}

sp_status sp_read_file(const char *path, int64_t max_bytes, char **data, int64_t *len) {
    *data = NULL;
    int fd;
    int64_t bytes;
    SP_TRY(sp_open_regular(path, &fd, &bytes));
    FILE *f = fdopen(fd, "rb");
    sp_status st = SP_OK;
    if (!f) {
        close(fd);
        return sp_error(SP_ENVIRONMENT, "cannot read %s: %s", path, strerror(errno));
    }
    if (bytes > max_bytes)
        st = sp_error(SP_BAD_INPUT, "%s has %lld bytes; at most %lld are expected of such a file",
                      path, (long long)bytes, (long long)max_bytes);
    if (st == SP_OK) st = sp_alloc(data, bytes + 1, 1, path);
    if (st == SP_OK && fread(*data, 1, (size_t)bytes, f) != (size_t)bytes)
        st = sp_error(SP_ENVIRONMENT, "cannot read %s: %s", path,
                      ferror(f) ? strerror(errno) : "it became shorter while being read");
    fclose(f);
    if (st != SP_OK) {
        free(*data);
        *data = NULL;
    } else {
        *len = bytes;
    }
    return st;
}

sp_status sp_map_open(const char *path, sp_map *out) {
    *out = (sp_map){0};
    int fd;
    int64_t bytes;
    SP_TRY(sp_open_regular(path, &fd, &bytes));
    sp_status st = SP_OK;
    if (bytes > 0) {
        void *p = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = sp_error(SP_ENVIRONMENT, "cannot map %s: %s", path, strerror(errno));
        else
            *out = (sp_map){p, bytes};
    }
    close(fd);
    return st;
}

void sp_map_close(sp_map *m) {
    if (m->data) munmap((void *)m->data, (size_t)m->bytes);
    *m = (sp_map){0};
}

sp_status sp_open_own(const char *path, int flags, int *fd) {
    *fd = open(path, flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd >= 0) return SP_OK;
    if (errno == ELOOP)
        return sp_error(SP_BAD_INPUT,
                        "%s is a symbolic link, and nothing is written through one; remove it",
                        path);
    return sp_error(SP_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno));
}

char *sp_temporary_name(const char *path) {
    char *dir = sp_path_dir(path);
    char *tmp = dir ? sp_format("%s/.%s.tmp.%ld", dir, sp_path_base(path), (long)getpid()) : NULL;
    free(dir);
    return tmp;
}

static sp_status sync_path(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        int e = errno;
        if (fd >= 0) close(fd);
        // Some file systems cannot sync a folder; the data itself is safe by then.
        if (fd >= 0 && (flags & O_DIRECTORY) && (e == EINVAL || e == EROFS)) return SP_OK;
        return sp_error(SP_ENVIRONMENT, "cannot write %s to disk: %s", path, strerror(e));
    }
    close(fd);
    return SP_OK;
}

sp_status sp_commit_file(const char *tmp, const char *path) {
    char *dir = sp_path_dir(path);
    sp_status st = dir ? sync_path(tmp, O_RDONLY) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK && rename(tmp, path) != 0)
        st = sp_error(SP_ENVIRONMENT, "cannot rename %s to %s: %s", tmp, path, strerror(errno));
    if (st == SP_OK)
        st = sync_path(dir, O_RDONLY | O_DIRECTORY);
    else
        unlink(tmp);
    free(dir);
    return st;
}

sp_status sp_atomic_open(sp_atomic *a, const char *path) {
    *a = (sp_atomic){.tmp = sp_temporary_name(path), .path = sp_strdup(path)};
    if (a->tmp && a->path) {
        unlink(a->tmp); // of a killed process with this number, or a link that lies in wait
        a->f = fopen(a->tmp, "wbxe");
    }
    if (a->f) return SP_OK;
    sp_status st = sp_error(SP_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno));
    sp_atomic_abandon(a);
    return st;
}

sp_status sp_atomic_write(sp_atomic *a, const void *data, int64_t bytes) {
    if (bytes == 0 || fwrite(data, 1, (size_t)bytes, a->f) == (size_t)bytes) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "cannot write %lld bytes to %s: %s", (long long)bytes, a->path,
                    strerror(errno));
}

sp_status sp_atomic_commit(sp_atomic *a) {
    FILE *f = a->f;
    a->f = NULL;
    sp_status st = SP_OK;
    int flushed = fflush(f), e = errno;
    if (fclose(f) != 0 || flushed != 0)
        st = sp_error(SP_ENVIRONMENT, "cannot write %s: %s", a->path,
                      strerror(flushed != 0 ? e : errno));
    if (st == SP_OK) st = sp_commit_file(a->tmp, a->path);
    sp_atomic_abandon(a);
    return st;
}

void sp_atomic_abandon(sp_atomic *a) {
    if (a->f) fclose(a->f);
    if (a->tmp) unlink(a->tmp);
    free(a->tmp);
    free(a->path);
    *a = (sp_atomic){0};
}

sp_status sp_write_file(const char *path, const void *data, int64_t bytes) {
    sp_atomic a;
    SP_TRY(sp_atomic_open(&a, path));
    sp_status st = sp_atomic_write(&a, data, bytes);
    if (st == SP_OK) return sp_atomic_commit(&a);
    sp_atomic_abandon(&a);
    return st;
}

uint16_t sp_f32_to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40); // quiet NaN
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

float sp_bf16_to_f32(uint16_t x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float sp_f16_to_f32(uint16_t x) {
    uint32_t sign = (uint32_t)(x >> 15) << 31, exponent = (x >> 10) & 31, fraction = x & 0x3ff, u;
    if (exponent == 31) {
        u = sign | 0x7f800000u | fraction << 13;
    } else if (exponent) {
        u = sign | (exponent + 112) << 23 | fraction << 13;
    } else { // zero and subnormal: fraction * 2^-24 is exact in fp32
        float f = (float)fraction * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t sp_f32_to_f16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  // NaN
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // rounds to 2^16 or more
    if (u < 0x38800000u) { // below the normal range: in units of 2^-24, rounded by the addition
        float magnitude;
        memcpy(&magnitude, &u, 4);
        float shifted = magnitude + 0.5f; // 1 ulp of [0.5, 1) is 2^-24
        memcpy(&u, &shifted, 4);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xfffu + (u >> 13 & 1); // to nearest, ties to even
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

uint64_t sp_splitmix64(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double sp_uniform(uint64_t *state) {
    return (double)(sp_splitmix64(state) >> 11) * 0x1p-53;
}

double sp_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
