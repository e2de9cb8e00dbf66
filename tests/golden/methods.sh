#!/usr/bin/env bash
# Methods per stage: planned, saved, run on every transport, compared with one rank; bytes inside stages as planned; what
# is refused.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}" "${HEDDLE_BUILD:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
limit_s=600
models=$HEDDLE_SOURCE/examples/models
tiny=$HEDDLE_SOURCE/tests/golden/tiny.yaml
transports="threads shm"
if have_mpi; then
    transports="$transports mpi"
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks
fi

also() { # the last command said this, too
    if ! grep -qE -- "$2" "$folder/out"; then
        echo "FAILED $1: wanted '$2' in:"
        tail -30 "$folder/out"
        failed=1
    fi
}

cat >"$folder/mixed.yaml" <<'YAML'
model: mixed
dtype: f32
dims: {b: {size: 2, role: batch}, t: 15, s: 37, c: {size: 48, role: channel}}
tensors: {x: [b, t, s, c]}
repeat: 2
stages:
  - {name: A, kind: attention, over: s, heads: 4, modulate: true, rope: true}
  - {name: B, kind: attention, over: s, heads: 4, modulate: true, qk_norm: true}
  - {name: mlp, kind: mlp, ratio: 4, modulate: true}
  - {name: C, kind: linear-attention, over: s, heads: 4, causal: true, decay: slopes}
YAML
mixed=$folder/mixed.yaml

# One schedule with everything: A on whole fibres, a switch, B by ring, C by states that travel, a switch back.
says "plan" 0 " ring " plan "$mixed" --objective bytes --mesh sp=4 --method A=local,B=ring --method C=lasp -o "$folder/mixed.json"
also "plan" 'A +t@sp +local +free'
also "plan" 'A +t@sp +local +switch'
also "plan" 'B +s@sp +ring +switch'
also "plan" 'C +[a-z]@sp +lasp'
also "plan" '4 of 8 stages run by a method'
also "plan" '^forward pass: 3 switches'
if awk 'length($0) > 100 { exit 1 }' "$folder/out"; then :; else
    echo "FAILED: more than 100 columns"
    failed=1
fi
for transport in $transports; do
    says "$transport" 0 "check: bytes sent = bytes planned for 4 ranks x 9 edges" run "$mixed" \
        --schedule "$folder/mixed.json" --transport "$transport" --check
    also "$transport" 'equal within the tolerance to one rank: the largest difference of 53280 values is'
    also "$transport" '4 stages run by a method'
    also "$transport" '^A +2 t@sp +local'
    also "$transport" '^B +2 s@sp +ring +[1-9]'
    also "$transport" '^C +2 s@sp +lasp +[1-9]'
done

# The sums in the saved file are the ones that moved.
if command -v python3 >/dev/null; then
    "$HEDDLE" run "$mixed" --schedule "$folder/mixed.json" --transport threads --check --json >"$folder/run.json" || failed=1
    python3 - "$folder/mixed.json" "$folder/run.json" <<'PY' || failed=1
import json, sys
s, r = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
assert s["schema"] == "heddle-schedule-1"
inside = sum(x.get("forward_bytes_total", 0) for x in s["stages"])
assert inside > 0 and s["bytes_total"] == sum(e["bytes_total"] for e in s["edges"]) + inside
assert r["check"] and r["bytes_sent"] == r["bytes_planned"] == s["bytes_total"]
assert s["backward_bytes_total"] > inside
b = [x for x in s["stages"] if x["name"] == "B"]
shard = [15 * 2 * n * 48 * 4 for n in (10, 9, 9, 9)] # a rank sends k and v of all blocks but its successor's
assert all(x["forward_bytes_total"] == 2 * 3 * sum(shard) for x in b)
assert all(x["forward_bytes_per_rank_max"] == 2 * (sum(shard) - shard[1]) for x in b)
assert all(x["backward_bytes_total"] == 2 * x["forward_bytes_total"] for x in b) # sums are f32 as the values
c = [x for x in s["stages"] if x["name"] == "C"]
assert all(x["forward_bytes_total"] == 3 * 2 * 15 * 4 * 12 * 12 * 4 and x["forward_messages"] == 3 for x in c)
PY
else
    not_here python "no python3: sums of the saved schedule"
fi

# Every method, uneven shards, ranks without rows, two axes, bf16, several threads.
for method in ulysses ring gather-kv rsa; do
    says "$method" 0 "equal within the tolerance" run "$tiny" --ranks 3 --transport shm --layers 1 \
        --method "s.attn=$method,t.attn=local" --check
    also "$method" 'bytes sent = bytes planned'
done
for method in lasp lasp2 scan; do
    says "$method" 0 "equal within the tolerance" run "$mixed" --ranks 3 --transport threads --layers 1 \
        --method "*=local" --method "C=$method" --check
