#!/usr/bin/env bash
# heddle presets: what is known by name, and models by name where a file would do.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"

says "table" 0 "hunyuanvideo           60     3072    24    118800   256  12.5 G   no diffusers, transformer_hun..." presets
awk 'length > 100 { print "FAILED: a line of " length ": " $0; bad = 1 } END { exit bad }' "$folder/out" || failed=1
says "machines" 0 "8xh100-nvlink" presets
says "a file" 0 "model: wan2.1-14b" presets Wan2.1-14B
head -1 "$folder/out" | grep -q '^# Wan 2.1 14B, text to video' || { echo "FAILED: a preset without its comment"; failed=1; }
says "a machine's file" 0 "nvlink" presets 8xh100-nvlink
says "near" 2 "no model of the library has the name 'hunyuanvidoe': did you mean hunyuanvideo?" presets hunyuanvidoe
says "none" 2 "no model of the library has the name 'llama' (heddle presets lists them)" presets llama
says "two" 2 "presets wants one name, found 2" presets a b
"$HEDDLE" presets --json >"$folder/all.json" && "$HEDDLE" presets mochi --json >"$folder/mochi.json" || failed=1
python3 - "$folder" <<'END' || failed=1
import json, sys
folder = sys.argv[1]
answer = json.load(open(folder + "/all.json"))
assert answer["schema"] == "heddle-presets-1", answer["schema"]
models = {m["name"]: m for m in answer["models"]}
assert len(models) > 25
assert models["wan2.1-1.3b"]["batch"] == 2 and models["wan2.1-1.3b"]["tokens"] == 32760 and models["wan2.1-1.3b"]["runs"]
assert not models["hunyuanvideo"]["runs"] and models["hunyuanvideo"]["parameters"] == 60 * 22 * 3072 * 3072
assert all(m["source"] for m in answer["models"]), "a model without a source"
assert any(m["name"] == "8xh100-nvlink" and m["ranks"] == 8 for m in answer["machines"])
one = json.load(open(folder + "/mochi.json"))["models"]
assert len(one) == 1 and one[0]["yaml"].startswith("# Mochi 1") and "repeat: 48" in one[0]["yaml"]
END

# What is printed is a model file, and every command takes a name where it takes a file.
"$HEDDLE" presets latte >"$folder/mine.yaml"
"$HEDDLE" plan "$folder/mine.yaml" --mesh sp=4 --json >"$folder/a" && "$HEDDLE" plan latte-xl2 --mesh sp=4 --json >"$folder/b"
cmp -s "$folder/a" "$folder/b" || { echo "FAILED: latte-xl2 by file and by name differ"; failed=1; }
for name in $("$HEDDLE" presets --json | python3 -c 'import json, sys; print(*[m["name"] for m in json.load(sys.stdin)["models"]])'); do
    says "plan $name" 0 "forward pass" plan "$name" --mesh sp=8
done
says "no such name" 2 "cannot be opened: No such file or directory, and no model of the library has that name: did you mean mochi?" \
    plan moche --mesh sp=2

while read -r name near; do # as cards of models write names
    says "$name" 2 "did you mean $near?" plan "$name" -n 2
done <<'END'
tencent/HunyuanVideo hunyuanvideo
Wan-AI/Wan2.1-T2V-14B-Diffusers wan2.1-14b
Wan2.1-T2V-1.3B wan2.1-1.3b
wan-14b wan2.1-14b
black-forest-labs/FLUX.1-dev flux.1-dev
stabilityai/stable-diffusion-3-medium sd3-medium
THUDM/CogVideoX-5b cogvideox-5b
genmo/mochi-1-preview mochi
open-sora-1.2 stdit3-3b or stdit3-240p-51f or stdit3-480p-102f or stdit3-720p-204f or stdit3-xl2
END

# What blocks do not do is planned and not run.
says "joined text" 2 "model 'hunyuanvideo' can be planned, but not run: stage 'attn' has text that joins the sequence" \
    run hunyuanvideo --ranks 2 --size s=64,l=8 --layers 1
says "causal" 2 "stage 'attn' has causal softmax attention, which no block does yet" run gpt-like --ranks 2 --size s=64 --layers 1
says "several dims" 2 "stage 'fine0' has kind module" run pangu-like --ranks 2
says "a preset runs" 0 "check: equal within the tolerance to one rank" run wan2.1-1.3b --ranks 2 --size b=1,s=48,l=8 --layers 1 --check
exit $failed
