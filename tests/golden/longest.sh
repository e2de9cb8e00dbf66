#!/usr/bin/env bash
# Memory that really falls: the longest sequence in fixed resident memory per rank grows with the ranks as it should.
set -uo pipefail
bench=$HEDDLE_BUILD/bench_longest
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
[ -x "$bench" ] || { echo "FAILED: no bench_longest here"; exit 1; }
[ -r /proc/self/smaps_rollup ] || skip_test smaps "no /proc/self/smaps_rollup here"
! is_sanitized || skip_test sanitizer "a sanitizer's shadow memory would be measured too"

longest() { # METHOD RANKS: length of a line of JSON per number of ranks
    "$bench" --methods "$1" --ranks "$2" --mib 16 --json | sed 's/.*"longest":\([0-9]*\).*/\1/'
}
expect() { # METHOD RANKS LOW HIGH: ratio of the second length to the first, in percent
    local length
    mapfile -t length < <(longest "$1" "$2")
    [ ${#length[@]} = 2 ] || { echo "FAILED: $1: ${#length[@]} lines" >&2; exit 1; }
    local percent=$((100 * length[1] / length[0]))
    echo "$1 on $2 ranks: ${length[*]}, $percent %"
    if [ $percent -lt "$3" ] || [ $percent -gt "$4" ]; then
        echo "FAILED: $1: expected $3 to $4 %" >&2
        exit 1
    fi
}
expect ring 3,6 185 215
expect ulysses 2,4 185 215
expect lasp 1,4 350 420
expect dsp 1,4 360 430
expect rsa 1,4 190 260
"$bench" --methods nonsense 2>/dev/null && { echo "FAILED: nonsense is no method" >&2; exit 1; }
echo ok
