#!/bin/sh
# Two GPUs of one host through NCCL: same losses as one GPU with accumulation, cost of the sum,
# end of the run when a rank is killed. A short table last.
#
#   sh tests/gpu_ranks.sh BUILD OUT [LAYERS]
set -u
build=$1 out=$2 layers=${3:-4}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sparda=$build/sparda
two="mpirun -np 2 --bind-to none"
row() { printf '%-52s %s\n' "$1" "$2" >>"$out/table.txt"; }
: >"$out/table.txt"
kl() { sed 's/.*"train\/kl": *\([0-9.e+-]*\),.*"train\/kl_layers.*/\1/' "$1/metrics.jsonl"; }
step_ms() { sed 's/.*"perf\/step_ms": *\([0-9.]*\).*/\1/' "$1/metrics.jsonl" | tail -n +3 | sort -n | sed -n 2p; }

"$sparda" data synth --out "$work/corpus" --rows 200 --seq-len 1024 --seed 1 >"$out/train.log" 2>&1
tiny="train configs/tiny.yaml --set data=[$work/corpus] --set eval_every_steps=0 --set after_training=[] --set steps=20 --set backend=cuda"
"$sparda" $tiny --out "$work/one" >>"$out/train.log" 2>&1
$two "$sparda" $tiny --out "$work/two" >>"$out/train.log" 2>&1
kl "$work/one" >"$work/one.kl"
kl "$work/two" >"$work/two.kl"
row '2 GPUs against 1 with accumulation, 20 losses' "$(paste "$work/one.kl" "$work/two.kl" |
    awk '{ d = ($1 > $2 ? $1 - $2 : $2 - $1) / $1; if (d > m) m = d } END { printf "%.1e relative", m }')"

"$sparda" data synth-model --like minicpm4.1-8b --layers "$layers" --out "$work/base" >"$out/bench.log" 2>&1
"$sparda" data synth --out "$work/long" --rows 16 --seq-len 65536 --seed 3 >>"$out/bench.log" 2>&1
cat >"$work/big.yaml" <<END
base: $work/base
data: [$work/long]
seq_len: 65536
steps: 6
backend: cuda
END
"$sparda" train "$work/big.yaml" --set global_batch=1 --out "$work/big1" >>"$out/bench.log" 2>&1
$two "$sparda" train "$work/big.yaml" --set global_batch=2 --out "$work/big2" >>"$out/bench.log" 2>&1
row "step of $layers layers, 65,536 tokens a GPU, 1 GPU" "$(step_ms "$work/big1") ms"
row "the same on 2 GPUs" "$(step_ms "$work/big2") ms"

$two "$sparda" train "$work/big.yaml" --set global_batch=2 --set steps=1000 --out "$work/killed" >"$out/killed.log" 2>&1 &
job=$!
until [ "$(cat "$work/killed/metrics.jsonl" 2>/dev/null | wc -l)" -ge 2 ]; do sleep 0.2; kill -0 $job || break; done
victim=$(pgrep -f "$work/killed" | tail -1)
start=$(date +%s.%N)
kill -9 "$victim"
wait $job
status=$?
row 'one rank killed: seconds until all have ended' "$(date +%s.%N | awk -v s="$start" '{ printf "%.1f", $1 - s }') (status $status)"
sleep 1
row 'processes left' "$(pgrep -fc "$work/killed")"
cat "$out/table.txt"
