#!/usr/bin/env bash
# A wire of heddle's own is a file of the comm room, a file of the move room and its name in heddle/comm.h and HD_WIRES:
# with these in the place of heddle's, reshards go by it on emulated devices. Of heddle nothing else is compiled anew than
# the two files that make tables of the lists.
set -eu
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "the program would need the sanitizer too"
export HEDDLE_MODULE_PATH=${HEDDLE_BUILD:?}/tests/device-sim
[ -e "$HEDDLE_MODULE_PATH/libheddle_cuda.so" ] || skip_test gpu "there is no emulated device on this machine"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/heddle" "$work/runtime/comm"
sed -E 's/^( *)HEDDLE_WIRE_HOST = 3 /\1HEDDLE_WIRE_FETCH = 4,\n&/; /WIRE_LIST/s/X\(HOST, "host"\)/& X(FETCH, "fetch")/' \
    "$HEDDLE_SOURCE/include/heddle/comm.h" >"$work/heddle/comm.h"
sed '/define HD_WIRES/s/X(HOST, host)/X(FETCH, fetch) &/' "$HEDDLE_SOURCE/runtime/comm/comm_internal.h" >"$work/runtime/comm/comm_internal.h"
[ "$(grep -ciE 'X\(FETCH|WIRE_FETCH =' "$work/heddle/comm.h" "$work/runtime/comm/comm_internal.h" | grep -c ':[12]$')" = 2 ] ||
    { echo "the lists of wires are not where they were"; exit 1; }
cat >"$work/main.c" <<'C'
#include "runtime/verify/reshard_check.h"
#include <stdio.h>
#include <string.h>

/* Every element, canary and byte count of a reshard on three ranks that asked for this wire. */
static heddle_status verify(heddle_comm *comm, void *arg)
{
    verify_trial t = {.comm = comm};
    heddle_reshard_options_init(&t.options);
    heddle_status st = heddle_comm_attach_device(comm, "cuda", HEDDLE_WIRE_FETCH);
    st = st == HEDDLE_OK ? heddle_reshard_parse(&t.line, arg) : st;
    st = st == HEDDLE_OK ? verify_run(&t) : st;
    if (st == HEDDLE_OK && (t.problem[0] != '\0' || strstr(heddle_comm_describe(comm), "wire fetch (as asked") == NULL)) {
        st = heddle_set_error(HEDDLE_ERR_INTERNAL, "%s, %s", t.problem, heddle_comm_describe(comm));
    }
    return st;
}

int main(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (heddle_run_ranks(argv[1][0] - '0', "threads", verify, argv[i]) != HEDDLE_OK) {
            printf("%s: %s\n", argv[i], heddle_last_error());
            return 1;
        }
    }
    return 0;
}
C
cc -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -I"$work" -I"$HEDDLE_SOURCE" -I"$HEDDLE_SOURCE/include" -I"$HEDDLE_BUILD/include" \
    "$work/main.c" "$HEDDLE_SOURCE"/tests/support/{wire,carrier}_fetch.c "$HEDDLE_SOURCE"/runtime/{comm/device,move/carrier}.c \
    "$HEDDLE_BUILD"/libheddle_{verify,files,internal}.a $(pkg-config --libs hwloc yaml-0.1) -ldnnl -lm -ldl -lpthread -o "$work/program"
within 120 "$work/program" 3 'f32[t=7 s=8 c=5] on [sp=3]: t@sp -> s@sp' 'u8[t=5 s=7] on [sp=3]: s@sp -> *'
within 120 "$work/program" 4 'bf16[t=7 s=8 c=6] on [a=2 b=2]: t@a,s@b -> s@a,c@b'
# What the carrier has not is refused by its own sentence, on every rank.
! within 120 "$work/program" 2 'f32[t=4 s=4] on [sp=2]: sum@sp -> t@sp' >"$work/said" || { echo "a sum was made"; exit 1; }
grep -q 'the wire fetch neither adds nor clears' "$work/said" || { cat "$work/said"; exit 1; }
echo "a wire of two files and its name: passed"
