#!/bin/sh
# ctest: timeout=300
# `sparda data import` and `verify`: every source, the order kept; interruption and resumption; every
# kind of fault with its exit status, and nothing left of what failed.
# shellcheck disable=SC1091,SC2154
sparda=$1
. "$(dirname "$0")/check.sh"
mds=$root/tests/mds

# import STATUS SRC... OPTION...
import() {
    want=$1
    shift
    check "$want" "$sparda" data import "$@"
}
shards() { find "$1" -name '*.h5' | wc -l; }
nothing_left() { # DIR: no shard, no hidden folder
    [ -z "$(find "$1" -mindepth 1 2>/dev/null)" ] || complain "left behind: $(find "$1" -mindepth 1)"
}
tokens() { "$sparda" data info "$1" --json | sed -n 's/^  "tokens": \([0-9]*\),/\1/p'; }

# ---- MDS, raw and zstd, give the same shards
import 0 "$mds/raw" --out "$work/raw" --vocab 1024 --tokenizer t
has err 'raw/ledger: 40 rows, 17680 tokens'
import 0 "$mds/zstd" --out "$work/zstd" --vocab 1024 --tokenizer t --threads 3
for domain in ledger prose-code; do
    cmp "$work/raw/$domain/shard-00000.h5" "$work/zstd/$domain/shard-00000.h5" ||
        complain "raw and zstd give different shards of $domain"
