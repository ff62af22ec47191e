#include "common/config_table.h"

#include <string.h>

#define AT(member) offsetof(sp_config, member)
#define INT(key, fallback, min, max, unit, change, member, help)                                   \
    { key, fallback, unit, "", help, SP_OPT_INT, change, AT(member), min, max, 0, 0 }
#define MAYBE(key, min, max, unit, change, member, help)                                           \
    { key, "null", unit, "", help, SP_OPT_MAYBE, change, AT(member), min, max, 0, 0 }
#define NUMBER(key, fallback, min, max, change, member, help)                                      \
    { key, fallback, "", "", help, SP_OPT_NUMBER, change, AT(member), 0, 0, min, max }
#define BOOL(key, change, member, help)                                                            \
    { key, "false", "", "", help, SP_OPT_BOOL, change, AT(member), 0, 0, 0, 0 }
#define CHOICE(key, fallback, choices, change, member, help)                                       \
    { key, fallback, "", choices, help, SP_OPT_CHOICE, change, AT(member), 0, 0, 0, 0 }
#define WORD(key, fallback, choices, change, member, help)                                         \
    { key, fallback, "", choices, help, SP_OPT_WORD, change, AT(member), 0, 0, 0, 0 }
#define OTHER(key, type, fallback, choices, change, member, help)                                  \
    { key, fallback, "", choices, help, type, change, AT(member), 0, 0, 0, 0 }

enum { FIXED = false, CHANGES = true };

// Largest counts: far beyond any use, and small enough that products of two of them stay exact.
enum { MANY = 1000000000, TOKENS = 1 << 30, BATCH = 1000000 };

