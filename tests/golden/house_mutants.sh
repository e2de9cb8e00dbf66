#!/usr/bin/env bash
# The table of mutants does not rot: every entry's text is in its file, once, and its test is there.
set -u
"${HEDDLE_SOURCE:?}/tests/mutants/run.sh" --list