done
check 0 "$sparda" data verify "$work/raw"
has out '64 rows, 160325 tokens in 2 files'
check 0 "$sparda" data verify "$work/zstd" --vocab 1024 --json
has out '"ok": true'
has out '"duplicate_rows": 0'
import 0 "$mds/raw" --out "$work/raw" --vocab 1024 --tokenizer t
has err 'already imported'
import 2 "$mds/raw" --out "$work/raw" --vocab 1025 --tokenizer t
has err 'replace it with --force'
import 0 "$mds/raw" --out "$work/raw" --vocab 1025 --tokenizer t --force
[ "$(find "$work/raw" -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || complain 'more than two domains'
check 0 "$sparda" data info "$work/raw"
has out 'tokenizer t, vocabulary 1025'
import 0 "$mds/raw/ledger" --out "$work/many" --shard-tokens 4000 --domain one
[ "$(shards "$work/many")" = 4 ] || complain "$(shards "$work/many") shards instead of 4"
import 2 "$mds/raw/ledger" "$mds/zstd/ledger" --out "$work/two"
has err "would both become the domain 'ledger'"

# a model folder gives vocabulary and identity
import 0 "$mds/raw/ledger" --out "$work/base" --base "$root/data/tiny-base"
check 0 "$sparda" data info "$work/base"
has out 'tokenizer tiny-base, vocabulary 1024'

# ---- JSON lines and flat files: the same rows again, cut into jobs anywhere
printf '%s\n' '[5, 6, 7]' '{"id": {"x": ["]}", 1.5e-3, null]}, "input_ids": [8], "t": "\"[1,2]"}' '' \
    '  [ 9 ,10, 11,12 ]  ' '{"tokens":[13,1000000]}' >"$work/rows.jsonl"
printf '[14,15]' >>"$work/rows.jsonl" # no newline at the end
for n in 1 2 3 4 5 7 10 100; do
    import 0 "$work/rows.jsonl" --out "$work/json$n" --shard-tokens $n
    [ "$(tokens "$work/json$n")" = 12 ] || complain "cut by $n: $(tokens "$work/json$n") tokens"
    check 0 "$sparda" data info "$work/json$n"
    has out ': 5 rows, 12 tokens'
done
# uint16: rows 1 2 9 | 9 | 3 4 5 9 | 6
printf '\001\0\002\0\011\0\011\0\003\0\004\0\005\0\011\0\006\0' >"$work/a.bin"
for n in 1 2 3 4 5 9 100; do
    import 0 "$work/a.bin" --dtype uint16 --eod 9 --out "$work/bin$n" --shard-tokens $n
    check 0 "$sparda" data info "$work/bin$n"
    has out ': 4 rows, 9 tokens'
    import 0 "$work/a.bin" --dtype uint16 --eod 9 --drop-eod --out "$work/drop$n" --shard-tokens $n
    check 0 "$sparda" data info "$work/drop$n"
    has out ': 3 rows, 6 tokens'
done
printf '\001\0\0\0\002\0\0\0\011\0\0\0\003\0\0\0' >"$work/b.bin"
for type in uint32 int32; do
    import 0 "$work/b.bin" --dtype $type --eod 9 --out "$work/$type"
    check 0 "$sparda" data info "$work/$type"
    has out ': 2 rows, 4 tokens'
done
mkdir "$work/flat"
cp "$work/b.bin" "$work/flat/0.bin"
cp "$work/rows.jsonl" "$work/flat/1.jsonl"
import 0 "$work/flat" --dtype int32 --eod 9 --out "$work/folder"
check 0 "$sparda" data info "$work/folder"
has out ': 7 rows, 16 tokens'

# ---- faults of flat files: file, row, byte; nothing is left
line() { # TEXT PATTERN
    printf '[1,2]\n%s\n[3]\n' "$1" >"$work/bad.jsonl"
    import 2 "$work/bad.jsonl" --out "$work/bad" --vocab 1000
    has err 'bad.jsonl: row 1 (line 2, byte '
    has err "$2"
    nothing_left "$work/bad"
}
line '[1,-2]' 'byte 9): position 1: token id -2 is outside'
line '[1,1000]' 'token id 1000 is outside 0..999'
line '[1,99999999999999999999]' 'is outside 0..2147483647'
line '[]' 'a row without tokens'
line '[1,2' "expected ',' or '\]', found the end"
line '[1 2]' "found '2'"
line '[1,]' 'expected a token id'
line '[1.5]' "found '.'"
line '["1"]' 'expected a token id'
line '[1]]' 'expected the end of the line'
line '{"ids": [1]}' "has no 'input_ids'"
line '{"tokens": [1], "input_ids": [2]}' 'two lists'
line '{"a": "x' 'expected the end of a text'
line 'null' "expected '\['"
# the largest int32, which no vocabulary can hold, in the source too and not in the file being made
printf '[1,2]\n[3,2147483647]\n' >"$work/most.jsonl"
import 2 "$work/most.jsonl" --out "$work/bad"
has err 'most.jsonl: row 1 (line 2, byte 6), position 1: token id 2147483647 is outside 0..2147483646'
lacks err '\.part'
nothing_left "$work/bad"
import 2 "$work/a.bin" --out "$work/bad"
has err 'give --dtype'
printf 'abc' >"$work/odd.bin"
import 2 "$work/odd.bin" --dtype uint16 --eod 9 --out "$work/bad"
has err 'odd.bin has 3 bytes.*byte 2 begins an incomplete one'
import 2 "$work/a.bin" --dtype uint16 --eod 9 --out "$work/bad" --vocab 5
has err 'a.bin: row 0, position 2 (byte 4): token id 9 is outside 0..4'
printf '\001\0\0\0\377\377\377\377\011\0\0\0' >"$work/neg.bin"
import 2 "$work/neg.bin" --dtype int32 --eod 9 --out "$work/bad"
has err 'position 1 (byte 4): token id -1 is outside'
import 2 "$work/neg.bin" --dtype uint32 --eod 9 --out "$work/bad"
has err 'token id 4294967295 is outside'
import 2 "$work/a.bin" --dtype uint16 --eod 70000 --out "$work/bad"
import 2 "$work/a.bin" --dtype float --eod 7 --out "$work/bad"
: >"$work/empty.jsonl"
import 2 "$work/empty.jsonl" --out "$work/bad"
has err 'empty.jsonl is empty'
printf '\n\n' >"$work/empty.jsonl"
import 2 "$work/empty.jsonl" --out "$work/bad"
has err 'no row came out of'
import 2 "$work/absent" --out "$work/bad"
import 2 --out "$work/bad"
import 2 "$work/a.bin"
import 2 "$work/flat/1.jsonl" --out "$work/bad" --domain ../x
nothing_left "$work/bad"

# ---- faults of MDS sets; the good domain beside the bad one is imported all the same
damage() { # FILE BYTE: adds 1 to it
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    # shellcheck disable=SC2059
    printf "\\$(printf %03o $(((byte + 1) % 256)))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
copy() { rm -rf "$work/set" "$work/bad"; cp -r "$mds/$1" "$work/set"; chmod -R u+w "$work/set"; }
only_ledger() {
    import 2 "$work/set" --out "$work/bad"
    [ "$(ls -A "$work/bad")" = ledger ] || complain "left: $(ls -A "$work/bad")"
}
copy raw
damage "$work/set/prose-code/shard.00003.mds" 30000
only_ledger
has err 'prose-code/shard.00003.mds: its xxh64 is'
check 2 "$sparda" data verify "$work/set"
has err 'prose-code/shard.00003.mds: its '
copy zstd
damage "$work/set/prose-code/shard.00003.mds.zstd" 3000
only_ledger
has err 'prose-code/shard.00003.mds.zstd: its xxh64 is'
check 2 "$sparda" data verify "$work/set"
copy raw
import 2 "$work/set" --out "$work/bad" --vocab 600
has err 'position .*: token id .* is outside 0..599.*(byte '
nothing_left "$work/bad"
copy raw # what cannot even be opened stops everything before it begins
truncate -s 30000 "$work/set/prose-code/shard.00002.mds"
import 2 "$work/set" --out "$work/bad"
has err 'the copy or download is not complete'
[ -e "$work/bad" ] && complain 'a folder was made'
copy raw
rm "$work/set/ledger/shard.00001.mds"
import 2 "$work/set" --out "$work/bad"
has err 'shard.00001.mds, which index.json names, cannot be opened'
if [ "$(id -u)" != 0 ]; then
    copy raw
    chmod 0 "$work/set/ledger/shard.00001.mds"
    import 2 "$work/set" --out "$work/bad"
    has err 'Permission denied'
fi

# data of Llama-3 for a model with another vocabulary is recognised
printf '[9,128000,5]\n' >"$work/llama.jsonl"
import 2 "$work/llama.jsonl" --out "$work/bad" --vocab 73448
has err 'token id 128000 .*a special token of Llama-3.* has not been re-tokenised'
printf '[9,100000,5]\n' >"$work/llama2.jsonl"
import 2 "$work/llama2.jsonl" --out "$work/bad" --vocab 73448
has err 'token id 100000 .*has probably not been re-tokenised'
import 0 "$work/llama.jsonl" --out "$work/llama"
check 2 "$sparda" data verify "$work/llama" --vocab 73448
has err 'must be tokenised again'

# ---- re-tokenisation: its arguments (what it does is tested in C)
tokenizers=$root/tests/tokenizers
retokenize() {
    want=$1
    shift
    check "$want" "$sparda" data retokenize "$mds/raw/ledger" --out "$work/text" "$@"
}
retokenize 2 --from "$tokenizers/bytes.json"
has err 'name the tokenizers'
retokenize 2 --from "$tokenizers/bytes.json" --to "$tokenizers"
has err 'holds neither tokenizer.json nor tokenizer.model'
retokenize 2 --from "$tokenizers/bytes.json" --to "$tokenizers/absent.json"
retokenize 2 --from "$tokenizers/bytes.json" --to "$tokenizers/marks.model" --clean-up maybe
retokenize 2 --from "$tokenizers/small.json" --to "$tokenizers/marks.model" # has fewer ids
has err 'shard.00000.mds: row .*, position .*: token id'
nothing_left "$work/text"
mkdir "$work/llama3"
cp "$tokenizers/bytes.json" "$work/llama3/tokenizer.json"
printf '{"clean_up_tokenization_spaces": true}' >"$work/llama3/tokenizer_config.json"
retokenize 0 --from "$work/llama3" --to "$tokenizers/marks.model"
has err 'from llama3 tokenizer.json sha256:.* to tokenizers marks.model sha256:.*, cleaned up'
check 0 "$sparda" data verify "$work/text"
has out '40 rows'
check 0 "$sparda" data info "$work/text"
has out 'tokenizer tokenizers marks.model sha256:'
retokenize 2 --from "$work/llama3" --to "$tokenizers/marks.model" --clean-up no
has err 'replace it with --force'

# what a source states of its tokenizer is compared with --from, by the hash where there is one
again() { # SRC FROM
    rm -rf "$work/again"
    check 0 "$sparda" data retokenize "$1" --from "$2" --to "$tokenizers/small.json" --out "$work/again"
}
stated() { # NAME...: shards that state it
    rm -rf "$work/states"
    import 0 "$work/flat/0.bin" --dtype int32 --eod 9 --out "$work/states" "$@"
}
check 0 "$sparda" data synth --out "$work/corpus" --rows 4 --seq-len 64 --shards 2
again "$work/corpus" "$tokenizers/bytes.json"
has err "warning: .*shard-00000.h5 states that its rows are of the tokenizer 'synthetic-1024', but --from is 'tokenizers bytes.json sha256:"
[ "$(grep -c 'states that' "$work/err")" = 1 ] || complain 'not one warning'
sum=$(sha256sum "$tokenizers/bytes.json" | cut -c 1-16)
for name in "another tokenizer.json sha256:$sum" llama3 'llama3 tokenizer.model'; do
    stated --tokenizer "$name"
    again "$work/states" "$work/llama3"
    case $name in
    *.model) has err "tokenizer 'llama3 tokenizer.model', but" ;;
    *) lacks err 'states that' ;;
    esac
