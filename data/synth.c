// `sparda data synth`: the synthetic corpus as token shards.
#include "common/arguments.h"
#include "common/log.h"
#include "common/util.h"
#include "data/commands.h"
#include "data/corpus.h"
#include "data/dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
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

// Is it one of the first `n` shards?
static bool is_our_shard(const char *name, int64_t n) {
    long long k = -1;
    if (sscanf(name, "shard-%lld", &k) != 1 || k < 0 || k >= n) return false;
    char *ours = shard_path(".", k);
    bool same = ours && strcmp(ours + 2, name) == 0;
    free(ours);
    return same;
}

// Removes the files of `dir` ending in `suffix`, except the first `keep` shards.
static void remove_files(const char *dir, const char *suffix, int64_t keep) {
    char **name;
    int64_t n;
    if (sp_list_dir(dir, suffix, &name, &n) != SP_OK) return;
    for (int64_t i = 0; i < n; i++) {
        char *path = is_our_shard(name[i], keep) ? NULL : sp_path_join(dir, name[i]);
        if (path) unlink(path);
        free(path);
    }
    sp_free_names(name, n);
}

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
    for (int64_t k = 0; k < s->shards && st == SP_OK; k++) {
        char *from = shard_path(work, k), *to = shard_path(s->out, k);
        st = from && to ? sp_commit_file(from, to) : sp_error(SP_ENVIRONMENT, "out of memory");
        free(from);
        free(to);
    }
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
    SP_TRY(sp_mkdirs(s.out));
    char **name;
    int64_t n;
    SP_TRY(sp_list_dir(s.out, "", &name, &n));
    sp_free_names(name, n);
    if (n > 0 && !s.force)
        return sp_error(SP_BAD_INPUT,
                        "%s is not empty; choose another folder, or replace the *.h5 files in it "
                        "with --force",
                        s.out);
    SP_TRY(check_room(&s));
    char *work = sp_format("%s/.synth.tmp.%ld", s.out, (long)getpid());
    sp_status st = work ? sp_mkdirs(work) : sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) {
        st = write_shards(&s, work);
        if (st == SP_OK) {
            remove_files(s.out, ".h5", s.shards);
            remove_files(s.out, ".hdf5", 0);
        }
        remove_files(work, "", 0);
        rmdir(work);
    }
    free(work);
    sp_progress("%s", "");
    SP_TRY(st);
    sp_info("%s: %lld rows of %lld tokens (%lld in all) in %lld shard%s; seed %" PRIu64
            ", tokenizer %s, vocabulary %d",
            s.out, (long long)s.rows, (long long)s.seq_len, (long long)(s.rows * s.seq_len),
            (long long)s.shards, s.shards == 1 ? "" : "s", s.corpus.seed, SP_CORPUS_TOKENIZER,
            SP_CORPUS_VOCAB);
    return SP_OK;
}
