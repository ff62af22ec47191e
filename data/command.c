// `sparda data`: which command, and its help.
#include "common/arguments.h"
#include "common/json.h"
#include "common/util.h"
#include "data/commands.h"
#include "data/synth_model.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX = 1 << 24 };

static sp_status data_synth_model(int argc, char **argv) {
    sp_synth_model_args a = {.seed = 1};
    sp_problems p = {0};
    const sp_argument list[] = {
        {"--like", .text = &a.like},
        {"--out", .text = &a.out},
        {"--layers", .number = &a.layers, .least = 1, .most = 1024},
        {"--max-positions", .number = &a.max_positions, .least = 1, .most = INT32_MAX},
        {"--seed", .seed = &a.seed},
        {0}};
    sp_arguments_read(argc, argv, list, NULL, &p);
    if (!a.like) sp_problems_add(&p, "--like NAME is missing; NAME is minicpm4.1-8b or nosa-8b");
    if (!a.out) sp_problems_add(&p, "--out DIR is missing");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda data synth-model (see --help)"));
    return sp_synth_model(&a);
}

sp_status sp_base_vocab(const char *base, int64_t *vocab) {
    char *path = sp_path_join(base, "config.json");
    json_t *root = NULL;
    sp_status st =
        path ? sp_json_load(path, CONFIG_MAX, &root) : sp_error(SP_ENVIRONMENT, "out of memory");
    const json_t *v = json_object_get(root, "vocab_size");
    *vocab = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
    if (st == SP_OK && (*vocab < 1 || *vocab > INT32_MAX))
        st = sp_error(SP_BAD_INPUT, "%s: 'vocab_size' must be a whole number of at least 1", path);
    json_decref(root);
    free(path);
    return st;
}

// ---- dispatch -----------------------------------------------------------------------------------

typedef struct command {
    const char *name, *help;
    sp_status (*run)(int argc, char **argv);
    sp_status (*run_with)(int argc, char **argv, sp_data_assemble assemble);
} command;

static const command commands[] = {
    {"synth",
     "sparda data synth --out DIR [options]     write the synthetic corpus as HDF5 token shards\n"
     "  --rows N            rows; row i is sequence i of the corpus (200)\n"
     "  --seq-len T         tokens a row (1024)\n"
     "  --seed S            seed of the corpus (1)\n"
     "  --shards K          files (as many as give 256 MiB each)\n"
     "  --mean-doc M        mean document length in tokens (0.9 of seq-len)\n"
     "  --question-rate Q   how often facts are asked for, 0 to 1 (0.3)\n"
     "  --ledger-share A    share of ledger documents (0.45)\n"
     "  --prose-share B     share of prose documents (0.25); the rest is code\n"
     "  --force             replace shard-NNNNN.h5 and shards.json of a folder that is not empty\n",
     sp_data_synth, NULL},
    {"import",
     "sparda data import SRC [SRC ...] --out DIR [options]   token data of other forms into HDF5\n"
     "                                                       token shards, DIR/DOMAIN/*.h5\n"
     "  SRC                 an MDS folder (one domain) or a folder of such; a .bin or .jsonl "
     "file,\n"
     "                      or a folder of them (one domain)\n"
     "  --base DIR          model folder: ids must be below the vocab_size of its config.json\n"
     "  --vocab N           the same by number; without either only negative ids are refused\n"
     "  --tokenizer NAME    identity stored with the rows (of the base's tokenizer file)\n"
     "  --domain NAME       name of the domain, if there is just one (of the folder or file)\n"
     "  --dtype TYPE        of .bin files: uint16, uint32 or int32\n"
     "  --eod ID            of .bin files: the token that ends a row; it stays the row's last one\n"
     "  --drop-eod          ... and is left out of the row\n"
     "  --shard-tokens N    about so many tokens a shard (33554432)\n"
     "  --threads N         (all cores)\n"
     "  --force             replace domains that an import made; anything else is never replaced\n"
     "  Run again, it goes on where it was interrupted. Under mpirun the ranks share the work.\n",
     NULL, sp_data_import},
    {"retokenize",
     "sparda data retokenize SRC [SRC ...] --from TOKENIZER --to TOKENIZER --out DIR [options]\n"
     "  SRC                 as for import, also HDF5 token shards\n"
     "  --from, --to        tokenizer.json, tokenizer.model, or a folder with one of them\n"
     "  --clean-up auto|yes|no   remove the blanks before punctuation as the decoder of the "
     "Python\n"
     "                      library does if tokenizer_config.json says so (auto)\n"
     "  --domain, --dtype, --eod, --drop-eod, --shard-tokens, --threads, --force: as for import\n"
     "  Rows are decoded without special tokens and encoded without adding any; rows that become\n"
     "  empty are left out and counted.\n",
     NULL, sp_data_retokenize},
    {"verify",
     "sparda data verify PATH [options]         read everything, check everything\n"
     "  PATH                as for info\n"
     "  --base DIR, --vocab N   ids must be below the model's vocabulary\n"
     "  --no-duplicates     do not look for equal rows (saves 16 bytes of memory a row)\n"
     "  --threads N         (all cores)\n"
     "  --write-list        then write shards.json, by which a folder of many shards opens fast\n"
     "  --json              as JSON on standard output\n",
     sp_data_verify, NULL},
    {"info",
     "sparda data info PATH [--json]            rows, tokens, domains and lengths of token data\n"
     "  PATH: an HDF5 token shard, a folder of them, an MDS folder, or a folder of such folders\n"
     "  --json              as JSON on standard output\n",
     sp_data_info, NULL},
    {"synth-model",
     "sparda data synth-model --like NAME --out DIR   a base model with random weights, for "
     "benchmarks\n"
     "  --like NAME         dimensions: minicpm4.1-8b or nosa-8b\n"
     "  --layers N          (as many as the original)\n"
     "  --max-positions P   (as the original)\n"
     "  --seed S            of the weights (1)\n",
     data_synth_model, NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };
#define NAMES "synth, import, retokenize, verify, info, synth-model"

static void print_all(FILE *f) {
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "%s%s", i ? "\n" : "", commands[i].help);
}

sp_status sp_data_command(int argc, char **argv, sp_data_assemble assemble) {
    if (argc < 2) {
        print_all(stderr);
        return sp_error(SP_BAD_INPUT, "no data command given; there are " NAMES);
    }
    if (sp_arguments_help(2, argv)) {
        print_all(stdout);
        return SP_OK;
    }
    const command *c = commands;
    while (c < commands + N_COMMANDS && strcmp(argv[1], c->name) != 0) c++;
    if (c == commands + N_COMMANDS)
        return sp_error(SP_BAD_INPUT, "unknown data command '%s'; there are " NAMES, argv[1]);
    if (sp_arguments_help(argc, argv)) {
        fputs(c->help, stdout);
        return SP_OK;
    }
    return c->run ? c->run(argc - 1, argv + 1) : c->run_with(argc - 1, argv + 1, assemble);
}
