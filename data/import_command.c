// `sparda data import`, `sparda data retokenize`: their arguments.
#include "common/hash.h"
#include "common/log.h"
#include "common/util.h"
#include "data/args.h"
#include "data/commands.h"
#include "data/import.h"
#include "data/retokenize.h"

#include <stdlib.h>
#include <string.h>

enum { SHARD_TOKENS = 1 << 25, SOURCES_MAX = 10000, THREADS_MAX = 1024, MOST_OPTIONS = 16 };

typedef struct options {
    const char *out, *base, *tokenizer, *domain, *dtype, *from, *to, *clean_up;
    int64_t vocab, eod, shard_tokens, threads;
    bool drop_eod, force;
    sp_operands sources;
} options;

static sp_status parse_flat(const char *command, const options *o, sp_flat_format *f) {
    static const struct {
        const char *name;
        int size;
        bool is_signed;
    } types[] = {{"uint16", 2, false}, {"uint32", 4, false}, {"int32", 4, true}};
    *f = (sp_flat_format){.drop_eod = o->drop_eod, .has_eod = o->eod >= 0, .eod = o->eod};
    for (size_t i = 0; o->dtype && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(o->dtype, types[i].name) == 0) {
            f->itemsize = types[i].size;
            f->is_signed = types[i].is_signed;
        }
    if (o->dtype && !f->itemsize)
        return sp_error(SP_BAD_INPUT,
                        "sparda data %s: --dtype is uint16, uint32 or int32, not '%s'", command,
                        o->dtype);
    if (o->eod < -1 || o->eod > (f->itemsize == 2 ? UINT16_MAX : INT32_MAX))
        return sp_error(SP_BAD_INPUT, "sparda data %s: --eod %lld is no token id of %s", command,
                        (long long)o->eod, o->dtype ? o->dtype : "32 bits");
    if (o->drop_eod && !f->has_eod)
        return sp_error(SP_BAD_INPUT, "sparda data %s: --drop-eod needs --eod ID", command);
    return SP_OK;
}

static sp_status check_common(const char *command, options *o) {
    if (o->sources.n == 0)
        return sp_error(SP_BAD_INPUT, "sparda data %s: nothing to import is named", command);
    if (!o->out) return sp_error(SP_BAD_INPUT, "sparda data %s: --out DIR is missing", command);
    SP_TRY(sp_check_destination(o->out));
    if (o->domain && (!sp_path_is_safe(o->domain) || strchr(o->domain, '/') || o->domain[0] == '.'))
        return sp_error(SP_BAD_INPUT,
                        "sparda data %s: --domain '%s' cannot be the name of a folder", command,
                        o->domain);
    if (o->shard_tokens < 1 || o->shard_tokens > (int64_t)1 << 40)
        return sp_error(SP_BAD_INPUT, "sparda data %s: --shard-tokens %lld; it must be at least 1",
                        command, (long long)o->shard_tokens);
    if (o->threads < 0 || o->threads > THREADS_MAX)
        return sp_error(SP_BAD_INPUT, "sparda data %s: --threads %lld; it must be 1 to %d", command,
                        (long long)o->threads, THREADS_MAX);
    return SP_OK;
}

// "MODEL tokenizer.json sha256:..." of a model folder; only its name if it has no such file.
static sp_status identity_of(const char *base, char **out) {
    static const char *const files[] = {"tokenizer.json", "tokenizer.model"};
    char *real = realpath(base, NULL), hex[SP_SHA256_HEX];
    const char *name = sp_path_base(real ? real : base);
    sp_status st = SP_OK;
    *out = NULL;
    for (int i = 0; i < 2 && st == SP_OK && !*out; i++) {
        char *path = sp_path_join(base, files[i]);
        if (path && sp_path_is_file(path)) {
            st = sp_sha256_file(path, hex);
            if (st == SP_OK) *out = sp_format("%s %s sha256:%.16s", name, files[i], hex);
        }
        free(path);
    }
    if (st == SP_OK && !*out) *out = sp_strdup(name);
    free(real);
    return st != SP_OK || *out ? st : sp_error(SP_ENVIRONMENT, "out of memory");
}

static void common_arguments(options *o, sp_data_argument *list, int *n) {
    const sp_data_argument common[] = {{"--out", SP_ARG_TEXT, &o->out},
                                       {"--domain", SP_ARG_TEXT, &o->domain},
                                       {"--dtype", SP_ARG_TEXT, &o->dtype},
                                       {"--eod", SP_ARG_COUNT, &o->eod},
                                       {"--drop-eod", SP_ARG_FLAG, &o->drop_eod},
                                       {"--shard-tokens", SP_ARG_COUNT, &o->shard_tokens},
                                       {"--threads", SP_ARG_COUNT, &o->threads},
                                       {"--force", SP_ARG_FLAG, &o->force}};
    memcpy(list, common, sizeof common);
    *n = sizeof common / sizeof common[0];
}

