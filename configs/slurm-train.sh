#!/bin/bash
# A training run under Slurm that survives the time limit, preemption and node failures: it saves
# when told to, goes back into the queue, and continues from its newest checkpoint.
#
#   sbatch [--partition=... --account=... --nodes=...] configs/slurm-train.sh CONFIG.yaml RUN_FOLDER \
#       [more arguments of `sparda train`]
#
# For instance on four nodes of 8 GPUs, one rank per GPU, the whole of every node:
#
#   sbatch --partition=gpu --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 --exclusive --mem=0 \
#       configs/slurm-train.sh configs/minicpm4.1-8b.yaml runs/minicpm --set base=/models/MiniCPM4.1-8B
#
# Submit from the root of the checkout. Whatever belongs to one site and not to the project goes on
# sbatch's command line or into a site file, a shell fragment that is read before the start:
#
#   SPARDA_SITE     the site file; default: site.sh beside RUN_FOLDER, if there is one. It may load
#                   modules and set the variables below.
#   SPARDA          the program (default build/sparda)
#   SRUN_OPTIONS    for srun, e.g. "--mpi=pmix --gpus-per-task=1"
#
# One task is one rank: one per GPU, or per socket on machines without GPUs. GPUs are asked for on the
# command line, as above; the lines below ask for none.

#SBATCH --job-name=sparda
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# Every rank gets SIGUSR1 five minutes before the limit, finishes its step and saves.
#SBATCH --signal=USR1@300

set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: sbatch $0 CONFIG.yaml RUN_FOLDER [sparda train arguments]" >&2
    exit 2
fi
config=$1 run=$2
shift 2

site=${SPARDA_SITE:-$(dirname "$run")/site.sh}
if [ -f "$site" ]; then
    # shellcheck source=/dev/null
    . "$site"
elif [ -n "${SPARDA_SITE:-}" ]; then
    echo "$0: SPARDA_SITE names $site, which is not there" >&2
    exit 2
fi

# shellcheck disable=SC2086  # several options
srun ${SRUN_OPTIONS:-} "${SPARDA:-build/sparda}" train "$config" --out "$run" --resume=auto "$@"

# Status 0 has two meanings; the run folder says which. An error ends the job: set -e.
if grep -q '"status": "stopped"' "$run/run.json"; then
    echo "stopped before its last step; back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
