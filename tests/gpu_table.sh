# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154
# Shared by gpu.sh, gpu_ranks.sh and gpu_serve.sh: where things are, and rows of a table.
#
# Needs $build and $out. Sets $sparda, $tests and $work, a folder that goes at the end; rows are
# shown and kept in $out/table.txt.
sparda=$build/sparda tests=$build
[ ! -d "$build/tests" ] || tests=$build/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
: >"$out/table.txt"

row() { printf '%-58s %s\n' "$1" "$2" | tee -a "$out/table.txt"; }
now() { date +%s; }

# LOG NAME COMMAND...: a row that says whether the command succeeded within five minutes.
passes() {
    log=$1 name=$2 from=$(now)
    shift 2
    if timeout 300 "$@" >"$work/said" 2>&1; then verdict=pass; else verdict="FAIL ($?), see $log"; fi
    # A program that failed stays failed; test_cuda_golden skips only its part on the GPU.
    [ "$verdict" != pass ] || ! grep -Eq '^(skipped|the GPU part is skipped):' "$work/said" || verdict=SKIPPED
    cat "$work/said" >>"$out/$log"
    row "$name" "$verdict, $(($(now) - from)) s"
}

# The first number of a key in a JSON file; the losses of a run; the largest relative difference of two
# lists of 20 losses, FAIL if there are fewer.
value() { sed -n "s/.*\"$2\": \([0-9.-]*\).*/\1/p" "$1" | head -1; }
kl() { sed -n 's/.*"train\/kl": *\([0-9.e+-]*\),.*"train\/kl_layers.*/\1/p' "$1/metrics.jsonl"; }
difference() { paste "$1" "$2" |
    awk 'NF == 2 { n++; d = ($1 > $2 ? $1 - $2 : $2 - $1) / $1; if (d > m) m = d }
        END { if (n != 20 || NR != 20) print "FAIL: " n + 0 " losses of 20"; else printf "%.1e relative", m }'; }
