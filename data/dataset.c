// A data set: entries, each a concatenation of the rows of its files, found by looking at what the
// path of the entry is.
//
// Opening collects the problems of all entries and reports them together. Afterwards nothing
// changes any more, so reading needs no lock here.
#include "data/dataset.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/util.h"
#include "data/folder_index.h"
#include "data/identity.h"
#include "data/source.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char *path;
    double given, share; // proportion in the configuration (0: none); normalised
    sp_sources files;
    int64_t *first; // [files.n + 1] row of the entry at which a file begins
} entry;

struct sp_dataset {
    entry *entry;
    int64_t n, rows;
    int64_t vocab;
    bool proportions;
};

// ---- sources
// -------------------------------------------------------------------------------------

void sp_scan_free(sp_scan *scan) {
    for (int i = 0; i < 3; i++) sp_buffer_free(&scan->buffer[i]);
}

int64_t sp_find_bad_token(const int32_t *tokens, int64_t n, int64_t vocab) {
    const uint32_t most = vocab > 0 && vocab <= INT32_MAX ? (uint32_t)vocab - 1 : INT32_MAX;
    uint32_t bad = 0; // the sign of a negative id, or of most - id
    for (int64_t i = 0; i < n; i++) bad |= (uint32_t)tokens[i] | (most - (uint32_t)tokens[i]);
    if (!(bad >> 31)) return n;
    int64_t i = 0;
    while ((uint32_t)tokens[i] <= most) i++;
    return i;
}

const char *sp_token_hint(int64_t id, int64_t vocab) {
    enum { LLAMA3_VOCAB = 128256, LLAMA3_SPECIAL = 128000, SMALL = 1024 };
    if (id < 0) return "no tokenizer makes negative ids: the file is damaged or of another kind";
    if (id >= LLAMA3_VOCAB || vocab <= SMALL || vocab > LLAMA3_SPECIAL)
        return "the row was made with another tokenizer, or the file is damaged";
    if (id >= LLAMA3_SPECIAL)
        return "this is a special token of Llama-3, in whose tokens the public ProLong data comes: "
               "the data set has not been re-tokenised (sparda data retokenize)";
    return "Llama-3, in whose tokens the public ProLong data comes, has such ids: the data set has "
           "probably not been re-tokenised (sparda data retokenize)";
}

sp_status sp_bad_token(const sp_source *s, int64_t row, int64_t position, int64_t id, int64_t vocab,
                       const char *of) {
    char place[48];
    s->ops->place(s, row, position, place);
    return sp_error(SP_BAD_INPUT,
                    "%s: row %lld, position %lld: token id %lld is outside 0..%lld, the vocabulary "
                    "of the %s (%s); %s",
                    s->path, (long long)row, (long long)position, (long long)id,
                    (long long)(vocab > 0 ? vocab - 1 : INT32_MAX), of, place,
                    sp_token_hint(id, vocab));
}

void sp_source_clear(sp_source *s) {
    for (int64_t i = 0; s->domain && i < s->n_domains; i++) free(s->domain[i]);
    free(s->domain);
    free(s->path);
    free(s->tokenizer);
}

sp_status sp_sources_add(sp_sources *list, sp_source *s) {
    if (list->n == list->cap) {
        int64_t cap = list->cap ? 2 * list->cap : 8;
        sp_source **grown = realloc(list->at, (size_t)cap * sizeof *grown);
        if (!grown) {
            s->ops->close(s);
            return sp_error(SP_ENVIRONMENT, "out of memory for the files of a data set");
        }
        list->at = grown;
        list->cap = cap;
    }
    list->at[list->n++] = s;
    return SP_OK;
}

// ---- what a path is
// ------------------------------------------------------------------------------

typedef struct finder {
    const sp_dataset_options *o;
    sp_problems *problems;
    bool skipped; // something missing was allowed
} finder;

// Something that was asked for is not there: a problem, or a warning if the user allows it.
static void report_missing(finder *f, const char *text) {
    if (f->o->allow_missing) {
        sp_warn("%s; skipped (allow_missing_domains)", text);
        f->skipped = true;
    } else {
        sp_problems_add(f->problems, "%s", text);
    }
}

