#!/usr/bin/env bash
# What the simulator says beside what was published.
command -v python3 >/dev/null || exit 77
exec python3 "${HEDDLE_SOURCE:?}/tests/golden/simulator.py"
