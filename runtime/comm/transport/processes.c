/* Ranks that are forked processes of this one. The parent only watches: it notes how each ended, ends those that do not
 * stop after another has failed, and leaves no zombie.
 */
#include "runtime/comm/transport/run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 50, KEY_BYTES = 40 };

typedef struct watch {
    hd_run *run;
    pid_t *pid;         /* 0: has been reaped */
    struct pollfd *fds; /* pidfds, -1: none */
    char *killed;       /* ended by us */
    int running;
} watch;

static heddle_status make_key(char *key)
{
    unsigned char random[16];
    if (hd_random_bytes(random, sizeof random) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no random bytes: %s", strerror(errno));
    }
    for (size_t i = 0; i < sizeof random; i++) {
        snprintf(key + 2 * i, 3, "%02x", random[i]);
    }
    return HEDDLE_OK;
}

/* A rank must not outlive the process that waits for it. */
static void child_main(hd_run *run, int rank, const char *key, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    heddle_comm *comm = NULL;
    heddle_status st = run->meet(&comm, run, rank, key);
    if (st == HEDDLE_OK) {
        hd_run_rank_main(run, comm, st, rank);
    } else {
        hd_run_report(run->shared, rank, st);
        int none = 0; /* others may still wait for this rank at the meeting */
        atomic_compare_exchange_strong(&run->shared->dead, &none, 1 + rank);
    }
    fflush(NULL);
    _exit(run->shared->rank[rank].status != HEDDLE_OK);
}

static void note_end(watch *w, int rank, int wait_status, int known)
{
    hd_run_rank *r = &w->run->shared->rank[rank];
    int signalled = known && WIFSIGNALED(wait_status);
    w->pid[rank] = 0;
    w->running--;
    if (w->fds[rank].fd >= 0) {
        close(w->fds[rank].fd);
        w->fds[rank].fd = -1;
    }
    if ((atomic_load(&r->done) && !signalled) || (r->status != HEDDLE_OK && atomic_load(&r->done))) {
        return;
    }
    if (w->killed[rank]) {
        snprintf(r->sentence, sizeof r->sentence, "did not stop within %d ms after another rank failed and was ended",
                 HD_RUN_GRACE_MS);
    } else if (signalled) {
        snprintf(r->sentence, sizeof r->sentence, "was killed by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    } else if (known) {
        snprintf(r->sentence, sizeof r->sentence, "ended with exit code %d before its function returned",
                 WEXITSTATUS(wait_status));
    } else {
        snprintf(r->sentence, sizeof r->sentence,
                 "ended before its function returned; how is not known, because this program waits for every child "
                 "itself or ignores SIGCHLD");
    }
    r->status = HEDDLE_ERR_PEER;
    r->ended = 1;
    r->order = atomic_fetch_add(&w->run->shared->failures, 1) + 1;
    int none = 0;
    atomic_compare_exchange_strong(&w->run->shared->dead, &none, 1 + rank);
}

static void reap(watch *w)
{
    for (int i = 0; i < w->run->nranks; i++) {
        int wait_status = 0;
        if (w->pid[i] == 0) {
            continue;
        }
        pid_t got = waitpid(w->pid[i], &wait_status, WNOHANG);
        if (got == w->pid[i] || (got < 0 && errno == ECHILD)) { /* ECHILD: the caller ignores SIGCHLD */
            note_end(w, i, wait_status, got > 0);
        }
    }
}

static void end_all(watch *w)
{
    for (int i = 0; i < w->run->nranks; i++) {
        if (w->pid[i] != 0) {
            w->killed[i] = 1;
            kill(w->pid[i], SIGKILL);
        }
    }
}

static void watch_all(watch *w)
{
    int64_t end_ns = 0; /* when to end those still running; 0: nobody has failed */
    int has_fds = 1;
    for (int i = 0; i < w->run->nranks; i++) {
        w->fds[i].fd = w->pid[i] != 0 ? (int)syscall(SYS_pidfd_open, w->pid[i], 0) : -1;
        has_fds &= w->fds[i].fd >= 0;
    }
    while (w->running > 0) {
        reap(w);
        if (end_ns == 0 && atomic_load(&w->run->shared->failures) > 0) {
            end_ns = hd_now_ns() + (int64_t)HD_RUN_GRACE_MS * 1000000;
        }
        if (end_ns != 0 && hd_now_ns() > end_ns) {
            end_all(w);
            end_ns = INT64_MAX;
        }
        if (w->running > 0) {
            poll(w->fds, (nfds_t)w->run->nranks, has_fds ? LOOK_MS : 2);
        }
    }
}

static heddle_status start_all(watch *w, const char *key)
{
    pid_t parent = getpid();
    for (int i = 0; i < w->run->nranks; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            child_main(w->run, i, key, parent);
        }
        if (pid < 0) {
            return hd_fail(HEDDLE_ERR_NOMEM, "process %d of %d cannot be started: %s", i + 1, w->run->nranks,
                           strerror(errno));
        }
        w->pid[i] = pid;
        w->running++;
    }
    return HEDDLE_OK;
}

heddle_status hd_run_processes(hd_run *run)
{
    heddle_status st = HEDDLE_OK;
    watch w = {.run = run};
    char key[KEY_BYTES];
    HD_TRY(make_key(key));
    HD_TRY(hd_alloc((void **)&w.pid, (size_t)run->nranks, sizeof *w.pid, "ranks that are processes"));
    HD_TRY(hd_alloc((void **)&w.fds, (size_t)run->nranks, sizeof *w.fds, "ranks that are processes"));
    HD_TRY(hd_alloc((void **)&w.killed, (size_t)run->nranks, 1, "ranks that are processes"));
    for (int i = 0; i < run->nranks; i++) {
        w.fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    }
    fflush(NULL); /* or every rank would write what is still in the buffers */
    st = start_all(&w, key);
    if (st != HEDDLE_OK) {
        end_all(&w);
    }
    watch_all(&w);
out:
    HD_FREE_ALL(w.killed, w.fds, w.pid);
    return st;
}
