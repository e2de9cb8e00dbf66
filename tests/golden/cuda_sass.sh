#!/usr/bin/env bash
# What a GPU runs (SASS of sm_90, as it lies in the build) of every kernel: bytes go 16 at a time, matrices of 16 bits
# through tensor units from copies that go on beside, nothing is kept in local memory, nothing divides 64 bits, only ranks
# that meet use atomics, and no loop over peers has a fence in it. golden/cuda_orders says the same of PTX, from which the
# assembler may make something else. The disassembler is the toolkit's, or of the package index.
set -u
cd "${HEDDLE_SOURCE:?}"
. tests/support/skip.sh
. tests/support/work.sh
! is_sanitized || skip_test sanitizer "what nvcc makes of the kernels is the same in every build"
. tests/support/sass_tools.sh
[ -f "$built_kernels/move.cu.o" ] || skip_test nvcc "the kernels were not compiled by nvcc"
sass_tools || skip_test nvdisasm "no cuobjdump and nvdisasm here, nor from the package index"

# --- per kernel: instruction and how many; and the loops that have no loop in them
sass() { cuobjdump -sass -arch sm_90 "$built_kernels/$1.cu.o" >"$work/$1.sass"; }
listed() { # kernel, address, instruction with its modifiers, where a jump goes to
    awk '/Function :/ { match($NF, /_Z[0-9]+/); kernel = substr($NF, RSTART + RLENGTH, substr($NF, RSTART + 2, RLENGTH - 2)) }
        match($0, /^ *\/\*[0-9a-f]+\*\/ /) {
            at = $1; gsub(/[^0-9a-f]/, "", at); sub(/^0+/, "", at); op = $2 ~ /^@/ ? $3 : $2; to = "-"
            if (op ~ /^BRA/) { for (i = 3; i <= NF && to == "-"; i++) if ($i ~ /^0x[0-9a-f]+$/) to = substr($i, 3) }
            print kernel, at, op, to }' "$work/$1.sass"
}
sources=$(basename -s .cu kernels/cuda/*.cu | tr '\n' ' ')
for source in $sources; do sass $source; done
for source in $sources; do
    listed $source >"$work/$source"
    [ -s "$work/$source" ] || skip_test nvcc "$source.cu was not compiled for sm_90"
    ! grep -E ' (LDL|STL)' "$work/$source" | head -3 | grep . || fail "$source.cu keeps something in local memory"
    ! grep -E ' I2F[.][US]64' "$work/$source" | head -3 | grep . || fail "$source.cu divides 64 bits"
    case $source in move) ;; *) ! grep -E ' (ATOM|RED)' "$work/$source" | head -3 | grep . || fail "$source.cu has atomics" ;; esac
    case $source in attention_f32* | linear_f32 | linear_states) continue ;; esac
    for access in LDG STG; do
        grep -qE " $access[A-Z.]*\.128" "$work/$source" || fail "$source.cu has no $access of 16 bytes"
    done
done
for source in $sources; do
    awk '{ n[$1 " " $3]++ } END { for (what in n) print what, n[what] }' "$work/$source" >"$work/$source.counts"
done
count() { awk -v kernel="$2" -v op="$3" '$1 == kernel && $2 ~ op { n += $3 } END { print n + 0 }' "$work/$1.counts"; }
# Kernels of 16 bits multiply on tensor units what was copied into the block's memory 16 bytes at a time; delta and
# add_chunks only add.
for source in attention attention_back attention_keys attention_whole products; do
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
# Products load operands so, ahead of the turn that multiplies them, and store results so, those of tensor units too.
[ "$(count products_f32 product_f32 '^LDS[.]128')" = 32 ] && [ "$(count products_f32 product_f32 '^LDG.*[.]128')" -ge 6 ] ||
    fail "product_f32 does not load by 16 bytes"
[ "$(count products_f32 product_f32 '^STG.*[.]128')" = 4 ] || fail "product_f32 does not store 4 rows by 16 bytes"
for kernel in $(awk '{ print $1 }' "$work/products" | sort -u); do
    [ "$(count products $kernel '^STG.*[.]128')" = 24 ] || fail "$kernel does not store 8 rows by 16 bytes, of either type"
done
# Two heads of a row have their weights and angles loaded once, 4 pieces of 2 x 16 bytes each, with both, with one and with
# the other of them; their gradients have them loaded once, too, though they go through a head twice.
for kernel in norm_rotate_bf16 norm_rotate_f16; do
    [ "$(count heads $kernel '^LDG.*[.]128$')" = 24 ] && [ "$(count heads $kernel '^STG.*[.]128')" = 24 ] &&
        [ "$(count heads $kernel '^LDG.*[.]128.*CONSTANT')" = 32 ] || fail "$kernel does not load what two heads share once"
done
for kernel in norm_rotate_back_bf16 norm_rotate_back_f16; do
    [ "$(count heads_back $kernel '^LDG.*[.]128.*CONSTANT')" = 24 ] || fail "$kernel loads weights or angles twice"
done
for source in move sum; do
    ! grep -E ' (CALL|MUFU)' "$work/$source" | head -3 | grep . || fail "$source.cu divides, or calls something that does"
done
for kernel in push_few push_any pull_few pull_any clear_any push_gated_f32 push_gated_bf16 push_gated_f16; do
    [ "$(count move $kernel '^STG.*[.]128')" = 8 ] || fail "$kernel does not store 8 times 16 bytes"
    case $kernel in push_gated_f32) constant=12 peers=0 ;; push_gated*) constant=20 peers=0 ;; push*) constant=8 peers=0 ;; pull*) constant=0 peers=8 ;; *) constant=0 peers=0 ;; esac
    [ "$(count move $kernel '^LDG.*[.]128.*CONSTANT')" = $constant ] || fail "$kernel does not load $constant times 16 bytes that nobody writes"
    [ "$(count move $kernel '^LDG.*[.]128$')" = $peers ] || fail "$kernel does not load $peers times 16 bytes that others write"
done
# A step reads param, gradient, mean and square by 16 bytes and writes all but the gradient so; squares are of four loads.
[ "$(count training adamw '^LDG.*[.]128')" = 4 ] && [ "$(count training adamw '^STG.*[.]128')" = 3 ] || fail "adamw does not go by 16 bytes"
[ "$(count training squares_of_pieces '^LDG.*[.]128')" -ge 4 ] || fail "squares_of_pieces has fewer than 4 loads of 16 bytes"
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
