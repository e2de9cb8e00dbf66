#!/bin/bash
# heddle volume: exact matrices, totals, speed, sentences.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
command=volume
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"

# STDiT3 at 720p on 8 ranks: 450 (60 - T_p) 2304 bytes
stdit='bf16[t=60 s=3600 c=1152] on [sp=8]: s@sp -> t@sp'
says "most sent" 0 "sent per rank: most 54950400 (rank 4), mean 54432000.0, least 53913600 bytes" "$stdit"
says "most received" 0 "received per rank: most 58060800 (rank 0), least 50803200 bytes" "$stdit"
says "json totals" 0 '"messages": 56, "bytes_total": 435456000, "bytes_per_rank_max": 54950400' "$stdit" --json
says "json rows" 0 '[36,0,24],' 'u8[t=9 s=7 c=4] on [x=3]: t@x(4 3 2) -> s@x(3 2 2)' --json
says "keep" 0 "total 0 bytes in 0 messages between 0 pairs of ranks" 'u8[t=9 s=7] on [x=3]: t@x -> t@x'
says "split" 0 "total 0 bytes" 'u8[t=9 s=7] on [x=3]: * -> t@x'
says "gather" 0 "total 126 bytes in 6 messages" 'u8[t=9 s=7] on [x=3]: t@x -> *'
says "all-reduce" 0 "total 252 bytes in 12 messages" 'u8[t=9 s=7] on [x=3]: sum@x -> *'
says "reduce-scatter" 0 "total 126 bytes in 6 messages" 'u8[t=9 s=7] on [x=3]: sum@x -> s@x'
says "inside groups" 0 "between 12 pairs of ranks; a rank sends to at most 2 others" \
    'u8[t=12 s=12] on [n=2 g=3]: t@n,s@g -> t@n,t@g'
says "help" 0 "usage: heddle volume" --help
says "position" 2 "reshard line, column 28: unknown dim 'q' (dims: t s)" 'u8[t=9 s=7] on [x=3]: * -> q@x'
says "nothing" 2 "volume wants one reshard line or model, found 0"
says "two" 2 "volume wants one reshard line or model, found 2" a b
says "option" 2 "'--bogus': unknown option" --bogus
says "too much" 2 "more than 2^62 bytes could move" 'u8[t=4611686018427387904] on [x=4]: t@x -> *'
says "much, but it stays" 0 "total 0 bytes" 'i8[b=4611686018427387903] on [sp=1]: * -> b@sp'

start=$(date +%s%N)
says "4096 ranks" 0 "16773120 messages" 'bf16[t=4097 s=40960 c=1152] on [sp=4096]: t@sp -> s@sp'
ms=$((($(date +%s%N) - start) / 1000000))
limit=$(scaled 5000)
grep -q '^HEDDLE_SANITIZE:STRING=.' "${HEDDLE_BUILD:-.}/CMakeCache.txt" 2>/dev/null && limit=60000
[ $ms -lt $limit ] || { echo "FAILED: 4096 ranks took $ms ms"; failed=1; }
echo "volume: 4096 ranks in $ms ms"
"$HEDDLE" volume "$stdit" >/dev/full 2>"$folder/out" && { echo "FAILED: a full disk goes unnoticed"; failed=1; }
exit $failed
