#!/usr/bin/env bash
# verify and run --check find what is wrong: results, neighbours and byte counts, spoilt on one rank by a preloaded library
# (support/damage_reshard.c), give exit 5 and a sentence that says what and where; without damage, exit 0.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}" "${HEDDLE_SOURCE:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "a sanitizer's library must be loaded first, before one that spoils results"
damage=$HEDDLE_BUILD/libheddle_damage.so
[ -e "$damage" ] || { echo "FAILED: $damage is not there"; exit 1; }
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

transports=(threads shm)
have_mpi && transports+=(mpi)

# judge EXIT TEXT ARGUMENTS...
judge() {
    local code=$1 text=$2 rc
    shift 2
    LD_PRELOAD=$damage within 120 "$HEDDLE" "$@" >"$folder/out" 2>&1 </dev/null
    rc=$?
    if [ $rc != "$code" ] || ! grep -qF -- "$text" "$folder/out"; then
        echo "FAILED HEDDLE_DAMAGE=${HEDDLE_DAMAGE:-} $*: exit $rc (wanted $code), wanted '$text' in:"
        tail -n 12 "$folder/out"
        exit 1
    fi
}
# finds DAMAGE TEXT ARGUMENTS...
finds() {
    local what=$1 text=$2
    shift 2
    HEDDLE_DAMAGE=$what judge 5 "$text" "$@"
}

# --- verify: 18 bytes on each of 3 ranks, of which 6 go to each other rank ---------------------------------------------
line='u8[t=9 s=6] on [sp=3]: t@sp -> s@sp'
sum='f32[t=9 s=6] on [sp=3]: sum@sp -> s@sp'
last='after: the element at t=8 s=5 is 0x34, not 0x35 (round 0, offset 17 bytes)'
for transport in "${transports[@]}"; do
    on=(--transport "$transport")
    judge 0 "1 reshard bitwise right" verify "$line" "${on[@]}"
    finds reshard-last "rank 2, $last" verify "$line" "${on[@]}"
    finds reshard-bytes "rank 2 moved 13 bytes to rank 0 in 2 executions, planned were 6 each" verify "$line" "${on[@]}"
done
for transport in threads shm; do
    on=(--transport $transport)
    finds reshard-first "rank 2, after: the element at t=0 s=4 is 0x05, not 0x04 (round 0, offset 0 bytes)" \
        verify "$line" "${on[@]}"
    finds reshard-split "rank 2, $last" verify "$line" "${on[@]}"
    finds reshard-source "rank 2, source: the element at t=8 s=5 is 0x34, not 0x35" verify "$line" "${on[@]}"
    finds reshard-behind "rank 2, destination: byte 18 is no part of the array of 18 bytes, but was overwritten" \
        verify "$line" "${on[@]}"
    finds reshard-planned "rank 2 plans 7 bytes to rank 0, the layouts say 6" verify "$line" "${on[@]}"
    finds reshard-path "rank 2: 13 bytes by peer path and 0 as messages are not 12" verify "$line" "${on[@]}"
    judge 0 "1 reshard bitwise right" verify "$sum" "${on[@]}"
    finds reshard-nan "rank 2, after: the element at t=0 s=4 is 0x7fc00000, not 0x40800000" verify "$sum" "${on[@]}"
    finds reshard-last "mismatch in problem" verify --random 20 --ranks 3 "${on[@]}"
    HEDDLE_DAMAGE_RANK=0 finds reshard-last "rank 0, after: the element at t=8 s=1" verify "$line" "${on[@]}"
    HEDDLE_DAMAGE_RANK=1 finds reshard-last "rank 1, after: the element at t=8 s=3" verify "$line" "${on[@]}"
done

# --- run --check: what rank 0 has is compared with one rank, what the others have with rank 0's -------------------------
small=(run "$model" --layers 1 --size t=5,s=12 --ranks 3)
for transport in "${transports[@]}"; do
    check=("${small[@]}" --transport "$transport" --check)
    judge 0 "bitwise equal to one rank" "${check[@]}"
    HEDDLE_DAMAGE_RANK=0 finds run-output "check: 1 of 2880 values differ from one rank, the first at [b=0 t=4 s=11 c=47]" \
        "${check[@]}"
done
for transport in threads shm; do
    check=("${small[@]}" --transport $transport --check)
    finds run-output "check: rank 2 has other bytes than rank 0 of the output" "${check[@]}"
    HEDDLE_DAMAGE_RANK=0 finds run-output '"check": false' "${check[@]}" --json
    finds run-bytes "rank 2 sent 1 bytes into stage 's.attn' of layer 0 and inside, planned were 0" "${check[@]}"
    finds run-both "the ranks sent 1 bytes into stage 's.attn' of layer 0, the schedule says 0" "${check[@]}"
    judge 0 "equal within the tolerance to one rank" "${check[@]}" --method s.attn=ring
    HEDDLE_DAMAGE_RANK=0 finds run-nan "is inf at [b=0 t=4 s=11 c=47]" "${check[@]}" --method s.attn=ring
    step=("${small[@]}" --transport $transport --check --backward)
    judge 0 "gradients of 34 parameters equal within the tolerance" "${step[@]}"
    HEDDLE_DAMAGE_RANK=0 finds run-gradient "differ from one rank" "${step[@]}"
    HEDDLE_DAMAGE_RANK=0 finds run-gradient-nan "the largest difference is inf of a tensor's" "${step[@]}"
    finds run-gradient "check: rank 2 has other bytes than rank 0 of the gradients" "${step[@]}"
    finds run-dx "check: gradient of the input: 1 of 2880 values differ from one rank" "${step[@]}"
    judge 0 "gradient of the input: equal within the tolerance" "${step[@]}" --method s.attn=ring
    finds run-dx-nan "is inf of the largest, the tolerance" "${step[@]}" --method s.attn=ring
    finds run-back-bytes "backward: rank 2 sent 1 bytes at stage 's.attn' of layer 0, planned were 0" "${step[@]}"
    finds run-back-both "bytes, the schedule says" "${step[@]}"
    finds run-reduce "rank 2 sent 406785 bytes of parameter gradients, planned were 406784" "${step[@]}"
done
echo ok