done
says "usp" 0 "equal within the tolerance" run "$tiny" --mesh a=2,b=2 --transport threads --method '*=usp' --check
says "usp, uneven" 0 "bytes sent = bytes planned" run "$tiny" --mesh a=3,b=2 --transport shm --layers 1 \
    --method s.attn=usp,t.attn=ulysses --check
says "no rows" 0 "equal within the tolerance" run "$tiny" --ranks 5 --size t=3,s=7 --transport shm --layers 1 \
    --method '*=ring' --check
says "bf16" 0 "equal within the tolerance" run "$tiny" --ranks 2 --dtype bf16 --threads 2 --passes 2 --transport shm \
    --method s.attn=ulysses --check
says "all local" 0 "bitwise equal to one rank" run "$tiny" --ranks 3 --method '*=local' --transport shm --check
says "one rank" 0 "bitwise equal to one rank" run "$tiny" --ranks 1 --method '*=ring' --transport shm --check
says "by default" 0 "bitwise equal to one rank" run "$mixed" --ranks 2 --transport threads --method '*=local' --check

# Chosen by itself where there is nothing to switch to, and where states are small.
says "full attention" 0 " ulysses " plan "$models/full-3d.yaml" --objective bytes --mesh sp=4
says "full attention runs" 0 "bytes sent = bytes planned" run "$models/full-3d.yaml" --size s=61,c=64,heads=4 --layers 2 \
    --ranks 4 --transport threads --check
says "hybrid" 0 " lasp " plan "$models/hybrid-linear.yaml" --objective bytes --mesh sp=8
says "hybrid runs" 0 "bytes sent = bytes planned" run "$models/hybrid-linear.yaml" --size t=50,s=6,c=32,heads=4 --layers 2 \
    --ranks 2 --transport threads --method t.lin=lasp --check
says "all in one" 0 " local     switch " plan "$models/hybrid-mixed.yaml" --objective bytes --mesh sp=4
says "all in one" 0 " lasp " plan "$models/hybrid-mixed.yaml" --objective bytes --mesh sp=4
says "all in one runs" 0 "4 stages run by a method" run "$models/hybrid-mixed.yaml" --size t=128,s=8,c=128,heads=4 \
    --layers 2 --ranks 2 --transport shm --check
says "backward" 0 "backward pass: the busiest ranks send" plan "$tiny" --mesh sp=4 --backward

# What is refused.
says "no stage" 2 "no stage 'q'; those with a method are s.attn, t.attn" plan "$tiny" --mesh sp=4 --method q=ring
says "no method" 2 "there are auto, local, ulysses, usp, ring, gather-kv, rsa" run "$tiny" --ranks 2 --method s.attn=lasp
says "token-wise" 2 "of kind mlp, which has no method" plan "$tiny" --mesh sp=4 --method s.mlp=ring
says "no value" 2 "--method wants STAGE=METHOD" plan "$tiny" --mesh sp=4 --method ''
says "form" 2 "methods must look like" run "$tiny" --ranks 2 --method ring
says "comma" 2 "end with a comma" plan "$tiny" --mesh sp=4 --method s.attn=ring,
says "too long" 2 "more than 4095 characters" plan "$tiny" --mesh sp=4 --method "$(printf 's.attn=ring,%.0s' {1..400})"
says "infeasible" 3 "usp wants the dim sharded over two mesh axes" plan "$tiny" --mesh sp=4 --method s.attn=usp
says "infeasible run" 3 "usp wants the dim sharded over two mesh axes" run "$tiny" --ranks 2 --method s.attn=usp
says "both" 2 "--schedule names the methods" run "$mixed" --schedule "$folder/mixed.json" --method B=ring
sed 's/"method": "ring"/"method": "rsa"/; s/"method": "lasp"/"method": "ring"/' "$folder/mixed.json" >"$folder/lie.json"
says "a lie" 2 "lie.json:" run "$mixed" --schedule "$folder/lie.json"
sed '0,/"forward_messages": 12/s//"forward_messages": 13/' "$folder/mixed.json" >"$folder/lie.json"
says "a wrong number" 2 "'forward_messages' says 13, but the layouts give 12" run "$mixed" --schedule "$folder/lie.json"
sed 's/kind: linear-attention, over: s, heads: 4/kind: linear-attention, over: s, heads: 2/' "$mixed" >"$folder/heads.yaml"
says "other heads" 2 "of another kind than the model's" run "$folder/heads.yaml" --schedule "$folder/mixed.json"
sed 's/causal: true, //' "$mixed" >"$folder/seen.yaml"
says "another mask" 2 "'C', is causal with decay, the model's is bidirectional with decay" run "$folder/seen.yaml" \
    --schedule "$folder/mixed.json"
sed 's/decay: slopes/decay: 1/' "$mixed" >"$folder/decay.yaml"
says "another decay" 2 "the model's is causal with all decays 1" run "$folder/decay.yaml" --schedule "$folder/mixed.json"
[ $failed = 0 ] && echo ok
exit $failed
