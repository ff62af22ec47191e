// `sparda info`: what a file or folder is, in one page for people.
//
// The kind is told from contents, never from the name alone. What cannot be read is described by
// its first bytes, with a list of what can.
#include "checkpoints/export.h"
#include "checkpoints/internal.h"
#include "checkpoints/pt.h"
#include "common/contents.h"
#include "common/h5.h"
#include "common/json.h"
#include "common/util.h"
#include "data/dataset.h"
#include "model/safetensors.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LISTED = 40, MAX_JSON = 64 << 20 };

static char *join(const char *dir, const char *name) {
    return sp_path_join(dir, name);
}

static bool has_file(const char *dir, const char *name) {
    char *p = join(dir, name);
    bool yes = p && sp_path_is_file(p);
    free(p);
    return yes;
}

static bool has_folder(const char *dir, const char *name) {
    char *p = join(dir, name);
    bool yes = p && sp_path_is_dir(p);
    free(p);
    return yes;
}

static bool ends_in(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static void add_bytes(sp_text *t, int64_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes / 1024;
    int u = 0;
    for (; v >= 1024 && u < 3; u++) v /= 1024;
    sp_text_add(t, "%" PRId64 " bytes", bytes);
    if (bytes >= 1024) sp_text_add(t, " (%.1f %s)", v, units[u]);
}

static const char *plural(int64_t n) {
    return n == 1 ? "" : "s";
}

static int64_t file_bytes(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (int64_t)s.st_size : 0;
}

static void add_heading(sp_text *t, const char *path, const char *what) {
    sp_text_add(t, "%s: %s", path, what);
    if (sp_path_is_file(path)) {
        sp_text_add(t, ", ");
        add_bytes(t, file_bytes(path));
    }
    sp_text_add(t, "\n");
}

// The error of this thread as a remark; the page goes on.
static void add_error(sp_text *t, const char *before) {
    sp_text_add(t, "%s%s\n", before, sp_error_text());
    sp_error_clear();
}

// ---- training state -----------------------------------------------------------------------------

static sp_status state_text(const char *path, sp_text *t) {
    sp_train_state s;
    SP_TRY(sp_state_load(path, &s));
    const sp_forecast *w = &s.weights;
    add_heading(t, path, "training state of sparda (HDF5), complete, all checksums right");
    sp_text_add(t,
                "  step %" PRId64 " (%" PRId64 " updates), %" PRId64 " samples, %" PRId64
                " tokens, %" PRId64 " rows used, %" PRId64 " skipped\n",
                s.step, s.updates, s.samples, s.tokens, s.used_rows, s.skipped_rows);
    sp_text_add(t,
                "  Forecast: %" PRId64 " trained matrices [%" PRId64 ",%" PRId64
                "] fp32 and one unused, %" PRId64 " parameters%s\n",
                w->layers, w->rows, w->cols, sp_forecast_trained_elements(w),
                s.exp_avg ? ", both moments" : ", no moments");
    sp_text_add(t,
                "  base model %s: %" PRId64 " layers, hidden %" PRId64 ", %" PRId64
                " query heads, %" PRId64 " KV heads of %" PRId64 "\n",
                s.base_name, w->layers, s.hidden, s.heads.q_heads, s.heads.kv_heads,
                s.heads.head_dim);
    sp_text_add(t, "    config.json %s\n    weights     %s\n", s.base_config_sha256,
                s.base_weights_sha256);
    sp_text_add(t,
                "  sparse_config: kernel %" PRId64 "/%" PRId64 ", block %" PRId64 ", init %" PRId64
                ", window %" PRId64 ", topk %" PRId64 ", dense_len %" PRId64 "\n",
                s.sparse.kernel_size, s.sparse.kernel_stride, s.sparse.block_size,
                s.sparse.init_blocks, s.sparse.window_size, s.sparse.topk, s.sparse.dense_len);
    if (s.sparse.select_blocks)
        sp_text_add(t, "    NOSA: select_blocks %" PRId64 "\n", s.sparse.select_blocks);
    sp_text_add(t,
                "  teacher: kernel %" PRId64 "/%" PRId64 ", %s pooling, future blocks %s, stage "
                "%" PRId64 "\n",
                s.teacher.kernel, s.teacher.stride, s.align ? "mean" : "max",
                s.mask_future ? "masked" : "as upstream", s.stage);
    sp_text_add(t, "  seed %" PRIu64 "%s%s%s%s\n", s.seed, s.cpu_blas[0] ? ", SGEMM by " : "",
                s.cpu_blas, s.program[0] ? ", written by " : "", s.program);
    sp_train_state_free(&s);
    return SP_OK;
}

// ---- token data ---------------------------------------------------------------------------------

static sp_status data_text(const char *path, sp_text *t) {
    sp_data_entry entry = {.path = (char *)(uintptr_t)path};
    sp_data_list list = {&entry, 1};
    sp_dataset_options options = {0};
    sp_dataset *d = NULL;
    sp_dataset_info info;
    SP_TRY(sp_dataset_open(&list, &options, &d));
    sp_status st = sp_dataset_describe(d, &info);
    sp_dataset_close(d);
    SP_TRY(st);
    add_heading(t, path, "token data");
    sp_text_add(t, "  %" PRId64 " row%s, %" PRId64 " tokens, ", info.rows, plural(info.rows),
                info.tokens);
    sp_text_add(t, "lengths %" PRId64 " to %" PRId64 ", %" PRId64 " file%s\n", info.min_length,
                info.max_length, info.n_files, plural(info.n_files));
    if (info.vocab)
        sp_text_add(t, "  vocabulary %" PRId64 "%s%s\n", info.vocab,
                    info.tokenizer ? ", tokenizer " : "", info.tokenizer ? info.tokenizer : "");
    for (int64_t i = 0; i < info.n_domains; i++)
        sp_text_add(t, "  %s: %" PRId64 " rows, %" PRId64 " tokens\n", info.domain[i].name,
                    info.domain[i].rows, info.domain[i].tokens);
    sp_dataset_info_free(&info);
    return SP_OK;
}

static sp_status hdf5_text(const char *path, sp_text *t) {
    sp_h5_begin();
    hid_t file = sp_h5_open_readonly(path);
    bool tokens = file >= 0 && H5Lexists(file, "tokens", H5P_DEFAULT) > 0;
    if (file >= 0) H5Fclose(file);
    sp_h5_end();
    return tokens ? data_text(path, t) : state_text(path, t);
}

// ---- tensors ------------------------------------------------------------------------------------

static void add_shape(sp_text *t, const int64_t *shape, int dims) {
    sp_text_add(t, "[");
    for (int i = 0; i < dims; i++) sp_text_add(t, "%s%" PRId64, i ? "," : "", shape[i]);
    sp_text_add(t, "]");
}

static sp_status safetensors_text(const char *path, sp_text *t) {
    sp_st *s;
    SP_TRY(sp_st_open(path, &s));
    int64_t elements = 0, forecast = 0;
    for (int64_t i = 0; i < s->n; i++) {
        elements += s->tensor[i].elements;
        forecast += sp_forecast_index(s->tensor[i].name) >= 0;
    }
    add_heading(t, path, "safetensors");
    sp_text_add(t, "  %" PRId64 " tensors, %" PRId64 " elements", s->n, elements);
    if (forecast) sp_text_add(t, "; %" PRId64 " Forecast matrices", forecast);
    sp_text_add(t, "\n");
    const char *key;
    json_t *value;
    json_object_foreach(s->metadata, key, value)
        sp_text_add(t, "  metadata %s: %s\n", key, json_string_value(value));
    for (int64_t i = 0; i < s->n && i < MAX_LISTED; i++) {
        sp_text_add(t, "  %s %s ", s->tensor[i].name, sp_st_dtype_name(s->tensor[i].dtype));
        add_shape(t, s->tensor[i].shape, s->tensor[i].dims);
        sp_text_add(t, "\n");
    }
    if (s->n > MAX_LISTED) sp_text_add(t, "  and %" PRId64 " more\n", s->n - MAX_LISTED);
    sp_st_close(s);
    return SP_OK;
}

// Keys of a dictionary with what they hold, indented; dictionaries one level further down too.
static void add_dict(sp_text *t, const sp_pt_value *dict, int depth) {
    int64_t n = dict->u.list.n / 2;
    for (int64_t i = 0; i < n && i < MAX_LISTED; i++) {
        const sp_pt_value *v = dict->u.list.item[2 * i + 1];
        char key[256], what[320];
        sp_pt_describe(dict->u.list.item[2 * i], key, sizeof key);
        sp_pt_describe(v, what, sizeof what);
        sp_text_add(t, "%*s%s: %s\n", 2 * depth, "", key, what);
        if (v->kind == SP_PT_DICT && depth < 2) add_dict(t, v, depth + 1);
    }
    if (n > MAX_LISTED) sp_text_add(t, "%*sand %" PRId64 " more\n", 2 * depth, "", n - MAX_LISTED);
}

static sp_status pt_text(const char *path, sp_text *t) {
    sp_pt *p;
    SP_TRY(sp_pt_open(path, &p));
    const sp_pt_value *weights;
    char what[320];
    sp_pt_describe(p->root, what, sizeof what);
    add_heading(t, path, "torch checkpoint");
    sp_text_add(t, "  %s in %" PRId64 " zip entries\n", what, p->zip.n);
    if (sp_pt_weights(p, &weights) == SP_OK) {
        int64_t n = 0;
        for (int64_t i = 0; i + 1 < weights->u.list.n; i += 2) {
            const sp_pt_value *k = weights->u.list.item[i];
            if (k->kind == SP_PT_TEXT) n += sp_forecast_like(k->u.text.data, k->u.text.n);
        }
        sp_text_add(t, "  %" PRId64 " Forecast matrices\n", n);
    } else {
        sp_error_clear();
        sp_text_add(t, "  no Forecast matrices\n");
    }
    if (p->root->kind == SP_PT_DICT) add_dict(t, p->root, 1);
    sp_pt_close(p);
    return SP_OK;
}

// ---- folders ------------------------------------------------------------------------------------

// Texts without quotes, except where a character has to be escaped.
static void add_scalar(sp_text *t, const json_t *v) {
    if (json_is_real(v)) {
        sp_text_add(t, "%.6g", json_real_value(v));
        return;
    }
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    size_t n = text ? strlen(text) : 0;
    bool plain = json_is_string(v) && n > 2 && !strchr(text, '\\');
    if (text) sp_text_bytes(t, text + plain, n - 2 * plain);
    free(text);
}

static bool is_simple_list(const json_t *v) {
    if (!json_is_array(v)) return false;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        if (json_is_array(item) || json_is_object(item)) return false;
    }
    return true;
}

