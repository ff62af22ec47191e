#!/bin/sh
# ctest: labels=long timeout=3600
# test_kills.sh with a kill at every call.
moments=1000000 sh "$(dirname "$0")/test_kills.sh" "$1"
