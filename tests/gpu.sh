#!/bin/sh
# Training on a machine with one GPU: check, benchmark and sanitizer, in one call; a short table last.
#
#   sh tests/gpu.sh BUILD OUT [LAYERS]
#
# BUILD is a build folder, or one that holds `sparda` and the test programs; OUT receives logs and JSON.
# LAYERS (default 4) of the 8B dimensions are measured; 32 is the whole model (16 GB, about a minute
# more). The portable kernels run by `cuda_kernels: portable`. To see their PTX translated by the driver, as
# on a card that was not compiled for, configure BUILD with -DSPARDA_CUDA_ARCHITECTURES=80-virtual.
# shellcheck disable=SC1091,SC2034,SC2154
set -u
build=$1 out=$2 layers=${3:-4}
. "$(dirname "$0")/gpu_table.sh"

passes operations.log 'operations against the CPU backend' "$tests/test_cuda_operations"
passes operations.log 'portable kernels against the CPU backend' "$tests/test_cuda_operations" --portable
passes dense.log 'long dense attention against the CPU backend' "$tests/test_cuda_dense_attention"
passes long.log 'sequences of 1,048,576 tokens' "$tests/test_cuda_long"
passes long.log 'the same by portable kernels' "$tests/test_cuda_long" --portable
passes golden.log 'golden step within twice plain bf16' "$tests/test_cuda_golden"
passes golden.log 'the same by portable kernels' "$tests/test_cuda_golden" --portable

# The tiny model on both backends: the same samples, losses that agree to bf16.
"$sparda" data synth --out "$work/corpus" --rows 200 --seq-len 1024 --seed 1 >"$out/train.log" 2>&1
for run in cpu cuda cuda-again; do
    "$sparda" train configs/tiny.yaml --set "data=[$work/corpus]" --set eval_every_steps=0 \
        --set after_training=[] --set steps=20 --set deterministic=true \
        --set "backend=${run%-again}" --out "$work/$run" >>"$out/train.log" 2>&1
    kl "$work/$run" >"$work/$run.kl"
done
row 'largest difference of 20 training losses' "$(difference "$work/cpu.kl" "$work/cuda.kl")"
row 'repeat on the GPU' \
    "$([ -s "$work/cuda.kl" ] && cmp -s "$work/cuda.kl" "$work/cuda-again.kl" &&
        echo 'bit-identical losses' || echo 'FAIL: different, or none')"

# NAME TOKENS OPTION...: whole training steps on the base at hand.
steps() {
    json=$out/step-$1-$2.json name="step of $layers layers, $2 tokens, $1"
    shift
    rm -f "$json" # of an earlier call
    if timeout 180 "$sparda" bench train-step --backend cuda --base "$work/base" --seq-len "$@" \
        --json "$json" >>"$out/bench.log" 2>&1; then
        row "$name" "$(value "$json" ms_median) ms"
    else
        row "$name" "FAIL ($?), see bench.log"
    fi
}
"$sparda" data synth-model --like minicpm4.1-8b --layers "$layers" --out "$work/base" >"$out/bench.log" 2>&1
steps minicpm 16384
steps minicpm 65536
steps portable 65536 --steps 3 --cuda-kernels portable
rm -rf "$work/base"
"$sparda" data synth-model --like nosa-8b --layers "$layers" --out "$work/base" >>"$out/bench.log" 2>&1
steps nosa 32768
rm -rf "$work/base"

for tool in memcheck racecheck; do
    for kernels in '' --portable; do
        # shellcheck disable=SC2086  # no argument where it is empty
        passes $tool.log "compute-sanitizer $tool $kernels" compute-sanitizer --tool $tool --error-exitcode 9 \
            "$tests/test_cuda_operations" --small $kernels
    done
done
printf '\n'
cat "$out/table.txt"
! grep -Eq ' (FAIL|SKIPPED)' "$out/table.txt"
