// sp_export: from a training state to a folder that an inference engine can load.
//
// Everything is written into a hidden folder beside the destination, read back and compared, and
// only then renamed into place: a failed export leaves nothing behind. A lock beside the
// destination makes sure that nobody else exports there meanwhile. With --force on a folder that
// holds files, each file replaces its predecessor and the record comes last; what it could not
// replace (a folder under a file's name, an export of the other layout) is refused beforehand.
#include "checkpoints/export.h"
#include "checkpoints/internal.h"
#include "checkpoints/merge.h"
#include "common/log.h"
#include "common/util.h"
#include "validate/validate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// What an export is made of.
typedef struct job {
    const sp_export_args *a;
    char *checkpoint;
    sp_train_state state;
    sp_forecast rounded;
    sp_config *config; // of the checkpoint; read only if something needs it
    char *base;        // folder of the base model, absolute or as given; NULL: not needed
    sp_model_desc *desc;
    char *out;       // destination without trailing slashes
    char *staging;   // hidden folder beside it
    char *bundle;    // folder of the forecast files inside `staging`
    char *lock_path; // hidden file beside it
    int lock;   // held on that file from before the last look at `out` to the end; -1: not held
    bool fresh; // `out` was not there at that look
} job;

static sp_status out_of_memory(void) {
    return sp_error(SP_ENVIRONMENT, "out of memory");
}

// ---- inputs -------------------------------------------------------------------------------------

// The checkpoint itself, or the newest one of a run folder.
static sp_status find_checkpoint(const char *given, char **path) {
    *path = NULL;
    if (!sp_path_is_dir(given)) return (*path = sp_strdup(given)) ? SP_OK : out_of_memory();
    SP_TRY(sp_newest_checkpoint(given, path));
    if (*path) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s holds no complete checkpoint (checkpoints/step-*.h5); give a run folder or "
                    "a checkpoint file",
                    given);
}

static sp_status load_state(job *j, const char *checkpoint) {
    sp_file_kind kind;
    SP_TRY(find_checkpoint(checkpoint, &j->checkpoint));
    SP_TRY(sp_file_kind_of(j->checkpoint, &kind));
    if (kind != SP_FILE_HDF5)
        return sp_error(
            SP_BAD_INPUT,
            "%s is no training state (HDF5); export takes a checkpoint of sparda train, "
            "checkpoints/step-*.h5",
            j->checkpoint);
    SP_TRY(sp_state_load(j->checkpoint, &j->state));
    return sp_rounded_weights(&j->state.weights, &j->rounded);
}

// A model folder, with the values that the recipe supplied according to the checkpoint's
// configuration; and that it fits the checkpoint, as far as can be told without its weights.
static sp_status describe(const job *j, const char *dir, sp_model_desc **out) {
    sp_recipe recipe = sp_recipe_of(j->config);
    SP_TRY(sp_model_describe(dir, &recipe, out));
    return sp_state_check_base(&j->state, *out, NULL);
}

static sp_status find_base(job *j) {
    const sp_export_args *a = j->a;
    if (a->no_parity && !a->merge_base && !a->validate) return SP_OK;
    SP_TRY(sp_config_parse(j->state.config, j->checkpoint, &j->config));
    const char *base = a->base ? a->base : a->merge_base ? a->merge_base : j->config->base;
    if (!base)
        return sp_error(SP_BAD_INPUT,
                        "%s names no base model; give its folder with --base DIR, or leave the "
                        "parity vectors out with --no-parity",
                        j->checkpoint);
    if (!(j->base = sp_strdup(base))) return out_of_memory();
    sp_status st = describe(j, base, &j->desc);
    if (st == SP_BAD_INPUT && base == j->config->base)
        sp_error_prefix("the base model that the checkpoint names cannot be used (give its place "
                        "with --base DIR, or leave the parity vectors out with --no-parity)");
    if (st != SP_OK || !a->validate) return st;
    st = sp_validate_foresee(&(sp_validate_args){.config = j->config}, j->desc);
    if (st != SP_OK) sp_error_prefix("--validate, with the checkpoint's configuration");
    return st;
}

// ---- destination --------------------------------------------------------------------------------

static sp_status folder_is_empty(const char *dir, bool *empty) {
    char **names;
    int64_t n;
    SP_TRY(sp_list_dir(dir, "", &names, &n));
    *empty = n == 0;
    sp_free_names(names, n);
    return SP_OK;
}

