// What there is to import: paths become domains, domains are cut into jobs.
#include "common/util.h"
#include "data/import.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct finder {
    const sp_flat_format *format;
    sp_problems *problems;
    sp_import_list *list;
} finder;

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), s = strlen(suffix);
    return n > s && strcmp(name + n - s, suffix) == 0;
}

static bool is_json_lines(const char *name) {
    return ends_with(name, ".jsonl") || ends_with(name, ".ndjson") || ends_with(name, ".json");
}

static bool is_flat(const char *name) {
    return ends_with(name, ".bin") || is_json_lines(name);
}

static bool is_shard(const char *name) {
    return ends_with(name, ".h5") || ends_with(name, ".hdf5");
}

// ---- domains ------------------------------------------------------------------------------------

static sp_status new_domain(finder *f, const char *path, bool is_file, sp_import_domain **out) {
    sp_import_list *l = f->list;
    sp_import_domain *grown = realloc(l->at, (size_t)(l->n + 1) * sizeof *grown);
    if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory");
    l->at = grown;
    sp_import_domain *d = &l->at[l->n];
    *d = (sp_import_domain){.path = sp_strdup(path)};
    l->n++;
    char *real = realpath(path, NULL);
    d->name = sp_strdup(sp_path_base(real ? real : path));
    free(real);
    if (!d->path || !d->name) return sp_error(SP_ENVIRONMENT, "out of memory");
    char *dot = is_file ? strrchr(d->name, '.') : NULL;
    if (dot && dot > d->name) *dot = 0;
    for (int64_t i = 0; i + 1 < l->n; i++)
        if (strcmp(l->at[i].name, d->name) == 0)
            sp_problems_add(f->problems,
                            "%s and %s would both become the domain '%s'; import them one by one, "
                            "naming one with --domain",
                            l->at[i].path, path, d->name);
    *out = d;
    return SP_OK;
}

// A fault of the user's files goes to the problems, one of the machine ends everything.
static sp_status note(finder *f, sp_status st) {
    if (st != SP_BAD_INPUT) return st;
    sp_problems_add(f->problems, "%s", sp_error_text());
    return SP_OK;
}

static sp_status check_flat(const finder *f, const char *path, int64_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0)
        return sp_error(SP_BAD_INPUT, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return sp_error(SP_BAD_INPUT, "%s is not a regular file", path);
    if (access(path, R_OK) != 0)
        return sp_error(SP_BAD_INPUT, "%s cannot be read: %s", path, strerror(errno));
    *bytes = info.st_size;
    if (info.st_size == 0) return sp_error(SP_BAD_INPUT, "%s is empty", path);
    if (is_json_lines(path)) return SP_OK;
    if (!f->format->itemsize || !f->format->has_eod)
        return sp_error(SP_BAD_INPUT,
                        "%s: a .bin file does not say what is in it; give --dtype "
                        "uint16|uint32|int32 and --eod ID, the token that ends a row",
                        path);
    if (info.st_size % f->format->itemsize != 0)
        return sp_error(SP_BAD_INPUT,
                        "%s has %lld bytes, which is no whole number of %d-byte tokens; byte %lld "
                        "begins an incomplete one",
                        path, (long long)info.st_size, f->format->itemsize,
                        (long long)(info.st_size - info.st_size % f->format->itemsize));
    return SP_OK;
}

static sp_status add_flat(finder *f, sp_import_domain *d, const char *path) {
    int64_t bytes;
    sp_status st = check_flat(f, path, &bytes);
    if (st != SP_OK) return note(f, st);
    sp_flat_file *grown = realloc(d->flat, (size_t)(d->n_flat + 1) * sizeof *grown);
    if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory");
    d->flat = grown;
    grown[d->n_flat] =
        (sp_flat_file){.path = sp_strdup(path), .bytes = bytes, .json = is_json_lines(path)};
    return grown[d->n_flat++].path ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
}

static sp_status add_shard(finder *f, sp_import_domain *d, const char *path) {
    sp_source *s;
    sp_status st = sp_shard_open(path, &s);
    return st == SP_OK ? sp_sources_add(&d->sources, s) : note(f, st);
}

static sp_status add_mds(finder *f, sp_import_domain *d) {
    char *missing;
    SP_TRY(sp_mds_open(d->path, f->problems, &missing, &d->sources));
    if (missing) sp_problems_add(f->problems, "%s", missing);
    free(missing);
    return SP_OK;
}

// ---- paths --------------------------------------------------------------------------------------

typedef struct folder {
    char **name;
    int64_t n, index, flat, shards; // how many of its names are such
} folder;

static sp_status look_into(const char *dir, folder *out) {
    *out = (folder){0};
    SP_TRY(sp_list_dir(dir, "", &out->name, &out->n));
    for (int64_t i = 0; i < out->n; i++) {
        if (strcmp(out->name[i], "index.json") == 0)
            out->index++;
        else if (is_shard(out->name[i]))
            out->shards++;
        else if (ends_with(out->name[i], ".bin") || ends_with(out->name[i], ".jsonl"))
            out->flat++;
    }
    return SP_OK;
}

// The files of a folder that is one domain.
static sp_status add_files(finder *f, const char *dir, const folder *in) {
    int kinds = (in->index > 0) + (in->flat > 0) + (in->shards > 0);
    if (kinds > 1) {
        sp_problems_add(
            f->problems,
            "%s holds more than one of: index.json (MDS), *.h5 shards, *.bin or *.jsonl "
            "files; keep one data set per folder",
            dir);
        return SP_OK;
    }
    sp_import_domain *d;
    SP_TRY(new_domain(f, dir, false, &d));
    if (in->index) return add_mds(f, d);
    for (int64_t i = 0; i < in->n; i++) {
        const char *name = in->name[i];
        bool flat = ends_with(name, ".bin") || ends_with(name, ".jsonl");
        if (!flat && !is_shard(name)) continue;
        char *path = sp_path_join(dir, name);
        sp_status st = !path  ? sp_error(SP_ENVIRONMENT, "out of memory")
                       : flat ? add_flat(f, d, path)
                              : add_shard(f, d, path);
        free(path);
        SP_TRY(st);
    }
    return SP_OK;
}

