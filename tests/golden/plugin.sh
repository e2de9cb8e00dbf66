#!/usr/bin/env bash
# A transport from outside: examples/04_transport is built against an installed heddle, found by its name, and held to
# what every transport is held to: reshards, attention, deadlines, a rank that fails or is killed.
set -eu
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "a library built against heddle would need the sanitizer too"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$HEDDLE_BUILD" --prefix "$work/heddle" >/dev/null
cp -r "$HEDDLE_SOURCE/examples/04_transport" "$work/mine"
cmake -S "$work/mine" -B "$work/mine/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/heddle" >/dev/null
cmake --build "$work/mine/build" >"$work/log" || { cat "$work/log"; exit 1; }
export PKG_CONFIG_PATH="$(dirname "$(find "$work/heddle" -name heddle.pc)")"
mkdir "$work/by_hand"
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden "$work"/mine/*.c \
    $(pkg-config --cflags --libs heddle) -o "$work/by_hand/libheddle_sockets.so"
# The lines of docs/extending.md, from a folder like the tree's.
mkdir "$work/tree"
ln -s "$HEDDLE_SOURCE/examples" "$work/tree/examples"
sed -n '/^### 5. As a plug-in/,/^### 6/s/^    //p' "$HEDDLE_SOURCE/docs/extending.md" >"$work/page.sh"
(cd "$work/tree" && echo wait >>"$work/page.sh" && HOME=$work within 120 bash -eu "$work/page.sh") >"$work/page" 2>&1 &&
    grep -q ' elements' "$work/page" || { echo "FAILED: the lines of docs/extending.md"; cat "$work/page.sh" "$work/page"; exit 1; }
heddle=$work/heddle/bin/heddle

meeting=0
# ranks N ARGUMENT...: N processes of the command line; their exit codes in $codes, what they say in $work/N
ranks() {
    local n=$1 r pids=()
    shift
    meeting=$((meeting + 1))
    mkdir "$work/m$meeting"
    codes=
    for ((r = 0; r < n; r++)); do
        HEDDLE_RANK=$r HEDDLE_SIZE=$n HEDDLE_KEY=plugin SOCKETS_FOLDER=$work/m$meeting \
            within 120 "$heddle" "$@" >"$work/$r" 2>&1 </dev/null &
        pids+=($!)
    done
    for r in "${pids[@]}"; do
        local code=0
        wait "$r" || code=$?
        codes="$codes$code "
    done
}
fail() {
    echo "FAILED: $1 (exit codes $codes)"
    tail -n 5 "$work"/[0-9]
    exit 1
}
all_right() { # N ARGUMENT...
    ranks "$@"
    [ -z "${codes//[0 ]/}" ] || fail "$*"
}

# Not found where nobody put it; the sentence lists what there is.
ranks 2 verify 'u8[t=4 s=4] on [sp=2]: t@sp -> s@sp' --transport sockets
grep -hq "no transport 'sockets': wanted self, shm, tcp, mpi, auto" "$work/0" "$work/1" || fail "an unknown name"
! grep -q 0 <<<"$codes" || fail "an unknown name is no error"

# Beside libheddle, and from a folder.
cp "$work/mine/build/libheddle_sockets.so" "$(dirname "$(find "$work/heddle" -name libheddle.so)")"
all_right 2 verify 'bf16[b=2 t=5 s=7 c=8] on [sp=2]: t@sp -> s@sp' --transport sockets
rm "$(dirname "$(find "$work/heddle" -name libheddle.so)")/libheddle_sockets.so"
export HEDDLE_MODULE_PATH=$work/by_hand

# Everything by messages, half of it, all by shared memory: the bytes are right and as many as planned.
for reach in --messages '--hosts 2' ''; do
    all_right 3 verify 'bf16[b=2 t=5 s=7 c=8] on [sp=3]: t@sp -> s@sp' --transport sockets $reach
    all_right 4 verify --random 60 --seed 3 --transport sockets $reach
done
grep -q 'sockets: 4 ranks' "$work/0" || fail "not by this transport"
all_right 2 verify attention 'f32[b=1 s=19 h=2 d=8] on [sp=2]' --method ring --transport sockets --messages
grep -q 'messages through memory forced' "$work/0" || fail "what the table says of its messages"

# A message larger than what a socket buffers, each way at once.
all_right 2 verify 'f32[t=64 s=4096 c=8] on [sp=2]: t@sp -> s@sp' --transport sockets --messages

# A rank that fails, one that is killed, one that comes too late: all end, and name it.
line='bf16[b=2 t=5 s=7 c=8] on [sp=3]: t@sp -> s@sp'
ranks 3 verify "$line" --transport 'fault(fail=9@1):sockets' --messages
! grep -q 0 <<<"$codes" || fail "a rank failed and another did not notice"
grep -hq 'rank 1' "$work"/[0-2] || fail "rank 0 does not name the one that failed"
ranks 3 verify "$line" --transport 'fault(kill=9@1):sockets' --messages
[ "$(cut -d' ' -f2 <<<"$codes")" -ge 128 ] && ! grep -qw 0 <<<"$codes" || fail "a rank was killed"
grep -hq 'rank 1' "$work"/[0-2] || fail "nobody names the one that was killed"
ranks 3 verify "$line" --transport 'fault(delay=2000ms@1):sockets' --messages --deadline 1
! grep -qw 0 <<<"$codes" || fail "a rank was too late"
grep -hq 'rank 1 did not come in time' "$work"/[0-2] || fail "nobody says that a rank was late"

# Rank 0 is interrupted, alone at the meeting, then in a wait for rank 1, which hears of it.
cat >"$work/interrupt.c" <<'C'
#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int asked;
static int ask(void *arg)
{
    return ++asked > *(int *)arg;
}
int main(int n, char **word)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    int patience = n > 1 ? atoi(word[1]) : 0, all[2], mine = atoi(getenv("HEDDLE_RANK"));
    heddle_comm_options_init(&options);
    options.interrupt = mine == 0 ? ask : NULL;
    options.interrupt_arg = &patience;
    heddle_status st = heddle_comm_open(&comm, "sockets", &options);
    if (st == HEDDLE_OK) {
        patience = asked + 2;
        sleep(mine == 1);
        st = heddle_comm_allgather(comm, &mine, all, sizeof mine);
    }
    printf("%s: %s\n", heddle_status_name(st), heddle_last_error());
    heddle_comm_destroy(comm);
    return 0;
}
C
cc -std=c17 -Wall -Wextra -Werror "$work/interrupt.c" $(pkg-config --cflags --libs heddle) -o "$work/interrupt"
export LD_LIBRARY_PATH=$(dirname "$(find "$work/heddle" -name libheddle.so)") HEDDLE_SIZE=2 HEDDLE_KEY=plugin
mkdir "$work/alone" "$work/both"
SOCKETS_FOLDER=$work/alone HEDDLE_RANK=0 within 30 "$work/interrupt" 2 >"$work/0"
grep -q 'HEDDLE_ERR_INTERRUPTED: rank 0 was interrupted' "$work/0" || fail "an interrupt at the meeting"
SOCKETS_FOLDER=$work/both HEDDLE_RANK=1 within 30 "$work/interrupt" >"$work/1" &
SOCKETS_FOLDER=$work/both HEDDLE_RANK=0 within 30 "$work/interrupt" 1000000 >"$work/0"
wait $!
grep -q 'HEDDLE_ERR_INTERRUPTED: rank 0 was interrupted' "$work/0" || fail "an interrupt in a wait"
grep -q 'HEDDLE_ERR_PEER: rank 0' "$work/1" || fail "the other rank of an interrupt"
echo "a transport from outside: passed"
