#!/bin/sh
# Check, benchmark and sanitizer on a machine with one GPU, in one call; a short table last.
#
#   sh tests/gpu.sh BUILD OUT [LAYERS]
#
# The portable kernels run by `cuda_kernels: portable`. To see their PTX translated by the driver, as on a
# card that was not compiled for, configure BUILD with -DSPARDA_CUDA_ARCHITECTURES=80-virtual.
# BUILD holds `sparda` and the test programs, OUT receives logs and JSON. LAYERS (default 4) of the
# 8B dimensions are measured; 32 is the whole model (16 GB, about a minute more).
set -u
build=$1 out=$2 layers=${3:-4}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sparda=$build/sparda
row() { printf '%-44s %s\n' "$1" "$2" >>"$out/table.txt"; }
: >"$out/table.txt"

"$build/test_cuda_operations" >"$out/operations.log" 2>&1
row 'operations against the CPU backend' "$([ $? = 0 ] && echo pass || echo FAIL)"
"$build/test_cuda_operations" --portable >"$out/portable.log" 2>&1
row 'portable kernels against the CPU backend' "$([ $? = 0 ] && echo pass || echo FAIL)"
"$build/test_cuda_golden" >"$out/golden.log" 2>&1
row 'golden step within twice plain bf16' "$([ $? = 0 ] && echo pass || echo FAIL)"
"$build/test_cuda_golden" --portable >>"$out/golden.log" 2>&1
row 'the same by portable kernels' "$([ $? = 0 ] && echo pass || echo FAIL)"

# The tiny model on both backends: the same samples, losses that agree to bf16.
"$sparda" data synth --out "$work/corpus" --rows 200 --seq-len 1024 --seed 1 >"$out/train.log" 2>&1
for run in cpu cuda cuda-again; do
    "$sparda" train configs/tiny.yaml --set "data=[$work/corpus]" --set eval_every_steps=0 \
        --set after_training=[] --set steps=20 --set deterministic=true \
        --set "backend=${run%-again}" --out "$work/$run" >>"$out/train.log" 2>&1
    sed 's/.*"train\/kl": *\([0-9.e+-]*\),.*"train\/kl_layers.*/\1/' "$work/$run/metrics.jsonl" >"$work/$run.kl"
done
row 'largest difference of 20 training losses' "$(paste "$work/cpu.kl" "$work/cuda.kl" |
    awk '{ d = ($1 > $2 ? $1 - $2 : $2 - $1) / $1; if (d > m) m = d } END { printf "%.1e relative", m }')"
row 'repeat on the GPU' "$(cmp -s "$work/cuda.kl" "$work/cuda-again.kl" && echo 'bit-identical losses' || echo DIFFERENT)"

"$sparda" data synth-model --like minicpm4.1-8b --layers "$layers" --out "$work/base" >"$out/bench.log" 2>&1
for tokens in 16384 65536; do
    "$sparda" bench train-step --base "$work/base" --seq-len $tokens --steps 5 --json "$out/step-$tokens.json" >>"$out/bench.log" 2>&1
    row "step of $layers layers, $tokens tokens" "$(sed -n 's/.*"ms_median": \([0-9.]*\).*/\1 ms/p' "$out/step-$tokens.json" | head -1)"
done

"$sparda" bench train-step --base "$work/base" --seq-len 65536 --steps 3 --cuda-kernels portable \
    --json "$out/step-portable.json" >>"$out/bench.log" 2>&1
row "step of $layers layers, 65536 tokens, portable kernels" "$(sed -n 's/.*"ms_median": \([0-9.]*\).*/\1 ms/p' "$out/step-portable.json" | head -1)"

rm -rf "$work/base"
"$sparda" data synth-model --like nosa-8b --layers "$layers" --out "$work/base" >>"$out/bench.log" 2>&1
"$sparda" bench train-step --base "$work/base" --seq-len 32768 --steps 5 --json "$out/step-nosa.json" >>"$out/bench.log" 2>&1
row "step of $layers NOSA layers, 32768 tokens" "$(sed -n 's/.*"ms_median": \([0-9.]*\).*/\1 ms/p' "$out/step-nosa.json" | head -1)"

for tool in memcheck racecheck; do
    timeout 240 compute-sanitizer --tool $tool --error-exitcode 9 \
        "$build/test_cuda_operations" --small >"$out/$tool.log" 2>&1
    row "compute-sanitizer $tool" "$([ $? = 0 ] && grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$tool.log" || echo "FAIL, see $tool.log")"
    timeout 240 compute-sanitizer --tool $tool --error-exitcode 9 \
        "$build/test_cuda_operations" --small --portable >"$out/$tool-portable.log" 2>&1
    row "compute-sanitizer $tool, portable kernels" "$([ $? = 0 ] && grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$tool-portable.log" || echo "FAIL, see $tool-portable.log")"
done
cat "$out/table.txt"
