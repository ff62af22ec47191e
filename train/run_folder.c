// The run folder: refusals, lock, moving aside, run.json. See run_folder.h.
#include "train/run_folder.h"

#include "checkpoints/checkpoints.h"
#include "common/log.h"
#include "common/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char LOCK_NAME[] = ".lock";

static sp_status no_memory(void) {
    return sp_error(SP_ENVIRONMENT, "out of memory");
}

char *sp_run_path(const sp_run_folder *f, const char *name) {
    return sp_path_join(f->dir, name);
}

void sp_utc_text(char text[32]) {
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

// ---- lock ---------------------------------------------------------------------------------------

static sp_status in_use(const char *dir, const char *owner) {
    return sp_error(SP_BAD_INPUT,
                    "%s is in use by another run (%.*s); wait for it, stop it, or choose another "
                    "--out",
                    dir, (int)strcspn(owner, "\n"), owner);
}

// Where the file system knows no locks: the owner named in the file, if it is alive on this host.
static bool owner_lives(const char *text, const char *host) {
    char name[256];
    long pid;
    if (sscanf(text, "process %ld on %255s", &pid, name) != 2) return false;
    return strcmp(name, host) != 0 || kill((pid_t)pid, 0) == 0 || errno == EPERM;
}

static sp_status take_lock(sp_run_folder *f) {
    sp_status st = SP_OK;
    char *path = sp_run_path(f, LOCK_NAME);
    char host[256] = "unknown";
    gethostname(host, sizeof host - 1);
    if (!path) return no_memory();
    for (;;) {
        int fd;
        SP_GO(sp_open_own(path, O_RDWR, &fd));
        int locked = flock(fd, LOCK_EX | LOCK_NB), e = errno;
        char owner[512] = "";
        ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
        owner[n < 0 ? 0 : n] = 0;
        if (locked != 0 && (e == EWOULDBLOCK || owner_lives(owner, host))) {
            close(fd);
            SP_GO(in_use(f->dir, owner));
        }
        // The owner removes the file as it ends: a lock on a removed file locks nothing.
        struct stat held, named;
        if (fstat(fd, &held) != 0 || stat(path, &named) != 0 || held.st_ino != named.st_ino ||
            held.st_dev != named.st_dev) {
            close(fd);
            continue;
        }
        if (locked != 0)
            sp_warn("%s: this file system has no locks (%s); two runs into one folder are noticed "
                    "only on the same host",
                    f->dir, strerror(e));
        char *text = sp_format("process %ld on %s\n", (long)getpid(), host);
        size_t len = text ? strlen(text) : 0;
        bool wrote = text && ftruncate(fd, 0) == 0 && pwrite(fd, text, len, 0) == (ssize_t)len;
        free(text);
        f->lock = fd;
        if (!wrote) SP_GO(sp_error(SP_ENVIRONMENT, "cannot write %s: %s", path, strerror(errno)));
        break;
    }
done:
    free(path);
    return st;
}

// ---- opening ------------------------------------------------------------------------------------

static sp_status is_empty(const char *dir, bool *empty) {
    char **names;
    int64_t n;
    SP_TRY(sp_list_dir(dir, "", &names, &n));
    *empty = n == 0;
    sp_free_names(names, n);
    return SP_OK;
}

// A run in `dir` that ended with an error before its first step: nothing in it is worth a refusal.
static bool is_failed_start(const char *dir) {
    char *path = sp_path_join(dir, "run.json"), *text = NULL, *checkpoint = NULL;
    int64_t len;
    json_error_t where;
    bool failed = false;
    if (path && sp_path_is_file(path) && sp_newest_checkpoint(dir, &checkpoint) == SP_OK &&
        !checkpoint && sp_read_file(path, 1 << 24, &text, &len) == SP_OK) {
        json_t *info = json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, &where);
        const char *status = json_string_value(json_object_get(info, "status"));
        const json_t *step = json_object_get(info, "step");
        failed = status && strcmp(status, "failed") == 0 && json_is_integer(step) &&
                 json_integer_value(step) == 0;
        json_decref(info);
    }
    sp_error_clear();
    free(checkpoint);
    free(text);
    free(path);
    return failed;
}

