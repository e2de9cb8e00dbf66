#!/usr/bin/env bash
# clang-format 14 has nothing to change.
set -u
cd "${HEDDLE_SOURCE:?}"
tool=$(command -v clang-format-14) || { echo "clang-format-14 is not installed: skipped"; exit 77; }
find include kernels runtime planner tests examples -name '*.[ch]' -print0 | xargs -0 "$tool" --dry-run -Werror
