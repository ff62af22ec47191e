// `sparda data synth`: the synthetic corpus as token shards.
#include "common/arguments.h"
#include "common/log.h"
#include "common/util.h"
#include "data/commands.h"
#include "data/corpus.h"
#include "data/dataset.h"
#include "data/folder_index.h"
#include "data/folders.h"
#include "data/import.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct synth {
    const char *out;
    int64_t rows, seq_len, shards;
    sp_corpus_args corpus;
    bool force;
} synth;

enum {
    SHARD_TOKENS = 1 << 26, // default size of a shard: 256 MiB
    SHARDS_MAX = 100000,    // five digits in the names, which are read in name order
};

static sp_status check_synth(synth *s) {
    SP_TRY(sp_corpus_check(&s->corpus, s->seq_len));
    int64_t tokens;
    if (!sp_mul(s->rows, s->seq_len, &tokens) || tokens > INT64_MAX / 16)
        return sp_error(SP_BAD_INPUT, "sparda data synth: %lld rows of %lld tokens are too many",
                        (long long)s->rows, (long long)s->seq_len);
    if (s->shards == 0) {
        s->shards = 1 + (tokens - 1) / SHARD_TOKENS;
        if (s->shards > s->rows) s->shards = s->rows;
        if (s->shards > SHARDS_MAX) s->shards = SHARDS_MAX;
    }
    if (s->shards > s->rows)
        return sp_error(SP_BAD_INPUT,
                        "sparda data synth: %lld shards of %lld rows; give at most "
                        "as many as rows",
                        (long long)s->shards, (long long)s->rows);
    return SP_OK;
}

static sp_status check_room(const synth *s) {
    struct statvfs fs;
    double need = (double)s->rows * ((double)s->seq_len * 4 + 16) + (double)s->shards * 2e6;
    if (statvfs(s->out, &fs) != 0) return SP_OK; // the writing will tell
    double have = (double)fs.f_bavail * (double)fs.f_frsize;
    if (need <= have) return SP_OK;
    return sp_error(SP_ENVIRONMENT, "%s: the shards need %.1f MB, but only %.1f MB are free there",
                    s->out, need / 1e6, have / 1e6);
}

static char *shard_path(const char *dir, int64_t shard) {
    return sp_format("%s/shard-%05lld.h5", dir, (long long)shard);
}

static sp_status synth_shard(const synth *s, const char *path, int64_t first, int64_t end,
                             int32_t *tokens) {
    static const char *const domains[] = {"synthetic"};
    const sp_shard_meta meta = {.tokenizer = SP_CORPUS_TOKENIZER,
                                .vocab = SP_CORPUS_VOCAB,
                                .domains = domains,
                                .n_domains = 1};
    sp_shard_writer *w;
    SP_TRY(sp_shard_create(path, &meta, &w));
    for (int64_t i = first; i < end; i++) {
        sp_status st = sp_corpus_sequence(&s->corpus, (uint64_t)i, s->seq_len, tokens);
        if (st == SP_OK) st = sp_shard_append(w, tokens, s->seq_len, 0);
        if (st != SP_OK) {
            sp_shard_abandon(w);
            return st;
        }
        if ((i + 1) % 64 == 0)
            sp_progress("%lld of %lld rows", (long long)i + 1, (long long)s->rows);
    }
    return sp_shard_finish(w);
}

// ---- what is there already ----------------------------------------------------------------------

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), s = strlen(suffix);
    return n >= s && strcmp(name + n - s, suffix) == 0;
}

// Files of other origin that would be read as shards, or describe some, cannot stay beside the
// corpus, and are not removed either.
static sp_status check_folder(const synth *s) {
    char **name;
    int64_t n;
    SP_TRY(sp_list_dir(s->out, "", &name, &n));
    sp_status st = SP_OK;
    if (n > 0 && !s->force)
        st = sp_error(SP_BAD_INPUT,
                      "%s is not empty; choose another folder, or replace the shard-NNNNN.h5 files "
                      "in it with --force",
                      s->out);
    for (int64_t i = 0; i < n && st == SP_OK; i++) {
        char *path = sp_path_join(s->out, name[i]);
        bool read = ends_with(name[i], ".h5") || ends_with(name[i], ".hdf5") ||
                    strcmp(name[i], SP_IMPORT_RECORD) == 0;
        if (!path)
            st = sp_error(SP_ENVIRONMENT, "out of memory");
        else if (read && (sp_folder_shard(name[i]) < 0 || sp_path_is_dir(path)))
            st = sp_error(SP_BAD_INPUT,
                          "%s is nothing that synth makes, and is not replaced; choose another "
                          "--out, or remove it yourself",
                          path);
        free(path);
    }
    sp_free_names(name, n);
    return st;
}

// Removes the shards of an earlier corpus from number `keep` on.
static void remove_shards(const char *dir, int64_t keep) {
    char **name;
    int64_t n;
    if (sp_list_dir(dir, ".h5", &name, &n) != SP_OK) return;
    for (int64_t i = 0; i < n; i++) {
        char *path = sp_folder_shard(name[i]) >= keep ? sp_path_join(dir, name[i]) : NULL;
        if (path) unlink(path);
        free(path);
    }
    sp_free_names(name, n);
}

