// The checkpoints of a run folder: which is the newest, which may go, and the `latest` pointer.
// A checkpoint counts by the step number inside the file; names and time stamps only find it.
#include "checkpoints/internal.h"
#include "common/log.h"
#include "common/util.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct checkpoint {
    char *path;
    int64_t step; // -1: does not open
} checkpoint;

// The number in "step-<digits>.h5", -1 for any other name.
static int64_t step_of_name(const char *name) {
    int64_t step = 0;
    if (strncmp(name, "step-", 5) != 0 || !isdigit((unsigned char)name[5])) return -1;
    const char *p = name + 5;
    for (; isdigit((unsigned char)*p); p++)
        if (!sp_mul(step, 10, &step) || !sp_add(step, *p - '0', &step)) return -1;
    return strcmp(p, ".h5") == 0 ? step : -1;
}

char *sp_checkpoint_path(const char *run_dir, int64_t step) {
    return sp_format("%s/checkpoints/step-%07" PRId64 ".h5", run_dir, step);
}

static int newest_first(const void *a, const void *b) {
    const checkpoint *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? 1 : -1;
    return strcmp(x->path, y->path);
}

static void free_checkpoints(checkpoint *c, int64_t n) {
    for (int64_t i = 0; i < n; i++) free(c[i].path);
    free(c);
}

// A file that the system does not let us read may be intact: that is no damage, and no reason to go
// on without it.
static sp_status check_readable(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int why = fd < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    if (why == 0 || why == ENOENT || why == ELOOP || why == ENXIO) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "the checkpoint %s cannot be read: %s; make it readable, or move it away to go "
                    "on without it",
                    path, strerror(why));
}

// All checkpoints below `run_dir`, newest first; the ones that do not open come last, each with a
// warning. With `to_start`, one that cannot be read is an error.
static sp_status list_checkpoints(const char *run_dir, bool to_start, checkpoint **out,
                                  int64_t *n) {
    *out = NULL;
    *n = 0;
    char **names = NULL;
    int64_t found = 0;
    sp_status st = SP_OK;
    char *dir = sp_path_join(run_dir, "checkpoints");
    if (!dir) return sp_error(SP_ENVIRONMENT, "out of memory");
    if (!sp_path_is_dir(dir)) goto done;
    SP_GO(sp_list_dir(dir, ".h5", &names, &found));
    SP_GO(sp_alloc(out, found, sizeof **out, "the list of checkpoints"));
    for (int64_t i = 0; i < found; i++) {
        int64_t named = step_of_name(names[i]);
        if (named < 0) continue;
        checkpoint *c = &(*out)[*n];
        if (!(c->path = sp_path_join(dir, names[i])))
            SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
        ++*n;
        if (to_start) SP_GO(check_readable(c->path));
        if (sp_state_peek_step(c->path, &c->step) != SP_OK) {
            sp_warn("ignoring a checkpoint: %s", sp_error_text());
            sp_error_clear();
            c->step = -1;
        } else if (c->step != named) {
            sp_warn("%s holds step %" PRId64 ", not the one in its name; the inside counts",
                    c->path, c->step);
        }
    }
    if (*n) qsort(*out, (size_t)*n, sizeof **out, newest_first);
done:
    sp_free_names(names, found);
    free(dir);
    if (st != SP_OK) {
        free_checkpoints(*out, *n);
        *out = NULL;
        *n = 0;
    }
    return st;
}

sp_status sp_newest_checkpoint(const char *run_dir, char **path) {
    *path = NULL;
    checkpoint *c;
    int64_t n;
    SP_TRY(list_checkpoints(run_dir, true, &c, &n));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < n && c[i].step >= 0 && !*path; i++) {
        sp_train_state whole = {0};
        st = sp_state_load(c[i].path, &whole);
        sp_train_state_free(&whole);
        if (st == SP_OK) {
            *path = c[i].path;
            c[i].path = NULL;
        } else if (st == SP_BAD_INPUT) { // an older one is worth more than none
            sp_warn("ignoring a checkpoint: %s", sp_error_text());
            sp_error_clear();
            st = SP_OK;
        } else {
            break;
        }
    }
    int64_t files = 0; // what is no file is no checkpoint either
    for (int64_t i = 0; i < n; i++) files += c[i].path && sp_path_is_file(c[i].path);
    if (st == SP_OK && files && !*path)
        st = sp_error(SP_BAD_INPUT,
                      "of the %" PRId64 " checkpoints in %s/checkpoints none can be used (see the "
                      "warnings); copy them back from where they are whole, or begin anew in "
                      "another folder, or with --force, which moves them aside",
                      files, run_dir);
    free_checkpoints(c, n);
    return st;
}

