#!/usr/bin/env bash
# Attention and linear attention on MPI ranks: every method with peer memory, with messages alone, and on two pretended
# hosts, where only the ranks at the border of a host send messages; 2 and 4 ranks; random problems.
set -u
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
have_mpi || exit 77
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0

# right WHAT ARGUMENTS...: heddle verify ARGUMENTS on MPI ranks finds everything right, and in time
right() {
    local what=$1
    shift
    within 120 "$HEDDLE" verify "$@" --transport mpi --deadline 20 >"$folder/out" 2>&1 </dev/null
    local rc=$?
    if [ $rc != 0 ] || ! grep -q "right on mpi" "$folder/out"; then
        echo "FAILED $what: exit $rc: heddle verify $*"
        tail -5 "$folder/out"
        failed=1
    fi
}

# Every method by its name where both ways are gone; where one is, by random problems.
each_method() { # HOW OPTION...
    local how=$1 method mask
    shift
    for method in ring rsa 'rsa --all-reduce' 'rsa --project 5' ulysses gather-kv; do
        mask=--causal
        [ "$method" = 'rsa --project 5' ] && mask=
        # shellcheck disable=SC2086
        right "$method $how" attention 'f64[b=2 s=37 h=4 d=8] on [sp=4]' --method $method --kv-heads 2 $mask "$@"
    done
    for method in lasp lasp2 scan 'lasp --bidirectional'; do
        mask='--decay 0.9'
        [ "$method" = 'lasp --bidirectional' ] && mask=
        # shellcheck disable=SC2086
        right "$method $how" linear-attention 'f64[b=2 s=37 h=2 d=8] on [sp=4]' --method $method $mask "$@"
    done
}

for how in "" "--messages" "--hosts 2"; do
    # shellcheck disable=SC2206
    option=($how)
    [ "$how" != "--hosts 2" ] || each_method "$how" "${option[@]}" # some by messages, some by memory
    right "usp $how" attention 'f64[b=2 s=37 h=4 d=8] on [ring=2 sp=2]' --method usp --causal --zigzag "${option[@]}"
    few=2
    [ -n "$how" ] || few=4
    for command in attention linear-attention; do
        right "random of 3 $how" $command --random 20 --ranks 3 --seed 5 "${option[@]}"
        right "random of $few $how" $command --random $((5 * few)) --ranks $few --seed 6 "${option[@]}"
    done
done
[ $failed = 0 ] && echo "attention on MPI ranks: verified"
exit $failed
