/* Ranks that meet by TCP while calls of the system fail in one of them, or it is killed at one (linked with wrappers of
 * those calls): all end soon, and say why. */
#include "check.h"
#include "ended.h"
#include "runtime/comm/transport/tcp_gather.h"
#include "tcp_job.h"

#include <errno.h>
#include <heddle/reshard.h>

enum { RANKS = 3, HANGS_S = 8, SOON_S = 2 };

/* --- calls that fail ---------------------------------------------------------------------------------------------- */

typedef enum call_kind {
    SOCKET,
    CONNECT,
    OPTION,
    OWN_NAME,
    PEER_NAME,
    BIND,
    LISTEN,
    ACCEPT,
    SEND,
    RECV,
    POLL,
    ANY
} call_kind;

/* Of this process. */
static struct {
    call_kind kind;
    long at; /* the at-th of these strikes; 0: none does */
    int kills;
} plan;
static long *made; /* calls of the kind in question; shared with the test */
static int64_t *killed_ns;

static int strikes(call_kind kind, int error)
{
    if (plan.at == 0 || (plan.kind != ANY && plan.kind != kind) ||
        __atomic_add_fetch(made, 1, __ATOMIC_SEQ_CST) != plan.at) {
        return 0;
    }
    if (plan.kills) {
        *killed_ns = hd_now_ns();
        raise(SIGKILL);
    }
    errno = error;
    return 1;
}

/* NAME(PARAMETERS) of the library, to which the program's objects are linked by this one. */
#define WRAPPED(type, name, kind, error, parameters, arguments)                                                        \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        return strikes(kind, error) ? -1 : __real_##name arguments;                                                    \
    }

WRAPPED(int, socket, SOCKET, EMFILE, (int domain, int type, int protocol), (domain, type, protocol))
WRAPPED(int, connect, CONNECT, ENETUNREACH, (int fd, const struct sockaddr *to, socklen_t bytes), (fd, to, bytes))
WRAPPED(int, setsockopt, OPTION, ENOBUFS, (int fd, int level, int name, const void *value, socklen_t bytes),
        (fd, level, name, value, bytes))
WRAPPED(int, getsockname, OWN_NAME, ENOBUFS, (int fd, struct sockaddr *at, socklen_t *bytes), (fd, at, bytes))
WRAPPED(int, getpeername, PEER_NAME, ENOTCONN, (int fd, struct sockaddr *at, socklen_t *bytes), (fd, at, bytes))
WRAPPED(int, bind, BIND, EADDRINUSE, (int fd, const struct sockaddr *at, socklen_t bytes), (fd, at, bytes))
WRAPPED(int, listen, LISTEN, EADDRINUSE, (int fd, int backlog), (fd, backlog))
WRAPPED(int, accept4, ACCEPT, ENFILE, (int fd, struct sockaddr *at, socklen_t *bytes, int flags),
        (fd, at, bytes, flags))
WRAPPED(ssize_t, send, SEND, ECONNRESET, (int fd, const void *data, size_t bytes, int flags), (fd, data, bytes, flags))
WRAPPED(ssize_t, sendmsg, SEND, ECONNRESET, (int fd, const struct msghdr *out, int flags), (fd, out, flags))
WRAPPED(ssize_t, recv, RECV, ECONNRESET, (int fd, void *data, size_t bytes, int flags), (fd, data, bytes, flags))
WRAPPED(int, poll, POLL, ENOMEM, (struct pollfd * fds, nfds_t n, int wait_ms), (fds, n, wait_ms))

/* --- from the environment ----------------------------------------------------------------------------------------- */

enum { MANY = 400000 };

/* More than a connection takes at once, and a reshard. */
static heddle_status moves(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard *reshard = NULL;
    heddle_reshard_line line;
    const int rank = heddle_comm_rank(comm), from = (rank + RANKS - 1) % RANKS;
    static int32_t own[MANY], theirs[MANY], rows[3 * 9], columns[9 * 3];
    for (int i = 0; i < MANY; i++) {
        own[i] = rank * MANY + i;
    }
    for (int i = 0; i < 27; i++) {
        rows[i] = rank * 27 + i;
    }
    HD_TRY(
        heddle_comm_sendrecv(comm, own, sizeof own, (rank + 1) % RANKS, theirs, sizeof theirs, from, HEDDLE_NO_STREAM));
    CHECK(theirs[0] == from * MANY && theirs[MANY - 1] == from * MANY + MANY - 1);
    HD_TRY(heddle_reshard_parse(&line, "i32[t=9 s=9] on [sp=3]: t@sp -> s@sp"));
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, NULL));
    HD_TRY(heddle_reshard_execute(reshard, rows, columns, HEDDLE_NO_STREAM));
    for (int i = 0; i < 27; i++) {
        CHECK(columns[i] == i / 3 * 9 + rank * 3 + i % 3);
    }
out:
    heddle_reshard_destroy(reshard);
    return st;
}

