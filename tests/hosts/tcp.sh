#!/usr/bin/env bash
# Ranks that something else has told where the others listen meet by TCP (runtime/comm/transport/tcp.h), on hosts with
# many addresses of which some lead nowhere or are the other host's as well, with IPv6 alone, and with no way at all.
set -u
without_mpi=1
. "${HEDDLE_SOURCE:?}/tests/support/two_hosts.sh"
export HEDDLE_HOST_A=$host_a HEDDLE_HOST_B=$host_b
segments=$(ls -A /dev/shm)

run() { # program, case
    "$HEDDLE_BUILD/$1" "$2" >"$work/out" 2>&1 || fail "$1 $2: $(cat "$work/out")"
    grep -E '^rank ' "$work/out"
}

run tcp_ranks the_cable_is_cut
run tcp_ranks a_rank_is_killed
if [ -e "$HEDDLE_BUILD/nccl_ranks" ]; then
    run nccl_ranks ranks_of_nccl
else
    not_here device "built without the emulator"
fi

# As torchrun starts ranks, two on each host: COMMAND... is one of them, $1 is said on the second host alone.
export HEDDLE_KEY=0123456789abcdef0123456789abcdef
torchrun_on_both() {
    local other=$1 port=29$((RANDOM % 900 + 100)) codes=
    shift
    for rank in 3 2 1 0; do
        host=$host_a words=TORCHELASTIC_RUN_ID=none
        [ $rank -lt 2 ] || host=$host_b words=$other
        on "$host" env RANK=$rank WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.213.7.1 MASTER_PORT=$port \
            TORCHELASTIC_RUN_ID=none "$words" timeout -k 5 100 "$@" >"$work/out.$rank" 2>&1 </dev/null &
        local pid_$rank=$!
    done
    for rank in 0 1 2 3; do
        local pid=pid_$rank
        wait "${!pid}"
        codes="$codes$? "
    done
    cat "$work"/out.? >"$work/out"
    [ "$codes" = "${wanted:-0 0 0 0 }" ] || fail "$*: exit codes $codes: $(cat "$work/out")"
}
torchrun_on_both A=a "$HEDDLE" verify --random 30 --seed 5 --deadline 30
grep -q 'tcp: 4 ranks, 2 on this host, .*auto chose tcp because the environment says RANK=0' "$work/out" ||
    fail "verify by auto: $(cat "$work/out")"
torchrun_on_both A=a "$HEDDLE" run "$HEDDLE_SOURCE/tests/golden/tiny.yaml" --check --transport tcp --deadline 30
wanted='1 1 1 1 '
torchrun_on_both HEDDLE_KEY=ffffffffffffffffffffffffffffffff "$HEDDLE" verify --random 3 --deadline 3
# rank 1 began earlier, so its deadline may be over first
grep -qE '2 of 4 ranks came to rank 0 .*, rank 2 did not|rank 1 came and left again; rank 2 had not come' "$work/out" ||
    fail "another key on the second host: $(cat "$work/out")"
unset wanted
python=${HEDDLE_TEST_PYTHON:-python3}
if [ -d "$HEDDLE_BUILD/python" ] && "$python" -c 'import numpy' 2>/dev/null; then
    cat >"$work/rank.py" <<'PYTHON'
import heddle
import numpy as np

with heddle.Comm.open(deadline_s=30) as comm:
    whole = np.arange(9 * 7 * 5, dtype=np.float32).reshape(9, 7, 5)
    got = np.empty_like(whole)
    mine = np.array_split(whole, comm.size, axis=0)[comm.rank]
    wanted = np.array_split(whole, comm.size, axis=1)[comm.rank]
    got = comm.reshard("f32[t=9 s=7 c=5] on [sp=4]: t@sp -> s@sp")(np.ascontiguousarray(mine))
    assert np.array_equal(got, wanted) and "auto chose tcp" in comm.describe(), comm.describe()
PYTHON
    PYTHONPATH=$HEDDLE_BUILD/python torchrun_on_both A=a "$python" "$work/rank.py"
fi

# An address that every machine with containers has, before the good ones: somebody on the second host listens there.
for host in "$host_a" "$host_b"; do
    ip -n "$host" link del data
    ip -n "$host" link del manage
    ip -n "$host" link add inside type veth peer name end && ip -n "$host" link set end up &&
        ip -n "$host" addr add 10.17.0.1/16 dev inside && ip -n "$host" link set inside up || fail "no further address"
done
lay_cable data 10.213.7 && lay_cable manage 10.213.8 || fail "no cables"
run tcp_ranks both_hosts_have_the_address
ip -n "$host_a" link del inside && ip -n "$host_b" link del inside

# Before the first host's good addresses, as its list is by the number of the interface: one that is silent on the other
# host, and eight that it knows no way to.
ip -n "$host_a" link del data && ip -n "$host_a" link del manage
ip -n "$host_a" link add name many type veth peer name end && ip -n "$host_a" link set end up &&
    ip -n "$host_a" addr add 10.99.0.1/24 dev many && ip -n "$host_a" link set many up || fail "no further addresses"
lay_cable data 10.213.7 && lay_cable manage 10.213.8 || fail "no cables"
for i in 1 2 3 4 5 6 7 8; do ip -n "$host_a" addr add 10.98.$i.1/24 dev many; done
ip -n "$host_b" neigh add 10.213.7.77 lladdr 02:00:00:00:00:77 dev data nud permanent && # to no card at all
    ip -n "$host_b" route add 10.99.0.0/24 via 10.213.7.77 dev data || fail "no way to nowhere"
run tcp_ranks an_address_is_silent
ip -n "$host_a" link del many

for host in "$host_a" "$host_b"; do ip -n "$host" -4 addr flush dev data && ip -n "$host" -4 addr flush dev manage; done
run tcp_ranks hosts_have_no_route # but addresses of IPv6 that are the cables' own
if ip -n "$host_a" addr add fd00:7::1/64 dev data nodad && ip -n "$host_b" addr add fd00:7::2/64 dev data nodad; then
    run tcp_ranks ranks_move_data
else
    not_here netns "no IPv6 in network namespaces"
fi
left=$(comm -13 <(echo "$segments") <(ls -A /dev/shm) | grep -i heddle)
[ -z "$left" ] || fail "left in /dev/shm: $left"
[ $failed = 0 ] && echo ok
exit $failed
