# heddle calibrate --device, on the emulated one: every operation there, the file and plans by it, wires, who makes
# products, ranks that share a device; what is refused. Times of the emulator mean nothing.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command=calibrate
limit_s=300
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
command -v python3 >/dev/null || not_here python "no python3: JSON is not read back"
export XDG_CONFIG_HOME=$folder/config HOME=$folder/home
file=$folder/machine.yaml

says "a wire and no device" 2 "--wire is how bytes go between devices: --device is needed" --wire peer --output "$file"
says "no such wire" 2 "--wire wants 'auto', 'peer', 'nccl' or 'host', not 'rope'" --device cuda --wire rope
says "no such kind" 77 "devices of kind pigeon are not available" --device pigeon --ranks 1 --output "$file"
says "not the form of a device" 2 "a device is 'KIND'" --device cuda:x --ranks 1 --output "$file"

sims=${HEDDLE_BUILD:?}/tests
[ -e "$sims/device-sim/libheddle_cuda.so" ] || skip_test gpu "there is no emulated device on this machine"
export HEDDLE_MODULE_PATH=$sims/device-sim
HEDDLE_CUDASIM_DEVICES=-1 says "no driver" 77 "no cuda device" --device cuda --ranks 1 --output "$file"
says "no device of that number" 77 "no device cuda:9" --device cuda:9 --ranks 1 --output "$file"
says "no such wire here" 77 "there is no libheddle_nccl.so in" --device cuda --ranks 2 --wire nccl --output "$file"
HEDDLE_CUDASIM_MEMORY=4 says "a device with memory" 0 "memory of a rank: 0.0 GiB" --device cuda --transport self --seconds 1 \
    --output "$folder/small.yaml"
[ ! -e "$file" ] || { echo "FAILED: a file of what was refused"; failed=1; }

# Times that no rates explain are refused with a sentence; where a machine is that busy it is asked again.
measured() { # WHAT ARGUMENTS...: $folder/out; 1: the machine was never quiet enough for that
    local what=$1 code
    shift
    for _ in 1 2 3; do
        within "$limit_s" "$HEDDLE" calibrate --device cuda --seconds 1 --output "$file" "$@" >"$folder/out" 2>"$folder/said"
        code=$?
        [ $code -eq 0 ] && return 0
        if [ $code -ne 3 ] || ! grep -Eq 'no rates explain them|did not come to an end' "$folder/said"; then
            echo "FAILED $what: exit $code: $(cat "$folder/said")"
            failed=1
            return 1
        fi
    done
    echo "not judged: $what: $(tail -1 "$folder/said")"
    return 1
}
has() { # FILE TEXT...
    local in=$1
    shift
    for text; do
        grep -qF -- "$text" "$in" || { echo "FAILED: no '$text' in:"; cat "$in"; failed=1; }
    done
}
plans() { # RANKS; a model without a serial part, which would take such a machine months
    "$HEDDLE" plan timesformer --mesh sp="$1" --machine "$file" >"$folder/plan" 2>&1 || {
        echo "FAILED: no plan of $1 by the file:"
        cat "$folder/plan" "$file"
        failed=1
    }
    ! grep -q 'not measured' "$folder/plan" || { echo "FAILED: the plan says that nothing was measured"; failed=1; }
}

if measured "one rank" --transport self; then
    for operation in mlp attention cross linear sharded copy launch all; do
        grep -Eq "^$operation +[0-9]+ +[0-9.]+% +[0-9.]+%$" "$folder/out" || { echo "FAILED: no error of $operation"; failed=1; }
    done
    has "$folder/out" "device cuda:0 (emulated device" "products of bf16: own, tiles" "memory of a rank: 4.0 GiB"
    has "$folder/said" "operations were so small that a device does little but launch them"
    has "$file" "calibrated: true" "on_device: true" "memory_bytes: 4294967296" "device cuda:0 (emulated device" "link: self"
    grep -Eq '^    bf16: \{start_s: [0-9.e-]*[1-9][0-9.e-]*, rates: ' "$file" || { echo "FAILED: no launch cost"; failed=1; }
    plans 1
fi
for wire in peer host nccl; do
    [ $wire != nccl ] || export HEDDLE_MODULE_PATH=$sims/nccl-sim
    measured "wire $wire" --ranks 2 --wire $wire --json || continue
    ! command -v python3 >/dev/null || python3 - "$folder/out" $wire <<'PYTHON' || { cat "$folder/out"; failed=1; }
import json, sys
told = json.load(open(sys.argv[1]))
assert told["wire"] == sys.argv[2] and told["devices"] == 2 and told["memory_bytes"] == 1 << 32 and told["coreless"] == 0
assert told["launch_s"] > 0 and told["products"].startswith("own, tiles"), told["products"]
operations = told["operations"]
kinds = "mlp attention cross linear sharded copy launch switch hop gather sum"
assert [o["operation"] for i, o in enumerate(operations) if o["operation"] not in {p["operation"] for p in operations[:i]}] == kinds.split()
for o in operations:
    assert o["time_s"] > 0 and o["fitted_s"] > 0 and o["times"] >= 2, o
    assert abs(o["fitted_s"] / o["time_s"] - 1 - o["error"]) < 1e-3, o
    assert (o["ranks"] == 2) == (o["operation"] in ("switch", "hop", "gather", "sum")), o
    if o["ranks"] == 2: # as many as asked for
        assert o["bytes"] == 1024 * int(o["size"].split()[0]), o
PYTHON
    has "$file" "ranks: 2" "link: $wire}" "wire $wire (" "all_to_all:" "ring:" "all_gather:" "reduce_scatter:"
    plans 2
done
export HEDDLE_MODULE_PATH=$sims/device-sim
if HEDDLE_CUDASIM_DEVICES=1 measured "three ranks of one device" --ranks 3; then
    has "$folder/said" "3 ranks share 1 device: the machine is as slow as this"
    has "$folder/out" "memory of a rank: 1.3 GiB"
    grep -Eq '^hop +256 KiB, 3 ranks ' "$folder/out" || { echo "FAILED: no hop of three ranks"; failed=1; }
    has "$file" "ranks shared devices" "ranks: 3" "memory_bytes: 1431655765"
    plans 3
fi
export HEDDLE_MODULE_PATH=$sims/cublas-sim
! measured "cuBLAS" --transport self || has "$folder/out" "products of bf16: cuBLAS, algorithm "
exit $failed
