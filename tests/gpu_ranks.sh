#!/bin/sh
# Several GPUs of one host through NCCL: same losses as one GPU with accumulation; weak and strong
# scaling; end of the run when a rank is killed; resuming on fewer ranks. A short table last.
#
#   sh tests/gpu_ranks.sh BUILD OUT [LAYERS]
#
# Sizes are 1, 2, 4 and 8 ranks, as far as the host has GPUs. LAYERS (default 4) of MiniCPM4.1-8B's dimensions.
# shellcheck disable=SC1091,SC2002,SC2034,SC2086,SC2154
set -u
build=$1 out=$2 layers=${3:-4}
. "$(dirname "$0")/gpu_table.sh"
gpus=$(nvidia-smi -L | wc -l)
root= # Open MPI refuses root otherwise
[ "$(id -u)" != 0 ] || ! mpirun --version 2>&1 | grep -q 'Open MPI' || root=--allow-run-as-root
on() { # RANKS COMMAND...
    ranks=$1
    shift
    mpirun $root -np "$ranks" --bind-to none "$@"
}

"$sparda" data synth --out "$work/corpus" --rows 200 --seq-len 1024 --seed 1 >"$out/train.log" 2>&1
tiny="train configs/tiny.yaml --set data=[$work/corpus] --set eval_every_steps=0 --set after_training=[] \
    --set steps=20 --set save_every_steps=10 --set global_batch=8 --set backend=cuda"
"$sparda" $tiny --out "$work/tiny1" >>"$out/train.log" 2>&1
kl "$work/tiny1" >"$work/1.kl"
"$sparda" data synth-model --like minicpm4.1-8b --layers "$layers" --out "$work/base" >"$out/bench.log" 2>&1
"$sparda" data synth --out "$work/long" --rows 16 --seq-len 65536 --seed 3 >>"$out/bench.log" 2>&1
cat >"$work/big.yaml" <<END
base: $work/base
data: [$work/long]
seq_len: 65536
steps: 1000
backend: cuda
END

n=1
while [ "$n" -le 8 ] && [ "$n" -le "$gpus" ]; do
    json=$out/scaling-$n.json
    on "$n" "$sparda" bench scaling --base "$work/base" --seq-len 65536 --steps 9 --json "$json" >>"$out/bench.log" 2>&1
    row "$n GPUs: step of $layers layers, 65,536 tokens each" "$(value "$json" step_ms) ms, exposed $(value "$json" exposed_ms) ms, half within $(value "$json" noise_ms)"
    row "$n GPUs: sum of the gradients alone, bus bandwidth" "$(value "$json" sum_ms) ms, $(value "$json" bus_gbps) GB/s"
    row "$n GPUs: loading, host memory of a rank" "$(value "$json" load_s) s, $(value "$json" host_rss) bytes"
    # strong: the global batch stays (8 x 16,384 tokens)
    on "$n" "$sparda" bench scaling --base "$work/base" --seq-len 16384 --batch $((8 / n)) --steps 5 \
        --json "$out/strong-$n.json" >>"$out/bench.log" 2>&1
    row "$n GPUs: 8 sequences of 16,384 tokens in all" "$(value "$out/strong-$n.json" step_ms) ms"
    if [ "$n" -gt 1 ]; then
        on "$n" "$sparda" $tiny --out "$work/tiny$n" >>"$out/train.log" 2>&1
        kl "$work/tiny$n" >"$work/$n.kl"
        row "$n GPUs against 1 with accumulation, 20 losses" "$(difference "$work/1.kl" "$work/$n.kl")"
        # half of the ranks go on from step 10
        rm -f "$work/tiny$n/checkpoints/step-0000020.h5"
        echo step-0000010.h5 >"$work/tiny$n/checkpoints/latest"
        on $((n / 2)) "$sparda" $tiny --out "$work/tiny$n" --resume >>"$out/train.log" 2>&1
        kl "$work/tiny$n" >"$work/$n.kl"
        row "... resumed from step 10 on $((n / 2))" "$(wc -l <"$work/$n.kl") losses, $(difference "$work/1.kl" "$work/$n.kl")"

        on "$n" "$sparda" train "$work/big.yaml" --set "global_batch=$n" --out "$work/killed$n" >"$out/killed-$n.log" 2>&1 &
        job=$!
        until [ "$(cat "$work/killed$n/metrics.jsonl" 2>/dev/null | wc -l)" -ge 2 ]; do
            sleep 0.2
            kill -0 $job || break
        done
        victim=$(pgrep -f "sparda train.*killed$n" | tail -1)
        start=$(date +%s.%N)
        kill -9 "$victim"
        wait $job
        status=$?
        row "$n GPUs, one rank killed: seconds until all have ended" "$(date +%s.%N | awk -v s="$start" '{ printf "%.1f", $1 - s }') (status $status)"
        sleep 1
        row '... processes left' "$(pgrep -fc "killed$n")"
    fi
    n=$((n * 2))
done
