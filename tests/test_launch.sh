#!/bin/sh
# shellcheck disable=SC1091,SC2034,SC2154
# The batch scripts of configs/, with stand-ins for the launchers.
. "$(dirname "$0")/check.sh"

mkdir "$work/bin" "$work/run"
stand_in() {
    { printf '#!/bin/sh\nprintf "%%s" "%s" >>"%s"; printf " [%%s]" "$@" >>"%s"; echo >>"%s"\n' \
        "$1" "$work/log" "$work/log" "$work/log"
        cat
    } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
PATH=$work/bin:$PATH
export PATH
logged() {
    grep -q -F -x -e "$1" "$work/log" || {
        complain "not run: $1"
        sed 's/^/  ran: /' "$work/log"
    }
}
run_folder() { printf '{\n  "status": "%s"\n}\n' "$1" >"$work/run/run.json"; }

# ---- Slurm ----------------------------------------------------------------------------------------
slurm=$root/configs/slurm-train.sh
stand_in srun <<END
exit "\$(cat "$work/srun-status")"
END
stand_in scontrol </dev/null
echo 0 >"$work/srun-status"
SLURM_JOB_ID=77
export SLURM_JOB_ID
check 2 bash "$slurm"
has err '^usage: sbatch'

# The sample asks for GPUs, and is that of the README.
sample=$(sed -n '/^#   sbatch --p/,/[^\\]$/s/^# *//p' "$slurm")
case $sample in
    *--gpus-per-node=*slurm-train.sh*' --set base='*) ;;
    *) complain "no sample with GPUs: $sample" ;;
esac
[ "$(sed -n '/^    sbatch/,/[^\\]$/s/^ *//p' "$root/README.md")" = "$sample" ] ||
    complain 'the sample of README.md is another one'

run_folder finished
: >"$work/log"
check 0 bash "$slurm" c.yaml "$work/run" --set lr=1
logged "srun [build/sparda] [train] [c.yaml] [--out] [$work/run] [--resume=auto] [--set] [lr=1]"
! grep -q scontrol "$work/log" || complain 'a finished run is requeued'

run_folder stopped
check 0 bash "$slurm" c.yaml "$work/run"
logged 'scontrol [requeue] [77]'

: >"$work/log"
echo 3 >"$work/srun-status"
check 3 bash "$slurm" c.yaml "$work/run"
! grep -q scontrol "$work/log" || complain 'a failed run is requeued'
echo 0 >"$work/srun-status"

printf 'SPARDA=/opt/sparda SRUN_OPTIONS="--mpi=pmix --exclusive"\n' >"$work/site.sh"
check 0 bash "$slurm" c.yaml "$work/run"
logged "srun [--mpi=pmix] [--exclusive] [/opt/sparda] [train] [c.yaml] [--out] [$work/run] [--resume=auto]"
rm "$work/site.sh"
check 2 env SPARDA_SITE="$work/none.sh" bash "$slurm" c.yaml "$work/run"
has err 'none.sh, which is not there'

# ---- mpirun ---------------------------------------------------------------------------------------
mpirun=$root/configs/mpirun-train.sh
stand_in id <<END
echo 1000
END
stand_in mpirun <<END
case \$1 in --version) cat "$work/version"; exit ;; esac
exit "\$(cat "$work/mpirun-status")"
END
echo 'mpirun (Open MPI) 4.1.4' >"$work/version"
echo 0 >"$work/mpirun-status"
check 2 sh "$mpirun" c.yaml
has err '^usage:'
: >"$work/log"
check 0 sh "$mpirun" c.yaml r
logged 'mpirun [-n] [1] [build/sparda] [train] [c.yaml] [--out] [r] [--resume=auto]'
check 0 env RANKS=4 HOSTFILE='my hosts' TIME_LIMIT_MIN=9 MPIRUN_OPTIONS='-x A=1' SPARDA=/s \
    sh "$mpirun" c.yaml r --set lr=1
logged 'mpirun [-n] [4] [--hostfile] [my hosts] [-x] [A=1] [/s] [train] [c.yaml] [--out] [r] [--resume=auto] [--set] [lr=1] [--set] [time_limit_min=9]'
echo 'HYDRA build details: Version: 4.0.2' >"$work/version"
check 0 env RANKS=4 HOSTFILE=h sh "$mpirun" c.yaml r
logged 'mpirun [-n] [4] [-f] [h] [build/sparda] [train] [c.yaml] [--out] [r] [--resume=auto]'
echo 2 >"$work/mpirun-status"
check 2 sh "$mpirun" c.yaml r
check 3 env MPIRUN=no-such-launcher sh "$mpirun" c.yaml r
has err 'no no-such-launcher here'

# Any of the three signals reaches the ranks as SIGUSR1, and the launcher's status comes back.
stand_in mpirun <<END
case \$1 in --version) cat "$work/version"; exit ;; esac
trap 'echo saved >>"$work/log"; exit 0' USR1
trap 'exit 9' TERM INT
echo started >>"$work/log"
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1 & wait \$!; done
exit 8
END
for signal in USR1 TERM INT; do
    : >"$work/log"
    # env resets SIGINT, which a shell's background children ignore.
    env --default-signal=INT sh "$mpirun" c.yaml r >"$work/out" 2>"$work/err" &
    pid=$!
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        ! grep -q started "$work/log" || break
        sleep 0.2
    done
    kill -s $signal $pid
    got=0
    wait $pid || got=$?
    [ $got = 0 ] || complain "SIG$signal: status $got"
    logged saved
done

finish
