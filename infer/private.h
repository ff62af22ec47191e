// Inside of infer/: the engine's state.
#ifndef SPARDA_INFER_PRIVATE_H
#define SPARDA_INFER_PRIVATE_H

#include "infer/infer.h"
#include "infer/infinigen.h"

struct sp_infer {
    sp_infer_args a;
    const sp_model *m;
    sp_decode *d;
    char *transfer;
    sp_rope_table rope;
    int64_t *tokens; // [B] tokens of each sequence
    bool captured;
    int64_t steps; // since the engine was opened

    // Activations of one token a sequence; rows B.
    sp_tensor h, x;      // residual stream; normed input of attention, then of the MLP [B, D]
    sp_tensor qkvf[2];   // q | k | v | Forecast of the next layer, of even and odd layers
    sp_tensor cis;       // F32 [Hkv, B] importance of the keys, where the model has it
    sp_tensor f0;        // Forecast of layer 0 [B, Hkv*d]
    sp_tensor next_q;    // InfiniGen: the next layer's queries from this layer's input [B, Hq*d]
    sp_tensor projected; // InfiniGen: their sum on the channels [B, Hkv*channels]
    sp_tensor attn, branch;
    sp_tensor gate_up, act;
    sp_tensor logits; // F32 [B, V]
};

// One token through all layers, on the streams of e->d.
sp_status sp_infer_issue_step(sp_infer *e);

#endif
