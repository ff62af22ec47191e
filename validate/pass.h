// What the parts of one validation pass share (inside validate/ only).
//
// validate.c opens everything (the text: text.c) and calls the groups in order: export checks (E),
// execution paths (P), quality on text (Q1 to Q5, Q7), retrieval (Q6). Each adds its checks and
// sections to the report.
//
// Legend: L layers, Hkv KV heads, k list length, T tokens, nb blocks, W local blocks, I init
// blocks.
#ifndef SPARDA_VALIDATE_PASS_H
#define SPARDA_VALIDATE_PASS_H

#include "data/dataset.h"
#include "kernels/decode.h"
#include "validate/engine.h"
#include "validate/report.h"
#include "validate/validate.h"

// Where held-out text comes from.
typedef struct sp_text_source {
    bool corpus;               // the synthetic corpus, standard held-out set (corpus.md 6)
    sp_dataset *dataset;       // else, with --data; NULL: no text, group Q is skipped
    struct sp_seen_rows *seen; // its row lengths, as far as they are known (text.c)
    char *name;                // for the report
} sp_text_source;

// Work done and to do, in tokens weighted by length, for the time left.
typedef struct sp_meter {
    double start, done, total;
    char phase[64];
} sp_meter;

typedef struct sp_pass {
    const sp_validate_args *args;
    const sp_model_desc *desc;
    const sp_model *model;
    sp_selection selection;                  // future masked
    sp_selection shortlist;                  // the part that the query chooses (model.h)
    sp_grid grid, fine;                      // deployed; the teacher's fine one
    int64_t chosen;                          // its k - I - W - 1: blocks really chosen by a query
    sp_forecast_device *trained, *untrained; // on the backend
    sp_text_source text;
    bool needles;                          // the model knows the corpus
    int64_t *lengths, n_lengths;           // ascending; of execution paths and needles
    int64_t *text_lengths, n_text_lengths; // of text: the same, or what its rows allow
    int64_t rows; // option validate.lm_rows: text sequences per length; 0: chosen (sp_pass_rows)
    int64_t positions; // option validate.positions: of a text sequence that are measured
    int64_t samples;   // needle sequences per length
    uint64_t seed;
    double noise_kl;           // of P6, floor of Q4; NAN before
    int64_t decode_unequal;    // part of P5: compressed keys of the decode engine that differ
    sp_transfer_kind transfer; // option `transfer`
    sp_report *report;
    sp_meter meter;
} sp_pass;

// Blocks that compete for a query in block q: I .. q-W-1.
static inline int64_t sp_candidates(const sp_selection *s, int64_t position) {
    int64_t n = position / s->block - s->local_blocks - s->init_blocks;
    return n > 0 ? n : 0;
}

// The first T tokens of held-out row `index`. SP_BAD_INPUT if there are fewer rows that long.
sp_status sp_pass_text(const sp_pass *p, int64_t index, int64_t T, int32_t *tokens);
// Row 0, or random tokens where there is no text that long: for checks that need none.
sp_status sp_pass_any_text(const sp_pass *p, int64_t T, int32_t *tokens);
enum { SP_MIN_TEXT_ROWS = 3 }; // below that a standard error means nothing
// How many held-out rows of at least T tokens there are, at most `wanted`.
sp_status sp_pass_text_rows(const sp_pass *p, int64_t T, int64_t wanted, int64_t *n);

// Opens the held-out text; takes the lengths that were asked for, or chooses them from the model,
// those of text also from its rows. SP_BAD_INPUT: data that cannot be read, lengths that the model
// has no positions for. The last frees the text and the lengths, also of one that did not succeed.
sp_status sp_pass_open_text(sp_pass *p);
sp_status sp_pass_take_lengths(sp_pass *p);
void sp_pass_close_text(sp_pass *p);
// Where there is text, but no row of it at any length gives a query a choice of blocks: *why, what
// is needed and what to do (the caller frees it). Else NULL.
sp_status sp_pass_unmeasured(const sp_pass *p, char **why);
// Text rows wanted at a length: p->rows, or where that is 0, 16, fewer where they are longer than
// 8,192 tokens: 131,072 tokens in all, but at least 4.
int64_t sp_pass_rows(const sp_pass *p, int64_t T);

// Positions of a text row that are measured: all of T if there are no more than `positions` (128 at
// least), else as many whole groups of 128, spread evenly. Starts from {0}; each call gives the
// next n <= most of them, from row0 on, and false after the last.
typedef struct sp_sample {
    int64_t row0, n, group;
} sp_sample;
bool sp_next_sample(int64_t T, int64_t positions, int64_t most, sp_sample *s);

double sp_run_cost(const sp_pass *p, sp_selector s, int64_t T); // of one run, for the meter
void sp_meter_phase(sp_meter *m, const char *phase);
void sp_meter_add(sp_meter *m, double cost);

// ---- the groups ---------------------------------------------------------------------------------

// What the exported files hold (export_files.c).
typedef struct sp_exported_file {
    char *path, *name, *format; // name: as in the report
    int64_t bytes;
    char sha256[SP_SHA256_HEX];
    bool loaded;
    bool container;        // not loaded, but a sound file of its kind: its contents are wrong
    char *problem;         // why it could not be loaded
    sp_forecast forecast;  // if loaded
    json_t *sparse_config; // the file's own, NULL if none
} sp_exported_file;
typedef struct sp_exported {
    sp_exported_file *file;
    int64_t n_files;
    json_t *record; // sparda_config.json, NULL if there is none
    char *record_path;
    const sp_forecast *forecast; // of the first file that loaded, NULL if none did
} sp_exported;
// Finds and loads what `path`, a file or a folder, holds for the base model `d`. A file that is
// there but does not hold this model's Forecast is no error here: it fails E1 (a damaged file) or
// E2 (a sound one). SP_BAD_INPUT if there is no file, or none that can be read at all.
sp_status sp_exported_open(const char *path, const sp_model_desc *d, sp_exported *out);
void sp_exported_close(sp_exported *x);

// What the checks of the files mean for those that run the weights.
typedef enum sp_export_state {
    SP_EXPORT_USABLE,     // the weights belong to the base and are finite
    SP_EXPORT_FAULTY,     // they are not to be run
    SP_EXPORT_OTHER_BASE, // nor does anything about this base concern them
} sp_export_state;
// E1 to E5 and the section `export`. `weights_sha256` is the base model's. Each cause fails one
// check; those that cannot be made because of it are skipped and name that check.
sp_status sp_check_export(sp_report *r, const sp_model_desc *d, const char *weights_sha256,
                          const sp_exported *x, sp_export_state *state);

sp_status sp_check_paths(sp_pass *p); // P1, P5, P6 (paths.c); P7 by sp_check_lookahead
// P2 to P4, T, M (serving.c); on the CPU nothing: those checks are then skipped. Before the above.
sp_status sp_check_serving(sp_pass *p);
sp_status sp_check_lookahead(sp_pass *p);
sp_status sp_skip_quality(sp_pass *p, const char *reason);
sp_status sp_measure_quality(sp_pass *p); // Q1 to Q5, Q7 (quality.c)
sp_status sp_measure_needles(sp_pass *p); // Q6 (retrieval.c)
double sp_quality_cost(const sp_pass *p);
double sp_needle_cost(const sp_pass *p);

#endif
