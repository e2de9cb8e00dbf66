#!/usr/bin/env bash
# Names in files and arguments may hold what a terminal obeys. No command sends any of it there: control bytes and what
# is no UTF-8 come out as \xNN, and JSON is JSON.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
. "$HEDDLE_SOURCE/tests/support/work.sh"
red=$'\e[31mred\x9b31m\x07'
shown='\x1b[31mred\x9b31m\x07'

# clean WHAT TEXT ARGUMENTS...: the command refuses, says TEXT, and prints nothing that is not text
clean() {
    local what=$1 text=$2
    shift 2
    within 20 "$HEDDLE" "$@" >"$work/out" 2>&1 </dev/null
    local code=$?
    if [ $code != 2 ] || ! grep -qF -- "$text" "$work/out"; then
        echo "FAILED $what: exit $code, wanted 2 and '$text' in: $(cat -v "$work/out")"
        failed=1
    fi
    if LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f-\xff]' "$work/out"; then
        echo "FAILED $what: raw bytes in: $(cat -v "$work/out")"
        failed=1
    fi
}

# safetensors: the header's length, the header, data
weights() { # FILE HEADER
    local n=${#2}
    { printf "\\x$(printf %02x $((n % 256)))\\x$(printf %02x $((n / 256)))\\0\\0\\0\\0\\0\\0"; printf '%s' "$2"; head -c 8 /dev/zero; } >"$1"
}
export LC_ALL=C
weights "$work/a.st" '{"bad\u001b[31m\u009b": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}'
clean "a tensor's name" "tensor 'bad\\x1b[31m\\xc2\\x9b' has 3 elements" run "$model" --weights "$work/a.st"
weights "$work/b.st" '{"bad": {"dtype": "F32", "sh'"$red"'": [2]}}'
clean "a field" "control character" run "$model" --weights "$work/b.st"
weights "$work/c.st" '{"blocks.0.s.attn.qkv.weight": {"dtype": "\u001bc", "shape": [144, 48], "data_offsets": [0, 8]}}'
clean "a dtype" "dtype \\x1bc" run "$model" --weights "$work/c.st"

printf 'YUV4MPEG2 W4 H4 C%s\nFRAME\n' "$red" >"$work/a.y4m"
clean "a colour space" "'C$shown' is not read" run "$model" --input "$work/a.y4m"
printf 'YUV4MPEG2 W%s H4\nFRAME\n' "$red" >"$work/b.y4m"
clean "a width" "'$shown'" run "$model" --input "$work/b.y4m"

npy() { # FILE HEADER
    { printf '\x93NUMPY\x01\x00'; printf "\\x$(printf %02x ${#2})\\0"; printf '%s' "$2"; } >"$1"
}
npy "$work/a.npy" "{'descr': '$red', 'fortran_order': False, 'shape': (1,), }"
clean "a dtype of NumPy" "no letter, digit or sign" run "$model" --input "$work/a.npy"

sed 's/name: s.attn/name: "s\\e[31m"/' "$model" >"$work/a.yaml"
cmp -s "$model" "$work/a.yaml" && echo "FAILED: tiny.yaml has no stage s.attn" && failed=1
clean "a stage" "must be 1 to 63 letters" plan "$work/a.yaml" --mesh sp=2
"$HEDDLE" plan "$model" --mesh sp=2 --objective bytes -o "$work/s.json" >/dev/null || failed=1
sed 's/"s.attn"/"s\\u001b[31m"/' "$work/s.json" >"$work/t.json"
clean "a stage of a schedule" "must be 1 to 63 letters" run "$model" --ranks 2 --schedule "$work/t.json"
sed 's/"model": "[^"]*"/"model": "m\\u001b[31m"/' "$work/s.json" >"$work/t.json"
clean "the model of a schedule" "must be 1 to 63 letters" run "$model" --ranks 2 --schedule "$work/t.json"
sed 's/"layout": "t@sp"/"layout": "t@\\u001b[31m"/' "$work/s.json" >"$work/t.json"
clean "a layout of a schedule" 'found byte 0x1b' run "$model" --ranks 2 --schedule "$work/t.json"

# Arguments, file names among them.
clean "a command" "unknown command '$shown'" "$red"
for command in plan run verify volume bench 'verify attention' 'bench attention' 'verify linear-attention' 'bench linear-attention' 'bench products'; do
    clean "an option of $command" "$shown" $command "--$red"
done
clean "a file's name" "$shown" plan "$red" --mesh sp=2
clean "a mesh" "$shown" run "$model" --mesh "sp=2 $red"
clean "a size" "$shown" plan "$model" --mesh sp=2 --size "$red=4"
clean "a method" "$shown" plan "$model" --mesh sp=2 --method "s.attn=$red"
clean "a transport" "$shown" run "$model" --transport "$red"
clean "an output" "$shown" run "$model" --output "$work/no/$red.npy"
clean "a line" "column" volume "$red"
clean "a line of attention" "heddle: " verify attention "$red"

# JSON of a run on a transport whose name is anything it likes.
if ! command -v python3 >/dev/null; then
    not_here python "JSON is not read back: no python3"
else
    within 60 "$HEDDLE" run "$model" --ranks 2 --layers 1 --size t=3,s=5 --json --check >"$work/out" || failed=1
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$work/out" || failed=1
fi
[ $failed = 0 ] && echo ok
exit $failed