sp_status sp_check_checkpoint_names(const char *run_dir, int64_t first, int64_t last,
                                    sp_problems *p) {
    char **names = NULL, *dir = sp_path_join(run_dir, "checkpoints");
    int64_t n = 0;
    sp_status st = dir ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK && sp_path_is_dir(dir)) st = sp_list_dir(dir, "", &names, &n);
    for (int64_t i = 0; st == SP_OK && i < n; i++) {
        int64_t step = step_of_name(names[i]);
        char *path = sp_path_join(dir, names[i]), *saved = sp_checkpoint_path(run_dir, step);
        struct stat s;
        bool needed =
            strcmp(names[i], "latest") == 0 ||
            (step >= first && step <= last && saved && strcmp(names[i], sp_path_base(saved)) == 0);
        // A save replaces a file or a link by its rename.
        if (needed && path && lstat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode))
            sp_problems_add(p, "%s is %s, and checkpoints are saved under that name", path,
                            S_ISDIR(s.st_mode) ? "a folder" : "no file");
        free(saved);
        free(path);
    }
    sp_free_names(names, n);
    free(dir);
    return st;
}

// Removes what a killed writer left: ".step-*.h5.tmp.<pid>" and ".latest.tmp.<pid>".
static void remove_leftovers(const char *dir) {
    char own[32];
    snprintf(own, sizeof own, ".tmp.%ld", (long)getpid());
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        const char *tmp = strstr(e->d_name, ".tmp.");
        bool ours = strncmp(e->d_name, ".step-", 6) == 0 || strncmp(e->d_name, ".latest.", 8) == 0;
        if (!tmp || !ours || strcmp(tmp, own) == 0 || !tmp[5] ||
            tmp[5 + strspn(tmp + 5, "0123456789")] != 0)
            continue;
        unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}

sp_status sp_rotate_checkpoints(const char *run_dir, int64_t keep_last, int64_t keep_every,
                                const char *written, const char *resumed) {
    checkpoint *c = NULL;
    int64_t n = 0;
    char *latest = NULL, *dir = sp_path_join(run_dir, "checkpoints");
    if (!dir) return sp_error(SP_ENVIRONMENT, "out of memory");
    sp_status st = SP_OK;
    SP_GO(sp_latest_read(run_dir, &latest));
    SP_GO(list_checkpoints(run_dir, false, &c, &n));
    remove_leftovers(dir);
    // Steps that the run has yet to reach are of before it went back: they do not count.
    int64_t reached = INT64_MAX, counted = 0;
    for (int64_t i = 0; i < n; i++)
        if (sp_same_file(c[i].path, written)) reached = c[i].step;
    for (int64_t i = 0; keep_last > 0 && i < n; i++) {
        if (c[i].step < 0 || c[i].step > reached || counted++ < keep_last) continue;
        if (keep_every > 0 && c[i].step % keep_every == 0) continue;
        if (sp_same_file(c[i].path, written) || sp_same_file(c[i].path, resumed) ||
            sp_same_file(c[i].path, latest))
            continue;
        if (unlink(c[i].path) != 0 && errno != ENOENT)
            sp_warn("cannot remove the old checkpoint %s: %s", c[i].path, strerror(errno));
    }
done:
    free_checkpoints(c, n);
    free(latest);
    free(dir);
    return st;
}

sp_status sp_latest_write(const char *run_dir, const char *checkpoint_path) {
    char *path = sp_path_join(run_dir, "checkpoints/latest");
    char *line = sp_format("%s\n", sp_path_base(checkpoint_path));
    sp_status st = path && line ? sp_write_file(path, line, (int64_t)strlen(line))
                                : sp_error(SP_ENVIRONMENT, "out of memory");
    free(line);
    free(path);
    return st;
}

sp_status sp_latest_read(const char *run_dir, char **checkpoint_path) {
    *checkpoint_path = NULL;
    char *path = sp_path_join(run_dir, "checkpoints/latest"), *line = NULL;
    int64_t len;
    sp_status st = path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK && sp_path_is_file(path)) {
        SP_GO(sp_read_file(path, 4096, &line, &len));
        line[strcspn(line, "\r\n")] = 0;
        if (step_of_name(line) < 0)
            SP_GO(sp_error(SP_BAD_INPUT,
                           "%s should hold a name like step-0000100.h5, not '%.60s'; remove it",
                           path, line));
        *checkpoint_path = sp_format("%s/checkpoints/%s", run_dir, line);
        if (!*checkpoint_path) st = sp_error(SP_ENVIRONMENT, "out of memory");
    }
done:
    free(line);
    free(path);
    return st;
}