/* Not HEDDLE_ERR_INTERNAL: nothing was wrong that ended well. */
static int is_a_reason(heddle_status st)
{
    return st == HEDDLE_OK || st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_PEER || st == HEDDLE_ERR_TIMEOUT ||
           st == HEDDLE_ERR_NOMEM;
}

/* One rank in which a call fails, and those who meet it. */
typedef struct attempt {
    job j;
    int victim;
    long at, *made;
} attempt;

/* The others may know nothing of a rank that has not come, so they wait for their deadline. */
static void begin(attempt *a, call_kind kind, int64_t deadline_ms)
{
    a->j = new_job();
    made = a->made = hd_shared(sizeof *made);
    for (int r = 0; r < RANKS; r++) {
        plan.at = r == a->victim ? a->at : 0;
        plan.kind = kind;
        start(&a->j, "tcp", 1, deadline_ms, moves,
              SECRET "HEDDLE_RANK=%d HEDDLE_SIZE=3 MASTER_ADDR=127.0.0.1 HEDDLE_PORT=%d", r, a->j.port);
    }
    plan.at = 0;
}

static void finish(attempt *a, call_kind kind)
{
    end_job(&a->j);
    for (int r = 0; r < RANKS; r++) {
        const outcome *o = &a->j.outcome[r];
        if (!is_a_reason(o->status) || (o->status != HEDDLE_OK && o->sentence[0] == '\0')) {
            fail_msg("call %ld of kind %d of rank %d fails: rank %d: %s: %s", a->at, (int)kind, a->victim, r,
                     heddle_status_name(o->status), o->sentence);
        }
    }
}

/* Some of them, all at once; the first of each kind in every build. */
HD_CASE(every_kind_of_call_fails)
{
    static const long at[] = {1, 2, 5, 12, 30};
    enum { ATS = sizeof at / sizeof at[0], ATTEMPTS = 2 * ATS };
    hd_see_processes();
    forces_messages = 1;
    for (call_kind kind = 0; kind < ANY; kind++) {
        attempt all[ATTEMPTS];
        const int64_t start_ns = hd_now_ns();
        int n = 0, struck = 0;
        for (int i = 0; i < ATTEMPTS; i++) {
            if (i % ATS == 0 || hd_goes("call %d of kind %d", i, (int)kind)) {
                all[n] = (attempt){.victim = i / ATS, .at = at[i % ATS]};
                begin(&all[n++], kind, 400);
            }
        }
        for (int i = 0; i < n; i++) {
            finish(&all[i], kind);
            struck += *all[i].made >= all[i].at;
        }
        assert_true(struck > 0);
        assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(HANGS_S));
    }
}

/* What could not be written is followed by nothing, so the others hear of an end and need not wait for what never
 * comes. In some places they do; those are few. */
HD_CASE(a_letter_that_is_lost_is_an_end)
{
    static const long at[] = {8, 12, 20, 30};
    enum { ATS = sizeof at / sizeof at[0], ATTEMPTS = 2 * ATS };
    attempt all[ATTEMPTS];
    int failed = 0, waited = 0;
    hd_see_processes();
    forces_messages = 1;
    for (int i = 0; i < ATTEMPTS; i++) {
        all[i] = (attempt){.victim = i / ATS, .at = at[i % ATS]};
        begin(&all[i], SEND, 5000);
    }
    for (int i = 0; i < ATTEMPTS; i++) {
        int is_failed = 0, has_waited = 0;
        finish(&all[i], SEND);
        for (int r = 0; r < RANKS; r++) {
            is_failed |= all[i].j.outcome[r].status != HEDDLE_OK;
            has_waited |= all[i].j.outcome[r].status == HEDDLE_ERR_TIMEOUT;
        }
        failed += is_failed;
        waited += has_waited;
    }
    assert_true(failed > 0 && 2 * waited <= failed);
}

/* --- killed while every two connect ------------------------------------------------------------------------------- */

static heddle_status connects(hd_tcp_gathering *g, long at)
{
    heddle_status st;
    int listener = -1;
    hd_tcp *tcp = NULL;
    hd_tcp_place place[RANKS];
    hd_tcp_meeting m = {.rank = g->rank, .size = RANKS, .place = place, .deadline_ns = g->patience.deadline_ns};
    HD_TRY(hd_tcp_listen(&listener, &place[g->rank], 1));
    HD_TRY(hd_tcp_gather(place, m.key, g));
    m.star = &g->star;
    plan.kind = ANY;
    plan.kills = 1;
    plan.at = at;
    HD_TRY(hd_tcp_open(&tcp, &m, listener));
    plan.at = 0;
out:
    hd_tcp_star_free(&g->star);
    hd_tcp_close(tcp);
    return st;
}

typedef struct found {
    heddle_status status;
    int64_t ended_ns;
    char sentence[300];
} found;

static void be(int rank, int first_listener, int port, long at, found *f)
{
    static const char word[] = "0123456789abcdef";
    hd_tcp_gathering g = {.rank = rank,
                          .size = RANKS,
                          .host = "127.0.0.1",
                          .port = port,
                          .listener = rank == 0 ? first_listener : -1,
                          .patience = {.deadline_ns = hd_now_ns() + (int64_t)LONG_MS * 1000000}};
    hd_secret_of(&g.secret, word, strlen(word));
    f->status = connects(&g, at);
    f->ended_ns = hd_now_ns();
    snprintf(f->sentence, sizeof f->sentence, "%s", heddle_last_error());
    _exit(0);
}

