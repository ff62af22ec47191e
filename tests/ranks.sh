# For tests that start several ranks: read with `. tests/ranks.sh` after $sparda is set. Without MPI
# the script ends as skipped; else `mpirun $flags -n N` starts N ranks, more than cores if need be.
# shellcheck shell=sh disable=SC2034,SC2154
"$sparda" --version | grep -q 'MPI yes' || {
    echo 'skipped: built without MPI'
    exit 0
}
command -v mpirun >/dev/null || {
    echo 'skipped: no mpirun'
    exit 0
}
# MPI unloads its plug-ins before leaks are looked for, so theirs cannot be told from ours.
ASAN_OPTIONS=detect_leaks=0
export ASAN_OPTIONS
# Open MPI needs to be told what MPICH allows anyway.
flags=
if mpirun --version 2>&1 | grep -q 'Open MPI'; then
    flags='--oversubscribe --bind-to none'
    [ "$(id -u)" != 0 ] || flags="$flags --allow-run-as-root"
fi
