#!/bin/sh
# shellcheck disable=SC1091,SC2154
# `sparda info` on every kind of file and folder, and on things that are none of them.
. "$(dirname "$0")/check.sh"
sparda=$1
"$(dirname "$sparda")/tests/test_export" "$work/run" || complain "no run folder"

check 0 "$sparda" info --help
has out 'sparda info PATH'
check 2 "$sparda" info
check 2 "$sparda" info a b
check 2 "$sparda" info --json
has err "unknown option '--json'"
check 2 "$sparda" info "$work/nothing"
has err 'does not exist'

# ---- states and runs
state=$work/run/checkpoints/step-0000030.h5
check 0 "$sparda" info "$state"
has out 'training state'
has out 'step 30 (30 updates), 960 samples, 983040 tokens'
has out '6 trained matrices \[128,256\] fp32 and one unused, 196608 parameters, no moments'
has out 'base model tiny-base: 6 layers, hidden 256, 8 query heads, 2 KV heads of 64'
has out '85a376ac3925b5a6bcb45d7c41462b59f4ec9272ba14b720deb93e9ba6f82edd'
has out 'kernel 8/4, block 16, init 1, window 32, topk 8'
empty err
printf '{"status": "stopped", "steps": 30}\n' >"$work/run/run.json"
printf '{"step": 29}\n{"step": 30, "train/kl": 1.5}\n' >"$work/run/metrics.jsonl"
head -c 5000 "$state" >"$work/run/checkpoints/step-0000040.h5"
check 0 "$sparda" info "$work/run"
has out 'run folder'
has out '^  status: stopped$'
has out '^  metrics.jsonl: 2 lines$'
has out '^      train/kl: 1.5$'
has out 'step-0000030.h5, .* step 30$'
has out 'step-0000040.h5, .*not readable: .*truncated'
has out 'newest: step-0000030.h5'
check 2 "$sparda" info "$work/run/checkpoints/step-0000040.h5"
has err 'not a complete HDF5 file'
# a run that says it is running: by a process that is here, and by one that is not
started() { printf '{"status": "running", "starts": [{"host": "%s", "process": %s}]}\n' "$1" "$2" >"$work/run/run.json"; }
sh -c : & gone=$!
wait "$gone"
for of in "$(uname -n) $$" "elsewhere $gone"; do
    # shellcheck disable=SC2086  # two words
    started $of
    check 0 "$sparda" info "$work/run"
    has out '^  status: running$'
    ! grep -q 'any more' "$work/out" || complain "declared dead: $of"
done
started "$(uname -n)" "$gone"
check 0 "$sparda" info "$work/run"
has out "process $gone is not on $(uname -n) any more: .* resume_command continues"

# ---- exports and models
check 0 "$sparda" export "$work/run" --out "$work/e" --no-parity
check 0 "$sparda" info "$work/e"
has out 'exported Forecast'
has out '^    step: 30$'
has out '7 tensors recorded'
has out 'forecast.pt, '
check 0 "$sparda" info "$work/e/forecast.safetensors"
has out '7 tensors, 229376 elements; 7 Forecast matrices'
has out 'metadata sparda.step: 30'
has out 'model.layers.0.self_attn.q_curr_proj.weight BF16 \[128,256\]'
check 0 "$sparda" info "$work/e/forecast.pt"
has out 'torch checkpoint'
has out '7 Forecast matrices'
has out "'step': 30"
has out "'topk': 8"
check 0 "$sparda" info "$root/tests/pt/ckpt-7.pt"
has out "'rng_state': a dictionary of 3"
has out "q_curr_proj.weight': a tensor bfloat16 \[8,6\]"
check 2 "$sparda" info "$root/tests/pt/legacy.pt"
has err 'old format'
check 0 "$sparda" info "$root/data/tiny-base"
has out 'model folder'
has out '256'
lacks out 'not usable'
# without the method's constants: a model all the same; with a file cut or gone: none
cp -r "$root/data/tiny-base" "$work/base"
sed -z 's/,\n "sparse_config": {[^}]*}//' "$root/data/tiny-base/config.json" >"$work/base/config.json"
check 0 "$sparda" info "$work/base"
has out 'not usable as a base model as it is'
has out 'sparse_config is absent'
has out '56 tensors in 1 file'
truncate -s -9 "$work/base/model.safetensors"
check 2 "$sparda" info "$work/base"
empty out
has err "$work/base/model.safetensors is cut short"
has err 'sparse_config is absent'
rm "$work/base/model.safetensors"
check 2 "$sparda" info "$work/base"
has err "$work/base holds neither model.safetensors"
check 0 "$sparda" export "$work/run" --out "$work/m" --no-parity --merge "$root/data/tiny-base"
check 0 "$sparda" info "$work/m"
has out 'model folder'
has out 'exported Forecast'

