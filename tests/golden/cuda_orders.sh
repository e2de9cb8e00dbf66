#!/usr/bin/env bash
# The instructions by which ranks and blocks meet on a device, with their orders and scopes: the emulator has words of its
# own for them, so no other test reads them. Those of lang.h as they stand there, and where nvcc is, what it makes of each
# alone and of every kernel.
set -u
cd "${HEDDLE_SOURCE:?}"
. tests/support/skip.sh
. tests/support/work.sh

# function: what it must be made of, what it is called with
table='hd_load_acquire_system   ld.acquire.sys.global.u64       = LONG((const uint64_t *)a)
hd_store_release_system  st.release.sys.global.u64       LONG((uint64_t *)a, 7)
hd_store_relaxed_system  st.relaxed.sys.global.u64       LONG((uint64_t *)a, 7)
hd_load_relaxed_system   ld.relaxed.sys.global.u64       = LONG((const uint64_t *)a)
hd_fence_system          fence.acq_rel.sys               ()
hd_add_system            atom.add.acq_rel.sys.global.u32 = INT((uint32_t *)a, 7)
hd_add_device            atom.add.acq_rel.gpu.global.u32 = INT((uint32_t *)a, 7)
hd_count_device          atom.add.relaxed.gpu.global.u32 = INT((uint32_t *)a, 7)
hd_sync                  bar.sync|barrier.sync           ()
hd_load_16               ld.global.L1::no_allocate.v4    = V16(a)
hd_load_constant_16      ld.global.nc.L1::no_allocate.v4 = V16(a)
hd_store_16              st.global.L1::no_allocate.v4    (a, hd_zero_16())
hd_load_8                ld.volatile                     = LONG(a)
hd_load_constant_8       ld.global.nc                    = LONG(a)'

# --- as they stand in lang.h: one instruction to a function, and none besides that orders anything
body_of() { awk -v name="$1(" 'index($0, "HD_DEV") && index($0, name) { on = 1 } on { print } on && /^}/ { exit }' kernels/cuda/lang.h; }
while read -r function instruction _; do
    case $function in hd_sync | hd_load_8 | hd_load_constant_8) continue ;; esac # without assembler
    found=$(body_of "$function" | grep -oE '"[a-z]+\.[A-Za-z0-9_.:]+' | tr -d '"')
    [[ $found == "$instruction"* ]] || fail "lang.h: $function is '$found', wanted '$instruction'"
    body_of "$function" | tr '\n' ' ' | grep -qE 'asm volatile' || fail "lang.h: the assembler of $function is not volatile"
    case $function in hd_load_constant_*) continue ;; esac
    body_of "$function" | grep -q '"memory"' || fail "lang.h: $function lets the compiler move what stands beside it"
done <<<"$table"
[ "$(grep -cE 'asm volatile\("(ld|st|atom|red|fence|membar)' kernels/cuda/lang.h)" = 11 ] ||
    fail "lang.h has instructions for memory that the table does not know"

# --- what nvcc makes of them
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if is_sanitized; then
    not_here sanitizer "what nvcc makes of the kernels is the same in every build"
elif [ ! -x "$nvcc" ]; then
    not_here nvcc "there is no nvcc"
else
    ptx() { "$nvcc" -std=c++17 -O2 -arch=compute_80 -I. -Iinclude -I"${HEDDLE_BUILD:?}/include" -ptx "$1" -o "$2" || fail "nvcc: $1"; }
    # Instructions for memory that order, and barriers: kernel, instruction, how many.
    orders() { awk '/\.entry/ { match($0, /_Z[0-9]+/); kernel = substr($0, RSTART + RLENGTH); sub(/[0-9(].*/, "", kernel) }
        { for (i = 1; i <= NF; i++) if ($i ~ /^(ld|st|atom|red|fence|membar|bar|barrier)\./ && $i ~ /acquire|release|acq_rel|relaxed|\.sc|membar|^bar|volatile|L1::|\.nc/) print kernel, $i }' "$1"; }
    {
        echo '#include "kernels/cuda/lang.h"'
        while read -r function _ call; do
            case $call in
            '= LONG'*) text="*(volatile unsigned long long *)b = $function${call#= LONG};" ;;
            '= INT'*) text="*(volatile unsigned *)b = $function${call#= INT};" ;;
            '= V16'*) text="*(hd_v16 *)b = $function${call#= V16};" ;;
            LONG*) text="$function${call#LONG};" ;;
            *) text="$function$call;" ;;
            esac
            echo "__global__ void ${function}_(void *a, void *b) { $text }"
        done <<<"$table"
    } >"$work/alone.cu"
    ptx "$work/alone.cu" "$work/alone.ptx"
    while read -r function instruction _; do
        awk -v name="${function}_" '/\.entry/ { on = index($0, name) > 0 } on { print }' "$work/alone.ptx" |
            grep -qE "^[[:space:]]*(${instruction//./\\.})" || fail "nvcc makes no '$instruction' of $function"
    done <<<"$table"
    ptx kernels/cuda/move.cu "$work/move.ptx"
    ptx kernels/cuda/sum.cu "$work/sum.ptx"
    for kernels in move sum; do
        found=$(orders "$work/$kernels.ptx" | grep -oE '(ld|st|atom|red|fence|membar)[a-z.]*\.(acquire|release|acq_rel|relaxed|sc)[.a-z0-9]*' | sort -u)
        while read -r instruction; do
            [ -z "$instruction" ] || grep -qF -- "$instruction" <<<"$table" || fail "$kernels.cu comes to '$instruction', which is not of lang.h"
        done <<<"$found"
    done
    # Each once where the source has it once, whatever the compiler makes of it otherwise: one fence for all READYs, one
    # acquire for a wait, and polls that do neither. Bytes go 16 at a time; who reads a peer's memory reads what is there
    # now.
    per_kernel() { orders "$work/move.ptx" | awk -v kernel="$1" -v text="$2" '$1 == kernel && index($2, text) == 1 { n++ } END { print n + 0 }'; }
    for kernel in push_few push_any pull_few pull_any clear_any push_gated_bf; do # names as far as their digits
        found=$(per_kernel $kernel bar)
        [ "$found" = 2 ] || fail "$kernel has $found barriers, wanted one before rows move and one before a peer is told"
        while read -r instruction most; do
            found=$(per_kernel $kernel "$instruction")
            [ "$found" -ge 1 ] && [ "$found" -le "$most" ] || fail "$kernel has $instruction $found times, wanted 1 to $most"
        done <<<"fence.acq_rel.sys 1
ld.acquire.sys 5
atom.add.acq_rel.sys 1
atom.add.acq_rel.gpu 1
st.global.L1::no_allocate.v4 8"
        loads=$(per_kernel $kernel ld.global.nc.L1::no_allocate.v4)
        case $kernel in
        push_gated_bf) [ "$loads" = 12 ] || fail "$kernel loads 16 bytes at a time $loads times, wanted 4 of x and 8 of y" ;;
        push_*) [ "$loads" = 8 ] || fail "$kernel loads 16 bytes at a time $loads times, wanted 8" ;;
        *) [ "$loads" = 0 ] || fail "$kernel reads what others may write as if nobody did" ;;
        esac
    done
    for source in move sum; do
        for bad in '\.local' '(div|rem)\.[us]64'; do
            ! grep -nE "$bad" "$work/$source.ptx" || fail "$source.cu has $bad"
        done
    done
fi
[ $failed = 0 ] && echo "orders and scopes are as the table has them"
exit $failed
