#!/usr/bin/env bash
# Kills at random moments: a rank or the command itself, in run, run --backward, verify and bench, on shm and mpi. Each
# time it must end in time, with an exit code that is not 0, and leave no process, no segment of shared memory, no file.
# Counted by what ran; "mpirun stuck" are those where every rank was gone and mpirun itself did not end, which is Open
# MPI's. KILLS (100, by HEDDLE_LONG_PERCENT) of them, HEDDLE_SEED for other draws.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}" "${HEDDLE_SOURCE:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
kills=${KILLS:-$(((100 * ${HEDDLE_LONG_PERCENT:-100} + 99) / 100))}
scale=${HEDDLE_TEST_TIME_SCALE:-1}
limit_s=$((20 * scale)) # for the end of a command whose rank is gone; a wait for a peer that lives would take 60
RANDOM=${HEDDLE_SEED:-1}
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
line='bf16[t=24 s=96 c=64] on [sp=4]: t@sp -> s@sp'
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work/tmp # what a killed rank leaves in its folder for temporary files is seen here
mkdir "$TMPDIR"
transports=(shm)
if have_mpi; then
    transports+=(mpi)
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks
    export OMPI_MCA_btl_vader_backing_directory=$TMPDIR # its own segments, which a killed mpirun leaves
fi
declare -A done_of hung_of left_of stuck_of
total=0 failures=0

# Commands that go on until they are killed.
command_of() { # kind
    case $1 in
    run) echo run "$model" --ranks 4 --passes 1000000 --check ;;
    ring) echo run "$model" --ranks 4 --passes 1000000 --method s.attn=ring,t.attn=local ;;
    step) echo run "$model" --ranks 4 --passes 1000000 --backward ;;
    verify) echo verify --random 100000000 --ranks 4 ;;
    private) echo verify --random 100000000 --ranks 4 --memory any ;;
    esac
}

alive() { ps -o pid=,stat= -s "$1" 2>/dev/null | awk '$2 !~ /^Z/ { print $1 }'; } # of a session
heddle_segments() { ls -A /dev/shm | grep -i heddle; }

# Ranks of a session: the command's children, or mpirun's. Waits until they are there; not all may be.
find_ranks() { # session, transport
    for _ in $(seq $((1500 * scale))); do
        if [ "$2" = mpi ]; then
            mapfile -t ranks < <(pgrep -s "$1" -x heddle)
        else
            mapfile -t ranks < <(pgrep -P "$1")
        fi
        [ ${#ranks[@]} = 4 ] && return 0
        kill -0 "$1" || return 1 # not by its session, which begins a moment later than the command
        sleep 0.01
    done
    return 1
}

wait_gone() { # session, seconds
    local end=$((SECONDS + $2))
    while [ -n "$(alive "$1")" ]; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

complain() { # what, kind, transport, victim
    echo "kill $total: $1: $2 on $3, $4 killed; it said: $(tail -c 300 "$work/err")"
    failures=$((failures + 1))
}

one() {
    local kinds=(run ring step verify private bench) kind transport victim pid segments new
    kind=${kinds[$((RANDOM % ${#kinds[@]}))]}
    transport=${transports[$((RANDOM % ${#transports[@]}))]}
    victim=$((RANDOM % 5)) # 4: the command itself
    local delay
    delay=0.$(printf %03d $((RANDOM % 500)))
    segments=$(heddle_segments)
    if [ "$kind" = bench ]; then
        setsid "$HEDDLE" bench "$line" --seconds 1000 --transport "$transport" >"$work/out" 2>"$work/err" &
    else
        # shellcheck disable=SC2046
        setsid "$HEDDLE" $(command_of "$kind") --transport "$transport" >"$work/out" 2>"$work/err" &
    fi
    pid=$!
    total=$((total + 1))
    local key="$kind $transport"
    done_of[$key]=$((${done_of[$key]:-0} + 1))
    if ! find_ranks "$pid" "$transport"; then
        complain "no ranks came" "$kind" "$transport" nobody
        kill -9 "$pid" $(alive "$pid") 2>/dev/null
        wait "$pid" 2>/dev/null
        return
    fi
    sleep "$delay"
    if [ "$victim" = 4 ]; then
        kill -9 "$pid"
    else
        kill -9 "${ranks[$victim]}"
    fi
    if ! wait_gone "$pid" "$limit_s"; then
        local left # zombies do not count: mpirun has not waited for them
        left=$(ps -o stat=,comm= -s "$pid" | awk '$1 !~ /^Z/ { print $2 }' | paste -sd' ')
        if [[ " $left " != *" heddle "* ]]; then # all ranks are gone, what is left is mpirun's matter
            stuck_of[$key]=$((${stuck_of[$key]:-0} + 1))
            echo "kill $total: all ranks are gone, left is: $left"
        else
            complain "hangs ($left)" "$kind" "$transport" "victim $victim"
            hung_of[$key]=$((${hung_of[$key]:-0} + 1))
        fi
        # shellcheck disable=SC2046
        kill -9 $(alive "$pid") 2>/dev/null
    fi
    wait "$pid" 2>/dev/null
    local code=$?
    [ "$victim" = 4 ] || [ $code != 0 ] || complain "exit 0" "$kind" "$transport" "rank $victim"
    new=$(comm -13 <(echo "$segments") <(heddle_segments))
    new+=$(ls -A "$TMPDIR" | grep -vE '^(ompi|prte|pmix|openmpi|vader)') # mpirun's own
    if [ -n "$new" ]; then
        complain "left $new" "$kind" "$transport" "victim $victim"
        left_of[$key]=$((${left_of[$key]:-0} + 1))
    fi
    rm -rf "${TMPDIR:?}"/*
}

while [ $total -lt "$kills" ]; do
    one 2>/dev/null # bash tells of every job that was killed
done
printf '%-16s %6s %6s %6s %13s\n' "what" "kills" "hangs" "left" "mpirun stuck"
for key in "${!done_of[@]}"; do
    printf '%-16s %6d %6d %6d %13d\n' "$key" "${done_of[$key]}" "${hung_of[$key]:-0}" "${left_of[$key]:-0}" \
        "${stuck_of[$key]:-0}"
done | sort
echo "$total kills, $failures failures"
[ $failures = 0 ]