static bool is_shard_name(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".h5") == 0 || strcmp(dot, ".hdf5") == 0);
}

typedef struct folder {
    bool index;        // has index.json
    char **name;       // all visible names
    int64_t n, shards; // of which so many are *.h5
} folder;

static sp_status look_into(const char *dir, folder *out) {
    *out = (folder){0};
    SP_TRY(sp_list_dir(dir, "", &out->name, &out->n));
    for (int64_t i = 0; i < out->n; i++) {
        if (strcmp(out->name[i], "index.json") == 0) out->index = true;
        if (is_shard_name(out->name[i])) out->shards++;
    }
    return SP_OK;
}

static sp_status add_shard(finder *f, const sp_folder_index *list, const char *path,
                           sp_sources *out) {
    sp_source *s = NULL;
    sp_status st = SP_OK;
    if (list) st = sp_folder_index_open(list, path, sp_path_base(path), &s);
    if (st == SP_OK && !s) st = sp_shard_open(path, &s);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(f->problems, "%s", sp_error_text());
        return SP_OK;
    }
    SP_TRY(st);
    if (f->o->vocab > 0 && s->vocab > f->o->vocab)
        sp_problems_add(f->problems,
                        "%s: made for a vocabulary of %lld tokens ('%s'), the model has %lld; the "
                        "rows must be tokenised again for this model (sparda data retokenize)",
                        path, (long long)s->vocab, s->tokenizer, (long long)f->o->vocab);
    return sp_sources_add(out, s);
}

static sp_status add_shards(finder *f, const char *dir, const folder *in, sp_sources *out) {
    const int before = f->problems->count;
    sp_folder_index list;
    sp_status st;
    SP_TRY(sp_folder_index_load(dir, &list));
    sp_folder_index_missing(&list, dir, in->name, in->n, f->problems);
    for (int64_t i = 0; i < in->n; i++) {
        if (!is_shard_name(in->name[i])) continue;
        if (f->problems->count - before >= SP_PROBLEMS_PER_FOLDER) {
            sp_problems_add(f->problems, "%s: files from %s on were not looked at", dir,
                            in->name[i]);
            break;
        }
        char *path = sp_path_join(dir, in->name[i]);
        st = path ? add_shard(f, &list, path, out) : sp_error(SP_ENVIRONMENT, "out of memory");
        free(path);
        SP_GO(st);
    }
    st = SP_OK;
done:
    sp_folder_index_free(&list);
    return st;
}

// A folder with an index or with shards in it.
static sp_status add_domain(finder *f, const char *dir, const folder *in, sp_sources *out) {
    if (in->index && in->shards) {
        sp_problems_add(f->problems,
                        "%s holds both index.json and *.h5 files; move one of the two data sets to "
                        "a folder of its own",
                        dir);
        return SP_OK;
    }
    if (!in->index) return add_shards(f, dir, in, out);
    char *missing;
    int64_t first = out->n, packed = 0;
    SP_TRY(sp_mds_open(dir, f->problems, &missing, out));
    for (int64_t i = first; i < out->n; i++) packed += out->at[i]->packed;
    if (packed && f->problems->count == 0 && !f->o->quiet)
        sp_info("%s: %lld shards are compressed, so every row of theirs costs unpacking a shard; "
                "'sparda data import' makes files that are read directly",
                dir, (long long)packed);
    if (missing) report_missing(f, missing);
    free(missing);
    return SP_OK;
}

