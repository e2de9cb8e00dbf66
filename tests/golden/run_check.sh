#!/usr/bin/env bash
# heddle run on 1 to 4 ranks: bitwise equal to one rank, bytes as planned, nothing padded; clips and arrays in and out.
set -euo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
size=t=15,s=135 # a third of the model's: uneven all the same
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

# 15 and 135 divide by no number of ranks but 1 and 3 (and 5): all values are there, and no more.
check_on() { # transport ranks
    "$HEDDLE" run "$model" --size $size --ranks $2 --transport $1 --check --output "$work/y-$1-$2.npy" >"$work/out"
    grep -q "bitwise equal to one rank (97200 values)" "$work/out" || fail "$1, $2 ranks: $(cat "$work/out")"
    grep -q "check: bytes sent = bytes planned for $2 ranks* x 13 edges" "$work/out" || fail "bytes, $2 ranks"
    awk 'length > 100 && !/^(threads|shm|bytes)/ { exit 1 }' "$work/out" || fail "a line of the table is too long"
    cmp -s "$work/y-threads-1.npy" "$work/y-$1-$2.npy" || fail "$1, $2 ranks: other file"
}
for ranks in threads:1 threads:2 shm:4; do check_on "${ranks%:*}" "${ranks#*:}"; done
# On a mesh of two axes in bf16 with threads, and on more ranks than frames; others: golden/judges.
"$HEDDLE" run "$model" --size $size --mesh node=2,gpu=2 --transport shm --dtype bf16 --check --threads 2 >"$work/out" || fail "two axes"
"$HEDDLE" run "$model" --ranks 7 --size t=3,s=2 --layers 1 --transport threads --check >"$work/out" || fail "t=3 s=2"

# Behind a method linear attention's norm makes last bits larger.
cat >"$work/linear.yaml" <<'YAML'
model: linear
dtype: f32
dims: {b: {size: 1, role: batch}, t: 31, s: 37, c: {size: 64, role: channel}}
tensors: {x: [b, t, s, c]}
repeat: 3
stages:
  - {name: s.attn, kind: attention, over: s, heads: 4, modulate: true, qk_norm: true}
  - {name: t.attn, kind: attention, over: t, heads: 4, rope: true}
  - {name: lin, kind: linear-attention, over: t, heads: 4, causal: true}
  - {name: mlp, kind: mlp, ratio: 2, modulate: true}
YAML
"$HEDDLE" run "$work/linear.yaml" --ranks 2 --method s.attn=ring --method t.attn=ring --transport threads --backward --check \
    >"$work/out" || fail "linear attention behind a ring: $(cat "$work/out")"

# On a terminal it says where it is, the check included; elsewhere nothing of a short run.
run_small="$HEDDLE run $model --ranks 2 --size t=3,s=5 --layers 2 --transport threads --check --json"
script -qefc "$run_small" /dev/null </dev/null >"$work/out" || fail "on a terminal: $(cat "$work/out")"
grep -q "[^a-z]layer 2/2" "$work/out" && grep -q "check, on one rank: layer 2/2" "$work/out" || fail "no progress on a terminal"
$run_small >"$work/out" 2>"$work/err"
[ ! -s "$work/err" ] || fail "words on standard error: $(cat "$work/err")"
grep -q "of every row and of the total its own" <("$HEDDLE" run "$model" --ranks 2 --size t=3,s=5 --transport threads) || fail "times"

# JSON can be read, and says the same.
"$HEDDLE" run "$model" --ranks 3 --transport shm --check --json >"$work/json"
grep -q '"check": true' "$work/json" || fail "json"
if command -v python3 >/dev/null; then
    python3 - "$work/json" <<'PY' || fail "json: python"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["ranks"] == 3 and r["bytes_sent"] == r["bytes_planned"] > 0 and len(r["peak_bytes"]) == 3
assert sum(s["runs"] for s in r["stages"]) == 13 and r["forward_ms"] > 0
PY
fi

# A clip in: the clip's sizes win, every rank makes its own part; a clip and an array out.
clip=$work/clip.y4m
if [ -x "$HEDDLE_BUILD/example_make_clip" ]; then
    "$HEDDLE_BUILD/example_make_clip" "$clip" 7 27 15 >/dev/null
    "$HEDDLE" run "$model" --ranks 3 --transport shm --input "$clip" --output "$work/y.y4m" --check >"$work/out" \
        2>"$work/err" || fail clip
    grep -q "t=7 (model: 15), 7 x 13 tokens" "$work/err" || fail "clip: $(cat "$work/err")"
    grep -q "0 frames, 1 rows and 1 columns are not used" "$work/err" || fail "clip: $(cat "$work/err")"
    grep -q "t=7 s=91 c=48" "$work/out" || fail "clip: $(cat "$work/out")"
    [ "$(head -n 1 "$work/y.y4m")" = "YUV4MPEG2 W26 H14 F25:1 Ip A1:1 C444" ] || fail "clip out: header"
    [ "$(stat -c %s "$work/y.y4m")" = $((37 + 7 * (6 + 3 * 26 * 14))) ] || fail "clip out: size"
    "$HEDDLE" run "$model" --ranks 2 --transport threads --input - --output "$work/z.y4m" <"$clip" >/dev/null 2>&1
    cmp -s "$work/y.y4m" "$work/z.y4m" || fail "the clip from standard input on 2 ranks gives another result"
fi

# An array in: the output of one run is the input of the next.
"$HEDDLE" run "$model" --ranks 3 --transport shm --input "$work/y-shm-4.npy" --check --size t=15 >"$work/out" || fail npy

# A schedule from a file.
"$HEDDLE" plan "$model" --mesh sp=3 --output "$work/s.json" >/dev/null
"$HEDDLE" run "$model" --schedule "$work/s.json" --transport shm --check >"$work/out" || fail schedule
grep -q "on \[sp=3\]" "$work/out" || fail "schedule: $(cat "$work/out")"

# Weights from a file: other weights, other values; the same weights, the same values.
if command -v python3 >/dev/null; then
    python3 "$HEDDLE_SOURCE/tests/golden/make_weights.py" "$work/w.safetensors" 48 2
    "$HEDDLE" run "$model" --size $size --ranks 3 --transport shm --weights "$work/w.safetensors" --check \
        --output "$work/w.npy" >"$work/out" || fail weights
    ! cmp -s "$work/w.npy" "$work/y-shm-4.npy" || fail "weights from a file change nothing"
fi

# mpirun is started, with one rank's exit code as its own, and joined.
if have_mpi; then
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks, and its modules are unloaded
    "$HEDDLE" run "$model" --size $size --ranks 4 --transport mpi --check --hosts 2 --json >"$work/out" || fail "mpi on two hosts"
    grep -q '"path": "mixed"' "$work/out" || fail "mpi on two hosts: $(cat "$work/out")"
    mpirun --allow-run-as-root --oversubscribe -n 2 "$HEDDLE" run "$model" --check </dev/null >"$work/out" || fail mpirun
    grep -q "on \[sp=2\]" "$work/out" || fail "mpirun: $(cat "$work/out")"
    if [ -e "$clip" ]; then
        "$HEDDLE" run "$model" --ranks 2 --transport mpi --input - --output "$work/m.y4m" <"$clip" >/dev/null 2>&1
        cmp -s "$work/y.y4m" "$work/m.y4m" || fail "the clip from standard input under mpirun gives another result"
    fi
    set +e
    "$HEDDLE" run "$model" --ranks 2 --transport mpi --input /dev/null 2>"$work/err"
    [ $? = 2 ] || fail "mpi: bad input does not exit 2"
    set -e
fi
echo "ok"
