#!/usr/bin/env bash
# Registers of every CUDA kernel are those of cuda_registers.txt, and nothing spills, on sm_90, or on HEDDLE_CUDA_ARCHS
# ("80 90 100" are all of the table), of HEDDLE_CUDA_KERNELS where not all files are wanted; and the header of the emulator says what the toolkit's does. HEDDLE_WRITE_GOLDEN=1
# writes the table anew. Another release of nvcc than the table's has other registers and other warnings: it only has to
# compile for the architectures it knows.
set -u
cd "${HEDDLE_SOURCE:?}"
. tests/support/skip.sh
. tests/support/sass_tools.sh
! is_sanitized || skip_test sanitizer "what nvcc makes of the kernels is the same in every build"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || skip_test nvcc "there is no nvcc"
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
golden=tests/golden/cuda_registers.txt
is_golden=0
[ -z "${HEDDLE_WRITE_GOLDEN:-}" ] && [ "$(head -n 1 "$golden")" != "# nvcc $release" ] || is_golden=1
targets="" narch=0 archs=${HEDDLE_CUDA_ARCHS:-90}
[ -z "${HEDDLE_WRITE_GOLDEN:-}" ] || archs="80 90 100" HEDDLE_CUDA_KERNELS=""
few=15
[ -z "${HEDDLE_CUDA_KERNELS:-}" ] || few=5
sources=${HEDDLE_CUDA_KERNELS:-$(basename -s .cu kernels/cuda/*.cu)}
for arch in $archs; do
    "$nvcc" --list-gpu-arch | grep -qx "compute_$arch" || continue
    targets="$targets -arch=sm_$arch"
    narch=$((narch + 1))
done
strict=""
[ $is_golden = 0 ] || strict="-warn-spills,-Werror --Werror=all-warnings"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# --- registers: kernel, architecture, how many; of the objects of the build where it is for these architectures
built() { # what takes a kernel's stack is spilled: no kernel has an array of its own or calls another
    for source in $sources; do cuobjdump -res-usage "$built_kernels/$source.cu.o"; done |
        awk '/^arch = / { arch = $3 }
            / Function _Z/ { match($2, /[0-9]+/); name = substr($2, RSTART + RLENGTH, substr($2, RSTART, RLENGTH)) }
            /^ *REG:/ { split($0, part, /[: ]+/); print name, arch, part[3], "spilled", part[5] }' |
        grep -E " sm_(${archs// /|}) " | sort
}
compiled() { # kernels alone: what the host calls is compiled by the build
    for source in $sources; do
        for target in $targets; do
            "$nvcc" -std=c++17 -O2 "$target" -I. -Iinclude -I"${HEDDLE_BUILD:?}/include" -Xptxas=-v${strict:+,$strict} \
                -cubin "kernels/cuda/$source.cu" -o "$work/object" >"$work/log" 2>&1 || grep -v ptxas "$work/log" >>"$work/refused"
            cat "$work/log"
        done
    done | awk '/entry function/ { # _Z, the length of the name, the name
                match($0, /_Z[0-9]+/); length_of = substr($0, RSTART + 2, RLENGTH - 2)
                name = substr($0, RSTART + RLENGTH, length_of); arch = $NF; gsub("\x27", "", arch) }
            /spill stores/ { spilled = $5 }
            / Used [0-9]+ registers/ { print name, arch, $5, "spilled", spilled }' | sort
}
: >"$work/registers"
if [ -f "$built_kernels/move.cu.o" ] && sass_tools; then
    built >"$work/registers"
fi
[ "$(awk '{ print $2 }' "$work/registers" | sort -u | wc -l)" = $narch ] || compiled >"$work/registers"
[ -z "${HEDDLE_WRITE_GOLDEN:-}" ] || { echo "# nvcc $release"; cat "$work/registers"; } >"$golden"
wanted() { # of files that are not all, of kernels that are in these
    grep -E " sm_(${archs// /|}) " "$golden" |
        awk -v all="${HEDDLE_CUDA_KERNELS:-all}" 'NR == FNR { seen[$1]; next } all == "all" || $1 in seen' "$work/registers" -
}
if [ $is_golden = 1 ]; then
    diff <(wanted) "$work/registers" || { echo "registers are not those of $golden"; failed=1; }
    grep -v 'spilled 0$' "$work/registers" && failed=1
else
    not_here nvcc-release "$golden is of another nvcc than $release: neither registers nor spills were judged"
fi
[ ! -e "$work/refused" ] || { cat "$work/refused"; failed=1; }
[ "$(wc -l <"$work/registers")" -ge $((few * narch)) ] && [ $narch -ge 1 ] || { echo "few kernels were seen"; failed=1; }

# --- the headers of the emulator, of the fake NCCL and of the fake cuBLASLt: every constant and function, in both
include=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include
compare() { # header, where the real one lies
    local header=$1 name=${1##*/} newer=cudaGetDriverEntryPointByVersion # than CUDA 12.4
    ! grep -q "$newer" "$2/$name" || newer="nothing"
    {
        echo "#include <$name>"
        sed -nE 's/^    ((cuda|nccl|CUDA_|CUBLAS)[A-Za-z0-9_]+) = ([0-9]+),$/_Static_assert(\1 == \3, "\1");/p' "$header"
        sed -nE 's/^#define (NCCL_[A-Z_]+) ([0-9]+)$/_Static_assert(\1 == \2, "\1");/p' "$header" | grep -vE 'MINOR|PATCH|VERSION'
        tr '\n' ' ' <"$header" | grep -oE '\b(cudaError_t|CUresult|ncclResult_t|cublasStatus_t|size_t|const char \*) ?(cuda|cu|nccl)[A-Za-z0-9]+\(' |
            sed -E 's/.*[ *]([a-zA-Z0-9]+)\($/void *f_\1 = (void *)\&\1;/' | grep -v "$newer"
    } >"$work/both.c"
    # Its prototypes, beside the real ones: a compiler refuses two that differ.
    {
        echo "#include <$name>"
        tr '\n' ' ' <"$header" | grep -oE '\b(cudaError_t|CUresult|ncclResult_t|cublasStatus_t|size_t|const char \*) ?(cuda|cu|nccl)[A-Za-z0-9]+\([^)]*\);' |
            grep -vE "cudaGetDeviceProperties|$newer" # a macro in some toolkits
    } >"$work/prototypes.c"
    for file in both prototypes; do
        cc -std=c17 -Wall -Werror -isystem "$2" -isystem "$include" -fsyntax-only "$work/$file.c" || { echo "$header is not as $2 has it"; failed=1; }
        cc -std=c17 -Wall -Werror -Itests/ncclsim -Itests/cublassim -Itests/cudasim -fsyntax-only "$work/$file.c" || failed=1
    done
    echo "$name: $(wc -l <"$work/both.c") constants and functions, $(wc -l <"$work/prototypes.c") prototypes"
}
compare tests/cudasim/cuda_runtime_api.h "$include"
compare tests/cudasim/cuda.h "$include"
if [ -f "$include/nccl.h" ]; then
    compare tests/ncclsim/nccl.h "$include"
else
    not_here nccl "there is no nccl.h beside the toolkit"
fi
if [ -f "$include/cublasLt.h" ]; then
    compare tests/cublassim/cublasLt.h "$include"
else
    not_here cublas "there is no cublasLt.h beside the toolkit"
fi
echo "$(wc -l <"$work/registers") kernels"
exit $failed
