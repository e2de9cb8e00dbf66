#!/usr/bin/env bash
# Bad input of heddle run: exit code 2 (3 where no plan exists) and one sentence that names the file and the numbers.
set -uo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
. "$HEDDLE_SOURCE/tests/support/work.sh"

# refuses CODE 'WORDS that the sentence has' ARGUMENTS...
refuses() {
    local wanted=$1 words=$2
    shift 2
    within 20 "$HEDDLE" run "$@" >"$work/out" 2>"$work/err" </dev/null
    local code=$?
    if [ $code != "$wanted" ] || [ "$(wc -l <"$work/err")" != 1 ] || ! grep -qF -- "$words" "$work/err" || [ -s "$work/out" ]; then
        echo "FAILED: heddle run $*" >&2
        echo "  exit code $code, wanted $wanted and '$words', got: $(cat "$work/err")" >&2
        failed=1
    fi
}

# Options.
refuses 2 'one model, found 0'
refuses 2 'one model, found 2' "$model" "$model"
refuses 2 "'--rank" "$model" --rankz 4
refuses 2 'this option wants a value' "$model" --ranks
refuses 2 "not '0'" "$model" --ranks 0
refuses 2 "not 'four'" "$model" --ranks four
refuses 2 "not '2x'" "$model" --ranks 2x
refuses 2 "not ' 2'" "$model" --ranks ' 2'
refuses 2 "not '+2'" "$model" --ranks +2
refuses 2 "unknown transport 'smoke'" "$model" --transport smoke
refuses 2 "'f32' or 'bf16'" "$model" --dtype f16
refuses 2 '.npy or .y4m' "$model" --output y.png
refuses 2 'when --input is one' "$model" --output y.y4m
refuses 2 "3 ranks, but 2" "$model" --ranks 2 --mesh sp=3
refuses 2 'gpu' "$model" --mesh 'gpu'
refuses 2 'mesh' "$model" --mesh "$(printf 'x%.0s' $(seq 400))"
refuses 2 'q' "$model" --ranks 2 --size q=4
refuses 2 't' "$model" --ranks 2 --size t=0
refuses 2 't' "$model" --ranks 2 --size t=99999999999999999999
refuses 2 '--layers' "$model" --ranks 2 --layers -1
refuses 2 'self runs 1' "$model" --ranks 2 --transport self

# Model and schedule files.
refuses 2 'no-such.yaml' "$work/no-such.yaml" --ranks 2
refuses 2 "$work" "$work" --ranks 2
printf 'model: x\nnonsense: 1\n' >"$work/bad.yaml"
refuses 2 'bad.yaml:2:1' "$work/bad.yaml" --ranks 2
head -c 300 "$model" >"$work/cut.yaml"
refuses 2 'cut.yaml' "$work/cut.yaml" --ranks 2
refuses 2 'no-such.json' "$model" --schedule "$work/no-such.json"
"$HEDDLE" plan "$model" --mesh sp=3 --output "$work/s.json" >/dev/null
refuses 2 '3 ranks, but 2' "$model" --schedule "$work/s.json" --ranks 2
refuses 2 't=14' "$model" --schedule "$work/s.json" --size t=14
refuses 2 's.json has 12 stages, the model runs 6 stages 3 times' "$model" --schedule "$work/s.json" --layers 3
sed 's/"bytes_total": *[0-9]*/"bytes_total": 7/' "$work/s.json" >"$work/lies.json"
refuses 2 'lies.json' "$model" --schedule "$work/lies.json"
"$HEDDLE" plan "$model" --mesh sp=3 --prologue sum@sp --output "$work/sums.json" >/dev/null
refuses 2 'sums.json begins with partial sums, which heddle run cannot make' "$model" --schedule "$work/sums.json"
head -c 500 "$work/s.json" >"$work/cut.json"
refuses 2 'cut.json' "$model" --schedule "$work/cut.json"

# Clips.
refuses 2 'no-such.y4m' "$model" --input "$work/no-such.y4m"
mkdir "$work/folder.y4m"
refuses 2 "$work/folder.y4m is a folder, not a file" "$model" --input "$work/folder.y4m"
refuses 2 'standard input' "$model" --input -
printf 'GIF89a' >"$work/a.y4m"
refuses 2 'a.y4m: not a YUV4MPEG2 clip' "$model" --input "$work/a.y4m"
printf 'YUV4MPEG2 W64 H64 F25:1\nFRAME\n1234' >"$work/b.y4m"
refuses 2 '4 of 6144 bytes' "$model" --input "$work/b.y4m"
printf 'YUV4MPEG2 W1 H1 Cmono\nFRAME\n1' >"$work/c.y4m"
refuses 2 'smaller than one patch' "$model" --input "$work/c.y4m"
printf 'YUV4MPEG2 W4 H2 C420p10\nFRAME\n' >"$work/d.y4m"
refuses 2 'C420p10' "$model" --input "$work/d.y4m"
printf 'YUV4MPEG2 W4 H2 Cmono\nFRAME\n12345678' >"$work/e.y4m"
refuses 2 's=3, but' "$model" --input "$work/e.y4m" --size s=3
refuses 2 't=2, but' "$model" --input "$work/e.y4m" --size t=2
printf 'YUV4MPEG2 W4 H2 Cmono\n' >"$work/f.y4m"
refuses 2 'the clip of 4 x 2 has a header but no frame' "$model" --input "$work/f.y4m"
sed 's/\<t\([:,]\)/f\1/g; s/over: t/over: f/' "$model" >"$work/named.yaml"
refuses 2 "a clip needs a model with dims t and s, or t, h and w; 'stdit3-tiny' has others" "$work/named.yaml" \
    --input "$work/e.y4m"

