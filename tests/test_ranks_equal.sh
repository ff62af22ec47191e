#!/bin/sh
# ctest: mpi=yes timeout=300
# One rank, several ranks, accumulation and micro-batches train the same; failures end all ranks.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/ranks.sh"
. "$(dirname "$0")/train.sh"

# ranks N OUT ARG...
ranks() {
    n=$1 out=$2
    shift 2
    # shellcheck disable=SC2086
    timeout 100 mpirun $flags -n "$n" "$sparda" train "$work/c.yaml" --out "$work/$out" "$@"
}

# ---- the same training, however it is cut ---------------------------------------------------------
check 0 train one
check 0 train micro --set micro_batch=4
check 0 ranks 2 two
has err '2 ranks x 1 at once x 2 accumulated'
check 0 ranks 2 again
check 0 ranks 4 four
same two again 8 # the same number of ranks: the same bits
numbers one >"$work/numbers1"
numbers micro | cmp - "$work/numbers1" >"$work/out" || complain 'micro-batches change numbers'
close_to one two
close_to one four
for rank in 0 1; do [ -s "$work/two/log/rank-$rank.log" ] || complain "log of rank $rank"; done
[ "$(lines two)" = 8 ] || complain 'only rank 0 writes metrics'

# ---- resumed on another number of ranks -----------------------------------------------------------
check 0 train up --set steps=3
check 0 ranks 2 up --resume
close_to one up
check 0 ranks 2 down --set steps=5
check 0 train down --resume
close_to one down

# ---- refusals -------------------------------------------------------------------------------------
check 2 ranks 3 three --set global_batch=32
has err 'global_batch 32 is not a multiple of ranks 3 x micro_batch 1'
[ "$(grep -c 'sparda: error' "$work/err")" = 1 ] || complain 'the error is printed more than once'
[ ! -e "$work/three" ] || complain 'a refused run left a folder'
check 2 ranks 2 two
has err 'not empty'

# fails_on_rank_1 STATUS PATTERN ARG...: only rank 1 gets ARG.
cat >"$work/rank" <<END
#!/bin/sh
rank=\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-\$PMIX_RANK}}
case \$rank in
    1) exec "$sparda" train "$work/c.yaml" --out "$work/fails" "\$@" ;;
    *) exec "$sparda" train "$work/c.yaml" --out "$work/fails" ;;
esac
END
chmod +x "$work/rank"
fails_on_rank_1() {
    want_status=$1 pattern=$2
    shift 2
    before=$(date +%s)
    # shellcheck disable=SC2086
    check "$want_status" timeout 100 mpirun $flags -n 2 "$work/rank" "$@"
    [ $(($(date +%s) - before)) -lt 60 ] || complain 'the other rank waited'
    has err "$pattern"
    has err 'rank 1 on '
    [ "$(grep -c 'sparda: error' "$work/err")" = 1 ] || complain 'the error is printed more than once'
    [ ! -e "$work/fails" ] || complain 'a failed start left a folder'
}
fails_on_rank_1 2 "$work/none" --set "base=$work/none"
fails_on_rank_1 2 "$work/none" --set "data=[$work/none]"
fails_on_rank_1 2 'differs between ranks' --set lr=1e-3
fails_on_rank_1 2 "unknown option '--wrong'" --wrong

# ---- signals and lost ranks -----------------------------------------------------------------------
# running N OUT: in the background; sets $launcher, and $pids to the processes of the ranks.
running() {
    # shellcheck disable=SC2086
    mpirun $flags -n "$1" "$sparda" train "$work/c.yaml" --out "$work/$2" --set steps=100000 \
        --set save_every_steps=2 >"$work/out" 2>"$work/err" &
    pid=$!
    await "$2" 3
    pids=$(for p in /proc/[0-9]*; do
        { tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null | grep -q "^$sparda train .*$work/$2 " && echo "${p#/proc/}"
    done)
    [ "$(echo "$pids" | wc -w)" = "$1" ] || complain "ranks found: $pids"
}
running 2 signalled
kill -TERM "${pids##*
}" # one rank of the two
got=0
wait "$pid" || got=$?
[ $got = 0 ] || complain "status $got after SIGTERM to one rank: $(tail -30 "$work/err")"
[ "$(status_of signalled)" = stopped ] || complain "status $(status_of signalled)"
[ "$(cat "$work/signalled/checkpoints/latest")" = "$(printf 'step-%07d.h5' "$(lines signalled)")" ] ||
    complain 'not saved at the last step'

running 2 lost
before=$(date +%s)
kill -9 "${pids##*
}"
got=0
wait "$pid" || got=$?
[ $got != 0 ] || complain 'a lost rank and status 0'
[ $(($(date +%s) - before)) -lt 60 ] || complain 'the other rank waited for a lost one'
steps=$(($(lines lost) + 2))
check 0 ranks 2 lost --resume --set steps=$steps # and the run goes on

# ---- a launcher's variables do not count ----------------------------------------------------------
# shellcheck disable=SC2086
check 0 env SLURM_LOCALID=0 mpirun $flags -n 2 "$sparda" train "$work/c.yaml" --out "$work/local" \
    --set steps=1
grep -q 'SLURM_LOCALID says 0; the communicator says local rank 1, which counts' \
    "$work/local/log/rank-1.log" || complain 'no word about SLURM_LOCALID'

finish
