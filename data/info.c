// `sparda data info`: what token data holds, for people and as JSON.
#include "common/arguments.h"
#include "common/util.h"
#include "data/commands.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static sp_status print_json(const sp_dataset_info *info) {
    json_t *domains = json_array();
    for (int64_t i = 0; i < info->n_domains; i++)
        json_array_append_new(domains, json_pack("{s:s?,s:I,s:I}", "name", info->domain[i].name,
                                                 "rows", (json_int_t)info->domain[i].rows, "tokens",
                                                 (json_int_t)info->domain[i].tokens));
    json_t *lengths = json_array();
    for (int i = 0; i < SP_LENGTH_BINS; i++)
        if (info->lengths[i])
            json_array_append_new(lengths, json_pack("{s:I,s:I,s:I}", "from", (json_int_t)1 << i,
                                                     "to", ((json_int_t)2 << i) - 1, "rows",
                                                     (json_int_t)info->lengths[i]));
    json_t *o = json_pack("{s:I,s:I,s:o,s:I,s:I,s:o,s:I,s:I,s:s?,s:I}", "rows",
                          (json_int_t)info->rows, "tokens", (json_int_t)info->tokens, "domains",
                          domains, "min_length", (json_int_t)info->min_length, "max_length",
                          (json_int_t)info->max_length, "lengths", lengths, "files",
                          (json_int_t)info->n_files, "bytes", (json_int_t)info->bytes, "tokenizer",
                          info->tokenizer, "vocab", (json_int_t)info->vocab);
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
    printf("\n%*s %12s\n", 23, "row length", "rows");
    for (int i = 0; i < SP_LENGTH_BINS; i++)
        if (info->lengths[i])
            printf("%11lld %11lld %12lld %7.2f%%\n", 1LL << i, (2LL << i) - 1,
                   (long long)info->lengths[i],
                   100 * (double)info->lengths[i] / (double)info->rows);
}

sp_status sp_data_info(int argc, char **argv) {
    bool json = false;
    const char *path = NULL;
    sp_words words = {&path, 0, 1};
    sp_problems p = {0};
    const sp_argument list[] = {{"--json", .flag = &json}, {0}};
    sp_arguments_read(argc, argv, list, &words, &p);
    if (!path) sp_problems_add(&p, "a path is missing");
    SP_TRY(sp_problems_end(&p, SP_BAD_INPUT, "sparda data info (see --help)"));
    sp_data_entry one = {.path = (char *)path};
    const sp_data_list entries = {&one, 1};
    const sp_dataset_options o = {.quiet = true};
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
