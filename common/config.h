// The run configuration: one table of options (common/config_table.c) feeds the YAML reader,
// --set, --help, --print-config, the run header and configs/reference.yaml.
//
// Every value knows where it came from, so the header can say so. Problems (unknown keys, wrong
// types, trailing characters, out-of-range values, repeated keys) are collected and reported
// together with file:line:column, SP_BAD_INPUT. Relative paths in a file start at the file's
// folder.
#ifndef SPARDA_CONFIG_H
#define SPARDA_CONFIG_H

#include "common/status.h"

#include <stdint.h>

typedef struct sp_data_entry {
    char *path;
    double proportion; // > 0, or 0 if not given
} sp_data_entry;

typedef struct sp_data_list {
    sp_data_entry *entry;
    int64_t n;
} sp_data_list;

typedef struct sp_int_option { // an optional integer
    bool given;
    int64_t value;
} sp_int_option;

typedef struct sp_int_list {
    int64_t *value;
    int64_t n;
} sp_int_list;

typedef enum sp_after { SP_AFTER_EXPORT = 1, SP_AFTER_VALIDATE = 2 } sp_after; // bits
typedef enum sp_data_order { SP_ORDER_SHUFFLED, SP_ORDER_SEQUENTIAL } sp_data_order;
typedef enum sp_short_rows { SP_SHORT_KEEP, SP_SHORT_DROP, SP_SHORT_PACK } sp_short_rows;

typedef struct sp_config {
    char *file; // the YAML file, NULL if none

    char *name; // of the run; default: the configuration file's name without its ending, or "run"
    char *base;
    sp_data_list data;
    int data_order; // sp_data_order
    int short_rows; // sp_short_rows; key `short`
    bool allow_missing_domains;

    sp_int_option seq_len; // default: the base model's max_position_embeddings
    int64_t steps;
    double lr;
    int64_t warmup_steps;
    double weight_decay;
    double max_grad_norm; // <= 0: no clipping
    int64_t global_batch, micro_batch;
    int64_t seed;
    char *init_from; // NULL: random

    int64_t training_kernel_size, training_kernel_stride;
    int kl_target_align_pooling; // 0 max, 1 mean (sp_align)
    bool progressive_training_kernel;
    bool mask_future_blocks;
    int kl_gradient; // 0 exact, 1 ideal (sp_kl_gradient)
    bool allow_longer;
    int rope_tables; // 0 fp32, 1 bf16

    struct { // keys sparse_config.*
        sp_int_option kernel_size, kernel_stride, init_blocks, block_size, window_size, topk,
            dense_len, select_blocks;
        bool use_nope; // always false: true is refused
    } sparse_config;

    char *backend;      // auto, cpu, cuda
    char *cpu_blas;     // auto, openblas, onednn
    char *cuda_kernels; // auto, portable
    char *transfer;     // auto, or a kind of kernels/decode.h
    int64_t threads;    // 0: the cores divided by the ranks of the host
    bool deterministic;

    int64_t save_every_steps, keep_last, keep_every;
    int64_t eval_every_steps, eval_rows;
    sp_data_list eval_data;
    unsigned after_training; // sp_after bits
    int64_t time_limit_min, watchdog_s, max_nonfinite_steps;

    // key validate.*: the validation pass
    struct {
        int64_t samples;     // needle sequences per task and length
        sp_int_list lengths; // empty: chosen from model and text
        int64_t lm_rows;     // text sequences per length; 0: chosen from the length
        int64_t positions;   // of a text sequence that are measured
    } validate;

    char **source; // per table row: "FILE:LINE" or "--set"; NULL: default
} sp_config;

// Defaults, then `file` (may be NULL), then the --set assignments "key=value" in order. A nested
// key is written with a dot: sparse_config.topk=64. A list or mapping may be given as YAML flow
// text: --set 'data=[{path: a}, {path: b}]'.
sp_status sp_config_load(const char *file, const char *const *sets, int n_sets, sp_config **out);
// From the text that sp_config_print made (a checkpoint's resolved configuration).
sp_status sp_config_parse(const char *yaml, const char *origin, sp_config **out);
void sp_config_free(sp_config *c);
// Where the value of an option comes from: "FILE:LINE", "--set" or "default".
const char *sp_config_source(const sp_config *c, const char *key);

// Resolved configuration as YAML that loads to the same values (paths absolute), with comments
// naming the source of each value if `sources`. Caller frees.
sp_status sp_config_print(const sp_config *c, bool sources, char **text);
// configs/reference.yaml: every key with help, type, unit, range and default. Caller frees.
sp_status sp_config_reference(char **text);
// `--help` form: one line per key. Caller frees.
sp_status sp_config_help(char **text);

// Keys whose values differ between two configurations, each as "key: old -> new": those that may
// not change on resume (design 3.1: whatever alters the numbers) are added to `problems`, the
// others as lines to `changes`, which may be NULL. Left to the caller: `steps`, since it knows the
// schedule, and what is at the paths of `base` and `data`, which may have moved.
struct sp_text;
void sp_config_compare(const sp_config *saved, const sp_config *now, sp_problems *problems,
                       struct sp_text *changes);

#endif
