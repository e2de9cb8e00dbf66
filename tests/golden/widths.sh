#!/usr/bin/env bash
# Tables of every command fit into 100 columns, for several models and machines.
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
export XDG_CONFIG_HOME=/nonexistent
. "$HEDDLE_SOURCE/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no python3"
exec python3 "$HEDDLE_SOURCE/tests/golden/widths.py"
