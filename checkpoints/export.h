// The pieces of an export (design 3.4, inference.md 6): what each file holds. export.c puts them
// together and into place.
#ifndef SPARDA_CHECKPOINTS_EXPORT_H
#define SPARDA_CHECKPOINTS_EXPORT_H

#include "checkpoints/checkpoints.h"
#include "common/config.h"

#define SP_FORECAST_SAFETENSORS "forecast.safetensors"
#define SP_FORECAST_PT "forecast.pt"
#define SP_EXPORT_RECORD "sparda_config.json"
#define SP_PARITY_SAFETENSORS "parity.safetensors"

// The weights as they are exported: each rounded once to bfloat16. Caller frees.
sp_status sp_rounded_weights(const sp_forecast *w, sp_forecast *out);

// forecast.safetensors, BF16; `w` is already rounded.
sp_status sp_write_forecast_safetensors(const char *path, const sp_train_state *s,
                                        const sp_forecast *w);
// sparda_config.json: selection constants with both top-k conventions, rules in words, identity of
// the base, training summary, SHA-256 of every tensor's bf16 bytes. `parity`: whether
// parity.safetensors is beside it.
sp_status sp_write_export_record(const char *path, const sp_train_state *s, const sp_forecast *w,
                                 const sp_export_args *a, bool parity);
// parity.safetensors, computed with the base model on `be`: the inputs, rotated Forecasts, scores
// and lists of two layers, so that a port can test itself (checkpoints/README.md).
sp_status sp_write_parity(const char *path, const sp_train_state *s, const sp_forecast *w,
                          const sp_model *m);

// Reads the written files back and compares them with what they were made of (bugs.md S38).
sp_status sp_verify_export(const char *dir, const sp_train_state *s, const sp_forecast *w,
                           const sp_export_args *a, bool parity);

#endif
