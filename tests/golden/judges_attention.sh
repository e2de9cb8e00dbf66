#!/usr/bin/env bash
# Judges that can fail: heddle verify attention and verify linear-attention with one result spoilt on one rank. Each has
# to end in exit code 5 and say which number of which rank is off, and by how much; unspoilt, in exit code 0.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/within.sh"
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}"
failed=0
library=$HEDDLE_BUILD/libheddle_damage.so
[ -e "$library" ] || { echo "FAILED: $library is not there"; exit 1; }
# A sanitizer of a shared library wants to be loaded first.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0"

# judge DAMAGE EXIT TEXT COMMAND...: with the damage ("none": without) the command's exit code and a text of its output
judge() {
    local damage=$1 code=$2 text=$3
    shift 3
    out=$(LD_PRELOAD=$library HEDDLE_DAMAGE=$damage within 60 "$HEDDLE" verify "$@" 2>&1 </dev/null)
    local rc=$?
    if [ $rc != "$code" ] || ! grep -qE -- "$text" <<<"$out"; then
        echo "FAILED $damage: exit $rc, wanted $code and '$text': heddle verify $*"
        echo "$out"
        failed=1
    fi
}

sent='rank 3 sent [0-9]+ %s in 2 calls, planned were [0-9]+ each'
number='[-+.0-9e]+'
for transport in threads shm; do
    dtypes="f64 bf16"
    [ $transport = threads ] || dtypes=f32 # every damage in each dtype, and on each transport
    for dtype in $dtypes; do
        softmax=(attention "$dtype[b=2 s=37 h=6 d=16] on [sp=4]" --method ring --kv-heads 3 --transport $transport)
        linear=(linear-attention "$dtype[b=2 s=37 h=6 d=16] on [sp=4]" --method scan --dv 8 --decay 0.9 --transport $transport)
        judge none 0 "as planned" "${softmax[@]}"
        judge none 0 "as planned" "${linear[@]}"
        off="is $number, the reference says $number: off by $number"
        for what in 'o[1 36 5 15]' 'dq[1 36 5 15]' 'dk[1 36 2 15]' 'dv[1 36 2 15]' 'lse[1 36 5 0]'; do
            at=${what//[/\\[}
            judge "attention-${what%%[*}" 5 "mismatch: $dtype.*|rank 3: ${at//]/\\]} $off" "${softmax[@]}"
            grep -qE "rank 3: ${at//]/\\]} $off" <<<"$out" || { echo "FAILED: $what is not named: $out"; failed=1; }
        done
        for what in 'o[1 36 5 7]' 'dq[1 36 5 15]' 'dk[1 36 5 15]' 'dv[1 36 5 7]' 'state[1 5 15 7]'; do
            at=${what//[/\\[}
            judge "linear-${what%%[*}" 5 "rank 3: .*${at//]/\\]} $off" "${linear[@]}"
        done
        judge attention-nan 5 'rank 3: o\[1 36 5 15\] is -?nan, the reference says' "${softmax[@]}"
        judge linear-nan 5 'rank 3: o\[1 36 5 7\] is -?nan, the reference says' "${linear[@]}"
    done
    for kind in softmax linear; do
        declare -n line=$kind
        prefix=attention
        [ $kind = linear ] && prefix=linear
        # shellcheck disable=SC2059
        for what in 'bytes:bytes forward' 'messages:messages forward' 'back-bytes:bytes backward' 'back-messages:messages backward'; do
            judge "$prefix-${what%%:*}" 5 "$(printf "$sent" "${what#*:}")" "${line[@]}"
        done
    done
done

# Of two ranks that hold the same part each is looked at, as is the first rank.
for rank in 0 1 2 3; do
    export HEDDLE_DAMAGE_RANK=$rank
    judge attention-dq 5 "rank $rank: dq" attention 'f32[b=2 s=37 h=6 d=16] on [dp=2 sp=2]: s@sp' --method ulysses
    judge attention-df 5 "rank $rank: df" attention 'f64[b=2 s=5 h=2 d=4] on [dp=2 sp=2]: b@dp,s@sp' --method rsa --project 5
    judge linear-dk 5 "rank $rank: dk" linear-attention 'f32[b=2 s=37 h=6 d=16] on [dp=2 sp=2]: s@sp' --method lasp
done
unset HEDDLE_DAMAGE_RANK
# Random problems: the first that is wrong ends the run.
judge attention-dv 5 "rank 2: dv" attention --random 40 --ranks 3 --seed 3
judge linear-dv 5 "rank 2: dv" linear-attention --random 40 --ranks 3 --seed 3
[ $failed = 0 ] && echo "judges of attention: each damage was found"
exit $failed
