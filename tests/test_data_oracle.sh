#!/bin/sh
# Token shards against h5py, both ways, and the corpus against an implementation of data/corpus.md
# in Python. Needs a python3 with h5py (PYTHON names another one); nothing else of the project does.
set -u
sparda=$1
python=${PYTHON:-python3}
if ! "$python" -c 'import h5py, numpy' 2>/dev/null; then
    echo "skipped: $python has no h5py"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$sparda" data synth --out "$dir/made" --rows 5 --seq-len 700 --seed 11 --shards 2 || exit 1
"$python" - "$dir" <<'EOF' || exit 1
import glob, sys
import h5py, numpy as np

M = (1 << 64) - 1

def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M
    return z ^ z >> 31

class Writer:  # data/corpus.md 2 to 4
    def __init__(self, state):
        self.s, self.out = state, []

    def raw(self):
        self.s = self.s + 0x9E3779B97F4A7C15 & M
        return mix(self.s)

    def below(self, n):
        return (self.raw() >> 32) * n >> 32

    def uniform(self):
        return (self.raw() >> 11) * 2.0**-53

    def put(self, *tokens):
        for t in tokens:
            if len(self.out) < self.end:
                self.out.append(t)

    def words(self, n):
        for _ in range(n):
            if len(self.out) >= self.end:
                break
            u = self.uniform()
            j = 0 if u < 0.5 else 1 if u < 0.75 else 2 if u < 0.9 else 3
            x = (mix(self.topic << 40 ^ self.prev << 8 ^ j ^ 0x5BD1E995) >> 11) * 2.0**-53
            self.prev = 576 + min(int(x * x * 448), 447)
            self.put(self.prev)

    def new_fact(self):
        return [32 + self.below(256), 32 + self.below(256), 288 + self.below(256),
                288 + self.below(256), 0]

    def keep(self, f):
        if len(self.facts) >= 4096 or any(g[:2] == f[:2] for g in self.facts):
            return False
        self.facts.append(f)
        return True

    def document(self, kind, end, q):
        start, self.end, self.facts = len(self.out), end, []
        self.topic = self.below(16)
        self.prev = 576 + self.below(448)
        self.put(1, 16 + kind)
        while len(self.out) < end:
            u = self.uniform()
            if kind == 0:
                if not self.facts or u < 0.25:
                    if len(self.facts) < 4096:
                        f = self.new_fact()
                        if self.keep(f):
                            self.put(3, f[0], f[1], 4, f[2], f[3], 11)
                elif u < 0.25 + q:
                    f = self.facts[self.below(len(self.facts))]
                    self.put(5, f[0], f[1], 4, f[2], f[3], 11)
                else:
                    self.words(4 + self.below(12))
                    self.put(11)
            elif kind == 1:
                p = len(self.out)
                if p - start > 64 and u < q * 0.6:
                    n = 8 + self.below(40)
                    src = start + 2 + self.below(p - start - 10)
                    n = min(n, p - src)
                    self.put(6)
                    for i in range(n):
                        if len(self.out) >= end:
                            break
                        t = self.out[src + i]
                        self.put(11 if t in (6, 7) else t)
                    self.put(7)
                    self.prev = 576 + self.below(448)
                else:
                    self.words(8 + self.below(24))
                    self.put(11)
            else:
                if not self.facts or u < 0.2:
                    f = self.new_fact()
                    if self.keep(f):
                        self.put(8, f[0], f[1], 9, f[2], f[3], 11)
                elif u < 0.3:
                    s = self.facts[self.below(len(self.facts))]
                    if s[4] < 2:
                        f = [32 + self.below(256), 32 + self.below(256), s[2], s[3], s[4] + 1]
                        if self.keep(f):
                            self.put(8, f[0], f[1], 14, s[0], s[1], 11)
                elif u < 0.3 + q:
                    f = self.facts[self.below(len(self.facts))]
                    self.put(10, f[0], f[1], 4, f[2], f[3], 11)
                else:
                    self.words(3 + self.below(8))
                    self.put(11)

def sequence(seed, index, T, q=0.3, pl=0.45, pp=0.25):
    w, mean = Writer(mix(seed * 1000003 + index & M)), int(0.9 * T)
    while len(w.out) < T:
        u = w.uniform()
        kind = 0 if u < pl else 1 if u < pl + pp else 2
        start = len(w.out)
        length = mean // 2 + w.below(mean + 1)
        w.document(kind, min(start + length, T), q)
    return w.out

row = 0
for path in sorted(glob.glob(sys.argv[1] + "/made/*.h5")):
    with h5py.File(path, "r") as f:
        assert np.bytes_(f.attrs["format"]).decode() == "sparda-tokens", f.attrs["format"]
        assert f.attrs["version"] == 1 and f.attrs["vocab"] == 1024
        o = f["offsets"][:]
        assert o.dtype == np.uint64 and f["tokens"].dtype == np.int32 and o[0] == 0
        assert o[-1] == len(f["tokens"]) and len(f["domain"]) == len(o) - 1
        assert [n.decode() for n in f["domain_names"]] == ["synthetic"]
        assert f["tokens_xxh3"].attrs["block"] == 1 << 18 and len(f["tokens_xxh3"]) == 1
        for i in range(len(o) - 1):
            assert f["tokens"][int(o[i]):int(o[i + 1])].tolist() == sequence(11, row, 700), row
            row += 1
assert row == 5

# The example of data/README.md.
rows = [np.arange(7), np.arange(3) + 100, np.arange(1)]
with h5py.File(sys.argv[1] + "/own.h5", "w") as f:
    f.attrs["format"] = "sparda-tokens"
    f.attrs["version"] = 1
    f.attrs["tokenizer"] = "my-tokenizer"
    f.attrs["vocab"] = 32000
    f["tokens"] = np.concatenate(rows).astype("int32")
    f["offsets"] = np.cumsum([0] + [len(r) for r in rows]).astype("uint64")
    f["domain"] = np.array([0, 1, 0], "int32")
    f["domain_names"] = ["web", "code"]
print("h5py reads what sparda wrote")
EOF
"$sparda" data info "$dir/own.h5" --json >"$dir/info.json" || exit 1
"$python" - "$dir/info.json" <<'EOF' || exit 1
import json, sys
d = json.load(open(sys.argv[1]))
assert d["rows"] == 3 and d["tokens"] == 11 and d["vocab"] == 32000, d
assert d["domains"] == [{"name": "web", "rows": 2, "tokens": 8}, {"name": "code", "rows": 1, "tokens": 3}], d
assert d["tokenizer"] == "my-tokenizer" and d["min_length"] == 1 and d["max_length"] == 7, d
print("sparda reads what h5py wrote")
EOF