# An export with a file that is cut off, something else, or missing is none: all are named, with the remedy.
check 0 "$sparda" export "$work/run" --out "$work/whole" --base "$root/data/tiny-base"
check 0 "$sparda" info "$work/whole"
has out 'exported Forecast, every file complete'
has out '^  parity.safetensors, '
# damaged COMMAND PATTERN...: a copy, after a command in it, is refused with these words.
damaged() {
    rm -rf "$work/d"
    cp -r "$work/whole" "$work/d"
    (cd "$work/d" && eval "$1")
    shift
    check 2 "$sparda" info "$work/d"
    empty out
    has err "$work/d is not a complete export; write it again ('sparda export', --force)"
    for pattern; do has err "$pattern"; done
}
for file in forecast.safetensors forecast.pt parity.safetensors sparda_config.json; do
    damaged "truncate -s -9 $file" "^  - .*$work/d/$file"
    damaged "truncate -s 0 $file" "^  - .*$work/d/$file"
    damaged "rm $file" "^  - .*$work/d/$file"
done
damaged 'rm parity.safetensors; truncate -s 1000 forecast.pt; printf "<html>" >forecast.safetensors' \
    'parity.safetensors is missing, and sparda_config.json names it' 'd/forecast.pt' 'HTML'
rm "$work/m/sparda/forecast.pt"
check 2 "$sparda" info "$work/m"
has err "$work/m/sparda/forecast.pt is missing"
mkdir "$work/half"
printf '{"model_type": "llama",' >"$work/half/config.json"
check 2 "$sparda" info "$work/half"
has err 'config.json:1:.* not valid JSON'
printf '{"model_type": "llama"}' >"$work/half/config.json"
check 2 "$sparda" info "$work/half"
has err "$work/half holds neither model.safetensors"

# ---- token data
check 0 "$sparda" data synth --out "$work/data" --rows 3 --seq-len 256 --seed 1
for shard in "$work"/data/*.h5; do
    check 0 "$sparda" info "$shard"
    has out 'token data'
    has out '3 rows, 768 tokens'
done
check 0 "$sparda" info "$work/data"
has out '3 rows, 768 tokens'
check 0 "$sparda" info "$root/tests/mds/raw/ledger"
has out 'token data'
check 0 "$sparda" info "$root/tests/mds/raw"
has out 'prose-code: '

check 0 "$sparda" info "$work/data" "$root/tests/mds/raw"
has out '3 rows, 768 tokens'
has out 'prose-code: '
check 2 "$sparda" info "$work/data" --json
has err "unknown option '--json'"
check 2 "$sparda" info

# ---- none of them
check 2 "$sparda" info "$root/configs/tiny.yaml"
has err 'sparda train .*/tiny.yaml --print-config'
check 2 "$sparda" info "$root/data/tiny-base/config.json"
has err 'a part of its folder'
printf 'hello world, this is nothing' >"$work/text"
check 2 "$sparda" info "$work/text"
has err "first bytes are 68 65 6c .*'hello world, thi'"
has err 'It reads: training states'
: >"$work/zero"
check 2 "$sparda" info "$work/zero"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n' >"$work/lfs"
check 2 "$sparda" info "$work/lfs"
has err 'LFS'
printf '<!DOCTYPE html>' >"$work/page.safetensors"
check 2 "$sparda" info "$work/page.safetensors"
has err 'HTML'
mkdir "$work/none"
check 2 "$sparda" info "$work/none"
: >"$work/none/a.txt"
check 2 "$sparda" info "$work/none"
has err 'it holds a.txt'
finish
