#!/bin/sh
# ctest: timeout=300
# shellcheck disable=SC1091,SC2154
# The NOSA backbone through the whole program with the same commands: info, train, resume, export,
# import of the export, validate, bench; and the recipe's select_blocks where config.json has none.
sparda=$1
. "$(dirname "$0")/train.sh"
base=$root/data/tiny-nosa
sed "s|^base:.*|base: $base|" "$work/c.yaml" >"$work/nosa.yaml"

check 0 "$sparda" info "$base"
has out 'importance  of every key'
has out '10 by the query'

check 0 "$sparda" train "$work/nosa.yaml" --set steps=2 --set threads=1 --out "$work/run"
check 0 "$sparda" train "$work/nosa.yaml" --set steps=2 --set threads=1 --out "$work/run" --resume
check 0 "$sparda" info "$work/run/checkpoints/step-0000002.h5"
has out 'select_blocks 7'
check 2 "$sparda" train "$work/nosa.yaml" --set steps=3 --set threads=1 --set rope_tables=bf16 \
    --out "$work/run" --resume
has err 'rope_tables: fp32 -> bf16'

check 0 "$sparda" export "$work/run" --out "$work/export"
for key in '"select_blocks": 7' '"k_shortlist": 10' '"k_by_importance": 4' '"k_chosen": 6' \
    '"k_effective": 14' 'in two stages'; do
    grep -q -- "$key" "$work/export/sparda_config.json" || complain "the record lacks $key"
done
check 0 "$sparda" info "$work/export/parity.safetensors"
for name in layer.0.block_importance layer.5.shortlist.complete layer.5.blocks.start; do
    has out "$name"
done

# Two steps teach nothing: checks of quality may fail, those of files and paths must not.
"$sparda" validate --base "$base" --forecast "$work/export" --report "$work/report" \
    --set validate.samples=2 --set 'validate.lengths=[512]' --set validate.lm_rows=2 \
    --set threads=1 >"$work/out" 2>"$work/err"
[ $? -le 1 ] || complain "validate"
has err 'checks passed'
lacks err 'failed [EP][0-9]'
lacks err 'not run here (.*\(E[0-9]\|P[156]\)'
grep -q '"k_by_importance": 4' "$work/report/validation_report.json" || complain "report"

# The export belongs to this base only, and to its number of blocks.
check 1 "$sparda" validate --base "$root/data/tiny-base" --forecast "$work/export" \
    --report "$work/report" --set validate.samples=2 --set 'validate.lengths=[256]'
has err 'another base model'

# Without sparse_config in the folder the recipe supplies it; without the tensors it says so.
mkdir "$work/bare"
cp "$base/model.safetensors" "$work/bare"
sed '/"select_blocks"/d' "$base/config.json" >"$work/bare/config.json"
check 0 "$sparda" train "$work/nosa.yaml" --set base="$work/bare" --set sparse_config.select_blocks=7 \
    --out "$work/bare-run" --dry-run
has err 'select_blocks 7 (run configuration)'
check 2 "$sparda" train "$work/nosa.yaml" --set base="$work/bare" --out "$work/bare-run" --dry-run
has err 'key sparse_config.select_blocks'
check 2 "$sparda" train "$work/c.yaml" --set sparse_config.select_blocks=7 --out "$work/bare-run" --dry-run
has err 'no layer has the tensors self_attn.A'

check 0 "$sparda" bench train-step --base "$base" --seq-len 256 --steps 1 --threads 1
has err 'extend_lists'
finish
