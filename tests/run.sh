#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests.
#
#     tests/run.sh                        all tiers but long and python, optimised build
#     tests/run.sh quick ranks            only these tiers: quick ranks fault cli house hosts numpy python long (docs/testing.md)
#     tests/run.sh --preset asan quick    another build: asan ubsan asan-ubsan tsan clang nompi plain
#     tests/run.sh --preset fuzz fuzz     every parser fed with damaged input (clang)
#     tests/run.sh --in FOLDER quick      in a build that is there, with its own options (-DHEDDLE_TESTS=ON): installs nothing
#     tests/run.sh --build ...            builds what the same words without it run, and stops
#
# What this machine cannot run is listed at the end, with the reason. HEDDLE_TEST_JOBS: places for tests (docs/testing.md).
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/packages.sh

case ${1:-} in -h | --help)
    sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p}' tests/run.sh
    exit 0
    ;;
esac
preset=release build_only=0 given_folder=
if [ "${1:-}" = --build ]; then
    build_only=1
    shift
fi
if [ "${1:-}" = --preset ]; then
    preset=${2:?--preset wants a name: release asan ubsan asan-ubsan tsan clang nompi plain fuzz}
    shift 2
fi
folder=build
[ "$preset" = release ] || folder=build-$preset
if [ "${1:-}" = --in ]; then
    folder=$(realpath --relative-to=. "${2:?--in wants the folder of a build}") given_folder=1
    [ -f "$folder/CMakeCache.txt" ] || { echo "error: $folder is no build: it has no CMakeCache.txt" >&2; exit 1; }
    sanitizer=$(sed -n 's/^HEDDLE_SANITIZE:STRING=//p' "$folder/CMakeCache.txt")
    case $sanitizer in '') ;; *thread*) preset=tsan ;; *) preset=asan ;; esac # of which the tests are fewer and slower
    [ -n "$sanitizer" ] || [ -e "$folder/libheddle_mpi.so" ] || preset=nompi
    shift 2
fi
known="quick ranks fault cli house hosts numpy python long"
[ $# -gt 0 ] || set -- ${known% python long}
[ "$preset" != fuzz ] || known=fuzz
for tier in "$@"; do
    case " $known " in *" $tier "*) ;; *)
        echo "error: '$tier' is no tier: the tiers are $known; options stand before them, as tests/run.sh --help shows" >&2
        exit 2
        ;;
    esac
done
tiers=$(IFS='|' && echo "$*")

wanted="build test"
case " $* " in *" hosts "*) wanted="$wanted hosts" ;; esac
case " $* " in *" python "*) wanted="$wanted python" ;; esac
case $preset in clang | plain | fuzz) wanted="$wanted clang" ;; esac
[ -n "$given_folder" ] || heddle_packages $wanted

mkdir -p "$folder"
log=$folder/build.log
given=""
case $preset in # this one everything; the others what they run
release) targets="" ;;
fuzz) targets="--target fuzzers" ;;
*) targets="--target$(printf ' tier_%s' "$@")" ;;
esac
exec 9>"$folder/lock"
flock 9 # a build of this folder that runs already is waited for
command -v ccache >/dev/null && given=-DCMAKE_C_COMPILER_LAUNCHER=ccache
# What another folder beside this one has compiled alike is taken; what a file includes is told by its own compilation,
# where ccache is empty a preprocessor less for each.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
[ -f "$folder/CMakeCache.txt" ] || given="-G Ninja $given" # a folder keeps the generator that it has
# Of the architectures of GPUs one: the long tier compiles for the others.
configure() { [ -n "$given_folder" ] || cmake --preset "$preset" -DHEDDLE_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES=90-real $given; }
[ -z "$given_folder" ] || targets="--target$(printf ' tier_%s' "$@")"
if ! { configure && cmake --build "$folder" $targets; } >"$log" 2>&1; then
    grep -E 'error|Error|FAILED' -A 8 "$log" | head -n 60 >&2
    echo "error: the build failed; the whole log is in $log" >&2
    exit 1
fi
exec 9>&-
[ "$build_only" = 0 ] || exit 0

case " $* " in *" python "*)
    if [ -z "${HEDDLE_TEST_PYTHON:-}" ]; then
        bash tests/python/venv.sh "$folder/venv" && export HEDDLE_TEST_PYTHON=$PWD/$folder/venv/bin/python
    fi
    ;;
esac

