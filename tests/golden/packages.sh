#!/usr/bin/env bash
# Who is not root and has neither Ninja nor MPI can build all the same, and is told which packages would be used; tests
# want them.
set -u
cd "${HEDDLE_SOURCE:?}" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAILED: $*"
    cat "$work/out"
    failed=1
}
mkdir "$work/bin"
while read -r folder; do # all tools but those
    find "$folder/" -maxdepth 1 -mindepth 1 ! -name ninja ! -name mpirun ! -name mpicc -exec ln -s -t "$work/bin" {} + 2>/dev/null
done < <(tr ':' '\n' <<<"$PATH")
wants() { # WORDS...
    PATH=$work/bin bash -c 'id() { echo 1000; }; . examples/packages.sh; heddle_packages "$@"' packages "$@" >"$work/out" 2>&1
}
wants build || fail "without Ninja and MPI nothing is built"
grep -q 'done without (Debian names): libopenmpi-dev ninja-build openmpi-bin' "$work/out" || fail "nobody is told"
wants build test && fail "tests do without"
grep -q '^error: these packages are missing: .*ninja-build.*openmpi-bin' "$work/out" || fail "nobody is told what tests want"
exit $failed
