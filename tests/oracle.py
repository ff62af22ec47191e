"""Reads what sparda wrote with other people's libraries: h5py, safetensors, torch, zipfile.

    oracle.py RUN_DIR EXPORT_DIR

Not needed to build or to use the program; test_oracle.sh runs it where the libraries are there.
"""
import json
import pathlib
import sys
import zipfile

import h5py
import numpy as np
import torch
from safetensors import safe_open

run, export = map(pathlib.Path, sys.argv[1:])

# The state: fp32 tensors under their names, scalars as attributes.
with h5py.File(run / "checkpoints/step-0000030.h5") as f:
    assert f.attrs["format"] == b"sparda training state", f.attrs["format"]
    assert f["training"].attrs["step"] == 30
    assert f["sparse_config"].attrs["topk"] == 8
    assert b"base: " in f["config"][()]
    master = {name: d[()] for name, d in f["weights"].items()}
    assert all(d.dtype == np.float32 and d.shape == (128, 256) for d in master.values())
assert len(master) == 7
rounded = {name: torch.from_numpy(w).to(torch.bfloat16) for name, w in master.items()}


def compare(tensors, where):
    assert set(tensors) == set(rounded), (where, set(tensors) ^ set(rounded))
    for name, t in tensors.items():
        assert t.dtype == torch.bfloat16 and torch.equal(t, rounded[name]), (where, name)


# safetensors, and torch with weights_only, as a whole and memory-mapped.
with safe_open(export / "forecast.safetensors", "pt") as f:
    compare({k: f.get_tensor(k) for k in f.keys()}, "safetensors")
    assert f.metadata()["format"] == "pt" and f.metadata()["sparda.step"] == "30"
    sparse = json.loads(f.metadata()["sparda.sparse_config"])
for mmap in (False, True):
    c = torch.load(export / "forecast.pt", weights_only=True, mmap=mmap)
    assert set(c) == {"model_state_dict", "step", "sparse_config", "base_model_path"}, set(c)
    compare(c["model_state_dict"], f"torch, mmap={mmap}")
    assert c["step"] == 30 and c["base_model_path"] == "tiny-base"
    assert c["sparse_config"] == sparse and sparse["k_effective"] == 10
    pointers = {t.untyped_storage().data_ptr() for t in c["model_state_dict"].values()}
    assert len(pointers) == 7, "tensors share storages"
    assert all(t.untyped_storage().nbytes() == 2 * 128 * 256 for t in c["model_state_dict"].values())
with zipfile.ZipFile(export / "forecast.pt") as z:
    assert z.testzip() is None  # every CRC-32

# Saved again by torch, it reads back the same.
torch.save(c, export / "again.pt")

# parity.safetensors: the port that an integrator would write.
config = json.load(open(export / "sparda_config.json"))
with safe_open(export / "parity.safetensors", "pt") as f:
    layers = json.loads(f.metadata()["sparda.parity"])["layers"]
    positions = f.get_tensor("positions").long()
    for layer in layers:
        get = lambda name: f.get_tensor(f"layer.{layer['layer']}.{name}")
        s, B = config["selection"]["kernel_stride"], config["selection"]["block_size"]
        scores = torch.einsum("rhd,jhd->rhj", get("forecast"), get("compressed_keys"))
        for rule, reach in (("start", 0), ("complete", config["selection"]["kernel_size"] - 1)):
            j = torch.arange(scores.shape[-1])
            hidden = (s * j + reach)[None, :] > positions[:, None]
            want = scores.masked_fill(hidden[:, None, :], -torch.inf)
            torch.testing.assert_close(get(f"scores.{rule}"), want, rtol=1e-5, atol=1e-5)
            blocks = get(f"blocks.{rule}")
            assert ((blocks * B <= positions[:, None, None]) | (blocks < 0)).all()
            own = positions // B
            assert (blocks == own[:, None, None]).any(-1).all(), "the query's own block is forced"
print("h5py", h5py.__version__, "torch", torch.__version__, "agree")
