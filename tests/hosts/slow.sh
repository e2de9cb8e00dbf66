#!/usr/bin/env bash
# A cable that is slow, late and loses packets changes the time and nothing else.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/two_hosts.sh"
command -v tc >/dev/null || skip_test tbf "no tc command (iproute2)"
tiny=$HEDDLE_SOURCE/tests/golden/tiny.yaml

right() { # what the cable is like, arguments of heddle
    local cable=$1
    shift
    mpirun_on_both 1 "$HEDDLE" "$@" >"$work/out" 2>&1 || {
        fail "$cable: heddle $*:"
        tail -n 12 "$work/out"
    }
}

spoil() { # queueing discipline of both ends
    local host
    for host in "$host_a" "$host_b"; do
        ip netns exec "$host" tc qdisc replace dev data root "$@" 2>"$work/tc" || return 1
    done
}

all() {
    right "$1" verify --random 12 --seed 7
    right "$1" verify attention 'f64[b=2 s=37 h=6 d=16] on [sp=2]' --method ring --causal
    right "$1" run "$tiny" --mesh sp=2 --check
}

# A queue of a few packets in front of 200 Mbit/s: what comes too fast is dropped, and TCP sends it again.
if spoil tbf rate 200mbit burst 16kb limit 32kb; then
    all "200 Mbit/s, short queue"
    drops=$(ip netns exec "$host_a" tc -s qdisc show dev data | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1)
    [ "${drops:-0}" -gt 0 ] || fail "the short queue dropped nothing, so nothing was tested"
    echo "short queue: $drops packets dropped"
else
    not_here tbf "this kernel has no tbf: $(head -n 1 "$work/tc")"
fi
if spoil netem delay 5ms 2ms loss 1% reorder 5%; then
    all "5 ms, 1 % loss"
else
    not_here netem "this kernel has no netem, so no delay and no loss at random: $(head -n 1 "$work/tc")"
fi
[ $failed = 0 ] && echo ok
exit $failed
