#!/bin/sh
# `sparda data`: what it makes, what it says, what it refuses.
set -u
sparda=$1
source=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}

# run STATUS COMMAND...: output in $dir/out and $dir/err
run() {
    want=$1
    shift
    "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    [ "$got" = "$want" ] || { fail "$* ended with $got, expected $want"; cat "$dir/err"; }
}

says() { # FILE TEXT
    grep -qF -- "$2" "$dir/$1" || { fail "std$1 lacks '$2':"; cat "$dir/$1"; }
}

# ---- synth, and info on what it made
run 0 "$sparda" data synth --out "$dir/a" --rows 10 --seq-len 256 --seed 5 --shards 3
says err "10 rows of 256 tokens (2560 in all) in 3 shards; seed 5"
[ "$(ls -A "$dir/a" | tr '\n' ' ')" = "shard-00000.h5 shard-00001.h5 shard-00002.h5 " ] ||
    fail "unexpected files: $(ls -A "$dir/a")"
run 0 "$sparda" data info "$dir/a"
says out "10 rows, 2560 tokens in 3 files"
says out "tokenizer synthetic-1024, vocabulary 1024"
run 0 "$sparda" data info "$dir/a" --json
says out '"rows": 10,'
says out '"tokens": 2560,'
says out '"name": "synthetic",'
[ -s "$dir/err" ] && fail "info --json wrote to stderr"

# the same again is the same files; another seed, rate or mean length is not
run 0 "$sparda" data synth --out="$dir/b" --rows=10 --seq-len=256 --seed=5 --shards=3
for f in 0 1 2; do
    cmp "$dir/a/shard-0000$f.h5" "$dir/b/shard-0000$f.h5" || fail "two runs differ"
done
for option in "--seed 6" "--question-rate 0.5" "--mean-doc 40" "--ledger-share 0.5" "--prose-share 0.5"; do
    rm -rf "$dir/c"
    case $option in --seed*) seed= ;; *) seed='--seed 5' ;; esac
    # shellcheck disable=SC2086
    run 0 "$sparda" data synth --out "$dir/c" --rows 10 --seq-len 256 $seed --shards 3 $option
    cmp -s "$dir/a/shard-00000.h5" "$dir/c/shard-00000.h5" && fail "$option has no effect"
done

# ---- a folder that is not empty
run 2 "$sparda" data synth --out "$dir/a" --rows 4 --seq-len 64
says err "is not empty"
run 0 "$sparda" data synth --out "$dir/a" --rows 4 --seq-len 64 --force
[ "$(ls -A "$dir/a")" = "shard-00000.h5" ] || fail "--force left $(ls -A "$dir/a")"
run 0 "$sparda" data info "$dir/a" --json
says out '"tokens": 256,'

# what --force replaces: shards and their list, which another corpus would contradict
run 0 "$sparda" data synth --out "$dir/e" --rows 4 --seq-len 64 --shards 4
run 0 "$sparda" data verify "$dir/e" --write-list
echo precious >"$dir/e/notes.txt"
run 0 "$sparda" data synth --out "$dir/e" --rows 6 --seq-len 32 --shards 2 --force
[ "$(LC_ALL=C ls -A "$dir/e" | tr '\n' ' ')" = "notes.txt shard-00000.h5 shard-00001.h5 " ] || fail "--force left $(ls -A "$dir/e")"
run 0 "$sparda" data verify "$dir/e"
says out "6 rows, 192 tokens in 2 files"
for other in state.h5 step-0000003.h5 shard-1.h5 shard-000001.h5 old.hdf5 import.json; do
    echo precious >"$dir/e/$other"
    cksum "$dir/e/"* >"$dir/before"
    run 2 "$sparda" data synth --out "$dir/e" --rows 2 --seq-len 32 --force
    says err "e/$other is nothing that synth makes, and is not replaced"
    cksum "$dir/e/"* | cmp -s - "$dir/before" || fail "a refused synth changed files beside $other"
    rm "$dir/e/$other"
done
# the hidden folder of a killed run goes, that of a process at work and other hidden files stay
sleep 1000 &
alive=$!
sh -c 'exit 0' &
gone=$!
wait $gone
mkdir "$dir/e/.synth.tmp.$gone" "$dir/e/.synth.tmp.$alive"
: >"$dir/e/.synth.tmp.$gone/shard-00000.h5"
: >"$dir/e/.other.tmp"
run 0 "$sparda" data synth --out "$dir/e" --rows 2 --seq-len 32 --force
[ "$(LC_ALL=C ls -A "$dir/e" | tr '\n' ' ')" = ".other.tmp .synth.tmp.$alive notes.txt shard-00000.h5 " ] ||
    fail "after a killed run: $(ls -A "$dir/e")"
kill $alive

# ---- MDS
run 0 "$sparda" data info "$source/tests/mds/raw"
says out "64 rows, 160325 tokens in 10 files"
grep -qE '^ledger +40 +17680 ' "$dir/out" || fail "no line for the domain ledger"
cp "$dir/out" "$dir/raw"
run 0 "$sparda" data info "$source/tests/mds/zstd"
sed 's/raw: /zstd: /; s/([0-9.]* MB)//' "$dir/raw" >"$dir/want"
sed 's/([0-9.]* MB)//' "$dir/out" | cmp - "$dir/want" || fail "zstd and raw data differ"
run 0 "$sparda" data info "$source/tests/mds/raw" --json
says out '"from": 65536,'
says out '"to": 131071,'

