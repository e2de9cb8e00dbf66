#!/usr/bin/env bash
# The published transformer on the emulated device: the same bits on 1 to 3 ranks, the host's numbers, and nothing copied
# between a pass's first product and its last but what the program says.
set -uo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
latte=$HEDDLE_BUILD/example_latte
[ -x "$latte" ] || { echo "FAILED: the examples are not built"; exit 1; }
command -v python3 >/dev/null || skip_test python "no Python"
export HEDDLE_MODULE_PATH=$HEDDLE_BUILD/tests/device-sim
[ -e "$HEDDLE_MODULE_PATH/libheddle_cuda.so" ] || skip_test cudasim "no emulated device"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    [ ! -f "$work/out" ] || cat "$work/out" >&2
    exit 1
}
run() { # OUTPUT, options
    within 120 "$latte" "$work/plain" --text-tokens 7 --output "$work/$1.npy" "${@:2}" >"$work/out" 2>&1 || fail "$*"
}
same() {
    cmp -s "$work/$1.npy" "$work/$2.npy" || fail "$3: other bits"
}
close_to() { # the largest difference is within 1e-4 of the largest value
    python3 - "$work/$1.npy" "$work/$2.npy" <<'PY' || fail "$2 is not $1"
import struct, sys

def load(path):
    with open(path, "rb") as file:
        data = file.read()
    data = data[10 + struct.unpack("<H", data[8:10])[0]:]
    return struct.unpack(f"<{len(data) // 4}f", data)

here, there = load(sys.argv[1]), load(sys.argv[2])
off = max(abs(a - b) for a, b in zip(here, there)) / max(map(abs, here))
sys.exit(not (len(here) == len(there) and off < 1e-4))
PY
}
python3 "$HEDDLE_SOURCE/tests/golden/latte_folder.py" "$work/plain" || fail "no folder"

run host --ranks 1
run one --ranks 1 --transport threads --device cuda
close_to host one
for ranks in 2 3; do
    run some --ranks $ranks --transport threads --device cuda
    same one some "$ranks ranks"
    grep -q "planned [1-9][0-9]*, counted [1-9]" "$work/out" || fail "$ranks ranks: nothing was sent"
    grep -q "device cuda:.*wire .*copied to and from devices: [1-9]" "$work/out" || fail "$ranks ranks: not there"
done
run some --ranks 2 --transport shm --device cuda --wire host
same one some "two processes, wire host"
run some --ranks 2 --device cuda --wire host # no rank has a device before it is a process
same one some "no launcher"
export HEDDLE_SIZE=2 HEDDLE_KEY=latte-$$
HEDDLE_RANK=1 run other --ranks 2 --device cuda &
HEDDLE_RANK=0 run some --ranks 2 --device cuda
wait $! || fail "rank 1"
unset HEDDLE_SIZE HEDDLE_KEY
same one some "a launcher"
run some --mesh '[a=2 b=2]' --transport threads --device cuda --wire peer
same one some "two axes"
run ring-host --ranks 2 --transport threads --method t.attn=ring
run ring --ranks 2 --transport threads --device cuda --method t.attn=ring
close_to ring-host ring
run guided-host --ranks 1 --steps 2 --guidance 4
run guided --ranks 2 --transport threads --device cuda --steps 2 --guidance 4
close_to guided-host guided

# --- what devices counted in two passes more is what the program said of two passes more ------------------------------
copied() { # STEPS: said, counted
    HEDDLE_CUDASIM_SAY_COPIED=1 run some --ranks 2 --transport threads --device cuda --steps "$1"
    sed -nE 's/.*copied to and from devices: ([0-9]+) bytes.*/\1/p; s/^cudasim: ([0-9]+) bytes.*/\1/p' "$work/out" | tr '\n' ' '
}
read -r said_one counted_one <<<"$(copied 1)"
read -r said_three counted_three <<<"$(copied 3)"
[ "$said_three" = $((3 * said_one)) ] && [ $((said_three - said_one)) -gt 0 ] || fail "$said_one bytes, of three passes $said_three"
[ $((counted_three - counted_one)) = $((said_three - said_one)) ] ||
    fail "two passes more copied $((counted_three - counted_one)) bytes, of which the program says $((said_three - said_one))"

# --- refused ----------------------------------------------------------------------------------------------------------
refused() { # exit code, part of the sentence, options
    local got=0
    within 60 "$latte" "$work/plain" "${@:3}" >"$work/out" 2>&1 </dev/null || got=$?
    [ "$got" = "$1" ] && grep -q -- "$2" "$work/out" || fail "${*:3}: exit code $got"
    [ "$(wc -l <"$work/out")" = 1 ] || fail "${*:3}: more than a sentence"
}
refused 2 "--wire goes with --device" --wire peer
refused 2 "is auto, peer, nccl or host, not best" --device cuda --wire best
HEDDLE_CUDASIM_DEVICES=0 refused 77 "no CUDA-capable device\|no device" --device cuda --transport threads
HEDDLE_MODULE_PATH=$work refused 77 "libheddle_none" --device none --transport threads
python3 "$HEDDLE_SOURCE/tests/golden/latte_folder.py" "$work/plain" heads=1 head_dim=264 layers=1 || fail "no wide folder"
refused 1 "heads of 264 channels of f32: attention on devices takes up to" --ranks 1 --device cuda --transport threads
echo ok
