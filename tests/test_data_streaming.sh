#!/bin/sh
# MDS files of the public writer (mosaicml-streaming) of every encoding and hash, and HDF5 shards with
# h5dump and h5py. Needs a python3 with numpy, xxhash, zstd and mosaicml-streaming installed without
# its dependencies (PYTHON names another one); nothing else of the project does.
set -u
sparda=$1
python=${PYTHON:-python3}
if ! "$python" -c 'import importlib.util, numpy, xxhash, zstd
assert importlib.util.find_spec("streaming")' 2>/dev/null; then
    echo "skipped: $python has no mosaicml-streaming with numpy, xxhash and zstd"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$python" - "$dir" <<'END' || exit 1
import hashlib, importlib.util, json, os, sys, types
import numpy as np

# The writer alone, without what the rest of its package imports.
root = os.path.dirname(importlib.util.find_spec("streaming").origin)
def stub(name, **values):
    m = types.ModuleType(name)
    m.__dict__.update(values)
    sys.modules[name] = m
    return m
stub("streaming").__path__ = [root]
stub("streaming.base").__path__ = [root + "/base"]
stub("streaming.base.format").__path__ = [root + "/base/format"]
stub("streaming.base.format.base").__path__ = [root + "/base/format/base"]
stub("streaming.base.format.mds").__path__ = [root + "/base/format/mds"]
stub("streaming.base.storage").__path__ = []
class Uploader:
    def __init__(self, out):
        self.local, self.remote = out, None
        os.makedirs(out, exist_ok=True)
    @classmethod
    def get(cls, out, *args, **kwargs):
        return cls(out)
    def upload_file(self, name):
        pass
    def clear_local(self, local):
        pass
stub("streaming.base.storage.upload", CloudUploader=Uploader)
def to_int(x):
    return int(x)
stub("streaming.base.util", bytes_to_int=to_int)
stub("streaming.base.format.index", get_index_basename=lambda: "index.json")
for name in ("brotli", "snappy"):
    if not importlib.util.find_spec(name):
        stub(name, compress=None, decompress=None)
if not importlib.util.find_spec("PIL"):
    stub("PIL", Image=types.SimpleNamespace(Image=object))
    stub("PIL.JpegImagePlugin", JpegImageFile=object)
if not importlib.util.find_spec("typing_extensions"):
    import typing
    stub("typing_extensions", Self=getattr(typing, "Self", object))
from streaming.base.format.mds.writer import MDSWriter

rng = np.random.default_rng(5)
lengths = [1, 2, 254, 255, 256, 257, 1000, 65535, 65536, 65537, 3]
base = sys.argv[1] + "/sets/"
want = {}

def write(name, encoding, dtype, other, **options):
    columns = {"input_ids": encoding, **{k: v[0] for k, v in other.items()}}
    fixed = int(encoding.split(":")[2]) if encoding.count(":") == 2 else 0
    text = ""
    with MDSWriter(out=base + name, columns=columns, size_limit=300000, **options) as w:
        for n in lengths:
            ids = rng.integers(0, 120, size=fixed or n).astype(dtype)
            w.write({"input_ids": ids, **{k: v[1]() for k, v in other.items()}})
            text += " ".join(map(str, ids)) + "\n"
    want[name] = text

for t in ("int32", "int64", "uint16", "uint32", "int16", "uint8", "uint64", "int8"):
    write("typed-" + t, "ndarray:" + t, t, {})
    write("plain-" + t, "ndarray", t, {}, compression="zstd:3", hashes=["xxh64"])
    write("fixed-" + t, "ndarray:%s:77" % t, t, {}, hashes=["sha1", "xxh3_64"])
extra = {
    "a_int": ("int", lambda: 5), "a_u8": ("uint8", lambda: np.uint8(3)), "b_f16": ("float16", lambda: np.float16(1)),
    "c_f64": ("float64", lambda: np.float64(2)), "d_bytes": ("bytes", lambda: b"\x00\xff" * int(rng.integers(0, 50))),
    "e_str": ("str", lambda: "\u00e9" * int(rng.integers(0, 50))), "f_json": ("json", lambda: {"x": [1, 2]}),
    "g_nd": ("ndarray", lambda: np.zeros((2, 3), "float32")), "h_nd": ("ndarray:float32:2,3", lambda: np.zeros((2, 3), "float32")),
    "i_nd": ("ndarray:int64", lambda: np.zeros((300, 2), "int64")), "z_i16": ("int16", lambda: np.int16(-1)),
    "si": ("str_int", lambda: 10**30), "length": ("int64", lambda: np.int64(7)), "u_u64": ("uint64", lambda: np.uint64(9)),
}
write("columns", "ndarray:int32", "int32", extra, hashes=sorted(["xxh32", "xxh128", "xxh3_128", "md5", "sha256", "blake2b", "sha3_256"]))
write("columns-zip", "ndarray:int32", "int32", extra, compression="zstd", hashes=["sha1", "xxh64"])
for name, text in want.items():
    open(sys.argv[1] + "/" + name + ".txt", "w").write(text)
END
status=0
for set in "$dir"/sets/*; do
    "$sparda" data verify "$set" --vocab 120 >/dev/null || status=1
    "$sparda" data import "$set" --out "$dir/imported" --vocab 120 --shard-tokens 100000 2>"$dir/err" || {
        cat "$dir/err"
        status=1
    }
done
"$sparda" data verify "$dir/imported" >"$dir/out" || status=1
cat "$dir/out"
if "$python" -c 'import h5py' 2>/dev/null; then
    "$python" - "$dir" <<'END' || status=1
import glob, os, sys
import h5py, numpy as np
sets = sorted(glob.glob(sys.argv[1] + "/sets/*"))
for path in sets:
    name = os.path.basename(path)
    want = open(sys.argv[1] + "/" + name + ".txt").read().split("\n")[:-1]
    got = []
    for f in sorted(glob.glob(sys.argv[1] + "/imported/" + name + "/*.h5")):
        with h5py.File(f) as h:
            t, o = h["tokens"][:], h["offsets"][:]
            got += [" ".join(map(str, t[a:b])) for a, b in zip(o[:-1], o[1:])]
    assert got == want, name
print(len(sets), "sets read exactly")
END
fi
if command -v h5dump >/dev/null; then
    h5dump -H "$dir/imported/columns/shard-00000.h5" | grep -q 'DATASET "tokens"' || status=1
    echo 'h5dump reads the shards'
fi
exit $status
