#!/usr/bin/env bash
# Pictures and reports as a browser shows them: something is on the page, and no text lies over another or out of it.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no python3"
command -v chromium >/dev/null || skip_test chromium "no chromium (Debian: chromium)"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
models=$HEDDLE_SOURCE/examples/models
draw() {
    within 120 "$HEDDLE" draw "$@" || exit 1
}
draw "$models/stdit3-xl2.yaml" --mesh sp=4 -o "$folder/plain.svg"
draw "$models/stdit3-xl2.yaml" --mesh node=2,sp=4 --size b=2 --machine 2x8xh100-nvlink+ib400 -o "$folder/axes.svg"
draw "$models/axial-3d.yaml" --mesh sp=4 --machine 2x8xh100-nvlink+ib400 -o "$folder/axial.svg"
draw "$models/hybrid-mixed.yaml" --mesh sp=8 --machine 2x8xh100-nvlink+ib400 -o "$folder/rows.svg"
draw "$models/stdit3-xl2.yaml" --mesh sp=4 --method s.attn=ring --machine 8xh100-nvlink -o "$folder/method.svg"
draw hunyuanvideo --mesh r=2,u=8 --machine 2x8xh100-nvlink+ib400 -o "$folder/fused.svg"
draw "$models/stdit3-xl2.yaml" --mesh sp=4 --machine 8xh100-nvlink --curves 8 -o "$folder/report.html"
python3 "$HEDDLE_SOURCE/tests/golden/draw_browser.py" "$folder"
