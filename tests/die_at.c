// Preloaded into a program, kills it with SIGKILL at the DIE_AT-th of its calls that change the
// file system; a write is torn in the middle first. Without DIE_AT it only counts them, and leaves
// the number in the file DIE_COUNT. So every moment of saving can be tried, not only those that a
// timer happens to hit. What stdio writes by itself is not seen, but the fsync after it is.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;
static long die_at;

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("DIE_AT");
    die_at = at ? strtol(at, NULL, 10) : 0;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("DIE_COUNT");
    FILE *f = path && calls ? fopen(path, "we") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", (long)calls);
    fclose(f);
}

static int due(void) {
    return ++calls == die_at;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

// The library's own function of this name.
#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name)

#define CALL(name, parameters, ...)                                                                \
    int name parameters {                                                                          \
        NEXT(name);                                                                                \
        if (due()) die();                                                                          \
        return next(__VA_ARGS__);                                                                  \
    }

CALL(rename, (const char *from, const char *to), from, to)
CALL(unlink, (const char *path), path)
CALL(unlinkat, (int dir, const char *path, int flags), dir, path, flags)
CALL(remove, (const char *path), path)
CALL(rmdir, (const char *path), path)
CALL(mkdir, (const char *path, mode_t mode), path, mode)
CALL(fsync, (int fd), fd)
CALL(fdatasync, (int fd), fd)
CALL(truncate, (const char *path, off_t n), path, n)
CALL(ftruncate, (int fd, off_t n), fd, n)
CALL(ftruncate64, (int fd, off64_t n), fd, n)

#define PWRITE(name, offset)                                                                       \
    ssize_t name(int fd, const void *data, size_t n, offset at) {                                  \
        NEXT(name);                                                                                \
        if (due()) {                                                                               \
            (void)!next(fd, data, n / 2, at);                                                      \
            die();                                                                                 \
        }                                                                                          \
        return next(fd, data, n, at);                                                              \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t n) {
    NEXT(write);
    if (fd > 2 && due()) {
        (void)!next(fd, data, n / 2);
        die();
    }
    return next(fd, data, n);
}
