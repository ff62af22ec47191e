#!/bin/sh
# ctest: mpi=yes timeout=300
# `sparda data import` by several ranks gives the shards of one; a fault found by any of them ends
# all, and nothing is left.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/ranks.sh"
. "$(dirname "$0")/check.sh"
ranks() { # STATUS N ARG...
    want=$1 n=$2
    shift 2
    # shellcheck disable=SC2086
    check "$want" timeout 100 mpirun $flags -n "$n" "$sparda" data "$@"
}
same() { # DIR DIR
    for f in $(cd "$1" && find . -name '*.h5'); do
        cmp "$1/$f" "$2/$f" || complain "$f differs"
    done
    [ "$(find "$1" -name '*.h5' | wc -l)" = "$(find "$2" -name '*.h5' | wc -l)" ] ||
        complain "$1 and $2 have different numbers of shards"
}

check 0 "$sparda" data import "$root/tests/mds/zstd" --out "$work/one" --vocab 1024 --shard-tokens 3000
[ "$(find "$work/one" -name '*.h5' | wc -l)" -ge 6 ] || complain 'too few shards for this test'
ranks 0 3 import "$root/tests/mds/zstd" --out "$work/three" --vocab 1024 --shard-tokens 3000 --threads 1
same "$work/one" "$work/three"
[ "$(grep -c 'ledger: 40 rows' "$work/err")" = 1 ] || complain 'not exactly one rank speaks'
ranks 0 2 import "$root/tests/mds/zstd" --out "$work/three" --vocab 1024 --shard-tokens 3000
has err 'already imported'

# interrupted, and gone on with by another number of ranks
mkdir "$work/resumed"
cp -r "$work/one/prose-code" "$work/resumed/.import-prose-code"
(
    cd "$work/resumed/.import-prose-code" || exit 1
    mv import.json plan.json
    for f in *.h5; do mv "$f" "${f%.h5}.part"; done
    rm shard-00002.part shard-00000.part shards.json
)
ranks 0 2 import "$root/tests/mds/zstd" --out "$work/resumed" --vocab 1024 --shard-tokens 3000
same "$work/one" "$work/resumed"

# a fault in one domain
ranks 2 3 import "$root/tests/mds/zstd" --out "$work/bad" --vocab 1023 --shard-tokens 3000
has err 'is outside 0..1022'
[ -z "$(ls -A "$work/bad")" ] || complain "left: $(ls -A "$work/bad")"
ranks 2 2 import "$work/nothing" --out "$work/bad"
has err 'does not exist'
ranks 0 2 retokenize "$root/tests/mds/raw/ledger" --from "$root/tests/tokenizers/bytes.json" \
    --to "$root/tests/tokenizers/marks.model" --out "$work/text2" --shard-tokens 3000
check 0 "$sparda" data retokenize "$root/tests/mds/raw/ledger" --from "$root/tests/tokenizers/bytes.json" \
    --to "$root/tests/tokenizers/marks.model" --out "$work/text1" --shard-tokens 3000
same "$work/text1" "$work/text2"
finish
