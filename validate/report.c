// See report.h: the table of checks, the document, and writing it.
#include "validate/report.h"
#include "common/util.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char no_gpu[] = "needs the GPU engine; this run used the CPU backend";

// What a user can do about a check that was missed.
static const char again[] = "export again; if it stays, memory or disk of this host changes data";
static const char fault[] = "a fault of this build or of the machine, not of the training: run "
                            "./quickstart test, and report both";
static const char train[] = "if train/kl still falls at the end of metrics.jsonl, train longer; "
                            "else train on text like what will be served";
static const char idle[] = "repeat it while nothing else uses this GPU, its link and the host's "
                           "memory; if it stays, report it";

static const sp_check_info table[] = {
    {"E1", SP_HARD, "Every written format holds the same tensors", "bytes", "<=", NULL, again},
    {"E2", SP_HARD, "Names, shapes, types; made for this base model", "problems", "<=", NULL,
     "give the base model that the Forecast was trained for with --base"},
    {"E3", SP_HARD, "No NaN or infinity, no all-zero row", "values", "<=", NULL,
     "the training diverged: see train/grad_norm in metrics.jsonl, and export an earlier "
     "checkpoint"},
    {"E4", SP_HARD, "Blocks per query agree in both top-k conventions", "problems", "<=", NULL,
     "give the sparse_config that the Forecast was trained with (config.json of the base, or --set "
     "sparse_config.*); if it is given, set topk as config.json of the base does, and export "
     "again"},
    {"E5", SP_NOTE, "SHA-256 of files and tensors recorded", "files", ">=", NULL, NULL},
    {"P1", SP_HARD, "Selection equals a scalar reference", "rows", "<=", NULL, fault},
    {"P2", SP_HARD, "Offload off and on: same logits", "bits", "<=", no_gpu, fault},
    {"P3", SP_HARD, "Prefetch off and on: same sets, slots and logits", "bits", "<=", no_gpu,
     fault},
    {"P4", SP_HARD, "Checksums of copied blocks", "units", "<=", no_gpu, fault},
    {"P5", SP_HARD, "Compressed keys: step by step equal to all at once", "values", "<=", NULL,
     fault},
    {"P6", SP_HARD, "Decode equals prefill of the same tokens", "nat", "<=", NULL, fault},
    {"P7", SP_HARD, "Lookahead needs no unfinished window", "tokens", ">=", NULL,
     "the local window must be longer than a compression window: sparse_config of the base"},
    {"Q1", SP_HARD, "Block recall above chance and above an untrained projection", "SE", ">", NULL,
     train},
    {"Q2", SP_HARD, "Teacher mass on the chosen blocks", "share", ">=", NULL, train},
    {"Q3", SP_SOFT, "Recall between chance and the teachers' own agreement", "share", ">=", NULL,
     train},
    {"Q4", SP_HARD, "Logits move no more than sparsifying moved them", "ratio", "<=", NULL, train},
    {"Q5", SP_SOFT, "Language-model loss against the original selector", "nat", "<=", NULL, train},
    {"Q6", SP_SOFT, "Needle retrieval against the original selector", "SE", "<=", NULL, train},
    {"Q7", SP_HARD, "An untrained projection would be caught", "ratio", ">", NULL,
     "measure on longer or other text: validate.lengths, --data"},
    {"T1", SP_NOTE, "Host-to-device copy rate", "GB/s", ">=", no_gpu, NULL},
    {"T2", SP_SOFT, "Block copies against that rate", "share", ">=", no_gpu,
     "repeat it while nothing else uses the link (sparda bench transfer); units of a few KiB reach "
     "less even then"},
    {"T3", SP_SOFT, "Share of the copies that is hidden", "share", ">=", no_gpu, idle},
    {"T4", SP_SOFT, "Slow-down of kernels while copies run", "share", "<=", no_gpu, idle},
    {"T5", SP_SOFT, "Speed-up against the overlap model", "ratio", ">=", no_gpu,
     "T2 to T4 say what is missing; if they pass, report it"},
    {"T6", SP_NOTE, "Tokens per second of every baseline", "tok/s", ">=", no_gpu, NULL},
    {"T7", SP_NOTE, "Misses against slot capacity", "share", "<=", no_gpu, NULL},
    {"T8", SP_NOTE, "Locality of the selection", "share", ">=", no_gpu, NULL},
    {"M1", SP_HARD, "Memory as predicted", "share", "<=", no_gpu,
     "another process may use the GPU (nvidia-smi); else report it"},
    {"M2", SP_HARD, "No growth of memory over steps", "bytes", "<=", no_gpu, fault},
    {"M3", SP_NOTE, "Largest batch that fits", "sequences", ">=", no_gpu, NULL},
};
enum { N_CHECKS = sizeof table / sizeof table[0] };

const sp_check_info *sp_check_table(int64_t *n) {
    *n = N_CHECKS;
    return table;
}

static int64_t table_index(const char *id) {
    for (int64_t i = 0; i < N_CHECKS; i++)
        if (strcmp(table[i].id, id) == 0) return i;
    return -1;
}

