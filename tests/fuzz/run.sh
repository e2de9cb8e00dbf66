#!/usr/bin/env bash
# One libFuzzer target, from the seeds in tests/fuzz/seeds on: run.sh PROGRAM. HEDDLE_FUZZ_SECONDS (default 5), or
# HEDDLE_FUZZ_RUNS executions; what it stumbles over stays in the current folder as PROGRAM-crash-*.
set -u
program=$1
name=$(basename "$program")
seeds=${HEDDLE_SOURCE:?}/tests/fuzz/seeds
corpus=$(mktemp -d) || exit 1
trap 'rm -rf "$corpus"' EXIT
if [ "$name" = fuzz_line ]; then
    split -l 1 "$seeds/lines.txt" "$corpus/seed-"
else
    cp "$seeds/${name#fuzz_}"/* "$corpus" || exit 1
fi
amount="-max_total_time=${HEDDLE_FUZZ_SECONDS:-5}"
[ -z "${HEDDLE_FUZZ_RUNS:-}" ] || amount="-runs=$HEDDLE_FUZZ_RUNS"
quiet=() least=100
[ "$name" != fuzz_words ] || quiet=(-close_fd_mask=3) least=20 # what the program prints; it plans
"$program" "$corpus" $amount "${quiet[@]}" -seed="${HEDDLE_SEED:-1}" -timeout=20 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$PWD/$name-" >"$corpus.log" 2>&1
code=$?
executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$corpus.log")
[ $code = 0 ] || tail -n 40 "$corpus.log"
rm -f "$corpus.log"
echo "$name: ${executions:-0} executions, exit code $code"
[ $code = 0 ] && [ "${executions:-0}" -gt "$least" ]
