# heddle bench products: rows and layers of models and of one layer, on the CPU and on the emulated device by either kind
# of kernels; what is refused, and the form that works.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command="bench products"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml layer="--rows 40 --in 48 --out 32"

cat >"$folder/reads.py" <<'EOF'
import json, sys
t = json.load(open(sys.argv[1]))
rows = t["products"]
def row(stage, layer, product="forward"):
    found = [r for r in rows if stage in r["stages"].split(", ") and r["layer"] == layer and r["product"] == product]
    assert len(found) == 1, (stage, layer, product)
    return found[0]
def sizes(stage, layer):
    r = row(stage, layer)
    return r["rows"], r["in"], r["out"], r["calls"]
for r in rows:
    assert 0 < r["min_ms"] <= r["median_ms"] and r["samples"] >= 1 and r["repeats"] >= 1, r
    assert r["flop"] == 2 * r["rows"] * r["in"] * r["out"], r
    assert abs(r["gflop_per_s"] - r["flop"] / r["min_ms"] / 1e6) < 1e-3 + 0.01 * r["gflop_per_s"], r
    assert abs(r["ratio_to_best"] - r["gflop_per_s"] / t["best_gflop_per_s"]) < 1e-3, r
assert max(r["ratio_to_best"] for r in rows) == 1
assert len(rows) % 3 == 0 and {r["product"] for r in rows} == {"forward", "input-grad", "weight-grad"}
assert eval(sys.argv[2])
EOF
reads() { # what must be true of the table that was printed
    command -v python3 >/dev/null || return 0
    python3 "$folder/reads.py" "$folder/out" "$1" || { echo "FAILED: not true: $1"; cat "$folder/out"; failed=1; }
}
command -v python3 >/dev/null || not_here python "no python3: JSON is not read back"

# Of 15 frames and 405 places one of two ranks has 8 frames or 203 places. Stages that are alike are timed once.
says "a model" 0 '"heddle-products-1"' "$model" --json --seconds 0
reads 'sizes("s.attn", "qkv") == sizes("t.attn", "qkv") == (6075, 48, 144, 4) and len(rows) == 21'
reads 'sizes("s.mlp", "fc1") == (6075, 48, 192, 4) and sizes("t.mlp", "fc2") == (6075, 192, 48, 4)'
reads 'sizes("s.cross", "kv_linear") == (20, 48, 96, 4) and t["ranks"] == t["threads"] == 1'
says "a rank of two" 0 '"heddle-products-1"' "$model" -n 2 --threads 2 --json --seconds 0
reads 'sizes("s.attn", "qkv") == (3240, 48, 144, 2) and sizes("t.attn", "proj") == (3045, 48, 48, 2)'
reads 't["ranks"] == 2 and t["threads"] == 2 and t["model"] == "stdit3-tiny" and t["left_out"] == ""'
says "a mesh, and another size" 0 '"heddle-products-1"' "$model" --mesh a=2,b=2 --size c=32,heads=2,l=9,b=2 --json --seconds 0
reads 't["ranks"] == 4 and row("s.attn", "qkv")["out"] == 96 and row("s.cross", "kv_linear")["rows"] in (9, 18)'
says "rows" 0 '"heddle-products-1"' "$model" --rows 100 --dtype bf16 --json --seconds 0
reads '{r["rows"] for r in rows} == {100} and row("s.attn", "qkv")["dtype"] == "bf16"'
reads 'all(r["result_dtype"] == "f32" for r in rows if r["product"] != "forward")'
says "text" 0 "s.attn, t.attn: a pass makes each 4 times" "$model" --seconds 0
grep -q '^qkv       forward         6075     48    144 f32>f32 ' "$folder/out" && grep -q 'oneDNN, ' "$folder/out" &&
    grep -q '^of best: GFLOP/s / the best of this table, ' "$folder/out" || { cat "$folder/out"; failed=1; }
