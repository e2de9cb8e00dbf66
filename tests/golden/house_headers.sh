#!/usr/bin/env bash
# Every public header compiles alone, as C99, C11, C17 and C++17, without extensions.
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
    [ "$name" = heddle/mpi.h ] || printf "#include <%s>\nextern int not_empty;\n" "$name" | cc -std=c99 $flags -x c - || { echo "$name fails as c99"; failed=1; }
    echo "#include <$name>" | c++ -std=c++17 $flags -Wold-style-cast $extra -x c++ - || { echo "$name fails as c++17"; failed=1; }
done
# HEDDLE_EMPTY and heddle_ignore in every language, by both compilers; a status that nobody looks at is a warning.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/use.c" <<'C'
#include <heddle/heddle.h>
extern heddle_status told(const heddle_reshard *reshard, heddle_comm *comm);
heddle_status told(const heddle_reshard *reshard, heddle_comm *comm)
{
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info), other = HEDDLE_EMPTY(heddle_reshard_info);
    other = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_ignore(heddle_comm_abort(comm, "enough"));
    return other.struct_bytes == sizeof(info) ? heddle_reshard_get_info(&info, reshard) : HEDDLE_ERR_ARG;
}
C
sed 's/heddle_ignore(\(.*\));/\1;/' "$work/use.c" >"$work/careless.c"
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wmissing-field-initializers -Werror"
for compiler in cc c++ clang-14 clang++-14; do
    command -v "$compiler" >/dev/null || continue # the system's own is there
    case $compiler in *++*) standards="c++11 c++14 c++17 c++20" ;; *) standards="c99 c11 c17" ;; esac
    case $compiler in *++*) language=c++ ;; *) language=c ;; esac
    for standard in $standards; do
        say="$compiler -std=$standard -x $language -I include -I ${HEDDLE_BUILD}/include $warnings -o $work/use.o -c"
        $say "$work/use.c" || { echo "HEDDLE_EMPTY fails: $compiler as $standard"; failed=1; }
        if $say "$work/careless.c" 2>"$work/out" || ! grep -q 'unused-result' "$work/out"; then
            echo "a status is ignored without a warning: $compiler as $standard"
            failed=1
        fi
    done
done
for name in $(sed -nE 's/^typedef struct (heddle_[a-z0-9_]+) \{.*/\1/p' include/heddle/*.h); do
    grep -q "X($name)" runtime/base/sizes.c || { echo "$name: not in the table of runtime/base/sizes.c (heddle_struct_bytes)"; failed=1; }
done
echo "headers: $(ls include/heddle/*.h include/heddle/*/*.h | wc -l) compiled alone as C99, C11, C17 and C++17"
exit $failed
