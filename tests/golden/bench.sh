# heddle bench: the keys of its JSON, the list of kernels, forced kernels, and complaints.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command -v python3 >/dev/null || not_here python "no python3: JSON is not read back"
failed=0
fail() {
    echo "FAILED: $*" >&2
    failed=1
}

line='bf16[t=8 s=64 c=64] on [sp=2]: t@sp -> s@sp'
for transport in threads shm; do
    out=$("$HEDDLE" bench "$line" --ranks 2 --transport $transport --iterations 8 --seconds 0 --json) ||
        fail "bench on $transport exits $?"
    for key in min_ms median_ms roofline_min_ms roofline_ratio bytes_per_rank path kernel; do
        echo "$out" | grep -q "\"$key\": " || fail "no $key on $transport in: $out"
    done
    echo "$out" | grep -q '"bytes_per_rank": 32768,' || fail "bytes_per_rank on $transport: $out"
    echo "$out" | grep -q '"samples": 8,' || fail "samples on $transport: $out"
    if command -v python3 >/dev/null; then
        echo "$out" | python3 -c 'import json, sys; r = json.load(sys.stdin); assert 0 < r["min_ms"] <= r["median_ms"]' ||
            fail "not the JSON that was promised: $out"
    fi
done

# What is printed is what one execution takes: every flag that is posted or awaited comes 3 ms late, and an execution and
# a roofline post and await two of them each. Attention by a ring: one flag each way forward, the others may be there
# already; three times as many on the way back.
at_least() { # JSON KEY MILLISECONDS
    local ms
    ms=$(echo "$1" | sed -n "s/.*\"$2\": \([0-9.]*\).*/\1/p")
    awk -v ms="${ms:-0}" -v least="$3" 'BEGIN { exit !(ms >= least) }' || fail "$2 is $ms, not $3 at least: $1"
}
out=$("$HEDDLE" bench "$line" --transport 'fault(delay=3ms):threads' --tuning rules --iterations 4 --seconds 0 --json)
at_least "$out" min_ms 12
at_least "$out" median_ms 12
at_least "$out" roofline_min_ms 12
out=$("$HEDDLE" bench attention 'f32[b=1 s=64 h=4 d=32] on [sp=2]' --method ring --transport 'fault(delay=3ms):threads' \
    --seconds 0 --json)
at_least "$out" min_ms 6
at_least "$out" median_ms 6
at_least "$out" backward_min_ms 18

kernels=$("$HEDDLE" bench --list-kernels) || fail "--list-kernels exits $?"
echo "$kernels" | grep -q '^memcpy ' || fail "memcpy is not listed: $kernels"
"$HEDDLE" bench "$line" --iterations 4 --seconds 0 --kernel memcpy | grep -q 'memcpy' || fail "--kernel memcpy"
"$HEDDLE" bench "$line" --transport shm --iterations 4 --seconds 0 --memory any >/dev/null || fail "--memory any"
"$HEDDLE" bench 'f32[t=5] on [sp=3]: sum@sp -> t@sp' --iterations 4 --seconds 0 >/dev/null || fail "sums"
"$HEDDLE" bench 'f32[t=1 s=2] on [sp=4]: t@sp -> s@sp' --iterations 4 --seconds 0 >/dev/null || fail "empty ranks"

refuses() {
    "$HEDDLE" bench "$@" >/dev/null 2>"$errors"
    code=$?
    [ $code -eq 2 ] || fail "bench $* exits $code, not 2"
    [ "$(wc -l <"$errors")" -eq 1 ] || fail "bench $* complains in $(wc -l <"$errors") lines: $(cat "$errors")"
}
errors=$(mktemp)
refuses
refuses "$line" again
refuses 'f32[t=4] on'
refuses "$line" --ranks 3
refuses "$line" --kernel none_such
refuses "$line" --memory some
refuses "$line" --iterations 0
refuses "$line" --transport pigeon
refuses "$line" --what
rm -f "$errors"
exit $failed
