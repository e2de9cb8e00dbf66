#!/usr/bin/env bash
# What heddle explain says of machines with slower and faster links: against closed form, and against plans made there.
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
export XDG_CONFIG_HOME=/nonexistent
. "$HEDDLE_SOURCE/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no python3"
exec python3 "$HEDDLE_SOURCE/tests/golden/changes.py"
