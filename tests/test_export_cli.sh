#!/bin/sh
# shellcheck disable=SC1091,SC2154
# `sparda export`: arguments, exit status, and what a port of the files would read.
. "$(dirname "$0")/check.sh"
sparda=$1
"$(dirname "$sparda")/tests/test_export" "$work/run" || complain "no run folder"
base=$root/data/tiny-base

# ---- arguments --------------------------------------------------------------------------------------
check 0 "$sparda" export --help
has out 'sparda export CHECKPOINT --out DIR'
empty err
check 2 "$sparda" export
has err 'no checkpoint is given'
check 2 "$sparda" export "$work/run"
has err 'no destination is given'
check 2 "$sparda" export "$work/run" --out
has err '--out needs a value'
check 2 "$sparda" export "$work/run" --out=
check 2 "$sparda" export "$work/run" --out a --out b
has err 'given twice'
check 2 "$sparda" export "$work/run" "$work/run" --out "$work/x"
has err 'unexpected argument'
check 2 "$sparda" export "$work/run" --out "$work/x" --frobnicate
has err "unknown option '--frobnicate'"
check 2 "$sparda" export "$work/run" --out "$work/x" --format pt,onnx
has err "--format: 'onnx' is none of safetensors, pt"
check 2 "$sparda" export "$work/run" --out "$work/x" --format pt,
check 2 "$sparda" export "$work/run" --out "$work/x" --format ,
check 2 "$sparda" export "$work/nothing" --out "$work/x"
has err 'sparda: error: .*nothing does not exist'
[ ! -e "$work/x" ] || complain "a refused export left something"

# ---- destinations by other names --------------------------------------------------------------------
run=$work/run
case $run in /*) ;; *) run=$PWD/$run ;; esac
mkdir "$work/here" "$work/far"
(cd "$work/here" && check 0 "$sparda" export "$run" --out . && check 0 "$sparda" export "$run" --out ./. --force)
ln -s far "$work/link"
check 0 "$sparda" export "$run" --out "$work/link"
check 0 "$sparda" export "$run" --out "$work/link/" --force
for f in here far; do [ -f "$work/$f/sparda_config.json" ] || complain "no export in $f"; done
[ -L "$work/link" ] || complain 'the link is gone'
ln -s nowhere "$work/dangling"
check 2 "$sparda" export "$run" --out "$work/dangling"
has err 'dangling is a link that leads nowhere'
check 2 "$sparda" export "$run" --out /proc/x
has err 'belongs to the kernel'
mkdir "$work/mine"
echo precious >"$work/mine/config.json"
check 2 "$sparda" export "$run" --out "$work/mine" --merge "$base" --force
has err 'mine/config.json was not put there by an export'
[ "$(cat "$work/mine/config.json")" = precious ] || complain 'a file of the user was replaced'

# ---- exports ----------------------------------------------------------------------------------------
check 0 "$sparda" export "$work/run" --out "$work/a"
empty out
check 0 "$sparda" export --format=safetensors,pt "$work/run/checkpoints/step-0000030.h5" --out="$work/b"
for f in forecast.safetensors forecast.pt parity.safetensors sparda_config.json; do
    cmp "$work/a/$f" "$work/b/$f" || complain "$f depends on more than the checkpoint"
done
[ "$(find "$work/a" -type f | wc -l)" = 4 ] || complain "an export has four files"
[ -z "$(find "$work" -name '.*.tmp.*')" ] || complain "temporary files are left"
check 2 "$sparda" export "$work/run" --out "$work/a"
has err 'is not empty'
check 0 "$sparda" export "$work/run" --out "$work/a" --force --format pt --no-parity
[ "$(find "$work/a" -type f | wc -l)" = 2 ] || complain "an earlier export's files are left"

# The weights are random, so the quality checks fail, and those of the export itself pass.
check 1 "$sparda" export "$work/run" --out "$work/merged" --merge "$base" --validate
has err 'checks passed'
lacks err 'failed [EP][0-9]'
lacks err 'not run here (.*E[0-9]'
[ -s "$work/merged/sparda/validation_report.json" ] || complain "no report beside the export"
cmp "$base/model.safetensors" "$work/merged/model.safetensors" || complain "changed weights"
cmp "$base/config.json" "$work/merged/config.json" || complain "changed config.json"
cmp "$work/b/forecast.safetensors" "$work/merged/sparda/forecast.safetensors" || complain "sidecar"

# ---- what --force replaces, and what not ---------------------------------------------------------------
# Of the same layout: the files of an export and its report, and nothing else.
echo mine >"$work/merged/sparda/notes.txt"
check 0 "$sparda" export "$work/run" --out "$work/merged" --merge "$base" --force --format pt --no-parity
[ "$(cd "$work/merged/sparda" && echo *)" = 'forecast.pt notes.txt sparda_config.json' ] ||
    complain "left: $(ls "$work/merged/sparda")"
# refused OUT TEXT ARG...: before anything is changed.
refused() {
    (cd "$1" && find . | sort && find . -type f -exec cksum {} + | sort) >"$work/before"
    folder=$1
    text=$2
    shift 2
    check 2 "$sparda" export "$work/run" --out "$folder" --force --no-parity "$@"
    has err "$text"
    (cd "$folder" && find . | sort && find . -type f -exec cksum {} + | sort) |
        cmp - "$work/before" >"$work/out" || complain "a refused export changed $folder"
    [ -z "$(find "$work" -name '.*.tmp.*')" ] || complain "temporary files are left"
}
# Readers of a folder that held both layouts would take the older export.
refused "$work/b" "b holds an export without a base model ($work/b/sparda_config.json).*another --out" \
    --merge "$base"
refused "$work/merged" "merged with a base model ($work/merged/sparda/sparda_config.json)"
refused "$work/run" 'is the folder of a training run.*run/export'
rm "$work/b/forecast.pt"
mkdir "$work/b/forecast.pt"
refused "$work/b" 'b/forecast.pt is a folder'
rm "$work/merged/config.json" "$work/merged/sparda/forecast.pt"
mkdir "$work/merged/config.json" "$work/merged/sparda/validation_report.html"
refused "$work/merged" 'validation_report.html is a folder' --merge "$base"
rmdir "$work/merged/sparda/validation_report.html"
refused "$work/merged" 'merged/config.json is a folder' --merge "$base"
rm -r "$work/merged/sparda"
: >"$work/merged/sparda"
rmdir "$work/merged/config.json"
refused "$work/merged" 'merged/sparda is no folder' --merge "$base"
cp -r "$base" "$work/base"
cp "$work/a/forecast.pt" "$work/base"
check 2 "$sparda" export "$work/run" --out "$work/x" --merge "$work/base"
has err "an export lies in the base model's folder"

# ---- several at the same time (mpirun starts a process per rank) ---------------------------------------
# pair OUT ARG...: two exports to OUT; their exit statuses are $one and $two.
pair() {
    folder=$1
    shift
    one=0 two=0
    "$sparda" export "$work/run" --out "$folder" --no-parity "$@" >"$work/out" 2>"$work/err.1" &
    first=$!
    "$sparda" export "$work/run" --out "$folder" --no-parity "$@" >"$work/out" 2>"$work/err.2" || two=$?
    wait $first || one=$?
    cat "$work/err.1" "$work/err.2" >"$work/err"
}
check 0 "$sparda" export "$work/run" --out "$work/alone" --no-parity
for round in 1 2 3 4 5 6; do
    case $round in [246]) mkdir "$work/pair-$round" ;; esac # new, or an empty folder
    pair "$work/pair-$round"
    case "$one $two" in '0 2' | '2 0') ;; *) complain "$one and $two of two exports at once" ;; esac
    has err "another process is exporting to .*/pair-$round; wait\|pair-$round is not empty"
    [ "$(grep -c '^exported' "$work/err")" = 1 ] || complain 'not exactly one has exported'
    diff -r "$work/alone" "$work/pair-$round" >"$work/out" || complain 'two exports are mixed'
    pair "$work/pair-$round" --force
    case "$one $two" in '0 2' | '2 0') has err 'another process is exporting' ;; '0 0') ;;
    *) complain "$one and $two of two exports at once" ;; esac
    diff -r "$work/alone" "$work/pair-$round" >"$work/out" || complain 'two exports are mixed'
