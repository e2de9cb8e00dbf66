# Sourced by test scripts that look at what one sub-command says.
#
#     command=plan                           the sub-command; limit_s: after so many seconds it is ended (120)
#     says WHAT EXIT TEXT ARGUMENTS...       it exits with EXIT and says TEXT, a whole line or a part of one (standard
#                                            output and error together, left in $folder/out); else failed=1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0
says() {
    local what=$1 code=$2 text=$3
    shift 3
    timeout "${limit_s:-120}" "${HEDDLE:?}" "$command" "$@" >"$folder/out" 2>&1
    local rc=$?
    if [ "$rc" != "$code" ] || ! grep -qF -- "$text" "$folder/out"; then
        echo "FAILED $what: exit $rc (wanted $code), wanted '$text' in:"
        head -40 "$folder/out"
        failed=1
    fi
}
