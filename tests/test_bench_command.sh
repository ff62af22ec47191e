#!/bin/sh
# ctest: alone=yes
# sparda bench: what it prints and writes, and what it refuses.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/check.sh"
base=$root/data/tiny-base

check 0 "$sparda" bench --help
has out 'train-step'
check 2 "$sparda" bench
has err 'nothing to measure'
check 2 "$sparda" bench no-such-operation
has err "unknown operation 'no-such-operation'; known are: .*importance"
check 2 "$sparda" bench train-step --seq-len 0 --wrong
has err -- '--seq-len: a whole number from 1'
has err "unknown option '--wrong'"
# An option of another benchmark has no effect, so it is refused.
check 2 "$sparda" bench scaling --tokens 64 --like tiny
has err "unknown option '--tokens'"
has err "unknown option '--like'"
check 2 "$sparda" bench rmsnorm --seq-len 64
has err "unknown option '--seq-len'"
check 2 "$sparda" bench --json x train-step
has err 'comes first'
for serving in decode transfer; do # said in every build
    check 0 "$sparda" bench $serving --help
    has out "sparda bench $serving \[options\]"
    empty err
done
check 2 "$sparda" bench train-step --base "$base" --seq-len 7
has err 'below one window of 8 tokens'

# 128 tokens: exact FLOP come from model/flops.c, which has tests of its own.
check 0 "$sparda" bench train-step --base "$base" --seq-len 128 --batch 2 --steps 3 --threads 1 \
    --json "$work/step.json"
has err 'of the rate of large matrix products here'
has err '^  linear '
has err '^  importance '
empty out
for key in name shape ms_median ms_min ms_p99 n flop bytes tflops gbps ceiling share tokens_per_s \
    operations; do
    grep -q "\"$key\":" "$work/step.json" || complain "$key is not in the JSON"
done
grep -q '"n": 3' "$work/step.json" || complain 'n'
# 6 layers; the last one is without values, attention and MLP: 2 x (5 x 5 + 2) products, and so on
calls() { awk -v name="\"$1\"" '$1 == "\"name\":" { on = $2 == name "," } on && $1 == "\"calls_per_step\":" { print $2 + 0 }' "$work/step.json"; }
[ "$(calls sparse_attention)" = 10 ] || complain "sparse_attention: $(calls sparse_attention) calls"
[ "$(calls adamw)" = 1 ] || complain "adamw: $(calls adamw) calls"
# the parts cannot be more than the whole
awk '$1 == "\"share_of_step\":" { sum += $2 } END { exit !(sum > 0.3 && sum <= 1) }' \
    "$work/step.json" || complain 'shares of the operations'

check 0 "$sparda" bench scaling --base "$base" --seq-len 64 --steps 2 --threads 1 --json "$work/scaling.json"
has err 'scaling  *tiny-base, ranks 1, hosts 1, 1 x 64 tokens'
for key in ranks hosts step_ms alone_ms exposed_ms noise_ms sum_ms sum_bytes bus_gbps load_s host_rss; do
    grep -q "\"$key\":" "$work/scaling.json" || complain "$key is not in the JSON of scaling"
done
grep -q '"sum_bytes": 786432' "$work/scaling.json" || complain 'six matrices of 128 x 256 fp32'

check 0 "$sparda" bench rmsnorm --threads 1 --json -
has out '"name": "rmsnorm"'
has err '^rmsnorm '
check 2 "$sparda" bench rmsnorm --threads 1 --json "$work/none/x.json" # before it measures
has err 'none is no folder; make it first'
lacks err 'backend'
check 2 "$sparda" bench rmsnorm --threads 1 --json "$work"

# More threads than OpenBLAS has buffers for: it would end the process.
check 2 "$sparda" bench rmsnorm --threads 1000 --blas openblas
has err 'this OpenBLAS serves at most'

check 0 "$sparda" bench prefill --help
has out 'selectors LIST'
check 2 "$sparda" bench prefill --selectors dense,foo
has err "--selectors: 'foo' is none of .*dense"
check 0 "$sparda" bench prefill --base "$base" --tokens 100 --repeats 1 --threads 1 \
    --selectors forecast,dense --json "$work/prefill.json"
has err 'forecast  *100 tokens'
grep -q '"shape": "tiny-base, 6 layers, 100 tokens, forecast"' "$work/prefill.json" || complain 'shape'
[ "$(grep -c '"name": "prefill"' "$work/prefill.json")" = 2 ] || complain 'two selectors'

finish
