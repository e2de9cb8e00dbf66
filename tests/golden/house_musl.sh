#!/usr/bin/env bash
# The rooms that ask the system for things compile with musl's headers, too (glibc's own names are an error there). What
# musl has no headers of (Linux's own, hwloc, libyaml) comes from the machine.
set -u
cd "${HEDDLE_SOURCE:?}" || exit 1
. tests/support/skip.sh
command -v musl-gcc >/dev/null || skip_test musl "no musl-gcc (musl-tools)"
multiarch=$(cc -print-multiarch 2>/dev/null)
files=$(git ls-files runtime/base runtime/comm runtime/device runtime/move planner/cli planner/machine | grep '\.c$' | grep -vE '/(cuda|nccl|cublas|mpi)/')
[ "$(echo "$files" | wc -l)" -gt 80 ] || { echo "only these files were found: $files"; exit 1; }
echo "$files" | xargs -P 2 -n 8 musl-gcc -std=c17 -D_GNU_SOURCE -I. -Iinclude -I"${HEDDLE_BUILD:?}/include" \
    -idirafter /usr/include -idirafter "/usr/include/$multiarch" -fsyntax-only -Wall -Wextra -Wno-missing-field-initializers \
    -Wno-format-truncation -Werror || exit 1
echo "musl: $(echo "$files" | wc -l) files of the rooms that ask the system compile with its headers"
