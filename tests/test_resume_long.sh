#!/bin/sh
# ctest: labels=long timeout=3000
# test_resume.sh with 300 kills, and the time limit.
# shellcheck disable=SC1091,SC2034,SC2154
sparda=$1
rounds=300 sh "$(dirname "$0")/test_resume.sh" "$sparda" || exit 1

. "$(dirname "$0")/train.sh"
check 0 train limit --set steps=1000000 --set save_every_steps=1000000 --set time_limit_min=1
has err 'stopped by time_limit_min'
[ "$(status_of limit)" = stopped ] || complain 'status'
finish
