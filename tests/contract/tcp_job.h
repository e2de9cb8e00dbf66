/* Processes that the environment tells to meet by TCP, and others that call there. */
#ifndef HD_TEST_TCP_JOB_H
#define HD_TEST_TCP_JOB_H

#include "outcome.h"

#include "runtime/base/base.h"

#include <arpa/inet.h>
#include <heddle/comm.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 6, LONG_MS = 20000, SHORT_MS = 1200 };

#define SECRET "HEDDLE_KEY=0123456789abcdef "

typedef struct job {
    int port, held, n; /* the port is held for this job among those of all such tests */
    pid_t pid[MOST];
    outcome *outcome; /* [MOST] */
} job;

static inline int try_port(int port)
{
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1; /* connections that are dying do not count */
    const int is_free = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                        bind(fd, (const struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return is_free;
}

/* A name that one process has at a time: who looks for a port before the ranks of another job listen there takes
 * another one. */
static inline int hold_port(int port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "heddle-test-port-%d", port);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&name, sizeof name) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

/* Below those that the kernel gives to whoever asks for any. */
static inline void take_port(job *j)
{
    static int next;
    for (int i = 0; i < 1000; i++) {
        j->port = 20000 + (getpid() * 13 + next++) % 12000;
        j->held = hold_port(j->port);
        if (j->held >= 0 && try_port(j->port)) {
            return;
        }
        close(j->held);
    }
    fail_msg("no port is free");
}

static inline job new_job(void)
{
    job j = {.outcome = hd_shared(MOST * sizeof(outcome))};
    take_port(&j);
    return j;
}

/* "RANK=0 WORLD_SIZE=2": these and no others of those that matter here. */
static inline void environment(const char *words)
{
    static const char *const names[] = {
        "HEDDLE_RANK", "HEDDLE_SIZE", "HEDDLE_KEY",       "HEDDLE_PORT",         "RANK", "WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL};
    char text[512];
    char *rest = NULL;
    for (int i = 0; names[i] != NULL; i++) {
        unsetenv(names[i]);
    }
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = 0;
        setenv(word, value + 1, 1);
    }
}

static int forces_messages; /* ranks that are started from now on */

/* What a rank does with its communicator; `turn` of `turns`, one after another. */
typedef heddle_status (*job_rank)(heddle_comm *comm);

static inline void be_rank(outcome *o, const char *where, int turns, int64_t deadline_ms, job_rank does)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = (int64_t)((double)deadline_ms * hd_test_crowding()); /* others come in time */
    options.bind = HEDDLE_BIND_NONE;
    options.force_messages = forces_messages;
    o->status = HEDDLE_OK;
    for (int turn = 0; turn < turns && o->status == HEDDLE_OK; turn++) {
        heddle_comm *comm = NULL;
        const int64_t start_ns = hd_test_now_ns();
        o->status = heddle_comm_open(&comm, where, &options);
        o->seconds = (double)(hd_test_now_ns() - start_ns) * 1e-9;
        snprintf(o->describe, sizeof o->describe, "%s", heddle_comm_describe(comm));
        o->status = o->status == HEDDLE_OK ? heddle_comm_barrier(comm) : o->status;
        o->status = o->status == HEDDLE_OK && does != NULL ? does(comm) : o->status;
        snprintf(o->sentence, sizeof o->sentence, "%s", heddle_last_error());
        heddle_comm_destroy(comm);
    }
    _exit(0);
}

/* The next process: the words are those of its environment. */
static inline int start(job *j, const char *where, int turns, int64_t deadline_ms, job_rank does, const char *format,
                        ...)
{
    char words[512];
    va_list of;
    va_start(of, format);
    vsnprintf(words, sizeof words, format, of);
    va_end(of);
    const int i = j->n++;
    fflush(NULL);
    j->pid[i] = fork();
    if (j->pid[i] == 0) {
        environment(words);
        be_rank(&j->outcome[i], where, turns, deadline_ms, does);
    }
    return i;
}

/* Rank `rank` of `size` as it should be. */
static inline int start_rank(job *j, int rank, int size, int64_t deadline_ms)
{
    return start(j, "tcp", 1, deadline_ms, NULL,
                 SECRET "HEDDLE_RANK=%d HEDDLE_SIZE=%d MASTER_ADDR=127.0.0.1 HEDDLE_PORT=%d", rank, size, j->port);
}

static inline void end_job(job *j)
{
    for (int i = 0; i < j->n; i++) {
        assert_int_equal(waitpid(j->pid[i], NULL, 0), j->pid[i]);
    }
    assert_true(try_port(j->port)); /* nothing listens there any more */
    close(j->held);
}

/* Connected to the job's port. */
static inline int call(const job *j)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)j->port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    for (int turn = 0; turn < 5000; turn++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0) {
            return fd;
        }
        close(fd);
        usleep(2000);
    }
    fail_msg("nobody listens at port %d", j->port);
    return -1;
}

#endif
