#!/bin/sh
# ctest: mpi=yes timeout=300
# A rank that is stopped inside MPI's own start or end, which no heartbeat covers: the others end with
# status 3 by a deadline, say what hangs, and no process is left.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
stuck=$(dirname "$sparda")/tests/stuck_rank
. "$(dirname "$0")/ranks.sh"
. "$(dirname "$0")/check.sh"

left() { # processes of this program
    for p in /proc/[0-9]*; do
        { tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null | grep -q "^$stuck " && echo "${p#/proc/}"
    done
}

# Where a host's name is looked up in vain, MPI alone takes several seconds to start.
before=$(date +%s)
# shellcheck disable=SC2086
check 0 timeout 60 mpirun $flags -n 2 "$stuck" nowhere 0 60
[ "$(grep -c 'rank is closed' "$work/err")" = 2 ] || complain 'two ranks do not end by themselves'
deadline=$(($(date +%s) - before + 3))
for rank in 0 1; do
    for place in init finalize; do
        before=$(date +%s)
        # shellcheck disable=SC2086
        check 3 timeout 60 mpirun $flags -n 2 "$stuck" $place $rank $deadline
        seconds=$(($(date +%s) - before))
        # a machine that is busy with other programs may be late; for ever it may not be
        if [ $seconds -lt 2 ] || [ $seconds -gt $((3 * deadline + 30)) ]; then complain "$seconds s until all had ended"; fi
        case $place in
            init) what=MPI_Init && lacks err 'is open' ;;
            finalize) what='the end of MPI' && has err 'rank 1 of 2 is open' ;;
        esac
        has err "error: $what has taken more than $deadline s: another rank has not got there"
        [ "$(grep -c 'sparda: error' "$work/err")" = 1 ] || complain 'not one report'
        [ -z "$(left)" ] || complain "processes are left: $(left)"
        echo "rank $rank stopped in $place: ended after $seconds s"
    done
done
finish
