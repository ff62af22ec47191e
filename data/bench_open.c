// `sparda bench data`, second part: how long it takes to open a data set of many shards and rows,
// and how much memory.
//
// With shards.json opening looks at names, sizes and the list only, so that files of the right size
// without contents are enough. Without the list every shard is opened and its offsets are checked:
// these are whole shards, of rows of one token.
#include "common/util.h"
#include "data/bench.h"
#include "data/dataset.h"
#include "data/folder_index.h"
#include "data/folders.h"
#include "data/mds_write.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 10000, SAMPLES = 100000 };

// ---- shards of which there is only the list -----------------------------------------------------

static sp_status make_listed(const char *dir, int64_t shards) {
    json_t *list = json_object();
    const int64_t bytes = ROWS * 100;
    sp_status st = sp_mkdirs(dir);
    for (int64_t i = 0; i < shards && st == SP_OK; i++) {
        char *name = sp_format("shard-%05lld.h5", (long long)i);
        char *path = name ? sp_path_join(dir, name) : NULL;
        int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
        if (fd < 0 || ftruncate(fd, bytes) != 0)
            st = sp_error(SP_ENVIRONMENT, "cannot make %s: %s", path ? path : "a file",
                          strerror(errno));
        if (fd >= 0) close(fd);
        json_object_set_new(list, name ? name : "",
                            json_pack("{s:I,s:I,s:I,s:I,s:s,s:[s]}", "bytes", (json_int_t)bytes,
                                      "rows", (json_int_t)ROWS, "tokens", (json_int_t)(ROWS * 20),
                                      "vocab", (json_int_t)BENCH_VOCAB, "tokenizer", "bench",
                                      "domains", "bench"));
        free(path);
        free(name);
    }
    json_t *root =
        json_pack("{s:s,s:i,s:o}", "format", "sparda-shards", "version", 1, "shards", list);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    char *path = sp_path_join(dir, SP_FOLDER_INDEX);
    if (st == SP_OK)
        st = text && path ? sp_write_file(path, text, (int64_t)strlen(text))
                          : sp_error(SP_ENVIRONMENT, "out of memory");
    free(text);
    free(path);
    json_decref(root);
    return st;
}

// ---- whole shards -------------------------------------------------------------------------------

// The parts of a file that are there; a shard of few tokens is mostly a hole.
static bool copy_file(const char *from, const char *to) {
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
    off_t end = in >= 0 ? lseek(in, 0, SEEK_END) : -1;
    bool ok = end >= 0 && (out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) >= 0 &&
              ftruncate(out, end) == 0;
    for (off_t at = 0; ok && (at = lseek(in, at, SEEK_DATA)) >= 0;) {
        off_t hole = lseek(in, at, SEEK_HOLE), to_at = at;
        while (ok && at < hole)
            ok = copy_file_range(in, &at, out, &to_at, (size_t)(hole - at), 0) > 0;
    }
    if (in >= 0) close(in);
    if (out >= 0 && close(out) != 0) ok = false;
    return ok;
}

static sp_status make_whole(const char *dir, int64_t shards) {
    const char *domain = "bench";
    const sp_shard_meta meta = {"bench", BENCH_VOCAB, &domain, 1};
    char *first = sp_path_join(dir, "shard-00000.h5");
    sp_shard_writer *w = NULL;
    sp_status st = first ? sp_mkdirs(dir) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_shard_create(first, &meta, &w);
    for (int32_t r = 0; r < ROWS && st == SP_OK; r++) st = sp_shard_append(w, &r, 1, 0);
    if (st == SP_OK)
        st = sp_shard_finish(w);
    else
        sp_shard_abandon(w);
    for (int64_t i = 1; i < shards && st == SP_OK; i++) {
        char *path = sp_format("%s/shard-%05lld.h5", dir, (long long)i);
        if (!path || !copy_file(first, path))
            st = sp_error(SP_ENVIRONMENT, "cannot copy %s to %s: %s", first, path ? path : "",
                          strerror(errno));
        free(path);
    }
    free(first);
    return st;
}

