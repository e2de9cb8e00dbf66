#!/usr/bin/env bash
# Every public header compiles alone, as C11, C17 and C++17, without extensions.
set -u
cd "${HEDDLE_SOURCE:?}"
failed=0
flags="-pedantic -Wall -Wextra -Werror -fsyntax-only -I include -I ${HEDDLE_BUILD:?}/include"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command -v c++ >/dev/null || skip_test c++ "no C++ compiler"
for header in include/heddle/*.h include/heddle/*/*.h; do
    name=${header#include/}
    extra=""
    if [ "$name" = heddle/mpi.h ]; then
        command -v mpicc >/dev/null || continue
        extra="$(mpicc --showme:compile) -Wno-cast-function-type -DOMPI_SKIP_MPICXX"
    fi
    for standard in c11 c17; do
        printf "#include <%s>\nextern int not_empty;\n" "$name" | cc -std=$standard $flags $extra -x c - || { echo "$name fails as $standard"; failed=1; }
    done
    echo "#include <$name>" | c++ -std=c++17 $flags $extra -x c++ - || { echo "$name fails as c++17"; failed=1; }
done
for name in $(sed -nE 's/^typedef struct (heddle_[a-z0-9_]+) \{.*/\1/p' include/heddle/*.h); do
    grep -q "X($name)" runtime/base/sizes.c || { echo "$name: not in the table of runtime/base/sizes.c (heddle_struct_bytes)"; failed=1; }
done
echo "headers: $(ls include/heddle/*.h include/heddle/*/*.h | wc -l) compiled alone as C11, C17 and C++17"
exit $failed