// Whether the open file is still the one of that name.
static bool is_at(int fd, const char *path) {
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && lstat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

// A lock file that a killed export has left is taken over; one that its owner removes just now is
// made anew.
static sp_status lock_destination(job *j) {
    while (j->lock < 0) {
        int fd;
        sp_status st = sp_open_own(j->lock_path, O_RDWR | O_NONBLOCK, &fd);
        if (st != SP_OK) sp_error_prefix("the lock of an export to %s", j->out);
        SP_TRY(st);
        struct stat s;
        if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size != 0) {
            close(fd);
            return sp_error(SP_BAD_INPUT,
                            "%s stands where an export to %s would put its lock; move it away",
                            j->lock_path, j->out);
        }
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (is_at(fd, j->lock_path))
                j->lock = fd;
            else
                close(fd);
            continue;
        }
        int why = errno;
        if (why != EWOULDBLOCK && is_at(fd, j->lock_path)) unlink(j->lock_path);
        close(fd);
        if (why == EWOULDBLOCK)
            return sp_error(SP_BAD_INPUT,
                            "another process is exporting to %s; wait for it, or choose another "
                            "--out (under mpirun, too, an export is one process)",
                            j->out);
        sp_warn("%s cannot be locked (%s): start no other export to %s meanwhile", j->lock_path,
                strerror(why), j->out);
        return SP_OK;
    }
    return SP_OK;
}

// Staging folders of exports to the same place that were killed. The lock is ours, so nobody uses
// them any more.
static void remove_leftovers(const job *j) {
    char *parent = sp_path_dir(j->out), *prefix = sp_format(".%s.tmp.", sp_path_base(j->out));
    DIR *d = parent && prefix ? opendir(parent) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
        const char *number = e->d_name + strlen(prefix);
        if (!*number || number[strspn(number, "0123456789")] != 0) continue; // somebody else's
        char *path = sp_path_join(parent, e->d_name);
        if (path && sp_path_is_dir(path)) {
            sp_remove_tree(path);
            sp_info("removed what a killed export had left: %s", path);
        }
        free(path);
    }
    if (d) closedir(d);
    free(prefix);
    free(parent);
}

// Everything that an export and its validation leave in a folder.
static const char *const own_names[] = {SP_EXPORT_RECORD,         SP_FORECAST_SAFETENSORS,
                                        SP_FORECAST_PT,           SP_PARITY_SAFETENSORS,
                                        "validation_report.json", "validation_report.html"};
enum { N_EXPORTED = 4, N_OWN = sizeof own_names / sizeof own_names[0] };

static bool has_entry(const char *dir, const char *name, bool folder) {
    struct stat s;
    char *path = sp_path_join(dir, name);
    bool found = path && lstat(path, &s) == 0 && (!folder || S_ISDIR(s.st_mode));
    free(path);
    return found;
}

// Readers of a folder that held both layouts would take the older one.
static sp_status check_replaceable(const sp_export_args *a, const char *out) {
    char *inner = sp_path_join(out, "sparda");
    const char *mine = a->merge_base ? inner : out, *other = a->merge_base ? out : inner;
    sp_status st = inner ? SP_OK : out_of_memory();
    for (int i = 0; st == SP_OK && i < N_EXPORTED; i++)
        if (has_entry(other, own_names[i], false))
            st = sp_error(SP_BAD_INPUT,
                          "%s holds an export %s a base model (%s/%s), which one %s a base model "
                          "cannot replace; choose another --out",
                          out, a->merge_base ? "without" : "merged with", other, own_names[i],
                          a->merge_base ? "merged with" : "without");
    for (int i = 0; st == SP_OK && i < N_OWN; i++)
        if (has_entry(mine, own_names[i], true))
            st = sp_error(SP_BAD_INPUT,
                          "%s/%s is a folder, and an export has a file of that name; choose "
                          "another --out, or remove the folder",
                          mine, own_names[i]);
    free(inner);
    return st;
}

