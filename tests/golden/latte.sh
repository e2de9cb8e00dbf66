#!/usr/bin/env bash
# The published transformer, small: the same bits on any number of ranks, against NumPy where there is one, files of all
# kinds, and what is damaged or asks for something else refused by a sentence.
set -uo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
latte=$HEDDLE_BUILD/example_latte
[ -x "$latte" ] || { echo "FAILED: the examples are not built"; exit 1; }
command -v python3 >/dev/null || skip_test python "no Python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    [ ! -f "$work/out" ] || cat "$work/out" >&2
    exit 1
}
folder() { # NAME, options of latte_folder.py
    python3 "$HEDDLE_SOURCE/tests/golden/latte_folder.py" "$work/$1" "${@:2}" || fail "no folder $1"
}
run() { # OUTPUT, then options; the last line says what was sent
    "$latte" "$work/${@:2:1}" --text-tokens 7 --output "$work/$1.npy" "${@:3}" >"$work/out" 2>&1 || fail "$*"
}
same() {
    cmp -s "$work/$1.npy" "$work/$2.npy" || fail "$3: other bits"
}
folder plain
folder shards dtype=mixed shards=3
folder wide dtype=F32 heads=1 head_dim=20 frames=1 side=6 out=4 bias=0

# --- bits: 5 frames and 25 tokens are divided by no number of ranks but 5 ---------------------------------------------
run one plain --ranks 1
for ranks in 2 3 4; do
    run some plain --ranks $ranks --transport $([ $ranks = 3 ] && echo threads || echo shm)
    same one some "$ranks ranks"
    grep -q 'planned [1-9][0-9]*, counted [1-9]' "$work/out" || fail "$ranks ranks: nothing was sent"
done
run some plain --mesh '[a=2 b=2]' --threads 2 --transport threads
same one some "two axes, two threads"
run guided-one plain --ranks 1 --steps 2 --guidance 4
for ranks in 2 3; do # the two samples of a pass go to ranks of their own, or do not
    run guided plain --ranks $ranks --steps 2 --guidance 4
    same guided-one guided "guided, $ranks ranks"
done
cmp -s "$work/one.npy" "$work/guided-one.npy" && fail "steps change nothing"
run picture wide --ranks 1 --steps 1
run some wide --ranks 3 --steps 1
same picture some "a picture"

# --- against NumPy ----------------------------------------------------------------------------------------------------
judged=0
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import numpy' 2>/dev/null; then
        for name in plain shards wide; do
            "$python" "$HEDDLE_SOURCE/tests/golden/latte_numpy.py" "$latte" "$work/$name" "$work" || exit 1
        done
        judged=1
        break
    fi
done
[ $judged = 1 ] || not_here numpy "no Python with NumPy"
echo ok
