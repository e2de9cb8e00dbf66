#!/usr/bin/env bash
# Everything that is to be known and tested on a machine with a GPU, in one call of less than ten minutes. Wants what
# tests/device/pack.sh has put into build-device/, a driver, and for the comparison PyTorch.
#
#     tests/device/run.sh [OPTIONS] [LOGS]    LOGS: a folder for log.txt and table.txt ($OUT, else build-device/logs)
#         --emulator      on the emulated device instead, with small arrays: does this script work?
#         --only REGEX    the steps whose names match, and the probe
#
# Every step has a time limit, and one that cannot run says why. Exit 0: nothing failed; 1: something did; 77: there is no
# device (all steps that need none have run).
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
pack=${HEDDLE_PACK:-$here/build-device}
emulator=0 only=. logs=${OUT:-$pack/logs}
while [ $# -gt 0 ]; do
    case $1 in
    --emulator) emulator=1 ;;
    --only)
        only=${2:?--only wants a regular expression}
        shift
        ;;
    -*)
        sed -n '2,12s/^# \{0,1\}//p' "$0"
        [ "$1" = --help ] && exit 0
        exit 2
        ;;
    *) logs=$1 ;;
    esac
    shift
done
if [ ! -d "$pack/bin" ] && [ -f "$pack/pack.tar.xz" ]; then
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$pack/pack.tar.xz" "$pack"
fi
[ -x "$pack/bin/heddle" ] || { echo "error: $pack is not there: tests/device/pack.sh fills it" >&2; exit 2; }
mkdir -p "$logs"
log=$logs/log.txt table=$logs/table.txt
: >"$log"
: >"$table"
their_libraries=${LD_LIBRARY_PATH:-} # of torch, whose compiler's C++ library may be newer than the one packed
export PATH=$pack/bin:$PATH LD_LIBRARY_PATH=$pack/lib:$pack/cxx:$their_libraries HEDDLE_MODULE_PATH=$pack/lib
export CUDA_DEVICE_MAX_CONNECTIONS=32 # docs/gpu.md, "Room on a device"
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null) # of PyTorch's wheels
LD_LIBRARY_PATH=$LD_LIBRARY_PATH${nccl:+:$nccl}
export HEDDLE_TEST_DEVICE=cuda HEDDLE_REQUIRE_DEVICE=1
: "${HEDDLE_TEST_ROUNDS:=8}" # percent: ranks that are processes take turns on a GPU
export HEDDLE_TEST_ROUNDS
if [ $emulator = 1 ]; then
    HEDDLE_MODULE_PATH=$pack/emulator
    HEDDLE_TEST_ROUNDS=1
fi

ALL_S=570
failed=0 ran=0
row() { # NAME RESULT...: a line of the table
    printf '%-34s %s\n' "$1" "${*:2}" | tee -a "$table"
}

# LIMIT_S NAME COMMAND...: its last line is its result; its output goes to the log and stays in $said.
step() {
    [[ $2 =~ $only ]] || return 0
    attempt "$@"
}
attempt() { # as step, whatever --only says
    local limit_s=$1 name=$2 code start=$SECONDS left_s=$((ALL_S - SECONDS))
    shift 2
    [ $left_s -ge 5 ] || { said="not here: $ALL_S s are over" && return 77; }
    [ $limit_s -le $left_s ] || limit_s=$left_s
    said=$(timeout -k 5 "$limit_s" "$@" 2>&1)
    code=$?
    printf '== %s: %s\n%s\n-- exit %d, %d s\n' "$name" "$*" "$said" $code $((SECONDS - start)) >>"$log"
    case $code in
    0) ran=$((ran + 1)) ;;
    77) said="not here: $(tail -n 1 <<<"$said")" ;;
    124 | 137) said="FAILED: more than $limit_s s" failed=1 ;;
    *) said="FAILED, exit $code: $(tail -n 1 <<<"$said")" failed=1 ;;
    esac
    return $code
}
tell() { # as step, and the result is told
    [[ $2 =~ $only ]] || return 0
    step "$@"
    row "$2" "$(tail -n 1 <<<"$said")"
}

# --- is there a device?
device=1
attempt 60 probe heddle verify 'u8[t=2 s=2] on [sp=1]: t@sp -> s@sp' --device cuda
case $? in
0) row probe "$(sed -n 's/.*; device \(.*\); rank 0.*/\1/p' <<<"$said")" ;;
77) device=0 && row probe "no device: $said" ;;
*) row probe "$said" ;;
esac
needs_device() { # NAME: say that it cannot run
    [ $device = 0 ] || return 0
    [[ $1 =~ $only ]] && row "$1" "no device"
    return 1
}
needs_gpu() {
    needs_device "$1" || return 1
    [ $emulator = 1 ] || return 0
    [[ $1 =~ $only ]] && row "$1" "not on the emulated device"
    return 1
}

