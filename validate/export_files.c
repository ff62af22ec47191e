// Group E: what the exported files hold, and whether they agree with each other, with the record
// that the exporter left (sparda_config.json) and with the base model (inference.md 5.4, 6).
//
// The tensors are judged by value: two formats hold the same matrix if it has the same bits in
// bfloat16, which is what every consumer loads.
//
// A cause fails one check. A damaged file is E1's, wrong contents of a sound file are E2's, and so
// is another base model, with which nothing else is compared then.
#include "checkpoints/checkpoints.h"
#include "checkpoints/pt.h"
#include "common/json.h"
#include "common/util.h"
#include "model/safetensors.h"
#include "validate/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char record_file[] = "sparda_config.json";

// ---- opening ------------------------------------------------------------------------------------

void sp_exported_close(sp_exported *x) {
    for (int64_t i = 0; i < x->n_files; i++) {
        sp_exported_file *f = &x->file[i];
        free(f->path);
        free(f->name);
        free(f->format);
        free(f->problem);
        sp_forecast_free(&f->forecast);
        json_decref(f->sparse_config);
    }
    free(x->file);
    json_decref(x->record);
    free(x->record_path);
    *x = (sp_exported){0};
}

// Whether the container itself is sound, so that what is wrong is what it holds.
static bool container_opens(const char *path) {
    sp_st *st = NULL;
    sp_pt *pt = NULL;
    bool ok = sp_st_open(path, &st) == SP_OK || sp_pt_open(path, &pt) == SP_OK;
    sp_st_close(st);
    sp_pt_close(pt);
    sp_error_clear();
    return ok;
}

// Loads one file. A file that does not hold what it should is remembered with its problem.
static sp_status load_file(const char *path, const char *name, const sp_model_desc *d,
                           sp_exported_file *f) {
    struct stat s;
    f->path = sp_strdup(path);
    f->name = sp_strdup(name);
    if (!f->path || !f->name) return sp_error(SP_ENVIRONMENT, "out of memory");
    if (stat(path, &s) != 0 || !sp_path_is_file(path))
        return sp_error(SP_BAD_INPUT, "%s does not exist or is not a file", path);
    f->bytes = s.st_size;
    SP_TRY(sp_sha256_file(path, f->sha256));
    SP_TRY(sp_forecast_alloc(d, &f->forecast));
    sp_imported info = {.step = -1};
    sp_status st = sp_forecast_import(path, &f->forecast, &info);
    if (st == SP_BAD_INPUT) {
        f->problem = sp_strdup(sp_error_text());
        f->container = container_opens(path);
        return f->problem ? SP_OK : sp_error(SP_ENVIRONMENT, "out of memory");
    }
    SP_TRY(st);
    f->loaded = true;
    f->format = sp_strdup(info.format);
    f->sparse_config = json_incref(info.sparse_config);
    sp_imported_free(&info);
    return SP_OK;
}

static sp_status load_record(const char *dir, sp_exported *x) {
    x->record_path = sp_path_join(dir, record_file);
    if (!x->record_path) return sp_error(SP_ENVIRONMENT, "out of memory");
    if (!sp_path_is_file(x->record_path)) return SP_OK;
    sp_status st = sp_json_load(x->record_path, 64 << 20, &x->record);
    if (st == SP_BAD_INPUT)
        sp_error_prefix("the record of the export is damaged (get the file again; if it is damaged "
                        "there too, export again)");
    return st;
}

