#!/bin/sh
# ctest: timeout=300
# kill -9 at a chosen call, not at a chosen time: the program dies at the n-th of its calls that
# change the file system, a write torn in two, while it trains and saves and rotates, exports or
# imports. Afterwards the old files are whole, the same command goes through, and its result is
# bit by bit that of an undisturbed one. `moments` values of n each here, every n in
# test_kills_long.sh.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
moments=${moments:-7}
. "$(dirname "$0")/train.sh"
die=$(dirname "$sparda")/tests/libdie_at.so
[ -e "$die" ] || complain "no $die"
OMP_WAIT_POLICY=passive # or the program starts itself again, and counts from 0
export OMP_WAIT_POLICY
# A sanitizer wants to be the first library, which here is ours.
sanitizer=${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0
# doomed N COMMAND...: dies at call N; N = 0 counts them, in $work/count.
doomed() {
    at=$1
    shift
    [ "$at" != 0 ] || set -- env DIE_COUNT="$work/count" "$@"
    DIE_AT=$at LD_PRELOAD=$die ASAN_OPTIONS=$sanitizer "$@"
}
rounds=0
# each FUNCTION CALLS: with every n of 1 to CALLS, or with `moments` of them that are spread evenly.
each() {
    stride=$(awk "BEGIN { s = $2 / ($moments); print s < 1 ? 1 : s }")
    round=0
    call=1
    while [ "$call" -le "$2" ]; do
        "$1" "$call"
        rounds=$((rounds + 1))
        round=$((round + 1))
        call=$(awk "BEGIN { print int(1 + $round * $stride) }")
    done
}

# ---- training: first checkpoints, rotation, metrics, run.json --------------------------------------
options="--set steps=4 --set save_every_steps=1 --set keep_last=2 --set global_batch=1"
# shellcheck disable=SC2086
check 0 train straight $options
die_in_training() {
    rm -rf "$work/killed"
    # shellcheck disable=SC2086
    check 137 doomed "$1" "$sparda" train "$work/c.yaml" --out "$work/killed" $options
    # Whatever is there under a final name is complete.
    for h5 in "$work"/killed/checkpoints/step-*.h5; do
        [ ! -e "$h5" ] || "$sparda" info "$h5" >"$work/out" 2>"$work/err" || complain "$h5 after call $1"
    done
    # shellcheck disable=SC2086
    check 0 train killed --resume=auto $options
    same straight killed 4
    # the two newest, and the one that was resumed from
    have=$(cd "$work/killed/checkpoints" && echo *3.h5 *4.h5)
    [ "$have" = 'step-0000003.h5 step-0000004.h5' ] || complain "after call $1: $have"
    [ "$(find "$work/killed/checkpoints" -type f | wc -l)" -le 4 ] || complain "not rotated after call $1"
    [ -z "$(find "$work/killed" -name '.*.tmp.*')" ] || complain "temporary files after call $1"
}
# shellcheck disable=SC2086
check 0 doomed 0 "$sparda" train "$work/c.yaml" --out "$work/counted" $options
calls=$(cat "$work/count")
echo "training: $calls calls"
[ "$calls" -gt 20 ] || complain "only $calls calls counted in training"
each die_in_training "$calls"

# Killed between the last file and what belongs to its save: the pointer and the older files.
# shellcheck disable=SC2086
check 0 train killed --force $options --set keep_last=4
echo step-0000003.h5 >"$work/killed/checkpoints/latest"
echo step-0000004.h5 >"$work/killed/checkpoints/.latest.tmp.1"
sed -i 's/"status": "finished"/"status": "running"/' "$work/killed/run.json"
# shellcheck disable=SC2086
check 0 train killed --resume=auto $options
have=$(cd "$work/killed/checkpoints" && find . -type f | sort | tr '\n' ' ')
[ "$have" = './latest ./step-0000003.h5 ./step-0000004.h5 ' ] || complain "after the last save: $have"
grep -q step-0000004 "$work/killed/checkpoints/latest" || complain 'latest is not the last one'

# ---- export ---------------------------------------------------------------------------------------
check 0 "$sparda" export "$work/straight" --out "$work/export"
die_in_export() {
    rm -rf "$work/exported"
    check 137 doomed "$1" "$sparda" export "$work/straight" --out "$work/exported"
    [ ! -e "$work/exported" ] || diff -r "$work/export" "$work/exported" >"$work/out" 2>&1 ||
        complain "half an export after call $1"
    check 0 "$sparda" export "$work/straight" --out "$work/exported" --force
    diff -r "$work/export" "$work/exported" >"$work/out" 2>&1 || complain "another export after call $1"
}
check 0 doomed 0 "$sparda" export "$work/straight" --out "$work/exported"
calls=$(cat "$work/count")
echo "export: $calls calls"
each die_in_export "$calls"

# ---- import ---------------------------------------------------------------------------------------
import="$sparda data import $root/tests/mds/zstd --vocab 1024 --tokenizer t --shard-tokens 4000"
# shellcheck disable=SC2086
check 0 $import --out "$work/import"
die_in_import() {
    rm -rf "$work/imported"
    # shellcheck disable=SC2086
    check 137 doomed "$1" $import --out "$work/imported"
    # shellcheck disable=SC2086
    check 0 $import --out "$work/imported"
    diff -r "$work/import" "$work/imported" >"$work/out" 2>&1 || complain "another import after call $1"
}
# shellcheck disable=SC2086
check 0 doomed 0 $import --out "$work/imported"
calls=$(cat "$work/count")
echo "import: $calls calls"
each die_in_import "$calls"

[ -z "$(find "$work" -name '.*' ! -path "$work" ! -path "$work/killed/*")" ] ||
    complain "left: $(find "$work" -name '.*' ! -path "$work")"
echo "$rounds kills survived"
[ "$rounds" -ge $((3 * (moments < 7 ? moments : 7))) ] || complain "only $rounds kills"
finish