# ---- wrong arguments
run 2 "$sparda" data
run 2 "$sparda" data impart x
says err "unknown data command 'impart'; there are synth, import, retokenize, verify, info"
run 2 "$sparda" data synth --rows 3
says err "--out DIR is missing"
run 2 "$sparda" data synth --out "$dir/x" --rows 3x
says err "--rows: a whole number from 1 to 9223372036854775807 is expected, not '3x'"
run 2 "$sparda" data synth --out "$dir/x" --rows
run 2 "$sparda" data synth --out "$dir/x" --rows 99999999999999999999
run 2 "$sparda" data synth --out "$dir/x" --seed -1
run 2 "$sparda" data synth --out "$dir/x" --rows 0
run 2 "$sparda" data synth --out "$dir/x" --rows 4611686018427387904 --seq-len 2048
run 2 "$sparda" data synth --out "$dir/x" --rows 3 --shards 4
run 2 "$sparda" data synth --out "$dir/x" --question-rate nan
run 2 "$sparda" data synth --out "$dir/x" --question-rate 2 --mean-doc 1
says err "question rate 2"
says err "mean document length 1"
run 2 "$sparda" data synth --out "$dir/x" --row 3
says err "unknown option '--row'"
run 2 "$sparda" data synth --out "$dir/x" extra
run 2 "$sparda" data synth-model --out "$dir/x"
says err "--like NAME is missing; NAME is minicpm4.1-8b or nosa-8b"
run 2 "$sparda" data synth-model --like nosa-8b --out "$dir/x" --max-positions 2147483648
says err "--max-positions: a whole number from 1 to 2147483647 is expected"
run 2 "$sparda" data info
run 2 "$sparda" data info "$dir/nothing"
says err "nothing does not exist"
[ -e "$dir/x" ] && fail "wrong arguments made a folder"
run 0 "$sparda" data --help
says out "sparda data synth"
for command in synth import retokenize verify info synth-model; do
    run 0 "$sparda" data $command --help
    [ "$(grep -c '^sparda data' "$dir/out")" = 1 ] || fail "data $command --help is not about it alone"
    says out "sparda data $command "
done
: >"$dir/file"
run 2 "$sparda" data synth --out "$dir/file/x"
says err "choose another path"
run 2 "$sparda" data import "$source/tests/mds/raw" --out "$dir/file/x"
# 480 GB; where there is as much room, the limit stops it
(
    ulimit -f 2048
    exec "$sparda" data synth-model --like minicpm4.1-8b --layers 1024 --out "$dir/model" >"$dir/out" 2>"$dir/err"
)
[ $? = 3 ] || fail "synth-model without room did not end with 3"
grep -q 'GB are free there\|File too large' "$dir/err" || { fail "no word about the room"; cat "$dir/err"; }
[ -z "$(ls -A "$dir/model")" ] || fail "synth-model without room left $(ls -A "$dir/model")"

# ---- the benchmark, very small: every figure is there, and nothing is left
run 0 "$sparda" bench data --mb 1 --shards 30 --dir "$dir/bench" --out "$dir/bench-out" --json "$dir/bench.json"
for name in 'sequential reading, disk' 'copying files, disk' 'import of raw MDS, disk' \
    'import of zstd MDS, cached' 'row of an HDF5 shard' 'waiting for a row of raw MDS' \
    'opening shards by shards.json' 'opening shards without shards.json' 'the same, short: pack' \
    'opening MDS shards'; do
    grep -A1 "\"name\": \"$name\"" "$dir/bench.json" | grep -q '"value": [0-9.e-]*[1-9]' || fail "no figure: $name"
done
[ ! -e "$dir/bench" ] && [ ! -e "$dir/bench-out" ] || fail "the benchmark left files"
run 2 "$sparda" bench data --shards 0
run 2 "$sparda" bench data --dir "$dir/bench" --from "$source/tests/tokenizers/bytes.json"
says err "--from and --to need --text"
[ ! -e "$dir/bench" ] || fail "a refused benchmark made its folder"
# folders of the user's beside its own stay as they are, also behind links
mkdir -p "$dir/shared" "$dir/behind/raw"
for name in raw zip out kept listed whole mds text; do
    mkdir "$dir/shared/$name"
    echo precious >"$dir/shared/$name/thesis"
done
echo precious >"$dir/behind/raw/thesis"
echo precious >"$dir/shared/written.tmp"
ln -s "$dir/behind/raw" "$dir/shared/link"
(cd "$dir" && find shared behind | sort) >"$dir/before"
run 0 "$sparda" bench data --mb 1 --shards 3 --dir "$dir/shared" --json - \
    --text "$source/README.md" --from "$source/tests/tokenizers/bytes.json" --to "$source/tests/tokenizers/small.json"
(cd "$dir" && find shared behind | sort) | diff "$dir/before" - || fail "the benchmark changed a folder of others"
[ "$(head -c 1 "$dir/out")" = '[' ] && [ "$(tail -c 2 "$dir/out")" = ']' ] ||
    fail "bench data --json - printed other things than JSON"
says err "re-tokenisation"

# ---- no room: nothing of the failed set remains
(
    ulimit -f 2048 # 1 or 2 MiB, by the shell
    "$sparda" data synth --out "$dir/full" --rows 3000 --seq-len 1024 --shards 2 >"$dir/out" 2>"$dir/err"
)
got=$?
[ $got = 3 ] || fail "a full disk ended with $got, expected 3"
says err "File too large"
[ ! -e "$dir/full" ] || fail "left behind: $(ls -A "$dir/full")"
run 0 "$sparda" data synth --out "$dir/full" --rows 3000 --seq-len 1024 --shards 2
run 3 "$sparda" data synth --out "$dir/huge" --rows 4000000000000 --seq-len 1024
says err "MB are free"

[ $failed = 0 ] && echo "all as expected"
exit $failed
