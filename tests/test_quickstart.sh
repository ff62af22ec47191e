#!/bin/sh
# shellcheck disable=SC1091,SC2154
# ./quickstart: its arguments, the installation of packages and the order of its steps, with stand-ins
# for every program that it starts.
. "$(dirname "$0")/check.sh"

quickstart=$root/quickstart
sparda=$1 # what ctest built

# ---- arguments ------------------------------------------------------------------------------------
check 0 "$quickstart" --help
has out 'quickstart demo'
has out 'quickstart test'
empty err
check 0 "$quickstart" demo -h
check 2 "$quickstart"
has err '^usage:'
empty out
check 2 "$quickstart" dmeo
has err "unknown argument 'dmeo'"
check 2 "$quickstart" demo test
has err 'two commands: demo and test'
check 2 "$quickstart" demo --out
has err '--out needs a value'
check 2 "$quickstart" demo --out ''
check 2 "$quickstart" demo --out "it's"
check 2 "$quickstart" build --out x
has err "belong to 'demo'"
check 2 "$quickstart" test --set lr=1
check 2 "$quickstart" demo --long
has err "belongs to 'test'"
mkdir "$work/mine"
: >"$work/mine/thesis"
check 2 "$quickstart" demo --no-install --out "$work/mine"
has err 'not empty and not from an earlier demo'
[ -f "$work/mine/thesis" ] || complain 'a file of the user is gone'
check 2 "$quickstart" demo --no-install --out "$work/mine/thesis"
has err 'is not a folder'
check 2 "$quickstart" demo --no-install --out "$work/mine/thesis/below"
has err "quickstart: error: $work/mine/thesis is not a folder"
check 0 "$quickstart" packages
has out '^libhdf5-dev$'

# ---- a copy of the tree with stand-ins ------------------------------------------------------------
mkdir -p "$work/tree/build" "$work/tree/configs" "$work/bin"
cp "$quickstart" "$work/tree/"
ln -s "$work/log" "$work/tree/log"
stand_in() { # name: appends its command line to the log; the rest is its body
    { printf '#!/bin/sh\nprintf "%%s" "%s" >>"%s"; printf " [%%s]" "$@" >>"%s"; echo >>"%s"\n' \
        "$1" "$work/log" "$work/log" "$work/log"
        cat
    } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
for name in sh dirname basename cat rm mkdir mv ls env nproc grep sed printf; do
    ln -s "$(command -v $name)" "$work/bin/$name"
done
stand_in id <<END
cat "$work/uid"
END
stand_in dpkg-query <<END
for last; do :; done
case " \$(cat "$work/installed") " in *" all "*|*" \$last "*) printf 'install ok installed' ;; *) exit 1 ;; esac
END
stand_in apt-get <<END
[ ! -f "$work/apt-fails" ] || exit 100
END
stand_in sudo <<END
exec "\$@"
END
stand_in cmake </dev/null
stand_in ninja </dev/null
stand_in ctest <<END
[ ! -f "$work/ctest-fails" ] || exit 8
END
stand_in sparda <<END
case \$1 in
    validate) exit "\$(cat "$work/validate-status")" ;;
esac
END
mv "$work/bin/sparda" "$work/tree/build/sparda"
echo 1000 >"$work/uid"
echo all >"$work/installed"
echo 0 >"$work/validate-status"
quick() { # status arguments...
    want_status=$1
    shift
    : >"$work/log"
    check "$want_status" env -i PATH="$work/bin" "$work/tree/quickstart" "$@"
}
logged() {
    grep -q -F -e "$1" "$work/log" || {
        complain "not run: $1"
        sed 's/^/  ran: /' "$work/log"
    }
}
not_logged() {
    ! grep -q -F -e "$1" "$work/log" || complain "run: $1"
}

# Everything there: no apt, no sudo.
quick 0 build
not_logged apt-get
not_logged sudo
logged 'cmake [-S] [.] [-B] [build] [-G] [Ninja]'
logged 'cmake [--build] [build] [--target] [all] [--parallel]'

# One package missing, an ordinary user: sudo installs that one.
"$quickstart" packages | grep -v libfyaml-dev | tr '\n' ' ' >"$work/installed"
quick 0 build
logged 'sudo [apt-get] [update] [-q]'
logged 'apt-get [install] [-y] [-q] [--no-install-recommends] [libfyaml-dev]'
quick 0 build --no-install
not_logged apt-get
touch "$work/apt-fails"
quick 3 build
has err 'apt-get update failed'
rm "$work/apt-fails"

# The tests want two more, which nothing else needs.
"$quickstart" packages | tr '\n' ' ' >"$work/installed"
quick 0 build
not_logged apt-get
quick 0 test
logged 'apt-get [install] [-y] [-q] [--no-install-recommends] [clang] [libclang-rt-dev]'
"$quickstart" packages | grep -v libfyaml-dev | tr '\n' ' ' >"$work/installed"

# Root needs no sudo.
echo 0 >"$work/uid"
quick 0 build
not_logged sudo
logged 'apt-get [install] [-y] [-q] [--no-install-recommends] [libfyaml-dev]'

# Neither root nor sudo: the command is named and nothing is run.
echo 1000 >"$work/uid"
mv "$work/bin/sudo" "$work/sudo"
quick 3 build
has err 'apt-get install --no-install-recommends libfyaml-dev'
not_logged 'cmake [-S]'
mv "$work/sudo" "$work/bin/sudo"

