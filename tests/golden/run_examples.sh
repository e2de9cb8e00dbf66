#!/usr/bin/env bash
# The example programs check themselves; here they are run, on one and several ranks, and under mpirun.
set -euo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -x "$HEDDLE_BUILD/example_01_switch" ] || { echo "FAILED: the examples are not built"; exit 1; }

wrong() { # what was expected; the output is in $work/out
    echo "FAILED: wanted $1, found:" >&2
    cat "$work/out" >&2
    exit 1
}
# The part of `extent` that rank `r` of `n` has: the first ones have one more.
part() { echo $(($1 / $2 + ($3 < $1 % $2))); }

# 10 frames of 7 places, f32: a rank sends what it has of all places but its own.
"$HEDDLE_BUILD/example_01_switch" >"$work/out"
frame=0 place=0
for r in 0 1 2 3; do
    t=$(part 10 4 $r) s=$(part 7 4 $r)
    line="rank $r: frames $frame..$((frame + t - 1)) -> places $place..$((place + s - 1)), sent $((t * (7 - s) * 4)) bytes by"
    grep -qxE "$line [a-z_ ]+, 0 wrong" "$work/out" || wrong "$line ..., 0 wrong"
    frame=$((frame + t)) place=$((place + s))
done
[ "$(wc -l <"$work/out")" = 4 ] || wrong "four lines"

# 3 layers over 9 frames of 30 tokens of 8 f32: into each layer t is sharded, within it s, in the end nothing.
modules() { # ranks; the output is there
    local n=$1 r t s bytes moves
    for ((r = 0; r < n; r++)); do
        t=$(part 9 $n $r) s=$(part 30 $n $r)
        bytes=$(((3 * t * (30 - s) + 2 * s * (9 - t) + (n - 1) * 9 * s) * 32)) moves=7
        [ $n != 1 ] || moves=2 # its layouts are all the same but for the first and the last
        line="rank $r: 7 enters, $moves switches, $bytes bytes sent (planned $bytes), bitwise equal to one rank"
        grep -qxF "$line" "$work/out" || wrong "$line"
    done
    [ "$(wc -l <"$work/out")" = "$n" ] || wrong "$n lines"
}
for ranks in 1 2 3 5; do
    "$HEDDLE_BUILD/example_02_modules" $ranks >"$work/out"
    modules $ranks
done
"$HEDDLE_BUILD/example_02_modules" >"$work/out"
modules 1

# Per micro-batch [b=2 t=6 s=10 c=16] of two, per layer two attentions of 16 channels, two linear layers 16 -> 50 -> 16.
# Rank 0 of the mesh `pp dp sp tp`, with so many switches per step and rank:
axes() { # pp dp sp tp switches, then how to run them: every rank finds one rank's losses and weights
    local pp=$1 dp=$2 sp=$3 tp=$4 switches=$5 ranks=$(($1 * $2 * $3 * $4)) layers=$((4 / $1)) b=$((2 / $2))
    shift 5
    "$@" </dev/null >"$work/out"
    [ "$(grep -c 'to one rank .*: ok$' "$work/out")" = "$ranks" ] || wrong "$ranks ranks that are ok"
    awk '/^ +[0-9]/ { n++; if ($2 <= 0 || ($2 - $3) ^ 2 > ($2 * 2e-5) ^ 2) exit 1 } END { exit n != 4 }' "$work/out" ||
        wrong "four steps with the losses of one rank"
    local t=$(part $(part 6 $sp 0) $tp 0) wide=$(part 10 $sp 0)
    local s=$(part $wide $tp 0) peer=$((tp > 1 ? wide - $(part $wide $tp 0) : 0)) token=$((16 * 4 * b))
    local sent_pp=$((pp > 1 ? 2 * t * 10 * token : 0))
    # All have the attentions and the last bias; W1, its bias and W2 are cut over tp. Reduced and gathered over the rest.
    local all=$((layers * (2 * (4 * 16 * 16 + 4 * 16) + 16))) cut=$((layers * (2 * 16 + 1) * 50 / tp))
    local every=$((dp * sp * tp)) some=$((dp * sp))
    local sent_dp=$((8 * all * (every - 1) / every + 8 * cut * (some - 1) / some))
    local sent_sp=$((switches / 2 * (t * (10 - s) + s * (6 - t)) * token))
    # Of each layer and micro-batch rows are gathered three times (x, dy, x again) and sums scattered twice (y, dx).
    local sent_tp=$((tp > 1 ? 2 * layers * 6 * (3 * s + 2 * peer) * token : 0))
    for line in \
        "rank 0 sent per step  pp: $sent_pp  dp with sp, tp: $sent_dp  sp: $sent_sp in $switches switches  tp: $sent_tp bytes" \
        "rank 0 holds layers 0..$((layers - 1)), $(((all + cut) / dp)) of $((all + cut)) parameters' optimiser state"; do
        grep -qxF "$line" "$work/out" || wrong "$line"
    done
}
axes 2 2 2 2 16 "$HEDDLE_BUILD/example_03_four_axes"
axes 2 1 2 1 8 "$HEDDLE_BUILD/example_03_four_axes" '[pp=2 dp=1 sp=2 tp=1]' shm
! "$HEDDLE_BUILD/example_03_four_axes" '[pp=3 dp=1 sp=1 tp=1]' >/dev/null 2>"$work/out"
grep -q 'HEDDLE_ERR_ARG.*wanted a mesh' "$work/out"
if have_mpi; then
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks, and its modules are unloaded
    mpirun --allow-run-as-root --oversubscribe -n 3 "$HEDDLE_BUILD/example_02_modules" </dev/null >"$work/out"
    modules 3
    axes 2 1 1 2 8 mpirun --allow-run-as-root --oversubscribe -n 4 "$HEDDLE_BUILD/example_03_four_axes" \
        '[pp=2 dp=1 sp=1 tp=2]' auto
fi
"$HEDDLE_BUILD/example_make_clip" "$work/a.y4m" 3 16 8 >"$work/out"
grep -qxF "$work/a.y4m: 3 frames of 16 x 8" "$work/out" || wrong "3 frames of 16 x 8"
[ "$(stat -c %s "$work/a.y4m")" = $(($(head -n 1 "$work/a.y4m" | wc -c) + 3 * (6 + 16 * 8 * 3 / 2))) ]
echo ok
