#!/usr/bin/env bash
# The lines that README.md shows for building and installing, run as they stand; then programs built against what they
# installed, with find_package and with pkg-config, with and without MPI; then nothing of it is left. Then an engine in C++
# that has heddle as a part, static.
set -eu
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "a program built against the library would need the sanitizer too"
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

# The shell lines of the section, in order; the folder of this build stands for build/, so that nothing is built twice.
sed -n '/^## Build and install/,/^## [^B]/s/^    //p' "$HEDDLE_SOURCE/README.md" |
    sed -E "s#(^| )build#\\1$HEDDLE_BUILD#g" >"$prefix/readme.sh"
[ "$(wc -l <"$prefix/readme.sh")" -ge 6 ] || { echo "README.md has no lines to build and install"; exit 1; }
(cd "$HEDDLE_SOURCE" && env -u PKG_CONFIG_PATH -u LD_LIBRARY_PATH HOME="$prefix" bash -eux "$prefix/readme.sh") >"$prefix/log" 2>&1 || {
    echo "README.md's lines fail:"
    tail -n 30 "$prefix/log"
    exit 1
}
[ -x "$prefix/heddle/bin/heddle" ] || { echo "README.md's lines install no command line"; exit 1; }
rm -f "$HEDDLE_BUILD/switch"

# What a plain configuration builds: no tests.
cmake -S "$HEDDLE_SOURCE" -B "$prefix/fresh" >/dev/null
cmake --build "$prefix/fresh" --target help >"$prefix/targets"
grep -q heddle_cli "$prefix/targets"
if grep -E '\b(test|bench)_|heddle_test_support' "$prefix/targets"; then
    echo "tests are built by default"
    exit 1
fi

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
find_package(heddle 0.2 REQUIRED)
add_executable(app main.c)
target_link_libraries(app heddle::heddle)
C
cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$prefix/heddle" >/dev/null
cmake --build build >/dev/null
./build/app
sed 's/REQUIRED/REQUIRED COMPONENTS nonsense/' CMakeLists.txt >CMakeLists.tmp
mkdir nonsense && mv CMakeLists.tmp nonsense/CMakeLists.txt && cp main.c nonsense/
if cmake -S nonsense -B nonsense/build -DCMAKE_PREFIX_PATH="$prefix/heddle" >out 2>&1 || ! grep -q "no component 'nonsense'" out; then
    echo "COMPONENTS nonsense: $(cat out)"
    exit 1
fi
export PKG_CONFIG_PATH="$(dirname "$(find "$prefix/heddle" -name heddle.pc)")"
cc main.c $(pkg-config --cflags --libs heddle) -o app
LD_LIBRARY_PATH="$(pkg-config --variable=libdir heddle)" ./app
if pkg-config --cflags --libs heddle | grep //; then
    echo "heddle.pc has a folder with //"
    exit 1
fi
if readelf -d app | grep -E 'RPATH|RUNPATH'; then
    echo "Libs of heddle.pc set a run path, which a distribution's packages must not have"
    exit 1
fi
cc main.c $(pkg-config --cflags --libs heddle) $(pkg-config --variable=rpath_flag heddle) -o app
env -u LD_LIBRARY_PATH ./app
# A static library would need what the shared one brings along.
for needed in -ldnnl -lhwloc -lyaml -lm -ldl; do
    pkg-config --static --libs heddle | grep -qw -e "$needed" || { echo "heddle.pc: --static lacks $needed"; exit 1; }
    if pkg-config --libs heddle | grep -w -e "$needed"; then
        echo "heddle.pc: $needed is not the program's business"
        exit 1
    fi
done

if have_mpi; then
    cat >mpi.c <<'C' # C and C++
#include <heddle/mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    heddle_comm *comm = NULL;
    MPI_Init(&argc, &argv);
    heddle_status st = heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, NULL);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        printf("%d ranks\n", heddle_comm_size(comm));
    }
    heddle_comm_destroy(comm);
    MPI_Finalize();
    return st != HEDDLE_OK;
}
C
    sed 's/main.c/mpi.cpp/; s/heddle::heddle/heddle::heddle_mpi/; s/LANGUAGES C/LANGUAGES CXX/; s/REQUIRED/REQUIRED COMPONENTS mpi/' \
        CMakeLists.txt >CMakeLists.tmp
    mkdir mpi && mv CMakeLists.tmp mpi/CMakeLists.txt && cp mpi.c mpi/mpi.cpp
    cmake -S mpi -B mpi/build -G Ninja -DCMAKE_PREFIX_PATH="$prefix/heddle" >/dev/null
    cmake --build mpi/build >/dev/null
    cc mpi.c $(pkg-config --cflags --libs heddle-mpi) $(pkg-config --variable=rpath_flag heddle-mpi) -o mpi_app
    for program in mpi/build/app ./mpi_app; do
        within 60 env -u LD_LIBRARY_PATH mpirun --oversubscribe --allow-run-as-root --bind-to none -n 2 $program </dev/null >out
        grep -qx "2 ranks" out || { echo "$program: $(cat out)"; exit 1; }
    done
