#!/bin/sh
# ctest: mpi=yes timeout=300
# sparda train: arguments, refusals, exit statuses, the run folder.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/train.sh"

# ---- arguments ------------------------------------------------------------------------------------
check 0 "$sparda" train --help
has out '--resume=auto'
has out 'global_batch'
empty err
check 2 "$sparda" train
has err 'no configuration'
check 2 train r --wrong --resume --force
has err "unknown option '--wrong'"
has err 'exclude each other'
check 2 "$sparda" train "$work/c.yaml" --resume
has err 'needs --out'
check 2 train r --set
has err '--set needs a value'
check 2 "$sparda" train "$work/none.yaml" --out "$work/r"
has err 'none.yaml'
check 2 "$sparda" train --set "base=$base" --out "$work/r"
has err 'data missing'

# A printed configuration prints the same again.
check 0 train r --print-config --set lr=0.25
has out '^lr: 0.25'
sed 's/ *#.*//' "$work/out" >"$work/first"
cp "$work/out" "$work/printed.yaml"
check 0 "$sparda" train "$work/printed.yaml" --print-config
sed 's/ *#.*//' "$work/out" | cmp - "$work/first" >"$work/err" || complain 'print-config changes'

# ---- refusals before anything is written ----------------------------------------------------------
check 2 train r --set seq_len=9000 --set micro_batch=3 --set training_kernel_stride=3
has err 'seq_len 9000 is beyond the 8192 positions'
has err 'global_batch 4 is not a multiple of ranks 1 x micro_batch 3'
has err 'stride'
check 2 train r --set seq_len=7
has err 'below one compression window of 8 tokens'
check 2 train r --set "base=$work/none"
has err "$work/none"
check 2 train r --set "data=[{path: $work/none}]"
has err "$work/none"
check 2 train r --set global_batch=0
has err 'global_batch'
check 2 env SLURM_NTASKS=4 SLURM_PROCID=2 "$sparda" train "$work/c.yaml" --out "$work/r"
has err 'announces 4 tasks, but this process finds 1'
# (under the sanitizers: leaks of MPI's plug-ins, unloaded by then, are not ours)
check 2 env PMI_SIZE=2 ASAN_OPTIONS=detect_leaks=0 "$sparda" train "$work/c.yaml" --out "$work/r"
has err 'announces 2 tasks, but this process finds 1'
# What the validation after the run cannot do, before the run; without one it does not matter.
for dry in --dry-run ''; do
    check 2 train r $dry --set 'after_training=[export, validate]' --set 'validate.lengths=[1, 256, 9000]'
    has err '^  - 9000: the base model has only 8192 positions'
    has err '^  - 1: at least 2 tokens'
done
check 0 train r --dry-run --set 'after_training=[export]' --set 'validate.lengths=[9000]'
check 2 train r --resume
has err 'nothing to resume'
check 2 train r --set "init_from=$work/none.pt"
has err 'none.pt'
check 2 train r --dry-run --set "init_from=$work/c.yaml"
has err 'c.yaml'
[ ! -e "$work/r" ] || complain 'a refused run left a folder'

check 0 train r --dry-run
has err 'parameters  4590848 in the base model'
has err 'predicted'
has err 'dry run'
has err 'lr: 0.002'
[ ! -e "$work/r" ] || complain 'a dry run left a folder'

# A destination that the run would refuse, the dry run refuses likewise.
for dry in --dry-run ''; do
    check 2 "$sparda" train "$work/c.yaml" $dry --out "$work/c.yaml/x"
    has err 'c.yaml exists and is not a folder'
    check 2 "$sparda" train "$work/c.yaml" $dry --out "$work/c.yaml"
    has err 'c.yaml exists and is not a folder'
    if [ "$(id -u)" = 0 ]; then
        check 2 "$sparda" train "$work/c.yaml" $dry --out /proc/x/y
        has err 'cannot create the folder /proc/x/y: .*another path'
    else # root may write anywhere else
        mkdir -p "$work/locked"
        chmod 555 "$work/locked"
        check 3 "$sparda" train "$work/c.yaml" $dry --out "$work/locked/x"
        has err "cannot write in the folder $work/locked"
        check 3 "$sparda" train "$work/c.yaml" $dry --out "$work/locked"
        has err "cannot write in the folder $work/locked"
    fi