// A line for every value: members by name, lists of objects by number from 1.
static void add_outline(sp_text *t, int indent, const char *name, json_t *v) {
    const char *key;
    json_t *item;
    sp_text_add(t, "%*s%s:", indent, "", name);
    if (is_simple_list(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            sp_text_add(t, "%s", i ? ", " : " ");
            add_scalar(t, json_array_get(v, i));
        }
        sp_text_add(t, "\n");
    } else if (json_is_array(v)) {
        sp_text_add(t, "\n");
        for (size_t i = 0; i < json_array_size(v); i++) {
            char number[24];
            snprintf(number, sizeof number, "%zu", i + 1);
            add_outline(t, indent + 2, number, json_array_get(v, i));
        }
    } else if (json_is_object(v)) {
        sp_text_add(t, "\n");
        json_object_foreach(v, key, item) add_outline(t, indent + 2, key, item);
    } else {
        sp_text_add(t, " ");
        add_scalar(t, v);
        sp_text_add(t, "\n");
    }
}

// What is wrong with a file is noted, and the search goes on; other failures end it.
static sp_status note(sp_problems *p, sp_status st) {
    if (st != SP_BAD_INPUT) return st;
    sp_problems_add(p, "%s", sp_error_text());
    sp_error_clear();
    return SP_OK;
}

