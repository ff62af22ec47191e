# For the tests of `sparda train`: read with `. tests/train.sh` after $sparda is set. Adds to
# tests/check.sh a small corpus, a configuration and what is needed to compare runs.
# shellcheck shell=sh disable=SC1091,SC2034,SC2154
. "$(dirname "$0")/check.sh"

base=$root/data/tiny-base
"$sparda" data synth --out "$work/corpus" --rows 24 --seq-len 160 --seed 1 2>"$work/err" ||
    complain "data synth"
"$sparda" data synth --out "$work/short" --rows 8 --seq-len 90 --seed 2 2>"$work/err" ||
    complain "data synth"

# Rows of two lengths, cut to one of them or used at their own; every option that the tests vary
# comes from --set.
cat >"$work/c.yaml" <<END
base: $base
data:
  - {path: corpus, proportion: 2}
  - {path: short, proportion: 1}
seq_len: 128
steps: 8
global_batch: 4
lr: 2e-3
save_every_steps: 2
threads: 1
deterministic: true
END

# train OUT ARG...: one run.
train() {
    out=$1
    shift
    "$sparda" train "$work/c.yaml" --out "$work/$out" "$@"
}

# start OUT ARG...: the same in the background; its process is $pid, its messages are in
# $work/OUT.err.
start() {
    out=$1
    shift
    "$sparda" train "$work/c.yaml" --out "$work/$out" "$@" >/dev/null 2>"$work/$out.err" &
    pid=$!
}

# ended STATUS WHAT: waits for it.
ended() {
    got=0
    wait "$pid" 2>/dev/null || got=$?
    [ $got = "$1" ] || complain "status $got, expected $1: $2"
}

# The numbers of a run's steps that must not depend on time.
numbers() {
    sed 's/,"perf\/step_ms.*"mem\/peak_bytes":[0-9]*//' "$work/$1/metrics.jsonl"
}

# same RUN RUN STEP: equal metrics and equal checkpoints, to the last bit.
same() {
    numbers "$1" >"$work/numbers1"
    numbers "$2" >"$work/numbers2"
    cmp "$work/numbers1" "$work/numbers2" >"$work/out" 2>&1 || complain "metrics of $1 and $2 differ"
    step=$(printf 'step-%07d.h5' "$3")
    cmp "$work/$1/checkpoints/$step" "$work/$2/checkpoints/$step" >"$work/out" 2>&1 ||
        complain "$step of $1 and $2 differ"
}

# close RUN RUN: kl, its layers and the norm of every step within 1e-5 relative; tokens equal.
close_to() {
    numbers "$1" | tr -d '"{}[]' | tr ',:' '  ' >"$work/numbers1"
    numbers "$2" | tr -d '"{}[]' | tr ',:' '  ' >"$work/numbers2"
    paste -d ' ' "$work/numbers1" "$work/numbers2" | awk -v name="$1 and $2" '
        { n = NF / 2; if (n != int(n) || n < 10) { print "lines of different form"; exit 1 }
          for (i = 1; i <= n; i++) {
            a = $i; b = $(i + n)
            if (a == b) continue
            d = a - b; if (d < 0) d = -d
            if ($(i - 1) == "train/tokens" || a !~ /^[0-9.e+-]+$/ || !(d <= 1e-5 * (a < 0 ? -a : a))) {
              print name ": step " NR ", " a " against " b; exit 1 } } }
        END { if (NR == 0) { print "no steps"; exit 1 } }' >"$work/out" 2>"$work/err" ||
        complain "$1 and $2 are not close"
}

# The last step in `latest`.
latest_step() { sed 's/[^0-9]*0*//; s/\.h5//; s/^$/0/' "$work/$1/checkpoints/latest"; }

# lines RUN: steps written so far.
lines() {
    if [ -f "$work/$1/metrics.jsonl" ]; then grep -c . "$work/$1/metrics.jsonl"; else echo 0; fi
}

# await RUN N: until N steps are written; at most a minute.
await() {
    tries=0
    while [ "$(lines "$1")" -lt "$2" ]; do
        tries=$((tries + 1))
        if [ $tries -ge 1200 ] || ! kill -0 "$pid" 2>/dev/null; then
            complain "$1 ended, or made no $2 steps in a minute"
            return
        fi
        sleep 0.05
    done
}

status_of() { sed -n 's/^  "status": "\(.*\)",*$/\1/p' "$work/$1/run.json"; }
