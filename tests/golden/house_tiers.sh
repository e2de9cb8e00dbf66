#!/usr/bin/env bash
# tests/run.sh explains itself, and a word that is no tier is refused before anything is installed or built.
set -u
cd "${HEDDLE_SOURCE:?}" || exit 1
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}
bash tests/run.sh --help | grep -q '^    tests/run.sh quick ranks ' || fail "--help does not show the head of the file"
refuses() { # WANTED WORDS...
    local wanted=$1 said code
    shift
    said=$(bash tests/run.sh --build "$@" 2>&1)
    code=$?
    [ $code = 2 ] || fail "tests/run.sh --build $* exits $code"
    grep -q -- "$wanted" <<<"$said" || fail "tests/run.sh --build $* says: $said"
}
refuses "'qick' is no tier: the tiers are quick ranks .* long" quick qick
refuses "'--preset' is no tier: .*options stand before them" quick --preset asan
refuses "'quick' is no tier: the tiers are fuzz" --preset fuzz quick
exit $failed
