// `sparda bench data`: how fast data is imported and read, against what disk and page cache give.
//
// A data set of random rows is written under --dir as MDS, raw and zstd, and imported. "Cached"
// means that the files were read just before; "disk" that they were dropped from the page cache
// (posix_fadvise), which a virtual disk's own cache may still hide. Rates are in bytes of the files
// that are read, except zstd, whose rates are in unpacked bytes. Formulas: docs/notes/data.md.
#include "data/bench.h"
#include "common/arguments.h"
#include "common/json.h"
#include "common/log.h"
#include "common/util.h"
#include "data/folders.h"
#include "data/import.h"
#include "data/mds_write.h"
#include "data/prefetch.h"
#include "data/retokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    ROW = BENCH_ROW,
    VOCAB = BENCH_VOCAB,
    SHARD_BYTES = 1 << 26,
    READS = 200,
    REPEATS = BENCH_REPEATS
};

typedef sp_data_bench_run bench;

void sp_bench_report(bench *b, const char *name, double value, const char *unit, const char *note) {
    // Standard output belongs to the JSON if that goes there.
    FILE *out = b->json && strcmp(b->json, "-") == 0 ? stderr : stdout;
    fprintf(out, "%-38s %10.3f %-8s %s\n", name, value, unit, note);
    json_array_append_new(b->results, json_pack("{s:s,s:f,s:s,s:s}", "name", name, "value", value,
                                                "unit", unit, "note", note));
    fflush(out);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double sp_bench_median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

// ---- the data set -------------------------------------------------------------------------------

static sp_status make_set(const char *dir, int zstd, int64_t rows) {
    sp_mds_writer *w;
    int32_t *tokens;
    uint64_t state = 1;
    SP_TRY(sp_alloc(&tokens, ROW, sizeof *tokens, "a row"));
    sp_status st = sp_mds_create(&(sp_mds_writer_args){.dir = dir,
                                                       .encoding = "ndarray:int32",
                                                       .zstd_level = zstd,
                                                       .hash = "xxh64",
                                                       .length_column = true,
                                                       .size_limit = SHARD_BYTES},
                                 &w);
    for (int64_t r = 0; r < rows && st == SP_OK; r++) {
        for (int i = 0; i < ROW; i++) { // small ids are frequent, as in text
            double u = sp_uniform(&state);
            tokens[i] = (int32_t)(VOCAB * u * u * u);
        }
        st = sp_mds_append(w, tokens, ROW);
        sp_progress("making data: %lld of %lld rows", (long long)r + 1, (long long)rows);
    }
    sp_progress("%s", "");
    free(tokens);
    return st == SP_OK ? sp_mds_finish(w) : st;
}

typedef enum temperature { CACHED, DROPPED } temperature;

// Reads all files of a folder, or drops them from the page cache. Returns their bytes.
static int64_t touch(const char *dir, temperature how) {
    static char piece[1 << 20];
    char **name;
    int64_t n, bytes = 0;
    if (sp_list_dir(dir, "", &name, &n) != SP_OK) return 0;
    for (int64_t i = 0; i < n; i++) {
        char *path = sp_path_join(dir, name[i]);
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd >= 0 && how == DROPPED) {
            fdatasync(fd);
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        for (ssize_t got; fd >= 0 && how == CACHED && (got = read(fd, piece, sizeof piece)) > 0;)
            bytes += got;
        if (fd >= 0) close(fd);
        free(path);
    }
    sp_free_names(name, n);
    return bytes;
}

// ---- rates --------------------------------------------------------------------------------------

static sp_status alone(sp_status st) {
    return st;
}

static sp_status import_once(const bench *b, const char *src, int64_t threads,
                             const sp_row_change *change, double *seconds) {
    const sp_import_args a = {.source = &src,
                              .n_sources = 1,
                              .out = b->out,
                              .vocab = change ? 0 : VOCAB,
                              .out_vocab = change ? 0 : VOCAB,
                              .tokenizer = "bench",
                              .threads = threads,
                              .shard_tokens = change ? 1 << 20 : 1 << 25,
                              .change = change};
    const sp_data_team team = {0, 1, (int)threads, alone};
    double start = sp_now();
    sp_log_open(0, NULL, true);
    sp_status st = sp_import_run(&a, &team);
    sp_log_open(0, NULL, false);
    *seconds = sp_now() - start;
    sp_folder_remove(b->out);
    return st;
}

// Of all threads; unlike the wall clock it does not depend on what else the machine does.
static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static sp_status import_rate(bench *b, const char *name, const char *src, double bytes,
                             temperature how, int64_t threads, const char *note) {
    double s[REPEATS], cpu[REPEATS];
    char text[128];
    for (int i = 0; i < REPEATS; i++) {
        touch(src, how);
        double before = cpu_seconds();
        SP_TRY(import_once(b, src, threads, NULL, &s[i]));
        cpu[i] = cpu_seconds() - before;
    }
    snprintf(text, sizeof text, "%s; %.2f GB per CPU second", note,
             1e-9 * bytes / sp_bench_median(cpu, REPEATS));
    sp_bench_report(b, name, 1e-9 * bytes / sp_bench_median(s, REPEATS), "GB/s", text);
    return SP_OK;
}

// Written and synced as import writes: the rate that no import can exceed.
static double write_rate(const char *dir, int64_t bytes) {
    double s[REPEATS];
    static char piece[1 << 20];
    char *path = sp_path_join(dir, "written.tmp");
    for (int i = 0; i < REPEATS; i++) {
        double start = sp_now();
        int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
        for (int64_t at = 0; fd >= 0 && at < bytes; at += (int64_t)sizeof piece)
            if (write(fd, piece, sizeof piece) < 0) break;
        if (fd >= 0) {
            fsync(fd);
            close(fd);
        }
        s[i] = sp_now() - start;
    }
    if (path) unlink(path);
    free(path);
    return (double)bytes / sp_bench_median(s, REPEATS);
}

// Copying files, a file at a time by each thread, read and written by 1 MiB and synced: the least
// that whoever reads all of it and writes as much has to do.
typedef struct copying {
    const char *from, *to;
    char **name;
    int64_t n;
    _Atomic int64_t next;
    atomic_bool failed;
} copying;

static bool copy_one(const char *from, const char *to) {
    const size_t most = 1 << 20;
    char *piece = malloc(most);
    int in = from ? open(from, O_RDONLY | O_CLOEXEC) : -1;
    int out = to ? open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    ssize_t got = piece && in >= 0 && out >= 0 ? 1 : -1;
    while (got > 0 && (got = read(in, piece, most)) > 0) {
        if (write(out, piece, (size_t)got) != got) got = -1;
        sync_file_range(out, 0, 0, SYNC_FILE_RANGE_WRITE); // on its way at once, as import does
    }
    bool ok = got == 0 && fsync(out) == 0;
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    free(piece);
    return ok;
}

static void *copy_files(void *arg) {
    copying *c = arg;
    for (int64_t i; !c->failed && (i = c->next++) < c->n;) {
        char *from = sp_path_join(c->from, c->name[i]), *to = sp_path_join(c->to, c->name[i]);
        if (!copy_one(from, to)) c->failed = true;
        free(from);
        free(to);
    }
    return NULL;
}

static sp_status copy_once(const bench *b, const char *src, double *seconds) {
    copying c = {.from = src, .to = b->out};
    pthread_t *thread;
    int64_t started = 0;
    SP_TRY(sp_mkdirs(b->out));
    SP_TRY(sp_list_dir(src, "", &c.name, &c.n));
    sp_status st = sp_alloc(&thread, b->threads, sizeof *thread, "threads");
    double start = sp_now();
    while (st == SP_OK && started < b->threads - 1 &&
           pthread_create(&thread[started], NULL, copy_files, &c) == 0)
        started++;
    if (st == SP_OK) copy_files(&c);
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    *seconds = sp_now() - start;
    if (st == SP_OK && c.failed) st = sp_error(SP_ENVIRONMENT, "cannot copy %s to %s", src, b->out);
    if (started || st == SP_OK) free(thread);
    sp_free_names(c.name, c.n);
    sp_folder_remove(b->out);
    return st;
}

// Reading, copying and importing in turn, so that all meet the same load of machine and disk.
static sp_status raw_rates(bench *b, temperature how, double *bytes) {
    const char *where = how == CACHED ? "cached" : "disk";
    double reading[REPEATS], copy[REPEATS], import[REPEATS], cpu[REPEATS];
    char name[64], note[128];
    for (int i = 0; i < REPEATS; i++) {
        touch(b->raw, how);
        double start = sp_now();
        *bytes = (double)touch(b->raw, CACHED);
        reading[i] = sp_now() - start;
        touch(b->raw, how);
        SP_TRY(copy_once(b, b->raw, &copy[i]));
        touch(b->raw, how);
        double before = cpu_seconds();
        SP_TRY(import_once(b, b->raw, b->threads, NULL, &import[i]));
        cpu[i] = cpu_seconds() - before;
    }
    const double r = sp_bench_median(reading, REPEATS), c = sp_bench_median(copy, REPEATS),
                 m = sp_bench_median(import, REPEATS);
    snprintf(name, sizeof name, "sequential reading, %s", where);
    snprintf(note, sizeof note, "read() of 1 MiB by one thread; %.2f to %.2f",
             1e-9 * *bytes / reading[REPEATS - 1], 1e-9 * *bytes / reading[0]);
    sp_bench_report(b, name, 1e-9 * *bytes / r, "GB/s", note);
    snprintf(name, sizeof name, "copying files, %s", where);
    snprintf(note, sizeof note, "%lld threads, synced; %.2f to %.2f", (long long)b->threads,
             1e-9 * *bytes / copy[REPEATS - 1], 1e-9 * *bytes / copy[0]);
    sp_bench_report(b, name, 1e-9 * *bytes / c, "GB/s", note);
    snprintf(name, sizeof name, "import of raw MDS, %s", where);
    snprintf(note, sizeof note,
             "likewise; %.2f to %.2f; %.0f%% of reading, %.0f%% of copying; %.2f GB per CPU second",
             1e-9 * *bytes / import[REPEATS - 1], 1e-9 * *bytes / import[0], 100 * r / m,
             100 * c / m, 1e-9 * *bytes / sp_bench_median(cpu, REPEATS));
    sp_bench_report(b, name, 1e-9 * *bytes / m, "GB/s", note);
    return SP_OK;
}

static sp_status unpack_rate(bench *b, const char *dir, double raw_bytes) {
    char **name, note[96];
    int64_t n;
    sp_buffer out = {0};
    SP_TRY(sp_list_dir(dir, ".zstd", &name, &n));
    sp_status st = SP_OK;
    double s[REPEATS], cpu = cpu_seconds();
    for (int i = 0; i < REPEATS && st == SP_OK; i++) {
        double start = sp_now();
        for (int64_t k = 0; k < n && st == SP_OK; k++) {
            char *path = sp_path_join(dir, name[k]), *packed;
            int64_t bytes;
            st = path ? sp_read_file(path, (int64_t)1 << 32, &packed, &bytes)
                      : sp_error(SP_ENVIRONMENT, "out of memory");
            if (st == SP_OK) {
                st = sp_mds_unpack((uint8_t *)packed, bytes,
                                   sp_mds_unpacked_size((uint8_t *)packed, bytes), &out);
                free(packed);
            }
            free(path);
        }
        s[i] = sp_now() - start;
    }
    cpu = (cpu_seconds() - cpu) / REPEATS;
    snprintf(note, sizeof note, "of unpacked bytes, one thread; %.2f GB per CPU second",
             1e-9 * raw_bytes / cpu);
    if (st == SP_OK)
        sp_bench_report(b, "zstd alone", 1e-9 * raw_bytes / sp_bench_median(s, REPEATS), "GB/s",
                        note);
    sp_buffer_free(&out);
    sp_free_names(name, n);
    return st;
}

// ---- rows ---------------------------------------------------------------------------------------

static sp_status open_one(const char *path, sp_dataset **d) {
    sp_data_entry e = {.path = (char *)path};
    const sp_data_list list = {&e, 1};
    return sp_dataset_open(&list, &(sp_dataset_options){.vocab = VOCAB, .quiet = true}, d);
}

static sp_status row_reads(bench *b, const char *name, const char *path, int reads) {
    sp_dataset *d;
    sp_sampler *s = NULL;
    int32_t *tokens = NULL;
    double ms[READS];
    const sp_sampler_args args = {.order = SP_ORDER_SHUFFLED, .seq_len = ROW, .seed = 42};
    SP_TRY(open_one(path, &d));
    sp_status st = sp_alloc(&tokens, ROW, sizeof *tokens, "a row");
    if (st == SP_OK) st = sp_sampler_open(d, &args, &s);
    for (int i = 0; i < reads && st == SP_OK; i++) {
        int64_t n;
        double start = sp_now();
        st = sp_sampler_read(s, (uint64_t)i, tokens, &n, NULL);
        ms[i] = 1e3 * (sp_now() - start);
    }
    if (st == SP_OK) {
        char note[96], p99[64];
        double m = sp_bench_median(ms, reads);
        snprintf(note, sizeof note, "rows of %d tokens in random order, cached", ROW);
        sp_bench_report(b, name, m, "ms", note);
        snprintf(p99, sizeof p99, "%s, 99%% below", name);
        sp_bench_report(b, p99, ms[reads * 99 / 100], "ms", "");
    }
    sp_sampler_close(s);
    free(tokens);
    sp_dataset_close(d);
    return st;
}

// ---- waiting ------------------------------------------------------------------------------------

static bool next_sample(void *user, uint64_t *index) {
    uint64_t *left = user;
    *index = --*left;
    return *left > 0;
}

// A consumer that takes a row and then computes for STEP_MS, which reading ahead must hide: per
// step, how long it waits. Rows come from files that were dropped from the page cache.
static sp_status waiting(bench *b, const char *name, const char *path, int steps) {
    enum { STEP_MS = 100 };
    const sp_sampler_args args = {.order = SP_ORDER_SHUFFLED, .seq_len = ROW, .seed = 42};
    const struct timespec step = {0, STEP_MS * 1000000L};
    uint64_t left = (uint64_t)steps + 9;
    sp_dataset *d;
    sp_sampler *s = NULL;
    sp_loader *l = NULL;
    sp_sample sample;
    double ms[READS];
    SP_TRY(open_one(path, &d));
    sp_status st = SP_OK;
    SP_GO(sp_sampler_open(d, &args, &s));
    SP_GO(sp_loader_open(s, next_sample, &left, 8, &l));
    SP_GO(sp_loader_next(l, &sample)); // the first is waited for
    for (int i = 0; i < steps; i++) {
        nanosleep(&step, NULL);
        double before = sp_loader_waited(l);
        SP_GO(sp_loader_next(l, &sample));
        ms[i] = 1e3 * (sp_loader_waited(l) - before);
    }
    double sum = 0;
    for (int i = 0; i < steps; i++) sum += ms[i];
    char note[96];
    snprintf(note, sizeof note, "mean of %d steps of %d ms, one row of %d tokens each, from disk",
             steps, STEP_MS, ROW);
    sp_bench_report(b, name, sum / steps, "ms", note);
done:
    sp_loader_close(l);
    sp_sampler_close(s);
    sp_dataset_close(d);
    return st;
}

// ---- re-tokenisation ----------------------------------------------------------------------------

static sp_status text_rows(const bench *b, const char *dir, const sp_tokenizer *t, double *bytes) {
    char *text;
    int64_t n;
    sp_coder *c = NULL;
    sp_mds_writer *w = NULL;
    SP_TRY(sp_read_file(b->text, (int64_t)1 << 34, &text, &n));
    sp_status st = sp_coder_new(t, &c);
    if (st == SP_OK)
        st = sp_mds_create(
            &(sp_mds_writer_args){.dir = dir, .encoding = "ndarray:int32", .size_limit = 1 << 22},
            &w);
    *bytes = (double)n;
    for (int64_t at = 0; at < n && st == SP_OK;) {
        int64_t take = n - at < 1 << 18 ? n - at : 1 << 18; // about the text of 65,536 tokens
        while (at + take < n && ((uint8_t)text[at + take] & 0xc0) == 0x80) take++;
        const int32_t *ids;
        int64_t m;
        st = sp_encode(c, text + at, take, &ids, &m);
        if (st == SP_OK) st = sp_mds_append(w, ids, m);
        at += take;
    }
    if (st == SP_OK) st = sp_mds_finish(w);
    sp_coder_free(c);
    free(text);
    return st;
}

static sp_status retokenize_rate(bench *b) {
    sp_retokenizer r;
    char *dir = sp_format("%s/text", b->dir), note[96];
    double bytes = 0, s[REPEATS];
    SP_TRY(sp_retokenizer_open(b->from, b->to, "auto", &r));
    sp_status st =
        dir ? text_rows(b, dir, r.from, &bytes) : sp_error(SP_ENVIRONMENT, "out of memory");
    for (int64_t threads = 1; st == SP_OK; threads = b->threads) {
        double cpu = cpu_seconds();
        for (int i = 0; i < REPEATS && st == SP_OK; i++)
            st = import_once(b, dir, threads, &r.change, &s[i]);
        cpu = (cpu_seconds() - cpu) / REPEATS;
        snprintf(note, sizeof note, "of text, %lld thread%s; %.1f MB per CPU second",
                 (long long)threads, threads == 1 ? "" : "s", 1e-6 * bytes / cpu);
        if (st == SP_OK)
            sp_bench_report(b, "re-tokenisation", 1e-6 * bytes / sp_bench_median(s, REPEATS),
                            "MB/s", note);
        if (threads == b->threads) break;
    }
    if (dir) sp_folder_remove(dir);
    free(dir);
    sp_retokenizer_close(&r);
    return st;
}

// ---- the whole ----------------------------------------------------------------------------------

static sp_status import_for_reading(bench *b) {
    char *imported = sp_format("%s/kept", b->dir);
    const char *src = b->raw;
    if (!imported) return sp_error(SP_ENVIRONMENT, "out of memory");
    const sp_import_args a = {.source = &src,
                              .n_sources = 1,
                              .out = imported,
                              .vocab = VOCAB,
                              .out_vocab = VOCAB,
                              .tokenizer = "bench",
                              .threads = b->threads,
                              .shard_tokens = 1 << 25};
    const sp_data_team team = {0, 1, 1, alone};
    sp_log_open(0, NULL, true);
    sp_status st = sp_import_run(&a, &team);
    sp_log_open(0, NULL, false);
    if (st == SP_OK) st = row_reads(b, "row of an HDF5 shard", imported, READS);
    char *domain = sp_path_join(imported, "raw");
    if (domain && st == SP_OK) {
        touch(domain, DROPPED);
        st = waiting(b, "waiting for a row of HDF5", imported, 50);
    }
    if (domain) sp_folder_remove(domain);
    free(domain);
    sp_folder_remove(imported);
    free(imported);
    return st;
}

static sp_status run(bench *b) {
    const int64_t rows = 1 + b->mb * 1000000 / (4 * ROW);
    double bytes, zip_bytes;
    char note[96];
    SP_TRY(make_set(b->raw, 0, rows));
    SP_TRY(make_set(b->zip, 3, rows));
    SP_TRY(raw_rates(b, CACHED, &bytes));
    SP_TRY(raw_rates(b, DROPPED, &bytes));
    sp_bench_report(b, "sequential writing and fsync",
                    1e-9 * write_rate(b->out_dir, (int64_t)bytes), "GB/s", "one thread");
    snprintf(note, sizeof note, "%lld threads, synced", (long long)b->threads);
    SP_TRY(unpack_rate(b, b->zip, bytes));
    zip_bytes = (double)touch(b->zip, CACHED);
    SP_TRY(import_rate(b, "import of zstd MDS, cached", b->zip, bytes, CACHED, b->threads, note));
    sp_bench_report(b, "size unpacked / packed", bytes / zip_bytes, "", "");
    SP_TRY(import_for_reading(b));
    SP_TRY(row_reads(b, "row of raw MDS", b->raw, READS));
    SP_TRY(row_reads(b, "row of zstd MDS", b->zip, READS / 10));
    touch(b->raw, DROPPED);
    SP_TRY(waiting(b, "waiting for a row of raw MDS", b->raw, 50));
    SP_TRY(sp_bench_opening(b));
    return b->text ? retokenize_rate(b) : SP_OK;
}

static const char usage[] =
    "sparda bench data [options]     speed of importing and reading token data\n"
    "  --dir DIR      where a folder is made for its files, and removed (runs/bench-data)\n"
    "  --out DIR      likewise for what is copied and imported, perhaps on another disk (--dir)\n"
    "  --mb N         size of the raw data set in MB (512); needs about 4 times as much room\n"
    "  --threads N    (all cores)\n"
    "  --shards N     shards of 10,000 rows for the time of opening, of 0.2 MB each (10000)\n"
    "  --text FILE --from TOKENIZER --to TOKENIZER   re-tokenisation of that text, too\n"
    "  --json FILE    results as JSON; - is standard output\n";

// All files are made in fresh folders, since --dir and --out may hold files of the user's.
static sp_status run_in(bench *b, const char *dir, const char *out_dir) {
    char *work = NULL, *out_work = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_folder_private(dir, "sparda-bench", &work));
    SP_GO(sp_folder_private(out_dir, "sparda-bench", &out_work));
    b->dir = work;
    b->out_dir = out_work;
    b->raw = sp_format("%s/raw", work);
    b->zip = sp_format("%s/zip", work);
    b->out = sp_format("%s/out", out_work);
    st = b->raw && b->zip && b->out ? run(b) : sp_error(SP_ENVIRONMENT, "out of memory");
done:
    if (work) sp_folder_remove(work);
    if (out_work) sp_folder_remove(out_work);
    free(work);
    free(out_work);
    free(b->raw);
    free(b->zip);
    free(b->out);
    return st;
}

