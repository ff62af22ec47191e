#!/bin/sh
# ctest: alone=yes labels=long timeout=7200
# test_fuzz_readers.sh with five minutes for each reader.
sh "$(dirname "$0")/test_fuzz_readers.sh" "$1" 300
