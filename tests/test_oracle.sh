#!/bin/sh
# shellcheck disable=SC1091,SC2154
# Our files through h5py, safetensors and torch, where they are installed.
. "$(dirname "$0")/check.sh"
sparda=$1
if ! python3 -c 'import h5py, safetensors, torch, numpy' 2>/dev/null; then
    echo "skipped: python3 with h5py, safetensors, torch and numpy is not here"
    exit 0
fi
"$(dirname "$sparda")/tests/test_export" "$work/run" || complain "no run folder"
check 0 "$sparda" export "$work/run" --out "$work/e"
check 0 python3 "$root/tests/oracle.py" "$work/run" "$work/e"
has out 'agree'
cat "$work/out"
# what torch saved from it, read by us
check 0 "$sparda" info "$work/e/again.pt"
has out '7 Forecast matrices'
finish