// A root of domain folders. *found: how many of its sub-folders are such.
static sp_status add_root(finder *f, const char *dir, const folder *in, int64_t *found,
                          sp_sources *out) {
    folder *sub;
    char **path;
    sp_status st = SP_OK;
    *found = 0;
    SP_TRY(sp_alloc(&sub, in->n, sizeof *sub, "the folders of a data set"));
    st = sp_alloc(&path, in->n, sizeof *path, "the folders of a data set");
    if (st != SP_OK) {
        free(sub);
        return st;
    }
    for (int64_t i = 0; i < in->n; i++) {
        path[i] = sp_path_join(dir, in->name[i]);
        if (!path[i]) st = sp_error(SP_ENVIRONMENT, "out of memory");
        if (st != SP_OK) goto done;
        if (!sp_path_is_dir(path[i])) {
            free(path[i]);
            path[i] = NULL;
            continue;
        }
        SP_GO(look_into(path[i], &sub[i]));
        *found += sub[i].index || sub[i].shards;
    }
    for (int64_t i = 0; i < in->n && *found; i++) {
        if (!path[i]) continue;
        if (sub[i].index || sub[i].shards) {
            SP_GO(add_domain(f, path[i], &sub[i], out));
            continue;
        }
        char *text = sp_format("%s holds neither index.json nor *.h5 files, unlike other folders "
                               "beside it",
                               path[i]);
        if (text) report_missing(f, text);
        free(text);
    }
done:
    for (int64_t i = 0; i < in->n; i++) {
        sp_free_names(sub[i].name, sub[i].n);
        free(path[i]);
    }
    free(sub);
    free(path);
    return st;
}

static sp_status add_folder(finder *f, const char *dir, sp_sources *out) {
    folder in;
    int64_t found = 1;
    sp_status st = look_into(dir, &in);
    if (st == SP_BAD_INPUT) {
        sp_problems_add(f->problems, "%s", sp_error_text());
        return SP_OK;
    }
    SP_TRY(st);
    if (in.index || in.shards)
        st = add_domain(f, dir, &in, out);
    else
        st = add_root(f, dir, &in, &found, out);
    sp_free_names(in.name, in.n);
    if (st == SP_OK && !found) {
        char *text =
            sp_format("%s holds neither *.h5 files nor index.json, and no folders of such", dir);
        if (text) report_missing(f, text);
        free(text);
    }
    return st;
}

static sp_status find_files(finder *f, entry *e) {
    const int before = f->problems->count;
    const bool skipped_before = f->skipped;
    f->skipped = false;
    if (sp_path_is_dir(e->path)) {
        SP_TRY(add_folder(f, e->path, &e->files));
    } else if (sp_path_is_file(e->path)) {
        SP_TRY(add_shard(f, NULL, e->path, &e->files));
    } else {
        char *text = sp_format("%s does not exist or is neither a file nor a folder", e->path);
        if (text) report_missing(f, text);
        free(text);
    }
    int64_t rows = 0;
    SP_TRY(sp_alloc(&e->first, e->files.n + 1, sizeof *e->first, "the files of a data set"));
    for (int64_t i = 0; i < e->files.n; i++) e->first[i + 1] = rows += e->files.at[i]->rows;
    if (rows == 0 && f->problems->count == before && !f->skipped) {
        char *text = sp_format("%s holds no rows", e->path);
        if (text) report_missing(f, text);
        free(text);
    }
    f->skipped |= skipped_before;
    return SP_OK;
}

// ---- opening
// -------------------------------------------------------------------------------------

static void free_entry(entry *e) {
    for (int64_t i = 0; i < e->files.n; i++) e->files.at[i]->ops->close(e->files.at[i]);
    free(e->files.at);
    free(e->first);
    free(e->path);
    *e = (entry){0};
}

void sp_dataset_close(sp_dataset *d) {
    if (!d) return;
    for (int64_t i = 0; i < d->n; i++) free_entry(&d->entry[i]);
    free(d->entry);
    free(d);
}

static void check_proportions(sp_dataset *d, sp_problems *p) {
    int64_t given = 0;
    for (int64_t i = 0; i < d->n; i++) {
        double v = d->entry[i].given;
        if (v != 0 && !(isfinite(v) && v > 0))
            sp_problems_add(p, "%s: proportion %g; it must be a number above 0", d->entry[i].path,
                            v);
        given += v != 0;
    }
    d->proportions = given > 0;
    for (int64_t i = 0; given > 0 && given < d->n && i < d->n; i++)
        if (d->entry[i].given == 0)
            sp_problems_add(
                p,
                "%s has no proportion, but other entries have one; give it to all or to "
                "none",
                d->entry[i].path);
}

