#!/usr/bin/env bash
# Ranks on two hosts, messages over TCP: random reshards, every method of attention and whole models are as right as on
# one host, bit for bit where that is promised.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/two_hosts.sh"
tiny=$HEDDLE_SOURCE/tests/golden/tiny.yaml
stdit3=$HEDDLE_SOURCE/examples/models/stdit3-xl2.yaml

right() { # ranks per host, text that must be said, arguments of heddle
    local each=$1 text=$2
    shift 2
    if ! mpirun_on_both "$each" "$HEDDLE" "$@" >"$work/out" 2>&1 || ! grep -qF -- "$text" "$work/out"; then
        fail "$each ranks on each of two hosts: heddle $* does not say '$text':"
        tail -n 12 "$work/out"
    fi
}

right 2 "4 ranks, 2 on this host" verify --random "${HEDDLE_HOSTS_RESHARDS:-60}" --seed "${HEDDLE_SEED:-1}"
right 1 "2 ranks, 1 on this host" verify --random 40 --seed 2 --memory any
right 2 "bitwise right" verify 'bf16[b=2 t=9 s=10 c=7] on [node=2 gpu=2]: t@node,s@gpu -> s@node,t@gpu'

for method in ulysses ring rsa gather-kv; do
    right 1 "as planned" verify attention 'f64[b=2 s=37 h=6 d=16] on [sp=2]' --method $method --causal
done
right 1 "as planned" verify attention 'f32[b=2 s=37 h=6 d=16] on [sp=2]' --method rsa --project 5
right 2 "as planned" verify attention 'f64[b=2 s=37 h=6 d=16] on [node=2 gpu=2]' --method usp --causal --zigzag
right 2 "attention problems right" verify attention --random 8 --seed 4
for method in lasp lasp2 scan; do
    right 1 "as planned" verify linear-attention 'f64[b=2 s=37 h=6 d=16] on [sp=2]' --method $method --decay per-head
done
right 2 "attention problems right" verify linear-attention --random 8 --seed 5

right 2 "bitwise equal to one rank" run "$tiny" --mesh '[node=2 gpu=2]' --check
right 1 "bytes sent = bytes planned" run "$tiny" --mesh sp=2 --method 's.attn=ring,t.attn=ulysses' --backward --check
right 2 "bitwise equal to one rank" run "$stdit3" --mesh '[node=2 gpu=2]' --layers 1 --size t=7,s=45 --check
[ $failed = 0 ] && echo ok
exit $failed
