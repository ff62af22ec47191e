#!/bin/sh
# ctest: timeout=120
# Symbolic links: models and data that consist of them, as in a model cache, are read; nothing is
# written through one that lies under a name the program writes to.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/train.sh"

# ---- reading --------------------------------------------------------------------------------------
# linked FROM TO: the files of FROM as blobs without a name, and TO with relative links to them.
linked() {
    n=0
    mkdir -p "$work/blobs"
    (cd "$1" && find . -type f | sed 's|^\./||') | while read -r file; do
        n=$((n + 1))
        blob=$(basename "$2")-$n
        cp "$1/$file" "$work/blobs/$blob"
        mkdir -p "$(dirname "$2/$file")"
        up=$(printf '%s' "${2#"$work"/}/$file" | sed 's|[^/]*$||; s|[^/]*/|../|g')
        ln -s "${up}blobs/$blob" "$2/$file"
    done
}
linked "$base" "$work/cache/model"
linked "$work/corpus" "$work/cache/corpus"
if [ ! -L "$work/cache/model/config.json" ] || [ ! -s "$work/cache/model/config.json" ]; then
    complain 'no links'
fi
check 0 train plain --set steps=2
check 0 train links --set steps=2 --set "base=$work/cache/model" --set \
    "data=[{path: $work/cache/corpus, proportion: 2}, {path: $work/short, proportion: 1}]"
numbers plain >"$work/numbers1"
numbers links >"$work/numbers2"
cmp -s "$work/numbers1" "$work/numbers2" || complain 'another result from links'
linked "$root/tests/mds/zstd" "$work/cache/mds"
import="--vocab 1024 --tokenizer t"
# shellcheck disable=SC2086
check 0 "$sparda" data import "$root/tests/mds/zstd" $import --out "$work/import1"
# shellcheck disable=SC2086
check 0 "$sparda" data import "$work/cache/mds" $import --out "$work/import2"
# import.json names the files that were read
diff -r -x import.json "$work/import1" "$work/import2" >"$work/out" 2>&1 || complain 'another import from links'

# ---- writing --------------------------------------------------------------------------------------
victim=$work/victim
unharmed() { [ "$(cat "$victim")" = precious ] || complain "written through a link: $1"; }
echo precious >"$victim"

# Files that appear by renaming replace a link.
check 0 "$sparda" export "$work/plain" --out "$work/export"
for file in "$work/export"/*; do
    if [ -f "$file" ]; then rm "$file" && ln -s "$victim" "$file"; fi
done
check 0 "$sparda" export "$work/plain" --out "$work/export" --force
unharmed export
[ -z "$(find "$work/export" -type l)" ] || complain "links are left: $(ls -l "$work/export")"

# The same in a folder that is resumed.
for name in run.json checkpoints/latest checkpoints/step-0000003.h5 config.resolved.yaml; do
    rm -f "$work/plain/$name.kept"
    [ ! -e "$work/plain/$name" ] || mv "$work/plain/$name" "$work/plain/$name.kept"
done
cp "$work/plain/run.json.kept" "$work/run.json"
ln -s "$victim" "$work/plain/checkpoints/latest"
ln -s "$victim" "$work/plain/checkpoints/step-0000003.h5"
ln -s "$victim" "$work/plain/config.resolved.yaml"
mv "$work/run.json" "$work/plain/run.json"
check 0 train plain --set steps=3 --resume
unharmed checkpoints
[ ! -L "$work/plain/checkpoints/step-0000003.h5" ] || complain 'a checkpoint is a link'

# Files that are written in place refuse one, by name.
for name in metrics.jsonl log/rank-0.log .lock; do
    rm -f "$work/plain/$name"
    ln -s "$victim" "$work/plain/$name"
    check 2 train plain --set steps=4 --resume
    has err "$name is a symbolic link, and nothing is written through one"
    unharmed "$name"
    rm "$work/plain/$name"
done
finish