#define WORK_PREFIX ".synth.tmp." // and the process

// Hidden folders of runs that were killed. The lock says whether a process of another host that
// shares the folder is at work.
static void remove_leftovers(const char *dir) {
    char **name;
    int64_t n;
    if (sp_folder_list(dir, &name, &n) != SP_OK) return;
    for (int64_t i = 0; i < n; i++) {
        long pid;
        if (sscanf(name[i], WORK_PREFIX "%ld", &pid) != 1 || pid < 1) continue;
        char *path = kill((pid_t)pid, 0) != 0 && errno == ESRCH ? sp_path_join(dir, name[i]) : NULL;
        int lock = path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) sp_folder_remove(path);
        if (lock >= 0) close(lock);
        free(path);
    }
    sp_free_names(name, n);
}

// ---- writing ------------------------------------------------------------------------------------

// All shards in a hidden folder first, so that the folder never shows a part of the data set.
static sp_status write_shards(const synth *s, const char *work) {
    int32_t *tokens;
    SP_TRY(sp_alloc(&tokens, s->seq_len, sizeof *tokens, "a sequence"));
    sp_status st = SP_OK;
    for (int64_t k = 0; k < s->shards && st == SP_OK; k++) {
        int64_t first = (int64_t)((__int128)k * s->rows / s->shards);
        int64_t end = (int64_t)((__int128)(k + 1) * s->rows / s->shards);
        char *path = shard_path(work, k);
        st = path ? synth_shard(s, path, first, end, tokens)
                  : sp_error(SP_ENVIRONMENT, "out of memory");
        free(path);
    }
    free(tokens);
    // The list of the shards that are replaced would contradict the new ones.
    char *list = sp_path_join(s->out, SP_FOLDER_INDEX);
    if (st == SP_OK && (!list || (unlink(list) != 0 && errno != ENOENT)))
        st =
            sp_error(SP_ENVIRONMENT, "cannot remove %s: %s", list ? list : s->out, strerror(errno));
    free(list);
    for (int64_t k = 0; k < s->shards && st == SP_OK; k++) {
        char *from = shard_path(work, k), *to = shard_path(s->out, k);
        st = from && to ? sp_commit_file(from, to) : sp_error(SP_ENVIRONMENT, "out of memory");
        free(from);
        free(to);
    }
    return st;
}

static sp_status make(const synth *s) {
    SP_TRY(check_folder(s));
    remove_leftovers(s->out);
    SP_TRY(check_room(s));
    char *work = sp_format("%s/" WORK_PREFIX "%ld", s->out, (long)getpid());
    sp_status st = work ? sp_mkdirs(work) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) {
        int lock = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (lock >= 0) flock(lock, LOCK_EX | LOCK_NB);
        st = write_shards(s, work);
        if (st == SP_OK) remove_shards(s->out, s->shards);
        sp_folder_remove(work);
        if (lock >= 0) close(lock);
    }
    free(work);
    return st;
}

sp_status sp_data_synth(int argc, char **argv) {
    synth s = {.rows = 200, .seq_len = 1024, .corpus = sp_corpus_defaults(1)};
    sp_problems p = {0};
    const sp_argument list[] = {{"--out", .text = &s.out},
                                {"--rows", .number = &s.rows, .least = 1, .most = INT64_MAX},
                                {"--seq-len", .number = &s.seq_len, .least = 1},
                                {"--seed", .seed = &s.corpus.seed},
                                {"--shards", .number = &s.shards, .least = 1, .most = SHARDS_MAX},
                                {"--mean-doc", .number = &s.corpus.mean_doc},
                                {"--question-rate", .real = &s.corpus.question_rate},
                                {"--ledger-share", .real = &s.corpus.ledger_share},
                                {"--prose-share", .real = &s.corpus.prose_share},
                                {"--force", .flag = &s.force},
                                {0}};
    sp_arguments_read(argc, argv, list, NULL, &p);
    if (!s.out) sp_problems_add(&p, "--out DIR is missing");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda data synth (see --help)"));
    SP_TRY(check_synth(&s));
    SP_TRY(sp_check_destination(s.out));
    const int64_t there = sp_folder_there(s.out);
    sp_status st = sp_mkdirs(s.out);
    if (st == SP_OK) st = make(&s);
    sp_progress("%s", "");
    if (st != SP_OK) sp_folder_unmake(s.out, there);
    SP_TRY(st);
    sp_info("%s: %lld rows of %lld tokens (%lld in all) in %lld shard%s; seed %" PRIu64
            ", tokenizer %s, vocabulary %d",
            s.out, (long long)s.rows, (long long)s.seq_len, (long long)(s.rows * s.seq_len),
            (long long)s.shards, s.shards == 1 ? "" : "s", s.corpus.seed, SP_CORPUS_TOKENIZER,
            SP_CORPUS_VOCAB);
    return SP_OK;
}
