#!/usr/bin/env bash
# The protocols of the flags between ranks of one host, in every order that a processor may do their steps in.
set -u
command -v python3 >/dev/null || { . "${HEDDLE_SOURCE:?}/tests/support/skip.sh"; skip_test python "no python3"; }
exec python3 "${HEDDLE_SOURCE:?}/tests/golden/house_flags.py"
