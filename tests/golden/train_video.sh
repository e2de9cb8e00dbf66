#!/usr/bin/env bash
# The training example: the loss falls, every number of ranks sees the same losses, bytes as planned, files as promised,
# bad options refused.
set -euo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
train=$HEDDLE_BUILD/example_train_video
[ -x "$train" ] || { echo "FAILED: the examples are not built"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
small=(--side 16 --frames 6 --channels 32 --batch 2 --layers 1)

fail() {
    echo "FAILED: $1" >&2
    [ ! -f "$work/out" ] || cat "$work/out" >&2
    exit 1
}

# Loss: the first is at least twice the mean of the last tenth; the CSV has every step.
"$train" "${small[@]}" --steps 300 --learning-rate 0.008 --picture "$work/a.png" --denoise-steps 8 --loss-csv "$work/a.csv" >"$work/out" ||
    fail "a short training"
[ "$(wc -l <"$work/a.csv")" = 301 ] || fail "lines of the CSV"
awk -F, 'NR == 2 { first = $2 } NR > 271 { last += $2 / 30 } END { exit !(last > 0 && last < 0.5 * first) }' \
    "$work/a.csv" || fail "the loss does not fall"
# After training the picture is closer to the clip than before.
awk '/^picture:/ { gsub(/[,]/, ""); before = $(NF - 2); after = $NF; found = 1 } END { exit !(found && after < 0.7 * before) }' \
    "$work/out" || fail "the picture"

# Bytes: planned = measured (the program itself fails otherwise), and something moved: 4 passes of one layer's 2 switches.
awk '/^bytes per step/ { for (i = 1; i < NF; i++) if ($i == "planned") { n++; if ($(i + 1) + 0 == 0 || $(i + 1) + 0 != $(i + 3) + 0) exit 1 } }
     END { exit n < 2 }' "$work/out" || fail "bytes"
grep -q '^      *b@dp,t@sp: s.attn s.mlp | b@dp,s@sp: t.attn t.mlp | x 1;' "$work/out" || fail "the plan's line"

# PNG: signature, chunks with their sums, and a picture of the announced size.
if command -v python3 >/dev/null; then
    python3 - "$work/a.png" <<'PY' || fail "PNG"
import struct, sys, zlib
data = open(sys.argv[1], "rb").read()
assert data[:8] == b"\x89PNG\r\n\x1a\n"
at, names, stream = 8, [], b""
while at < len(data):
    size, name = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + size]
    assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(name + body)
    names.append(name)
    if name == b"IHDR":
        width, height = struct.unpack(">II", body[:8])
    if name == b"IDAT":
        stream += body
    at += 12 + size
assert names[0] == b"IHDR" and names[-1] == b"IEND"
pixels = zlib.decompress(stream)
assert len(pixels) == height * (1 + 3 * width) and width == 3 + 6 * 51 and height == 3 + 4 * 51
PY
else
    [ "$(head -c 4 "$work/a.png" | tail -c 3)" = PNG ] || fail "PNG"
fi

# 1, 2, 4 ranks, two axes, sharded optimiser, recomputation: see the program's own table.
for transport in threads shm; do
    "$train" "${small[@]}" --compare --steps 12 --transport $transport >"$work/out" || fail "compare, $transport"
    [ "$(grep -c 'first loss bitwise equal' "$work/out")" = 7 ] || fail "compare, $transport: first losses"
    [ "$(grep -c 'losses and weights bitwise those of' "$work/out")" = 2 ] || fail "compare, $transport: bitwise"
    grep -q '^compare: .* all agree' "$work/out" || fail "compare, $transport"
done

# Other ways to run: more ranks than frames, memory that shrinks, linear attention and a method, a clip from a file.
number() { sed -n "s/.* \([0-9.]*\) MB of $1.*/\1/p" "$work/out"; }
"$train" "${small[@]}" --steps 2 --mesh '[dp=2 sp=2]' >"$work/out" || fail "[dp=2 sp=2]"
kept=$(number activations) state=$(number optimiser)
"$train" "${small[@]}" --steps 2 --mesh '[dp=2 sp=2]' --recompute --shard-optimizer >"$work/out" || fail "recompute"
awk -v a="$kept" -v b="$(number activations)" -v c="$state" -v d="$(number optimiser)" \
    'BEGIN { exit !(b < 0.5 * a && d <= 0.55 * c && d > 0) }' || fail "memory: $kept and $state before"
