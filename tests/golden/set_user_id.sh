#!/usr/bin/env bash
# A program that runs with more rights than who started it loads nothing from where that person's environment says: no
# plug-in of heddle's, and none of hwloc's.
set -u
: "${HEDDLE_SOURCE:?}" "${HEDDLE_BUILD:?}"
. "$HEDDLE_SOURCE/tests/support/skip.sh"
! is_sanitized || skip_test sanitizer "the program would need the sanitizer too"
[ "$(id -u)" = 0 ] || skip_test root "only root can make such a program"
. "$HEDDLE_SOURCE/tests/support/work.sh"
nobody=65534
mkdir "$work/theirs" "$work/ours"
chmod 755 "$work" "$work/theirs" "$work/ours"
cat >"$work/theirs.c" <<'C'
#include <unistd.h>
__attribute__((constructor)) static void runs(void)
{
    if (write(1, geteuid() == 0 ? "theirs as root\n" : "theirs\n", geteuid() == 0 ? 15 : 7) < 0) {
        _exit(9);
    }
}
C
cat >"$work/main.c" <<'C'
#include <heddle/heddle.h>
#include <stdio.h>
#include <unistd.h>
static heddle_status nothing(heddle_comm *comm, void *arg)
{
    (void)arg;
    return heddle_comm_barrier(comm);
}
int main(void)
{
    heddle_comm *comm = NULL;
    const char *launcher = "?";
    int size = -1;
    printf("rights of %d\n", (int)geteuid());
    fflush(stdout);
    printf("open: %s\n", heddle_status_name(heddle_comm_open(&comm, "theirs", NULL)));
    printf("run: %s\n", heddle_status_name(heddle_run_ranks(2, "threads", nothing, NULL)));
    printf("launcher: %s\n", heddle_status_name(heddle_comm_launcher(&launcher, NULL, &size)));
    printf("%s of %d\n", launcher != NULL ? launcher : "none", size);
    return 0;
}
C
cc -shared -fPIC "$work/theirs.c" -o "$work/theirs/libheddle_theirs.so" && cp "$work/theirs/libheddle_theirs.so" "$work/theirs/hwloc_theirs.so" &&
    cp -L "$HEDDLE_BUILD"/libheddle.so "$work/ours/libheddle.so" && ln -s libheddle.so "$work/ours/$(readlink "$HEDDLE_BUILD/libheddle.so")" &&
    cc -I"$HEDDLE_SOURCE/include" -I"$HEDDLE_BUILD/include" "$work/main.c" -L"$work/ours" -lheddle -Wl,-rpath,"$work/ours" -o "$work/ours/app" ||
    fail "it does not build"

run() { # to $work/out
    within 60 setpriv --reuid=$nobody --regid=$nobody --clear-groups env HEDDLE_MODULE_PATH="$work/theirs" HWLOC_PLUGINS_PATH="$work/theirs" \
        HEDDLE_RANK=1 HEDDLE_SIZE=2 HEDDLE_KEY=k "$work/ours/app" >"$work/out" 2>&1 </dev/null || fail "exit code $?: $(cat "$work/out")"
}
run
for line in "rights of $nobody" theirs 'run: HEDDLE_OK' 'heddle of 2'; do
    grep -qxF "$line" "$work/out" || fail "without more rights, no '$line' in: $(cat "$work/out")" # or nothing is tested below
done
chmod 4755 "$work/ours/app"
run
grep -qx 'rights of 0' "$work/out" || skip_test root "programs in $work get no other user's rights"
! grep -q theirs "$work/out" || fail "it loads what another one chose: $(cat "$work/out")"
for line in 'open: HEDDLE_ERR_ARG' 'run: HEDDLE_OK' 'launcher: HEDDLE_OK' 'none of 1'; do
    grep -qxF "$line" "$work/out" || fail "no '$line' in: $(cat "$work/out")"
done
[ $failed = 0 ] && echo ok
exit $failed
