/* The ranks of a host meet by a key, and others stand there. */
#ifndef HD_TEST_MEETING_JOB_H
#define HD_TEST_MEETING_JOB_H

#include "outcome.h"

#include "runtime/comm/ground/door.h"
#include "runtime/comm/ground/join_meeting.h"
#include "runtime/comm/ground/launcher.h"

#include <heddle/comm.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, SIZE = 3, MOST = 8, LONG_MS = 20000 };

/* One meeting: ranks, and those who stand there. */
typedef struct job {
    char key[64];
    hd_secret secret;
    struct sockaddr_un address; /* of rank 0 */
    socklen_t address_bytes;
    pid_t rank[SIZE], other[MOST];
    int ready[2]; /* a pipe: the others write a byte when they stand there */
    int others;
    outcome *outcome; /* [SIZE] */
} job;

static inline job new_job(void)
{
    static int number;
    job j = {.others = 0};
    char key[HD_KEY_BYTES];
    snprintf(j.key, sizeof j.key, "sesame.%d.%d", (int)getpid(), number++);
    hd_launch_key(key, (const char *const[]){"join", j.key}, 2);
    hd_secret_of(&j.secret, key, strlen(key));
    j.address_bytes = hd_meeting_address(&j.address, &j.secret, 0);
    j.outcome = hd_shared(SIZE * sizeof *j.outcome);
    assert_int_equal(pipe(j.ready), 0);
    return j;
}

static inline void start_rank(job *j, int rank, int size, int64_t deadline_ms)
{
    j->rank[rank] = fork();
    if (j->rank[rank] != 0) {
        return;
    }
    outcome *o = &j->outcome[rank];
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = deadline_ms;
    options.bind = HEDDLE_BIND_NONE;
    const int64_t start_ns = hd_now_ns();
    o->status = heddle_comm_join(&comm, j->key, rank, size, &options);
    o->seconds = (double)(hd_now_ns() - start_ns) * 1e-9;
    snprintf(o->sentence, sizeof o->sentence, "%s", heddle_last_error());
    o->status = o->status == HEDDLE_OK ? heddle_comm_barrier(comm) : o->status;
    heddle_comm_destroy(comm);
    _exit(0);
}

static inline void start_other(job *j, uid_t user, void (*does)(const job *j))
{
    const pid_t pid = fork();
    if (pid == 0) {
        if (user != getuid() && setresuid(user, user, user) != 0) {
            _exit(1);
        }
        does(j);
        _exit(0);
    }
    j->other[j->others++] = pid;
}

static inline void stands_there(const job *j)
{
    if (write(j->ready[1], "", 1) != 1) {
        _exit(1);
    }
}

static inline void await_others(const job *j, int n)
{
    char byte;
    for (int i = 0; i < n; i++) {
        assert_int_equal(read(j->ready[0], &byte, 1), 1);
    }
}

static inline void end_job(job *j)
{
    for (int r = 0; r < SIZE; r++) {
        int how = 0;
        if (j->rank[r] != 0) {
            assert_int_equal(waitpid(j->rank[r], &how, 0), j->rank[r]);
            assert_int_equal(how, 0);
        }
    }
    for (int i = 0; i < j->others; i++) {
        kill(j->other[i], SIGKILL);
        waitpid(j->other[i], NULL, 0);
    }
    close(j->ready[0]);
    close(j->ready[1]);
}

static inline int knock_at(const job *j)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&j->address, j->address_bytes) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

static inline int until_connected(const job *j)
{
    for (int fd;;) {
        if ((fd = knock_at(j)) >= 0) {
            return fd;
        }
        usleep(1000);
    }
}

#endif
