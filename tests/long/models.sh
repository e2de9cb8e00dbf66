#!/usr/bin/env bash
# Every model of examples/models at a small size, on 2 to 8 ranks and two-axis meshes, over every transport: the run
# equals one rank's, and the bytes are the planned ones.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
failed=0
percent=${HEDDLE_LONG_PERCENT:-100} # of the runs, drawn by HEDDLE_SEED
RANDOM=${HEDDLE_SEED:-1}
run() {
    [ $((RANDOM % 100)) -lt "$percent" ] || return 0
    if ! out=$("$HEDDLE" run "$@" --layers 1 --check 2>&1); then
        echo "heddle run $* --layers 1 --check: exit $?"
        tail -n 5 <<<"$out"
        failed=1
    fi
}
size_of() { # sequence dims of a model, made small
    case $1 in
    *axial-3d.yaml) echo t=5,h=9,w=7 ;;
    *) grep -q ' t: {' "$1" && echo t=7,s=45 || echo s=301 ;;
    esac
}
for model in "$HEDDLE_SOURCE"/examples/models/*.yaml; do
    size=$(size_of "$model")
    for ranks in 2 3 8; do
        run "$model" --size "$size" --ranks $ranks --transport shm
    done
    run "$model" --size "$size" --mesh '[a=2 b=2]' --transport threads
    run "$model" --size "$size" --mesh '[a=3 b=2]' --transport shm --dtype f32
done
exit $failed