"$train" "${small[@]}" --steps 2 --ranks 7 --transport threads >"$work/out" || fail "7 ranks, 6 frames"
"$train" "${small[@]}" --steps 2 --linear >"$work/out" || fail "linear"
"$train" "${small[@]}" --steps 2 --method t.attn=ring >"$work/out" || fail "ring"
grep -q 't.attn (ring)' "$work/out" || fail "ring: the plan's line"
grep -q 'attention planned [1-9]' "$work/out" || fail "ring: bytes"
if [ -x "$HEDDLE_BUILD/example_make_clip" ]; then
    "$HEDDLE_BUILD/example_make_clip" "$work/a.y4m" 9 40 30 >/dev/null
    "$train" "${small[@]}" --steps 2 --clip "$work/a.y4m" >"$work/out" || fail "a clip"
    head -c 3000 "$work/a.y4m" >"$work/b.y4m"
fi
if have_mpi; then
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks, and its modules are unloaded
    mpirun --allow-run-as-root --oversubscribe -n 2 "$train" "${small[@]}" --steps 2 </dev/null >"$work/out" ||
        fail "mpirun"
    [ "$(grep -c '^loss:' "$work/out")" = 1 ] || fail "mpirun: one rank speaks"
    # A launcher that says a rank, but not of how many: MPI knows. One process has ranks of its own, unless there are others.
    PMIX_RANK=0 "$train" "${small[@]}" --ranks 2 --steps 2 </dev/null >"$work/out" || fail "one process of some launcher"
    [ "$(grep -c '^loss:' "$work/out")" = 1 ] && grep -q 'on \[dp=1 sp=2\]' "$work/out" || fail "one process has two ranks"
    PMIX_RANK=1 "$train" "${small[@]}" --ranks 2 --steps 2 </dev/null >"$work/out" 2>&1 && fail "the second of two alone"
    grep -q '1 rank was started, but 2 are wanted' "$work/out" || fail "the second of two alone is refused"
fi

# Bad options and files: exit code 2, one sentence, nothing else.
refused() { # code, part of the sentence, options
    local code=$1 sentence=$2 got=0
    shift 2
    "$train" "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
    [ "$got" = "$code" ] || fail "$*: exit code $got"
    grep -q -- "$sentence" "$work/err" || fail "$*: $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" = 1 ] || fail "$*: more than a sentence"
}
refused 2 'whole number from 1 to 256, not many' --ranks many
refused 2 'wants a value' --steps
refused 2 'is no option' --rank 2
refused 2 'dp (data) and sp (sequence), not tp' --mesh '[tp=2]'
refused 2 'column 6' --mesh '[sp=2'
refused 2 '3, but the mesh .* has 2' --ranks 3 --mesh '[sp=2]'
refused 2 'cannot be shared evenly by 2' --batch 3 --mesh '[dp=2]'
refused 2 'dp=2 or more' --shard-optimizer
refused 2 'multiple of --patch' --side 25
refused 2 'multiple of 4 times --heads' --channels 30
refused 2 'threads, shm or auto' --transport tcp
refused 2 'batch 3 cannot be shared evenly by 2 data ranks, which --compare has' --compare --batch 3
for option in '--mesh [sp=2]' '--ranks 2' --shard-optimizer "--picture $work/c.png" "--loss-csv $work/c.csv"; do
    # shellcheck disable=SC2086
    refused 2 "${option%% *} is for one training, not --compare" --compare $option
done
refused 2 '^example_train_video: --noise is for the picture: it wants --picture$' --noise 0.5
refused 2 '^example_train_video: --denoise-steps is for the picture' --denoise-steps 25
refused 2 'is not a file with anything in it' --clip "$work"
refused 2 'cannot be opened' --clip "$work/none.y4m"
refused 2 'not a YUV4MPEG2 clip' --clip "$train"
refused 2 'cannot be written' --picture "$work/none/a.png"
refused 2 'Is a directory' --picture "$work"
refused 1 "has no method 'best'" --method t.attn=best --steps 1
[ ! -f "$work/b.y4m" ] || refused 2 'frame 1 is cut off' --clip "$work/b.y4m"
[ ! -f "$work/a.y4m" ] || refused 2 'has 9 frames' --clip "$work/a.y4m" --frames 10

# What is printed and does not arrive is a failure, said once.
for options in --help '--steps 1' '--steps 1 --transport threads' '--compare --steps 1'; do
    got=0
    # shellcheck disable=SC2086
    "$train" "${small[@]}" $options >/dev/full 2>"$work/err" || got=$?
    [ "$got" = 1 ] && [ "$(grep -c 'standard output could not be written' "$work/err")" = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] ||
        fail "$options with a full standard output: exit code $got: $(cat "$work/err")"
done
echo ok
