#!/bin/sh
# A training run over the hosts of a list, with mpirun of Open MPI or of the MPICH family, that can be
# stopped and started again: it continues from its newest checkpoint.
#
#   configs/mpirun-train.sh CONFIG.yaml RUN_FOLDER [more arguments of `sparda train`]
#
# Run it from the root of the checkout, which all hosts must see under the same path. Site values are
# variables:
#
#   RANKS             number of ranks (default: one on this host)
#   HOSTFILE          one "host slots=N" a line (Open MPI) or "host:N" (MPICH); none: this host
#   TIME_LIMIT_MIN    stop and save after so many minutes
#   SPARDA            the program (default build/sparda)
#   MPIRUN            the launcher (default mpirun)
#   MPIRUN_OPTIONS    more of its options, e.g. "--bind-to socket -x NCCL_SOCKET_IFNAME=ib0"
#
# SIGUSR1, SIGTERM or SIGINT to this script: every rank finishes its step, the run is saved and the
# status is 0; start the same command again to go on.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG.yaml RUN_FOLDER [sparda train arguments]" >&2
    exit 2
fi
config=$1 run=$2
shift 2
mpirun=${MPIRUN:-mpirun}
if ! version=$("$mpirun" --version 2>&1); then
    echo "$0: no $mpirun here" >&2
    exit 3
fi
case $version in
    *"Open MPI"* | *OpenRTE* | *PRRTE*)
        hostfile_option=--hostfile
        [ "$(id -u)" != 0 ] || MPIRUN_OPTIONS="--allow-run-as-root ${MPIRUN_OPTIONS:-}"
        ;;
    *) hostfile_option=-f ;;
esac
[ -z "${TIME_LIMIT_MIN:-}" ] || set -- "$@" --set "time_limit_min=$TIME_LIMIT_MIN"

# Launchers pass SIGUSR1 on to the ranks; SIGTERM and SIGINT they may turn into a kill.
launcher=
trap 'signalled=1; [ -z "$launcher" ] || kill -USR1 "$launcher" 2>/dev/null || :' USR1 TERM INT

# In a session of its own, so that Ctrl-C reaches this script and not the launcher.
# shellcheck disable=SC2086  # several options
setsid "$mpirun" -n "${RANKS:-1}" ${HOSTFILE:+$hostfile_option "$HOSTFILE"} ${MPIRUN_OPTIONS:-} \
    "${SPARDA:-build/sparda}" train "$config" --out "$run" --resume=auto "$@" &
launcher=$!

# A signal ends a wait with a status of its own: only an undisturbed one returns the launcher's. 127
# says that an earlier wait already had it.
status=127
while :; do
    signalled=
    wait "$launcher" && got=0 || got=$?
    [ "$got" != 127 ] || break
    status=$got
    [ -n "$signalled" ] || break
done
exit "$status"