sp_status sp_data_import(int argc, char **argv, sp_data_assemble assemble) {
    const char **source;
    SP_TRY(sp_alloc(&source, SOURCES_MAX, sizeof *source, "arguments"));
    options o = {.eod = -1, .shard_tokens = SHARD_TOKENS, .sources = {source, 0, SOURCES_MAX}};
    sp_data_argument list[MOST_OPTIONS] = {{0}};
    int n;
    char *identity = NULL;
    sp_data_team team;
    sp_import_args a = {0};
    common_arguments(&o, list, &n);
    list[n++] = (sp_data_argument){"--base", SP_ARG_TEXT, &o.base};
    list[n++] = (sp_data_argument){"--vocab", SP_ARG_COUNT, &o.vocab};
    list[n++] = (sp_data_argument){"--tokenizer", SP_ARG_TEXT, &o.tokenizer};
    sp_status st = sp_arguments_parse("import", argc, argv, list, &o.sources);
    if (st != SP_OK) goto done;
    SP_GO(check_common("import", &o));
    SP_GO(parse_flat("import", &o, &a.format));
    if (o.base && o.vocab) {
        st =
            sp_error(SP_BAD_INPUT, "sparda data import: --base and --vocab say the same; give one");
        goto done;
    }
    if (o.vocab < 0 || o.vocab > INT32_MAX) {
        st = sp_error(SP_BAD_INPUT, "sparda data import: --vocab %lld; it must be 1 to 2147483647",
                      (long long)o.vocab);
        goto done;
    }
    if (o.base) SP_GO(sp_base_vocab(o.base, &o.vocab));
    if (o.base && !o.tokenizer) SP_GO(identity_of(o.base, &identity));
    a.source = o.sources.at;
    a.n_sources = o.sources.n;
    a.out = o.out;
    a.domain = o.domain;
    a.vocab = a.out_vocab = o.vocab;
    a.tokenizer = o.tokenizer ? o.tokenizer : identity ? identity : "not stated";
    a.threads = o.threads;
    a.shard_tokens = o.shard_tokens;
    a.force = o.force;
    SP_GO(assemble(&team));
    if (!a.threads) a.threads = team.threads;
    st = sp_import_run(&a, &team);
done:
    free(identity);
    free(source);
    return st;
}

sp_status sp_data_retokenize(int argc, char **argv, sp_data_assemble assemble) {
    const char **source;
    SP_TRY(sp_alloc(&source, SOURCES_MAX, sizeof *source, "arguments"));
    options o = {.eod = -1,
                 .shard_tokens = SHARD_TOKENS,
                 .clean_up = "auto",
                 .sources = {source, 0, SOURCES_MAX}};
    sp_data_argument list[MOST_OPTIONS] = {{0}};
    int n;
    sp_data_team team;
    sp_import_args a = {0};
    sp_retokenizer r = {0};
    common_arguments(&o, list, &n);
    list[n++] = (sp_data_argument){"--from", SP_ARG_TEXT, &o.from};
    list[n++] = (sp_data_argument){"--to", SP_ARG_TEXT, &o.to};
    list[n++] = (sp_data_argument){"--clean-up", SP_ARG_TEXT, &o.clean_up};
    sp_status st = sp_arguments_parse("retokenize", argc, argv, list, &o.sources);
    if (st != SP_OK) goto done;
    SP_GO(check_common("retokenize", &o));
    SP_GO(parse_flat("retokenize", &o, &a.format));
    if (!o.from || !o.to) {
        st = sp_error(SP_BAD_INPUT, "sparda data retokenize: --from and --to name the tokenizers");
        goto done;
    }
    SP_GO(sp_retokenizer_open(o.from, o.to, o.clean_up, &r));
    a.source = o.sources.at;
    a.n_sources = o.sources.n;
    a.out = o.out;
    a.domain = o.domain;
    a.vocab = sp_tokenizer_vocab(r.from);
    a.out_vocab = sp_tokenizer_vocab(r.to);
    a.tokenizer = sp_tokenizer_identity(r.to);
    a.threads = o.threads;
    a.shard_tokens = o.shard_tokens;
    a.force = o.force;
    a.change = &r.change;
    SP_GO(assemble(&team));
    if (!a.threads) a.threads = team.threads;
    sp_info("%s", r.identity);
    st = sp_import_run(&a, &team);
done:
    sp_retokenizer_close(&r);
    free(source);
    return st;
}
