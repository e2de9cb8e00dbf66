#!/usr/bin/env bash
# Thousands of random problems on every transport and many rank counts: reshards, attention, linear attention. What the
# other tiers draw a few of. HEDDLE_SEED chooses other ones, HEDDLE_LONG_PERCENT draws fewer; a failing line names its seed.
set -u
: "${HEDDLE:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
seed=${HEDDLE_SEED:-1}
percent=${HEDDLE_LONG_PERCENT:-100}
failed=0
draw() { # count, ranks, transport, what to verify and further options
    local count=$((($1 * percent + 99) / 100)) ranks=$2 transport=$3
    shift 3
    seed=$((seed + 1))
    if ! out=$("$HEDDLE" verify "$@" --random "$count" --ranks "$ranks" --transport "$transport" --seed "$seed" 2>&1); then
        echo "heddle verify $* --random $count --ranks $ranks --transport $transport --seed $seed:"
        tail -n 5 <<<"$out"
        failed=1
    fi
}
transports="threads shm"
if have_mpi; then
    transports="$transports mpi"
fi
for transport in $transports; do
    for ranks in 1 2 3 4 6 8; do
        draw 3000 $ranks $transport
        draw 400 $ranks $transport attention
        draw 400 $ranks $transport linear-attention
    done
    draw 3000 4 $transport --memory any
done
if [[ $transports == *mpi* ]]; then
    draw 3000 4 mpi --messages
    draw 3000 6 mpi --hosts 2
    draw 400 4 mpi attention --messages
    draw 400 4 mpi linear-attention --messages
fi
# Arrays on the emulated device, by the wires that it has.
for folder in device-sim nccl-sim; do
    [ -e "${HEDDLE_BUILD:?}/tests/$folder/libheddle_cuda.so" ] || continue
    wire=auto
    [ $folder = device-sim ] || wire=nccl
    for ranks in 2 4 6; do
        HEDDLE_MODULE_PATH=$HEDDLE_BUILD/tests/$folder draw 1000 $ranks threads --device cuda --wire $wire
        HEDDLE_MODULE_PATH=$HEDDLE_BUILD/tests/$folder draw 1000 $ranks shm --device cuda --wire $wire
    done
done
session="$(dirname "$HEDDLE")/test_session_adjoint" # random schedules, there and back
for _ in $([ -x "$session" ] && seq $(((200 * percent + 99) / 100))); do
    seed=$((seed + 1))
    if ! out=$(HEDDLE_SEED=$seed "$session" 2>&1); then
        echo "HEDDLE_SEED=$seed test_session_adjoint:"
        grep wanted <<<"$out"
        failed=1
    fi
done
echo "transports: $transports; last seed $seed"
exit $failed
