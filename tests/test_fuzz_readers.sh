#!/bin/sh
# ctest: alone=yes timeout=900
# Every reader of foreign files under libFuzzer, 20 s each from the kept corpus on, as many at a time as
# there are cores, with the sanitizers of clang: a short form of the build with SPARDA_FUZZ
# (CONTRIBUTING.md) that compiles only the readers. SECONDS for each and a SEED may follow the program's
# path: without them every run tries the same inputs, so that a failure is of the change and not of luck.
set -u
sparda=$1
seconds=${2:-20}
seed=${3:-1}
if grep -q __asan_init "$sparda"; then
    echo 'skipped: done by the tests without sanitizers'
    exit 0
fi
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags='-std=c11 -D_GNU_SOURCE -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined'
printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { (void)d; (void)n; return 0; }\n' \
    >"$work/try.c"
if ! clang -fsanitize=fuzzer,address,undefined "$work/try.c" -o "$work/try" 2>/dev/null; then
    echo 'skipped: no clang with libFuzzer (packages clang, libclang-rt-dev)'
    exit 0
fi
libraries='jansson libfyaml libxxhash libzstd libpcre2-8 libcrypto zlib'
# Debian keeps the serial HDF5 apart; elsewhere it is where the compiler looks anyway.
hdf5=$(pkg-config --exists hdf5-serial && echo hdf5-serial || echo hdf5)
# shellcheck disable=SC2086
if ! pkg-config --exists $libraries "$hdf5"; then
    echo 'skipped: pkg-config does not know all libraries'
    exit 0
fi
# shellcheck disable=SC2086
includes="-I$root -I$(dirname "$sparda")/generated $(pkg-config --cflags $libraries "$hdf5")"
# shellcheck disable=SC2086
links="$(pkg-config --libs $libraries "$hdf5") -lpthread -lm"
jobs=$(nproc 2>/dev/null || echo 2)

# No commands, no writers of other formats, nothing that computes.
{
    printf '%s\n' "$root"/common/*.c "$root"/data/*.c |
        grep -v -E '(bench|command|synth|synth_model|verify|info|mds_write|import|import_find|args|retokenize|corpus)\.c$'
    for name in model/config model/describe model/weights model/selection model/safetensors model/forecast \
        checkpoints/pt_read checkpoints/pt_pickle checkpoints/pt_zip checkpoints/state; do
        echo "$root/$name.c"
    done
} | xargs -P "$jobs" -I{} sh -c "clang $flags $includes -c \"\$1\" -o $work/\$(printf '%s' \"\${1#$root/}\" | tr / _).o" sh {} || {
    echo 'FAILED: clang cannot compile the readers'
    exit 1
}
ar rc "$work/readers.a" "$work"/*.o

# one NAME: links it, collects its seeds and lets it run.
cat >"$work/one" <<END
name=\$1
clang $flags -fsanitize=fuzzer $includes "$root/tests/fuzz/\$name.c" "$work/readers.a" -o "$work/\$name" $links || exit 1
mkdir "$work/\$name.corpus"
[ ! -d "$root/tests/fuzz/corpus/\$name" ] || cp "$root/tests/fuzz/corpus/\$name"/* "$work/\$name.corpus"
sed -n 's|^// seed: *||p' "$root/tests/fuzz/\$name.c" | while read -r file; do
    cp "$root/\$file" "$work/\$name.corpus/\$(printf '%s' "\$file" | tr / _)"
done
if "$work/\$name" -seed=$seed -max_total_time=$seconds -timeout=20 -rss_limit_mb=3000 -artifact_prefix="$work/found-\$name-" \
    "$work/\$name.corpus" >"$work/\$name.log" 2>&1; then
    echo "\$name: \$(grep '^Done' "$work/\$name.log")"
else
    echo "FAILED: \$name"
    tail -n 40 "$work/\$name.log"
    cp "$work/found-\$name-"* . 2>/dev/null # beside the build, to be looked at
    exit 1
fi
END
for source in "$root"/tests/fuzz/fuzz_*.c; do
    basename "$source" .c
done | xargs -P "$jobs" -I{} sh "$work/one" {}
