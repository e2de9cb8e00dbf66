#!/usr/bin/env bash
# Files that cannot be written whole leave nothing behind, what was there before stays, and a standard output that takes
# nothing is said once, with exit code 1, by every command.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml
. "$HEDDLE_SOURCE/tests/support/work.sh"

# short WHAT FILE ARGUMENTS...: with files of at most 1 kB the command exits with 1 and a sentence that names FILE,
# which is as it was
short() {
    local what=$1 file=$2
    shift 2
    for before in nothing something; do
        rm -rf "$work/disk" && mkdir "$work/disk"
        [ $before = nothing ] || echo "as it was" >"$work/disk/$file"
        (ulimit -f 1 && within 60 "$HEDDLE" "$@") >"$work/out" 2>"$work/err" </dev/null
        local code=$?
        [ $code = 1 ] || fail "$what: exit $code, wanted 1: $(cat "$work/err")"
        grep -q "$file: cannot be written: File too large" "$work/err" || fail "$what: $(cat "$work/err")"
        [ "$(ls -A "$work/disk" | wc -l)" = "$([ $before = nothing ] && echo 0 || echo 1)" ] || fail "$what leaves: $(ls -A "$work/disk")"
        [ $before = nothing ] || [ "$(cat "$work/disk/$file")" = "as it was" ] || fail "$what: the old file is gone"
    done
}
"$HEDDLE" run "$model" --size t=3,s=5 --layers 1 --output "$work/y.npy" >/dev/null || fail "a run with room"
{ printf 'YUV4MPEG2 W64 H64 F25:1 Cmono\n'; for i in 1 2 3; do printf 'FRAME\n'; head -c 4096 /dev/zero; done; } >"$work/x.y4m"
short "npy" y.npy run "$model" --ranks 2 --transport threads --size t=3,s=5 --layers 1 --output "$work/disk/y.npy"
short "y4m" y.y4m run "$model" --layers 1 --input "$work/x.y4m" --output "$work/disk/y.y4m"
short "saved parts" from-0.npy verify 'f64[t=32 s=32] on [x=2]: t@x -> s@x' --transport threads --save "$work/disk"
short "schedule" s.json plan "$model" --mesh sp=2 -o "$work/disk/s.json"

# There is a file beside it meanwhile, and the rights of the one it replaces stay; a link stays a link.
mkdir "$work/there"
echo old >"$work/there/y.npy"
chmod 600 "$work/there/y.npy"
ln -s there/y.npy "$work/link.npy"
"$HEDDLE" run "$model" --size t=3,s=5 --layers 1 --output "$work/link.npy" >/dev/null || fail "through a link"
[ -L "$work/link.npy" ] || fail "the link became a file"
cmp -s "$work/y.npy" "$work/there/y.npy" || fail "the file behind the link is another one"
[ "$(stat -c %a "$work/there/y.npy")" = 600 ] || fail "the file's rights changed to $(stat -c %a "$work/there/y.npy")"
ln -s there/s.json "$work/link.json"
echo old >"$work/there/s.json"
"$HEDDLE" plan "$model" --mesh sp=2 -o "$work/link.json" >/dev/null || fail "a schedule through a link"
[ -L "$work/link.json" ] && grep -q schema "$work/there/s.json" || fail "the link to a schedule became a file"
rm "$work/there/s.json"
[ "$(ls -A "$work/there")" = y.npy ] || fail "something is left: $(ls -A "$work/there")"

# once ARGUMENTS...: with a full standard output
once() {
    within 60 "$HEDDLE" "$@" >/dev/full 2>"$work/err" </dev/null
    local code=$?
    if [ $code != 1 ] || [ "$(wc -l <"$work/err")" != 1 ] || ! grep -q '^heddle: standard output could not be written' "$work/err"; then
        fail "heddle $*: exit $code, wanted 1 and one sentence: $(cat "$work/err")"
    fi
}
line='bf16[b=2 t=5 s=7 c=8] on [sp=2]: t@sp -> s@sp'
once help
once --version
for command in plan run verify bench volume 'verify attention' 'bench attention' 'verify linear-attention' 'bench linear-attention' 'bench products'; do
    once $command --help
done
once plan "$model" --mesh sp=2
once plan "$model" --mesh sp=2 --json
once plan "$model" --mesh sp=2 -o -
once volume "$line"
once volume "$line" --json
once bench products --rows 3 --in 8 --out 8 --seconds 0
once bench products --rows 3 --in 8 --out 8 --seconds 0 --json
for transport in threads shm; do
    once verify "$line" --transport $transport
    once verify --random 3 --ranks 2 --transport $transport
    once verify attention 'f64[b=1 s=5 h=2 d=4] on [sp=2]' --method ring --transport $transport
    once run "$model" --ranks 2 --size t=3,s=5 --layers 1 --transport $transport
    once run "$model" --ranks 2 --size t=3,s=5 --layers 1 --transport $transport --json
    once bench "$line" --ranks 2 --transport $transport --iterations 1 --seconds 0
done
[ $failed = 0 ] && echo ok
exit $failed
