#!/usr/bin/env bash
# Answers of the planner that were wrong once: ranks that do not divide, idle ranks, slow links, ends, steady states.
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
export XDG_CONFIG_HOME=/nonexistent
. "$HEDDLE_SOURCE/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no python3"
exec python3 "$HEDDLE_SOURCE/tests/golden/answers.py"
