// `sparda data verify`: every byte of token data read, everything that can be checked is.
//
// Files are dealt to threads. A fault ends the reading of its file, not of the others; all are
// listed. Equal rows are no fault, but counted: by a 64-bit hash of their tokens, so that among 1e8
// different rows one pair may be taken for equal in some 3,000 runs.
#include "common/arguments.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/util.h"
#include "data/commands.h"
#include "data/folder_index.h"
#include "data/source.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct row_hash {
    uint64_t hash;
    int64_t row; // over all files
} row_hash;

typedef struct verify {
    const sp_dataset *d;
    const sp_source **file;
    int64_t *first; // [n_files + 1] row of the data set
    int64_t n_files, vocab;
    row_hash *hash; // [rows]; NULL: not asked for
    _Atomic int64_t next, checked, rows, tokens, bytes_done, unhashed;
    int64_t bytes;
    double start;
    pthread_mutex_t lock;
    sp_problems problems; // under the lock
    sp_status worst;
    double shown;
    int32_t largest;
} verify;

typedef struct worker {
    verify *v;
    int64_t first; // row of the data set at which the file begins
    int64_t rows, tokens;
    int32_t largest;
} worker;

static sp_status take_row(void *user, int64_t row, const int32_t *tokens, int64_t n) {
    worker *w = user;
    w->rows++;
    w->tokens += n;
    for (int64_t i = 0; i < n; i++) w->largest = tokens[i] > w->largest ? tokens[i] : w->largest;
    if (w->v->hash)
        w->v->hash[w->first + row] = (row_hash){sp_xxh3(tokens, (size_t)n * 4), w->first + row};
    return SP_OK;
}

static void note(verify *v, sp_status st) {
    pthread_mutex_lock(&v->lock);
    if (v->problems.count < 1000)
        sp_problems_add(&v->problems, "%s", sp_error_text());
    else
        v->problems.count++;
    if (st > v->worst) v->worst = st;
    pthread_mutex_unlock(&v->lock);
    sp_error_clear();
}

static void show(verify *v) {
    double now = sp_now();
    pthread_mutex_lock(&v->lock);
    bool due = now - v->shown > 0.2;
    if (due) v->shown = now;
    pthread_mutex_unlock(&v->lock);
    if (!due) return;
    double done = (double)v->bytes_done, rate = done / (now - v->start);
    double left = rate > 0 ? ((double)v->bytes - done) / rate : 0;
    sp_progress("%.1f of %.1f GB, %.0f MB/s, %.0f min %02.0f s left", 1e-9 * done,
                1e-9 * (double)v->bytes, 1e-6 * rate, (double)((int64_t)left / 60),
                (double)((int64_t)left % 60));
}

static void *work_off(void *arg) {
    verify *v = arg;
    worker w = {.v = v};
    sp_scan scan = {.vocab = v->vocab, .thorough = true, .visit = take_row, .user = &w};
    for (int64_t i; (i = v->next++) < v->n_files;) {
        const sp_source *s = v->file[i];
        const int64_t before = scan.checked;
        w.first = v->first[i];
        sp_status st = s->ops->scan(s, &scan);
        if (st != SP_OK) note(v, st);
        if (scan.unknown)
            sp_warn("%s: its %s cannot be compared: the method is not known here", s->path,
                    scan.unknown);
        scan.unknown = NULL;
        if (scan.checked == before) v->unhashed++;
        v->bytes_done += s->bytes;
        show(v);
    }
    v->checked += scan.checked;
    v->rows += w.rows;
    v->tokens += w.tokens;
    pthread_mutex_lock(&v->lock);
    if (w.largest > v->largest) v->largest = w.largest;
    pthread_mutex_unlock(&v->lock);
    sp_scan_free(&scan);
    return NULL;
}

// ---- equal rows ---------------------------------------------------------------------------------

static int by_hash(const void *a, const void *b) {
    const row_hash *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static void locate(const verify *v, int64_t row, const char **path, int64_t *r) {
    int64_t lo = 0, hi = v->n_files;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        *(v->first[mid] <= row ? &lo : &hi) = mid;
    }
    *path = v->file[lo]->path;
    *r = row - v->first[lo];
}

