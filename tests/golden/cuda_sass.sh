#!/usr/bin/env bash
# What a GPU runs (SASS of sm_90, as it lies in the build) of the kernels that move, add, attend, multiply and work on
# rows: bytes go 16 at a time, matrices of 16 bits through tensor units from copies that go on beside, nothing is kept in local memory, nothing divides 64 bits or calls for that, and no loop over peers has
# a fence in it. golden/cuda_orders says the same of PTX, from which the assembler may make something else. The
# disassembler is the toolkit's, or comes from the package index into a folder of the build.
set -u
cd "${HEDDLE_SOURCE:?}"
. tests/support/skip.sh
. tests/support/work.sh
! is_sanitized || skip_test sanitizer "what nvcc makes of the kernels is the same in every build"
objects=${HEDDLE_BUILD:?}/kernels/cuda/CMakeFiles/heddle_cuda_kernels.dir
[ -f "$objects/move.cu.o" ] || skip_test nvcc "the kernels were not compiled by nvcc"

# --- the disassembler, and what it needs beside it
found() { [ -x "$1/cuobjdump" ] && [ -x "$1/nvdisasm" ]; }
tools=$(dirname "$(command -v cuobjdump || echo /usr/local/cuda/bin/cuobjdump)")
if ! found "$tools"; then
    own=$HEDDLE_BUILD/sass-tools
    if [ ! -d "$own" ]; then
        rm -rf "$own.new"
        python3 -m venv "$own.new" && "$own.new/bin/pip" install -q nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm && mv "$own.new" "$own"
    fi >"$work/pip.log" 2>&1
    tools=$(dirname "$(find "$own" -name nvdisasm -type f 2>/dev/null | head -1)")
    found "$tools" || skip_test nvdisasm "no cuobjdump and nvdisasm here, nor from the package index"
fi

# --- per kernel: instruction and how many; and the loops that have no loop in them
sass() { PATH=$tools:$PATH cuobjdump -sass -arch sm_90 "$objects/$1.cu.o" >"$work/$1.sass"; }
listed() { # kernel, address, instruction with its modifiers, where a jump goes to
    awk '/Function :/ { match($NF, /_Z[0-9]+/); kernel = substr($NF, RSTART + RLENGTH, substr($NF, RSTART + 2, RLENGTH - 2)) }
        match($0, /^ *\/\*[0-9a-f]+\*\/ /) {
            at = $1; gsub(/[^0-9a-f]/, "", at); sub(/^0+/, "", at); op = $2 ~ /^@/ ? $3 : $2; to = "-"
            if (op ~ /^BRA/) { for (i = 3; i <= NF && to == "-"; i++) if ($i ~ /^0x[0-9a-f]+$/) to = substr($i, 3) }
            print kernel, at, op, to }' "$work/$1.sass"
}
sources="move sum attention attention_back attention_keys attention_f32 attention_f32_back rows rows_back products products_f32"
for source in $sources; do sass $source; done
for source in $sources; do
    listed $source >"$work/$source"
    [ -s "$work/$source" ] || skip_test nvcc "$source.cu was not compiled for sm_90"
    ! grep -E ' (LDL|STL)' "$work/$source" | head -3 | grep . || fail "$source.cu keeps something in local memory"
    case $source in *_f32 | products) continue ;; esac
    for access in LDG STG; do
        grep -qE " $access[A-Z.]*\.128" "$work/$source" || fail "$source.cu has no $access of 16 bytes"
    done
done
count() { awk -v kernel="$2" -v op="$3" '$1 == kernel && $3 ~ op { n++ } END { print n + 0 }' "$work/$1"; }
# Kernels of 16 bits multiply on tensor units what was copied into the block's memory 16 bytes at a time; delta and
# add_chunks only add.
for source in attention attention_back attention_keys products; do
    for kernel in $(awk '$1 ~ /_(bf16|f16)/ && $1 !~ /delta|add_chunks/ { print $1 }' "$work/$source" | sort -u); do
        for wanted in '^HMMA.16816.F32' '^LDGSTS.*[.]128' '^LDSM.16.M'; do
            [ "$(count $source $kernel $wanted)" -gt 0 ] || fail "$kernel has no $wanted"
        done
    done
done
# Those of f32 have FMA for that, of what they read 16 bytes at a time.
for source in attention_f32 attention_f32_back; do
    for kernel in $(awk '$1 ~ /_f32_[0-9]/ { print $1 }' "$work/$source" | sort -u); do
        for wanted in '^FFMA$' '^LDGSTS.*[.]128' '^LDS[.]128' '^STG.*[.]128'; do
            [ "$(count $source $kernel $wanted)" -gt 3 ] || fail "$kernel has no $wanted, or few"
        done
    done
done
for source in move sum; do
    ! grep -E ' (CALL|MUFU|I2F\.[US]64)' "$work/$source" | head -3 | grep . || fail "$source.cu divides, or calls something that does"
done
for kernel in push_few push_any pull_few pull_any clear_any; do
    [ "$(count move $kernel '^STG.*[.]128')" = 8 ] || fail "$kernel does not store 8 times 16 bytes"
    case $kernel in push*) constant=8 peers=0 ;; pull*) constant=0 peers=8 ;; *) constant=0 peers=0 ;; esac
    [ "$(count move $kernel '^LDG.*[.]128.*CONSTANT')" = $constant ] || fail "$kernel does not load $constant times 16 bytes that nobody writes"
    [ "$(count move $kernel '^LDG.*[.]128$')" = $peers ] || fail "$kernel does not load $peers times 16 bytes that others write"
done
# Four terms of a sum are loaded before the first of them is added.
for kernel in sum_f32 sum_bf16; do
    together=$(awk -v kernel=$kernel '$1 != kernel { next } $3 ~ /^LDG.*[.]128/ { n++; if (n > most) most = n } $3 ~ /^FADD/ { n = 0 }
        END { print most + 0 }' "$work/sum")
    [ "$together" -ge 4 ] || fail "$kernel has $together loads of 16 bytes under way at a time"
done
# A fence for all READYs: of loops that store flags at peers, none waits for its stores.
awk '{ kernel[NR] = $1; address[NR] = $2; op[NR] = $3; to[NR] = $4; where[$1, $2] = NR }
    END {
        for (i = 1; i <= NR; i++) {
            first = where[kernel[i], to[i]]
            if (op[i] !~ /^BRA/ || first == "" || first > i || first == i) continue
            inner = 1; flags = 0; fences = 0
            for (k = first; k < i; k++) {
                t = where[kernel[k], to[k]]
                if (op[k] ~ /^BRA/ && t != "" && t >= first && t <= k) inner = 0
                flags += op[k] ~ /^STG?[.]E[.]64[.]STRONG[.]SYS/
                fences += op[k] ~ /^MEMBAR/
            }
            if (!inner || flags == 0) continue
            loops[kernel[i]]++
            if (fences > 0) print kernel[i], "fences in the loop from", address[first], "to", address[i]
        }
        for (k in loops) print "loops", k, loops[k] >"/dev/stderr"
    }' "$work/move" >"$work/fences" 2>"$work/loops"
[ ! -s "$work/fences" ] || { cat "$work/fences"; fail "a fence for every peer"; }
grep -q 'loops push_few' "$work/loops" || fail "no loop of push_few stores flags: this test reads them wrongly"
[ $failed = 0 ] && echo "instructions are as they should be"
exit $failed
