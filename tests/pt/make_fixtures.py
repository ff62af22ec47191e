"""Makes the torch files of this folder (run once, with torch 2.7 and numpy; not part of the tests).

Forecast weights of a model with 3 layers, Hkv*d = 8, D = 6. Element i of scored layer l
(0: q_curr_proj of layer 0; l: q_future_proj of layer l-1) is ((48 l + i) 37 mod 256 - 128) / 128,
which bf16 and f16 hold exactly.
"""
import random
from collections import OrderedDict

import numpy as np
import torch

L, ROWS, COLS = 3, 8, 6


def weight(l, dtype):
    i = torch.arange(ROWS * COLS)
    return (((48 * l + i) * 37 % 256 - 128).double() / 128).reshape(ROWS, COLS).to(dtype)


def name(l):
    return "model.layers.0.self_attn.q_curr_proj.weight" if l == 0 else \
        f"model.layers.{l - 1}.self_attn.q_future_proj.weight"


ORDER = [1, 0, 2, 3]


def state_dict(dtype, prefix=""):
    return OrderedDict((prefix + name(l), weight(l, dtype)) for l in ORDER)


# The layout that the public trainer writes, with everything that it puts beside the weights.
torch.manual_seed(1), np.random.seed(1), random.seed(1)
parameters = [torch.nn.Parameter(weight(l, torch.bfloat16)) for l in ORDER]
optimizer = torch.optim.AdamW(parameters[:3], lr=5e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
for p in parameters[:3]:
    p.grad = torch.ones_like(p)
optimizer.step(), scheduler.step()
rng = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
model = torch.nn.Module()  # so that the state dictionary carries torch's _metadata
model.model = torch.nn.Module()
model.model.layers = torch.nn.ModuleList()
for l in range(L):
    layer = torch.nn.Module()
    layer.self_attn = torch.nn.Module()
    layer.self_attn.q_future_proj = torch.nn.Linear(COLS, ROWS, bias=False, dtype=torch.bfloat16)
    layer.self_attn.q_future_proj.weight.data = weight(l + 1, torch.bfloat16)
    if l == 0:
        layer.self_attn.q_curr_proj = torch.nn.Linear(COLS, ROWS, bias=False, dtype=torch.bfloat16)
        layer.self_attn.q_curr_proj.weight.data = weight(0, torch.bfloat16)
    model.model.layers.append(layer)
optimizer_state = optimizer.state_dict()
torch.save({
    "step": 7, "micro_batches_seen": 28, "gradient_accumulation_steps": 4, "world_size": 1,
    "model_state_dict": model.state_dict(),
    "optimizer_state_dict": optimizer_state, "indexer_optimizer_state_dict": optimizer_state,
    "scheduler_state_dict": scheduler.state_dict(),
    "sparse_config": {"kernel_size": 8, "kernel_stride": 4, "topk": 8, "use_nope": False,
                      "kl_target_align_pooling": "max", "rate": 0.5, "none": None, "list": [1, -2]},
    "base_model_path": "/models/tiny", "rng_state": rng, "rng_state_by_rank": [rng],
}, "ckpt-7.pt")

# Views: transposed, a slice of a storage shared by two, every second column, behind module.
shared = torch.zeros(3 * ROWS * COLS)
shared[5:5 + 48] = weight(2, torch.float32).reshape(-1)
shared[60:60 + 48] = weight(3, torch.float32).reshape(-1)
wide = torch.full((ROWS, 2 * COLS), 9.0)
wide[:, ::2] = weight(0, torch.float32)
torch.save(OrderedDict([
    ("module." + name(1), weight(1, torch.float32).t().contiguous().t()),
    ("module." + name(0), wide[:, ::2]),
    ("module." + name(2), shared[5:5 + 48].view(ROWS, COLS)),
    ("module." + name(3), shared[60:60 + 48].view(ROWS, COLS)),
]), "views.pt")

torch.save({"net": state_dict(torch.float16, "module."), "step": torch.tensor(11)}, "net-f16.pt")
torch.save({"weights": state_dict(torch.float64), "other": {1, 2}, "big": 1 << 200},
           "weights-f64.pt", pickle_protocol=4)
torch.save({"model": {k: torch.nn.Parameter(v) for k, v in state_dict(torch.float32).items()
                      if k != name(3)}}, "parameters.pt")  # the last, unused one is missing
torch.save(state_dict(torch.bfloat16), "legacy.pt", _use_new_zipfile_serialization=False)
torch.save(torch.nn.Linear(2, 2), "module.pt")
torch.save({name(l): weight(l, torch.float32).long() if l == 1 else weight(l, torch.float32)[:l + 5]
            for l in ORDER[:3]} | {"layers.x.q_future_proj": 3}, "wrong.pt")