static sp_status open_whole(const char *path) {
    sp_st *tensors = NULL;
    sp_pt *torch = NULL;
    sp_status st = ends_in(path, ".pt")            ? sp_pt_open(path, &torch)
                   : ends_in(path, ".safetensors") ? sp_st_open(path, &tensors)
                                                   : SP_OK;
    sp_st_close(tensors);
    sp_pt_close(torch);
    return st;
}

static bool names_file(const json_t *record, const char *name) {
    const json_t *list = json_object_get(record, "files");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (s && strcmp(s, name) == 0) return true;
    }
    return false;
}

// Every file that the record names or that is there must open: what lacks its end, or lies
// elsewhere, would be noticed only by whoever wants to serve it.
static sp_status export_files_text(const char *dir, const json_t *record, sp_problems *p,
                                   sp_text *t) {
    static const char *const files[] = {SP_FORECAST_SAFETENSORS, SP_FORECAST_PT,
                                        SP_PARITY_SAFETENSORS, "validation_report.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (!has_file(dir, files[i])) {
            if (names_file(record, files[i]))
                sp_problems_add(p, "%s/%s is missing, and %s names it", dir, files[i],
                                SP_EXPORT_RECORD);
            continue;
        }
        char *path = join(dir, files[i]);
        sp_status st = path ? note(p, open_whole(path)) : sp_error(SP_ENVIRONMENT, "out of memory");
        sp_text_add(t, "  %s, ", files[i]);
        if (path) add_bytes(t, file_bytes(path));
        sp_text_add(t, "\n");
        free(path);
        SP_TRY(st);
    }
    return SP_OK;
}

