# heddle calibrate: a rough machine of every transport, its table, its JSON, its file and where that goes; complaints.
# Nothing is said of how long anything takes.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command -v python3 >/dev/null || not_here python "no python3: JSON is not read back"
failed=0
fail() {
    echo "FAILED: $*" >&2
    failed=1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export XDG_CONFIG_HOME=$folder/config HOME=$folder/home

operations() { # OPERATION...: the table has an error of each
    for operation; do
        grep -Eq "^$operation +[0-9]+ +[0-9.]+% +[0-9.]+%$" "$folder/table" || fail "no error of $operation is told"
    done
    awk 'length > 116 { exit 1 }' "$folder/table" || fail "the table is wider than 116 columns"
}
judged() { # RANKS FILE, standard input: JSON
    python3 -c '
import json, sys
told, ranks = json.load(sys.stdin), int(sys.argv[1])
assert told["schema"] == "heddle-calibrate-1" and told["ranks"] == ranks and told["file"] == sys.argv[2], told
assert 1 <= told["overlap_slowdown"] <= 2 and told["crowding_slowdown"] >= 1 and 0 <= told["coreless"] < 1
operations = told["operations"]
kinds = set("mlp attention cross linear sharded copy".split())
exchanges = set("switch hop gather sum".split()) if ranks > 1 else set()
assert {o["operation"] for o in operations} == kinds | exchanges
for o in operations:
    assert o["time_s"] > 0 and o["fitted_s"] > 0 and o["times"] >= (2 if o["operation"] in exchanges else 1), o
    assert abs(o["fitted_s"] / o["time_s"] - 1 - o["error"]) < 1e-3, o
    assert (o["ranks"] == ranks if o["operation"] in exchanges else o["ranks"] == 0), o
assert {e["operation"] for e in told["errors"]} == kinds | exchanges | {"all"}
for e in told["errors"]:
    kind = [abs(o["error"]) for o in operations if e["operation"] in ("all", o["operation"])]
    assert e["sizes"] == len(kind) and abs(e["worst"] - max(kind)) < 1e-3 and e["median"] <= e["worst"], e
' "$@" || fail "not the JSON of $1 ranks that was promised"
}

# Where it goes: --output, the folder for settings, the one below the home.
file=$folder/config/heddle/machine.yaml
"$HEDDLE" calibrate --ranks 2 --transport shm --seconds 1 --json >"$folder/json" 2>"$folder/said" ||
    fail "exit $? of shm: $(cat "$folder/said")"
judged 2 "$file" <"$folder/json"
grep -q '^calibrated: true' "$file" || fail "the file does not say that it is calibrated"
grep -q '^ranks: 2' "$file" || fail "the file has other ranks"
grep -q 'link: shm' "$file" || fail "the file has no link of shm"
(
    unset XDG_CONFIG_HOME
    "$HEDDLE" calibrate --ranks 1 --transport self --seconds 1 >"$folder/table" 2>"$folder/said" || exit 1
    grep -q "^saved to $HOME/.config/heddle/machine.yaml after" "$folder/table" || exit 1
    operations mlp attention cross linear sharded copy all
    "$HEDDLE" plan stdit3-720p --mesh sp=1 >"$folder/table" 2>&1 || exit 1
    "$HEDDLE" plan stdit3-720p --mesh sp=2 >"$folder/table" 2>&1
    [ $? -eq 2 ] && grep -q "has figures of one rank alone, 2 are asked for" "$folder/table" && exit $failed
    exit 1
) || fail "one rank, below the home: $(tail -1 "$folder/table")"

"$HEDDLE" calibrate --ranks 1 --transport self --seconds 1 --json --output "$folder/json.yaml" >"$folder/json" \
    2>"$folder/said" || fail "exit $? of one rank: $(cat "$folder/said")"
judged 1 "$folder/json.yaml" <"$folder/json"
"$HEDDLE" calibrate --ranks 1 --transport self --seconds 1 --output - 2>/dev/null | grep -q '^machine: ' ||
    fail "--output - prints no machine"

# Ranks that share cores are told of; what they keep each other from may be more than a fit explains, where the table is
# that of ranks over shm.
of_two=0
if command -v taskset >/dev/null; then
    first=$(taskset -cp $$ | sed 's/.*: *//; s/[,-].*//')
    taskset -c "$first" "$HEDDLE" calibrate --ranks 2 --transport threads --seconds 1 --output "$folder/shared.yaml" \
        >"$folder/table" 2>"$folder/said"
    code=$?
    [ $code -eq 0 ] || [ $code -eq 3 ] || fail "exit $code on one core"
    grep -q '2 ranks share 1 core' "$folder/said" || fail "shared cores are not told of: $(cat "$folder/said")"
    [ $code -ne 0 ] || grep -q 'ranks had no core for [0-9]* % .*; such times count, as' "$folder/said" ||
        fail "that ranks had no core is not told of: $(cat "$folder/said")"
    [ $code -ne 0 ] || grep -q 'ranks shared cores' "$folder/shared.yaml" || fail "the file does not say so"
    [ $code -ne 0 ] || of_two=1
    [ $code -ne 3 ] || grep -q 'no rates explain them' "$folder/said" || fail "the file is missed without a reason"
fi
if [ $of_two = 0 ]; then
    "$HEDDLE" calibrate --ranks 2 --transport shm --seconds 1 >"$folder/table" 2>"$folder/said" ||
        fail "exit $? of the table of shm: $(cat "$folder/said")"
fi
operations mlp attention cross linear sharded copy switch hop gather sum all

refuses() {
    local want=$1
    shift
    "$HEDDLE" calibrate "$@" >/dev/null 2>"$folder/said"
    code=$?
    [ $code -eq 2 ] || fail "calibrate $* exits $code, not 2"
    grep -q -- "$want" "$folder/said" || fail "calibrate $* does not say '$want': $(cat "$folder/said")"
    [ "$(wc -l <"$folder/said")" -eq 1 ] || fail "calibrate $* complains in more than one line"
}
refuses 'nothing but options' model.yaml
refuses 'unknown transport' --transport pigeons
refuses '--seconds wants' --seconds 0
refuses 'no-such-folder' --output "$folder/no-such-folder/m.yaml"
touch "$folder/plain"
XDG_CONFIG_HOME=$folder/plain refuses 'cannot make the folder' --ranks 1
(
    unset XDG_CONFIG_HOME HOME
    refuses '--output FILE is needed' --ranks 1
    exit $failed
) || failed=1
exit $failed
