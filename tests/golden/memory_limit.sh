#!/usr/bin/env bash
# A control group with less memory than a reshard wants: every rank says so, nobody is killed, and what fits runs.
set -uo pipefail
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}" "${HEDDLE_BUILD:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
. "$HEDDLE_SOURCE/tests/support/work.sh"
. "$HEDDLE_SOURCE/tests/support/memory_group.sh"
is_sanitized && skip_test sanitizer "its own memory is many times the program's"
group=$(memory_group heddle-test-$$ 400000000) || skip_test cgroup "no control group with a limit of memory can be made here"
# A group goes when its last process has been seen off, which takes a moment.
trap 'for i in 1 2 3 4 5 6 7 8 9; do rmdir "$group" 2>/dev/null && break; sleep 0.2; done; rm -rf "$work"' EXIT

# limited CODE WORDS ARGUMENTS...: in the group, output in $work/out
limited() {
    local wanted=$1 words=$2
    shift 2
    (echo "$BASHPID" >"$group/cgroup.procs" && within 60 "$HEDDLE" "$@") >"$work/out" 2>&1 </dev/null
    local code=$?
    [ $code = "$wanted" ] || fail "heddle $*: exit $code, wanted $wanted: $(cat "$work/out")"
    grep -q "$words" "$work/out" || fail "heddle $*: no '$words': $(cat "$work/out")"
}
for transport in shm threads; do
    # 1080 MB of buffers in turns of 180; 360 MB, which fit until the trials want theirs
    for round in 1 2; do
        limited 1 "out of memory: a buffer, .* the control group .*${group##*/} has .* left" \
            verify 'f32[t=9000 s=15000] on [sp=3]: t@sp -> s@sp' --transport $transport
    done
    limited 2 "arrays in private memory: 1080000000 bytes on 3 ranks, available are .* (the control group .*${group##*/})" \
        verify 'f32[t=9000 s=15000] on [sp=3]: t@sp -> s@sp' --transport $transport --memory any
    limited 1 "the control group .*${group##*/} has" verify 'f32[t=5000 s=9000] on [sp=3]: t@sp -> s@sp' --transport $transport
done
limited 0 "bitwise right" verify 'f32[t=1500 s=3000] on [sp=3]: t@sp -> s@sp' --transport shm
exit $failed
