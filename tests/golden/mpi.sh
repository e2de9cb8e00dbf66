#!/bin/bash
# The command line on MPI ranks: random reshards over peer memory, messages and both; a model; bytes as MPI saw them
# against bytes as planned without running anything.
set -u
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}" "${HEDDLE_SOURCE:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
if [ ! -e "$HEDDLE_BUILD/libheddle_mpi.so" ]; then
    said=$("$HEDDLE" verify 'u8[t=4 s=4] on [sp=1]: t@sp -> s@sp' --transport mpi 2>&1 </dev/null) &&
        { echo "FAILED: mpi works without its library"; exit 1; }
    case $said in
        *libheddle_mpi*libopenmpi-dev*) not_here mpi "built without MPI, and heddle says so" && exit 0 ;;
        *) echo "FAILED: without MPI heddle says: $said" && exit 1 ;;
    esac
fi
have_mpi || exit 77
# Open MPI leaks; and what is preloaded stands before a sanitizer.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0:verify_asan_link_order=0"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0

# exits WHAT EXIT ARGUMENTS...: heddle ARGUMENTS exits with EXIT
exits() {
    local what=$1 code=$2
    shift 2
    within 120 "$HEDDLE" "$@" >"$folder/out" 2>&1 </dev/null
    local rc=$?
    if [ "$rc" != "$code" ]; then
        echo "FAILED $what: exit $rc, wanted $code: heddle $*"
        tail -20 "$folder/out"
        failed=1
    fi
}

sim=$HEDDLE_BUILD/tests/device-sim # between processes of MPI devices' memory is mapped as between those of shm
if [ -e "$sim/libheddle_cuda.so" ]; then
    HEDDLE_MODULE_PATH=$sim exits "wire peer" 0 verify --random 20 --ranks 3 --transport mpi --seed 13 --device cuda \
        --wire peer
fi
for how in "" "--messages" "--hosts 2"; do
    # shellcheck disable=SC2086
    exits "random $how" 0 verify --random 60 --ranks 4 --transport mpi --seed 11 $how
    # shellcheck disable=SC2086
    exits "random of 3 $how" 0 verify --random 30 --ranks 3 --transport mpi --seed 12 $how
    # shellcheck disable=SC2086
    exits "model $how" 0 run "$HEDDLE_SOURCE/tests/golden/tiny.yaml" --ranks 4 --transport mpi --check $how
done
unset OMPI_MCA_orte_allowed_exit_without_sync # heddle sets it
unheard=$HEDDLE_BUILD/libheddle_unheard.so
[ -e "$unheard" ] || { echo "FAILED: there is no $unheard"; exit 1; }
LD_PRELOAD=$unheard exits "mpirun that hears of no end" 0 verify --random 3 --ranks 3 \
    --transport mpi --seed 14 --messages
exits "private memory" 0 verify --random 30 --ranks 4 --transport mpi --seed 13 --memory any --hosts 2
exits "wrong line" 2 verify 'bf16[t=8 s=8] on [sp=4]: t@sp -> q@sp' --ranks 4 --transport mpi
exits "another mesh" 2 verify 'bf16[t=8 s=8] on [sp=4]: t@sp -> s@sp' --ranks 3 --transport mpi

# What MPI was asked to move, seen from outside, is what `heddle volume` says, times the number of executions.
counted() {
    local line=$1 ranks=$2
    rm -f "$folder"/count.*
    within 120 mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" \
        -x "LD_PRELOAD=$HEDDLE_BUILD/libheddle_pmpi_count.so" -x "PMPI_COUNT_FILE=$folder/count" \
        "$HEDDLE" verify "$line" --transport mpi --messages >"$folder/out" 2>&1 </dev/null ||
        { echo "FAILED counted: $line"; tail -20 "$folder/out"; failed=1; return; }
    "$HEDDLE" volume "$line" --json >"$folder/volume"
    python3 - "$folder" "$ranks" <<'PYTHON' || { echo "FAILED bytes of: $line"; failed=1; }
import json, sys
folder, ranks = sys.argv[1], int(sys.argv[2])
planned = json.load(open(folder + "/volume"))["bytes"]
times = set()
for rank in range(ranks):
    seen = [0] * ranks
    for row in open(f"{folder}/count.{rank}"):
        to, nbytes, messages, name = row.rstrip("\n").split(" ", 3)
        if name == "heddle exchange":
            seen[int(to)] += int(nbytes)
    for to in range(ranks):
        if planned[rank][to] == 0:
            if seen[to] != 0:
                sys.exit(f"rank {rank} sent {seen[to]} bytes to {to}, planned none")
        else:
            times.add(seen[to] / planned[rank][to])
if len(times) != 1 or not all(t >= 1 and t == int(t) for t in times):
    sys.exit(f"MPI was asked for these multiples of the planned bytes: {sorted(times)}")
PYTHON
}
counted 'bf16[b=2 t=7 s=13 c=24] on [sp=4]: t@sp -> s@sp' 4
counted 'f32[t=6 s=9 c=5] on [node=2 sp=2]: t@node,s@sp -> s@node,t@sp' 4
counted 'u8[t=5 s=3 c=7] on [sp=3]: t@sp -> *' 3

exit $failed
