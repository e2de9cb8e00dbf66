# heddle with --device, on the emulated one: right, exit codes, and that a mistake there is noticed.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command=verify
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"

line='bf16[b=2 t=30 s=159 c=16] on [sp=4]: t@sp -> s@sp as b,s,t,c'
says "a wire and no device" 2 "--device is needed" "$line" --wire host
says "no such wire" 2 "--wire wants 'auto', 'peer', 'nccl' or 'host', not 'rope'" "$line" --device cuda --wire rope
says "no such kind" 77 "devices of kind pigeon are not available" "$line" --device pigeon
says "not the form of a device" 2 "a device is 'KIND'" "$line" --device cuda:x

export HEDDLE_MODULE_PATH=${HEDDLE_BUILD:?}/tests/device-sim
[ -e "$HEDDLE_MODULE_PATH/libheddle_cuda.so" ] || skip_test gpu "there is no emulated device on this machine"
HEDDLE_CUDASIM_DEVICES=-1 says "no driver" 77 "no cuda device" "$line" --device cuda
says "no device of that number" 77 "no device cuda:9" "$line" --device cuda:9
for transport in threads shm; do
    says "line on $transport" 0 "1 reshard bitwise right on $transport: 4 ranks" "$line" --device cuda \
        --transport $transport
    grep -q "device cuda:0 (emulated" "$folder/out" || { echo "FAILED: no device named on $transport"; failed=1; }
    says "random on $transport" 0 "20 reshards bitwise right" --random 20 --ranks 3 --transport $transport --seed 3 \
        --device cuda
done
unset CUDA_DEVICE_MAX_CONNECTIONS # the command line sets it
HEDDLE_CUDASIM_CONNECTIONS=1 says "more ranks than connections" 0 "10 reshards bitwise right" --random 10 --ranks 12 --device cuda
says "wire host" 0 "wire host (as asked for)" --random 5 --ranks 2 --device cuda:1 --wire host

says "save" 0 "1 reshard" 'u8[t=2 s=3] on [x=2]: t@x -> s@x(1 2) as s,t' --save "$folder/device" --device cuda
HEDDLE_CUDASIM_MEMORY=4 says "no room on the device" 1 "has no 16777728 bytes" 'u8[t=4096 s=4096] on [sp=1]: t@sp -> s@sp' \
    --device cuda
command=bench
says "bench" 0 '"samples": 8,' 'bf16[t=8 s=64 c=64] on [sp=2]: t@sp -> s@sp' --device cuda --iterations 8 --seconds 0 \
    --json
grep -q '"roofline_kernel": "the device.s copy"' "$folder/out" && grep -q '"bytes_per_rank": 32768,' "$folder/out" || {
    echo "FAILED: bench says:"
    cat "$folder/out"
    failed=1
}
above_zero() { # KEYS of what bench printed
    for key; do
        grep -qE "\"$key\": [0-9.]*[1-9]" "$folder/out" || { echo "FAILED: bench: no $key:"; cat "$folder/out"; failed=1; }
    done
}
timed='device_min_ms device_median_ms roofline_device_min_ms roofline_device_median_ms'
above_zero $timed graph_min_ms graph_median_ms enqueue_min_ms enqueue_median_ms
says "bench by host memory" 0 '"samples": 4,' 'bf16[t=8 s=64 c=64] on [sp=2]: t@sp -> s@sp' --device cuda --wire host \
    --iterations 4 --seconds 0 --json
above_zero $timed
grep -q graph_ "$folder/out" && { echo "FAILED: wire host was timed as a graph"; failed=1; }
HEDDLE_MODULE_PATH=$HEDDLE_BUILD/tests/nccl-sim says "bench by nccl" 0 "by the device's clock, replays" "$line" \
    --device cuda --wire nccl --iterations 4 --seconds 0
HEDDLE_CUDASIM_DEVICES=-1 says "bench without a driver" 77 "no cuda device" "$line" --device cuda
command=verify

example=${HEDDLE_BUILD:?}/example_05_device
"$example" >"$folder/out" 2>&1 || { echo "FAILED: example_05_device exits $?"; cat "$folder/out"; failed=1; }
[ "$(grep -c ': 0 wrong after the switch, 0 in the pass' "$folder/out")" = 4 ] || { cat "$folder/out"; failed=1; }
HEDDLE_CUDASIM_DEVICES=0 "$example" >"$folder/out" 2>&1
[ $? = 77 ] || { echo "FAILED: example_05_device without a device"; cat "$folder/out"; failed=1; }
example=$HEDDLE_BUILD/example_06_device_model
"$example" >"$folder/out" 2>&1 && grep -q "two ranks are bitwise equal to one" "$folder/out" || {
    echo "FAILED: example_06_device_model:"
    cat "$folder/out"
    failed=1
}
HEDDLE_CUDASIM_DEVICES=0 "$example" >"$folder/out" 2>&1
[ $? = 77 ] || { echo "FAILED: example_06_device_model without a device"; cat "$folder/out"; failed=1; }
unset HEDDLE_MODULE_PATH
says "the same on the host" 0 "1 reshard" 'u8[t=2 s=3] on [x=2]: t@x -> s@x(1 2) as s,t' --save "$folder/host"
diff -r "$folder/device" "$folder/host" || { echo "FAILED: saved parts differ"; failed=1; }
exit $failed
