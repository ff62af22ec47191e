// `sparda data import`, `sparda data retokenize`: their arguments.
#include "common/arguments.h"
#include "common/log.h"
#include "common/util.h"
#include "data/commands.h"
#include "data/identity.h"
#include "data/import.h"
#include "data/retokenize.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>

enum { SHARD_TOKENS = 1 << 25 };

typedef struct options {
    const char *out, *base, *tokenizer, *domain, *dtype, *from, *to, *clean_up;
    int64_t vocab, eod, shard_tokens, threads;
    bool drop_eod, force;
    sp_words sources;
} options;

// The format of .bin files and everything else that both commands share.
static void check_common(options *o, sp_flat_format *f, sp_problems *p) {
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
        sp_problems_add(p, "--dtype is uint16, uint32 or int32, not '%s'", o->dtype);
    if (f->itemsize == 2 && o->eod > UINT16_MAX)
        sp_problems_add(p, "--eod %lld is no token id of %s", (long long)o->eod, o->dtype);
    if (o->drop_eod && !f->has_eod) sp_problems_add(p, "--drop-eod needs --eod ID");
    if (o->sources.n == 0) sp_problems_add(p, "nothing to import is named");
    if (!o->out) sp_problems_add(p, "--out DIR is missing");
    if (o->domain && (!sp_path_is_safe(o->domain) || strchr(o->domain, '/') || o->domain[0] == '.'))
        sp_problems_add(p, "--domain '%s' cannot be the name of a folder", o->domain);
    const struct {
        const char *option, *text;
    } texts[] = {{"--domain", o->domain}, {"--tokenizer", o->tokenizer}};
    for (int i = 0; i < 2; i++)
        if (texts[i].text &&
            sp_import_check_text(texts[i].option, texts[i].text, "give another name") != SP_OK) {
            sp_problems_add(p, "%s", sp_error_text());
            sp_error_clear();
        }
}

// What both commands share, at the head of a table.
#define COMMON_ARGUMENTS(o)                                                                        \
    {"--out", .text = &(o)->out}, {"--domain", .text = &(o)->domain},                              \
        {"--dtype", .text = &(o)->dtype}, {"--eod", .number = &(o)->eod, .most = INT32_MAX},       \
        {"--drop-eod", .flag = &(o)->drop_eod},                                                    \
        {"--shard-tokens", .number = &(o)->shard_tokens, .least = 1},                              \
        {"--threads", .number = &(o)->threads, .least = 1, .most = 1024}, {                        \
        "--force", .flag = &(o)->force                                                             \
    }

sp_status sp_data_import(int argc, char **argv, sp_data_assemble assemble) {
    options o = {.eod = -1, .shard_tokens = SHARD_TOKENS, .sources = {NULL, 0, argc}};
    char *identity = NULL;
    sp_data_team team;
    sp_import_args a = {0};
    sp_problems p = {0};
    sp_status st = SP_OK;
    SP_TRY(sp_alloc(&o.sources.at, argc, sizeof *o.sources.at, "arguments"));
    const sp_argument list[] = {COMMON_ARGUMENTS(&o),
                                {"--base", .text = &o.base},
                                {"--vocab", .number = &o.vocab, .least = 1, .most = INT32_MAX},
                                {"--tokenizer", .text = &o.tokenizer},
                                {0}};
    sp_arguments_read(argc, argv, list, &o.sources, &p);
    check_common(&o, &a.format, &p);
    if (o.base && o.vocab) sp_problems_add(&p, "--base and --vocab say the same; give one");
    SP_GO(sp_problems_end(&p, SP_BAD_INPUT, "sparda data import (see --help)"));
    SP_GO(sp_check_destination(o.out));
    if (o.base) SP_GO(sp_base_vocab(o.base, &o.vocab));
    if (o.base && !o.tokenizer) {
        SP_GO(sp_tokenizer_of_model(o.base, &identity));
        SP_GO(sp_import_check_text("the name of --base,", identity, "give one with --tokenizer"));
    }
    a.source = o.sources.at;
    a.n_sources = o.sources.n;
    a.out = o.out;
    a.domain = o.domain;
    a.vocab = a.out_vocab = o.vocab;
    a.tokenizer = o.tokenizer ? o.tokenizer : identity ? identity : SP_TOKENIZER_UNKNOWN;
    a.threads = o.threads;
    a.shard_tokens = o.shard_tokens;
    a.force = o.force;
    SP_GO(assemble(&team));
    if (!a.threads) a.threads = team.threads;
    st = sp_import_run(&a, &team);
done:
    free(identity);
    free(o.sources.at);
    return st;
}

sp_status sp_data_retokenize(int argc, char **argv, sp_data_assemble assemble) {
    options o = {
        .eod = -1, .shard_tokens = SHARD_TOKENS, .clean_up = "auto", .sources = {NULL, 0, argc}};
    sp_data_team team;
    sp_import_args a = {0};
    sp_retokenizer r = {0};
    sp_problems p = {0};
    sp_status st = SP_OK;
    SP_TRY(sp_alloc(&o.sources.at, argc, sizeof *o.sources.at, "arguments"));
    const sp_argument list[] = {COMMON_ARGUMENTS(&o),
                                {"--from", .text = &o.from},
                                {"--to", .text = &o.to},
                                {"--clean-up", .text = &o.clean_up},
                                {0}};
    sp_arguments_read(argc, argv, list, &o.sources, &p);
    check_common(&o, &a.format, &p);
    if (!o.from || !o.to)
        sp_problems_add(&p, "--from and --to, which name the tokenizers, are missing");
    SP_GO(sp_problems_end(&p, SP_BAD_INPUT, "sparda data retokenize (see --help)"));
    SP_GO(sp_check_destination(o.out));
    SP_GO(sp_retokenizer_open(o.from, o.to, o.clean_up, &r));
    SP_GO(sp_import_check_text("the name of --from,", sp_tokenizer_identity(r.from), "rename it"));
    SP_GO(sp_import_check_text("the name of --to,", sp_tokenizer_identity(r.to), "rename it"));
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
    free(o.sources.at);
    return st;
}
