#!/usr/bin/env bash
# The n-th transport call of a rank fails, or the rank dies in it, or calls come late: heddle run exits 1 and names the
# rank, long before the deadline, or its result is right.
set -uo pipefail
. "$HEDDLE_SOURCE/tests/support/within.sh"
work=$(mktemp -d)
model=$work/tiny.yaml # a name by which its processes are found
cp "$HEDDLE_SOURCE/tests/golden/tiny.yaml" "$model"
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1: $(tail -n 3 "$work/err")" >&2
    exit 1
}
run() { # TRANSPORT: runs, leaves $code
    within 30 "$HEDDLE" run "$model" --size t=5,s=9 --layers 1 --ranks 3 \
        --transport "$1" --check --deadline 3600 \
        >"$work/out" 2>"$work/err" </dev/null
    code=$?
    ! pgrep -f "run $model" || fail "$1: left running"
}

ends=0
for kind in fail kill; do
    for transport in threads shm; do
        [ $kind = kill ] && [ $transport = threads ] && continue
        for n in 1 2 3 5 8 13 21 34 55 500; do
            run "fault($kind=$n@1):$transport"
            if [ $code = 0 ]; then
                grep -q "bitwise equal" "$work/out" || fail "$kind=$n, $transport: no check"
                ends=$((ends + 1))
            else
                [ $code = 1 ] || fail "$kind=$n, $transport: exit code $code"
                grep -q "rank 1" "$work/err" || fail "$kind=$n, $transport: rank 1 is not named"
                ! grep -q "rank 1: rank 1:" "$work/err" || fail "$kind=$n, $transport: rank 1 is named twice"
            fi
        done
        [ $code = 0 ] || fail "$kind=$n, $transport: call $n was not expected"
    done
done
[ $ends -lt 12 ] || fail "only some calls failed: $ends runs were not hit"

for transport in threads shm; do
    run "fault(reorder=4):$transport"
    [ $code = 0 ] || fail "reorder, $transport: exit code $code"
    run "fault(delay=1ms@2):$transport"
    [ $code = 0 ] || fail "delay, $transport: exit code $code"
done
echo ok
