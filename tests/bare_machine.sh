#!/bin/sh
# Proves the README's two commands on a machine that has nothing: makes a minimal Debian or Ubuntu in a
# folder with debootstrap, puts a clone of this checkout's HEAD inside and runs ./quickstart there.
# By hand, as root; half an hour and 3 GB.
#
#   tests/bare_machine.sh [--suite bookworm|noble] [--mirror URL] [--keep] [--mpich] FOLDER [COMMAND...]
#
# COMMAND... are quickstart commands (default: demo test). --keep leaves FOLDER for another look; a
# second run with the same FOLDER goes on from what is there. --mpich installs MPICH instead of Open
# MPI first. /proc and a /dev/shm are mounted inside and taken away at the end.
set -eu

usage() {
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
suite=bookworm mirror='' keep=no mpich=no
while [ $# -gt 0 ]; do
    case $1 in
        --suite) suite=$2 && shift 2 ;;
        --mirror) mirror=$2 && shift 2 ;;
        --keep) keep=yes && shift ;;
        --mpich) mpich=yes && shift ;;
        -*) usage ;;
        *) break ;;
    esac
done
[ $# -ge 1 ] || usage
folder=$1
shift
[ $# -gt 0 ] || set -- demo test
[ "$(id -u)" = 0 ] || { echo "$0: needs root" >&2 && exit 3; }
command -v debootstrap >/dev/null || { echo "$0: needs the package debootstrap" >&2 && exit 3; }
root=$(cd "$(dirname "$0")/.." && pwd)
[ -n "$mirror" ] || case $suite in
    noble) mirror=http://archive.ubuntu.com/ubuntu ;;
    *) mirror=http://deb.debian.org/debian ;;
esac

if [ ! -f "$folder/etc/debian_version" ]; then
    components=main
    [ "$suite" != noble ] || components=main,universe
    debootstrap --variant=minbase --components="$components" "$suite" "$folder" "$mirror"
fi
folder=$(cd "$folder" && pwd)

clean_up() {
    umount "$folder/dev/shm" "$folder/sys" "$folder/proc" 2>/dev/null || :
    if [ "$keep" = no ] && ! mountpoint -q "$folder/proc"; then rm -rf "$folder"; fi
}
trap clean_up EXIT
mount -t proc proc "$folder/proc"
mount -t sysfs -o ro sysfs "$folder/sys"
mkdir -p "$folder/dev/shm"
mount -t tmpfs tmpfs "$folder/dev/shm"
cp /etc/resolv.conf "$folder/etc/resolv.conf"
# As an installed system has it; without it mpirun asks for its own name for seconds.
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$folder/etc/hosts"

inside() {
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        chroot "$folder" "$@" </dev/null
}
rm -rf "$folder/srv/sparda"
git clone -q "$root" "$folder/srv/sparda"
if [ "$mpich" = yes ]; then
    inside sed -i 's/libopenmpi-dev openmpi-bin/libmpich-dev mpich/' /srv/sparda/quickstart
fi
for command in "$@"; do
    started=$(date +%s)
    # shellcheck disable=SC2086  # a command may carry options: "test --long"
    inside /srv/sparda/quickstart $command
    echo "$0: $suite: ./quickstart $command succeeded in $(($(date +%s) - started)) s"
done
