#!/bin/sh
# shellcheck disable=SC1091,SC2154
# The command line of every command: help, versions, wrong usage, exit statuses, and which stream
# says what. $1 is the program.
. "$(dirname "$0")/check.sh"
sparda=$1

check 0 "$sparda" --help
for command in train export validate data info bench; do has out "sparda $command "; done
has out 'Exit status'
empty err
check 0 "$sparda" -h
check 0 "$sparda" --version
has out '^sparda [0-9]*\.[0-9]*\.[0-9]* ('
empty err

check 2 "$sparda"
has err 'no command given'
empty out
check 2 "$sparda" tarin
has err "^sparda: error: unknown command 'tarin'"
check 2 "$sparda" ''
check 2 "$sparda" --verbose
empty out
check 0 "$sparda" help
has out 'sparda train'
check 0 "$sparda" help export
has out '^sparda export CHECKPOINT'

for command in train export validate data info bench; do
    check 0 "$sparda" $command --help
    has out "sparda $command"
    empty err
    check 2 "$sparda" $command --no-such-option
    has err '^sparda: error: '
    has err '--no-such-option'
    empty out
    check 2 "$sparda" $command # something is missing
    has err '^sparda: error: '
    empty out
done

# Results that cannot be written are an error, not a silence.
if [ -c /dev/full ]; then
    got=0
    "$sparda" train --reference >/dev/full 2>"$work/err" || got=$?
    [ $got = 3 ] || complain "status $got with a full standard output"
    has err 'standard output'
fi

# ---- train ----------------------------------------------------------------------------------------
cd "$root" || exit 1
check 0 "$sparda" train --reference
cmp -s "$work/out" configs/reference.yaml || complain 'configs/reference.yaml is not --reference'
empty err
check 0 "$sparda" train configs/tiny.yaml --set lr=0.25 --set seed=7 --print-config
has out '^lr: 0.25  # --set$'
has out '^seq_len: 1024  # configs/tiny.yaml:[0-9]*$'
has out '^weight_decay: 0.01  # default$'
has out "^base: $root/data/tiny-base "
empty err
cp "$work/out" "$work/resolved.yaml"
sed 's/  #.*//' "$work/out" >"$work/first"
check 0 "$sparda" train "$work/resolved.yaml" --print-config
sed 's/  #.*//' "$work/out" | cmp -s - "$work/first" ||
    complain 'the resolved configuration does not resolve to itself'

check 2 "$sparda" train "$work/none.yaml"
has err 'none.yaml'
check 2 "$sparda" train configs/tiny.yaml configs/tiny.yaml
has err "unexpected argument 'configs/tiny.yaml'"
check 2 "$sparda" train configs/tiny.yaml --set
has err '--set needs a value'
check 2 "$sparda" train configs/tiny.yaml --resume --force
check 2 "$sparda" train configs/tiny.yaml --set step=5 --print-config
has err "unknown key 'step'; did you mean 'steps'?"
empty out
printf 'steps: 5x\nlr: [1]\nfoo: 1\n' >"$work/bad.yaml"
check 2 "$sparda" train "$work/bad.yaml" --dry-run
has err 'bad.yaml:1:8: steps: expected an integer'
has err 'bad.yaml:2:5: lr: expected a number'
has err "bad.yaml:3:1: unknown key 'foo'"

# A dry run writes nothing, and says what it would do.
check 0 "$sparda" data synth --out "$work/corpus" --rows 4 --seq-len 64
check 0 "$sparda" train configs/tiny.yaml --set "data=[$work/corpus]" --set 'eval_data=[]' \
    --set eval_every_steps=0 --dry-run --out "$work/dry"
has err 'dry run'
[ ! -e "$work/dry" ] || complain 'a dry run wrote something'
# Rows that only the validation after the run reads are looked for before it.
check 2 "$sparda" train configs/tiny.yaml --set "data=[$work/corpus]" --set "eval_data=[$work/none]" \
    --set eval_every_steps=0 --dry-run --out "$work/dry"
has err "eval_data (from .*"
has err "$work/none does not exist"

# ---- the others -----------------------------------------------------------------------------------
check 2 "$sparda" data frobnicate
has err frobnicate
check 2 "$sparda" data info "$work/none"
has err "$work/none"
check 0 "$sparda" data info "$work/corpus" --json
has out '"rows": *4'
check 2 "$sparda" info "$work/none"
has err "$work/none"
check 0 "$sparda" info data/tiny-base
has out 4590848
check 2 "$sparda" export "$work/none.h5" --out "$work/export"
has err none.h5
[ ! -e "$work/export" ] || complain 'a failed export left a folder'
check 2 "$sparda" export "$work/none.h5"
has err '--out'
check 2 "$sparda" validate --base data/tiny-base --forecast "$work/none" --report "$work/report"
has err "$work/none"
check 2 "$sparda" validate --forecast x --report "$work/report"
has err '--base'
check 2 "$sparda" bench no_such_operation
has err no_such_operation

finish
