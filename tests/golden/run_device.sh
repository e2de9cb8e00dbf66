# heddle run --device, on the emulated one: blocks on the device have one rank's bits there, and nothing is copied; with
# --blocks host the same bits and bytes as in host memory by every wire, forward and back; what is copied is said; exit
# codes.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command=run
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
model=$HEDDLE_SOURCE/tests/golden/tiny.yaml

says "a wire and no device" 2 "--device is needed" "$model" --ranks 2 --wire host
says "no such wire" 2 "--wire wants 'auto', 'peer', 'nccl' or 'host', not 'rope'" "$model" --device cuda --wire rope
says "no such kind" 77 "devices of kind pigeon are not available" "$model" --ranks 2 --device pigeon
says "not the form of a device" 2 "a device is 'KIND'" "$model" --ranks 2 --device cuda:x
says "usage" 0 "blocks compute on this device, and switches are done in its memory" --help
says "blocks and no device" 2 "--device is needed" "$model" --ranks 2 --blocks host

export HEDDLE_MODULE_PATH=${HEDDLE_BUILD:?}/tests/nccl-sim
[ -e "$HEDDLE_MODULE_PATH/libheddle_cuda.so" ] || skip_test gpu "there is no emulated device on this machine"
HEDDLE_CUDASIM_DEVICES=-1 says "no driver" 77 "no cuda device" "$model" --ranks 2 --device cuda
says "no device of that number" 77 "no device cuda:9" "$model" --ranks 2 --device cuda:9
HEDDLE_NCCLSIM_VERSION=21303 says "no such wire here" 77 "wire nccl: " "$model" --ranks 2 --device cuda --wire nccl
HEDDLE_CUDASIM_MEMORY=1 says "no room on the device" 1 "bytes" "$model" --ranks 2 --layers 1 --device cuda --wire peer

has() { # LINE that the last run said
    grep -qF -- "$1" "$folder/out" || { echo "FAILED: no '$1' in:"; cat "$folder/out"; failed=1; }
}
# Of an activation of W = 388800 bytes 3 switches take W and give W, the gather at the end takes W and gives 3 W.
small() { # as says, on a third of the model's tokens
    says "${@:1:3}" "$model" --size t=15,s=135 "${@:4}"
}
cpu() { # as small, blocks on the CPU
    small "$@" --blocks host
}
bits="check: bitwise equal to one rank"
bytes="check: bytes sent = bytes planned for 3 ranks x 13 edges (1555200 bytes)"
cpu "peer, threads" 0 "$bits" --ranks 3 --device cuda --check --passes 2
has "$bytes"
has "blocks on the CPU; switches on cuda:0, cuda:1 by wire peer, copied at both ends: 3888000 bytes of all ranks"
has "; device cuda:0 (emulated device, sm_90, 4.0 GiB), one of 2, shared by 2 ranks, wire peer (the fastest)"
cpu "peer, shm" 0 "$bits" --ranks 3 --device cuda:1 --wire peer --transport shm --check
has "$bytes"
has "switches on cuda:1 by wire peer, copied at both ends: 3888000 bytes"
cpu "host" 0 "$bits" --ranks 3 --device cuda --wire host --check
has "$bytes"
has "switches on cuda:0, cuda:1 by wire host, copied at both ends: 3888000 bytes"
# The way back takes 3 W of the loss for the first W, and 3 switches.
HEDDLE_CUDASIM_DEVICES=4 cpu "nccl, back" 0 "check: gradient of the input: bitwise equal to one rank" --ranks 3 \
    --device cuda --wire nccl --check --backward
has "$bits"
has "$bytes"
has "(777600 bytes) and the gradients (2420736 bytes)"
has "switches on cuda:0, cuda:1, cuda:2 by wire nccl, copied at both ends: 7776000 bytes"
cpu "peer, back" 0 "check: gradient of the input: bitwise equal to one rank" --ranks 4 --device cuda --wire peer \
    --transport shm --check --backward --recompute --layers 1 --dtype bf16
