#!/bin/sh
# Named pipes under the names of files that the program reads: refused at once, where opening one would
# wait for ever for somebody who writes to it.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
. "$(dirname "$0")/check.sh"

refused() { # ARGUMENTS...
    check 2 timeout 20 "$sparda" "$@"
}
cd "$work" || exit 1
mkdir h5 bin mds model
mkfifo h5/a.h5 bin/x.bin bin/x.jsonl mds/index.json model/config.json c.yaml f.pt s.h5 s.safetensors \
    tokenizer.json
refused data info h5
has err 'h5/a.h5 is not a regular file'
refused data verify h5
refused train "$root/configs/tiny.yaml" --set "data=[$work/h5]" --dry-run
has err 'h5/a.h5 is not a regular file'
refused info h5/a.h5
refused data import bin/x.bin --out result --dtype uint16 --eod 0
refused data import bin/x.jsonl --out result
refused data info mds
refused info model
refused train c.yaml
has err 'c.yaml is not a regular file'
for file in f.pt s.h5 s.safetensors; do
    refused info $file
    refused export $file --out result
    refused validate --base "$root/data/tiny-base" --forecast $file --report result
done
refused data retokenize h5 --from tokenizer.json --to tokenizer.json --out result
has err 'tokenizer.json is not a regular file'
mkdir base
cp "$root/data/tiny-base/config.json" base/
mkfifo base/model.safetensors
refused validate --base base --forecast f.pt --report result
refused train "$root/configs/tiny.yaml" --set "base=$work/base" --set "data=[$work/h5]" --dry-run
[ ! -e result ] || complain 'something was written'

# A pipe in the place of the list of shards is no list, but the shards are there.
check 0 "$sparda" data synth --out d --rows 2 --seq-len 64
rm -f d/shards.json
mkfifo d/shards.json
check 0 timeout 20 "$sparda" data info d
finish