# No apt: the list of packages.
mv "$work/bin/apt-get" "$work/apt-get"
quick 3 build
has err 'no apt here'
has err 'libhdf5-dev'
quick 0 build --no-install
mv "$work/apt-get" "$work/bin/apt-get"
echo all >"$work/installed"

# Without ninja, or with a build folder of another generator: what CMake takes by itself.
mv "$work/bin/ninja" "$work/ninja"
quick 0 build
not_logged Ninja
mv "$work/ninja" "$work/bin/ninja"
: >"$work/tree/build/CMakeCache.txt"
quick 0 build
not_logged Ninja
rm "$work/tree/build/CMakeCache.txt"

# The tests: both builds; a failure of the first does not hide the second.
quick 0 test
logged 'ctest [--test-dir] [build] [-C] [plain] [--parallel] [2]'
logged 'ctest [--test-dir] [build-asan] [-C] [plain]'
logged 'cmake [-S] [.] [-B] [build-asan] [-G] [Ninja] [-DSPARDA_SANITIZE=ON] [-DSPARDA_CUDA=OFF]'
quick 0 test --long
logged 'ctest [--test-dir] [build] [-C] [long]'
touch "$work/ctest-fails"
quick 1 test
logged 'ctest [--test-dir] [build-asan] [-C] [plain]'
rm "$work/ctest-fails"

# The demo: its chain, the user's options, and a second time into the same folder.
mkdir "$work/elsewhere"
: >"$work/log"
check 0 env -i PATH="$work/bin" sh -c "cd '$work/elsewhere' && '$work/tree/quickstart' demo --out here"
has out "$work/elsewhere/here/export"
quick 0 demo
logged 'cmake [--build] [build] [--target] [sparda] [--parallel]' # no tests
[ -f "$work/tree/runs/demo/made-by-quickstart" ] || complain 'no runs/demo'
has out 'runs/demo/report/validation_report.html'
quick 0 demo --out "$work/a b" --set lr=1e-3 --set='validate.lengths=[256, 512]'
logged "sparda [data] [synth] [--out] [$work/a b/corpus]"
logged "[--set] [data=['$work/a b/corpus']]"
logged "[--set] [lr=1e-3] [--set] [validate.lengths=[256, 512]]"
grep -F 'sparda [validate]' "$work/log" | grep -q -F '[validate.lengths=[256, 512]]' ||
    complain 'the options do not reach validate'
has out "$work/a b/export"
lacks err 'earlier demo'
mkdir "$work/a b/run" "$work/a b/report"
echo first >"$work/a b/run/file"
: >"$work/a b/keep"
quick 0 demo --out "$work/a b"
[ ! -e "$work/a b/run" ] || complain 'the run of the earlier demo is still there'
[ "$(cat "$work/a b/old-1/run/file")" = first ] || complain 'the run of the earlier demo is gone'
[ -f "$work/a b/keep" ] || complain 'the demo removed what it had not made'
has err "what an earlier demo left is now in $work/a b/old-1: run report"
mkdir "$work/a b/run"
quick 0 demo --out "$work/a b"
[ -d "$work/a b/old-2/run" ] || complain 'the second run was not moved'
[ -f "$work/a b/old-1/run/file" ] || complain 'the first run is gone'
echo 1 >"$work/validate-status"
quick 1 demo --out "$work/a b"
has out 'validation_report.html' # the report says which check failed
echo 3 >"$work/validate-status"
quick 3 demo --out "$work/a b"
lacks out 'validation_report.html'

# A folder that cannot be made, or not be written into, is found before the build.
quick 3 demo --out /proc/none
has err 'quickstart: error: the folder /proc/none cannot be made: '
lacks err '^mkdir:'
not_logged cmake
if [ "$(id -u)" != 0 ]; then # root may write everywhere
    chmod a-w "$work/elsewhere/here"
    quick 3 demo --out "$work/elsewhere/here"
    has err "nothing can be written into the folder $work/elsewhere/here;"
    not_logged cmake
    chmod u+w "$work/elsewhere/here"
fi

# Every option reaches training, and validation where `sparda validate` has it.
echo 0 >"$work/validate-status"
sed -n '/^ *[a-z_]*:/p' "$root/configs/reference.yaml" >"$work/lines"
section=
set --
while IFS= read -r line; do
    key=${line%%:*} value=${line#*:}
    case $key in
        sparse_config | validate) section=$key ;;
        ' '*) set -- "$@" --set "$section.${key##* }=${value# }" ;;
        *) set -- "$@" --set "$key=${value# }" ;;
    esac
done <"$work/lines"
quick 0 demo "$@"
cp "$work/log" "$work/demo-log"
reaches() { # stage key=value
    grep -F "sparda [$1]" "$work/demo-log" | grep -q -F "[--set] [$2]"
}
for option in "$@"; do
    [ "$option" != --set ] || continue
    reaches train "$option" || complain "$option does not reach training"
    check 2 "$sparda" validate --base "$work/none" --forecast x --report "$work/x" --set "$option"
    if grep -q 'has no effect here' "$work/err"; then
        ! reaches validate "$option" || complain "$option reaches validation"
    else
        has err 'the base model .* is no folder' # the option itself is right
        reaches validate "$option" || complain "$option does not reach validation"
    fi
done
quick 0 demo --set base=data/tiny-nosa
logged '[validate] [--base] [data/tiny-nosa]'

finish
