# Sourced by tests/hosts/*.sh: two hosts on one machine. Each has network, host name and interfaces of its own (ip netns,
# unshare --uts), two cables join them (veth), and heddle takes them for two hosts. mpirun starts the ranks of the second
# one through a small agent instead of ssh. Needs root and, but for scripts that set without_mpi, MPI; everything is gone
# when the script ends.
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}"
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || skip_test netns "network namespaces want root"
command -v ip >/dev/null || skip_test netns "no ip command (iproute2)"
unshare --net ip link add name left type veth peer name right 2>/dev/null || skip_test netns "no network namespaces or no veth here"
[ -n "${without_mpi:-}" ] || have_mpi || exit 77

host_a=heddle-a-$$ host_b=heddle-b-$$
work=$(mktemp -d) || exit 1
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}

on() { # host, command...: runs there
    local host=$1
    shift
    ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

tear_down() {
    for host in "$host_a" "$host_b"; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
        ip netns del "$host" 2>/dev/null
    done
    rm -rf "$work"
}
trap tear_down EXIT

for host in "$host_a" "$host_b"; do
    ip netns add "$host" && ip -n "$host" link set lo up || exit 1
done
lay_cable() { # name at both ends, network of its addresses
    ip link add hdl-a type veth peer name hdl-b || return 1
    ip link set hdl-a netns "$host_a" name "$1" && ip link set hdl-b netns "$host_b" name "$1" || return 1
    ip -n "$host_a" addr add "$2.1/24" dev "$1" && ip -n "$host_b" addr add "$2.2/24" dev "$1" || return 1
    ip -n "$host_a" link set "$1" up && ip -n "$host_b" link set "$1" up
}
lay_cable data 10.213.7 && lay_cable manage 10.213.8 || exit 1 # the ranks' and mpirun's own
address_a=10.213.8.1 address_b=10.213.8.2

# mpirun's idea of ssh: agent HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
[ "\$1" = $address_b ] || { echo "the agent knows no host \$1" >&2; exit 1; }
shift
exec ip netns exec $host_b unshare --uts sh -c 'hostname $host_b; eval "\$*"' agent "\$@"
AGENT
chmod +x "$work/agent"

# mpirun on the first host: ranks per host, then the program and its arguments. Messages go over TCP and nothing else.
mpirun_on_both() {
    local each=$1
    shift
    TMPDIR=$work on "$host_a" timeout -k 5 240 mpirun --allow-run-as-root --oversubscribe --bind-to none --map-by slot \
        --host $address_a:"$each",$address_b:"$each" -n $((2 * each)) --mca plm_rsh_agent "$work/agent" \
        --mca mpi_yield_when_idle 1 --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include data --mca oob_tcp_if_include manage "$@" </dev/null
}
