// `sparda data`: make and describe token data.
#include "common/log.h"
#include "common/util.h"
#include "data/corpus.h"
#include "data/dataset.h"
#include "data/synth_model.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

// ---- arguments
// -----------------------------------------------------------------------------------

typedef struct argument {
    const char *name; // with its dashes
    enum { TEXT, COUNT, SEED, REAL, FLAG } kind;
    void *to; // const char *, int64_t, uint64_t, double, bool
} argument;

static bool parse_value(const argument *a, const char *text) {
    char *end = NULL;
    errno = 0;
    switch (a->kind) {
    case TEXT:
        *(const char **)a->to = text;
        return text[0] != 0;
    case COUNT:
        *(int64_t *)a->to = strtoll(text, &end, 10);
        break;
    case SEED:
        *(uint64_t *)a->to = strtoull(text, &end, 10);
        if (text[0] == '-') return false;
        break;
    case REAL:
        *(double *)a->to = strtod(text, &end);
        if (!isfinite(*(double *)a->to)) return false;
        break;
    case FLAG:
        return false;
    }
    return errno == 0 && end != text && *end == 0 && strchr(" \t\n", text[0]) == NULL;
}

// "--name value", "--name=value", "--flag"; everything else goes to `rest` (at most one).
static sp_status parse_arguments(const char *command, int argc, char **argv, const argument *list,
                                 const char **rest) {
    static const char *const kinds[] = {"a path or name", "a whole number", "a whole number >= 0",
                                        "a number", "no value"};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            if (!rest || *rest)
                return sp_error(SP_BAD_INPUT,
                                "sparda data %s: unexpected argument '%s'; see 'sparda "
                                "data --help'",
                                command, argv[i]);
            *rest = argv[i];
            continue;
        }
        size_t n = strcspn(argv[i], "=");
        const argument *a = list;
        while (a->name && (strlen(a->name) != n || strncmp(a->name, argv[i], n) != 0)) a++;
        if (!a->name)
            return sp_error(SP_BAD_INPUT,
                            "sparda data %s: unknown option '%s'; see 'sparda data --help'",
                            command, argv[i]);
        if (a->kind == FLAG && argv[i][n] == 0) {
            *(bool *)a->to = true;
            continue;
        }
        const char *value = argv[i][n] ? argv[i] + n + 1 : i + 1 < argc ? argv[++i] : "";
        if (!parse_value(a, value))
            return sp_error(SP_BAD_INPUT, "sparda data %s: %s takes %s, found '%s'", command,
                            a->name, kinds[a->kind], value);
    }
    return SP_OK;
}