// Two tokenizers in one data set are almost always a mistake, but their identities are free text.
static void warn_of_tokenizers(const sp_dataset *d) {
    const sp_source *first = NULL;
    for (int64_t i = 0; i < d->n; i++)
        for (int64_t k = 0; k < d->entry[i].files.n; k++) {
            const sp_source *s = d->entry[i].files.at[k];
            if (!s->tokenizer) continue;
            if (!first) first = s;
            if (strcmp(first->tokenizer, s->tokenizer) == 0) continue;
            sp_warn("the data comes from two tokenizers: '%s' (%s) and '%s' (%s)", first->tokenizer,
                    first->path, s->tokenizer, s->path);
            return;
        }
}

// Ids of another tokenizer are mostly in range, and then mean something else.
static void warn_of_model(const sp_dataset *d, const char *model) {
    const char *known = NULL; // files of one import say the same
    for (int64_t i = 0; model && i < d->n; i++)
        for (int64_t k = 0; k < d->entry[i].files.n; k++) {
            const sp_source *s = d->entry[i].files.at[k];
            bool may;
            if (!s->tokenizer || (known && strcmp(known, s->tokenizer) == 0)) continue;
            if (sp_tokenizer_may_be_of_model(s->tokenizer, model, &may) != SP_OK) {
                sp_error_clear(); // nothing but this remark needs the file
                return;
            }
            known = s->tokenizer;
            if (may) continue;
            sp_warn("%s states that its rows are of the tokenizer '%s', and %s has another one: "
                    "unless these are the same, its ids mean something else there ('sparda data "
                    "retokenize' converts rows)",
                    s->path, s->tokenizer, model);
            return;
        }
}

static void drop_missing(sp_dataset *d) {
    int64_t kept = 0;
    for (int64_t i = 0; i < d->n; i++) {
        entry e = d->entry[i];
        if (e.first[e.files.n] > 0)
            d->entry[kept++] = e;
        else
            free_entry(&e);
    }
    d->n = kept;
}

static void normalise(sp_dataset *d) {
    double sum = 0;
    for (int64_t i = 0; i < d->n; i++) {
        entry *e = &d->entry[i];
        d->rows += e->first[e->files.n];
        e->share = d->proportions ? e->given : (double)e->first[e->files.n];
        sum += e->share;
    }
    for (int64_t i = 0; i < d->n; i++) d->entry[i].share /= sum;
}

static void warn_of_shares(const sp_dataset *d) {
    sp_text t = {0};
    for (int64_t i = 0; i < d->n; i++)
        sp_text_add(&t, "%s %s %.4g", i ? "," : "", d->entry[i].path, d->entry[i].share);
    sp_warn("with what is missing left out, the shares of the data are%s", t.data ? t.data : "");
    sp_text_free(&t);
}

sp_status sp_dataset_open(const sp_data_list *entries, const sp_dataset_options *o,
                          sp_dataset **out) {
    *out = NULL;
    if (entries->n < 1)
        return sp_error(SP_BAD_INPUT, "no data was given; set 'data' to a list of {path: ...}");
    sp_dataset *d;
    SP_TRY(sp_alloc(&d, 1, sizeof *d, "a data set"));
    d->vocab = o->vocab;
    sp_problems problems = {0};
    finder f = {.o = o, .problems = &problems};
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&d->entry, entries->n, sizeof *d->entry, "the entries of a data set"));
    d->n = entries->n;
    for (int64_t i = 0; i < d->n; i++) {
        entry *e = &d->entry[i];
        e->given = entries->entry[i].proportion;
        e->path = sp_strdup(entries->entry[i].path);
        if (!e->path) {
            st = sp_error(SP_ENVIRONMENT, "out of memory for the entries of a data set");
            goto done;
        }
        SP_GO(find_files(&f, e));
    }
    check_proportions(d, &problems);
    SP_GO(sp_problems_end(&problems, SP_BAD_INPUT, "the data cannot be used"));
    drop_missing(d);
    if (d->n == 0) {
        st = sp_error(SP_BAD_INPUT, "no data is left: every entry is missing or empty");
        goto done;
    }
    normalise(d);
    if (f.skipped) warn_of_shares(d);
    warn_of_tokenizers(d);
    warn_of_model(d, o->model);
done:
    free(problems.text);
    if (st != SP_OK)
        sp_dataset_close(d);
    else
        *out = d;
    return st;
}

