// Import: the hidden folder, workers, and the moment at which a domain appears (data/import.h).
//
//   OUT/.import-NAME/plan.json          what is being made from what; another plan starts anew
//   OUT/.import-NAME/shard-00000.part   a finished shard (its temporary name begins with a dot)
//   OUT/.import-NAME/shard-00001.empty  a job that gave no row
//   OUT/.import-NAME/failed             some rank found a fault: nothing of this domain will remain
//   OUT/NAME/{import.json, shard-00000.h5, ...}   all of it at once, by renaming the folder
#include "data/import.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/util.h"
#include "data/folder_index.h"
#include "data/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { JOBS_MAX = 100000 };

typedef struct target { // of one domain
    const sp_import_domain *from;
    char *final, *stage, *plan; // folders, text of plan.json
    int lock;                   // held by rank 0 while it works on the domain; -1
    bool done;                  // was there already
    atomic_bool failed;
    _Atomic int64_t rows, tokens, dropped;
} target;

typedef struct work {
    const sp_import_args *a;
    const sp_data_team *team;
    target *target;
    int64_t n;
    struct {
        int64_t domain, job;
    } * item; // jobs of this rank in order
    int64_t n_items;
    _Atomic int64_t next, bytes_done;
    int64_t bytes, bytes_before; // to be read in all; done by an earlier run
    double start;                // seconds
    int64_t out_there;           // sp_folder_there of OUT before rank 0 made it; -1
    atomic_bool stop;            // the machine failed: nobody goes on
    pthread_mutex_t lock;
    sp_problems problems; // under the lock, as is:
    sp_status worst;
    double shown;
} work;

// ---- the plan -----------------------------------------------------------------------------------

static sp_status add_file(json_t *files, const char *path) {
    struct stat info = {0};
    if (stat(path, &info) != 0)
        return sp_error(SP_BAD_INPUT, "%s cannot be read: %s", path, strerror(errno));
    char *real = realpath(path, NULL);
    sp_status st = sp_import_check_text("the path of a source", real ? real : path, "rename it");
    if (st == SP_OK)
        json_array_append_new(files,
                              json_pack("[s,I,I]", real ? real : path, (json_int_t)info.st_size,
                                        (json_int_t)info.st_mtim.tv_sec));
    free(real);
    return st;
}

// Everything that the shards depend on, as a text to be compared.
static sp_status make_plan(const sp_import_args *a, const sp_import_domain *d, char **text) {
    json_t *files = json_array();
    sp_status st = files ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK)
        st = sp_import_check_text("the name of the domain", d->name, "give one with --domain");
    for (int64_t i = 0; i < d->sources.n && st == SP_OK; i++)
        st = add_file(files, d->sources.at[i]->path);
    for (int64_t i = 0; i < d->n_flat && st == SP_OK; i++) st = add_file(files, d->flat[i].path);
    json_t *o = json_pack(
        "{s:s,s:i,s:s,s:s,s:I,s:I,s:I,s:[i,b,b,b,I],s:s,s:I,s:o}", "format", SP_IMPORT_FORMAT,
        "version", 1, "domain", d->name, "tokenizer", a->tokenizer, "vocab", (json_int_t)a->vocab,
        "out_vocab", (json_int_t)a->out_vocab, "shard_tokens", (json_int_t)a->shard_tokens, "flat",
        a->format.itemsize, a->format.is_signed, a->format.has_eod, a->format.drop_eod,
        (json_int_t)a->format.eod, "change", a->change ? a->change->identity : "", "jobs",
        (json_int_t)d->n_jobs, "files", files);
    if (st == SP_OK) *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    if (st == SP_OK && !*text) st = sp_error(SP_ENVIRONMENT, "out of memory for the plan");
    return st;
}

static bool same_plan(const char *folder, const char *name, const char *plan) {
    char *path = sp_path_join(folder, name), *text = NULL;
    int64_t n;
    bool same = path && sp_path_is_file(path) &&
                sp_read_file(path, SP_IMPORT_RECORD_MAX, &text, &n) == SP_OK &&
                strcmp(text, plan) == 0;
    sp_error_clear();
    free(text);
    free(path);
    return same;
}

