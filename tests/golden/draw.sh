#!/usr/bin/env bash
# heddle draw: pictures and pages are whole and load nothing, a timeline adds up to the forecast, and what cannot be
# drawn is refused.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
command=draw
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
models=$HEDDLE_SOURCE/examples/models
xl=$models/stdit3-xl2.yaml
tiny=$HEDDLE_SOURCE/tests/golden/tiny.yaml
h100="--machine 2x8xh100-nvlink+ib400"

says "no output" 2 "wants -o FILE, which ends in .svg" "$xl" --mesh sp=4
says "JSON" 2 "'--json': what it makes is the file of --output" "$xl" --mesh sp=4 --json -o "$folder/a.svg"
says "another form" 2 "not '$folder/a.png'" "$xl" --mesh sp=4 -o "$folder/a.png"
says "no mesh" 2 "wants --mesh, for example" "$xl" -o "$folder/a.svg"
says "measured" 2 "--measured is for a timeline" "$xl" --mesh sp=4 -o "$folder/a.svg" --measured "$folder/none"
"$HEDDLE" plan "$xl" --mesh sp=4 --objective bytes -o "$folder/s.json" >/dev/null || failed=1
sed -E 's/, "predicted_s": [0-9.e-]+//' "$folder/s.json" >"$folder/bare.json"
says "no seconds" 2 "a timeline wants seconds" "$folder/bare.json" -o "$folder/a.json"
says "no folder" 2 "cannot be written" "$xl" --mesh sp=4 -o "$folder/none/a.svg"
if [ -e "$folder/a.json" ]; then
    echo "FAILED a timeline that could not be drawn is left"
    failed=1
fi
ln -s /dev/full "$folder/full.svg"
says "full disk" 1 "full.svg: cannot be written" "$xl" --mesh sp=4 -o "$folder/full.svg"

draws() { # WHAT ARGUMENTS...: it exits with 0 and says nothing
    local what=$1
    shift
    if ! within 120 "$HEDDLE" draw "$@" >"$folder/out" 2>&1 || [ -s "$folder/out" ]; then
        echo "FAILED $what:"
        cat "$folder/out"
        failed=1
    fi
}
# shellcheck disable=SC2086
{
    draws "picture" "$folder/bare.json" -o "$folder/xl.svg"
    draws "the best mesh" hunyuanvideo -n 16 $h100 --training -o "$folder/ranks.svg"
    draws "two axes" "$xl" --mesh node=2,sp=4 --size b=2 -o "$folder/two.svg"
    draws "with seconds" "$models/axial-3d.yaml" --mesh sp=4 $h100 -o "$folder/axial.svg"
    draws "rows" "$models/hybrid-mixed.yaml" --mesh sp=8 $h100 -o "$folder/hybrid.svg"
    draws "report" "$xl" --mesh sp=4 $h100 --curves 4 -o "$folder/xl.html"
    draws "training" gpt-like --mesh sp=8 --machine 8xa100-nvlink --training -o "$folder/training.html"
    draws "timeline" "$xl" --mesh sp=4 $h100 -o "$folder/xl.json"
}
draws "other links" axial-3d --mesh sp=4 --machine 8xh100-nvlink --links nvlink=0.5 -o "$folder/links.svg"
grep -q "8xh100-nvlink with links nvlink=0.5" "$folder/links.svg" || {
    echo "FAILED a picture does not say of what links it is"
    failed=1
}
draws "a schedule's file" "$folder/s.json" -o "$folder/file.svg"
"$HEDDLE" plan hunyuanvideo -n 16 $h100 --json >"$folder/plan.json" || failed=1
draws "what plan printed" "$folder/plan.json" -o "$folder/printed.svg"
says "does not fit" 3 "are allowed" hunyuanvideo -n 16 $h100 --memory 1G -o "$folder/a.svg"

# What a text from a file may hold does no harm.
sed 's/"note": "[^"]*"/"note": "<script>alert(1)<\/script>\&\\"'"'"'\\u0001"/' "$folder/s.json" >"$folder/evil.json"
draws "a note" "$folder/evil.json" -o "$folder/evil.html"

# A measured run beside the forecast.
"$HEDDLE" plan "$tiny" --mesh sp=2 -o "$folder/tiny.json" >/dev/null || failed=1
within 120 "$HEDDLE" run "$tiny" --schedule "$folder/tiny.json" --json >"$folder/run.json" || failed=1
draws "measured beside" "$tiny" --schedule "$folder/tiny.json" --machine cpu -o "$folder/both.json" \
    --measured "$folder/run.json"
says "of another schedule" 5 "it is of another schedule" "$xl" --mesh sp=2 --machine cpu -o "$folder/other.json" \
    --measured "$folder/run.json"
says "no run" 2 "not what heddle run --json prints" "$tiny" --mesh sp=2 --machine cpu -o "$folder/other.json" \
    --measured <(echo '{"a": 1}')
says "no file" 2 "cannot be opened" "$tiny" --mesh sp=2 --machine cpu -o "$folder/other.json" --measured "$folder/none"

if command -v python3 >/dev/null; then
    python3 "$HEDDLE_SOURCE/tests/golden/draw.py" "$folder" || failed=1
else
    not_here python "no python3: the files are not read back"
fi
exit $failed
