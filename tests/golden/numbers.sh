#!/usr/bin/env bash
# The numbers that are printed, computed again.
exec python3 "${HEDDLE_SOURCE:?}/tests/golden/numbers_printed.py"
