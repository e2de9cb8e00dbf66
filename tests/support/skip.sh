# Sourced by test scripts.
#
#     skip_test TAG REASON...       ends the script with 77: all of it needs what is missing here
#     not_here TAG REASON...        says that a part was left out; the script goes on
#
# TAG is one word (docs/testing.md lists them). As in case.h, HEDDLE_TEST_ALLOW_SKIP holds the tags that may be missing
# (unset: all), any other one ends the script with 1; HEDDLE_TEST_SKIP_LOG names a file that is told.
. "${BASH_SOURCE[0]%/*}/within.sh"
not_here() {
    local tag=$1
    shift
    echo "not run here: $(basename "$0" .sh) ($tag): $*"
    [ -z "${HEDDLE_TEST_SKIP_LOG:-}" ] || printf '%s\t%s\t%s\n' "$tag" "$(basename "$0" .sh)" "$*" >>"$HEDDLE_TEST_SKIP_LOG"
    [ -n "${HEDDLE_TEST_ALLOW_SKIP+set}" ] || return 0
    case " $HEDDLE_TEST_ALLOW_SKIP " in *" $tag "*) return 0 ;; esac
    echo "HEDDLE_TEST_ALLOW_SKIP does not say that $tag may be missing"
    exit 1
}

skip_test() {
    not_here "$@"
    exit 77
}

# 0 where the build has a sanitizer.
is_sanitized() {
    grep -q '^HEDDLE_SANITIZE:STRING=.' "${HEDDLE_BUILD:?}/CMakeCache.txt"
}

# 0 when ranks can be started by mpirun; otherwise notes that the script's MPI part is left out.
have_mpi() {
    if [[ " ${HEDDLE_TEST_LEAVE_OUT:-} " == *" mpi "* ]]; then
        not_here mpi "left out by HEDDLE_TEST_LEAVE_OUT"
        return 1
    elif [ ! -e "${HEDDLE_BUILD:?}/libheddle_mpi.so" ]; then
        not_here mpi "built without MPI"
        return 1
    elif ! command -v mpirun >/dev/null; then
        not_here mpi "no mpirun in PATH"
        return 1
    fi
    export OMPI_MCA_orte_allowed_exit_without_sync=1 # as heddle does: planner/cli/launch.c
}