# --- what the machine is like
held=""
if [ $device = 1 ] && [ $emulator = 0 ] && [ -x "$pack/bin/questions" ]; then
    questions 16 >/dev/null 2>&1 & # CUDA starts in a second or more where no process has the device
    held=$!
    trap 'kill $held 2>/dev/null' EXIT
fi
for number in 1 14 15 17 2 3 4 5 9 12 13; do # 14, 15 and 17 decide what the tests of threads may do
    needs_gpu "question $number" || continue
    if [ -x "$pack/bin/questions" ]; then
        tell 30 "question $number" questions $number
    else
        row "question $number" "not here: packed without nvcc"
    fi
done
needs_gpu "question 4, 8 connections" && [ -x "$pack/bin/questions" ] &&
    tell 30 "question 4, 8 connections" env CUDA_DEVICE_MAX_CONNECTIONS=8 questions 4
if needs_gpu "questions 6 7 8"; then
    step 60 "questions 6 7 8" env LD_LIBRARY_PATH="$their_libraries" python3 "$here/tests/device/peers.py" --questions
    [[ "questions 6 7 8" =~ $only ]] && row "questions 6 7 8" "$said"
fi
sanitized() { # LIMIT_S NAME TOOL COMMAND...: no kernel waits for another one there
    local limit_s=$1
    shift
    needs_gpu "$1" || return 0
    if command -v compute-sanitizer >/dev/null; then
        tell "$limit_s" "$1" env HEDDLE_DEVICE_SYNC=events compute-sanitizer --tool "$2" --error-exitcode 9 "${@:3}"
    elif [[ $1 =~ $only ]]; then
        row "$1" "not here: no compute-sanitizer"
    fi
}
step_of_tiny=(heddle run "$here/tests/golden/tiny.yaml" --layers 1 --device cuda --backward)
sanitized 60 "question 10, sanitizer" memcheck heddle verify --random 10 --ranks 4 --device cuda --wire peer
sanitized 60 "blocks under memcheck" memcheck "${step_of_tiny[@]}" --size t=5,s=70,c=64 --ranks 2 \
    --method '*=ring' --dtype bf16
# More than a minute also where rows are few; f32: cuBLAS's own kernels for bf16 do not pass.
sanitized 180 "blocks under racecheck" racecheck "${step_of_tiny[@]}" --size t=3,s=20,l=5 --ranks 1
needs_gpu "question 11, bytes of DRAM" &&
    if command -v ncu >/dev/null; then
        tell 60 "question 11, bytes of DRAM" ncu --clock-control none \
            --metrics dram__bytes_read.sum,dram__bytes_write.sum --launch-count 4 \
            heddle bench 'bf16[t=64 s=1590 c=1152] on [sp=1]: t@sp -> s@sp as s,t,c' --device cuda --iterations 4 --seconds 0
    else
        row "question 11, bytes of DRAM" "not here: no ncu"
    fi

# --- times: percent of the device's own copy of the same bytes in the same process
bench() { # NAME LINE OPTIONS...: by environment `beside`, a command before it
    local name="bench $1"
    needs_device "$name" || return 0
    [[ $name =~ $only ]] || return 0
    local line=$2
    [ $emulator = 0 ] || line=$(sed -E 's/t=[0-9]+ s=[0-9]+/t=9 s=16/' <<<"$line")
    step 40 "$name" ${beside:-} heddle bench "$line" --device cuda "${@:3}" --seconds $((emulator ? 0 : 1)) $([ $emulator = 0 ] || echo --iterations 4) \
        --json
    if [ $? = 0 ]; then
        local graph=$(value graph_median_ms) call=$(value enqueue_median_ms)
        row "$name" "$(value median_ms) ms, $(value roofline_ratio_median) of the copy's $(value roofline_median_ms) ms," \
            "by a graph ${graph:-none}, a call ${call:-?} ms  $line"
    else
        row "$name" "$said"
    fi
}
value() { # of $said
    sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" <<<"$said" | head -n 1
}
bench "1: runs of 2304 bytes" 'bf16[t=64 s=3180 c=1152] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "1: runs of 576 bytes" 'bf16[t=64 s=12720 c=288] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "2: runs of 288 bytes" 'bf16[t=64 s=12720 c=144] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "2: runs of 144 bytes" 'bf16[t=64 s=12720 c=72] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "3: vectors of 8 bytes" 'bf16[t=64 s=12720 c=148] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "3: vectors of 4 bytes" 'bf16[t=64 s=12720 c=146] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "3: vectors of 2 bytes" 'bf16[t=64 s=12720 c=145] on [sp=1]: t@sp -> s@sp as s,t,c'
bench "3: vectors of 1 byte" 'u8[t=64 s=12720 c=145] on [sp=1]: t@sp -> s@sp as s,t,c'
for ranks in 2 4 8; do
    bench "4: even switch, $ranks ranks" "bf16[t=64 s=3200 c=1152] on [sp=$ranks]: t@sp -> s@sp"
    bench "4: uneven switch, $ranks ranks" "bf16[t=63 s=3181 c=1152] on [sp=$ranks]: t@sp -> s@sp"
    bench "7: 1 KiB a pair, $ranks ranks" "u8[t=$((ranks * 4)) s=$((ranks * 4)) c=64] on [sp=$ranks]: t@sp -> s@sp"
    bench "7: 1 MiB a pair, $ranks ranks" "u8[t=$((ranks * 16)) s=$((ranks * 64)) c=1024] on [sp=$ranks]: t@sp -> s@sp"
