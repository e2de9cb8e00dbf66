#!/usr/bin/env bash
# What heddle run says that it holds, beside what is planned, and what its processes have grown by.
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
export XDG_CONFIG_HOME=/nonexistent
. "$HEDDLE_SOURCE/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no python3"
exec python3 "$HEDDLE_SOURCE/tests/golden/run_memory.py"
