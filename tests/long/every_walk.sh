#!/usr/bin/env bash
# Thousands of random models, planned and walked through: tests/python/judge. HEDDLE_SEED chooses other ones,
# HEDDLE_LONG_PERCENT fewer.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
case $(grep HEDDLE_SANITIZE: "${HEDDLE_BUILD:?}/CMakeCache.txt") in *=?*)
    skip_test sanitizer "Python itself would need the sanitizer"
    ;;
esac
[ -e "$HEDDLE_BUILD/python/heddle" ] || skip_test python "the package is not built"
some() { echo $((($1 * ${HEDDLE_LONG_PERCENT:-100} + 99) / 100)); }
export PYTHONPATH=$HEDDLE_BUILD/python:$HEDDLE_SOURCE/tests/python PYTHONPYCACHEPREFIX=$HEDDLE_BUILD/pycache
exec timeout 550 python3 -m judge.cases --seed "${HEDDLE_SEED:-1}" --bytes "$(some 2700)" --time "$(some 900)" \
    --long "$(some 250)" --memory "$(some 850)" --regret "$(some 300)" \
    --rsa "$(some 200)"