done
# Somebody else makes the folder during the export: it is theirs.
"$sparda" export "$work/run" --out "$work/theirs" >"$work/out" 2>"$work/err" &
first=$!
until [ -e "$work/theirs" ] || ls -d "$work"/.theirs.tmp.* >"$work/ls" 2>&1; do :; done
if mkdir "$work/theirs" 2>"$work/ls" && echo mine >"$work/theirs/notes.txt"; then
    got=0
    wait $first || got=$?
    [ "$got" = 2 ] || complain "$got from an export to a folder that was made meanwhile"
    has err 'another process has made .*/theirs during the export'
    [ "$(ls -A "$work/theirs")" = notes.txt ] || complain 'an export changed a folder of somebody else'
else
    wait $first || complain 'an export failed'
fi
[ -z "$(find "$work" -name '.*.tmp.*' -o -name '.*.lock')" ] || complain 'temporary files are left'

# What only looks like an export's own stays.
echo mine >"$work/.taken.lock"
check 2 "$sparda" export "$work/run" --out "$work/taken" --no-parity
has err '.taken.lock stands where an export to .* would put its lock; move it away'
[ "$(cat "$work/.taken.lock")" = mine ] || complain 'a file under the name of a lock was changed'
rm "$work/.taken.lock"
mkfifo "$work/.taken.lock"
check 2 "$sparda" export "$work/run" --out "$work/taken" --no-parity
has err 'would put its lock; move it away'
rm "$work/.taken.lock"
mkdir "$work/.taken.tmp.mine" "$work/.taken.tmp.1.tmp.77" "$work/.taken.tmp.99"
check 0 "$sparda" export "$work/run" --out "$work/taken" --no-parity
has err 'removed what a killed export had left: .*taken.tmp.99'
[ -d "$work/.taken.tmp.mine" ] && [ -d "$work/.taken.tmp.1.tmp.77" ] || complain 'folders of others are gone'
rmdir "$work/.taken.tmp.mine" "$work/.taken.tmp.1.tmp.77"

# ---- a disk that is full, a checkpoint that is damaged ------------------------------------------------
check 3 sh -c "ulimit -f 20; trap '' XFSZ; exec '$sparda' export '$work/run' --out '$work/full' --no-parity"
has err 'forecast.safetensors'
[ ! -e "$work/full" ] || complain "half an export is left"
mkdir "$work/bad"
head -c 100000 "$work/run/checkpoints/step-0000030.h5" >"$work/bad/step.h5"
check 2 "$sparda" export "$work/bad/step.h5" --out "$work/x"
has err 'not a complete HDF5 file'
finish
