#!/usr/bin/env bash
# Install into an empty prefix, then build a program against it with find_package and with pkg-config.
set -eu
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "${HEDDLE_BUILD:?}" --prefix "$prefix/usr" >/dev/null
mkdir "$prefix/app"
cd "$prefix/app"
cat >main.c <<'C'
#include <heddle/heddle.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    heddle_shape shape;
    if (heddle_shape_parse(&shape, "bf16[t=3 s=5 c=7]") != HEDDLE_OK) {
        return 1;
    }
    printf("%s %s\n", heddle_version(), shape.dim[1].name);
    return strcmp(heddle_version(), HEDDLE_VERSION) != 0;
}
C
cat >CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.23)
project(app LANGUAGES C)
find_package(heddle 0.1 REQUIRED)
add_executable(app main.c)
target_link_libraries(app heddle::heddle)
C
link_flags=""
case $(grep HEDDLE_SANITIZE: "$HEDDLE_BUILD/CMakeCache.txt") in *=?*)
    skip_test sanitizer "a program built against the library would need the sanitizer too"
    ;;
esac
cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$prefix/usr" >/dev/null
cmake --build build >/dev/null
./build/app
export PKG_CONFIG_PATH="$(dirname "$(find "$prefix/usr" -name heddle.pc)")"
cc main.c $(pkg-config --cflags --libs heddle) $link_flags -o app
LD_LIBRARY_PATH="$(pkg-config --variable=libdir heddle)" ./app
# The command line starts anywhere: its core links neither MPI nor CUDA.
if ldd "$prefix/usr/bin/heddle" | grep -E 'libmpi|libcuda|libnccl'; then
    echo "the core links MPI or CUDA"
    exit 1
fi
"$prefix/usr/bin/heddle" --version
# Hidden visibility: nothing but heddle_ names comes out of the library.
library=$(find "$prefix/usr" -name libheddle.so)
if nm -D --defined-only "$library" | awk '$2 ~ /[TDBR]/{print $3}' | grep -v '^heddle_'; then
    echo "these names should be hidden"
    exit 1
fi
