#!/bin/sh
# ctest: timeout=300
# One run after the other fault of its disk: a limit on file size, a checkpoint folder that is gone, a
# full disk, a read-only mount. Each time the run goes on, the old checkpoint stays as it is, the save
# is tried again at the next chance, and in the end the run has the bits of an undisturbed one.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
# Mounts of our own, where the machine allows them.
if [ "${2:-}" != inside ] && [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    exec unshare -m sh "$0" "$sparda" inside
fi
. "$(dirname "$0")/train.sh"
total=200
options="--set steps=$total --set save_every_steps=5 --set global_batch=1"
# shellcheck disable=SC2086
check 0 train straight $options

mkdir "$work/faulty"
mounts=no
if [ "${2:-}" = inside ] && mount -t tmpfs -o size=40m none "$work/faulty" 2>"$work/err"; then
    mounts=yes
    trap 'umount -l "$work/faulty"; rm -rf "$work"' EXIT
fi
# (Messages through a pipe: a file of them would have the same limit on its size.)
mkfifo "$work/pipe"
cat "$work/pipe" >"$work/faulty.err" &
# shellcheck disable=SC2086
"$sparda" train "$work/c.yaml" --out "$work/faulty" $options >/dev/null 2>"$work/pipe" &
pid=$!
await faulty 6
checkpoints=$work/faulty/checkpoints

failed() { grep -c 'could not be saved, the run goes on' "$work/faulty.err"; }
# until COMMAND...: at most 10 s
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        if [ $tries -ge 200 ] || ! kill -0 "$pid" 2>/dev/null; then
            complain "not so: $*; $(tail -2 "$work/faulty.err")"
            return
        fi
        sleep 0.05
    done
}
more_failures() { [ "$(failed)" -gt "$1" ]; }
saved_again() { [ "$(latest_step faulty)" -gt "$1" ]; }
# fault WHAT BREAK CURE PATTERN: functions that break and mend something, and what the warning says.
faults=0
fault() {
    newest=$(latest_step faulty)
    before=$(failed)
    $2
    until_true more_failures "$before"
    until_true more_failures $((before + 1)) # and once more
    $3
    grep -q "could not be saved.*$4" "$work/faulty.err" || complain "$1: the warning lacks '$4'"
    until_true saved_again "$newest"
    faults=$((faults + 1))
    echo "$1: $(($(failed) - before)) saves failed, then step $(latest_step faulty) was saved"
}

too_large() { prlimit --pid "$pid" --fsize=4096: && keep_old; }
large_again() { old_is_there && prlimit --pid "$pid" --fsize=unlimited:; }
# The newest checkpoint at the moment of the fault, to the bit. (A save that began before may end.)
keep_old() {
    old=$(latest_step faulty)
    old=$checkpoints/$(printf 'step-%07d.h5' "$old")
    sum=$(cksum <"$old")
}
old_is_there() {
    [ "$(cksum <"$old")" = "$sum" ] || complain "$old has changed"
}
fault 'file-size limit' too_large large_again 'File too large'

gone() { keep_old && mv "$checkpoints" "$work/faulty/away" && echo x >"$checkpoints"; }
back() { rm "$checkpoints" && mv "$work/faulty/away" "$checkpoints" && old_is_there; }
fault 'checkpoint folder gone' gone back 'checkpoints'

if [ $mounts = yes ]; then
    fill() { keep_old && dd if=/dev/zero of="$work/faulty/filler" bs=64k 2>/dev/null; true; }
    drain() { old_is_there && rm "$work/faulty/filler"; }
    fault 'full disk' fill drain 'No space left on device'

    seal() { keep_old && mount --bind "$checkpoints" "$checkpoints" && mount -o remount,bind,ro "$checkpoints"; }
    unseal() { old_is_there && umount "$checkpoints"; }
    fault 'read-only mount' seal unseal 'Read-only file system'
else
    echo 'not tried: full disk and read-only mount (this machine allows no mounts)'
fi

ended 0 'the run with faults'
[ "$failures" = 0 ] || grep -v '^ *[0-9]' "$work/faulty.err" | tail -20
same straight faulty $total
echo "$faults faults survived"
finish