// An MDS folder of one shard, whose index then lists copies of it.
static sp_status repeat_shard(const char *dir, int64_t shards) {
    char *index = sp_path_join(dir, "index.json"), *text = NULL;
    json_t *root = index ? json_load_file(index, 0, NULL) : NULL;
    json_t *list = json_object_get(root, "shards"), *first = json_array_get(list, 0);
    const json_t *raw = json_object_get(first, "raw_data");
    const char *name = json_string_value(json_object_get(raw, "basename"));
    char *from = name ? sp_path_join(dir, name) : NULL;
    sp_status st = from ? SP_OK : sp_error(SP_ENVIRONMENT, "cannot read %s", index ? index : dir);
    for (int64_t i = 1; i < shards && st == SP_OK; i++) {
        char *base = sp_format("copy.%05lld.mds", (long long)i);
        char *to = base ? sp_path_join(dir, base) : NULL;
        json_t *entry = json_deep_copy(first);
        json_object_set_new(json_object_get(entry, "raw_data"), "basename",
                            json_string(base ? base : ""));
        json_array_append_new(list, entry);
        if (!to || !copy_file(from, to))
            st = sp_error(SP_ENVIRONMENT, "cannot copy %s: %s", from, strerror(errno));
        free(base);
        free(to);
    }
    if (st == SP_OK) text = json_dumps(root, JSON_COMPACT);
    if (st == SP_OK)
        st = text ? sp_write_file(index, text, (int64_t)strlen(text))
                  : sp_error(SP_ENVIRONMENT, "out of memory");
    free(text);
    free(from);
    free(index);
    json_decref(root);
    return st;
}

static sp_status make_mds(const char *dir, int64_t shards) {
    sp_mds_writer *w = NULL;
    SP_TRY(sp_mds_create(
        &(sp_mds_writer_args){
            .dir = dir, .encoding = "ndarray:int32", .hash = "xxh64", .size_limit = 1 << 26},
        &w));
    sp_status st = SP_OK;
    for (int32_t r = 0; r < ROWS && st == SP_OK; r++) st = sp_mds_append(w, &r, 1);
    if (st == SP_OK) st = sp_mds_finish(w);
    return st == SP_OK ? repeat_shard(dir, shards) : st;
}

// ---- measuring ----------------------------------------------------------------------------------

// The largest memory of the process since the last call, in bytes; 0 where the kernel does not
// tell.
static double peak_bytes(void) {
    long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
    if (f) fclose(f);
    f = fopen("/proc/self/clear_refs", "we"); // 5: the peak begins anew
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    return 1024.0 * (double)kib;
}

static sp_status open_once(const char *dir, sp_short_rows how, double *seconds) {
    const sp_sampler_args args = {
        .order = SP_ORDER_SHUFFLED, .short_rows = how, .seq_len = BENCH_ROW, .seed = 42};
    sp_data_entry e = {.path = (char *)dir};
    const sp_data_list list = {&e, 1};
    sp_dataset *d;
    sp_sampler *s = NULL;
    double start = sp_now();
    SP_TRY(sp_dataset_open(&list, &(sp_dataset_options){.vocab = BENCH_VOCAB, .quiet = true}, &d));
    sp_status st = sp_sampler_open(d, &args, &s);
    for (uint64_t k = 0; k < SAMPLES && st == SP_OK; k++) {
        int64_t entry, row, rows;
        sp_sampler_locate(s, k * 1000, &entry, &row, &rows);
    }
    *seconds = sp_now() - start;
    sp_sampler_close(s);
    sp_dataset_close(d);
    return st;
}

static sp_status measure(sp_data_bench_run *b, const char *name, const char *dir,
                         sp_short_rows how) {
    double s[BENCH_REPEATS];
    char note[128];
    malloc_trim(0); // what was freed before does not count
    peak_bytes();
    for (int i = 0; i < BENCH_REPEATS; i++) SP_TRY(open_once(dir, how, &s[i]));
    double peak = peak_bytes();
    snprintf(note, sizeof note, "%lld shards of %d rows, %d samples located; at most %.2f GB",
             (long long)b->shards, ROWS, SAMPLES, 1e-9 * peak);
    sp_bench_report(b, name, sp_bench_median(s, BENCH_REPEATS), "s", note);
    return SP_OK;
}

sp_status sp_bench_opening(sp_data_bench_run *b) {
    char *listed = sp_format("%s/listed", b->dir), *whole = sp_format("%s/whole", b->dir);
    char *mds = sp_format("%s/mds", b->dir);
    sp_status st = listed && whole && mds ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    SP_GO(make_listed(listed, b->shards));
    SP_GO(measure(b, "opening shards by shards.json", listed, SP_SHORT_KEEP));
    SP_GO(make_whole(whole, b->shards));
    SP_GO(measure(b, "opening shards without shards.json", whole, SP_SHORT_KEEP));
    SP_GO(measure(b, "the same, short: pack", whole, SP_SHORT_PACK));
    SP_GO(make_mds(mds, b->shards));
    SP_GO(measure(b, "opening MDS shards", mds, SP_SHORT_KEEP));
done:
    if (mds) sp_folder_remove(mds);
    free(mds);
    if (listed) sp_folder_remove(listed);
    if (whole) sp_folder_remove(whole);
    free(listed);
    free(whole);
    return st;
}