static sp_status check_contents(sp_run_folder *f, sp_start start) {
    if (start == SP_START_NEW) {
        bool empty = true;
        if (sp_path_is_dir(f->dir)) SP_TRY(is_empty(f->dir, &empty));
        f->failed_start = !empty && is_failed_start(f->dir);
        if (!empty && !f->failed_start)
            return sp_error(
                SP_BAD_INPUT,
                "%s is not empty; continue the run in it with --resume, start anew there "
                "with --force (old checkpoints are moved aside), or choose another --out",
                f->dir);
    } else if (start == SP_START_RESUME || start == SP_START_RESUME_AUTO) {
        if (sp_path_is_dir(f->dir)) SP_TRY(sp_newest_checkpoint(f->dir, &f->checkpoint));
        if (!f->checkpoint && start == SP_START_RESUME)
            return sp_error(SP_BAD_INPUT,
                            "nothing to resume: %s holds no complete checkpoint; start a new run "
                            "without --resume, or use --resume=auto for 'resume if possible'",
                            f->dir);
    }
    return SP_OK;
}

// run.json of the start before; what this start does not set stays.
static void read_info(sp_run_folder *f) {
    char *path = sp_run_path(f, "run.json"), *text = NULL;
    int64_t len;
    json_error_t where;
    if (path && sp_path_is_file(path)) {
        json_t *old = sp_read_file(path, 1 << 24, &text, &len) == SP_OK
                          ? json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, &where)
                          : NULL;
        if (json_is_object(old)) {
            json_decref(f->info);
            f->info = old;
        } else {
            json_decref(old);
            sp_warn("%s is unreadable and will be written anew", path);
        }
    }
    free(text);
    free(path);
}

sp_status sp_run_folder_open(const char *dir, sp_start start, bool look_only, sp_run_folder *out) {
    *out = (sp_run_folder){.lock = -1, .dir = sp_strdup(dir), .info = json_object()};
    if (!out->dir || !out->info) return no_memory();
    SP_TRY(check_contents(out, start)); // before anything is made, for a plain refusal
    SP_TRY(sp_check_destination(dir));
    if (look_only) {
        if (out->checkpoint) read_info(out);
        return SP_OK;
    }
    out->created = !sp_path_is_dir(dir);
    SP_TRY(sp_mkdirs(dir));
    SP_TRY(take_lock(out));
    free(out->checkpoint); // again: another run may have been at work until now
    out->checkpoint = NULL;
    SP_TRY(check_contents(out, start));
    if (out->checkpoint) read_info(out);
    return SP_OK;
}

// ---- preparing ----------------------------------------------------------------------------------

static const char *const parts[] = {
    "config.resolved.yaml", "run.json", "metrics.jsonl", "log", "tb", "checkpoints", "export"};
enum { N_PARTS = sizeof parts / sizeof parts[0], N_FILES = 3 }; // the files come first

// One of the folders on the way, or its end, is `entry`.
static bool leads_through(const char *path, const struct stat *entry) {
    char *at = sp_strdup(path);
    bool found = false;
    for (char *end = at; end && *end && !found;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char keep = *end;
        struct stat s;
        *end = 0;
        found = lstat(at, &s) == 0 && s.st_dev == entry->st_dev && s.st_ino == entry->st_ino;
        *end = keep;
    }
    free(at);
    return found;
}

static bool moves_aside(const sp_run_folder *f, sp_start start) {
    return start == SP_START_FORCE || f->failed_start;
}

bool sp_run_folder_moves(const sp_run_folder *f, sp_start start, const char *path) {
    if (!moves_aside(f, start)) return false;
    char *real = realpath(path, NULL);
    bool moves = false;
    for (int i = 0; i < N_PARTS && !moves; i++) {
        char *part = sp_run_path(f, parts[i]);
        struct stat s;
        moves = part && lstat(part, &s) == 0 &&
                (leads_through(path, &s) || (real && leads_through(real, &s)));
        free(part);
    }
    free(real);
    return moves;
}

