#!/usr/bin/env bash
# tests/run.sh explains itself, and a word that is no tier is refused before anything is installed or built. Limits of time
# count the cores that a script has, not those of the machine (unit/test_case: of a program in C).
set -u
cd "${HEDDLE_SOURCE:?}" || exit 1
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}
bash tests/run.sh --help | grep -q '^    tests/run.sh quick ranks ' || fail "--help does not show the head of the file"
refuses() { # WANTED WORDS...
    local wanted=$1 said code
    shift
    said=$(bash tests/run.sh --build "$@" 2>&1)
    code=$?
    [ $code = 2 ] || fail "tests/run.sh --build $* exits $code"
    grep -q -- "$wanted" <<<"$said" || fail "tests/run.sh --build $* says: $said"
}
refuses "'qick' is no tier: the tiers are quick ranks .* long" quick qick
refuses "'--preset' is no tier: .*options stand before them" quick --preset asan
refuses "'quick' is no tier: the tiers are fuzz" --preset fuzz quick
python3 - <<'PY' || fail "of one core limits count more"
import os, subprocess, sys
sys.path.append("tests/golden")
from within import cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
shell = subprocess.run(["bash", "-c", ". tests/support/within.sh; own_cores"], capture_output=True, text=True).stdout
sys.exit(f"{cores()} in Python, {shell} in shell" if cores() > 1 or float(shell) > 1 else 0)
PY
exit $failed