done
# Two processes on one GPU take turns, unless MPS runs their kernels together.
for size in 1 1024; do
    bench "9: two processes, $size KiB a pair" "u8[t=2 s=$((2 * size)) c=1024] on [sp=2]: t@sp -> s@sp" --transport shm
done
needs_device "bench 9: MPS" && [[ "bench 9: MPS" =~ $only ]] &&
    row "bench 9: MPS" "$(pgrep -f nvidia-cuda-mps >/dev/null 2>&1 && echo on || echo "off (nvidia-cuda-mps-control -d)")"
needs_device "bench 8: blocks for 450 GB/s" && [[ "bench 8: blocks for 450 GB/s" =~ $only ]] &&
    row "bench 8: blocks for 450 GB/s" "not here: wants two GPUs (heddle_reshard_options.device_blocks)"
for ranks in 2 4 8; do
    needs_gpu "bench 5: torch, $ranks ranks" || continue
    step 90 "bench 5: torch, $ranks ranks" env LD_LIBRARY_PATH="$their_libraries" python3 "$here/tests/device/peers.py" 64 3200 1152 $ranks
    [[ "bench 5: torch, $ranks ranks" =~ $only ]] && row "bench 5: torch, $ranks ranks" "$said"
done

# --- tests
export NCCL_MULTI_RANK_GPU_ENABLE=1 # several ranks on one GPU, from NCCL 2.30.3 on
# With channels by NCCL's own choice two ranks fill a GPU; its multicast wants one rank a GPU.
export NCCL_MAX_CTAS=4 NCCL_NVLS_ENABLE=0
by_wire() { # WIRE COMMAND...
    local wire=$1 folder=$HEDDLE_MODULE_PATH
    shift
    [ $emulator = 0 ] || [ "$wire" != nccl ] || folder=$pack/emulator-nccl
    env HEDDLE_TEST_WIRE="$wire" HEDDLE_MODULE_PATH="$folder" LD_LIBRARY_PATH="$folder:$LD_LIBRARY_PATH" "$@"
}
# What a call costs the host where NCCL's do not wait, which begins a thread for each group, and where they do.
for waits in 0 1; do
    folder=$([ $emulator = 1 ] && echo "$pack/emulator-nccl" || echo "$HEDDLE_MODULE_PATH")
    beside="env NCCL_COMM_BLOCKING=$waits HEDDLE_MODULE_PATH=$folder LD_LIBRARY_PATH=$folder:$LD_LIBRARY_PATH" \
        bench "10: nccl, calls $([ $waits = 1 ] && echo "wait" || echo "do not wait"), 1 KiB a pair" \
        'u8[t=8 s=8 c=64] on [sp=2]: t@sp -> s@sp' --wire nccl
done
missing="" # wires that this machine has not
export -f by_wire
export emulator pack
while read -r wire; do # of the tests that are asked for
    [ $device = 1 ] || break
    before_failed=$failed before_ran=$ran # a wire that is not here is no failure
    attempt 60 "wire $wire" bash -c 'by_wire "$@"' by_wire "$wire" heddle verify 'u8[t=2 s=2] on [sp=2]: t@sp -> s@sp' \
        --device cuda --wire "$wire" </dev/null || missing="$missing $wire"
    failed=$before_failed ran=$before_ran
done < <(while read -r program wire; do [[ "test $program@$wire" =~ $only ]] && echo "$wire"; done <"$pack/tests" | sort -u)
while read -r program wire; do
    needs_device "test $program@$wire" || continue
    if [[ " $missing " == *" $wire "* ]]; then
        [[ "test $program@$wire" =~ $only ]] && row "test $program@$wire" "not here: no wire $wire (log.txt says why)"
        continue
    fi
    limit_s=120 percent=$HEDDLE_TEST_ROUNDS
    [ "$program" != test_reshard ] || limit_s=200 percent=1 # a line a mode: most of them have ranks that are processes
    tell $limit_s "test $program@$wire" env HEDDLE_TEST_ROUNDS="$percent" \
        bash -c 'by_wire "$@"' by_wire "$wire" "$program"