// The folder's export, also of a merged model (its sub-folder sparda/).
static sp_status open_folder(const char *dir, const sp_model_desc *d, sp_exported *x) {
    static const char *const names[] = {"forecast.safetensors", "forecast.pt"};
    enum { NAMES = 2 };
    char *inner = sp_path_join(dir, "sparda");
    sp_status st = SP_OK;
    bool nested = false;
    if (!inner) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    SP_GO(sp_alloc(&x->file, NAMES, sizeof *x->file, "a list of files"));
    for (int round = 0; round < 2 && x->n_files == 0; round++) {
        nested = round == 1;
        for (int i = 0; i < NAMES; i++) {
            char *path = sp_path_join(nested ? inner : dir, names[i]);
            if (!path) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
            if (sp_path_is_file(path)) st = load_file(path, names[i], d, &x->file[x->n_files++]);
            free(path);
            if (st != SP_OK) goto done;
        }
    }
    if (x->n_files == 0)
        SP_GO(sp_error(SP_BAD_INPUT,
                       "%s holds no export: neither forecast.safetensors nor forecast.pt is there, "
                       "nor in sparda/ below it; 'sparda export' writes them from a checkpoint",
                       dir));
    SP_GO(load_record(nested ? inner : dir, x));
done:
    free(inner);
    return st;
}

// Why nothing can be read, of every file.
static sp_status unreadable(const char *path, const sp_exported *x) {
    if (x->n_files == 1) return sp_error(SP_BAD_INPUT, "%s", x->file[0].problem);
    sp_problems p = {0};
    for (int64_t i = 0; i < x->n_files; i++) sp_problems_add(&p, "%s", x->file[i].problem);
    return sp_problems_end(&p, SP_BAD_INPUT, "no file of the export %s can be read", path);
}

sp_status sp_exported_open(const char *path, const sp_model_desc *d, sp_exported *x) {
    *x = (sp_exported){0};
    sp_status st = SP_OK;
    if (sp_path_is_dir(path)) {
        SP_GO(open_folder(path, d, x));
    } else {
        SP_GO(sp_alloc(&x->file, 1, sizeof *x->file, "a list of files"));
        x->n_files = 1;
        SP_GO(load_file(path, sp_path_base(path), d, &x->file[0]));
        char *dir = sp_path_dir(path);
        st = dir ? load_record(dir, x) : sp_error(SP_ENVIRONMENT, "out of memory");
        free(dir);
        if (st != SP_OK) goto done;
    }
    bool readable = false;
    for (int64_t i = x->n_files - 1; i >= 0; i--) {
        readable |= x->file[i].loaded || x->file[i].container;
        if (x->file[i].loaded) x->forecast = &x->file[i].forecast;
    }
    if (!readable) st = unreadable(path, x);
done:
    if (st != SP_OK) sp_exported_close(x);
    return st;
}

// ---- tensors ------------------------------------------------------------------------------------

typedef enum stored_type { STORED_BF16, STORED_F32 } stored_type;

// BF16 if every value is one, which is how the exporter writes by default.
static stored_type type_of(const float *w, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float back = sp_bf16_to_f32(sp_f32_to_bf16(w[i]));
        if (memcmp(&back, &w[i], sizeof back) != 0 && !isnan(w[i])) return STORED_F32;
    }
    return STORED_BF16;
}

static sp_status tensor_sha256(const float *w, int64_t n, stored_type type,
                               char hex[SP_SHA256_HEX]) {
    if (type == STORED_F32) return sp_sha256_of(w, (size_t)n * sizeof *w, hex);
    uint16_t *b;
    SP_TRY(sp_alloc(&b, n, sizeof *b, "bfloat16 copy"));
    for (int64_t i = 0; i < n; i++) b[i] = sp_f32_to_bf16(w[i]);
    sp_status st = sp_sha256_of(b, (size_t)n * sizeof *b, hex);
    free(b);
    return st;
}

static json_t *recorded_tensor(const sp_exported *x, const char *name) {
    size_t i;
    json_t *t;
    json_array_foreach(json_object_get(x->record, "tensors"), i, t) {
        const char *s = json_string_value(json_object_get(t, "name"));
        if (s && strcmp(s, name) == 0) return t;
    }
    return NULL;
}