static sp_status export_text(const char *dir, sp_text *t) {
    static const char *const keys[] = {"base", "training", "sparse_config"};
    char *path = join(dir, SP_EXPORT_RECORD);
    json_t *root = NULL;
    sp_problems p = {0};
    sp_status st = SP_OK;
    if (!path) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    SP_GO(note(&p, sp_json_load(path, MAX_JSON, &root)));
    add_heading(t, dir, "exported Forecast, every file complete");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *v = json_object_get(root, keys[i]);
        if (v) add_outline(t, 2, keys[i], v);
    }
    sp_text_add(t, "  %zu tensors recorded\n", json_array_size(json_object_get(root, "tensors")));
    SP_GO(export_files_text(dir, root, &p, t));
done:
    json_decref(root);
    free(path);
    if (st == SP_OK)
        return sp_problems_end(&p, SP_BAD_INPUT,
                               "%s is not a complete export; write it again "
                               "('sparda export', --force)",
                               dir);
    free(p.text);
    return st;
}

// A folder of whole files that cannot serve as a base model is described by its tensors, with the
// reason; one with a file that is missing, cut or something else is an error, as an export is.
static sp_status model_text(const char *dir, sp_text *t) {
    sp_model_desc *d = NULL;
    char *text = NULL, *config = join(dir, "config.json");
    json_t *root = NULL;
    sp_status broken =
        config ? sp_json_load(config, MAX_JSON, &root) : sp_error(SP_ENVIRONMENT, "out of memory");
    free(config);
    json_decref(root);
    SP_TRY(broken); // what is no JSON at all describes nothing
    sp_st *files = NULL;
    if (sp_st_open(dir, &files) != SP_OK) sp_error_clear(); // comes again, with all that is wrong
    add_heading(t, dir, "model folder");
    sp_status st = sp_model_describe(dir, NULL, &d);
    if (st == SP_OK) st = sp_model_describe_text(d, &text);
    if (st == SP_OK) {
        sp_text_add(t, "%s", text);
    } else if (st == SP_BAD_INPUT && files) {
        add_error(t,
                  "  not usable as a base model as it is (a recipe may supply sparse_config):\n  ");
        sp_text_add(t, "  %" PRId64 " tensors in %" PRId64 " file%s\n", files->n, files->n_files,
                    plural(files->n_files));
        sp_error_clear();
        st = SP_OK;
    }
    sp_st_close(files);
    free(text);
    sp_model_desc_free(d);
    return st;
}

// Last line of a text file without its newline; NULL if there is none. Caller frees.
static char *last_line(const char *path, int64_t *lines) {
    sp_map m;
    *lines = 0;
    if (sp_map_open(path, &m) != SP_OK) {
        sp_error_clear();
        return NULL;
    }
    int64_t end = m.bytes, start;
    while (end > 0 && m.data[end - 1] == '\n') end--;
    for (start = end; start > 0 && m.data[start - 1] != '\n';) start--;
    for (int64_t i = 0; i < m.bytes; i++) *lines += m.data[i] == '\n';
    char *line = end > start ? strndup((const char *)m.data + start, (size_t)(end - start)) : NULL;
    sp_map_close(&m);
    return line;
}