// ---- folders ------------------------------------------------------------------------------------

// With all its files, or those alone that `ours` knows; any other stays, and is an error.
static sp_status remove_folder(const char *dir, bool (*ours)(const char *name)) {
    char **name;
    int64_t n;
    if (!sp_path_is_dir(dir)) return SP_OK;
    sp_status st = SP_OK;
    SP_TRY(sp_folder_list(dir, &name, &n));
    for (int64_t i = 0; i < n && st == SP_OK; i++) {
        if (ours && !ours(name[i])) continue;
        char *path = sp_path_join(dir, name[i]);
        if (!path)
            st = sp_error(SP_ENVIRONMENT, "out of memory");
        else if (unlink(path) != 0)
            st = sp_error(SP_ENVIRONMENT, "cannot remove %s: %s", path, strerror(errno));
        free(path);
    }
    sp_free_names(name, n);
    if (st == SP_OK && rmdir(dir) != 0)
        st = sp_error(SP_ENVIRONMENT, "cannot remove the folder %s: %s", dir, strerror(errno));
    return st;
}

static char *stage_name(const target *t, int64_t job, const char *ending) {
    return sp_format("%s/shard-%05" PRId64 ".%s", t->stage, job, ending);
}

static bool exists(char *path) { // frees it
    bool yes = path && access(path, F_OK) == 0;
    free(path);
    return yes;
}

static bool job_is_done(const target *t, int64_t job) {
    // .h5: the earlier run ended while it was publishing
    return exists(stage_name(t, job, "part")) || exists(stage_name(t, job, "h5")) ||
           exists(stage_name(t, job, "empty"));
}

// Temporaries of a run that was killed.
static sp_status remove_leftovers(const char *dir) {
    char **name;
    int64_t n;
    SP_TRY(sp_folder_list(dir, &name, &n));
    for (int64_t i = 0; i < n; i++) {
        char *path = name[i][0] == '.' ? sp_path_join(dir, name[i]) : NULL;
        if (path) unlink(path);
        free(path);
    }
    sp_free_names(name, n);
    return SP_OK;
}

// [rank 0] Whether the domain is there already, or something that is not to be replaced. Changes
// nothing.
static sp_status look_at(const work *w, target *t) {
    struct stat info;
    if (lstat(t->final, &info) == 0) {
        if (!w->a->force && same_plan(t->final, SP_IMPORT_RECORD, t->plan)) {
            t->done = true;
            return SP_OK;
        }
        if (!w->a->force && S_ISDIR(info.st_mode))
            return sp_error(
                SP_BAD_INPUT,
                "%s is there already and was not made from the same files with the same "
                "options; choose another --out or --domain, or replace it with --force",
                t->final);
        SP_TRY(sp_import_replaceable(t->final));
    }
    if (lstat(t->stage, &info) == 0 && !S_ISDIR(info.st_mode))
        return sp_error(SP_BAD_INPUT, "%s, where shards collect, is no folder; remove it",
                        t->stage);
    return SP_OK;
}

