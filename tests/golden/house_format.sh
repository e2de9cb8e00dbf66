#!/usr/bin/env bash
# clang-format 14 has nothing to change.
set -u
cd "${HEDDLE_SOURCE:?}"
. tests/support/skip.sh
tool=$(command -v clang-format-14) || skip_test clang-format "clang-format-14 is not installed"
find include kernels runtime planner tests examples '(' -name '*.[ch]' -o -name '*.cu' ')' -print0 | xargs -0 "$tool" --dry-run -Werror
