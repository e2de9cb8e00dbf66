#!/usr/bin/env bash
# Fills build-device/ with what tests/device/run.sh needs on a machine with a GPU that has a driver and little else: the
# command line, tests, libraries, and the shared libraries that they want.
#
#     tests/device/pack.sh [--archive] [BUILD]     BUILD: a build folder with tests (build)
#
# --archive: one file instead, build-device/pack.tar.xz, a quarter as large (at most 64 MiB), which run.sh unpacks there.
#
# HEDDLE_PACK names another folder than build-device/; one that was not filled by this script is left as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=0
[ "${1:-}" != --archive ] || { archive=1 && shift; }
build=${1:-build}
out=${HEDDLE_PACK:-build-device}
if [ -e "$out" ] && [ ! -e "$out/filled-by-pack.sh" ] && [ -n "$(ls -A "$out")" ]; then
    echo "error: $out is there, and was not filled by this script: remove it, or set HEDDLE_PACK" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out"/{bin,lib,cxx,python,emulator,emulator-nccl}
touch "$out/filled-by-pack.sh"

# Programs and wires are those of ctest, so that there is one list.
ctest --test-dir "$build" -N -R '^device/' | sed -n 's|.*device/\([a-z_]*\)@\([a-z]*\)$|\1 \2|p' >"$out/tests"
tests=$(wc -l <"$out/tests")
[ "$tests" -gt 0 ] || { echo "error: $build has no tests of devices" >&2; exit 1; }
programs=$(cut -d' ' -f1 "$out/tests" | sort -u)
# And those that attach a device by themselves; cases that ask something of the emulated one are skipped.
for what in attention attention_calls block block_back block_linear block_sharded executor linear linear_calls; do
    echo "test_on_device_$what"
done >"$out/tests-of-a-card"
for program in heddle example_05_device $programs $(cat "$out/tests-of-a-card"); do
    cp "$build/$program" "$out/bin/"
done
soname=$(readelf -d "$build/libheddle.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
cp -L "$build/libheddle.so" "$out/lib/$soname"
for adapter in cuda nccl cublas; do
    [ ! -e "$build/libheddle_$adapter.so" ] || cp -L "$build/libheddle_$adapter.so" "$out/lib/"
done
cp "$build/libheddle_probe.so" "$out/lib/" # of blocks.py
cp "$build/tests/device-sim/libheddle_cuda.so" "$out/emulator/"
cp -L "$build"/tests/nccl-sim/*.so "$out/emulator-nccl/"

# The C library, NCCL (200 MB) and cuBLAS (500 MB) are the machine's own.
for file in "$out"/bin/* "$out"/lib/*; do
    ldd "$file"
done | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
    case $name in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libheddle* | libnccl* | libcublas*) ;;
    libstdc++.so.* | libgcc_s.so.*) cp -L "$path" "$out/cxx/$name" ;; # not for torch, whose own may be newer
    *) cp -L "$path" "$out/lib/$name" ;;
    esac
done
strip --strip-unneeded "$out"/bin/* "$out"/lib/* "$out"/cxx/* "$out"/emulator*/*
if [ -e "$build/python/heddle/_abi.py" ]; then
    tar -C "$build/python" --dereference --exclude='*.so' --exclude=__pycache__ -c heddle | tar -C "$out/python" -x
fi

# Beside the kernels of the build, for the GPUs that those are for.
trials() { # FILE
    local cuda_root=${nvcc%/bin/nvcc}
    cc -std=c17 -O2 -D_GNU_SOURCE -I. -Iinclude -I"$build/include" -isystem "$cuda_root/include" -c tests/device/trials.c -o "$1.o"
    "$nvcc" "$1.o" "$build/libheddle_cuda_kernels.a" -o "$1"
    rm "$1.o"
}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -x "$nvcc" ]; then
    "$nvcc" -std=c++17 -O2 -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_80,code=compute_80 \
        -Xcompiler=-Wall,-Wextra --Werror=all-warnings tests/device/questions.cu tests/device/calls.cu -o "$out/bin/questions"
    trials "$out/bin/trials"
else
    echo "no nvcc: the questions of tests/device/questions.cu and the trials of tests/device/trials.c are left out"
fi

if [ $archive = 1 ]; then
    tar -C "$out" -c --exclude=./filled-by-pack.sh . | xz -1 -T2 >"$out.tar.xz.new"
    rm -rf "${out:?}"/*/ "$out"/tests*
    mv "$out.tar.xz.new" "$out/pack.tar.xz"
fi
bytes=$(du -sb "$out" | cut -f1)
[ $archive = 0 ] || [ "$bytes" -le $((64 << 20)) ] || { echo "error: $out has $bytes bytes, more than 64 MiB" >&2; exit 1; }
echo "$out: $((bytes >> 20)) MiB, $tests tests"