fi
# The command line starts anywhere: its core links neither MPI nor CUDA.
if ldd "$prefix/heddle/bin/heddle" | grep -E 'libmpi|libcuda|libnccl|libcublas'; then
    echo "the core links MPI or CUDA"
    exit 1
fi
"$prefix/heddle/bin/heddle" --version
# Hidden visibility: nothing but heddle_ names comes out of the library.
library=$(find "$prefix/heddle" -name libheddle.so)
if nm -D --defined-only "$library" | awk '$2 ~ /[TDBR]/{print $3}' | grep -v '^heddle_'; then
    echo "these names should be hidden"
    exit 1
fi
for page in man/man1/heddle.1 bash-completion/completions/heddle zsh/site-functions/_heddle; do
    [ -s "$prefix/heddle/share/$page" ] || { echo "share/$page is not installed"; exit 1; }
done

cmake --build "$HEDDLE_BUILD" --target uninstall >/dev/null
if find "$prefix/heddle" -type f -o -type l -o -name heddle -type d ! -path "$prefix/heddle" ! -path '*/share/*' | grep .; then
    echo "uninstall leaves these"
    exit 1
fi

# Part of an engine whose own language is C++, by FetchContent, static. Nothing of heddle's gets into the engine.
mkdir "$prefix/engine"
cd "$prefix/engine"
cat >CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.23)
project(engine LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(heddle SOURCE_DIR $ENV{HEDDLE_SOURCE})
set(HEDDLE_CUDA OFF)
get_property(before DIRECTORY PROPERTY VARIABLES)
FetchContent_MakeAvailable(heddle)
get_property(after DIRECTORY PROPERTY VARIABLES)
list(REMOVE_ITEM after ${before} before heddle_SOURCE_DIR heddle_BINARY_DIR heddle_POPULATED)
list(FILTER after INCLUDE REGEX "^(CMAKE_(BUILD_TYPE|.*_OUTPUT_DIRECTORY|.*_VISIBILITY.*|POSITION.*)|BUILD_.*)$")
if(after OR TARGET heddle_cli OR TARGET uninstall OR TARGET example_01_switch OR TARGET heddle_test_support)
  message(FATAL_ERROR "heddle leaves in what it is part of: ${after}")
endif()
add_executable(engine engine.cpp)
target_link_libraries(engine heddle::heddle)
if(TARGET heddle::heddle_mpi)
  add_executable(engine_mpi mpi.cpp)
  target_link_libraries(engine_mpi heddle::heddle_mpi)
endif()
C
sed 's/NULL/nullptr/' ../app/main.c >engine.cpp
[ ! -f ../app/mpi.c ] || cp ../app/mpi.c mpi.cpp
[ -f mpi.cpp ] || echo "int main() {}" >mpi.cpp
launcher=""
command -v ccache >/dev/null && launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
cmake -S . -B build -G Ninja -DBUILD_SHARED_LIBS=OFF -DHEDDLE_INSTALL=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 $launcher >log 2>&1 &&
    cmake --build build >>log 2>&1 || { tail -n 30 log; exit 1; }
./build/engine
cmake --install build --prefix "$prefix/static" >log
if find "$prefix/static" -name 'libheddle*.so*' -o -name engine | grep .; then
    echo "these are no part of a static heddle"
    exit 1
fi
# The static library as it was installed, for CMake and pkg-config.
cmake -S ../app -B static -G Ninja -DCMAKE_PREFIX_PATH="$prefix/static" >/dev/null
cmake --build static >/dev/null
./static/app
export PKG_CONFIG_PATH="$(dirname "$(find "$prefix/static" -name heddle.pc)")"
cc ../app/main.c $(pkg-config --static --cflags --libs heddle) -o app
./app
if ldd app static/app build/engine | grep libheddle; then
    echo "a static program that wants a shared libheddle"
    exit 1
fi
# The same sources as a folder of the engine's: configured as it is by default, without installation.
sed "s|FetchContent_MakeAvailable(heddle)|add_subdirectory($HEDDLE_SOURCE heddle)|" CMakeLists.txt >CMakeLists.tmp
mkdir folder && mv CMakeLists.tmp folder/CMakeLists.txt && cp ./*.cpp folder/
cmake -S folder -B folder/build -G Ninja >/dev/null
! grep -q heddle folder/build/heddle/cmake_install.cmake || { echo "heddle is installed with an engine that does not say so"; exit 1; }
