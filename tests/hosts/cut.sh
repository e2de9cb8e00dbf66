#!/usr/bin/env bash
# The cable between two hosts is cut while ranks talk over it. TCP says nothing then: every rank ends at its deadline with
# a sentence, and nothing of it stays.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/two_hosts.sh"
tiny=$HEDDLE_SOURCE/tests/golden/tiny.yaml
deadline_s=4
limit_s=$((deadline_s + 16 * ${HEDDLE_TEST_TIME_SCALE:-1}))
segments=$(ls -A /dev/shm)

packets() { ip -n "$host_b" -s link show dev data | awk '/RX:/ { getline; print $2 }'; }

cut_during() { # host whose end is pulled, arguments of heddle
    local host=$1
    shift
    local before
    before=$(packets)
    mpirun_on_both 2 "$HEDDLE" "$@" --deadline $deadline_s >"$work/out" 2>&1 &
    local pid=$! begin
    for _ in $(seq 300); do # until the ranks talk
        [ "$(packets)" -gt $((before + 300)) ] && break
        sleep 0.1
    done
    ip -n "$host" link set data down
    begin=$SECONDS
    while kill -0 $pid 2>/dev/null && [ $((SECONDS - begin)) -lt $limit_s ]; do sleep 0.2; done
    if kill -0 $pid 2>/dev/null; then
        fail "heddle $*: the cable was cut $limit_s s ago, the deadline is $deadline_s s, and it still runs"
        kill $pid
    elif wait $pid; then
        fail "heddle $*: exit code 0 without a cable"
    fi
    grep -qE "heddle: .*(passed its deadline|waited too long|gave up)" "$work/out" ||
        fail "heddle $*: no rank says why: $(cat "$work/out")"
    for host in "$host_a" "$host_b"; do
        for _ in $(seq 20); do
            [ -n "$(ip netns pids "$host")" ] || break
            sleep 0.1
        done
        left=$(ip netns pids "$host" | xargs -r ps -o pid=,args= -p)
        [ -z "$left" ] || fail "heddle $*: processes left: $left"
    done
    ip -n "$host_a" link set data up && ip -n "$host_b" link set data up
}

cut_during "$host_b" verify --random 100000000
cut_during "$host_a" run "$tiny" --mesh '[node=2 gpu=2]' --passes 1000000
cut_during "$host_b" run "$tiny" --mesh '[node=2 gpu=2]' --method s.attn=ring,t.attn=gather-kv --backward --passes 1000000
left=$(comm -13 <(echo "$segments") <(ls -A /dev/shm) | grep -i heddle)
[ -z "$left" ] || fail "left in /dev/shm: $left"
[ $failed = 0 ] && echo ok
exit $failed