// How many rows repeat an earlier one; the first pair in words (NULL if none). Caller frees.
static int64_t count_equal(verify *v, char **example) {
    int64_t n = v->first[v->n_files], equal = 0;
    *example = NULL;
    qsort(v->hash, (size_t)n, sizeof *v->hash, by_hash);
    for (int64_t i = 1; i < n; i++) {
        if (v->hash[i].hash != v->hash[i - 1].hash) continue;
        if (equal++) continue;
        const char *a, *b;
        int64_t ra, rb;
        locate(v, v->hash[i - 1].row, &a, &ra);
        locate(v, v->hash[i].row, &b, &rb);
        *example = sp_format("%s row %lld and %s row %lld", a, (long long)ra, b, (long long)rb);
    }
    return equal;
}

// ---- the command --------------------------------------------------------------------------------

static sp_status collect(verify *v, bool duplicates) {
    for (int64_t e = 0; e < sp_dataset_entries(v->d); e++) v->n_files += sp_dataset_files(v->d, e);
    SP_TRY(sp_alloc(&v->file, v->n_files, sizeof *v->file, "the files of a data set"));
    SP_TRY(sp_alloc(&v->first, v->n_files + 1, sizeof *v->first, "the files of a data set"));
    int64_t k = 0;
    for (int64_t e = 0; e < sp_dataset_entries(v->d); e++)
        for (int64_t i = 0; i < sp_dataset_files(v->d, e); i++, k++) {
            v->file[k] = sp_dataset_file(v->d, e, i);
            v->first[k + 1] = v->first[k] + v->file[k]->rows;
            v->bytes += v->file[k]->bytes;
        }
    return duplicates ? sp_alloc(&v->hash, v->first[v->n_files], sizeof *v->hash, "hashes of rows")
                      : SP_OK;
}

static sp_status run(verify *v, int64_t threads) {
    pthread_t *thread;
    int64_t n = threads < v->n_files ? threads : v->n_files, started = 0;
    SP_TRY(sp_alloc(&thread, n, sizeof *thread, "threads"));
    v->start = v->shown = sp_now();
    while (started < n && pthread_create(&thread[started], NULL, work_off, v) == 0) started++;
    if (started == 0) work_off(v);
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    free(thread);
    sp_progress("%s", "");
    return SP_OK;
}

static sp_status print_json(const verify *v, const sp_dataset_info *info, int64_t equal) {
    json_t *domains = json_array();
    for (int64_t i = 0; i < info->n_domains; i++)
        json_array_append_new(domains, json_pack("{s:s?,s:I,s:I}", "name", info->domain[i].name,
                                                 "rows", (json_int_t)info->domain[i].rows, "tokens",
                                                 (json_int_t)info->domain[i].tokens));
    json_t *o = json_pack("{s:b,s:I,s:I,s:o,s:I,s:I,s:I,s:I}", "ok", 1, "rows", (json_int_t)v->rows,
                          "tokens", (json_int_t)v->tokens, "domains", domains, "files",
                          (json_int_t)v->n_files, "checksums", (json_int_t)v->checked,
                          "files_without_checksum", (json_int_t)v->unhashed, "largest_id",
                          (json_int_t)v->largest);
    if (o && equal >= 0) json_object_set_new(o, "duplicate_rows", json_integer(equal));
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    json_decref(o);
    if (!text) return sp_error(SP_ENVIRONMENT, "cannot write the result as JSON");
    puts(text);
    free(text);
    return SP_OK;
}

static void print_text(const verify *v, const char *path, const sp_dataset_info *info,
                       int64_t equal, const char *example) {
    double s = sp_now() - v->start;
    printf("%s: all right: %lld rows, %lld tokens in %lld files\n", path, (long long)v->rows,
           (long long)v->tokens, (long long)v->n_files);
    printf("%lld checksums compared", (long long)v->checked);
    if (v->unhashed) printf("; %lld files have none", (long long)v->unhashed);
    printf("; ids up to %d; %.1f s, %.0f MB/s\n", (int)v->largest, s, 1e-6 * (double)v->bytes / s);
    if (equal >= 0) printf("%lld rows repeat an earlier one", (long long)equal);
    if (equal > 0 && example) printf(", such as %s", example);
    if (equal >= 0) puts("");
    for (int64_t i = 0; i < info->n_domains; i++)
        printf("  %s: %lld rows, %lld tokens\n", info->domain[i].name,
               (long long)info->domain[i].rows, (long long)info->domain[i].tokens);
}

