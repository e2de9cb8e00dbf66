#!/usr/bin/env bash
# What nvcc makes of the words of kernels/cuda/warp.h, each alone. The emulator has words of its own for them, so no other
# test reads these. What becomes of them in kernels is in cuda_sass.
set -u
cd "${HEDDLE_SOURCE:?}"
. tests/support/skip.sh
. tests/support/work.sh
! is_sanitized || skip_test sanitizer "what nvcc makes of the kernels is the same in every build"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || skip_test nvcc "there is no nvcc"
ptx() { "$nvcc" -std=c++17 -O2 -arch=compute_80 -I. -Iinclude -I"${HEDDLE_BUILD:?}/include" -ptx "$1" -o "$2" || fail "nvcc: $1"; }

# word: its instruction, a call with `a` and `b`, addresses, `x`, a number
table='hd_shuffle_xor          shfl.sync.bfly.b32                                  x = hd_shuffle_xor(x, 5)
hd_sync_warp            bar.warp.sync                                       hd_sync_warp()
hd_mul                  mul.rn.f32                                          x = hd_mul(x, *(float *)b) + 1.0f
hd_fma                  fma.rn.f32                                          x = hd_fma(x, x, *(float *)b)
hd_mul_64               mul.rn.f64                                          *(double *)b = hd_mul_64(x, *(double *)a) + 1.0
hd_add_64               add.rn.f64                                          *(double *)b = hd_add_64(x, *(double *)a)
hd_div_64               div.rn.f64                                          *(double *)b = hd_div_64(x, *(double *)a)
hd_sqrt_64              sqrt.rn.f64                                         *(double *)b = hd_sqrt_64(*(double *)a)
hd_exp2                 ex2.approx.ftz.f32                                  x = hd_exp2(x)
hd_rsqrt                rsqrt.approx.ftz.f32                                x = hd_rsqrt(x)
hd_pair_to_bf16         cvt.rn.bf16x2.f32                                   *(uint32_t *)a = hd_pair_to_bf16(x, 2.0f)
hd_pair_to_f16          cvt.rn.f16x2.f32                                    *(uint32_t *)a = hd_pair_to_f16(x, 2.0f)
hd_to_bf16              cvt.rn.bf16.f32                                     *(uint16_t *)a = hd_to_bf16(x)
hd_to_f16               cvt.rn.f16.f32                                      *(uint16_t *)a = hd_to_f16(x)
hd_from_f16             cvt.f32.f16                                         x = hd_from_f16(*(uint16_t *)a)
hd_load_kept_16         ld.global.nc.v4                                     *(hd_v16 *)b = hd_load_kept_16(a)
hd_load_near_16         ld.global.v4.u32                                    *(hd_v16 *)b = hd_load_near_16(a)
hd_mma_bf16             mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 hd_mma_bf16((float *)a, (uint32_t *)b, (uint32_t *)b)
hd_mma_f16              mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32   hd_mma_f16((float *)a, (uint32_t *)b, (uint32_t *)b)
hd_load_matrix_4        ldmatrix.sync.aligned.m8n8.x4.shared.b16            hd_load_matrix_4((uint32_t *)b, memory)
hd_load_matrix_4_turned ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16      hd_load_matrix_4_turned((uint32_t *)b, memory)
hd_copy_async_16        cp.async.cg.shared.global                           hd_copy_async_16(memory, a, x > 0)
hd_copy_commit          cp.async.commit_group                               hd_copy_commit()
hd_copy_wait_0          cp.async.wait_group.0                               hd_copy_wait_0()
hd_copy_wait_1          cp.async.wait_group.1                               hd_copy_wait_1()'
{
    echo '#include "kernels/cuda/warp.h"'
    while read -r word _ call; do
        echo "__global__ void ${word}_(char *a, char *b) { HD_DYNAMIC_SHARED(char, memory);"
        echo "float x = *(float *)a; (void)memory; $call; *(volatile float *)b = x; }"
    done <<<"$table"
} >"$work/alone.cu"
ptx "$work/alone.cu" "$work/alone.ptx"
while read -r word instruction _; do
    awk -v name="${word}_" '/\.entry/ { on = index($0, name "P") > 0 } on { print }' "$work/alone.ptx" | sed 's/wait_group \([01]\)/wait_group.\1/' |
        grep -qF -- "$instruction" || fail "nvcc makes no '$instruction' of $word"
done <<<"$table"
# Not merged: no fma where the program has a product and a sum.
for word in hd_mul hd_mul_64; do
    ! awk -v name="${word}_P" '/\.entry/ { on = index($0, name) > 0 } on { print }' "$work/alone.ptx" | grep -q "fma\." || fail "$word is merged with a sum"
done
[ $failed = 0 ] && echo "instructions are as the table has them"
exit $failed
