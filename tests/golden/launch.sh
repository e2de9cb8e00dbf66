#!/usr/bin/env bash
# The command line in the hands of launchers, batch systems and careless shells: who it takes itself for, whose complaint
# is heard, closed standard streams, limits of the process.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
# shellcheck source=tests/support/skip.sh
. "$HEDDLE_SOURCE/tests/support/skip.sh"
for name in $(compgen -e | grep -E '^(HEDDLE_(RANK|SIZE|KEY)|RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|TORCHELASTIC_.*|OMPI_.*|PMIX?_.*|SLURM_.*)$'); do
    unset "$name"
done
line='bf16[t=8 s=8] on [sp=2]: t@sp -> s@sp'
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAILED: $*"
    head -5 "$work"/out "$work"/err
    failed=1
}

# runs CODE 'WORDS of standard error, or empty: it is' COMMAND...
runs() {
    local wanted=$1 words=$2 code
    shift 2
    within 60 "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    [ "$code" = "$wanted" ] || fail "$*: exit code $code, wanted $wanted"
    if [ -z "$words" ]; then
        [ ! -s "$work/err" ] || fail "$*: standard error is not empty"
    else
        grep -qF -- "$words" "$work/err" || fail "$*: '$words' is not on standard error"
    fi
}

# What needs no launcher does not ask for one.
stale=(env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4)
runs 2 'heddle: no-such-file' "${stale[@]}" "$HEDDLE" plan no-such-file --mesh sp=2
runs 0 '' "${stale[@]}" RANK=7 "$HEDDLE" plan "$HEDDLE_SOURCE/tests/golden/tiny.yaml" --mesh sp=2
runs 0 '' env RANK=5 WORLD_SIZE=2 "$HEDDLE" volume "$line"
runs 0 '' env RANK=5 WORLD_SIZE=2 "$HEDDLE" help
runs 2 'heddle: unknown command' "${stale[@]}" "$HEDDLE" reshuffle

# Contradictions, on every rank.
runs 2 'RANK=5 and WORLD_SIZE=2' env RANK=5 WORLD_SIZE=2 "$HEDDLE" verify "$line"
runs 2 'WORLD_SIZE is not set' env RANK=1 "$HEDDLE" verify "$line"
runs 2 'OMPI_COMM_WORLD_SIZE=1' env RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "$HEDDLE" verify "$line"
runs 2 'rank 1: 2 ranks were asked for, but mpirun runs 4' "${stale[@]}" "$HEDDLE" verify "$line"
runs 0 '' env RANK=5 WORLD_SIZE=2 "$HEDDLE" verify 'u8[t=4] on [sp=1]: t@sp -> *' --transport self

# together WORDS COMMAND...: as ranks 0 and 1 of torchrun, in a task of srun inside mpirun; standard output to $work/out
together() {
    local rank pids=()
    for rank in 0 1; do
        within 60 env RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_PORT=$$ SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 \
            SLURM_STEP_NUM_TASKS=1 OMPI_COMM_WORLD_SIZE=1 "$@" >"$work/out.$rank" 2>"$work/err.$rank" </dev/null &
        pids+=($!)
    done
    codes=''
    for rank in 0 1; do
        wait "${pids[$rank]}"
        codes="$codes$? "
    done
    cat "$work"/out.[01] >"$work/out"
    cat "$work"/err.[01] >"$work/err"
}
together "$HEDDLE" verify "$line"
[ "$codes" = '0 0 ' ] || fail "two ranks of torchrun: exit codes $codes"
grep -q '2 ranks, 2 on this host' "$work/out" || fail 'two ranks of torchrun do not see one another'

# All complain of the same: once, whoever is first. A machine that is busy may start the second one too late.
for attempt in 1 2 3; do
    together "$HEDDLE" verify nonsense
    [ "$(grep -c '^heddle: rank [01]: .*nonsense' "$work/err")" != 1 ] || break
done
[ "$codes" = '2 2 ' ] || fail "two ranks with a bad line: exit codes $codes"
[ "$(grep -c '^heddle: rank [01]: .*nonsense' "$work/err")" = 1 ] || fail "what both ranks have to say, attempt $attempt"
together sh -c 'exec "$0" verify "$1" --frobnicate=$RANK' "$HEDDLE" "$line"
for rank in 0 1; do
    grep -q "^heddle: rank $rank: .*--frobnicate=$rank" "$work/err" || fail "rank $rank has something else to say"
done

