#!/usr/bin/env bash
# run.sh FILE: one file of tests of the Python package in the build folder, by a Python that has what it needs.
# run.sh NAME JOBS FILE...: several, JOBS at a time, which import torch once (together.py); what is skipped is told by
# NAME.
# HEDDLE_TEST_PYTHON names one (tests/run.sh python makes it, with torch), else the machine's is taken.
set -euo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
BASH_ARGV0=${1%.py} # what is skipped is told by this name
files=("$1")
case $1 in *.py) jobs="" ;; *) jobs=$2 files=("${@:3}") ;; esac
case $(grep HEDDLE_SANITIZE: "${HEDDLE_BUILD:?}/CMakeCache.txt") in *=?*)
    skip_test sanitizer "Python itself would need the sanitizer"
    ;;
esac
wanted="numpy pytest"
case " ${files[*]}" in
*/test_torch_diffusers* | */test_torch_transformers* | */test_latte*) wanted="numpy pytest torch diffusers transformers" ;;
*/test_torch*) wanted="numpy pytest torch" ;;
*/test_types*) wanted="pytest mypy" ;;
*/test_wheel*) wanted="numpy pytest scikit_build_core auditwheel" ;;
esac
for python in ${HEDDLE_TEST_PYTHON:-python3 /usr/bin/python3}; do
    missing=$("$python" - $wanted 2>/dev/null <<'PY' || echo python
import importlib.util, sys
print(next((name for name in sys.argv[1:] if importlib.util.find_spec(name) is None), ""))
PY
    )
    if [ -z "$missing" ]; then
        # What is compiled is kept beside the build: every rank imports torch, which without takes twice as long.
        unset PYTHONDONTWRITEBYTECODE
        export PYTHONPATH=$HEDDLE_BUILD/python PYTHONPYCACHEPREFIX=$HEDDLE_BUILD/pycache
        # Tensors are small: a second thread would only wait, which costs a core.
        export OMP_NUM_THREADS=1
        if [ -n "$jobs" ]; then
            exec "$python" "$HEDDLE_SOURCE/tests/python/together.py" "$jobs" "$wanted" "${files[@]}"
        fi
        exec "$python" -m pytest -q -p no:cacheprovider --rootdir "$HEDDLE_SOURCE/tests/python" "$@"
    fi
done
skip_test "$missing" "no Python with $wanted"
