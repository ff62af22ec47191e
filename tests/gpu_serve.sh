#!/bin/sh
# Serving on a machine with one GPU: checks, sanitizers, validation and speed, in one call; a short
# table last.
#
#   sh tests/gpu_serve.sh BUILD OUT [PART ...]
#
# BUILD is a build folder, or one that holds `sparda` and the test programs; OUT receives logs and
# JSON. Parts, all if none is named:
#   check      decode operations against the CPU backend, whole runs to the bit
#   sanitize   both under compute-sanitizer: memcheck, racecheck, synccheck; at most 5 minutes each
#   validate   the tiny bases, trained here for a few steps: `sparda validate`, its time and verdict
#   large      the same for a base of MiniCPM4.1-8B's dimensions, all 32 layers (16 GB, random), with
#              held-out rows of 65,536 tokens
#   transfer   the transfer engine alone
#   decode     decode steps of both models' dimensions: 4 layers in the files, 32 that run
#   prefill    prompts of 131,072 tokens
# shellcheck disable=SC1091,SC2034,SC2154
set -u
build=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- check sanitize validate large transfer decode prefill
parts=" $* "
. "$(dirname "$0")/gpu_table.sh"
asked() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }

# NAME BASE HELD-OUT-OPTION TRAINING-OPTION...: trains, exports, validates; what the validation says goes into the table.
validates() {
    name=$1 base=$2 held_out=$3 from=$(now)
    shift 3
    "$sparda" train "$@" --set "base=$base" --set backend=cuda --set after_training=[] \
        --set eval_every_steps=0 --out "$work/$name" >>"$out/validate.log" 2>&1 &&
        "$sparda" export "$work/$name" --out "$work/$name-export" >>"$out/validate.log" 2>&1
    row "$name: training and export" "exit $?, $(($(now) - from)) s"
    from=$(now)
    # shellcheck disable=SC2086  # no argument where it is empty
    "$sparda" validate --base "$base" --forecast "$work/$name-export" --report "$out/report-$name" \
        $held_out --set backend=cuda >"$out/validate-$name.log" 2>&1
    row "$name: validation" "exit $?, $(($(now) - from)) s"
    grep -E 'checks passed|^  (warning|failure|failed)' "$out/validate-$name.log" | tee -a "$out/table.txt"
}

if asked check; then
    passes check.log 'decode operations against the CPU backend' "$tests/test_cuda_decode"
    passes check.log 'whole runs to the bit, both bases' "$tests/test_cuda_serve"
    passes check.log 'decode operations by portable kernels' "$tests/test_cuda_decode" --portable
    passes check.log 'whole runs by portable kernels' "$tests/test_cuda_serve" --portable
fi

if asked validate; then
    "$sparda" data synth --out "$work/corpus" --rows 600 --seq-len 1024 --seed 1 >"$out/validate.log" 2>&1
    validates tiny data/tiny-base '' configs/tiny.yaml --set "data=[$work/corpus]"
    validates tiny-nosa data/tiny-nosa '' configs/tiny-nosa.yaml --set "data=[$work/corpus]" --set steps=150 \
        --set seq_len=1024
fi

# MODEL OPTION...: steps of 32 layers, 4 of them in the files.
decodes() {
    row "$*" ''
    shift
    cell=$((cell + 1)) # not in the pipeline, which is a shell of its own
    "$sparda" bench decode --base "$work/base" --layers 32 --batch 4,8,16 --home-gib 4 "$@" \
        --json "$out/decode-$cell.json" 2>&1 | tee -a "$out/decode.log" |
        grep -E '^  (mode|dense|sparse|forecast|sparda|infinigen)|error' | tee -a "$out/table.txt"
}
cell=0
if asked decode; then
    "$sparda" data synth-model --like minicpm4.1-8b --layers 4 --out "$work/base" >"$out/decode.log" 2>&1
    decodes minicpm4.1-8b
    for way in 'resident 2' 'resident 4' 'resident 8' 'bulk 16' 'kernel 8' 'kernel 16'; do
        decodes minicpm4.1-8b --modes forecast-inline,sparda --transfer "${way% *}" --ctas "${way#* }"
    done
    rm -rf "$work/base"
    "$sparda" data synth-model --like nosa-8b --layers 4 --out "$work/base" >>"$out/decode.log" 2>&1
    decodes nosa-8b --context 32768
    rm -rf "$work/base"
fi

if asked transfer; then
    "$sparda" bench transfer --units 8,128,256,512,2048 --ctas 4,8,16,32 --pool-gib 4 --matmul 1 \
        --json "$out/transfer.json" >"$out/transfer.log" 2>&1
    row 'transfers alone' "exit $?, transfer.log"
fi

if asked prefill; then
    "$sparda" data synth-model --like minicpm4.1-8b --layers 4 --out "$work/base" >"$out/prefill.log" 2>&1
    "$sparda" bench prefill --base "$work/base" --tokens 131072 --repeats 3 --json "$out/prefill.json" >>"$out/prefill.log" 2>&1
    row 'prefill' "exit $?, prefill.log"
    rm -rf "$work/base"
fi

if asked sanitize; then
    for run in test_cuda_decode test_cuda_serve; do # operations first, then whole runs
        for tool in memcheck racecheck synccheck; do
            # Racecheck is slow, and every comparison starts the same kernels: one is enough.
            only=
            [ $tool-$run != racecheck-test_cuda_serve ] || only=a_thousand_steps
            # shellcheck disable=SC2086  # no argument where it is empty
            passes "$tool-$run.log" "$tool, $run $only" \
                compute-sanitizer --tool $tool --error-exitcode 9 "$tests/$run" --small $only
        done
    done
fi

if asked large; then
    from=$(now)
    {
        "$sparda" data synth-model --like minicpm4.1-8b --out "$work/base"
        "$sparda" data synth --out "$work/rows" --rows 2 --seq-len 8192 --seed 1
        "$sparda" data synth --out "$work/long" --rows 4 --seq-len 65536 --seed 2
    } >>"$out/validate.log" 2>&1
    row 'a base of 8B parameters' "$(($(now) - from)) s"
    validates large "$work/base" "--data $work/long" configs/minicpm4.1-8b.yaml --set "data=[$work/rows]" --set steps=1 \
        --set seq_len=8192 --set global_batch=1
    # Random weights have no quality, so the exit status is 1.
    row 'large: failures other than those of quality (0 wanted)' "$(grep -c '^  failed [^Q]' "$out/validate-large.log")"
fi
cat "$out/table.txt"