says "ranks without rows" 0 "equal within" "$model" --ranks 7 --size t=3,s=2 --layers 1 --device cuda --blocks host --check
cpu "a method" 0 "equal within" --ranks 3 --layers 1 --device cuda --check --backward --method s.attn=ring
cpu "one rank" 0 "copied at both ends: 777600 bytes" --ranks 1 --layers 1 --device cuda --check

cpu "json" 0 '"switches_on": "cuda:0, cuda:1", "blocks_on": "cpu", "wire": "peer"' --ranks 3 --device cuda --check \
    --json --backward \
    --output "$folder/device.npy"
[ "$(grep -o '"bytes_copied": 3888000' "$folder/out" | wc -l)" = 2 ] || { echo "FAILED: json:"; cat "$folder/out"; failed=1; }
small "the same on the host" 0 '"bytes_copied": 0' --ranks 3 --json --output "$folder/host.npy"
grep -q switches_on "$folder/out" && { echo "FAILED: host memory is called a device"; failed=1; }
cmp "$folder/device.npy" "$folder/host.npy" || { echo "FAILED: other results than in host memory"; failed=1; }

# Blocks there: of a small part, emulated threads take their time.
there() { # as says
    says "${@:1:3}" "$model" --size t=5,s=14 --layers 1 --device cuda "${@:4}"
}
for ranks in 1 2 3 4; do
    there "blocks there, $ranks" 0 "$bits" --ranks $ranks --check --output "$folder/$ranks.npy"
    has "copied to and from host memory: 0 bytes"
    cmp "$folder/1.npy" "$folder/$ranks.npy" || { echo "FAILED: other bits than on one rank"; failed=1; }
done
told() { # HOW: what the last run said of both ways in one go
    for way in forward backward; do
        grep -qE "^$way in one go [0-9.]+ ms \(the fastest of 2 passes; median [0-9.]+ ms\)$1\$" "$folder/out" || { echo "FAILED: no '$way in one go ms$1':"; cat "$folder/out"; failed=1; }
    done
}
there "blocks there, back" 0 "check: gradient of the input: bitwise equal to one rank" --ranks 3 --check --backward --wire peer
has "$bits"
has "check: bytes sent = bytes planned for 3 ranks"
has "blocks and switches on cuda:0, cuda:1 by wire peer, copied to and from host memory: 0 bytes"
! grep -q "in one go" "$folder/out" || { echo "FAILED: weights of all layers were kept for one pass"; failed=1; }
there "blocks there, passes" 0 "$bits" --ranks 1 --check --backward --passes 2 --layers 2
told ", by a graph [0-9.]+ ms \\(median [0-9.]+ ms\\)"
# Weights of all layers that a device has no room for; of one layer at a time it has.
HEDDLE_CUDASIM_MEMORY=2 there "weights without room" 1 "for --passes above 1 the weights of all 12 layers lie there, --layers runs fewer" \
    --ranks 2 --passes 2 --layers 12
HEDDLE_CUDASIM_MEMORY=2 there "weights without room, back" 1 "for --backward the weights of all 12 layers lie there, --layers runs fewer" \
    --ranks 2 --backward --layers 12
HEDDLE_CUDASIM_MEMORY=2 there "weights of a layer at a time" 0 "$bits" --ranks 2 --layers 12 --check
# What a terminal is told while passes are under way.
python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' "$HEDDLE" run "$model" --size t=5,s=14 --layers 1 --device cuda --ranks 2 \
    --passes 2 </dev/null >"$folder/out" 2>&1
