# Sourced by test scripts that look at what the command says.
#
#     command="verify attention"             the sub-command; unset: ARGUMENTS begin with it
#     limit_s=200                            after so many seconds, scaled, it is ended; unset: 120
#     says WHAT EXIT TEXT ARGUMENTS...       it exits with EXIT and says TEXT, a whole line or a part of one (standard
#                                            output and error together, left in $folder/out); else failed=1
. "${BASH_SOURCE[0]%/*}/within.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0
says() {
    local what=$1 code=$2 text=$3
    shift 3
    # shellcheck disable=SC2086
    within "${limit_s:-120}" "${HEDDLE:?}" ${command:-} "$@" >"$folder/out" 2>&1
    local rc=$?
    if [ "$rc" != "$code" ] || ! grep -qF -- "$text" "$folder/out"; then
        echo "FAILED $what: exit $rc (wanted $code), wanted '$text' in:"
        head -40 "$folder/out"
        failed=1
    fi
}
