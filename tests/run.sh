#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests.
#
#     tests/run.sh                        all tiers but the long one, optimised build
#     tests/run.sh quick ranks            only these tiers: quick ranks fault cli long (docs/testing.md)
#     tests/run.sh --preset asan quick    under a sanitizer: asan ubsan tsan
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/packages.sh

preset=release
if [ "${1:-}" = --preset ]; then
    preset=${2:?--preset wants a name: release asan ubsan tsan}
    shift 2
fi
folder=build
[ "$preset" = release ] || folder=build-$preset
[ $# -gt 0 ] || set -- quick ranks fault cli
tiers=$(IFS='|' && echo "$*")

heddle_packages build test

mkdir -p "$folder"
log=$folder/build.log
launcher=""
command -v ccache >/dev/null && launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
if ! { cmake --preset "$preset" -G Ninja -DHEDDLE_TESTS=ON $launcher && cmake --build "$folder"; } >"$log" 2>&1; then
    grep -E 'error|Error|FAILED' -A 8 "$log" | head -n 60 >&2
    echo "error: the build failed; the whole log is in $log" >&2
    exit 1
fi

case $preset in
release) export HEDDLE_TEST_TIME_SCALE=1 ;;
*)
    export HEDDLE_TEST_TIME_SCALE=5
    export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
    export TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:suppressions=$PWD/tests/support/tsan.supp
    export LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp
    ;;
esac
cd "$folder"
ctest --output-on-failure --no-tests=error -j 1 -L "^($tiers)\$" </dev/null
