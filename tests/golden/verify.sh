#!/bin/bash
# heddle verify: right on every transport, exit codes, saved arrays, and that it notices what goes wrong.
set -u
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}" "${HEDDLE_SOURCE:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command=verify
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"

line='bf16[b=2 t=30 s=159 c=16] on [sp=4]: t@sp -> s@sp as b,s,t,c'
for transport in threads shm; do
    says "line on $transport" 0 "1 reshard bitwise right on $transport: 4 ranks" "$line" --transport $transport
    for ranks in 1 2 3 4 8; do
        says "random on $ranks $transport" 0 "100 reshards bitwise right" --random 100 --ranks $ranks \
            --transport $transport --seed $ranks
    done
    says "private memory on $transport" 0 "100 reshards" --random 100 --transport $transport --memory any
done
if have_mpi; then
    says "line on mpi" 0 "1 reshard bitwise right on mpi: 4 ranks" "$line" --transport mpi
    says "random on mpi" 0 "100 reshards" --random 100 --ranks 4 --transport mpi --seed 5
    says "messages" 0 "100 reshards" --random 100 --ranks 4 --transport mpi --messages --seed 6
    says "two hosts" 0 "100 reshards" --random 100 --ranks 4 --transport mpi --hosts 2 --seed 7
fi

# Bytes of the saved arrays: 2 x 3 u8, split by t, then by s in other blocks and another memory order.
says "seed of a line" 2 "--seed needs --random" 'u8[t=2 s=3] on [x=2]: t@x -> s@x' --seed 5
says "seed of draws" 0 "3 reshards" --random 3 --ranks 2 --seed 0
says "save" 0 "1 reshard" 'u8[t=2 s=3] on [x=2]: t@x -> s@x(1 2) as s,t' --save "$folder/parts" --transport shm
data() { # FILE: the bytes behind the header, its shape
    tail -c +$(($(od -An -tu2 -j8 -N2 "$1") + 11)) "$1" | od -An -tu1 | tr -s ' '
    head -c 100 "$1" | tr -d '\0' | grep -ao "'descr.*)"
}
{
    for part in from-0 from-1 to-0 to-1; do
        data "$folder/parts/$part.npy"
    done
} >"$folder/parts.txt"
diff "$folder/parts.txt" - <<'PARTS' || { echo "FAILED: saved parts"; failed=1; }
 0 1 2
'descr': '|u1', 'fortran_order': False, 'shape': (1, 3,)
 3 4 5
'descr': '|u1', 'fortran_order': False, 'shape': (1, 3,)
 0 3
'descr': '|u1', 'fortran_order': False, 'shape': (1, 2,)
 1 4 2 5
'descr': '|u1', 'fortran_order': False, 'shape': (2, 2,)
PARTS

says "own input" 0 "1 reshard" 'u8[t=1 s=3] on [x=3]: s@x -> *' --input "$folder/parts/from-1.npy" \
    --save "$folder/again" --transport threads
cmp "$folder/parts/from-1.npy" "$folder/again/to-2.npy" || failed=1
says "sums of an input" 0 "1 reshard" 'u8[t=1 s=3] on [x=3]: sum@x -> s@x' --input "$folder/parts/from-1.npy"
head -c 130 "$folder/parts/from-1.npy" >"$folder/short.npy"
says "short input" 2 "truncated: the header promises 3 bytes of data, the file has 2" \
    'u8[t=1 s=3] on [x=3]: s@x -> *' --input "$folder/short.npy"
says "other dtype" 2 "dtype '|u1', but f32 is stored as '<f4'" 'f32[t=1 s=3] on [x=3]: s@x -> *' \
    --input "$folder/parts/from-1.npy"
says "other extent" 2 "dim 1 has 3 elements, 's' of the reshard line has 4" 'u8[t=1 s=4] on [x=3]: s@x -> *' \
    --input "$folder/parts/from-1.npy"
says "no file" 2 "cannot be opened" 'u8[t=1 s=4] on [x=3]: s@x -> *' --input "$folder/none.npy"
says "no folder" 2 "cannot be made" 'u8[t=1 s=4] on [x=3]: s@x -> *' --save "$folder/none/none"
says "ranks" 2 "--ranks 3, but the mesh of the reshard line has 4" "$line" --ranks 3
says "no line" 2 "verify wants either one reshard line or --random"
says "position" 2 "reshard line, column 12: expected '[' where a mesh begins" 'u8[t=1] on x'
says "transport" 2 "unknown transport 'carrier-pigeon'" "$line" --transport carrier-pigeon
says "help" 0 "usage: heddle verify" --help

# A library that damages what it moved, or writes beside it, must be found out.
if command -v cc >/dev/null && ! grep -q '^HEDDLE_SANITIZE:STRING=.' "$HEDDLE_BUILD/CMakeCache.txt" 2>/dev/null; then
    cat >"$folder/damage.c" <<'DAMAGE'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <heddle/reshard.h>
#include <stdlib.h>

heddle_status heddle_reshard_execute(heddle_reshard *r, const void *src, void *dst, heddle_stream s)
{
    heddle_status (*real)(heddle_reshard *, const void *, void *, heddle_stream) =
        (heddle_status(*)(heddle_reshard *, const void *, void *, heddle_stream))dlsym(RTLD_NEXT, "heddle_reshard_execute");
    heddle_status st = real(r, src, dst, s);
    const char *where = getenv("DAMAGE");
    ((char *)(where[0] == 's' ? (void *)src : dst))[atoi(where + 1)] ^= 1;
    return st;
}
DAMAGE
    cc -shared -fPIC -I "$HEDDLE_SOURCE/include" -I "$HEDDLE_BUILD/include" "$folder/damage.c" -o "$folder/damage.so" \
        -ldl || failed=1
    damaged() { # WHERE TEXT
        LD_PRELOAD=$folder/damage.so DAMAGE=$1 says "damage $1" 5 "$2" 'u8[t=4 s=3] on [x=2]: t@x -> s@x' \
            --transport "$3"
        grep -qF 'problem 1: u8[t=4 s=3] on [x=2]: t@x -> s@x' "$folder/out" || { echo "FAILED: line"; failed=1; }
    }
    for transport in threads shm; do
        damaged d3 "rank 0, after: the element at t=1 s=1 is 0x05, not 0x04 (round 0, offset 3 bytes)" $transport
        damaged d8 "rank 0, destination: byte 8 is no part of the array of 8 bytes, but was overwritten" $transport
        damaged d-1 "rank 0, destination: byte -1 is no part of the array" $transport
        damaged s2 "rank 0, source: the element at t=0 s=2 is 0x03, not 0x02" $transport
    done
fi

# A small stack does for a reshard (heddle/comm.h).
if ! is_sanitized; then
    for transport in threads shm; do
        (ulimit -s 64 && exec "$HEDDLE" verify 'f32[t=90 s=150] on [sp=2]: t@sp -> s@sp' --transport $transport) >"$folder/out" 2>&1 ||
            { echo "FAILED: 64 KiB of stack on $transport: $(cat "$folder/out")"; failed=1; }
    done
fi
exit $failed