sp_status sp_export_check_destination(const sp_export_args *a) {
    const char *out = a->out_dir;
    bool there = sp_path_is_dir(out), empty = true;
    SP_TRY(sp_check_destination(out));
    if (has_entry(out, "run.json", false) || has_entry(out, "checkpoints", true))
        return sp_error(SP_BAD_INPUT,
                        "%s is the folder of a training run, not of an export; choose another "
                        "--out, for example %s/export",
                        out, out);
    SP_TRY(check_replaceable(a, out));
    if (a->merge_base) SP_TRY(sp_merge_check(a->merge_base, out));
    if (there) SP_TRY(folder_is_empty(out, &empty));
    if (empty || a->force) return SP_OK;
    return sp_error(SP_BAD_INPUT,
                    "%s is not empty; choose another --out, or replace an earlier export there "
                    "with --force",
                    out);
}

// The destination by its own name, not by a link's or as ".", and without trailing slashes.
static sp_status name_destination(job *j) {
    const char *dir = j->a->out_dir;
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--;
    char *name = sp_format("%.*s", (int)len, dir), *parent = name ? sp_path_dir(name) : NULL;
    sp_status st = parent ? sp_mkdirs(parent) : out_of_memory();
    free(parent);
    if (st == SP_OK && sp_path_is_dir(name)) {
        j->out = realpath(name, NULL);
        free(name);
    } else {
        j->out = name;
    }
    if (st == SP_OK && !j->out) st = out_of_memory();
    return st;
}

static sp_status prepare_destination(job *j) {
    SP_TRY(sp_export_check_destination(j->a));
    SP_TRY(name_destination(j));
    char *parent = sp_path_dir(j->out);
    j->lock_path = parent ? sp_format("%s/.%s.lock", parent, sp_path_base(j->out)) : NULL;
    free(parent);
    if (!j->lock_path) return out_of_memory();
    SP_TRY(lock_destination(j));
    SP_TRY(sp_export_check_destination(j->a)); // as it is now that nobody else changes it
    j->fresh = !sp_path_is_dir(j->out);
    if (j->lock >= 0) remove_leftovers(j);
    j->staging = sp_temporary_name(j->out);
    j->bundle =
        j->staging && j->a->merge_base ? sp_path_join(j->staging, "sparda") : sp_strdup(j->staging);
    if (!j->staging || !j->bundle) return out_of_memory();
    return sp_mkdirs(j->bundle);
}