// ---- the list of shards -------------------------------------------------------------------------

// Whether `dir`, where shards lie, is a link in the root of domains `path`: behind it may be
// another place than the user named, where nothing is written. `path` itself may be a link.
static bool leads_away(const char *dir, const char *path) {
    struct stat a, b;
    if (stat(dir, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return false;
    return lstat(dir, &a) != 0 || S_ISLNK(a.st_mode);
}

static sp_status write_list(const char *dir, const char *path) {
    int64_t rows, tokens;
    if (leads_away(dir, path)) {
        sp_warn("%s is a symbolic link, and nothing is written behind it; to list its shards, "
                "verify the folder it leads to",
                dir);
        return SP_OK;
    }
    SP_TRY(sp_folder_index_write(dir, &rows, &tokens));
    sp_info("%s/%s lists all shards, of %lld rows", dir, SP_FOLDER_INDEX, (long long)rows);
    return SP_OK;
}

// shards.json for the folders of HDF5 shards that have been verified; their files lie together.
static sp_status write_lists(const verify *v, const char *path) {
    char *last = NULL;
    sp_status st = SP_OK;
    if (!sp_path_is_dir(path)) return SP_OK;
    for (int64_t i = 0; i < v->n_files && st == SP_OK; i++) {
        const char *file = v->file[i]->path, *dot = strrchr(file, '.');
        if (!dot || strcmp(dot, ".h5") != 0) continue; // the list has no others
        char *dir = sp_path_dir(file);
        if (!dir)
            st = sp_error(SP_ENVIRONMENT, "out of memory");
        else if (!last || strcmp(dir, last) != 0)
            st = write_list(dir, path);
        free(last);
        last = dir;
    }
    free(last);
    return st;
}

static sp_status verify_path(const char *path, const char *base, int64_t vocab, bool duplicates,
                             int64_t threads, bool json, bool lists) {
    sp_data_entry one = {.path = (char *)path};
    const sp_data_list entries = {&one, 1};
    sp_dataset *d;
    sp_dataset_info info = {0};
    char *example = NULL;
    verify v = {.vocab = vocab};
    const sp_dataset_options o = {.vocab = vocab, .model = base, .quiet = true};
    SP_TRY(sp_dataset_open(&entries, &o, &d));
    v.d = d;
    pthread_mutex_init(&v.lock, NULL);
    sp_status st = SP_OK;
    int64_t equal = -1;
    SP_GO(collect(&v, duplicates));
    SP_GO(run(&v, threads));
    SP_GO(sp_problems_end(&v.problems, v.worst, "%s is faulty", path));
    if (v.hash) equal = count_equal(&v, &example);
    SP_GO(sp_dataset_describe(d, &info));
    if (json)
        st = print_json(&v, &info, equal);
    else
        print_text(&v, path, &info, equal, example);
    if (lists && st == SP_OK) st = write_lists(&v, path);
done:
    sp_dataset_info_free(&info);
    pthread_mutex_destroy(&v.lock);
    free(v.problems.text);
    free(example);
    free(v.hash);
    free(v.first);
    free(v.file);
    sp_dataset_close(d);
    return st;
}

sp_status sp_data_verify(int argc, char **argv) {
    const char *path = NULL, *base = NULL;
    bool list_shards = false;
    int64_t vocab = 0, threads = sysconf(_SC_NPROCESSORS_ONLN);
    bool none = false, json = false;
    sp_words words = {&path, 0, 1};
    sp_problems p = {0};
    const sp_argument list[] = {{"--base", .text = &base},
                                {"--vocab", .number = &vocab, .least = 1, .most = INT32_MAX},
                                {"--threads", .number = &threads, .least = 1, .most = 1024},
                                {"--no-duplicates", .flag = &none},
                                {"--write-list", .flag = &list_shards},
                                {"--json", .flag = &json},
                                {0}};
    sp_arguments_read(argc, argv, list, &words, &p);
    if (!path) sp_problems_add(&p, "a path is missing");
    if (base && vocab) sp_problems_add(&p, "--base and --vocab say the same; give one");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda data verify (see --help)"));
    if (base) SP_TRY(sp_base_vocab(base, &vocab));
    return verify_path(path, base, vocab, !none, threads, json, list_shards);
}
