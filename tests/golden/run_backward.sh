#!/usr/bin/env bash
# heddle run --backward: the input's gradient is bitwise that of one rank where only data moves, parameter gradients are
# equal within the stated tolerance, every byte of forward, backward and gradient sums is as planned; ranks that die on
# the way back.
set -uo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
}
step() { # ARGUMENTS...: runs, leaves $code
    within 60 "$HEDDLE" run "$model" --backward "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}
good() {
    step --check "$@"
    [ $code = 0 ] || fail "$*: exit code $code"
    grep -q "check: backward: bytes sent = bytes planned" "$work/out" || fail "$*: bytes"
    grep -q "equal within the tolerance to one rank: the largest difference is" "$work/out" || fail "$*: gradients"
}
bitwise() {
    good "$@"
    [ "$(grep -c "bitwise equal to one rank" "$work/out")" = 2 ] || fail "$*: not bitwise"
}

# Uneven everywhere; then rows in bf16, threads, two axes, several steps; others: golden/judges.
bitwise --ranks 3 --transport threads
grep -q "check: bytes sent = bytes planned for 3 ranks x 13 edges (4665600 bytes)" "$work/out" || fail "forward bytes"
# The way back has no gather at the end: half of the forward's bytes. A sum over 3 ranks sends 2/3 of the gradients of
# every rank twice: 3 ranks * 2 * 2/3 * 151296 * 4 bytes.
grep -q "(2332800 bytes) and the gradients (2420736 bytes)" "$work/out" || fail "backward bytes"
grep -q "^step, all ranks: 9419136 bytes planned, 9419136 measured" "$work/out" || fail "bytes of the step"
awk 'length > 110 && /^([st]\.|end|total|gradients|backward  )/ { exit 1 }' "$work/out" || fail "a row is too long"
kept=$(awk '/^activations kept/ { print $6 }' "$work/out")
bitwise --ranks 3 --transport threads --recompute
awk -v all="$kept" '/^activations kept/ { exit !($6 * 3 < all) }' "$work/out" || fail "recompute keeps as much: $kept"
bitwise --mesh node=2,gpu=2 --transport shm --size t=15,s=135 --layers 1 --dtype bf16 --threads 2 --passes 2

# Methods: sums in another order, and their own bytes on the way back; with recompute those of the forward once more.
good --ranks 3 --transport shm --size t=5,s=45 --layers 1 --method '*=ulysses' --recompute
good --ranks 7 --size t=3,s=2 --layers 1 --transport threads # ranks without rows

# A schedule that runs the temporal stages replicated: their gradients are in parts, which are added up on the way out.
if command -v python3 >/dev/null; then
    "$HEDDLE" plan "$model" --mesh sp=3 --layers 1 --output "$work/s.json" >/dev/null
    python3 - "$work/s.json" <<'PY' || fail "replicated stages: python"
import json, sys
s = json.load(open(sys.argv[1]))
assert [e["from"] for e in s["edges"]] == ["t@sp"] * 4 + ["s@sp"] * 3
sent = 2 * 5 * 405 * 48 * 4  # a rank's five frames to two others, and as much of the gradient on the way back
for stage in s["stages"][3:]:
    stage["layout"] = "*"
s["edges"][3].update({"to": "*", "kind": "gather", "bytes_per_rank_max": sent, "bytes_received_max": sent,
                      "bytes_total": 3 * sent})
for edge in s["edges"][4:]:
    edge.update({"from": "*", "to": "*", "kind": "keep", "bytes_per_rank_max": 0, "bytes_received_max": 0,
                 "bytes_total": 0, "messages": 0})
s.update({"switches": 1, "bytes_per_rank_max": sent, "bytes_total": 3 * sent,
          "backward_bytes_per_rank_max": sent, "backward_bytes_total": 3 * sent})
json.dump(s, open(sys.argv[1], "w"))
PY
    good --schedule "$work/s.json" --layers 1 --transport threads
    grep -q "(2332800 bytes) and the gradients" "$work/out" || fail "replicated stages: bytes"
    grep -q "gradient of the input: equal within" "$work/out" || fail "replicated stages: gradient of the input"
else
    not_here python "no python3: replicated stages, and the JSON"
fi

# JSON says the same.
step --ranks 3 --transport shm --check --json
[ $code = 0 ] || fail "json"
if command -v python3 >/dev/null; then
    python3 - "$work/out" <<'PY' || fail "json: python"
import json, sys
r = json.load(open(sys.argv[1]))
b = r["backward"]
assert r["check"] is True and r["bytes_sent"] == r["bytes_planned"] == 4665600
assert b["bytes_sent"] == b["bytes_planned"] == 2332800
assert b["gradient_bytes_sent"] == b["gradient_bytes_planned"] == 2420736
assert b["step_bytes_sent"] == b["step_bytes_planned"] == 9419136
assert sum(s["runs"] for s in b["stages"]) == 13 and b["stages"][0]["stage"] == "end"
assert b["backward_ms"] > 0 and b["kept_bytes_max"] > 0 and 0 < b["gradient_error"] < 2e-5
assert "bitwise" in b["check_input_gradient"]
PY
fi

# Bad input.
within 20 "$HEDDLE" run "$model" --ranks 2 --recompute >"$work/out" 2>"$work/err"
[ $? = 2 ] && grep -q "recompute is for the backward" "$work/err" || fail "--recompute alone"

# Rank 1 fails, or dies in, a transport call on the way back: of a number beyond those that make and time the plans, which
# are as many as the machine is fast. Nobody waits for the deadline, which is beyond the limit.
on_the_way_back() { # KIND of fault
    local call=4000
    for _ in $(seq 30); do
        step --size t=5,s=9 --layers 1 --ranks 3 --transport "fault($1=$call@1):shm" --passes 1000000 --deadline 3600
        [ $code = 1 ] || fail "$1=$call: exit code $code"
        grep -q "rank 1" "$work/err" || fail "$1=$call: rank 1 is not named"
        grep -Eq "last seen at: (backward of stage|the sum of the gradients)" "$work/err" && return
        grep -q "last seen at: before the first stage" "$work/err" && call=$((call * 3 / 2)) || call=$((call + 7))
    done
    fail "$1: no call up to $call was on the way back"
}
on_the_way_back fail
on_the_way_back kill
echo ok
