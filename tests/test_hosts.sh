#!/bin/sh
# ctest: mpi=yes timeout=300
# Two hosts: network namespaces of one machine, joined by a virtual cable. One rank on each trains
# as two ranks of one host do; when the cable is pulled, both end by themselves within the watchdog's
# time, each naming the other host.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
skip() {
    echo "skipped: $1"
    exit 0
}
"$sparda" --version | grep -q 'MPI yes' || skip 'built without MPI'
mpirun --version 2>/dev/null | grep -q 'Open MPI' || skip 'no mpirun of Open MPI, whose options these are'
[ "$(id -u)" = 0 ] || skip 'network namespaces want root'
command -v ip >/dev/null || skip 'no ip (package iproute2)'
. "$(dirname "$0")/train.sh"

left=sparda-$$-l right=sparda-$$-r
# Ends what still runs in the namespaces: the launcher's own daemon may wait for its master.
clean() {
    for ns in $left $right; do
        for p in $(ip netns pids "$ns" 2>/dev/null); do kill -9 "$p" 2>/dev/null; done
        ip netns del "$ns" 2>/dev/null
    done
    rm -rf "$work"
}
trap clean EXIT
{
    ip netns add $left && ip netns add $right &&
        ip -n $left link add cable type veth peer name cable netns $right &&
        ip -n $left addr add 10.77.0.1/24 dev cable && ip -n $right addr add 10.77.0.2/24 dev cable &&
        ip -n $left link set cable up && ip -n $right link set cable up &&
        ip -n $left link set lo up && ip -n $right link set lo up
} 2>"$work/err" || skip "no network namespaces here: $(head -1 "$work/err")"
ip netns exec $left unshare -u true 2>"$work/err" || skip "no host names of their own: $(head -1 "$work/err")"

# The launcher's way to the other host.
cat >"$work/agent" <<END
#!/bin/sh
shift # the address; there is one other host
exec ip netns exec $right unshare -u sh -c "hostname right; \$*"
END
chmod +x "$work/agent"
# hosts OUT ARG...: one rank on each.
hosts() {
    out=$1
    shift
    exec ip netns exec $left unshare -u sh -c 'hostname left; exec "$@"' sh \
        timeout 100 mpirun --allow-run-as-root --bind-to none --host 10.77.0.1:1,10.77.0.2:1 \
        --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include 10.77.0.0/24 \
        --mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 \
        "$sparda" train "$work/c.yaml" --out "$work/$out" "$@"
}
ranks_left() {
    for ns in $left $right; do
        for p in $(ip netns pids "$ns"); do
            { tr '\0' ' ' <"/proc/$p/cmdline"; } 2>/dev/null | grep "^$sparda train "
        done
    done
}

ASAN_OPTIONS=detect_leaks=0 # of MPI's plug-ins, see ranks.sh
export ASAN_OPTIONS
in_shell() { (hosts "$@"); }
check 0 in_shell both
grep -q '2 hosts' "$work/both/log/rank-0.log" || complain 'not on two hosts'
check 0 mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$sparda" train "$work/c.yaml" \
    --out "$work/one"
same one both 8

(hosts cut --set watchdog_s=3 --set steps=100000) >"$work/out" 2>"$work/err" &
pid=$!
await cut 3
ip -n $right link set cable down
before=$(date +%s)
while [ -n "$(ranks_left)" ] && [ $(($(date +%s) - before)) -lt 60 ]; do sleep 0.2; done
seconds=$(($(date +%s) - before))
[ -z "$(ranks_left)" ] || complain "ranks are left: $(ranks_left)"
[ $seconds -lt 40 ] || complain "$seconds s until both ranks had ended"
grep -q 'error: rank 1 on right' "$work/cut/log/rank-0.log" || complain 'rank 0 does not name the other'
grep -q 'error: .*rank 0 on left\|rank 1 on right: .* failed' "$work/cut/log/rank-1.log" ||
    complain 'rank 1 does not name the other'
echo "cable pulled: both ranks had ended after $seconds s"
kill -9 $pid 2>/dev/null # the launcher may still be trying to reach its daemon
wait $pid 2>/dev/null
[ -s "$work/cut/metrics.jsonl" ] || complain 'no steps'

finish