# What may be missing, read off this machine and this build, not off the tests: what they skip for another reason fails.
lacking() {
    cpu_has() {
        for flag in "$@"; do grep -qw "$flag" /proc/cpuinfo || return 1; done
    }
    cpu_has avx2 fma f16c || echo avx2
    cpu_has avx512f avx512bw avx512vl avx512dq || echo avx512 bf16
    cpu_has avx512_bf16 || echo avx512_bf16
    command -v clang-format-14 >/dev/null || echo clang-format
    command -v musl-gcc >/dev/null || echo musl
    command -v chromium >/dev/null || echo chromium
    [ -r /proc/self/smaps_rollup ] || echo smaps
    unshare --pid --fork true 2>/dev/null || echo pidns
    in_namespace() { PATH=$PATH:/usr/sbin:/sbin unshare --net "$@" 2>/dev/null; }
    in_namespace ip link add name left type veth peer name right || echo netns
    in_namespace tc qdisc add dev lo root tbf rate 1mbit burst 10kb limit 10kb || echo tbf
    in_namespace tc qdisc add dev lo root netem delay 1ms || echo netem
    [ "$(id -u)" = 0 ] && grep -q '^NoNewPrivs:.0' /proc/self/status || echo root
    python3 -c 'import socket as s, struct; d = s.socket(s.AF_NETLINK, s.SOCK_RAW, 4)
d.send(struct.pack("IHHIIBBHIIIII", 40, 20, 0x301, 0, 0, 1, 0, 0, 2**32 - 1, 0, 0x41, 0, 0))
raise SystemExit(struct.unpack_from("IH", d.recv(9999))[1] == 2)' 2>/dev/null || echo sock_diag # 2: an error
    (. tests/support/memory_group.sh && rmdir "$(memory_group heddle-may-be-$$ 100000000)") 2>/dev/null || echo cgroup
    [ -e /dev/nvidia0 ] || echo gpu
    local nvcc
    nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
    [ -x "$nvcc" ] || echo nvcc
    [ -f "${nvcc%/bin/*}/include/nccl.h" ] || echo nccl
    [ -f "${nvcc%/bin/*}/include/cublasLt.h" ] || echo cublas
    "$nvcc" --version 2>/dev/null | grep -qF "release $(sed -n '1s/^# nvcc //p' tests/golden/cuda_registers.txt)," || echo nvcc-release
    command -v nvdisasm >/dev/null || [ -d "$folder/sass-tools" ] || echo nvdisasm # may come from the package index
    [ "$(uname -m)" = x86_64 ] || echo qemu
    for name in torch diffusers mypy scikit_build_core auditwheel; do
        "${HEDDLE_TEST_PYTHON:-python3}" -c "import importlib.util as i, sys; sys.exit(not i.find_spec('$name'))" 2>/dev/null || echo "$name"
    done
    case $preset in
    nompi | plain) echo mpi ;;
    *san) echo sanitizer ;;
    esac
}
: "${HEDDLE_TEST_ALLOW_SKIP=$(lacking | tr '\n' ' ')${HEDDLE_TEST_LEAVE_OUT:-}}"
export HEDDLE_TEST_ALLOW_SKIP
export HEDDLE_TEST_SKIP_LOG=$PWD/$folder/not_run_here.tsv
: >"$HEDDLE_TEST_SKIP_LOG"

case $preset in
*san | fuzz)
    : "${HEDDLE_TEST_TIME_SCALE:=5}"
    [ "$preset" != tsan ] || : "${HEDDLE_TEST_ROUNDS:=5}"
    export HEDDLE_TEST_ROUNDS=${HEDDLE_TEST_ROUNDS:-15} # of random draws; shapes, methods and faults are all tried
    export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
    export TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:suppressions=$PWD/tests/support/tsan.supp
    export LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp
    ;;
esac
export HEDDLE_TEST_TIME_SCALE=${HEDDLE_TEST_TIME_SCALE:-1}

results=$PWD/$folder/results.xml
rm -f "$results"
code=0
(cd "$folder" && ctest --output-on-failure --no-tests=error -j "${HEDDLE_TEST_JOBS:-1}" -L "^($tiers)\$" \
    --output-junit "$results" </dev/null) || code=$?

if [ -s "$HEDDLE_TEST_SKIP_LOG" ]; then
    echo "not run here:"
    sort -u "$HEDDLE_TEST_SKIP_LOG" | awk -F '\t' '
        !($1 in count) { reason[$1] = $3 }
        { count[$1]++; where[$1] = where[$1] " " $2 }
        END { for (tag in count) printf "  %s: %s (%d:%s)\n", tag, reason[tag], count[tag], where[tag] }' | sort | cut -c 1-400
fi
counted() { # an attribute of the whole run
    sed -n "s/^\t$1=\"\([0-9]*\)\"$/\1/p;/^\t>/q" "$results" 2>/dev/null | grep . || echo 0
}
failed=$(counted failures)
skipped=$(counted skipped)
[ "$code" = 0 ] || [ "$failed" != 0 ] || failed=1 # ctest itself
echo "$(($(counted tests) - failed - skipped)) passed, $failed failed, $skipped skipped"
exit "$code"
