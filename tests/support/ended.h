/* Ranks that end by themselves, however long this machine takes over it. Who started ranks that are processes ends
 * those that go on for HD_RUN_GRACE_MS after another has failed: that would hide a rank which nobody told, and a busy
 * machine may do it to one that was told. Here kill waits before it strikes, and who has to be struck is counted. */
#ifndef HD_TEST_ENDED_H
#define HD_TEST_ENDED_H

#include "case.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HD_ENDS_S = 4 };

static struct {
    int64_t patience_ns; /* 0: none */
    int struck;
} hd_ended;

/* In place of the C library's, for all that is linked into the program. */
int kill(pid_t pid, int number)
{
    const int64_t until_ns = hd_now_ns() + hd_ended.patience_ns;
    siginfo_t how = {.si_pid = 0};
    while (number == SIGKILL && hd_ended.patience_ns > 0 &&
           waitid(P_PID, (id_t)pid, &how, WEXITED | WNOHANG | WNOWAIT) == 0) {
        if (how.si_pid == pid) {
            return 0;
        }
        if (hd_now_ns() > until_ns) {
            hd_ended.struck++;
            break;
        }
        usleep(1000);
    }
    return (int)syscall(SYS_kill, pid, number);
}

/* heddle_run_ranks, of which no rank has to be ended, nor ends by its deadline, which is further away. */
static inline heddle_status run_to_their_end(int ranks, const char *where, heddle_rank_main fn, void *arg)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    hd_ended.patience_ns = hd_test_limit_ns(HD_ENDS_S);
    options.deadline_ms = 4 * hd_ended.patience_ns / 1000000;
    const heddle_status st = heddle_run_ranks_with(ranks, where, &options, fn, arg);
    hd_ended.patience_ns = 0;
    if (hd_ended.struck > 0) {
        fail_msg("%d ranks on %s did not end by themselves: %s", hd_ended.struck, where, heddle_last_error());
    }
    return st;
}

#endif