// A run that says it is running and whose process, the last that started, this host does not have.
static void add_abandoned(sp_text *t, const json_t *run) {
    const char *status = json_string_value(json_object_get(run, "status"));
    const json_t *starts = json_object_get(run, "starts");
    const json_t *last = json_array_get(starts, json_array_size(starts) - 1);
    const char *host = json_string_value(json_object_get(last, "host"));
    json_int_t process = json_integer_value(json_object_get(last, "process"));
    char here[256] = "";
    gethostname(here, sizeof here - 1);
    if (!status || strcmp(status, "running") != 0 || !host || strcmp(host, here) != 0 ||
        process <= 0 || kill((pid_t)process, 0) == 0 || errno != ESRCH)
        return;
    sp_text_add(t,
                "  process %lld is not on %s any more: it was killed, or ended when another rank "
                "was lost; resume_command continues\n"
                "  from the newest checkpoint, if there is one\n",
                (long long)process, here);
}

static sp_status run_text(const char *dir, sp_text *t) {
    char *info = join(dir, "run.json"), *metrics = join(dir, "metrics.jsonl"),
         *checkpoints = join(dir, "checkpoints"), *newest = NULL, **names = NULL;
    int64_t n = 0, lines = 0;
    json_t *root = NULL;
    sp_status st = SP_OK;
    if (!info || !metrics || !checkpoints) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory"));
    add_heading(t, dir, "run folder");
    if (sp_path_is_file(info) && sp_json_load(info, MAX_JSON, &root) == SP_OK) {
        const char *key;
        json_t *v;
        json_object_foreach(root, key, v) add_outline(t, 2, key, v);
        add_abandoned(t, root);
    } else if (sp_path_is_file(info)) {
        add_error(t, "  ");
    }
    char *line = sp_path_is_file(metrics) ? last_line(metrics, &lines) : NULL;
    if (line) {
        json_t *last = json_loads(line, JSON_DECODE_ANY, NULL);
        sp_text_add(t, "  metrics.jsonl: %" PRId64 " line%s\n", lines, plural(lines));
        if (last)
            add_outline(t, 4, "the last", last);
        else // torn by a kill; a resume removes it
            sp_text_add(t, "    the last is not complete\n");
        json_decref(last);
    }
    free(line);
    if (sp_path_is_dir(checkpoints)) SP_GO(sp_list_dir(checkpoints, ".h5", &names, &n));
    sp_text_add(t, "  %" PRId64 " checkpoint%s\n", n, plural(n));
    for (int64_t i = n > MAX_LISTED ? n - MAX_LISTED : 0; i < n; i++) {
        char *p = join(checkpoints, names[i]);
        int64_t step;
        sp_text_add(t, "    %s, ", names[i]);
        if (p) add_bytes(t, file_bytes(p));
        if (p && sp_state_peek_step(p, &step) == SP_OK)
            sp_text_add(t, ", step %" PRId64 "\n", step);
        else
            add_error(t, ", not readable: ");
        free(p);
    }
    if (sp_newest_checkpoint(dir, &newest) != SP_OK) add_error(t, "  newest: ");
    if (newest) sp_text_add(t, "  newest: %s\n", sp_path_base(newest));
done:
    json_decref(root);
    sp_free_names(names, n);
    free(newest);
    free(checkpoints);
    free(metrics);
    free(info);
    return st;
}

// ---- telling kinds apart ------------------------------------------------------------------------

static const char readable[] =
    "It reads: training states (.h5), token shards (.h5), safetensors, torch .pt, MDS folders "
    "(index.json), model folders (config.json), run folders, export folders";

