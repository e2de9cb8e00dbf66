#!/usr/bin/env bash
# kill -9 of a rank, or of the command itself, at a random moment, with switches alone, keys that travel through a ring, or
# steps there and back: the command names the rank and exits 1 in time, and nothing is left of it. FAULT_ROUNDS rounds.
set -uo pipefail
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
rounds=${FAULT_ROUNDS:-5}
work=$(mktemp -d)
. "$HEDDLE_SOURCE/tests/support/within.sh"
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    exit 1
}
now_ms() { date +%s%3N; }
# The command's process group, kept apart by setsid: anyone alive in it?
alive() { ps -o pid=,stat= -g "$1" 2>/dev/null | grep -v ' Z' ; }
gone_soon() {
    for _ in $(seq "$(scaled 40)"); do
        [ -z "$(alive "$1")" ] && return 0
        sleep 0.1
    done
    return 1
}
start() { # arguments
    setsid "$HEDDLE" run "$model" --ranks 4 --transport shm --passes 1000000 "$@" \
        >"$work/out" 2>"$work/err" &
    command=$!
    for _ in $(seq "$(scaled 500)"); do
        mapfile -t ranks < <(pgrep -P $command)
        [ ${#ranks[@]} = 4 ] && return 0
        sleep 0.01
    done
    cat "$work/err" >&2
    fail "found ${#ranks[@]} ranks of 4"
}

RANDOM=${HEDDLE_SEED:-1}
ways=('--check --method *=auto' '--check --method s.attn=ring,t.attn=local' '--backward')
for round in $(seq "$rounds"); do
    read -ra way <<<"${ways[$((round % 3))]}"
    start "${way[@]}"
    sleep "0.$(printf %03d $((RANDOM % 600)))"
    victim=$((RANDOM % 4))
    kill -9 "${ranks[$victim]}"
    began=$(now_ms)
    wait $command
    code=$?
    took=$(($(now_ms) - began))
    [ $code = 1 ] || fail "round $round: exit code $code, not 1: $(cat "$work/err")"
    grep -Eq "rank $victim" "$work/err" || fail "round $round: rank $victim is not named: $(cat "$work/err")"
    grep -Eq "stage '|weights|the epilogue|before|gradients" "$work/err" || fail "round $round: no stage is named: $(cat "$work/err")"
    [ $took -lt "$(scaled 4000)" ] || fail "round $round: noticed only after $took ms"
    gone_soon $command || fail "round $round: still running: $(alive $command)"
    echo "round $round: rank $victim killed, $took ms, $(cat "$work/err")"
done

start --check --method s.attn=ring
sleep 0.2
kill -9 $command
wait $command 2>/dev/null
gone_soon $command || fail "ranks outlive the command: $(alive $command)"
echo ok