done

# A run that failed before its first step is moved aside; one that got further is not touched.
mkdir "$work/failed"
echo '{"status": "failed", "step": 0}' >"$work/failed/run.json"
check 0 train failed --set steps=1
has err "moved to $work/failed/old-1"
[ -f "$work/failed/checkpoints/latest" ] || complain 'no run after a failed start'
mkdir "$work/stopped"
echo '{"status": "failed", "step": 3}' >"$work/stopped/run.json"
check 2 train stopped --set steps=1
has err 'is not empty'

# ---- the run folder -------------------------------------------------------------------------------
# The base model's parameters, options with their source, data and backend stand in the header.
check 0 train r --set steps=5 --set keep_last=2 --set eval_every_steps=4 --set "eval_data=[$work/corpus]" \
    --set eval_rows=2 --set save_every_steps=1
for text in '^sparda [0-9]' 'c.yaml:[0-9]' '--set' 'backend *cpu' 'SGEMM' 'held out' 'rows' 'memory' \
    'step *kl *grad norm'; do
    has err "$text"
done
empty out
for file in config.resolved.yaml run.json metrics.jsonl log/rank-0.log checkpoints/latest \
    checkpoints/step-0000004.h5 checkpoints/step-0000005.h5; do
    [ -s "$work/r/$file" ] || complain "$file is missing"
