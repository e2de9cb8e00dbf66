#!/usr/bin/env bash
# heddle help, the manual page and what shells complete: all of the table of options, of every command.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

code() { # wanted, then words
    local wanted=$1 got=0
    shift
    "$HEDDLE" "$@" >"$work/out" 2>"$work/err" || got=$?
    [ "$got" = "$wanted" ] || fail "heddle $*: exit code $got, wanted $wanted"
}

code 0 help man
cp "$work/out" "$work/heddle.1"
code 0 help bash
cp "$work/out" "$work/heddle.bash"
code 0 help zsh
cp "$work/out" "$work/heddle.zsh"
code 0 help --help
cp "$work/out" "$work/usage"
code 0 --help
cmp -s "$work/out" "$work/usage" || fail "heddle help --help says another thing than heddle --help"
count=0
for command in plan explain compare sweep memory simulate diff run bench "bench attention" "bench linear-attention" "bench products" verify "verify attention" "verify linear-attention" volume presets import topo; do
    code 0 $command --help
    mv "$work/out" "$work/usage"
    for way in help --help -h; do
        code 0 $way $command
        cmp -s "$work/out" "$work/usage" || fail "heddle $way $command says another thing than heddle $command --help"
    done
    sed -n "/^\.SH \"heddle $command\"/,/^\.SH/p" "$work/heddle.1" >"$work/section"
    for option in $(sed -nE 's/^  --([a-z-]+).*/\1/p' "$work/usage"); do
        count=$((count + 1))
        grep -qE "^\.B .-.-${option//-/.-}( |$)" "$work/section" || fail "the manual page of $command lacks --$option"
        for shell in bash zsh; do
            grep "^\"$command\":" "$work/heddle.$shell" | grep -q -- "--$option " || fail "$shell: $command lacks --$option"
        done
    done
done
[ "$count" -gt 100 ] || fail "only $count options of all commands"
code 0 help
cp "$work/out" "$work/usage"
code 0 --help
cmp -s "$work/out" "$work/usage" || fail "heddle --help says another thing than heddle help"
for command in "" plan explain compare sweep volume memory simulate "simulate attention" "simulate linear-attention" draw diff run \
    bench "bench attention" "bench linear-attention" "bench products" verify "verify attention" "verify linear-attention" calibrate topo presets import; do
    code 0 help $command
    ! grep -E '^.{101}' "$work/out" || fail "heddle help $command: more than 100 columns"
done
for words in nonsense "plan nonsense" "verify nonsense"; do
    code 2 help $words
    grep -q "no help on '$words'" "$work/err" || fail "heddle help $words: $(cat "$work/err")"
done

# What bash offers behind some words.
. "$work/heddle.bash"
offers() { # wanted, then words
    local wanted=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    set +eu
    _heddle
    set -eu
    [ "${COMPREPLY[*]}" = "$wanted" ] || fail "bash offers '${COMPREPLY[*]}' behind '$*', wanted '$wanted'"
}
offers verify heddle ve
offers "auto peer nccl host" heddle bench --wire ""
offers "shm self" heddle run model.yaml --transport s
offers "--kv-heads --key-lengths" heddle verify attention --k
offers "plan presets" heddle help p
offers "" heddle run --output ""
offers "peer any" heddle bench --memory ""
offers "" heddle plan --memory ""
offers "hunyuanvideo" heddle plan hun
offers "hunyuanvideo" heddle presets hun
offers "" heddle verify hun
offers "8xl20-pcie 8xl40-pcie" heddle sweep latte-xl2 --machine 8xl
if command -v zsh >/dev/null; then
    zsh -n "$work/heddle.zsh" || fail "zsh cannot read its completion"
fi
echo "ok: $count options"