// ---- synth
// ---------------------------------------------------------------------------------------

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
    if (!s->out) return sp_error(SP_BAD_INPUT, "sparda data synth: --out DIR is missing");
    SP_TRY(sp_corpus_check(&s->corpus, s->seq_len));
    int64_t tokens;
    if (s->rows < 1 || !sp_mul(s->rows, s->seq_len, &tokens) || tokens > INT64_MAX / 16)
        return sp_error(SP_BAD_INPUT, "sparda data synth: %lld rows of %lld tokens; give 1 or more",
                        (long long)s->rows, (long long)s->seq_len);
    if (s->shards == 0) {
        s->shards = 1 + (tokens - 1) / SHARD_TOKENS;
        if (s->shards > s->rows) s->shards = s->rows;
        if (s->shards > SHARDS_MAX) s->shards = SHARDS_MAX;
    }
    if (s->shards < 1 || s->shards > s->rows || s->shards > SHARDS_MAX)
        return sp_error(
            SP_BAD_INPUT,
            "sparda data synth: %lld shards of %lld rows; give 1 to the number of rows, "
            "at most 100000",
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

static sp_status data_synth(int argc, char **argv) {
    synth s = {.rows = 200, .seq_len = 1024, .corpus = sp_corpus_defaults(1)};
    const argument list[] = {{"--out", TEXT, &s.out},
                             {"--rows", COUNT, &s.rows},
                             {"--seq-len", COUNT, &s.seq_len},
                             {"--seed", SEED, &s.corpus.seed},
                             {"--shards", COUNT, &s.shards},
                             {"--mean-doc", COUNT, &s.corpus.mean_doc},
                             {"--question-rate", REAL, &s.corpus.question_rate},
                             {"--ledger-share", REAL, &s.corpus.ledger_share},
                             {"--prose-share", REAL, &s.corpus.prose_share},
                             {"--force", FLAG, &s.force},
                             {0}};
    SP_TRY(parse_arguments("synth", argc, argv, list, NULL));
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

// ---- info
// ----------------------------------------------------------------------------------------

static sp_status print_json(const sp_dataset_info *info) {
    json_t *domains = json_array();
    for (int64_t i = 0; i < info->n_domains; i++)
        json_array_append_new(domains, json_pack("{s:s?,s:I,s:I}", "name", info->domain[i].name,
                                                 "rows", (json_int_t)info->domain[i].rows, "tokens",
                                                 (json_int_t)info->domain[i].tokens));
    json_t *o = json_pack("{s:I,s:I,s:o,s:I,s:I,s:I,s:I,s:s?,s:I}", "rows", (json_int_t)info->rows,
                          "tokens", (json_int_t)info->tokens, "domains", domains, "min_length",
                          (json_int_t)info->min_length, "max_length", (json_int_t)info->max_length,
                          "files", (json_int_t)info->n_files, "bytes", (json_int_t)info->bytes,
                          "tokenizer", info->tokenizer, "vocab", (json_int_t)info->vocab);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    json_decref(o);
    if (!text) return sp_error(SP_ENVIRONMENT, "cannot write the description as JSON");
    puts(text);
    free(text);
    return SP_OK;
}

static void print_table(const char *path, const sp_dataset_info *info) {
    printf("%s: %lld rows, %lld tokens in %lld file%s (%.1f MB)\n", path, (long long)info->rows,
           (long long)info->tokens, (long long)info->n_files, info->n_files == 1 ? "" : "s",
           (double)info->bytes / 1e6);
    printf("row length %lld to %lld tokens, mean %.1f\n", (long long)info->min_length,
           (long long)info->max_length, (double)info->tokens / (double)info->rows);
    if (info->tokenizer)
        printf("tokenizer %s, vocabulary %lld\n", info->tokenizer, (long long)info->vocab);
    else
        puts("tokenizer not stated");
    int width = 6;
    for (int64_t i = 0; i < info->n_domains; i++)
        if ((int)strlen(info->domain[i].name) > width) width = (int)strlen(info->domain[i].name);
    printf("\n%-*s %12s %15s %8s %12s\n", width, "domain", "rows", "tokens", "share",
           "mean length");
    for (int64_t i = 0; i < info->n_domains; i++) {
        const sp_domain_info *d = &info->domain[i];
        printf("%-*s %12lld %15lld %7.2f%% %12.1f\n", width, d->name, (long long)d->rows,
               (long long)d->tokens, 100 * (double)d->tokens / (double)info->tokens,
               d->rows ? (double)d->tokens / (double)d->rows : 0);
    }
}

static sp_status data_info(int argc, char **argv) {
    bool json = false;
    const char *path = NULL;
    const argument list[] = {{"--json", FLAG, &json}, {0}};
    SP_TRY(parse_arguments("info", argc, argv, list, &path));
    if (!path) return sp_error(SP_BAD_INPUT, "sparda data info: a path is missing");
    sp_data_entry one = {.path = (char *)path};
    const sp_data_list entries = {&one, 1};
    const sp_dataset_options o = {0};
    sp_dataset *d;
    sp_dataset_info info;
    SP_TRY(sp_dataset_open(&entries, &o, &d));
    sp_status st = sp_dataset_describe(d, &info);
    sp_dataset_close(d);
    SP_TRY(st);
    if (json)
        st = print_json(&info);
    else
        print_table(path, &info);
    sp_dataset_info_free(&info);
    return st;
}

// ---- dispatch
// ------------------------------------------------------------------------------------

static const char help[] =
    "sparda data synth --out DIR [options]     write the synthetic corpus as HDF5 token shards\n"
    "  --rows N            rows; row i is sequence i of the corpus (200)\n"
    "  --seq-len T         tokens a row (1024)\n"
    "  --seed S            seed of the corpus (1)\n"
    "  --shards K          files (as many as give 256 MiB each)\n"
    "  --mean-doc M        mean document length in tokens (0.9 of seq-len)\n"
    "  --question-rate Q   how often facts are asked for, 0 to 1 (0.3)\n"
    "  --ledger-share A    share of ledger documents (0.45)\n"
    "  --prose-share B     share of prose documents (0.25); the rest is code\n"
    "  --force             replace the *.h5 files of a folder that is not empty\n"
    "\n"
    "sparda data synth-model --like NAME --out DIR   a base model with random weights, for "
    "benchmarks\n"
    "  --like NAME         dimensions: minicpm4.1-8b\n"
    "  --layers N          (as many as the original)\n"
    "  --max-positions P   (as the original)\n"
    "  --seed S            of the weights (1)\n"
    "\n"
    "sparda data info PATH [--json]            rows, tokens and domains of token data\n"
    "  PATH: an HDF5 token shard, a folder of them, an MDS folder, or a folder of such folders\n"
    "  --json              as JSON on standard output\n";

static sp_status data_synth_model(int argc, char **argv) {
    sp_synth_model_args a = {.seed = 1};
    const argument list[] = {
        {"--like", TEXT, &a.like},      {"--out", TEXT, &a.out},
        {"--layers", COUNT, &a.layers}, {"--max-positions", COUNT, &a.max_positions},
        {"--seed", SEED, &a.seed},      {NULL, FLAG, NULL}};
    SP_TRY(parse_arguments("synth-model", argc, argv, list, NULL));
    if (!a.out) return sp_error(SP_BAD_INPUT, "sparda data synth-model: --out DIR is missing");
    return sp_synth_model(&a);
}

sp_status sp_data_command(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return SP_OK;
        }
    if (argc < 2) {
        fputs(help, stderr);
        return sp_error(SP_BAD_INPUT,
                        "no data command given; this version has synth, synth-model, info");
    }
    if (strcmp(argv[1], "synth") == 0) return data_synth(argc - 1, argv + 1);
    if (strcmp(argv[1], "synth-model") == 0) return data_synth_model(argc - 1, argv + 1);
    if (strcmp(argv[1], "info") == 0) return data_info(argc - 1, argv + 1);
    return sp_error(SP_BAD_INPUT,
                    "unknown data command '%s'; this version has synth, synth-model, info",
                    argv[1]);
}