/* Who has not all its connections yet hears of it at once, and of whom. 0: the victim made no so many calls. */
static int is_killed_at(int victim, long at)
{
    uint8_t bytes[2];
    pid_t pid[RANKS];
    found *f = hd_shared(RANKS * sizeof *f);
    const int listener = hd_tcp_bind(0, 1);
    char who[64];
    made = hd_shared(sizeof *made);
    killed_ns = hd_shared(sizeof *killed_ns);
    assert_int_equal(hd_tcp_port(listener, bytes), 0);
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            be(r, listener, bytes[0] * 256 + bytes[1], r == victim ? at : 0, &f[r]);
        }
    }
    close(listener);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
    }
    snprintf(who, sizeof who, "rank %d ended while the ranks were meeting", victim);
    for (int r = 0; r < RANKS && *killed_ns != 0; r++) {
        const int is_right = f[r].status == HEDDLE_ERR_PEER ? strstr(f[r].sentence, "ended while the ranks") != NULL
                                                            : f[r].status == HEDDLE_OK && r != 0;
        if (r != victim && (!is_right || f[r].ended_ns - *killed_ns > hd_test_limit_ns(SOON_S) ||
                            (r == 0 && strstr(f[r].sentence, who) == NULL))) {
            fail_msg("rank %d was killed at its call %ld: rank %d, %.1f s later: %s: %s", victim, at, r,
                     (double)(f[r].ended_ns - *killed_ns) * 1e-9, heddle_status_name(f[r].status), f[r].sentence);
        }
    }
    return *killed_ns != 0;
}

HD_CASE(killed_at_every_call_while_lines_are_made)
{
    hd_see_processes();
    for (int victim = 0; victim < RANKS; victim++) {
        long at = 1;
        while (at < 60 && is_killed_at(victim, at)) {
            at += hd_call_step();
        }
        assert_true(at > 6);
    }
}

/* Rank 1 has told rank 0 where it listens, and calls nobody more. */
HD_CASE(the_named_transport_tells_who_died)
{
    hd_see_processes();
    job j = new_job();
    made = hd_shared(sizeof *made);
    killed_ns = hd_shared(sizeof *killed_ns);
    start_rank(&j, 0, RANKS, LONG_MS);
    close(call(&j)); /* it listens, so the first call of rank 1 is not in vain */
    for (int r = 1; r < RANKS; r++) {
        plan.at = r == 1 ? 2 : 0;
        plan.kind = CONNECT;
        plan.kills = 1;
        start_rank(&j, r, RANKS, LONG_MS);
    }
    plan.at = 0;
    end_job(&j);
    assert_true(*killed_ns != 0);
    for (int r = 0; r < RANKS; r += 2) {
        ended(j.outcome, r, HEDDLE_ERR_PEER, SOON_S, "rank 1 ended while the ranks were meeting", NULL);
    }
}

/* Nobody knows of it, so the others wait for their deadline; rank 0, whose is first, knows whom it has waited for. */
HD_CASE(a_rank_that_dies_before_it_calls_is_missed_at_the_deadline)
{
    hd_see_processes();
    job j = new_job();
    made = hd_shared(sizeof *made);
    killed_ns = hd_shared(sizeof *killed_ns);
    for (int r = 0; r < RANKS; r++) {
        plan.at = r == 1;
        plan.kind = CONNECT;
        plan.kills = 1;
        start_rank(&j, r, RANKS, (r == 0 ? 1 : 4) * hd_test_wait_ns(1e-3 * SHORT_MS) / 1000000);
    }
    plan.at = 0;
    end_job(&j);
    assert_true(*killed_ns != 0);
    for (int r = 0; r < RANKS; r += 2) {
        ended(j.outcome, r, HEDDLE_ERR_TIMEOUT, 4e-3 * SHORT_MS + SOON_S, "before the deadline",
              r == 0 ? "rank 1 did not" : "rank 0", NULL);
    }
}

static heddle_status no_rank_gets_here(heddle_comm *comm, void *arg)
{
    (void)arg;
    return heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d has met them all", heddle_comm_rank(comm));
}

/* Who has started the ranks sees it, and tells the others, which need not be ended. */
HD_CASE(a_started_rank_that_dies_before_it_calls_is_known_at_once)
{
    hd_see_processes();
    made = hd_shared(sizeof *made);
    killed_ns = hd_shared(sizeof *killed_ns);
    plan.at = 1; /* of either of the two that call */
    plan.kind = CONNECT;
    plan.kills = 1;
    HD_FAILS(HEDDLE_ERR_PEER, run_to_their_end(RANKS, "tcp", no_rank_gets_here, NULL));
    plan.at = 0;
    assert_true(strstr(heddle_last_error(), "was killed by signal 9") != NULL);
    assert_true(*killed_ns != 0);
}