static sp_status write_tensor(const sp_forecast *f, int64_t l, json_t *list) {
    int64_t n = f->rows * f->cols;
    const float *w = sp_forecast_matrix(f, l);
    stored_type type = type_of(w, n);
    char name[64], hex[SP_SHA256_HEX];
    double squares = 0, largest = 0;
    sp_forecast_name(l, name);
    SP_TRY(tensor_sha256(w, n, type, hex));
    for (int64_t i = 0; i < n; i++) {
        squares += (double)w[i] * (double)w[i];
        if (!(fabs((double)w[i]) <= largest)) largest = fabs((double)w[i]);
    }
    json_t *o = json_pack("{s:s, s:[I,I], s:s, s:s, s:o, s:o, s:b}", "name", name, "shape",
                          (json_int_t)f->rows, (json_int_t)f->cols, "dtype",
                          type == STORED_BF16 ? "BF16" : "F32", "sha256", hex, "rms",
                          sp_json_number(sqrt(squares / (double)n)), "max_abs",
                          sp_json_number(largest), "used", l < f->layers);
    if (json_array_append_new(list, o) != 0)
        return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
    return SP_OK;
}

static sp_status write_section(sp_report *r, const sp_exported *x) {
    json_t *section = json_object_get(r->root, "export");
    for (int64_t i = 0; i < x->n_files; i++) {
        const sp_exported_file *f = &x->file[i];
        json_t *o = json_pack("{s:s, s:s, s:I, s:s}", "path_rel", f->name, "format",
                              f->format ? f->format : "unreadable", "bytes", (json_int_t)f->bytes,
                              "sha256", f->sha256);
        if (json_array_append_new(json_object_get(section, "files"), o) != 0)
            return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
    }
    if (!x->forecast) return SP_OK;
    for (int64_t l = 0; l <= x->forecast->layers; l++)
        SP_TRY(write_tensor(x->forecast, l, json_object_get(section, "tensors")));
    return SP_OK;
}

// ---- checks -------------------------------------------------------------------------------------

// One problem a line, without the marks that make a list of them in an error message.
static void unmark(char *text) {
    static const char mark[] = "\n  - ";
    char *to = text;
    for (const char *from = text; *from;) {
        if (strncmp(from, mark, strlen(mark)) == 0) {
            if (to != text) *to++ = '\n';
            from += strlen(mark);
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
}

// Adds the check with the collected problems as its reason; frees them.
static sp_status add_problems(sp_report *r, sp_check *c, sp_problems *p, const char *note) {
    if (p->count) c->outcome = SP_FAIL;
    if (p->text) unmark(p->text);
    c->reason = p->count ? p->text : note;
    sp_status st = sp_report_add(r, c);
    free(p->text);
    *p = (sp_problems){0};
    return st;
}

static int64_t differing_bytes(const float *a, const float *b, int64_t n) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        unsigned diff = (unsigned)(sp_f32_to_bf16(a[i]) ^ sp_f32_to_bf16(b[i]));
        bytes += ((diff & 0xff) != 0) + ((diff >> 8) != 0);
    }
    return bytes;
}

static const char export_again[] = "export again";
static const char get_again[] = "get the file again from where it was exported; if it is damaged "
                                "there too, export again";

// The first file that is damaged, or else is sound but could not be loaded; NULL if there is none.
static const sp_exported_file *not_loaded(const sp_exported *x, bool damaged) {
    for (int64_t i = 0; i < x->n_files; i++)
        if (!x->file[i].loaded && x->file[i].container != damaged) return &x->file[i];
    return NULL;
}

// The base model's hash in the record, NULL if there is none.
static const char *recorded_base(const sp_exported *x) {
    json_t *base = json_object_get(x->record, "base");
    return json_string_value(json_object_get(base, "weights_sha256"));
}

