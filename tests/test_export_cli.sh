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

# ---- a disk that is full, a checkpoint that is damaged ------------------------------------------------
check 3 sh -c "ulimit -f 20; trap '' XFSZ; exec '$sparda' export '$work/run' --out '$work/full' --no-parity"
has err 'forecast.safetensors'
[ ! -e "$work/full" ] || complain "half an export is left"
mkdir "$work/bad"
head -c 100000 "$work/run/checkpoints/step-0000030.h5" >"$work/bad/step.h5"
check 2 "$sparda" export "$work/bad/step.h5" --out "$work/x"
has err 'not a complete HDF5 file'
finish
