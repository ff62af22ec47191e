#!/bin/sh
# ctest: timeout=300
# Stopping and resuming gives the same bits as never stopping: metrics and checkpoint files are
# compared byte by byte. `rounds` kills; hundreds of them in test_resume_long.sh.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
rounds=${rounds:-4}
. "$(dirname "$0")/train.sh"

# ---- n steps, then n more -------------------------------------------------------------------------
check 0 train whole
check 0 train halves --set steps=4
check 0 train halves --resume
has err 'resuming .*step 4'
same whole halves 8

# Accumulation, warm-up, progressive teacher, mean alignment, held-out rows; resumed in mid-stage
# and with other micro-batches.
other="--set steps=20 --set warmup_steps=2 --set micro_batch=2 --set progressive_training_kernel=true
    --set kl_target_align_pooling=mean --set eval_every_steps=5 --set eval_data=[$work/corpus]
    --set eval_rows=2 --set save_every_steps=7 --set global_batch=2"
# shellcheck disable=SC2086
{
    check 0 train other $other
    cp -r "$work/other" "$work/again"
    rm "$work/again/checkpoints/step-0000014.h5" "$work/again/checkpoints/step-0000020.h5"
    check 0 train again $other --resume --set micro_batch=1
    has err 'resuming .*step 7'
}
numbers other >"$work/numbers1"
numbers again | cmp - "$work/numbers1" >"$work/out" || complain 'metrics of other and again differ'

# ---- signals --------------------------------------------------------------------------------------
# stop SIGNAL: at some step, saved, status 0; what it prints continues the run.
stop() {
    rm -rf "$work/stopped"
    start stopped --set save_every_steps=1000 --set steps=100000
    await stopped 2
    kill -"$1" "$pid"
    ended 0 "after $1"
    [ "$(status_of stopped)" = stopped ] || complain "run.json after $1: $(status_of stopped)"
    grep -q "\"stopped_by\": \"SIG$1\"" "$work/stopped/run.json" || complain "run.json lacks SIG$1"
    [ "$(latest_step stopped)" = "$(lines stopped)" ] || complain 'not saved at its last step'
    command=$(sed -n 's/^continue with: [^ ]* //p' "$work/stopped.err")
    [ -n "$command" ] || complain 'no resume command'
    [ "$(grep -c 'a second signal ends at once' "$work/stopped.err")" = 1 ] || complain "$1 is not acknowledged"
}
for signal in TERM INT USR1; do stop $signal; done
steps=$(($(lines stopped) + 3))
eval "check 0 \"\$sparda\" $command --set steps=$steps"
check 0 train unstopped --set steps=$steps --set save_every_steps=1000
same unstopped stopped $steps

# A signal before the first step: what was loaded is saved as step 0.
start early --set steps=3
until grep -q ^memory "$work/early.err" || ! kill -0 "$pid"; do sleep 0.01; done
kill -TERM "$pid"
ended 0 'after an early SIGTERM'
[ "$(status_of early)" = stopped ] || complain 'status after an early SIGTERM'
[ "$(latest_step early)" = "$(lines early)" ] || complain 'an early SIGTERM is not saved'
check 0 train early --set steps=3 --resume
[ "$(lines early)" = 3 ] || complain 'resumed after an early SIGTERM'

# A second signal ends at once: here in a step of a minute.
twice() {
    rm -rf "$work/twice"
    start twice --set global_batch=20000
    until grep -q 'ms/step' "$work/twice.err" || ! kill -0 "$pid"; do sleep 0.05; done
    sleep 0.1
    kill -"$1" "$pid"
    sleep 0.2
    kill -"$1" "$pid"
    ended "$2" "after two SIG$1"
}
twice TERM 143
twice INT 130

# One signal that arrives twice, as from timeout(1): to the process and to its group.
start echo --set steps=100000 --set save_every_steps=100000
await echo 2
kill -TERM "$pid"
sleep 0.01
kill -TERM "$pid"
ended 0 'after one SIGTERM delivered twice'
[ "$(status_of echo)" = stopped ] || complain 'status after one SIGTERM delivered twice'

# ---- kill -9 at any moment ------------------------------------------------------------------------
# Until the run is through: start, kill after a random time, start again. The newest checkpoint is
# complete each time, or the resume fails.
total=60
check 0 train straight --set steps=$total --set global_batch=1
kills=0
seed=${seed:-1}
while :; do
    [ "$kills" -lt "$rounds" ] || break
    [ "$(lines killed)" -lt $total ] || rm -rf "$work/killed"
    start killed --resume=auto --set steps=$total --set global_batch=1
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    sleep "$(awk "BEGIN { print 0.15 + 1.2 * $seed / 2147483648 }")"
    kill -9 "$pid" 2>/dev/null
    got=0
    wait "$pid" 2>/dev/null || got=$?
    [ $got = 0 ] || [ $got = 137 ] || complain "round $kills: status $got, $(tail -3 "$work/killed.err")"
    kills=$((kills + 1))
done
check 0 train killed --resume=auto --set steps=$total --set global_batch=1
same straight killed $total
[ -z "$(find "$work/killed" -name '.*.tmp.*')" ] || complain 'temporary files are left'

finish