done
stated --tokenizer 'llama3 tokenizer.json sha256:0123456789abcdef'
again "$work/states" "$work/llama3"
has err "sha256:0123456789abcdef', but --from is 'llama3 tokenizer.json sha256:$sum'"
stated
again "$work/states" "$work/llama3"
lacks err 'states that'

# ---- what --force replaces: domains of an import, and nothing else
as_before() { # DIR: what `before` saw
    (cd "$work/$1" && find . -type f -exec cksum {} + | sort) | cmp -s - "$work/before.$1" || complain "$1 was changed"
}
before() { (cd "$work/$1" && find . -type f -exec cksum {} + | sort) >"$work/before.$1"; }
refused() { # DIR PATTERN SRC... OPTION...
    dir=$1
    pattern=$2
    shift 2
    before "$dir"
    import 2 "$@"
    has err "$pattern"
    as_before "$dir"
    [ -z "$(find "$work/$dir" -name '.import-*')" ] || complain "left in $dir: a hidden folder"
}
printf '[1,2,3]\n' >"$work/one.jsonl"
printf '[4,5]\n' >"$work/two.jsonl"
mkdir -p "$work/fo/one/sub" # whatever has the name of the domain
echo precious >"$work/fo/one/thesis"
refused fo 'fo/one/.* is nothing that an import makes, and is not replaced; choose another --out' \
    "$work/one.jsonl" --out "$work/fo" --force