for place in "pass 2/2  layer 1/1  t.mlp" "pass 1/2  in one go" "pass 2/2  by a graph"; do has "$place"; done
there "blocks there, a wire that waits" 0 "$bits" --ranks 3 --check --backward --wire host --passes 2
told ", by no graph: wire host waits on the host"
HEDDLE_DEVICE_SYNC=events there "blocks there, streams that wait" 0 "$bits" --ranks 2 --check --backward --wire peer --passes 2
told ", by no graph: wire peer waits on the host"
there "blocks there, nccl" 0 "$bits" --ranks 2 --check --backward --wire nccl --passes 2
told ", by a graph [0-9.]+ ms \\(median [0-9.]+ ms\\)"
says "blocks there, bf16" 0 "$bits" "$model" --size t=5,s=14,c=64 --layers 1 --device cuda --ranks 2 --check --backward \
    --recompute --dtype bf16 --transport shm
there "blocks there, apart" 0 "$bits" --ranks 3 --check --wire peer --fused no --output "$folder/apart.npy"
! grep -q "fused push" "$folder/out" || { echo "FAILED: fused all the same"; failed=1; }
cmp "$folder/1.npy" "$folder/apart.npy" || { echo "FAILED: other bits with switches apart"; failed=1; }
there "blocks there, fused" 0 "fused push" --ranks 3 --wire peer --output "$folder/fused.npy"
cmp "$folder/1.npy" "$folder/fused.npy" || { echo "FAILED: other bits with fused switches"; failed=1; }
says "a fused switch and no device" 2 "which is needed" "$model" --ranks 2 --fused no
there "blocks there, json" 0 '"blocks_on": "cuda:0, cuda:1"' --ranks 2 --json --passes 2
has '"graph_median_ms": '
cpu "blocks there no more" 0 '"blocks_on": "cpu"' --ranks 2 --layers 1 --device cuda --json
! grep -qE "in_one_go|graph" "$folder/out" || { echo "FAILED: blocks of the CPU in one go"; failed=1; }
there "a method there" 0 "check: equal within the tolerance to one rank" --ranks 3 --check --backward --method s.attn=ring
has "check: bytes sent = bytes planned for 3 ranks"
has "copied to and from host memory: 0 bytes"
says "linear attention there" 0 "check: gradient of the input: equal within" "$HEDDLE_SOURCE/examples/models/hybrid-linear.yaml" \
    --size t=9,s=4,c=64,heads=2 --layers 1 --ranks 3 --device cuda --check --backward --method t.lin=lasp
has "check: bytes sent = bytes planned for 3 ranks"
has "copied to and from host memory: 0 bytes"
there "heads dealt there" 0 "$bits" --ranks 2 --check --method s.attn=ulysses
there "a method of the host" 77 "method rsa works in host memory only" --ranks 3 --method s.attn=rsa

says "a rank dies" 1 "rank 1" "$model" --ranks 3 --device cuda --blocks host --transport "fault(kill=60@1):shm" --passes 1000000 \
    --deadline 3600 --layers 1
if have_mpi; then
    says "several hosts, wire peer" 77 "wire peer" "$model" --ranks 2 --layers 1 --device cuda --blocks host \
    --wire peer --transport mpi \
        --hosts 2
    small "several hosts" 0 "$bits" --ranks 2 --layers 1 --device cuda --blocks host --wire host --transport mpi --hosts 2 --check
    has "by wire host"
    # A rank takes the device of its number on its host.
    places() { # as says
        HEDDLE_CUDASIM_DEVICES=4 there "${@:1:3}" --transport mpi --ranks 4 "${@:4}"
    }
    places "places, one host" 0 "blocks and switches on cuda:0, cuda:1, cuda:2, cuda:3 by wire peer"
    has "; device cuda:0 (emulated device, sm_90, 4.0 GiB), one of 4, wire peer (the fastest)"
    places "places, two hosts" 0 "blocks and switches on cuda:0, cuda:1 by wire host" --hosts 2 --wire host
    HEDDLE_CUDASIM_DEVICES=1 there "places, one device" 0 "emulated device, sm_90, 4.0 GiB), shared by 2 ranks, wire host" --transport mpi \
        --ranks 2 --wire host
fi
exit $failed
