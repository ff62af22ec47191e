# For the test scripts: read with `. tests/check.sh`. Works in a fresh folder, $work, that is removed
# at the end; `check` runs a command and compares its exit status; the script fails if any check did.
# shellcheck shell=sh disable=SC2034
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# check STATUS COMMAND...: output goes to $work/out and $work/err.
check() {
    want=$1
    shift
    got=0
    "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
    [ "$got" = "$want" ] || complain "status $got, expected $want: $*"
}

# has out|err PATTERN: the last command printed it (grep -e).
has() {
    grep -q -e "$2" "$work/$1" || complain "'$2' is not in its std$1"
}
lacks() {
    ! grep -q -e "$2" "$work/$1" || complain "'$2' is in its std$1"
}
empty() {
    [ ! -s "$work/$1" ] || complain "something is in its std$1"
}

complain() {
    failures=$((failures + 1))
    printf 'FAILED: %s\n' "$*"
    sed 's/^/  stdout: /' "$work/out" | head -20
    sed 's/^/  stderr: /' "$work/err" | head -20
}

finish() {
    [ "$failures" = 0 ] && exit 0
    echo "$failures checks failed"
    exit 1
}