sp_status sp_data_bench(int argc, char **argv) {
    const char *dir = "runs/bench-data", *out_dir = NULL;
    bench b = {.mb = 512, .threads = sysconf(_SC_NPROCESSORS_ONLN), .shards = 10000};
    sp_problems p = {0};
    const sp_argument list[] = {{"--dir", .text = &dir},
                                {"--out", .text = &out_dir},
                                {"--mb", .number = &b.mb, .least = 1, .most = 1 << 30},
                                {"--threads", .number = &b.threads, .least = 1, .most = 1024},
                                {"--shards", .number = &b.shards, .least = 1, .most = 100000},
                                {"--text", .text = &b.text},
                                {"--from", .text = &b.from},
                                {"--to", .text = &b.to},
                                {"--json", .text = &b.json},
                                {0}};
    if (sp_arguments_help(argc, argv)) {
        fputs(usage, stdout);
        return SP_OK;
    }
    sp_arguments_read(argc, argv, list, NULL, &p);
    if (b.text && (!b.from || !b.to)) sp_problems_add(&p, "--text needs --from and --to");
    if (!b.text && (b.from || b.to)) sp_problems_add(&p, "--from and --to need --text");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda bench data (see --help)"));
    SP_TRY(sp_json_check_place(b.json));
    if (!out_dir) out_dir = dir;
    SP_TRY(sp_check_destination(dir));
    SP_TRY(sp_check_destination(out_dir));
    const int64_t there = sp_folder_there(dir), out_there = sp_folder_there(out_dir);
    sp_status st = SP_OK;
    b.results = json_array();
    SP_GO(sp_mkdirs(dir));
    SP_GO(sp_mkdirs(out_dir));
    SP_GO(run_in(&b, dir, out_dir));
    if (b.json) st = sp_json_write(b.json, b.results);
done:
    sp_folder_unmake(out_dir, out_there);
    sp_folder_unmake(dir, there);
    json_decref(b.results);
    return st;
}
