# Sourced by test scripts: $work is a folder that goes with the script; fail WORDS... says what went wrong, failed=1.
. "${BASH_SOURCE[0]%/*}/within.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}