// E1: all formats against the first, and that against the recorded hashes.
static sp_status check_formats(sp_report *r, const sp_exported *x) {
    const sp_forecast *f = x->forecast; // NULL only if no file is loaded
    int64_t size = f ? f->rows * f->cols : 0;
    sp_problems p = {0};
    sp_check c = sp_check_blank("E1");
    c.value = 0;
    c.threshold = 0;
    c.n = 0;
    int64_t formats = 0, hashes = 0;
    if (not_loaded(x, true)) c.remedy = get_again;
    for (int64_t i = 0; i < x->n_files; i++) {
        const sp_exported_file *file = &x->file[i];
        if (!file->loaded) {
            if (!file->container) sp_problems_add(&p, "%s: %s", file->name, file->problem);
            continue;
        }
        formats++;
        for (int64_t l = 0; l <= f->layers; l++) {
            char name[64], hex[SP_SHA256_HEX];
            sp_forecast_name(l, name);
            const float *w = sp_forecast_matrix(&file->forecast, l);
            int64_t bytes = differing_bytes(sp_forecast_matrix(f, l), w, size);
            if (bytes) c.remedy = NULL;
            if (bytes)
                sp_problems_add(&p, "%s: %s differs in %lld bytes from %s", file->name, name,
                                (long long)bytes, x->file[0].name);
            c.value += (double)bytes;
            c.n++;
            json_t *t = recorded_tensor(x, name);
            const char *want = json_string_value(json_object_get(t, "sha256"));
            if (!want) continue;
            const char *dtype = json_string_value(json_object_get(t, "dtype"));
            bool f32 = dtype && strcmp(dtype, "F32") == 0 && type_of(w, size) == STORED_F32;
            sp_status st = tensor_sha256(w, size, f32 ? STORED_F32 : STORED_BF16, hex);
            if (st != SP_OK) {
                free(p.text);
                return st;
            }
            hashes++;
            if (strcmp(hex, want) != 0) {
                c.remedy = NULL;
                sp_problems_add(&p, "%s: %s is not the tensor that %s records", file->name, name,
                                record_file);
                if (!bytes) c.value += 1;
            }
        }
    }
    if (p.count && c.value == 0) c.value = 1;
    c.detail = json_pack("{s:I, s:I}", "formats", (json_int_t)formats, "hashes_compared",
                         (json_int_t)hashes);
    const char *note = NULL;
    if (!hashes)
        note = "no sparda_config.json with tensor hashes: formats compared with each other";
    if (!hashes && formats < 2)
        note = "one format and no sparda_config.json with tensor hashes: nothing to compare with";
    if (!p.count && !hashes && formats < 2) c.outcome = SP_SKIP;
    char told[96];
    const sp_exported_file *wrong = not_loaded(x, false);
    if (wrong) {
        snprintf(told, sizeof told, "%s is not compared: see E2", wrong->name);
        note = told;
        c.outcome = SP_SKIP;
    }
    return add_problems(r, &c, &p, note);
}

// The name, shape and type problems of a safetensors file that the loader tolerates.
static sp_status judge_names(const sp_exported_file *f, int64_t layers, sp_problems *p,
                             int64_t *tensors) {
    sp_st *st;
    SP_TRY(sp_st_open(f->path, &st));
    for (int64_t i = 0; i < st->n; i++) {
        const sp_st_tensor *t = &st->tensor[i];
        char want[64];
        int64_t l = sp_forecast_index(t->name);
        if (l < 0 || l > layers) continue; // the loader has refused or ignored it
        ++*tensors;
        sp_forecast_name(l, want);
        if (strcmp(want, t->name) != 0)
            sp_problems_add(p, "%s: tensor %s should be named %s", f->name, t->name, want);
        if (t->dtype != SP_ST_BF16 && t->dtype != SP_ST_F32)
            sp_problems_add(p, "%s: tensor %s is %s, expected BF16 or F32", f->name, t->name,
                            sp_st_dtype_name(t->dtype));
    }
    sp_st_close(st);
    return SP_OK;
}