// [rank 0] Makes or takes over the hidden folder.
static sp_status prepare(target *t) {
    SP_TRY(sp_mkdirs(t->stage));
    t->lock = open(t->stage, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->lock >= 0 && flock(t->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return sp_error(SP_BAD_INPUT, "another program is importing into %s; wait for it to end",
                        t->stage);
    if (same_plan(t->stage, "plan.json", t->plan)) return remove_leftovers(t->stage);
    char **name;
    int64_t n;
    SP_TRY(sp_folder_list(t->stage, &name, &n));
    sp_status st = SP_OK;
    for (int64_t i = 0; i < n; i++) {
        char *path = sp_path_join(t->stage, name[i]);
        if (path) unlink(path);
        free(path);
    }
    sp_free_names(name, n);
    if (n > 0)
        sp_info("%s: what an earlier import of other files or options left is replaced", t->final);
    char *path = sp_path_join(t->stage, "plan.json");
    st = path ? sp_write_file(path, t->plan, (int64_t)strlen(t->plan))
              : sp_error(SP_ENVIRONMENT, "out of memory");
    free(path);
    return st;
}

// ---- one job ------------------------------------------------------------------------------------

typedef struct worker {
    work *w;
    target *t;
    sp_scan scan;
    void *change;
    sp_shard_writer *writer;
    const int32_t *domain; // of the source's rows; NULL: all 0
    const char *path;      // of the file that is being read
    int64_t rows, tokens, dropped;
    bool stopped; // because another one failed
} worker;

static sp_status take_row(void *user, int64_t row, const int32_t *tokens, int64_t n) {
    worker *k = user;
    const sp_import_args *a = k->w->a;
    if (a->change) {
        sp_status st = a->change->row(k->change, tokens, n, &tokens, &n);
        if (st != SP_OK) {
            sp_error_prefix("%s: row %lld", k->path, (long long)row);
            return st;
        }
        if (n == 0) {
            k->dropped++;
            return SP_OK;
        }
    }
    k->rows++;
    k->tokens += n;
    if (k->w->stop) {
        k->stopped = true;
        return sp_error(SP_ENVIRONMENT, "stopped");
    }
    return sp_shard_append(k->writer, tokens, n, k->domain ? k->domain[row] : 0);
}

static void show_progress(work *w, const char *domain) {
    double now = sp_now();
    pthread_mutex_lock(&w->lock);
    bool due = now - w->shown > 0.2;
    if (due) w->shown = now;
    pthread_mutex_unlock(&w->lock);
    if (!due) return;
    double done = (double)w->bytes_done, all = (double)(w->bytes - w->bytes_before);
    double rate = done / (now - w->start), left = rate > 0 ? (all - done) / rate : 0;
    sp_progress("%s: %.1f of %.1f GB, %.0f MB/s, %.0f min %02.0f s left", domain,
                1e-9 * (done + (double)w->bytes_before), 1e-9 * (double)w->bytes, 1e-6 * rate,
                (double)((int64_t)left / 60), (double)((int64_t)left % 60));
}

// Has the kernel fetch what this thread will read next while it works on the present file. The
// bytes go to the page cache, so memory of the process does not grow.
static void read_ahead(const char *path, int64_t from, int64_t bytes) {
    const int64_t most = 1 << 27; // a large file is read on by the kernel's own read-ahead
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return; // reading it will tell why
    posix_fadvise(fd, from, bytes < most ? bytes : most, POSIX_FADV_WILLNEED);
    close(fd);
}

// The beginning of the job that is likely to be next.
static void read_ahead_job(const work *w) {
    int64_t next = w->next;
    if (next >= w->n_items) return;
    const sp_import_domain *d = w->target[w->item[next].domain].from;
    const sp_import_job *job = &d->job[w->item[next].job];
    if (d->n_flat)
        read_ahead(d->flat[job->first].path, job->begin_at, job->bytes);
    else
        read_ahead(d->sources.at[job->first]->path, 0, d->sources.at[job->first]->bytes);
}

static sp_status feed(worker *k, const sp_import_job *job) {
    const sp_import_domain *d = k->t->from;
    if (d->n_flat) {
        k->path = d->flat[job->first].path;
        return sp_flat_scan(&d->flat[job->first], &k->w->a->format, job, &k->scan);
    }
    for (int64_t i = job->first; i < job->end; i++) {
        const sp_source *s = d->sources.at[i];
        int32_t *domain = NULL;
        if (i + 1 < job->end)
            read_ahead(d->sources.at[i + 1]->path, 0, d->sources.at[i + 1]->bytes);
        else
            read_ahead_job(k->w);
        if (s->n_domains > 1) {
            SP_TRY(sp_alloc(&domain, s->rows, sizeof *domain, "row domains"));
            sp_status st = s->ops->domains(s, domain);
            if (st != SP_OK) {
                free(domain);
                return st;
            }
        }
        k->domain = domain;
        k->path = s->path;
        sp_status st = s->ops->scan(s, &k->scan);
        k->domain = NULL;
        free(domain);
        SP_TRY(st);
        if (k->scan.unknown)
            sp_warn("%s: its %s cannot be compared: the method is not known here", s->path,
                    k->scan.unknown);
        k->scan.unknown = NULL;
        k->w->bytes_done += s->bytes;
        show_progress(k->w, d->name);
    }
    return SP_OK;
}

static sp_status run_job(worker *k, int64_t number) {
    const sp_import_args *a = k->w->a;
    const sp_import_domain *d = k->t->from;
    const sp_import_job *job = &d->job[number];
    const sp_source *first = d->n_flat ? NULL : d->sources.at[job->first];
    const char *own = d->name;
    const bool table = first && first->n_domains > 1;
    const sp_shard_meta meta = {.tokenizer = a->tokenizer,
                                .vocab = a->out_vocab,
                                .domains = table ? (const char *const *)first->domain : &own,
                                .n_domains = table ? first->n_domains : 1};
    char *path = stage_name(k->t, number, "part"), *empty = stage_name(k->t, number, "empty");
    sp_status st = path && empty ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_shard_create(path, &meta, &k->writer);
    k->rows = k->tokens = k->dropped = 0;
    if (st == SP_OK) {
        st = feed(k, job);
        if (st == SP_OK && k->rows > 0) {
            st = sp_shard_finish(k->writer);
        } else {
            char *text = st == SP_OK ? NULL : sp_strdup(sp_error_text());
            sp_shard_abandon(k->writer);
            if (st == SP_OK)
                st = sp_write_file(empty, "", 0);
            else
                st = sp_error(st, "%s", text ? text : "out of memory");
            free(text);
        }
        k->writer = NULL;
    }
    free(path);
    free(empty);
    if (st != SP_OK) return st;
    if (d->n_flat) k->w->bytes_done += job->bytes;
    k->t->rows += k->rows;
    k->t->tokens += k->tokens;
    k->t->dropped += k->dropped;
    show_progress(k->w, d->name);
    return SP_OK;
}

// ---- workers ------------------------------------------------------------------------------------

static void mark_failed(work *w, target *t, sp_status st) {
    bool first = !atomic_exchange(&t->failed, true);
    pthread_mutex_lock(&w->lock);
    if (!w->stop && (first || st == SP_ENVIRONMENT))
        sp_problems_add(&w->problems, "%s", sp_error_text());
    if (st > w->worst) w->worst = st;
    if (st == SP_ENVIRONMENT) w->stop = true;
    pthread_mutex_unlock(&w->lock);
    char *path = sp_path_join(t->stage, "failed");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) close(fd);
    free(path);
}

static void *work_off(void *arg) {
    work *w = arg;
    worker k = {.w = w};
    // Without a vocabulary the largest id plus 1 is stored as one, in an int32: a source with an id
    // beyond that is refused where the id stands.
    const int64_t vocab = w->a->vocab ? w->a->vocab : INT32_MAX;
    k.scan = (sp_scan){.vocab = vocab, .visit = take_row, .user = &k};
    const sp_row_change *c = w->a->change;
    sp_status st = c ? c->start(c->user, &k.change) : SP_OK;
    for (int64_t i; !w->stop && (i = w->next++) < w->n_items;) {
        k.t = &w->target[w->item[i].domain];
        if (k.t->failed || exists(sp_path_join(k.t->stage, "failed"))) continue;
        if (st == SP_OK) st = run_job(&k, w->item[i].job);
        if (st != SP_OK && !k.stopped) mark_failed(w, k.t, st);
        st = SP_OK;
    }
    sp_scan_free(&k.scan);
    if (c) c->end(k.change);
    sp_error_clear();
    return NULL;
}

static sp_status run_jobs(work *w) {
    int64_t n = w->a->threads < w->n_items ? w->a->threads : w->n_items, started = 0;
    pthread_t *thread;
    if (n < 1) return SP_OK;
    SP_TRY(sp_alloc(&thread, n, sizeof *thread, "threads"));
    w->start = w->shown = sp_now();
    while (started < n && pthread_create(&thread[started], NULL, work_off, w) == 0) started++;
    if (started == 0) work_off(w);
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    free(thread);
    sp_progress("%s", "");
    return SP_OK;
}

// ---- the end ------------------------------------------------------------------------------------

static sp_status rename_to(const char *from, const char *to) {
    if (!from || !to) return sp_error(SP_ENVIRONMENT, "out of memory");
    if (rename(from, to) == 0) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

// [rank 0] All jobs are done: the domain appears.
static sp_status publish(const target *t, bool force, int64_t *rows, int64_t *tokens) {
    struct stat info;
    char **name, *old = NULL;
    int64_t n, shards = 0;
    sp_status st = SP_OK;
    SP_TRY(sp_list_dir(t->stage, "", &name, &n));
    for (int64_t i = 0; i < n && st == SP_OK; i++) {
        char *from = sp_path_join(t->stage, name[i]), *to = NULL, *dot = strrchr(name[i], '.');
        shards += dot && (strcmp(dot, ".part") == 0 || strcmp(dot, ".h5") == 0);
        if (!from) {
            st = sp_error(SP_ENVIRONMENT, "out of memory");
        } else if (dot && strcmp(dot, ".empty") == 0) {
            unlink(from);
        } else if (dot && strcmp(dot, ".part") == 0) {
            to = sp_format("%s/%.*s.h5", t->stage, (int)(dot - name[i]), name[i]);
            st = rename_to(from, to);
        }
        free(from);
        free(to);
    }
    sp_free_names(name, n);
    SP_TRY(st);
    if (shards == 0)
        return sp_error(SP_BAD_INPUT, "%s: no row came out of %s; nothing was made", t->final,
                        t->from->path);
    SP_TRY(sp_folder_index_write(t->stage, rows, tokens));
    char *from = sp_path_join(t->stage, "plan.json"),
         *to = sp_path_join(t->stage, SP_IMPORT_RECORD);
    st = rename_to(from, to);
    free(from);
    free(to);
    SP_TRY(st);
    if (lstat(t->final, &info) == 0) {
        if (!force)
            return sp_error(SP_BAD_INPUT,
                            "%s was made by another program meanwhile; choose another --out",
                            t->final);
        SP_TRY(sp_import_replaceable(t->final)); // it may have changed since the beginning
        // At once, where the file system can: at no moment is there no domain of that name.
        if (renameat2(AT_FDCWD, t->stage, AT_FDCWD, t->final, RENAME_EXCHANGE) == 0)
            return remove_folder(t->stage, sp_import_makes);
        old = sp_format("%s.old.%ld", t->stage, (long)getpid());
        if (!old || rename(t->final, old) != 0)
            st = sp_error(SP_ENVIRONMENT, "cannot move %s aside: %s", t->final, strerror(errno));
    }
    if (st == SP_OK) st = rename_to(t->stage, t->final);
    if (st == SP_OK && old) st = remove_folder(old, sp_import_makes);
    free(old);
    return st;
}

static int64_t jobs_missing(const target *t) {
    int64_t missing = 0;
    for (int64_t j = 0; j < t->from->n_jobs; j++) missing += !job_is_done(t, j);
    return missing;
}

// [rank 0] Domains that are complete appear, those with a fault go. What the machine interrupted
// stays for the next run.
static sp_status finish(work *w) {
    sp_problems problems = {0};
    for (int64_t i = 0; i < w->n; i++) {
        target *t = &w->target[i];
        if (t->done) {
            sp_info("%s: already imported from the same files; nothing to do", t->final);
            continue;
        }
        sp_status st = SP_OK;
        if (t->failed || exists(sp_path_join(t->stage, "failed"))) {
            st = remove_folder(t->stage, NULL);
        } else if (jobs_missing(t) == 0) {
            int64_t rows, tokens;
            st = publish(t, w->a->force, &rows, &tokens);
            if (st == SP_OK)
                sp_info("%s: %" PRId64 " rows, %" PRId64 " tokens", t->final, rows, tokens);
            if (st == SP_OK && t->dropped)
                sp_info("%s: %" PRId64 " rows became empty and were left out%s", t->final,
                        (int64_t)t->dropped, w->team->size > 1 ? " by rank 0 alone" : "");
            if (st == SP_BAD_INPUT) {
                sp_problems_add(&problems, "%s", sp_error_text());
                if (w->worst == SP_OK) w->worst = st;
                st = remove_folder(t->stage, NULL);
            }
        }
        if (st != SP_OK) {
            sp_problems_add(&problems, "%s", sp_error_text());
            w->worst = st;
        }
        if (t->lock >= 0) close(t->lock);
        t->lock = -1;
    }
    if (problems.count) sp_problems_add(&w->problems, "%s", problems.text ? problems.text + 5 : "");
    free(problems.text);
    return SP_OK;
}

// ---- the whole ----------------------------------------------------------------------------------

static sp_status check_room(const sp_import_args *a, const sp_import_list *list) {
    struct statvfs fs;
    double need = 0;
    for (int64_t i = 0; i < list->n; i++) {
        for (int64_t k = 0; k < list->at[i].sources.n; k++)
            need += (double)list->at[i].sources.at[k]->unpacked;
        for (int64_t k = 0; k < list->at[i].n_flat; k++) {
            const sp_flat_file *f = &list->at[i].flat[k];
            // an id is at least 2 characters, and at most 4 bytes of a shard: a lower bound
            need += (double)f->bytes * (f->json ? 0.5 : 4.0 / a->format.itemsize);
        }
    }
    if (a->change || statvfs(a->out, &fs) != 0) return SP_OK; // the writing will tell
    double have = (double)fs.f_bavail * (double)fs.f_frsize;
    if (0.9 * need <= have) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "%s: the shards need about %.1f MB, but only %.1f MB are free there", a->out,
                    need / 1e6, have / 1e6);
}

static sp_status make_targets(work *w, const sp_import_list *list) {
    SP_TRY(sp_alloc(&w->target, list->n, sizeof *w->target, "the domains"));
    w->n = list->n;
    for (int64_t i = 0; i < list->n; i++) {
        target *t = &w->target[i];
        t->from = &list->at[i];
        t->lock = -1;
        if (list->at[i].n_jobs > JOBS_MAX)
            return sp_error(SP_BAD_INPUT,
                            "%s would become %" PRId64
                            " shards; at most %d are possible: raise --shard-tokens",
                            list->at[i].path, list->at[i].n_jobs, JOBS_MAX);
        t->final = sp_path_join(w->a->out, list->at[i].name);
        t->stage = sp_format("%s/.import-%s", w->a->out, list->at[i].name);
        if (!t->final || !t->stage) return sp_error(SP_ENVIRONMENT, "out of memory");
        SP_TRY(make_plan(w->a, &list->at[i], &t->plan));
    }
    return SP_OK;
}

// Jobs of all domains in turn, dealt to the ranks one by one.
static sp_status list_jobs(work *w) {
    int64_t all = 0, k = 0, had = 0;
    for (int64_t i = 0; i < w->n; i++) all += w->target[i].from->n_jobs;
    SP_TRY(sp_alloc(&w->item, all, sizeof *w->item, "the jobs"));
    for (int64_t i = 0; i < w->n; i++) {
        target *t = &w->target[i];
        if (!t->done && !w->a->force)
            t->done = sp_path_is_dir(t->final) && same_plan(t->final, SP_IMPORT_RECORD, t->plan);
        for (int64_t j = 0; j < t->from->n_jobs && !t->done; j++, k++) {
            if (k % w->team->size != w->team->rank) continue;
            w->bytes += t->from->job[j].bytes;
            if (job_is_done(t, j)) {
                w->bytes_before += t->from->job[j].bytes;
                had++;
                continue;
            }
            w->item[w->n_items].domain = i;
            w->item[w->n_items++].job = j;
        }
    }
    if (had)
        sp_info("going on with an interrupted import: %" PRId64 " of %" PRId64 " shards are there",
                had, had + w->n_items);
    return SP_OK;
}

static void free_work(work *w) {
    for (int64_t i = 0; i < w->n; i++) {
        if (w->target[i].lock >= 0) close(w->target[i].lock);
        free(w->target[i].final);
        free(w->target[i].stage);
        free(w->target[i].plan);
    }
    free(w->target);
    free(w->item);
    free(w->problems.text);
    pthread_mutex_destroy(&w->lock);
}

static sp_status prepare_all(work *w, const sp_import_list *list) {
    sp_problems p = {0};
    sp_status st = SP_OK;
    for (int i = 0; i < 2 && st == SP_OK && p.count == 0; i++) {
        if (i == 1) { // nothing is in the way
            w->out_there = sp_folder_there(w->a->out);
            SP_TRY(sp_mkdirs(w->a->out));
            SP_TRY(check_room(w->a, list));
        }
        for (int64_t k = 0; k < w->n && st == SP_OK; k++) {
            target *t = &w->target[k];
            st = i == 0 ? look_at(w, t) : t->done ? SP_OK : prepare(t);
            if (st != SP_BAD_INPUT) continue;
            sp_problems_add(&p, "%s", sp_error_text());
            st = SP_OK;
        }
    }
    if (st == SP_OK) return sp_problems_end(&p, SP_BAD_INPUT, "the import cannot begin");
    free(p.text);
    return st;
}

// Every rank sees the same files, so that all plan the same; rank 0 makes and renames the folders.
static sp_status run_with(work *w, const sp_import_args *a, sp_import_list *list) {
    sp_problems problems = {0};
    sp_status st = sp_import_find(a->source, a->n_sources, &a->format, &problems, list);
    if (st == SP_OK && problems.count == 0 && a->domain) {
        if (list->n != 1) {
            sp_problems_add(&problems, "--domain names one domain, but there are %" PRId64,
                            list->n);
        } else {
            free(list->at[0].name);
            list->at[0].name = sp_strdup(a->domain);
            if (!list->at[0].name) st = sp_error(SP_ENVIRONMENT, "out of memory");
        }
    }
    if (st == SP_OK && problems.count == 0) st = sp_import_check_places(a, list, &problems);
    if (st == SP_OK)
        st = sp_problems_end(&problems, SP_BAD_INPUT, "the data cannot be imported");
    else
        free(problems.text);
    if (st == SP_OK && a->change && w->team->rank == 0)
        for (int64_t i = 0; i < list->n; i++)
            for (int64_t k = 0; k < list->at[i].sources.n; k++)
                a->change->look(a->change->user, list->at[i].sources.at[k]);
    if (st == SP_OK) st = sp_import_cut(list, &a->format, a->shard_tokens);
    if (st == SP_OK) st = make_targets(w, list);
    if (st == SP_OK && w->team->rank == 0) st = prepare_all(w, list);
    SP_TRY(w->team->agree(st));

    st = list_jobs(w);
    if (st == SP_OK) st = run_jobs(w);
    if (st != SP_OK) {
        sp_problems_add(&w->problems, "%s", sp_error_text());
        w->worst = st;
    }
    SP_TRY(w->team->agree(SP_OK)); // all workers of all ranks have ended
    if (w->team->rank == 0) SP_TRY(finish(w));
    st = w->worst == SP_OK ? SP_OK : sp_problems_end(&w->problems, w->worst, "the import failed");
    return w->team->agree(st);
}

sp_status sp_import_run(const sp_import_args *a, const sp_data_team *team) {
    work w = {.a = a, .team = team, .out_there = -1};
    sp_import_list list = {0};
    pthread_mutex_init(&w.lock, NULL);
    sp_status st = run_with(&w, a, &list);
    if (st != SP_OK && w.out_there >= 0) sp_folder_unmake(a->out, w.out_there);
    free_work(&w);
    sp_import_free(&list);
    return st;
}
