#!/bin/sh
# shellcheck disable=SC1091,SC2154
# tests/readme.sh finds the runnable blocks, runs them in order and stops at the first failure.
. "$(dirname "$0")/check.sh"

mkdir -p "$work/tree/tests" "$work/tree/data" "$work/tree/runs"
cp "$root/tests/readme.sh" "$work/tree/tests/"
: >"$work/tree/data/file"
readme() { cat >"$work/tree/README.md"; }
readme <<'END'
    indented blocks are not run: false
```
false
```
```sh
mkdir runs; echo one >runs/a
for i in 1 2; do
    cat data/file runs/a
done
```
text
```yaml
false: 1
```
```sh
echo $i two
```
END
check 0 "$work/tree/tests/readme.sh"
has out '^2 two$'
has out 'all commands'
[ ! -e "$work/tree/runs/a" ] || complain 'it wrote into the runs folder of the checkout'
check 0 "$work/tree/tests/readme.sh" --print
lacks out false
readme <<'END'
```sh
false
echo reached
```
END
check 1 "$work/tree/tests/readme.sh"
lacks out reached
echo 'no commands' | readme
check 1 "$work/tree/tests/readme.sh"
has err 'no block'
check 0 "$root/tests/readme.sh" --print
has out 'sparda train'
finish