static void sync_folder(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

// Files of an earlier export that this one does not write.
static void remove_stale(const job *j) {
    const bool written[N_OWN] = {true, j->a->safetensors, j->a->pt, !j->a->no_parity};
    for (int i = 0; i < N_OWN; i++) {
        char *path = sp_format("%s%s/%s", j->out, j->a->merge_base ? "/sparda" : "", own_names[i]);
        if (path && !written[i]) unlink(path);
        free(path);
    }
}

static sp_status put_in_place(job *j) {
    char *parent = sp_path_dir(j->out);
    sp_status st = parent ? SP_OK : out_of_memory();
    // A folder that was there, perhaps somebody's working directory, takes the files one by one.
    if (st == SP_OK && !j->fresh) {
        remove_stale(j);
        st = sp_move_tree(j->staging, j->out, SP_EXPORT_RECORD);
    } else if (st == SP_OK && rename(j->staging, j->out) != 0) {
        st = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR
                 ? sp_error(SP_BAD_INPUT,
                            "another process has made %s during the export, which leaves it as it "
                            "is; choose another --out",
                            j->out)
                 : sp_error(SP_ENVIRONMENT, "cannot rename %s to %s: %s", j->staging, j->out,
                            strerror(errno));
    }
    if (st == SP_OK) sync_folder(parent);
    free(parent);
    return st;
}

// ---- contents -----------------------------------------------------------------------------------

// The SGEMM library that trained the checkpoint, so that the vectors depend on the checkpoint
// alone.
static sp_status write_parity(job *j) {
    const sp_config *c = j->config;
    const char *blas = j->state.cpu_blas && j->state.cpu_blas[0] ? j->state.cpu_blas
                       : strcmp(c->cpu_blas, "auto") == 0        ? "openblas"
                                                                 : c->cpu_blas;
    sp_backend_options o = {.name = c->backend,
                            .cpu_blas = blas,
                            .threads = (int)c->threads,
                            .local_ranks = 1,
                            .deterministic = true};
    sp_backend *be = NULL;
    sp_model *m = NULL;
    char *path = sp_path_join(j->bundle, SP_PARITY_SAFETENSORS);
    sp_status st = path ? SP_OK : out_of_memory();
    if (st == SP_OK) st = sp_backend_open(&o, &be);
    if (st == SP_OK)
        st = sp_model_load(be, j->desc, &(sp_model_load_options){.progress = true}, &m);
    if (st == SP_OK) st = sp_state_check_base(&j->state, j->desc, m->weights_sha256);
    if (st == SP_OK) st = sp_write_parity(path, &j->state, &j->rounded, m);
    sp_model_free(m);
    sp_backend_close(be);
    free(path);
    return st;
}

static sp_status write_bundle(job *j) {
    const sp_export_args *a = j->a;
    const sp_train_state *s = &j->state;
    char *st_path = sp_path_join(j->bundle, SP_FORECAST_SAFETENSORS),
         *pt_path = sp_path_join(j->bundle, SP_FORECAST_PT),
         *record = sp_path_join(j->bundle, SP_EXPORT_RECORD);
    json_t *sparse = sp_state_sparse_json(s);
    sp_status st = SP_OK;
    if (!st_path || !pt_path || !record || !sparse) SP_GO(out_of_memory());
    if (!a->no_parity) SP_GO(write_parity(j));
    if (a->safetensors) SP_GO(sp_write_forecast_safetensors(st_path, s, &j->rounded));
    if (a->pt)
        SP_GO(sp_pt_write(pt_path, &j->rounded, s->step, sparse, s->base_name ? s->base_name : ""));
    SP_GO(sp_write_export_record(record, s, &j->rounded, a, !a->no_parity));
    SP_GO(sp_verify_export(j->bundle, s, &j->rounded, a, !a->no_parity));
done:
    json_decref(sparse);
    free(record);
    free(pt_path);
    free(st_path);
    return st;
}

static sp_status merge(job *j) {
    if (!j->a->merge_base) return SP_OK;
    if (j->a->no_parity || j->a->base) { // else write_parity has compared this very folder
        char hex[SP_SHA256_HEX];
        sp_model_desc *d = NULL;
        sp_status st = describe(j, j->a->merge_base, &d);
        if (st == SP_OK) st = sp_model_weights_sha256(d, hex);
        if (st == SP_OK) st = sp_state_check_base(&j->state, d, hex);
        sp_model_desc_free(d);
        SP_TRY(st);
    }
    return sp_merge_base(j->a->merge_base, j->staging);
}

// The files just written, by their own folder: a merged model's folder could lead elsewhere.
static sp_status validate(const job *j) {
    char *dir = j->a->merge_base ? sp_path_join(j->out, "sparda") : sp_strdup(j->out);
    if (!dir) return out_of_memory();
    sp_validate_args v = {.base = j->base, .forecast = dir, .report = dir, .config = j->config};
    sp_status st = sp_validate(&v);
    free(dir);
    return st;
}

static void free_job(job *j) {
    if (j->staging) sp_remove_tree(j->staging);
    if (j->lock >= 0) {
        if (is_at(j->lock, j->lock_path)) unlink(j->lock_path);
        close(j->lock);
    }
    sp_model_desc_free(j->desc);
    sp_config_free(j->config);
    sp_forecast_free(&j->rounded);
    sp_train_state_free(&j->state);
    free(j->bundle);
    free(j->staging);
    free(j->lock_path);
    free(j->out);
    free(j->base);
    free(j->checkpoint);
}

sp_status sp_export(const char *checkpoint, const sp_export_args *a) {
    job j = {.a = a, .lock = -1};
    sp_status st = SP_OK;
    if (!a->safetensors && !a->pt)
        return sp_error(SP_BAD_INPUT, "an export needs a format: safetensors, pt or both");
    SP_GO(load_state(&j, checkpoint));
    SP_GO(find_base(&j));
    SP_GO(prepare_destination(&j));
    SP_GO(write_bundle(&j));
    SP_GO(merge(&j));
    SP_GO(put_in_place(&j));
    sp_info("exported step %lld of %s to %s (%s%s%s%s)", (long long)j.state.step, j.checkpoint,
            j.out, a->safetensors ? "safetensors" : "", a->safetensors && a->pt ? ", " : "",
            a->pt ? "pt" : "", a->merge_base ? ", beside the base model's files" : "");
    if (a->validate) SP_GO(validate(&j));
done:
    free_job(&j);
    return st;
}