done <"$pack/tests"
while read -r program; do
    needs_device "test $program" && tell 90 "test $program" env HEDDLE_TEST_CARD=1 "$program" </dev/null
done <"$pack/tests-of-a-card"
needs_device example && tell 30 example example_05_device
needs_device "run of a model" &&
    tell 60 "run of a model" heddle run "$here/tests/golden/tiny.yaml" --ranks 4 --device cuda --check --backward \
        $([ $emulator = 0 ] || echo --size t=5,s=9)
for transport in threads shm; do
    rounds=$([ $transport = shm ] && echo 40 || echo 200) # processes take turns on a GPU, of milliseconds
    needs_device "verify on $transport" &&
        tell 60 "verify on $transport" heddle verify --random $((emulator ? 20 : rounds)) --ranks 4 --transport $transport \
            --device cuda
done

# The machine as the planner knows it. Times of the emulator are such that a fit may refuse them.
if needs_device calibrate && [[ calibrate =~ $only ]]; then
    rm -f "$logs/machine.yaml"
    step 90 calibrate bash -c 'heddle calibrate --device cuda --transport self --seconds "$1" --output "$2" || [ "$1 $?" = "1 3" ]' \
        calibrate $([ $emulator = 1 ] && echo 1 || echo 20) "$logs/machine.yaml"
    row calibrate "$(sed -n 's/^all  */fit errors of /p; /^launch: /p; /^saved/p' <<<"$said" | paste -sd';')" \
        "$([ -e "$logs/machine.yaml" ] || tail -n 1 <<<"$said")"
fi

# What stages cost beside the device's copy and PyTorch, a line of the table each.
for subject in host rows tail products temporal spatial linear pair compiled; do
    needs_device "blocks: $subject" || continue
    [[ "blocks: $subject" =~ $only ]] || continue
    step $((emulator ? 240 : 90)) "blocks: $subject" env LD_LIBRARY_PATH="$pack/lib:$their_libraries" \
        HEDDLE_PROBE="$pack/lib/libheddle_probe.so" PROBE_EMULATED=$emulator "${HEDDLE_TEST_PYTHON:-python3}" "$here/tests/device/blocks.py" $subject
    if [ $? = 0 ]; then
        tee -a "$table" <<<"$said"
    else
        row "blocks: $subject" "$said"
    fi
done
# Forms of kernels by turns with the library's.
if needs_gpu trials && [[ trials =~ $only ]]; then
    if [ ! -x "$pack/bin/trials" ]; then
        row trials "not here: packed without nvcc"
    elif step 120 trials trials; then
        tee -a "$table" <<<"$said"
    else
        row trials "$said"
    fi
fi
# The ranks take turns on one device: their times say what switches add.
for ranks in 1 2 4; do
    name="blocks: a model, $ranks ranks"
    needs_device "$name" && [[ $name =~ $only ]] || continue
    step 60 "$name" heddle run "$here/examples/models/stdit3-240p-51f.yaml" --layers 1 --ranks $ranks --device cuda \
        $([ $emulator = 0 ] && echo --passes 20 || echo --passes 2 --size t=2,s=3,c=128,l=5)
    row "$name" "$(sed -nE 's/, [0-9]+ threads? per rank$//; /^forward|copied to/p' <<<"$said" | paste -sd';')" \
        "$([ -n "$said" ] || echo nothing)"
done

package() { # NAME SCRIPT ARGUMENTS...: with the Python package
    needs_gpu "$1" || return 0
    if [ -d "$pack/python/heddle" ]; then
        tell 120 "$1" env LD_LIBRARY_PATH="$pack/lib:$their_libraries" PYTHONPATH="$pack/python" \
            HEDDLE_LIBRARY="$(echo "$pack"/lib/libheddle.so.*)" python3 "$here/tests/device/$2" "${@:3}"
    elif [[ $1 =~ $only ]]; then
        row "$1" "not here: packed without the Python package"
    fi
}
package "pool of torch" mem_pool.py
package "kernels of attention" attention_blocks.py
package "attention of torch" torch_attention.py
package "push beside a product" torch_ways.py beside
package "graphs of torch" torch_ways.py graphs
package "Latte on two ranks" torch_ways.py latte

echo "$ran steps ran, $([ $failed = 0 ] && echo none failed || echo some FAILED); all of it is in $log"
[ $failed = 0 ] || exit 1
[ $device = 1 ] || exit 77
