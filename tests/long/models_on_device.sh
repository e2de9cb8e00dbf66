#!/usr/bin/env bash
# Every model that heddle knows, small, on the emulated device: a step's bytes are the plan's, its bits or tolerances
# hold on 1 to 4 ranks in turn; so does a model that mixes attention and linear attention by methods of its stages; and
# what no block does is refused by name.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
. "$HEDDLE_SOURCE/tests/support/says.sh"
limit_s=$((400 * ${HEDDLE_TEST_TIME_SCALE:-1}))
export HEDDLE_MODULE_PATH=${HEDDLE_BUILD:?}/tests/device-sim
[ -e "$HEDDLE_MODULE_PATH/libheddle_cuda.so" ] || skip_test gpu "there is no emulated device on this machine"

small() { # NAME: extents of its dims by their roles; heads of 8 channels
    "${HEDDLE:?}" presets "$1" | awk '
        match($0, /^  [a-z]+: *\{size: [0-9]+, role: [a-z]+/) {
            name = $1; sub(":", "", name); role = $0; sub(/.*role: /, "", role); sub(/[,} ].*/, "", role)
            if (role == "seq") { size[name] = 3 + n++ }
            if (role == "text") { size[name] = 3 }
            if (role == "heads") { size[name] = heads = 2 }
            if (role == "channel") { channels = name }
        }
        match($0, /heads: [0-9]+/) && !heads { heads = substr($0, RSTART + 7, RLENGTH - 7) }
        END { size[channels] = 8 * heads; for (i in size) { printf "%s%s=%d", comma, i, size[i]; comma = "," } }'
}
step() { # WHAT NAME RANKS OPTIONS...
    says "$1" 0 "check: gradients of" run "$2" --size "$(small "$2")" --layers 1 --device cuda --check --backward \
        --ranks "$3" "${@:4}"
    grep -q "check: backward: bytes sent = bytes planned for $3 rank" "$folder/out" &&
        grep -qF "copied to and from host memory: 0 bytes" "$folder/out" ||
        { echo "FAILED $1: bytes in:"; cat "$folder/out"; failed=1; }
}
ran=0
while read -r name runs; do
    if [ "$runs" = yes ]; then
        step "$name" "$name" $((ran++ % 4 + 1))
    else
        says "$name" 2 "can be planned, but not run: stage '" run "$name" --layers 1 --ranks 2 --device cuda
    fi
done < <("$HEDDLE" presets |
    awk '/^machine/ { exit } match($0, / (yes|no) /) { print $1, substr($0, RSTART + 1, RLENGTH - 2) }')
[ $ran -ge 10 ] || { echo "FAILED: only $ran models ran"; failed=1; }
for ranks in 2 3 4; do
    step "methods of a mixed model, $ranks" hybrid-mixed $ranks --method t0.lin=lasp,t1.lin=scan,t2.attn=ring
done
exit $failed