// E2 with the identity of the base model. *other: the export is made for another one, as its record
// says, or may be, as nothing of it fits.
static sp_status check_names(sp_report *r, const sp_model_desc *d, const char *weights_sha256,
                             const sp_exported *x, bool *other) {
    const char *recorded = recorded_base(x);
    const sp_exported_file *damaged = not_loaded(x, true);
    char note[96] = "";
    sp_problems p = {0};
    sp_check c = sp_check_blank("E2");
    c.threshold = 0;
    c.n = 0;
    *other = recorded && strcmp(recorded, weights_sha256) != 0;
    if (*other) // names and shapes that this base does not expect would follow from that
        sp_problems_add(&p,
                        "made for another base model: its weights have SHA-256 %.16s..., those "
                        "of %s %.16s...",
                        recorded, d->dir, weights_sha256);
    else
        c.remedy = export_again;
    for (int64_t i = 0; i < x->n_files && !*other; i++) {
        const sp_exported_file *f = &x->file[i];
        if (!f->loaded) {
            if (f->container) sp_problems_add(&p, "%s: %s", f->name, f->problem);
        } else if (strcmp(f->format, "safetensors") == 0) {
            sp_status st = judge_names(f, d->layers, &p, &c.n);
            if (st != SP_OK) {
                free(p.text);
                return st;
            }
        } else {
            c.n += d->layers + 1;
        }
    }
    if (!recorded && !x->forecast && not_loaded(x, false)) {
        *other = true;
        c.remedy = "give the base model that the Forecast was trained for with --base; if it is "
                   "that one, export again";
    }
    c.value = (double)p.count;
    if (damaged) {
        snprintf(note, sizeof note, "%s is not looked at: see E1", damaged->name);
        c.outcome = SP_SKIP;
    } else if (!recorded) {
        snprintf(note, sizeof note,
                 "no record of the base model's hash: names, shapes and types only");
    }
    return add_problems(r, &c, &p, *note ? note : NULL);
}

// E3: also the flag of the last layer's projection, which nothing uses. After E1: values that are
// not the exported ones say nothing of the training.
static sp_status check_values(sp_report *r, const sp_exported *x) {
    const sp_forecast *f = x->forecast;
    sp_problems p = {0};
    sp_check c = sp_check_blank("E3");
    if (sp_report_outcome(r, "E1") == SP_FAIL) c.remedy = "";
    c.threshold = 0;
    c.value = 0;
    c.n = (f->layers + 1) * f->rows * f->cols;
    for (int64_t l = 0; l <= f->layers; l++) {
        char name[64];
        int64_t bad = 0, zero = 0, first_bad = -1, first_zero = -1;
        sp_forecast_name(l, name);
        const float *w = sp_forecast_matrix(f, l);
        for (int64_t row = 0; row < f->rows; row++) {
            bool all_zero = true;
            for (int64_t i = 0; i < f->cols; i++) {
                float v = w[row * f->cols + i];
                if (!isfinite(v)) {
                    if (!bad++) first_bad = row;
                }
                all_zero &= v == 0;
            }
            if (all_zero && !zero++) first_zero = row;
        }
        if (bad)
            sp_problems_add(&p, "%s: %lld values are NaN or infinite, the first in row %lld", name,
                            (long long)bad, (long long)first_bad);
        c.value += (double)bad;
        if (l == f->layers) continue; // the unused one may be left out, and is zero then
        if (zero)
            sp_problems_add(&p, "%s: %lld rows are all zero, the first is row %lld", name,
                            (long long)zero, (long long)first_zero);
        c.value += (double)zero;
    }
    return add_problems(r, &c, &p, "the last layer's q_future_proj is not used in inference");
}

// One integer of a record against the base model's.
static void expect(sp_problems *p, const char *where, json_t *o, const char *key, int64_t want,
                   int64_t *compared) {
    json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return;
    ++*compared;
    if (!json_is_integer(v) || json_integer_value(v) != want)
        sp_problems_add(p, "%s: %s is %lld, the base model's is %lld", where, key,
                        (long long)json_integer_value(v), (long long)want);
}