static const char *severity_text(sp_severity s) {
    return s == SP_HARD ? "hard" : s == SP_SOFT ? "soft" : "info";
}

static const char *outcome_text(sp_outcome o) {
    static const char *const text[] = {"pass", "warn", "fail", "skip"};
    return text[o];
}

json_t *sp_json_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

double sp_json_at(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

double sp_selector_recall(json_t *per_length, const char *key) {
    json_t *mean = json_object_get(per_length, "mean");
    if (strcmp(key, "original") == 0) return mean ? 1 : NAN;
    if (strcmp(key, "random") == 0) return sp_json_at(per_length, "chance");
    return sp_json_at(mean, strcmp(key, "forecast") == 0 ? "recall" : key);
}

// ---- the document -------------------------------------------------------------------------------

// Every key of the schema, with null where a number will stand (inference.md 5.5).
static const char skeleton[] =
    "{\"schema\":\"sparda.validation/1\",\"status\":null,\"created_utc\":null,"
    "\"tool\":{\"name\":\"sparda\",\"version\":null,\"git\":null,"
    "\"build\":{\"cuda\":null,\"arch\":null,\"flags\":null}},"
    "\"machine\":{\"gpu\":null,\"sm_count\":null,\"hbm_gib\":null,\"driver\":null,\"cuda\":null,"
    "\"pcie\":{\"gen\":null,\"width\":null},\"host_ram_gib\":null,\"numa_node\":null,"
    "\"backend\":null},"
    "\"model\":{\"name\":null,\"layers\":null,\"hidden\":null,\"q_heads\":null,\"kv_heads\":null,"
    "\"head_dim\":null,\"vocab\":null,\"dtype\":null,\"rope\":null,\"backbone_sha256\":null},"
    "\"sparse\":{\"block\":null,\"kernel\":null,\"stride\":null,\"init_blocks\":null,"
    "\"local_blocks\":null,\"k_effective\":null,\"k_forced\":null,\"k_chosen\":null,"
    "\"dense_len\":null},"
    "\"export\":{\"files\":[],\"tensors\":[]},"
    "\"workload\":{\"text_source\":null,\"lengths\":[],\"batch\":null,\"decode_steps\":null,"
    "\"warmup_steps\":null,\"repeats\":null,\"seed\":null},"
    "\"checks\":[],\"selection\":{\"per_length\":[]},"
    "\"logits\":{\"kl_sparse_sparda\":{\"mean\":null,\"p50\":null,\"p99\":null},"
    "\"kl_dense_sparse\":{\"mean\":null,\"p50\":null,\"p99\":null},\"ratio\":null,"
    "\"top1_agree\":null,\"delta_nll\":null,\"per_length\":[]},"
    "\"retrieval\":[],\"lm_loss\":[],"
    "\"prefetch\":{\"bit_equal_steps\":null,\"units_checked\":null,\"checksum_errors\":null,"
    "\"hit_rate_all\":null,\"hit_rate_chosen\":null,\"units_per_step\":null,"
    "\"bytes_per_step\":null,\"miss_curve\":[],\"timeline\":[],\"ctas\":null,\"engine\":null,"
    "\"gbps\":null,"
    "\"gbps_reference\":null,\"hidden_fraction\":null,\"hidden_cap\":null,\"interference\":null},"
    "\"throughput\":[],"
    "\"memory\":{\"hbm_bytes\":{\"weights\":null,\"slots\":null,\"compressed_keys\":null,"
    "\"layer0\":null,\"workspace\":null},\"host_pinned_bytes\":null,\"predicted\":{},"
    "\"max_batch\":{\"len\":null,\"hbm\":null,\"host\":null}}}";

sp_status sp_report_open(sp_report *r) {
    *r = (sp_report){0};
    json_error_t err;
    r->root = json_loads(skeleton, 0, &err);
    r->checks = json_array();
    if (!r->root || !r->checks) {
        sp_report_close(r);
        return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
    }
    return SP_OK;
}

void sp_report_close(sp_report *r) {
    json_decref(r->root);
    json_decref(r->checks);
    *r = (sp_report){0};
}

sp_check sp_check_blank(const char *id) {
    return (sp_check){.id = id,
                      .outcome = SP_PASS,
                      .value = NAN,
                      .threshold = NAN,
                      .noise_floor = NAN,
                      .n = -1,
                      .ci95 = {NAN, NAN}};
}

static json_t *find_check(const sp_report *r, const char *id) {
    size_t i;
    json_t *c;
    json_array_foreach(
        r->checks, i, c) if (strcmp(json_string_value(json_object_get(c, "id")), id) == 0) return c;
    return NULL;
}

json_t *sp_json_text(const char *s) {
    json_t *v = json_string(s);
    if (v) return v;
    char *copy = sp_strdup(s);
    if (!copy) return NULL;
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    v = json_string(copy);
    free(copy);
    return v;
}

sp_status sp_report_add(sp_report *r, const sp_check *c) {
    int64_t i = table_index(c->id);
    if (i < 0 || find_check(r, c->id)) {
        json_decref(c->detail);
        return sp_error(SP_ENVIRONMENT, "check %s is %s", c->id,
                        i < 0 ? "not in the table" : "recorded twice");
    }
    const sp_check_info *info = &table[i];
    char group[2] = {c->id[0], 0};
    bool missed = c->outcome == SP_WARN || c->outcome == SP_FAIL;
    const char *remedy = c->remedy ? c->remedy : info->remedy;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:o, s:s?, s:o, s:s, s:o, s:s, s:o, s:o, s:[o,o]}", "id", c->id,
        "group", group, "severity", severity_text(c->outcome == SP_WARN ? SP_SOFT : info->severity),
        "title", info->title, "status", outcome_text(c->outcome), "reason",
        sp_json_text(c->reason ? c->reason : ""), "remedy",
        missed && remedy && *remedy ? remedy : NULL, "value", sp_json_number(c->value), "unit",
        c->unit ? c->unit : info->unit, "threshold", sp_json_number(c->threshold), "op", info->op,
        "noise_floor", sp_json_number(c->noise_floor), "n",
        c->n < 0 ? json_null() : json_integer(c->n), "ci95", sp_json_number(c->ci95[0]),
        sp_json_number(c->ci95[1]));
    if (o && c->detail) json_object_set_new(o, "detail", c->detail);
    if (!o || json_array_append_new(r->checks, o) != 0)
        return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
    return SP_OK;
}

