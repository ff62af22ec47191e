// The validation pass after export (inference.md 5.4, 5.5): loads the exported files, checks them,
// measures the Forecast's quality, writes validation_report.json and validation_report.html.
//
//   E  the files: all formats alike and as recorded, names and shapes, made for this base model,
//   finite
//      numbers, both top-k conventions                                             export_files.c
//   P  two ways to compute one thing agree: selection and a scalar reference, compressed keys grown
//      and at once, decode and prefill                                             paths.c
//   Q  quality on held-out text against the original selector: block recall and mass (recall.c),
//      logits and loss (quality.c), needle questions (retrieval.c); an untrained Forecast is the
//      control that must fail
//   T, M  speed and memory belong to the GPU engine and are listed as skipped
//
// Everything runs through the inference engine (engine.h). The JSON document (report.c) is the only
// source of the page (html.c, chart.c) and of the summary (summary.c).
//
// Where the specification leaves room:
// - Sequences are the independent samples. Q1 and Q2 fail when the Forecast, over all layers and
//   heads of a length, does not stand 5 standard errors above chance and the control; a single
//   head that does not is a warning.
// - Q4 judges the ratio itself. Divergences have heavy tails: its 95% interval, in the report, says
//   whether more text rows would change the verdict.
// - Q4 takes prefill logits; P6 shows that decode gives the same.
// - When a hard check of E fails, P and Q are not run.
// - Text on which no query has a choice of blocks: --data is refused; else Q1 is a warning.
#ifndef SPARDA_VALIDATE_H
#define SPARDA_VALIDATE_H

#include "common/config.h"
#include "common/status.h"
#include "model/model.h"

typedef struct sp_validate_args {
    const char *base, *forecast, *report; // folders (forecast: file or folder)
    const sp_data_list *data; // held-out rows; NULL: the corpus, if the vocabulary is its
    bool after_training;      // `data` on which no query has a choice of blocks is then a warning
    bool strict;              // a missed soft gate fails, too
    const sp_config *config;  // backend, seed, sparse_config.*, validate.*
} sp_validate_args;

// SP_OK (pass, with or without warnings), SP_CHECK_FAILED with a report, or an error without one.
// Prints a summary on stderr. Reports of an earlier run in the folder are removed first, so that a
// report there is always of the last run.
sp_status sp_validate(const sp_validate_args *a);
// What sp_validate would refuse whatever the export holds, for whoever is about to make the export;
// warns of text that cannot be measured. Looks at the base model's description, `data` and
// `config`.
sp_status sp_validate_foresee(const sp_validate_args *a, const sp_model_desc *base);
sp_status sp_validate_command(int argc, char **argv); // argv[0] is "validate"

#endif