static sp_status unknown_file(const char *path) {
    if (ends_in(path, ".yaml") || ends_in(path, ".yml"))
        return sp_error(SP_BAD_INPUT,
                        "%s looks like a configuration: sparda train %s --print-config shows every "
                        "option with its value and where it comes from",
                        path, path);
    if (ends_in(path, ".json") || ends_in(path, ".jsonl"))
        return sp_error(SP_BAD_INPUT,
                        "%s is described as a part of its folder, if that is one of these: model, "
                        "MDS, run or export. A report is its .html. %s",
                        path, readable);
    sp_map m;
    SP_TRY(sp_map_open(path, &m));
    const char *what = sp_contents_of(m.data, m.bytes);
    sp_text shown = {0};
    for (int64_t i = 0; i < m.bytes && i < 16; i++)
        sp_text_add(&shown, "%s%02x", i ? " " : "", m.data[i]);
    sp_text_add(&shown, m.bytes ? " '" : "nothing");
    for (int64_t i = 0; i < m.bytes && i < 16; i++)
        sp_text_add(&shown, "%c", isprint(m.data[i]) ? m.data[i] : '.');
    if (m.bytes) sp_text_add(&shown, "'");
    sp_status st = sp_error(
        SP_BAD_INPUT, "%s is nothing that this program reads%s%s; its first bytes are %s. %s", path,
        what ? ": this is " : "", what ? what : "", shown.data ? shown.data : "", readable);
    sp_text_free(&shown);
    sp_map_close(&m);
    return st;
}

// A safetensors file begins with the length of its header and that header's '{'.
static bool like_safetensors(const char *path) {
    sp_map m;
    if (sp_map_open(path, &m) != SP_OK) return false;
    uint64_t n = 0;
    for (int i = 7; i >= 0 && m.bytes > 8; i--) n = n << 8 | m.data[i];
    bool like = m.bytes > 8 && m.data[8] == '{' && n <= 100000000;
    sp_map_close(&m);
    return like;
}

static sp_status file_text(const char *path, sp_text *t) {
    sp_file_kind kind;
    SP_TRY(sp_file_kind_of(path, &kind));
    if (kind == SP_FILE_HDF5) return hdf5_text(path, t);
    if (kind == SP_FILE_PT) return pt_text(path, t);
    if (like_safetensors(path)) return safetensors_text(path, t);
    if (ends_in(path, ".safetensors")) return safetensors_text(path, t); // says what is wrong
    return unknown_file(path);
}

static sp_status folder_text(const char *dir, sp_text *t) {
    if (has_file(dir, SP_EXPORT_RECORD)) return export_text(dir, t);
    if (has_file(dir, "config.json")) {
        SP_TRY(model_text(dir, t));
        if (!has_folder(dir, "sparda")) return SP_OK;
        char *inner = join(dir, "sparda");
        sp_status st = inner ? export_text(inner, t) : sp_error(SP_ENVIRONMENT, "out of memory");
        free(inner);
        return st;
    }
    if (has_file(dir, "run.json") || has_folder(dir, "checkpoints")) return run_text(dir, t);
    if (has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json"))
        return safetensors_text(dir, t);
    if (has_file(dir, SP_FORECAST_SAFETENSORS) || has_file(dir, SP_FORECAST_PT))
        return export_text(dir, t); // says that its record is missing
    sp_status st = data_text(dir, t);
    if (st != SP_BAD_INPUT || has_file(dir, "index.json")) return st;
    char **names;
    int64_t n;
    SP_TRY(sp_list_dir(dir, "", &names, &n));
    sp_text list = {0};
    for (int64_t i = 0; i < n && i < 12; i++) sp_text_add(&list, "%s%s", i ? ", " : "", names[i]);
    if (n > 12) sp_text_add(&list, " and %" PRId64 " more", n - 12);
    // what the data reader said stays in front: it may be a data folder with one bad file
    char *reason = sp_strdup(sp_error_text());
    st = sp_error(SP_BAD_INPUT,
                  "%s is no folder that this program reads; it holds %s. As token data: %s. %s",
                  dir, n ? list.data : "nothing", reason ? reason : "?", readable);
    free(reason);
    sp_text_free(&list);
    sp_free_names(names, n);
    return st;
}

sp_status sp_info_text(const char *path, char **text) {
    sp_text t = {0};
    *text = NULL;
    sp_status st = sp_path_is_dir(path) ? folder_text(path, &t) : file_text(path, &t);
    if (st == SP_OK && (t.failed || !t.data)) st = sp_error(SP_ENVIRONMENT, "out of memory");
    if (st == SP_OK)
        *text = t.data;
    else
        sp_text_free(&t);
    return st;
}