static void expect_grid(sp_problems *p, const char *where, json_t *o, const sp_model_desc *d,
                        int64_t *compared) {
    const sp_sparse_config *s = &d->sparse;
    expect(p, where, o, "kernel_size", s->kernel_size, compared);
    expect(p, where, o, "kernel_stride", s->kernel_stride, compared);
    expect(p, where, o, "block_size", s->block_size, compared);
    expect(p, where, o, "init_blocks", s->init_blocks, compared);
    expect(p, where, o, "window_size", s->window_size, compared);
    expect(p, where, o, "topk", s->topk, compared);
    if (d->cis) expect(p, where, o, "select_blocks", s->select_blocks, compared);
}

// E4: k_effective = topk + window/block = forced + chosen (+ those by the importance of their
// keys), wherever it is written down.
static sp_status check_topk(sp_report *r, const sp_model_desc *d, const sp_exported *x) {
    sp_selection s = sp_model_selection(d, true);
    int64_t forced = s.init_blocks + s.local_blocks + 1, compared = 0;
    int64_t shortlist = sp_model_shortlist(d, true).topk;
    sp_problems p = {0};
    sp_check c = sp_check_blank("E4");
    const sp_exported_file *unread = not_loaded(x, true);
    if (!unread) unread = not_loaded(x, false);
    c.threshold = 0;
    if (shortlist <= forced)
        sp_problems_add(&p,
                        "%lld blocks per query, of which %lld are forced: none is left to "
                        "choose",
                        (long long)shortlist, (long long)forced);
    for (int64_t i = 0; i < x->n_files; i++)
        expect_grid(&p, x->file[i].name, x->file[i].sparse_config, d, &compared);
    if (x->record) {
        expect_grid(&p, record_file, json_object_get(x->record, "sparse_config"), d, &compared);
        json_t *o = json_object_get(x->record, "selection");
        expect_grid(&p, record_file, o, d, &compared);
        expect(&p, record_file, o, "local_blocks", s.local_blocks, &compared);
        expect(&p, record_file, o, "k_effective", s.topk, &compared);
        expect(&p, record_file, o, "k_forced", forced, &compared);
        expect(&p, record_file, o, "k_chosen", shortlist - forced, &compared);
        expect(&p, record_file, o, "k_by_importance", s.topk - shortlist, &compared);
    }
    c.n = compared;
    c.value = (double)p.count;
    char note[96] = "";
    if (!compared && unread) {
        snprintf(note, sizeof note, "the constants of %s could not be read: see %s", unread->name,
                 unread->container ? "E2" : "E1");
        c.outcome = SP_SKIP;
    } else if (!compared) {
        snprintf(note, sizeof note, "the export records no constants: the base model's own only");
    }
    return add_problems(r, &c, &p, *note ? note : NULL);
}

static sp_status check_hashes(sp_report *r, const sp_exported *x) {
    sp_check c = sp_check_blank("E5");
    c.value = (double)x->n_files;
    c.threshold = 1;
    c.n = x->n_files;
    return sp_report_add(r, &c);
}

sp_status sp_check_export(sp_report *r, const sp_model_desc *d, const char *weights_sha256,
                          const sp_exported *x, sp_export_state *state) {
    static const char *const hard[] = {"E1", "E2", "E3", "E4"};
    bool usable = x->forecast != NULL, other = false;
    SP_TRY(write_section(r, x));
    SP_TRY(check_formats(r, x));
    SP_TRY(x->forecast ? check_values(r, x)
                       : sp_report_skip(r, "E3", "no file could be loaded: see E2"));
    SP_TRY(check_names(r, d, weights_sha256, x, &other));
    SP_TRY(other ? sp_report_skip(r, "E4", "not compared with the base model: see E2")
                 : check_topk(r, d, x));
    SP_TRY(check_hashes(r, x));
    for (int i = 0; i < 4; i++) usable &= sp_report_outcome(r, hard[i]) != SP_FAIL;
    *state = other ? SP_EXPORT_OTHER_BASE : usable ? SP_EXPORT_USABLE : SP_EXPORT_FAULTY;
    return SP_OK;
}