done
[ "$(ls "$work/r/checkpoints")" = "latest
step-0000004.h5
step-0000005.h5" ] || complain "checkpoints: $(ls "$work/r/checkpoints")"
[ "$(cat "$work/r/checkpoints/latest")" = step-0000005.h5 ] || complain 'latest'
[ -n "$(ls "$work/r/tb")" ] || complain 'no event file'
[ "$(find "$work/r" -name '.*' ! -path "$work/r" | wc -l)" = 0 ] || complain 'hidden files are left'
[ "$(lines r)" = 5 ] || complain 'not one line per step'
[ "$(grep -c '"eval/recall_layers"' "$work/r/metrics.jsonl")" = 2 ] || complain 'eval at 4 and the end'
[ "$(status_of r)" = finished ] || complain "status $(status_of r)"
check 0 "$sparda" train "$work/r/config.resolved.yaml" --print-config

# Not empty: refused, and nothing is touched.
find "$work/r" -type f -exec cksum {} + | sort >"$work/before"
check 2 train r
has err 'not empty'
check 2 train r --resume --set lr=1e-3 --set seed=7 --set global_batch=8
has err 'lr: 0.002 -> 0.001'
has err 'seed: 42 -> 7'
has err 'global_batch: 4 -> 8'
check 2 train r --resume --set steps=5 --set "data=[$work/corpus]"
has err 'data'
check 2 train r --resume --set steps=4
has err '5 steps are already done'
check 0 train r --resume --set steps=5
has err 'finished run'
find "$work/r" -type f -exec cksum {} + | sort | cmp - "$work/before" >"$work/out" ||
    complain 'a refused run changed the folder'

# What alters no number may change.
check 0 train r --resume --set steps=6 --set micro_batch=2 --set save_every_steps=3 --set keep_last=5
[ "$(lines r)" = 6 ] || complain 'resumed metrics'
[ -s "$work/r/checkpoints/step-0000005.h5" ] || complain 'the checkpoint resumed from is gone'
# A longer run may not change a warm-up that was already used.
check 0 train w --set steps=20 --set warmup_steps=4 --set save_every_steps=100 --set global_batch=1
check 2 train w --resume --set steps=40 --set warmup_steps=4 --set global_batch=1
has err 'warm-up (2 -> 4 steps)'

# --force moves the old run aside and deletes nothing.
check 0 train r --force --set steps=1
[ -s "$work/r/old-1/checkpoints/step-0000006.h5" ] || complain 'the old checkpoints are gone'
[ "$(ls "$work/r/checkpoints")" = "latest
step-0000001.h5" ] || complain 'new checkpoints'
[ "$(lines r)" = 1 ] || complain 'old metrics under a new run'
check 0 train r --force --set steps=1
[ -s "$work/r/old-2/checkpoints/step-0000001.h5" ] || complain 'old-2'

# What the new run reads is not moved away from under it, also behind a link; init_from has been read
# by then.
cp -r "$work/corpus" "$work/r/export"
cp -r "$base" "$work/r/log/base"
ln -s "$work/r/export" "$work/link"
find "$work/r" | sort >"$work/before"
for dry in --dry-run ''; do
    check 2 train r $dry --force --set steps=1 --set "data=[$work/short, $work/link]" \
        --set "base=$work/r/log/base" --set "eval_data=[$work/r/export]"
    has err "base: $work/r/log/base"
    has err "data: $work/link"
    has err "eval_data: $work/r/export"
    lacks err "$work/short"
    has err 'choose another --out'
done
find "$work/r" | sort | cmp - "$work/before" >"$work/out" || complain 'a refused run moved something'
mv "$work/r/export" "$work/r/mine"
check 0 train r --force --set steps=1 --set "data=[$work/r/mine]" \
    --set "init_from=$work/r/checkpoints/step-0000001.h5"
[ -d "$work/r/mine" ] || complain 'what is not a part of a run was moved'
[ -d "$work/r/old-3/log/base" ] || complain 'old-3'
mkdir -p "$work/failed-again/export"
echo '{"status": "failed", "step": 0}' >"$work/failed-again/run.json"
check 2 train failed-again --set steps=1 --set "data=[$work/failed-again/export]"
has err "data: $work/failed-again/export"

# ---- names that are taken ---------------------------------------------------------------------------
# What would fail the last save, or the export after it, is refused at the start; other stray names are not.
check 0 train taken --set steps=2
mkdir "$work/taken/checkpoints/step-0000001.h5" "$work/taken/checkpoints/step-0000009.h5"
check 0 train taken --resume --set steps=4
mkdir "$work/taken/checkpoints/step-0000005.h5" "$work/taken/checkpoints/step-0000006.h5"
: >"$work/taken/export"
for dry in --dry-run ''; do
    check 2 train taken $dry --resume --set steps=6 --set 'after_training=[export]'
    has err 'taken holds what is in the way of this run; move it elsewhere'
    has err 'checkpoints/step-0000006.h5 is a folder, and checkpoints are saved'
    has err 'step-0000005.h5 is a folder, and' # saved, should the run be stopped there
    has err 'after_training: .*taken/export exists and is not a folder'
    lacks err 'step-000000[19].h5 is a folder, and'
done
rmdir "$work/taken/checkpoints/step-0000005.h5" "$work/taken/checkpoints/step-0000006.h5"
rm "$work/taken/export" "$work/taken/checkpoints/latest"
mkdir "$work/taken/checkpoints/latest"
mv "$work/taken/metrics.jsonl" "$work/metrics.jsonl"
mkdir "$work/taken/metrics.jsonl"
for dry in --dry-run ''; do
    check 2 train taken $dry --resume --set steps=6
    has err 'checkpoints/latest is a folder'
    has err 'taken/metrics.jsonl is a folder'
done
rmdir "$work/taken/metrics.jsonl"
check 0 train taken --force --set steps=1 # moves all of it aside
mkdir -p "$work/fresh/checkpoints/step-0000000.h5"
check 2 train fresh --resume=auto --set steps=1
has err 'step-0000000.h5 is a folder, and' # saved by a signal before the first step
# Taken while the run goes on: the message names the checkpoint that is there.
start late --set steps=100000 --set save_every_steps=100000
await late 2
mkdir "$work/late/checkpoints/latest"
kill -TERM "$pid"
ended 3 'a save without its pointer'
cp "$work/late.err" "$work/err"
has err "is done and saved in $work/late/checkpoints/step-00.*.h5, but the save is not complete.*latest"
rmdir "$work/late/checkpoints/latest"
saved=$(basename "$work/late/checkpoints"/step-*.h5)
check 0 train late --resume --set steps=100000 --dry-run
has err "$saved"

# --resume=auto starts anew where nothing is.
check 0 train auto --resume=auto --set steps=2
[ "$(lines auto)" = 2 ] || complain 'auto'
# A relative path and the default folder.
(cd "$work" && "$sparda" train c.yaml --set steps=1 --set name=fun) >"$work/out" 2>"$work/err" ||
    complain 'default folder'
[ -n "$(find "$work/runs" -path '*/fun-*/checkpoints/step-0000001.h5')" ] ||
    complain 'runs/<name>-<time>'

# An export that is to be validated hears of it before it is written.
check 0 train v --set steps=1 --set 'validate.lengths=[9000]'
check 2 "$sparda" export "$work/v" --out "$work/v-export" --validate
has err '9000: the base model has only 8192 positions'
[ ! -e "$work/v-export" ] || complain 'an export that cannot be validated was written'

# eval_data that cannot be measured (161 tokens leave a choice) is a warning before the first step and
# in the report, and the run keeps its validation.
set -- --set steps=1 --set "eval_data=[$work/corpus]" --set 'after_training=[export, validate]' \
    --set validate.samples=2 --set 'validate.lengths=[256]'
check 0 train q --dry-run "$@"
has err 'warning: the validation will not measure the quality on .*/corpus: its longest row has 160 tokens, and only from 161 tokens on'
check 0 train q "$@"
sed '/step *kl *grad norm/q' "$work/err" | grep -q 'warning: the validation will not measure' ||
    complain 'no warning before the first step'
has err 'passed with warnings'
has err 'warning Q1: not measured on .*/corpus: its longest row has 160 tokens, and only from 161 tokens on'
grep -q '"status": "pass_with_warnings"' "$work/q/export/validation_report.json" || complain 'status'

# ---- after_training of a finished run ----------------------------------------------------------------
# What is asked for later and is not done is done, once; more steps make an export that is none of theirs.
recorded() { sed -n 's/^  "\(export\|validation\)": .*/\1/p' "$work/after/run.json" | sort | tr '\n' ' '; }
check 0 train after --set steps=2
check 0 train after --resume --set steps=2
has err 'nothing to do'
check 0 train after --resume --set steps=2 --set 'after_training=[export]'
has err 'exported step 2'
lacks err 'nothing to do'
[ "$(lines after)" = 2 ] || complain 'steps of a run that was only exported'
[ "$(status_of after)$(recorded)" = 'finishedexport ' ] || complain "$(cat "$work/after/run.json")"
check 0 train after --resume --set steps=2 --set 'after_training=[export]'
has err 'nothing to do'
set -- --set "eval_data=[$work/corpus]" --set validate.samples=2 --set 'validate.lengths=[256]'
check 0 train after --resume --set steps=2 --set 'after_training=[export, validate]' "$@"
lacks err 'exported step'
has err 'passed with warnings'
[ "$(recorded)" = 'export validation ' ] || complain "recorded: $(recorded)"
check 0 train after --resume --set steps=2 --set 'after_training=[export, validate]' "$@"
has err 'nothing to do'
rm -r "$work/after/export"
check 0 train after --resume --set steps=2 --set 'after_training=[export, validate]' "$@"
has err 'exported step 2'
has err 'passed with warnings'
check 0 train after --resume --set steps=3
[ "$(recorded)" = '' ] || complain "of step 2: $(recorded)"
check 0 train after --resume --set steps=3 --set 'after_training=[export]'
has err 'exported step 3'

# ---- two runs, one folder -------------------------------------------------------------------------
start lock --set steps=100000 --set save_every_steps=2
await lock 3
check 2 train lock --set steps=100000 --resume
has err 'in use by another run'
has err "process $pid"
check 2 train lock --force
has err 'in use'
kill -9 "$pid"
ended 137 'a killed run'
steps=$(($(latest_step lock) + 1))
check 0 train lock --set steps=$steps --resume # the dead owner's lock is taken over
[ "$(lines lock)" = $steps ] || complain 'steps after the kill'

# ---- rows below one window ------------------------------------------------------------------------
"$sparda" data synth --out "$work/below" --rows 4 --seq-len 5 2>"$work/err" || complain 'data synth'
check 0 train tiny --set "data=[$work/below]" --set steps=2
has err 'no sample of the batch holds a whole window'
has err '8 of 8 samples were below one window of 8 tokens'
[ "$(lines tiny)" = 2 ] || complain 'steps without used rows count'
grep -q '"train/kl":0.0,.*"train/grad_norm":0.0,.*"train/tokens":0,' "$work/tiny/metrics.jsonl" ||
    complain 'a step without used rows'
! grep -q nonfinite "$work/tiny/metrics.jsonl" || complain 'nonfinite'
# They keep their place, and are not in the mean: of four rows in order, one is too short.
check 0 train mixed --set "data=[$work/below, $work/corpus]" --set data_order=sequential --set steps=2 \
    --set global_batch=5
grep -q '"step":1,.*"train/tokens":128,' "$work/mixed/metrics.jsonl" || complain 'tokens of used rows'
check 0 train only --set "data=[$work/corpus]" --set data_order=sequential --set steps=1 \
    --set global_batch=1
kl() {
    sed -n '1s/.*\("train\/kl":[^,]*\),.*\("train\/grad_norm":[^,]*\),.*/\1 \2/p' "$work/$1/metrics.jsonl"
}
[ -n "$(kl only)" ] || complain 'no kl'
[ "$(kl only)" = "$(kl mixed)" ] || complain "mean over used rows: $(kl only), $(kl mixed)"

# ---- data and base model that have moved are the same; other ones are not
"$sparda" data synth --out "$work/old" --rows 8 --seq-len 64 --seed 1 2>"$work/err" || complain "no data"
cp -r "$root/data/tiny-base" "$work/old-base"
check 0 train moved --set "data=[$work/old]" --set "base=$work/old-base" --set steps=1
has err 'no row of the data has more than 64 tokens, which leaves no query a choice'
mv "$work/old" "$work/new"
mv "$work/old-base" "$work/new-base"
check 0 train moved --set "data=[$work/new]" --set "base=$work/new-base" --set steps=2 --resume
[ "$(lines moved)" = 2 ] || complain 'steps after a move'
has err 'with other options than until then'
has err '^  *steps: 1 -> 2$'
has err "^  *base: $work/old-base -> $work/new-base$"
grep -q "$work/new-base" "$work/moved/config.resolved.yaml" || complain 'the new place is on record'
check 2 train moved --set "data=[$work/new, $work/corpus]" --set "base=$work/new-base" --set steps=3 --resume
has err 'data: .*/new.* -> .*/corpus'
check 2 train moved --set "data=[$work/corpus]" --set "base=$work/new-base" --set steps=3 --resume
has err 'the training data has changed'
printf '\n' >>"$work/new-base/config.json"
check 2 train moved --set "data=[$work/new]" --set "base=$work/new-base" --set steps=3 --resume
has err 'trained for another base model'
has err 'SHA-256 of config.json'

# ---- a newest checkpoint that is damaged: the one before it serves
check 0 train hurt --set "data=[$work/corpus]" --set steps=2 --set save_every_steps=1
newest=$work/hurt/checkpoints/step-0000002.h5
middle=$(($(wc -c <"$newest") / 2))
printf 'damage' | dd of="$newest" bs=1 seek=$middle conv=notrunc 2>"$work/dd"
check 0 train hurt --set "data=[$work/corpus]" --set steps=3 --set save_every_steps=1 --resume=auto
has err "ignoring a checkpoint: $newest.*checksum"
has err 'after step 1 from'
[ "$(lines hurt)" = 3 ] || complain 'steps after a damaged checkpoint'
# Steps of before the run went back do not push out the ones that it saves.
check 0 train back --set "data=[$work/corpus]" --set steps=4 --set save_every_steps=1
damage() {
    for step in "$@"; do
        printf 'damage' | dd of="$work/back/checkpoints/step-000000$step.h5" bs=1 seek=$middle conv=notrunc 2>"$work/dd"
    done
}
damage 3 4
check 0 train back --set "data=[$work/corpus]" --set steps=2 --set save_every_steps=1 --set keep_last=2 --resume
check 0 "$sparda" info "$work/back/checkpoints/step-0000001.h5"
check 0 "$sparda" info "$work/back/checkpoints/step-0000002.h5"
# Where none can be used, nothing is begun in their midst.
damage 1 2
cksum "$work/back/checkpoints/"* "$work/back/metrics.jsonl" >"$work/sums"
for how in --resume --resume=auto; do
    check 2 train back --set "data=[$work/corpus]" --set steps=5 "$how"
    has err "of the 4 checkpoints in $work/back/checkpoints none can be used"
    has err 'begin anew in another folder, or with --force'
done
cksum "$work/back/checkpoints/"* "$work/back/metrics.jsonl" >"$work/sums-then"
cmp -s "$work/sums" "$work/sums-then" || complain 'unusable checkpoints or their metrics were touched'
check 0 "$sparda" info "$work/back"
has out 'newest: of the 4 checkpoints'
check 0 train back --set "data=[$work/corpus]" --set steps=1 --force
[ -f "$work/back/old-1/checkpoints/step-0000004.h5" ] || complain 'not moved aside'
# One that the system does not let us read may be intact: the run does not go on without it.
nobody=
[ "$(id -u)" != 0 ] || nobody='setpriv --reuid=65534 --regid=65534 --clear-groups'
chmod 755 "$work"
if $nobody test -r "$base/config.json" -a -x "$sparda" 2>"$work/dd"; then
    mkdir "$work/theirs"
    cp -r "$work/hurt" "$work/theirs/run"
    chmod 000 "$work/theirs/run/checkpoints/step-0000003.h5"
    [ -z "$nobody" ] || chown -R 65534:65534 "$work/theirs"
    # shellcheck disable=SC2086  # no word where it is empty
    check 3 $nobody "$sparda" train "$work/c.yaml" --set "data=[$work/corpus]" --set "base=$base" --set steps=4 \
        --out "$work/theirs/run" --resume=auto
    has err 'step-0000003.h5 cannot be read: Permission denied; make it readable, or move it away'
fi

# ---- rows of another tokenizer than the model's
cp -r "$root/data/tiny-base" "$work/tok"
printf '{"a": 1}\n' >"$work/tok/tokenizer.json"
printf '%s\n' '[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]' >"$work/ids.jsonl"
check 0 "$sparda" data import "$work/ids.jsonl" --base "$work/tok" --out "$work/ids"
check 0 train with-tok --set "data=[$work/ids]" --set "base=$work/tok" --dry-run
lacks err 'has another one'
check 0 "$sparda" data verify "$work/ids" --base "$work/tok"
lacks err 'has another one'
printf '{"a": 2}\n' >"$work/tok/tokenizer.json"
check 0 train with-tok --set "data=[$work/ids]" --set "base=$work/tok" --dry-run
has err "of the tokenizer 'tok tokenizer.json sha256:[0-9a-f]*', and $work/tok has another one"
check 0 "$sparda" data verify "$work/ids" --base "$work/tok"
has err 'has another one'
check 0 train with-tok --set "data=[$work/corpus]" --set "base=$work/tok" --dry-run
has err "of the tokenizer 'synthetic-1024', and .* has another one"
for stated in 'X sha256:' 'sha256:e' 'not stated'; do # too little to tell
    check 0 "$sparda" data import "$work/ids.jsonl" --vocab 1024 --tokenizer "$stated" --out "$work/ids" --force
    check 0 train with-tok --set "data=[$work/ids]" --set "base=$work/tok" --dry-run
    lacks err 'has another one'
done
hash=$(sha256sum <"$work/tok/tokenizer.json" | tr a-f A-F | cut -c1-40)
check 0 "$sparda" data import "$work/ids.jsonl" --vocab 1024 --tokenizer "X sha256:$hash (a copy)" --out "$work/ids" --force
check 0 train with-tok --set "data=[$work/ids]" --set "base=$work/tok" --dry-run
lacks err 'has another one'
check 0 "$sparda" data import "$work/ids.jsonl" --base "$work/tok" --out "$work/ids" --force
printf '{"a": 2}\n' >"$work/tok/tokenizer.model"
printf '{"a": 1}\n' >"$work/tok/tokenizer.json"
check 0 train with-tok --set "data=[$work/ids]" --set "base=$work/tok" --dry-run
lacks err 'has another one'

# ---- weights of another base model
check 0 train weights-a --set "data=[$work/corpus]" --set steps=1
check 0 train weights-b --set "data=[$work/corpus]" --set "init_from=$work/weights-a" --set steps=1
lacks err 'were made for the base model'
check 0 train weights-c --set "data=[$work/corpus]" --set "init_from=$work/weights-a" --set steps=1 \
    --set "base=$root/data/tiny-nosa"
has err "init_from were made for the base model 'tiny-base', and this one is 'tiny-nosa'"

# ---- a run folder that is an input of the run
check 2 train corpus --set "data=[$work/corpus]" --set steps=1 --force
has err "data: $work/corpus is the run folder itself"
check 0 "$sparda" data verify "$work/corpus"

# ---- data made anew under the same names, as large as before
"$sparda" data synth --out "$work/anew" --rows 8 --seq-len 64 --seed 1 2>"$work/err" || complain "no data"
check 0 train made --set "data=[$work/anew]" --set steps=1
"$sparda" data synth --out "$work/anew" --rows 8 --seq-len 64 --seed 2 --force 2>"$work/err" || complain "no data"
check 2 train made --set "data=[$work/anew]" --set steps=1 --resume
has err 'the training data has changed'

# ---- rows that leave no query a choice of blocks (tiny base: (1 + 2 + 1) x 16 tokens)
"$sparda" data synth --out "$work/few" --rows 4 --seq-len 64 2>"$work/err" || complain "no data"
check 0 train few-tokens --set "data=[$work/few]" --set seq_len=64 --set steps=1
has err 'seq_len 64 leaves no query a choice of blocks.*more than 64 tokens'
check 0 train few-rows --set "data=[$work/few]" --set seq_len=128 --set steps=1
has err 'no row of the data has more than 64 tokens'
has err 'step 1: the loss is 0 and nothing was learned: in rows of up to 64 tokens'

# ---- the reference is of no run
check 2 "$sparda" train --reference --out "$work/x" "$work/c.yaml"
has err 'stands alone'

# ---- what config.json states, the configuration does not change
check 0 train stated --set sparse_config.topk=5 --dry-run
has err "sparse_config.topk is [0-9]* in the base's config.json; the run configuration's 5 has no effect"

# ---- little memory ------------------------------------------------------------------------------
check 3 train huge --set seq_len=1073741824 --set allow_longer=true --dry-run
has err 'need about [0-9.]* GiB, and the host has [0-9.]* GiB of memory'
check 3 "$sparda" bench train-step --base "$root/data/tiny-base" --seq-len 1000000000 --steps 1 --backend cpu
has err 'out of memory'
# OpenBLAS would ask for its buffers for ever. (Under AddressSanitizer nothing starts so.)
little() { (ulimit -v 300000 && exec timeout 60 "$@"); }
if little "$sparda" --version >/dev/null 2>&1; then
    check 3 little "$sparda" train "$work/c.yaml" --out "$work/little" --set threads=8 \
        --set cpu_blas=openblas
    has err 'out of memory for the buffers of OpenBLAS'
fi

# ---- a full disk: a limit on file size stands for it ----------------------------------------------
# Metrics fit, checkpoints do not: the run goes on, and its end fails with status 3.
small() { (ulimit -f 400 && train "$@"); }
check 3 small full --set steps=4
has err 'warning: step 2 could not be saved, the run goes on'
has err 'step 4 is done but could not be saved'
[ "$(lines full)" = 4 ] || complain 'steps with a full disk'
[ "$(status_of full)" = failed ] || complain 'status of a failed run'
[ -z "$(ls -A "$work/full/checkpoints")" ] || complain 'half a checkpoint is left'

finish
