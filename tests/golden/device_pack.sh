#!/usr/bin/env bash
# tests/device/pack.sh and run.sh: without a device everything says so, on the emulated one it passes, and a failure is one.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "programs of a sanitizer are not packed"
[ -e "$HEDDLE_BUILD/tests/device-sim/libheddle_cuda.so" ] || skip_test gpu "there is no emulated device on this machine"
. "$HEDDLE_SOURCE/tests/support/work.sh"
export HEDDLE_PACK=$work/pack
cd "$work" || exit 1
unset OUT

bash "$HEDDLE_SOURCE/tests/device/run.sh" "$work/none" >out 2>&1
[ $? = 2 ] && grep -q "pack.sh fills it" out || fail "run.sh without a pack: $(cat out)"
mkdir "$HEDDLE_PACK" && echo mine >"$HEDDLE_PACK/file"
bash "$HEDDLE_SOURCE/tests/device/pack.sh" "$HEDDLE_BUILD" >out 2>&1 && fail "pack.sh emptied a folder of others"
grep -q "was not filled by this script" out && [ -e "$HEDDLE_PACK/file" ] || fail "a folder of others: $(cat out)"
touch "$HEDDLE_PACK/filled-by-pack.sh"
bash "$HEDDLE_SOURCE/tests/device/pack.sh" --archive "$HEDDLE_BUILD" >out 2>&1 || fail "pack.sh: $(cat out)"
[ "$(ls -A "$HEDDLE_PACK" | tr '\n' ' ')" = "filled-by-pack.sh pack.tar.xz " ] || fail "besides the archive: $(ls -A "$HEDDLE_PACK")"
[ "$(stat -c %s "$HEDDLE_PACK/pack.tar.xz")" -lt $((32 << 20)) ] || fail "the archive is as large as what is in it"
bash "$HEDDLE_SOURCE/tests/device/run.sh" --help | grep -q '^    tests/device/run.sh \[OPTIONS\]' || fail "run.sh --help"
run() { # EXIT ARGUMENTS...
    local wanted=$1
    shift
    bash "$HEDDLE_SOURCE/tests/device/run.sh" "$@" "$work/logs" >out 2>&1
    local code=$?
    [ $code = "$wanted" ] || fail "run.sh $* exits $code: $(cat out)"
}
if [ ! -e /dev/nvidia0 ]; then
    run 77 --only 'bench 7'
    grep -q '^probe .*no device' logs/table.txt && [ "$(wc -l <logs/table.txt)" = 7 ] || fail "some steps only: $(cat out)"
    run 77
    grep -q "no cuda device: there is no NVIDIA driver" logs/table.txt || fail "no reason: $(cat out)"
    [ "$(grep -c 'no device$' logs/table.txt)" -ge 40 ] || fail "few steps: $(cat out)"
    while read -r steps; do # that a document names
        run 77 --only "$steps"
        [ "$(wc -l <logs/table.txt)" -gt 1 ] || fail "docs: no step is called '$steps'"
    done < <(sed -nE "s/.*tests\/device\/run\.sh --only '([^']*)'.*/\1/p" "$HEDDLE_SOURCE"/docs/*.md)
fi
if "${HEDDLE_TEST_PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
    run 0 --emulator --only 'blocks: (rows|host)'
    grep -q '^rows: norm_modulate .* of the copy' logs/table.txt || fail "no rows of blocks: $(cat out)"
    grep -q '^host: us a stage, mlp .*backward' logs/table.txt || fail "no costs of the host: $(cat out)"
fi
run 0 --emulator --only 'example'
grep -q '^== wire' logs/log.txt && fail "wires were tried that no test wants: $(cat logs/log.txt)"
run 0 --emulator --only 'probe|question 1$|test_session@|on_device_executor|example|run of a|verify on threads|pool of|kernels of|Latte|bench 7: 1 KiB a pair, 2|bench 9|bench 10|blocks: a model, 2'
for result in 'probe .*emulated device' 'question 1 .*not on the emulated' 'pool of torch .*not on the emulated' \
    'kernels of attention .*not on the emulated' 'test_session@auto .* 0 failed' \
    'test_session@nccl .* 0 failed' 'test_on_device_executor .* 0 failed' \
    'example .*in the pass' 'run of a model .*equal within the tolerance to one rank' \
    'verify on threads .*20 reshards bitwise right' 'bench 7.* ms, [0-9.]* of the copy.* by a graph [0-9.]*, a call [0-9.]* ms' 'bench 9: two processes, 1 KiB .* a call [0-9.]* ms' \
    'bench 10: nccl, calls wait.* a call [0-9.]* ms' 'bench 10: nccl, calls do not.* a call [0-9.]* ms' \
    'blocks: a model, 2 ranks .*forward in one go [0-9.]* ms (the fastest of 2 passes; .*, by a graph [0-9.]* ms (median ' \
    'Latte on two ranks .*not on the emulated'; do
    grep -q "$result" logs/table.txt || fail "no '$result' in: $(cat out)"
done
printf '#!/bin/sh\necho broken\nexit 3\n' >"$HEDDLE_PACK/bin/example_05_device"
run 1 --emulator --only 'example'
grep -q 'example .*FAILED, exit 3: broken' logs/table.txt || fail "a failure is not told: $(cat out)"
exit $failed