# shellcheck disable=SC2086
says "a layer" 0 '"heddle-products-1"' $layer --json --seconds 0
reads 'len(rows) == 3 and sizes("", "given") == (40, 48, 32, 1) and rows[0]["dtype"] == "bf16" and t["model"] == ""'
cat >"$folder/part.yaml" <<'EOF'
model: part
dtype: f32
dims: {b: {size: 1, role: batch}, t: 4, c: {size: 16, role: channel}}
tensors: {x: [b, t, c]}
stages:
  - {name: self, kind: attention, over: t, heads: 2, kv_heads: 1}
  - {name: wide, kind: mlp, ratio: 2}
EOF
says "a stage that no block does" 0 "left out: self has " "$folder/part.yaml" --seconds 0
grep -q '^wide: a pass makes each 1 time$' "$folder/out" || { cat "$folder/out"; failed=1; }

says "nothing" 2 "wants a model, as stdit3-xl2 -n 4, or a layer: --rows 4096 --in 1152 --out 3456"
says "half a layer" 2 "a layer is said by all three: --rows 4096 --in 1152 --out 3456" --in 4 --rows 2
says "both" 2 "--in and --out are of a layer without a model" "$model" --in 4
says "no rows" 2 "--rows wants a whole number from 1 to" --rows 0 --in 4 --out 4
says "no such model" 2 "no model of the library has that name" nothing-like-it
says "rows and ranks" 2 "--rows says how many rows there are, and so would --ranks" "$model" --rows 4 -n 2
says "rows and a mesh" 2 "--rows says how many rows there are, and so would --mesh" "$model" --rows 4 --mesh sp=2
says "a layer's ranks" 2 "--rows says how many rows there are, and so would --ranks" $layer -n 2
says "a layer's size" 2 "--size is of a model's dims; of a layer there are --rows, --in and --out" $layer --size t=3
says "ranks and a mesh" 2 "--ranks 3, but the mesh of the model has 2" "$model" --mesh sp=2 -n 3
says "ranks without -n" 2 "a number of ranks is said as -n 4" "$model" 4
says "no such size" 2 "nothing" "$model" --size nothing=3
says "f16 on the CPU" 2 "--dtype f16 is of blocks on a device: --device is needed" $layer --dtype f16
says "threads of a device" 2 "--threads are those of the CPU: not with --device" $layer --device cuda --threads 2
says "no such type" 2 "--dtype wants 'f32', 'bf16' or 'f16', not 'f64'" $layer --dtype f64
says "no such kind" 77 "devices of kind pigeon are not available" $layer --device pigeon
says "nothing to time" 2 "has no stage that a block does: attn has text that joins the sequence" flux.1-dev

sims=${HEDDLE_BUILD:?}/tests
if [ ! -e "$sims/cublas-sim/libheddle_cuda.so" ]; then
    not_here gpu "there is no emulated device on this machine"
    exit $failed
fi
export HEDDLE_MODULE_PATH=$sims/cublas-sim
says "cuBLAS" 0 '"heddle-products-1"' $layer --device cuda --json --seconds 0
reads 'all(r["kernel"].startswith("cuBLAS, algorithm ") for r in rows) and "device cuda:0 (emulated" in t["comm"]'
reads '[(r["dtype"], r["result_dtype"]) for r in rows] == [("bf16", "bf16"), ("bf16", "f32"), ("bf16", "f32")]'
says "a model there" 0 '"heddle-products-1"' "$model" --rows 9 --size c=16,heads=2 --dtype f16 --device cuda --json --seconds 0
reads 'len(rows) == 21 and t["threads"] == 0 and row("s.attn", "proj", "input-grad")["result_dtype"] == "f16"'
reads '{r["dtype"] for r in rows} == {"f16"}'
export HEDDLE_MODULE_PATH=$sims/device-sim
says "own kernels" 0 "own, tiles of 128 x 128 x 32: there is no libheddle_cublas.so in" $layer --device cuda --seconds 0
HEDDLE_CUDASIM_DEVICES=-1 says "no driver" 77 "no cuda device" $layer --device cuda
says "no device of that number" 77 "no device cuda:9" $layer --device cuda:9
HEDDLE_CUDASIM_MEMORY=4 says "no room on the device" 1 "bytes" --rows 100000 --in 48 --out 32 --device cuda
exit $failed
