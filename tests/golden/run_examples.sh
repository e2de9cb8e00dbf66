#!/usr/bin/env bash
# The example programs check themselves; here they are run, on one and several ranks, and under mpirun.
set -euo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -x "$HEDDLE_BUILD/example_01_switch" ] || { echo "FAILED: the examples are not built"; exit 1; }

"$HEDDLE_BUILD/example_01_switch" >"$work/out"
[ "$(grep -c ' 0 wrong' "$work/out")" = 4 ] || { cat "$work/out" >&2; exit 1; }
for ranks in 1 2 3 5; do
    "$HEDDLE_BUILD/example_02_modules" $ranks >"$work/out"
    [ "$(grep -c 'bitwise equal to one rank' "$work/out")" = $ranks ] || { cat "$work/out" >&2; exit 1; }
done
[[ $("$HEDDLE_BUILD/example_02_modules") == *'bitwise equal'* ]]
axes() { # ranks, then how to run them: every rank finds one rank's losses and weights
    local ranks=$1
    shift
    "$@" </dev/null >"$work/out"
    [ "$(grep -c 'to one rank .*: ok$' "$work/out")" = "$ranks" ] || { cat "$work/out" >&2; exit 1; }
    grep -q '^rank 0 sent per step' "$work/out"
}
axes 16 "$HEDDLE_BUILD/example_03_four_axes"
axes 4 "$HEDDLE_BUILD/example_03_four_axes" '[pp=2 dp=1 sp=2 tp=1]' shm
! "$HEDDLE_BUILD/example_03_four_axes" '[pp=3 dp=1 sp=1 tp=1]' >/dev/null 2>"$work/out"
grep -q 'HEDDLE_ERR_ARG.*wanted a mesh' "$work/out"
if have_mpi; then
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks, and its modules are unloaded
    mpirun --allow-run-as-root --oversubscribe -n 3 "$HEDDLE_BUILD/example_02_modules" </dev/null >"$work/out"
    [ "$(grep -c 'bitwise equal to one rank' "$work/out")" = 3 ] || { cat "$work/out" >&2; exit 1; }
    axes 4 mpirun --allow-run-as-root --oversubscribe -n 4 "$HEDDLE_BUILD/example_03_four_axes" \
        '[pp=2 dp=1 sp=1 tp=2]' auto
fi
"$HEDDLE_BUILD/example_make_clip" "$work/a.y4m" 3 16 8 >/dev/null
[ "$(stat -c %s "$work/a.y4m")" = $(($(head -n 1 "$work/a.y4m" | wc -c) + 3 * (6 + 16 * 8 * 3 / 2))) ]
echo ok