sp_status sp_report_skip(sp_report *r, const char *id, const char *reason) {
    sp_check c = sp_check_blank(id);
    c.outcome = SP_SKIP;
    c.reason = reason;
    return sp_report_add(r, &c);
}

sp_outcome sp_report_outcome(const sp_report *r, const char *id) {
    json_t *c = find_check(r, id);
    const char *s = c ? json_string_value(json_object_get(c, "status")) : "skip";
    for (int o = SP_PASS; o < SP_SKIP; o++)
        if (strcmp(s, outcome_text((sp_outcome)o)) == 0) return (sp_outcome)o;
    return SP_SKIP;
}

sp_status sp_report_finish(sp_report *r, bool strict, bool *failed) {
    bool fail = false, warn = false;
    json_t *ordered = json_array();
    if (!ordered) return sp_error(SP_ENVIRONMENT, "out of memory for the validation report");
    for (int64_t i = 0; i < N_CHECKS; i++) {
        json_t *c = find_check(r, table[i].id);
        if (!c) {
            const char *why = table[i].gpu_only ? table[i].gpu_only : "not reached";
            sp_status st = sp_report_skip(r, table[i].id, why);
            if (st != SP_OK) {
                json_decref(ordered);
                return st;
            }
            c = find_check(r, table[i].id);
        }
        json_array_append(ordered, c);
        sp_outcome o = sp_report_outcome(r, table[i].id);
        fail |= o == SP_FAIL || (o == SP_WARN && strict);
        warn |= o == SP_WARN;
    }
    json_decref(r->checks);
    r->checks = ordered;
    json_object_set(r->root, "checks", ordered);
    json_object_set_new(r->root, "status",
                        json_string(fail   ? "fail"
                                    : warn ? "pass_with_warnings"
                                           : "pass"));
    *failed = fail;
    return SP_OK;
}

// ---- files --------------------------------------------------------------------------------------

static const char *const file_names[] = {"validation_report.json", "validation_report.html"};

sp_status sp_report_remove(const char *dir) {
    for (int i = 0; i < 2; i++) {
        char *path = sp_path_join(dir, file_names[i]);
        int rc = path ? unlink(path) : -1, why = errno;
        if (rc != 0 && path && why != ENOENT && why != ENOTDIR) {
            sp_status st = sp_error(SP_BAD_INPUT, "cannot remove the earlier report %s: %s", path,
                                    strerror(why));
            free(path);
            return st;
        }
        free(path);
    }
    return SP_OK;
}

sp_status sp_report_write(const sp_report *r, const char *dir) {
    sp_atomic file[2] = {{0}, {0}};
    char *text[2] = {NULL, NULL}, *path[2] = {NULL, NULL};
    sp_status st = SP_OK;
    SP_GO(sp_mkdirs(dir));
    text[0] = json_dumps(r->root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!text[0]) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory for the validation report"));
    SP_GO(sp_report_html(r->root, &text[1]));
    // Both are complete on disk before the first takes its name.
    for (int i = 0; i < 2; i++) {
        path[i] = sp_path_join(dir, file_names[i]);
        if (!path[i]) SP_GO(sp_error(SP_ENVIRONMENT, "out of memory for a path"));
        SP_GO(sp_atomic_open(&file[i], path[i]));
        SP_GO(sp_atomic_write(&file[i], text[i], (int64_t)strlen(text[i])));
    }
    SP_GO(sp_atomic_commit(&file[1]));
    st = sp_atomic_commit(&file[0]);
    if (st != SP_OK) {
        unlink(path[1]);
        sp_error_trace_at(__FILE__, __LINE__, st, "sp_atomic_commit");
    }
done:
    for (int i = 0; i < 2; i++) {
        sp_atomic_abandon(&file[i]);
        free(text[i]);
        free(path[i]);
    }
    return st;
}