# Alone, and not rank 0.
runs 1 'heddle: rank 1: rank 0 of this host' env RANK=1 WORLD_SIZE=2 MASTER_PORT=$$ "$HEDDLE" verify "$line" --deadline 1
if have_mpi; then
    mpi=(mpirun --quiet --oversubscribe --allow-run-as-root --bind-to none)
    within 60 "${mpi[@]}" -n 1 "$HEDDLE" verify "$line" --deadline 20 : -n 1 "$HEDDLE" verify "$line" --frobnicate \
        >"$work/out" 2>"$work/err" </dev/null && fail 'mpirun: a bad option of rank 1 alone'
    grep -q '^heddle: rank 1: .*--frobnicate' "$work/err" || fail 'mpirun: rank 1 is not heard'
    RANK=0 WORLD_SIZE=1 runs 0 '' "$HEDDLE" verify "$line" --transport mpi --ranks 2
    runs 2 'MPI found 1 rank' env -u OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$HEDDLE" verify "$line"
fi

# A closed standard output is an error with a sentence, whatever would have become number 1.
for transport in threads shm; do
    runs 1 'standard output could not be written' sh -c '"$0" verify "$1" --transport "$2" >&-' "$HEDDLE" "$line" $transport
    runs 1 'standard output could not be written' sh -c '"$0" verify "$1" --transport "$2" >&- <&-' "$HEDDLE" "$line" $transport
    runs 1 '' sh -c '"$0" verify "$1" --transport "$2" >&- 2>&- <&-' "$HEDDLE" "$line" $transport
done
runs 1 'standard output could not be written' sh -c '"$0" volume "$1" >&-' "$HEDDLE" "$line"
# ... and the numbers stay theirs: whatever the command opens next, here its input, gets another one.
mkfifo "$work/frames"
for stream in 0 1 2; do
    sh -c "exec \"\$0\" run \"\$1\" --input \"\$2\" $stream>&-" "$HEDDLE" "$HEDDLE_SOURCE/tests/golden/tiny.yaml" "$work/frames" >/dev/null 2>&1 </dev/null &
    reader=$!
    exec 9<>"$work/frames" # does not wait; the command opens its end when it may
    kept=
    for _ in $(seq "$(scaled 600)"); do
        readlink /proc/$reader/fd/* 2>/dev/null | grep -qxF "$work/frames" && kept=$(readlink "/proc/$reader/fd/$stream") && break
        sleep 0.1
    done
    exec 9>&-
    wait $reader
    [ "$kept" = /dev/null ] || fail "closed stream $stream became '$kept'"
done

# Limits that batch systems set: less is reserved, and what is not enough is named.
large='bf16[t=512 s=512 c=16] on [sp=2]: t@sp -> s@sp'
runs 0 '' bash -c 'ulimit -f 2000; "$0" verify "$1" --transport shm' "$HEDDLE" "$line"
runs 1 'RLIMIT_FSIZE (ulimit -f), 2048000 bytes' bash -c 'ulimit -f 2000; "$0" verify "$1" --transport shm' "$HEDDLE" "$large"
runs 1 'RLIMIT_FSIZE (ulimit -f), 10240 bytes' bash -c 'ulimit -f 10; "$0" verify "$1" --transport shm' "$HEDDLE" "$line"
if is_sanitized; then
    not_here sanitizer "a sanitizer reserves more address space than any limit of it"
else
    runs 0 '' bash -c 'ulimit -v 1000000; "$0" verify "$1" --transport shm' "$HEDDLE" "$large"
    runs 0 '' bash -c 'ulimit -v 1000000; "$0" verify "$1" --transport shm --arena 100M' "$HEDDLE" "$large"
    runs 1 'RLIMIT_AS (ulimit -v), 1024000000 bytes' bash -c 'ulimit -v 1000000; "$0" verify "$1" --transport shm --arena 1G' "$HEDDLE" "$line"
fi
runs 1 'which arena_bytes (--arena) asked for' "$HEDDLE" verify "$large" --transport shm --arena 4M
for wrong in 0 -1 16Mb M 99999999999T ''; do
    runs 2 '--arena wants a number of bytes' "$HEDDLE" verify "$line" --arena "$wrong"
done
attention='f32[b=1 s=64 h=2 d=8] on [sp=2]'
arena() { # arguments of a command that has ranks
    runs 1 'RLIMIT_FSIZE (ulimit -f), 2048000 bytes' bash -c 'ulimit -f 2000; "$@" --transport shm --arena 64M' sh "$HEDDLE" "$@"
    runs 0 '' "$HEDDLE" "$@" --transport shm --arena 64M
}
arena verify attention "$attention" --method ring
arena verify linear-attention "$attention"
arena bench "$line" --seconds 0 --iterations 4
arena bench attention "$attention" --method ring --seconds 0
arena bench linear-attention "$attention" --method lasp --seconds 0
arena run "$HEDDLE_SOURCE/tests/golden/tiny.yaml" --ranks 2
for command in run verify bench 'verify attention' 'bench attention' 'verify linear-attention' 'bench linear-attention'; do
    # shellcheck disable=SC2086
    [[ $("$HEDDLE" $command --help) == *--arena* ]] || fail "heddle $command --help does not tell of --arena"
done
exit $failed
