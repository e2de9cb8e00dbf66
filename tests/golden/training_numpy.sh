#!/usr/bin/env bash
# A model with every kind of stage, forward, backward and three steps of AdamW on 1 to 6 ranks by every method, against
# an implementation in NumPy that shares no line with this library.
set -uo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
program=$HEDDLE_BUILD/tests/training_dump
[ -x "$program" ] || program=$HEDDLE_BUILD/training_dump
[ -x "$program" ] || { echo "FAILED: no training_dump here"; exit 1; }
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import numpy' 2>/dev/null; then
        folder=$(mktemp -d) || exit 1
        trap 'rm -rf "$folder"' EXIT
        "$python" "$HEDDLE_SOURCE/tests/golden/training_numpy.py" "$program" "$folder" || exit 1
        echo ok
        exit 0
    fi
done
skip_test numpy "no Python with NumPy"
