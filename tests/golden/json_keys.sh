#!/usr/bin/env bash
# Every key of every --json stands in the docs, and every output has a schema with a version.
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}" "${HEDDLE_BUILD:?}"
export XDG_CONFIG_HOME=/nonexistent
. "$HEDDLE_SOURCE/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no python3"
exec python3 "$HEDDLE_SOURCE/tests/golden/json_keys.py"