// Order = order of help, of the printed configuration and of the reference. Keys of one mapping
// stand together. Defaults are those of training.md 8.9 and 8.1 where the option exists there.
const sp_option sp_options[] = {
    OTHER("name", SP_OPT_TEXT, "null", "", CHANGES, name,
          "name of the run, part of its folder's name; default: the file's name without ending"),
    OTHER("base", SP_OPT_PATH, "null", "", CHANGES, base,
          "folder of the base model: config.json and safetensors files"),
    OTHER(
        "data", SP_OPT_DATA, "[]", "", FIXED, data,
        "training rows: a list of {path, proportion} or plain paths; a path is an HDF5 token file, "
        "a folder of them, an MDS domain folder or a root of such folders; proportions: all or "
        "none (then by rows)"),
    CHOICE("data_order", "shuffled", "shuffled sequential", FIXED, data_order,
           "shuffled by the seed, or the rows of every entry in order, then again from the first"),
    CHOICE("short", "keep", "keep drop pack", FIXED, short_rows,
           "rows below seq_len: used at their own length, left out, or joined"),
    BOOL("allow_missing_domains", FIXED, allow_missing_domains,
         "skip data entries that are not there, with a warning, and renormalise the proportions"),

    MAYBE("seq_len", 1, TOKENS, "tokens", FIXED, seq_len,
          "longer rows are cut; default: max_position_embeddings of the base model"),
    INT("steps", "2000", 1, MANY, "optimiser steps", FIXED, steps, "length of the run"),
    NUMBER("lr", "5e-4", 0, 1, FIXED, lr, "learning rate"),
    INT("warmup_steps", "0", 0, MANY, "optimiser steps", FIXED, warmup_steps,
        "linear warm-up from 0; at most a tenth of steps counts"),
    NUMBER("weight_decay", "0.01", 0, 1, FIXED, weight_decay, "decoupled weight decay of AdamW"),
    NUMBER("max_grad_norm", "0.5", -1, 1e9, FIXED, max_grad_norm,
           "gradients are clipped to this global norm; 0 or less: not clipped"),
    INT("global_batch", "32", 1, BATCH, "sequences", FIXED, global_batch,
        "sequences per optimiser step over all ranks"),
    INT("micro_batch", "1", 1, BATCH, "sequences", CHANGES, micro_batch,
        "sequences per rank at once; must divide global_batch / ranks"),
    INT("seed", "42", 0, INT64_MAX, "", FIXED, seed,
        "of the initial weights and of the sample order"),
    OTHER(
        "init_from", SP_OPT_PATH, "null", "", CHANGES, init_from,
        "Forecast weights to start from (safetensors, .pt or a training state) instead of random"),

    INT("training_kernel_size", "2", 1, TOKENS, "tokens", FIXED, training_kernel_size,
        "window of the teacher's key compression"),
    INT("training_kernel_stride", "1", 1, TOKENS, "tokens", FIXED, training_kernel_stride,
        "stride of the teacher's key compression; must divide the deployed stride"),
    CHOICE("kl_target_align_pooling", "max", "max mean", FIXED, kl_target_align_pooling,
           "how teacher importance is pooled onto the deployed grid"),
    BOOL("progressive_training_kernel", FIXED, progressive_training_kernel,
         "begin with the deployed grid and refine the teacher in stages"),
    BOOL("mask_future_blocks", FIXED, mask_future_blocks,
         "keep blocks of the query's future out of the selection"),
    CHOICE("kl_gradient", "exact", "exact ideal", FIXED, kl_gradient,
           "gradient of the floored loss, or without the floor"),
    BOOL("allow_longer", CHANGES, allow_longer,
         "accept positions beyond the base model's max_position_embeddings"),
    CHOICE("rope_tables", "fp32", "fp32 bf16", FIXED, rope_tables,
           "rotary tables as computed, or rounded to bf16 as in the public NOSA code"),

#define SPARSE "; used only where the base's config.json does not say"
    MAYBE("sparse_config.kernel_size", 1, TOKENS, "tokens", FIXED, sparse_config.kernel_size,
          "window of the deployed key compression" SPARSE),
    MAYBE("sparse_config.kernel_stride", 1, TOKENS, "tokens", FIXED, sparse_config.kernel_stride,
          "stride of the deployed key compression" SPARSE),
    MAYBE("sparse_config.init_blocks", 0, TOKENS, "blocks", FIXED, sparse_config.init_blocks,
          "first blocks, always attended to" SPARSE),
    MAYBE("sparse_config.block_size", 1, TOKENS, "tokens", FIXED, sparse_config.block_size,
          "attention block" SPARSE),
    MAYBE("sparse_config.window_size", 0, TOKENS, "tokens", FIXED, sparse_config.window_size,
          "local window, always attended to" SPARSE),
    MAYBE("sparse_config.topk", 1, TOKENS, "blocks", FIXED, sparse_config.topk,
          "blocks per query and KV head without the local window, as in config.json" SPARSE),
    MAYBE("sparse_config.dense_len", 0, TOKENS, "tokens", FIXED, sparse_config.dense_len,
          "up to this length inference attends densely; training ignores it" SPARSE),
    MAYBE(
        "sparse_config.select_blocks", 1, TOKENS, "blocks", FIXED, sparse_config.select_blocks,
        "NOSA only: blocks chosen by the query beside the initial and local ones, less one" SPARSE),
    BOOL("sparse_config.use_nope", FIXED, sparse_config.use_nope,
         "only false is supported; here so that a model card's mapping can be copied"),

    WORD("backend", "auto", "auto cpu cuda", FIXED, backend, "device that computes"),
    WORD("cpu_blas", "auto", "auto openblas onednn", FIXED, cpu_blas,
         "matrix product of the CPU backend; auto: the fastest, measured at start"),
    WORD("cuda_kernels", "auto", "auto portable", FIXED, cuda_kernels,
         "portable: the kernels for compute capability 8.0 on any card; auto: the fastest ones"),
    WORD("transfer", "auto", "auto kernel wide resident bulk batch loop gather", CHANGES, transfer,
         "how blocks get from host memory to the GPU when serving; auto: the fastest, measured at "
         "start"),
    INT("threads", "0", 0, 1024, "", CHANGES, threads,
        "CPU threads of each rank; 0: the cores divided by the ranks of the host"),
    BOOL("deterministic", FIXED, deterministic, "fixed order of every reduction"),

    INT("save_every_steps", "50", 1, MANY, "optimiser steps", CHANGES, save_every_steps,
        "checkpoint interval; one is always written after the last step"),
    INT("keep_last", "5", 1, MANY, "checkpoints", CHANGES, keep_last, "newest checkpoints to keep"),
    INT("keep_every", "0", 0, MANY, "optimiser steps", CHANGES, keep_every,
        "also keep the checkpoints of steps divisible by this; 0: none"),
    INT("eval_every_steps", "0", 0, MANY, "optimiser steps", CHANGES, eval_every_steps,
        "held-out evaluation interval; 0: never"),
    OTHER("eval_data", SP_OPT_DATA, "[]", "", CHANGES, eval_data,
          "held-out rows, in the form of `data`"),
    INT("eval_rows", "8", 1, MANY, "sequences", CHANGES, eval_rows,
        "rows of eval_data used by one evaluation, from the first"),
    OTHER("after_training", SP_OPT_SET, "[]", "export validate", CHANGES, after_training,
          "what follows a finished run, a list: export, validate (of the export)"),
    INT("time_limit_min", "0", 0, MANY, "minutes", CHANGES, time_limit_min,
        "save and stop, as after a signal, when so much time is used; 0: no limit"),
    INT("watchdog_s", "30", 1, MANY, "seconds", CHANGES, watchdog_s,
        "a rank that is silent for so long, or a sum over GPUs that takes so long, ends the run"),
    INT("max_nonfinite_steps", "10", 1, MANY, "optimiser steps", CHANGES, max_nonfinite_steps,
        "so many updates in a row skipped for a gradient that is not finite end the run"),

    INT("validate.samples", "32", 1, MANY, "sequences", CHANGES, validate.samples,
        "needle sequences per task and length; the standard set is 128"),
    {"validate.lengths", "[]", "tokens", "",
     "sequence lengths to validate at; []: chosen from the model, and of text also from its rows",
     SP_OPT_INT_LIST, CHANGES, AT(validate.lengths), 1, TOKENS, 0, 0},
    INT("validate.lm_rows", "0", 0, MANY, "sequences", CHANGES, validate.lm_rows,
        "text sequences per length (recall, logits, language-model loss); the standard set is 32; "
        "0: 16, but 131072 tokens in all where that is less, and 4 at least"),
    INT("validate.positions", "4096", 128, MANY, "tokens", CHANGES, validate.positions,
        "positions of a text sequence that are measured; of a longer one, as many whole groups of "
        "128, spread evenly"),
};
const int sp_option_count = sizeof sp_options / sizeof sp_options[0];

const char *sp_choice(const char *choices, int i, int *len) {
    const char *p = choices;
    for (; *p && i > 0; i--) {
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    *len = (int)strcspn(p, " ");
    return *len ? p : NULL;
}