mkdir -p "$work/look/one" # shards of somebody else
cp "$work/json1/rows/"shard* "$work/look/one"
refused look 'look/one was not made by an import (it has no import.json' "$work/one.jsonl" --out "$work/look" --force
import 0 "$work/one.jsonl" --out "$work/mine"
echo precious >"$work/mine/one/notes.txt" # a file put into a domain
refused mine 'mine/one/notes.txt is nothing that an import makes' "$work/two.jsonl" --out "$work/mine" --domain one --force
rm "$work/mine/one/notes.txt"
import 0 "$work/two.jsonl" --out "$work/mine" --domain one --force
[ "$(tokens "$work/mine")" = 2 ] || complain '--force did not replace a domain of an import'
import 0 "$work/one.jsonl" --out "$work/B" --domain b # behind a link
mkdir "$work/A"
ln -s ../B/b "$work/A/one"
refused B 'A/one is a symbolic link, and is not replaced' "$work/two.jsonl" --out "$work/A" --domain one --force
[ -L "$work/A/one" ] || complain 'the link is gone'
mkdir "$work/empty"
mkdir "$work/empty/one"
import 0 "$work/one.jsonl" --out "$work/empty" --force
# one domain in the way: the other one is not begun either
mkdir -p "$work/both/two/sub"
refused both 'both/two/sub is nothing' "$work/one.jsonl" "$work/two.jsonl" --out "$work/both" --force
# no source is ever in the way of its own domain
cp -r "$mds/raw" "$work/m0"
chmod -R u+w "$work/m0"
refused m0 'm0/ledger is, holds or lies in the source .*m0, which must stay' "$work/m0" --out "$work/m0" --force
refused m0 'm0/ledger is, holds or lies in' "$work/m0/ledger" --out "$work/m0" --force
refused m0 'm0/new/ledger is, holds or lies in' "$work/m0" --out "$work/m0/new"
mkdir -p "$work/dom2/b"
cp "$work/one.jsonl" "$work/dom2/b/b.jsonl"
refused dom2 'dom2/b is, holds or lies in the source .*b.jsonl' "$work/dom2/b/b.jsonl" --out "$work/dom2" --force
ln -s dom2/b/b.jsonl "$work/b.jsonl" # by a link
refused dom2 'dom2/b is, holds or lies in' "$work/b.jsonl" --out "$work/dom2" --force
before mine
check 2 "$sparda" data retokenize "$work/mine" --from "$tokenizers/bytes.json" --to "$tokenizers/small.json" \
    --out "$work/mine" --force