sp_status sp_run_folder_obstacles(const sp_run_folder *f, sp_start start, int64_t first,
                                  int64_t last, sp_problems *p) {
    if (moves_aside(f, start)) return SP_OK;
    for (int i = 0; i < N_PARTS; i++) {
        char *path = sp_run_path(f, parts[i]);
        struct stat s;
        if (path && lstat(path, &s) == 0 &&
            (i < N_FILES ? S_ISDIR(s.st_mode) : !sp_path_is_dir(path)))
            sp_problems_add(p, "%s is %s folder", path, i < N_FILES ? "a" : "no");
        free(path);
    }
    return sp_check_checkpoint_names(f->dir, first, last, p);
}

static sp_status move_aside(const sp_run_folder *f) {
    char *to = NULL;
    sp_status st = SP_OK;
    for (int i = 0; i < N_PARTS; i++) {
        char *from = sp_run_path(f, parts[i]);
        struct stat s;
        if (from && lstat(from, &s) == 0) {
            for (int n = 1; !to && n < 1000000; n++) {
                to = sp_format("%s/old-%d", f->dir, n);
                if (to && mkdir(to, 0777) == 0) break;
                if (!to || errno != EEXIST)
                    st = sp_error(SP_ENVIRONMENT, "cannot create %s: %s", to ? to : "a folder",
                                  strerror(errno));
                free(to);
                to = NULL;
                if (st != SP_OK) break;
            }
            char *under = to ? sp_path_join(to, parts[i]) : NULL;
            if (under && rename(from, under) != 0)
                st = sp_error(SP_ENVIRONMENT, "cannot move %s to %s: %s", from, under,
                              strerror(errno));
            free(under);
        }
        free(from);
        if (st != SP_OK) break;
    }
    if (to && st == SP_OK) sp_info("an earlier run was moved to %s", to);
    free(to);
    return st;
}

// Files of a killed run that never got their final name; the lock is ours, so nobody writes them.
// Those in checkpoints/ are the rotation's.
static void remove_temporaries(const char *dir, const char *prefix) {
    DIR *d = opendir(dir);
    if (!d) return;
    size_t n = strlen(prefix);
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, prefix, n) == 0 && strstr(e->d_name, ".tmp.")) {
            char *path = sp_path_join(dir, e->d_name);
            if (path && unlink(path) == 0) sp_info("removed an unfinished file: %s", path);
            free(path);
        }
    closedir(d);
}

sp_status sp_run_folder_prepare(sp_run_folder *f, sp_start start) {
    f->written = true;
    if (moves_aside(f, start)) SP_TRY(move_aside(f));
    char *checkpoints = sp_run_path(f, "checkpoints"), *tb = sp_run_path(f, "tb");
    sp_status st = checkpoints && tb ? SP_OK : no_memory();
    if (st == SP_OK) st = sp_mkdirs(checkpoints);
    if (st == SP_OK) st = sp_mkdirs(tb);
    if (st == SP_OK) {
        remove_temporaries(f->dir, ".run.json");
        remove_temporaries(f->dir, ".config.resolved.yaml");
    }
    free(checkpoints);
    free(tb);
    return st;
}

void sp_run_folder_close(sp_run_folder *f) {
    if (f->lock >= 0) {
        char *path = sp_run_path(f, LOCK_NAME);
        if (path) unlink(path); // while it is still ours
        free(path);
        close(f->lock);
        if (f->created && !f->written) rmdir(f->dir);
    }
    json_decref(f->info);
    free(f->checkpoint);
    free(f->dir);
    *f = (sp_run_folder){.lock = -1};
}

// ---- files --------------------------------------------------------------------------------------

void sp_run_set(sp_run_folder *f, const char *key, json_t *value) {
    json_object_set_new(f->info, key, value);
}

sp_status sp_run_write_info(sp_run_folder *f) {
    char now[32];
    sp_utc_text(now);
    sp_run_set(f, "updated", json_string(now));
    char *path = sp_run_path(f, "run.json");
    char *json = json_dumps(f->info, JSON_INDENT(2));
    char *text = json ? sp_format("%s\n", json) : NULL;
    sp_status st = path && text ? sp_write_file(path, text, (int64_t)strlen(text)) : no_memory();
    free(text);
    free(json);
    free(path);
    return st;
}