// ---- rows
// ----------------------------------------------------------------------------------------

int64_t sp_dataset_entries(const sp_dataset *d) {
    return d->n;
}

const char *sp_dataset_entry_path(const sp_dataset *d, int64_t i) {
    return d->entry[i].path;
}

bool sp_dataset_packed(const sp_dataset *d) {
    for (int64_t i = 0; i < d->n; i++)
        for (int64_t k = 0; k < d->entry[i].files.n; k++)
            if (d->entry[i].files.at[k]->packed) return true;
    return false;
}

double sp_dataset_proportion(const sp_dataset *d, int64_t i) {
    return d->entry[i].share;
}

bool sp_dataset_has_proportions(const sp_dataset *d) {
    return d->proportions;
}

int64_t sp_dataset_rows(const sp_dataset *d, int64_t i) {
    return d->entry[i].first[d->entry[i].files.n];
}

int64_t sp_dataset_files(const sp_dataset *d, int64_t i) {
    return d->entry[i].files.n;
}

const sp_source *sp_dataset_file(const sp_dataset *d, int64_t i, int64_t k) {
    return d->entry[i].files.at[k];
}

const sp_source *sp_dataset_locate(const sp_dataset *d, int64_t i, int64_t row,
                                   int64_t *row_in_file) {
    const entry *e = &d->entry[i];
    int64_t lo = 0, hi = e->files.n; // first[lo] <= row < first[hi]
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        *(e->first[mid] <= row ? &lo : &hi) = mid;
    }
    *row_in_file = row - e->first[lo];
    return e->files.at[lo];
}

static sp_status check_row(const sp_dataset *d, int64_t i, int64_t row) {
    if (i < 0 || i >= d->n || row < 0 || row >= sp_dataset_rows(d, i))
        return sp_error(SP_ENVIRONMENT,
                        "row %lld of data entry %lld was asked for, which does not "
                        "exist; this is a fault of the program",
                        (long long)row, (long long)i);
    return SP_OK;
}

sp_status sp_dataset_row_length(const sp_dataset *d, int64_t i, int64_t row, int64_t *tokens) {
    int64_t r;
    SP_TRY(check_row(d, i, row));
    const sp_source *s = sp_dataset_locate(d, i, row, &r);
    return s->ops->length(s, r, tokens);
}

sp_status sp_dataset_read(const sp_dataset *d, int64_t i, int64_t row, int64_t max, int32_t *tokens,
                          int64_t *n) {
    int64_t r;
    SP_TRY(check_row(d, i, row));
    const sp_source *s = sp_dataset_locate(d, i, row, &r);
    SP_TRY(s->ops->read(s, r, max, tokens, n));

    const bool by_file = s->vocab > 0 && (d->vocab <= 0 || s->vocab < d->vocab);
    const int64_t vocab = by_file ? s->vocab : d->vocab;
    int64_t k = sp_find_bad_token(tokens, *n, vocab);
    return k == *n ? SP_OK : sp_bad_token(s, r, k, tokens[k], vocab, by_file ? "file" : "model");
}

// ---- description ------------------------------------------------------------------------------

// The domain of that name, added if new; names -> position in info->domain.
static sp_status domain_by_name(json_t *names, const char *name, sp_dataset_info *info,
                                int64_t *out) {
    const json_t *known = json_object_get(names, name);
    if (known) {
        *out = (int64_t)json_integer_value(known);
        return SP_OK;
    }
    sp_domain_info *grown = realloc(info->domain, (size_t)(info->n_domains + 1) * sizeof *grown);
    if (grown) {
        info->domain = grown;
        grown[info->n_domains] = (sp_domain_info){.name = sp_strdup(name)};
    }
    if (!grown || !grown[info->n_domains].name ||
        json_object_set_new_nocheck(names, name, json_integer(info->n_domains)) != 0)
        return sp_error(SP_ENVIRONMENT, "out of memory for the domains of a data set");
    *out = info->n_domains++;
    return SP_OK;
}