sed -e '/role: batch/d' -e 's/\[b, */[/' "$model" >"$work/no-batch.yaml"
refuses 2 "heddle run wants a batch dim in front of the activation's 3 dims" "$work/no-batch.yaml" --ranks 2

# Arrays.
npy() { # FILE HEADER BYTES-OF-DATA
    local length=${#2}
    { printf '\x93NUMPY\x01\x00'; printf "\\x$(printf %02x $((length % 256)))\\x$(printf %02x $((length / 256)))"; printf '%s' "$2"; head -c "$3" /dev/zero; } >"$1"
}
npy "$work/a.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 47), }" $((4 * 2 * 3 * 47))
refuses 2 "a.npy has 47 channels, model 'stdit3-tiny' has 48" "$model" --input "$work/a.npy"
npy "$work/b.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 48), }" $((4 * 2 * 3 * 48))
refuses 2 "b.npy has 3 dims, the activation of 'stdit3-tiny' has 4" "$model" --input "$work/b.npy"
npy "$work/c.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 48), }" 100
refuses 2 'c.npy' "$model" --input "$work/c.npy"
npy "$work/d.npy" "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3, 48), }" $((4 * 2 * 3 * 48))
refuses 2 "elements are '<i4'" "$model" --input "$work/d.npy"
npy "$work/e.npy" "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2, 3, 48), }" $((4 * 2 * 3 * 48))
refuses 2 'e.npy: stored in Fortran order' "$model" --input "$work/e.npy"
npy "$work/f.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 48), }" $((4 * 2 * 3 * 48))
refuses 2 't=5, but' "$model" --input "$work/f.npy" --size t=5
npy "$work/g.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 0, 3, 48), }" 0
refuses 2 't' "$model" --input "$work/g.npy"
: >"$work/h.npy"
refuses 2 'h.npy' "$model" --input "$work/h.npy"
printf '\x93NUMPY\x04\x00\x76\x00' >"$work/i.npy"
refuses 2 '.npy format version 4.0, known are 1.0, 2.0 and 3.0' "$model" --input "$work/i.npy"

# Weights.
refuses 2 'no-such' "$model" --weights "$work/no-such"
printf '\377\377\377\377\377\377\377\177{}' >"$work/a.st"
refuses 2 'the header is said to have 9223372036854775807 bytes, but the file has 2' "$model" --weights "$work/a.st"
printf '\002\000\000\000\000\000\000\000{}' >"$work/b.st"
refuses 2 "'blocks.0.s.attn.qkv.weight' [144, 48] is missing" "$model" --weights "$work/b.st"
if command -v python3 >/dev/null; then
    for change in shape missing dtype; do
        python3 "$HEDDLE_SOURCE/tests/golden/make_weights.py" "$work/w.st" 48 2 $change
        case $change in
        shape) refuses 2 "is [192, 48], the model needs [48, 192]" "$model" --weights "$work/w.st" ;;
        missing) refuses 2 "blocks.1.t.mlp.fc2.weight" "$model" --weights "$work/w.st" ;;
        dtype) refuses 2 "has dtype I64" "$model" --weights "$work/w.st" ;;
        esac
    done
    head -c 100000 "$work/w.st" >"$work/cut.st"
    refuses 2 'cut.st' "$model" --weights "$work/cut.st"
    refuses 2 'blocks.2.s.attn' "$model" --weights "$work/w.st" --layers 3
else
    not_here python "no python3: weights of other shapes"
fi

# A file that does not end.
refuses 2 '/dev/zero' "$model" --weights /dev/zero
yes | within 20 "$HEDDLE" run "$model" --input - >"$work/out" 2>"$work/err"
[ "${PIPESTATUS[1]}" = 2 ] && grep -q 'not a YUV4MPEG2 clip' "$work/err" || { echo "FAILED: endless input" >&2; failed=1; }

# Messages where none can be sent.
refuses 2 '--messages needs --transport tcp or mpi' "$model" --ranks 2 --transport shm --messages
refuses 2 '--hosts needs --transport tcp or mpi' "$model" --ranks 2 --transport threads --hosts 2

# A file that cannot be written: said before anything runs, or when it is full.
refuses 2 'no/such/y.npy: cannot be written' "$model" --size t=3,s=5 --layers 1 --output "$work/no/such/y.npy"
ln -s /dev/full "$work/full.npy"
within 20 "$HEDDLE" run "$model" --size t=3,s=5 --layers 1 --output "$work/full.npy" >/dev/null 2>"$work/err"
[ $? = 1 ] && grep -q 'full.npy' "$work/err" || { echo "FAILED: output on a full disk" >&2; failed=1; }
for transport in threads shm; do
    within 20 "$HEDDLE" run "$model" --size t=3,s=5 --layers 1 --ranks 2 --transport $transport >/dev/full 2>"$work/err"
    [ $? = 1 ] && grep -q 'standard output' "$work/err" || { echo "FAILED: report on a full disk" >&2; failed=1; }
done
[ $failed = 0 ] && echo ok
exit $failed
