#!/usr/bin/env bash
# On CPUs that lack instruction sets which this one may have (HEDDLE_CPU only leaves kernels out; an emulated CPU ends a
# program that enters an instruction it does not know): everything runs, and is right.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}" "${HEDDLE_BUILD:?}"
# shellcheck source=tests/support/skip.sh
. "$HEDDLE_SOURCE/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "the emulator has no room for a sanitizer's shadow memory"
case $(uname -m) in x86_64) ;; *) skip_test qemu "its CPUs are of x86-64" ;; esac
command -v qemu-x86_64 >/dev/null || skip_test qemu "no qemu-x86_64 in PATH"
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
failed=0
ulimit -c 0

# on CPU ARGUMENT...
on() {
    within 120 qemu-x86_64 -cpu "$1" "$HEDDLE" "${@:2}" >"$out" 2>&1 </dev/null
    local code=$?
    [ $code = 0 ] && return
    echo "FAILED: on $1, heddle ${*:2}: exit code $code"
    tail -n 5 "$out"
    failed=1
}

for cpu in Haswell Nehalem; do # with AVX2, and without
    on $cpu bench --list-kernels
    ! grep -q avx512 "$out" || { echo "FAILED: $cpu has kernels of AVX-512"; failed=1; }
    [ "$(grep -c avx2 "$out")" -gt 0 ] || [ $cpu = Nehalem ] || { echo "FAILED: $cpu has no kernels of AVX2"; failed=1; }
    for dtype in f32 bf16; do
        on $cpu verify "$dtype[t=8 s=8 c=3] on [sp=2]: t@sp -> s@sp" --transport threads
        on $cpu verify attention "$dtype[b=1 s=32 h=2 d=8] on [sp=2]" --method ring --transport threads
        on $cpu verify linear-attention "$dtype[b=1 s=32 h=2 d=8] on [sp=2]" --method lasp --transport threads
    done
    on $cpu verify 'f32[t=8 s=8 c=3] on [sp=2]: sum@sp -> s@sp' --transport threads
    on $cpu run "$HEDDLE_SOURCE/tests/golden/tiny.yaml" --size t=3,s=9 --layers 1 --ranks 2 --transport threads --check
done
exit $failed