static sp_status describe_source(const sp_source *s, json_t *names, sp_dataset_info *info) {
    uint32_t *length = NULL;
    int32_t *domain = NULL;
    int64_t *number = NULL;
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&length, s->rows, sizeof *length, "row lengths"));
    SP_GO(sp_alloc(&domain, s->rows, sizeof *domain, "row domains"));
    SP_GO(sp_alloc(&number, s->n_domains, sizeof *number, "domain numbers"));
    SP_GO(s->ops->lengths(s, length));
    SP_GO(s->ops->domains(s, domain));
    for (int64_t i = 0; i < s->n_domains; i++)
        SP_GO(domain_by_name(names, s->domain[i], info, &number[i]));
    for (int64_t r = 0; r < s->rows; r++) {
        sp_domain_info *to = &info->domain[number[domain[r]]];
        to->rows++;
        to->tokens += length[r];
        if (info->rows == 0 || length[r] < info->min_length) info->min_length = length[r];
        if (length[r] > info->max_length) info->max_length = length[r];
        info->lengths[31 - __builtin_clz(length[r])]++; // no row is empty
        info->rows++;
        info->tokens += length[r];
    }
done:
    free(length);
    free(domain);
    free(number);
    return st;
}

sp_status sp_dataset_describe(const sp_dataset *d, sp_dataset_info *out) {
    *out = (sp_dataset_info){0};
    json_t *names = json_object();
    sp_status st = names ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    for (int64_t i = 0; i < d->n && st == SP_OK; i++)
        for (int64_t k = 0; k < d->entry[i].files.n && st == SP_OK; k++) {
            const sp_source *s = d->entry[i].files.at[k];
            st = describe_source(s, names, out);
            out->n_files++;
            out->bytes += s->bytes;
            if (s->vocab > out->vocab) out->vocab = s->vocab;
            if (s->tokenizer && !out->tokenizer) out->tokenizer = sp_strdup(s->tokenizer);
        }
    json_decref(names);
    if (st != SP_OK) sp_dataset_info_free(out);
    return st;
}

void sp_dataset_info_free(sp_dataset_info *info) {
    for (int64_t i = 0; i < info->n_domains; i++) free(info->domain[i].name);
    free(info->domain);
    free(info->tokenizer);
    *info = (sp_dataset_info){0};
}

// The name of a file inside its entry: stays the same when the data set is moved as a whole.
static const char *inner_name(const entry *e, const sp_source *s) {
    size_t n = strlen(e->path);
    if (strncmp(s->path, e->path, n) != 0 || s->path[n] == 0) return sp_path_base(s->path);
    const char *rest = s->path + n;
    return rest + strspn(rest, "/");
}

// What the first, the middle and the last row begin with: data made anew under the same names often
// has the same sizes.
static sp_status add_samples(const sp_dataset *d, int64_t i, sp_text *t) {
    enum { TOKENS = 256 };
    int32_t tokens[TOKENS];
    const int64_t rows = sp_dataset_rows(d, i), at[] = {0, rows / 2, rows - 1};
    for (int k = 0; rows > 0 && k < 3; k++) {
        int64_t r, n;
        const sp_source *s = sp_dataset_locate(d, i, at[k], &r);
        SP_TRY(s->ops->read(s, r, TOKENS, tokens, &n)); // whatever ids: perhaps they are never used
        sp_text_add(t, "%016llx\n",
                    (unsigned long long)sp_xxh3(tokens, (size_t)n * sizeof *tokens));
    }
    return SP_OK;
}

sp_status sp_dataset_identity(const sp_dataset *d, bool rows, char hex[65]) {
    sp_text t = {0};
    sp_status st = SP_OK;
    for (int64_t i = 0; i < d->n && st == SP_OK; i++) {
        const entry *e = &d->entry[i];
        sp_text_add(&t, "entry\n");
        for (int64_t k = 0; k < e->files.n; k++)
            sp_text_add(&t, "%lld %lld %s\n", (long long)e->files.at[k]->rows,
                        (long long)e->files.at[k]->bytes, inner_name(e, e->files.at[k]));
        if (rows) st = add_samples(d, i, &t);
    }
    if (st == SP_OK && (t.failed || !t.data)) st = sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK) st = sp_sha256_of(t.data, t.len, hex);
    sp_text_free(&t);
    return st;
}
