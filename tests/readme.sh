#!/bin/sh
# Runs every command of README.md that stands in a fenced block marked `sh`, in order, as one script
# that stops at the first failure. Blocks without that mark need more than this machine has (a cluster,
# a downloaded model) or are run elsewhere (the two quickstart commands).
#
# The commands see the checkout with its build, but write their runs/ into a folder that is removed.
#
#   tests/readme.sh [--print]        after a build in build/
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
commands=$(awk '/^```/ { inside = ($0 == "```sh"); next } inside' "$root/README.md")
[ -n "$commands" ] || {
    echo "readme.sh: README.md has no block marked sh" >&2
    exit 1
}
if [ "${1:-}" = --print ]; then
    printf '%s\n' "$commands"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for entry in "$root"/*; do
    case ${entry##*/} in
        runs) ;;
        *) ln -s "$entry" "$work/" ;;
    esac
done
cd "$work"
printf '%s\n' "$commands" >commands.sh
sh -eux commands.sh </dev/null
echo "readme.sh: all commands of README.md succeeded"