has err 'mine/one is, holds or lies in'
as_before mine
# a folder made for an import that fails goes with it
import 2 "$work/neg.bin" --dtype int32 --eod 9 --out "$work/new1/new2"
[ ! -e "$work/new1" ] || complain 'the folder of a failed import is left'
mkdir "$work/kept"
import 2 "$work/neg.bin" --dtype int32 --eod 9 --out "$work/kept/new"
[ -d "$work/kept" ] && [ ! -e "$work/kept/new" ] || complain 'not exactly the folder that was made is gone'

# ---- names that are no UTF-8: said with the option or the path
latin1=$(printf 'm\374ll')
LC_ALL=C # else grep's . is no such byte
export LC_ALL
import 2 "$work/one.jsonl" --out "$work/bad" --domain "$latin1"
has err "^  - --domain '.*' is no UTF-8 from byte 1 on"
import 2 "$work/one.jsonl" --out "$work/bad" --tokenizer "$latin1"
has err "^  - --tokenizer '.*' is no UTF-8"
if mkdir "$work/$latin1" 2>/dev/null; then # some file systems refuse such a name
    cp "$work/one.jsonl" "$work/$latin1"
    import 2 "$work/$latin1/one.jsonl" --out "$work/bad"
    has err "the path of a source '.*/one.jsonl' is no UTF-8"
    import 2 "$work/$latin1" --out "$work/bad"
    has err "the name of the domain '.*' is no UTF-8.*--domain"
    cp "$root/data/tiny-base/config.json" "$work/$latin1"
    import 2 "$work/one.jsonl" --out "$work/bad" --base "$work/$latin1"
    has err "the name of --base, '.*' is no UTF-8.*--tokenizer"
    import 0 "$work/one.jsonl" --out "$work/named" --base "$work/$latin1" --tokenizer mine
    cp "$tokenizers/bytes.json" "$work/$latin1/tokenizer.json"
    for names in "--from $work/$latin1 --to $tokenizers/small.json" "--to $work/$latin1 --from $tokenizers/small.json"; do
        # shellcheck disable=SC2086
        check 2 "$sparda" data retokenize "$work/one.jsonl" --out "$work/bad" $names
        has err "the name of ${names%% *}, '.*' is no UTF-8"
    done
fi
nothing_left "$work/bad"

# ---- a full disk: 3, and nothing is left
awk 'BEGIN { for (i = 0; i < 400; i++) { printf "[1"; for (k = 0; k < 3000; k++) printf ",%d", k; print "]" } }' \
    >"$work/large.jsonl"
(
    ulimit -f 2048
    "$sparda" data import "$work/large.jsonl" --out "$work/full" --shard-tokens 300000 \
        >"$work/out" 2>"$work/err"
)
[ $? = 3 ] || complain 'a full disk did not end with 3'
has err 'File too large'
nothing_left "$work/full"

