#!/bin/sh
# ctest: mpi=yes timeout=300
# A rank that is stopped, at the start, in the middle and at the end of a run: another one notices
# within watchdog_s, says so once, and all ranks end with status 3. Ranks of different builds.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/ranks.sh"
. "$(dirname "$0")/train.sh"

watchdog=3

# ranks_of OUT: processes of the ranks of this run.
ranks_of() {
    for p in /proc/[0-9]*; do
        { tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null | grep -q "^$sparda train .*$work/$1 " &&
            echo "${p#/proc/}"
    done
}

# rank_at OUT RANK: the process whose log says that it is this rank.
rank_at() {
    for p in $(ranks_of "$1"); do
        { tr '\0' '\n' <"/proc/$p/environ"; } 2>/dev/null |
            grep -q -E "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$2\$" && echo "$p"
    done
}

# launch N OUT ARG...: in the background; its launcher is $pid.
launch() {
    n=$1 out=$2
    shift 2
    # shellcheck disable=SC2086
    mpirun $flags -n "$n" "$sparda" train "$work/c.yaml" --out "$work/$out" \
        --set watchdog_s=$watchdog --set steps=100000 "$@" >"$work/out" 2>"$work/err" &
    pid=$!
}

# stopped OUT RANK N: stops this rank of N and looks at what comes of it.
stopped() {
    tries=0 # on a busy machine its process may not be there yet
    until victim=$(rank_at "$1" "$2"); [ "$(echo "$victim" | wc -w)" = 1 ]; do
        tries=$((tries + 1))
        if [ $tries -gt 50 ]; then
            complain "rank $2 of $1 is '$victim'"
            kill "$pid"
            return
        fi
        sleep 0.1
    done
    kill -STOP "$victim"
    before=$(date +%s)
    got=0
    timeout 60 tail --pid="$pid" -f /dev/null || complain "rank $2 of $1 stopped, and the rest hang"
    wait "$pid" || got=$?
    seconds=$(($(date +%s) - before))
    [ $got = 3 ] || complain "status $got, expected 3, after stopping rank $2 of $1"
    # a machine that is busy with other programs may be late; for ever it may not be
    [ $seconds -lt $((watchdog + 20)) ] || complain "$seconds s until all had ended"
    [ "$(grep -c "error: rank $2 on .* has been silent for" "$work/err")" = 1 ] ||
        complain "not one report of rank $2"
    [ "$(grep -c 'sparda: error: ' "$work/err")" = 1 ] || complain 'more than one report'
    has err 'watchdog_s: 3'
    [ -z "$(ranks_of "$1")" ] || complain "processes of $1 are left"
    echo "rank $2 of $3 stopped ($1): ended after $seconds s"
}

# In a step, either rank of two; the run goes on from its checkpoint.
launch 2 first --set save_every_steps=2
await first 3
stopped first 0 2
has err 'rank 1, which watches it'
launch 2 second --set save_every_steps=2
await second 3
stopped second 1 2
grep -q 'error: rank 1 on' "$work/second/log/rank-0.log" || complain 'nothing in the log'
steps=$(($(lines second) + 2))
# shellcheck disable=SC2086
check 0 timeout 100 mpirun $flags -n 2 "$sparda" train "$work/c.yaml" --out "$work/second" \
    --set save_every_steps=2 --resume --set steps=$steps

# One of three, while they load: only the next rank reports it.
launch 3 loading --set global_batch=3
until grep -q ^memory "$work/err" || ! kill -0 "$pid"; do sleep 0.02; done
stopped loading 1 3
has err 'rank 2, which watches it'

# Another build on rank 1: a copy whose name of itself differs in one letter.
version=$("$sparda" --version | sed 's/^sparda \([^ ]*\) (\([^,]*\),.*/sparda \1 (\2,/')
sed "s/$version/S${version#s}/" "$sparda" >"$work/other"
chmod +x "$work/other"
cmp -s "$sparda" "$work/other" && complain 'the copy is the same program'
cat >"$work/rank" <<END
#!/bin/sh
case \${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-\$PMIX_RANK}} in
    1) exec "$work/other" "\$@" ;;
    *) exec "$sparda" "\$@" ;;
esac
END
chmod +x "$work/rank"
# shellcheck disable=SC2086
check 2 timeout 100 mpirun $flags -n 2 "$work/rank" train "$work/c.yaml" --out "$work/builds"
has err 'rank 1 on .*the program differs between ranks'
[ "$(grep -c 'sparda: error' "$work/err")" = 1 ] || complain 'the error is printed more than once'
[ ! -e "$work/builds" ] || complain 'ranks of different builds left a folder'

# The same paths, other contents, as on two hosts with a disk each: rank 1 gets its own view of the
# file system.
cp -r "$base" "$work/base"
cat >"$work/rank" <<END
#!/bin/sh
case \${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-\$PMIX_RANK}} in
    1) exec unshare -m sh -c 'mount --bind $work/mine "\$0" && exec "\$@"' "\$SWAPPED" \
        "$sparda" "\$@" ;;
    *) exec "$sparda" "\$@" ;;
esac
END
# differs FILE WHAT: rank 1 finds $work/mine in place of FILE.
differs() {
    # shellcheck disable=SC2086
    check 2 timeout 100 env SWAPPED="$1" mpirun $flags -n 2 "$work/rank" train "$work/c.yaml" \
        --out "$work/views" --set "base=$work/base" --force
    has err "rank 1 on .*$2 differs* between ranks"
    [ "$(grep -c 'sparda: error' "$work/err")" = 1 ] || complain 'the error is printed more than once'
}
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    sed 's/"rms_norm_eps": *[0-9.e-]*/"rms_norm_eps": 2e-5/' "$base/config.json" >"$work/mine"
    cmp -s "$base/config.json" "$work/mine" && complain 'config.json is the same'
    differs "$work/base/config.json" "the base model's config.json"
    weights=$(find "$work/base" -name '*.safetensors' | sort | sed -n '$p')
    { # the low byte of its last number
        head -c -2 "$weights"
        tail -c 2 "$weights" | head -c 1 | tr '\000-\377' '\001-\377\000'
        tail -c 1 "$weights"
    } >"$work/mine"
    differs "$weights" "the base model's weights"
    "$sparda" data synth --out "$work/rows" --rows 23 --seq-len 160 --seed 1 2>"$work/err" ||
        complain 'data synth'
    rm -rf "$work/mine"
    mv "$work/rows" "$work/mine"
    differs "$work/corpus" 'the training data'
else
    echo 'not tried: other files on one rank (this machine allows no mount namespace)'
fi

finish
