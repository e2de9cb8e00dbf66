#!/usr/bin/env bash
# Every option of every sub-command does something.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/work.sh"
WORK=$work python3 "$HEDDLE_SOURCE/tests/golden/options.py" || failed=1
exit $failed