# ---- interrupted at any moment: nothing shows, and the same command goes on; the result is the same
import 0 "$work/large.jsonl" --out "$work/whole" --shard-tokens 100000
for delay in 0.02 0.05 0.1 0.2; do
    rm -rf "$work/killed"
    "$sparda" data import "$work/large.jsonl" --out "$work/killed" --shard-tokens 100000 \
        >"$work/out" 2>"$work/err" &
    pid=$!
    sleep $delay
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ -e "$work/killed/large" ] ||
        [ -z "$(find "$work/killed" -path '*/.import-*' -prune -o -name '*.h5' -print 2>/dev/null)" ] ||
        complain "killed after $delay s: shards show"
    import 0 "$work/large.jsonl" --out "$work/killed" --shard-tokens 100000
    for f in "$work/whole/large"/*.h5; do
        cmp "$f" "$work/killed/large/${f##*/}" || complain "killed after $delay s: another result"
    done
    [ "$(ls -A "$work/killed")" = large ] || complain "left: $(ls -A "$work/killed")"
    [ -z "$(find "$work/killed" -name '.*')" ] || complain 'hidden files are left'
done
# a half-finished import by hand: what is there is kept
rm -rf "$work/killed"
mkdir "$work/killed"
cp -r "$work/whole/large" "$work/killed/.import-large"
(
    cd "$work/killed/.import-large" || exit 1
    mv import.json plan.json
    for f in *.h5; do mv "$f" "${f%.h5}.part"; done
    rm shard-00003.part shards.json
    : >.shard-00003.part.tmp.1
)
import 0 "$work/large.jsonl" --out "$work/killed" --shard-tokens 100000
has err 'going on with an interrupted import'
cmp "$work/whole/large/shard-00003.h5" "$work/killed/large/shard-00003.h5"
[ -z "$(find "$work/killed" -name '.*')" ] || complain 'hidden files are left'

# ---- the list of shards: a shard that is missing, that is another one, and a damaged list
cp -r "$work/whole/large" "$work/listed"
check 0 "$sparda" data info "$work/listed" --json
cp "$work/out" "$work/info"
rm "$work/listed/shard-00002.h5"
check 2 "$sparda" data info "$work/listed"
has err 'shard-00002.h5, which shards.json lists, is not there'
cp "$work/whole/large/shard-00002.h5" "$work/listed/shard-00002.h5"
sed -i 's/"rows":\([0-9]*\),/"rows":1\1,/' "$work/listed/shards.json"
check 2 "$sparda" data info "$work/listed"
has err 'but shards.json beside it lists'
printf '{' >"$work/listed/shards.json"
check 0 "$sparda" data info "$work/listed" --json
has err 'warning: .*the shards are opened without it'
cmp "$work/out" "$work/info" || complain 'another description without the list'
check 0 "$sparda" data verify "$work/listed" --write-list
has err 'shards.json lists all shards, of 400 rows'
cmp "$work/listed/shards.json" "$work/whole/large/shards.json" || complain 'another list by verify'
# no list but for what was verified: not below a folder of shards, not behind links, and loops end
mkdir -p "$work/tree/a/below" "$work/outside"
cp "$work/json1/rows/"*.h5 "$work/tree/a"
cp "$work/json2/rows/"*.h5 "$work/outside"
cp "$work/json2/rows/shard-00000.h5" "$work/tree/a/below"
ln -s . "$work/tree/a/x"
ln -s . "$work/tree/a/y"
ln -s ../outside "$work/tree/b"
check 0 timeout 60 "$sparda" data verify "$work/tree" --write-list
has err 'tree/b is a symbolic link, and nothing is written behind it'
lists=$(cd "$work" && find tree outside -name shards.json)
[ "$lists" = tree/a/shards.json ] || complain "lists: $lists"
ln -s tree/a "$work/here" # the path itself may be a link
rm "$work/tree/a/shards.json"
check 0 timeout 60 "$sparda" data verify "$work/here" --write-list
[ -e "$work/tree/a/shards.json" ] || complain 'no list in the folder that was named by a link'

finish