static sp_status add_folder(finder *f, const char *dir, bool top) {
    folder in;
    int64_t before = f->list->n;
    sp_status st = look_into(dir, &in);
    if (st != SP_OK) return note(f, st);
    if (in.index || in.flat || in.shards) {
        st = add_files(f, dir, &in);
    } else if (top) {
        for (int64_t i = 0; i < in.n && st == SP_OK; i++) {
            char *path = sp_path_join(dir, in.name[i]);
            if (!path) st = sp_error(SP_ENVIRONMENT, "out of memory");
            if (st == SP_OK && sp_path_is_dir(path)) st = add_folder(f, path, false);
            free(path);
        }
        if (st == SP_OK && f->list->n == before && f->problems->count == 0)
            sp_problems_add(f->problems,
                            "%s holds no index.json (MDS), *.h5, *.bin or *.jsonl, and no folders "
                            "of such",
                            dir);
    } else {
        sp_problems_add(f->problems,
                        "%s holds no data (index.json, *.h5, *.bin or *.jsonl), unlike folders "
                        "beside it",
                        dir);
    }
    sp_free_names(in.name, in.n);
    return st;
}

static sp_status add_path(finder *f, const char *path) {
    if (sp_path_is_dir(path)) return add_folder(f, path, true);
    if (!sp_path_is_file(path)) {
        sp_problems_add(f->problems, "%s does not exist or is neither a file nor a folder", path);
        return SP_OK;
    }
    const char *name = sp_path_base(path);
    if (!is_flat(name) && !is_shard(name)) {
        sp_problems_add(f->problems,
                        "%s: what is in it is told from its ending, which must be .bin, .jsonl or "
                        ".h5",
                        path);
        return SP_OK;
    }
    sp_import_domain *d;
    SP_TRY(new_domain(f, path, true, &d));
    return is_shard(name) ? add_shard(f, d, path) : add_flat(f, d, path);
}

sp_status sp_import_find(const char *const *path, int64_t n, const sp_flat_format *format,
                         sp_problems *problems, sp_import_list *out) {
    *out = (sp_import_list){0};
    finder f = {format, problems, out};
    for (int64_t i = 0; i < n; i++) SP_TRY(add_path(&f, path[i]));
    return SP_OK;
}

void sp_import_free(sp_import_list *list) {
    for (int64_t i = 0; i < list->n; i++) {
        sp_import_domain *d = &list->at[i];
        for (int64_t k = 0; k < d->sources.n; k++) d->sources.at[k]->ops->close(d->sources.at[k]);
        for (int64_t k = 0; k < d->n_flat; k++) free(d->flat[k].path);
        free(d->sources.at);
        free(d->flat);
        free(d->job);
        free(d->path);
        free(d->name);
    }
    free(list->at);
    *list = (sp_import_list){0};
}

// ---- jobs ---------------------------------------------------------------------------------------

static sp_status add_job(sp_import_domain *d, sp_import_job job) {
    if ((d->n_jobs & (d->n_jobs - 1)) == 0) { // a power of two: full
        sp_import_job *grown =
            realloc(d->job, (size_t)(d->n_jobs ? 2 * d->n_jobs : 1) * sizeof *grown);
        if (!grown) return sp_error(SP_ENVIRONMENT, "out of memory for a list of jobs");
        d->job = grown;
    }
    d->job[d->n_jobs++] = job;
    d->bytes += job.bytes;
    return SP_OK;
}

static sp_status cut_sources(sp_import_domain *d, int64_t tokens) {
    for (int64_t i = 0; i < d->sources.n;) {
        sp_import_job job = {.first = i, .end = i};
        int64_t sum = 0;
        // An HDF5 shard may hold several domains, whose table it keeps for itself.
        do {
            sum += d->sources.at[job.end]->unpacked;
            job.bytes += d->sources.at[job.end]->bytes;
            job.end++;
        } while (job.end < d->sources.n && sum < 4 * tokens &&
                 d->sources.at[job.end]->n_domains == 1 && !d->sources.at[job.end]->tokenizer);
        SP_TRY(add_job(d, job));
        i = job.end;
    }
    return SP_OK;
}

static sp_status cut_flat(sp_import_domain *d, const sp_flat_format *format, int64_t tokens) {
    for (int64_t i = 0; i < d->n_flat; i++) {
        const sp_flat_file *f = &d->flat[i];
        int64_t step = tokens * (f->json ? 5 : format->itemsize); // about 5 digits and signs an id
        for (int64_t at = 0; at < f->bytes; at += step) {
            int64_t end = f->bytes - at < step ? f->bytes : at + step;
            SP_TRY(add_job(
                d,
                (sp_import_job){
                    .first = i, .end = i + 1, .begin_at = at, .end_at = end, .bytes = end - at}));
        }
    }
    return SP_OK;
}

sp_status sp_import_cut(sp_import_list *list, const sp_flat_format *format, int64_t tokens) {
    for (int64_t i = 0; i < list->n; i++)
        SP_TRY(list->at[i].n_flat ? cut_flat(&list->at[i], format, tokens)
                                  : cut_sources(&list->at[i], tokens));
    return SP_OK;
}
