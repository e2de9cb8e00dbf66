#!/usr/bin/env bash
# A transport of heddle's own is one file and one line: the file that docs/extending.md shows, the line in registry.c,
# and it can be opened by its name.
set -eu
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "the program would need the sanitizer too"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
page=$HEDDLE_SOURCE/docs/extending.md
registry=$HEDDLE_SOURCE/runtime/comm/transport/registry.c
sed -n '/^\/\* meet\.c/,/^```/p' "$page" | sed '$d' >"$work/meet.c"
[ "$(wc -l <"$work/meet.c")" -ge 30 ] || { echo "$page has no meet.c any more"; exit 1; }
line=$(sed -n 's/^    \(X(meet)\).*/\1/p' "$page")
[ "$line" = "X(meet)" ] || { echo "$page does not show the line of registry.c"; exit 1; }
sed "s/^    X(self)/    X(meet) X(self)/" "$registry" >"$work/registry.c"
grep -q 'X(meet)' "$work/registry.c" || { echo "registry.c has no X(self) to stand beside"; exit 1; }
cat >"$work/main.c" <<'C'
#include <heddle/heddle.h>
#include <stdio.h>
int main(void)
{
    heddle_comm *comm = NULL;
    int all[2] = {-1, -1};
    if (heddle_comm_open(&comm, "meet", NULL) != HEDDLE_OK) {
        printf("%s\n", heddle_last_error());
        return 1;
    }
    int mine = heddle_comm_rank(comm);
    heddle_status st = heddle_comm_allgather(comm, &mine, all, sizeof mine);
    printf("%s\n", heddle_comm_describe(comm));
    heddle_comm_destroy(comm);
    return st != HEDDLE_OK || all[0] != 0 || all[1] != 1;
}
C
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -I"$HEDDLE_SOURCE" -I"$HEDDLE_SOURCE/include" -I"$HEDDLE_BUILD/include" \
    "$work/main.c" "$work/meet.c" "$work/registry.c" "$HEDDLE_BUILD/libheddle_internal.a" \
    $(pkg-config --libs hwloc yaml-0.1) -ldnnl -lm -ldl -lpthread -o "$work/program"
# Whoever comes first waits for the other.
for first in 0 1; do
    MEET=$first/2/$$ within 60 "$work/program" >"$work/$first" &
    sleep 0.3
    MEET=$((1 - first))/2/$$ within 60 "$work/program" >"$work/$((1 - first))" || { cat "$work/$((1 - first))"; exit 1; }
    wait $! || { cat "$work/$first"; exit 1; }
    grep -q '^meet: 2 ranks' "$work/0" || { cat "$work/0"; exit 1; }
done
! MEET=nonsense "$work/program" >"$work/0"
grep -q "MEET is 'nonsense', wanted RANK/SIZE/WORD" "$work/0"
echo "a transport of one file and one line: passed"
